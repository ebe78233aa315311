"""Small models of plain TensorFlow 1: what people write without this project. No op of ours, no file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
ROWS, DIM, BATCH, STEPS = 50, 8, 16, 5

OPTIMIZERS: Mapping[str, Callable[[], Any]] = {
    "sgd": lambda: tf1.train.GradientDescentOptimizer(0.3),
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.2),
    "ftrl": lambda: tf1.train.FtrlOptimizer(0.2, l1_regularization_strength=0.01, l2_regularization_strength=0.02),
    "ftrl_shrinkage": lambda: tf1.train.FtrlOptimizer(0.2, l2_shrinkage_regularization_strength=0.01),
    "adam": lambda: tf1.train.AdamOptimizer(0.05),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
    "rmsprop": lambda: tf1.train.RMSPropOptimizer(0.05),
}
CONVERTED_OPTIMIZERS = ("sgd", "adagrad", "ftrl", "ftrl_shrinkage", "adam")


def batches(width: int = 3) -> Mapping[str, tf.Tensor]:
    """ids [batch, width] and other_ids [batch] below ROWS, of which many repeat; labels [batch]."""
    random = np.random.RandomState(5)
    size = BATCH * STEPS
    data = {
        "ids": np.minimum(random.zipf(1.3, (size, width)) - 1, ROWS - 1).astype(np.int64),
        "other_ids": random.randint(0, ROWS, size).astype(np.int64),
        "label": random.rand(size).astype(np.float32),
    }
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(BATCH, drop_remainder=True)
    iterator = tf1.data.make_initializable_iterator(dataset)
    tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def variable(name: str, *, dim: int = DIM, parts: int = 0, resource: bool = True, initializer: Any = None) -> Any:
    partitioner = tf1.fixed_size_partitioner(parts) if parts else None
    return tf1.get_variable(
        name,
        [ROWS, dim],
        tf.float32,
        initializer or tf1.random_uniform_initializer(-0.5, 0.5, seed=3),
        partitioner=partitioner,
        use_resource=resource,
    )


def sparse(ids: tf.Tensor) -> tf.SparseTensor:
    """Rows of 0 to 3 ids: those of `ids` [batch, 3] that are not 0."""
    return tf.sparse.from_dense(ids)


def _lookup(**options: Any) -> Callable[[], tf.Tensor]:
    strategy = options.pop("strategy", "mod")

    def build() -> tf.Tensor:
        batch = batches()
        rows = tf1.nn.embedding_lookup(variable("emb", **options), batch["ids"], partition_strategy=strategy)
        return error(tf.reduce_sum(rows, [1, 2]), batch)

    return build


def _sparse_lookup(
    combiner: str, *, weighted: bool = False, safe: bool = False, parts: int = 0, resource: bool = True
) -> Any:
    def build() -> tf.Tensor:
        batch = batches()
        ids = sparse(batch["ids"])
        weights = None
        if weighted:
            weights = tf.SparseTensor(ids.indices, tf.cast(ids.values % 5 + 1, tf.float32), ids.dense_shape)
        table = variable("emb", parts=parts, resource=resource)
        if safe:
            rows = tf1.nn.safe_embedding_lookup_sparse(
                list(table) if parts else [table], ids, weights, combiner, partition_strategy="div"
            )
        else:
            rows = tf1.nn.embedding_lookup_sparse(table, ids, weights, combiner=combiner)
        return error(tf.reduce_sum(rows, 1), {"label": batch["label"][: tf.shape(rows)[0]]})

    return build


def error(prediction: tf.Tensor, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
    return tf.reduce_mean(tf.square(prediction - batch["label"]), name="loss")


def gather_nd() -> tf.Tensor:
    batch = batches()
    rows = tf.gather_nd(variable("emb", resource=False), tf.expand_dims(batch["other_ids"], 1))
    return error(tf.reduce_sum(rows, 1), batch)


def unique_gather() -> tf.Tensor:
    batch = batches()
    distinct, index = tf.unique(tf.reshape(batch["ids"], [-1]))
    rows = tf.gather(tf.gather(variable("emb"), distinct), index)
    return error(tf.reduce_sum(tf.reshape(rows, [BATCH, -1]), 1), batch)


def matrix_factorization() -> tf.Tensor:
    """Two tables with biases, all of reference variables, as scripts of TensorFlow 1 have them."""
    batch = batches(1)
    user, item = tf.reshape(batch["ids"], [-1]), tf.cast(batch["other_ids"], tf.int32)
    parts = [variable(name, resource=False) for name in ("user", "item")]
    zeros = tf1.zeros_initializer()
    biases = [variable(f"{name}_bias", dim=1, resource=False, initializer=zeros) for name in ("user", "item")]
    rows = [tf1.nn.embedding_lookup(table, ids) for table, ids in zip(parts, (user, item))]
    bias = sum(tf.squeeze(tf1.nn.embedding_lookup(table, ids), 1) for table, ids in zip(biases, (user, item)))
    mean = tf1.get_variable("mean", [], initializer=zeros, use_resource=False)
    return error(tf.reduce_sum(rows[0] * rows[1], 1) + bias + mean, batch)


def shared() -> tf.Tensor:
    """One table for two features, and once more without a gradient."""
    batch = batches()
    table = variable("emb")
    history = tf.reduce_mean(tf1.nn.embedding_lookup(table, batch["ids"]), 1)
    target = tf1.nn.embedding_lookup(table, batch["other_ids"])
    known = tf.stop_gradient(tf1.nn.embedding_lookup(table, batch["other_ids"] // 2))
    return error(tf.reduce_sum(history * target + known, 1), batch)


def pooled_and_plain() -> tf.Tensor:
    """One table of a reference variable: twice pooled, once plain, and once more without a gradient."""
    batch = batches()
    table = variable("emb", resource=False)
    ids = sparse(tf.maximum(batch["ids"], 1))
    history = tf1.nn.embedding_lookup_sparse(table, ids, None, combiner="mean")
    others = tf1.nn.embedding_lookup_sparse(
        table, sparse(tf.expand_dims(batch["other_ids"], 1) % 5 + 1), None, combiner="sum"
    )
    known = tf.stop_gradient(tf1.nn.embedding_lookup_sparse(table, ids, None, combiner="sqrtn"))
    target = tf1.nn.embedding_lookup(table, batch["other_ids"])
    return error(tf.reduce_sum(history * target + known + others, 1), batch)


def clipped() -> tf.Tensor:
    """As `shared`; its trainer clips the gradients by their norm."""
    return shared()


MODELS: Mapping[str, Callable[[], tf.Tensor]] = {
    "lookup_resource": _lookup(),
    "lookup_reference": _lookup(resource=False),
    "lookup_parts_mod": _lookup(parts=3),
    "lookup_parts_div": _lookup(parts=4, strategy="div"),
    "lookup_parts_reference": _lookup(parts=3, resource=False),
    "sparse_sum": _sparse_lookup("sum"),
    "sparse_mean": _sparse_lookup("mean"),
    "sparse_sqrtn": _sparse_lookup("sqrtn"),
    "sparse_weighted": _sparse_lookup("mean", weighted=True),
    "sparse_mean_parts": _sparse_lookup("mean", parts=3),
    "safe_sparse_mean": _sparse_lookup("mean", safe=True),
    "safe_sparse_weighted": _sparse_lookup("sum", safe=True, weighted=True),
    "safe_sparse_parts": _sparse_lookup("sum", safe=True, parts=3),
    "sparse_sum_reference": _sparse_lookup("sum", resource=False),
    "sparse_mean_reference": _sparse_lookup("mean", resource=False),
    "sparse_sqrtn_reference": _sparse_lookup("sqrtn", resource=False),
    "safe_sparse_reference": _sparse_lookup("mean", safe=True, resource=False),
    "pooled_and_plain": pooled_and_plain,
    "gather_nd": gather_nd,
    "unique_gather": unique_gather,
    "matrix_factorization": matrix_factorization,
    "shared": shared,
    "clipped": clipped,
}


def train_step(model: str, loss: tf.Tensor, optimizer: str) -> tf.Operation:
    step = tf1.train.get_or_create_global_step()
    maker = OPTIMIZERS[optimizer]()
    pairs = maker.compute_gradients(loss)
    if model == "clipped":
        gradients, variables = zip(*pairs)
        pairs = list(zip(tf.clip_by_global_norm(gradients, 0.05)[0], variables))
    return maker.apply_gradients(pairs, step, name="train")


def meta_graph(model: str, optimizer: str = "") -> Any:
    """A MetaGraphDef with a Saver; without an optimizer forward only.

    Its nodes: `loss`, `train`, and `begin`, which initializes variables and iterators.
    """
    with tf.Graph().as_default():
        tf1.set_random_seed(1)
        loss = MODELS[model]()
        if optimizer:
            train_step(model, loss, optimizer)
        tf.group(tf1.global_variables_initializer(), tf1.tables_initializer(), name="begin")
        saver = tf1.train.Saver()
        return tf1.train.export_meta_graph(saver_def=saver.as_saver_def())
