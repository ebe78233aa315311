"""Tables of fixed capacity: rows in a variable, TensorFlow optimizers on it, with and without the rewrite."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf
from training_harness import FOUR, OPTIMIZERS

from mx_rec import ops
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core import graph_state
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.graph import do_merge_lookup, modify_graph_and_start_emb_cache
from mx_rec.util.initialize import get_initializer, init, terminate_config_initializer
from mx_rec.util.variable import get_dense_and_sparse_variable

tf1 = tf.compat.v1
DIM = 4
STEPS = 6


@pytest.fixture(autouse=True)
def fixed_capacity():
    """mx_rec initialised for fixed capacity in a fresh default graph."""
    tf1.disable_eager_execution()
    terminate_config_initializer()
    with tf.Graph().as_default() as graph:
        init(use_dynamic_expansion=False)
        yield graph
    terminate_config_initializer()


def _table(name="user", capacity=100, initializer=None, **kwargs):
    initializer = initializer or tf1.random_normal_initializer(0.0, 0.3, seed=5)
    return create_table(tf.int64, DIM, name, initializer, device_vocabulary_size=capacity, **kwargs)


# --- With and without the rewrite ---


def _dataset(seed):
    rng = np.random.RandomState(seed)
    columns = {
        "user": rng.randint(-50, 50, size=(48, 3)).astype(np.int64),
        "item": rng.randint(0, 2**40, size=48).astype(np.int64) % 61 - 2**33,
        "y": rng.rand(48).astype(np.float32),
    }
    return tf.data.Dataset.from_tensor_slices(columns).batch(8)


def _initializable():
    iterators = [tf1.data.make_initializable_iterator(_dataset(seed)) for seed in (0, 1)]
    return *(iterator.get_next() for iterator in iterators), *(iterator.initializer for iterator in iterators)


def _one_shot():
    iterators = [tf1.data.make_one_shot_iterator(_dataset(seed).repeat()) for seed in (0, 1)]
    return *(iterator.get_next() for iterator in iterators), tf.no_op(), tf.no_op()


def _from_structure():
    datasets = [_dataset(seed) for seed in (0, 1)]
    iterator = tf1.data.Iterator.from_structure(
        tf1.data.get_output_types(datasets[0]), tf1.data.get_output_shapes(datasets[0])
    )
    batch = iterator.get_next()
    return batch, batch, *(iterator.make_initializer(dataset) for dataset in datasets)


KINDS = {"initializable": _initializable, "one_shot": _one_shot, "from_structure": _from_structure}


def _minimize(optimizer, loss, sparse):
    return optimizer.minimize(loss, var_list=sparse)


def _compute_and_apply(optimizer, loss, sparse):
    return optimizer.apply_gradients(optimizer.compute_gradients(loss, sparse))


def _gradients_and_apply(optimizer, loss, sparse):
    do_merge_lookup(is_train=True)  # as the other ways do by themselves
    return optimizer.apply_gradients(list(zip(tf.gradients(loss, sparse), sparse)))


WAYS = {"minimize": _minimize, "compute_gradients": _compute_and_apply, "tf.gradients": _gradients_and_apply}


def _model(batch, tables, is_train):
    user, item = tables
    with tf1.variable_scope("dense", reuse=tf1.AUTO_REUSE):
        users = sparse_lookup(user, tf.math.floormod(batch["user"] * 7, 37) - 10, is_train=is_train)
        items = sparse_lookup(item, batch["item"], is_train=is_train)
        again = sparse_lookup(user, batch["user"][:, 0], is_train=is_train)
        features = tf.concat([tf.reduce_mean(users, 1), items, again], axis=1)
        weights = tf1.get_variable("w", [12, 1], use_resource=True, initializer=tf1.ones_initializer())
        logits = tf.squeeze(tf.matmul(features, weights), 1)
    return tf.reduce_mean(tf.square(logits - batch["y"]))


def _content(session, table, optimizer, slots):
    """Keys, and by key the row, its slots and its count."""
    exported = table.export(session)
    with table.handle.graph.as_default():
        offsets = ops.offsets(table.handle, table.variable.handle, ops.find(table.handle, exported.keys))
        parts = [table.variable, *(optimizer.get_slot(table.variable, slot) for slot in slots)]
        return [exported.keys, exported.counts, *session.run([tf.gather(part, offsets) for part in parts])]


def _run(kind, name, way, rewrite, prefetch=1, **table_kwargs):
    """Losses of training and evaluation, and the tables' content at the end."""
    terminate_config_initializer()
    init(use_dynamic_expansion=False, prefetch_batch_number=prefetch)
    with tf.Graph().as_default():
        train, evaluation, *starts = KINDS[kind]()
        tables = [_table("user", 150, **table_kwargs), _table("item", 80)]
        loss, eval_loss = _model(train, tables, True), _model(evaluation, tables, False)
        dense, sparse = get_dense_and_sparse_variable()
        assert [variable.op.name for variable in sparse] == ["user", "item"]
        assert [variable.op.name for variable in dense] == ["dense/w"]
        optimizer = OPTIMIZERS[name].on_variable(0.05)
        step = tf.group(
            WAYS[way](optimizer, loss, sparse), tf1.train.AdamOptimizer(0.01).minimize(loss, var_list=dense)
        )
        if rewrite:
            reports = modify_graph_and_start_emb_cache()
            assert {report.name for report in reports if report.modified} >= {"hoist_lookups", "swap_iterators"}
            assert not any(report.refusals for report in reports)
            starts = [get_initializer(True), get_initializer(False)]
        losses = []
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for _ in range(2):
                session.run(starts[0])
                losses.extend(session.run([loss, step])[0] for _ in range(STEPS))
                losses.extend(table.size(session) for table in tables)
                session.run(starts[1])
                losses.extend(session.run(eval_loss) for _ in range(STEPS))
            return losses, [_content(session, table, optimizer, OPTIMIZERS[name].slots) for table in tables]


def _assert_same(plain, rewritten):
    assert plain[0] == rewritten[0]
    for expected, got in zip(plain[1], rewritten[1]):
        for one, other in zip(expected, got):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", FOUR)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_rewrite_changes_no_bit(kind, name):
    plain = _run(kind, name, "minimize", False)
    assert len(set(plain[0])) > 10  # it really trains
    for prefetch in (1, 7):
        _assert_same(plain, _run(kind, name, "minimize", True, prefetch))


@pytest.mark.parametrize("name", FOUR)
def test_ways_to_apply_gradients_are_equal(name):
    plain = _run("initializable", name, "minimize", False)
    for way in ("compute_gradients", "tf.gradients"):
        _assert_same(plain, _run("initializable", name, way, False))
        _assert_same(plain, _run("initializable", name, way, True))


@pytest.mark.parametrize("way", ["minimize", "compute_gradients"])
def test_the_rows_of_all_tables_are_trained_by_default(monkeypatch, way):
    expected = _run("initializable", "lazy_adam", way, False)
    chosen = WAYS[way]
    monkeypatch.setitem(WAYS, way, lambda optimizer, loss, sparse: chosen(optimizer, loss, None))
    _assert_same(expected, _run("initializable", "lazy_adam", way, False))
    _assert_same(expected, _run("initializable", "lazy_adam", way, True))


@pytest.mark.parametrize("name", FOUR)
def test_padding_keys_with_and_without_the_rewrite(name):
    padding = [0, 3, -4, 10**12]
    kwargs = {"padding_keys": padding, "padding_keys_mask": True, "padding_keys_len": 4}
    plain = _run("initializable", name, "minimize", False, **kwargs)
    _assert_same(plain, _run("initializable", name, "minimize", True, 3, **kwargs))
    without = _run("initializable", name, "minimize", False)
    assert plain[0] != without[0]
    keys, _, rows, *slots = plain[1][0]
    initial = _initial_rows(False, keys)
    frozen = np.isin(keys, padding)
    assert frozen.sum() == 3
    np.testing.assert_array_equal(rows[frozen], initial[frozen])
    assert (rows[~frozen] != initial[~frozen]).any(axis=1).all()
    for slot, value in zip(slots, OPTIMIZERS[name].initial):
        np.testing.assert_array_equal(slot[frozen], np.float32(value))


# --- What the variable holds ---


def _initial_rows(by_address, keys, capacity=200, **kwargs):
    terminate_config_initializer()
    init(use_dynamic_expansion=by_address)
    with tf.Graph().as_default(), tf1.Session() as session:
        result = sparse_lookup(_table(capacity=capacity, **kwargs), tf.constant(keys, tf.int64))
        session.run(tf1.global_variables_initializer())
        return session.run(result)


@pytest.mark.parametrize(
    "initializer",
    [
        tf1.random_normal_initializer(0.0, 0.3, seed=5),
        tf1.truncated_normal_initializer(0.0, 0.3, seed=6),
        tf1.random_uniform_initializer(-1, 1, seed=7),
        tf1.constant_initializer(0.25),
        tf1.glorot_uniform_initializer(seed=8),
    ],
    ids=lambda value: type(value).__name__,
)
def test_initial_rows_are_equal_in_both_storage_modes(initializer):
    keys = np.array([0, -5, 2**62, *range(100)])
    expected = _initial_rows(True, keys, initializer=initializer, init_param=0.5)
    np.testing.assert_array_equal(expected, _initial_rows(False, keys, initializer=initializer, init_param=0.5))
    shuffled = np.random.RandomState(0).permutation(len(keys))
    got = _initial_rows(False, keys[shuffled], initializer=initializer, init_param=0.5)
    np.testing.assert_array_equal(expected[shuffled], got)


def test_the_variable_is_global_and_not_trainable():
    table = _table(capacity=30)
    assert table.variable.shape.as_list() == [30, DIM]
    assert table.variable not in tf1.global_variables()  # it is saved with the table's keys, not by its capacity
    assert tf1.trainable_variables() == []
    assert get_dense_and_sparse_variable() == ([], [table.variable])


@pytest.mark.parametrize(("sizes", "capacity"), [((7, 0, 0), 7), ((7, 20, 0), 20), ((7, 20, 30), 50)])
def test_capacity(sizes, capacity):
    device, host, ssd = sizes
    table = _table(capacity=device, host_vocabulary_size=host, ssd_vocabulary_size=ssd)
    with tf1.Session() as session:
        assert table.capacity(session) == capacity
    assert table.variable.shape.as_list() == [capacity, DIM]


def test_running_the_initializers_of_rows_and_slots_starts_them_anew():
    table = _table()
    result = sparse_lookup(table, tf.range(10, dtype=tf.int64))
    step = OPTIMIZERS["lazy_adam"].on_variable(0.5).minimize(tf.reduce_sum(result), var_list=[table.variable])
    slots = graph_state.state_of(table.handle.graph).slots["user"]
    initializer = tf.group(*(each.initializer for each in (table.variable, *slots.variables, slots.steps)))
    with tf1.Session() as session:
        first = session.run(result)
        losses = [session.run([result, step])[0] for _ in range(3)]
        assert not np.array_equal(session.run(result), first)
        session.run(initializer)
        np.testing.assert_array_equal(session.run(result), first)
        again = [session.run([result, step])[0] for _ in range(3)]
        np.testing.assert_array_equal(again, losses)
        assert table.size(session) == 10


def test_global_variables_initializer_leaves_tables_alone():
    """As it does with tables that grow; nor do lookups and updates wait for it."""
    table = _table()
    result = sparse_lookup(table, tf.range(10, dtype=tf.int64))
    missing = sparse_lookup(table, tf.constant([77], tf.int64), is_train=False)
    step = OPTIMIZERS["adagrad"].on_variable(0.5).minimize(tf.reduce_sum(result), var_list=[table.variable])
    with tf1.Session() as session:
        np.testing.assert_array_equal(session.run(missing), np.zeros([1, DIM]))
        first = session.run(result)
        session.run(step)
        trained = session.run(result)
        assert not np.array_equal(trained, first)
        session.run(tf1.global_variables_initializer())
        np.testing.assert_array_equal(session.run(result), trained)


def test_saver_keeps_the_rows(tmp_path):
    """They are saved with the table's keys; see tests/checkpoint for the rest."""
    table = _table(capacity=10)
    result = sparse_lookup(table, tf.range(4, dtype=tf.int64))
    step = OPTIMIZERS["adagrad"].on_variable(0.5).minimize(tf.reduce_sum(result), var_list=[table.variable])
    saver = tf1.train.Saver()
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run(step)
        rows = session.run(result)
        path = saver.save(session, str(tmp_path / "model"))
        session.run(step)
        assert not np.array_equal(session.run(result), rows)
        saver.restore(session, path)
        np.testing.assert_array_equal(session.run(result), rows)


# --- A full table ---


@pytest.mark.parametrize("name", FOUR)
def test_a_full_table_says_so_and_stays_usable(name):
    table = _table(capacity=10)
    ids = tf1.placeholder(tf.int64, [None])
    result = sparse_lookup(table, ids)
    step = OPTIMIZERS[name].on_variable(0.1).minimize(tf.reduce_sum(result), var_list=[table.variable])
    read = sparse_lookup(table, ids, is_train=False)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run(step, {ids: np.arange(8)})
        before = session.run(read, {ids: np.arange(8)})
        for _ in range(2):
            with pytest.raises(tf.errors.ResourceExhaustedError) as error:
                session.run(step, {ids: np.arange(4, 20)})
            for part in (
                "table 'user' is full",
                "capacity is 10",
                "holds 10 keys",
                "larger device_vocabulary_size",
                r"init(use_dynamic_expansion=True)",
            ):
                assert part in str(error.value)
        np.testing.assert_array_equal(session.run(read, {ids: np.arange(8)}), before)
        assert table.size(session) == table.capacity(session) == 10
        assert np.count_nonzero(session.run(read, {ids: np.arange(8, 20)}).any(axis=1)) == 2
        session.run(step, {ids: np.arange(8)})
        after = session.run(read, {ids: np.arange(8)})
        assert (after != before).all()
        assert np.isfinite(after).all()


# --- Evaluation, sessions, threads ---


@pytest.mark.parametrize("default", [None, 7.0, [1.0, 2.0, 3.0, 4.0]])
def test_evaluation_reads_the_serving_default_and_never_inserts(default):
    table = _table(capacity=3)
    ids = tf1.placeholder(tf.int64, [None, None])
    train = sparse_lookup(table, ids)
    read = sparse_lookup(table, ids, is_train=False, serving_default_value=default)
    expected = np.broadcast_to(np.float32(0.0 if default is None else default), [DIM])
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        row = session.run(train, {ids: [[1]]})[0, 0]
        many = np.arange(1, 1001).reshape(2, 500)
        rows = session.run(read, {ids: many})
        np.testing.assert_array_equal(rows[0, 0], row)
        np.testing.assert_array_equal(rows.reshape(-1, DIM)[1:], np.broadcast_to(expected, [999, DIM]))
        assert table.size(session) == 1
        session.run(train, {ids: [[2, 3]]})
        np.testing.assert_array_equal(session.run(read, {ids: [[9, 1]]})[0], [expected, row])
        assert session.run(read, {ids: np.zeros([3, 0])}).shape == (3, 0, DIM)


def test_two_sessions_have_tables_of_their_own():
    table = _table(capacity=5)
    ids = tf1.placeholder(tf.int64, [None])
    result = sparse_lookup(table, ids)
    step = OPTIMIZERS["sgd"].on_variable(0.5).minimize(tf.reduce_sum(result), var_list=[table.variable])
    with tf1.Session() as one, tf1.Session() as two:
        for session in (one, two):
            session.run(tf1.global_variables_initializer())
        one.run(step, {ids: [1, 2, 3]})
        two.run(result, {ids: [3, 4, 5, 6, 7]})
        assert (table.size(one), table.size(two)) == (3, 5)
        with pytest.raises(tf.errors.ResourceExhaustedError):
            two.run(result, {ids: [1]})
        trained, initial = one.run(result, {ids: [3]}), two.run(result, {ids: [3]})
        np.testing.assert_allclose(trained, initial - 0.5, rtol=1e-6)


def test_threads_fill_one_table():
    capacity = 4000
    expected = _initial_rows(False, np.arange(capacity), capacity)
    table = _table(capacity=capacity)
    ids = tf1.placeholder(tf.int64, [None])
    result = sparse_lookup(table, ids)
    read = sparse_lookup(table, ids, is_train=False)
    offsets = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)[0]
    failures = []

    def insert(session, seed):
        rng = np.random.RandomState(seed)
        try:
            for batch in range(25):
                keys = rng.randint(0, 160 * (batch + 1), size=400)
                np.testing.assert_array_equal(session.run(result, {ids: keys}), expected[keys])
                np.testing.assert_array_equal(session.run(read, {ids: keys}), expected[keys])
        except Exception as error:  # surfaced below
            failures.append(error)

    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        threads = [threading.Thread(target=insert, args=(session, seed)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        np.testing.assert_array_equal(session.run(result, {ids: np.arange(capacity)}), expected)
        places = session.run(offsets, {ids: np.arange(capacity)})
        assert sorted(places.tolist()) == list(range(capacity))
        assert table.size(session) == capacity


# --- Optimizers and parameters ---


def test_the_collections_hold_rows_of_the_variable():
    table = _table()
    sparse_lookup(table, tf.constant([3, 3, 4], tf.int64))
    sparse_lookup(table, tf.constant([3], tf.int64), is_train=False)
    sparse_lookup(table, tf.constant([3], tf.int64), is_grad=False)
    (embeddings,) = tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
    (offsets,) = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        rows, places = session.run([embeddings, offsets])
        variable = session.run(table.variable)
    assert places.shape == (2,)
    np.testing.assert_array_equal(rows, variable[places])


@pytest.mark.parametrize("name", ["sgd_decay", "lazy_adam", "adagrad", "ftrl"])
def test_our_optimizers_train_no_dense_variable(name):
    weights = tf1.get_variable("w", [2], use_resource=True)
    with pytest.raises(NotImplementedError, match="w:0: this optimizer updates rows of tables only"):
        OPTIMIZERS[name].on_variable(0.1).minimize(tf.reduce_sum(weights), var_list=[weights])


def test_tensorflows_optimizers_train_the_rows_too():
    table = _table()
    result = sparse_lookup(table, tf.constant([1, 2, 1], tf.int64))
    step = tf1.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(result), var_list=[table.variable])
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        before = session.run(result)
        session.run(step)
        np.testing.assert_allclose(session.run(result), before - 0.1, rtol=1e-4)


def test_two_tables_may_have_two_optimizers():
    one, two = _table("one"), _table("two")
    ids = tf.constant([1, 2], tf.int64)
    results = [sparse_lookup(table, ids) for table in (one, two)]
    loss = tf.reduce_sum(results[0]) + tf.reduce_sum(results[1])
    steps = [
        OPTIMIZERS["sgd"].on_variable(0.5).minimize(loss, var_list=[one.variable]),
        OPTIMIZERS["adagrad"].on_variable(0.5).minimize(loss, var_list=[two.variable]),
    ]
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        before = session.run(results)
        session.run(steps)
        after = session.run(results)
    np.testing.assert_allclose(before[0] - after[0], 0.5, rtol=1e-5)
    np.testing.assert_allclose(before[1] - after[1], 0.5 / np.sqrt(1.7), rtol=1e-5)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"padding_keys_mask": True}, ValueError, "'user': padding_keys_mask=True needs padding_keys and padding_keys"),
        ({"padding_keys": 0, "padding_keys_mask": True}, ValueError, "needs padding_keys and padding_keys_len, got"),
        ({"padding_keys_len": 1, "padding_keys_mask": True}, ValueError, "needs padding_keys and padding_keys_len"),
        ({"padding_keys": [0, 1], "padding_keys_len": 1.5}, TypeError, "padding_keys_len must be an integer"),
        ({"padding_keys": [0, 1.5]}, TypeError, "padding_keys must be an integer"),
        ({"padding_keys": 2**63}, ValueError, "padding_keys must be in"),
        ({"padding_keys_mask": 1}, TypeError, "padding_keys_mask must be a bool"),
        ({"padding_keys": 0, "padding_keys_len": 0}, ValueError, "padding_keys_len"),
        ({"padding_keys": True}, TypeError, "padding_keys must be an integer"),
        ({"enable_merge": True}, RuntimeError, "'user': enable_merge needs init.use_dynamic_expansion=True."),
        ({"enable_merge": 1}, TypeError, "enable_merge must be a bool"),
    ],
)
def test_padding_parameters_are_checked(kwargs, error, message):
    with pytest.raises(error, match=message):
        _table(**kwargs)


def test_padding_keys_of_int32_tables():
    with pytest.raises(ValueError, match=r"padding_keys must be in \[-2147483648, 2147483647\], got 2147483648"):
        create_table(tf.int32, DIM, "user", tf1.zeros_initializer(), padding_keys=[2**31])
    table = create_table(
        tf.int32,
        DIM,
        "user",
        tf1.ones_initializer(),
        device_vocabulary_size=5,
        padding_keys=np.array([-1, 7, -1]),
        padding_keys_mask=True,
        padding_keys_len=3,
    )
    assert table.padding_keys == (-1, 7)


def test_padding_keys_without_mask_are_keys_like_others():
    table = _table(padding_keys=[1, 2], padding_keys_len=2)
    assert table.padding_keys == ()
    result = sparse_lookup(table, tf.constant([1, 5], tf.int64))
    step = OPTIMIZERS["sgd"].on_variable(0.5).minimize(tf.reduce_sum(result), var_list=[table.variable])
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        before = session.run(result)
        session.run(step)
        np.testing.assert_allclose(session.run(result), before - 0.5, rtol=1e-5)


def test_the_length_of_padding_keys_may_be_that_of_the_ids():
    """A device needs it to be; it says nothing of the padding keys."""
    table = _table(padding_keys=[3, 3, 0], padding_keys_mask=True, padding_keys_len=4096)
    assert table.padding_keys == (0, 3)
