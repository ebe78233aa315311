"""Tables through an unpatched `tf.compat.v1.train.Saver`."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from ckpt_harness import DIM, OPTIMIZERS, Model, batches, build, start

from mx_rec import ops
from mx_rec.checkpoint import read_saved_table, write_saved_table
from mx_rec.checkpoint.saved_tables import read_saved_tables
from mx_rec.core import graph_state
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.core.saveable import restore_op, table_saveables
from mx_rec.optimizers import gradient_descent_by_addr

tf1 = tf.compat.v1
KEYS = range(-25, 26)
MODES = [True, False]
mode_ids = ["grows", "fixed"]


def _saved(tmp_path, dynamic, optimizer="lazy_adam", sharded=False, **kwargs):
    """A checkpoint after some steps; (prefix, rows then, rows after more steps)."""
    start(dynamic)
    with tf.Graph().as_default():
        model = build(dynamic, optimizer, **kwargs)
        saver = tf1.train.Saver(sharded=sharded)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            model.train(session, *batches(1))
            prefix = saver.save(session, str(tmp_path / "model"), global_step=model.global_step)
            rows = model.read(session, KEYS)
            model.train(session, *batches(2))
            return prefix, rows, model.read(session, KEYS)


@pytest.mark.parametrize("sharded", [False, True], ids=["one_file", "sharded"])
@pytest.mark.parametrize("dynamic", MODES, ids=mode_ids)
def test_a_fresh_graph_goes_on_as_the_old_one_would_have(tmp_path, dynamic, sharded):
    prefix, rows, later = _saved(tmp_path, dynamic, sharded=sharded)
    for initialize_first in (False, True):
        start(dynamic)
        with tf.Graph().as_default():
            model = build(dynamic)
            saver = tf1.train.Saver(sharded=sharded)
            with tf1.Session() as session:
                if initialize_first:
                    session.run(tf1.global_variables_initializer())
                    model.train(session, *batches(9))
                saver.restore(session, prefix)
                np.testing.assert_array_equal(model.read(session, KEYS), rows)
                assert session.run(model.global_step) == 3
                model.train(session, *batches(2))
                np.testing.assert_array_equal(model.read(session, KEYS), later)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (False, False)])
def test_modes_and_capacities_may_change(tmp_path, optimizer, first, second):
    """Slots and steps go along: training goes on alike, up to the rounding of two implementations."""
    prefix, rows, later = _saved(tmp_path, first, optimizer, capacity=60)
    for capacity in (51, 5000):
        start(second)
        with tf.Graph().as_default():
            model = build(second, optimizer, capacity=capacity)
            with tf1.Session() as session:
                tf1.train.Saver().restore(session, prefix)
                np.testing.assert_array_equal(model.read(session, KEYS), rows)
                model.train(session, *batches(2))
                np.testing.assert_allclose(model.read(session, KEYS), later, rtol=1e-4, atol=1e-5)
                if first == second:
                    np.testing.assert_array_equal(model.read(session, KEYS), later)


def test_new_keys_after_a_restore_have_fresh_slots(tmp_path):
    """Their rows of the variables held other keys before."""
    prefix, rows, _ = _saved(tmp_path, False)
    start(False)
    with tf.Graph().as_default():
        model = build(False)
        fresh = np.arange(1000, 1040)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            model.train(session, fresh)
            expected = model.read(session, fresh)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            model.train(session, np.arange(500), np.arange(500))
            tf1.train.Saver().restore(session, prefix)
            assert model.table.size(session) < 500
            # The step count goes along, so compare slots by training without one.
            slots = graph_state.state_of(model.ids.graph).slots["user"]
            session.run(slots.steps.initializer)
            session.run(model.dense.initializer)
            model.train(session, fresh)
            np.testing.assert_array_equal(model.read(session, fresh), expected)


@pytest.mark.parametrize("dynamic", MODES, ids=mode_ids)
def test_import_meta_graph_in_a_fresh_process(tmp_path, dynamic):
    """With the Saver of the file, and with a new one."""
    prefix, rows, _ = _saved(tmp_path, dynamic)
    np.save(tmp_path / "rows.npy", rows)
    code = f"""
import numpy as np, tensorflow as tf
tf1 = tf.compat.v1
tf1.disable_eager_execution()
from mx_rec.util.initialize import init
init()
rows = np.load({str(tmp_path / "rows.npy")!r})
saver = tf1.train.import_meta_graph({prefix!r} + ".meta")
for each in (saver, tf1.train.Saver()):
    with tf1.Session() as session:
        each.restore(session, {prefix!r})
        read = session.run("mx_rec/user/eval_user/embeddings:0", {{"ids_user:0": list(range(-25, 26))}})
        np.testing.assert_array_equal(read, rows)
        session.run("step_user", {{"ids_user:0": [1, 2]}})
        again = each.save(session, {str(tmp_path / "again")!r})
        each.restore(session, again)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_import_into_a_scope(tmp_path):
    prefix, rows, _ = _saved(tmp_path, True)
    with tf.Graph().as_default() as graph:
        saver = tf1.train.import_meta_graph(prefix + ".meta", import_scope="in")
        with tf1.Session() as session:
            saver.restore(session, prefix)
            read = session.run("in/mx_rec/user/eval_user/embeddings:0", {"in/ids_user:0": list(KEYS)})
            np.testing.assert_array_equal(read, rows)
        assert [saveable.parts.handle for saveable in table_saveables(graph)] == ["in/mx_rec/user/handle:0"]


@pytest.mark.parametrize("dynamic", MODES, ids=mode_ids)
def test_max_to_keep_deletes_our_files_too(tmp_path, dynamic):
    start(dynamic)
    model = build(dynamic)
    saver = tf1.train.Saver(max_to_keep=2)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for step in range(5):
            model.train(session, [step])
            prefix = saver.save(session, str(tmp_path / "model"), global_step=step)
        names = sorted(name for name in os.listdir(tmp_path) if "sparse-" not in name)
        assert {name.split(".")[0] for name in names} == {"checkpoint", "model-3", "model-4"}
        assert sum("-of-m" in name for name in names) == 2
        saver.restore(session, prefix)


def test_is_save_false_leaves_a_table_out(tmp_path):
    start(True)
    kept, left = build(True, name="kept"), build(True, name="left", is_save=False)
    saver = tf1.train.Saver()
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        kept.train(session, [1, 2])
        left.train(session, [1, 2])
        prefix = saver.save(session, str(tmp_path / "model"))
        left.train(session, [3])
        kept.train(session, [3])
        saver.restore(session, prefix)
        assert (kept.table.size(session), left.table.size(session)) == (2, 3)
    assert list(read_saved_tables(prefix)) == ["kept"]


def test_tables_have_files_of_their_own(tmp_path):
    start(True)
    models = [build(True, name=f"table.{i}") for i in range(3)]
    saver = tf1.train.Saver()
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for i, model in enumerate(models):
            model.train(session, range(i + 1))
        prefix = saver.save(session, str(tmp_path / "model"))
        for model in models:
            model.train(session, range(100))
        saver.restore(session, prefix)
        assert [model.table.size(session) for model in models] == [1, 2, 3]


def test_a_saver_with_a_var_list_and_one_in_a_scope(tmp_path):
    start(True)
    model = build(True)
    with tf1.name_scope("outer"):
        saver = tf1.train.Saver(name="mine")
    dense_only = tf1.train.Saver([model.dense])
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        model.train(session, [1])
        prefix = saver.save(session, str(tmp_path / "all"))
        dense_only.save(session, str(tmp_path / "dense"))
        saver.restore(session, prefix)
    assert not any("dense.data" in name and "-of-m" in name for name in os.listdir(tmp_path))


@pytest.mark.parametrize("dynamic", MODES, ids=mode_ids)
def test_mismatches_are_refused_by_name(tmp_path, dynamic):
    prefix, _, _ = _saved(tmp_path, dynamic)
    start(dynamic)
    with tf.Graph().as_default():
        model = build(dynamic, dim=DIM + 1, name="user")
        with (
            tf1.Session() as session,
            pytest.raises(tf.errors.InvalidArgumentError, match="'user'.*dim 4, expected dim 5"),
        ):
            _restore_table(session, model, prefix)
    start(dynamic)
    with tf.Graph().as_default():
        table = create_table(tf.int32, DIM, "user", tf1.zeros_initializer(), device_vocabulary_size=100)
        sparse_lookup(table, tf.constant([1]))
        with (
            tf1.Session() as session,
            pytest.raises(tf.errors.InvalidArgumentError, match="key_dtype int64, expected int32"),
        ):
            tf1.train.Saver().restore(session, prefix)


def _restore_table(session, model: Model, prefix: str, name: str = "user", **kwargs) -> None:
    """As a warm start does."""
    saved = read_saved_table(prefix, name)
    graph = model.ids.graph
    (saveable,) = [each for each in table_saveables(graph) if each.parts.table_name == model.table.table_name]
    session.run(restore_op(graph, saveable.parts, tf.constant(prefix), tf.constant(saved.text), **kwargs))


@pytest.mark.parametrize("dynamic", MODES, ids=mode_ids)
def test_one_table_of_another_name_with_and_without_slots(tmp_path, dynamic):
    prefix, rows, later = _saved(tmp_path, dynamic)
    start(dynamic)
    with tf.Graph().as_default():
        model = build(dynamic, name="other")
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            _restore_table(session, model, prefix)
            np.testing.assert_array_equal(model.read(session, KEYS), rows)
    start(dynamic)
    with tf.Graph().as_default():
        model = build(dynamic, "adagrad", name="other")
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            model.train(session, [1, 2, 3])
            with pytest.raises(tf.errors.InvalidArgumentError, match="slots of LazyAdam.*slots of Adagrad"):
                _restore_table(session, model, prefix)
            assert model.table.size(session) == 3
            _restore_table(session, model, prefix, with_slots=False)
            np.testing.assert_array_equal(model.read(session, KEYS), rows)
            model.train(session, *batches(2))


OTHER_SLOTS = "'user'.*slots of LazyAdam.*trained here with slots of Adagrad.*warm start"


def test_slots_of_another_optimizer_are_refused_before_the_first_step(tmp_path):
    prefix, rows, _ = _saved(tmp_path, True)
    start(True)
    with tf.Graph().as_default():
        model = build(True, "adagrad")
        saver = tf1.train.Saver()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            with pytest.raises(tf.errors.InvalidArgumentError, match=OTHER_SLOTS):
                saver.restore(session, prefix)
            assert model.table.size(session) == 0
            _restore_table(session, model, prefix, with_slots=False)
            np.testing.assert_array_equal(model.read(session, KEYS), rows)
            model.train(session, *batches(2))
            again = saver.save(session, str(tmp_path / "adagrad"))
            saver.restore(session, again)
    # The file of a graph knows it too.
    start(True)
    with tf.Graph().as_default():
        of_file = tf1.train.import_meta_graph(again + ".meta")
        for each in (of_file, tf1.train.Saver()):
            with tf1.Session() as session:
                with pytest.raises(tf.errors.InvalidArgumentError, match=OTHER_SLOTS):
                    each.restore(session, prefix)
                each.restore(session, again)


def _two_steps(optimizers):
    """A graph whose Saver is made before its optimizers; (Saver, evaluated rows, ids, steps)."""
    table = create_table(tf.int64, DIM, "user", tf1.zeros_initializer())
    ids = tf1.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(tf.square(sparse_lookup(table, ids)))
    read = sparse_lookup(table, ids, is_train=False)
    saver = tf1.train.Saver()
    return saver, read, ids, [OPTIMIZERS[name][1](0.1).minimize(loss) for name in optimizers]


@pytest.mark.parametrize(
    ("optimizers", "refused"),
    [((), False), (("lazy_adam",), False), (("adagrad",), True), (("adagrad", "lazy_adam"), False)],
    ids=["none", "same", "other", "several"],
)
def test_an_optimizer_that_comes_after_the_saver_counts(tmp_path, optimizers, refused):
    prefix, rows, _ = _saved(tmp_path, True)
    start(True)
    with tf.Graph().as_default():
        # TensorFlow's variables of that checkpoint are not here, and are not asked for.
        saver, read, ids, _ = _two_steps(optimizers)
        with tf1.Session() as session:
            if refused:
                with pytest.raises(tf.errors.InvalidArgumentError, match=OTHER_SLOTS):
                    saver.restore(session, prefix)
                return
            saver.restore(session, prefix)
            np.testing.assert_array_equal(session.run(read, {ids: list(KEYS)}), rows)


def test_an_optimizer_that_comes_after_the_first_run_is_told_by_its_step(tmp_path):
    prefix, _, _ = _saved(tmp_path, True)
    start(True)
    with tf.Graph().as_default():
        saver, read, ids, _ = _two_steps(())
        with tf1.Session() as session:
            saver.restore(session, prefix)
            # Another lookup, for the optimizer.
            table = graph_state.state_of(ids.graph).tables["user"]
            loss = tf.reduce_sum(sparse_lookup(table, ids, name="late"))
            step = OPTIMIZERS["adagrad"][1](0.1).minimize(loss)
            saver.restore(session, prefix)
            with pytest.raises(tf.errors.FailedPreconditionError, match="slots of LazyAdam.*one optimizer per table"):
                session.run(step, {ids: [1]})


def test_gradient_descent_goes_with_any_slots(tmp_path):
    prefix, rows, _ = _saved(tmp_path, True)
    start(True)
    with tf.Graph().as_default():
        saver, read, ids, _ = _two_steps(())
        loss = tf.reduce_sum(sparse_lookup(graph_state.state_of(ids.graph).tables["user"], ids, name="again"))
        step = gradient_descent_by_addr.create_hash_optimizer_by_addr(0.1).minimize(loss)
        with tf1.Session() as session:
            saver.restore(session, prefix)
            np.testing.assert_array_equal(session.run(read, {ids: list(KEYS)}), rows)
            session.run(step, {ids: [1]})


def test_too_small_a_capacity_is_refused_by_name(tmp_path):
    prefix, _, _ = _saved(tmp_path, True)
    start(False)
    model = build(False, capacity=10)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        model.train(session, [7, 8])
        before = model.read(session, [7, 8])
        with pytest.raises(tf.errors.ResourceExhaustedError, match="'user'.*more than its capacity 10"):
            tf1.train.Saver().restore(session, prefix)
        np.testing.assert_array_equal(model.read(session, [7, 8]), before)


@pytest.mark.parametrize("dynamic", MODES, ids=mode_ids)
def test_damage_is_named_and_the_table_unharmed(tmp_path, dynamic):
    prefix, _, _ = _saved(tmp_path, dynamic)
    (name,) = [name for name in os.listdir(tmp_path) if "-of-m" in name]
    path = tmp_path / name
    good = path.read_bytes()
    start(dynamic)
    model = build(dynamic)
    saver = tf1.train.Saver()
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        model.train(session, *batches(5))
        before = model.read(session, KEYS)
        for bad in (good[:-1], good[:100], b"", good[:500] + bytes([good[500] ^ 4]) + good[501:], None):
            path.unlink() if bad is None else path.write_bytes(bad)
            with pytest.raises(tf.errors.DataLossError, match=name):
                saver.restore(session, prefix)
            np.testing.assert_array_equal(model.read(session, KEYS), before)
        path.write_bytes(good)
        saver.restore(session, prefix)


def test_places_that_cannot_be_written_are_named(tmp_path):
    start(True)
    model = build(True)
    saver = tf1.train.Saver()
    (tmp_path / "file").write_text("")
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        model.train(session, [1])
        with pytest.raises((tf.errors.OpError, ValueError), match="file"):
            saver.save(session, str(tmp_path / "file" / "model"))
        with pytest.raises(ValueError, match="Parent directory"):
            saver.save(session, str(tmp_path / "no" / "such" / "model"))
        with pytest.raises(tf.errors.InvalidArgumentError, match="file systems that are mounted"):
            saver.save(session, "ram://model")
        saver.restore(session, saver.save(session, str(tmp_path / "model")))


def test_monitored_session_saves_and_restores(tmp_path):
    def run(steps):
        start(True)
        with tf.Graph().as_default():
            model = build(True)
            with tf1.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path),
                save_checkpoint_steps=2,
                save_checkpoint_secs=None,
                save_summaries_steps=None,
            ) as session:
                before = session.run(model.rows, {model.ids: list(KEYS)})
                for batch in batches(3, steps):
                    session.run(model.step, {model.ids: batch})
                return before, session.run(model.rows, {model.ids: list(KEYS)})

    _, after = run(5)
    again, _ = run(1)
    np.testing.assert_array_equal(again, after)


def test_files_written_without_a_session_are_restored(tmp_path):
    keys = np.array([5, -7, 2**40])
    rows, slot = np.arange(12, dtype=np.float32).reshape(3, 4), np.full([3, 4], 0.75, np.float32)
    prefix = str(tmp_path / "made")
    saved = write_saved_table(
        prefix, "item", keys, rows, file_number=0, optimizer="Adagrad", slot_initials=[0.9], slots=[slot], steps=7
    )
    start(True)
    model = build(True, "adagrad")
    (saveable,) = table_saveables(tf1.get_default_graph())
    restore = restore_op(model.ids.graph, saveable.parts, tf.constant(prefix), tf.constant(saved.text))
    with tf1.Session() as session:
        session.run(restore)
        content = model.table.export(session)
        order = np.argsort(keys)
        np.testing.assert_array_equal(content.keys, keys[order])
        np.testing.assert_array_equal(content.rows, np.concatenate([rows, slot], axis=1)[order])
        assert ops.table_stats("user").update_count == 7


COUNTING = """
import sys
import tensorflow as tf
tf1 = tf.compat.v1
tf1.disable_eager_execution()
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.util.initialize import init
init(use_dynamic_expansion=True)
doing, prefix, *coefficients = sys.argv[1:]
table = create_table(tf.int64, 4, "user", tf1.zeros_initializer())
found = [
    sparse_lookup(
        table, tf.constant([1, 2, 2], tf.int64), name=f"lookup_{position}",
        access_and_evict_config={"access_threshold": 3, "faae_coefficient": int(coefficient)},
    )
    for position, coefficient in enumerate(coefficients)
]
with tf1.Session() as session:
    if doing == "save":
        session.run(found)
        tf1.train.Saver().save(session, prefix)
    else:
        tf1.train.Saver().restore(session, prefix)
"""


def test_coefficients_are_saved_and_differences_told(tmp_path):
    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-c", COUNTING, *arguments],
            check=True, capture_output=True, text=True, cwd=tmp_path,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1"},
        ).stderr  # fmt: skip

    prefix = str(tmp_path / "model")
    run("save", prefix, "5", "2", "5")
    manifest = read_saved_table(prefix, "user").manifest
    assert manifest.notes["faae_coefficient"] == "2,5"
    assert "other settings" not in run("restore", prefix, "2", "5")
    told = run("restore", prefix, "1")
    assert "table 'user' was restored" in told
    assert "with other settings: faae_coefficient 1 (saved with 2,5); those of this program hold" in told
    run("save", prefix, "1")
    assert read_saved_table(prefix, "user").manifest.notes["faae_coefficient"] == "1"
    assert "with other settings: faae_coefficient 3 (saved with 1);" in run("restore", prefix, "3")
