"""Trains a small DeepFM on MovieLens twice, with and without the graph rewrite, and compares the two.

The model is written as one would for TensorFlow 1: a dataset, an iterator, a Session. Every step turns raw
columns into keys inside the graph (splitting genres, parsing years, hashing), looks the keys up in dynamic
tables, and trains rows by address and dense weights by Adam. The second model is the same, but
`modify_graph_and_start_emb_cache` moves the way from the batch to the keys, and what it can of the lookups,
into the input pipeline.

    python demo/movielens_deepfm.py [--epochs 2] [--batch-size 256] [--prefetch 2]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # The same sums on every processor.
os.environ.setdefault("MXREC_LOG_LEVEL", "WARNING")

import numpy as np
import tensorflow as tf
from movielens import Columns, area_under_curve, load_ratings
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.graph import modify_graph_and_start_emb_cache
from mx_rec.optimizers import lazy_adam_by_addr
from mx_rec.passes import PassReport, report_text
from mx_rec.util.initialize import get_initializer, init, terminate_config_initializer
from mx_rec.util.variable import get_dense_and_sparse_variable

tf1 = tf.compat.v1

SEED = 20180926
FACTORS = 8
ROW = 1 + FACTORS  # The first column of a row is the linear weight, the others are the factors.
MAX_GENRES = 6
HASH_SPACE = 1 << 40
L2 = 1e-2
SPARSE_RATE, DENSE_RATE = 0.003, 0.001
TABLES = ("user", "movie", "genre", "taste", "context")
EVALUATION_BATCH = 1024
WINDOW = 50  # Steps per timed window; the speed is the median over windows.
TARGET_AUC = 0.70


@dataclass
class Model:
    """One model, its session, and what was measured."""

    name: str
    tables: dict[str, Any]
    initializers: dict[bool, Any]
    step: dict[str, Any]
    prediction: dict[str, Any]
    session: Any = None
    reports: Sequence[PassReport] = ()
    losses: list[np.float32] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    auc: float = 0.0


def make_dataset(columns: Columns, batch_size: int, *, epochs: int, shuffle: bool) -> tf.data.Dataset:
    """Batches of raw columns, drawn ahead of the step with and without the rewrite."""
    rows = tf.data.Dataset.range(len(columns["user"]))
    if shuffle:
        rows = rows.shuffle(len(columns["user"]), seed=SEED).repeat(epochs)
    values = {name: tf.constant(column) for name, column in columns.items() if name != "rating"}

    def pick(row: tf.Tensor) -> dict[str, tf.Tensor]:
        return {name: tf.gather(column, row) for name, column in values.items()}

    return rows.batch(batch_size, drop_remainder=shuffle).map(pick).prefetch(2)


def keys_of(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Raw columns to keys. All of this runs in the step, or ahead of it after the rewrite."""
    genres = tf.strings.split(batch["genres"], "|").to_tensor(default_value="", shape=[None, MAX_GENRES])
    user = tf.repeat(tf.strings.as_string(batch["user"])[:, tf.newaxis], MAX_GENRES, axis=1)
    year = tf.strings.regex_replace(batch["title"], r"^.*\((\d{4})\)\D*$|^.*$", r"0\1")
    decade = tf.strings.to_number(year, tf.int64) // 10
    activity = tf.cast(1.5 * tf.math.log1p(tf.cast(batch["user_ratings"], tf.float32)), tf.int64)
    words = tf.strings.regex_replace(tf.strings.lower(batch["title"]), r"^(?:the|an?) |\(.*|[^a-z0-9 ]", "")
    series = tf.strings.regex_replace(words, r"^(\S*)\s*(\S*).*$", r"\1 \2")
    context = [
        tf.strings.join(["series", series], "="),
        tf.strings.join(["decade", tf.strings.as_string(decade)], "="),
        tf.strings.join(["activity", tf.strings.as_string(activity)], "="),
    ]
    return {
        "user": batch["user"],
        "movie": batch["movie"],
        "genre": tf.strings.to_hash_bucket_fast(genres, HASH_SPACE),
        "taste": tf.strings.to_hash_bucket_fast(tf.strings.join([user, genres], "/"), HASH_SPACE),
        "context": tf.strings.to_hash_bucket_fast(tf.stack(context, axis=1), HASH_SPACE),
        "is_genre": tf.cast(tf.not_equal(genres, ""), tf.float32),
    }


def deep_fm(
    tables: dict[str, Any], batch: dict[str, tf.Tensor], *, is_train: bool, **lookup: Any
) -> tuple[tf.Tensor, tf.Tensor]:
    """Logits and the loss of a batch; `lookup` are further arguments of `sparse_lookup`."""
    keys = keys_of(batch)
    rows = {name: sparse_lookup(tables[name], keys[name], is_train=is_train, **lookup) for name in TABLES}
    fields = tf.stack(
        [
            rows["user"],
            rows["movie"],
            mean_of(rows["genre"], keys["is_genre"]),
            mean_of(rows["taste"], keys["is_genre"]),
            *tf.unstack(rows["context"], axis=1),
        ],
        axis=1,
    )
    linear, factors = tf.reduce_sum(fields[:, :, 0], axis=1), fields[:, :, 1:]
    pairs = tf.square(tf.reduce_sum(factors, axis=1)) - tf.reduce_sum(tf.square(factors), axis=1)
    hidden = tf.reshape(factors, [-1, factors.shape[1] * FACTORS])
    for layer, units in enumerate((32, 16)):
        hidden = tf.nn.relu(dense(hidden, units, f"deep_{layer}"))
    logits = linear + 0.5 * tf.reduce_sum(pairs, axis=1) + dense(hidden, 1, "deep_out")[:, 0]
    errors = tf.nn.sigmoid_cross_entropy_with_logits(labels=batch["liked"], logits=logits)
    penalty = L2 * tf.reduce_mean(tf.reduce_sum(tf.square(fields), axis=[1, 2]))
    return logits, tf.reduce_mean(errors) + penalty


def mean_of(rows: tf.Tensor, is_there: tf.Tensor) -> tf.Tensor:
    """The mean of the rows that are not padding."""
    total = tf.reduce_sum(rows * is_there[:, :, tf.newaxis], axis=1)
    return total / tf.reduce_sum(is_there, axis=1, keepdims=True)


def dense(inputs: tf.Tensor, units: int, name: str) -> tf.Tensor:
    """A dense layer whose weights training and evaluation share."""
    with tf1.variable_scope(name, reuse=tf1.AUTO_REUSE, use_resource=True):
        initializer = tf1.glorot_uniform_initializer(seed=SEED)
        weights = tf1.get_variable("weights", [inputs.shape[1], units], initializer=initializer)
        bias = tf1.get_variable("bias", [units], initializer=tf1.zeros_initializer())
    return tf.matmul(inputs, weights) + bias


def train_op(loss: tf.Tensor) -> tf.Operation:
    """Adam for the dense weights, lazy Adam by address for the rows."""
    dense_variables, _ = get_dense_and_sparse_variable()
    rows = tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
    addresses = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
    dense_optimizer = tf1.train.AdamOptimizer(DENSE_RATE)
    sparse_optimizer = lazy_adam_by_addr.create_hash_optimizer_by_address(learning_rate=SPARSE_RATE)
    gradients = tf.gradients(loss, [*dense_variables, *rows])
    dense_gradients, row_gradients = gradients[: len(dense_variables)], gradients[len(dense_variables) :]
    return tf.group(
        dense_optimizer.apply_gradients(list(zip(dense_gradients, dense_variables))),
        sparse_optimizer.apply_gradients(list(zip(row_gradients, addresses))),
    )


def build(name: str, data: tuple[Columns, Columns], options: argparse.Namespace, *, rewrite: bool) -> Model:
    """Builds a model in a graph of its own and opens its session."""
    train, test = data
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(SEED)
        tables = make_tables()
        train_iterator = tf1.data.make_initializable_iterator(
            make_dataset(train, options.batch_size, epochs=options.epochs, shuffle=True)
        )
        test_iterator = tf1.data.make_initializable_iterator(
            make_dataset(test, EVALUATION_BATCH, epochs=1, shuffle=False)
        )
        test_batch = test_iterator.get_next()
        _, loss = deep_fm(tables, train_iterator.get_next(), is_train=True)
        scores, _ = deep_fm(tables, test_batch, is_train=False)
        model = Model(
            name=name,
            tables=tables,
            initializers={True: train_iterator.initializer, False: test_iterator.initializer},
            step={"loss": loss, "train": train_op(loss)},
            prediction={"scores": scores, "liked": tf.identity(test_batch["liked"])},
        )
        if rewrite:
            model.reports = modify_graph_and_start_emb_cache(dump_graph=False)
            model.initializers = {True: get_initializer(True), False: get_initializer(False)}
        initialize = tf1.global_variables_initializer()
    # One thread per operation: sums are taken in the same order in every run.
    config = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=options.threads)
    model.session = tf1.Session(graph=graph, config=config)
    model.session.run([initialize, model.initializers[True]])
    return model


def export(model: Model, path: str) -> None:
    """Writes the graph for recgraph, with collections that say what to run."""
    with model.session.graph.as_default() as graph:
        tf1.add_to_collection(tf1.GraphKeys.TRAIN_OP, model.step["train"])
        tf1.add_to_collection(tf1.GraphKeys.LOSSES, model.step["loss"])
        tf1.train.export_meta_graph(path, graph=graph)


def make_tables() -> dict[str, Any]:
    initializer = tf1.truncated_normal_initializer(stddev=0.01, seed=SEED)
    return {name: create_table(tf.int64, ROW, name, initializer) for name in TABLES}


def train_window(model: Model, steps: int) -> None:
    """Trains some steps and notes how fast they were."""
    start = time.perf_counter()
    model.losses.extend(model.session.run(model.step)["loss"] for _ in range(steps))
    model.speeds.append(steps / (time.perf_counter() - start))


def evaluate(model: Model) -> float:
    """AUC over the held-out ratings."""
    model.session.run(model.initializers[False])
    batches = []
    while True:
        try:
            batches.append(model.session.run(model.prediction))
        except tf.errors.OutOfRangeError:
            break
    labels = np.concatenate([batch["liked"] for batch in batches])
    return area_under_curve(labels, np.concatenate([batch["scores"] for batch in batches]))


def train_both(models: Sequence[Model], steps: int, console: Console) -> None:
    """Trains a window of each model in turn, so that both meet the same weather on this machine."""
    columns = (TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        tasks = [progress.add_task(model.name, total=steps) for model in models]
        for first in range(0, steps, WINDOW):
            count = min(WINDOW, steps - first)
            for task, model in zip(tasks, models):
                train_window(model, count)
                progress.advance(task, count)
    for model in models:
        model.auc = evaluate(model)


def show_results(models: Sequence[Model], console: Console) -> bool:
    """Prints the comparison; whether the losses are equal and the model has learned."""
    plain, rewritten = models
    table = Table("", *(model.name for model in models), box=None, pad_edge=False)
    table.add_row("first loss", *(f"{model.losses[0]:.9f}" for model in models))
    table.add_row("last loss", *(f"{model.losses[-1]:.9f}" for model in models))
    table.add_row("held-out AUC", *(f"{model.auc:.4f}" for model in models))
    table.add_row("steps/s (median)", *(f"{statistics.median(model.speeds):.1f}" for model in models))
    for name in TABLES:
        sizes = (f"{model.tables[name].size(model.session):,} keys" for model in models)
        table.add_row(f"table {name}", *sizes)
    console.print(table)
    pairs = list(zip(plain.losses, rewritten.losses))
    differing = sum(first != second for first, second in pairs)
    verdict = "yes" if differing == 0 else f"no, {differing} differ"
    console.print(f"losses equal bit for bit: {verdict} ({len(pairs)} steps)")
    gain = statistics.median(rewritten.speeds) / statistics.median(plain.speeds)
    console.print(f"speed with the rewrite: {gain:.2f} times that without (it needs a core beside the step's)")
    return differing == 0 and min(plain.auc, rewritten.auc) > TARGET_AUC


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="DeepFM on MovieLens with and without the graph rewrite.")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--prefetch", type=int, default=2, help="batches that the rewritten pipeline works ahead")
    parser.add_argument("--threads", type=int, default=1, help="threads of a step")
    parser.add_argument("--export", metavar="FILE.meta", help="write the graph without the rewrite, and stop")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    console = Console(highlight=False)
    data = load_ratings()
    train, test = (len(columns["liked"]) for columns in data)
    console.print(f"MovieLens ml-latest-small: {train:,} ratings to train on, the last fifth of each")
    console.print(f"user's ratings by time held out ({test:,}); a rating of 4 or more is a like.")
    init(use_dynamic_expansion=True, prefetch_batch_number=options.prefetch)
    if options.export:
        export(build("without rewrite", data, options, rewrite=False), options.export)
        return 0
    models = [
        build("without rewrite", data, options, rewrite=False),
        build("with rewrite", data, options, rewrite=True),
    ]
    console.print(f"\nWhat the rewrite did:\n{report_text(models[1].reports)}", markup=False)
    train_both(models, options.epochs * train // options.batch_size, console)
    succeeded = show_results(models, console)
    for model in models:
        model.session.close()
    terminate_config_initializer()
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main())
