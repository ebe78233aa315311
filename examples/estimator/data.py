"""Input functions over the MovieLens ratings of the demo."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "demo"))

from movielens import load_ratings

LABELS = ("liked", "rating")
FEATURES = {"user": tf.int64, "user_ratings": tf.int64, "movie": tf.int64, "title": tf.string, "genres": tf.string}
SEED = 20180926

Columns = dict[str, np.ndarray]


def load(rows: int) -> tuple[Columns, Columns]:
    """Training and held-out columns of at most `rows` ratings each, chosen evenly."""
    parts = []
    for columns in load_ratings():
        count = len(columns["user"])
        chosen = np.linspace(0, count - 1, min(rows, count)).astype(int)
        parts.append({name: values[chosen] for name, values in columns.items()})
    return parts[0], parts[1]


def batches(columns: Columns, batch_size: int, *, epochs: int = 1, shuffle: bool = False) -> tf.data.Dataset:
    """Batches of (features, labels), both by name, as an input function returns them."""
    rows = tf.data.Dataset.range(len(columns["user"]))
    if shuffle:
        rows = rows.shuffle(len(columns["user"]), seed=SEED)
    values = {name: tf.constant(columns[name]) for name in (*FEATURES, *LABELS)}

    def pick(row: tf.Tensor) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        batch = {name: tf.gather(column, row) for name, column in values.items()}
        return {name: batch[name] for name in FEATURES}, {name: batch[name] for name in LABELS}

    return rows.repeat(epochs).batch(batch_size).map(pick).prefetch(2)
