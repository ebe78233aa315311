"""The op of pooled lookups beside numpy, over odd shapes, and what illegal input gives."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from mx_rec import ops

tf1 = tf.compat.v1
COMBINERS = ("sum", "mean", "sqrtn")


class PoolOps:
    """The ops in one session, fed through placeholders."""

    def __init__(self) -> None:
        tf1.disable_eager_execution()
        with tf.Graph().as_default() as graph:
            self.embeddings = tf1.placeholder(tf.float32)
            self.restore = tf1.placeholder(tf.int32)
            self.splits = tf1.placeholder(tf.int64)
            self.weights = tf1.placeholder(tf.float32)
            self.upstream = tf1.placeholder(tf.float32)
            self.indices = tf1.placeholder(tf.int64)
            self.num_rows = tf1.placeholder(tf.int64)
            self.row_splits = ops.row_splits(self.indices, self.num_rows)
            self.fetches = {}
            for combiner in COMBINERS:
                plain = ops.pool(self.embeddings, self.restore, self.splits, combiner)
                weighted = ops.pool(self.embeddings, self.restore, self.splits, combiner, self.weights)
                self.fetches[combiner, False] = [plain, *tf.gradients(plain, self.embeddings, self.upstream)]
                self.fetches[combiner, True] = [
                    weighted,
                    *tf.gradients(weighted, [self.embeddings, self.weights], self.upstream),
                ]
        self.session = tf1.Session(graph=graph)

    def run(self, combiner, is_weighted, embeddings, restore, splits, weights, upstream, fetch=slice(None)):
        feed = {
            self.embeddings: embeddings,
            self.restore: restore,
            self.splits: splits,
            self.weights: weights,
            self.upstream: upstream,
        }
        return self.session.run(self.fetches[combiner, is_weighted][fetch], feed)

    def split(self, indices, num_rows):
        return self.session.run(self.row_splits, {self.indices: indices, self.num_rows: num_rows})


@functools.lru_cache(maxsize=1)
def pool_ops() -> PoolOps:
    return PoolOps()


def _expected(combiner, embeddings, restore, splits, weights, upstream):
    """(pooled, gradients of the embeddings, of the weights) in double precision, row by row."""
    embeddings, weights, upstream = (np.asarray(x, np.float64) for x in (embeddings, weights, upstream))
    pooled, by_row, by_weight = np.zeros_like(upstream), np.zeros_like(embeddings), np.zeros_like(weights)
    for i, (begin, end) in enumerate(zip(splits[:-1], splits[1:])):
        rows, w = embeddings[restore[begin:end]], weights[begin:end]
        total = w @ rows
        divisor = {"sum": 1.0, "mean": w.sum(), "sqrtn": np.sqrt((w**2).sum())}[combiner]
        if divisor == 0 or begin == end:
            continue
        pooled[i] = total / divisor
        np.add.at(by_row, restore[begin:end], np.outer(w / divisor, upstream[i]))
        of_divisor = {"sum": 0 * w, "mean": 1 + 0 * w, "sqrtn": w / divisor}[combiner]
        by_weight[begin:end] = (rows @ upstream[i] - of_divisor * (pooled[i] @ upstream[i])) / divisor
    return pooled, by_row, by_weight


@st.composite
def batches(draw):
    """Small integers as values: float32 sums of them are exact, whatever their order."""
    n = draw(st.integers(0, 6))
    dim = draw(st.sampled_from([1, 2, 7, 8, 9, 16, 17, 24, 64, 65, 90, 130]))
    lengths = draw(st.lists(st.integers(0, 9 if n else 0), max_size=12))
    ids = sum(lengths)
    rng = np.random.RandomState(draw(st.integers(0, 2**31)))
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    restore = rng.randint(0, max(n, 1), ids).astype(np.int32)
    embeddings = rng.randint(-8, 9, (n, dim)).astype(np.float32)
    weights = rng.choice(np.float32([0.5, 1, 2, -1, 0]), ids)
    upstream = rng.randint(-4, 5, (len(lengths), dim)).astype(np.float32)
    return embeddings, restore, splits, weights, upstream


@given(batches(), st.sampled_from(COMBINERS))
@settings(deadline=None, max_examples=150)
def test_equals_numpy(batch, combiner):
    embeddings, restore, splits, weights, upstream = batch
    for is_weighted in (False, True):
        factors = weights if is_weighted else np.ones_like(weights)
        expected = _expected(combiner, embeddings, restore, splits, factors, upstream)
        got = pool_ops().run(combiner, is_weighted, embeddings, restore, splits, weights, upstream)
        assert [result.dtype for result in got] == [np.float32] * len(got)
        if combiner == "sum":
            for ours, theirs in zip(got, expected):
                np.testing.assert_array_equal(ours, theirs)
        for ours, theirs in zip(got, expected):  # a division and a square root are rounded, each by half a unit
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-3)


@given(st.lists(st.integers(0, 20), max_size=40), st.integers(0, 5))
@settings(deadline=None, max_examples=60)
def test_row_splits_equal_numpy(rows, empty_at_the_end):
    rows = np.sort(np.array(rows, np.int64))
    num_rows = int(rows[-1]) + 1 + empty_at_the_end if rows.size else empty_at_the_end
    indices = np.stack([rows, -rows], 1)
    np.testing.assert_array_equal(pool_ops().split(indices, num_rows), np.searchsorted(rows, np.arange(num_rows + 1)))


def test_restore_may_have_any_shape():
    restore = np.array([[[0, 1], [1, 1]]], np.int32)
    (pooled,) = pool_ops().run(
        "sum", False, np.float32([[1], [10]]), restore, [0, 2, 4], [], np.zeros([2, 1]), slice(1)
    )
    assert pooled.tolist() == [[11], [20]]


def test_same_bits_in_every_run():
    rng = np.random.RandomState(0)
    restore = rng.randint(0, 500, 60_000).astype(np.int32)
    splits = np.sort(np.concatenate([[0, 60_000], rng.randint(0, 60_000, 5_000)]))
    arguments = (
        rng.randn(500, 40),
        restore,
        splits,
        rng.randn(60_000),
        rng.randn(splits.size - 1, 40),
    )
    first = pool_ops().run("mean", True, *arguments)
    for _ in range(5):
        for one, other in zip(first, pool_ops().run("mean", True, *arguments)):
            np.testing.assert_array_equal(one, other)


GOOD = {
    "embeddings": np.ones([3, 2], np.float32),
    "restore": [0, 1, 2, 2],
    "splits": [0, 1, 1, 4],
    "weights": [1, 2, 3, 4],
    "upstream": np.ones([3, 2], np.float32),
}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"restore": [0, 1, 3, 2]}, r"restore\[2\] = 3 is not in \[0, 3\)"),
        ({"restore": [0, -1, 2, 2]}, r"restore\[1\] = -1 is not in \[0, 3\)"),
        ({"restore": [2**31 - 1] * 4}, "restore"),
        ({"embeddings": np.ones([0, 2])}, r"restore\[0\] = 0 is not in \[0, 0\)"),
        ({"embeddings": np.ones([3])}, "embeddings must be a matrix|must be at least rank|but is rank|must be rank"),
        ({"splits": []}, "row_splits must not be empty"),
        ({"splits": [[0, 4]]}, "row_splits must be a vector"),
        ({"splits": [0, 2]}, "row_splits must lead from 0 to the number of ids, 4, got 0 to 2"),
        ({"splits": [1, 4]}, "got 1 to 4"),
        ({"splits": [0, 5]}, "got 0 to 5"),
        ({"splits": [0, 2**62, 1, 4]}, "must not descend, but have 1 at position 2 after"),
        ({"splits": [0, -(2**62), 1, 4]}, "must not descend"),
        ({"weights": [1, 2, 3]}, "one weight per id: expected 4, got 3"),
    ],
)
@pytest.mark.parametrize("combiner", COMBINERS)
def test_illegal_batches_are_named(combiner, bad, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        pool_ops().run(combiner, True, **{**GOOD, **bad}, fetch=slice(1))
    if "embeddings" in bad:
        return
    rows = max(np.size(bad.get("splits", GOOD["splits"])) - 1, 0)
    for gradient in (1, 2):  # the gradients alone check as much
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            pool_ops().run(combiner, True, **{**GOOD, **bad, "upstream": np.ones([rows, 2])}, fetch=gradient)


@pytest.mark.parametrize("gradient", [1, 2])
@pytest.mark.parametrize("shape", [(2, 2), (4, 2), (3,), (3, 3)])
def test_gradients_must_fit_the_batch(gradient, shape):
    if shape == (3, 3) and gradient == 1:
        return  # they are of embeddings of 3 columns, which this op does not read
    with pytest.raises(tf.errors.InvalidArgumentError, match="gradients must"):
        pool_ops().run("mean", True, **{**GOOD, "upstream": np.ones(shape)}, fetch=gradient)


@pytest.mark.parametrize(
    ("indices", "num_rows", "message"),
    [
        ([[1, 0], [0, 0]], 2, "rows must ascend, but value 1 is in row 0, after a value in row 1"),
        ([[0, 0], [2, 0]], 2, r"value 1 is in row 2, which is not in \[0, 2\)"),
        ([[-1, 0]], 2, "value 0 is in row -1"),
        ([[0, 0]], 0, r"not in \[0, 0\)"),
        ([[0, 0]], -1, r"num_rows must be in \[0, 2147483647\], got -1"),
        ([[0, 0]], 2**40, "num_rows must be in"),
        ([[0, 0]], [1], "num_rows must be a scalar"),
        ([[0]], 1, r"indices must have shape \[m, 2\]"),
        ([0, 0], 1, r"indices must have shape \[m, 2\]"),
    ],
)
def test_illegal_indices_are_named(indices, num_rows, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        pool_ops().split(indices, num_rows)


def test_number_of_embeddings_is_checked():
    with tf.Graph().as_default(), tf1.Session() as session:
        count = tf1.placeholder(tf.int64, [])
        gradient = ops.load_library().mx_rec_pool_gradient(
            gradients=tf.ones([1, 2]), num_embeddings=count, restore=[0], row_splits=[0, 1], weights=[], combiner="sum"
        )
        for bad in (-1, 2**40):
            with pytest.raises(tf.errors.InvalidArgumentError, match="num_embeddings must be in"):
                session.run(gradient, {count: bad})
        assert session.run(gradient, {count: 2}).tolist() == [[1, 1], [0, 0]]


def test_shapes_when_the_graph_is_built():
    with tf.Graph().as_default():
        pooled = ops.pool(tf.ones([4, 3]), tf.constant([0, 1]), tf.constant([0, 1, 2], tf.int64), "mean")
        assert pooled.shape.as_list() == [2, 3]
        splits = ops.row_splits(tf1.placeholder(tf.int64, [None, 2]), 5)
        assert splits.shape.as_list() == [6]
        with pytest.raises(ValueError, match="must be rank 2|Shape must be rank 2"):
            ops.pool(tf.ones([4]), tf.constant([0, 1]), tf.constant([0, 1, 2], tf.int64), "mean")
        with pytest.raises(ValueError, match="Dimension must be 2"):
            ops.row_splits(tf1.placeholder(tf.int64, [None, 3]), 5)
        with pytest.raises(ValueError, match="combiner"):
            ops.pool(tf.ones([4, 3]), tf.constant([0, 1]), tf.constant([0, 1, 2], tf.int64), "max")
