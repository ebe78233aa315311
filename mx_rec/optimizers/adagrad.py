"""Adagrad on tables of fixed capacity."""

from __future__ import annotations

import tensorflow as tf

from mx_rec.optimizers.by_address import LearningRate, check_learning_rate
from mx_rec.optimizers.on_variable import DistinctRowsMixin, check_fixed_capacity
from mx_rec.util.validate import check_bool, check_float


class Adagrad(DistinctRowsMixin, tf.compat.v1.train.AdagradOptimizer):
    """TensorFlow's Adagrad (Duchi et al., 2011; no epsilon) for the rows of the batch."""


def create_hash_optimizer(
    learning_rate: LearningRate = 0.001,
    initial_accumulator_value: float = 0.9,
    use_locking: bool = False,
    name: str = "Adagrad",
) -> Adagrad:
    """Adagrad on the variables of `get_dense_and_sparse_variable()[1]`.

    Args:
        learning_rate: 0..10, a scalar tensor, or a function that gives one.
        initial_accumulator_value: in (0, 1].
        use_locking: as in TensorFlow.
        name: 1..200 characters.

    Raises:
        EnvironmentError: before `init`.
        ValueError, TypeError: a parameter is out of range, or tables expand dynamically.
    """
    check_fixed_capacity(name)
    check_bool("use_locking", use_locking)
    check_float("initial_accumulator_value", initial_accumulator_value, 0.0, 1.0, low_open=True)
    return Adagrad(check_learning_rate(learning_rate), initial_accumulator_value, use_locking, name)
