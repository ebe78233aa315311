"""Ids that are not of the table's `key_dtype`."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tensorflow as tf

from mx_rec.core.asc.feature_spec import FeatureSpec
from mx_rec.core.asc.helper import get_asc_insert_func
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.errors import GraphRewriteError
from mx_rec.graph import modify_graph_and_start_emb_cache
from mx_rec.graph.acg_push_ops import ACGPushOpsToDatasetHook
from mx_rec.graph.hooks import LookupSubgraphSlicerHook, OrphanLookupKeySlicerHook
from mx_rec.graph.modifier import GraphModifierHook
from mx_rec.graph.view import GraphView
from mx_rec.passes import find_lookups
from mx_rec.util.initialize import get_initializer, init, terminate_config_initializer

tf1 = tf.compat.v1
ROWS = np.array([[3, 1], [2**24, 3], [-5, 1]])


@pytest.fixture(autouse=True)
def clean():
    tf1.disable_eager_execution()
    terminate_config_initializer()
    with tf.Graph().as_default():
        yield
    terminate_config_initializer()


def _table(key_dtype=tf.int64):
    return create_table(key_dtype, 4, "user", tf1.random_uniform_initializer(-1, 1, seed=3))


def _rows_of(ids, key_dtype=tf.int64, **options):
    with tf.Graph().as_default():
        init(use_dynamic_expansion=True)
        table = _table(key_dtype)
        result = sparse_lookup(table, ids(), **options)
        with tf1.Session() as session:
            found = session.run(result)
            size = table.size(session)
    terminate_config_initializer()
    return found, size


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.int32])
def test_whole_numbers_of_another_type_are_the_same_keys(dtype):
    expected, size = _rows_of(lambda: tf.constant(ROWS, tf.int64))
    got, got_size = _rows_of(lambda: tf.constant(ROWS, dtype))
    np.testing.assert_array_equal(got, expected)
    assert (size, got_size) == (4, 4)


def test_an_int32_table_takes_floats_too():
    expected, _ = _rows_of(lambda: tf.constant(ROWS, tf.int32), tf.int32)
    got, _ = _rows_of(lambda: tf.constant(ROWS, tf.float32), tf.int32)
    np.testing.assert_array_equal(got, expected)


def test_sparse_and_ragged_ids_are_converted():
    def sparse(dtype):
        return lambda: tf.SparseTensor([[0, 0], [0, 1], [1, 0]], tf.constant([3, 1, -5], dtype), [2, 2])

    def ragged(dtype):
        return lambda: tf.RaggedTensor.from_row_lengths(tf.constant([3, 1, -5], dtype), [2, 1])

    for ids in (sparse, ragged):
        expected, _ = _rows_of(ids(tf.int64), combiner="sum")
        got, _ = _rows_of(ids(tf.float32), combiner="sum")
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("bad", [1.5, float("nan"), float("inf"), -1e30])
def test_what_is_no_key_fails_the_step(bad):
    with pytest.raises(tf.errors.InvalidArgumentError, match="ids of table user must be whole numbers in the"):
        _rows_of(lambda: tf.constant([1.0, bad]))


def test_the_range_of_an_int32_table_holds():
    with pytest.raises(tf.errors.InvalidArgumentError, match="whole numbers in the range of int32"):
        _rows_of(lambda: tf.constant([2.0**31]), tf.int32)


def test_the_log_says_how_far_floats_are_exact(caplog):
    with caplog.at_level(logging.WARNING, "mx_rec"):
        _rows_of(lambda: tf.constant([1.0]))
    assert "table 'user': ids are float32, which holds every whole number up to 16777216 only" in caplog.text


def _batches():
    return tf.data.Dataset.from_tensor_slices({"ids": ROWS.astype(np.int64)}).batch(1).prefetch(2)


def _parsed(ids):
    """As strings and back, which gives float32."""
    return tf1.strings.to_number(tf1.strings.as_string(ids))


@pytest.mark.parametrize("rewritten", [False, True])
def test_the_conversion_moves_with_the_rewrite(rewritten):
    init(use_dynamic_expansion=True)
    iterator = tf1.data.make_initializable_iterator(_batches())
    table = _table()
    result = sparse_lookup(table, _parsed(iterator.get_next()["ids"]), modify_graph=True, is_grad=False)
    if rewritten:
        modify_graph_and_start_emb_cache()
        (lookup,) = find_lookups(GraphView(tf1.get_default_graph().as_graph_def()))
        assert lookup.is_moved
    with tf1.Session() as session:
        session.run(get_initializer(True) if rewritten else iterator.initializer)
        got = np.concatenate([session.run(result) for _ in ROWS])
        assert table.size(session) == 4
    terminate_config_initializer()
    np.testing.assert_array_equal(got, _rows_of(lambda: tf.constant(ROWS, tf.int64))[0])


@pytest.mark.parametrize("older", [False, True])
def test_the_conversion_moves_with_what_a_slicer_names(older, tmp_path, monkeypatch):
    """A lookup of constant ids and one of parsed ids, as an Estimator's hooks move them."""
    monkeypatch.chdir(tmp_path)
    init(use_dynamic_expansion=True)
    ids = tf1.data.make_one_shot_iterator(_batches()).get_next()["ids"]
    constant = tf.constant(1, shape=[1, 2], dtype=tf.int64) + 1 - 1
    table = _table()
    result = [sparse_lookup(table, each, is_grad=False) for each in (_parsed(ids), constant)]
    hooks = [OrphanLookupKeySlicerHook(), LookupSubgraphSlicerHook(["StringToNumber"])]
    if older:
        hooks = [ACGPushOpsToDatasetHook(dump_graph=True)]
    with tf1.train.MonitoredSession(hooks=[*hooks, GraphModifierHook()]) as session:
        got = [session.run(result) for _ in ROWS]
    assert ",yes," in (tmp_path / "orphan_slicing" / "slicing_summary.csv").read_text()
    assert "StringToNumber,StringToNumber,yes," in (tmp_path / "lookup_slicing" / "slicing_summary.csv").read_text()
    terminate_config_initializer()
    expected, _ = _rows_of(lambda: tf.constant(ROWS, tf.int64))
    np.testing.assert_array_equal(np.concatenate([parsed for parsed, _ in got]), expected)
    assert all(np.array_equal(of_one, expected[:1, [1, 1]]) for _, of_one in got)


def test_features_are_converted():
    init(use_dynamic_expansion=True)
    spec = FeatureSpec("ids", table_name="user")
    dataset = _batches().map(lambda batch: {"ids": _parsed(batch["ids"])}).map(get_asc_insert_func([spec]))
    batch = tf1.data.make_one_shot_iterator(dataset).get_next()
    result = sparse_lookup(_table(), spec, batch=batch)
    with tf1.Session() as session:
        got = np.concatenate([session.run(result) for _ in ROWS])
    terminate_config_initializer()
    np.testing.assert_array_equal(got, _rows_of(lambda: tf.constant(ROWS, tf.int64))[0])


def test_the_older_slicer_needs_the_rewrite_after_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    init(use_dynamic_expansion=True)
    sparse_lookup(_table(), tf.constant([1], tf.int64), is_train=False)
    with pytest.raises(TypeError, match="dump_graph"):
        ACGPushOpsToDatasetHook(dump_graph=1)
    with pytest.raises(GraphRewriteError, match="ACGPushOpsToDatasetHook has no effect without the rewrite"):
        tf1.train.MonitoredSession(hooks=[ACGPushOpsToDatasetHook()])
