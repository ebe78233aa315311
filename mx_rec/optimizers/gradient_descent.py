"""Gradient descent on tables of fixed capacity."""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

from mx_rec.optimizers.on_variable import DistinctRowsMixin, check_fixed_capacity
from mx_rec.optimizers.parameters import LearningRate, check_learning_rate
from mx_rec.util.validate import check_bool, check_float


class GradientDescent(DistinctRowsMixin, tf.compat.v1.train.GradientDescentOptimizer):
    """`row -= learning_rate * (gradient + weight_decay * row)` for the rows of the batch."""

    def __init__(
        self, learning_rate: LearningRate, use_locking: bool, name: str, weight_decay: Optional[float]
    ) -> None:
        super().__init__(learning_rate, use_locking=use_locking, name=name)
        self._weight_decay = weight_decay

    def _resource_apply_sparse(self, grad: tf.Tensor, handle: Any, indices: tf.Tensor) -> tf.Operation:
        if self._weight_decay is not None:
            grad = grad + self._weight_decay * tf.gather(handle, indices)
        step = grad * tf.cast(self._learning_rate_tensor, grad.dtype)
        return tf.raw_ops.ResourceScatterSub(resource=handle.handle, indices=indices, updates=step)


def create_hash_optimizer(
    learning_rate: LearningRate,
    use_locking: bool = False,
    name: str = "GradientDescent",
    use_fusion_optim: bool = False,
    weight_decay: Optional[float] = None,
) -> GradientDescent:
    """Gradient descent on the variables of `get_dense_and_sparse_variable()[1]`.

    Args:
        learning_rate: 0..10, a scalar tensor, or a function that gives one.
        use_locking: as in TensorFlow.
        name: 1..200 characters.
        use_fusion_optim: accepted.
        weight_decay: 1e-5..1e-2, or None for none; see `GradientDescent`.

    Raises:
        EnvironmentError: before `init`.
        ValueError, TypeError: a parameter is out of range, or tables expand dynamically.
    """
    check_fixed_capacity(name)
    check_bool("use_locking", use_locking)
    check_bool("use_fusion_optim", use_fusion_optim)
    if weight_decay is not None:
        check_float("weight_decay", weight_decay, 1e-5, 1e-2)
    return GradientDescent(check_learning_rate(learning_rate), use_locking, name, weight_decay)
