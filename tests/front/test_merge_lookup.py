"""Several lookups of one table as one: what it changes and what it must not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mx_rec import graph as graph_package
from mx_rec.constants.constants import (
    ASCEND_SPARSE_LOOKUP_ENTRANCE,
    ASCEND_SPARSE_LOOKUP_ID_OFFSET,
    ASCEND_SPARSE_LOOKUP_LOCAL_EMB,
)
from mx_rec.core import graph_state
from mx_rec.core.admission import check_admission
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.errors import GraphRewriteError
from mx_rec.graph import do_merge_lookup, modify_graph_and_start_emb_cache
from mx_rec.optimizers import (
    adagrad,
    adagrad_by_addr,
    ftrl,
    ftrl_by_addr,
    gradient_descent,
    gradient_descent_by_addr,
    lazy_adam,
    lazy_adam_by_addr,
)
from mx_rec.util.initialize import get_initializer, init, terminate_config_initializer
from mx_rec.util.variable import get_dense_and_sparse_variable

tf1 = tf.compat.v1
DIM = 4
STEPS = 6
BATCH = 8

# Optimizers by name: of dynamic expansion, of fixed capacity.
OPTIMIZERS = {
    "sgd": (
        lambda: gradient_descent_by_addr.create_hash_optimizer_by_addr(0.05, weight_decay=0.0),
        lambda: gradient_descent.create_hash_optimizer(0.05),
    ),
    "lazy_adam": (
        lambda: lazy_adam_by_addr.create_hash_optimizer_by_address(0.05),
        lambda: lazy_adam.create_hash_optimizer(0.05),
    ),
    "adagrad": (
        lambda: adagrad_by_addr.create_hash_optimizer_by_address(0.05),
        lambda: adagrad.create_hash_optimizer(0.05),
    ),
    "ftrl": (
        lambda: ftrl_by_addr.create_hash_optimizer_by_address(0.05),
        lambda: ftrl.create_hash_optimizer(0.05),
    ),
}
MODES = {"dynamic": True, "fixed": False}
each_mode = pytest.mark.parametrize("mode", sorted(MODES))
each_optimizer = pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))


@pytest.fixture(autouse=True)
def clean():
    tf1.disable_eager_execution()
    terminate_config_initializer()
    with tf.Graph().as_default():
        yield
    terminate_config_initializer()


def _columns(disjoint=False, seed=0):
    """Ids of two features with many repeats, within a sample, a batch and across the features unless disjoint."""
    rng = np.random.RandomState(seed)
    rows = STEPS * BATCH
    a, b = rng.randint(0, 9, (rows, 3)), rng.randint(4, 14, rows)
    if disjoint:
        a, b = a * 2, b * 2 + 1
    return {"a": a.astype(np.int64), "b": b.astype(np.int64), "y": rng.rand(rows).astype(np.float32)}


def _batch(columns):
    iterator = tf1.data.make_initializable_iterator(tf.data.Dataset.from_tensor_slices(columns).batch(BATCH))
    return iterator.get_next(), iterator.initializer


def _table(name="user", **kwargs):
    initializer = kwargs.pop("initializer", None) or tf1.random_normal_initializer(0.0, 0.3, seed=5)
    return create_table(tf.int64, DIM, name, initializer, device_vocabulary_size=100, **kwargs)


def _pairs():
    graph = tf1.get_default_graph()
    return list(
        zip(
            graph.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB),
            graph.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET),
        )
    )


def _loss(a, b, y):
    """Of embeddings [batch, 3, dim] and [batch, dim]; `_reference` differentiates it by hand."""
    return tf.reduce_mean(tf.square(tf.reduce_sum(a, [1, 2]) + 2.0 * tf.reduce_sum(b, 1) - y))


def _update(mode, optimizer, loss, merge):
    """The training op, with the lookups merged, or kept apart."""
    made = OPTIMIZERS[optimizer][0 if MODES[mode] else 1]()
    if merge:
        return made.minimize(loss, var_list=None if MODES[mode] else get_dense_and_sparse_variable()[1])
    if MODES[mode]:
        local, addresses = zip(*_pairs())
        return made.apply_gradients(list(zip(tf.gradients(loss, list(local)), addresses)))
    sparse = get_dense_and_sparse_variable()[1]
    return made.apply_gradients(list(zip(tf.gradients(loss, sparse), sparse)))


@dataclasses.dataclass
class Trained:
    losses: list
    keys: np.ndarray
    rows: np.ndarray
    counts: np.ndarray


def _content(session, table):
    exported = table.export(session)
    if table.variable is None:
        return exported
    from mx_rec import ops

    with table.handle.graph.as_default():
        offsets = ops.offsets(table.handle, table.variable.handle, ops.find(table.handle, exported.keys))
        rows = session.run(tf.gather(table.variable, offsets))
    return exported._replace(rows=rows)


def _train(mode, optimizer, merge, *, rewrite=False, columns=None, **table_kwargs):
    terminate_config_initializer()
    init(use_dynamic_expansion=MODES[mode])
    with tf.Graph().as_default():
        batch, start = _batch(columns or _columns())
        table = _table(**table_kwargs)
        loss = _loss(sparse_lookup(table, batch["a"]), sparse_lookup(table, batch["b"]), batch["y"])
        step = _update(mode, optimizer, loss, merge)
        assert len(_pairs()) == (1 if merge else 2)
        if rewrite:
            reports = modify_graph_and_start_emb_cache()
            assert not [refusal for report in reports for refusal in report.refusals]
            start = get_initializer(True)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(start)
            losses = [session.run([loss, step])[0] for _ in range(STEPS)]
            content = _content(session, table)
            return Trained(losses, content.keys, content.rows[:, :DIM], content.counts)


def _assert_equal(one, other):
    assert one.losses == other.losses
    np.testing.assert_array_equal(one.keys, other.keys)
    np.testing.assert_array_equal(one.rows, other.rows)
    np.testing.assert_array_equal(one.counts, other.counts)


# --- Equality ---


@each_mode
@each_optimizer
@pytest.mark.parametrize("rewrite", [False, True], ids=["plain", "rewritten"])
def test_rows_of_one_lookup_are_equal_bit_for_bit(mode, optimizer, rewrite):
    """Without a key in both lookups, each gradient is the sum of the same numbers in the same order."""
    columns = _columns(disjoint=True)
    apart = _train(mode, optimizer, False, columns=columns)
    _assert_equal(_train(mode, optimizer, True, rewrite=rewrite, columns=columns), apart)
    assert len(set(apart.losses)) == STEPS


@each_mode
@each_optimizer
def test_shared_rows_differ_by_the_order_of_a_sum(mode, optimizer):
    """A row of both lookups: (a1+a2)+(b1+b2) apart, ((a1+a2)+b1)+b2 merged.

    A batch has at most 32 occurrences of a key, so a gradient is off by at most 32 eps = 4e-6 of the sum of its
    terms' sizes; the optimizers pass on a relative error of a gradient as one of at most that size in a step.
    """
    apart, merged = _train(mode, optimizer, False), _train(mode, optimizer, True)
    np.testing.assert_array_equal(merged.keys, apart.keys)
    np.testing.assert_allclose(merged.losses, apart.losses, rtol=1e-4)
    np.testing.assert_allclose(merged.rows, apart.rows, rtol=1e-4, atol=1e-5)


@each_mode
@each_optimizer
def test_the_rewrite_changes_nothing_of_merged_training(mode, optimizer):
    _assert_equal(_train(mode, optimizer, True, rewrite=True), _train(mode, optimizer, True))


@each_mode
@each_optimizer
def test_padding_keys(mode, optimizer):
    padding = {"padding_keys": [4, 6, 9], "padding_keys_mask": True, "padding_keys_len": 3}
    disjoint = {"padding_keys": [4, 8, 13], "padding_keys_mask": True, "padding_keys_len": 3}
    apart = _train(mode, optimizer, False, columns=_columns(disjoint=True), **disjoint)
    merged = _train(mode, optimizer, True, columns=_columns(disjoint=True), **disjoint)
    _assert_equal(merged, apart)
    shared = _train(mode, optimizer, True, rewrite=True, initializer=tf1.constant_initializer(0.25), **padding)
    frozen = np.isin(shared.keys, padding["padding_keys"])
    assert frozen.sum() == 3
    assert (shared.rows[frozen] == 0.25).all()
    assert (shared.rows[~frozen] != 0.25).any(axis=1).all()


@each_mode
def test_counts_are_those_of_all_ids(mode, monkeypatch):
    monkeypatch.setenv("RECORD_KEY_COUNT", "1")
    columns = _columns()
    expected = dict(zip(*np.unique(np.concatenate([columns["a"].ravel(), columns["b"]]), return_counts=True)))
    for merge, rewrite in ((False, False), (True, False), (True, True)):
        trained = _train(mode, "sgd", merge, rewrite=rewrite, columns=columns)
        assert dict(zip(trained.keys, trained.counts)) == expected


# --- What one update over the summed gradient is ---


def _reference(optimizer, columns, epsilon):
    """Rows by key after training, in float64, with one update per step and key over the summed gradient."""
    keys = np.unique(np.concatenate([columns["a"].ravel(), columns["b"]]))
    place = {key: index for index, key in enumerate(keys)}
    at = np.vectorize(place.get)
    rows = np.full((len(keys), DIM), 0.1)
    m, v, s = np.zeros_like(rows), np.zeros_like(rows), np.full_like(rows, 0.9)
    for step in range(STEPS):
        part = slice(step * BATCH, (step + 1) * BATCH)
        a, b, y = at(columns["a"][part]), at(columns["b"][part]), columns["y"][part]
        error = rows[a].sum((1, 2)) + 2 * rows[b].sum(1) - y
        g = np.zeros_like(rows)
        np.add.at(g, a, (2 * error / BATCH)[:, None, None])
        np.add.at(g, b, (4 * error / BATCH)[:, None])
        touched = np.unique(np.concatenate([a.ravel(), b]))
        g = g[touched]
        if optimizer == "sgd":
            rows[touched] -= 0.05 * g
        elif optimizer == "adagrad":
            s[touched] += g * g
            rows[touched] -= 0.05 * g / np.sqrt(s[touched] + epsilon)
        else:
            m[touched] = 0.9 * m[touched] + 0.1 * g
            v[touched] = 0.999 * v[touched] + 0.001 * g * g
            rate = 0.05 * np.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
            rows[touched] -= rate * m[touched] / (np.sqrt(v[touched]) + 1e-8)
    return keys, rows


@each_mode
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "lazy_adam"])
def test_one_update_over_the_summed_gradient(mode, optimizer):
    columns = _columns()
    trained = _train(mode, optimizer, True, rewrite=True, initializer=tf1.constant_initializer(0.1), columns=columns)
    keys, rows = _reference(optimizer, columns, 1e-7 if MODES[mode] else 0.0)
    np.testing.assert_array_equal(trained.keys, keys)
    np.testing.assert_allclose(trained.rows, rows, rtol=1e-4, atol=1e-5)


@each_mode
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "ftrl"])
def test_equals_tensorflows_optimizer_on_a_variable(mode, optimizer):
    """TensorFlow sums the gradients of all gathers of a variable, and updates it once."""
    columns = _columns()
    trained = _train(mode, optimizer, True, initializer=tf1.constant_initializer(0.1), columns=columns)
    made = {
        "sgd": lambda: tf1.train.GradientDescentOptimizer(0.05),
        "adagrad": lambda: tf1.train.AdagradOptimizer(0.05, 0.9),
        "ftrl": lambda: tf1.train.FtrlOptimizer(0.05),
    }[optimizer]()
    with tf.Graph().as_default():
        batch, start = _batch(columns)
        variable = tf1.get_variable("v", [20, DIM], initializer=tf1.constant_initializer(0.1), use_resource=True)
        loss = _loss(tf.gather(variable, batch["a"]), tf.gather(variable, batch["b"]), batch["y"])
        step = made.minimize(loss)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(start)
            losses = [session.run([loss, step])[0] for _ in range(STEPS)]
            rows = session.run(variable)[trained.keys]
    np.testing.assert_allclose(trained.losses, losses, rtol=1e-4)
    np.testing.assert_allclose(trained.rows, rows, rtol=1e-4, atol=1e-5)


# --- The graph after a merge ---


def _merged(report):
    """The lookups of each merge."""
    return [note.split(" are ")[0].split("lookups ")[1] for note in report.notes]


def _three_lookups(**kwargs):
    batch, start = _batch(_columns())
    table = _table(**kwargs)
    a, b = sparse_lookup(table, batch["a"], name="a"), sparse_lookup(table, batch["b"], name="b")
    c = sparse_lookup(table, batch["b"] + 1, name="c", is_grad=False)
    return table, (a, b, c), batch, start


@each_mode
def test_collections_hold_one_pair_and_results_keep_their_tensors(mode):
    init(use_dynamic_expansion=MODES[mode])
    table, results, batch, _ = _three_lookups()
    entrances = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ENTRANCE)
    names = [result.name for result in results]
    loss = _loss(results[0], results[1], batch["y"]) + tf.reduce_sum(results[2])
    assert len(_pairs()) == 2
    report = do_merge_lookup(is_train=True)
    assert report.modified
    ((local, addresses),) = _pairs()
    assert local.shape.as_list() == [None, DIM]
    assert local.dtype == tf.float32
    assert addresses.dtype == tf.int64
    assert [result.name for result in results] == names
    assert tf1.get_default_graph().get_tensor_by_name(names[0]) is results[0]
    assert tf1.get_collection(ASCEND_SPARSE_LOOKUP_ENTRANCE) == entrances
    if MODES[mode]:
        (gradient,) = tf.gradients(loss, [local])
        assert gradient is not None
    else:
        (gradient,) = tf.gradients(loss, [table.variable])
        assert isinstance(gradient, tf.IndexedSlices)


def test_lookups_without_gradient_are_merged_with_each_other_alone():
    """Keys that only they read get no update: with a gradient of 0, LazyAdam would still move their rows."""

    def run(merge):
        terminate_config_initializer()
        init(use_dynamic_expansion=True)
        with tf.Graph().as_default():
            table, (a, b, c), batch, start = _three_lookups()
            d = sparse_lookup(table, batch["b"] - 1, name="d", is_grad=False)
            if merge:
                report = do_merge_lookup()
                assert _merged(report) == [
                    "'a', 'b'",
                    "'c', 'd'",
                ]
                assert "takes no gradient, unlike 'a', 'b'" in report.refusals[0].reason
            local, addresses = map(list, zip(*_pairs()))
            assert len(local) == 1 if merge else 2
            loss = _loss(a, b + c + d, batch["y"])  # the gradient needs c and d: they are read before the update
            step = OPTIMIZERS["lazy_adam"][0]().apply_gradients(list(zip(tf.gradients(loss, local), addresses)))
            with tf1.Session() as session:
                session.run(start)
                losses = [session.run([loss, step])[0] for _ in range(STEPS)]
                return losses, table.export(session)

    apart, merged = run(False), run(True)
    np.testing.assert_allclose(merged[0], apart[0], rtol=1e-4)
    np.testing.assert_array_equal(merged[1].keys, apart[1].keys)
    np.testing.assert_allclose(merged[1].rows, apart[1].rows, rtol=1e-4, atol=1e-5)


def test_lookups_that_are_all_without_gradient_enter_no_collection():
    init(use_dynamic_expansion=True)
    batch, _ = _batch(_columns())
    table = _table()
    for name in "ab":
        sparse_lookup(table, batch[name], is_grad=False)
    assert do_merge_lookup().modified
    assert not _pairs()


@each_mode
def test_more_than_128_lookups(mode):
    count = 150

    def run(merge):
        terminate_config_initializer()
        init(use_dynamic_expansion=MODES[mode])
        with tf.Graph().as_default():
            batch, start = _batch(_columns())
            normal = tf1.random_normal_initializer(seed=1)
            table = create_table(tf.int64, DIM, "user", normal, device_vocabulary_size=1000)
            results = [sparse_lookup(table, batch["a"] + index) for index in range(count)]
            if merge:
                do_merge_lookup()
                assert len(_pairs()) == 1
            else:
                assert len(_pairs()) == count
            total = tf.add_n(results)
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                session.run(start)
                values = [session.run([total, results[7], results[count - 1]]) for _ in range(2)]
                return values, table.export(session).keys

    apart, merged = run(False), run(True)
    for one, other in zip(apart[0], merged[0]):
        for expected, got in zip(one, other):
            np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(merged[1], apart[1])


def test_ids_of_any_rank_and_size():
    init(use_dynamic_expansion=True)
    table = _table()
    ids = [
        np.array(7),
        np.zeros([0], np.int64),
        np.array([[[3], [7]]]),
        np.array([2**62, -(2**62)]),
        np.zeros([2, 0, 3]),
    ]
    results = [sparse_lookup(table, tf.constant(value.astype(np.int64))) for value in ids]
    lengths = [result.shape.as_list() for result in results]
    do_merge_lookup()
    assert [result.shape.as_list() for result in results] == lengths
    with tf1.Session() as session:
        rows = session.run(results)
        assert [list(row.shape) for row in rows] == lengths
        np.testing.assert_array_equal(rows[0], rows[2][0, 1, 0])
        assert list(table.export(session).keys) == [-(2**62), 3, 7, 2**62]


def test_a_retired_find_counts_nothing(monkeypatch):
    monkeypatch.setenv("RECORD_KEY_COUNT", "1")
    init(use_dynamic_expansion=True)
    table = _table()
    results = [sparse_lookup(table, tf.constant(ids, tf.int64)) for ids in ([1, 2, 2], [2, 3])]
    (first, old), _ = _pairs()
    do_merge_lookup()
    with tf1.Session() as session:
        rows, addresses, _ = session.run([first, old, results])
        assert rows.shape == (2, DIM)
        assert (addresses > 0).all()
        content = table.export(session)
        assert dict(zip(content.keys, content.counts)) == {1: 1, 2: 3, 3: 1}


# --- When it does nothing, and when it refuses ---


def test_nothing_to_do():
    init(use_dynamic_expansion=True)
    batch, _ = _batch(_columns())
    first, second = _table("first"), _table("second")
    sparse_lookup(first, batch["a"])
    sparse_lookup(second, batch["b"])
    before = tf1.get_default_graph().as_graph_def()
    assert not do_merge_lookup().modified
    assert tf1.get_default_graph().as_graph_def() == before
    sparse_lookup(first, batch["b"])
    assert do_merge_lookup().modified
    before = tf1.get_default_graph().as_graph_def()
    assert not do_merge_lookup(is_train=True).modified
    assert tf1.get_default_graph().as_graph_def() == before


def test_a_later_lookup_joins_the_merged_ones():
    init(use_dynamic_expansion=True)
    table = _table()
    ids = [[1, 2, 2], [2, 3], [3, 9], [1, 11]]
    results = [sparse_lookup(table, tf.constant(part, tf.int64)) for part in ids[:2]]
    do_merge_lookup()
    for part in ids[2:]:
        results.append(sparse_lookup(table, tf.constant(part, tf.int64)))
        assert do_merge_lookup().modified
        assert len(_pairs()) == 1
    local, _ = _pairs()[0]
    gradient = tf.convert_to_tensor(tf.gradients(tf.add_n([tf.reduce_sum(r) for r in results]), local)[0])
    with tf1.Session() as session:
        rows, merged, sums = session.run([results, local, gradient])
        assert len(merged) == 5
        by_key = {}
        for part, values in zip(ids, rows):
            for key, value in zip(part, values):
                np.testing.assert_array_equal(by_key.setdefault(key, value), value)
        order = [1, 2, 3, 9, 11]
        np.testing.assert_array_equal(merged, [by_key[key] for key in order])
        counts = [sum(part.count(key) for part in ids) for key in order]
        np.testing.assert_array_equal(sums, np.repeat(np.array(counts, np.float32)[:, None], DIM, 1))


def test_a_table_without_lookup_on_that_side():
    init(use_dynamic_expansion=True)
    batch, _ = _batch(_columns())
    table = _table("user")
    _table("item")
    sparse_lookup(table, batch["a"])
    with pytest.raises(RuntimeError, match="no training lookup of 'item'"):
        do_merge_lookup()
    with pytest.raises(RuntimeError, match="no evaluation lookup of 'user', 'item'"):
        do_merge_lookup(is_train=False)


def test_bad_calls():
    with pytest.raises(EnvironmentError, match="not initialised"):
        do_merge_lookup()
    init(use_dynamic_expansion=True)
    with pytest.raises(TypeError, match="is_train must be a bool"):
        do_merge_lookup(1)
    assert graph_package.do_merge_lookup is do_merge_lookup


def test_thresholds_must_be_equal():
    init(use_dynamic_expansion=True)
    _three_lookups()
    state = graph_state.state_of(tf1.get_default_graph())

    def give(config):
        state.lookups["b"] = dataclasses.replace(state.lookups["b"], admission=check_admission("b", **config))

    give({"access_threshold": 3})
    with pytest.raises(ValueError, match="'a' and 'b' must have equal thresholds of admission and eviction"):
        do_merge_lookup()
    give({"access_threshold": -1, "eviction_threshold": None, "faae_coefficient": 1})
    assert do_merge_lookup().modified  # all of it is off, as for the others


@each_mode
def test_after_the_gradients_it_is_too_late(mode):
    init(use_dynamic_expansion=MODES[mode])
    table, (a, b, _), batch, _ = _three_lookups()
    loss = _loss(a, b, batch["y"])
    by = [local for local, _ in _pairs()] if MODES[mode] else [table.variable]
    tf.gradients(loss, by)
    before = tf1.get_default_graph().as_graph_def()
    with pytest.raises(RuntimeError, match=r"must come before the gradients.*lookup 'a'"):
        do_merge_lookup()
    assert tf1.get_default_graph().as_graph_def() == before


def test_after_a_session_has_run_or_the_rewrite_it_is_too_late():
    init(use_dynamic_expansion=True)
    _, (a, _, _), _, start = _three_lookups()
    with tf1.Session() as session:
        session.run(start)
        session.run(a)
        with pytest.raises(GraphRewriteError, match=r"before the first session\.run"):
            do_merge_lookup()
    with tf.Graph().as_default():
        _, (a, b, _), batch, _ = _three_lookups()
        OPTIMIZERS["sgd"][0]().minimize(_loss(a, b, batch["y"]))
        modify_graph_and_start_emb_cache()
        with pytest.raises(EnvironmentError, match="must come before modify_graph"):
            do_merge_lookup()


def test_a_finalized_graph_stays_as_it_is():
    init(use_dynamic_expansion=True)
    _three_lookups()
    graph = tf1.get_default_graph()
    before = graph.as_graph_def()
    graph.finalize()
    with pytest.raises(GraphRewriteError, match="finalized"):
        do_merge_lookup()
    assert graph.as_graph_def() == before


def test_an_optimizer_leaves_lookups_single_that_a_session_has_run(caplog):
    """The session would go on running them as they were, beside the merged one."""
    init(use_dynamic_expansion=True)
    table, (a, b, _), batch, start = _three_lookups()
    loss = _loss(a, b, batch["y"])
    with tf1.Session() as session:
        session.run(start)
        first = session.run(loss)
        step = OPTIMIZERS["sgd"][0]().minimize(loss)
        assert len(_pairs()) == 2
        assert "lookups are not merged: a session has run the graph" in caplog.text
        session.run(start)
        losses = [session.run([loss, step])[0] for _ in range(STEPS)]
        assert losses[0] == first
        session.run(start)
        assert session.run(loss) < first


def test_stale_tensors_of_a_merged_lookup_are_named():
    init(use_dynamic_expansion=True)
    _, (a, b, _), batch, _ = _three_lookups()
    (local, addresses), _ = _pairs()
    do_merge_lookup()
    optimizer = OPTIMIZERS["sgd"][0]()
    loss = _loss(a, b, batch["y"])
    with pytest.raises(ValueError, match=r"a/local_emb:0 belongs to a lookup that has been merged"):
        optimizer.compute_gradients(loss, [local])
    with pytest.raises(ValueError, match=r"a/local_emb:0 belongs to a lookup that has been merged"):
        optimizer.minimize(loss, var_list=[local])
    with pytest.raises(ValueError, match=r"a/addresses:0 belongs to a lookup that has been merged"):
        optimizer.apply_gradients([(tf.zeros([1, DIM]), addresses)])


def test_compute_gradients_merges_unless_it_is_given_single_embeddings():
    init(use_dynamic_expansion=True)
    _, (a, b, _), batch, _ = _three_lookups()
    optimizer = OPTIMIZERS["lazy_adam"][0]()
    held = _pairs()
    pairs = optimizer.compute_gradients(_loss(a, b, batch["y"]), [local for local, _ in held])
    assert _pairs() == held
    optimizer.apply_gradients([(gradient, address) for (gradient, _), (_, address) in zip(pairs, held)])
    with tf.Graph().as_default():
        _, (a, b, _), batch, _ = _three_lookups()
        pairs = optimizer.compute_gradients(_loss(a, b, batch["y"]))
        ((local, addresses),) = _pairs()
        assert [embedding for _, embedding in pairs] == [local]
        optimizer.apply_gradients([(pairs[0][0], addresses)])


def test_two_optimizers_on_one_graph():
    """The second finds the lookups merged; lookups that came in between stay single and train too."""
    init(use_dynamic_expansion=True)
    table, (a, b, _), batch, start = _three_lookups()
    other = _table("item")
    first = OPTIMIZERS["sgd"][0]().minimize(_loss(a, b, batch["y"]))
    late = sparse_lookup(table, batch["b"], name="late")
    item = sparse_lookup(other, batch["b"])
    second = OPTIMIZERS["sgd"][0]().minimize(tf.reduce_sum(late) + tf.reduce_sum(item))
    assert len(_pairs()) == 3
    with tf1.Session() as session:
        session.run(start)
        session.run([first, second])


@each_mode
def test_a_loss_leaves_the_lookups_of_another_alone(mode):
    """Two losses on one table, each with lookups of its own: a step of one gives the keys of the other nothing."""

    def run(way):
        terminate_config_initializer()
        init(use_dynamic_expansion=MODES[mode])
        with tf.Graph().as_default():
            batch, start = _batch(_columns())
            table = _table()
            shifted = [batch["a"], batch["b"], batch["a"] + 1, batch["b"] + 2]
            results = [sparse_lookup(table, ids, name=f"l{index}") for index, ids in enumerate(shifted)]
            stopped = tf.stop_gradient(tf.square(results[2])) + tf.cast(tf.argmax(results[2], 2), tf.float32)[..., None]
            losses = [_loss(results[0] + stopped, results[1], batch["y"]), _loss(results[2], results[3], batch["y"])]
            sparse = get_dense_and_sparse_variable()[1]
            made = OPTIMIZERS["lazy_adam"][0 if MODES[mode] else 1]()
            if way == "minimize":
                variables = None if MODES[mode] else sparse
                steps = [made.minimize(loss, var_list=variables) for loss in losses]
                assert len(_pairs()) == 2
            else:
                local, addresses = (sparse, sparse) if not MODES[mode] else map(list, zip(*_pairs()))
                steps = [made.apply_gradients(list(zip(tf.gradients(loss, local), addresses))) for loss in losses]
                assert len(_pairs()) == 4
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                session.run(start)
                values = [session.run([losses[i % 2], steps[i % 2]])[0] for i in range(STEPS)]
                content = _content(session, table)
                return values, content.keys, content.rows

    apart, merged = run("tf.gradients"), run("minimize")
    np.testing.assert_allclose(merged[0], apart[0], rtol=1e-4)
    np.testing.assert_array_equal(merged[1], apart[1])
    np.testing.assert_allclose(merged[2], apart[2], rtol=1e-4, atol=1e-5)


def test_lookups_of_different_batches_stay_apart_and_train():
    def run(merge, rewrite=False):
        terminate_config_initializer()
        init(use_dynamic_expansion=True)
        with tf.Graph().as_default():
            (one, start), (two, other_start) = _batch(_columns()), _batch(_columns(seed=1))
            table = _table()
            fed = tf1.placeholder(tf.int64, [BATCH], name="fed")
            a, b = sparse_lookup(table, one["a"]), sparse_lookup(table, one["b"])
            c, d = sparse_lookup(table, two["b"], name="two"), sparse_lookup(table, fed, name="by_hand")
            loss = _loss(a, b + c + d, one["y"])
            if merge:
                report = do_merge_lookup()
                nodes = {refusal.node: str(refusal) for refusal in report.refusals}
                assert len(nodes) == 2
                assert "is fed at the step" in nodes["fed"]
                assert "'by_hand'" in nodes["fed"]
                batch_node = two["b"].op.name
                assert "'two'" in nodes[batch_node]
                assert repr(one["b"].op.name) in nodes[batch_node]
                assert len(_pairs()) == 3
            local, addresses = map(list, zip(*_pairs()))
            step = OPTIMIZERS["sgd"][0]().apply_gradients(list(zip(tf.gradients(loss, local), addresses)))
            if rewrite:
                reports = modify_graph_and_start_emb_cache()
                assert ["fed" in str(r) for report in reports for r in report.refusals] == [True]
            with tf1.Session() as session:
                session.run([start, other_start])
                feed = {fed: np.arange(BATCH)}
                losses = [session.run([loss, step], feed)[0] for _ in range(STEPS)]
                return losses, table.export(session)

    apart, merged, rewritten = run(False), run(True), run(True, rewrite=True)
    np.testing.assert_allclose(merged[0], apart[0], rtol=1e-4)
    np.testing.assert_allclose(merged[1].rows, apart[1].rows, rtol=1e-4, atol=1e-5)
    assert rewritten[0] == merged[0]
    np.testing.assert_array_equal(rewritten[1].rows, merged[1].rows)


# --- Evaluation ---


@each_mode
@pytest.mark.parametrize("how", ["by_hand", "by_the_rewrite"])
def test_evaluation(mode, how):
    """Serving defaults of two kinds: equal ones are merged, and every lookup reads what it read before."""
    defaults = [None, None, 0.5, [0.5] * DIM, 1.5]

    def run(merge):
        terminate_config_initializer()
        init(use_dynamic_expansion=MODES[mode])
        with tf.Graph().as_default():
            batch, start = _batch(_columns())
            table = _table()
            step = OPTIMIZERS["sgd"][0 if MODES[mode] else 1]().minimize(
                tf.reduce_sum(tf.square(sparse_lookup(table, batch["a"]))),
                var_list=None if MODES[mode] else get_dense_and_sparse_variable()[1],
            )
            known, start_eval = _batch(_columns(seed=3))
            values = [
                sparse_lookup(table, known["a"] * 2 + i, is_train=False, serving_default_value=row, name=f"eval_{i}")
                for i, row in enumerate(defaults)
            ]
            if merge and how == "by_hand":
                reports = [do_merge_lookup(is_train=False)]
            elif merge:
                reports = modify_graph_and_start_emb_cache()
            if merge:
                (report,) = [report for report in reports if report.name == "merge_lookups"]
                assert _merged(report) == [
                    "'eval_0', 'eval_1'",
                    "'eval_2', 'eval_3'",
                ]
                assert len(report.refusals) == 2
                assert "serving default" in report.refusals[0].reason
                assert "'eval_4'" in report.refusals[1].reason
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                session.run([start, start_eval])
                session.run(step)
                size = table.size(session)
                found = [session.run(values) for _ in range(STEPS)]
                assert table.size(session) == size
                return found, _content(session, table)

    apart, merged = run(False), run(True)
    np.testing.assert_equal(merged[0], apart[0])
    np.testing.assert_array_equal(merged[1].rows, apart[1].rows)
    flat = np.array(apart[0])
    assert {0.0, 0.5, 1.5} <= set(flat[..., 0].ravel())


# --- Together with the other passes ---


def test_all_merged_lookups_move_and_are_fused():
    init(use_dynamic_expansion=True)
    graph = tf1.get_default_graph()
    batch, _ = _batch(_columns())
    tables = [_table("user"), _table("item")]
    results = [sparse_lookup(table, batch[name]) for table in tables for name in "ab"]
    loss = _loss(results[0] + results[2], results[1] + results[3], batch["y"])
    step = OPTIMIZERS["lazy_adam"][0]().minimize(loss)
    assert len(_pairs()) == 2
    reports = modify_graph_and_start_emb_cache()
    assert not [refusal for report in reports for refusal in report.refusals]
    needed = tf1.graph_util.extract_sub_graph(graph.as_graph_def(), [step.name, loss.op.name])
    ops = [node.op for node in needed.node]
    assert ops.count("MxRecLookUpMany") == ops.count("MxRecApplyLazyAdamByAddressMany") == 1
    assert not {"MxRecUnique", "MxRecFindOrInsert", "SplitV"} & set(ops)
    assert ops.count("IteratorGetNext") == 1


@pytest.mark.parametrize("kind", ["one_shot", "from_structure"])
def test_other_iterators(kind):
    def run(rewrite):
        terminate_config_initializer()
        init(use_dynamic_expansion=True)
        with tf.Graph().as_default():
            data = [tf.data.Dataset.from_tensor_slices(_columns(seed=seed)).batch(BATCH) for seed in (0, 1)]
            if kind == "one_shot":
                batch = tf1.data.make_one_shot_iterator(data[0].repeat()).get_next()
                starts = {True: tf.no_op(), False: tf.no_op()}
            else:
                iterator = tf1.data.Iterator.from_structure(
                    tf1.data.get_output_types(data[0]), tf1.data.get_output_shapes(data[0])
                )
                starts = {True: iterator.make_initializer(data[0]), False: iterator.make_initializer(data[1])}
                batch = iterator.get_next()
            table = _table()
            loss = _loss(sparse_lookup(table, batch["a"]), sparse_lookup(table, batch["b"]), batch["y"])
            found = [sparse_lookup(table, batch[name], is_train=False) for name in "ab"]
            eval_loss = _loss(*found, batch["y"])
            step = OPTIMIZERS["lazy_adam"][0]().minimize(loss)
            if rewrite:
                reports = modify_graph_and_start_emb_cache()
                assert not [refusal for report in reports for refusal in report.refusals]
                starts = {side: get_initializer(side) for side in starts}
            losses = []
            with tf1.Session() as session:
                for _ in range(2):
                    session.run(starts[True])
                    losses += [session.run([loss, step])[0] for _ in range(STEPS)]
                    session.run(starts[False])
                    losses += [session.run(eval_loss) for _ in range(STEPS)]
                return losses, table.export(session)

    plain, rewritten = run(False), run(True)
    assert plain[0] == rewritten[0]
    np.testing.assert_array_equal(plain[1].rows, rewritten[1].rows)
