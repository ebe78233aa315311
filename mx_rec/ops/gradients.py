"""Gradients of what lookups are made of."""

from __future__ import annotations

from typing import Optional

import tensorflow as tf

from mx_rec.ops.many_ops import sum_gradients_many

RESTORE_GRADIENT = "MxRecRestore"
"""For `gradient_override_map`: the gradient of the GatherV2 that spreads the rows of a lookup over its batch."""


@tf.RegisterGradient(RESTORE_GRADIENT)
def _restore_gradient(restore: tf.Operation, gradient: tf.Tensor) -> list:
    """The sums that TensorFlow's own gradient gives, added in the same order by an op made for it.

    TensorFlow's UnsortedSegmentSum takes up to 2.4 times as long (docs/benchmarks.md).
    """
    rows, positions, _ = restore.inputs
    values = tf.convert_to_tensor(gradient)
    keys = _one_per_row(rows, positions)
    if keys is None or rows.shape.rank != 2 or rows.shape[1] is None:
        flat = tf.reshape(values, tf.concat([[-1], tf.shape(rows)[1:]], 0))
        return [tf.math.unsorted_segment_sum(flat, tf.reshape(positions, [-1]), tf.shape(rows)[0]), None, None]
    (total,) = sum_gradients_many([values], [positions], [keys], rows.shape[1])
    return [total, None, None]


def _one_per_row(rows: tf.Tensor, positions: tf.Tensor) -> Optional[tf.Tensor]:
    """An int64 [n] that tells the number of rows without making them."""
    if positions.op.type == "MxRecUnique":
        return positions.op.outputs[0]
    if rows.op.type in ("MxRecGatherByAddress", "ResourceGather") and rows.op.inputs[1].dtype == tf.int64:
        return rows.op.inputs[1]
    return None


@tf.RegisterGradient("MxRecSumGradientsMany")
def _sum_gradient(operation: tf.Operation, *gradients: tf.Tensor) -> list:
    """Each gradient of a batch position is that of its row."""
    n, inputs = operation.get_attr("N"), operation.inputs
    of_values = []
    for gradient, values, positions in zip(gradients, inputs[:n], inputs[n : 2 * n]):
        spread = tf.gather(gradient, tf.maximum(positions, 0))
        kept = tf.where(tf.expand_dims(positions >= 0, -1), spread, tf.zeros_like(spread))
        of_values.append(tf.reshape(kept, tf.shape(values)))
    return [*of_values, *[None] * (2 * n)]
