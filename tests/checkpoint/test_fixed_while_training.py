"""Saves of tables of fixed capacity while a thread trains them: what is saved is between two steps, bit for bit."""

from __future__ import annotations

import dataclasses
import itertools
import os
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from ckpt_harness import start

from mx_rec.checkpoint import read_saved_table
from mx_rec.constants.constants import ASCEND_TIMESTAMP
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.core.feature_process import evict
from mx_rec.graph.modifier import modify_graph_and_start_emb_cache
from mx_rec.optimizers import adagrad, ftrl, gradient_descent, lazy_adam
from mx_rec.saver.saver import save_incremental
from mx_rec.util.initialize import get_initializer

tf1 = tf.compat.v1
CAPACITY, DIM, KEYS, STEPS = 30000, 32, 10000, 30

OURS = {
    "lazy_adam": lazy_adam.create_hash_optimizer,
    "adagrad": adagrad.create_hash_optimizer,
    "ftrl": ftrl.create_hash_optimizer,
    "sgd": gradient_descent.create_hash_optimizer,
}
STOCK = {
    "stock_sgd": tf1.train.GradientDescentOptimizer,
    "stock_adagrad": tf1.train.AdagradOptimizer,
    "stock_adam": tf1.train.AdamOptimizer,
}


@dataclasses.dataclass
class Model:
    """A table and what trains it."""

    table: object
    ids: tf.Tensor
    time: tf.Tensor
    rows: tf.Tensor
    step: tf.Operation
    saver: tf1.train.Saver


def build(optimizer: str, **lookup) -> Model:
    table = create_table(
        tf.int64, DIM, "t", tf1.random_normal_initializer(0.0, 0.3, seed=5), device_vocabulary_size=CAPACITY
    )
    ids = tf1.placeholder(tf.int64, [None])
    when = tf1.placeholder_with_default(tf.constant(0, tf.int64), [])
    if lookup:
        tf1.add_to_collection(ASCEND_TIMESTAMP, when)
    found = sparse_lookup(table, ids, **lookup)
    rows = sparse_lookup(table, ids, is_train=False)
    loss = tf.reduce_sum(tf.square(found - 0.5))
    saver = tf1.train.Saver(max_to_keep=None)  # before there are slots
    if optimizer in OURS:
        step = OURS[optimizer](0.05).minimize(loss)
    else:
        step = STOCK[optimizer](0.05).minimize(loss, var_list=[table.variable])
    return Model(table, ids, when, rows, step, tf1.train.Saver(max_to_keep=None) if optimizer in OURS else saver)


def content(prefix: str) -> dict[int, bytes]:
    """All that is saved of each key."""
    table = read_saved_table(prefix, "t")
    found: dict[int, bytes] = {}
    for block in table.blocks():
        columns = [block.columns[name] for name in ("counts", "times", "rows") if name in block.columns]
        for i, key in enumerate(block.columns["keys"].tolist()):
            assert key not in found
            found[key] = b"".join(column[i].tobytes() for column in columns)
    assert len(found) == table.manifest.size
    return found


def batch(step: int) -> np.ndarray:
    """Keys of a step: most of each step's rows are in the next one's, too."""
    rng = np.random.default_rng(step)
    return rng.integers(0, KEYS, KEYS // 2)


def states_after_each_step(model: Model, directory, evict_every: int = 0) -> list[dict[int, bytes]]:
    states = []
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for i in range(STEPS):
            train(model, session, i)
            if evict_every and i % evict_every == evict_every - 1:
                states.append(content(model.saver.save(session, f"{directory}/b", i)))
                evict(session)
            states.append(content(model.saver.save(session, f"{directory}/r", i)))
    return states


def train(model: Model, session, i: int) -> None:
    session.run(model.step, {model.ids: batch(i), model.time: i})


def saves_while_training(model: Model, directory, save, evict_every: int = 0) -> list[str]:
    """Prefixes of checkpoints that were written while a thread trained and another evaluated."""
    prefixes: list[str] = []
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        train(model, session, 0)
        stop = threading.Event()
        errors: list[Exception] = []

        def run(body) -> threading.Thread:
            def guarded() -> None:
                try:
                    body()
                except Exception as error:  # shown by the test
                    errors.append(error)

            thread = threading.Thread(target=guarded)
            thread.start()
            return thread

        def trains() -> None:
            for i in range(STEPS):
                if i > 0:
                    train(model, session, i)
                if evict_every and i % evict_every == evict_every - 1:
                    evict(session)
            stop.set()

        def evaluates() -> None:
            while not stop.wait(0.002):
                session.run(model.rows, {model.ids: range(0, KEYS * 3 // 2, 7)})

        threads = [run(trains), run(evaluates)]
        while not stop.is_set() and not errors:
            prefixes.append(save(session, len(prefixes)))
        for thread in threads:
            thread.join()
        assert not errors, errors[0]
        prefixes.append(save(session, len(prefixes)))
    return prefixes


def stood_still(prefix: str) -> bool:
    return read_saved_table(prefix, "t").manifest.notes["rows_stood_still"] == "1"


@pytest.mark.parametrize("optimizer", [*OURS, "stock_sgd", "stock_adagrad"])
def test_what_is_saved_while_training_is_of_one_instant(tmp_path, optimizer):
    start(False)
    model = build(optimizer)
    states = states_after_each_step(model, tmp_path)
    prefixes = saves_while_training(
        model, tmp_path, lambda session, n: model.saver.save(session, f"{tmp_path}/m", n, write_meta_graph=False)
    )
    assert len(prefixes) > 2
    assert not any(map(stood_still, prefixes))
    at = []
    for prefix in prefixes:
        saved = content(prefix)
        at.append(next((i for i, state in enumerate(states) if state == saved), None))
    assert None not in at, at
    assert at == sorted(at) and at[-1] == STEPS - 1
    if optimizer == "lazy_adam":
        assert [read_saved_table(prefix, "t").manifest.steps for prefix in prefixes] == [i + 1 for i in at]


def test_several_threads_train_several_tables(tmp_path):
    """Each step of a thread adds 1 to all rows of its keys in both tables, and to their counts where they have some."""
    start(False)
    names, size = ("a", "b"), 4000
    tables = [
        create_table(tf.int64, DIM, name, tf1.zeros_initializer(), device_vocabulary_size=3 * size) for name in names
    ]
    ids = tf1.placeholder(tf.int64, [None])
    counting = {"access_threshold": 1, "eviction_threshold": None, "faae_coefficient": 1}
    configs = (None, counting)
    loss = tf.add_n(
        [
            -tf.reduce_sum(sparse_lookup(table, ids, access_and_evict_config=config))
            for table, config in zip(tables, configs)
        ]
    )
    step = gradient_descent.create_hash_optimizer(1.0).minimize(loss)
    saver = tf1.train.Saver(max_to_keep=None)
    errors: list[Exception] = []
    stop = threading.Event()
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())

        def train(worker: int) -> None:
            try:
                while not stop.is_set():
                    session.run(step, {ids: np.arange(size) + worker * size})
            except Exception as error:  # shown by the test
                errors.append(error)

        threads = [threading.Thread(target=train, args=(worker,)) for worker in range(3)]
        for thread in threads:
            thread.start()
        prefixes = [saver.save(session, f"{tmp_path}/m", n, write_meta_graph=False) for n in range(8)]
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors, errors[0]
    for prefix, name in itertools.product(prefixes, names):
        table = read_saved_table(prefix, name)
        assert table.manifest.notes["rows_stood_still"] == "0"
        for worker in range(3):
            values = [
                block.columns[what][block.columns["keys"] // size == worker]
                for block in table.blocks()
                for what in {"rows", "counts"} & set(block.columns)
            ]
            assert len({value for array in values for value in array.ravel().tolist()}) <= 1


def test_deltas_with_admission_and_eviction_while_training(tmp_path):
    start(False)
    model = build(
        "lazy_adam", access_and_evict_config={"access_threshold": 2, "eviction_threshold": 3, "faae_coefficient": 1}
    )
    states = states_after_each_step(model, tmp_path, evict_every=5)
    prefixes = saves_while_training(
        model,
        tmp_path,
        lambda session, n: save_incremental(
            model.saver, session, f"{tmp_path}/m", n, delta=n % 6 > 0, write_meta_graph=False
        ),
        evict_every=5,
    )
    assert len(prefixes) > 3
    assert any(read_saved_table(prefix, "t").manifest.is_delta for prefix in prefixes)
    assert not any(map(stood_still, prefixes))
    for prefix in prefixes:
        saved = content(prefix)
        # An eviction goes on slice by slice: some of its keys may still be there.
        assert any(
            saved == after
            or (len(after) <= len(saved) <= len(before) and after.items() <= saved.items() <= before.items())
            for before, after in zip([{}, *states], states)
        )


def test_rows_stand_still_where_other_ops_write_them(tmp_path):
    """Adam of TensorFlow writes all rows in each step; they are saved as they are at one time."""
    start(False)
    model = build("stock_adam")
    prefixes = saves_while_training(
        model, tmp_path, lambda session, n: save_incremental(model.saver, session, f"{tmp_path}/m", n, delta=True)
    )
    assert all(map(stood_still, prefixes))
    # What a delta knows of is not all that has changed.
    assert not any(read_saved_table(prefix, "t").manifest.is_delta for prefix in prefixes)


@pytest.mark.parametrize("what", ["rows", "slots", "assign"])
@pytest.mark.parametrize("pruned", [False, True])
def test_a_delta_after_an_assignment_is_a_full_save(tmp_path, what, pruned):
    """Deltas know of rows that were looked up; initializers and assignments look up none."""
    start(False)
    table = create_table(tf.int64, DIM, "t", tf1.random_normal_initializer(seed=1), device_vocabulary_size=CAPACITY)
    ids = tf1.placeholder(tf.int64, [None])
    optimizer = adagrad.create_hash_optimizer(0.1)
    step = optimizer.minimize(tf.reduce_sum(tf.square(sparse_lookup(table, ids))))
    slots = [optimizer.get_slot(table.variable, name) for name in optimizer.get_slot_names()]
    value = np.full([CAPACITY, DIM], 2.0, np.float32)
    change = {
        "rows": lambda: table.variable.initializer,
        "slots": lambda: tf1.variables_initializer(slots),
        "assign": lambda: table.variable.assign(value).op,
    }[what]()
    saver = tf1.train.Saver(max_to_keep=None)
    config = tf1.ConfigProto()
    config.graph_options.place_pruned_graph = pruned

    def save(n: int) -> str:
        return save_incremental(saver, session, f"{tmp_path}/m", n, delta=True, write_meta_graph=False)

    with tf1.Session(config=config) as session:
        session.run(tf1.global_variables_initializer())
        for n in range(3):
            session.run(step, {ids: np.arange(20)})
            before = save(n)
        session.run(step, {ids: [3, 4]})
        session.run(change)
        delta = save(3)
        full = saver.save(session, f"{tmp_path}/full", write_meta_graph=False)
    assert read_saved_table(before, "t").manifest.is_delta != (pruned or what == "assign")
    assert not read_saved_table(delta, "t").manifest.is_delta
    assert content(delta) == content(full)


WRITERS = {
    "scatter of fed rows": lambda variable, offsets: tf1.scatter_add(
        variable, tf1.placeholder(tf.int64, [None]), tf1.placeholder(tf.float32, [None, DIM])
    ),
    "assignment": lambda variable, offsets: variable.assign(tf1.placeholder(tf.float32, [CAPACITY, DIM])),
    "addition": lambda variable, offsets: variable.assign_add(tf1.placeholder(tf.float32, [CAPACITY, DIM])),
    "computed rows": lambda variable, offsets: tf1.scatter_add(variable, offsets + 1, tf.zeros([1, DIM])),
    "function": lambda variable, offsets: tf.cond(
        tf1.placeholder(tf.bool, []), lambda: variable.assign_add(tf.zeros([CAPACITY, DIM])), lambda: variable.value()
    ),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_writers_that_may_write_any_row_are_noticed(tmp_path, kind):
    start(False)
    table = create_table(tf.int64, DIM, "t", tf1.zeros_initializer(), device_vocabulary_size=CAPACITY)
    ids = tf1.placeholder(tf.int64, [None])
    found = sparse_lookup(table, ids)
    step = lazy_adam.create_hash_optimizer(0.1).minimize(tf.reduce_sum(tf.square(found)))
    saver = tf1.train.Saver()

    def save(n: int) -> bool:
        prefix = saver.save(session, f"{tmp_path}/m", n, write_meta_graph=False)
        return read_saved_table(prefix, table.table_name).manifest.notes["rows_stood_still"] == "1"

    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run(step, {ids: [1, 2, 3]})
        assert not save(1)
        (offsets,) = tf1.get_collection("ASCEND_SPARSE_LOOKUP_ID_OFFSET")
        WRITERS[kind](table.variable, offsets)
        session.run(step, {ids: [1, 2, 3]})
        assert save(2)


def test_a_run_that_trains_and_saves_does_not_wait_for_itself(tmp_path):
    start(False)
    model = build("lazy_adam")
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        train(model, session, 0)
        saver_def = model.saver.as_saver_def()
        graph = tf1.get_default_graph()
        (save_op,) = [
            op for op in graph.get_operations() if op.type == "MxRecTableSave" and op.name.startswith("save_1")
        ]
        (find,) = [op for op in graph.get_operations() if op.type == "MxRecFindOrInsert"]
        begin = time.monotonic()
        session.run(
            [save_op, find.outputs[0], model.step],
            {saver_def.filename_tensor_name: f"{tmp_path}/m", model.ids: batch(1), model.time: 1},
        )
        # Two seconds are the longest that a save waits for a step that has begun after it.
        assert time.monotonic() - begin < 30
        assert any(".data-" in name for name in os.listdir(tmp_path))
        train(model, session, 2)


def _two_lookups(table, ids):
    return tf.concat([sparse_lookup(table, ids), sparse_lookup(table, ids + 1)], axis=0)


def _pooled(table, ids):
    return sparse_lookup(table, tf.RaggedTensor.from_row_lengths(ids, [1, 2]), combiner="sum")


def _of_evaluation(table, ids):
    return sparse_lookup(table, ids) + sparse_lookup(table, ids, is_train=False)


SCRIPTS = {
    "two lookups": (_two_lookups, False),
    "pooled": (_pooled, False),
    # A key without a row reads row 0, which no lookup has found: its gradient is zeros, but moments move.
    "gradients of evaluation": (_of_evaluation, True),
}


@pytest.mark.parametrize("rewrites", [False, True], ids=["as it is", "rewritten"])
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("stock", [False, True], ids=["ours", "stock"])
def test_known_writers_are_recognised_in_all_kinds_of_scripts(tmp_path, script, rewrites, stock):
    start(False)
    look_up, expected = SCRIPTS[script]
    table = create_table(
        tf.int64, DIM, "t", tf1.zeros_initializer(), device_vocabulary_size=CAPACITY, padding_keys=[5],
        padding_keys_mask=True, padding_keys_len=1,
    )  # fmt: skip
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(60, dtype=np.int64)).batch(3, drop_remainder=True)
    iterator = tf1.data.make_initializable_iterator(dataset)
    loss = tf.reduce_sum(tf.square(look_up(table, iterator.get_next()) - 0.5))
    if stock:
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        gradients = optimizer.compute_gradients(loss, [table.variable])
    else:
        optimizer = lazy_adam.create_hash_optimizer(0.1)
        gradients = optimizer.compute_gradients(loss)
    clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in gradients], 1.0)
    step = optimizer.apply_gradients(zip(clipped, [variable for _, variable in gradients]))
    saver = tf1.train.Saver()
    initializer = iterator.initializer
    if rewrites:
        modify_graph_and_start_emb_cache()
        initializer = get_initializer(True)
    with tf1.Session() as session:
        session.run([tf1.global_variables_initializer(), initializer])
        session.run(step)
        assert stood_still(saver.save(session, f"{tmp_path}/m", 1)) == expected
