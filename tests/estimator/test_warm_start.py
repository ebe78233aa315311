"""Warm start of tables and dense variables, from one checkpoint and from several."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf
from estimator_model import BATCH, DIM, ROWS, LossHook, dataset, input_fn, make, model_fn

from mx_rec.checkpoint.saved_tables import read_saved_tables
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.core.warm_start import settings_of, warm_start
from mx_rec.estimator import NPUEstimator, NPURunConfig, WarmStartSettings, api, with_warm_start
from mx_rec.graph import GraphModifierHook
from mx_rec.util.initialize import init, terminate_config_initializer

tf1 = tf.compat.v1
STEPS = ROWS // BATCH


@pytest.fixture(scope="module", params=[True, False], ids=["dynamic", "fixed"])
def trained(request, tmp_path_factory):
    """(whether tables grow, directories of two models trained on different data)."""
    tf1.disable_eager_execution()
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    directories = [tmp_path_factory.mktemp("trained") for _ in range(2)]
    for seed, directory in enumerate(directories):
        terminate_config_initializer()
        init(use_dynamic_expansion=request.param)
        make(directory).train(lambda seed=seed: input_fn(seed=seed, high=40 + seed), max_steps=STEPS)
    terminate_config_initializer()
    return request.param, directories


def _content(prefix, table):
    """Embeddings by key, and whether there are slots."""
    saved = read_saved_tables(prefix)[table]
    rows = {}
    for block in saved.blocks():
        rows.update(zip(block.columns["keys"].tolist(), block.columns["rows"]))
    return rows, saved.manifest


def _started(directory, settings, *, dynamic, params=None, steps=0, kind="npu", hooks=()):
    """The tables and the dense kernel of an Estimator's model that has started, and its losses."""
    terminate_config_initializer()
    init(use_dynamic_expansion=dynamic)
    losses = LossHook()
    if kind == "npu":
        model = make(directory, "npu", params, warm_start_from=settings)
    else:
        config = api.RunConfig(tf_random_seed=1, save_checkpoints_steps=5)
        model = api.Estimator(with_warm_start(model_fn, settings), str(directory), config, params or {})
    model.train(input_fn, hooks=[*hooks, losses], max_steps=steps or 1)
    prefix = f"{directory}/model.ckpt-{steps}"
    return {name: _content(prefix, name) for name in ("user", "other")}, _kernel(prefix), losses.losses


def _begun(settings, dynamic, user="user", kernel="dense/kernel"):
    """Rows by key of the tables, and the kernel, of a graph with tables and variables that has started."""
    terminate_config_initializer()
    init(use_dynamic_expansion=dynamic)
    size = {} if dynamic else {"device_vocabulary_size": 400}
    with tf.Graph().as_default():
        names = (user, "other")
        tables = [create_table(tf.int64, DIM, name, tf1.zeros_initializer(), **size) for name in names]
        dense = tf1.get_variable(kernel, [4 * DIM, 1], use_resource=True, initializer=tf1.zeros_initializer())
        fill = warm_start(settings)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(fill)
            return [_rows(session, table) for table in tables], session.run(dense)


def _rows(session, table):
    """Rows by key, as a lookup sees them."""
    keys = session.run(table._query("export").keys)
    return dict(zip(keys.tolist(), session.run(sparse_lookup(table, tf.constant(keys), is_train=False))))


def _last(directory):
    return tf.train.latest_checkpoint(str(directory))


def _kernel(prefix, name="dense/kernel"):
    return tf.train.load_checkpoint(prefix).get_tensor(name)


def _assert_rows(got, expected, *, width=None):
    """Rows by key are equal, in their first `width` columns."""
    assert got.keys() == expected.keys()
    for key, row in expected.items():
        np.testing.assert_array_equal(got[key][:width], row[:width])


@pytest.mark.parametrize("kind", ["npu", "plain"])
def test_the_first_checkpoint_is_what_was_learned(trained, tmp_path, kind):
    dynamic, (first, _) = trained
    path = str(first) if kind == "npu" else _last(first)
    tables, kernel, _ = _started(tmp_path, path, dynamic=dynamic, kind=kind, hooks=[GraphModifierHook()])
    for name, (rows, manifest) in tables.items():
        expected, saved = _content(_last(first), name)
        assert len(expected) > 5
        _assert_rows(rows, expected)
        assert (manifest.optimizer, manifest.steps) == (saved.optimizer, saved.steps) == ("LazyAdam", STEPS)
    np.testing.assert_array_equal(kernel, _kernel(_last(first)))


@pytest.mark.parametrize("by_mx_rec", [False, True])
def test_tensorflows_own_warm_start_says_that_it_leaves_tables_empty(trained, tmp_path, caplog, by_mx_rec):
    dynamic, (first, _) = trained
    init(use_dynamic_expansion=dynamic)
    settings = WarmStartSettings(str(first))
    function = with_warm_start(model_fn, settings) if by_mx_rec else model_fn
    plain = api.Estimator(function, str(tmp_path), api.RunConfig(), {}, warm_start_from=None if by_mx_rec else settings)
    with caplog.at_level("WARNING", "mx_rec"):
        plain.train(input_fn, hooks=[GraphModifierHook()], max_steps=1)
    warning = "1 variables start from a checkpoint, but tables 'other', 'user' start empty"
    assert (warning in caplog.text) == (not by_mx_rec)
    assert ("use NPUEstimator(warm_start_from=...)" in caplog.text) == (not by_mx_rec)


def test_slots_go_on(tmp_path):
    """With rows, slots and steps taken along, a table trains as if nothing had been in between."""
    init(use_dynamic_expansion=True)
    unbroken = LossHook()
    sparse_only = {"freeze_dense": True}
    make(tmp_path / "unbroken", params=sparse_only).train(dataset, hooks=[unbroken], max_steps=8)
    make(tmp_path / "first", params=sparse_only).train(dataset, max_steps=5)
    losses = LossHook()
    warm = make(tmp_path / "warm", params=sparse_only, warm_start_from=str(tmp_path / "first"))
    warm.train(lambda: dataset().skip(5), hooks=[GraphModifierHook(), losses], max_steps=3)
    assert losses.losses == unbroken.losses[5:]


def test_slots_of_another_optimizer_begin_anew(trained, tmp_path):
    dynamic, (first, _) = trained
    optimizer = "adagrad_by_addr" if dynamic else "adagrad"
    tables, _, losses = _started(tmp_path, str(first), dynamic=dynamic, params={"optimizer": optimizer}, steps=2)
    assert len(losses) == 2
    assert tables["user"][1].optimizer == "Adagrad"
    start, manifest = _content(f"{tmp_path}/model.ckpt-0", "user")
    assert manifest.optimizer == ("" if dynamic else "Adagrad")
    _assert_rows(start, _content(_last(first), "user")[0], width=DIM)


CHOICES = {
    "user": (True, False, False),
    "use.*": (True, False, False),
    "dense/kernel": (False, False, True),
    ".*r|dense.*": (True, True, True),
    ("user", "dense/kernel"): (True, False, True),
    ("ot.*",): (False, True, False),
    None: (False, False, False),
}


def test_names_and_regexes(trained):
    dynamic, (first, _) = trained
    for chosen, expected in CHOICES.items():
        settings = WarmStartSettings(str(first), list(chosen) if isinstance(chosen, tuple) else chosen)
        tables, kernel = _begun(settings, dynamic)
        assert (*map(bool, tables), bool(kernel.any())) == expected, chosen


def test_later_checkpoints_win_for_what_they_name(trained):
    dynamic, (first, second) = trained
    old, new = ({name: _content(_last(path), name)[0] for name in ("user", "other")} for path in trained[1])
    assert old["user"].keys() != new["user"].keys()
    (user, other), kernel = _begun(
        WarmStartSettings([str(first), str(second)], [".*", ["user", "dense/kernel"]]), dynamic
    )
    _assert_rows(user, new["user"], width=DIM)
    _assert_rows(other, old["other"], width=DIM)
    np.testing.assert_array_equal(kernel, _kernel(_last(second)))
    (user, other), kernel = _begun(WarmStartSettings([str(first), _last(second)], [".*", "other"]), dynamic)
    _assert_rows(user, old["user"], width=DIM)
    _assert_rows(other, new["other"], width=DIM)
    np.testing.assert_array_equal(kernel, _kernel(_last(first)))


def test_names_in_the_checkpoint_may_differ(trained):
    dynamic, (first, second) = trained
    old, new = ({name: _content(_last(path), name)[0] for name in ("user", "other")} for path in trained[1])
    names = {"member": "user", "top/weights": "dense/kernel"}
    settings = WarmStartSettings(str(first), var_name_to_prev_var_name=names)
    (user, other), kernel = _begun(settings, dynamic, "member", "top/weights")
    _assert_rows(user, old["user"], width=DIM)
    _assert_rows(other, old["other"], width=DIM)
    np.testing.assert_array_equal(kernel, _kernel(_last(first)))
    settings = WarmStartSettings(
        [str(first), str(second)],
        ["member", ["other", "top/weights"]],
        [None, None],
        [{"member": "user"}, {"top/weights": "dense/kernel", "other": "user"}],
    )
    (user, other), kernel = _begun(settings, dynamic, "member", "top/weights")
    _assert_rows(user, old["user"], width=DIM)
    _assert_rows(other, new["user"], width=DIM)
    np.testing.assert_array_equal(kernel, _kernel(_last(second)))


@pytest.mark.parametrize("dynamic", [True, False])
def test_between_tables_that_grow_and_those_of_fixed_capacity(trained, dynamic):
    (user, other), _ = _begun(str(trained[1][0]), dynamic)
    _assert_rows(user, _content(_last(trained[1][0]), "user")[0], width=DIM)
    _assert_rows(other, _content(_last(trained[1][0]), "other")[0], width=DIM)


def test_a_checkpoint_of_its_own_comes_first(trained, tmp_path):
    dynamic, (first, second) = trained
    _started(tmp_path, str(first), dynamic=dynamic, steps=2)
    before, _ = _content(f"{tmp_path}/model.ckpt-2", "user")
    model = make(tmp_path, warm_start_from=str(second))
    model.train(lambda: input_fn(shuffle=False), steps=1)
    after, _ = _content(f"{tmp_path}/model.ckpt-3", "user")
    trained_keys = {key for key in after if key not in before or (after[key] != before[key]).any()}
    assert before.keys() <= after.keys()
    assert len(trained_keys) <= 3 * BATCH < len(after)


def test_evaluation_and_prediction_without_a_checkpoint(trained, tmp_path):
    dynamic, (first, _) = trained
    init(use_dynamic_expansion=dynamic)
    own = make(first).evaluate(input_fn)
    rows = [row["p"] for row in make(first).predict(input_fn)]
    warm = make(tmp_path, warm_start_from=str(first))
    again = warm.evaluate(input_fn, hooks=[GraphModifierHook()])
    assert (again["loss"], again["mean"]) == (own["loss"], own["mean"])
    assert [row["p"] for row in warm.predict(input_fn)] == rows


def test_an_init_fn_of_the_model_runs_too(trained, tmp_path):
    dynamic, (first, _) = trained
    init(use_dynamic_expansion=dynamic)
    called = []

    def with_scaffold(features, labels, mode, params):
        scaffold = tf1.train.Scaffold(init_fn=lambda scaffold, session: called.append(session))
        return model_fn(features, labels, mode, params)._replace(scaffold=scaffold)

    model = NPUEstimator(with_scaffold, str(tmp_path), NPURunConfig(), {}, warm_start_from=str(first))
    model.train(input_fn, max_steps=1)
    assert len(called) == 1
    _assert_rows(_content(f"{tmp_path}/model.ckpt-0", "user")[0], _content(_last(first), "user")[0])


def test_what_is_wrong_is_said_before_training(trained):
    dynamic, (first, _) = trained
    path = str(first)
    cases = [
        (
            WarmStartSettings(path, "nothing"),
            "'nothing' names no table and no variable; the tables are 'user', 'other'",
        ),
        (WarmStartSettings(path, ["user", "nothing"]), "'nothing' names no table"),
        (WarmStartSettings(path, "us(er"), "is no regex"),
        (WarmStartSettings(path, var_name_to_prev_var_name={"usr": "user"}), "'usr' is mapped, but is no table"),
        (
            WarmStartSettings(path, "dense.*", var_name_to_prev_var_name={"user": "other"}),
            "table 'user' is mapped to 'other', but vars_to_warm_start does not name it",
        ),
        (
            WarmStartSettings(path, var_name_to_prev_var_name={"user": "member"}),
            "has no table 'member'; its tables are 'other', 'user'",
        ),
        (WarmStartSettings(path, var_name_to_vocab_info={"user": None}), "needs no var_name_to_vocab_info"),
    ]
    for settings, message in cases:
        with pytest.raises(ValueError, match=re.escape(message)):
            _begun(settings, dynamic)


def test_what_is_wrong_is_said_at_once(tmp_path):
    (tmp_path / "empty").mkdir()
    cases = [
        (str(tmp_path / "none-3"), ValueError, "no checkpoint '.*none-3'"),
        (str(tmp_path / "empty"), ValueError, "holds no checkpoint"),
        (17, ValueError, "must be a path or a WarmStartSettings, got int"),
        (WarmStartSettings([1]), TypeError, "ckpt_to_initialize_from must be a path, got 1"),
    ]
    for settings, error, message in cases:
        with pytest.raises(error, match=message):
            with_warm_start(model_fn, settings)
    (tmp_path / "x-1.index").touch()
    path = str(tmp_path / "x-1")
    with pytest.raises(ValueError, match="vars_to_warm_start must be one value, or one per checkpoint: 2 .* but 3"):
        settings_of(WarmStartSettings([path, path], ["a", "b", "c"]))
    with pytest.raises(TypeError, match="var_name_to_prev_var_name must be a dict"):
        settings_of(WarmStartSettings(path, "a", None, ["b"]))


def test_another_dim_or_key_dtype(trained):
    dynamic, (first, _) = trained
    init(use_dynamic_expansion=dynamic)
    for key_dtype, dim, message in (
        (tf.int64, DIM + 1, f"table 'user' has dim {DIM + 1}, but table 'user' of .* has {DIM}"),
        (tf.int32, DIM, "table 'user' has key_dtype int32, but table 'user' of .* has int64"),
    ):
        with tf.Graph().as_default():
            create_table(key_dtype, dim, "user", tf1.zeros_initializer(), device_vocabulary_size=100)
            with pytest.raises(ValueError, match=message):
                warm_start(WarmStartSettings(str(first), "user"))


def test_in_a_session_with_tables_and_variables_as_objects(trained):
    dynamic, (first, _) = trained
    init(use_dynamic_expansion=dynamic)
    with tf.Graph().as_default():
        size = {} if dynamic else {"device_vocabulary_size": 400}
        table = create_table(tf.int64, DIM, "user", tf1.zeros_initializer(), **size)
        unsaved = create_table(tf.int64, DIM, "other", tf1.zeros_initializer(), is_save=False, **size)
        kernel = tf1.get_variable("dense/kernel", [4 * DIM, 1], use_resource=True)
        another = tf1.get_variable("another", [1], use_resource=True, initializer=tf1.zeros_initializer())
        with pytest.raises(ValueError, match="made with is_save=False"):
            warm_start(WarmStartSettings(str(first), [unsaved]))
        with pytest.raises(TypeError, match="must list strings, variables or tables, got int"):
            warm_start(WarmStartSettings(str(first), [5]))
        named = [table if dynamic else table.variable, kernel]
        fill = warm_start(WarmStartSettings(str(first), named))
        assert len(fill) == 1
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(fill)
            assert table.size(session) == len(_content(_last(first), "user")[0])
            np.testing.assert_array_equal(session.run(kernel), _kernel(_last(first)))
            assert session.run(another) == 0
