"""Gradient descent by address, for tables with dynamic expansion."""

from __future__ import annotations

import tensorflow as tf

from mx_rec import ops
from mx_rec.optimizers.by_address import ByAddressOptimizer
from mx_rec.optimizers.parameters import LearningRate
from mx_rec.util.validate import check_bool, check_float


class GradientDescentByAddr(ByAddressOptimizer):
    """Gradient descent; formula: `mx_rec.ops.apply_sgd_by_address`."""

    def __init__(self, learning_rate: LearningRate, weight_decay: float, name: str) -> None:
        super().__init__(learning_rate, name)
        self._weight_decay = check_float("weight_decay", weight_decay, 0.0, 1.0)

    def _apply_to_table(
        self, handle: tf.Tensor, gradients: tf.Tensor, addresses: tf.Tensor, learning_rate: tf.Tensor
    ) -> tf.Operation:
        return ops.apply_sgd_by_address(handle, addresses, gradients, learning_rate, self._weight_decay)


def create_hash_optimizer_by_addr(
    learning_rate: LearningRate,
    weight_decay: float = 0.0001,
    use_locking: bool = False,
    name: str = "GradientDescentByAddr",
) -> GradientDescentByAddr:
    """Gradient descent by address.

    Args:
        learning_rate: 0..10, a scalar tensor, or a function that gives one.
        weight_decay: 0..1; see `mx_rec.ops.apply_sgd_by_address`.
        use_locking: accepted; updates of one table never overlap.
        name: 1..200 characters.

    Raises:
        EnvironmentError: before `init`.
        ValueError, TypeError: a parameter is out of range, or tables do not expand dynamically.
    """
    check_bool("use_locking", use_locking)
    return GradientDescentByAddr(learning_rate, weight_decay, name)


create_hash_optimizer_by_address = create_hash_optimizer_by_addr
