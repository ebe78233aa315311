"""`init(use_dynamic=False)`: shapes are known and the number of distinct keys of a batch is bounded."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.graph import do_merge_lookup, modify_graph_and_start_emb_cache
from mx_rec.optimizers import lazy_adam, lazy_adam_by_addr
from mx_rec.util.initialize import get_initializer, init, terminate_config_initializer

tf1 = tf.compat.v1
BATCH, STEPS, DIM = 8, 6, 4
TABLES = ("user", "item")


@pytest.fixture(autouse=True)
def clean():
    tf1.disable_eager_execution()
    terminate_config_initializer()
    with tf.Graph().as_default():
        yield
    terminate_config_initializer()


def _ids() -> np.ndarray:
    return np.random.RandomState(0).randint(-20, 20, size=(BATCH * STEPS, 3)).astype(np.int64)


def _train(is_dynamic: bool, expansion: bool, is_rewritten: bool, send_count=None, evaluates=True) -> tuple[list, dict]:
    """(losses of training and results of evaluation, rows by key) of a small model with two tables."""
    with tf.Graph().as_default():
        init(use_dynamic=is_dynamic, use_dynamic_expansion=expansion)
        dataset = tf.data.Dataset.from_tensor_slices(_ids()).batch(BATCH, drop_remainder=True)
        iterator = tf1.data.make_initializable_iterator(dataset)
        ids = iterator.get_next()
        normal = tf1.random_normal_initializer(0.0, 0.3, seed=5)
        tables = [create_table(tf.int64, DIM, name, normal, device_vocabulary_size=100) for name in TABLES]
        rows = [sparse_lookup(table, ids + n, send_count) for n, table in enumerate(tables)]
        known = tf.constant(_ids()[:BATCH])
        read = [sparse_lookup(table, known - n, send_count, is_train=False) for n, table in enumerate(tables)]
        loss = tf.reduce_sum(tf.square(tf.concat(rows, -1) - 0.5))
        if expansion:
            gradients = tf.gradients(loss, tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB))
            addresses = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
            optimizer = lazy_adam_by_addr.create_hash_optimizer_by_address(0.1)
            step = optimizer.apply_gradients(list(zip(gradients, addresses)))
        else:
            variables = [table.variable for table in tables]
            optimizer = lazy_adam.create_hash_optimizer(0.1)
            step = optimizer.apply_gradients(optimizer.compute_gradients(loss, variables))
        start = iterator.initializer
        if is_rewritten:
            modify_graph_and_start_emb_cache()
            start = get_initializer(True)
        with tf1.Session() as session:
            session.run([tf1.global_variables_initializer(), start])
            losses = [session.run([loss, step])[0] for _ in range(STEPS)]
            if evaluates:
                losses += session.run(read)
            contents = {table.table_name: table.export(session) for table in tables}
        terminate_config_initializer()
        return losses, contents


@pytest.mark.parametrize("expansion", [True, False])
def test_static_equals_dynamic_with_and_without_the_rewrite(expansion):
    expected = _train(True, expansion, is_rewritten=False)
    np.testing.assert_equal(_train(False, expansion, is_rewritten=False, send_count=24), expected)
    np.testing.assert_equal(_train(False, expansion, is_rewritten=True, send_count=24), expected)


@pytest.mark.parametrize("expansion", [True, False])
@pytest.mark.parametrize("is_rewritten", [True, False])
def test_too_many_distinct_keys_name_the_table_and_both_numbers(expansion, is_rewritten):
    most = max(len(np.unique(batch)) for batch in _ids().reshape(STEPS, -1))
    _train(False, expansion, is_rewritten, send_count=most)
    terminate_config_initializer()
    wanted = r"table '(user|item)': the batch has \d+ distinct keys, but send_count is 5; raise send_count"
    with pytest.raises(tf.errors.InvalidArgumentError, match=wanted) as raised:
        _train(False, expansion, is_rewritten, send_count=5, evaluates=False)
    node = raised.value.node_def
    if is_rewritten and expansion:  # lookups of tables of fixed capacity stay single
        assert (node.name, node.op) == ("mx_rec/look_up_train", "MxRecLookUpMany")
    else:
        assert node.op == "MxRecFindOrInsert"


def test_a_batch_that_is_too_large_leaves_the_table_alone():
    init(use_dynamic=False, use_dynamic_expansion=True)
    table = create_table(tf.int64, DIM, "user", tf1.zeros_initializer())
    ids = tf1.placeholder(tf.int64, [4])
    rows = sparse_lookup(table, ids, send_count=2)
    with tf1.Session() as session:
        session.run(rows, {ids: [1, 2, 1, 2]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="'user': the batch has 3 distinct keys.* is 2"):
            session.run(rows, {ids: [1, 2, 3, 1]})
        content = table.export(session)
        np.testing.assert_array_equal(content.keys, [1, 2])


def test_a_merged_lookup_has_the_sum_of_the_bounds():
    init(use_dynamic=False, use_dynamic_expansion=True)
    table = create_table(tf.int64, DIM, "user", tf1.ones_initializer())
    fed = tf1.data.make_one_shot_iterator(tf.data.Dataset.from_tensors(np.arange(6)).repeat()).get_next()
    results = [sparse_lookup(table, ids, send_count=3) for ids in (fed[:3], fed[3:])]
    do_merge_lookup()
    (addresses,) = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
    assert addresses.op.get_attr("max_keys") == 6
    with tf1.Session() as session:
        np.testing.assert_array_equal(session.run(results), np.ones([2, 3, DIM]))


@pytest.mark.parametrize(
    ("shape", "send_count", "error", "message"),
    [
        ([4], None, ValueError, r"table 'user': init\(use_dynamic=False\) needs sparse_lookup\(send_count=\)"),
        ([4], 0, ValueError, r"send_count must be in \[1, 2147483647\], got 0"),
        ([4], 1.5, TypeError, "send_count must be an integer"),
        ([None], 4, ValueError, r"table 'user': init\(use_dynamic=False\) needs ids of a known shape, got \(None,\)"),
        (None, 4, ValueError, "needs ids of a known shape, got <unknown>"),
    ],
)
def test_what_static_mode_needs(shape, send_count, error, message):
    init(use_dynamic=False, use_dynamic_expansion=True)
    table = create_table(tf.int64, DIM, "user", tf1.zeros_initializer())
    with pytest.raises(error, match=message):
        sparse_lookup(table, tf1.placeholder(tf.int64, shape), send_count)


def test_dynamic_mode_has_no_bound():
    init(use_dynamic_expansion=True)
    table = create_table(tf.int64, DIM, "user", tf1.zeros_initializer())
    ids = tf1.placeholder(tf.int64, [None])
    rows = sparse_lookup(table, ids, send_count=1)
    with tf1.Session() as session:
        assert session.run(rows, {ids: [1, 2, 3]}).shape == (3, DIM)
