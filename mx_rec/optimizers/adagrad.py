"""Adagrad on tables of fixed capacity, and its parameters."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from mx_rec.optimizers.on_variable import DistinctRowsMixin, check_fixed_capacity
from mx_rec.optimizers.parameters import LearningRate, check_learning_rate, takes
from mx_rec.util.validate import check_bool, check_float


@dataclasses.dataclass
class AdagradParameters:
    """What Adagrad takes, on variables and by address.

    Attributes:
        learning_rate: 0..10, a scalar tensor, or a function that gives one.
        initial_accumulator_value: in (0, 1].
        use_locking: as in TensorFlow; by address accepted, since updates of one table never overlap.
        name: 1..200 characters.
    """

    learning_rate: LearningRate = 0.001
    initial_accumulator_value: float = 0.9
    use_locking: bool = False
    name: str = "Adagrad"

    def __post_init__(self) -> None:
        check_bool("use_locking", self.use_locking)
        self.learning_rate = check_learning_rate(self.learning_rate)
        self.initial_accumulator_value = check_float(
            "initial_accumulator_value", self.initial_accumulator_value, 0.0, 1.0, low_open=True
        )


class Adagrad(DistinctRowsMixin, tf.compat.v1.train.AdagradOptimizer):
    """TensorFlow's Adagrad (Duchi et al., 2011; no epsilon) for the rows of the batch."""

    _initial_accumulator_value: float

    def _table_slot_kind(self) -> tuple[str, tuple[float, ...]]:
        return "Adagrad", (self._initial_accumulator_value,)


@takes(AdagradParameters)
def create_hash_optimizer(parameters: AdagradParameters) -> Adagrad:
    """Adagrad on the variables of `get_dense_and_sparse_variable()[1]`; parameters: `AdagradParameters`.

    Raises:
        EnvironmentError: before `init`.
        ValueError, TypeError: a parameter is out of range, or tables expand dynamically.
    """
    check_fixed_capacity(parameters.name)
    return Adagrad(**vars(parameters))
