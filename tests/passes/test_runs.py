"""The rewrite changes no value: graphs run in a Session before and after, as a file and live."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from golden_cases import one_shot
from hypothesis import given, settings
from hypothesis import strategies as st

from mx_rec import ops
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.graph.apply_live import apply_live
from mx_rec.graph.iterators import replaced_get_nexts
from mx_rec.graph.view import GraphView
from mx_rec.passes import PassManager, PipelineOptions, PipelineResult, default_pipeline, find_lookups
from mx_rec.passes.find_lookups import FindLookups
from mx_rec.passes.hoist_lookups import HoistLookups
from mx_rec.util.initialize import init, terminate_config_initializer

tf1 = tf.compat.v1
DIM = 4
OPTIONS = [
    PipelineOptions(),
    PipelineOptions(prefetch=5, parallel_calls=3),
    PipelineOptions(prune=False),
    PipelineOptions(fuse=False),
]


@pytest.fixture(autouse=True)
def fresh() -> Any:
    tf1.disable_eager_execution()
    terminate_config_initializer()
    init(use_dynamic_expansion=True)
    yield
    terminate_config_initializer()


def dataset(seed: int = 0, batches: int = 9) -> Any:
    random = np.random.RandomState(seed)
    ids = random.randint(-40, 40, (batches * 4, 3)).astype(np.int64)
    words = np.array([[f"w{value % 7}" for value in row] for row in ids])
    label = (ids.sum(1) % 2).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices({"ids": ids, "label": label, "words": words}).batch(4)


class Model:
    """A script: tables, one train side, perhaps an eval side, by-address updates.

    Everything it is run by is a name, so that it can run as a file too.
    """

    def __init__(self, kind: str) -> None:
        self.steps: dict[str, list[str]] = {}
        self.starts: dict[str, str | None] = {}
        with tf.Graph().as_default() as self.graph:
            tf1.set_random_seed(3)
            self.table = create_table(tf.int64, DIM, "user", tf1.truncated_normal_initializer(0.5))
            self.words = create_table(tf.int64, DIM, "words", tf1.random_uniform_initializer(-1, 1))
            vocabulary = tf1.lookup.StaticHashTable(
                tf1.lookup.KeyValueTensorInitializer([f"w{i}" for i in range(5)], list(range(5)), tf.string, tf.int64),
                -1,
            )
            self.weight = tf1.get_variable("w", [6 * DIM, 1], use_resource=True, initializer=tf1.ones_initializer())
            getattr(self, f"_{kind}")(vocabulary)
            self.init = tf.group(tf1.global_variables_initializer(), tf1.tables_initializer()).name

    def _initializable(self, vocabulary: Any) -> None:
        iterator = tf1.data.make_initializable_iterator(dataset())
        self._train(iterator.get_next(), vocabulary)
        self.starts["train"] = iterator.initializer.name

    def _one_shot(self, vocabulary: Any) -> None:
        self._train(tf1.data.make_one_shot_iterator(dataset(batches=25)).get_next(), vocabulary)
        self.starts["train"] = None

    def _from_structure(self, vocabulary: Any) -> None:
        data, other = dataset(), dataset(1, 3)
        iterator = tf1.data.Iterator.from_structure(tf1.data.get_output_types(data), tf1.data.get_output_shapes(data))
        self.starts["train"] = iterator.make_initializer(data).name
        batch = iterator.get_next()
        self._train(batch, vocabulary)
        self.starts["eval"] = iterator.make_initializer(other).name
        self._eval(batch, vocabulary)

    def _two_iterators(self, vocabulary: Any) -> None:
        for side, data in (("train", dataset()), ("eval", dataset(1, 3))):
            iterator = tf1.data.make_initializable_iterator(data)
            getattr(self, f"_{side}")(iterator.get_next(), vocabulary)
            self.starts[side] = iterator.initializer.name

    def _two_draws(self, vocabulary: Any) -> None:
        """Two get_nexts on one iterator."""
        iterator = tf1.data.make_initializable_iterator(dataset(batches=10))
        first, second = iterator.get_next(), iterator.get_next()
        self._train(first, vocabulary)
        self._eval(second, vocabulary)
        self.starts["train"] = iterator.initializer.name

    def _by_handle(self, vocabulary: Any) -> None:
        """Both sides draw by handle; either could be given the handle of the other."""
        for side, data in (("train", dataset()), ("eval", dataset(1, 3))):
            source = tf1.data.make_initializable_iterator(data)
            types, shapes = tf1.data.get_output_types(data), tf1.data.get_output_shapes(data)
            handle = tf1.placeholder_with_default(source.string_handle(), [])
            iterator = tf1.data.Iterator.from_string_handle(handle, types, shapes)
            getattr(self, f"_{side}")(iterator.get_next(), vocabulary)
            self.starts[side] = source.initializer.name

    def _shared(self, vocabulary: Any) -> None:
        """The step reads what the lookups' preprocessing computes, and waits for the batch."""
        iterator = tf1.data.make_initializable_iterator(dataset())
        batch = iterator.get_next()
        is_small = tf.reduce_all(batch["ids"] < 1000)
        with tf.control_dependencies([tf.raw_ops.Assert(condition=is_small, data=[batch["ids"]])]):
            batch["ids"] = tf.identity(batch["ids"])
        self._train(batch, vocabulary)
        keys = self.graph.get_tensor_by_name("train/keys:0")
        with tf.control_dependencies([batch["label"]]):
            after = tf.constant(1.5, name="after")
        self.steps["train"] += [tf.reduce_sum(keys).name, after.name]
        self.starts["train"] = iterator.initializer.name

    def _logits(self, side: str, batch: dict, vocabulary: Any) -> tf.Tensor:
        is_train = side == "train"
        keys = tf.math.floormod(batch["ids"] * 7 + 1, tf.constant(37, tf.int64), name=f"{side}/keys")
        user = sparse_lookup(self.table, keys, is_train=is_train, name=f"user_{side}")
        word = sparse_lookup(self.words, vocabulary.lookup(batch["words"]), is_train=is_train, name=f"word_{side}")
        both = tf.reshape(tf.concat([user, word], 1), [-1, 6 * DIM])
        return tf.squeeze(tf.matmul(both, self.weight), -1)

    def _train(self, batch: dict, vocabulary: Any) -> None:
        logits = self._logits("train", batch, vocabulary)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=batch["label"], logits=logits))
        rows = self.graph.get_collection("ASCEND_SPARSE_LOOKUP_LOCAL_EMB")
        addresses = self.graph.get_collection("ASCEND_SPARSE_LOOKUP_ID_OFFSET")
        dense, user, word = tf.gradients(loss, [self.weight, *rows])
        updates = [
            tf1.train.GradientDescentOptimizer(0.1).apply_gradients([(dense, self.weight)]),
            ops.apply_lazy_adam_by_address(self.table.handle, addresses[0], user, 0.01, 0.9, 0.999, 1e-8),
            ops.apply_sgd_by_address(self.words.handle, addresses[1], word, 0.05, 0.0),
        ]
        self.steps["train"] = [loss.name, tf.group(*updates).name]

    def _eval(self, batch: dict, vocabulary: Any) -> None:
        self.steps["eval"] = [self._logits("eval", batch, vocabulary).name]


def run(graph: tf.Graph, model: Model, epochs: int = 2) -> tuple[list, dict]:
    """All values of all steps, and what the tables hold at the end."""
    values = []
    with tf1.Session(graph=graph) as session:
        session.run(model.init)
        for _ in range(epochs):
            for side in model.steps:
                values.extend(epoch(session, model.steps[side], model.starts.get(side)))
        return values, {table.table_name: export(session, table) for table in (model.table, model.words)}


def epoch(session: Any, names: list[str], start: str | None) -> list:
    if start:
        session.run(start)
    values = []
    while len(values) < 20:
        try:
            values.append([value for value in session.run(names) if value is not None])
        except tf.errors.OutOfRangeError:
            break
    return values


def export(session: Any, table: Any) -> list:
    (handle,) = session.graph.get_operation_by_name(table.handle.op.name).outputs
    with session.graph.as_default():
        return session.run(ops.table_export(handle))


def rewrite(model: Model, options: PipelineOptions) -> PipelineResult:
    return PassManager(default_pipeline(options)).run(model.graph.as_graph_def())


def assert_same(actual: tuple, expected: tuple) -> None:
    assert len(expected[0]) > 8
    np.testing.assert_equal(actual[0], expected[0])
    np.testing.assert_equal(actual[1], expected[1])


def imported(graph_def: Any) -> tf.Graph:
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    return graph


KINDS = ["initializable", "one_shot", "from_structure", "two_iterators", "two_draws", "by_handle", "shared"]


@pytest.mark.parametrize("options", OPTIONS, ids=["default", "parallel", "unpruned", "unfused"])
@pytest.mark.parametrize("kind", KINDS)
def test_same_losses_rows_and_counts(kind: str, options: PipelineOptions) -> None:
    model = Model(kind)
    expected = run(model.graph, model)
    model = Model(kind)
    result = rewrite(model, options)
    assert all(not report.refusals for report in result.reports)
    as_file = run(imported(result.graph_def), model)
    assert_same(as_file, expected)
    apply_live(model.graph, result.edits)
    assert_same(run(model.graph, model), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_the_moved_part_runs_in_the_step(kind: str) -> None:
    model = Model(kind)
    result = rewrite(model, PipelineOptions())
    for names in model.steps.values():
        targets = [name.split(":")[0] for name in names]
        left = ancestors(GraphView(result.graph_def), targets)
        assert "IteratorGetNext" in left.values()
        assert not {"MxRecUnique", "LookupTableFindV2", "Assert"} & set(left.values())
        assert not {"train/keys", "eval/keys"} & set(left)
    moved = find_lookups(GraphView(result.graph_def))
    assert moved and all(lookup.is_moved for lookup in moved)


def test_sparse_and_ragged_features() -> None:
    """Their components are variants, which pass through the dataset function; their values are looked up."""
    values = []
    for is_rewritten in (False, True):
        terminate_config_initializer()
        init(use_dynamic_expansion=True)
        with tf.Graph().as_default() as graph:
            table = create_table(tf.int64, 2, "t", tf1.random_normal_initializer(seed=1))
            sparse = tf.sparse.from_dense(np.array([[1, 0, 2], [0, 3, 0], [4, 5, 6]], np.int64))
            ragged = tf.ragged.constant([[1, 2], [3], [4, 5, 6]], dtype=tf.int64)
            nested = {"s": sparse, "inner": (ragged, tf.constant([1.0, 2.0, 3.0]))}
            iterator = tf1.data.make_initializable_iterator(tf.data.Dataset.from_tensor_slices(nested).batch(2))
            batch = iterator.get_next()
            inner, label = batch["inner"]
            looked_up = [
                sparse_lookup(table, ids, name=name)
                for name, ids in (("s", batch["s"].values), ("r", inner.flat_values))
            ]
            fetch = [batch["s"].indices, inner.row_splits, tf.identity(label), *looked_up]
        if is_rewritten:
            result = PassManager(default_pipeline()).run(graph.as_graph_def())
            assert not any(report.refusals for report in result.reports)
            apply_live(graph, result.edits)
        with tf1.Session(graph=graph) as session:
            session.run(iterator.initializer)
            values.append([session.run(fetch) for _ in range(2)])
    np.testing.assert_equal(values[1], values[0])


def ancestors(view: GraphView, names: list[str]) -> dict[str, str]:
    """Ops, by name, of all that a step which fetches these nodes runs."""
    found: dict[str, str] = {}
    stack = list(names)
    while stack:
        node = view.node(stack.pop())
        if node.name not in found:
            found[node.name] = node.op
            stack.extend([*(ref.node for ref in node.inputs), *node.controls])
    return found


def test_an_assert_in_the_moved_part_still_fails_the_step() -> None:
    model = Model("shared")
    bound = model.graph.get_operation_by_name("Less/y").get_attr("value")
    result = rewrite(model, PipelineOptions())
    graph_def = result.graph_def
    (function,) = [f for f in graph_def.library.function if f.signature.name.startswith("mx_rec_look_ahead")]
    (limit,) = [node for node in function.node_def if node.name == "Less_y"]
    assert limit.attr["value"].tensor == bound
    limit.attr["value"].tensor.int64_val[0] = -1000
    with tf1.Session(graph=imported(graph_def)) as session:
        session.run(model.init)
        session.run(model.starts["train"])
        with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
            session.run(model.steps["train"])


def test_draws_that_wait_for_each_other() -> None:
    """The second get_next waits for the first, which is replaced too."""
    values = []
    for is_rewritten in (False, True):
        terminate_config_initializer()
        init(use_dynamic_expansion=True)
        with tf.Graph().as_default() as graph:
            table = create_table(tf.int64, 2, "t", tf1.random_normal_initializer(seed=1))
            iterators = [tf1.data.make_initializable_iterator(dataset(seed)) for seed in range(2)]
            first = iterators[0].get_next()
            with tf.control_dependencies([first["ids"]]):
                second = iterators[1].get_next()
            fetch = [sparse_lookup(table, batch["ids"], name=f"l{i}").name for i, batch in enumerate([first, second])]
        if is_rewritten:
            apply_live(graph, PassManager(default_pipeline()).run(graph.as_graph_def()).edits)
        with tf1.Session(graph=graph) as session:
            session.run([iterator.initializer for iterator in iterators])
            values.append([session.run(fetch) for _ in range(5)])
    np.testing.assert_equal(values[1], values[0])


@pytest.mark.parametrize("kind", KINDS)
def test_hoist_alone_changes_no_value(kind: str) -> None:
    model = Model(kind)
    expected = run(model.graph, model)
    model = Model(kind)
    result = PassManager([FindLookups(), HoistLookups(2, 2)]).run(model.graph.as_graph_def())
    assert result.modified
    assert_same(run(imported(result.graph_def), model), expected)


def test_reserving_rows_only_where_training_is_alone() -> None:
    def reserves(kind: str) -> set[bool]:
        functions = rewrite(Model(kind), PipelineOptions()).graph_def.library.function
        looking = ("MxRecLookAhead", "MxRecPrepareMany")
        nodes = [node for function in functions for node in function.node_def if node.op in looking]
        return {node.attr["reserve"].b for node in nodes}

    assert reserves("initializable") == {True}
    assert reserves("one_shot") == {True}
    assert reserves("from_structure") == {False}
    assert reserves("two_iterators") == {True, False}
    assert reserves("two_draws") == {False}


def test_equal_preprocessing_of_train_and_eval_runs_once() -> None:
    for fuse in (False, True):
        functions = rewrite(Model("from_structure"), PipelineOptions(fuse=fuse)).graph_def.library.function
        (function,) = [f for f in functions if f.signature.name.startswith("mx_rec_look_ahead")]
        counts = [node.op for node in function.node_def]
        assert counts.count("FloorMod") == 1
        assert counts.count("LookupTableFindV2") == 1
        if fuse:
            (prepare,) = [node for node in function.node_def if node.op == "MxRecPrepareMany"]
            assert prepare.attr["N"].i == 2
        assert counts.count("MxRecUnique") == (0 if fuse else 2)
        assert counts.count("MxRecLookAhead") == (0 if fuse else 2)


@pytest.mark.parametrize("kind", ["initializable", "one_shot"])
def test_the_old_batch_fails_with_advice(kind: str) -> None:
    model = Model(kind)
    apply_live(model.graph, rewrite(model, PipelineOptions(prune=False)).edits)
    (old,) = replaced_get_nexts(GraphView(model.graph.as_graph_def()))
    with tf1.Session(graph=model.graph) as session:
        session.run(model.init)
        if model.starts["train"]:
            session.run(model.starts["train"])
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"now prepared ahead of the step.*get_target_batch"):
            session.run(f"{old}:0")
        assert len(session.run(model.steps["train"])) == 2


def test_tensors_computed_from_the_batch_belong_to_the_batch_of_the_step() -> None:
    model = Model("initializable")
    names = ["train/keys:0", "mx_rec/user/user_train/ids:0", "mx_rec/user/user_train/addresses:0"]
    apply_live(model.graph, rewrite(model, PipelineOptions()).edits)
    keys = np.random.RandomState(0).randint(-40, 40, (36, 3)).astype(np.int64).reshape(9, 4, 3) * 7 + 1
    with tf1.Session(graph=model.graph) as session:
        session.run([model.init])
        session.run(model.starts["train"])
        for batch in keys:
            moved, entrance, addresses, _ = session.run([*names, *model.steps["train"][1:]])
            np.testing.assert_equal(moved, batch % 37)
            np.testing.assert_equal(entrance, batch % 37)
            assert len(addresses) == len(np.unique(batch % 37))


def test_collections_and_shapes_of_a_live_graph() -> None:
    model = Model("initializable")
    graph = model.graph
    before = {name: list(graph.get_collection(name)) for name in graph.collections}
    apply_live(graph, rewrite(model, PipelineOptions()).edits)
    for name in before:
        assert graph.get_collection(name) == before[name]
    (maker,) = graph.get_collection("ASCEND_CUTTING_POINT_INITIALIZER")
    assert maker.name == model.starts["train"]
    (new,) = replaced_get_nexts(GraphView(graph.as_graph_def())).values()
    restore = graph.get_operation_by_name("mx_rec/user/user_train/embeddings").inputs[1]
    assert restore.op.name == new
    assert restore.shape.as_list() == [None, 3]


def with_conditionals(make: Any) -> tuple[tf.Graph, list[str], list[str]]:
    """Ids behind assertions and conditionals; the step reads the conditional's other result and its branch."""
    with tf.Graph().as_default() as graph:
        tables = [create_table(tf.int64, 2, f"t{index}", tf1.random_normal_initializer(seed=1)) for index in range(2)]
        iterator = make(dataset())
        batch = iterator.get_next()
        checks = [tf.debugging.assert_less(batch["ids"], tf.constant(38, tf.int64), message="a large id")]
        with tf.control_dependencies(checks):
            ids = tf.identity(batch["ids"])
        vocabulary = buckets()

        def yes() -> tuple[tf.Tensor, tf.Tensor]:
            found = vocabulary.lookup(batch["words"]) * 2
            inner = tf1.cond(ids[0, 0] > 5, lambda: found + 1, lambda: ids)
            return inner, tf.cast(found, tf.float32) * batch["label"][:, tf.newaxis]

        chosen, other = tf1.cond(ids[0, 1] > 0, yes, lambda: (-ids, tf.zeros_like(ids, tf.float32)))
        rows = [sparse_lookup(table, keys, name=f"l{i}") for i, (table, keys) in enumerate(zip(tables, [ids, chosen]))]
        starts = [tf1.tables_initializer().name, *([iterator.initializer.name] if make is INITIALIZABLE else [])]
        return graph, starts, [tensor.name for tensor in (*rows, chosen, other, tf.identity(batch["label"]))]


INITIALIZABLE, ONE_SHOT = tf1.data.make_initializable_iterator, tf1.data.make_one_shot_iterator


def buckets() -> Any:
    keys = tf1.lookup.KeyValueTensorInitializer([f"w{i}" for i in range(3)], list(range(3)), tf.string, tf.int64)
    return tf1.lookup.StaticVocabularyTable(keys, 2)


@pytest.mark.parametrize("make", [INITIALIZABLE, ONE_SHOT], ids=["initializable", "one_shot"])
@pytest.mark.parametrize("use_v2", [False, True], ids=["v1", "v2"])
def test_conditionals_and_assertions_run_in_the_dataset(use_v2: bool, make: Any) -> None:
    (tf1.enable_control_flow_v2 if use_v2 else tf1.disable_control_flow_v2)()
    values = []
    for is_rewritten in (False, True):
        terminate_config_initializer()
        init(use_dynamic_expansion=True)
        graph, starts, fetches = with_conditionals(make)
        if is_rewritten:
            result = PassManager(default_pipeline()).run(graph.as_graph_def())
            assert not any(report.refusals for report in result.reports)
            apply_live(graph, result.edits)
        values.append([])
        with tf1.Session(graph=graph) as session:
            for name in starts:
                session.run(name)
            for _ in range(9):
                try:
                    values[-1].append(session.run(fetches))
                except tf.errors.InvalidArgumentError as error:
                    assert "a large id" in str(error)
                    values[-1].append("a large id")
    tf1.disable_control_flow_v2()
    assert 0 < values[0].count("a large id") < 9
    assert [v == "a large id" for v in values[1]] == [v == "a large id" for v in values[0]]
    np.testing.assert_equal(values[1], values[0])


def look_up_within(kind: str, look_up: Any, words: tf.Tensor) -> tf.Tensor:
    if kind == "map_fn":
        return tf.map_fn(look_up, words, fn_output_signature=tf.int64)
    if kind == "function":
        return tf.function(look_up, autograph=False)(words)
    start = [0, look_up(words)]
    return tf.while_loop(lambda i, _: i < 3, lambda i, total: (i + 1, total + look_up(words)), start)[1]


@pytest.mark.parametrize("kind", ["map_fn", "function", "while"])
def test_functions_around_a_vocabulary_run_in_the_dataset(kind: str) -> None:
    tf1.enable_control_flow_v2()
    values = []
    for is_rewritten in (False, True):
        terminate_config_initializer()
        init(use_dynamic_expansion=True)
        with tf.Graph().as_default() as graph:
            iterator = INITIALIZABLE(dataset())
            words, look_up = iterator.get_next()["words"], buckets().lookup
            keys = look_up_within(kind, look_up, words)
            rows = sparse_lookup(create_table(tf.int64, 2, "t", tf1.random_normal_initializer(seed=1)), keys)
            start = tf.group(iterator.initializer, tf1.tables_initializer())
        if is_rewritten:
            result = PassManager(default_pipeline()).run(graph.as_graph_def())
            assert not any(report.refusals for report in result.reports)
            apply_live(graph, result.edits)
        with tf1.Session(graph=graph) as session:
            session.run(start)
            values.append([session.run([rows, keys]) for _ in range(9)])
    tf1.disable_control_flow_v2()
    np.testing.assert_equal(values[1], values[0])


def test_one_shot_golden_graph_runs() -> None:
    """A one-shot iterator whose dataset function makes a captured vocabulary again by its shared name."""
    graph_def = one_shot()
    initialise = graph_def.node.add(name="fill", op="InitializeTableV2", input=["vocabulary", "words/all", "words/at"])
    initialise.attr["Tkey"].type, initialise.attr["Tval"].type = (
        tf.string.as_datatype_enum,
        tf.int64.as_datatype_enum,
    )
    for name, value in (("words/all", [str(i) for i in range(15)]), ("words/at", np.arange(15) * 100)):
        node = graph_def.node.add(name=name, op="Const")
        tensor = tf1.make_tensor_proto(value)
        node.attr["dtype"].type = tensor.dtype
        node.attr["value"].tensor.CopyFrom(tensor)
    result = PassManager(default_pipeline()).run(graph_def)
    rows = []
    for candidate in (graph_def, result.graph_def):
        with tf1.Session(graph=imported(candidate)) as session:
            session.run("fill")
            rows.append([session.run("mx_rec/user/first/addresses:0").size for _ in range(8)])
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run("mx_rec/user/first/addresses:0")
    assert rows[0] == rows[1]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["add", "mod", "max", "neg", "cast", "identity", "shift", "assert", "variable", "reverse", "cond"]
        ),
        st.integers(0, 30),
        st.integers(0, 30),
    ),
    max_size=12,
)
LOOKUPS = st.lists(st.tuples(st.integers(0, 30), st.booleans(), st.integers(0, 1)), min_size=1, max_size=4)


@settings(max_examples=25, deadline=None)
@given(STEPS, LOOKUPS, st.lists(st.integers(0, 30), max_size=3), st.sampled_from(OPTIONS), st.booleans())
def test_random_graphs_give_the_same_values(
    steps: list, lookups: list, extra: list, options: PipelineOptions, use_v2: bool
) -> None:
    """Random preprocessing, some of which may not move, and random uses of what lies in between."""
    (tf1.enable_control_flow_v2 if use_v2 else tf1.disable_control_flow_v2)()
    graph, fetches = random_graph(steps, lookups, extra)
    expected = run_random(graph, fetches)
    graph, fetches = random_graph(steps, lookups, extra)
    result = PassManager(default_pipeline(options)).run(graph.as_graph_def())
    np.testing.assert_equal(run_random(imported(result.graph_def), fetches), expected)
    apply_live(graph, result.edits)
    np.testing.assert_equal(run_random(graph, fetches), expected)


def random_graph(steps: list, lookups: list, extra: list) -> tuple[tf.Graph, dict]:
    terminate_config_initializer()
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default() as graph:
        tables = [create_table(tf.int64, 2, f"t{i}", tf1.random_normal_initializer(seed=i)) for i in range(2)]
        variable = tf1.get_variable("v", [], tf.int64, use_resource=True, initializer=tf1.constant_initializer(3))
        iterator = tf1.data.make_initializable_iterator(dataset(batches=10))
        tensors = [iterator.get_next()["ids"]]
        with tf.control_dependencies(tensors):  # or TensorFlow may draw them in either order
            tensors.append(iterator.get_next()["ids"])
        for step in steps:
            tensors.append(random_step(tensors, variable, *step))
        fetches: dict[str, list] = {"train": [], "eval": []}
        for index, (source, is_train, table) in enumerate(lookups):
            ids = tensors[source % len(tensors)]
            result = sparse_lookup(tables[table], ids, is_train=is_train, name=f"l{index}")
            fetches["train" if is_train else "eval"].append(result.name)
        for source in extra:
            fetches["eval"].append(tf.negative(tensors[source % len(tensors)]).name)
        fetches["init"] = [tf1.global_variables_initializer().name, iterator.initializer.name]
    return graph, fetches


def random_step(tensors: list, variable: Any, op: str, a: int, b: int) -> tf.Tensor:
    left, right = tensors[a % len(tensors)], tensors[b % len(tensors)]
    if op == "assert":
        with tf.control_dependencies([tf1.assert_greater(right, tf.int64.min)]):
            return tf.identity(left)
    return {
        "add": lambda: left + right,
        "mod": lambda: tf.math.floormod(left, tf.constant(b + 1, tf.int64)),
        "max": lambda: tf.maximum(left, right),
        "neg": lambda: -left,
        "cast": lambda: tf.cast(tf.cast(left, tf.int32), tf.int64),
        "identity": lambda: tf.identity(left),
        "shift": lambda: left + b,
        "variable": lambda: left + variable,
        "reverse": lambda: tf.reverse(left, [0]),
        # No `left + right`: Grappler breaks x + x in a branch of TensorFlow 1, before any rewrite of ours.
        "cond": lambda: tf1.cond(tf.reduce_sum(left) > b, lambda: tf.maximum(left, right), lambda: right * 2),
    }[op]()


def run_random(graph: tf.Graph, fetches: dict) -> list:
    values = []
    config = tf1.ConfigProto()
    # Grappler of TensorFlow 2.15 makes -reverse(-x) to -reverse(x) where only one of the two signs may move.
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf1.Session(graph=graph, config=config) as session:
        for name in fetches["init"]:
            session.run(name)
        for _ in range(2):
            for side in ("train", "eval"):
                values.append(session.run(fetches[side]) if fetches[side] else [])
    return values
