"""Graphs of which a careless conversion would change what they compute: run, or refused with node and reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import foreign_runs as runs
import numpy as np
import plain_models as plain
import pytest
import tensorflow as tf

from mx_rec import ops
from mx_rec.graph.view import GraphView
from mx_rec.passes.static_lookups.config import read_tables
from mx_rec.passes.static_lookups.plans import BY_KEY, TableChoice

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
