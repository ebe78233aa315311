"""Hooks of a MonitoredTrainingSession: the rewrite, and what they ask it to move."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format

from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.errors import GraphRewriteError
from mx_rec.graph import (
    GraphModifierHook,
    LookupSubgraphSlicerHook,
    OrphanLookupKeySlicerHook,
    modify_graph_and_start_emb_cache,
    slice_lookup_subgraph,
    slice_orphan_lookup_keys,
)
from mx_rec.optimizers import lazy_adam_by_addr
from mx_rec.util.initialize import get_initializer, get_target_batch, init, terminate_config_initializer

tf1 = tf.compat.v1
STEPS = 6
BATCH = 8
FILES = {"slicing_summary.csv", "unsliced_full_graph.pbtxt", "sliced_sub_graph.pbtxt", "sliced_full_graph.pbtxt"}


@pytest.fixture(autouse=True)
def clean(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tf1.disable_eager_execution()
    terminate_config_initializer()
    yield
    terminate_config_initializer()


def _dataset(seed=0):
    rng = np.random.RandomState(seed)
    rows = STEPS * BATCH
    words = np.array([f"w{value}" for value in rng.randint(0, 20, rows)])
    columns = {"ids": rng.randint(0, 30, (rows, 2)), "words": words, "y": rng.rand(rows).astype(np.float32)}
    return tf.data.Dataset.from_tensor_slices(columns).batch(BATCH)


class Script:
    """A model with a lookup of ids, one of hashed words to which a fed number is added, and one of constants."""

    def __init__(self, kind: str = "initializable") -> None:
        if kind == "one_shot":
            batch, self.start = tf1.data.make_one_shot_iterator(_dataset()).get_next(), None
        else:
            iterator = tf1.data.make_initializable_iterator(_dataset())
            batch, self.start = iterator.get_next(), iterator.initializer
        self.batch = batch
        self.table = create_table(tf.int64, 4, "user", tf1.random_normal_initializer(0.0, 0.3, seed=5))
        self.other = create_table(tf.int64, 4, "other", tf1.random_normal_initializer(0.0, 0.3, seed=6))
        is_small = tf.reduce_all(batch["ids"] < 99)
        with tf.control_dependencies([tf.raw_ops.Assert(condition=is_small, data=[batch["ids"]])]):
            ids = tf.identity(batch["ids"])
        self.fed = tf1.placeholder_with_default(np.int64(3), [], name="fed")
        hashed = tf.strings.to_hash_bucket_fast(batch["words"], 11, name="hashed")
        self.constants = tf.constant([1, 2, 2, 7], tf.int64, name="constants") + 1
        parts = [
            tf.reduce_sum(sparse_lookup(self.table, ids, name="ids"), [1, 2]),
            tf.reduce_sum(sparse_lookup(self.table, hashed + self.fed, name="fed_ids"), 1),
            tf.reduce_sum(sparse_lookup(self.other, self.constants, name="orphan")),
        ]
        error = tf.add_n([parts[0], parts[1], parts[2] + 0 * parts[0]]) - batch["y"]
        self.loss = tf.reduce_mean(tf.square(error), name="loss")
        self.step_count = tf1.train.get_or_create_global_step()
        optimizer = lazy_adam_by_addr.create_hash_optimizer_by_address(0.05)
        self.step = tf.group(optimizer.minimize(self.loss, self.step_count), name="step")


def _run_monitored(hooks, kind="initializable", local_init=True):
    """Losses until the data ends, and the tables."""
    terminate_config_initializer()
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default():
        script = Script(kind)
        for table in (script.table, script.other):
            table._query("export")  # before the graph is finalized
        contents: list[Any] = []
        losses = []
        scaffold = None
        if local_init and script.start is not None:
            scaffold = tf1.train.Scaffold(local_init_op=tf.group(script.start, tf1.tables_initializer()))
        with tf1.train.MonitoredTrainingSession(hooks=hooks, scaffold=scaffold) as session:
            while not session.should_stop():
                losses.append(session.run([script.loss, script.step])[0])
                if len(losses) == STEPS:
                    for name in ("user", "other"):
                        query = session.graph.get_operation_by_name(f"mx_rec/{name}/export").outputs
                        contents += session._tf_sess().run(list(query))
        return losses, contents


def _assert_same(one, other):
    assert one[0] == other[0]
    assert len(one[0]) == STEPS
    assert len(set(one[0])) == STEPS
    for expected, got in zip(one[1], other[1]):
        np.testing.assert_array_equal(expected, got)


def _summary(directory):
    with open(f"{directory}/slicing_summary.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _graph(path):
    with open(path, encoding="utf-8") as file:
        graph_def = text_format.Parse(file.read(), tf1.GraphDef())
    with tf.Graph().as_default():  # it is whole: TensorFlow imports it
        tf.import_graph_def(graph_def, name="")
    return {node.name: node.op for node in graph_def.node}


def _needed_by_the_step(graph_def):
    """Names of the nodes that the loss and the update need."""
    return {node.name for node in tf1.graph_util.extract_sub_graph(graph_def, ["loss", "step"]).node}


@pytest.mark.parametrize("kind", ["initializable", "one_shot"])
def test_the_modifier_hook_changes_no_value(kind):
    plain = _run_monitored([], kind)
    _assert_same(plain, _run_monitored([GraphModifierHook()], kind))
    _assert_same(plain, _run_monitored([GraphModifierHook(modify_graph=False)], kind))


def test_the_modifier_hook_starts_the_rebuilt_iterators(tmp_path):
    plain = _run_monitored([])
    _assert_same(plain, _run_monitored([GraphModifierHook(dump_graph=True)], local_init=False))
    assert {path.name for path in (tmp_path / "export_graph").iterdir()} == {"old_graph.pbtxt", "new_graph.pbtxt"}


@pytest.mark.parametrize("side", ["train", "eval"])
def test_an_iterator_with_two_datasets_starts_with_that_of_the_side(side):
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default():
        data = [_dataset(seed) for seed in (0, 1)]
        iterator = tf1.data.Iterator.from_structure(
            tf1.data.get_output_types(data[0]), tf1.data.get_output_shapes(data[0])
        )
        for dataset in data:
            iterator.make_initializer(dataset)
        batch = iterator.get_next()
        table = create_table(tf.int64, 4, "user", tf1.random_normal_initializer())
        rows = sparse_lookup(table, batch["ids"], is_train=side == "train")
        if side == "train":
            lazy_adam_by_addr.create_hash_optimizer_by_address().minimize(tf.reduce_sum(rows))
        tf1.train.get_or_create_global_step()
        hook = GraphModifierHook()
        with tf1.train.MonitoredTrainingSession(hooks=[hook, TargetBatch(side == "train")]) as session:
            session.run(rows)
        expected = np.random.RandomState(0 if side == "train" else 1)
        expected.randint(0, 20, STEPS * BATCH)
        np.testing.assert_array_equal(TargetBatch.seen, expected.randint(0, 30, (STEPS * BATCH, 2))[:BATCH])


class TargetBatch(tf1.train.SessionRunHook):
    """Fetches the ids of the batch that the step reads."""

    seen: Any = None

    def __init__(self, is_training):
        self._is_training = is_training

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(get_target_batch(self._is_training)[0])  # ids, words, y

    def after_run(self, run_context, run_values):
        TargetBatch.seen = run_values.results


class Watched(GraphModifierHook):
    """Notes which operations it runs when a session is there."""

    def __init__(self):
        super().__init__()
        self.started = []

    def after_create_session(self, session, coord):
        real = session.run

        def run(fetches, *args, **kwargs):
            self.started += [fetch.type for fetch in [fetches] if isinstance(fetch, tf.Operation)]
            return real(fetches, *args, **kwargs)

        session.run = run
        super().after_create_session(session, coord)
        session.run = real


class Starter(tf1.train.SessionRunHook):
    """Starts an iterator as the hook of an Estimator's input function does."""

    def __init__(self, start):
        self._start = start

    def after_create_session(self, session, coord):
        session.run(self._start)


@pytest.mark.parametrize("started_by", ["tables_initializer", "a hook", "nobody"])
def test_an_iterator_is_started_once(started_by):
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default():
        script = Script()
        hook = Watched()
        hooks = [Starter(script.start), hook] if started_by == "a hook" else [hook]
        if started_by == "tables_initializer":
            tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, script.start)
        with tf1.train.MonitoredTrainingSession(hooks=hooks) as session:
            session.run(script.step)
        assert hook.started == (["MakeIterator"] if started_by == "nobody" else [])


def test_flags_are_checked():
    for flags in ({"dump_graph": 1}, {"modify_graph": "yes"}):
        with pytest.raises(TypeError, match="must be a bool"):
            GraphModifierHook(**flags)


# --- LookupSubgraphSlicerHook ---


def test_named_ops_move_although_their_lookup_stays(tmp_path):
    plain = _run_monitored([])
    hooks = [
        LookupSubgraphSlicerHook(["StringToHashBucketFast", "AddV2", "Assert"]),
        GraphModifierHook(dump_graph=True),
    ]
    _assert_same(plain, _run_monitored(hooks))
    rows = {(row["op_type"], row["node"]): (row["moved"], row["reason"]) for row in _summary("lookup_slicing")}
    assert rows.pop(("StringToHashBucketFast", "hashed")) == ("yes", "")
    (assertion,) = [key for key in rows if key[0] == "Assert"]
    assert rows.pop(assertion) == ("yes", "")
    moved = dict(rows)
    assert {op for op, _ in moved} == {"AddV2"}
    reasons = [reason for flag, reason in moved.values() if flag == "no"]
    assert len(reasons) == 2
    assert any("fed: is fed at the step" in reason for reason in reasons)
    assert any("computed from no batch" in reason for reason in reasons)
    assert {path.name for path in (tmp_path / "lookup_slicing").iterdir()} == FILES
    before, after = (_graph(f"lookup_slicing/{name}_full_graph.pbtxt") for name in ("unsliced", "sliced"))
    assert before["hashed"] == "StringToHashBucketFast"
    assert "hashed" not in after
    assert "mx_rec_look_ahead_IteratorV2" not in after
    sub = _graph("lookup_slicing/sliced_sub_graph.pbtxt")
    assert {"hashed", assertion[1]} <= set(sub)
    assert "fed" not in sub
    live = tf1.GraphDef()
    with open("export_graph/new_graph.pbtxt", encoding="utf-8") as file:
        text_format.Parse(file.read(), live)
    assert "hashed" not in _needed_by_the_step(live)


def test_without_the_hook_the_hash_stays_in_the_step():
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default() as graph:
        Script()
        modify_graph_and_start_emb_cache()
        assert "hashed" in _needed_by_the_step(graph.as_graph_def())


def test_no_match_gives_an_empty_summary():
    plain = _run_monitored([])
    _assert_same(plain, _run_monitored([LookupSubgraphSlicerHook(["MatMul", "NoSuchOp"]), GraphModifierHook()]))
    assert _summary("lookup_slicing") == []
    assert _graph("lookup_slicing/sliced_sub_graph.pbtxt") == {}


@pytest.mark.parametrize(
    ("op_types", "error"),
    [("Cast", TypeError), (None, TypeError), ([1], TypeError), ([], ValueError), (["Cast", ""], ValueError)],
)
def test_op_types_are_checked(op_types, error):
    with pytest.raises(error, match="op_types"):
        LookupSubgraphSlicerHook(op_types)
    init(use_dynamic_expansion=True)
    with pytest.raises(error, match="op_types"):
        slice_lookup_subgraph(op_types)


# --- OrphanLookupKeySlicerHook ---


@pytest.mark.parametrize("kind", ["initializable", "one_shot"])
def test_orphans_are_prepared_with_the_batch(kind, tmp_path):
    plain = _run_monitored([], kind)
    hooks = [OrphanLookupKeySlicerHook(), GraphModifierHook(dump_graph=True)]
    _assert_same(plain, _run_monitored(hooks, kind))
    (row,) = _summary("orphan_slicing")
    assert (row["op_type"], row["moved"], row["reason"]) == ("AddV2", "yes", "")
    assert {path.name for path in (tmp_path / "orphan_slicing").iterdir()} == FILES
    assert "constants" in _graph("orphan_slicing/sliced_sub_graph.pbtxt")
    live = tf1.GraphDef()
    with open("export_graph/new_graph.pbtxt", encoding="utf-8") as file:
        text_format.Parse(file.read(), live)
    assert "constants" not in _needed_by_the_step(live)


def test_both_slicers_together():
    plain = _run_monitored([])
    for hooks in (
        [OrphanLookupKeySlicerHook(), LookupSubgraphSlicerHook(["StringToHashBucketFast", "AddV2"])],
        [LookupSubgraphSlicerHook(["StringToHashBucketFast", "AddV2"]), OrphanLookupKeySlicerHook()],
    ):
        _assert_same(plain, _run_monitored([*hooks, GraphModifierHook()]))
    assert [row["moved"] for row in _summary("orphan_slicing")] == ["yes"]


def test_ids_that_are_fed_or_read_or_drawn_stay_and_an_iterator_must_fit():
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default() as graph:
        table = create_table(tf.int64, 4, "user", tf1.random_normal_initializer())
        variable = tf1.get_variable("offset", [2], tf.int64, use_resource=True, initializer=tf1.zeros_initializer())
        ids = {
            "fed": tf1.placeholder(tf.int64, [2], name="fed"),
            "offset": variable + 1,
            "random_uniform": tf1.random.uniform([2], 0, 9, tf.int64),
            "sparse_lookup_3": tf.constant([1, 2], tf.int64),
        }
        for value in ids.values():
            sparse_lookup(table, value, is_train=False)
        rows = slice_orphan_lookup_keys()
        assert [row.moved for row in rows] == [False] * 4
        for name, row in zip(ids, rows):
            assert name in row.reason
        assert "no iterator of the graph fits eval lookups" in rows[3].reason
        before = graph.as_graph_def()
        modify_graph_and_start_emb_cache()
        assert [node.name for node in graph.as_graph_def().node if "look_ahead" in node.op] == []
        assert before.node[0] == graph.as_graph_def().node[0]


def test_eval_orphans_take_the_iterator_of_evaluation():
    """The plain function for scripts without hooks; an eval run draws no training batch."""
    np.testing.assert_equal(_run_orphan_evaluation(True), _run_orphan_evaluation(False))


def _run_orphan_evaluation(rewrite):
    terminate_config_initializer()
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default():
        iterators = [tf1.data.make_initializable_iterator(_dataset(seed)) for seed in (0, 1)]
        train, evaluation = (iterator.get_next() for iterator in iterators)
        table = create_table(tf.int64, 4, "user", tf1.random_normal_initializer(seed=1))
        trained = sparse_lookup(table, train["ids"])
        step = lazy_adam_by_addr.create_hash_optimizer_by_address().minimize(tf.reduce_sum(tf.square(trained)))
        found = sparse_lookup(table, evaluation["ids"], is_train=False)
        orphan = sparse_lookup(table, tf.constant([3, 4, 5], tf.int64), is_train=False)
        starts = [iterator.initializer for iterator in iterators]
        if rewrite:
            (row,) = slice_orphan_lookup_keys()
            assert row.moved
            reports = modify_graph_and_start_emb_cache()
            assert not [refusal for report in reports for refusal in report.refusals]
            (report,) = [report for report in reports if report.name == "merge_lookups"]
            assert len(report.notes) == 1  # with the other lookup of the batch
            starts = [get_initializer(side) for side in (True, False)]
        with tf1.Session() as session:
            session.run(starts)
            values = []
            for _ in range(STEPS):
                session.run(step)
                values.append(session.run([found, orphan]))
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(step)
        return values


# --- Order ---


def test_slicers_must_come_before_the_modifier_and_need_it():
    for slicer in (OrphanLookupKeySlicerHook(), LookupSubgraphSlicerHook(["Cast"])):
        with pytest.raises(EnvironmentError, match="before GraphModifierHook"):
            _run_monitored([GraphModifierHook(), slicer])
        with pytest.raises(GraphRewriteError, match=r"put GraphModifierHook\(\) after it"):
            _run_monitored([slicer])
        terminate_config_initializer()
        with tf.Graph().as_default(), pytest.raises(EnvironmentError, match="not initialised"):
            slicer.begin()
