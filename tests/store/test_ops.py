"""The ops one by one: results, and what illegal input gives."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf
from store_harness import OpTable

from mx_rec import ops

tf1 = tf.compat.v1
InvalidArgumentError = tf.errors.InvalidArgumentError


@pytest.fixture(autouse=True)
def graph_mode():
    tf1.disable_eager_execution()


def test_find_never_inserts_and_gives_zero_for_missing_keys():
    with OpTable(4) as table:
        table.find_or_insert([1, 2])
        found = table.find([2, 3, 1])
        assert found[1] == 0
        assert 0 not in (found[0], found[2])
        assert table.size() == 2


def test_reserved_rows_are_invisible_until_inserted():
    with OpTable(2, initializer="uniform", initializer_b=1.0, seed=3) as table:
        hints = table.look_ahead([10, 20], reserve=True)
        assert np.all(hints != 0)
        assert table.size() == 0
        assert table.find([10, 20]).tolist() == [0, 0]
        assert table.find([10, 20], hints).tolist() == [0, 0]
        assert table.export().keys.size == 0
        with pytest.raises(InvalidArgumentError, match="names no row"):
            table.gather(hints)
        assert table.find_or_insert([10], hints[:1]).tolist() == hints[:1].tolist()
        assert table.export().keys.tolist() == [10]


def test_gather_gives_default_row_for_address_zero():
    with OpTable(3, initializer="constant", initializer_a=2.0) as table:
        address = table.find_or_insert([5])[0]
        rows = table.gather([0, address])
        np.testing.assert_array_equal(rows, [[0, 0, 0], [2, 2, 2]])
        rows = table.gather([0, address], [7, 8, 9])
        np.testing.assert_array_equal(rows, [[7, 8, 9], [2, 2, 2]])


def test_a_default_row_of_another_length_is_refused():
    with (
        OpTable(3) as table,
        pytest.raises(InvalidArgumentError, match="default_row must be empty or have dim elements: expected 3, got 2"),
    ):
        table.gather([0], [1, 2])


@pytest.mark.parametrize("illegal", [1, -1, 2**63 - 1, -(2**63), 123456789])
def test_illegal_address_is_named_and_nothing_is_applied(illegal):
    with OpTable(2, name="user") as table:
        good = table.find_or_insert([1, 2])
        before = table.export().rows
        message = rf"table 'user': illegal address {illegal} at position 1"
        addresses = [good[0], illegal, good[1]]
        with pytest.raises(InvalidArgumentError, match=message):
            table.gather(addresses)
        with pytest.raises(InvalidArgumentError, match=message):
            table.sgd(addresses, np.ones([3, 2]), 0.1)
        with pytest.raises(InvalidArgumentError, match=message):
            table.lazy_adam(addresses, np.ones([3, 2]), 0.1)
        np.testing.assert_array_equal(table.export().rows[:, :2], before)


def test_address_of_another_table_is_refused():
    with OpTable(2) as one, OpTable(2, name="other") as two:
        addresses = one.find_or_insert([1])
        two.find_or_insert([1])
        with pytest.raises(InvalidArgumentError, match="not handed out by this table"):
            two.gather(addresses)


def test_gradient_rows_must_equal_address_rows_in_the_op():
    with OpTable(2, name="user") as table:
        addresses = table.find_or_insert([1, 2])
        with pytest.raises(InvalidArgumentError, match="'user' got 2 addresses and gradients of shape"):
            table.sgd(addresses, np.ones([3, 2]), 0.1)


def test_gradient_rows_must_equal_address_rows_when_the_graph_is_built():
    with tf.Graph().as_default():
        handle = ops.table_handle("t", 2)
        addresses = tf.zeros([3], tf.int64)
        with pytest.raises(ValueError, match="gradient rows must equal address rows"):
            ops.apply_sgd_by_address(handle, addresses, tf.zeros([4, 2]), 0.1)


def test_hints_and_counts_must_match_the_keys():
    with OpTable(2) as table:
        with pytest.raises(InvalidArgumentError, match="hints must be empty or have one element per key"):
            table.find_or_insert([1, 2], hints=[1])
        with pytest.raises(InvalidArgumentError, match="counts must be empty or have one element per key"):
            table.find_or_insert([1, 2], counts=[1])
        with pytest.raises(InvalidArgumentError, match="counts must not be negative, got -1 at position 1"):
            table.find_or_insert([1, 2], counts=[1, -1])
        assert table.size() == 0


def test_two_handles_of_one_name_must_agree():
    with tf.Graph().as_default(), tf1.Session() as session:
        session.run(ops.table_size(ops.table_handle("t", 2)))
        with pytest.raises(InvalidArgumentError, match="table 't' exists with another dim"):
            session.run(ops.table_size(ops.table_handle("t", 3)))
        with pytest.raises(InvalidArgumentError, match="table 't' exists with another seed"):
            session.run(ops.table_size(ops.table_handle("t", 2, seed=1)))
        with pytest.raises(InvalidArgumentError, match="table 't' exists with another initializer"):
            session.run(ops.table_size(ops.table_handle("t", 2, initializer_a=1.0)))


@pytest.mark.parametrize("elements", [0, 2])
def test_a_handle_must_be_one_element(elements):
    with tf.Graph().as_default(), tf1.Session() as session:
        handles = tf.stack([ops.table_handle("t", 2)] * 2)[:elements]
        with pytest.raises(InvalidArgumentError, match="a table handle must be one element"):
            session.run(ops.find(handles, [1]))


@pytest.mark.parametrize(
    ("initializer", "a", "b"),
    [("normal", 0.0, -1.0), ("normal", float("nan"), 1.0), ("uniform", 1.0, 0.0), ("constant", float("inf"), 0.0)],
)
def test_initializer_parameters_are_checked(initializer, a, b):
    with (
        OpTable(2, initializer=initializer, initializer_a=a, initializer_b=b) as table,
        pytest.raises(InvalidArgumentError, match="the initializer's parameters must be"),
    ):
        table.find([1])


@pytest.mark.parametrize(
    ("pool", "got"),
    [
        (np.ones([2, 4], np.float64), r"double of shape \[2,4\]"),
        (np.ones([2, 4], np.int32), r"int32 of shape \[2,4\]"),
        (np.array([[b"a"] * 4]), r"string of shape \[1,4\]"),
        (np.ones([4], np.float32), r"float of shape \[4\]"),
        (np.float32(1), r"float of shape \[\]"),
        (np.ones([4, 3], np.float32), r"float of shape \[4,3\]"),
    ],
    ids=["double", "int32", "string", "vector", "scalar", "other_dim"],
)
def test_a_pool_of_another_kind_is_refused(pool, got):
    # Not by ops.table_handle, which makes floats of it: a graph from a file may hold anything.
    with tf.Graph().as_default() as graph:
        ops.table_handle("user", 4, initializer="pool", initializer_pool=np.ones([2, 4], np.float32))
    graph_def = graph.as_graph_def()
    graph_def.node[0].attr["initializer_pool"].tensor.CopyFrom(tf.make_tensor_proto(pool))
    with tf.Graph().as_default(), tf1.Session() as session:
        (handle,) = tf.import_graph_def(graph_def, return_elements=[f"{graph_def.node[0].name}:0"])
        message = rf"table 'user': initializer_pool must be float of shape \[n, 4\], got {got}"
        with pytest.raises(InvalidArgumentError, match=message):
            session.run(ops.table_size(handle))


def test_one_optimizer_per_table():
    with OpTable(2, name="user") as table:
        addresses = table.find_or_insert([1])
        table.lazy_adam(addresses, np.ones([1, 2]), 0.1)
        assert table.export().rows.shape == (1, 6)
        table.sgd(addresses, np.ones([1, 2]), 0.1)  # keeps no slots and goes with any


def test_sgd_follows_its_formula():
    weight_decay, rate = 0.01, 0.3
    rng = np.random.RandomState(0)
    with OpTable(5, initializer="normal", initializer_b=1.0, weight_decay=weight_decay) as table:
        addresses = table.find_or_insert(np.arange(20))
        expected = table.gather(addresses).astype(np.float64)
        for _ in range(10):
            chosen = rng.permutation(20)[:7]
            gradients = rng.randn(7, 5).astype(np.float32)
            table.sgd(addresses[chosen], gradients, rate)
            expected[chosen] -= rate * (gradients + weight_decay * expected[chosen])
        np.testing.assert_allclose(table.gather(addresses), expected, rtol=1e-5, atol=1e-6)


def test_lazy_adam_follows_its_formula():
    rate, beta1, beta2, epsilon = 0.01, 0.9, 0.999, 1e-8
    rng = np.random.RandomState(0)
    with OpTable(5, initializer="normal", initializer_b=1.0) as table:
        addresses = table.find_or_insert(np.arange(20))
        row = table.gather(addresses).astype(np.float64)
        m, v = np.zeros_like(row), np.zeros_like(row)
        for step in range(1, 16):
            chosen = rng.permutation(20)[:7]
            gradients = rng.randn(7, 5).astype(np.float32)
            table.lazy_adam(addresses[chosen], gradients, rate)
            m[chosen] = beta1 * m[chosen] + (1 - beta1) * gradients
            v[chosen] = beta2 * v[chosen] + (1 - beta2) * np.square(gradients, dtype=np.float64)
            step_size = rate * np.sqrt(1 - beta2**step) / (1 - beta1**step)
            row[chosen] -= step_size * m[chosen] / (np.sqrt(v[chosen]) + epsilon)
        content = table.export()
    np.testing.assert_allclose(content.rows, np.hstack([row, m, v]), rtol=2e-4, atol=1e-6)


def test_lazy_adam_equals_tensorflow_adam_when_every_row_is_in_every_batch():
    rng = np.random.RandomState(1)
    with tf.Graph().as_default(), tf1.Session() as session:
        variable = tf1.get_variable("v", [6, 4], initializer=tf1.constant_initializer(0.25), use_resource=True)
        gradient = tf1.placeholder(tf.float32, [6, 4])
        slices = tf.IndexedSlices(gradient, tf.range(6), tf.constant([6, 4]))
        adam = tf1.train.AdamOptimizer(0.05).apply_gradients([(slices, variable)])
        session.run(tf1.global_variables_initializer())
        with OpTable(4, initializer="constant", initializer_a=0.25) as table:
            addresses = table.find_or_insert(np.arange(6))
            for _ in range(12):
                step = rng.randn(6, 4).astype(np.float32)
                session.run(adam, {gradient: step})
                table.lazy_adam(addresses, step, 0.05)
            ours = table.gather(addresses)
        theirs = session.run(variable)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_growth_while_looking_ahead():
    """Rows stay where they are while other threads make the table grow."""
    with OpTable(4, initializer="uniform", initializer_b=1.0, seed=9) as table:
        first = np.arange(1000)
        addresses = table.find_or_insert(first)
        rows = table.gather(addresses)
        stop = threading.Event()
        failures = []

        def grow(offset):
            try:
                for batch in range(40):
                    keys = offset + np.arange(batch * 3000, (batch + 1) * 3000)
                    hints = table.look_ahead(keys, reserve=batch % 2 == 0)
                    table.find_or_insert(keys, hints)
            except Exception as error:  # surfaced below
                failures.append(error)

        threads = [threading.Thread(target=grow, args=(offset,)) for offset in (10**6, -(10**6))]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            np.testing.assert_array_equal(table.gather(addresses), rows)
            np.testing.assert_array_equal(table.find(first), addresses)
        stop.set()
        assert not failures
        assert table.size() == 1000 + 2 * 40 * 3000
        assert table.capacity() >= table.size()


def test_counts_are_exact_under_concurrency():
    with OpTable(2, record_counts=True) as table:
        keys = np.arange(500)

        def count():
            for _ in range(20):
                table.find_or_insert(keys, table.look_ahead(keys, True), np.full(500, 3))

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(table.export().counts.tolist()) == {4 * 20 * 3}


def test_stats_without_a_session_and_release():
    with OpTable(3, name="stats") as table:
        assert ops.table_stats("stats") is None
        table.find_or_insert(np.arange(100))
        stats = ops.table_stats("stats")
        assert stats.size == 100
        assert stats.stride == 3
        assert stats.row_bytes >= 100 * 3 * 4
        assert ops.release_all_tables() >= 1
        assert ops.table_stats("stats") is None
        with pytest.raises(tf.errors.FailedPreconditionError, match="'stats' was released"):
            table.find([1])


@pytest.mark.parametrize(
    ("initializer", "a", "b", "mean", "stddev"),
    [
        ("uniform", -1.0, 3.0, 1.0, 4 / np.sqrt(12)),
        ("normal", 0.5, 2.0, 0.5, 2.0),
        ("truncated_normal", 0.5, 2.0, 0.5, 2.0 * 0.87962566),
    ],
)
def test_initializer_statistics(initializer, a, b, mean, stddev):
    kwargs = {"initializer": initializer, "initializer_a": a, "initializer_b": b, "seed": 5}
    with OpTable(16, **kwargs) as table:
        rows = table.gather(table.find_or_insert(np.arange(20000)))
    assert abs(rows.mean() - mean) < 0.02 * stddev
    assert abs(rows.std() - stddev) < 0.01 * stddev
    if initializer == "truncated_normal":
        assert np.abs(rows - a).max() <= 2 * b * (1 + 1e-6)
    if initializer == "uniform":
        assert rows.min() >= a
        assert rows.max() < b
