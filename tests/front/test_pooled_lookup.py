"""Sparse, ragged and dense ids with a combiner, beside tf.nn.embedding_lookup_sparse, and with and without rewrite."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
import tensorflow as tf

from mx_rec.constants.constants import (
    ASCEND_SPARSE_LOOKUP_ENTRANCE,
    ASCEND_SPARSE_LOOKUP_ID_OFFSET,
    ASCEND_SPARSE_LOOKUP_LOCAL_EMB,
)
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.graph import modify_graph_and_start_emb_cache
from mx_rec.optimizers import gradient_descent, lazy_adam_by_addr
from mx_rec.util.initialize import get_initializer, init, terminate_config_initializer

tf1 = tf.compat.v1
DIM = 5
COMBINERS = ("sum", "mean", "sqrtn")
FORMS = ("sparse", "ragged", "dense")
# Both add the same terms, in another order, and TensorFlow also divides before or after it multiplies: a few units in
# the last place of the terms (up to 2 in size, 12 of them). Where weights nearly cancel, a divisor of 0.1 scales that.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-5}


@contextlib.contextmanager
def fresh_graph(is_dynamic=True):
    """mx_rec initialised in a fresh default graph."""
    tf1.disable_eager_execution()
    terminate_config_initializer()
    with tf.Graph().as_default() as graph:
        init(use_dynamic_expansion=is_dynamic)
        yield graph
    terminate_config_initializer()


@pytest.fixture
def graph():
    with fresh_graph() as graph:
        yield graph


def _table(dtype=tf.int64, name="user", **kwargs):
    initializer = tf1.random_normal_initializer(0.0, 0.5, seed=5)
    return create_table(dtype, DIM, name, initializer, device_vocabulary_size=300, **kwargs)


class Rows:
    """A batch of ids and weights in rows; some rows are empty, the last one too, ids repeat and may be negative."""

    def __init__(self, seed, batch=17, longest=6, is_even=False):
        rng = np.random.RandomState(seed)
        lengths = np.full(batch, 4) if is_even else rng.randint(0, longest + 1, batch)
        if not is_even:
            lengths[[2, -1]] = 0
            lengths[0] = 12
        self.splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.ids = rng.randint(-15, 15, self.splits[-1])
        self.ids[1] = self.ids[0]
        self.weights = (rng.rand(self.splits[-1]) + 0.2).astype(np.float32)
        self.batch = batch

    @property
    def indices(self):
        pairs = [(row, column) for row in range(self.batch) for column in range(np.diff(self.splits)[row])]
        return np.array(pairs, np.int64).reshape(-1, 2)

    def in_form(self, form, values):
        """A dictionary of the arrays, and the tensors made of placeholders for them."""
        flat = tf1.placeholder(values.dtype, [None] if form != "dense" else [None, None])
        if form == "dense":
            return flat, {flat: values.reshape(self.batch, -1)}
        if form == "ragged":
            splits = tf1.placeholder(tf.int64, [None])
            ragged = tf.RaggedTensor.from_row_splits(flat, splits, validate=False)
            return ragged, {flat: values, splits: self.splits}
        indices = tf1.placeholder(tf.int64, [None, 2])
        shape = tf1.placeholder(tf.int64, [2])
        feed = {flat: values, indices: self.indices, shape: [self.batch, 99]}
        return tf.SparseTensor(indices, flat, shape), feed


def _stock(rows, values, keys, combiner, weights):
    """What embedding_lookup_sparse gives for a static variable of these rows, [batch, dim]; its ids are positions."""
    variable = tf1.get_variable("stock", initializer=values, use_resource=True)
    positions = np.searchsorted(keys, rows.ids)
    sparse = tf.SparseTensor(rows.indices, positions.astype(np.int64), [rows.batch, 99])
    factors = None
    if weights is not None:
        factors = tf.constant(weights)
        weights = sparse.with_values(factors)
    pooled = tf.nn.embedding_lookup_sparse(variable, sparse, weights, combiner=combiner)
    missing = rows.batch - tf.shape(pooled)[0]  # it leaves out the last rows without ids
    return tf.pad(pooled, [[0, missing], [0, 0]]), variable, factors


CASES = [
    case
    for case in itertools.product(FORMS, COMBINERS, (False, True), (False, True), (tf.int64, tf.int32))
    if case[0] == "sparse" or case[3] != (case[4] == tf.int32)  # all for sparse ids; for the others half are enough
]


@pytest.mark.parametrize(("form", "combiner", "is_weighted", "is_dynamic", "dtype"), CASES)
def test_equals_embedding_lookup_sparse(form, combiner, is_weighted, is_dynamic, dtype):
    rows = Rows(seed=len(form) + len(combiner), is_even=form == "dense")
    with fresh_graph(is_dynamic) as graph, tf1.Session() as session:
        table = _table(dtype)
        ids, feed = rows.in_form(form, rows.ids.astype(dtype.as_numpy_dtype))
        weights = None
        if is_weighted:
            weights, more = rows.in_form(form, rows.weights)
            feed.update(more)
        pooled = sparse_lookup(table, ids, combiner=combiner, weights=weights)
        assert pooled.shape.as_list() == [None, DIM]
        upstream = np.random.RandomState(1).randn(rows.batch, DIM).astype(np.float32)
        (local,) = graph.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
        flat_weights = [next(t for t in more if t.dtype == tf.float32)] if is_weighted else []
        gradients = tf.gradients(pooled, [local, *flat_weights], upstream)
        session.run(tf1.global_variables_initializer())
        got, local_rows, by_row, *by_weight = session.run([pooled, local, *gradients], feed)

        _, first = np.unique(rows.ids, return_index=True)
        keys_by_occurrence = rows.ids[np.sort(first)]  # the order of local embeddings
        order = np.argsort(keys_by_occurrence)
        keys = keys_by_occurrence[order]
        expected, variable, factors = _stock(
            rows, local_rows[order], keys, combiner, rows.weights if is_weighted else None
        )
        stock_gradients = tf.gradients(expected, [variable, *([factors] if is_weighted else [])], upstream)
        session.run(variable.initializer)
        expected, *stock = session.run([expected, *map(tf.convert_to_tensor, stock_gradients)])
    np.testing.assert_allclose(got, expected, **TOLERANCE)
    np.testing.assert_allclose(by_row[order], stock[0], **TOLERANCE)
    if is_weighted:
        np.testing.assert_allclose(by_weight[0].ravel(), stock[1], **TOLERANCE)
    if form != "dense":
        assert not got[[2, -1]].any()


@pytest.mark.parametrize(("combiner", "weights"), [("mean", [1.0, -1.0]), ("sqrtn", [0.0, 0.0]), ("mean", [0.0, 0.0])])
def test_divisors_of_zero_are_as_in_tensorflow(graph, combiner, weights):
    ids = tf.SparseTensor([[0, 0], [0, 1]], tf.constant([0, 1], tf.int64), [1, 2])
    factors = tf.constant(weights)
    pooled = sparse_lookup(_table(), ids, combiner=combiner, weights=ids.with_values(factors))
    (local,) = graph.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
    stock = tf.nn.embedding_lookup_sparse(local, ids, ids.with_values(factors), combiner=combiner)
    with tf1.Session() as session:
        for result in (pooled, stock):
            by_row, by_weight = tf.gradients(result, [local, factors])
            for value in session.run([result, tf.convert_to_tensor(by_row), by_weight]):
                np.testing.assert_array_equal(value, np.zeros_like(value))


def test_second_gradient(graph):
    """Of the embeddings and the weights, beside that of plain TensorFlow ops."""
    rows = Rows(seed=3)
    table = _table()
    weights = tf.constant(rows.weights)
    ids = tf.RaggedTensor.from_row_splits(tf.constant(rows.ids), rows.splits)
    pooled = sparse_lookup(table, ids, combiner="sqrtn", weights=ids.with_values(weights))
    (local,) = graph.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
    restore = next(op for op in graph.get_operations() if op.type == "MxRecUnique").outputs[1]
    row_ids = ids.value_rowids()
    factors = tf.expand_dims(weights, 1)
    plain = tf.math.divide_no_nan(
        tf.math.segment_sum(tf.gather(local, restore) * factors, row_ids),
        tf.sqrt(tf.math.segment_sum(factors**2, row_ids)),
    )

    def seconds(result):
        (first,) = tf.gradients(tf.reduce_sum(result**3), local)
        return [tf.convert_to_tensor(g) for g in tf.gradients(tf.reduce_sum(tf.sin(first)), [local, weights])]

    with tf1.Session() as session:
        for ours, theirs in zip(*session.run([seconds(pooled), seconds(plain)])):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("is_dynamic", [True, False])
def test_evaluation_reads_the_default_and_inserts_nothing(is_dynamic):
    with fresh_graph(is_dynamic), tf1.Session() as session:
        table = _table()
        ids = tf.ragged.constant([[1, 2], [], [3, 9, 9]], dtype=tf.int64)
        trained = sparse_lookup(table, tf.constant([1, 2, 3], tf.int64))
        default = sparse_lookup(table, ids, is_train=False, combiner="sum", serving_default_value=2.0)
        zeros = sparse_lookup(table, ids, is_train=False, combiner="mean")
        session.run(tf1.global_variables_initializer())
        one, two, three = session.run(trained)
        got, means = session.run([default, zeros])
        assert table.size(session) == 3
    np.testing.assert_allclose(got, [one + two, 0 * one, three + 4], rtol=1e-6)
    np.testing.assert_allclose(means, [(one + two) / 2, 0 * one, three / 3], rtol=1e-6)


def test_lookup_that_is_not_trained_gives_no_gradient(graph):
    ids = tf.ragged.constant([[1], [2, 3]], dtype=tf.int64)
    pooled = sparse_lookup(_table(), ids, combiner="mean", is_grad=False)
    assert graph.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB) == []
    local = next(op for op in graph.get_operations() if op.type == "MxRecGatherByAddress").outputs[0]
    assert tf.gradients(pooled, local) == [None]
    (entrance,) = graph.get_collection(ASCEND_SPARSE_LOOKUP_ENTRANCE)
    assert entrance.shape.as_list() == [3]


@pytest.mark.parametrize("is_dynamic", [True, False])
def test_rows_of_padding_keys_are_read_but_not_trained(is_dynamic):
    with fresh_graph(is_dynamic) as graph, tf1.Session() as session:
        table = _table(padding_keys=[0], padding_keys_mask=True, padding_keys_len=1)
        ids = tf.ragged.constant([[0, 1], [0, 0, 2]], dtype=tf.int64)
        pooled = sparse_lookup(table, ids, combiner="sum")
        loss = tf.reduce_sum(pooled)
        if is_dynamic:
            step = lazy_adam_by_addr.create_hash_optimizer_by_address(0.1).minimize(loss)
        else:
            optimizer = gradient_descent.create_hash_optimizer(0.1)
            step = optimizer.minimize(loss, var_list=[table.variable])
        (local,) = graph.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
        session.run(tf1.global_variables_initializer())
        before, result = session.run([local, pooled])
        session.run(step)
        after = session.run(local)
    np.testing.assert_allclose(result, [before[0] + before[1], 2 * before[0] + before[2]], rtol=1e-6)
    assert (before[0] == after[0]).all()
    assert (before[1:] != after[1:]).all()


def test_empty_batches(graph):
    table = _table()
    with tf1.Session() as session:
        for form, combiner in itertools.product(("sparse", "ragged", "dense"), COMBINERS):
            for batch in (0, 3):
                rows = Rows(0)
                rows.batch, rows.splits, rows.ids = batch, np.zeros(batch + 1, np.int64), np.zeros(0, np.int64)
                ids = tf1.placeholder(tf.int64, [None, 0]) if form == "dense" else None
                feed = {ids: np.zeros([batch, 0])} if form == "dense" else None
                if ids is None:
                    ids, feed = rows.in_form(form, rows.ids)
                pooled = sparse_lookup(table, ids, combiner=combiner)
                (gradient,) = tf.gradients(pooled, graph.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)[-1])
                got = session.run([pooled, gradient], feed)
                np.testing.assert_array_equal(got[0], np.zeros([batch, DIM]))
                assert got[1].shape == (0, DIM)


def test_dense_ids_of_any_known_rank(graph):
    table = _table()
    values = np.arange(24).reshape(2, 3, 4)
    single = sparse_lookup(table, tf.constant(values))
    cubes = [tf.constant(values), tf1.placeholder_with_default(values, [None, None, 4])]
    pooled = [sparse_lookup(table, cube, combiner="mean") for cube in cubes]
    vector = sparse_lookup(table, tf.constant(values[0, 0]), combiner="sum")
    weights = tf1.placeholder_with_default(np.ones([2, 3, 4], np.float16), [None, None, None])
    weighted = sparse_lookup(table, cubes[1], combiner="sum", weights=weights)
    assert [result.shape.as_list() for result in (*pooled, vector)] == [[2, 3, DIM], [None, None, DIM], [DIM]]
    with tf1.Session() as session:
        rows, first, second, third, fourth = session.run([single, *pooled, vector, weighted])
        with pytest.raises(tf.errors.InvalidArgumentError, match="weights must have the shape of the ids"):
            session.run(weighted, {weights: np.ones([3, 2, 4])})
    np.testing.assert_allclose(first, rows.mean(2), **TOLERANCE)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(third, rows[0, 0].sum(0), **TOLERANCE)
    np.testing.assert_allclose(fourth, rows.sum(2), **TOLERANCE)


def test_ragged_ids_without_a_combiner_give_ragged_rows(graph):
    table = _table()
    ids = tf.ragged.constant([[[1, 2], []], [[3]]], dtype=tf.int64)
    result = sparse_lookup(table, ids)
    frozen = sparse_lookup(table, ids, is_grad=False)
    assert isinstance(result, tf.RaggedTensor)
    assert result.ragged_rank == 2
    with tf1.Session() as session:
        got, expected, same = session.run([result, sparse_lookup(table, ids.flat_values), frozen])
    assert [len(row) for row in got.to_list()] == [2, 1]
    np.testing.assert_array_equal(got.flat_values, expected)
    np.testing.assert_array_equal(same.flat_values, expected)
    assert [splits.tolist() for splits in got.nested_row_splits] == [[0, 2, 3], [0, 2, 2, 3]]


def test_weights_of_any_floating_type_and_splits_of_either(graph):
    table = _table()
    ids = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64, row_splits_dtype=tf.int32)
    results = []
    for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64):
        weights = tf.ragged.constant([[0.5, 2.0], [0.25]], dtype=dtype)
        pooled = sparse_lookup(table, ids, combiner="sum", weights=weights)
        (gradient,) = tf.gradients(pooled, weights.flat_values)
        assert gradient.dtype == dtype
        results.append(pooled)
    with tf1.Session() as session:
        first, *others = session.run(results)
    for other in others:
        np.testing.assert_array_equal(first, other)


# --- Refusals ---

SPARSE = [[[0, 0], [1, 1]], [4, 5], [3, 3]]


def _sparse(indices=SPARSE[0], values=SPARSE[1], shape=SPARSE[2], dtype=tf.int64):
    return tf.SparseTensor(indices, tf.constant(values, dtype), shape)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: {"ids": _sparse(), "combiner": "max"}, ValueError, "combiner must be None, .* got 'max'"),
        (lambda: {"ids": _sparse(), "combiner": ["sum"]}, ValueError, r"combiner must be None, .* got \['sum'\]"),
        (lambda: {"ids": _sparse()}, ValueError, "ids in a SparseTensor need a combiner"),
        (
            lambda: {"ids": tf.constant([[1]], tf.int64), "weights": tf.constant([[1.0]])},
            ValueError,
            "weights need a combiner",
        ),
        (
            lambda: {"ids": _sparse([[0, 0, 0]], [1], [1, 1, 1]), "combiner": "sum"},
            ValueError,
            "sparse ids must have rank 2, got rank 3",
        ),
        (
            lambda: {"ids": tf.ragged.constant([[[1]]], dtype=tf.int64), "combiner": "sum"},
            ValueError,
            "ragged ids must have rank 2, got ragged rank 2",
        ),
        (
            lambda: {"ids": tf.ragged.constant([[[1]]], dtype=tf.int64, ragged_rank=1), "combiner": "sum"},
            ValueError,
            "ragged ids must have rank 2, got ragged rank 1 and flat values of rank 2",
        ),
        (
            lambda: {"ids": tf.constant(1, tf.int64), "combiner": "sum"},
            ValueError,
            r"dense ids must have a known rank of at least 1, got shape \(\)",
        ),
        (
            lambda: {"ids": tf1.placeholder(tf.int64), "combiner": "sum"},
            ValueError,
            "dense ids must have a known rank",
        ),
        (lambda: {"ids": _sparse(dtype=tf.int16), "combiner": "sum"}, TypeError, "must be int64, int32, .* got int16"),
        (lambda: {"ids": _sparse(dtype=tf.float16), "combiner": "sum"}, TypeError, "float32 or float64, got float16"),
        (
            lambda: {"ids": tf1.SparseTensorValue(*SPARSE), "combiner": "sum"},
            TypeError,
            "ids must be a FeatureSpec or a tf.Tensor, tf.SparseTensor or tf.RaggedTensor of integers, got Spars",
        ),
        (
            lambda: {"ids": _sparse(), "combiner": "sum", "weights": tf.constant([1.0, 2.0])},
            TypeError,
            "weights must be of the type of the ids, SparseTensor, got",
        ),
        (
            lambda: {"ids": _sparse(), "combiner": "sum", "weights": _sparse()},
            TypeError,
            "weights must be floating point, got int64",
        ),
        (
            lambda: {"ids": _sparse(), "combiner": "sum", "weights": _sparse([[0, 0]], [1.0], dtype=tf.float32)},
            ValueError,
            r"weights must have the indices shape of the ids, \(2, 2\), got \(1, 2\)",
        ),
        (
            lambda: {
                "ids": _sparse(),
                "combiner": "sum",
                "weights": _sparse([[0, 0], [2, 1]], [1, 2], dtype=tf.float32),
            },
            ValueError,
            r"weights must have the indices of the ids, \[\[0, 0\], +\[1, 1\]\], got \[\[0, 0\], +\[2, 1\]\]",
        ),
        (
            lambda: {
                "ids": tf.ragged.constant([[1], [2, 3]], dtype=tf.int64),
                "combiner": "sum",
                "weights": tf.ragged.constant([[1.0, 2.0], [3.0]]),
            },
            ValueError,
            r"weights must have the row splits of the ids, \[0, 1, 3\], got \[0, 2, 3\]",
        ),
        (
            lambda: {"ids": tf.ones([2, 3], tf.int64), "combiner": "sum", "weights": tf.ones([3, 2])},
            ValueError,
            r"weights must have the values shape of the ids, \(2, 3\), got \(3, 2\)",
        ),
    ],
)
def test_bad_arguments_are_named(graph, build, error, message):
    with pytest.raises(error, match=message):
        sparse_lookup(_table(), **build())


def test_bad_batches_are_errors_of_the_step(graph):
    table = _table()
    sparse, feed = Rows(0).in_form("sparse", np.zeros(0, np.int64))
    values, indices, shape = feed
    factors, more = Rows(0).in_form("sparse", np.zeros(0, np.float32))
    weight_values, weight_indices, weight_shape = more
    pooled = sparse_lookup(table, sparse, combiner="mean")
    weighted = sparse_lookup(table, sparse, combiner="mean", weights=factors)
    of_unknown_rank = tf1.placeholder(tf.int64, [None, None])
    unknown = sparse_lookup(table, tf.SparseTensor(of_unknown_rank, values, shape), combiner="sum")
    ragged, ragged_feed = Rows(0).in_form("ragged", np.zeros(0, np.int64))
    ragged_values, splits = ragged_feed
    ragged_pooled = sparse_lookup(table, ragged, combiner="sum")
    with tf1.Session() as session:
        for rows, batch, message in (
            ([1, 0], 2, "rows must ascend"),
            ([0, 2], 2, r"row 2, which is not in \[0, 2\)"),
            ([-1, 0], 2, "row -1"),
            ([0, 1], -1, "num_rows must be in"),
            ([0, 1], 2**40, "num_rows must be in"),
        ):
            feed = {values: [7, 8], indices: [[row, 0] for row in rows], shape: [batch, 5]}
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                session.run(pooled, feed)
        with pytest.raises(tf.errors.InvalidArgumentError, match="row_splits must lead from 0 to the number of ids"):
            session.run(pooled, {values: [7, 8], indices: [[0, 0]], shape: [2, 5]})
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"must have shape \[m, 2\]|must be 2"):
            session.run(unknown, {values: [7], of_unknown_rank: [[0, 0, 0]], shape: [2, 5]})
        for bad in ([0, 1], [0, 2, 1, 2], [1, 2], [0, 5, 2], [-1, 2]):
            with pytest.raises(tf.errors.InvalidArgumentError, match="row_splits must"):
                session.run(ragged_pooled, {ragged_values: [7, 8], splits: bad})
        feed = {values: [7, 8], indices: [[0, 0], [1, 0]], shape: [2, 5]}
        session.run(weighted, {**feed, weight_values: [1, 2], weight_indices: feed[indices], weight_shape: [2, 5]})
        for bad, message in (
            ({weight_indices: [[0, 0], [1, 1]]}, "weights must have the indices of the ids"),
            ({weight_indices: [[0, 0]], weight_values: [1]}, "weights must have the indices of the ids"),
            ({weight_shape: [3, 5]}, "weights must have the dense shape of the ids"),
            ({weight_values: [1, 2, 3]}, "one weight per id: expected 2, got 3"),
        ):
            good = {**feed, weight_values: [1, 2], weight_indices: feed[indices], weight_shape: [2, 5]}
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                session.run(weighted, {**good, **bad})


# --- With and without the rewrite ---

STEPS = 5
BATCH = 6
PARSED = {
    "tags": tf.io.VarLenFeature(tf.int64),
    "scores": tf.io.VarLenFeature(tf.float32),
}


def _example(rng):
    tags = rng.randint(-20, 20, rng.randint(0, 4))
    features = {
        "tags": tf.train.Feature(int64_list=tf.train.Int64List(value=tags)),
        "scores": tf.train.Feature(float_list=tf.train.FloatList(value=rng.rand(tags.size) + 0.5)),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def _dataset(seed):
    """Sparse and ragged columns with weights, a plain one, and serialized examples, parsed and not."""
    rng = np.random.RandomState(seed)
    rows = Rows(seed, batch=STEPS * BATCH)
    examples = [_example(rng) for _ in range(STEPS * BATCH)]
    sparse = tf.SparseTensor(rows.indices, tf.constant(rows.ids, tf.int64), [rows.batch, 12])
    ragged = tf.RaggedTensor.from_row_splits(tf.constant(rows.ids * 3 + 1, tf.int64), rows.splits)
    columns = {
        "sparse": sparse,
        "sparse_weights": sparse.with_values(tf.constant(rows.weights)),
        "ragged": ragged,
        "ragged_weights": ragged.with_values(tf.constant(rows.weights)),
        "dense": tf.constant(rng.randint(0, 9, [rows.batch, 3]), tf.int64),
        "examples": tf.constant(examples),
        "y": tf.constant(rng.rand(rows.batch).astype(np.float32)),
    }
    data = tf.data.Dataset.from_tensor_slices(columns).batch(BATCH)
    return data.map(lambda batch: {**batch, "parsed": tf.io.parse_example(batch["examples"], PARSED)})


def _initializable():
    iterators = [tf1.data.make_initializable_iterator(_dataset(seed)) for seed in (0, 1)]
    return [iterator.get_next() for iterator in iterators], [iterator.initializer for iterator in iterators]


def _one_shot():
    batches = [tf1.data.make_one_shot_iterator(_dataset(seed).repeat()).get_next() for seed in (0, 1)]
    return batches, [tf.no_op(), tf.no_op()]


def _from_structure():
    """Without ragged columns, which TensorFlow does not let two datasets share an iterator with."""
    datasets = [
        _dataset(seed).map(lambda batch: {name: batch[name] for name in batch if not name.startswith("ragged")})
        for seed in (0, 1)
    ]
    iterator = tf1.data.Iterator.from_structure(
        tf1.data.get_output_types(datasets[0]),
        tf1.data.get_output_shapes(datasets[0]),
        output_classes=tf1.data.get_output_classes(datasets[0]),
    )
    starts = [iterator.make_initializer(data) for data in datasets]
    return [iterator.get_next()] * 2, starts


ITERATORS = {"initializable": _initializable, "one_shot": _one_shot, "from_structure": _from_structure}


def _model(batch, tables, is_train):
    """The mean over every form of lookup; the results of one batch, [BATCH, DIM] each."""
    tags, shops = tables
    ragged, ragged_weights = batch.get("ragged"), batch.get("ragged_weights")
    if ragged is None:
        ragged = tf.RaggedTensor.from_sparse(batch["sparse"])
        ragged_weights = ragged.with_values(batch["sparse_weights"].values)
    at_step = tf.io.parse_example(batch["examples"], PARSED)
    shifted = tf.SparseTensor(
        batch["sparse"].indices,
        tf.math.floormod(batch["sparse"].values * 5, 23, name="preprocessing"),
        batch["sparse"].dense_shape,
    )
    results = [
        sparse_lookup(tags, batch["sparse"], is_train=is_train, combiner="mean", weights=batch["sparse_weights"]),
        sparse_lookup(tags, shifted, is_train=is_train, combiner="sum"),
        sparse_lookup(shops, ragged, is_train=is_train, combiner="sqrtn", weights=ragged_weights),
        sparse_lookup(shops, ragged + 7, is_train=is_train, combiner="mean"),
        sparse_lookup(tags, batch["dense"], is_train=is_train, combiner="mean"),
        sparse_lookup(
            tags, batch["parsed"]["tags"], is_train=is_train, combiner="sum", weights=batch["parsed"]["scores"]
        ),
        sparse_lookup(tags, at_step["tags"], is_train=is_train, combiner="mean", weights=at_step["scores"]),
        sparse_lookup(tags, batch["sparse"], is_train=is_train, combiner="sum", is_grad=False),
        tf.reduce_sum(sparse_lookup(shops, ragged, is_train=is_train), axis=1),
        tf.reduce_sum(sparse_lookup(tags, batch["dense"], is_train=is_train), axis=1),
    ]
    return tf.reduce_mean(tf.square(tf.reduce_sum(tf.concat(results, 1), 1) - batch["y"]))


def _train(kind, is_dynamic, rewrite):
    """(losses, evaluation losses, content of the tables, nodes that the step needs, refusals)."""
    with fresh_graph(is_dynamic) as graph:
        batches, starts = ITERATORS[kind]()
        tables = [_table(name=name) for name in ("tags", "shops")]
        loss = _model(batches[0], tables, True)
        eval_loss = _model(batches[1], tables, False)
        locals_ = graph.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
        offsets = graph.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
        assert len(locals_) == 9  # one lookup of ten is not trained
        if is_dynamic:
            step = lazy_adam_by_addr.create_hash_optimizer_by_address(0.05).apply_gradients(
                list(zip(tf.gradients(loss, locals_), offsets))
            )
        else:
            step = gradient_descent.create_hash_optimizer(0.05).minimize(
                loss, var_list=[table.variable for table in tables]
            )
        refusals = []
        if rewrite:
            reports = modify_graph_and_start_emb_cache()
            refusals = [str(refusal) for report in reports for refusal in report.refusals]
            starts = [get_initializer(True), get_initializer(False)]
        needed = tf1.graph_util.extract_sub_graph(graph.as_graph_def(), [step.name, loss.op.name]).node
        with tf1.Session() as session:
            session.run([tf1.global_variables_initializer()])
            losses, eval_losses = [], []
            for _ in range(2):
                session.run(starts[0])
                losses += [session.run([loss, step])[0] for _ in range(STEPS)]
                session.run(starts[1])
                eval_losses += [session.run(eval_loss) for _ in range(STEPS)]
            content = [table.export(session) for table in tables]
    return losses, eval_losses, content, {node.name: node.op for node in needed}, refusals


@pytest.mark.parametrize("is_dynamic", [True, False])
@pytest.mark.parametrize("kind", sorted(ITERATORS))
def test_rewriting_moves_the_lookups_and_changes_nothing(kind, is_dynamic):
    plain = _train(kind, is_dynamic, rewrite=False)
    rewritten = _train(kind, is_dynamic, rewrite=True)
    assert plain[:2] == rewritten[:2]
    assert len(set(plain[0])) == len(plain[0])
    for one, other in zip(plain[2], rewritten[2]):
        for before, after in zip(one, other):
            np.testing.assert_array_equal(before, after)
    assert rewritten[4] == []
    moved = {name for name in plain[3] if name.endswith("/unique") or name == "preprocessing"}
    assert len(moved) == 11
    assert not moved & set(rewritten[3])
    ops_of_step = list(rewritten[3].values())
    assert ops_of_step.count("MxRecPool") == 8
    if is_dynamic:  # all in one op
        assert ops_of_step.count("MxRecLookUpMany") == 1
        assert "MxRecFindOrInsert" not in ops_of_step


def test_sparse_ids_that_are_fed_stay_alone():
    """Refused with its node; the other lookup moves, and both train as without the rewrite."""

    def run(rewrite):
        with fresh_graph():
            iterator = tf1.data.make_initializable_iterator(_dataset(0))
            batch = iterator.get_next()
            table = _table()
            fed = tf1.sparse_placeholder(tf.int64, [None, 9], name="fed")
            pooled = [sparse_lookup(table, batch["sparse"], combiner="sum"), sparse_lookup(table, fed, combiner="mean")]
            loss = tf.add_n([tf.reduce_sum(tf.square(result - 0.3)) for result in pooled])
            step = lazy_adam_by_addr.create_hash_optimizer_by_address(0.05).minimize(loss)
            refusals = []
            if rewrite:
                reports = modify_graph_and_start_emb_cache()
                refusals = [str(refusal) for report in reports for refusal in report.refusals]
            with tf1.Session() as session:
                session.run(get_initializer(True) if rewrite else iterator.initializer)
                feeds = [{fed: tf1.SparseTensorValue([[0, 0], [2, 1]], [i, i + 3], [4, 9])} for i in range(STEPS)]
                losses = [session.run([loss, step], feed)[0] for feed in feeds]
                return losses, table.export(session), refusals

    plain, rewritten = run(False), run(True)
    assert plain[0] == rewritten[0]
    for before, after in zip(plain[1], rewritten[1]):
        np.testing.assert_array_equal(before, after)
    assert len(rewritten[2]) == 1
    assert "fed" in rewritten[2][0]
