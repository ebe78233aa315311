"""What admission, timestamps and eviction cost.

*step*: a training step (LazyAdam, batches of 65,536 ids over 1,000,000 keys that all have rows) of a table that keeps
nothing but rows, and of tables that count and date keys. *eviction*: a tenth of 10,000,000 keys goes while another
thread looks keys up; its longest lookup is set beside the longest without eviction, since this machine has its own.

    bench_faae.py [--rounds 9] [--keys 10000000] [--only step|eviction]
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from harness import KEYS, environment, id_batches, interleave, scrambled, table

from mx_rec import ops

tf1 = tf.compat.v1
tf1.disable_eager_execution()
DIM, CHUNK, BATCHES, LOOKUP = 16, 50_000, 12, 1_024
OPTIONS = {
    "off": {},
    "admission (threshold 2)": {"access_threshold": 2},
    "admission and eviction, a time per batch": {"access_threshold": 2, "eviction_threshold": 1 << 30},
    "admission and eviction, a time per sample": {"access_threshold": 2, "eviction_threshold": 1 << 30},
    "bounded, lru": {"max_keys": 2 * KEYS, "use_lookup_clock": True},
}


class Step:
    """A filled table and its step."""

    def __init__(self, session: tf1.Session, ids: tf.Tensor, number: int, kind: str) -> None:
        options = OPTIONS[kind]
        handle = ops.table_handle(f"table{number}", DIM, initializer="uniform", initializer_b=1.0, **options)
        self._now = tf1.placeholder(tf.int64, [None])
        self._per_sample = kind.endswith("sample")
        self._ids = ids
        keys, restore, counts = ops.unique(ids)
        times = ops.key_times(keys, restore, self._now) if "eviction_threshold" in options else None
        addresses = ops.find_or_insert(handle, keys, None, counts, timestamps=times)
        rows = ops.gather_by_address(handle, addresses, DIM)
        batch = tf.gather(rows, restore)
        gradients = tf.math.unsorted_segment_sum(batch * 0.01, restore, tf.size(keys))
        update = ops.apply_lazy_adam_by_address(handle, addresses, gradients, 0.001)
        fill = ops.find_or_insert(handle, ids, None, tf.fill(tf.shape(ids), 2)).op
        for start in range(0, KEYS, CHUNK):
            session.run(fill, {ids: scrambled(np.arange(start, start + CHUNK))})
        self._call = session.make_callable(update, [ids, self._now])
        self._seconds = 1

    def run(self, batches: list[np.ndarray]) -> Callable[[int], object]:
        times = np.arange(len(batches[0]) // 16, dtype=np.int64)

        def step(i: int) -> object:
            self._seconds += 1
            now = times + self._seconds if self._per_sample else np.array([self._seconds], np.int64)
            return self._call(batches[i % BATCHES], now)

        return step


def steps(rounds: int) -> None:
    ids = tf1.placeholder(tf.int64, [None])
    with tf1.Session() as session:
        made = {kind: Step(session, ids, number, kind) for number, kind in enumerate(OPTIONS)}
        for kind in ("uniform", "zipf"):
            batches = [scrambled(batch) for batch in id_batches(kind, KEYS, BATCHES)]
            candidates = {name: step.run(batches) for name, step in made.items()}
            times = interleave(candidates, rounds=rounds, calls=12)
            print(table(f"training step, dim {DIM}, {kind}", times, "off"), flush=True)


def longest(call: Callable[[], object], until: threading.Event) -> tuple[np.ndarray, float]:
    """Milliseconds of each call until the event is set."""
    taken = []
    while not until.is_set():
        begin = time.perf_counter()
        call()
        taken.append(1e3 * (time.perf_counter() - begin))
    return np.array(taken), float(np.max(taken))


def eviction(keys: int, rounds: int) -> None:
    ids, now = tf1.placeholder(tf.int64, [None]), tf1.placeholder(tf.int64, [None])
    handle = ops.table_handle("large", DIM, access_threshold=1, eviction_threshold=50)
    see = ops.find_or_insert(handle, ids, timestamps=now).op
    find = ops.find(handle, ids).op
    evict = ops.evict(handle).keys
    print(f"**eviction of a tenth of {keys:,} keys, beside lookups of {LOOKUP:,} keys**\n")
    print("| beside | seconds | keys evicted | lookups | median ms | 99.9 % ms | longest ms |")
    print("|---|---|---|---|---|---|---|")
    with tf1.Session() as session:
        see, find, evict = (
            session.make_callable(op, feeds) for op, feeds in ((see, [ids, now]), (find, [ids]), (evict, []))
        )

        def fill(first: int, last: int, second: int) -> None:
            for start in range(first, last, CHUNK):
                see(scrambled(np.arange(start, min(start + CHUNK, last))), np.array([second], np.int64))

        fill(0, keys, 0)
        rng = np.random.RandomState(0)
        staying = [scrambled(rng.randint(keys // 2, keys, LOOKUP)) for _ in range(64)]
        for number in range(rounds):
            # The tenth that goes; the others are seen again.
            tenth = keys // 10
            gone = (number % 5) * tenth
            second = 100 * (number + 1)
            fill(0, gone, second)
            fill(gone + tenth, keys, second)
            for name, work in (("nothing", lambda: time.sleep(1)), ("eviction", evict)):
                done = threading.Event()
                result = []

                def beside(work: Callable = work, done: threading.Event = done, result: list = result) -> None:
                    begin = time.perf_counter()
                    result.extend([work(), time.perf_counter() - begin])
                    done.set()

                thread = threading.Thread(target=beside)
                thread.start()
                taken, most = longest(lambda: find(staying[rng.randint(64)]), done)
                thread.join()
                print(
                    f"| {name} | {result[1]:.2f} | {result[0] or 0:,} | {len(taken):,} | {np.median(taken):.2f} | "
                    f"{np.percentile(taken, 99.9):.2f} | {most:.2f} |",
                    flush=True,
                )
            fill(gone, gone + tenth, second)  # back again, into rows that were freed
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--only", choices=["step", "eviction"])
    options = parser.parse_args()
    print(environment(), "\n")
    if options.only != "eviction":
        steps(options.rounds)
    if options.only != "step":
        eviction(options.keys, max(2, options.rounds // 3))


if __name__ == "__main__":
    main()
