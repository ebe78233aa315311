"""LazyAdam by address, for tables with dynamic expansion."""

from __future__ import annotations

import tensorflow as tf

from mx_rec import ops
from mx_rec.optimizers.by_address import ByAddressOptimizer
from mx_rec.optimizers.lazy_adam import LazyAdamParameters
from mx_rec.optimizers.parameters import takes


class LazyAdamByAddress(ByAddressOptimizer):
    """Adam whose moments move only for the rows of the batch.

    Bias correction uses the table's number of updates. Formula and source:
    `mx_rec.ops.apply_lazy_adam_by_address`.
    """

    def __init__(self, parameters: LazyAdamParameters) -> None:
        super().__init__(parameters.learning_rate, parameters.name)
        self._beta1, self._beta2, self._epsilon = parameters.beta1, parameters.beta2, parameters.epsilon

    def _slot_kind(self) -> tuple[str, tuple[float, ...]]:
        return "LazyAdam", (0.0, 0.0)

    def _apply_to_table(
        self, handle: tf.Tensor, gradients: tf.Tensor, addresses: tf.Tensor, learning_rate: tf.Tensor
    ) -> tf.Operation:
        return ops.apply_lazy_adam_by_address(
            handle, addresses, gradients, learning_rate, self._beta1, self._beta2, self._epsilon
        )


@takes(LazyAdamParameters)
def create_hash_optimizer_by_address(parameters: LazyAdamParameters) -> LazyAdamByAddress:
    """LazyAdam by address; parameters: `mx_rec.optimizers.lazy_adam.LazyAdamParameters`.

    Raises:
        EnvironmentError: before `init`.
        ValueError, TypeError: a parameter is out of range, or tables do not expand dynamically.
    """
    return LazyAdamByAddress(parameters)


create_hash_optimizer_by_addr = create_hash_optimizer_by_address
