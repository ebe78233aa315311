"""Adagrad by address, for tables with dynamic expansion."""

from __future__ import annotations

import tensorflow as tf

from mx_rec import ops
from mx_rec.optimizers.by_address import ByAddressOptimizer, LearningRate
from mx_rec.util.validate import check_bool, check_float


class AdagradByAddress(ByAddressOptimizer):
    """Adagrad with an epsilon of 1e-7; formula and source: `mx_rec.ops.apply_adagrad_by_address`."""

    def __init__(self, learning_rate: LearningRate, initial_accumulator_value: float, name: str) -> None:
        super().__init__(learning_rate, name)
        self._initial_accumulator_value = check_float(
            "initial_accumulator_value", initial_accumulator_value, 0.0, 1.0, low_open=True
        )

    def _apply_to_table(
        self, handle: tf.Tensor, gradients: tf.Tensor, addresses: tf.Tensor, learning_rate: tf.Tensor
    ) -> tf.Operation:
        return ops.apply_adagrad_by_address(
            handle, addresses, gradients, learning_rate, self._initial_accumulator_value
        )


def create_hash_optimizer_by_address(
    learning_rate: LearningRate = 0.001,
    initial_accumulator_value: float = 0.9,
    use_locking: bool = False,
    name: str = "Adagrad",
) -> AdagradByAddress:
    """Adagrad by address.

    Args:
        learning_rate: 0..10, a scalar tensor, or a function that gives one.
        initial_accumulator_value: in (0, 1].
        use_locking: accepted; updates of one table never overlap.
        name: 1..200 characters.

    Raises:
        EnvironmentError: before `init`.
        ValueError, TypeError: a parameter is out of range, or tables do not expand dynamically.
    """
    check_bool("use_locking", use_locking)
    return AdagradByAddress(learning_rate, initial_accumulator_value, name)


create_hash_optimizer_by_addr = create_hash_optimizer_by_address
