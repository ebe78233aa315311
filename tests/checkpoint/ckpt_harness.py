"""Models with tables in both storage modes, trained a step at a time."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.optimizers import adagrad, adagrad_by_addr, ftrl, ftrl_by_addr, lazy_adam, lazy_adam_by_addr
from mx_rec.util.initialize import init, terminate_config_initializer

tf1 = tf.compat.v1
DIM = 4
OPTIMIZERS = {
    "lazy_adam": (lazy_adam.create_hash_optimizer, lazy_adam_by_addr.create_hash_optimizer_by_address),
    "adagrad": (adagrad.create_hash_optimizer, adagrad_by_addr.create_hash_optimizer_by_address),
    "ftrl": (ftrl.create_hash_optimizer, ftrl_by_addr.create_hash_optimizer_by_address),
}


def start(dynamic: bool, **kwargs) -> None:
    """A clean mx_rec in this process."""
    terminate_config_initializer()
    init(use_dynamic_expansion=dynamic, **kwargs)


@dataclasses.dataclass
class Model:
    """One table, looked up for training and for evaluation, and a dense variable."""

    table: object
    ids: tf.Tensor
    rows: tf.Tensor
    step: tf.Operation
    dense: tf.Variable
    global_step: tf.Variable

    def train(self, session, *batches) -> None:
        for batch in batches:
            session.run(self.step, {self.ids: batch})

    def read(self, session, keys) -> np.ndarray:
        return session.run(self.rows, {self.ids: list(keys)})


def build(
    dynamic: bool, optimizer: str = "lazy_adam", capacity: int = 1000, name: str = "user", dim: int = DIM, **kwargs
):
    """A model in the default graph."""
    table = create_table(
        tf.int64, dim, name, tf1.random_normal_initializer(0.0, 0.3, seed=5), device_vocabulary_size=capacity, **kwargs
    )
    ids = tf1.placeholder(tf.int64, [None], name=f"ids_{name}")
    found = sparse_lookup(table, ids, name=f"train_{name}")
    rows = sparse_lookup(table, ids, is_train=False, name=f"eval_{name}")
    dense = tf1.get_variable(f"dense_{name}", [dim], initializer=tf1.ones_initializer(), use_resource=True)
    loss = tf.reduce_sum(tf.square(found) * dense)
    make = OPTIMIZERS[optimizer][int(dynamic)](0.1)
    global_step = tf1.train.get_or_create_global_step()
    step = tf.group(
        make.minimize(loss),
        tf1.train.GradientDescentOptimizer(0.01).minimize(loss, var_list=[dense]),
        tf1.assign_add(global_step, 1),
        name=f"step_{name}",
    )
    return Model(table, ids, rows, step, dense, global_step)


def batches(seed: int, steps: int = 3, keys: int = 50, size: int = 20) -> list:
    """Batches of keys, negative ones and repeated ones too."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-keys // 2, keys // 2, size).tolist() for _ in range(steps)]
