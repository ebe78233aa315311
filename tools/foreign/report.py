"""Runs models of other libraries before and after their conversion and writes the tables of docs/foreign-graphs.md.

Usage: python tools/foreign/report.py [--check-only SUBSTRING]

Needs TensorFlow 2.15, the op library and `pip install --no-deps deepctr==0.9.4`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "foreign"), str(Path(__file__).resolve().parent)]

import foreign_runs as runs
import models
import numpy as np
import plain_models as plain
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
from tensorflow.python.grappler import tf_optimizer

DOC = ROOT / "docs" / "foreign-graphs.md"
PLAIN = (
    "lookup_reference",
    "lookup_parts_div",
    "sparse_sqrtn",
    "sparse_mean_reference",
    "safe_sparse_weighted",
    "matrix_factorization",
    "shared",
)
NAMES = {
    "sgd": "SGD",
    "adagrad": "Adagrad",
    "ftrl": "FTRL",
    "adam": "Adam",
    "momentum": "Momentum",
    "rmsprop": "RMSProp",
}
RUNS = 7


class Model(NamedTuple):
    build: Callable[[], Any]
    loss: str
    step: str


def all_models() -> dict[str, Model]:
    found = {
        f"plain {model}, {NAMES[optimizer]}": Model(
            lambda model=model, optimizer=optimizer: plain.meta_graph(model, optimizer), "loss", "train"
        )
        for model in PLAIN
        for optimizer in NAMES
        if model in ("matrix_factorization", "lookup_reference") or optimizer in ("sgd", "adagrad", "adam")
    }
    found.update((name, Model(build, "the_loss", "the_step")) for name, build in models.MODELS.items())
    return found


def losses(graph_def: Any, model: Model, grappler: bool) -> Any:
    return runs.losses(graph_def, (f"{model.loss}:0", model.step), steps=models.STEPS, grappler=grappler)


def difference(before: Any, after: Any) -> str:
    if np.array_equal(before, after):
        return "0"
    return f"{float(np.max(np.abs(before - after) / np.abs(before))):.0e}"


def result_row(name: str, model: Model, graph_def: Any) -> str:
    converted = runs.convert(graph_def)
    report = converted.reports[0]
    whole = runs.convert(graph_def, whole=True)
    before = losses(graph_def, model, False)
    after = losses(converted.graph_def, model, False)
    moved = losses(whole.graph_def, model, False)
    with_grappler = difference(losses(graph_def, model, True), losses(whole.graph_def, model, True))
    reasons: dict[str, int] = {}
    for refusal in report.refusals:
        reason = short(refusal.reason)
        reasons[reason] = reasons.get(reason, 0) + 1
    refused = "; ".join(f"{count}: {reason}" for reason, count in reasons.items()) or "-"
    cells = (name, len(report.notes), refused, difference(before, after), difference(after, moved), with_grappler)
    return "| " + " | ".join(map(str, cells)) + " |"


def short(reason: str) -> str:
    """Without the names of the variable and its scope."""
    text = reason.split(" (variable ")[0]
    if " in a slot" in text:
        return text.split("' ", 1)[1].split(";")[0]
    return (
        text.replace("of variable ", "of the variable ").split(" '")[0]
        if " reads all " not in text
        else (f"op {text.split(chr(39))[1]!r} reads all rows")
    )


def milliseconds(work: Callable[[], Any]) -> float:
    work()
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def time_row(name: str, model: Model, meta_graph: Any) -> str:
    graph_def = meta_graph.graph_def
    data = graph_def.SerializeToString()
    targets = [model.loss, model.step]

    def grappler() -> None:
        item = meta_graph_pb2.MetaGraphDef()
        item.graph_def.CopyFrom(graph_def)
        item.collection_def["train_op"].node_list.value.extend(targets)
        tf_optimizer.OptimizeGraph(config_pb2.ConfigProto(), item)

    def parse() -> None:
        read = graph_pb2.GraphDef()
        read.ParseFromString(data)
        read.SerializeToString()

    cells = (
        name,
        f"{len(graph_def.node):,}",
        f"{len(data) / 1000:,.0f}",
        *(
            f"{milliseconds(work):.1f}"
            for work in (
                lambda: runs.convert(graph_def),
                lambda: runs.convert(graph_def, whole=True),
                lambda: tf.compat.v1.graph_util.extract_sub_graph(graph_def, targets),
                grappler,
                parse,
            )
        ),
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check-only", default="", help="only these models, and write nothing")
    options = parser.parse_args()
    tf.compat.v1.disable_eager_execution()
    results, times = [], []
    for name, model in all_models().items():
        if options.check_only not in name:
            continue
        meta_graph = model.build()
        results.append(result_row(name, model, meta_graph.graph_def))
        print(results[-1], flush=True)
        if not name.startswith("plain") or "Adam" in name:
            times.append(time_row(name, model, meta_graph))
            print(times[-1], flush=True)
    if not options.check_only:
        write("results", results)
        write("times", times)


def write(mark: str, rows: list[str]) -> None:
    """Replace the rows of the table that follows a mark."""
    lines = DOC.read_text(encoding="utf-8").splitlines()
    head = lines.index(f"<!-- {mark} -->") + 3  # the mark, the heading and the rule
    end = next(
        index for index in range(head, len(lines) + 1) if index == len(lines) or not lines[index].startswith("|")
    )
    lines[head:end] = rows
    DOC.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
