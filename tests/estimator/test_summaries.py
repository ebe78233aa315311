"""Scalars of tables for TensorBoard, and the usual hooks beside ours."""

from __future__ import annotations

import glob

import pytest
import tensorflow as tf
from estimator_model import BATCH, ROWS, LossHook, columns, input_fn, make, model_fn

from mx_rec import ops
from mx_rec.core import graph_state
from mx_rec.core.table import EmbeddingTable
from mx_rec.estimator import NPUEstimator, NPURunConfig, TableSummaryHook, table_metrics
from mx_rec.graph import GraphModifierHook
from mx_rec.util.initialize import init, terminate_config_initializer

tf1 = tf.compat.v1
STEPS = ROWS // BATCH


def _scalars(directory):
    """Value by (tag, step)."""
    values = {}
    for path in sorted(glob.glob(f"{directory}/events.out.tfevents.*")):
        for event in tf1.train.summary_iterator(path):
            for value in event.summary.value:
                values[value.tag, event.step] = value.simple_value
    return values


@pytest.mark.parametrize("order", ["before", "after", "without"])
def test_sizes_and_hit_rates(tmp_path, order):
    init(use_dynamic_expansion=True, prefetch_batch_number=2)
    summary, trained = TableSummaryHook(tmp_path, every_n_steps=5), LossHook()
    hooks = {"before": [summary, GraphModifierHook()], "after": [GraphModifierHook(), summary], "without": [summary]}
    make(tmp_path).train(lambda: input_fn(shuffle=False), hooks=[*hooks[order], trained], max_steps=STEPS)
    scalars = {key: value for key, value in _scalars(tmp_path).items() if key[0].startswith("mx_rec/")}
    expected = {}
    ids = columns()["ids"]
    seen: set[int] = set()
    begin = 0
    for end in (5, 10, STEPS):
        looked_up = sum(len(set(ids[step * BATCH : (step + 1) * BATCH].ravel())) for step in range(begin, end))
        before = len(seen)
        seen.update(ids[begin * BATCH : end * BATCH].ravel())
        expected["mx_rec/user/size", end] = len(seen)
        expected["mx_rec/user/evicted", end] = 0
        expected["mx_rec/user/hit_rate", end] = 1 - (len(seen) - before) / looked_up
        begin = end
    user = {key: value for key, value in scalars.items() if "/user/" in key[0]}
    assert user == pytest.approx(expected)
    assert {key[0] for key in scalars} == {
        f"mx_rec/{name}/{what}" for name in ("user", "other") for what in ("size", "hit_rate", "evicted")
    }
    assert len(set(trained.losses)) == STEPS


def test_the_hook_changes_no_value(tmp_path):
    losses = []
    for hooks in ([], [TableSummaryHook(tmp_path / "events", 2)]):
        terminate_config_initializer()
        init(use_dynamic_expansion=True)
        trained = LossHook()
        make(tmp_path / str(len(hooks))).train(input_fn, hooks=[*hooks, GraphModifierHook(), trained], max_steps=STEPS)
        losses.append((trained.losses, trained.sizes))
    assert losses[0] == losses[1]


def test_lookups_that_a_step_does_not_do_are_not_counted(tmp_path):
    from mx_rec.core.embedding import create_table, sparse_lookup

    init(use_dynamic_expansion=True)
    with tf.Graph().as_default():
        batch = tf1.data.make_initializable_iterator(tf.data.Dataset.range(100).batch(4))
        ids = batch.get_next()
        tables = [create_table(tf.int64, 2, name, tf1.zeros_initializer()) for name in ("one", "two")]
        rows = [sparse_lookup(table, ids) for table in tables]
        step = tf1.assign_add(tf1.train.get_or_create_global_step(), 1)
        scaffold = tf1.train.Scaffold(local_init_op=batch.initializer)
        hook = TableSummaryHook(tmp_path, 2)
        with tf1.train.MonitoredTrainingSession(hooks=[hook], scaffold=scaffold) as session:
            for _ in range(2):
                session.run([step, rows[0]])
    assert _scalars(tmp_path) == {
        ("mx_rec/one/size", 2): 8,
        ("mx_rec/one/hit_rate", 2): 0,
        ("mx_rec/one/evicted", 2): 0,
        ("mx_rec/two/size", 2): 0,
        ("mx_rec/two/evicted", 2): 0,
    }


def test_evicted_keys_are_counted(tmp_path):
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default() as graph:
        handle = ops.table_handle("user", 2, eviction_threshold=0, record_times=True)
        graph_state.state_of(graph).tables["user"] = EmbeddingTable("user", 2, tf.int64, handle)
        time = tf1.placeholder(tf.int64, [1])
        insert = ops.find_or_insert(handle, tf.range(3, dtype=tf.int64) + time, timestamps=time)
        evict = ops.evict(handle, 2)
        step = tf1.assign_add(tf1.train.get_or_create_global_step(), 1)
        with tf1.train.MonitoredTrainingSession(hooks=[TableSummaryHook(tmp_path, 2)]) as session:
            for second in range(4):
                session.run(insert, {time: [10 * second]})
                session.run([step, evict])
    scalars = _scalars(tmp_path)
    assert [scalars["mx_rec/user/size", step] for step in (2, 4)] == [3, 3]
    assert [scalars["mx_rec/user/evicted", step] for step in (2, 4)] == [3, 6]


def test_arguments_are_checked(tmp_path):
    for wrong, error in ((0, ValueError), ("5", TypeError)):
        with pytest.raises(error, match="every_n_steps"):
            TableSummaryHook(tmp_path, wrong)
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match="global step"):
        TableSummaryHook(tmp_path).begin()


@pytest.mark.parametrize("hooks", [list, lambda: [GraphModifierHook()]])
def test_hit_rates_of_an_evaluation(tmp_path, hooks):
    init(use_dynamic_expansion=True)

    def with_metrics(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        return (
            spec._replace(eval_metric_ops={**spec.eval_metric_ops, **table_metrics()}) if labels is not None else spec
        )

    model = NPUEstimator(with_metrics, str(tmp_path), NPURunConfig(tf_random_seed=1), {})
    trained = LossHook()
    model.train(lambda: input_fn(high=20), hooks=[*hooks(), trained], max_steps=STEPS)
    metrics = model.evaluate(lambda: input_fn(shuffle=False, high=40), hooks=hooks())
    known = set(columns(high=20)["ids"].ravel())
    ids = columns(high=40)["ids"]
    batches = [set(ids[start : start + BATCH].ravel()) for start in range(0, ROWS, BATCH)]
    rate = sum(len(batch & known) for batch in batches) / sum(map(len, batches))
    assert metrics["mx_rec/user/hit_rate"] == pytest.approx(rate)
    assert 0.3 < rate < 0.8
    assert metrics["mx_rec/other/hit_rate"] == 1


def test_the_usual_hooks(tmp_path):
    init(use_dynamic_expansion=True)
    trained = LossHook()
    seen = []

    def model(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        tf1.summary.histogram("labels", labels)
        logged = tf1.train.LoggingTensorHook({"loss": spec.loss}, every_n_iter=1, formatter=seen.append)
        return spec._replace(training_hooks=[logged])

    hooks = [
        GraphModifierHook(),
        tf1.train.StepCounterHook(every_n_steps=2, output_dir=str(tmp_path / "counter")),
        tf1.train.ProfilerHook(save_steps=4, output_dir=str(tmp_path / "profile")),
        tf1.train.SummarySaverHook(save_steps=3, output_dir=str(tmp_path / "summaries"), scaffold=tf1.train.Scaffold()),
        tf1.train.NanTensorHook("Mean:0"),
        trained,
    ]
    NPUEstimator(model, str(tmp_path / "model"), NPURunConfig(save_summary_steps=2), {}).train(
        input_fn, hooks=hooks, max_steps=STEPS
    )
    assert [float(values["loss"]) for values in seen] == trained.losses
    assert any("global_step/sec" in tag for tag, _ in _scalars(tmp_path / "counter"))
    assert list((tmp_path / "profile").iterdir())
    tags = {tag for tag, _ in _scalars(tmp_path / "model")}
    assert {"loss", "labels"} <= tags
