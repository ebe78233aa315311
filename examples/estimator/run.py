"""Trains, evaluates, predicts, starts another model from the first, exports and serves, on MovieLens ratings.

    python examples/estimator/run.py --model two_tower --directory /tmp/movielens
    python examples/estimator/run.py --model multi_task --directory /tmp/movielens2 --no-rewrite

With TensorFlow 2.15 that is all; later ones need `pip install "mx-rec[estimator]"`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # The same sums on every processor.

import multi_task
import tensorflow as tf
import two_tower
from data import FEATURES, SEED, Columns, batches, load

from mx_rec.estimator import NPUEstimator, NPURunConfig, TableSummaryHook
from mx_rec.estimator import api as estimator
from mx_rec.graph import GraphModifierHook
from mx_rec.saved_model import freeze_saved_model
from mx_rec.util.initialize import init, terminate_config_initializer

tf1 = tf.compat.v1
MODELS = {"two_tower": two_tower.model_fn, "multi_task": multi_task.model_fn}
SHOWN = 3


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs everything; returns what was measured."""
    options = _options(arguments)
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    tf1.disable_eager_execution()
    train, test = load(options.rows)
    init(use_dynamic_expansion=True, prefetch_batch_number=2)
    results: dict[str, Any] = {}

    first = make(options, "first")
    train_spec = estimator.TrainSpec(
        lambda: batches(train, options.batch_size, epochs=options.epochs, shuffle=True),
        hooks=[*hooks(options), TableSummaryHook(first.model_dir, every_n_steps=50)],
    )
    eval_spec = estimator.EvalSpec(
        lambda: batches(test, 4 * options.batch_size), steps=None, hooks=hooks(options), throttle_secs=0
    )
    results["train_and_evaluate"], _ = estimator.train_and_evaluate(first, train_spec, eval_spec)
    results["predict"] = predict(options, first, test)

    # Another model, whose movies are in a table of another name, starts from the first and goes on.
    second = make(
        options,
        "second",
        tables={"movie": "film"},
        warm_start_from=estimator.WarmStartSettings(first.model_dir, var_name_to_prev_var_name={"film": "movie"}),
    )
    results["warm_start"] = evaluate(options, second, test)
    second.train(lambda: batches(train, options.batch_size, shuffle=True), hooks=hooks(options), steps=10)
    results["second"] = evaluate(options, second, test)

    exported = first.export_saved_model(str(Path(options.directory, "export")), serving_inputs)
    results["exported"] = tf.compat.as_str(exported)
    results["frozen"] = str(Path(options.directory, "frozen", "1"))
    results["tables"] = {size.table_name: size.keys for size in freeze_saved_model(exported, results["frozen"])}
    terminate_config_initializer()
    if options.serve:
        results["serve"] = serve(options, results["exported"])
        results["serve_frozen"] = serve(options, results["frozen"], "--without-library")
    return results


def make(options: argparse.Namespace, name: str, tables: dict[str, str] | None = None, **arguments: Any) -> Any:
    """An estimator with a directory of its own."""
    config = NPURunConfig(
        tf_random_seed=SEED,
        save_checkpoints_steps=options.save_steps,
        # One thread per operation: sums are taken in the same order in every run.
        session_config=tf1.ConfigProto(intra_op_parallelism_threads=1),
    )
    directory = str(Path(options.directory, name))
    return NPUEstimator(MODELS[options.model], directory, config, {"tables": tables or {}}, **arguments)


def hooks(options: argparse.Namespace) -> list[Any]:
    """What rewrites each graph."""
    return [GraphModifierHook()] if options.rewrite else []


def evaluate(options: argparse.Namespace, model: Any, test: Columns) -> dict[str, Any]:
    """Metrics over the held-out ratings."""
    return model.evaluate(lambda: batches(test, 4 * options.batch_size), hooks=hooks(options))


def predict(options: argparse.Namespace, model: Any, test: Columns) -> list[dict[str, Any]]:
    """Predictions for the first held-out ratings."""
    some = {name: column[:SHOWN] for name, column in test.items()}
    return list(model.predict(lambda: batches(some, SHOWN), hooks=hooks(options)))


def serving_inputs() -> Any:
    """What a server is sent: the raw columns."""
    inputs = {name: tf1.placeholder(dtype, [None], name=name) for name, dtype in FEATURES.items()}
    return estimator.export.ServingInputReceiver(inputs, inputs)


def serve(options: argparse.Namespace, directory: str, *more: str) -> dict[str, Any]:
    """Asks a server in a process of its own, which knows the SavedModel alone."""
    script = str(Path(__file__).with_name("serve.py"))
    numbers = ["--rows", str(SHOWN), "--ratings", str(options.rows)]
    command = [sys.executable, script, directory, *numbers, *more]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="two_tower")
    parser.add_argument("--directory", required=True, help="for checkpoints, events and SavedModels")
    parser.add_argument("--rows", type=int, default=40000, help="ratings to train on, at most")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--save-steps", type=int, default=100)
    parser.add_argument("--no-serve", dest="serve", action="store_false", help="start no servers")
    parser.add_argument("--no-rewrite", dest="rewrite", action="store_false", help="leave the graphs as they are")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    print(json.dumps(main(), indent=2, default=lambda value: value.tolist()))
