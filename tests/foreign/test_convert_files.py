"""Files with converted variables: their Savers, collections and sessions, and `recgraph`'s options."""

from __future__ import annotations

import json

import foreign_runs as runs
import numpy as np
import plain_models as plain
import pytest
import tensorflow as tf

from mx_rec import ops
from mx_rec.cli import app
from mx_rec.errors import GraphFileError
from mx_rec.passes.static_lookups.config import read_tables
from mx_rec.passes.static_lookups.plans import BY_KEY, TableChoice

tf1 = tf.compat.v1


@pytest.fixture
def recgraph(capsys):
    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            app.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return run


def write(path, meta_graph) -> None:
    path.write_bytes(meta_graph.SerializeToString())


def session_of(path) -> tuple[tf.Graph, tf1.train.Saver]:
    ops.load_library()
    graph = tf.Graph()
    with graph.as_default():
        return graph, tf1.train.import_meta_graph(str(path))


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_saver_saves_and_restores_the_tables(tmp_path, recgraph, optimizer: str) -> None:
    """Two steps, saved; three more. Restored and trained again, those three give the same."""
    write(tmp_path / "in.meta", plain.meta_graph("matrix_factorization", optimizer))
    code, out, err = recgraph("rewrite", tmp_path / "in.meta", tmp_path / "out.meta", "--convert", "*")
    assert (code, err) == (0, "")
    assert "is table 'user'" in out
    graph, saver = session_of(tmp_path / "out.meta")
    with tf1.Session(graph=graph) as session:
        session.run("begin")
        step = ["loss:0", "train"]
        for _ in range(2):
            session.run(step)
        prefix = saver.save(session, str(tmp_path / "model"), write_meta_graph=False)
        assert {"mx_rec/user/manifest", "mx_rec/item_bias/manifest", "mean"} <= set(
            tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
        )
        expected = [session.run(step)[0] for _ in range(3)]
        saver.restore(session, prefix)
        session.run([op for op in graph.get_operations() if op.type == "MakeIterator"])
        for _ in range(2):
            session.run(batch(graph))
        assert [session.run(step)[0] for _ in range(3)] == expected
    with tf1.Session(graph=graph) as session:  # another process restores instead of initializing
        saver.restore(session, prefix)
        session.run([op for op in graph.get_operations() if op.type == "MakeIterator"])
        for _ in range(2):
            session.run(batch(graph))
        assert [session.run(step)[0] for _ in range(3)] == expected


def batch(graph: tf.Graph) -> tf.Tensor:
    return next(op for op in graph.get_operations() if op.type == "IteratorGetNext").outputs[0]


def test_variables_leave_the_collections(tmp_path, recgraph) -> None:
    write(tmp_path / "in.meta", plain.meta_graph("matrix_factorization", "adagrad"))
    recgraph("rewrite", tmp_path / "in.meta", tmp_path / "out.meta", "--convert", "user", "--convert", "*_bias")
    graph, _ = session_of(tmp_path / "out.meta")
    with graph.as_default():
        left = {variable.op.name for variable in tf1.global_variables()}
        assert left == {"item", "item/Adagrad", "mean", "mean/Adagrad", "global_step"}
        assert {variable.op.name for variable in tf1.trainable_variables()} == {"item", "mean"}


def test_monitored_session_begins_trains_and_saves(tmp_path, recgraph) -> None:
    write(tmp_path / "in.meta", plain.meta_graph("lookup_parts_div", "adagrad"))
    recgraph("rewrite", tmp_path / "in.meta", tmp_path / "out.meta", "--convert", "emb")
    graph, saver = session_of(tmp_path / "out.meta")
    with graph.as_default():
        scaffold = tf1.train.Scaffold(
            init_op=graph.get_operation_by_name("begin"), local_init_op=tf.no_op(), saver=saver, ready_op=ready(graph)
        )
        with tf1.train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), scaffold=scaffold, save_checkpoint_steps=2, save_summaries_steps=None
        ) as session:
            losses = [session.run(["loss:0", "train"])[0] for _ in range(plain.STEPS)]
    expected = runs.losses(plain.meta_graph("lookup_parts_div", "adagrad").graph_def, steps=plain.STEPS)
    np.testing.assert_allclose(losses, expected, rtol=3e-6)
    assert tf.train.latest_checkpoint(str(tmp_path)) is not None


def ready(graph: tf.Graph) -> tf.Tensor:
    """The names of what is not initialized, as the file's own questions say."""
    questions = [op for op in graph.get_operations() if op.name.endswith("is_initialized")]
    assert questions
    flags = tf.stack([op.outputs[0] for op in questions])
    return tf.boolean_mask(tf.constant([op.name for op in questions]), tf.logical_not(flags))


def test_sharded_savers_are_followed(tmp_path) -> None:
    with tf.Graph().as_default():
        loss = plain.matrix_factorization()
        plain.train_step("", loss, "adagrad")
        tf.group(tf1.global_variables_initializer(), tf1.tables_initializer(), name="begin")
        saver = tf1.train.Saver(sharded=True)
        meta_graph = tf1.train.export_meta_graph(saver_def=saver.as_saver_def())
    meta_graph.graph_def.CopyFrom(runs.convert(meta_graph.graph_def).graph_def)
    for key in ("variables", "trainable_variables"):
        del meta_graph.collection_def[key]
    ops.load_library()
    with tf.Graph().as_default() as graph:
        loaded = tf1.train.import_meta_graph(meta_graph)
        with tf1.Session() as session:
            session.run("begin")
            session.run("train")
            prefix = loaded.save(session, str(tmp_path / "model"), write_meta_graph=False)
            content = ops.table_export(graph.get_tensor_by_name("mx_rec/user/handle:0")).rows
            rows = session.run(content)
            session.run("train")
            loaded.restore(session, prefix)
            np.testing.assert_array_equal(session.run(content), rows)


@pytest.mark.parametrize("model", ["lookup_parts_mod", "sparse_mean"])
def test_verify_finds_converted_graphs_equal(tmp_path, recgraph, model: str) -> None:
    write(tmp_path / "in.meta", plain.meta_graph(model, "adam"))
    recgraph("rewrite", tmp_path / "in.meta", tmp_path / "out.meta", "--convert", "*")
    # Grappler, which `verify` leaves on, moves factors of products.
    options = ("--fetch", "loss", "--fetch", "train", "--tolerance", "1e-6")
    code, out, err = recgraph("verify", tmp_path / "in.meta", tmp_path / "out.meta", *options)
    assert code == 0, out
    assert "table 'emb' of B has the place of a variable of the other: not compared" in err


def test_inspect_lists_lookups_and_near_misses(tmp_path, recgraph) -> None:
    write(tmp_path / "in.meta", plain.meta_graph("safe_sparse_mean", "momentum"))
    _, out, _ = recgraph("inspect", tmp_path / "in.meta", "--json")
    (variable,) = json.loads(out)["static_variables"]
    assert (variable["name"], variable["state"]) == ("emb", "stays")
    assert "keeps a momentum" in variable["reason"]
    assert [lookup["pattern"] for lookup in variable["lookups"]] == ["safe_embedding_lookup_sparse (mean)"]
    _, out, _ = recgraph("inspect", tmp_path / "in.meta")
    assert "Variables that plain TensorFlow looks up" in out


def test_without_a_choice_nothing_is_converted(tmp_path, recgraph) -> None:
    write(tmp_path / "in.meta", plain.meta_graph("lookup_resource", "adam"))
    code, out, err = recgraph("rewrite", tmp_path / "in.meta", tmp_path / "out.meta")
    assert code == 0
    assert "nothing to do" in err
    assert "could be a table" in out


def test_a_node_that_must_stay_keeps_its_variable(tmp_path, recgraph) -> None:
    write(tmp_path / "in.meta", plain.meta_graph("lookup_resource", "adam"))
    code, out, _ = recgraph(
        "rewrite", tmp_path / "in.meta", tmp_path / "out.meta", "--convert", "emb", "--keep", "embedding_lookup"
    )
    assert code == 0
    assert "refused embedding_lookup: is named outside the graph" in out


class TestConfig:
    def test_choices(self, tmp_path, recgraph) -> None:
        path = tmp_path / "tables.toml"
        lines = (
            "[[table]]",
            'variable = "user"',
            'name = "people"',
            "[[table]]",
            'variable = "it*"',
            "drop_modulo = true",
        )
        path.write_text("\n".join(lines))
        assert read_tables(path) == (TableChoice("user", "people"), TableChoice("it*", "", BY_KEY, drop_modulo=True))
        write(tmp_path / "in.meta", plain.meta_graph("matrix_factorization", "sgd"))
        _, out, _ = recgraph("rewrite", tmp_path / "in.meta", tmp_path / "out.meta", "--config", path)
        assert "variable 'user' [50, 8] is table 'people'" in out
        assert "(variable 'item' stays)" in out

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("table = 1", "expected [[table]] entries, got no [[table]]"),
            ("[other]\n", "expected [[table]] entries, got key 'other'"),
            ('[[table]]\nname = "a"\n', "[[table]] number 1 names no variable"),
            ('[[table]]\nvariable = "a"\ncolour = 1\n', "unknown key 'colour'"),
            ('[[table]]\nvariable = "a"\ndrop_modulo = "yes"\n', "drop_modulo must be a bool, got 'yes'"),
            ('[[table]]\nvariable = "a"\ninitial_values = "zero"\n', "initial_values is 'zero'; expected one of"),
            ("[[table", "cannot be read as TOML"),
        ],
    )
    def test_mistakes_are_named(self, tmp_path, text: str, message: str) -> None:
        path = tmp_path / "tables.toml"
        path.write_text(text)
        with pytest.raises(GraphFileError) as error:
            read_tables(path)
        assert str(path) in str(error.value)
        assert message in str(error.value)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--drop-modulo"], "--drop-modulo goes with --convert"),
            (["--initial-values", "by_key"], "--initial-values goes with --convert"),
            (["--convert", "a", "--drop-modulo", "--initial-values", "variable"], "--drop-modulo needs"),
            (["--config", "nowhere.toml"], "nowhere.toml: cannot be read"),
        ],
    )
    def test_options_that_do_not_go_together(self, tmp_path, recgraph, options, message) -> None:
        write(tmp_path / "in.meta", plain.meta_graph("matrix_factorization"))
        code, _, err = recgraph("rewrite", tmp_path / "in.meta", tmp_path / "out.meta", *options)
        assert code == 2
        assert message in err
        assert not (tmp_path / "out.meta").exists()
