"""Batches of MovieLens ratings, as a script with a Session reads them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from mx_rec.util.ops import import_host_pipeline_ops

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "demo"))

from movielens import load_ratings

GENRES_KEPT = 4
NO_GENRE = 0  # fills up the genres of a movie that has fewer

Columns = dict[str, np.ndarray]


def load(rows: int) -> tuple[Columns, Columns]:
    """Training and held-out columns of at most `rows` ratings each, chosen evenly.

    `user` int64 [n], `movie` int64 [n], `genres` int64 [n, GENRES_KEPT], `liked` and `loved` float32 [n].
    """
    parts = []
    numbers: dict[str, int] = {}
    for columns in load_ratings():
        count = len(columns["user"])
        chosen = np.linspace(0, count - 1, min(rows, count)).astype(int)
        genres = np.full([len(chosen), GENRES_KEPT], NO_GENRE, np.int64)
        for row, names in enumerate(columns["genres"][chosen]):
            keys = [numbers.setdefault(name, len(numbers) + 1) for name in names.split("|")][:GENRES_KEPT]
            genres[row, : len(keys)] = keys
        parts.append(
            {
                "user": columns["user"][chosen],
                "movie": columns["movie"][chosen],
                "genres": genres,
                "liked": columns["liked"][chosen],
                "loved": (columns["rating"][chosen] == 5).astype(np.float32),
            }
        )
    return parts[0], parts[1]


def batches(columns: Columns, size: int, *, skip: int = 0, with_time: bool = False, as_tuple: bool = False) -> Any:
    """A dataset of dicts of columns, or of tuples (features, labels).

    Args:
        columns: see `load`.
        size: rows of a batch; what is left over is dropped, so that shapes are known.
        skip: batches that an earlier run has trained.
        with_time: adds `time`, the seconds at which a batch is drawn, int64 [].
        as_tuple: labels apart from features.
    """
    rows = len(columns["user"])
    dataset = tf.data.Dataset.from_tensor_slices(columns).shuffle(rows, seed=1, reshuffle_each_iteration=False)
    dataset = dataset.batch(size, drop_remainder=True).skip(skip)
    if with_time:
        dataset = dataset.map(_add_time)
    return dataset.map(_split) if as_tuple else dataset


def _add_time(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    now = import_host_pipeline_ops().return_timestamp(tf.zeros([], tf.int64))
    return {**batch, "time": now}


def _split(batch: dict[str, tf.Tensor]) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    labels = {name: batch.pop(name) for name in ("liked", "loved")}
    return batch, labels
