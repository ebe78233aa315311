"""Lookups of reference variables that gather rows and add them up in one op."""

from __future__ import annotations

from collections.abc import Callable

import foreign_runs as runs
import numpy as np
import plain_models as plain
import pytest
import tensorflow as tf

from mx_rec import ops
from mx_rec.graph.view import GraphView
from mx_rec.passes import PassManager
from mx_rec.passes.convert_static_tables import ConvertStaticTables
from mx_rec.passes.static_lookups.plans import BY_KEY, TableChoice

tf1 = tf.compat.v1
EDGES = ([[0, 0], [0, 1], [2, 0]], [7, 3, 7], [3, 2])


def pooled(combiner: str = "mean") -> tuple[tf.Variable, tf.Tensor]:
    table = plain.variable("emb", resource=False)
    given = tf1.sparse_placeholder(tf.int64, [None, None], name="ids")
    return table, tf.identity(tf1.nn.embedding_lookup_sparse(table, given, None, combiner=combiner), name="pooled")


def trained(
    optimizer: str, change: Callable[[tf.IndexedSlices], tf.IndexedSlices] = lambda gradient: gradient
) -> tuple[tf.Tensor, tf.IndexedSlices]:
    table, rows = pooled()
    loss = tf.reduce_sum(tf.square(rows - 0.25), name="loss")
    maker = plain.OPTIMIZERS[optimizer]()
    ((gradient, _),) = maker.compute_gradients(loss, [table])
    maker.apply_gradients([(change(gradient), table)], name="train")
    return table, gradient


def with_values(gradient: tf.IndexedSlices, values: tf.Tensor) -> tf.IndexedSlices:
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)


def built(build: Callable[[], object]) -> tf.compat.v1.GraphDef:
    with tf.Graph().as_default() as graph:
        build()
        tf.group(tf1.global_variables_initializer(), name="begin")
        return graph.as_graph_def()


def run(graph_def: object, batches: list[tuple[object, ...]], fetches: tuple[str, ...]) -> list[np.ndarray]:
    ops.load_library()
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        names = [f"ids/{part}:0" for part in ("indices", "values", "shape")]
        assert all(graph.get_tensor_by_name(name) is not None for name in names)
        with tf1.Session(config=runs.session_config(grappler=False)) as session:
            session.run("begin")
            return [session.run(fetches, dict(zip(names, batch)))[0] for batch in batches]


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_batches_without_ids_train_nothing(optimizer: str) -> None:
    graph_def = built(lambda: trained(optimizer))
    converted = runs.convert(graph_def)
    assert not converted.reports[0].refusals
    empty = (np.zeros([0, 2], np.int64), np.zeros([0], np.int64), [0, 0])
    expected, actual = (
        run(graph, [EDGES, empty, EDGES], ("pooled:0", "train")) for graph in (graph_def, converted.graph_def)
    )
    assert [rows.shape for rows in actual] == [rows.shape for rows in expected]
    for ours, theirs in zip(actual, expected):
        np.testing.assert_allclose(ours, theirs, rtol=3e-6)


def test_ids_beyond_the_variable_are_keys_like_others_by_key() -> None:
    converted = runs.convert(built(lambda: trained("adagrad")), initial_values=BY_KEY).graph_def
    many = np.arange(10 * plain.ROWS, dtype=np.int64)
    batch = (np.stack([many, many * 0], 1), many, [many.size, 1])
    first, second = run(converted, [batch, batch], ("pooled:0", "train"))
    assert first.shape == (many.size, plain.DIM)
    assert np.abs(second - first).min() > 0, "every row is trained"


def test_an_id_that_is_no_row_is_an_error_as_before() -> None:
    for graph_def in (original := built(pooled), runs.convert(original).graph_def):
        with pytest.raises(tf.errors.InvalidArgumentError):
            run(graph_def, [([[0, 0]], [plain.ROWS], [1, 1])], ("pooled:0",))


def test_the_op_stays_under_its_name() -> None:
    graph_def = built(lambda: trained("adam"))
    name = next(node.name for node in graph_def.node if node.op == "SparseSegmentMean")
    converted = PassManager([ConvertStaticTables((TableChoice("emb"),), keep=frozenset([name]))]).run(graph_def)
    assert converted.modified
    assert GraphView(converted.graph_def).node(name).op == "SparseSegmentMean"


def decayed(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    step = tf1.train.get_or_create_global_step()
    return with_values(gradient, gradient.values * tf1.train.exponential_decay(1.0, step, 10, 0.9, staircase=True))


def clipped_by_row(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    norm = tf.norm(gradient.values, axis=1, keepdims=True)
    return with_values(gradient, gradient.values * (0.1 / tf.maximum(norm, 0.1)))


UNORDERED = {
    "by norm": lambda gradient: tf.clip_by_norm(gradient, 0.2),
    "by global norm": lambda gradient: tf.clip_by_global_norm([gradient], 0.2)[0][0],
    "by value": lambda gradient: with_values(gradient, tf.clip_by_value(gradient.values, -0.01, 0.02)),
    "by row": clipped_by_row,
    "by columns": lambda gradient: with_values(gradient, gradient.values * np.linspace(1, 2, plain.DIM, dtype="f")),
    "decayed": decayed,
}


@pytest.mark.parametrize("change", UNORDERED.values(), ids=UNORDERED)
def test_gradients_are_changed_row_by_row(change: Callable[[tf.IndexedSlices], tf.IndexedSlices]) -> None:
    graph_def = built(lambda: trained("sgd", change))
    converted = runs.convert(graph_def)
    assert not converted.reports[0].refusals
    expected, actual = (run(graph, [EDGES] * 4, ("pooled:0", "train")) for graph in (graph_def, converted.graph_def))
    np.testing.assert_allclose(actual, expected, rtol=3e-6)
    assert len(np.unique(actual)) > len(np.unique(actual[0])), "the model does not train"


def noise_by_position() -> None:
    trained("sgd", lambda g: with_values(g, g.values + tf.random.normal(tf.shape(g.values), seed=9)))


def rate_by_position() -> None:
    trained("sgd", lambda g: with_values(g, g.values * tf.cast(tf.range(tf.size(g.indices)), tf.float32)[:, None]))


def norm_by_position() -> None:
    def change(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        norm = tf.reduce_sum(tf.abs(gradient.values), 1)
        weights = tf.cast(tf.range(tf.size(norm)), tf.float32)
        return with_values(gradient, gradient.values * tf.reduce_sum(norm * weights))

    trained("sgd", change)


def rows_beside_columns() -> None:
    """Goes well only where there are as many ids as columns."""
    trained("sgd", lambda g: with_values(g, g.values * tf.reduce_sum(g.values, 1)))


def first_rows_left_out() -> None:
    trained("sgd", lambda g: with_values(g, tf.concat([g.values[:1] * 0.0, g.values[1:]], 0)))


def values_are_there_to_be_fetched() -> None:
    trained("adam", lambda g: with_values(g, tf.identity(g.values) + 0 * tf.norm(tf.identity(g.values))))
    (op,) = (op for op in tf1.get_default_graph().get_operations() if op.type.startswith("SparseSegmentMeanGrad"))
    tf.identity(op.outputs[0], name="fetched")


def distinct_ids_are_read() -> None:
    _, gradient = trained("adagrad")
    tf1.Print(gradient.indices, [gradient.indices])


def gradient_is_made_dense() -> None:
    _, gradient = trained("sgd")
    tf.norm(tf.convert_to_tensor(gradient), name="norm")


def sums_are_read() -> None:
    trained("adagrad")
    (update,) = (op for op in tf1.get_default_graph().get_operations() if op.type == "SparseApplyAdagrad")
    tf.norm(update.inputs[3], name="norm")


def segments_come_after_the_update() -> None:
    table = plain.variable("emb", resource=False)
    rows = tf.gather(table, tf.constant([1, 2]))
    train = tf1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(tf.square(rows)))
    with tf.control_dependencies([train]):
        segments = tf.identity([0, 0])
    tf.sparse.segment_sum(table, tf.constant([1, 2]), segments)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (distinct_ids_are_read, "reads the distinct ids of"),
        (noise_by_position, "the order of which would change"),
        (rate_by_position, "the order of which would change"),
        (first_rows_left_out, "may depend on the order of the rows"),
        (norm_by_position, "the order of which would change"),
        (rows_beside_columns, "the order of which would change"),
        (values_are_there_to_be_fetched, "it is there to be fetched"),
        (gradient_is_made_dense, "reads the distinct ids of"),
        (sums_are_read, "reads the sums of"),
        (segments_come_after_the_update, "waits for the update of variable 'emb'"),
    ],
)
def test_what_would_change_is_refused(build: Callable[[], None], reason: str) -> None:
    result = runs.convert(built(build))
    assert not result.modified
    (refusal,) = result.reports[0].refusals
    assert reason in refusal.reason
