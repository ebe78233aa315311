"""Kills a training process at random moments, again and again, and checks that no save is lost.

    python tools/kill_saves.py --rounds 300 [--kind fixed,aging]

Each round a process restores the newest checkpoint, compares every key, row, slot, count and time with what they were
when it was saved, then trains and saves, in full and in deltas, until it is killed (SIGKILL) after some milliseconds.
It says before each save what is to be saved and afterwards that the save is done. Then the newest checkpoint must be
one that was said to be done, or a later one that was announced, and hold exactly what was announced.

Kinds of tables: `growing` or `fixed` capacity, and `aging` where keys are admitted and evicted by time; joined by a
comma. `any`: each process has the kind that its seed says, so that each mode restores what the other has saved.
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
import traceback

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from mx_rec import ops
from mx_rec.checkpoint.versions import versions
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_LOCAL_EMB, ASCEND_TIMESTAMP
from mx_rec.core import graph_state
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.optimizers import adagrad, adagrad_by_addr, lazy_adam, lazy_adam_by_addr
from mx_rec.saver.saver import save_incremental
from mx_rec.util.initialize import init, terminate_config_initializer

tf1 = tf.compat.v1
KEYS, BATCH, KEPT = 6000, 1500, 3


class Trainer:
    """Two tables and a dense variable. The graph is built once; each process opens a session of its own."""

    session: tf1.Session

    def __init__(self, is_fixed: bool, ages: bool, counts_updates: bool) -> None:
        self.ages = ages
        self.counts_updates = counts_updates
        self.ids = tf1.placeholder(tf.int64, [None])
        self.time = tf1.placeholder(tf.int64, [])
        lookup = {}
        if ages:
            tf1.add_to_collection(ASCEND_TIMESTAMP, self.time)
            lookup["access_and_evict_config"] = {"access_threshold": 2, "eviction_threshold": 4, "faae_coefficient": 1}
        self.tables, steps = [], []
        for name, by_address, on_variable in (
            ("user", lazy_adam_by_addr.create_hash_optimizer_by_address, lazy_adam.create_hash_optimizer),
            ("item", adagrad_by_addr.create_hash_optimizer_by_address, adagrad.create_hash_optimizer),
        ):
            table = create_table(
                tf.int64,
                16,
                name,
                tf1.random_normal_initializer(0.0, 0.1, seed=1),
                device_vocabulary_size=2 * KEYS,
            )
            loss = tf.reduce_sum(tf.square(sparse_lookup(table, self.ids, **lookup) - 0.5))
            if is_fixed:
                steps.append(on_variable(0.05).minimize(loss, var_list=[table.variable]))
            else:
                local = tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)[-1:]
                steps.append(by_address(0.05).minimize(loss, var_list=local))
            self.tables.append(table)
        self.dense = tf1.get_variable("dense", [1000], use_resource=True)
        self.global_step = tf1.train.get_or_create_global_step()
        steps += [self.dense.assign_add(tf.ones([1000])).op, tf1.assign_add(self.global_step, 1).op]
        self.step = tf.group(*steps)
        self.keys = tf1.placeholder(tf.int64, [None])
        self.contents = [_rows_of_fixed(table, self.keys) if is_fixed else None for table in self.tables]
        for table in self.tables:
            table.prepare("export", "history", *(["evict"] if ages else []))
        self.initializer = tf1.global_variables_initializer()
        self.saver = tf1.train.Saver(max_to_keep=KEPT)
        self.graph = tf1.get_default_graph()

    @classmethod
    def of_kind(cls, kind: set[str], seed: int) -> Trainer:
        """What the process of a seed trains."""
        is_fixed = "fixed" in kind or ("any" in kind and seed % 2 == 1)
        terminate_config_initializer()
        init(use_dynamic_expansion=not is_fixed)
        with tf.Graph().as_default():
            # How many updates there were is of a mode.
            return cls(is_fixed, ages="aging" in kind, counts_updates="any" not in kind)

    def open(self) -> None:
        """The session, in the process that uses it."""
        config = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
        config.graph_options.rewrite_options.disable_meta_optimizer = True  # it would take most of a process's time
        self.session = tf1.Session(graph=self.graph, config=config)

    def digest(self) -> str:
        """Of all that is saved; the same of a table that grows and of one of fixed capacity."""
        total = hashlib.sha256()
        for table, rows in zip(self.tables, self.contents):
            content = table.export(self.session)
            history = table.history(self.session)
            has_rows = history.has_row
            arrays = [content.keys, content.counts, history.keys, history.counts, history.times, has_rows]
            if rows is None:
                arrays.append(content.rows)
            else:
                arrays.append(self.session.run(rows, {self.keys: content.keys}))
            for array in arrays:
                total.update(np.ascontiguousarray(array).tobytes())
            if self.counts_updates:
                total.update(str(self._updates(table)).encode())
        total.update(self.session.run(self.dense).tobytes())
        total.update(str(self.session.run(self.global_step)).encode())
        return total.hexdigest()

    def _updates(self, table) -> int:
        """By the table's optimizer, if it counts them with fixed capacity."""
        if table.variable is None:
            return table.memory().update_count
        steps = graph_state.state_of(self.session.graph).slots[table.table_name].steps
        return 0 if steps is None else int(self.session.run(steps))

    def train(self, ids: np.ndarray) -> None:
        """One step; now and then an eviction after it."""
        step = int(self.session.run(self.global_step))
        self.session.run(self.step, {self.ids: ids, self.time: step})
        if self.ages and step % 3 == 0:
            for table in self.tables:
                table.evict(self.session)


def _rows_of_fixed(table, keys: tf.Tensor) -> tf.Tensor:
    """Rows with their slots, as a table that grows has them."""
    offsets = ops.offsets(table.handle, table.variable.handle, ops.find(table.handle, keys))
    slots = graph_state.state_of(table.handle.graph).slots[table.table_name]
    return tf.concat([tf.gather(variable, offsets) for variable in (table.variable, *slots.variables)], axis=1)


def child(directory: str, pipe: int, seed: int, trainer: Trainer) -> None:
    """Until it is killed."""
    say = os.fdopen(pipe, "w", buffering=1)
    trainer.open()
    latest = tf.train.latest_checkpoint(directory)
    if latest is None:
        trainer.session.run(trainer.initializer)
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
        trainer.train(rng.integers(0, KEYS, BATCH))
        step = int(trainer.session.run(trainer.global_step))
        print("saving", f"{directory}/model-{step}", trainer.digest(), file=say)
        if seed % 3 == 0:
            prefix = trainer.saver.save(trainer.session, f"{directory}/model", step)
        else:
            delta = bool(rng.integers(0, 4))
            prefix = save_incremental(trainer.saver, trainer.session, f"{directory}/model", step, delta=delta)
        print("done", prefix, file=say)


def run_round(
    directory: str, seed: int, trainer: Trainer, announced: dict[str, str], done: list[str], delay: float
) -> int:
    """One process from its start to its end; how many saves it finished."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_end)
            with trainer.graph.as_default():
                child(directory, write_end, seed, trainer)
        except BaseException:
            traceback.print_exc()
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
    parser.add_argument("--kind", default="growing", help="of the tables, see above")
    arguments = parser.parse_args()
    kind = set(arguments.kind.split(","))
    if not kind <= {"growing", "fixed", "any", "aging"} or len(kind - {"aging"}) > 1:
        parser.error(f"--kind must be of growing, fixed, any, and aging, got {arguments.kind!r}")
    rng = random.Random(arguments.seed)
    tf1.disable_eager_execution()
    trainers = [Trainer.of_kind(kind, arguments.seed + i) for i in range(2 if "any" in kind else 1)]
    with tempfile.TemporaryDirectory() as directory:
        announced: dict[str, str] = {}
        done: list[str] = []
        interrupted = 0
        most_files = 0
        for i in range(arguments.rounds):
            before = len(announced)
            delay = rng.uniform(0, arguments.longest)
            trainer = trainers[i % len(trainers)]
            finished = run_round(directory, arguments.seed + i, trainer, announced, done, delay)
            check_folders(directory, done)
            interrupted += len(announced) - before > finished
            most_files = max(most_files, len(os.listdir(directory)))
            if i % 50 == 49:
                sys.stdout.write(f"round {i + 1}: {len(done)} saves, {interrupted} killed while saving\n")
                sys.stdout.flush()
        sys.stdout.write(
            f"{arguments.kind}: {arguments.rounds} kills, {interrupted} of them during one of {len(announced)} saves; "
            f"every newest checkpoint held exactly what was saved; at most {most_files} files in the directory\n"
        )


if __name__ == "__main__":
    main()
