"""LazyAdam on tables of fixed capacity, and its parameters."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import tensorflow as tf

from mx_rec.optimizers.on_variable import DistinctRowsMixin, check_fixed_capacity
from mx_rec.optimizers.parameters import LearningRate, check_learning_rate, takes
from mx_rec.util.validate import check_bool, check_float


@dataclasses.dataclass
class LazyAdamParameters:
    """What LazyAdam takes, on variables and by address.

    Attributes:
        learning_rate: 0..10, a scalar tensor, or a function that gives one.
        beta1: decay of the first moment, in (0, 1).
        beta2: decay of the second moment, in [0, 1].
        epsilon: in (0, 1].
        name: 1..200 characters.
    """

    learning_rate: LearningRate = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    name: str = "LazyAdamByAddress"

    def __post_init__(self) -> None:
        self.learning_rate = check_learning_rate(self.learning_rate)
        self.beta1 = check_float("beta1", self.beta1, 0.0, 1.0, low_open=True, high_open=True)
        self.beta2 = check_float("beta2", self.beta2, 0.0, 1.0)
        self.epsilon = check_float("epsilon", self.epsilon, 0.0, 1.0, low_open=True)


@dataclasses.dataclass
class LazyAdamOnVariableParameters(LazyAdamParameters):
    """What LazyAdam takes on variables: `use_fusion_optim` is accepted."""

    name: str = "LazyAdam"
    use_fusion_optim: bool = False

    def __post_init__(self) -> None:
        check_bool("use_fusion_optim", self.use_fusion_optim)
        super().__post_init__()


class _Adam(tf.compat.v1.train.Optimizer):
    """The slots and the update of LazyAdam."""

    def __init__(self, parameters: LazyAdamParameters) -> None:
        super().__init__(use_locking=False, name=parameters.name)
        self._learning_rate = parameters.learning_rate
        self._beta1, self._beta2, self._epsilon = parameters.beta1, parameters.beta2, parameters.epsilon

    def _create_slots(self, var_list: list[tf.Variable]) -> None:
        for variable in var_list:
            self._zeros_slot(variable, "momentum", f"{self._name}/momentum")
            self._zeros_slot(variable, "velocity", f"{self._name}/velocity")
            # TensorFlow keys such variables by name and graph, so the table is part of the name.
            self._create_non_slot_variable(tf.constant(0, tf.int64), _steps_name(variable), variable)

    def _prepare(self) -> None:
        rate = self._learning_rate() if callable(self._learning_rate) else self._learning_rate
        self._rate = tf.cast(rate, tf.float32, name="learning_rate")

    def _resource_apply_sparse(self, grad: tf.Tensor, handle: Any, indices: tf.Tensor) -> tf.Operation:
        m, v = self.get_slot(handle, "momentum"), self.get_slot(handle, "velocity")
        steps = self._get_non_slot_variable(_steps_name(handle), handle.graph)
        raw = tf.raw_ops
        step = tf.cast(raw.ReadVariableOp(resource=steps.handle, dtype=tf.int64) + 1, tf.float64)
        beta1, beta2 = tf.constant(self._beta1, tf.float64), tf.constant(self._beta2, tf.float64)
        correction = tf.sqrt(1.0 - tf.pow(beta2, step)) / (1.0 - tf.pow(beta1, step))
        step_size = tf.cast(tf.cast(self._rate, tf.float64) * correction, tf.float32)
        m_new = self._beta1 * tf.gather(m, indices) + (1.0 - self._beta1) * grad
        v_new = self._beta2 * tf.gather(v, indices) + (1.0 - self._beta2) * tf.square(grad)
        change = step_size * m_new / (tf.sqrt(v_new) + self._epsilon)
        updates = [
            raw.ResourceScatterUpdate(resource=m.handle, indices=indices, updates=m_new),
            raw.ResourceScatterUpdate(resource=v.handle, indices=indices, updates=v_new),
            raw.ResourceScatterSub(resource=handle.handle, indices=indices, updates=change),
        ]
        with tf.control_dependencies(updates):
            return raw.AssignAddVariableOp(resource=steps.handle, value=tf.constant(1, tf.int64))


class LazyAdam(DistinctRowsMixin, _Adam):
    """Adam whose moments (slots `momentum` and `velocity`) move only for the rows of the batch.

    Updates are counted per table, once per `apply_gradients`. Formula: `mx_rec.ops.apply_lazy_adam_by_address`.
    """

    def _table_slot_kind(self) -> tuple[str, tuple[float, ...]]:
        return "LazyAdam", (0.0, 0.0)

    def _table_steps(self, variable: tf.Variable) -> Optional[tf.Variable]:
        return self._get_non_slot_variable(_steps_name(variable), variable.graph)


def _steps_name(variable: tf.Variable) -> str:
    return f"{variable.op.name}/steps"


@takes(LazyAdamOnVariableParameters)
def create_hash_optimizer(parameters: LazyAdamOnVariableParameters) -> LazyAdam:
    """LazyAdam on the variables of `get_dense_and_sparse_variable()[1]`; parameters: `LazyAdamParameters`.

    Raises:
        EnvironmentError: before `init`.
        ValueError, TypeError: a parameter is out of range, or tables expand dynamically.
    """
    check_fixed_capacity(parameters.name)
    return LazyAdam(parameters)
