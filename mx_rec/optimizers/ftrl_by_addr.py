"""FTRL by address, for tables with dynamic expansion."""

from __future__ import annotations

from typing import Optional

import tensorflow as tf

from mx_rec import ops
from mx_rec.optimizers.by_address import ByAddressOptimizer, LearningRate
from mx_rec.optimizers.ftrl import FtrlParameters
from mx_rec.util.validate import check_bool


class FtrlByAddress(ByAddressOptimizer):
    """FTRL-proximal; formula and source: `mx_rec.ops.apply_ftrl_by_address`."""

    def __init__(self, parameters: FtrlParameters, name: str) -> None:
        super().__init__(parameters.learning_rate, name)
        self._parameters = parameters

    def _apply_to_table(
        self, handle: tf.Tensor, gradients: tf.Tensor, addresses: tf.Tensor, learning_rate: tf.Tensor
    ) -> tf.Operation:
        parameters = self._parameters
        return ops.apply_ftrl_by_address(
            handle,
            addresses,
            gradients,
            learning_rate,
            learning_rate_power=parameters.learning_rate_power,
            initial_accumulator_value=parameters.initial_accumulator_value,
            l1=parameters.l1_regularization_strength,
            l2=parameters.l2_regularization_strength,
            l2_shrinkage=parameters.l2_shrinkage_regularization_strength,
        )


def create_hash_optimizer_by_address(
    learning_rate: LearningRate,
    use_locking: bool = False,
    name: str = "Ftrl",
    learning_rate_power: float = -0.5,
    initial_accumulator_value: float = 0.1,
    l1_regularization_strength: float = 0.0,
    l2_regularization_strength: float = 0.0,
    l2_shrinkage_regularization_strength: float = 0.0,
    accum_name: Optional[str] = None,
    linear_name: Optional[str] = None,
) -> FtrlByAddress:
    """FTRL by address.

    Args:
        learning_rate: above 0, at most 10; a scalar tensor, or a function that gives one.
        use_locking: accepted; updates of one table never overlap.
        name: 1..200 characters.
        learning_rate_power: at most 0.
        initial_accumulator_value: at least 0.
        l1_regularization_strength: at least 0.
        l2_regularization_strength: at least 0.
        l2_shrinkage_regularization_strength: at least 0.
        accum_name: accepted; the slots are part of the row.
        linear_name: accepted, as above.

    Raises:
        EnvironmentError: before `init`.
        ValueError, TypeError: a parameter is out of range, or tables do not expand dynamically.
    """
    check_bool("use_locking", use_locking)
    parameters = FtrlParameters(
        learning_rate,
        learning_rate_power,
        initial_accumulator_value,
        l1_regularization_strength,
        l2_regularization_strength,
        l2_shrinkage_regularization_strength,
    )
    return FtrlByAddress(parameters, name)


create_hash_optimizer_by_addr = create_hash_optimizer_by_address
