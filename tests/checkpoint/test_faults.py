"""Kills, a full disk, saves while others train, and saves that overlap."""

from __future__ import annotations

import os
import pathlib
import resource
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
from ckpt_harness import batches, build, start

from mx_rec.checkpoint import read_saved_table
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.optimizers import adagrad_by_addr
from mx_rec.saver.saver import save_incremental

tf1 = tf.compat.v1
TOOL = pathlib.Path(__file__).parents[2] / "tools" / "kill_saves.py"


@pytest.mark.parametrize("kind", ["growing", "any,aging"])
def test_kills_lose_nothing_that_was_saved(tmp_path, kind):
    """A few rounds of the tool, which has been run for hundreds."""
    ended = subprocess.run(
        [sys.executable, str(TOOL), "--rounds", "6", "--seed", "77", "--kind", kind],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{kind}: 6 kills" in ended.stdout


def test_a_full_disk_is_named_and_nothing_is_left(tmp_path):
    start(True)
    model = build(True, dim=64)
    saver = tf1.train.Saver(max_to_keep=None)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        model.train(session, range(5000))
        first = saver.save(session, str(tmp_path / "model"), 1, write_meta_graph=False)
        rows = model.read(session, range(100))
        model.train(session, [1])
        later = model.read(session, range(100))
        names = set(os.listdir(tmp_path))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
        try:
            with pytest.raises(tf.errors.ResourceExhaustedError, match="cannot write.*model-2.data-"):
                saver.save(session, str(tmp_path / "model"), 2, write_meta_graph=False)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert {name for name in os.listdir(tmp_path) if "-of-t" in name or "-of-m" in name} <= names
        np.testing.assert_array_equal(model.read(session, range(100)), later)
        saver.restore(session, first)
        np.testing.assert_array_equal(model.read(session, range(100)), rows)
        saver.save(session, str(tmp_path / "model"), 3, write_meta_graph=False)


@pytest.mark.parametrize("dynamic", [True, False], ids=["grows", "fixed"])
def test_saves_beside_training_are_of_one_instant(tmp_path, dynamic):
    """One thread adds the same to all rows at once; no save may see some of it."""
    from mx_rec.core.embedding import create_table, sparse_lookup
    from mx_rec.optimizers import gradient_descent, gradient_descent_by_addr

    start(dynamic)
    table = create_table(tf.int64, 8, "t", tf1.zeros_initializer(), device_vocabulary_size=20000)
    keys = tf.range(20000, dtype=tf.int64)
    rows = sparse_lookup(table, keys)
    read = sparse_lookup(table, keys, is_train=False)
    if dynamic:
        optimizer = gradient_descent_by_addr.create_hash_optimizer_by_addr(1.0, weight_decay=0.0)
    else:
        optimizer = gradient_descent.create_hash_optimizer(1.0)
    step = optimizer.minimize(-tf.reduce_sum(rows))
    saver = tf1.train.Saver(max_to_keep=None)
    stop = threading.Event()
    with tf1.Session() as session:
        session.run(step)

        def train():
            while not stop.is_set():
                session.run(step)

        thread = threading.Thread(target=train)
        thread.start()
        try:
            prefixes = [saver.save(session, str(tmp_path / "m"), i, write_meta_graph=False) for i in range(4)]
        finally:
            stop.set()
            thread.join()
        seen = []
        for prefix in prefixes:
            saver.restore(session, prefix)
            values = session.run(read)
            assert values.min() == values.max() > 0
            seen.append(values.max())
        assert seen == sorted(seen)


def test_saves_that_overlap_are_refused_or_whole(tmp_path):
    start(True)
    model = build(True, dim=64)
    saver = tf1.train.Saver(max_to_keep=None)
    refused = []
    saved = []
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        model.train(session, range(20000), *batches(1))
        rows = model.read(session, range(50))

        def save(i):
            try:
                saved.append(saver.save(session, str(tmp_path / f"m{i}"), write_meta_graph=False, write_state=False))
            except tf.errors.FailedPreconditionError as error:
                refused.append(str(error))

        threads = [threading.Thread(target=save, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert saved and len(saved) + len(refused) == 4
        assert all("'user'" in message and str(tmp_path) in message for message in refused)
        for prefix in saved:
            model.train(session, [3])
            saver.restore(session, prefix)
            np.testing.assert_array_equal(model.read(session, range(50)), rows)


def test_tables_that_are_saved_together_keep_each_others_files(tmp_path):
    """Each removes files of saves that nobody will complete, while the others' are not complete yet."""
    start(True)
    ids = tf1.placeholder(tf.int64, [None])
    tables = [create_table(tf.int64, 4, f"t{number}", tf1.zeros_initializer()) for number in range(6)]
    loss = tf.add_n([tf.reduce_sum(sparse_lookup(table, ids)) for table in tables])
    gradients = tf.gradients(loss, tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB))
    addresses = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
    optimizer = adagrad_by_addr.create_hash_optimizer_by_address(0.1)
    step = optimizer.apply_gradients(list(zip(gradients, addresses)))
    saver = tf1.train.Saver(max_to_keep=3)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for number in range(150):
            session.run(step, {ids: np.arange(number % 7, 30)})
            prefix = save_incremental(
                saver, session, f"{tmp_path}/m", number, delta=number % 8 > 0, write_meta_graph=False
            )
            for table in tables:
                files = read_saved_table(prefix, table.table_name).files
                assert all((tmp_path / (os.path.basename(prefix) + file.suffix)).exists() for file in files)
