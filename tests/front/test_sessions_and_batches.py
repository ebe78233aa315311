"""When a graph may be rewritten, and how a script reaches iterators and batches afterwards."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.errors import GraphRewriteError
from mx_rec.graph import modify_graph_and_start_emb_cache
from mx_rec.optimizers import gradient_descent_by_addr
from mx_rec.util.initialize import get_initializer, get_target_batch, init, terminate_config_initializer

tf1 = tf.compat.v1


def _data():
    columns = {"i": np.arange(12, dtype=np.int64), "y": np.ones(12, np.float32)}
    return tf.data.Dataset.from_tensor_slices(columns).batch(4)


def _train(ids, y):
    table = create_table(tf.int64, 4, "user", tf1.ones_initializer())
    loss = tf.reduce_sum(tf.square(tf.reduce_sum(sparse_lookup(table, ids), 1) - y))
    optimizer = gradient_descent_by_addr.create_hash_optimizer_by_addr(0.01)
    return loss, optimizer.minimize(loss)


def _iterator():
    iterator = tf1.data.make_initializable_iterator(_data())
    return iterator, iterator.get_next()


def test_run_before_the_tables_is_refused_while_that_session_is_open(mxrec):
    iterator, batch = _iterator()
    with tf1.Session() as session:
        session.run(iterator.initializer)
        session.run(batch)
        _train(batch["i"], batch["y"])
        with pytest.raises(GraphRewriteError, match=r"before the first session\.run"):
            modify_graph_and_start_emb_cache()
    modify_graph_and_start_emb_cache()  # a new session takes the edits


def test_a_session_of_several_devices_is_refused_too(mxrec):
    iterator, batch = _iterator()
    with tf1.Session(config=tf1.ConfigProto(device_count={"CPU": 3})) as session:
        session.run(iterator.initializer)
        _train(batch["i"], batch["y"])
        with pytest.raises(GraphRewriteError, match=r"before the first session\.run"):
            modify_graph_and_start_emb_cache()


def test_a_session_of_a_server_is_refused_too(mxrec):
    server = tf1.train.Server.create_local_server()
    iterator, batch = _iterator()
    with tf1.Session(server.target) as session:
        session.run(iterator.initializer)
        _train(batch["i"], batch["y"])
        with pytest.raises(GraphRewriteError, match=r"before the first session\.run"):
            modify_graph_and_start_emb_cache()


def test_a_run_before_another_init_is_refused_while_that_session_is_open(mxrec):
    iterator, batch = _iterator()
    with tf1.Session() as session:
        session.run(iterator.initializer)
        session.run(_train(batch["i"], batch["y"]))
        terminate_config_initializer()
        init(use_dynamic_expansion=True)
        _train(batch["i"], batch["y"])
        with pytest.raises(GraphRewriteError, match=r"before the first session\.run"):
            modify_graph_and_start_emb_cache()


@pytest.mark.parametrize("is_open", [False, True])
def test_what_another_session_ran_does_not_count(mxrec, is_open):
    """Its graph had the first nodes of this one, by name."""
    with tf.Graph().as_default():
        other = tf1.Session()
        other.run(tf.constant(3.0))
        if not is_open:
            other.close()
    with tf1.Session() as session:
        offset = tf.constant(5, tf.int64)  # "Const", like the other
        iterator, batch = _iterator()
        loss, step = _train(batch["i"] + offset, batch["y"])
        modify_graph_and_start_emb_cache()
        session.run(get_initializer(True))
        session.run([loss, step])
    other.close()


def test_one_script_several_times_in_interactive_sessions():
    tf1.disable_eager_execution()
    losses = []
    for _ in range(3):
        terminate_config_initializer()
        with tf.Graph().as_default():
            init(use_dynamic_expansion=True)
            session = tf1.InteractiveSession()
            iterator, batch = _iterator()
            loss, step = _train(batch["i"], batch["y"])
            modify_graph_and_start_emb_cache()
            session.run(get_initializer(True))
            losses.append(session.run([loss, step])[0])
            session.close()
    terminate_config_initializer()
    assert losses == losses[:1] * 3


def test_closed_sessions_do_not_count(mxrec):
    iterator, batch = _iterator()
    loss, step = _train(batch["i"], batch["y"])
    with tf1.Session() as session:
        session.run(iterator.initializer)
        before = session.run([loss, step])[0]
    modify_graph_and_start_emb_cache()
    with tf1.Session() as session:
        session.run(get_initializer(True))
        assert session.run([loss, step])[0] == before


def test_an_idle_session_made_first_is_fine(mxrec):
    with tf1.Session() as session:
        iterator, batch = _iterator()
        loss, step = _train(batch["i"], batch["y"])
        modify_graph_and_start_emb_cache()
        session.run(get_initializer(True))
        session.run([loss, step])


def test_an_imported_copy_of_a_graph_that_ran_may_be_rewritten(mxrec, tmp_path):
    iterator, batch = _iterator()
    loss, step = _train(batch["i"], batch["y"])
    tf1.train.export_meta_graph(str(tmp_path / "g.meta"))
    with tf1.Session() as session:
        session.run(iterator.initializer)
        expected = [session.run([loss, step])[0] for _ in range(3)]
        with tf.Graph().as_default() as copy:
            tf1.train.import_meta_graph(str(tmp_path / "g.meta"))
            reports = modify_graph_and_start_emb_cache()
            assert any(report.modified for report in reports)
            with tf1.Session() as other:
                other.run(get_initializer(True))
                fetches = [copy.get_tensor_by_name(loss.name), copy.get_operation_by_name(step.name)]
                assert [other.run(fetches)[0] for _ in range(3)] == expected


@pytest.mark.parametrize("control_flow_v2", [True, False])
def test_conditional_updates_count_as_updates(mxrec, control_flow_v2):
    toggle = tf1.enable_control_flow_v2 if control_flow_v2 else tf1.disable_control_flow_v2
    was_v2 = tf1.control_flow_v2_enabled()
    toggle()
    try:
        _, batch = _iterator()
        table = create_table(tf.int64, 4, "user", tf1.ones_initializer())
        loss = tf.reduce_sum(sparse_lookup(table, batch["i"]))
        optimizer = gradient_descent_by_addr.create_hash_optimizer_by_addr(0.01)
        local = tf1.get_collection("ASCEND_SPARSE_LOOKUP_LOCAL_EMB")
        addresses = tf1.get_collection("ASCEND_SPARSE_LOOKUP_ID_OFFSET")
        gradients = [tf.convert_to_tensor(g) for g in tf.gradients(loss, local)]

        def update():
            with tf.control_dependencies([optimizer.apply_gradients(list(zip(gradients, addresses)))]):
                return tf.constant(True)

        step = tf.cond(loss > 0, update, lambda: tf.constant(False))
        modify_graph_and_start_emb_cache()
        with tf1.Session() as session:
            session.run(get_initializer(True))
            assert session.run(step)
    finally:
        (tf1.enable_control_flow_v2 if was_v2 else tf1.disable_control_flow_v2)()


def test_initializer_starts_iterators_whose_lookups_stay(mxrec):
    _, one = _iterator()
    _, two = _iterator()
    loss, step = _train(one["i"] + two["i"], one["y"])
    reports = modify_graph_and_start_emb_cache()
    assert any(report.refusals for report in reports)
    with tf1.Session() as session:
        session.run(get_initializer(True))
        session.run([loss, step])


def test_initializer_starts_iterators_that_feed_no_lookup(mxrec):
    _, ids = _iterator()
    _, labels = _iterator()
    loss, step = _train(ids["i"], labels["y"])
    modify_graph_and_start_emb_cache()
    with tf1.Session() as session:
        session.run(get_initializer(True))
        session.run([loss, step])


def test_initializer_where_ids_are_fed(mxrec):
    fed = tf1.placeholder(tf.int64, [None])
    loss, step = _train(fed, 0.0)
    modify_graph_and_start_emb_cache()
    with tf1.Session() as session:
        session.run(get_initializer(True))
        session.run([loss, step], {fed: [1, 2]})
    with pytest.raises(ValueError, match="no evaluation iterator"):
        get_initializer(False)


def test_target_batch_is_what_the_step_reads(mxrec):
    _, batch = _iterator()
    loss, step = _train(batch["i"], batch["y"])
    with pytest.raises(EnvironmentError, match="modify_graph_and_start_emb_cache"):
        get_target_batch(True)
    modify_graph_and_start_emb_cache()
    target = get_target_batch(True, batch)
    assert set(target) == {"i", "y"}
    assert [t.name for t in get_target_batch(True)] == [target["i"].name, target["y"].name]
    with pytest.raises(ValueError, match="read 0 batches"):
        get_target_batch(False)
    with tf1.Session() as session:
        session.run(get_initializer(True))
        for start in (0, 4, 8):
            fetched, _, _ = session.run([target, loss, step])
            np.testing.assert_array_equal(fetched["i"], np.arange(start, start + 4))
        session.run(get_initializer(True))
        fed = session.run(loss, {target["y"]: np.full(4, 4.0, np.float32)})
        assert fed != session.run(loss)


def test_target_batch_of_a_lookup_that_stays_is_the_old_one(mxrec):
    _, batch = _iterator()
    offset = tf1.get_variable("offset", [], tf.int64, initializer=tf1.zeros_initializer(), use_resource=True)
    _train(batch["i"] + offset, batch["y"])
    modify_graph_and_start_emb_cache()
    assert get_target_batch(True, batch)["y"] is batch["y"]
