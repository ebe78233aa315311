"""Bytes per key of 2,000,000 keys: how much the process grew, of ours also what the table itself counts.

Each candidate runs in a process of its own. Without slots the keys are inserted with given or initial values; with
slots every batch of new keys is a training step of LazyAdam (ours) or Adam. The bound is 8 bytes of key and the row.

    bench_memory.py [--dims 16,64] [--repeats 1]
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys

import numpy as np
import tensorflow as tf
from harness import BATCH, environment, scrambled

from mx_rec import ops
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.optimizers import lazy_adam_by_addr
from mx_rec.util.initialize import init

try:
    import tensorflow_recommenders_addons as tfra

    de = tfra.dynamic_embedding
except ImportError:
    de = None

tf1 = tf.compat.v1
tf1.disable_eager_execution()
NEW_KEYS = 2_000_000
OURS = "mx_rec"
PEERS = {
    "MutableHashTable": "MutableHashTable (3 tables with Adam)",
    "tfra.Variable": "TFRA dynamic_embedding.Variable",
    "tfra.CuckooHashTable": "TFRA CuckooHashTable (3 tables with Adam)",
}


def _adam_of_tables(make, ids, values):
    """One table and its two slots, as a script without the peers' optimizer keeps them."""
    tables = [make(name) for name in "wmv"]
    return tf.group(*[table.insert(ids, values) for table in tables])


def _ours(ids, values, dim, slots):
    init(use_dynamic_expansion=True)
    table = create_table(tf.int64, dim, OURS, tf1.random_uniform_initializer(-0.1, 0.1, seed=1))
    if not slots:
        return ops.find_or_insert(table.handle, ids).op, table
    rows = sparse_lookup(table, ids)
    gradients = tf.gradients(tf.reduce_sum(rows * values), tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB))
    optimizer = lazy_adam_by_addr.create_hash_optimizer_by_address(1e-3)
    return optimizer.apply_gradients(list(zip(gradients, tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)))), table


def _tfra_variable(ids, values, dim, slots):
    if not slots:
        return de.get_variable("tfra", dim=dim, initializer=0.0).upsert(ids, values)
    dynamic = de.get_variable("tfra", dim=dim, initializer=tf1.random_uniform_initializer(-0.1, 0.1))
    rows, trainable = de.embedding_lookup_unique(dynamic, ids, return_trainable=True, name="tfra_lookup")
    optimizer = de.DynamicEmbeddingOptimizer(tf1.train.AdamOptimizer(1e-3))
    return optimizer.minimize(tf.reduce_sum(rows * values), var_list=[trainable])


def _build(candidate, ids, values, dim, slots):
    """What inserts a batch of new keys, and our table if it is ours."""
    if candidate == OURS:
        return _ours(ids, values, dim, slots)
    if candidate == "tfra.Variable":
        return _tfra_variable(ids, values, dim, slots), None

    def make(name):
        if candidate == "tfra.CuckooHashTable":
            return de.CuckooHashTable(tf.int64, tf.float32, tf.zeros([dim]), name=name)
        return tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, [0.0] * dim)

    if slots:
        return _adam_of_tables(make, ids, values), None
    return make("table").insert(ids, values), None


def _resident():
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def measure(candidate, dim, slots):
    """Bytes per key: growth of the process, and the table's own count or None."""
    with tf.Graph().as_default() as graph:
        ids = tf1.placeholder(tf.int64, [None])
        initializer = tf1.random_uniform_initializer()
        block = tf1.get_variable("block", [BATCH, dim], use_resource=True, trainable=False, initializer=initializer)
        values = block[: tf.shape(ids)[0]]
        warm = tf.reduce_sum(tf.gather(values, tf.unique(ids % BATCH)[1])).op
        insert, table = _build(candidate, ids, values, dim, slots)
        insert = insert.op if isinstance(insert, tf.Tensor) else insert
        start = tf1.global_variables_initializer()
    with tf1.Session(graph=graph) as session:
        session.run(start)
        call = session.make_callable(insert, feed_list=[ids])
        for _ in range(3):
            session.run(warm, {ids: np.arange(BATCH)})
        gc.collect()
        before = _resident()
        for first in range(0, NEW_KEYS, BATCH):
            call(scrambled(np.arange(first, min(NEW_KEYS, first + BATCH))))
        gc.collect()
        grown = (_resident() - before) / NEW_KEYS
        if table is None:
            return {"grown": grown, "counted": None}
        stats = table.memory()
        assert stats.size == NEW_KEYS and stats.stride == dim * (3 if slots else 1)
        return {"grown": grown, "counted": (stats.index_bytes + stats.row_bytes + stats.other_bytes) / NEW_KEYS}


def _in_own_process(candidate, dim, slots):
    command = [sys.executable, __file__, "--candidate", candidate, "--dims", str(dim)] + ["--slots"] * slots
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", default="16,64")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--candidate", help=argparse.SUPPRESS)
    parser.add_argument("--slots", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.candidate:
        print(json.dumps(measure(args.candidate, int(args.dims), args.slots)))
        return
    print(environment() + "\n")
    peers = [peer for peer in PEERS if de is not None or not peer.startswith("tfra")]
    for dim in map(int, args.dims.split(",")):
        for slots in (False, True):
            row = 4 * dim * (3 if slots else 1)
            kind = "with the slots of (Lazy)Adam" if slots else "without slots"
            print(f"**bytes per key of {NEW_KEYS:,} keys, dim {dim} {kind}; bound {8 + row}**\n")
            print("| candidate | bytes per key | of the bound |\n|---|---|---|")
            for candidate in [OURS, *peers]:
                runs = [_in_own_process(candidate, dim, slots) for _ in range(args.repeats)]
                for how, title in (("counted", ", by its own count"), ("grown", ", growth of the process")):
                    if runs[0][how] is not None:
                        value = float(np.median([run[how] for run in runs]))
                        name = PEERS.get(candidate, candidate) + title
                        print(f"| {name} | {value:.1f} | {value / (8 + row):.2f} |", flush=True)
            print(flush=True)


if __name__ == "__main__":
    main()
