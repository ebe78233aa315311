"""A small model for Estimator, and what its tests look at."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import tensorflow as tf

from mx_rec import ops
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.estimator import NPUEstimator, NPURunConfig, api
from mx_rec.util.initialize import ConfigInitializer
from mx_rec.util.variable import get_dense_and_sparse_variable

tf1 = tf.compat.v1
ROWS, BATCH, DIM = 96, 8, 4


def columns(seed: int = 0, high: int = 40) -> dict[str, np.ndarray]:
    random = np.random.RandomState(seed)
    ids = random.randint(0, high, (ROWS, 3))
    return {"ids": ids, "other": random.randint(0, 9, ROWS), "y": (ids.sum(1) % 2).astype(np.float32)}


def dataset(seed: int = 0, form: str = "dict", shuffle: bool = True, high: int = 40) -> tf.data.Dataset:
    """Batches of ({ids, other}, y), or with the features as a tuple; shuffled by a seed, so that the order is fixed."""
    data = columns(seed, high)
    features: Any = {"ids": data["ids"], "other": data["other"]}
    if form == "tuple":
        features = (data["ids"], data["other"])
    result = tf.data.Dataset.from_tensor_slices((features, data["y"]))
    return (result.shuffle(ROWS, seed=3) if shuffle else result).batch(BATCH).prefetch(1)


def input_fn(kind: str = "dataset", **options: Any) -> Any:
    """What an input function returns: a dataset, or what an iterator gives."""
    data = dataset(**options)
    if kind == "dataset":
        return data
    if kind == "one_shot":
        return tf1.data.make_one_shot_iterator(data).get_next()
    iterator = tf1.data.make_initializable_iterator(data)
    tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    if isinstance(features, tuple):
        features = {"ids": features[0], "other": features[1]}
    is_train = mode == api.ModeKeys.TRAIN
    size = {} if ConfigInitializer.get_instance().use_dynamic_expansion else {"device_vocabulary_size": 400}
    initializer = tf1.random_normal_initializer(0.0, 0.3, seed=5)
    user = create_table(tf.int64, DIM, params.get("user", "user"), initializer, **size)
    other = create_table(tf.int64, DIM, params.get("other", "other"), initializer, **size)
    hashed = tf.strings.to_hash_bucket_fast(tf.strings.as_string(features["ids"]), 1 << 40)
    rows = [
        tf.reshape(sparse_lookup(user, hashed, is_train=is_train, serving_default_value=0.25), [-1, 3 * DIM]),
        sparse_lookup(other, tf.cast(features["other"], tf.int64) - 3, is_train=is_train),
    ]
    wide = tf.concat(rows, 1)
    kernel = tf1.get_variable(
        params.get("kernel", "dense/kernel"),
        [4 * DIM, 1],
        initializer=tf1.glorot_uniform_initializer(seed=1),
        use_resource=True,
    )
    logits = tf.matmul(wide, kernel)[:, 0]
    predictions = {"p": tf.sigmoid(logits), "ids": features["ids"]}
    if mode == api.ModeKeys.PREDICT:
        outputs = {"serving_default": api.export.PredictOutput({"p": predictions["p"]})}
        return api.EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    if mode == api.ModeKeys.EVAL:
        return api.EstimatorSpec(mode, loss=loss, eval_metric_ops={"mean": tf1.metrics.mean(predictions["p"])})
    return api.EstimatorSpec(mode, loss=loss, train_op=_train_op(loss, params))


def _train_op(loss: tf.Tensor, params: Any) -> tf.Operation:
    dense, sparse = get_dense_and_sparse_variable()
    step = tf1.train.get_global_step()
    dense_rate = 0.0 if params.get("freeze_dense") else 0.05
    train = [tf1.train.AdamOptimizer(dense_rate).minimize(loss, step, var_list=dense)]
    if ConfigInitializer.get_instance().use_dynamic_expansion:
        module = importlib.import_module(f"mx_rec.optimizers.{params.get('optimizer', 'lazy_adam_by_addr')}")
        train.append(module.create_hash_optimizer_by_address(0.05).minimize(loss))
    else:
        module = importlib.import_module(f"mx_rec.optimizers.{params.get('optimizer', 'lazy_adam')}")
        train.append(module.create_hash_optimizer(0.05).minimize(loss, var_list=sparse))
    return tf.group(*train)


class LossHook(tf1.train.SessionRunHook):
    """Keeps the loss of every step, and the sizes of the tables at the end."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.sizes: list[dict[str, int]] = []
        self.ops: set[str] = set()

    def begin(self) -> None:
        graph = tf1.get_default_graph()
        self._loss = (graph.get_collection(tf1.GraphKeys.LOSSES) or [None])[0]
        self._sizes = {}
        for op in graph.get_operations():
            if op.type == "MxRecTable":
                self._sizes[op.get_attr("table_name").decode()] = ops.table_size(op.outputs[0])

    def before_run(self, run_context: Any) -> Any:
        return None if self._loss is None else tf1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results is not None:
            self.losses.append(float(run_values.results))

    def end(self, session: Any) -> None:
        self.sizes.append({name: int(size) for name, size in session.run(self._sizes).items()})
        self.ops = {op.type for op in session.graph.get_operations()}


def make(directory: Any, kind: str = "npu", params: Any = None, config: Any = None, **options: Any) -> Any:
    """An estimator of the model: "npu" of ours, "plain" TensorFlow's."""
    # One thread per operation: sums are taken in the same order in every run.
    session_config = tf1.ConfigProto(intra_op_parallelism_threads=1)
    settings = {"tf_random_seed": 1, "save_checkpoints_steps": 5, "session_config": session_config, **(config or {})}
    if kind == "npu":
        return NPUEstimator(model_fn, str(directory), NPURunConfig(**settings), params or {}, **options)
    return api.Estimator(model_fn, str(directory), api.RunConfig(**settings), params or {}, **options)
