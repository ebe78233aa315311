"""`GraphModifierHook` in train, evaluate, predict and train_and_evaluate: no value changes, no key is inserted."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from estimator_model import BATCH, ROWS, LossHook, input_fn, make

from mx_rec.core.asc.helper import FeatureSpec, get_asc_insert_func
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.estimator import NPUEstimator, NPURunConfig, api
from mx_rec.graph import GraphModifierHook, LookupSubgraphSlicerHook, OrphanLookupKeySlicerHook
from mx_rec.optimizers import lazy_adam_by_addr
from mx_rec.util.initialize import init, terminate_config_initializer

tf1 = tf.compat.v1
STEPS = ROWS // BATCH
MOVED = "MxRecLookAhead"


def _run(directory, hooks, *, estimator="npu", kind="dataset", form="dict", dynamic=True):
    """Losses, metrics, predictions and table sizes of a train, two evaluations and a prediction."""
    terminate_config_initializer()
    init(use_dynamic_expansion=dynamic, prefetch_batch_number=2)
    model = make(directory, estimator)
    trained, evaluated, predicted = LossHook(), LossHook(), LossHook()
    model.train(lambda: input_fn(kind, form=form), hooks=[*hooks(), trained], max_steps=STEPS - 2)
    metrics = [
        model.evaluate(lambda: input_fn(kind, form=form, seed=7, high=90), hooks=[*hooks(), evaluated])
        for _ in range(2)
    ]
    keys = ["p", "ids"] if estimator == "npu" else ["p"]
    predictions = list(
        model.predict(lambda: input_fn(kind, form=form, seed=7, shuffle=False), keys, hooks=[*hooks(), predicted])
    )
    ops = [hook.ops for hook in (trained, evaluated, predicted)]
    return trained.losses, metrics, predictions, [trained.sizes, evaluated.sizes, predicted.sizes], ops


def _assert_same(one, other):
    assert one[0] == other[0]
    assert len(set(one[0])) == STEPS - 2
    assert one[1] == other[1]
    assert one[1][0] == one[1][1]
    assert len(one[2]) == len(other[2]) == ROWS
    for row, expected in zip(one[2], other[2]):
        assert row.keys() == expected.keys()
        for name in row:
            np.testing.assert_array_equal(row[name], expected[name])
    assert one[3] == other[3]


@pytest.mark.parametrize(
    ("estimator", "kind", "form"),
    [
        ("npu", "dataset", "dict"),
        ("npu", "dataset", "tuple"),
        ("npu", "initializable", "dict"),
        ("npu", "one_shot", "tuple"),
        ("plain", "dataset", "dict"),
        ("plain", "one_shot", "dict"),
    ],
)
def test_the_hook_changes_no_value(tmp_path, estimator, kind, form):
    options = {"estimator": estimator, "kind": kind, "form": form}
    plain = _run(tmp_path / "plain", list, **options)
    rewritten = _run(tmp_path / "rewritten", lambda: [GraphModifierHook()], **options)
    _assert_same(rewritten, plain)
    for before, after in zip(plain[4], rewritten[4]):
        assert "MxRecUnique" in before
        assert not {"MxRecLookUpMany", MOVED} & before
        assert {"MxRecLookUpMany", MOVED} & after, "nothing was moved"


def test_with_fixed_capacity_and_slicers(tmp_path):
    plain = _run(tmp_path / "plain", list, dynamic=False)

    def hooks():
        return [OrphanLookupKeySlicerHook(), LookupSubgraphSlicerHook(["Cast", "AsString"]), GraphModifierHook()]

    _assert_same(_run(tmp_path / "rewritten", hooks, dynamic=False), plain)


def test_evaluation_and_prediction_insert_no_key(tmp_path):
    _, _, predictions, (trained, evaluated, predicted), _ = _run(tmp_path, lambda: [GraphModifierHook()])
    assert trained[0]["user"] > 0
    assert trained[0] == evaluated[0] == evaluated[1] == predicted[0]
    assert len(predictions) == ROWS


def test_train_and_evaluate_evaluates_several_times(tmp_path, estimator="plain"):
    def run(directory, hooks):
        terminate_config_initializer()
        init(use_dynamic_expansion=True)
        model = make(directory, estimator, config={"save_checkpoints_steps": 6})
        trained, evaluated = LossHook(), LossHook()
        train = api.TrainSpec(lambda: input_fn(), max_steps=STEPS, hooks=[*hooks(), trained])
        evaluation = api.EvalSpec(
            lambda: input_fn(seed=7), steps=None, hooks=[*hooks(), evaluated], throttle_secs=0, start_delay_secs=0
        )
        metrics, _ = api.train_and_evaluate(model, train, evaluation)
        assert len(evaluated.sizes) == STEPS // 6
        return trained.losses, metrics, evaluated.losses, evaluated.sizes

    plain = run(tmp_path / "plain", list)
    assert run(tmp_path / "rewritten", lambda: [GraphModifierHook()]) == plain
    assert len(set(plain[0])) == STEPS


def test_features_instead_of_tensors(tmp_path):
    """FeatureSpec mode: the hook calls start_asc_pipeline."""

    def run(directory, hooks):
        terminate_config_initializer()
        init(use_dynamic_expansion=True)
        specs = {}

        def data(is_training):
            specs[is_training] = [FeatureSpec("ids", table_name="user"), FeatureSpec("other", table_name="user")]
            names = tf.data.Dataset.map(
                input_fn(shuffle=is_training), lambda features, label: {**features, "label": label}
            )
            return names.map(get_asc_insert_func(specs[is_training], is_training=is_training)).prefetch(1)

        def model(features, labels, mode):
            is_train = mode == api.ModeKeys.TRAIN
            table = create_table(tf.int64, 2, "user", tf1.random_normal_initializer(seed=4))
            rows = [sparse_lookup(table, spec, is_train=is_train, batch=features) for spec in specs[is_train]]
            total = tf.reduce_sum(rows[0], [1, 2]) + tf.reduce_sum(rows[1], 1)
            loss = tf.reduce_mean(tf.square(total - features["label"]))
            optimizer = lazy_adam_by_addr.create_hash_optimizer_by_address(0.05)
            train_op = optimizer.minimize(loss, tf1.train.get_global_step()) if is_train else None
            return api.EstimatorSpec(mode, loss=loss, train_op=train_op)

        estimator = NPUEstimator(model, str(directory), NPURunConfig(tf_random_seed=1))
        trained, evaluated = LossHook(), LossHook()
        estimator.train(lambda: data(True), hooks=[*hooks(), trained], max_steps=STEPS)
        metrics = estimator.evaluate(lambda: data(False), hooks=[*hooks(), evaluated])
        return trained.losses, metrics, trained.sizes, evaluated.sizes, evaluated.ops

    plain = run(tmp_path / "plain", list)
    rewritten = run(tmp_path / "rewritten", lambda: [GraphModifierHook(modify_graph=False)])
    assert rewritten[:4] == plain[:4]
    assert plain[2] == plain[3]
    assert "MxRecLookUpMany" in rewritten[4] - plain[4]


def test_a_component_of_the_batch_needs_identity_in_plain_estimator(tmp_path):
    init(use_dynamic_expansion=True)
    model = make(tmp_path, "plain")
    with pytest.raises(tf.errors.InvalidArgumentError, match="get_target_batch"):
        next(iter(model.predict(lambda: input_fn(), ["ids"], hooks=[GraphModifierHook()])))
    assert len(list(model.predict(lambda: input_fn(), ["p"], hooks=[GraphModifierHook()]))) == ROWS


def test_two_hooks_say_so(tmp_path):
    terminate_config_initializer()
    init(use_dynamic_expansion=True)
    with pytest.raises(EnvironmentError, match="rewritten already, by another GraphModifierHook"):
        make(tmp_path, "npu").train(input_fn, hooks=[GraphModifierHook(), GraphModifierHook()], max_steps=1)
