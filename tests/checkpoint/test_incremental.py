"""Full checkpoints and deltas: from scripts, by the hook, with faults, with admission and eviction."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from ckpt_harness import OPTIMIZERS, batches, build, start

from mx_rec import ops
from mx_rec.checkpoint import read_saved_table
from mx_rec.checkpoint.merge import merge_checkpoint
from mx_rec.checkpoint.versions import checkpoint_to_restore, versions
from mx_rec.constants.constants import ASCEND_TIMESTAMP
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.core.feature_process import EvictHook, evict, set_threshold
from mx_rec.core.imported import state_with_tables
from mx_rec.core.saveable import SAVEABLE_OBJECTS, SavedParts, TableSaveable
from mx_rec.errors import CheckpointError
from mx_rec.saver.saver import (
    IncrementalCheckpointHook,
    IncrementalSaver,
    Saver,
    SaveSchedule,
    save_incremental,
)

tf1 = tf.compat.v1
KEYS = range(-60, 200)
MODES = [True, False]
mode_ids = ["grows", "fixed"]


class Clock:
    """Seconds that a test moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _restored(prefix, dynamic):
    """Rows of a checkpoint in a fresh graph, for all KEYS."""
    start(dynamic)
    with tf.Graph().as_default():
        model = build(dynamic)
        with tf1.Session() as session:
            tf1.train.Saver().restore(session, prefix)
            return model.read(session, KEYS), session.run(model.dense), model.table.size(session)


def _chain(directory, dynamic, saves=4, **init_arguments):
    """A base and deltas; (prefix, rows, dense, size) each."""
    start(dynamic, **init_arguments)
    states = []
    with tf.Graph().as_default():
        model = build(dynamic)
        saver = tf1.train.Saver(max_to_keep=None)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            model.train(session, range(-50, 50))
            for i in range(saves):
                model.train(session, [i, 100 + i, 100 + i])
                prefix = save_incremental(saver, session, str(directory / "model.ckpt"), model.global_step, delta=i > 0)
                states.append((prefix, model.read(session, KEYS), session.run(model.dense), model.table.size(session)))
    return states


@pytest.mark.parametrize("dynamic", MODES, ids=mode_ids)
def test_every_delta_restores_the_state_of_its_save(tmp_path, dynamic):
    states = _chain(tmp_path, dynamic)
    kinds = [(read_saved_table(prefix, "user").manifest.is_delta, len(read_saved_table(prefix, "user").files))
             for prefix, *_ in states]  # fmt: skip
    assert kinds == [(False, 1), (True, 2), (True, 3), (True, 4)]
    assert [read_saved_table(prefix, "user").manifest.rows for prefix, *_ in states] == [101, 2, 2, 2]
    for mode in (dynamic, not dynamic):
        for prefix, rows, dense, size in states:
            restored = _restored(prefix, mode)
            np.testing.assert_array_equal(restored[0], rows)
            np.testing.assert_array_equal(restored[1], dense)
            assert restored[2] == size


def test_a_delta_outlives_what_it_builds_on(tmp_path):
    """Under the file-deletion of TensorFlow, and by itself in another directory."""
    states = _chain(tmp_path, True)
    for prefix, *_ in states[:-1]:
        tf1.train.remove_checkpoint(prefix)
    prefix, rows, _, _ = states[-1]
    (tmp_path / "moved").mkdir()
    for name in os.listdir(tmp_path):
        if name.startswith(os.path.basename(prefix) + "."):
            shutil.copy(tmp_path / name, tmp_path / "moved" / name)
    np.testing.assert_array_equal(_restored(str(tmp_path / "moved" / os.path.basename(prefix)), True)[0], rows)
    for name in os.listdir(tmp_path):
        # Folders that name tables go with the next save.
        is_known = os.path.basename(prefix) in name or name in ("checkpoint", "moved") or "sparse-" in name
        assert is_known, name


def test_the_wanted_version_and_a_damaged_one(tmp_path):
    states = _chain(tmp_path, True)
    steps = [each.step for each in versions(str(tmp_path))]
    assert steps == [2, 3, 4, 5]
    directory = str(tmp_path)
    assert checkpoint_to_restore(directory) == states[-1][0]
    assert checkpoint_to_restore(directory, 4) == states[2][0]
    assert checkpoint_to_restore(directory, 1000) == states[-1][0]
    with pytest.raises(ValueError, match="at or before step 1; steps there: 2, 3, 4, 5"):
        checkpoint_to_restore(directory, 1)
    # One byte of the delta of step 4, which step 5 builds on too.
    delta = read_saved_table(states[2][0], "user").files[-1]
    path = states[2][0] + delta.suffix
    with open(path, "r+b") as stream:
        stream.seek(200)
        byte = stream.read(1)
        stream.seek(200)
        stream.write(bytes([byte[0] ^ 1]))
    with pytest.raises(CheckpointError, match=rf"{delta.suffix}.*the newest one that is whole is '{states[1][0]}'"):
        checkpoint_to_restore(directory)
    assert checkpoint_to_restore(directory, 3) == states[1][0]
    start(True)
    with tf.Graph().as_default():
        model = build(True)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            model.train(session, [1, 2])
            with pytest.raises(tf.errors.DataLossError, match=delta.suffix):
                tf1.train.Saver().restore(session, states[3][0])
            assert model.table.size(session) == 2
            os.unlink(states[1][0] + read_saved_table(states[1][0], "user").files[0].suffix)
            with pytest.raises(tf.errors.DataLossError, match="missing"):
                tf1.train.Saver().restore(session, states[1][0])


@pytest.mark.parametrize("dynamic", MODES, ids=mode_ids)
def test_rarely_met_keys_wait_for_a_later_delta(tmp_path, dynamic):
    start(dynamic, recent_key_count_threshold=3)
    model = build(dynamic)
    saver = tf1.train.Saver()
    path = str(tmp_path / "model")
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        model.train(session, range(10))
        save_incremental(saver, session, path, 1, delta=False)
        model.train(session, [1, 1, 1, 2, 2])
        prefix = save_incremental(saver, session, path, 2, delta=True)
        assert read_saved_table(prefix, "user").manifest.rows == 1
        model.train(session, [2, 3])
        prefix = save_incremental(saver, session, path, 3, delta=True)
        table = read_saved_table(prefix, "user")
        (block,) = list(table.open_files()[-1].blocks(["rows"]))
        assert block.columns["keys"].tolist() == [2]


def test_a_failed_save_leaves_its_changes_to_the_next_delta(tmp_path):
    start(True)
    model = build(True)
    saver = tf1.train.Saver()
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        model.train(session, range(10))
        save_incremental(saver, session, str(tmp_path / "model"), 1, delta=False)
        model.train(session, [1])
        with pytest.raises(ValueError, match="Parent directory"):
            save_incremental(saver, session, str(tmp_path / "no" / "model" / "x"), 2, delta=True)
        model.train(session, [2])
        prefix = save_incremental(saver, session, str(tmp_path / "model"), 3, delta=True)
        assert read_saved_table(prefix, "user").manifest.rows == 2
        rows = model.read(session, KEYS)
    np.testing.assert_array_equal(_restored(prefix, True)[0], rows)


def test_plain_saves_and_restores_in_between(tmp_path):
    start(True)
    model = build(True)
    saver = Saver(max_to_keep=10)
    path = str(tmp_path / "model")
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        model.train(session, range(10))
        saver.save(session, path, 1, is_incremental_checkpoint=True)
        model.train(session, [1])
        plain = saver.save(session, path, 2)
        prefix = saver.save(session, path, 3, is_incremental_checkpoint=True, save_delta=True)
        assert read_saved_table(prefix, "user").manifest.rows == 1
        saver.restore(session, plain)
        again = saver.save(session, path, global_step=4, is_incremental_checkpoint=True, save_delta=True)
        assert not read_saved_table(again, "user").manifest.is_delta
        with pytest.raises(ValueError, match="needs is_incremental_checkpoint"):
            saver.save(session, path, save_delta=True)


def test_a_step_may_be_whatever_tensorflows_saver_takes(tmp_path):
    start(True, is_incremental_checkpoint=True, save_checkpoint_due_time=100, save_delta_checkpoints_secs=10)
    model = build(True)
    saver, scheduled = tf1.train.Saver(), IncrementalSaver(str(tmp_path / "scheduled"))
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        model.train(session, [1])
        steps = (7, np.int64(8), np.int32(9), np.array([10])[0], session.run(model.global_step), model.global_step)
        for step, number in zip((*steps, model.global_step + 1), (7, 8, 9, 10, 1, 1, 2)):
            for prefix in (
                save_incremental(saver, session, str(tmp_path / "model"), step, delta=False),
                Saver().save(session, str(tmp_path / "model"), step, is_incremental_checkpoint=True),
                scheduled.save(session, step),
            ):
                assert prefix.endswith(f"-{number}")
                assert read_saved_table(prefix, "user").manifest.size == 1


def test_when_both_are_due_full_wins():
    clock = Clock()
    schedule = SaveSchedule(10, 3, clock)
    assert schedule.is_due() and schedule.full_is_due()
    schedule.saved(full=True)
    due = []
    for second in range(1, 26):
        clock.now = float(second)
        if schedule.is_due():
            full = schedule.full_is_due()
            due.append((second, "full" if full else "delta"))
            schedule.saved(full)
    assert due == [(3, "delta"), (6, "delta"), (9, "delta"), (10, "full"), (13, "delta"), (16, "delta"),
                   (19, "delta"), (20, "full"), (23, "delta")]  # fmt: skip
    with pytest.raises(ValueError, match="save_delta_checkpoints_secs"):
        SaveSchedule(10, 0)


def test_a_script_saves_on_schedule(tmp_path):
    start(True, is_incremental_checkpoint=True, save_checkpoint_due_time=100, save_delta_checkpoints_secs=10)
    model = build(True)
    clock = Clock()
    saver = IncrementalSaver(str(tmp_path / "model.ckpt"), schedule=SaveSchedule(100, 10, clock))
    saved = []
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for second in range(0, 111, 5):
            clock.now = float(second)
            model.train(session, [second])
            prefix = saver.save_if_due(session, model.global_step)
            if prefix is not None:
                saved.append((second, read_saved_table(prefix, "user").manifest.is_delta))
    assert saved == [(0, False), *((second, True) for second in range(10, 100, 10)), (100, False), (110, True)]
    start(True)
    with pytest.raises(ValueError, match="is_incremental_checkpoint=True"):
        IncrementalSaver("x")


@pytest.mark.parametrize("dynamic", MODES, ids=mode_ids)
def test_the_hook_in_a_monitored_session(tmp_path, dynamic):
    arguments = dict(is_incremental_checkpoint=True, save_checkpoint_due_time=1000, save_delta_checkpoints_secs=1)

    def run(steps, **more):
        start(dynamic, **arguments, **more)
        with tf.Graph().as_default():
            model = build(dynamic)
            hook = IncrementalCheckpointHook(str(tmp_path))
            with tf1.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path), hooks=[hook], save_checkpoint_secs=None, save_summaries_steps=None
            ) as session:
                before = session.run([model.global_step, model.rows], {model.ids: list(KEYS)})
                for batch in batches(3, steps):
                    session.run(model.step, {model.ids: batch})
                return before, session.run(model.rows, {model.ids: list(KEYS)})

    (step, _), after = run(3)
    assert step == 0
    found = versions(str(tmp_path))
    assert [each.step for each in found] == [0, 3]
    assert [read_saved_table(each.prefix, "user").manifest.is_delta for each in found] == [False, True]
    (step, rows), _ = run(2)
    assert step == 3
    np.testing.assert_array_equal(rows, after)
    (step, rows), _ = run(1, restore_model_version=4)
    assert step == 3
    np.testing.assert_array_equal(rows, after)


def test_the_hook_in_an_estimator(tmp_path):
    """`train`, then `predict` and `train_and_evaluate`, whose evaluations restore deltas."""
    estimator_module = getattr(tf1, "estimator", None)
    if estimator_module is None:
        pytest.skip("this TensorFlow has no Estimator")
    start(True, is_incremental_checkpoint=True, save_checkpoint_due_time=1000, save_delta_checkpoints_secs=1)

    def input_fn():
        return tf1.data.Dataset.from_tensor_slices(np.arange(40, dtype=np.int64)).repeat().batch(8)

    def model_fn(features, labels, mode):
        from mx_rec.core.embedding import create_table, sparse_lookup
        from mx_rec.optimizers.lazy_adam_by_addr import create_hash_optimizer_by_address

        train = mode == estimator_module.ModeKeys.TRAIN
        table = create_table(tf.int64, 4, "user", tf1.random_normal_initializer(0.0, 0.3, seed=5))
        rows = sparse_lookup(table, features, is_train=train)
        loss = tf.reduce_mean(tf.square(rows))
        step = tf1.train.get_global_step()
        if not train:
            return estimator_module.EstimatorSpec(mode, predictions={"rows": rows}, loss=loss)
        update = tf.group(create_hash_optimizer_by_address(0.1).minimize(loss), tf1.assign_add(step, 1))
        return estimator_module.EstimatorSpec(mode, loss=loss, train_op=update)

    estimator = estimator_module.Estimator(model_fn, model_dir=str(tmp_path))
    hooks = [IncrementalCheckpointHook(str(tmp_path))]
    estimator.train(input_fn, hooks=hooks, steps=5)
    assert [each.step for each in versions(str(tmp_path))] == [0, 5]
    predictions = [next(iter(estimator.predict(input_fn)))["rows"]]
    first = estimator.evaluate(input_fn, steps=5)
    assert np.abs(predictions[0]).sum() > 0
    result = estimator_module.train_and_evaluate(
        estimator,
        estimator_module.TrainSpec(input_fn, max_steps=10, hooks=[IncrementalCheckpointHook(str(tmp_path))]),
        estimator_module.EvalSpec(input_fn, steps=5, start_delay_secs=0, throttle_secs=0),
    )
    assert result[0]["loss"] < first["loss"]
    assert versions(str(tmp_path))[-1].step == 10
    assert read_saved_table(versions(str(tmp_path))[-1].prefix, "user").manifest.is_delta


class _Counted:
    """A table with admission and eviction, through the ops."""

    def __init__(self, **kwargs) -> None:
        settings = {"access_threshold": 3, "eviction_threshold": 5, **kwargs}
        self.handle = ops.table_handle("user", 4, record_counts=True, **settings)
        self.keys, self.times = tf1.placeholder(tf.int64, [None]), tf1.placeholder(tf.int64, [None])
        self.addresses = ops.find_or_insert(self.handle, self.keys, timestamps=self.times)
        self.update = ops.apply_adagrad_by_address(self.handle, self.addresses, tf.ones([tf.size(self.keys), 4]), 0.1)
        self.history = ops.table_history(self.handle)
        self.content = ops.table_export(self.handle)
        self.evict = ops.evict(self.handle, 5)
        parts = SavedParts("user", "int64", 0, self.handle.name)
        graph = self.handle.graph
        graph.add_to_collection(SAVEABLE_OBJECTS, TableSaveable(graph, parts))

    def see(self, session, keys, time) -> None:
        session.run(self.update, {self.keys: keys, self.times: [time] * len(keys)})

    def state(self, session) -> list:
        return [*session.run(self.history), *session.run(self.content)]


def test_deltas_with_admission_and_eviction(tmp_path):
    """Counts, times, keys that wait for admission, and evicted ones: each delta restores all of it."""
    start(True)
    table = _Counted()
    saver = tf1.train.Saver(max_to_keep=None)
    rng = np.random.default_rng(4)
    states = []
    with tf1.Session() as session:
        for i in range(12):
            for _ in range(3):
                table.see(session, rng.permutation(60)[:20].tolist(), 100 + 2 * i)
            if i % 4 == 3:
                table.see(session, [1000 + i] * 1, 107 + 2 * i)
                session.run(table.evict)
            prefix = save_incremental(saver, session, str(tmp_path / "model"), i, delta=i not in (0, 6))
            states.append((prefix, table.state(session)))
        evicted = [read_saved_table(prefix, "user").manifest.evicted for prefix, _ in states]
        assert sum(evicted) > 10
        # In place, and in a fresh session.
        for prefix, state in states:
            with tf1.Session() as fresh:
                for each in (session, fresh):
                    saver.restore(each, prefix)
                    for ours, theirs in zip(table.state(each), state):
                        np.testing.assert_array_equal(ours, theirs)
        # Written anew without deltas: the same again.
        prefix, state = states[5]
        merged = merge_checkpoint(prefix, str(tmp_path / "merged"))
        assert len(merged["user"].files) == 1
        saver.restore(session, str(tmp_path / "merged"))
        for ours, theirs in zip(table.state(session), state):
            np.testing.assert_array_equal(ours, theirs)


def test_settings_of_now_win_and_times_may_begin_later(tmp_path):
    start(True)
    table = _Counted()
    saver = tf1.train.Saver()
    with tf1.Session() as session:
        table.see(session, [1, 2, 3], 100)
        table.see(session, [1, 2], 101)
        table.see(session, [1], 102)
        prefix = saver.save(session, str(tmp_path / "model"))
    with tf.Graph().as_default():
        other = _Counted(access_threshold=2)
        with tf1.Session() as session:
            tf1.train.Saver().restore(session, prefix)
            # 1 is admitted, 2 has the count that is enough now.
            np.testing.assert_array_equal(session.run(other.history).has_row, [True, False, False])
            other.see(session, [2], 103)
            np.testing.assert_array_equal(session.run(other.history).has_row, [True, True, False])
    with tf.Graph().as_default():
        untimed = _Counted(eviction_threshold=-1)
        with tf1.Session() as session:
            for _ in range(3):
                untimed.see(session, [1, 2], 0)
            prefix = tf1.train.Saver().save(session, str(tmp_path / "untimed"))
    with tf.Graph().as_default():
        timed = _Counted()
        with tf1.Session() as session:
            tf1.train.Saver().restore(session, prefix)
            timed.see(session, [1], 1000)
            assert session.run(timed.evict).keys == 0
            timed.see(session, [1], 1004)
            assert session.run(timed.evict).keys == 0
            timed.see(session, [1], 1005)
            assert session.run(timed.evict).keys == 1  # 2 has aged from the first eviction on


def test_a_table_of_fixed_capacity_may_evict(tmp_path):
    """Offsets with gaps are saved by key."""
    start(False)
    handle = ops.table_handle("user", 4, fixed_capacity=50, record_times=True)
    rows = tf1.Variable(lambda: ops.fresh_rows(handle, 50, 4), collections=[], shape=[50, 4], use_resource=True)
    keys, times = tf1.placeholder(tf.int64, [None]), tf1.placeholder(tf.int64, [None])
    offsets = ops.offsets(handle, rows.handle, ops.find_or_insert(handle, keys, timestamps=times))
    fill = tf1.scatter_update(rows, offsets, tf.cast(tf.tile(tf.expand_dims(keys, 1), [1, 4]), tf.float32))
    read = tf.gather(rows, ops.offsets(handle, rows.handle, ops.find(handle, keys)))
    evict = ops.evict(handle, 1)
    graph = handle.graph
    parts = SavedParts("user", "int64", 0, handle.name, (rows.handle.name,))
    graph.add_to_collection(SAVEABLE_OBJECTS, TableSaveable(graph, parts))
    saver = tf1.train.Saver()
    with tf1.Session() as session:
        session.run(fill, {keys: range(30), times: [1]})
        session.run(fill, {keys: range(10, 20), times: [5]})
        session.run(evict)
        prefix = save_incremental(saver, session, str(tmp_path / "model"), 1, delta=False)
        session.run(fill, {keys: [77], times: [6]})
        session.run(evict)
        delta = save_incremental(saver, session, str(tmp_path / "model"), 2, delta=True)
    table = read_saved_table(delta, "user")
    assert (table.manifest.rows, table.manifest.evicted, table.manifest.size) == (1, 10, 1)
    with tf1.Session() as session:
        saver.restore(session, prefix)
        expected = np.repeat(np.arange(10, 20, dtype=np.float32)[:, None], 4, axis=1)
        np.testing.assert_array_equal(session.run(read, {keys: range(10, 20)}), expected)
        saver.restore(session, delta)
        np.testing.assert_array_equal(session.run(read, {keys: [77]}), np.full([1, 4], 77.0))
        assert session.run(ops.table_size(handle)) == 1


def _admitting(dynamic):
    """A table whose keys need two occurrences and go after 10 seconds."""
    table = create_table(tf.int64, 4, "user", tf1.zeros_initializer(), device_vocabulary_size=100)
    ids, now = tf1.placeholder(tf.int64, [None], "ids"), tf1.placeholder(tf.int64, [], "now")
    tf1.add_to_collection(ASCEND_TIMESTAMP, now)
    config = {"access_threshold": 2, "eviction_threshold": 10}
    rows = sparse_lookup(table, ids, name="train", access_and_evict_config=config)
    optimizer = OPTIMIZERS["lazy_adam"][int(dynamic)](0.1)
    tf.group(
        optimizer.minimize(tf.reduce_sum(rows)), tf1.assign_add(tf1.train.get_or_create_global_step(), 1), name="step"
    )
    return table


@pytest.mark.parametrize("scope", [None, "in"])
@pytest.mark.parametrize("dynamic", MODES, ids=mode_ids)
def test_an_imported_graph_evicts_and_takes_thresholds(tmp_path, dynamic, scope):
    start(dynamic)
    with tf.Graph().as_default(), tf1.Session() as session:
        _admitting(dynamic)
        saver = tf1.train.Saver()
        session.run(tf1.global_variables_initializer())
        session.run("step", {"ids:0": [1, 1, 2, 2, 3], "now:0": 1000})
        prefix = saver.save(session, str(tmp_path / "model"), 1)
    start(dynamic)
    with tf.Graph().as_default() as graph:
        saver = tf1.train.import_meta_graph(prefix + ".meta", import_scope=scope)
        within = f"{scope}/" if scope else ""
        with pytest.raises(ValueError, match="no table 'usr'; it has 'user'"):
            set_threshold([1], emb_name="usr")
        with pytest.raises(ValueError, match="no lookup 'trains' of table 'user'; there are 'train'"):
            set_threshold([1], emb_name="user", ids_name="trains")
        change = set_threshold([1], emb_name="user", ids_name="train")
        hook = EvictHook(True, evict_step_interval=2)
        if scope is None:
            hook.begin()
        nodes = len(graph.get_operations())
        with tf1.Session() as session:
            saver.restore(session, prefix)
            session.run(f"{within}step", {f"{within}ids:0": [1, 3], f"{within}now:0": 1030})
            with pytest.raises(ValueError, match="no table 'usr'; it has 'user'"):
                evict(session, ["usr"])
            assert evict(session) == {"user": 1}
            assert session.run(change) == 1
            session.run(f"{within}step", {f"{within}ids:0": [9], f"{within}now:0": 1031})
            assert session.run(f"{within}mx_rec/user/evict:0") == 0
            assert len(graph.get_operations()) == nodes
            assert state_with_tables(graph).tables["user"].size(session) == 3


@pytest.mark.parametrize("dynamic", MODES, ids=mode_ids)
def test_the_evict_hook_in_an_imported_graph(tmp_path, dynamic):
    start(dynamic)
    with tf.Graph().as_default(), tf1.Session() as session:
        _admitting(dynamic)
        saver = tf1.train.Saver()
        session.run(tf1.global_variables_initializer())
        session.run("step", {"ids:0": [1, 1, 2, 2], "now:0": 1000})
        prefix = saver.save(session, str(tmp_path / "model"), 1)
    start(dynamic)
    with tf.Graph().as_default() as graph:
        saver = tf1.train.import_meta_graph(prefix + ".meta")
        scaffold = tf1.train.Scaffold(saver=saver, ready_op=tf.constant([], tf.string))
        size = ops.table_size(graph.get_tensor_by_name("mx_rec/user/handle:0"))
        with tf1.train.MonitoredSession(
            tf1.train.ChiefSessionCreator(scaffold, checkpoint_filename_with_path=prefix),
            [EvictHook(True, evict_step_interval=4)],
        ) as session:
            sizes = []
            for now in (1020, 1021, 1022, 1023):
                session.run("step", {"ids:0": [1], "now:0": now})
                sizes.append(int(session.run(size, {"ids:0": [1], "now:0": now})))
    assert sizes == [2, 2, 1, 1]  # after step 4
