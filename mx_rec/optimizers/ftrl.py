"""FTRL on tables of fixed capacity, and its parameters."""

from __future__ import annotations

import dataclasses
import math
import numbers
from typing import Any, Optional

import tensorflow as tf

from mx_rec.optimizers.on_variable import DistinctRowsMixin, check_fixed_capacity
from mx_rec.optimizers.parameters import LearningRate, check_learning_rate, takes
from mx_rec.util.validate import check_bool, check_float


@dataclasses.dataclass
class FtrlParameters:
    """What FTRL takes, on variables and by address.

    Attributes:
        learning_rate: above 0, at most 10; a scalar tensor, or a function that gives one.
        use_locking: as in TensorFlow; by address accepted, since updates of one table never overlap.
        name: 1..200 characters.
        learning_rate_power: at most 0.
        initial_accumulator_value: at least 0.
        l1_regularization_strength: at least 0.
        l2_regularization_strength: at least 0.
        l2_shrinkage_regularization_strength: at least 0.
        accum_name: of the accumulator slot, derived from `name` if None; by address accepted (slots are in the row).
        linear_name: of the linear slot, likewise.
    """

    learning_rate: LearningRate
    use_locking: bool = False
    name: str = "Ftrl"
    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    l2_shrinkage_regularization_strength: float = 0.0
    accum_name: Optional[str] = None
    linear_name: Optional[str] = None

    def __post_init__(self) -> None:
        check_bool("use_locking", self.use_locking)
        check_learning_rate(self.learning_rate)
        if isinstance(self.learning_rate, numbers.Real):  # the formula divides by it
            check_float("learning_rate", self.learning_rate, 0.0, 10.0, low_open=True)
        check_float("learning_rate_power", self.learning_rate_power, -math.inf, 0.0, low_open=True)
        for name in (
            "initial_accumulator_value",
            "l1_regularization_strength",
            "l2_regularization_strength",
            "l2_shrinkage_regularization_strength",
        ):
            check_float(name, getattr(self, name), 0.0, math.inf, high_open=True)


class Ftrl(DistinctRowsMixin, tf.compat.v1.train.FtrlOptimizer):
    """TensorFlow's FTRL-proximal (McMahan et al., 2013) for the rows of the batch."""

    _learning_rate: Any
    _initial_accumulator_value: float

    def _table_slot_kind(self) -> tuple[str, tuple[float, ...]]:
        return "Ftrl", (self._initial_accumulator_value, 0.0)

    def _prepare(self) -> None:
        # TensorFlow's own takes no function.
        rate = self._learning_rate
        self._learning_rate = tf.cast(rate() if callable(rate) else rate, tf.float32)
        super()._prepare()
        self._learning_rate = rate


@takes(FtrlParameters)
def create_hash_optimizer(parameters: FtrlParameters) -> Ftrl:
    """FTRL on the variables of `get_dense_and_sparse_variable()[1]`; parameters: `FtrlParameters`.

    Raises:
        EnvironmentError: before `init`.
        ValueError, TypeError: a parameter is out of range, or tables expand dynamically.
    """
    check_fixed_capacity(parameters.name)
    return Ftrl(**vars(parameters))
