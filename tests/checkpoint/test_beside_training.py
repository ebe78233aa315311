"""Saves and restores of tables of fixed capacity while threads train them."""

from __future__ import annotations

import threading

import numpy as np
import tensorflow as tf
from ckpt_harness import build, start

tf1 = tf.compat.v1


def test_a_row_that_was_found_and_not_read_is_saved_as_it_begins(tmp_path):
    start(False)
    model = build(False)
    saver = tf1.train.Saver()
    (find,) = [
        operation for operation in tf1.get_default_graph().get_operations() if operation.type == "MxRecFindOrInsert"
    ]
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        model.train(session, [1, 2])
        session.run(find.outputs[0], {model.ids: [77]})
        path = saver.save(session, str(tmp_path / "m"))
        expected = model.read(session, [77])
        assert np.any(expected)
    with tf1.Session() as session:
        saver.restore(session, path)
        np.testing.assert_array_equal(model.read(session, [77]), expected)


def test_what_is_restored_stays_while_others_train(tmp_path):
    start(False)
    model = build(False, capacity=4000, dim=16)
    saver = tf1.train.Saver()
    kept, others = list(range(100000, 102000)), list(range(2000))
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        model.train(session, others)
        path_of_others = saver.save(session, str(tmp_path / "others"))
    errors: list[str] = []
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        model.train(session, kept)
        path = saver.save(session, str(tmp_path / "kept"))
        expected = model.read(session, kept)
        for _ in range(12):
            saver.restore(session, path_of_others)
            stop = threading.Event()
            steps = [0, 0]

            def train(worker: int, stop=stop, steps=steps) -> None:
                while not stop.is_set():
                    try:
                        model.train(session, others)
                        steps[worker] += 1
                    except tf.errors.OpError as error:
                        errors.append(str(error))

            threads = [threading.Thread(target=train, args=(worker,)) for worker in range(2)]
            for thread in threads:
                thread.start()
            while min(steps) < 2:
                stop.wait(0.001)
            saver.restore(session, path)
            stop.set()
            for thread in threads:
                thread.join()
            np.testing.assert_array_equal(model.read(session, kept), expected)
    # A step either ends before the restore, or begins after it, or says what has happened.
    assert all("table 'user'" in error for error in errors)
