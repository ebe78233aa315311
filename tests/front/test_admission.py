"""Admission and eviction in scripts, beside a plain model of the rules of docs/faae.md."""

from __future__ import annotations

import dataclasses
import itertools
import os
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from mx_rec.constants.constants import ASCEND_TIMESTAMP
from mx_rec.core.asc.feature_spec import FeatureSpec
from mx_rec.core.asc.helper import get_asc_insert_func
from mx_rec.core.asc.manager import start_asc_pipeline
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.core.feature_process import EvictHook, evict, set_threshold
from mx_rec.graph import modify_graph_and_start_emb_cache
from mx_rec.optimizers import adagrad, ftrl, gradient_descent, gradient_descent_by_addr, lazy_adam, lazy_adam_by_addr
from mx_rec.util.initialize import (
    get_initializer,
    get_target_batch,
    init,
    terminate_config_initializer,
    trigger_evict,
)
from mx_rec.util.ops import import_host_pipeline_ops
from mx_rec.util.variable import get_dense_and_sparse_variable

tf1 = tf.compat.v1
DIM = 2
RATE = 0.125
INITIAL, DEFAULT = 0.5, -7.0
STEPS, BATCH = 24, 6
KEYS = 60


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    tf1.disable_eager_execution()
    monkeypatch.delenv("USE_COMBINE_FAAE", raising=False)
    terminate_config_initializer()
    with tf.Graph().as_default():
        yield
    terminate_config_initializer()


def _arrays(seed, steps=STEPS):
    rng = np.random.RandomState(seed)
    now = 1000 + np.cumsum(rng.randint(0, 6, size=[steps, BATCH]).reshape(-1)).reshape(steps, BATCH)
    return {
        "ids": rng.zipf(1.3, size=[steps, BATCH, 3]).astype(np.int64) % KEYS,
        "other": rng.zipf(1.3, size=[steps, BATCH]).astype(np.int64) % KEYS,
        "time": now.max(axis=1).astype(np.int64),
        "times": (now - rng.randint(0, 9, size=now.shape)).astype(np.int64),
    }


class Model:
    """What a table has to hold: counts, times, and values that go down by RATE for each trained occurrence."""

    def __init__(self, threshold, eviction, coefficients=(1, 1)):
        self.threshold, self.eviction, self.coefficients = threshold, eviction, coefficients
        self.frozen = threshold == 0
        self.count, self.time, self.row = {}, {}, {}
        self.newest = 0

    def step(self, lookups, times):
        """One step with several lookups of one table, each of occurrences; returns what each reads."""
        for ids, coefficient in zip(lookups, self.coefficients):
            for sample, keys in enumerate(ids):
                now = times[sample]
                self.newest = max(self.newest, now)
                for key in np.ravel(keys):
                    if self.frozen and key not in self.count and self.threshold > 0:
                        continue
                    self.count[key] = self.count.get(key, 0) + (0 if self.frozen else coefficient)
                    self.time[key] = max(self.time.get(key, 0), now)
        for key in np.concatenate([np.ravel(ids) for ids in lookups]):
            if self.count.get(key, 0) >= self.threshold and key in self.count:
                self.row.setdefault(key, INITIAL)
        read = [np.vectorize(lambda key: self.row.get(key, DEFAULT))(ids) for ids in lookups]
        for ids in lookups:
            for key in np.ravel(ids):
                if key in self.row:
                    self.row[key] -= RATE
        return read

    def evict(self):
        gone = [key for key, last in self.time.items() if self.newest - last >= self.eviction]
        had_rows = sum(key in self.row for key in gone)
        for key in gone:
            del self.count[key], self.time[key]
            self.row.pop(key, None)
        return had_rows


@dataclasses.dataclass
class Script:
    """What a training script holds once its graph is built."""

    table: object
    results: list
    step: tf.Operation
    start: tf.Operation
    evaluated: tf.Tensor


def _thresholds(access, eviction, coefficient=1):
    return {"access_threshold": access, "eviction_threshold": eviction, "faae_coefficient": coefficient}


def _sum_after(rows):
    """A sum whose gradient, 1, waits for the rows: so the rows of a run are read before they are updated."""
    return tf.reduce_sum(rows * tf.stop_gradient(1.0 + tf.minimum(tf.abs(rows), 0.0)))


def _optimizer(is_dynamic):
    if is_dynamic:
        return gradient_descent_by_addr.create_hash_optimizer_by_addr(RATE, weight_decay=0.0)
    return gradient_descent.create_hash_optimizer(RATE)


def _build(is_dynamic, is_feature, is_rewritten, *, access=3, eviction=20, per_sample=False, coefficients=(1, 1)):
    init(use_dynamic_expansion=is_dynamic, prefetch_batch_number=4)
    arrays = _arrays(0)
    dataset = tf.data.Dataset.from_tensor_slices(arrays)
    time_key = "times" if per_sample else "time"
    specs = [
        FeatureSpec(name, table_name="t", **_thresholds(access, eviction, coefficient))
        for name, coefficient in zip(("ids", "other"), coefficients)
    ]
    if is_feature:
        dataset = dataset.map(get_asc_insert_func([*specs, FeatureSpec(time_key, is_timestamp=True)]))
    iterator = tf1.data.make_initializable_iterator(dataset)
    batch = iterator.get_next()
    if not is_feature:
        tf1.add_to_collection(ASCEND_TIMESTAMP, batch[time_key] + 0 if per_sample else batch[time_key])
    table = create_table(
        tf.int64, DIM, "t", tf1.constant_initializer(INITIAL), device_vocabulary_size=1 if is_dynamic else 3 * KEYS
    )
    results = []
    for spec, coefficient in zip(specs, coefficients):
        options = {"serving_default_value": DEFAULT, "name": spec.name}
        if is_feature:
            results.append(sparse_lookup(table, spec, batch=batch, **options))
        else:
            config = _thresholds(access, eviction, coefficient)
            results.append(sparse_lookup(table, batch[spec.name], access_and_evict_config=config, **options))
    evaluated = sparse_lookup(
        table, tf.range(KEYS, dtype=tf.int64), is_train=False, serving_default_value=DEFAULT, name="evaluated"
    )
    loss = tf.add_n([_sum_after(result) for result in results])
    step = _optimizer(is_dynamic).minimize(loss, var_list=None if is_dynamic else get_dense_and_sparse_variable()[1])
    start = iterator.initializer
    if is_rewritten:
        reports = start_asc_pipeline() if is_feature else modify_graph_and_start_emb_cache()
        moved = next(report for report in reports if report.name == "hoist_lookups")
        assert moved.modified and not any("'ids'" in str(refusal) for refusal in moved.refusals), moved
        start = get_initializer(True)
    return Script(table, results, step, start, evaluated)


MODES = list(itertools.product([True, False], [True, False], [True, False]))


def _check_content(session, script, model):
    history = script.table.history(session)
    assert set(history.keys) == set(model.count)
    assert dict(zip(history.keys, history.counts)) == model.count
    assert dict(zip(history.keys, history.times)) == model.time
    assert set(history.keys[history.has_row]) == set(model.row)
    assert script.table.size(session) == len(model.row)


@pytest.mark.parametrize(("is_dynamic", "is_feature", "is_rewritten"), MODES)
@pytest.mark.parametrize(
    ("access", "per_sample", "coefficients"),
    [(3, False, (1, 1)), (5, True, (2, 2)), (None, False, (1, 1)), (4, False, (1, 3))],
)
def test_a_stream_is_trained_as_the_model_says(
    is_dynamic, is_feature, is_rewritten, access, per_sample, coefficients
) -> None:
    script = _build(
        is_dynamic, is_feature, is_rewritten, access=access, per_sample=per_sample, coefficients=coefficients
    )
    model = Model(1 if access is None else access, 20, coefficients)
    arrays = _arrays(0)
    evicted = 0
    # Else the lookups are two, and each admits keys when it has counted its own.
    is_merged = coefficients[0] == coefficients[1] and not per_sample
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for _ in range(2):
            session.run(script.start)
            for number in range(STEPS):
                times = arrays["times"][number] if per_sample else np.full(BATCH, arrays["time"][number])
                expected = model.step([arrays["ids"][number], arrays["other"][number]], times)
                *read, _ = session.run([*script.results, script.step])
                if is_merged:
                    for ours, theirs in zip(read, expected):
                        np.testing.assert_array_equal(ours[..., 0], theirs)
                if number % 4 == 3:
                    count = evict(session)
                    assert count == {"t": model.evict()}
                    evicted += count["t"]
                    known = session.run(script.evaluated)  # reads, and counts nothing
                    expected = [model.row.get(key, DEFAULT) for key in range(KEYS)]
                    if is_merged:
                        np.testing.assert_array_equal(known[:, 1], expected)
                if access is not None:
                    _check_content(session, script, model)
        assert evicted > 10
        assert script.table.memory().evicted_keys == evicted


@pytest.mark.parametrize("is_rewritten", [False, True])
def test_thresholds_change_while_training(is_rewritten) -> None:
    script = _build(True, False, is_rewritten, access=3)
    given = tf1.placeholder(tf.int32, [None])
    change = import_host_pipeline_ops().set_threshold(given, emb_name="t", ids_name="ids")
    assert change.dtype == tf.int32
    assert change.shape == []
    change_all = set_threshold(given)
    model, arrays = Model(3, 20), _arrays(0)
    with tf1.Session() as session:
        session.run(script.start)
        for number in range(STEPS):
            if number in (5, 9, 14):
                threshold = {5: 0, 9: 6, 14: 1}[number]
                in_force = session.run(change_all if number == 9 else change, {given: [threshold, 77]})
                model.frozen = threshold == 0
                model.threshold = threshold or model.threshold
                assert in_force == model.threshold
            lookups = [arrays["ids"][number], arrays["other"][number]]
            expected = model.step(lookups, np.full(BATCH, arrays["time"][number]))
            *read, _ = session.run([*script.results, script.step])
            for ours, theirs in zip(read, expected):
                np.testing.assert_array_equal(ours[..., 0], theirs)
            _check_content(session, script, model)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"table 't'.*must be in \[0, 2147483647\], got -1"):
            session.run(change, {given: [-1]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="must have an element"):
            session.run(change, {given: []})


def test_set_threshold_names_what_there_is() -> None:
    _build(True, False, False)
    create_table(tf.int64, DIM, "plain", tf1.zeros_initializer())
    with pytest.raises(ValueError, match="no table 'u'; it has 't', 'plain'"):
        set_threshold(3, emb_name="u")
    with pytest.raises(ValueError, match="no lookup 'idz' of table 't'; there are 'ids', 'other', 'evaluated'"):
        set_threshold(3, emb_name="t", ids_name="idz")
    with pytest.raises(ValueError, match="table 'plain' has no admission"):
        set_threshold(3, emb_name="plain")
    terminate_config_initializer()
    with tf.Graph().as_default():
        init(use_dynamic_expansion=True)
        nothing = set_threshold([4])
        with tf1.Session() as session:
            assert session.run(nothing) == 4


def test_threshold_zero_admits_all_and_counts_nothing() -> None:
    script = _build(False, False, True, access=0)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run(script.start)
        *read, _ = session.run([*script.results, script.step])
        assert all((rows == INITIAL).all() for rows in read)
        history = script.table.history(session)
        assert history.has_row.all() and not history.counts.any() and (history.times > 0).all()
        assert evict(session) == {"t": 0}


def test_host_ops() -> None:
    module = import_host_pipeline_ops("any")
    before = int(time.time())
    now = module.return_timestamp(tf.zeros([2, 3], tf.int64))
    with tf1.Session() as session:
        value = session.run(now)
        session.run(module.clear_channel(channel_id=1))
    assert value.dtype == np.int64
    assert value.shape == (2, 3)
    assert before <= value[0, 0] <= time.time()


@pytest.mark.parametrize("name", ["lazy_adam", "adagrad", "ftrl"])
@pytest.mark.parametrize("is_rewritten", [False, True])
def test_slots_of_a_reused_row_begin_anew(name, is_rewritten) -> None:
    """Where slots are variables: every key is trained as in a table of its own that never saw another."""
    make = {
        "lazy_adam": lambda: lazy_adam.create_hash_optimizer(0.1),
        "adagrad": lambda: adagrad.create_hash_optimizer(0.1),
        "ftrl": lambda: ftrl.create_hash_optimizer(0.1),
    }[name]

    def run(evicts, batches):
        terminate_config_initializer()
        with tf.Graph().as_default():
            init(use_dynamic_expansion=False)
            dataset = tf.data.Dataset.from_generator(
                lambda: ((np.array(keys, np.int64), 10 * step) for step, keys in enumerate(batches)),
                output_types=(tf.int64, tf.int64),
                output_shapes=([None], []),
            )
            iterator = tf1.data.make_initializable_iterator(dataset)
            ids, now = iterator.get_next()
            tf1.add_to_collection(ASCEND_TIMESTAMP, now)
            table = create_table(tf.int64, DIM, "t", tf1.constant_initializer(INITIAL), device_vocabulary_size=6)
            rows = sparse_lookup(table, ids, access_and_evict_config=_thresholds(None, 20))
            step = make().minimize(tf.reduce_sum(rows * rows), var_list=[table.variable])
            if is_rewritten:
                modify_graph_and_start_emb_cache()
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                session.run(iterator.initializer)
                read = []
                for number in range(len(batches)):
                    read.append(session.run([rows, step])[0])
                    if number in evicts:
                        evict(session)
                return read

    # Key 3 goes after step 2 (time 20), keys 1 and 2 after step 3; 8 gets a row of theirs. LazyAdam's powers age by
    # steps alone, so the number of steps is the same.
    reused = run({2, 3}, [[1, 2, 3], [1, 2], [4, 5, 6], [6, 5, 7], [8], [8]])
    fresh = run(set(), [[20], [21], [22], [23], [8], [8]])
    np.testing.assert_array_equal(reused[4], np.full([1, DIM], INITIAL))
    np.testing.assert_array_equal(reused[5], fresh[5])
    assert not (fresh[5] == INITIAL).any()


def test_optimizers_of_tensorflow_train_admitted_keys_alone() -> None:
    init(use_dynamic_expansion=False)
    ids = tf1.placeholder(tf.int64, [None])
    table = create_table(tf.int64, DIM, "t", tf1.constant_initializer(INITIAL), device_vocabulary_size=9)
    rows = sparse_lookup(table, ids, access_and_evict_config=_thresholds(2, None), serving_default_value=DEFAULT)
    step = tf1.train.AdamOptimizer(0.1).minimize(_sum_after(rows), var_list=[table.variable])
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        assert (session.run([rows, step], {ids: [5, 6]})[0] == DEFAULT).all()
        np.testing.assert_array_equal(session.run(table.variable), np.zeros([9, DIM]))
        read = session.run([rows, step], {ids: [6, 7, 8]})[0]
        assert read[:, 0].tolist() == [INITIAL, DEFAULT, DEFAULT]
        assert table.size(session) == 1
        assert np.count_nonzero(session.run(table.variable).any(axis=1)) == 1


def test_features_need_no_timestamp_without_eviction_and_a_clear_error_with_it() -> None:
    script = _build(True, False, True, eviction=None)
    with tf1.Session() as session:
        session.run(script.start)
        session.run(script.step)
        with pytest.raises(ValueError, match="table 't' has no eviction_threshold"):
            evict(session, ["t"])
        with pytest.raises(ValueError, match="no table 'u'; it has 't'"):
            evict(session, ["u"])
        assert evict(session) == {}


def _lookup_without_time(eviction=5, ids=None):
    init(use_dynamic_expansion=True)
    ids = tf1.placeholder(tf.int64, [None]) if ids is None else ids
    table = create_table(tf.int64, DIM, "t", tf1.zeros_initializer())
    return ids, table, sparse_lookup(table, ids, name="late", access_and_evict_config=_thresholds(None, eviction))


def test_a_missing_timestamp_is_named() -> None:
    _, table, _ = _lookup_without_time()
    with pytest.raises(ValueError, match="table 't': lookup 'late' has an eviction_threshold, which needs the time"):
        EvictHook(True).begin()
    with tf1.Session() as session, pytest.raises(ValueError, match="lookup 'late' has no timestamp"):
        evict(session)
    with pytest.raises(ValueError, match="has an eviction_threshold, which needs the time"):
        start_asc_pipeline()


@pytest.mark.parametrize("per_sample", [False, True])
def test_a_timestamp_may_come_after_the_lookup(per_sample) -> None:
    ids, table, rows = _lookup_without_time()
    now = tf1.placeholder(tf.int64, [None] if per_sample else [])
    tf1.add_to_collection(ASCEND_TIMESTAMP, now)
    EvictHook(True).begin()
    with tf1.Session() as session:
        session.run(rows, {ids: [1, 2], now: [100, 106] if per_sample else 100})
        session.run(rows, {ids: [2, 3], now: [107, 108] if per_sample else 107})
        assert evict(session) == {"t": 1}
        assert session.run(table._query("export")).keys.tolist() == [2, 3]


def test_two_timestamps_of_a_batch_are_refused() -> None:
    init(use_dynamic_expansion=True)
    batch = tf1.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(_arrays(0))).get_next()
    table = create_table(tf.int64, DIM, "t", tf1.zeros_initializer())
    tf1.add_to_collection(ASCEND_TIMESTAMP, batch["time"])
    tf1.add_to_collection(ASCEND_TIMESTAMP, batch["times"])
    with pytest.raises(EnvironmentError, match="must have one timestamp for a batch, got IteratorGetNext.*, Iterator"):
        sparse_lookup(table, batch["ids"], access_and_evict_config=_thresholds(None, 1))


def test_each_batch_has_its_own_timestamp() -> None:
    init(use_dynamic_expansion=True)
    batches = [
        tf1.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(_arrays(seed))).get_next() for seed in (0, 1)
    ]
    table = create_table(tf.int64, DIM, "t", tf1.zeros_initializer())
    for batch in batches:
        tf1.add_to_collection(ASCEND_TIMESTAMP, batch["time"])
    rows = sparse_lookup(table, batches[1]["ids"], access_and_evict_config=_thresholds(None, 1))
    with tf1.Session() as session:
        session.run(rows)
        assert set(table.history(session).times) == {_arrays(1)["time"][0]}


@pytest.mark.parametrize("kind", ["sparse", "ragged"])
@pytest.mark.parametrize("is_rewritten", [False, True])
def test_a_time_per_sample_of_sparse_and_ragged_ids(kind, is_rewritten) -> None:
    init(use_dynamic_expansion=True)
    ragged = tf.ragged.constant([[[1, 2], [], [2, 3, 3]], [[4], [1], [1]]], dtype=tf.int64)
    times = np.array([[10, 20, 5], [30, 31, 32]], np.int64)
    dataset = tf.data.Dataset.from_tensor_slices((ragged, times))
    if kind == "sparse":
        dataset = dataset.map(lambda ids, now: (ids.to_sparse(), now))
    iterator = tf1.data.make_initializable_iterator(dataset)
    ids, now = iterator.get_next()
    tf1.add_to_collection(ASCEND_TIMESTAMP, now)
    table = create_table(tf.int64, DIM, "t", tf1.zeros_initializer())
    config = _thresholds(2, 12)
    rows = sparse_lookup(table, ids, combiner="sum", access_and_evict_config=config)
    step = lazy_adam_by_addr.create_hash_optimizer_by_address(0.1).minimize(tf.reduce_sum(rows))
    if is_rewritten:
        modify_graph_and_start_emb_cache()
    with tf1.Session() as session:
        session.run(iterator.initializer)
        session.run(step)
        history = table.history(session)
        assert dict(zip(history.keys, history.times)) == {1: 10, 2: 10, 3: 5}
        session.run(step)
        history = table.history(session)
        assert dict(zip(history.keys, history.times)) == {1: 32, 2: 10, 3: 5, 4: 30}
        assert dict(zip(history.keys, history.counts)) == {1: 3, 2: 2, 3: 2, 4: 1}
        assert evict(session) == {"t": 2}


def test_lookups_of_a_table_agree() -> None:
    init(use_dynamic_expansion=True)
    ids = tf1.placeholder(tf.int64, [None])
    table = create_table(tf.int64, DIM, "t", tf1.zeros_initializer())
    sparse_lookup(table, ids, name="a", access_and_evict_config=_thresholds(2, None))
    message = "lookup 'b': access_threshold and eviction_threshold must be those of table 't': lookup 'a'"
    for config in (None, _thresholds(3, None), _thresholds(2, 0)):
        with pytest.raises(ValueError, match=message):
            sparse_lookup(table, ids, name="b", access_and_evict_config=config)
    sparse_lookup(table, ids, is_train=False)  # says nothing
    sparse_lookup(table, ids, name="b", access_and_evict_config=_thresholds(2, -1, 5))


def test_thresholds_must_come_before_the_session_runs() -> None:
    init(use_dynamic_expansion=True)
    ids = tf1.placeholder(tf.int64, [None])
    table = create_table(tf.int64, DIM, "t", tf1.zeros_initializer())
    rows = sparse_lookup(table, ids, is_train=False)
    with tf1.Session() as session:
        session.run(rows, {ids: [1]})
        with pytest.raises(EnvironmentError, match="a session has already run the graph"):
            sparse_lookup(table, ids, access_and_evict_config=_thresholds(2, None))


@pytest.mark.parametrize("combined", [False, True])
def test_combined_counts(monkeypatch, combined) -> None:
    monkeypatch.setenv("USE_COMBINE_FAAE", "1" if combined else "0")
    init(use_dynamic_expansion=True)
    ids = tf1.placeholder(tf.int64, [None])
    tables = [create_table(tf.int64, DIM, name, tf1.zeros_initializer()) for name in ("a", "b")]
    reads = [
        sparse_lookup(table, ids, access_and_evict_config=_thresholds(threshold, None), serving_default_value=DEFAULT)
        for table, threshold in zip(tables, (3, 4))
    ]
    with tf1.Session() as session:
        session.run(reads[0], {ids: [1, 1]})
        session.run(reads[1], {ids: [1]})
        assert (session.run(reads[1], {ids: [1]})[0, 0] == 0) == combined
        assert (session.run(reads[0], {ids: [2, 2, 1, 1]})[0, 0] == 0) is np.False_
        assert tables[0].size(session) == 1
        assert [list(table.history(session).counts) for table in tables] == [[4, 2], [2]]
    monkeypatch.setenv("USE_COMBINE_FAAE", "2")
    table = create_table(tf.int64, DIM, "c", tf1.zeros_initializer())
    with pytest.raises(ValueError, match="USE_COMBINE_FAAE must be 0 or 1"):
        sparse_lookup(table, ids, access_and_evict_config=_thresholds(1, None))


# --- EvictHook ---


def _hook_script(hook, steps, is_rewritten=False):
    """Trains with a hook; the sizes of the table after each step."""
    init(use_dynamic_expansion=True)
    dataset = tf.data.Dataset.from_tensor_slices(
        {"ids": np.arange(2 * steps, dtype=np.int64).reshape(steps, 2), "time": 10 * np.arange(steps, dtype=np.int64)}
    )
    iterator = tf1.data.make_initializable_iterator(dataset)
    batch = iterator.get_next()
    tf1.add_to_collection(ASCEND_TIMESTAMP, batch["time"])
    table = create_table(tf.int64, DIM, "t", tf1.zeros_initializer())
    rows = sparse_lookup(table, batch["ids"], access_and_evict_config=_thresholds(None, 15))
    global_step = tf1.train.get_or_create_global_step()
    optimizer = lazy_adam_by_addr.create_hash_optimizer_by_address(0.1)
    step = optimizer.minimize(tf.reduce_sum(rows), global_step=global_step)
    if is_rewritten:
        modify_graph_and_start_emb_cache()
    tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    sizes = []
    with tf1.train.MonitoredTrainingSession(hooks=[hook]) as session:
        for _ in range(steps):
            session.run(step)
            sizes.append(table.memory().size)
    return sizes


@pytest.mark.parametrize("is_rewritten", [False, True])
def test_the_hook_evicts_by_step(is_rewritten) -> None:
    sizes = _hook_script(EvictHook(evict_enable=True, evict_step_interval=3), 9, is_rewritten)
    # After a multiple of 3 steps the keys of the last two are left.
    assert sizes == [2, 4, 4, 6, 8, 4, 6, 8, 4]


def test_the_hook_evicts_by_time(monkeypatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr("mx_rec.core.feature_process.time.monotonic", lambda: next(ticks))
    # A tick at the start, one for each question whether it is time, one more for each eviction.
    sizes = _hook_script(EvictHook(evict_enable=True, evict_time_interval=3), 9)
    assert sizes == [2, 4, 4, 6, 8, 4, 6, 8, 4]


def test_a_hook_that_is_off_or_has_nothing_to_do_is_quiet() -> None:
    assert _hook_script(EvictHook(), 5) == [2, 4, 6, 8, 10]
    with tf.Graph().as_default():
        EvictHook(True, evict_step_interval=1).begin()  # no table, and so no global step needed


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"evict_enable": 1}, TypeError, "evict_enable must be a bool"),
        ({"evict_time_interval": 0}, ValueError, "evict_time_interval must be in"),
        ({"evict_step_interval": 0}, ValueError, "evict_step_interval must be in"),
        ({"evict_step_interval": 1.5}, TypeError, "evict_step_interval must be an integer"),
    ],
)
def test_hook_arguments(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        EvictHook(**arguments)


def test_the_hook_needs_a_global_step_for_steps() -> None:
    _lookup_without_time()
    tf1.add_to_collection(ASCEND_TIMESTAMP, tf1.placeholder(tf.int64, []))
    with pytest.raises(ValueError, match="evict_step_interval=2 needs a global step"):
        EvictHook(True, evict_step_interval=2).begin()


def test_eviction_without_a_session() -> None:
    ids, table, rows = _lookup_without_time(0)
    now = tf1.placeholder(tf.int64, [])
    tf1.add_to_collection(ASCEND_TIMESTAMP, now)
    assert trigger_evict() == {}  # no session has made it yet
    EvictHook(True).begin()
    with tf1.Session() as session:
        session.run(rows, {ids: [1, 2], now: 5})
        assert trigger_evict() == {"t": 2}
        assert table.size() == 0


# --- Bounded tables ---


@pytest.mark.parametrize("is_dynamic", [True, False])
@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_a_bounded_table_trains_for_ever(is_dynamic, policy) -> None:
    init(use_dynamic_expansion=is_dynamic)
    ids = tf1.placeholder(tf.int64, [None])
    table = create_table(
        tf.int64,
        DIM,
        "t",
        tf1.constant_initializer(INITIAL),
        device_vocabulary_size=180,
        max_keys=100,
        evict_policy=policy,
    )
    rows = sparse_lookup(table, ids)
    step = _optimizer(is_dynamic).minimize(_sum_after(rows), var_list=None if is_dynamic else [table.variable])
    often = np.arange(10, dtype=np.int64)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for number in range(200):
            new = 1000 + np.arange(20 * number, 20 * number + 20)
            read, _ = session.run([rows, step], {ids: np.concatenate([often, new])})
            np.testing.assert_array_equal(read[:10, 0], np.full(10, INITIAL - RATE * number))
            np.testing.assert_array_equal(read[10:], np.full([20, DIM], INITIAL))
            assert 90 <= table.size(session) <= 100 or number < 4
        assert table.memory().evicted_keys > 3800
        assert table.capacity(session) <= 2**16


def test_bounds_are_checked() -> None:
    init(use_dynamic_expansion=False)
    initializer = tf1.zeros_initializer()
    for options, message in (
        ({"max_keys": 0}, "max_keys must be in"),
        ({"max_keys": 11}, "table 't': max_keys must be at most the capacity, 10, got 11"),
        ({"max_keys": 5, "evict_policy": "fifo"}, "evict_policy must be 'lru' or 'lfu', got 'fifo'"),
    ):
        with pytest.raises(ValueError, match=message):
            create_table(tf.int64, DIM, "t", initializer, device_vocabulary_size=10, **options)


# --- Under load ---


@pytest.mark.parametrize("is_dynamic", [True, False])
def test_eviction_beside_training_in_several_threads(is_dynamic) -> None:
    """Two threads train with prefetched batches while one evicts all the time: no step fails, and rows are the keys'.

    MX_REC_LOAD_SECONDS sets how long; the project runs it for a minute now and then.
    """
    seconds = float(os.environ.get("MX_REC_LOAD_SECONDS", "2"))
    init(use_dynamic_expansion=is_dynamic, prefetch_batch_number=8)
    keys = 3000
    window = tf.data.Dataset.range(1 << 40).map(
        lambda number: (
            tf.random.stateless_uniform([256], [7, number], number * 20, number * 20 + keys, tf.int64),
            number,
        )
    )
    iterators = [tf1.data.make_initializable_iterator(window) for _ in range(2)]
    # Column 0 gets no gradient, so it tells whose row it is.
    by_key = tf1.random_uniform_initializer(0.0, 1.0, seed=3)
    table = create_table(tf.int64, DIM, "t", by_key, device_vocabulary_size=20000, max_keys=4000)
    losses, steps = [], []
    for iterator in iterators:
        ids, now = iterator.get_next()
        tf1.add_to_collection(ASCEND_TIMESTAMP, now)
        rows = sparse_lookup(
            table, ids, access_and_evict_config=_thresholds(2, 100), serving_default_value=[DEFAULT, DEFAULT]
        )
        losses.append((ids, rows))
    make = lazy_adam_by_addr.create_hash_optimizer_by_address if is_dynamic else lazy_adam.create_hash_optimizer
    for _, rows in losses:
        steps.append(
            make(0.1).minimize(_sum_after(rows[:, 1]), **({} if is_dynamic else {"var_list": [table.variable]}))
        )
    evaluated = sparse_lookup(table, losses[0][0], is_train=False, serving_default_value=[DEFAULT, DEFAULT])
    modify_graph_and_start_emb_cache()
    deadline = time.monotonic() + seconds
    errors: list[BaseException] = []
    counts = {"steps": 0, "evicted": 0, "trained": 0}

    def check(ids, rows):
        for key, value in zip(ids, rows[:, 0]):
            if value != DEFAULT:
                counts["trained"] += 1
                marks = known.setdefault(key, value)
                assert marks == value, f"key {key} read {value}, before {marks}"

    known: dict[int, float] = {}

    def forever(work):
        try:
            while time.monotonic() < deadline and not errors:
                work()
        except BaseException as error:
            errors.append(error)

    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run([iterator.initializer for iterator in iterators])

        def train(which):
            def work():
                ids = get_target_batch(True, losses[which][0])
                batch, rows, _ = session.run([ids, losses[which][1], steps[which]])
                check(batch, rows)
                counts["steps"] += 1

            return work

        def evaluate():
            session.run(evaluated)

        def evict_all():
            counts["evicted"] += evict(session)["t"]

        threads = [
            threading.Thread(target=forever, args=[work])
            for work in (train(0), train(1), train(1), evict_all, evict_all, evaluate)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors[0]
        stats = table.memory()
        assert counts["steps"] > 10 and counts["trained"] > 1000
        assert stats.evicted_keys > 0
        assert stats.size <= 4000 + 3 * 256
        assert stats.capacity <= 2**17
