"""A script with a Session, as one writes it for the Rec SDK: it trains, goes on from a checkpoint, or predicts.

    python examples/session/run.py --mode train --directory /tmp/ratings
    python examples/session/run.py --mode load_and_train --directory /tmp/ratings
    python examples/session/run.py --mode predict --directory /tmp/ratings

Each mode runs with the features of the batch named by `FeatureSpec` (`--features spec`) or with tensors
(`--features tensor`), with tables of fixed capacity or growing ones (`--grow`); see `--help` for the rest.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # The same sums on every processor.

sys.path.append(str(Path(__file__).resolve().parent))

import numpy as np
import tensorflow as tf
from data import Columns, batches, load
from model import DIMS, answers, make_tables, train_op
from movielens import area_under_curve

from mx_rec.constants.constants import ASCEND_TIMESTAMP, BaseEnum, CacheModeEnum
from mx_rec.core.asc.feature_spec import FeatureSpec
from mx_rec.core.asc.helper import get_asc_insert_func
from mx_rec.core.asc.manager import start_asc_pipeline
from mx_rec.core.embedding import sparse_lookup
from mx_rec.graph.modifier import modify_graph_and_start_emb_cache
from mx_rec.saver.saver import save_incremental
from mx_rec.util.initialize import ConfigInitializer, init, terminate_config_initializer, trigger_evict
from mx_rec.util.ops import import_host_pipeline_ops

tf1 = tf.compat.v1
TABLE_SIZE = 20000
THRESHOLDS = {"access_threshold": 2, "eviction_threshold": 3600}


class Mode(BaseEnum):
    """What to do."""

    TRAIN = "train"
    LOAD_AND_TRAIN = "load_and_train"
    PREDICT = "predict"


@dataclass
class Side:
    """The training or the evaluation half of the graph."""

    iterator: Any
    logits: dict[str, tf.Tensor]
    labels: dict[str, tf.Tensor]
    loss: tf.Tensor


def main(arguments: Optional[Sequence[str]] = None) -> dict[str, Any]:
    """Runs one mode; returns what was measured."""
    options = _options(arguments)
    mode = Mode.mapping(options.mode)
    tf1.disable_eager_execution()
    step = 0 if mode is Mode.TRAIN else newest_step(options.directory)
    init(
        max_steps=options.steps,
        train_steps=options.steps,
        save_steps=options.save_steps,
        use_dynamic=not options.static,
        use_dynamic_expansion=options.grow,
        if_load=mode is not Mode.TRAIN,
    )
    train, test = load(options.rows)
    with tf.Graph().as_default():
        tables = make_tables(
            TABLE_SIZE, options.batch_size, CacheModeEnum.mapping(options.cache), padding=options.padding
        )
        if mode is Mode.PREDICT:
            results = predict(options, tables, build(options, tables, test, is_train=False), step)
        else:
            trained = build(options, tables, train, is_train=True, skip=step)
            evaluated = build(options, tables, test, is_train=False)
            results = run_training(options, tables, trained, evaluated, step)
    terminate_config_initializer()
    return results


def build(
    options: argparse.Namespace, tables: dict[str, Any], columns: Columns, *, is_train: bool, skip: int = 0
) -> Side:
    """A dataset, lookups and the loss."""
    dataset = batches(columns, options.batch_size, skip=skip, with_time=options.admission, as_tuple=options.tuple)
    specs = _specs(options)
    if options.features == "spec":
        dataset = dataset.map(get_asc_insert_func(tgt_key_specs=list(specs.values()), is_training=is_train))
    dataset = dataset.prefetch(2)
    make = tf1.data.make_one_shot_iterator if options.one_shot else tf1.data.make_initializable_iterator
    iterator = make(dataset)
    batch = iterator.get_next()
    features, labels = batch if options.tuple else (batch, batch)
    if options.admission and options.features == "tensor":
        tf1.add_to_collection(ASCEND_TIMESTAMP, features["time"])

    looked_up = [*DIMS, *["user"] * (options.lookups - 1)]  # the same key again costs no other row
    rows = []
    for name in looked_up:
        found = sparse_lookup(
            tables[name],
            specs[name] if options.features == "spec" else features[name],
            send_count=TABLE_SIZE if options.static else None,
            is_train=is_train,
            name=f"of_{name}",
            modify_graph=options.features == "tensor",
            batch=batch if options.features == "spec" else None,
            access_and_evict_config=THRESHOLDS if options.admission and options.features == "tensor" else None,
            serving_default_value=tf.zeros([DIMS[name]]),
        )
        rows.append(tf.reduce_sum(found, axis=1) if found.shape.rank == 3 else found)
    logits = answers(tf.concat(rows, axis=1))
    labels = {name: labels[name] for name in logits}
    losses = [
        tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels[name], logits=logit))
        for name, logit in logits.items()
    ]
    return Side(iterator, logits, labels, tf.add_n(losses))


def run_training(
    options: argparse.Namespace, tables: dict[str, Any], trained: Side, evaluated: Side, first: int
) -> dict[str, Any]:
    """Trains `options.steps` steps after step `first`, saves now and then, and evaluates."""
    update = train_op(trained.loss)
    rewrite(options)
    raise_threshold = None
    if options.admission:
        raise_threshold = import_host_pipeline_ops().set_threshold(
            tf.constant(3, tf.int32), emb_name="movie", ids_name="of_movie"
        )
    saver = tf1.train.Saver()
    prefix = str(Path(options.directory, "model"))
    losses, last_saved = [], first
    with tf1.Session(config=session_config()) as session:
        session.run(initializer(options, trained, is_train=True))
        if first:
            saver.restore(session, f"{prefix}-{first}")
        else:
            session.run(tf1.global_variables_initializer())
        for step in range(first + 1, first + 1 + options.steps):
            try:
                losses.append(float(session.run([update, trained.loss])[1]))
            except tf.errors.OutOfRangeError:
                break
            if raise_threshold is not None and step == first + options.steps // 2:
                session.run(raise_threshold)
            if (step - first) % options.save_steps == 0:
                save(options, saver, session, prefix, step, delta=last_saved != first)
                last_saved = step
        results = {"losses": losses, "last_saved": last_saved, **evaluate(options, tables, session, evaluated)}
        if options.admission:
            results["evicted"] = trigger_evict()
    return results


def predict(options: argparse.Namespace, tables: dict[str, Any], evaluated: Side, step: int) -> dict[str, Any]:
    """Predicts for the held-out ratings with the newest checkpoint."""
    rewrite(options)
    with tf1.Session(config=session_config()) as session:
        tf1.train.Saver().restore(session, str(Path(options.directory, f"model-{step}")))
        return evaluate(options, tables, session, evaluated)


def rewrite(options: argparse.Namespace) -> None:
    """Moves what it can of the lookups into the datasets; after the gradients."""
    if options.features == "spec":
        start_asc_pipeline()
    else:
        modify_graph_and_start_emb_cache(dump_graph=False)


def initializer(options: argparse.Namespace, side: Side, *, is_train: bool) -> Any:
    """What starts the iterator of a side."""
    if options.one_shot:
        return tf.no_op()
    if options.features == "spec":
        return side.iterator.initializer
    return ConfigInitializer.get_instance().train_params_config.get_initializer(is_train)


def save(
    options: argparse.Namespace, saver: tf1.train.Saver, session: Any, prefix: str, step: int, *, delta: bool
) -> None:
    """In full, or, with `--deltas` and after the first time, what has changed since the last save."""
    if options.deltas:
        save_incremental(saver, session, prefix, step, delta=delta)
    else:
        saver.save(session, prefix, global_step=step)


def evaluate(options: argparse.Namespace, tables: dict[str, Any], session: Any, side: Side) -> dict[str, Any]:
    """The area under the curve per answer, the first predictions, and how full the tables are."""
    session.run(initializer(options, side, is_train=False))
    # The rewritten graph draws its batches elsewhere.
    labels_now = ConfigInitializer.get_instance().train_params_config.get_target_batch(False, side.labels)
    seen: list[Any] = []
    while True:
        try:
            seen.append(session.run([side.logits, labels_now]))
        except tf.errors.OutOfRangeError:
            break
    logits, labels = ({name: np.concatenate([part[i][name] for part in seen]) for name in side.logits} for i in (0, 1))
    return {
        "auc": {name: area_under_curve(labels[name], logits[name]) for name in logits},
        "predictions": {name: values[:3].tolist() for name, values in logits.items()},
        "sizes": {name: table.size() for name, table in tables.items()},
        "capacities": {name: table.capacity() for name, table in tables.items()},
    }


def newest_step(directory: str) -> int:
    """Of the checkpoints of a directory, by the folders beside them; FileNotFoundError if there is none.

    `tf.train.latest_checkpoint` would say the same.
    """
    steps = [int(path.name.rpartition("-")[2]) for path in Path(directory).glob("*sparse-model-*")]
    if not steps:
        raise FileNotFoundError(f"{directory!r} has no folder sparse-model-*: train first, with --mode train")
    return max(steps)


def session_config() -> Any:
    """One with options of a device, which has no effect here."""
    # One thread per operation: sums are taken in the same order in every run.
    config = tf1.ConfigProto(intra_op_parallelism_threads=1)
    optimizer = config.graph_options.rewrite_options.custom_optimizers.add()
    optimizer.name = "NpuOptimizer"
    optimizer.parameter_map["iterations_per_loop"].i = 1
    optimizer.parameter_map["precision_mode"].s = b"allow_mix_precision"
    return config


def _specs(options: argparse.Namespace) -> dict[str, FeatureSpec]:
    """The features of a batch by name."""
    thresholds = THRESHOLDS if options.admission else {}
    specs = {name: FeatureSpec(name, table_name=name, **thresholds) for name in DIMS}
    return {**specs, "time": FeatureSpec("time", is_timestamp=True)} if options.admission else specs


def _options(arguments: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=[mode.value for mode in Mode], default=Mode.TRAIN.value)
    parser.add_argument("--directory", required=True, help="for checkpoints")
    parser.add_argument("--features", choices=["spec", "tensor"], default="tensor", help="how lookups get their ids")
    parser.add_argument("--grow", action="store_true", help="tables grow (use_dynamic_expansion)")
    parser.add_argument("--static", action="store_true", help="shapes are fixed (use_dynamic=False)")
    parser.add_argument("--cache", choices=[mode.value for mode in CacheModeEnum], default="HBM")
    parser.add_argument("--one-shot", action="store_true", help="iterators that start by themselves")
    parser.add_argument("--tuple", action="store_true", help="batches are (features, labels)")
    parser.add_argument("--admission", action="store_true", help="keys get a row when they come again")
    parser.add_argument("--padding", action="store_true", help="the row of the genre that fills up is not trained")
    parser.add_argument("--lookups", type=int, default=1, help="of the user table")
    parser.add_argument("--deltas", action="store_true", help="checkpoints after the first hold what has changed")
    parser.add_argument("--rows", type=int, default=20000, help="ratings to train on, at most")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-steps", type=int, default=20)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    print(json.dumps(main(), indent=2))
