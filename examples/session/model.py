"""Two answers about a rating, from the rows of three tables."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from data import GENRES_KEPT, NO_GENRE

from mx_rec.constants.constants import (
    ASCEND_SPARSE_LOOKUP_ID_OFFSET,
    ASCEND_SPARSE_LOOKUP_LOCAL_EMB,
    CacheModeEnum,
)
from mx_rec.core.embedding import create_table
from mx_rec.optimizers import lazy_adam, lazy_adam_by_addr
from mx_rec.util.initialize import ConfigInitializer
from mx_rec.util.variable import get_dense_and_sparse_variable

tf1 = tf.compat.v1
DIMS = {"user": 8, "movie": 8, "genres": 4}
SEED = 7


def make_tables(size: int, batch_size: int, cache: CacheModeEnum, *, padding: bool) -> dict[str, Any]:
    """The tables by name.

    Args:
        size: keys that each must hold.
        batch_size: of the batches.
        cache: what a device would keep where; here only their sum counts.
        padding: whether the genre that stands for none has a row that is never trained.
    """
    sizes = {
        CacheModeEnum.HBM: {"device_vocabulary_size": size},
        CacheModeEnum.DDR: {"device_vocabulary_size": batch_size, "host_vocabulary_size": size},
        CacheModeEnum.SSD: {
            "device_vocabulary_size": batch_size,
            "host_vocabulary_size": batch_size,
            "ssd_vocabulary_size": size,
        },
    }[cache]
    frozen = {"padding_keys": NO_GENRE, "padding_keys_mask": True, "padding_keys_len": batch_size * GENRES_KEPT}
    return {
        name: create_table(
            key_dtype=tf.int64,
            dim=tf.TensorShape([dim]),
            name=name,
            emb_initializer=tf1.truncated_normal_initializer(stddev=0.05, seed=SEED),
            **sizes,
            **(frozen if padding and name == "genres" else {}),
        )
        for name, dim in DIMS.items()
    }


def answers(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
    """Logits [batch] per answer. `inputs` is [batch, n]; training and evaluation share the variables."""
    with tf1.variable_scope("dense", reuse=tf1.AUTO_REUSE, use_resource=True):
        hidden = tf.nn.relu(_dense(inputs, 16, "hidden"))
        return {name: tf.squeeze(_dense(hidden, 1, name), 1) for name in ("liked", "loved")}


def _dense(inputs: tf.Tensor, units: int, name: str) -> tf.Tensor:
    initializer = tf1.glorot_uniform_initializer(seed=SEED)
    weights = tf1.get_variable(f"{name}_weights", [inputs.shape[1], units], initializer=initializer)
    bias = tf1.get_variable(f"{name}_bias", [units], initializer=tf1.zeros_initializer())
    return tf.matmul(inputs, weights) + bias


def train_op(loss: tf.Tensor) -> tf.Operation:
    """Adam for the dense variables, lazy Adam for the rows of the tables."""
    dense_variables, sparse_variables = get_dense_and_sparse_variable()
    dense = tf1.train.AdamOptimizer(0.003)
    updates = [dense.apply_gradients(dense.compute_gradients(loss, var_list=dense_variables))]
    if ConfigInitializer.get_instance().use_dynamic_expansion:
        rows = tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
        addresses = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
        sparse = lazy_adam_by_addr.create_hash_optimizer_by_address(learning_rate=0.01)
        updates.append(sparse.apply_gradients(list(zip(tf.gradients(loss, rows), addresses))))
    else:
        sparse = lazy_adam.create_hash_optimizer(learning_rate=0.01)
        gradients = tf.gradients(loss, sparse_variables)
        updates.append(sparse.apply_gradients(list(zip(gradients, sparse_variables))))
    return tf.group(*updates)
