"""LazyAdam by address, for tables with dynamic expansion."""

from __future__ import annotations

import tensorflow as tf

from mx_rec import ops
from mx_rec.optimizers.by_address import ByAddressOptimizer, LearningRate
from mx_rec.util.validate import check_float


class LazyAdamByAddress(ByAddressOptimizer):
    """Adam whose moments move only for the rows of the batch.

    Bias correction uses the table's number of updates. Formula and source:
    `mx_rec.ops.apply_lazy_adam_by_address`.
    """

    def __init__(self, learning_rate: LearningRate, beta1: float, beta2: float, epsilon: float, name: str) -> None:
        super().__init__(learning_rate, name)
        self._beta1 = check_float("beta1", beta1, 0.0, 1.0, low_open=True, high_open=True)
        self._beta2 = check_float("beta2", beta2, 0.0, 1.0)
        self._epsilon = check_float("epsilon", epsilon, 0.0, 1.0, low_open=True)

    def _apply_to_table(
        self, handle: tf.Tensor, gradients: tf.Tensor, addresses: tf.Tensor, learning_rate: tf.Tensor
    ) -> tf.Operation:
        return ops.apply_lazy_adam_by_address(
            handle, addresses, gradients, learning_rate, self._beta1, self._beta2, self._epsilon
        )


def create_hash_optimizer_by_address(
    learning_rate: LearningRate = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    name: str = "LazyAdamByAddress",
) -> LazyAdamByAddress:
    """LazyAdam by address.

    Args:
        learning_rate: 0..10, a scalar tensor, or a function that gives one.
        beta1: decay of the first moment, in (0, 1).
        beta2: decay of the second moment, in [0, 1].
        epsilon: in (0, 1].
        name: 1..200 characters.

    Raises:
        EnvironmentError: before `init`.
        ValueError, TypeError: a parameter is out of range, or tables do not expand dynamically.
    """
    return LazyAdamByAddress(learning_rate, beta1, beta2, epsilon, name)


create_hash_optimizer_by_addr = create_hash_optimizer_by_address
