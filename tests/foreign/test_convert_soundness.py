"""Graphs of which a careless conversion would change what they compute: run, or refused with node and reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import foreign_runs as runs
import numpy as np
import plain_models as plain
import pytest
import tensorflow as tf
from click.testing import CliRunner

from mx_rec import ops
from mx_rec.cli.app import recgraph
from mx_rec.errors import GraphFileError
from mx_rec.graph.files import load_graph
from mx_rec.graph.view import GraphView
from mx_rec.passes.static_lookups.config import read_tables
from mx_rec.passes.static_lookups.plans import BY_KEY, TableChoice
from mx_rec.passes.static_lookups.variables import ancestors

tf1 = tf.compat.v1
CONSTANT = tf1.constant_initializer(0.25)


def run(graph_def: Any, calls: Sequence[Any]) -> list[Any]:
    ops.load_library()
    with tf.Graph().as_default():
        tf.import_graph_def(graph_def, name="")
        with tf1.Session(config=runs.session_config(grappler=False)) as session:
            return [session.run(call) for call in calls]


def built(build: Callable[[], Any]) -> Any:
    with tf.Graph().as_default() as graph:
        build()
        with tf.control_dependencies(None):
            tf.group(tf1.global_variables_initializer(), name="begin")
        return graph.as_graph_def()


def ids() -> tf.Tensor:
    return tf.constant([3, 1, 4, 1], tf.int64, name="ids") + tf1.placeholder_with_default(tf.zeros([], tf.int64), [])


def model(optimizer: Any, initializer: Any = None, resource: bool = True) -> Any:
    variable = plain.variable("emb", initializer=initializer, resource=resource)
    rows = tf1.nn.embedding_lookup(variable, ids())
    loss = tf.reduce_sum(rows * rows + rows, name="loss")
    return variable, optimizer.minimize(loss, name="train")


@pytest.mark.parametrize("options", [{}, {"initial_values": BY_KEY}])
def test_an_initializer_that_runs_again_begins_anew(options: Any) -> None:
    graph_def = built(lambda: model(tf1.train.AdagradOptimizer(0.1), CONSTANT))
    calls = ["begin", ["loss:0", "train"], "loss:0", "begin", ["loss:0", "train"], "loss:0"]
    converted = runs.convert(graph_def, **options)
    assert converted.modified
    expected, actual = run(graph_def, calls), run(converted.graph_def, calls)
    assert actual[1][0] == expected[4][0] == actual[4][0] != actual[2]
    np.testing.assert_allclose([actual[2], actual[5]], [expected[2], expected[5]], rtol=1e-6)


@pytest.mark.parametrize("asked", ["slot", "variable"])
def test_an_initial_value_of_its_own_is_refused(asked: str) -> None:
    def build() -> None:
        optimizer = tf1.train.AdagradOptimizer(0.1)
        variable, _ = model(optimizer)
        one = variable if asked == "variable" else optimizer.get_slot(variable, "accumulator")
        tf.group(one.initializer, name="reset")

    result = runs.convert(built(build))
    assert not result.modified
    refusal = result.reports[0].refusals[0]
    assert refusal.node == "reset"
    assert "begin together" in refusal.reason


@pytest.mark.parametrize("resource", [True, False])
@pytest.mark.parametrize("whole", [False, True])
def test_a_lookup_after_the_update_stays_after_it(resource: bool, whole: bool) -> None:
    def build() -> None:
        variable, train = model(tf1.train.GradientDescentOptimizer(0.5), resource=resource)
        with tf.control_dependencies([train]):
            tf.identity(tf.gather(variable, tf.constant([1, 3], tf.int64)), name="after")

    graph_def = built(build)
    converted = runs.convert(graph_def, whole=whole)
    assert not GraphView(converted.graph_def).nodes_of("VarHandleOp", "VariableV2")
    for _ in range(3):
        calls = ["begin", ["loss:0", "train", "after:0"]]
        expected, actual = run(graph_def, calls)[1], run(converted.graph_def, calls)[1]
        np.testing.assert_allclose(actual[2], expected[2], rtol=1e-6)


def test_a_value_that_was_read_before_the_update_is_not_looked_up_after_it() -> None:
    def build() -> None:
        variable = plain.variable("emb")
        value = variable.read_value()
        rows = tf.gather(value, ids())
        loss = tf.reduce_sum(rows, name="loss")
        train = tf1.scatter_sub(variable, ids(), tf.ones([4, plain.DIM]))
        with tf.control_dependencies([train, loss]):
            tf.gather(value, tf.constant([1], tf.int64), name="before")

    result = runs.convert(built(build))
    assert not result.modified
    assert result.reports[0].refusals


def test_one_name_is_given_to_one_variable() -> None:
    def build() -> None:
        for name in ("user", "item"):
            tf1.nn.embedding_lookup(plain.variable(name), ids())

    result = runs.convert(built(build), name="t")
    (refusal,) = result.reports[0].refusals
    assert refusal.node == "item"
    assert "'user'" in refusal.reason and "'t'" in refusal.reason


@pytest.mark.parametrize("name", ["u ser", "a/b", "..", "x" * 101])
def test_names_of_tables_are_checked(tmp_path, name: str) -> None:
    with pytest.raises(ValueError, match="letters, digits"):
        TableChoice("user", name)
    (tmp_path / "t.toml").write_text(f'[[table]]\nvariable = "user"\nname = "{name}"\n')
    with pytest.raises(Exception, match=r"number 1: table name"):
        read_tables(tmp_path / "t.toml")


def test_a_pattern_of_nothing_is_refused() -> None:
    graph_def = built(lambda: model(tf1.train.GradientDescentOptimizer(0.5)))
    result = runs.convert(graph_def, "nosuch")
    (refusal,) = result.reports[0].refusals
    assert refusal.node == "nosuch"
    assert "'emb'" in refusal.reason
    converted = runs.convert(graph_def, "emb").graph_def
    assert not runs.convert(converted, "emb").reports[0].refusals


def test_a_variable_that_a_function_looks_up_is_named() -> None:
    def build() -> None:
        variable = plain.variable("emb")
        tf.cond(tf.size(ids()) > 1, lambda: tf.gather(variable, ids()), lambda: tf.zeros([4, plain.DIM]))

    result = runs.convert(built(build), "emb")
    (refusal,) = result.reports[0].refusals
    assert refusal.node == "emb"
    assert "function" in refusal.reason


def test_a_scatter_of_one_number_is_refused() -> None:
    def build() -> None:
        variable = plain.variable("emb")
        tf.gather(variable, given := ids())
        tf1.scatter_add(variable, given, 1.0)

    result = runs.convert(built(build))
    assert not result.modified
    assert "one number" in result.reports[0].refusals[0].reason


@pytest.mark.parametrize("wrong", [-1, plain.ROWS])
def test_ids_that_are_no_rows_are_errors_as_before(wrong: int) -> None:
    def build() -> None:
        given = tf1.placeholder_with_default(np.array([1, wrong], np.int64), [None])
        tf.reduce_sum(tf1.nn.embedding_lookup(plain.variable("emb"), given), name="loss")

    graph_def = built(build)
    for graph in (graph_def, runs.convert(graph_def).graph_def):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"{wrong}"):
            run(graph, ["begin", "loss:0"])


def test_ids_that_are_fetched_keep_their_modulo() -> None:
    def build() -> None:
        bounded = tf.math.floormod(ids(), plain.ROWS)
        tf1.nn.embedding_lookup(plain.variable("emb"), bounded)
        tf.identity(bounded, name="fetched")

    result = runs.convert(built(build), initial_values=BY_KEY, drop_modulo=True)
    assert not result.modified
    assert result.reports[0].refusals[0].node == "fetched"


@pytest.mark.parametrize("patterns", [("*",), ("user",)])
def test_variables_that_share_bounded_ids_lose_the_bound_together(patterns: tuple[str, ...]) -> None:
    def build() -> None:
        bounded = tf.math.floormod(ids(), plain.ROWS)
        for name in ("user", "bias"):
            tf1.nn.embedding_lookup(plain.variable(name), bounded)

    result = runs.convert(built(build), *patterns, initial_values=BY_KEY, drop_modulo=True)
    assert len(result.reports[0].notes) == (2 if patterns == ("*",) else 0)
    assert len(result.reports[0].refusals) == (0 if patterns == ("*",) else 1)


def test_static_ids_of_a_partitioned_variable_are_recognised() -> None:
    def build() -> None:
        tf1.nn.embedding_lookup(plain.variable("emb", parts=4), tf1.placeholder(tf.int64, [4]))

    assert runs.convert(built(build)).modified


@pytest.mark.parametrize("variables", ["trainable", "slots"])
def test_a_saver_with_rows_but_no_slots_is_refused(variables: str) -> None:
    def build() -> None:
        table = plain.variable("emb")
        loss = tf.reduce_sum(tf.square(tf1.nn.embedding_lookup(table, ids())))
        optimizer = plain.OPTIMIZERS["adam"]()
        optimizer.minimize(loss)
        slots = [optimizer.get_slot(table, name) for name in optimizer.get_slot_names()]
        tf1.train.Saver(name="all")
        tf1.train.Saver([table] if variables == "trainable" else slots, name="some")

    result = runs.convert(built(build))
    assert not result.modified
    (refusal,) = result.reports[0].refusals
    assert refusal.node.startswith("some/")
    assert "saved and restored together" in refusal.reason


@pytest.mark.parametrize("optimizer", ["adam", "ftrl", "adagrad"])
@pytest.mark.parametrize("resource", [True, False])
def test_updates_that_wait_for_other_updates(optimizer: str, resource: bool) -> None:
    """As scripts with batch normalization have it: the constants of the update wait, and nothing else of it."""

    def model() -> None:
        batch = plain.batches()
        table = plain.variable("emb", resource=resource)
        mean = tf1.get_variable("mean", [], initializer=tf1.zeros_initializer(), trainable=False, use_resource=True)
        rows = tf1.nn.embedding_lookup(table, batch["ids"])
        moved = mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(rows))
        loss = plain.error(tf.reduce_sum(rows, [1, 2]) + mean, batch)
        with tf.control_dependencies([moved]):
            plain.OPTIMIZERS[optimizer]().minimize(loss, name="train")
        tf.group(tf1.global_variables_initializer(), tf1.tables_initializer(), name="begin")

    with tf.Graph().as_default() as graph:
        model()
        graph_def = graph.as_graph_def()
    converted = runs.convert(graph_def)
    assert not converted.reports[0].refusals
    view = GraphView(converted.graph_def)
    (update,) = view.nodes_of("MxRecApplyAdamByAddress", "MxRecApplyFtrlByAddress", "MxRecApplyAdagradByAddress")
    assert "AssignVariableOp" in {view.node(name).op for name in ancestors(view, [update.name])}
    expected, actual = (runs.losses(each, steps=plain.STEPS) for each in (graph_def, converted.graph_def))
    np.testing.assert_allclose(actual, expected, rtol=0 if optimizer == "adam" else 3e-6)


@pytest.mark.parametrize("with_parts", [False, True])
def test_ids_that_are_concatenated(with_parts: bool) -> None:
    """A lookup of several columns in one, also beside lookups of each: all are trained, and insert what they see."""
    with tf.Graph().as_default() as graph:
        batch = plain.batches(1)
        table = plain.variable("emb", initializer=tf1.random_normal_initializer(stddev=0.1, seed=3))
        user, item = tf.reshape(batch["ids"], [-1]), batch["other_ids"]
        rows = tf.gather(table, tf.concat([user, item], 0), name="both")
        parts = [tf.gather(table, ids) for ids in (user, item)] if with_parts else tf.split(rows, 2)
        tf.reduce_max(tf.abs(tf.concat(parts, 0) - rows), name="gap")
        product = tf.reduce_sum(rows[: plain.BATCH] * rows[plain.BATCH :], 1)
        loss = plain.error(product + tf.reduce_sum(parts[0] - parts[1], 1), batch)
        plain.train_step("", loss, "adam")
        tf.group(tf1.global_variables_initializer(), tf1.tables_initializer(), name="begin")
        graph_def = graph.as_graph_def()
    converted = runs.convert(graph_def)
    assert not converted.reports[0].refusals
    expected, actual = (runs.losses(each, steps=plain.STEPS) for each in (graph_def, converted.graph_def))
    np.testing.assert_array_equal(actual, expected)
    by_key = runs.convert(graph_def, initial_values=BY_KEY).graph_def
    np.testing.assert_array_equal(runs.losses(by_key, ("gap:0", "train"), steps=plain.STEPS), 0.0)


def test_a_variable_that_begins_with_a_checkpoint_says_so(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        saver = tf1.train.Saver([plain.variable("emb")])
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            path = saver.save(session, str(tmp_path / "model"))

    def build() -> None:
        table = plain.variable("emb")
        tf1.train.init_from_checkpoint(path, {"emb": "emb"})
        plain.OPTIMIZERS["adam"]().minimize(tf.reduce_sum(tf1.nn.embedding_lookup(table, ids())))

    result = runs.convert(built(build))
    assert not result.modified
    assert "convert-checkpoint" in result.reports[0].refusals[0].reason


def test_shared_embedding_columns_are_converted(tmp_path: Path) -> None:
    """Such a column puts its variable into a collection named after itself."""
    columns = tf.feature_column
    with tf.Graph().as_default():
        batch = plain.batches(1)
        parts = [columns.categorical_column_with_identity(name, plain.ROWS) for name in ("ids", "other_ids")]
        shared = tf1.feature_column.shared_embedding_columns(parts, plain.DIM)
        x = tf1.feature_column.input_layer({"ids": batch["ids"], "other_ids": batch["other_ids"][:, None]}, shared)
        plain.train_step("", plain.error(tf.reduce_sum(x, 1), batch), "adam")
        tf1.train.Saver()
        tf1.train.export_meta_graph(str(tmp_path / "model.meta"))
    source, target = str(tmp_path / "model.meta"), str(tmp_path / "converted.meta")
    result = CliRunner().invoke(recgraph, ["rewrite", source, target, "--convert", "*embedding_weights"])
    assert result.exit_code == 0, result.output
    collections = load_graph(target).message.collection_def
    assert "ids_other_ids_shared_embedding" in load_graph(source).message.collection_def
    assert "ids_other_ids_shared_embedding" not in collections


def test_two_entries_for_one_variable_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "tables.toml"
    path.write_text('[[table]]\nvariable = "emb"\n[[table]]\nvariable = "emb"\nname = "other"\n')
    with pytest.raises(GraphFileError, match="number 2: variable 'emb' has an entry already, number 1"):
        read_tables(path)
