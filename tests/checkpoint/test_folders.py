"""The folder `sparse-<name>` beside a checkpoint, which scripts look for."""

from __future__ import annotations

import os
import pathlib
import shutil

import pytest
import tensorflow as tf
from ckpt_harness import batches, build, start

from mx_rec.checkpoint.saved_tables import read_saved_tables
from mx_rec.saver.saver import save_incremental
from mx_rec.util.initialize import terminate_config_initializer

tf1 = tf.compat.v1


def _folders(directory) -> list[str]:
    return sorted(name for name in os.listdir(directory) if "sparse-" in name)


def _tables(folder) -> dict[str, str]:
    """What a folder says, by the name of the table's directory."""
    files = sorted(path for path in pathlib.Path(folder).rglob("*") if path.is_file())
    assert all(path.name == "manifest" for path in files)
    return {str(path.parent.relative_to(folder)): path.read_text() for path in files}


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("sharded", [True, False])
def test_it_holds_what_the_checkpoint_says_of_its_tables(dynamic, sharded, tmp_path):
    start(dynamic)
    models = [build(dynamic), build(dynamic, name="other.one")]
    saver = tf1.train.Saver(sharded=sharded)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        models[0].train(session, *batches(1))
        prefix = saver.save(session, str(tmp_path / "model"), global_step=7)
    assert _folders(tmp_path) == ["sparse-model-7"]
    assert _tables(tmp_path / "sparse-model-7") == {
        name: table.text for name, table in read_saved_tables(prefix).items()
    }


def test_a_script_finds_the_newest_and_goes_when_checkpoints_go(tmp_path):
    start(True)
    model = build(True)
    saver = tf1.train.Saver(max_to_keep=2)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for step in range(1, 5):
            model.train(session, *batches(step, 1))
            saver.save(session, str(tmp_path / "model"), global_step=step)
        # TensorFlow has deleted the second checkpoint after the last folder was made.
        assert _folders(tmp_path) == [f"sparse-model-{step}" for step in (2, 3, 4)]
        size = model.table.size(session)
    terminate_config_initializer()
    tf1.reset_default_graph()
    start(True, if_load=True)
    model = build(True)
    newest = max(int(path.name.rpartition("-")[2]) for path in tmp_path.glob("sparse-model-*"))
    with tf1.Session() as session:
        tf1.train.Saver().restore(session, str(tmp_path / f"model-{newest}"))
        assert model.table.size(session) == size


def test_deltas_have_their_own_name(tmp_path):
    start(True)
    model = build(True)
    saver = tf1.train.Saver()
    path = str(tmp_path / "model.ckpt")
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for step, delta in ((1, False), (2, True), (2, False)):
            model.train(session, *batches(step, 1))
            save_incremental(saver, session, path, step, delta=delta)
            if delta:
                assert _folders(tmp_path) == ["delta-sparse-model.ckpt-2", "sparse-model.ckpt-1"]
                assert "kind=delta" in _tables(tmp_path / "delta-sparse-model.ckpt-2")["user"]
    assert _folders(tmp_path) == ["sparse-model.ckpt-1", "sparse-model.ckpt-2"]  # saved again, in full


def test_the_saver_of_a_monitored_session_makes_it(tmp_path):
    start(False)
    model = build(False)
    with tf1.train.MonitoredTrainingSession(
        checkpoint_dir=str(tmp_path), save_checkpoint_steps=2, save_checkpoint_secs=None
    ) as session:
        for batch in batches(1, 4):
            session.run(model.step, {model.ids: batch})
    assert _folders(tmp_path) == ["sparse-model.ckpt-0", "sparse-model.ckpt-2", "sparse-model.ckpt-4"]


@pytest.mark.parametrize("new_saver", [True, False])
def test_imported_graphs_make_it_too(new_saver, tmp_path):
    start(True)
    build(True)
    meta = str(tmp_path / "graph.meta")
    tf1.train.Saver().export_meta_graph(meta)
    terminate_config_initializer()
    tf1.reset_default_graph()
    start(True)
    saver = tf1.train.import_meta_graph(meta)
    saver = tf1.train.Saver() if new_saver else saver
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        saver.save(session, str(tmp_path / "model"))
    assert _folders(tmp_path) == ["sparse-model"]


def test_every_saver_makes_its_own(tmp_path):
    start(True)
    one, two = build(True), build(True, name="two")
    both, dense = tf1.train.Saver(), tf1.train.Saver([one.dense])
    late = tf1.train.Saver()
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        both.save(session, str(tmp_path / "both"))
        dense.save(session, str(tmp_path / "dense"))
        late.save(session, str(tmp_path / "late"))
    assert two.table.table_name == "two"
    assert _folders(tmp_path) == ["sparse-both", "sparse-late"]
    assert set(_tables(tmp_path / "sparse-late")) == {"user", "two"}


def test_saved_models_have_none(tmp_path):
    start(True)
    model = build(True)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        tf1.saved_model.simple_save(session, str(tmp_path / "out"), {"ids": model.ids}, {"rows": model.rows})
    assert not [path for path in tmp_path.rglob("*sparse-*")]


def test_what_is_stale_goes_and_what_others_have_put_there_stays(tmp_path):
    """Folders of a process that was killed, and those that are not ours."""
    start(True)
    build(True)
    elsewhere = tmp_path / "elsewhere"
    saver = tf1.train.Saver()
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        saver.save(session, str(tmp_path / "model"), global_step=1)
        for name in ("sparse-gone", "delta-sparse-gone", ".sparse-model-1.unfinished", "sparse-with_more"):
            shutil.copytree(tmp_path / "sparse-model-1", tmp_path / name)
        (tmp_path / ".sparse-model-1.unfinished" / "user" / "manifest").write_text("")
        os.utime(tmp_path / ".sparse-model-1.unfinished", (0, 0))
        (tmp_path / "sparse-with_more" / "notes").write_text("mine")
        (tmp_path / "sparse-of_a_device" / "user" / "key").mkdir(parents=True)
        (tmp_path / "sparse-other_manifest" / "user").mkdir(parents=True)
        (tmp_path / "sparse-other_manifest" / "user" / "manifest").write_text("of another program")
        (tmp_path / "sparse-empty").mkdir()
        shutil.copytree(tmp_path / "sparse-model-1", elsewhere)
        (tmp_path / "sparse-link").symlink_to(elsewhere)
        saver.save(session, str(tmp_path / "model"), global_step=2)
    mine = ["sparse-empty", "sparse-link", "sparse-of_a_device", "sparse-other_manifest", "sparse-with_more"]
    assert _folders(tmp_path) == sorted(["sparse-model-1", "sparse-model-2", *mine])
    assert (elsewhere / "user" / "manifest").exists()
    assert (tmp_path / "sparse-with_more" / "user" / "manifest").exists()


def test_a_checkpoint_is_good_without_it(tmp_path, capfd):
    start(True)
    model = build(True)
    (tmp_path / "sparse-model-1").write_text("a file of this name")
    saver = tf1.train.Saver()
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        model.train(session, *batches(1))
        prefix = saver.save(session, str(tmp_path / "model"), global_step=1)
        size = model.table.size(session)
        model.train(session, *batches(2))
        saver.restore(session, prefix)
        assert model.table.size(session) == size
    assert (tmp_path / "sparse-model-1").read_text() == "a file of this name"
    assert _folders(tmp_path) == ["sparse-model-1"]


def test_a_save_that_fails_makes_none(tmp_path):
    start(True)
    model = build(True)
    saver = tf1.train.Saver()
    (tmp_path / "model.index").mkdir()  # so TensorFlow cannot complete the checkpoint
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        model.train(session, *batches(1))
        with pytest.raises(tf.errors.OpError):
            saver.save(session, str(tmp_path / "model"))
    assert _folders(tmp_path) == []
