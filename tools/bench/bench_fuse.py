"""A training step over many tables of equal dim: fused, not fused, and not rewritten, interleaved in one process.

26 tables (as many as the Criteo data have) of 100,000 keys, ids uniform or Zipf over all keys, which are there before
the timing begins. A step draws a batch, looks it up in every table, runs a dense layer, differentiates, and updates the
tables by LazyAdam.

    bench_fuse.py [--batches 256,2048] [--kinds uniform,zipf] [--tables 26] [--dim 16] [--rounds 9] [--calls 20] [--cpu]
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
import time
from collections.abc import Callable
from typing import Optional

import numpy as np
import tensorflow as tf
from harness import environment, id_batches, interleave, scrambled, table

from mx_rec import ops
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.graph.apply_live import apply_live
from mx_rec.optimizers import lazy_adam_by_addr
from mx_rec.passes import PassManager, PipelineOptions, default_pipeline
from mx_rec.util.initialize import init

tf1 = tf.compat.v1
tf1.disable_eager_execution()
KEYS = 100_000
PREFETCH = 2
FILL = 20_000
DIFFERENT_BATCHES = 24
FUSED, SINGLE, PLAIN = "fused", "not fused", "not rewritten"
CANDIDATES: dict[str, Optional[PipelineOptions]] = {
    FUSED: PipelineOptions(prefetch=PREFETCH, prune=False),
    SINGLE: PipelineOptions(prefetch=PREFETCH, prune=False, fuse=False),
    PLAIN: None,
}


@dataclasses.dataclass
class Candidate:
    """A graph under training."""

    session: tf1.Session
    step: Callable[[], object]


def _batches(kind: str, tables: int, batch: int) -> np.ndarray:
    rows = id_batches(kind, KEYS, 1, DIFFERENT_BATCHES * batch * tables)[0]
    return scrambled(rows).reshape(DIFFERENT_BATCHES, batch, tables)


def _build(options: Optional[PipelineOptions], kind: str, tables: int, batch: int, dim: int) -> Candidate:
    with tf.Graph().as_default() as graph:
        labels = np.random.RandomState(1).rand(DIFFERENT_BATCHES, batch).astype(np.float32)
        data = tf.data.Dataset.from_tensor_slices((_batches(kind, tables, batch), labels)).repeat()
        iterator = tf1.data.make_initializable_iterator(data.prefetch(PREFETCH))
        ids, label = iterator.get_next()
        stores = [
            create_table(tf.int64, dim, f"table{t}", tf1.random_uniform_initializer(-0.1, 0.1, seed=t))
            for t in range(tables)
        ]
        rows = [sparse_lookup(store, ids[:, t]) for t, store in enumerate(stores)]
        step = _train(rows, label, tables * dim)
        initializer = tf1.global_variables_initializer()
        if options is not None:
            result = PassManager(default_pipeline(options)).run(graph.as_graph_def())
            refusals = [refusal for report in result.reports for refusal in report.refusals]
            assert not refusals, refusals[0]
            apply_live(graph, result.edits)
        fed = tf1.placeholder(tf.int64, [None])
        fill = tf.group(*[ops.find_or_insert(store.handle, fed).op for store in stores])
    session = tf1.Session(graph=graph)
    session.run([initializer, iterator.initializer])
    for start in range(0, KEYS, FILL):
        session.run(fill, {fed: scrambled(np.arange(start, min(KEYS, start + FILL)))})
    return Candidate(session, session.make_callable(step))


def _train(rows: list[tf.Tensor], label: tf.Tensor, width: int) -> tf.Operation:
    weights = tf1.get_variable("weights", [width, 1], use_resource=True)
    logits = tf.squeeze(tf.matmul(tf.concat(rows, 1), weights), 1)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=logits))
    local = tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
    addresses = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
    dense, *sparse = tf.gradients(loss, [weights, *local])
    return tf.group(
        lazy_adam_by_addr.create_hash_optimizer_by_address(1e-3).apply_gradients(list(zip(sparse, addresses))),
        tf1.train.GradientDescentOptimizer(0.01).apply_gradients([(dense, weights)]),
    )


def _cpu_ms(candidate: Candidate, calls: int) -> str:
    """Processor time and wall time of a step, and how often a thread had to wait."""
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for _ in range(calls):
        candidate.step()
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    switches = after.ru_nvcsw - before.ru_nvcsw
    return f"{cpu / calls * 1e3:.2f} ms of CPU, {wall / calls * 1e3:.2f} ms, {switches / calls:.0f} waits"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", default="256,2048")
    parser.add_argument("--kinds", default="uniform,zipf")
    parser.add_argument("--tables", type=int, default=26)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--cpu", action="store_true", help="also processor time per step")
    args = parser.parse_args()
    print(environment() + "\n")
    init(use_dynamic_expansion=True)
    works = [(kind, int(batch)) for kind in args.kinds.split(",") for batch in args.batches.split(",")]
    for kind, batch in works:
        candidates = {name: _build(opts, kind, args.tables, batch, args.dim) for name, opts in CANDIDATES.items()}
        runners = {name: lambda _, step=candidate.step: step() for name, candidate in candidates.items()}
        times = interleave(runners, args.rounds, args.calls, warmup=50)
        title = f"training step, {args.tables} tables x batch {batch:,}, dim {args.dim}, {kind} ids"
        print(table(title, times, FUSED, unit_items=args.tables * batch), flush=True)
        for name, candidate in candidates.items() if args.cpu else ():
            print(f"{name}: {_cpu_ms(candidate, 10 * args.calls)}")
        for candidate in candidates.values():
            candidate.session.close()


if __name__ == "__main__":
    main()
