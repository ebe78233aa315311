"""Ids that repeat in a batch: spreading rows over it and summing their gradients, beside TensorFlow's kernels.

The positions are those of batches of 65,536 ids over 1,000,000 keys, uniform or Zipf. Also one lookup of a rewritten
graph, by ops of its own and by the op that spreads the batch straight from the rows of the table.

    bench_repeats.py [--dims 16,64] [--kinds uniform,zipf] [--rounds 9]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from harness import KEYS, environment, id_batches, interleave, scrambled, table

from mx_rec import ops
from mx_rec.graph.attrs import attr_bytes
from mx_rec.graph.marks import HOT_KERNEL, KERNEL

tf1 = tf.compat.v1
tf1.disable_eager_execution()
CHUNK = 50_000
BATCHES = 12


class Bench:
    """One dim: a filled table, and the prepared batches of one kind of ids."""

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self._handle = ops.table_handle(f"table{dim}", dim, initializer="uniform", initializer_b=1.0)
        self._ids = tf1.placeholder(tf.int64, [None])
        self._prepared = [*ops.unique(self._ids)]
        self._prepared.append(ops.look_ahead(self._handle, self._prepared[0]))
        self._fed = [tf1.placeholder(tensor.dtype, [None]) for tensor in self._prepared]
        values = tf1.get_variable(f"values{dim}", [65_536, dim], initializer=tf1.ones_initializer(), use_resource=True)
        self._values = values.read_value()
        fill = ops.find_or_insert(self._handle, self._ids).op
        self._session = tf1.Session()
        self._session.run(values.initializer)
        for start in range(0, KEYS, CHUNK):
            self._session.run(fill, {self._ids: scrambled(np.arange(start, start + CHUNK))})

    def prepare(self, kind: str) -> list[list[np.ndarray]]:
        """Keys, restore, counts and hints of each batch."""
        batches = id_batches(kind, KEYS, BATCHES)
        return [self._session.run(self._prepared, {self._ids: scrambled(rows)}) for rows in batches]

    def run(self, result: tf.Tensor, batches: list[list[np.ndarray]]) -> Callable[[int], object]:
        """Makes the result, and leaves it where it is."""
        made = ops.load_library().mx_rec_forward(tensor=result).op
        call = self._session.make_callable(made, self._fed)
        return lambda i: call(*batches[i % BATCHES])

    def spread(self) -> dict[str, tf.Tensor]:
        ours, stock = (tf.gather(self._values, self._fed[1]) for _ in range(2))
        ours.op._set_attr(KERNEL, attr_bytes(HOT_KERNEL))
        return {"mx_rec": ours, "GatherV2 of TensorFlow": stock}

    def sums(self) -> dict[str, tf.Tensor]:
        keys, restore = self._fed[:2]
        (ours,) = ops.sum_gradients_many([self._values], [restore], [keys], self._dim)
        return {
            "mx_rec": ours,
            "UnsortedSegmentSum of TensorFlow": tf.math.unsorted_segment_sum(self._values, restore, tf.size(keys)),
        }

    def lookups(self) -> dict[str, tf.Tensor]:
        keys, restore, counts, hints = self._fed
        rows = ops.gather_by_address(self._handle, ops.find_or_insert(self._handle, keys, hints, counts), self._dim)
        fused = ops.look_up_many(
            [self._handle], [keys], [hints], [counts], [np.zeros([0], np.float32)], self._dim, [restore], [0]
        )
        return {"mx_rec, one op": fused.restored[0], "mx_rec, single ops": tf.gather(rows, restore)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", default="16,64")
    parser.add_argument("--kinds", default="uniform,zipf")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=20)
    args = parser.parse_args()
    print(environment() + "\n")
    for dim in map(int, args.dims.split(",")):
        bench = Bench(dim)
        works = {
            "rows spread over the batch": bench.spread(),
            "gradients of a batch summed by row": bench.sums(),
            "a lookup with hints": bench.lookups(),
        }
        for kind in args.kinds.split(","):
            batches = bench.prepare(kind)
            for title, candidates in works.items():
                runners = {name: bench.run(result, batches) for name, result in candidates.items()}
                times = interleave(runners, args.rounds, args.calls, warmup=BATCHES)
                print(table(f"{title}, dim {dim}, {kind}", times, next(iter(candidates))), flush=True)


if __name__ == "__main__":
    main()
