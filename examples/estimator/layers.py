"""What the two models share: keys of raw columns, tables, dense layers and the update."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from data import SEED

from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.estimator import api as estimator
from mx_rec.optimizers import lazy_adam_by_addr

tf1 = tf.compat.v1

HASH_SPACE = 1 << 40
DIM = 8


def embeddings(features: dict[str, tf.Tensor], mode: str, names: dict[str, str]) -> dict[str, tf.Tensor]:
    """The embeddings of a batch, [batch, DIM] each.

    Raw columns become keys in the graph: genres are split and hashed, years are parsed. After the rewrite that happens
    in the input pipeline, ahead of the step.

    Args:
        features: of `data.FEATURES`.
        mode: only training inserts keys; otherwise a key that was never seen reads zeros.
        names: of the tables, by feature.
    """
    initializer = tf1.truncated_normal_initializer(stddev=0.05, seed=SEED)
    genres = tf.strings.split(features["genres"], "|")
    year = tf.strings.regex_replace(features["title"], r"^.*\((\d{4})\)\D*$|^.*$", r"0\1")
    decade = tf.strings.to_number(year, tf.int64) // 10
    activity = tf.cast(1.5 * tf.math.log1p(tf.cast(features["user_ratings"], tf.float32)), tf.int64)
    ids = {
        "user": features["user"],
        "movie": features["movie"],
        "genre": genres.with_values(tf.strings.to_hash_bucket_fast(genres.values, HASH_SPACE)),
        "context": tf.strings.to_hash_bucket_fast(
            tf.strings.join([tf.strings.as_string(decade), tf.strings.as_string(activity)], "/"), HASH_SPACE
        ),
    }
    rows = {}
    for feature, keys in ids.items():
        table = create_table(tf.int64, DIM, names.get(feature, feature), initializer)
        combiner = "mean" if isinstance(keys, tf.RaggedTensor) else None
        is_train = mode == estimator.ModeKeys.TRAIN
        rows[feature] = sparse_lookup(table, keys, is_train=is_train, combiner=combiner, name=f"of_{feature}")
    return rows


def dense(inputs: tf.Tensor, units: int, name: str, activation: Any = None) -> tf.Tensor:
    """A dense layer."""
    with tf1.variable_scope(name, reuse=tf1.AUTO_REUSE, use_resource=True):
        initializer = tf1.glorot_uniform_initializer(seed=SEED)
        weights = tf1.get_variable("weights", [inputs.shape[1], units], initializer=initializer)
        bias = tf1.get_variable("bias", [units], initializer=tf1.zeros_initializer())
    outputs = tf.matmul(inputs, weights) + bias
    return outputs if activation is None else activation(outputs)


def train_op(loss: tf.Tensor) -> tf.Operation:
    """Adam for the dense weights, lazy Adam by address for the rows of the tables."""
    step = tf1.train.get_global_step()
    rows = lazy_adam_by_addr.create_hash_optimizer_by_address(learning_rate=0.01)
    return tf.group(rows.minimize(loss), tf1.train.AdamOptimizer(0.003).minimize(loss, global_step=step))
