"""Lookup, insert and training step of the store against its peers, interleaved in one process.

Peers: TensorFlow Recommenders Addons (if installed), `tf.lookup.experimental.MutableHashTable`, and a
static variable, which has no key index at all. Ids are fed; results are not copied out.

    bench_store.py [--dims 16,64] [--kinds uniform,zipf] [--works lookup,insert,step] [--rounds 7]
"""

from __future__ import annotations

import argparse
import gc
import time

import numpy as np
import tensorflow as tf
from harness import BATCH, KEYS, environment, id_batches, interleave, scrambled, table

from mx_rec import ops
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.optimizers import lazy_adam_by_addr
from mx_rec.util.initialize import init, terminate_config_initializer

try:
    import tensorflow_recommenders_addons as tfra

    de = tfra.dynamic_embedding
except ImportError:
    de = None

tf1 = tf.compat.v1
tf1.disable_eager_execution()
OURS = "mx_rec"
NEW_KEYS = 2_000_000


def _variable(name, rows, dim):
    return tf1.get_variable(name, [rows, dim], use_resource=True, initializer=tf.zeros_initializer())


def _hash_table(dim):
    return tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, default_value=[0.0] * dim)


class Graph:
    """A graph with fed ids, and what fills each candidate with all keys."""

    def __init__(self, dim):
        self.dim = dim
        self.graph = tf.Graph()
        self.fills = []
        self.candidates = {}
        self.by_row = set()  # candidates fed with row numbers instead of keys

    def __enter__(self):
        terminate_config_initializer()
        init(use_dynamic_expansion=True)
        self._scope = self.graph.as_default()
        self._scope.__enter__()
        self.ids = tf1.placeholder(tf.int64, [None])
        self.values = tf1.placeholder(tf.float32, [None, self.dim])
        self.table = create_table(tf.int64, self.dim, "bench", tf1.random_uniform_initializer(-0.1, 0.1, seed=1))
        return self

    def __exit__(self, *error):
        self._scope.__exit__(*error)

    def session(self):
        config = tf1.ConfigProto()
        return tf1.Session(graph=self.graph, config=config)

    def fill(self, session):
        for start in range(0, KEYS, BATCH):
            rows = np.arange(start, min(KEYS, start + BATCH))
            feed = {self.ids: scrambled(rows), self.values: np.full([len(rows), self.dim], 0.01, np.float32)}
            for op in self.fills:
                session.run(op, feed)

    def runners(self, session, rows):
        keys = [scrambled(batch) for batch in rows]
        runners = {}
        for name, op in self.candidates.items():
            call = session.make_callable(op, feed_list=[self.ids])
            batches = rows if name in self.by_row else keys
            runners[name] = lambda i, call=call, batches=batches: call(batches[i % len(batches)])
        return runners


def lookup_graph(dim):
    with Graph(dim) as g:
        g.fills.append(ops.find_or_insert(g.table.handle, g.ids).op)
        g.candidates[OURS] = sparse_lookup(g.table, g.ids, is_train=False).op
        variable = _variable("static", KEYS, dim)
        g.candidates["static variable"] = tf.nn.embedding_lookup(variable, g.ids).op
        g.by_row.add("static variable")
        hash_table = _hash_table(dim)
        g.fills.append(hash_table.insert(g.ids, g.values))
        g.candidates["MutableHashTable"] = hash_table.lookup(g.ids).op
        if de is not None:
            dynamic = de.get_variable("tfra", dim=dim, initializer=0.0)
            g.fills.append(dynamic.upsert(g.ids, g.values))
            g.candidates["TFRA"] = dynamic.lookup(g.ids).op
        g.init = tf1.global_variables_initializer()
    return g


def _forward(ids, lookup, weights):
    keys, position = tf.unique(ids)
    rows = lookup(keys)
    return keys, rows, tf.reduce_sum(tf.gather(rows, position) * weights)


def _adam(gradient, m, v, b1=0.9, b2=0.999, epsilon=1e-8, rate=1e-3):
    m = b1 * m + (1 - b1) * gradient
    v = b2 * v + (1 - b2) * gradient * gradient
    return m, v, rate * m / (tf.sqrt(v) + epsilon)


def _static_step(g, weights):
    w, m, v = (_variable(f"static_{n}", KEYS, g.dim) for n in "wmv")
    keys, rows, loss = _forward(g.ids, lambda u: tf.gather(w, u), weights)
    gradient = tf.convert_to_tensor(tf.gradients(loss, rows)[0])
    m_new, v_new, step = _adam(gradient, tf.gather(m, keys), tf.gather(v, keys))
    raw = tf.raw_ops
    return tf.group(
        raw.ResourceScatterUpdate(resource=m.handle, indices=keys, updates=m_new),
        raw.ResourceScatterUpdate(resource=v.handle, indices=keys, updates=v_new),
        raw.ResourceScatterSub(resource=w.handle, indices=keys, updates=step),
    )


def _hash_table_step(g, weights):
    w, m, v = (_hash_table(g.dim) for _ in "wmv")
    g.fills += [t.insert(g.ids, g.values) for t in (w, m, v)]
    keys, rows, loss = _forward(g.ids, w.lookup, weights)
    gradient = tf.convert_to_tensor(tf.gradients(loss, rows)[0])
    m_new, v_new, step = _adam(gradient, m.lookup(keys), v.lookup(keys))
    return tf.group(m.insert(keys, m_new), v.insert(keys, v_new), w.insert(keys, rows - step))


def _tfra_step(g, weights):
    dynamic = de.get_variable("tfra", dim=g.dim, initializer=0.0)
    g.fills.append(dynamic.upsert(g.ids, g.values))
    rows, trainable = de.embedding_lookup_unique(dynamic, g.ids, return_trainable=True, name="tfra_lookup")
    optimizer = de.DynamicEmbeddingOptimizer(tf1.train.AdamOptimizer(1e-3))
    return optimizer.minimize(tf.reduce_sum(rows * weights), var_list=[trainable])


def _our_step(g, weights):
    rows = sparse_lookup(g.table, g.ids)
    gradients = tf.gradients(tf.reduce_sum(rows * weights), tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB))
    addresses = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
    optimizer = lazy_adam_by_addr.create_hash_optimizer_by_address(1e-3)
    return optimizer.apply_gradients(list(zip(gradients, addresses)))


def step_graph(dim):
    with Graph(dim) as g:
        weights = tf1.get_variable(
            "weights", [BATCH, dim], use_resource=True, initializer=tf1.random_uniform_initializer()
        )
        g.fills.append(ops.find_or_insert(g.table.handle, g.ids).op)
        g.candidates[OURS] = _our_step(g, weights)
        g.candidates["static variable, LazyAdam of gather and scatter"] = _static_step(g, weights)
        g.by_row.add("static variable, LazyAdam of gather and scatter")
        g.candidates["3 MutableHashTables, Adam"] = _hash_table_step(g, weights)
        if de is not None:
            g.candidates["TFRA, Adam"] = _tfra_step(g, weights)
        g.init = tf1.global_variables_initializer()
    return g


def run_steady(title, make_graph, dim, kinds, rounds, calls):
    g = make_graph(dim)
    with g.session() as session:
        session.run(g.init)
        g.fill(session)
        for kind in kinds:
            rows = id_batches(kind, KEYS, 12)
            runners = g.runners(session, rows)
            for run in runners.values():
                for i in range(len(rows)):
                    run(i)
            times = interleave(runners, rounds, calls)
            print(table(f"{title}, dim {dim}, {kind}", times, OURS), flush=True)
    terminate_config_initializer()


def _insert_candidates(dim):
    def ours(ids, values):
        handle = ops.table_handle("insert", dim, initializer="uniform", initializer_a=-0.1, initializer_b=0.1, seed=1)
        return ops.gather_by_address(handle, ops.find_or_insert(handle, ids), dim).op

    def tfra_insert(ids, values):
        dynamic = de.get_variable("tfra", dim=dim, initializer=tf1.random_uniform_initializer(-0.1, 0.1))
        return dynamic.upsert(ids, dynamic.lookup(ids))

    def hash_table(ids, values):
        return _hash_table(dim).insert(ids, values)

    candidates = {OURS: ours, "MutableHashTable (values given)": hash_table}
    if de is not None:
        candidates["TFRA, lookup and insert"] = tfra_insert
    return candidates


def _time_inserts(make, dim, batches):
    with tf.Graph().as_default() as graph:
        ids = tf1.placeholder(tf.int64, [None])
        block = tf1.get_variable("block", [BATCH, dim], use_resource=True, initializer=tf1.random_uniform_initializer())
        op = make(ids, block[: tf.shape(ids)[0]])
        op = op.op if isinstance(op, tf.Tensor) else op
        initializer = tf1.global_variables_initializer()
    times = []
    with tf1.Session(graph=graph) as session:
        session.run(initializer)
        call = session.make_callable(op, feed_list=[ids])
        for batch in batches:
            start = time.perf_counter()
            call(batch)
            times.append(time.perf_counter() - start)
    gc.collect()
    return times


def run_insert(dim, rounds):
    batches = [scrambled(np.arange(s, min(NEW_KEYS, s + BATCH))) for s in range(0, NEW_KEYS, BATCH)]
    results = {name: [] for name in _insert_candidates(dim)}
    for _ in range(rounds):
        for name, make in _insert_candidates(dim).items():
            results[name].append(_time_inserts(make, dim, batches))
    base = np.median([sum(r) for r in results[OURS]])
    print(f"**find or insert of {NEW_KEYS:,} new keys in batches of {BATCH:,}, dim {dim}**\n")
    print("| candidate | total s | M ids/s | slowest batch ms | time / ours |\n|---|---|---|---|---|")
    for name, runs in results.items():
        total = np.median([sum(r) for r in runs])
        slowest = np.median([max(r) for r in runs])
        print(f"| {name} | {total:.2f} | {NEW_KEYS / total / 1e6:.2f} | {slowest * 1e3:.1f} | {total / base:.2f} |")
    print(flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", default="16,64")
    parser.add_argument("--kinds", default="uniform,zipf")
    parser.add_argument("--works", default="lookup,insert,step")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    kinds = args.kinds.split(",")
    print(environment() + "\n")
    for dim in map(int, args.dims.split(",")):
        for work in args.works.split(","):
            if work == "lookup":
                run_steady("lookup of existing ids", lookup_graph, dim, kinds, args.rounds, 8)
            elif work == "step":
                run_steady("training step", step_graph, dim, kinds, args.rounds, 4)
            else:
                run_insert(dim, min(args.rounds, 3))


if __name__ == "__main__":
    main()
