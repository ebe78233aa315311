"""Pooled lookups: the op, its stock equivalents, and whole lookups, interleaved in one process.

A batch has 65,536 rows of about 10 ids each (Poisson, so some are empty), Zipf 1.05 over 1,000,000 keys.

The first tables compare ops that do the same: the local embedding (a row per distinct id), the place of each id in
it, and the rows of the batch, to one embedding per row; and the gradient of the local embedding. The stock
ones are what `tf.nn.embedding_lookup_sparse` uses: SparseSegmentSum/Mean without weights, with them a gather, a
product and a SegmentSum.

The last tables compare whole lookups of the batch: `sparse_lookup` on a dynamic table (distinct ids, find, gather,
pool) beside `tf.nn.embedding_lookup_sparse` on a variable, which needs no hash table: its ids are row numbers.
The gradient is that of the local embedding, and of the variable (IndexedSlices).

    bench_pool.py [--dims 16,64] [--combiner mean] [--rounds 9] [--calls 5]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from harness import BATCH, KEYS, environment, id_batches, interleave, scrambled, table

from mx_rec import ops
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.util.initialize import init

tf1 = tf.compat.v1
tf1.disable_eager_execution()
IDS_PER_ROW = 10
DIFFERENT_BATCHES = 4
FILL = 50_000
OURS = "fused op"
LOOKUP = "sparse_lookup"

SEGMENT_OPS: dict[str, Callable[..., tf.Tensor]] = {
    "sum": tf1.sparse_segment_sum,
    "mean": tf1.sparse_segment_mean,
    "sqrtn": tf1.sparse_segment_sqrt_n,
}


class Batches:
    """Row numbers of ids, which batch row each belongs to, and a weight for each."""

    def __init__(self) -> None:
        rng = np.random.RandomState(1)
        self.row_ids, self.ids, self.weights = [], [], []
        for seed in range(DIFFERENT_BATCHES):
            counts = rng.poisson(IDS_PER_ROW, BATCH)
            counts[-1] = max(counts[-1], 1)  # stock ops end with the last row that has an id
            self.row_ids.append(np.repeat(np.arange(BATCH), counts))
            self.ids.append(id_batches("zipf", KEYS, 1, int(counts.sum()), seed)[0])
            self.weights.append(rng.rand(int(counts.sum())).astype(np.float32) + 0.5)

    @property
    def ids_per_batch(self) -> int:
        return int(np.mean([ids.size for ids in self.ids]))

    def feeds(self) -> list[tuple[np.ndarray, ...]]:
        """(position of each id among the distinct ones, row ids, row splits, weights) of each batch."""
        return [
            (
                _positions(ids),
                row_ids,
                np.searchsorted(row_ids, np.arange(BATCH + 1)).astype(np.int64),
                weights,
            )
            for ids, row_ids, weights in zip(self.ids, self.row_ids, self.weights)
        ]


def _ops_of(results: list[Any]) -> list[tf.Operation]:
    """What to fetch so that results are computed but not copied out. (A group would let TensorFlow remove them.)"""
    return [tf.nest.flatten(result, expand_composites=True)[0].op for result in results]


def _positions(ids: np.ndarray) -> np.ndarray:
    """As MxRecUnique gives them: distinct ids are numbered in order of first occurrence."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse].astype(np.int32)


def _bench_ops(batches: Batches, dim: int, combiner: str, is_weighted: bool, args: Any) -> None:
    feeds = batches.feeds()
    distinct = max(int(feed[0].max()) + 1 for feed in feeds)
    with tf.Graph().as_default():
        rows = tf1.get_variable("rows", [distinct, dim], use_resource=True).read_value()
        upstream = tf1.get_variable("upstream", [BATCH, dim], use_resource=True).read_value()
        restore, row_ids = tf1.placeholder(tf.int32, [None]), tf1.placeholder(tf.int64, [None])
        splits, weights = tf1.placeholder(tf.int64, [None]), tf1.placeholder(tf.float32, [None])
        results = {OURS: ops.pool(rows, restore, splits, combiner, weights if is_weighted else None)}
        spread = tf.gather(rows, restore)
        if is_weighted:
            factor = tf.expand_dims(weights, 1)
            pooled = tf.math.segment_sum(spread * factor, row_ids)
            divisor = tf.math.segment_sum(factor if combiner == "mean" else factor**2, row_ids)
            divisor = divisor if combiner == "mean" else tf.sqrt(divisor)
            results["gather, product, SegmentSum"] = (
                pooled if combiner == "sum" else tf.math.divide_no_nan(pooled, divisor)
            )
        else:
            results["SparseSegment op"] = SEGMENT_OPS[combiner](rows, restore, row_ids)
            segment_op = tf.math.segment_mean if combiner == "mean" else tf.math.segment_sum
            if combiner != "sqrtn":
                results["gather, Segment op"] = segment_op(spread, row_ids)
        session = tf1.Session()
        session.run(tf1.global_variables_initializer())
        for what in ("forward", "forward and gradient"):
            runs = {}
            for name, result in results.items():
                fetched = [result]
                if what != "forward":
                    gradient = tf.gradients(result, rows, upstream)[0]
                    fetched.append(tf.convert_to_tensor(gradient))  # rows are dense: this sums IndexedSlices
                step = session.make_callable(_ops_of(fetched), [restore, row_ids, splits, weights])
                runs[name] = lambda i, step=step: step(*feeds[i % DIFFERENT_BATCHES])
            title = f"ops, {what}, {combiner}{', weighted' if is_weighted else ''}, dim {dim}"
            print(table(title, interleave(runs, args.rounds, args.calls), OURS, batches.ids_per_batch), flush=True)


def _bench_lookups(batches: Batches, dim: int, combiner: str, is_weighted: bool, args: Any) -> None:
    with tf.Graph().as_default() as graph:
        ids, row_ids = tf1.placeholder(tf.int64, [None]), tf1.placeholder(tf.int64, [None])
        weights = tf1.placeholder(tf.float32, [None])
        indices = tf.stack([row_ids, row_ids], 1)
        sparse = tf.SparseTensor(indices, ids, [BATCH, BATCH])
        factors = sparse.with_values(weights) if is_weighted else None
        store = create_table(tf.int64, dim, "store", tf1.zeros_initializer())
        ours = sparse_lookup(store, sparse, combiner=combiner, weights=factors)
        variable = tf1.get_variable("variable", [KEYS, dim], initializer=tf1.zeros_initializer(), use_resource=True)
        theirs = tf.nn.embedding_lookup_sparse(variable, sparse, factors, combiner=combiner)
        upstream = tf1.get_variable("upstream", [BATCH, dim], use_resource=True).read_value()
        (local,) = graph.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
        gradients = {
            LOOKUP: tf.gradients(ours, local, upstream),
            "embedding_lookup_sparse, static variable": tf.gradients(theirs, variable, upstream),
        }
        fed = tf1.placeholder(tf.int64, [None])
        fill = ops.find_or_insert(store.handle, fed)
        session = tf1.Session()
        session.run(tf1.global_variables_initializer())
        for start in range(0, KEYS, FILL):
            session.run(fill.op, {fed: scrambled(np.arange(start, start + FILL))})
        keys = {LOOKUP: [scrambled(rows) for rows in batches.ids]}
        for what in ("forward", "forward and gradient"):
            runs = {}
            for name, result in zip(gradients, (ours, theirs)):
                fetched = [result, *(gradients[name] if what != "forward" else [])]
                step = session.make_callable(_ops_of(fetched), [ids, row_ids, weights])
                feeds = list(zip(keys.get(name, batches.ids), batches.row_ids, batches.weights))
                runs[name] = lambda i, step=step, feeds=feeds: step(*feeds[i % DIFFERENT_BATCHES])
            title = f"lookup, {what}, {combiner}{', weighted' if is_weighted else ''}, dim {dim}"
            print(table(title, interleave(runs, args.rounds, args.calls), LOOKUP, batches.ids_per_batch), flush=True)
        session.close()
    ops.release_all_tables()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", default="16,64")
    parser.add_argument("--combiner", default="mean", choices=sorted(SEGMENT_OPS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=5)
    args = parser.parse_args()
    print(environment() + "\n")
    init(use_dynamic_expansion=True)
    batches = Batches()
    for bench in (_bench_ops, _bench_lookups):
        for dim in map(int, args.dims.split(",")):
            for is_weighted in (False, True):
                bench(batches, dim, args.combiner, is_weighted, args)


if __name__ == "__main__":
    main()
