"""What looks like a lookup of a table and is none, each with its reason; nothing of it is converted."""

from __future__ import annotations

from collections.abc import Callable

import foreign_runs as runs
import plain_models as plain
import pytest
import tensorflow as tf

from mx_rec.graph.view import GraphView
from mx_rec.passes.find_lookups import FindLookups
from mx_rec.passes.static_lookups.plans import BY_KEY

tf1 = tf.compat.v1


def ids() -> tf.Tensor:
    return tf1.placeholder_with_default([1, 2], [None], name="ids")


def in_conditional() -> None:
    tf1.disable_control_flow_v2()
    try:
        table = plain.variable("emb")
        tf1.cond(tf.size(ids()) > 1, lambda: tf1.nn.embedding_lookup(table, [1]), lambda: tf.zeros([1, plain.DIM]))
    finally:
        tf1.enable_control_flow_v2()


def one_partition_alone() -> None:
    table = plain.variable("emb", parts=2)
    tf1.nn.embedding_lookup(table, ids())
    tf.gather(list(table)[0], [0])


def two_strategies() -> None:
    table = plain.variable("emb", parts=2)
    for strategy in ("mod", "div"):
        tf1.nn.embedding_lookup(table, ids(), partition_strategy=strategy)


def two_orders() -> None:
    parts = list(plain.variable("emb", parts=2))
    for order in (parts, parts[::-1]):
        tf1.nn.embedding_lookup(order, ids())


def several_indices() -> None:
    tf.gather_nd(plain.variable("emb", resource=False), [[0, 1]])


def columns() -> None:
    tf.gather(plain.variable("emb"), ids(), axis=1)


def vector() -> None:
    tf.gather(tf1.get_variable("emb", [plain.ROWS], use_resource=True), ids())


def doubles() -> None:
    tf.gather(tf1.get_variable("emb", [plain.ROWS, 2], tf.float64, use_resource=True), ids())


def assigned() -> None:
    table = plain.variable("emb")
    tf1.nn.embedding_lookup(table, ids())
    tf1.assign(table, table * 0.5)


def histogram() -> None:
    table = plain.variable("emb")
    tf1.nn.embedding_lookup(table, ids())
    tf1.summary.histogram("emb", table)


def other_rows_updated() -> None:
    table = plain.variable("emb")
    tf1.nn.embedding_lookup(table, ids())
    tf1.scatter_sub(table, [7], tf.ones([1, plain.DIM]))


NEAR_MISSES = [
    (in_conditional, "is in a branch or a loop of TensorFlow 1"),
    (one_partition_alone, "gathers of one partition alone"),
    (two_strategies, "divides ids otherwise than"),
    (two_orders, "stitches partition"),
    (several_indices, "last dimension is not known to be 1"),
    (columns, "gathers along another axis than 0"),
    (vector, "has shape [50]"),
    (doubles, "is not float32"),
    (assigned, "reads all of variable"),
    (histogram, "op 'HistogramSummary' reads all of variable 'emb'"),
    (other_rows_updated, "which are not those of a lookup of the variable"),
]


@pytest.mark.parametrize(("build", "reason"), NEAR_MISSES, ids=[build.__name__ for build, _ in NEAR_MISSES])
def test_near_misses_stay(build: Callable[[], None], reason: str) -> None:
    with tf.Graph().as_default() as graph:
        build()
        graph_def = graph.as_graph_def()
    result = runs.convert(graph_def)
    assert not result.modified
    assert result.reports[0].refusals
    assert all(reason in refusal.reason for refusal in result.reports[0].refusals), result.reports[0].refusals
    notes = FindLookups().run(GraphView(graph_def)).notes
    assert any("plain TensorFlow: 'emb'" in note and reason in note for note in notes)


def test_lookups_in_functions_are_named() -> None:
    with tf.Graph().as_default() as graph:
        table = plain.variable("emb")
        tf.function(lambda rows: tf.gather(table, rows))(ids())
        graph_def = graph.as_graph_def()
    notes = FindLookups().run(GraphView(graph_def)).notes
    assert [note for note in notes if note.startswith("plain TensorFlow in a function: ") and "inside function" in note]
    assert not runs.convert(graph_def).modified


def test_two_lookups_of_the_same_ids_both_insert() -> None:
    """Else the second could look for a key before the first has put it in."""
    with tf.Graph().as_default() as graph:
        batch = plain.batches()
        table = plain.variable("emb")
        rows = [tf1.nn.embedding_lookup(table, batch["other_ids"]) for _ in range(2)]
        plain.train_step("", plain.error(tf.reduce_sum(rows[0] * rows[1], 1), batch), "adam")
        converted = runs.convert(graph.as_graph_def(), initial_values=BY_KEY).graph_def
    view = GraphView(converted)
    assert len(view.nodes_of("MxRecFindOrInsert")) == 2
    assert not view.nodes_of("MxRecFind")
