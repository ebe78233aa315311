"""FTRL by address, for tables with dynamic expansion."""

from __future__ import annotations

import tensorflow as tf

from mx_rec import ops
from mx_rec.optimizers.by_address import ByAddressOptimizer
from mx_rec.optimizers.ftrl import FtrlParameters
from mx_rec.optimizers.parameters import takes


class FtrlByAddress(ByAddressOptimizer):
    """FTRL-proximal; formula and source: `mx_rec.ops.apply_ftrl_by_address`."""

    def __init__(self, parameters: FtrlParameters) -> None:
        super().__init__(parameters.learning_rate, parameters.name)
        self._parameters = parameters

    def _slot_kind(self) -> tuple[str, tuple[float, ...]]:
        return "Ftrl", (self._parameters.initial_accumulator_value, 0.0)

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


@takes(FtrlParameters)
def create_hash_optimizer_by_address(parameters: FtrlParameters) -> FtrlByAddress:
    """FTRL by address; parameters: `mx_rec.optimizers.ftrl.FtrlParameters`.

    Raises:
        EnvironmentError: before `init`.
        ValueError, TypeError: a parameter is out of range, or tables do not expand dynamically.
    """
    return FtrlByAddress(parameters)


create_hash_optimizer_by_addr = create_hash_optimizer_by_address
