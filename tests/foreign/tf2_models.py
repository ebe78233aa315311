"""SavedModels as TensorFlow 2 and Keras write them. A script, as it needs eager execution: tf2_models.py NAME=DIR ...

Every model has the signature "serving_default" with input `ids`, int64 [n, 3] (`words`, string [n, 3], of the model
of that name). Run again it writes other values.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable

import tensorflow as tf

ROWS, DIM = 50, 4
IDS = tf.TensorSpec([None, 3], tf.int64, name="ids")
WORDS = ["ant", "bee", "cat", "dog"]


def variable(name: str, rows: int = ROWS) -> tf.Variable:
    return tf.Variable(tf.random.normal([rows, DIM]), name=name)


class Two(tf.Module):
    """Functions in functions, one of them called twice; a dense variable."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = variable("user_embedding"), variable("item_embedding")
        self.dense = tf.Variable(tf.random.normal([DIM]), name="dense")

    @tf.function
    def rows(self, table: Any, ids: Any) -> Any:
        return tf.nn.embedding_lookup(table, ids)

    @tf.function
    def score(self, ids: Any) -> tuple[Any, Any]:
        user = self.rows(self.user, ids)
        again = self.rows(self.user, ids[:, :1])
        return tf.reduce_sum(user * again * self.dense, -1), again

    @tf.function(input_signature=[IDS])
    def __call__(self, ids: Any) -> dict[str, Any]:
        score, user = self.score(ids)
        item = self.rows(self.item, ids)
        return {"out": score + tf.reduce_sum(item, -1), "user": user, "twice": self.score(ids + 1)[0]}


class Words(tf.Module):
    """A vocabulary in an asset."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self.user = variable("user_embedding", len(WORDS) + 1)
        file = os.path.join(directory, "words.txt")
        with open(file, "w", encoding="utf-8") as stream:
            stream.write("\n".join(WORDS) + "\n")
        kind = tf.lookup.TextFileIndex
        source = tf.lookup.TextFileInitializer(file, tf.string, kind.WHOLE_LINE, tf.int64, kind.LINE_NUMBER)
        self.table = tf.lookup.StaticHashTable(source, len(WORDS))

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.string, name="words")])
    def __call__(self, words: Any) -> dict[str, Any]:
        return {"out": tf.nn.embedding_lookup(self.user, self.table.lookup(words))}


class Checked(tf.Module):
    """Side effects: an assertion, a print, a count that is raised before it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.user = variable("user_embedding")
        self.count = tf.Variable(0, name="count")

    @tf.function
    def inner(self, ids: Any) -> Any:
        tf.debugging.assert_less(ids, tf.constant(ROWS, tf.int64), message="no such user")
        self.count.assign_add(1)
        tf.print("looked up", tf.size(ids), output_stream=sys.stdout)
        return tf.nn.embedding_lookup(self.user, ids)

    @tf.function(input_signature=[IDS])
    def __call__(self, ids: Any) -> dict[str, Any]:
        with tf.control_dependencies([self.inner(ids)]):
            rows = self.inner(tf.reverse(ids, [1]))
        self.inner(ids)  # nobody reads the result
        return {"out": rows, "count": self.count.read_value()}


class Random(tf.Module):
    """Random numbers of a seed."""

    def __init__(self) -> None:
        super().__init__()
        self.user = variable("user_embedding")

    @tf.function
    def noisy(self, ids: Any) -> Any:
        rows = tf.nn.embedding_lookup(self.user, ids)
        return rows * tf.random.uniform(tf.shape(rows), seed=7)

    @tf.function(input_signature=[IDS])
    def __call__(self, ids: Any) -> dict[str, Any]:
        return {"out": self.noisy(ids), "noise": tf.random.normal([2], seed=8)}


class Bags(tf.Module):
    """Sparse lookups, and rows of a value that was read as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = variable("user_embedding"), variable("item_embedding")

    @tf.function(input_signature=[IDS])
    def __call__(self, ids: Any) -> dict[str, Any]:
        bags = tf.sparse.from_dense(ids)
        mean = tf.nn.safe_embedding_lookup_sparse(self.user, bags, combiner="mean", allow_fast_lookup=False)
        return {"out": mean, "item": tf.gather(tf.convert_to_tensor(self.item), ids)}


class Branch(tf.Module):
    """A lookup in one branch."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = variable("user_embedding"), variable("item_embedding")

    @tf.function(input_signature=[IDS])
    def __call__(self, ids: Any) -> dict[str, Any]:
        some = tf.cond(
            tf.reduce_sum(ids) > 100,
            lambda: tf.nn.embedding_lookup(self.user, ids),
            lambda: tf.zeros([tf.shape(ids)[0], 3, DIM]),
        )
        return {"out": some + tf.nn.embedding_lookup(self.item, ids)}


class Loop(tf.Module):
    """A lookup in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.user = variable("user_embedding")

    @tf.function(input_signature=[IDS])
    def __call__(self, ids: Any) -> dict[str, Any]:
        total = tf.zeros([tf.shape(ids)[0], DIM])
        for column in tf.range(3):
            total += tf.nn.embedding_lookup(self.user, ids[:, column])
        return {"out": total}


class Sealed(tf.Module):
    """Functions that are not to be inlined: one as it says, one that XLA compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item, self.other = (variable(f"{name}_embedding") for name in ("user", "item", "other"))
        self.apart = tf.function(lambda ids: self.user.sparse_read(ids), experimental_attributes={"_noinline": True})
        self.compiled = tf.function(lambda ids: self.item.sparse_read(ids), jit_compile=True)

    @tf.function(input_signature=[IDS])
    def __call__(self, ids: Any) -> dict[str, Any]:
        return {"out": self.apart(ids), "item": self.compiled(ids), "other": self.other.sparse_read(ids)}


class Trained(tf.Module):
    """A second signature, which trains: SGD, or Momentum or Adagrad with a slot."""

    def __init__(self, rule: str = "") -> None:
        super().__init__()
        self.user = variable("user_embedding")
        self.rule = rule
        self.slot = tf.Variable(tf.zeros([ROWS, DIM]), name="slot") if rule else None

    @tf.function(input_signature=[IDS])
    def __call__(self, ids: Any) -> dict[str, Any]:
        return {"out": tf.nn.embedding_lookup(self.user, ids)}

    @tf.function(input_signature=[IDS])
    def train(self, ids: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(self.user, ids)))
        gradient = tape.gradient(loss, self.user)
        if self.slot is None:
            self.user.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
        else:
            handles = {"var": self.user.handle, "accum": self.slot.handle}
            sparse = {"lr": 0.1, "grad": gradient.values, "indices": gradient.indices}
            if self.rule == "momentum":
                tf.raw_ops.ResourceSparseApplyMomentum(**handles, **sparse, momentum=0.9)
            else:
                tf.raw_ops.ResourceSparseApplyAdagrad(**handles, **sparse)
        return {"loss": loss}


class Nested(tf.Module):
    """Trained by SGD through a function that looks up, so that the gradient is a call too."""

    def __init__(self) -> None:
        super().__init__()
        self.user = variable("user_embedding")

    @tf.function
    def rows(self, ids: Any) -> Any:
        return tf.nn.embedding_lookup(self.user, ids)

    @tf.function(input_signature=[IDS])
    def __call__(self, ids: Any) -> dict[str, Any]:
        return {"out": self.rows(ids)}

    @tf.function(input_signature=[IDS])
    def train(self, ids: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(self.rows(ids)))
        gradient = tape.gradient(loss, self.user)
        self.user.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
        return {"loss": loss}


class Graded(tf.Module):
    """A gradient of its own in a function that takes no rows of a table, so that it stays a call."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.dense = variable("user_embedding"), tf.Variable(tf.random.normal([DIM, DIM]), name="dense")

    @tf.function
    def tower(self, rows: Any) -> Any:
        @tf.custom_gradient
        def clipped(x: Any) -> Any:
            return tf.minimum(x, 1.0), lambda gradient: 2.0 * gradient

        return clipped(rows @ self.dense)

    @tf.function(input_signature=[IDS])
    def __call__(self, ids: Any) -> dict[str, Any]:
        return {"out": self.tower(tf.nn.embedding_lookup(self.user, ids))}


def keras(directory: str, *, fit: bool = False) -> None:
    """A functional model; of Keras 2 with its optimizer, of Keras 3 exported."""
    inputs = tf.keras.Input([3], dtype="int64", name="ids")
    rows = tf.keras.layers.Embedding(ROWS, DIM, name="user_embedding")(inputs)
    outputs = tf.keras.layers.Dense(1, name="out")(tf.keras.layers.Flatten()(rows))
    model = tf.keras.Model(inputs, outputs)
    if fit:
        model.compile("adam", "mse")
        model.fit(tf.ones([8, 3], tf.int64), tf.ones([8, 1]), verbose=0)
    if getattr(tf.keras, "__version__", "2").startswith("2"):
        model.save(directory, save_format="tf")
    else:
        model.export(directory, verbose=False)


def module(make: Callable[[], Any], *extra: str) -> Callable[[str], None]:
    def write(directory: str) -> None:
        made = make()
        signatures = {"serving_default": made.__call__, **{name: getattr(made, name) for name in extra}}
        tf.saved_model.save(made, directory, signatures=signatures)

    return write


def words(directory: str) -> None:
    made = Words(os.path.dirname(directory))
    tf.saved_model.save(made, directory, signatures=made.__call__)


MODELS: dict[str, Callable[[str], None]] = {
    "keras": keras,
    "keras_fit": lambda directory: keras(directory, fit=True),
    "two": module(Two),
    "words": words,
    "checked": module(Checked),
    "random": module(Random),
    "bags": module(Bags),
    "branch": module(Branch),
    "loop": module(Loop),
    "sealed": module(Sealed),
    "graded": module(Graded),
    "nested": module(Nested, "train"),
    "trained": module(Trained, "train"),
    "momentum": module(lambda: Trained("momentum"), "train"),
    "adagrad": module(lambda: Trained("adagrad"), "train"),
}

if __name__ == "__main__":
    for pair in sys.argv[1:]:
        name, _, place = pair.partition("=")
        MODELS[name](place)
