"""Kills a training process at random moments, again and again, and checks that no save is lost.

    python tools/kill_saves.py --rounds 300

Each round a process restores the newest checkpoint, compares every key, row, slot and count with what they were when
it was saved, then trains and saves, in full and in deltas, until it is killed (SIGKILL) after some milliseconds. It
says before each save what is to be saved and afterwards that the save is done. Then the newest checkpoint must be one
that was said to be done, or a later one that was announced, and hold exactly what was announced.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import random
import re
import signal
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from mx_rec.checkpoint.versions import versions
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.optimizers import adagrad_by_addr, lazy_adam_by_addr
from mx_rec.saver.saver import save_incremental
from mx_rec.util.initialize import init

tf1 = tf.compat.v1
KEYS, BATCH, KEPT = 6000, 1500, 3


class Trainer:
    """Two tables and a dense variable."""

    def __init__(self) -> None:
        self.ids = tf1.placeholder(tf.int64, [None])
        self.tables, steps = [], []
        for name, make in (
            ("user", lazy_adam_by_addr.create_hash_optimizer_by_address),
            ("item", adagrad_by_addr.create_hash_optimizer_by_address),
        ):
            table = create_table(tf.int64, 16, name, tf1.random_normal_initializer(0.0, 0.1, seed=1))
            loss = tf.reduce_sum(tf.square(sparse_lookup(table, self.ids) - 0.5))
            steps.append(make(0.05).minimize(loss, var_list=tf1.get_collection("ASCEND_SPARSE_LOOKUP_LOCAL_EMB")[-1:]))
            self.tables.append(table)
        self.dense = tf1.get_variable("dense", [1000], use_resource=True)
        self.global_step = tf1.train.get_or_create_global_step()
        steps += [self.dense.assign_add(tf.ones([1000])).op, tf1.assign_add(self.global_step, 1).op]
        self.step = tf.group(*steps)
        self.saver = tf1.train.Saver(max_to_keep=KEPT)
        self.session = tf1.Session(
            config=tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
        )

    def digest(self) -> str:
        """Of all that is saved."""
        total = hashlib.sha256()
        for table in self.tables:
            for array in table.export(self.session):
                total.update(np.ascontiguousarray(array).tobytes())
            total.update(str(table.memory().update_count).encode())
        total.update(self.session.run(self.dense).tobytes())
        total.update(str(self.session.run(self.global_step)).encode())
        return total.hexdigest()


def child(directory: str, pipe: int, seed: int) -> None:
    """Until it is killed."""
    say = os.fdopen(pipe, "w", buffering=1)
    tf1.disable_eager_execution()
    init(use_dynamic_expansion=True)
    trainer = Trainer()
    latest = tf.train.latest_checkpoint(directory)
    if latest is None:
        trainer.session.run(tf1.global_variables_initializer())
    else:
        found = versions(directory)
        for prefix in {latest, found[-1].prefix}:
            trainer.saver.restore(trainer.session, prefix)
            print("restored", prefix, trainer.digest(), file=say)
        trainer.saver.restore(trainer.session, latest)
        state = tf.train.get_checkpoint_state(directory)
        trainer.saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
    rng = np.random.default_rng(seed)
    for i in itertools.count():
        if i == 1:  # all that the first run of a step takes is past
            print("ready", file=say)
        trainer.session.run(trainer.step, {trainer.ids: rng.integers(0, KEYS, BATCH)})
        step = int(trainer.session.run(trainer.global_step))
        print("saving", f"{directory}/model-{step}", trainer.digest(), file=say)
        if seed % 3 == 0:
            prefix = trainer.saver.save(trainer.session, f"{directory}/model", step)
        else:
            delta = bool(rng.integers(0, 4))
            prefix = save_incremental(trainer.saver, trainer.session, f"{directory}/model", step, delta=delta)
        print("done", prefix, file=say)


def run_round(directory: str, seed: int, announced: dict[str, str], done: list[str], delay: float) -> int:
    """One process from its start to its end; how many saves it finished."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_end)
            child(directory, write_end, seed)
        finally:
            os._exit(1)
    os.close(write_end)
    finished = 0
    killed = False
    with os.fdopen(read_end) as heard:
        for line in heard:
            words = line.split()
            if not line.endswith("\n") or not words:
                continue
            if words[0] == "restored":
                prefix, digest = words[1:]
                if announced.get(prefix) != digest:
                    raise SystemExit(f"{prefix} was restored with another content than it was saved with")
                if done and int(prefix.rpartition("-")[2]) < int(done[-1].rpartition("-")[2]):
                    raise SystemExit(f"{done[-1]} was said to be saved, but the newest checkpoint is {prefix}")
            elif words[0] == "ready":
                time.sleep(delay)
                os.kill(pid, signal.SIGKILL)
                killed = True
            elif words[0] == "saving":
                announced[words[1]] = words[2]
            elif words[0] == "done":
                done.append(words[1])
                finished += 1
    _, status = os.waitpid(pid, 0)
    if not killed or not os.WIFSIGNALED(status):
        raise SystemExit(f"the process of seed {seed} ended by itself")
    return finished


def check_folders(directory: str, done: list[str]) -> None:
    """The newest folder that names tables is of a complete checkpoint, and not of an older one than was saved."""
    steps = [int(name.rpartition("-")[2]) for name in os.listdir(directory) if re.match("(delta-)?sparse-model-", name)]
    newest = max(steps, default=-1)
    if steps and not os.path.exists(f"{directory}/model-{newest}.index"):
        raise SystemExit(f"the folder of step {newest} names a checkpoint that is not complete")
    if done and newest < int(done[-1].rpartition("-")[2]):
        raise SystemExit(f"{done[-1]} was said to be saved, but the newest folder is of step {newest}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=0.15, help="seconds before a process is killed, at most")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as directory:
        announced: dict[str, str] = {}
        done: list[str] = []
        interrupted = 0
        most_files = 0
        for i in range(arguments.rounds):
            before = len(announced)
            finished = run_round(directory, arguments.seed + i, announced, done, rng.uniform(0, arguments.longest))
            check_folders(directory, done)
            interrupted += len(announced) - before > finished
            most_files = max(most_files, len(os.listdir(directory)))
            if i % 50 == 49:
                sys.stdout.write(f"round {i + 1}: {len(done)} saves, {interrupted} killed while saving\n")
                sys.stdout.flush()
        sys.stdout.write(
            f"{arguments.rounds} kills, {interrupted} of them during one of {len(announced)} saves; every newest "
            f"checkpoint held exactly what was saved; at most {most_files} files in the directory\n"
        )


if __name__ == "__main__":
    main()
