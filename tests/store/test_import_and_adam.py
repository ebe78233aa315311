"""Rows given to a table, and Adam that moves all rows: what converted graphs need, beside TensorFlow's own."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from mx_rec import ops

tf1 = tf.compat.v1
ROWS, DIM = 12, 5


def handle(name: str, **options) -> tf.Tensor:
    return ops.table_handle(name, DIM, **options)


def test_imported_rows_are_found_and_train_from_there() -> None:
    rows = np.random.RandomState(0).rand(4, DIM).astype(np.float32)
    with tf.Graph().as_default(), tf1.Session() as session:
        table = handle("imported")
        session.run(ops.table_import(table, [3, -1, 2**40, 7], rows))
        keys, content, counts = session.run(ops.table_export(table))
        assert keys.tolist() == [-1, 3, 7, 2**40]
        np.testing.assert_array_equal(content, rows[[1, 0, 3, 2]])
        assert not counts.any()
        addresses = ops.find(table, [7], np.zeros(0, np.int64))
        session.run(ops.apply_sgd_by_address(table, addresses, np.ones((1, DIM), np.float32), 0.5))
        np.testing.assert_array_equal(session.run(ops.gather_by_address(table, addresses, DIM))[0], rows[3] - 0.5)


@pytest.mark.parametrize("shape", [(2, DIM + 1), (3, DIM)])
def test_rows_of_another_shape_are_refused(shape) -> None:
    with tf.Graph().as_default(), tf1.Session() as session:
        table, keys = handle("refused"), tf1.placeholder_with_default(np.array([1, 2], np.int64), [None])
        rows = tf1.placeholder_with_default(np.zeros(shape, np.float32), [None, None])
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"table 'refused': rows to import must have shape \[2"
        ):
            session.run(ops.table_import(table, keys, rows))
        assert session.run(ops.table_size(table)) == 0


@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
def test_updates_are_those_of_tensorflow(optimizer: str) -> None:
    """Bit for bit for Adam, whose rows all move; Adagrad's root is TensorFlow's to rounding."""
    random = np.random.RandomState(1)
    first = random.rand(ROWS, DIM).astype(np.float32)
    batches = [(random.permutation(ROWS)[:4], random.randn(4, DIM).astype(np.float32)) for _ in range(6)]
    config = tf1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True  # it moves factors, which rounds otherwise
    with tf.Graph().as_default(), tf1.Session(config=config) as session:
        variable = tf1.get_variable("v", initializer=first, use_resource=True)
        ids, gradients = tf1.placeholder(tf.int64, [None]), tf1.placeholder(tf.float32, [None, DIM])
        table = handle("updated")
        fill = ops.table_import(table, np.arange(ROWS), first)
        addresses = ops.find(table, ids, np.zeros(0, np.int64))
        if optimizer == "adam":
            maker = tf1.train.AdamOptimizer(0.1)
            step = tf1.placeholder(tf.float32, [])
            ours = ops.apply_adam_by_address(table, addresses, gradients, step, 0.9, 0.999, 1e-8)
        else:
            maker = tf1.train.AdagradOptimizer(0.1, 0.3)
            ours = ops.apply_adagrad_by_address(table, addresses, gradients, 0.1, 0.3, epsilon=0.0)
        theirs = maker.apply_gradients([(tf.IndexedSlices(gradients, ids, [ROWS, DIM]), variable)])
        session.run([tf1.global_variables_initializer(), fill])
        powers = np.float32([0.9, 0.999])
        for batch_ids, batch_gradients in batches:
            feed = {ids: batch_ids, gradients: batch_gradients}
            if optimizer == "adam":
                one = np.float32(1)
                feed[step] = np.float32(0.1) * np.sqrt(one - powers[1]) / (one - powers[0])
                powers = powers * np.float32([0.9, 0.999])
            session.run([theirs, ours], feed)
            expected, actual = session.run([variable, ops.table_export(table).rows])
            np.testing.assert_allclose(actual[:, :DIM], expected, rtol=1e-6, atol=1e-7)
            if optimizer == "adam":
                np.testing.assert_array_equal(actual[:, :DIM], expected)
