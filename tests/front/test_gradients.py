"""The gradient of a lookup's result is the one that TensorFlow gives for its GatherV2, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from mx_rec import ops
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup

tf1 = tf.compat.v1
DIM = 3


def _lookup(shape, ids):
    table = create_table(tf.int64, DIM, "user", tf1.random_normal_initializer(seed=1))
    fed = tf1.placeholder(tf.int64, shape)
    rows = sparse_lookup(table, fed)
    (local,) = tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
    return rows, local, rows.op.inputs[1], {fed: ids}


def _bits(arrays):
    return [np.asarray(array).view(np.int32) for array in arrays]


@pytest.mark.parametrize("shape", [[None], None, [4, 5], [None, 2, 2], []])
def test_gradients_are_those_of_tensorflow(mxrec, shape):
    random = np.random.RandomState(0)
    size = [{None: 6}.get(n, n) for n in ([3, 2] if shape is None else shape)]
    rows, local, restore, feed = _lookup(shape, random.randint(0, 7, size))
    weights = tf.constant((random.randn(*size, DIM) * 10.0 ** random.randint(-6, 6, (*size, 1))).astype(np.float32))
    (ours,) = tf.gradients(tf.reduce_sum(rows * weights), local)
    (theirs,) = tf.gradients(tf.reduce_sum(tf.gather(local, restore) * weights), local)
    assert ours.op.type == "MxRecSumGradientsMany"
    with tf1.Session() as session:
        values = session.run([ours, tf.convert_to_tensor(theirs)], feed)
    np.testing.assert_array_equal(*_bits(values))


def test_empty_batch(mxrec):
    rows, local, _, feed = _lookup([None], [])
    (gradient,) = tf.gradients(rows, local)
    with tf1.Session() as session:
        assert session.run(gradient, feed).shape == (0, DIM)


def test_gradients_of_gradients(mxrec):
    rows, local, restore, feed = _lookup([None], [5, 5, 7, 5])
    second = []
    for result in (rows, tf.gather(local, restore)):
        (first,) = tf.gradients(tf.reduce_sum(result**3), local)
        second.extend(tf.gradients(tf.convert_to_tensor(first) ** 2, local))
    with tf1.Session() as session:
        ours, theirs = session.run([tf.convert_to_tensor(gradient) for gradient in second], feed)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_gradient_of_sums_leaves_out_negative_positions(mxrec):
    values = tf.constant(np.arange(6, dtype=np.float32).reshape(3, 2))
    (total,) = ops.sum_gradients_many([values], [[1, -1, 0]], [np.zeros(2, np.int64)], 2)
    (gradient,) = tf.gradients(total * [[1.0, 2.0], [3.0, 4.0]], values)
    with tf1.Session() as session:
        np.testing.assert_array_equal(session.run(gradient), [[3, 4], [0, 0], [1, 2]])


def test_positions_that_come_from_elsewhere(mxrec):
    """As in a rewritten graph, whose batch has the positions."""
    local = tf.constant(np.random.RandomState(0).randn(4, DIM).astype(np.float32))
    positions = tf.constant([[3, 0], [3, 1]])
    with tf1.get_default_graph().gradient_override_map({"GatherV2": ops.RESTORE_GRADIENT}):
        rows = tf.gather(local, positions)
    found = [tf.gradients(tf.reduce_sum(result**2), local)[0] for result in (rows, tf.gather(local, positions))]
    gradients = [tf.convert_to_tensor(gradient) for gradient in found]
    with tf1.Session() as session:
        np.testing.assert_array_equal(*_bits(session.run(gradients)))
