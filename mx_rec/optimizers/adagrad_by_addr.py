"""Adagrad by address, for tables with dynamic expansion."""

from __future__ import annotations

import tensorflow as tf

from mx_rec import ops
from mx_rec.optimizers.adagrad import AdagradParameters
from mx_rec.optimizers.by_address import ByAddressOptimizer
from mx_rec.optimizers.parameters import takes


class AdagradByAddress(ByAddressOptimizer):
    """Adagrad with an epsilon of 1e-7; formula and source: `mx_rec.ops.apply_adagrad_by_address`."""

    def __init__(self, parameters: AdagradParameters) -> None:
        super().__init__(parameters.learning_rate, parameters.name)
        self._initial_accumulator_value = parameters.initial_accumulator_value

    def _slot_kind(self) -> tuple[str, tuple[float, ...]]:
        return "Adagrad", (self._initial_accumulator_value,)

    def _apply_to_table(
        self, handle: tf.Tensor, gradients: tf.Tensor, addresses: tf.Tensor, learning_rate: tf.Tensor
    ) -> tf.Operation:
        return ops.apply_adagrad_by_address(
            handle, addresses, gradients, learning_rate, self._initial_accumulator_value
        )


@takes(AdagradParameters)
def create_hash_optimizer_by_address(parameters: AdagradParameters) -> AdagradByAddress:
    """Adagrad by address; parameters: `mx_rec.optimizers.adagrad.AdagradParameters`.

    Raises:
        EnvironmentError: before `init`.
        ValueError, TypeError: a parameter is out of range, or tables do not expand dynamically.
    """
    return AdagradByAddress(parameters)


create_hash_optimizer_by_addr = create_hash_optimizer_by_address
