"""Optimizers beside plain float64 references, and one table trained through two lookups."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from mx_rec import ops
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.optimizers import (
    adagrad,
    adagrad_by_addr,
    ftrl,
    ftrl_by_addr,
    gradient_descent,
    gradient_descent_by_addr,
    lazy_adam,
    lazy_adam_by_addr,
)

tf1 = tf.compat.v1
DIM = 3


@dataclasses.dataclass(frozen=True)
class OptimizerCase:
    """One optimizer in both storage modes.

    Attributes:
        by_address: makes it for tables with dynamic expansion, given a learning rate.
        on_variable: makes it for tables of fixed capacity.
        update: the reference: (row, slots, gradient, rate, step, by_address) -> (row, slots), all float64.
        slots: names of the slot variables.
        initial: their initial values.
        tensorflow: TensorFlow's optimizer that the one on variables equals exactly, if there is one.
    """

    by_address: Callable[[Any], Any]
    on_variable: Callable[[Any], Any]
    update: Callable
    slots: tuple[str, ...] = ()
    initial: tuple[float, ...] = ()
    tensorflow: Any = None

    def create(self, by_address: bool, rate: Any) -> Any:
        return self.by_address(rate) if by_address else self.on_variable(rate)


def _sgd(weight_decay):
    def update(row, slots, g, rate, step, by_address):
        """W <- w - rate (g + decay w)."""
        return row - rate * (g + weight_decay * row), slots

    return update


def _lazy_adam(row, slots, g, rate, step, by_address, beta1=0.9, beta2=0.99, epsilon=1e-6):
    """Kingma and Ba, "Adam", 2014, end of section 2: the rate takes the bias correction."""
    m = beta1 * slots[0] + (1 - beta1) * g
    v = beta2 * slots[1] + (1 - beta2) * g * g
    step_size = rate * np.sqrt(1 - beta2**step) / (1 - beta1**step)
    return row - step_size * m / (np.sqrt(v) + epsilon), [m, v]


def _adagrad(row, slots, g, rate, step, by_address):
    """Duchi et al., 2011; by address with an epsilon."""
    s = slots[0] + g * g
    return row - rate * g / np.sqrt(s + (1e-7 if by_address else 0.0)), [s]


def _ftrl(power=-0.5, l1=0.0, l2=0.0, shrinkage=0.0):
    def update(row, slots, g, rate, step, by_address):
        """McMahan et al., 2013, algorithm 1, in TensorFlow's parameters (FtrlV2)."""
        accum, linear = slots
        new_accum = accum + g * g
        linear = linear + g + 2 * shrinkage * row - (new_accum**-power - accum**-power) / rate * row
        quadratic = new_accum**-power / rate + 2 * l2
        return (np.clip(linear, -l1, l1) - linear) / quadratic, [new_accum, linear]

    return update


def _ftrl_case(power, l1, l2, shrinkage):
    kwargs = {
        "learning_rate_power": power,
        "initial_accumulator_value": 0.2,
        "l1_regularization_strength": l1,
        "l2_regularization_strength": l2,
        "l2_shrinkage_regularization_strength": shrinkage,
    }
    return OptimizerCase(
        lambda rate: ftrl_by_addr.create_hash_optimizer_by_address(rate, **kwargs),
        lambda rate: ftrl.create_hash_optimizer(rate, **kwargs),
        _ftrl(power, l1, l2, shrinkage),
        ("accum", "linear"),
        (0.2, 0.0),
        lambda rate: tf1.train.FtrlOptimizer(rate, **kwargs),
    )


OPTIMIZERS = {
    "sgd": OptimizerCase(
        lambda rate: gradient_descent_by_addr.create_hash_optimizer_by_addr(rate, weight_decay=0.0),
        lambda rate: gradient_descent.create_hash_optimizer(rate),
        _sgd(0.0),
        tensorflow=tf1.train.GradientDescentOptimizer,
    ),
    "sgd_decay": OptimizerCase(
        lambda rate: gradient_descent_by_addr.create_hash_optimizer_by_addr(rate, weight_decay=0.01),
        lambda rate: gradient_descent.create_hash_optimizer(rate, weight_decay=0.01),
        _sgd(0.01),
    ),
    "lazy_adam": OptimizerCase(
        lambda rate: lazy_adam_by_addr.create_hash_optimizer_by_address(rate, 0.9, 0.99, 1e-6),
        lambda rate: lazy_adam.create_hash_optimizer(rate, 0.9, 0.99, 1e-6),
        _lazy_adam,
        ("momentum", "velocity"),
        (0.0, 0.0),
    ),
    "adagrad": OptimizerCase(
        lambda rate: adagrad_by_addr.create_hash_optimizer_by_address(rate, 0.7),
        lambda rate: adagrad.create_hash_optimizer(rate, 0.7),
        _adagrad,
        ("accumulator",),
        (0.7,),
        lambda rate: tf1.train.AdagradOptimizer(rate, 0.7),
    ),
    "ftrl": _ftrl_case(-0.5, 0.0, 0.0, 0.0),
    "ftrl_regularized": _ftrl_case(-0.5, 0.05, 0.1, 0.02),
    "ftrl_power": _ftrl_case(-0.7, 0.05, 0.1, 0.0),
}
FOUR = ("sgd_decay", "lazy_adam", "adagrad", "ftrl_regularized")  # one of each kind


def capacity_of(by_address: bool) -> int:
    return 1 if by_address else 200


class TwoLookups:
    """A table looked up twice per step; loss = sum(lookup * coefficients), so that gradients are what is fed.

    Needs a default graph and `init(use_dynamic_expansion=by_address)`.
    """

    def __init__(self, case: OptimizerCase, by_address: bool, rate: Any, *, global_step=None, **table_kwargs):
        self.by_address = by_address
        self.case = case
        normal = tf1.random_normal_initializer(0.0, 0.5, seed=11)
        self.table = create_table(
            tf.int64, DIM, "user", normal, device_vocabulary_size=capacity_of(by_address), **table_kwargs
        )
        self.ids = [tf1.placeholder(tf.int64, [None, None]), tf1.placeholder(tf.int64, [None])]
        self.coefficients = [tf1.placeholder(tf.float32, [None, None, DIM]), tf1.placeholder(tf.float32, [None, DIM])]
        looked_up = [sparse_lookup(self.table, ids) for ids in self.ids]
        self.loss = tf.add_n([tf.reduce_sum(a * b) for a, b in zip(looked_up, self.coefficients)])
        self.optimizer = case.create(by_address, rate)
        self.step = self.optimizer.apply_gradients(self.pairs(), global_step=global_step)
        self.all_keys = tf1.placeholder(tf.int64, [None])
        self.insert = sparse_lookup(self.table, self.all_keys, is_grad=False)
        if not by_address:
            variable = self.table.variable
            found = ops.find(self.table.handle, self.all_keys)
            self.offsets = ops.offsets(self.table.handle, variable.handle, found)
            slots = [self.optimizer.get_slot(variable, slot) for slot in case.slots]
            self.parts = [tf.gather(part, self.offsets) for part in (variable, *slots)]

    def pairs(self):
        """Gradients and what they are of, for `apply_gradients`."""
        if self.by_address:
            local = tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
            addresses = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
            return list(zip(tf.gradients(self.loss, local), addresses))
        return [(tf.gradients(self.loss, self.table.variable)[0], self.table.variable)]

    def feed(self, ids, coefficients):
        return dict(zip((*self.ids, *self.coefficients), (*ids, *coefficients)))

    def initial_rows(self, keys):
        """Rows before training, read in a session of their own."""
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            return session.run(self.insert, {self.all_keys: keys})

    def content(self, session, keys):
        """{key: [row, slot, ...]} of the keys the table has."""
        if self.by_address:
            content = self.table.export(session)
            return {key: row.reshape(-1, DIM) for key, row in zip(content.keys.tolist(), content.rows)}
        known = [key for key in keys if key in set(self.table.export(session).keys.tolist())]
        parts = session.run(self.parts, {self.all_keys: known})
        return {key: np.stack([part[i] for part in parts]) for i, key in enumerate(known)}


def random_step(rng, keys):
    """Ids and coefficients of one step: a random subset with repetitions, also across the two lookups."""
    subset = rng.choice(keys, size=max(1, len(keys) // 3), replace=False)
    ids = [rng.choice(subset, size=(4, 2)), rng.choice(subset, size=5)]
    # Eighths, so that sums in any order are exact.
    coefficients = [rng.randint(-16, 17, size=(*part.shape, DIM)).astype(np.float32) / 8 for part in ids]
    return ids, coefficients


def gradients_by_key(ids, coefficients):
    """Summed gradient of every key of a step, float64."""
    sums: dict[int, np.ndarray] = {}
    for part, values in zip(ids, coefficients):
        for key, value in zip(part.ravel().tolist(), values.reshape(-1, DIM).astype(np.float64)):
            sums[key] = sums.get(key, 0.0) + value
    return sums


class Reference:
    """Rows and slots of every key in float64."""

    def __init__(self, case, by_address, keys, initial_rows, padding=()):
        self.case, self.by_address, self.padding = case, by_address, padding
        self.initial = dict(zip(keys.tolist(), initial_rows.astype(np.float64)))
        self.rows: dict[int, np.ndarray] = {}
        self.slots: dict[int, list] = {}
        self.steps = 0

    def train(self, gradients, rate, other=None):
        """One step, or one of another optimizer without slots, which is none of this one's steps."""
        case = self.case if other is None else other
        self.steps += other is None
        for key, gradient in gradients.items():
            if key not in self.rows:
                self.rows[key] = self.initial[key]
                self.slots[key] = [np.full(DIM, value) for value in self.case.initial]
            if key not in self.padding:
                self.rows[key], self.slots[key] = case.update(
                    self.rows[key], self.slots[key], gradient, rate, self.steps, self.by_address
                )

    def assert_close(self, content):
        assert sorted(content) == sorted(self.rows)
        for key, got in content.items():
            np.testing.assert_allclose(got, [self.rows[key], *self.slots[key]], rtol=3e-5, atol=2e-6)
