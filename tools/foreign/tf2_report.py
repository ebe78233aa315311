"""Converts SavedModels of TensorFlow 2 and Keras and writes their table of docs/foreign-graphs.md.

Usage: python tools/foreign/tf2_report.py [--check-only SUBSTRING]

Needs the op library. The models are those of tests/foreign/tf2_models.py, written by a process with eager execution.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "foreign"), str(Path(__file__).resolve().parent)]

import foreign_runs as runs
import numpy as np
import tf2_models
from report import write

from mx_rec.cli import main as recgraph

NAMES = {
    "keras": "Keras functional model, `save`",
    "keras_fit": "the same, trained with Adam",
    "two": "`tf.function`s in `tf.function`s, two variables",
    "words": "vocabulary in an asset",
    "checked": "assertion, print, counter",
    "random": "random numbers with seeds",
    "bags": "`safe_embedding_lookup_sparse`, `tf.gather`",
    "branch": "a lookup in `tf.cond`, another outside",
    "loop": "a lookup in a loop",
    "sealed": "`_noinline`, `jit_compile`, and neither",
    "trained": "a signature that trains (SGD)",
    "nested": "the same, the lookup in a `tf.function`",
    "momentum": "a signature that trains (Momentum)",
    "adagrad": "a signature that trains (Adagrad)",
    "graded": "a `tf.custom_gradient`",
}


def row(name: str, directory: Path) -> str:
    source, target = directory / name, directory / f"{name}_converted"
    arguments = ["rewrite", str(source), str(target), "--convert", "*_embedding*", "--report", "json"]
    out, start = io.StringIO(), time.perf_counter()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        recgraph(arguments)
    elapsed = time.perf_counter() - start
    (meta_graph,) = json.JSONDecoder().raw_decode(out.getvalue())[0]["meta_graphs"]
    inline, convert = meta_graph["passes"][:2]
    calls = sum(int(note.split(" ", 1)[0]) for note in inline["notes"] if " calls that take " in note)
    refused = "; ".join(short(refusal["reason"]) for refusal in inline["refusals"]) or "-"
    same = all(map(equal, runs.served(source), runs.served(target)))
    cells = (
        NAMES[name],
        calls,
        f"{convert['nodes_before']:,}",
        len(convert["notes"]),
        refused,
        "same bits" if same else "DIFFERENT",
        f"{1000 * elapsed:.0f}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def short(reason: str) -> str:
    text = reason.split(" (its calls stay ")[0].split(";")[0]
    if text.startswith("calls function"):
        return text.split(", ", 1)[1]
    return text.split(" into a function ")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check-only", default="", help="only these models, and write nothing")
    options = parser.parse_args()
    names = [name for name in NAMES if options.check_only in name]
    with tempfile.TemporaryDirectory() as place:
        pairs = [f"{name}={Path(place) / name}" for name in names]
        subprocess.run([sys.executable, tf2_models.__file__, *pairs], check=True, capture_output=True)
        rows = []
        for name in names:
            rows.append(row(name, Path(place)))
            print(rows[-1], flush=True)
    if not options.check_only:
        write("tf2", rows)


if __name__ == "__main__":
    main()
