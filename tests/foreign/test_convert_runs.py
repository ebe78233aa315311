"""Models of plain TensorFlow and what `convert_static_tables` makes of them, run from the same beginning."""

from __future__ import annotations

import foreign_runs as runs
import numpy as np
import plain_models as plain
import pytest
import tensorflow as tf

from mx_rec import ops
from mx_rec.graph.op_signatures import OP_LOOK_UP_MANY
from mx_rec.graph.view import GraphView
from mx_rec.passes.static_lookups.lookups import static_variables
from mx_rec.passes.static_lookups.plans import BY_KEY

tf1 = tf.compat.v1
# One op of ours sums the gradients of a row and subtracts once, TensorFlow's scatter subtracts them one by one; roots
# and quotients of Adagrad and FTRL are rounded once more or less. Nothing else differs.
ROUNDING = 3e-6
SOME_OPTIMIZERS = [
    ("lookup_resource", "sgd"),
    ("lookup_reference", "adagrad"),
    ("lookup_parts_mod", "ftrl"),
    ("lookup_parts_div", "sgd"),
    ("lookup_parts_reference", "adagrad"),
    ("sparse_mean", "ftrl_shrinkage"),
    ("sparse_mean_reference", "adagrad"),
    ("sparse_sqrtn_reference", "ftrl"),
    ("sparse_sum_reference", "sgd"),
    ("pooled_and_plain", "sgd"),
    ("pooled_and_plain", "adagrad"),
    ("safe_sparse_parts", "adagrad"),
    ("matrix_factorization", "ftrl"),
    ("matrix_factorization", "sgd"),
    ("shared", "adagrad"),
    ("clipped", "sgd"),
]


def check(model: str, optimizer: str, tolerance: float) -> None:
    graph_def = plain.meta_graph(model, optimizer).graph_def
    expected = runs.losses(graph_def, steps=plain.STEPS)
    assert len(set(expected.tolist())) == plain.STEPS, "the model does not train"
    converted = runs.convert(graph_def)
    assert not converted.reports[0].refusals
    assert not static_variables(GraphView(converted.graph_def))
    actual = runs.losses(converted.graph_def, steps=plain.STEPS)
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=0)
    whole = runs.convert(graph_def, whole=True)
    assert GraphView(whole.graph_def).nodes_of(OP_LOOK_UP_MANY), "nothing was moved into the input pipeline"
    np.testing.assert_array_equal(runs.losses(whole.graph_def, steps=plain.STEPS), actual)


@pytest.mark.parametrize("model", plain.MODELS)
def test_adam_trains_to_the_same_bits(model: str) -> None:
    check(model, "adam", 0.0)


@pytest.mark.parametrize(("model", "optimizer"), SOME_OPTIMIZERS)
def test_other_optimizers_train_to_the_same_losses(model: str, optimizer: str) -> None:
    check(model, optimizer, ROUNDING)


@pytest.mark.parametrize("model", plain.MODELS)
def test_forward_graphs_give_the_same(model: str) -> None:
    graph_def = plain.meta_graph(model).graph_def
    converted = runs.convert(graph_def)
    assert not converted.reports[0].refusals
    expected, actual = (
        runs.losses(graph, ("loss:0",), steps=plain.STEPS) for graph in (graph_def, converted.graph_def)
    )
    np.testing.assert_array_equal(actual, expected)


def test_distinct_ids_make_sgd_exact() -> None:
    check("unique_gather", "sgd", 0.0)


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [("momentum", "keeps a momentum in a slot"), ("rmsprop", "keeps the mean square of RMSProp in a slot")],
)
def test_other_rules_are_refused_and_the_variable_stays(optimizer: str, reason: str) -> None:
    graph_def = plain.meta_graph("lookup_resource", optimizer).graph_def
    result = runs.convert(graph_def)
    assert not result.modified
    assert [reason in refusal.reason for refusal in result.reports[0].refusals] == [True]


def test_a_penalty_on_all_rows_is_refused() -> None:
    with tf.Graph().as_default() as graph:
        batch = plain.batches()
        table = plain.variable("emb")
        loss = plain.error(tf.reduce_sum(tf1.nn.embedding_lookup(table, batch["ids"]), [1, 2]), batch)
        plain.train_step("", loss + tf.nn.l2_loss(table), "adam")
        result = runs.convert(graph.as_graph_def())
    assert not result.modified
    assert "op 'L2Loss' reads all of variable 'emb'" in result.reports[0].refusals[0].reason


def test_rows_by_key_grow_with_the_keys_that_are_seen() -> None:
    graph_def = plain.meta_graph("matrix_factorization", "adam").graph_def
    converted = runs.convert(graph_def, "user", initial_values=BY_KEY).graph_def
    ops.load_library()
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(converted, name="")
        handle = graph.get_tensor_by_name("mx_rec/user/handle:0")
        content = ops.table_export(handle)
        with tf1.Session() as session:
            session.run("begin")
            assert session.run(ops.table_size(handle)) == 0
            seen: set[int] = set()
            for _ in range(plain.STEPS):
                _, ids = session.run(["train", "IteratorGetNext:0"])
                seen.update(ids.reshape(-1).tolist())
            keys, rows, _ = session.run(content)
    assert keys.tolist() == sorted(seen)
    assert len(seen) < plain.ROWS
    assert np.abs(rows[:, : plain.DIM]).max() < 1.0, "initial values of [-0.5, 0.5) and five small steps"
    assert len(np.unique(rows[:, : plain.DIM], axis=0)) == len(seen)


def test_constant_initial_values_need_no_import() -> None:
    graph_def = plain.meta_graph("matrix_factorization", "adam").graph_def
    converted = runs.convert(graph_def, "user_bias").graph_def
    assert not GraphView(converted).nodes_of("MxRecTableImport")
    expected, actual = (runs.losses(graph, steps=plain.STEPS) for graph in (graph_def, converted))
    np.testing.assert_array_equal(actual, expected)


def hashed_words(optimizer: str = "sgd"):
    """Words by their hash into few buckets, and ids by a modulo: both bound a table."""
    with tf.Graph().as_default() as graph:
        data = {"words": np.array([f"w{n}" for n in range(64)]), "ids": np.arange(64) * 1000}
        iterator = tf1.data.make_initializable_iterator(tf.data.Dataset.from_tensor_slices(data).batch(8))
        batch = iterator.get_next()
        buckets = tf1.strings.to_hash_bucket_fast(batch["words"], 10)
        word = tf1.nn.embedding_lookup(plain.variable("word"), buckets)
        number = tf1.nn.embedding_lookup(plain.variable("number"), tf.math.floormod(batch["ids"], 50))
        loss = tf.reduce_mean(tf.square(word - number + 1), name="loss")
        plain.train_step("", loss, optimizer)
        tf.group(tf1.global_variables_initializer(), iterator.initializer, name="begin")
        return graph.as_graph_def()


def test_modulo_and_buckets_are_dropped_on_request() -> None:
    graph_def = hashed_words()
    converted = runs.convert(graph_def, "*", initial_values=BY_KEY, drop_modulo=True).graph_def
    sizes = {}
    ops.load_library()
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(converted, name="")
        with tf1.Session() as session:
            session.run("begin")
            for _ in range(8):
                session.run("train")
            for name in ("word", "number"):
                handle = graph.get_tensor_by_name(f"mx_rec/{name}/handle:0")
                sizes[name] = session.run(ops.table_export(handle).keys)
    assert len(sizes["word"]) == 64
    assert sizes["word"].max() > 10**12
    assert sizes["number"].tolist() == (np.arange(64) * 1000).tolist()


def test_a_modulo_that_something_else_reads_stays() -> None:
    with tf.Graph().as_default() as graph:
        ids = tf1.placeholder(tf.int64, [None])
        bounded = tf.math.floormod(ids, 50)
        tf1.nn.embedding_lookup(plain.variable("emb"), bounded)
        tf.add(bounded, 1, name="else")
        result = runs.convert(graph.as_graph_def(), "*", initial_values=BY_KEY, drop_modulo=True)
    assert not result.modified
    assert result.reports[0].refusals[0].node == "else"
    assert "for another purpose" in result.reports[0].refusals[0].reason


def test_ids_beyond_the_rows_become_keys_if_rows_come_by_key() -> None:
    with tf.Graph().as_default() as graph:
        ids = tf1.placeholder_with_default(np.array([1, 10**12], np.int64), [None], name="ids")
        rows = tf1.nn.embedding_lookup(plain.variable("emb"), ids)
        plain.train_step("", tf.reduce_sum(rows, name="loss"), "sgd")
        tf.group(tf1.global_variables_initializer(), name="begin")
        converted = runs.convert(graph.as_graph_def(), initial_values=BY_KEY).graph_def
    assert np.isfinite(runs.losses(converted, steps=2)).all()
