"""What thresholds of admission save and cost on MovieLens: the table and the plot of docs/faae.md.

The model is that of `demo/`, trained once over the ratings in order of time, as a stream; what it is judged by is the
last fifth of each user's ratings. Every table has the same threshold.

    python tools/movielens_admission.py [--batch-size 64] [--svg docs/images/faae_movielens.svg]
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NamedTuple, Optional
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "demo"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import movielens_deepfm as demo
import numpy as np
import tensorflow as tf
from movielens import Columns, area_under_curve, load_ratings, training_order

from mx_rec.cli.plotting.shapes import STYLE, add_line, add_rect, add_text
from mx_rec.graph import modify_graph_and_start_emb_cache
from mx_rec.util.initialize import get_initializer, init, terminate_config_initializer

tf1 = tf.compat.v1
THRESHOLDS = (None, *range(11))
ROW_BYTES = 24  # of a key, its count and its place in the index
CANDIDATE_BYTES = 36  # 24 in a hash table that is two thirds full
SVG = "http://www.w3.org/2000/svg"


class Outcome(NamedTuple):
    """Of one threshold: keys with rows, keys that are only counted, bytes of all tables, and the AUC."""

    threshold: Optional[int]
    rows: int
    candidates: int
    bytes: int
    auc: float


def train(threshold: Optional[int], data: tuple[Columns, Columns], batch_size: int) -> Outcome:
    """Trains one model and judges it."""
    terminate_config_initializer()
    init(use_dynamic_expansion=True, prefetch_batch_number=2)
    with tf.Graph().as_default():
        tf1.set_random_seed(demo.SEED)
        tables = demo.make_tables()
        iterators = [
            tf1.data.make_initializable_iterator(demo.make_dataset(columns, size, epochs=1, shuffle=False))
            for columns, size in zip(data, (batch_size, demo.EVALUATION_BATCH))
        ]
        batches = [iterator.get_next() for iterator in iterators]
        config = {"access_threshold": threshold}
        _, loss = demo.deep_fm(tables, batches[0], is_train=True, access_and_evict_config=config)
        scores, _ = demo.deep_fm(tables, batches[1], is_train=False)
        step = demo.train_op(loss)
        liked = tf.identity(batches[1]["liked"])
        modify_graph_and_start_emb_cache()
        with tf1.Session() as session:
            session.run([tf1.global_variables_initializer(), get_initializer(True)])
            run_all(session, step)
            session.run(get_initializer(False))
            labels, predictions = (np.concatenate(part) for part in zip(*run_all(session, (liked, scores))))
            stats = [table.memory() for table in tables.values()]
    return Outcome(
        threshold,
        sum(each.size for each in stats),
        sum(each.candidates for each in stats),
        # Of rows with their slots, key, count and index, and of candidates; tables take some more in advance.
        sum((4 * each.stride + ROW_BYTES) * each.size + CANDIDATE_BYTES * each.candidates for each in stats),
        area_under_curve(labels, predictions),
    )


def run_all(session: tf1.Session, fetches: object) -> list:
    """The results of all batches that are left."""
    results = []
    while True:
        try:
            results.append(session.run(fetches))
        except tf.errors.OutOfRangeError:
            return results


def name_of(outcome: Outcome) -> str:
    return "off" if outcome.threshold is None else str(outcome.threshold)


def markdown(outcomes: list[Outcome]) -> str:
    """The table."""
    base = outcomes[0]
    lines = [
        "| threshold | keys with a row | of all | candidates | bytes of rows and candidates | of all | AUC | lost |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in outcomes:
        lines.append(
            f"| {name_of(each)} | {each.rows:,} | {100 * each.rows / base.rows:.0f} % | {each.candidates:,} | "
            f"{each.bytes:,} | {100 * each.bytes / base.bytes:.0f} % | {each.auc:.4f} | {base.auc - each.auc:+.4f} |"
        )
    return "\n".join(lines)


def svg(outcomes: list[Outcome]) -> str:
    """Bytes that are left, and AUC, over the threshold."""
    ET.register_namespace("", SVG)
    width, height, left, bottom = 640, 300, 60, 240
    root = ET.Element("svg", xmlns=SVG, viewBox=f"0 0 {width} {height}", role="img")
    ET.SubElement(root, "title").text = "MovieLens by time: bytes left and AUC by threshold of admission"
    ET.SubElement(root, "style").text = STYLE
    add_rect(root, 0, 0, width, height, "page", radius=0)
    add_text(root, left, 22, "MovieLens in order of time: what a threshold of admission saves and costs", "h")
    shown = outcomes[1:]
    lowest = min(each.auc for each in outcomes)
    highest = max(each.auc for each in outcomes)
    step = (width - 2 * left) / len(shown)
    add_line(root, left, bottom, width - left, bottom, "line")
    points = []
    for number, each in enumerate(shown):
        x = left + step * (number + 0.5)
        share = each.bytes / outcomes[0].bytes
        tip = f"threshold {name_of(each)}: {each.rows:,} rows, {each.bytes:,} bytes, AUC {each.auc:.4f}"
        add_rect(root, x - step / 3, bottom - 160 * share, 2 * step / 3, 160 * share, "movable", tip=tip)
        add_text(root, x, bottom - 160 * share - 4, f"{100 * share:.0f} %", "s m")
        add_text(root, x, bottom + 16, name_of(each), "s m")
        points.append((x, bottom - 20 - 150 * (each.auc - lowest) / max(highest - lowest, 1e-9)))
    for (x1, y1), (x2, y2) in zip(points, points[1:]):
        add_line(root, x1, y1, x2, y2, "one")
    for (x, y), each in zip(points, shown):
        add_rect(root, x - 3, y - 3, 6, 6, "one", radius=3, tip=f"AUC {each.auc:.4f}")
    add_text(root, left, bottom + 36, "threshold; bars: bytes of rows and candidates that are left", "s")
    text = f"line: AUC, {shown[0].auc:.4f} at 0, {shown[-1].auc:.4f} at 10 (axis {lowest:.3f} to {highest:.3f})"
    add_text(root, left, bottom + 52, text, "s")
    return ET.tostring(root, encoding="unicode") + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--svg", type=Path, default=ROOT / "docs" / "images" / "faae_movielens.svg")
    options = parser.parse_args()
    tf1.disable_eager_execution()
    columns, held_out = load_ratings()
    order = training_order()
    data = ({name: values[order] for name, values in columns.items()}, held_out)
    outcomes = [train(threshold, data, options.batch_size) for threshold in THRESHOLDS]
    print(markdown(outcomes))
    options.svg.write_text(svg(outcomes))


if __name__ == "__main__":
    main()
