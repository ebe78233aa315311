"""The rewrite changes nothing that a model computes: every script runs with and without it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Optional

import numpy as np
import pytest
import tensorflow as tf

from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.errors import GraphRewriteError
from mx_rec.graph import modify_graph_and_start_emb_cache
from mx_rec.graph.canonical import canonical_text
from mx_rec.optimizers import gradient_descent_by_addr, lazy_adam, lazy_adam_by_addr
from mx_rec.passes import PassManager, PipelineOptions, default_pipeline
from mx_rec.util.initialize import get_initializer, init, terminate_config_initializer

tf1 = tf.compat.v1
STEPS = 6


@pytest.fixture(autouse=True)
def clean():
    tf1.disable_eager_execution()
    terminate_config_initializer()
    yield
    terminate_config_initializer()


def _dataset(seed, rows=48, batch=8):
    rng = np.random.RandomState(seed)
    columns = {
        "user": rng.randint(-50, 50, size=(rows, 3)).astype(np.int64),
        "item": rng.randint(0, 2**40, size=rows).astype(np.int64) % 61 - 2**33,
        "y": rng.rand(rows).astype(np.float32),
    }
    return tf.data.Dataset.from_tensor_slices(columns).batch(batch)


@dataclasses.dataclass
class Script:
    """What a training script holds after it has built its graph."""

    train: dict
    eval: dict
    starts: dict  # initializer by side, None: get_initializer of the rewrite
    loss: Optional[tf.Tensor] = None
    eval_loss: Optional[tf.Tensor] = None
    step: Optional[tf.Operation] = None
    tables: Any = ()


def _initializable():
    iterators = [tf1.data.make_initializable_iterator(_dataset(seed)) for seed in (0, 1)]
    batches = [iterator.get_next() for iterator in iterators]
    return Script(*batches, {True: iterators[0].initializer, False: iterators[1].initializer})


def _one_shot():
    batches = [tf1.data.make_one_shot_iterator(_dataset(seed).repeat()).get_next() for seed in (0, 1)]
    return Script(*batches, {True: tf.no_op(), False: tf.no_op()})


def _from_structure():
    datasets = [_dataset(seed) for seed in (0, 1)]
    iterator = tf1.data.Iterator.from_structure(
        tf1.data.get_output_types(datasets[0]), tf1.data.get_output_shapes(datasets[0])
    )
    starts = {True: iterator.make_initializer(datasets[0]), False: iterator.make_initializer(datasets[1])}
    batch = iterator.get_next()
    return Script(batch, batch, starts)


def _from_structure_two_get_nexts():
    script = _from_structure()
    iterator = script.train["y"].op.inputs[0]
    spec = {k: (v.dtype, v.shape) for k, v in script.train.items()}
    flat = sorted(spec)
    values = tf.raw_ops.IteratorGetNext(
        iterator=iterator,
        output_types=[spec[k][0] for k in flat],
        output_shapes=[spec[k][1] for k in flat],
    )
    return dataclasses.replace(script, eval=dict(zip(flat, values)))


KINDS = {
    "initializable": _initializable,
    "one_shot": _one_shot,
    "from_structure": _from_structure,
    "from_structure_two_get_nexts": _from_structure_two_get_nexts,
}


def _model(batch, tables, is_train):
    user, item = tables
    with tf1.variable_scope("dense", reuse=tf1.AUTO_REUSE):
        users = sparse_lookup(user, tf.math.floormod(batch["user"] * 7, 37) - 10, is_train=is_train)
        items = sparse_lookup(item, batch["item"], is_train=is_train)
        again = sparse_lookup(user, batch["user"][:, 0], is_train=is_train)
        features = tf.concat([tf.reduce_mean(users, 1), items, again], axis=1)
        weights = tf1.get_variable("w", [12, 1], use_resource=True, initializer=tf1.ones_initializer())
        logits = tf.squeeze(tf.matmul(features, weights), 1)
    return tf.reduce_mean(tf.square(logits - batch["y"])), weights


def _build(kind, optimizer="adam"):
    script = KINDS[kind]()
    normal = tf1.random_normal_initializer(0.0, 0.3, seed=5)
    script.tables = [create_table(tf.int64, 4, name, normal) for name in ("user", "item")]
    script.loss, weights = _model(script.train, script.tables, True)
    script.eval_loss, _ = _model(script.eval, script.tables, False)
    local = tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
    addresses = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
    *sparse_gradients, dense_gradient = tf.gradients(script.loss, [*local, weights])
    if optimizer == "adam":
        sparse = lazy_adam_by_addr.create_hash_optimizer_by_address(0.05)
    else:
        sparse = gradient_descent_by_addr.create_hash_optimizer_by_addr(0.05)
    script.step = tf.group(
        sparse.apply_gradients(list(zip(sparse_gradients, addresses))),
        tf1.train.AdamOptimizer(0.01).apply_gradients([(dense_gradient, weights)]),
    )
    return script


def _train(script, starts, rounds=2, eval_every=None):
    """Losses of training and evaluation, table sizes, and the tables' content at the end."""
    losses = []
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for _ in range(rounds):
            session.run(starts[True])
            for _ in range(STEPS):
                losses.append(session.run([script.loss, script.step])[0])
            losses.extend(table.size(session) for table in script.tables)
            session.run(starts[False])
            losses.extend(session.run(script.eval_loss) for _ in range(STEPS))
        return losses, [table.export(session) for table in script.tables]


def _assert_same(plain, rewritten):
    assert plain[0] == rewritten[0]
    for expected, got in zip(plain[1], rewritten[1]):
        for one, other in zip(expected, got):
            np.testing.assert_array_equal(one, other)


def _run(kind, rewrite, *, prefetch=1, optimizer="adam", own_initializers=False):
    terminate_config_initializer()
    init(use_dynamic_expansion=True, prefetch_batch_number=prefetch)
    with tf.Graph().as_default():
        script = _build(kind, optimizer)
        starts = script.starts
        if rewrite:
            reports = modify_graph_and_start_emb_cache()
            assert {r.name for r in reports if r.modified} >= {"hoist_lookups", "swap_iterators"}
            assert not any(r.refusals for r in reports)
            if not own_initializers:
                starts = {side: get_initializer(side) for side in (True, False)}
        return _train(script, starts)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("prefetch", [1, 10])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_losses_and_tables_are_equal_bit_for_bit(kind, prefetch, optimizer):
    plain = _run(kind, False, optimizer=optimizer)
    _assert_same(plain, _run(kind, True, prefetch=prefetch, optimizer=optimizer))
    assert len(set(plain[0])) > 10  # it really trains


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_scripts_own_initializers_start_the_rewritten_pipeline(kind):
    _assert_same(_run(kind, False), _run(kind, True, own_initializers=True))


def _needed(graph, fetches):
    """Op types and node names that a fetch needs, function bodies excluded."""
    sub = tf1.graph_util.extract_sub_graph(graph.as_graph_def(), [fetch.name for fetch in fetches])
    return [node.op for node in sub.node], {node.name for node in sub.node}


def test_id_work_leaves_the_step():
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default() as graph:
        script = _build("initializable")
        needed, nodes = _needed(graph, [script.step])
        assert needed.count("MxRecUnique") == 3
        assert "dense/FloorMod" in nodes
        modify_graph_and_start_emb_cache()
        needed, nodes = _needed(graph, [script.step])
    assert "MxRecUnique" not in needed
    assert "dense/FloorMod" not in nodes
    assert needed.count("IteratorGetNext") == 1
    assert "MxRecFindOrInsert" not in needed
    assert needed.count("MxRecLookUpMany") == needed.count("MxRecApplyLazyAdamByAddressMany") == 1


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_live_graph_equals_file_rewrite(kind):
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default() as graph:
        _build(kind)
        options = PipelineOptions(prefetch=1, prune=False)
        expected = PassManager(default_pipeline(options)).run(graph.as_graph_def()).graph_def
        modify_graph_and_start_emb_cache()
        live = graph.as_graph_def()
    for node in [n for n in live.node if n.name.startswith("mx_rec/initializer_")]:
        live.node.remove(node)  # the front's no-ops for one-shot iterators, not part of the rewrite
    assert canonical_text(live) == canonical_text(expected)


def test_nothing_is_inserted_early():
    """A batch that is drawn ahead but never trained leaves no trace."""
    init(use_dynamic_expansion=True, prefetch_batch_number=5)
    with tf.Graph().as_default():
        script = _build("initializable")
        modify_graph_and_start_emb_cache()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(get_initializer(True))
            session.run(script.step)
            rng = np.random.RandomState(0)
            first = rng.randint(-50, 50, size=(48, 3)).astype(np.int64)[:8]
            keys = set((first * 7 % 37 - 10).ravel()) | set(first[:, 0])
            assert set(script.tables[0].export(session).keys) == keys


def test_evaluation_may_interleave_with_training():
    def run(rewrite):
        terminate_config_initializer()
        init(use_dynamic_expansion=True, prefetch_batch_number=4)
        with tf.Graph().as_default():
            script = _build("initializable")
            if rewrite:
                modify_graph_and_start_emb_cache()
            values = []
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                session.run([script.starts[True], script.starts[False]])
                for _ in range(STEPS):
                    values.append(session.run([script.loss, script.step])[0])
                    values.append(session.run(script.eval_loss))
            return values

    assert run(False) == run(True)


def test_old_batch_tensor_gives_a_clear_error_and_never_hangs():
    init(use_dynamic_expansion=True)
    for kind in ("initializable", "one_shot", "from_structure"):
        with tf.Graph().as_default():
            script = _build(kind)
            modify_graph_and_start_emb_cache()
            with tf1.Session() as session:
                session.run(get_initializer(True))
                with pytest.raises(tf.errors.InvalidArgumentError, match="get_target_batch"):
                    session.run(script.train["y"])


def test_key_that_cannot_move_stays_and_trains():
    def run(rewrite):
        terminate_config_initializer()
        init(use_dynamic_expansion=True)
        with tf.Graph().as_default():
            iterator = tf1.data.make_initializable_iterator(_dataset(0))
            batch = iterator.get_next()
            table = create_table(tf.int64, 4, "user", tf1.random_normal_initializer(0.0, 0.3))
            fed = tf1.placeholder(tf.int64, [None], name="fed")
            moved = sparse_lookup(table, batch["item"])
            stays = sparse_lookup(table, fed, name="stays")
            loss = tf.reduce_mean(moved) + tf.reduce_sum(tf.square(stays))
            step = lazy_adam_by_addr.create_hash_optimizer_by_address(0.05).minimize(loss)
            refusals = []
            if rewrite:
                reports = modify_graph_and_start_emb_cache()
                refusals = [str(r) for report in reports for r in report.refusals]
            with tf1.Session() as session:
                session.run(get_initializer(True) if rewrite else iterator.initializer)
                losses = [session.run([loss, step], {fed: [i, i + 1]})[0] for i in range(STEPS)]
                return losses, table.export(session), refusals

    plain, rewritten = run(False), run(True)
    assert plain[0] == rewritten[0]
    for one, other in zip(plain[1], rewritten[1]):
        np.testing.assert_array_equal(one, other)
    assert len(rewritten[2]) == 1
    assert "fed" in rewritten[2][0]


def _canonical(graph):
    return canonical_text(graph.as_graph_def())


def test_refuses_after_a_session_has_run_the_graph():
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default() as graph:
        script = _build("initializable")
        with tf1.Session() as session:
            modified = _canonical(graph)
            session.run(tf1.global_variables_initializer())
            before = _canonical(graph)
            with pytest.raises(GraphRewriteError, match=r"before the first session\.run"):
                modify_graph_and_start_emb_cache()
            assert _canonical(graph) == before
            session.run(script.starts[True])
            session.run([script.loss, script.step])
        assert modified != ""


def test_a_session_that_has_not_run_is_fine():
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default():
        script = _build("initializable")
        initializer = tf1.global_variables_initializer()
        with tf1.Session() as session:
            modify_graph_and_start_emb_cache()
            session.run([initializer, get_initializer(True)])
            session.run(script.step)


def test_refuses_before_gradients_twice_and_after_finalize():
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default() as graph:
        batch = tf1.data.make_initializable_iterator(_dataset(0)).get_next()
        table = create_table(tf.int64, 4, "user", tf1.zeros_initializer())
        result = sparse_lookup(table, batch["item"], name="early")
        with pytest.raises(RuntimeError, match="must come after the gradients.*'early'"):
            modify_graph_and_start_emb_cache()
        lazy_adam_by_addr.create_hash_optimizer_by_address().minimize(tf.reduce_sum(result))
        modify_graph_and_start_emb_cache()
        with pytest.raises(EnvironmentError, match="rewritten already"):
            modify_graph_and_start_emb_cache()
        with pytest.raises(EnvironmentError, match="must come before modify"):
            sparse_lookup(table, batch["item"])
    with tf.Graph().as_default() as graph:
        _build("initializable")
        graph.finalize()
        with pytest.raises(GraphRewriteError, match="finalized"):
            modify_graph_and_start_emb_cache()


def test_failed_pass_leaves_the_live_graph_as_it_was(monkeypatch):
    from mx_rec.graph import modifier

    init(use_dynamic_expansion=True)
    with tf.Graph().as_default() as graph:
        _build("initializable")
        before = _canonical(graph)
        real = modifier.default_pipeline

        class Broken(type(real()[0])):
            name = "broken"

            def run(self, view):
                raise GraphRewriteError("no good")

        monkeypatch.setattr(modifier, "default_pipeline", lambda options: [*real(options), Broken()])
        with pytest.raises(GraphRewriteError, match="broken.*no good"):
            modify_graph_and_start_emb_cache()
        assert _canonical(graph) == before
        monkeypatch.undo()
        modify_graph_and_start_emb_cache()


def test_graph_without_lookups_is_left_alone(caplog):
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default() as graph:
        tf1.data.make_initializable_iterator(_dataset(0)).get_next()
        before = _canonical(graph)
        modify_graph_and_start_emb_cache()
        assert _canonical(graph) == before
        assert "nothing to move" in caplog.text
        with pytest.raises(ValueError, match="no training iterator"):
            get_initializer(True)


def test_another_graph_than_the_default_one():
    init(use_dynamic_expansion=True)
    graph = tf.Graph()
    with graph.as_default():
        script = _build("initializable")
    modify_graph_and_start_emb_cache(full_graph=graph)
    with tf1.Session(graph=graph) as session:
        with graph.as_default():
            session.run(tf1.global_variables_initializer())
        session.run(get_initializer(True))
        session.run(script.step)


def test_dump_writes_both_graphs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default():
        _build("initializable")
        modify_graph_and_start_emb_cache(dump_graph=True)
    texts = [(tmp_path / "export_graph" / name).read_text() for name in ("old_graph.pbtxt", "new_graph.pbtxt")]
    assert "MxRecPrepareMany" not in texts[0]
    assert "MxRecPrepareMany" in texts[1]


def _hints(graph):
    return [op.name for op in graph.get_operations() if op.type == "GatherV2" and "_op_impl_mode" in op.node_def.attr]


def test_hot_embedding_hints(monkeypatch, tmp_path):
    init(use_dynamic_expansion=True)
    counts = []
    ini = tmp_path / "op_impl_mode.ini"
    ini.write_text("# none of ours\nMatMul=high_precision\n")
    for environment, path in (("1", None), ("0", None), ("1", ini)):
        monkeypatch.setenv("HOT_EMBEDDING", environment)
        with tf.Graph().as_default() as graph:
            _build("initializable")
            modify_graph_and_start_emb_cache(op_impl_mode=path)
            counts.append(len(_hints(graph)))
    assert counts == [6, 0, 0]


def _hot_run(monkeypatch, is_hot):
    """Results and new rows of a table of fixed capacity, whose gathers are not fused."""
    monkeypatch.setenv("HOT_EMBEDDING", "1" if is_hot else "0")
    terminate_config_initializer()
    init()
    with tf.Graph().as_default() as graph:
        ids = tf1.data.make_one_shot_iterator(_dataset(0).repeat()).get_next()["user"]
        table = create_table(tf.int64, 4, "user", tf1.random_normal_initializer(seed=3), device_vocabulary_size=200)
        loss = tf.reduce_sum(tf.square(sparse_lookup(table, ids) - 1.0))
        optimizer = lazy_adam.create_hash_optimizer(0.1)
        step = optimizer.minimize(loss, var_list=[table.variable])
        modify_graph_and_start_emb_cache()
        kernels = [op.get_attr("_kernel") for op in graph.get_operations() if "_kernel" in op.node_def.attr]
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            losses = [session.run([loss, step])[0] for _ in range(STEPS)]
            return kernels, (losses, table.export(session))


def test_the_hot_kernel_gives_what_tensorflows_gives(monkeypatch):
    (kernels, hot), (none, stock) = _hot_run(monkeypatch, True), _hot_run(monkeypatch, False)
    assert (kernels, none) == ([b"mx_rec_hot"], [])
    np.testing.assert_equal(hot, stock)


def test_unmoved_lookups_still_have_an_initializer():
    """get_initializer works even where every lookup was refused."""
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default():
        batch = tf1.data.make_initializable_iterator(_dataset(0)).get_next()
        table = create_table(tf.int64, 4, "user", tf1.zeros_initializer())
        offset = tf1.get_variable("offset", [], tf.int64, initializer=tf1.zeros_initializer(), use_resource=True)
        loss = tf.reduce_sum(sparse_lookup(table, batch["item"] + offset))
        step = lazy_adam_by_addr.create_hash_optimizer_by_address().minimize(loss)
        reports = modify_graph_and_start_emb_cache()
        assert [r for report in reports for r in report.refusals]
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(get_initializer(True))
            session.run(step)


def test_tuple_batches_and_two_sessions_of_one_graph():
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default():
        data = tf.data.Dataset.from_tensor_slices((np.arange(12, dtype=np.int32), np.ones(12, np.float32))).batch(4)
        ids, y = tf1.data.make_initializable_iterator(data).get_next()
        table = create_table(tf.int32, 4, "user", tf1.ones_initializer())
        loss = tf.reduce_sum(tf.square(tf.reduce_sum(sparse_lookup(table, ids), 1) - y))
        step = gradient_descent_by_addr.create_hash_optimizer_by_addr(0.01).minimize(loss)
        modify_graph_and_start_emb_cache()
        losses = []
        for _ in range(2):
            with tf1.Session() as session:
                session.run(get_initializer(True))
                losses.append([session.run([loss, step])[0] for _ in range(3)])
        assert losses[0] == losses[1]
        assert losses[0] == [36.0, 36.0, 36.0]


def test_empty_batches():
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default():
        data = tf.data.Dataset.from_tensor_slices(np.array([3, 0, 2], np.int64))
        data = data.map(lambda n: tf.range(n))
        ids = tf1.data.make_initializable_iterator(data).get_next()
        table = create_table(tf.int64, 4, "user", tf1.ones_initializer())
        result = sparse_lookup(table, ids)
        step = lazy_adam_by_addr.create_hash_optimizer_by_address().minimize(tf.reduce_sum(result))
        modify_graph_and_start_emb_cache()
        with tf1.Session() as session:
            session.run(get_initializer(True))
            shapes = [session.run([result, step])[0].shape for _ in range(3)]
    assert shapes == [(3, 4), (0, 4), (2, 4)]


def test_optimizer_refusals():
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default():
        table = create_table(tf.int64, 4, "user", tf1.zeros_initializer())
        sparse_lookup(table, tf.constant([1], tf.int64))
        (address,) = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
        optimizer = lazy_adam_by_addr.create_hash_optimizer_by_address()
        with pytest.raises(ValueError, match="no gradient for any of the addresses"):
            optimizer.apply_gradients([(None, address)])
        with pytest.raises(ValueError, match="does not hold the addresses of a lookup"):
            optimizer.apply_gradients([(tf.zeros([1, 4]), tf.constant([1], tf.int64))])
    terminate_config_initializer()
    init(use_dynamic_expansion=False)
    for create in (
        lazy_adam_by_addr.create_hash_optimizer_by_address,
        lambda: gradient_descent_by_addr.create_hash_optimizer_by_address(0.1),
    ):
        with pytest.raises(ValueError, match="use_dynamic_expansion=True"):
            create()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"learning_rate": -1.0}, r"learning_rate must be in \[0.0, 10.0\]"),
        ({"learning_rate": 10.5}, "learning_rate"),
        ({"beta1": 1.0}, r"beta1 must be in \(0.0, 1.0\)"),
        ({"beta2": 1.5}, "beta2"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"name": ""}, "name"),
    ],
)
def test_optimizer_parameters_are_checked(kwargs, message):
    init(use_dynamic_expansion=True)
    with pytest.raises(ValueError, match=message):
        lazy_adam_by_addr.create_hash_optimizer_by_address(**kwargs)


def test_learning_rate_tensor_and_global_step():
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default():
        table = create_table(tf.int64, 2, "user", tf1.zeros_initializer())
        result = sparse_lookup(table, tf.constant([1], tf.int64))
        global_step = tf1.train.get_or_create_global_step()
        rate = tf1.train.exponential_decay(1.0, global_step, 1, 0.5)
        optimizer = gradient_descent_by_addr.create_hash_optimizer_by_addr(rate, weight_decay=0.0)
        step = optimizer.minimize(tf.reduce_sum(result), global_step=global_step)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            values = [0.0]
            for _ in range(3):
                session.run(step)
                values.append(float(table.export(session).rows[0, 0]))
            assert session.run(global_step) == 3
    drops = [a - b for a, b in itertools.pairwise(values)] if hasattr(itertools, "pairwise") else None
    assert drops in (None, [1.0, 0.5, 0.25])
