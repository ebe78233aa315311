"""What may run ahead of the step, and what stands in the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from lookup_graphs import LookupGraph

from mx_rec.graph.attrs import DT_INT64, attr_bytes, attr_func, attr_type, attr_types
from mx_rec.graph.node import TensorRef
from mx_rec.graph.slices import slice_analysis
from mx_rec.graph.view import GraphView
from mx_rec.passes import PassManager, PipelineOptions, PipelineResult, default_pipeline, find_lookups

tf1 = tf.compat.v1


def refusals(graph_def: Any) -> list[str]:
    return hoist_refusals(PassManager(default_pipeline()).run(graph_def))


def hoist_refusals(result: PipelineResult) -> list[str]:
    (report,) = [report for report in result.reports if report.name == "hoist_lookups"]
    return [str(refusal) for refusal in report.refusals]


def obstacle(build: Callable[[tf.Tensor], tf.Tensor]) -> str:
    """Why the tensor that TensorFlow code computes from a batch may not run ahead; "" if it may."""
    tf1.disable_eager_execution()
    with tf.Graph().as_default() as graph:
        batch = tf1.data.make_initializable_iterator(tf.data.Dataset.range(4).batch(2)).get_next()
        result = build(batch)
    found = slice_analysis(GraphView(graph.as_graph_def())).origin(result.op.name).obstacle
    return "" if found is None else found.reason


def vocabulary() -> Any:
    return tf1.lookup.StaticHashTable(tf1.lookup.KeyValueTensorInitializer([1], [2], tf.int64, tf.int64), 0)


def changing_table() -> Any:
    return tf1.lookup.experimental.DenseHashTable(tf.int64, tf.int64, -1, -2, -3)


def vocabulary_with_buckets() -> Any:
    """It adds the number of keys to the hashes of what is not among them."""
    keys = tf1.lookup.KeyValueTensorInitializer(["1"], [0], tf.string, tf.int64)
    return tf1.lookup.StaticVocabularyTable(keys, 3)


def checked(x: tf.Tensor) -> tf.Tensor:
    """As scripts check ids: with assertions that wait in one branch of a conditional."""
    checks = [
        tf.debugging.assert_non_negative(x, message="negative id"),
        tf.debugging.assert_less(tf.reduce_sum(x), tf.constant(10**6, tf.int64)),
    ]
    with tf.control_dependencies(checks):
        return tf.identity(x)


def of_two_branches(x: tf.Tensor, lookup: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """A conditional within a conditional."""
    return tf1.cond(x[0] > 1, lambda: tf1.cond(x[1] > 2, lambda: lookup(x), lambda: x * 2), lambda: -x)


MAY_RUN_AHEAD = {
    "vocabulary_with_buckets": lambda x: vocabulary_with_buckets().lookup(tf.strings.as_string(x)),
    "checked": checked,
    "cond": lambda x: of_two_branches(x, vocabulary().lookup),
    "case": lambda x: tf1.case([(x[0] > 3, lambda: x + 1), (x[0] > 1, lambda: x * 2)], lambda: -x),
    "checked_in_cond": lambda x: tf1.cond(x[0] > 1, lambda: checked(x), lambda: -x),
}
MAY_RUN_AHEAD_AS_FUNCTIONS = {
    "map_fn": lambda x: tf.map_fn(vocabulary().lookup, x),
    "while": lambda x: tf1.while_loop(lambda i: i[0] < 9, lambda i: i + 1, [checked(x)]),
    "function": lambda x: tf.function(vocabulary().lookup, autograph=False)(x),
    "checked_in_function": lambda x: tf.function(checked, autograph=False)(x),
    "nested": lambda x: nested(vocabulary(), x),
}


def nested(table: Any, x: tf.Tensor) -> tf.Tensor:
    return tf.function(lambda y: of_two_branches(y, table.lookup), autograph=False)(x)


@pytest.fixture
def control_flow_v2(request: Any) -> Any:
    (tf1.enable_control_flow_v2 if request.param else tf1.disable_control_flow_v2)()
    yield request.param
    tf1.disable_control_flow_v2()


each_version = pytest.mark.parametrize("control_flow_v2", [False, True], indirect=True, ids=["v1", "v2"])


@each_version
@pytest.mark.parametrize("name", MAY_RUN_AHEAD)
def test_conditionals_and_assertions_may_run_ahead(control_flow_v2: bool, name: str) -> None:
    assert obstacle(MAY_RUN_AHEAD[name]) == ""


@pytest.mark.parametrize("control_flow_v2", [True], indirect=True)
@pytest.mark.parametrize("name", MAY_RUN_AHEAD_AS_FUNCTIONS)
def test_pure_bodies_may_run_ahead(control_flow_v2: bool, name: str) -> None:
    assert obstacle(MAY_RUN_AHEAD_AS_FUNCTIONS[name]) == ""


@pytest.mark.parametrize("control_flow_v2", [True], indirect=True)
@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda x: cond_with(x, tf1.placeholder(tf.int64, [])), "is fed at the step"),
        (lambda x: cond_with(x, tf1.get_variable("v", [], tf.int64, use_resource=True)), "reads variable 'v"),
        (
            lambda x: tf1.cond(x[0] > 1, lambda: x + tf.random.uniform([2], 0, 9, tf.int64), lambda: x),
            "RandomUniformInt",
        ),
        (lambda x: tf1.cond(x[0] > 1, lambda: changing_table().lookup(x), lambda: x), "DenseHashTable"),
        (lambda x: tf.function(changing_table().lookup, autograph=False)(x), "a table that may change"),
        (lambda x: tf1.while_loop(lambda i: i[0] < 9, lambda i: tf1.Print(i, [i]) + 1, [x]), "Print"),
    ],
)
def test_impure_bodies_may_not(control_flow_v2: bool, build: Callable, reason: str) -> None:
    assert reason in obstacle(build)


def cond_with(x: tf.Tensor, other: Any) -> tf.Tensor:
    return tf1.cond(x[0] > 1, lambda: x + other, lambda: x)


def test_a_lookup_in_one_branch_stays() -> None:
    tf1.disable_control_flow_v2()
    inside: list[tf.Tensor] = []

    def branch(x: tf.Tensor) -> tf.Tensor:
        inside.append(x + 1)
        return inside[0]

    def build(x: tf.Tensor) -> tf.Tensor:
        tf1.cond(x[0] > 1, lambda: branch(x), lambda: x)
        return inside[0]

    assert "only one branch of a conditional of TensorFlow 1 runs 'cond/add'; lookups in branches" in obstacle(build)


def test_a_merge_of_unlike_branches_is_refused() -> None:
    def build(x: tf.Tensor) -> tf.Tensor:
        first = tf.raw_ops.Switch(data=x, pred=x[0] > 1)
        second = tf.raw_ops.Switch(data=x, pred=x[1] > 1)
        return tf.raw_ops.Merge(inputs=[first.output_false, second.output_true]).output

    assert "merges other than the two branches of one conditional" in obstacle(build)


def calls(function: Callable) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda x: tf.function(function)(x)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: tf.strings.to_number(tf.strings.substr(tf.strings.as_string(x), 0, 1), tf.int64),
        lambda x: tf.strings.to_hash_bucket_fast(tf.strings.as_string(x), 100),
        lambda x: vocabulary().lookup(x),
        lambda x: tf.where(x > 1, x, tf.zeros_like(x)),
        lambda x: tf.unique(x)[0],
        lambda x: tf.dynamic_partition(x, tf.cast(x > 1, tf.int32), 2)[1],
        lambda x: x + tf.random.stateless_uniform([2], [1, 2], maxval=9, dtype=tf.int64, minval=0),
        lambda x: tf.raw_ops.CheckNumerics(tensor=tf.cast(x, tf.float32), message="bad"),
        lambda x: tf1.sparse_tensor_to_dense(tf.sparse.from_dense(x)),
    ],
)
def test_may_run_ahead(build: Callable) -> None:
    assert obstacle(build) == ""


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda x: x + tf1.placeholder(tf.int64, []), "is fed at the step"),
        (lambda x: x + tf1.placeholder_with_default(tf.constant(1, tf.int64), []), "is fed at the step"),
        (lambda x: x + tf1.get_variable("v", [], tf.int64, use_resource=True), "reads variable"),
        (lambda x: tf.gather(tf1.get_variable("v", [9], tf.int64, use_resource=True), x), "reads variable"),
        (lambda x: x + tf1.get_variable("v", [], tf.int64, use_resource=False), "reference to a variable"),
        (lambda x: x + tf.random.uniform([2], 0, 9, tf.int64), "draws random numbers"),
        (lambda x: tf.random.shuffle(x), "draws random numbers"),
        (lambda x: changing_table().lookup(x), "a table that may change between steps"),
        (lambda x: tf1.py_func(lambda v: v, [x], tf.int64), "has state or side effects"),
        (lambda x: tf1.while_loop(lambda i: i[0] < 9, lambda i: i + 1, [x]), "a loop of TensorFlow 1"),
        (lambda x: tf1.Print(x, [x]), "has state or side effects"),
        (calls(lambda x: x + tf.random.uniform([2], 0, 9, tf.int64)), "has op 'RandomUniformInt' with state"),
    ],
)
def test_may_not_run_ahead(build: Callable, reason: str) -> None:
    tf1.disable_control_flow_v2()
    assert reason in obstacle(build)


def test_pure_functions_may_run_ahead_and_others_are_named() -> None:
    def graph(op: str) -> GraphView:
        from tensorflow.core.framework import function_pb2

        function = function_pb2.FunctionDef()
        function.signature.name = "body"
        function.signature.input_arg.add(name="x", type=DT_INT64)
        function.signature.output_arg.add(name="y", type=DT_INT64)
        node = function.node_def.add(name="n", op=op, input=["x"])
        node.attr["T"].type = DT_INT64
        function.ret["y"] = "n:y:0" if op == "Neg" else "x"
        built = LookupGraph()
        built.add_function(function)
        ids = built.batch()[0]
        attrs = {"Tin": attr_types([DT_INT64]), "Tout": attr_types([DT_INT64]), "f": attr_func("body")}
        built.add("call", "PartitionedCall", [ids], attrs)
        return GraphView(built.graph_def())

    assert slice_analysis(graph("Neg")).origin("call").obstacle is None
    found = slice_analysis(graph("PrintV2")).origin("call").obstacle
    assert found is not None
    assert found.reason == "calls function 'body', which has op 'PrintV2' with state or side effects"
    found = slice_analysis(graph("OpOfSomebodyElse")).origin("call").obstacle
    assert found is not None and "op 'OpOfSomebodyElse', which is not known" in found.reason


def test_unknown_ops_are_refused_and_named() -> None:
    graph = LookupGraph()
    ids, _, _ = graph.batch()
    graph.lookup("first", graph.table(), graph.unary("odd", "Neg", ids))
    graph_def = graph.graph_def()
    next(node for node in graph_def.node if node.name == "odd").op = "OpOfSomebodyElse"
    (refusal,) = refusals(graph_def)
    assert refusal.startswith("odd: op 'OpOfSomebodyElse' is not known to this TensorFlow; load the library")


def table_on(device: str, iterator_device: str) -> Any:
    graph = LookupGraph()
    ids, _, _ = graph.batch()
    graph.lookup("first", graph.table(), ids)
    graph_def = graph.graph_def()
    for node in graph_def.node:
        if node.op in ("MxRecTable", "MakeIterator"):
            node.device = device if node.op == "MxRecTable" else iterator_device
    return graph_def


@pytest.mark.parametrize(
    ("device", "iterator_device", "is_refused"),
    [
        ("/job:ps/task:0", "/job:worker/task:0", True),
        ("/job:worker/task:1", "/job:worker/task:0", True),
        ("/job:worker/task:0/device:CPU:0", "/job:worker/task:0", False),
        ("", "/job:worker/task:0", False),
        ("/device:CPU:0", "", False),
    ],
)
def test_tables_of_another_task(device: str, iterator_device: str, is_refused: bool) -> None:
    found = refusals(table_on(device, iterator_device))
    assert bool(found) == is_refused
    if found:
        assert f"is placed on {device!r}, which a dataset function on {iterator_device!r} cannot reach" in found[0]


@pytest.mark.parametrize("op", ["SerializeIterator", "IteratorGetNextAsOptional", "IteratorGetNextSync"])
def test_other_users_of_the_iterator(op: str) -> None:
    graph = LookupGraph()
    iterator = graph.iterator("iterator", graph.dataset())
    attrs = {} if op == "SerializeIterator" else graph.element_attrs()
    graph.add("other", op, [iterator], attrs)
    graph.lookup("first", graph.table(), graph.get_next("batch", iterator)[0])
    (refusal,) = refusals(graph.graph_def())
    assert refusal.startswith(f"other: op {op!r} uses the iterator 'iterator'; only get_next may")


def test_iterators_that_nothing_fills_or_that_come_from_elsewhere() -> None:
    graph = LookupGraph()
    graph.lookup("first", graph.table(), graph.get_next("batch", graph.iterator("iterator"))[0])
    assert refusals(graph.graph_def())[0].startswith("iterator: no MakeIterator in this graph fills it")

    graph = LookupGraph()
    attrs = {"dtype": attr_type(21)}
    outside = graph.add("outside", "Placeholder", (), attrs)
    graph.lookup("first", graph.table(), graph.get_next("batch", graph.iterator("iterator", outside))[0])
    assert "the dataset that fills iterator 'iterator' is not in this graph" in refusals(graph.graph_def())[0]

    graph = LookupGraph()
    iterator = graph.add("session_handle", "Placeholder", (), {"dtype": attr_type(20)})
    graph.lookup("first", graph.table(), graph.get_next("batch", iterator)[0])
    assert "op 'Placeholder' is not an iterator that can be replaced" in refusals(graph.graph_def())[0]


def test_one_shot_without_factory_or_with_a_nameless_vocabulary() -> None:
    from golden_cases import one_shot

    graph_def = one_shot()
    next(node for node in graph_def.node if node.op == "HashTableV2").attr["shared_name"].s = b""
    assert refusals(graph_def)[0].startswith("vocabulary: has no shared_name, so a one-shot iterator cannot reach")


def test_a_string_handle_of_an_iterator_nobody_feeds_from_does_not_matter() -> None:
    graph = LookupGraph()
    iterator = graph.iterator("iterator", graph.dataset())
    graph.add("handle", "IteratorToStringHandle", [iterator])
    graph.lookup("first", graph.table(), graph.get_next("batch", iterator)[0])
    result = PassManager(default_pipeline()).run(graph.graph_def())
    assert not hoist_refusals(result)
    assert GraphView(result.graph_def).node("handle").inputs[0].node == "mx_rec/iterator/iterator"


def test_prune_keeps_what_others_are_placed_with() -> None:
    from mx_rec.graph.attrs import attr_strings

    graph = LookupGraph()
    ids, _, label = graph.batch()
    graph.lookup("first", graph.table(), graph.mod("mod", ids))
    graph.add("near", "Neg", [label], {"T": attr_type(1), "_class": attr_strings(["loc:@mod"])})
    result = PassManager(default_pipeline()).run(graph.graph_def())
    view = GraphView(result.graph_def)
    assert "mod" in view and "mod/y" in view
    assert "mx_rec/user/first/unique" not in view


def test_variants_in_the_moved_part_stay_inside_it() -> None:
    """A tensor list may not become a component of the batch; the step makes its own from the batch."""
    graph = LookupGraph()
    ids, _, _ = graph.batch()
    shape = graph.const("shape", [3])
    types = {"element_dtype": attr_type(DT_INT64), "shape_type": attr_type(DT_INT64)}
    parts = graph.add("list", "TensorListFromTensor", [ids, shape], types)
    graph.add("length", "TensorListLength", [parts])
    inputs = [parts, graph.const("element_shape", [3], 3)]
    whole = graph.add("whole", "TensorListStack", inputs, {"element_dtype": attr_type(DT_INT64)})
    graph.lookup("first", graph.table(), whole)
    result = PassManager(default_pipeline()).run(graph.graph_def())
    assert not hoist_refusals(result)
    view = GraphView(result.graph_def)
    assert 21 not in view.node("mx_rec/batch/get_next").types_attr("output_types")
    assert view.node("length").inputs == (TensorRef("list", 0),)
    assert view.node("list").inputs[0] == TensorRef("mx_rec/batch/get_next", 0)


def test_lookup_facts() -> None:
    graph = LookupGraph()
    iterator = graph.iterator("iterator", graph.dataset())
    ids = graph.get_next("batch", iterator)[0]
    key = graph.mod("mod", ids)
    train = graph.lookup("train", graph.table("user", 4), key)
    graph.unary("frozen", "StopGradient", train, 1)
    graph.lookup("eval", TensorRef("mx_rec/user/handle", 0), key, is_train=False)
    graph_def = graph.graph_def()
    before = find_lookups(GraphView(graph_def))
    assert [(lookup.name, lookup.side, lookup.is_trained) for lookup in before] == [
        ("train", "train", False),
        ("eval", "eval", False),
    ]
    assert {lookup.ids for lookup in before} == {key}
    assert {lookup.entrance for lookup in before} == {"mx_rec/user/train/ids", "mx_rec/user/eval/ids"}
    assert {(lookup.table_name, lookup.dim, lookup.iterator_kind) for lookup in before} == {
        ("user", 4, "initializable")
    }
    pipeline = default_pipeline(PipelineOptions(fuse=False))
    after = find_lookups(GraphView(PassManager(pipeline).run(graph_def).graph_def))
    for old, new in zip(before, after):
        assert new.is_moved and not old.is_moved
        assert (new.name, new.find_node, new.gather_node) == (old.name, old.find_node, old.gather_node)
        assert new.restore_gathers == old.restore_gathers
        assert new.initializers == old.initializers == ("iterator/make",)
        assert new.get_next == "mx_rec/batch/get_next"
        assert new.iterator == "mx_rec/iterator/iterator"
        assert new.reason == ""


def test_marks_of_the_user_survive() -> None:
    graph = LookupGraph()
    ids, _, _ = graph.batch()
    result = graph.lookup("first", graph.table(), ids)
    graph_def = graph.graph_def()
    for node in graph_def.node:
        node.attr["_of_the_user"].CopyFrom(attr_bytes("kept"))
    rewritten = PassManager(default_pipeline()).run(graph_def).graph_def
    old = {node.name for node in graph_def.node}
    assert all("_of_the_user" in node.attr for node in rewritten.node if node.name in old)
    assert GraphView(rewritten).node(result.node).str_attr("_op_impl_mode") == "high_performance"
