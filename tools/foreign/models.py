"""Models of libraries that know nothing of this project, as MetaGraphDefs: DeepCTR, canned Estimators, Keras.

Each graph has the nodes `the_loss`, `the_step` and `begin`, which initializes everything, and a Saver. Needs
TensorFlow 2.15 (Estimator, Keras 2) and `pip install --no-deps deepctr==0.9.4`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
BATCH, STEPS = 16, 5
USERS, ITEMS, CATEGORIES, HISTORY = 60, 90, 12, 4


def optimizer_of(name: str) -> Any:
    makers: dict[str, Callable[[], Any]] = {
        "sgd": lambda: tf1.train.GradientDescentOptimizer(0.1),
        "adagrad": lambda: tf1.train.AdagradOptimizer(0.1),
        "ftrl": lambda: tf1.train.FtrlOptimizer(0.1),
        "adam": lambda: tf1.train.AdamOptimizer(0.01),
        "momentum": lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
        "rmsprop": lambda: tf1.train.RMSPropOptimizer(0.01),
        "keras_adagrad": lambda: tf.keras.optimizers.legacy.Adagrad(0.1),
        "keras_adam": lambda: tf.keras.optimizers.legacy.Adam(0.01),
        "keras_sgd": lambda: tf.keras.optimizers.legacy.SGD(0.1),
    }
    return makers[name]()


def meta_graph(build: Callable[[], tuple[tf.Tensor, Any]]) -> Any:
    """`build` gives the loss and the training op."""
    with tf.Graph().as_default():
        tf1.set_random_seed(1)
        tf1.train.create_global_step()
        loss, train = build()
        tf.identity(loss, name="the_loss")
        tf.group(train, name="the_step")
        tf.group(
            tf1.global_variables_initializer(),
            tf1.local_variables_initializer(),
            tf1.tables_initializer(),
            name="begin",
        )
        saver = tf1.train.Saver()
        return tf1.train.export_meta_graph(saver_def=saver.as_saver_def())


def batches(data: Mapping[str, np.ndarray]) -> Mapping[str, tf.Tensor]:
    iterator = tf1.data.make_initializable_iterator(
        tf.data.Dataset.from_tensor_slices(dict(data)).batch(BATCH, drop_remainder=True)
    )
    tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def click_data() -> dict[str, np.ndarray]:
    random = np.random.RandomState(0)
    size = BATCH * STEPS

    def ids(rows: int, *shape: int) -> np.ndarray:
        return np.minimum(random.zipf(1.4, (size, *shape)), rows - 1).astype(np.int32)

    history = ids(ITEMS, HISTORY)
    lengths = random.randint(1, HISTORY + 1, size)
    history[np.arange(HISTORY) >= lengths[:, None]] = 0
    return {
        "user": ids(USERS),
        "item": ids(ITEMS),
        "category": ids(CATEGORIES),
        "price": random.rand(size).astype(np.float32),
        "hist_item": history,
        "hist_category": np.minimum(history, CATEGORIES - 1),
        "seq_length": lengths.astype(np.int32),
        "label": random.randint(0, 2, size).astype(np.float32),
        "label_2": random.randint(0, 2, size).astype(np.float32),
    }


def deepctr(model: str, optimizer: str, *, l2: float = 0.0) -> Any:
    """One of DeepCTR's models. `l2`: its penalty on embeddings, added to the loss as Keras' fit does."""

    def build() -> tuple[tf.Tensor, Any]:
        import deepctr.models as models
        from deepctr.feature_column import DenseFeat, SparseFeat, VarLenSparseFeat

        batch = batches(click_data())
        sparse = [
            SparseFeat("user", USERS, embedding_dim=8),
            SparseFeat("item", ITEMS, embedding_dim=8),
            SparseFeat("category", CATEGORIES, embedding_dim=8),
        ]
        columns = [*sparse, DenseFeat("price", 1)]
        settings = {"l2_reg_embedding": l2, "dnn_hidden_units": (16, 8), "seed": 3}
        names = ["user", "item", "category", "price"]
        outputs = 1
        if model in ("DIN", "DIEN"):
            columns += [
                VarLenSparseFeat(
                    SparseFeat("hist_item", ITEMS, embedding_dim=8, embedding_name="item"),
                    maxlen=HISTORY,
                    length_name="seq_length",
                ),
                VarLenSparseFeat(
                    SparseFeat("hist_category", CATEGORIES, embedding_dim=8, embedding_name="category"),
                    maxlen=HISTORY,
                    length_name="seq_length",
                ),
            ]
            names += ["hist_item", "hist_category", "seq_length"]
            network = models.DIN(columns, ["item", "category"], att_hidden_size=(8,), **settings)
        elif model == "MMOE":
            network = models.MMOE(
                columns,
                num_experts=2,
                expert_dnn_hidden_units=(8,),
                tower_dnn_hidden_units=(4,),
                l2_reg_embedding=l2,
                task_types=("binary", "binary"),
                task_names=("label", "label_2"),
                seed=3,
            )
            outputs = 2
        else:
            extra = {"cin_layer_size": (8,)} if model == "xDeepFM" else {}
            network = getattr(models, model)(columns, columns, l2_reg_linear=l2, **settings, **extra)
        features = {name: tf.reshape(batch[name], [BATCH, -1]) for name in names}
        predicted = network(features, training=True)
        predicted = list(predicted) if outputs == 2 else [predicted]
        labels = [tf.reshape(batch[name], [BATCH, 1]) for name in ("label", "label_2")[:outputs]]
        loss = tf.add_n([tf1.losses.log_loss(label, value) for label, value in zip(labels, predicted)])
        if l2:
            loss += tf.add_n(network.losses)
        return loss, _minimize(optimizer, loss)

    return meta_graph(build)


def _minimize(optimizer: str, loss: tf.Tensor) -> Any:
    maker = optimizer_of(optimizer)
    if not isinstance(maker, tf.keras.optimizers.legacy.Optimizer):
        return maker.minimize(loss, tf1.train.get_or_create_global_step())
    variables = tf1.trainable_variables()
    maker.iterations = tf1.train.get_or_create_global_step()
    return maker.get_updates(loss, variables)


def keras_embedding(optimizer: str) -> Any:
    """A Keras `Embedding` in a graph, with a mask for padding."""

    def build() -> tuple[tf.Tensor, Any]:
        batch = batches(click_data())
        layer = tf.keras.layers.Embedding(ITEMS, 8, mask_zero=True)
        rows = tf.keras.layers.GlobalAveragePooling1D()(layer(batch["hist_item"]), mask=batch["hist_item"] > 0)
        logits = tf.squeeze(tf.keras.layers.Dense(1)(rows), 1)
        loss = tf1.losses.sigmoid_cross_entropy(batch["label"], logits)
        return loss, _minimize(optimizer, loss)

    return meta_graph(build)


def feature_columns() -> list[Any]:
    fc = tf.feature_column
    words = fc.categorical_column_with_hash_bucket("words", 40, dtype=tf.string)
    user = fc.categorical_column_with_identity("user", USERS)
    category = fc.categorical_column_with_vocabulary_list("kind", ["a", "b", "c", "d"])
    return [
        fc.embedding_column(user, 8),
        fc.embedding_column(words, 8, combiner="sqrtn"),
        fc.embedding_column(category, 4, combiner="sum"),
    ]


def estimator_data() -> dict[str, np.ndarray]:
    data = click_data()
    random = np.random.RandomState(1)
    kept = {name: data[name] for name in ("price", "label")}
    kept["user"] = data["user"].astype(np.int64)
    kept["words"] = np.array([[f"w{n}" for n in row] for row in random.zipf(1.5, (BATCH * STEPS, 3))], dtype=object)
    kept["kind"] = random.choice(["a", "b", "c", "d"], BATCH * STEPS).astype(object)
    return kept


def canned_estimator(kind: str, *, parts: int = 0) -> Any:
    """`DNNLinearCombinedClassifier` or `DNNClassifier` in training, with the optimizers they choose."""

    def build() -> tuple[tf.Tensor, Any]:
        estimator = tf.estimator
        fc = tf.feature_column
        batch = dict(batches(estimator_data()))
        labels = tf.cast(tf.reshape(batch.pop("label"), [-1, 1]), tf.int64)
        wide = [fc.categorical_column_with_identity("user", USERS), fc.numeric_column("price")]
        partitioner = tf1.fixed_size_partitioner(parts) if parts else None
        if kind == "DNNLinearCombinedClassifier":
            model = estimator.DNNLinearCombinedClassifier(
                linear_feature_columns=wide,
                dnn_feature_columns=feature_columns(),
                dnn_hidden_units=[16],
                dnn_optimizer="Adagrad",
                linear_optimizer="Ftrl",
            )
        else:
            model = getattr(tf1.estimator, kind)(
                hidden_units=[16], feature_columns=feature_columns(), input_layer_partitioner=partitioner
            )
        spec = model.model_fn(batch, labels, estimator.ModeKeys.TRAIN, model.config)
        return spec.loss, spec.train_op

    return meta_graph(build)


def linear_combined_v1() -> Any:
    """The version of `DNNLinearCombinedClassifier` of TensorFlow 1."""

    def build() -> tuple[tf.Tensor, Any]:
        batch = dict(batches(estimator_data()))
        labels = tf.cast(tf.reshape(batch.pop("label"), [-1, 1]), tf.int64)
        fc = tf.feature_column
        wide = [fc.categorical_column_with_identity("user", USERS)]
        model = tf1.estimator.DNNLinearCombinedClassifier(
            linear_feature_columns=wide, dnn_feature_columns=feature_columns(), dnn_hidden_units=[16]
        )
        spec = model.model_fn(batch, labels, tf.estimator.ModeKeys.TRAIN, model.config)
        return spec.loss, spec.train_op

    return meta_graph(build)


def input_layer(optimizer: str) -> Any:
    """Feature columns without an Estimator."""

    def build() -> tuple[tf.Tensor, Any]:
        batch = dict(batches(estimator_data()))
        label = batch.pop("label")
        rows = tf1.feature_column.input_layer(batch, feature_columns())
        logits = tf.squeeze(tf1.layers.dense(rows, 1), 1)
        loss = tf1.losses.sigmoid_cross_entropy(label, logits)
        return loss, _minimize(optimizer, loss)

    return meta_graph(build)


DEEPCTR = ("DeepFM", "WDL", "xDeepFM", "DIN", "MMOE", "DCN", "AutoInt")
MODELS: dict[str, Callable[[], Any]] = {
    **{f"DeepCTR {name}, Adam": (lambda name=name: deepctr(name, "adam")) for name in DEEPCTR},
    **{f"DeepCTR {name}, Adagrad": (lambda name=name: deepctr(name, "adagrad")) for name in DEEPCTR},
    "DeepCTR DeepFM, SGD": lambda: deepctr("DeepFM", "sgd"),
    "DeepCTR DeepFM, FTRL": lambda: deepctr("DeepFM", "ftrl"),
    "DeepCTR DeepFM, Momentum": lambda: deepctr("DeepFM", "momentum"),
    "DeepCTR DeepFM, RMSProp": lambda: deepctr("DeepFM", "rmsprop"),
    "DeepCTR DeepFM, Adam, L2 of embeddings": lambda: deepctr("DeepFM", "adam", l2=1e-5),
    "Keras Embedding, Adam": lambda: keras_embedding("adam"),
    "Keras Embedding, Keras Adagrad": lambda: keras_embedding("keras_adagrad"),
    "Keras Embedding, Keras Adam": lambda: keras_embedding("keras_adam"),
    "Keras Embedding, Keras SGD": lambda: keras_embedding("keras_sgd"),
    "feature columns (input_layer), Adagrad": lambda: input_layer("adagrad"),
    "Estimator DNNLinearCombinedClassifier (v1), Adagrad and FTRL": linear_combined_v1,
    "Estimator DNNLinearCombinedClassifier (v2), Adagrad and FTRL": lambda: canned_estimator(
        "DNNLinearCombinedClassifier"
    ),
    "Estimator DNNClassifier (v1), 3 partitions, Adagrad": lambda: canned_estimator("DNNClassifier", parts=3),
}
