"""Interleaved timing: all candidates run in turn within one process, so that noise hits all alike."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable

# A current numpy is slowed down by settings meant for old OpenBLAS builds.
for _name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
    os.environ.pop(_name, None)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

BATCH = 65_536
KEYS = 1_000_000


def scrambled(rows: np.ndarray) -> np.ndarray:
    """Distinct, scattered 63-bit keys for row numbers (splitmix64)."""
    with np.errstate(over="ignore"):
        x = rows.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((x ^ (x >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


def id_batches(kind: str, keys: int, batches: int, batch: int = BATCH, seed: int = 0) -> list[np.ndarray]:
    """Row numbers: `uniform`, or `zipf` with exponent 1.05 over shuffled rows."""
    rng = np.random.RandomState(seed)
    if kind == "uniform":
        return [rng.randint(0, keys, batch).astype(np.int64) for _ in range(batches)]
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -1.05
    cumulative = np.cumsum(weights / weights.sum())
    order = np.random.RandomState(99).permutation(keys)
    return [
        order[np.minimum(np.searchsorted(cumulative, rng.rand(batch)), keys - 1)].astype(np.int64)
        for _ in range(batches)
    ]


def timed(run: Callable[[int], object], first: int, calls: int) -> float:
    """Seconds per call of `calls` calls, which get their numbers from `first` on."""
    start = time.perf_counter()
    for i in range(calls):
        run(first + i)
    return (time.perf_counter() - start) / calls


def interleave_rounds(candidates: dict[str, Callable[[int], float]], rounds: int) -> dict[str, list[float]]:
    """What each candidate says of each round; a candidate gets the round's number."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for round_ in range(rounds):
        for name, measure in candidates.items():
            times[name].append(measure(round_))
    return times


def interleave(
    candidates: dict[str, Callable[[int], None]], rounds: int, calls: int, warmup: int = 3
) -> dict[str, list[float]]:
    """Seconds per call, one value per round, of each candidate; a candidate gets the call's number."""
    for run in candidates.values():
        for i in range(warmup):
            run(i)
    measures = {name: lambda k, run=run: timed(run, k * calls, calls) for name, run in candidates.items()}
    return interleave_rounds(measures, rounds)


def table(title: str, times: dict[str, list[float]], ours: str, unit_items: int = BATCH) -> str:
    """A Markdown table: median, fastest and slowest round, and how many times `ours` is faster."""
    base = float(np.median(times[ours]))
    lines = [
        f"**{title}**",
        "",
        "| candidate | ms | min..max | M ids/s | time / ours |",
        "|---|---|---|---|---|",
    ]
    for name, values in times.items():
        median = float(np.median(values))
        lines.append(
            f"| {name} | {median * 1e3:.2f} | {min(values) * 1e3:.2f}..{max(values) * 1e3:.2f} "
            f"| {unit_items / median / 1e6:.1f} | {median / base:.2f} |"
        )
    return "\n".join(lines) + "\n"


def environment() -> str:
    """Machine and versions, one line."""
    import tensorflow as tf

    cpu = platform.processor()
    try:
        with open("/proc/cpuinfo") as file:
            cpu = next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    versions = [f"Python {platform.python_version()}", f"tensorflow {tf.__version__}", f"numpy {np.__version__}"]
    try:
        import tensorflow_recommenders_addons as tfra

        versions.append(f"TFRA {tfra.__version__}")
    except ImportError:
        pass
    return f"{cpu}, {os.cpu_count()} cores; " + ", ".join(versions)
