"""Training steps of SGD and Adagrad, dim 16: ours by address, a static variable with fused ops, and fbgemm.

fbgemm's table-batched embedding runs in a process of its own, since PyTorch and TensorFlow do not share one well; that
process times itself, in turn with the others, while they wait. It and the static variable get row numbers and keep no
key index. A step: forward over the batch, the weighted sum as loss, its gradient, the update of each row once.

    bench_optimizers.py [--fbgemm PYTHON] [--kinds zipf] [--optimizers sgd,adagrad] [--rounds 9] [--calls 8]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import time

import numpy as np
import tensorflow as tf
from harness import BATCH, KEYS, environment, id_batches, interleave_rounds, scrambled, table, timed

from mx_rec import ops
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.optimizers import adagrad_by_addr, gradient_descent_by_addr
from mx_rec.util.initialize import init, terminate_config_initializer

tf1 = tf.compat.v1
tf1.disable_eager_execution()
OURS, STATIC, FBGEMM = "mx_rec", "static variable, fused op", "fbgemm table-batched embedding"
DIM = 16
BATCHES = 12
RATE = 1e-3
ACCUMULATOR = 0.1
PAUSE = 0.005  # lets the threads of the candidate before come to rest


class Fbgemm:
    """The peer's process."""

    def __init__(self, python):
        command = [python, str(pathlib.Path(__file__).with_name("fbgemm_step.py"))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.versions = self.ask()

    def ask(self, **question):
        if question:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.wait()


def _variable(name, value):
    initializer = tf1.constant_initializer(value)
    return tf1.get_variable(name, [KEYS, DIM], use_resource=True, initializer=initializer)


def _static_step(optimizer, ids, weights):
    rows_of, raw = _variable("static", 0.01), tf.raw_ops
    keys, position = tf.unique(ids)
    rows = tf.gather(rows_of, keys)
    loss = tf.reduce_sum(tf.gather(rows, position) * weights)
    gradient = tf.convert_to_tensor(tf.gradients(loss, rows)[0])
    if optimizer == "sgd":
        return raw.ResourceScatterSub(resource=rows_of.handle, indices=keys, updates=RATE * gradient)
    accumulator = _variable("accumulator", ACCUMULATOR)
    return raw.ResourceSparseApplyAdagrad(
        var=rows_of.handle, accum=accumulator.handle, lr=RATE, grad=gradient, indices=keys
    )


def _our_step(optimizer, ids, store, weights):
    rows = sparse_lookup(store, ids)
    gradients = tf.gradients(tf.reduce_sum(rows * weights), tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB))
    if optimizer == "sgd":
        by_address = gradient_descent_by_addr.create_hash_optimizer_by_addr(RATE)
    else:
        by_address = adagrad_by_addr.create_hash_optimizer_by_address(RATE, initial_accumulator_value=ACCUMULATOR)
    return by_address.apply_gradients(list(zip(gradients, tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET))))


def run(optimizer, kind, fbgemm, rounds, calls):
    terminate_config_initializer()
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default() as graph:
        ids = tf1.placeholder(tf.int64, [None])
        initializer = tf1.random_uniform_initializer()
        weights = tf1.get_variable("weights", [BATCH, DIM], use_resource=True, initializer=initializer)
        store = create_table(tf.int64, DIM, "bench", tf1.random_uniform_initializer(-0.1, 0.1, seed=1))
        fill = ops.find_or_insert(store.handle, ids).op
        steps = {OURS: _our_step(optimizer, ids, store, weights), STATIC: _static_step(optimizer, ids, weights)}
        start = tf1.global_variables_initializer()
    rows = id_batches(kind, KEYS, BATCHES)
    batches = {OURS: [scrambled(batch) for batch in rows], STATIC: rows}
    with tf1.Session(graph=graph) as session:
        session.run(start)
        for first in range(0, KEYS, BATCH):
            session.run(fill, {ids: scrambled(np.arange(first, min(KEYS, first + BATCH)))})
        measures = {}
        for name, step in steps.items():
            call = session.make_callable(step, feed_list=[ids])

            def step_of(i, call=call, mine=batches[name]):
                call(mine[i % BATCHES])

            def measure(round_, step_of=step_of):
                time.sleep(PAUSE)
                return timed(step_of, round_ * calls, calls)

            timed(step_of, 0, BATCHES)
            measures[name] = measure
        if fbgemm is not None:
            fbgemm.ask(optimizer=optimizer, kind=kind, keys=KEYS, dim=DIM, rate=RATE, batches=BATCHES)

            def ask(round_):
                time.sleep(PAUSE)
                return fbgemm.ask(first=round_ * calls, calls=calls)

            measures[FBGEMM] = ask
        times = interleave_rounds(measures, rounds)
    print(table(f"training step, {optimizer}, dim {DIM}, {kind}", times, OURS), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fbgemm", metavar="PYTHON", help="an interpreter that has torch and fbgemm-gpu-cpu")
    parser.add_argument("--kinds", default="zipf")
    parser.add_argument("--optimizers", default="sgd,adagrad")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=8)
    args = parser.parse_args()
    fbgemm = Fbgemm(args.fbgemm) if args.fbgemm else None
    print(environment() + (f"; {fbgemm.versions}" if fbgemm else "") + "\n")
    for optimizer in args.optimizers.split(","):
        for kind in args.kinds.split(","):
            run(optimizer, kind, fbgemm, args.rounds, args.calls)
    if fbgemm:
        fbgemm.close()


if __name__ == "__main__":
    main()
