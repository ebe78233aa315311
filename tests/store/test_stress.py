"""Threads that train, insert, look up and export one table at once: nothing torn, nothing lost, counts exact."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any, Callable

import numpy as np
import pytest
import tensorflow as tf
from training_harness import OPTIMIZERS

from mx_rec import ops
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.graph import modify_graph_and_start_emb_cache
from mx_rec.util.initialize import get_initializer, init, terminate_config_initializer

tf1 = tf.compat.v1
DIM = 24  # more than a cache line, so that a torn row would show
INITIAL = 7.0
BATCH = 256
KEYS = 40_000
PATIENCE = 60  # seconds for the threads to end after the last start of a run


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("RECORD_KEY_COUNT", "1")
    tf1.disable_eager_execution()
    terminate_config_initializer()
    yield
    terminate_config_initializer()


class Model:
    """Each occurrence of an id in a training batch adds 1 to all of its row, which begins as INITIAL."""

    def __init__(self, by_address: bool):
        init(use_dynamic_expansion=by_address, prefetch_batch_number=4)
        rng = np.random.RandomState(1)
        # Later batches have ever more keys, so that the table grows all along.
        ids = np.stack([rng.randint(0, min(200 + 20 * i, KEYS), BATCH) for i in range(4000)])
        dataset = tf.data.Dataset.from_tensor_slices(ids.astype(np.int64)).repeat()
        batch = tf1.data.make_initializable_iterator(dataset).get_next()
        self.table = create_table(
            tf.int64, DIM, "user", tf1.constant_initializer(INITIAL), device_vocabulary_size=2 * KEYS
        )
        self.ids = tf.identity(batch)
        self.trained = sparse_lookup(self.table, batch)
        self.fed = tf1.placeholder(tf.int64, [None])
        self.inserted = sparse_lookup(self.table, self.fed, is_grad=False)
        self.found = sparse_lookup(self.table, self.fed, is_train=False)
        loss = -tf.reduce_sum(self.trained)
        optimizer = OPTIMIZERS["sgd"].create(by_address, 1.0)
        if by_address:
            local = tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
            addresses = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
            self.step = optimizer.apply_gradients(list(zip(tf.gradients(loss, local), addresses)))
            # Of zeros, it only gives every row slots: addresses stay, and all rows move.
            gradients = tf.zeros([tf.size(self.fed), DIM])
            addresses = ops.find(self.table.handle, self.fed)
            self.add_slots = ops.apply_lazy_adam_by_address(self.table.handle, addresses, gradients, 0.1)
        else:
            self.step = optimizer.minimize(loss, var_list=[self.table.variable])
            offsets = ops.offsets(self.table.handle, self.table.variable.handle, ops.find(self.table.handle, self.fed))
            self.rows = tf.gather(self.table.variable, offsets)
        reports = modify_graph_and_start_emb_cache()
        assert any(report.modified for report in reports)


class Workers:
    """Threads that repeat their work until the time is up; the first error of each is kept."""

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []
        self.runs: Counter[str] = Counter()

    def add(self, name: str, work: Callable[[], None], wait: float = 0.0, pause: float = 0.0) -> None:
        def repeat() -> None:
            time.sleep(wait)
            try:
                while time.monotonic() < self._end:
                    work()
                    self.runs[name] += 1
                    time.sleep(pause)
            except BaseException as error:  # also a failed assertion
                self._errors.append(error)

        self._threads.append(threading.Thread(target=repeat, name=name, daemon=True))

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join(max(0.0, self._end + PATIENCE - time.monotonic()))
        assert [thread.name for thread in self._threads if thread.is_alive()] == []
        if self._errors:
            raise self._errors[0]
        assert all(self.runs[thread.name] > 3 for thread in self._threads), self.runs


def _counts(batches: list[np.ndarray]) -> dict[int, int]:
    keys, counts = np.unique(np.concatenate(batches), return_counts=True)
    return dict(zip(keys.tolist(), counts.tolist()))


class Snapshots:
    """Exports of one table, each compared with the one before."""

    def __init__(self, model: Model, session: tf1.Session, by_address: bool):
        self._model, self._session, self._by_address = model, session, by_address
        self._before: dict[int, tuple[float, int]] = {}

    def take(self) -> dict[int, tuple[float, int]]:
        """Row (its first value, since all are equal) and count by key; rows of fixed capacity are not compared."""
        size = self._model.table.size()
        keys, rows, counts = self._model.table.export(self._session)
        assert size <= len(keys) <= self._model.table.size()
        assert len(np.unique(keys)) == len(keys)
        values = np.full(len(keys), INITIAL, np.float32)
        if self._by_address and len(keys):
            values = rows[:, 0]
            np.testing.assert_array_equal(rows[:, :DIM], np.repeat(values[:, None], DIM, axis=1))
            assert rows.shape[1] in (DIM, 3 * DIM)
            assert not rows[:, DIM:].any()
        assert np.all(values >= INITIAL)
        assert np.all(values - INITIAL <= counts)  # a key is counted before it is trained
        now = dict(zip(keys.tolist(), zip(values.tolist(), counts.tolist())))
        assert self._before.keys() <= now.keys()
        assert all(now[key][0] >= value and now[key][1] >= count for key, (value, count) in self._before.items())
        self._before = now
        return now


@pytest.mark.parametrize(("by_address", "seconds"), [(True, 10.0), (False, 4.0)], ids=["by_address", "on_variable"])
def test_all_at_once(by_address: bool, seconds: float) -> None:
    with tf.Graph().as_default():
        model = Model(by_address)
        config = tf1.ConfigProto(intra_op_parallelism_threads=3, inter_op_parallelism_threads=6)
        with tf1.Session(config=config) as session:
            _all_at_once(model, session, by_address, seconds)


def _all_at_once(model: Model, session: tf1.Session, by_address: bool, seconds: float) -> None:
    session.run([tf1.global_variables_initializer(), get_initializer(True)])
    snapshots = Snapshots(model, session, by_address)
    model.table.size(session)  # makes its op, as the first snapshot does
    snapshots.take()
    trained: list[np.ndarray] = []
    inserted: list[np.ndarray] = []
    lowest: dict[str, np.ndarray] = {}

    def train() -> None:
        ids, rows, _ = session.run([model.ids, model.trained, model.step])
        trained.append(ids)
        assert np.all(rows >= INITIAL)
        if by_address:
            np.testing.assert_array_equal(rows, np.repeat(rows[:, :1], DIM, axis=1))

    def insert(name: str) -> Callable[[], None]:
        rng = np.random.RandomState(len(name))

        def work() -> None:
            # Negative keys are only ever inserted.
            ids = rng.randint(-KEYS // 2, KEYS, BATCH)
            rows = session.run(model.inserted, {model.fed: ids})
            inserted.append(ids)
            assert np.all(rows >= INITIAL)
            assert np.all(rows[ids < 0] == INITIAL)
            if by_address:
                np.testing.assert_array_equal(rows, np.repeat(rows[:, :1], DIM, axis=1))

        return work

    def look_up(name: str) -> Callable[[], None]:
        ids = np.random.RandomState(len(name)).randint(-KEYS // 2, KEYS, 4 * BATCH)

        def work() -> None:
            rows = session.run(model.found, {model.fed: ids})
            assert np.all((rows == 0) | (rows >= INITIAL))
            assert np.all((rows == 0) == (rows[:, :1] == 0))  # no key in parts
            assert np.all(rows[ids < 0] <= INITIAL)
            if by_address:  # a variable's rows may be read while an optimizer of TensorFlow writes them
                np.testing.assert_array_equal(rows, np.repeat(rows[:, :1], DIM, axis=1))
                assert np.all(rows >= lowest.get(name, 0.0))
                lowest[name] = rows

        return work

    workers = Workers(seconds)
    # TensorFlow's scatter into a variable may lose what two steps add to one row, so a variable gets one trainer.
    for i in range(3 if by_address else 1):
        workers.add(f"train {i}", train)
    for name in ("insert", "insert too"):
        workers.add(name, insert(name), pause=0.001)
    for name in ("look up", "look up too"):
        workers.add(name, look_up(name))
    workers.add("export", lambda: snapshots.take() and None, pause=0.05)
    if by_address:
        slot_ids = np.arange(0, KEYS, 97)
        workers.add("slots", lambda: session.run(model.add_slots, {model.fed: slot_ids}), wait=seconds / 3, pause=0.01)
    workers.run()

    content = snapshots.take()
    steps, counts = _counts(trained), _counts(trained + inserted)
    assert {key: count for key, (_, count) in content.items()} == counts
    rows = {key: value for key, (value, _) in content.items()}
    if not by_address:
        keys = np.array(sorted(counts))
        values = session.run(model.rows, {model.fed: keys})
        np.testing.assert_array_equal(values, np.repeat(values[:, :1], DIM, axis=1))
        rows = dict(zip(keys.tolist(), values[:, 0].tolist()))
    assert rows == {key: INITIAL + steps.get(key, 0) for key in counts}
    assert len(trained) == sum(count for name, count in workers.runs.items() if name.startswith("train"))
