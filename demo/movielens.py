"""The MovieLens ratings that the demo trains on, and how it judges predictions."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np

DATA_DIR = Path(__file__).parent / "data" / "ml-latest-small"
LIKED_FROM = 4.0
HELD_OUT = 0.2

Columns = dict[str, np.ndarray]


def load_ratings(directory: Path = DATA_DIR) -> tuple[Columns, Columns]:
    """The ratings as (training, held-out) columns.

    The last fifth of each user's ratings, by time, is held out. `user_ratings` counts the training
    ratings of the user, so it knows nothing of what is held out.
    """
    titles, genres = _read_movies(directory / "movies.csv.gz")
    rows = _read_rows(directory / "ratings.csv.gz")
    user = np.array([row["userId"] for row in rows], np.int64)
    movie = np.array([row["movieId"] for row in rows], np.int64)
    time = np.array([row["timestamp"] for row in rows], np.int64)
    held_out = _last_of_each_user(user, time, HELD_OUT)
    counts = np.bincount(user[~held_out], minlength=user.max() + 1)
    columns = {
        "user": user,
        "user_ratings": counts[user].astype(np.int64),
        "movie": movie,
        "title": np.array([titles[key] for key in movie]),
        "genres": np.array([genres[key] for key in movie]),
        "liked": np.array([float(row["rating"]) >= LIKED_FROM for row in rows], np.float32),
        "rating": np.array([float(row["rating"]) for row in rows], np.float32),
    }
    train = {name: values[~held_out] for name, values in columns.items()}
    test = {name: values[held_out] for name, values in columns.items()}
    return train, test


def training_order(directory: Path = DATA_DIR) -> np.ndarray:
    """The numbers of the training rows of `load_ratings` in order of time."""
    rows = _read_rows(directory / "ratings.csv.gz")
    user = np.array([row["userId"] for row in rows], np.int64)
    time = np.array([row["timestamp"] for row in rows], np.int64)
    return np.argsort(time[~_last_of_each_user(user, time, HELD_OUT)], kind="stable")


def area_under_curve(labels: np.ndarray, scores: np.ndarray) -> float:
    """Probability that a random liked rating scores above a random other one; ties count half."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2
    ranks = mean_rank[inverse.reshape(-1)]
    positive = labels > 0.5
    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative))


def _read_rows(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _read_movies(path: Path) -> tuple[dict[int, str], dict[int, str]]:
    rows = _read_rows(path)
    titles = {int(row["movieId"]): row["title"] for row in rows}
    return titles, {int(row["movieId"]): row["genres"] for row in rows}


def _last_of_each_user(user: np.ndarray, time: np.ndarray, share: float) -> np.ndarray:
    """Marks the last `share` of each user's rows."""
    order = np.lexsort((time, user))
    _, starts, counts = np.unique(user[order], return_index=True, return_counts=True)
    position = np.arange(len(user)) - np.repeat(starts, counts)
    marked = np.empty(len(user), bool)
    marked[order] = position >= np.ceil(np.repeat(counts, counts) * (1 - share))
    return marked
