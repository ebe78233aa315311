"""`recgraph convert-checkpoint`: what was trained before a graph was converted goes on afterwards."""

from __future__ import annotations

import foreign_runs as runs
import numpy as np
import plain_models as plain
import pytest
import tensorflow as tf

from mx_rec import ops
from mx_rec.checkpoint.saved_tables import read_saved_tables
from mx_rec.checkpoint.tensors import write_tensors
from mx_rec.cli import app

tf1 = tf.compat.v1
STEP = ["loss:0", "train"]


def recgraph(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        app.main([str(argument) for argument in arguments])
    return stop.value.code


def train_before(meta_graph, prefix: str) -> list[float]:
    """Two steps, saved; the losses of the three that follow."""
    with tf.Graph().as_default():
        saver = tf1.train.import_meta_graph(meta_graph)
        with tf1.Session(config=runs.session_config(grappler=False)) as session:
            session.run("begin")
            for _ in range(2):
                session.run(STEP)
            saver.save(session, prefix, write_meta_graph=False)
            return [session.run(STEP)[0] for _ in range(3)]


def train_after(path, prefix: str) -> list[float]:
    """The same three steps of the converted graph."""
    ops.load_library()
    with tf.Graph().as_default() as graph:
        saver = tf1.train.import_meta_graph(str(path))
        operations = graph.get_operations()
        draw = next(op for op in operations if op.type == "IteratorGetNext").outputs[0]
        with tf1.Session(config=runs.session_config(grappler=False)) as session:
            saver.restore(session, prefix)
            session.run([op for op in operations if op.type == "MakeIterator"])
            for _ in range(2):
                session.run(draw)
            return [session.run(STEP)[0] for _ in range(3)]


@pytest.mark.parametrize(
    ("model", "optimizer", "tolerance"),
    [
        ("lookup_parts_mod", "adam", 0.0),
        ("lookup_parts_div", "adagrad", 3e-6),
        ("matrix_factorization", "ftrl", 3e-6),
        ("sparse_mean", "adam", 0.0),
        ("unique_gather", "sgd", 0.0),
    ],
)
def test_training_goes_on(tmp_path, model: str, optimizer: str, tolerance: float) -> None:
    meta_graph = plain.meta_graph(model, optimizer)
    (tmp_path / "in.meta").write_bytes(meta_graph.SerializeToString())
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    expected = train_before(meta_graph, old)
    assert recgraph("rewrite", tmp_path / "in.meta", tmp_path / "out.meta", "--convert", "*") == 0
    assert recgraph("convert-checkpoint", tmp_path / "out.meta", old, new) == 0
    np.testing.assert_allclose(train_after(tmp_path / "out.meta", new), expected, rtol=tolerance, atol=0)
    names = set(tf.train.load_checkpoint(new).get_variable_to_shape_map())
    assert "global_step" in names
    assert not any(name.startswith(("emb", "user", "item")) for name in names)


def test_rows_and_slots_are_those_of_the_checkpoint(tmp_path) -> None:
    meta_graph = plain.meta_graph("matrix_factorization", "adagrad")
    (tmp_path / "in.meta").write_bytes(meta_graph.SerializeToString())
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    train_before(meta_graph, old)
    recgraph("rewrite", tmp_path / "in.meta", tmp_path / "out.meta", "--convert", "user")
    assert recgraph("convert-checkpoint", tmp_path / "out.meta", old, new) == 0
    reader = tf.train.load_checkpoint(old)
    (block,) = read_saved_tables(new)["user"].blocks()
    np.testing.assert_array_equal(block.columns["keys"], np.arange(plain.ROWS))
    expected = np.concatenate([reader.get_tensor("user"), reader.get_tensor("user/Adagrad")], 1)
    np.testing.assert_array_equal(block.columns["rows"], expected)
    np.testing.assert_array_equal(tf.train.load_checkpoint(new).get_tensor("item"), reader.get_tensor("item"))


def copied_without(old: str, new: str, *names: str) -> None:
    """Another checkpoint, that lacks some tensors."""
    reader = tf.train.load_checkpoint(old)
    write_tensors(
        new, {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if name not in names}
    )


def test_slots_that_were_not_saved_begin_anew(tmp_path, capsys) -> None:
    meta_graph = plain.meta_graph("matrix_factorization", "adagrad")
    (tmp_path / "in.meta").write_bytes(meta_graph.SerializeToString())
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    train_before(meta_graph, old)
    copied_without(old, str(tmp_path / "bare"), "user/Adagrad")
    recgraph("rewrite", tmp_path / "in.meta", tmp_path / "out.meta", "--convert", "user", "--convert", "item")
    capsys.readouterr()
    assert recgraph("convert-checkpoint", tmp_path / "out.meta", tmp_path / "bare", new) == 0
    out = capsys.readouterr().out
    assert "table 'user': 50 rows of 'user'; OLD has no slots of Adagrad, so they begin anew" in out
    assert "table 'item': 50 rows of 'item' with the slots of Adagrad" in out
    tables = {name: next(table.blocks()).columns["rows"] for name, table in read_saved_tables(new).items()}
    reader = tf.train.load_checkpoint(old)
    np.testing.assert_array_equal(tables["user"][:, : plain.DIM], reader.get_tensor("user"))
    np.testing.assert_array_equal(tables["user"][:, plain.DIM :], np.full([plain.ROWS, plain.DIM], 0.1, np.float32))
    np.testing.assert_array_equal(tables["item"][:, plain.DIM :], reader.get_tensor("item/Adagrad"))
    assert np.isfinite(train_after(tmp_path / "out.meta", new)).all()


class TestRefused:
    @pytest.fixture
    def files(self, tmp_path):
        meta_graph = plain.meta_graph("matrix_factorization", "sgd")
        (tmp_path / "in.meta").write_bytes(meta_graph.SerializeToString())
        train_before(meta_graph, str(tmp_path / "old"))
        return tmp_path

    def refused(self, capsys, *arguments: object) -> str:
        capsys.readouterr()
        assert recgraph("convert-checkpoint", *arguments) == 2
        return capsys.readouterr().err

    def test_graph_without_converted_tables(self, files, capsys) -> None:
        message = self.refused(capsys, files / "in.meta", files / "old", files / "new")
        assert "has no tables that 'recgraph rewrite --convert' has made" in message

    def test_checkpoint_of_another_graph(self, files, capsys) -> None:
        meta_graph = plain.meta_graph("lookup_resource", "sgd")
        (files / "other.meta").write_bytes(meta_graph.SerializeToString())
        recgraph("rewrite", files / "other.meta", files / "out.meta", "--convert", "emb")
        message = self.refused(capsys, files / "out.meta", files / "old", files / "new")
        assert "has no tensor 'emb', from which table 'emb' was made" in message

    def test_some_slots_without_the_others(self, tmp_path, capsys) -> None:
        meta_graph = plain.meta_graph("lookup_resource", "adam")
        (tmp_path / "in.meta").write_bytes(meta_graph.SerializeToString())
        train_before(meta_graph, str(tmp_path / "old"))
        copied_without(str(tmp_path / "old"), str(tmp_path / "half"), "emb/Adam_1")
        recgraph("rewrite", tmp_path / "in.meta", tmp_path / "out.meta", "--convert", "emb")
        message = self.refused(capsys, tmp_path / "out.meta", tmp_path / "half", tmp_path / "new")
        assert "has no tensor 'emb/Adam_1', from which table 'emb' was made" in message

    def test_other_columns(self, files, capsys) -> None:
        recgraph("rewrite", files / "in.meta", files / "out.meta", "--convert", "user")
        reader = tf.train.load_checkpoint(str(files / "old"))
        names = reader.get_variable_to_shape_map()
        tensors = {name: reader.get_tensor(name) for name in names}
        write_tensors(str(files / "wide"), {**tensors, "user": np.zeros([plain.ROWS, plain.DIM + 2], np.float32)})
        message = self.refused(capsys, files / "out.meta", files / "wide", files / "new")
        assert "'user' has shape [50, 10]" in message
        assert "expected [rows, 8], since table 'user' of the graph has dim 8" in message
        assert not list(files.glob("new*"))

    def test_no_checkpoint(self, files, capsys) -> None:
        recgraph("rewrite", files / "in.meta", files / "out.meta", "--convert", "user")
        message = self.refused(capsys, files / "out.meta", files / "nothing", files / "new")
        assert "cannot read the checkpoint" in message

    def test_onto_itself(self, files, capsys) -> None:
        recgraph("rewrite", files / "in.meta", files / "out.meta", "--convert", "user")
        assert "NEW must be another prefix" in self.refused(capsys, files / "out.meta", files / "old", files / "old")
