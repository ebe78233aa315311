"""Prefetching draws batches earlier: refused where a dataset reads what a step may change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mx_rec import ops
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.graph.apply_live import apply_live
from mx_rec.passes import PassManager, default_pipeline
from mx_rec.util.initialize import init, terminate_config_initializer

tf1 = tf.compat.v1


@pytest.fixture(autouse=True)
def fresh() -> Any:
    tf1.disable_eager_execution()
    terminate_config_initializer()
    init(use_dynamic_expansion=True)
    yield
    terminate_config_initializer()


def variable() -> Any:
    return tf1.get_variable("step", [], tf.int64, tf1.zeros_initializer(), use_resource=True, trainable=False)


def vocabulary() -> Any:
    return tf1.lookup.StaticHashTable(tf1.lookup.KeyValueTensorInitializer([1], [2], tf.int64, tf.int64), 0)


def changing_table() -> Any:
    return tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)


def ids() -> Any:
    return tf.data.Dataset.range(24)


def added(read: Any) -> Callable:
    return lambda x: x + read


def in_function(read: Any) -> Callable:
    return tf.function(added(read), autograph=False)


def refusals(dataset: Any, *, one_shot: bool = False) -> list[str]:
    make = tf1.data.make_one_shot_iterator if one_shot else tf1.data.make_initializable_iterator
    batch = make(dataset.batch(4).prefetch(1)).get_next()
    sparse_lookup(create_table(tf.int64, 4, "user", tf1.zeros_initializer()), batch)
    result = PassManager(default_pipeline()).run(tf1.get_default_graph().as_graph_def())
    return [str(refusal) for report in result.reports for refusal in report.refusals]


@pytest.mark.parametrize(
    ("state", "build", "dataset", "what"),
    [
        (variable, lambda v: ids().map(added(v)), "MapDataset", "reads variable 'step"),
        (variable, lambda v: ids().map(in_function(v), 2), "ParallelMapDataset", "reads variable 'step"),
        (variable, lambda v: ids().filter(lambda x: x > v), "FilterDataset", "reads variable 'step"),
        (
            variable,
            lambda v: ids().flat_map(lambda x: ids().map(lambda y: x + y + v)),
            "FlatMapDataset",
            "reads variable 'step",
        ),
        (
            variable,
            lambda v: tf.data.Dataset.zip((ids(), ids().map(lambda x: x + v))).map(lambda x, y: x + y),
            "MapDataset",
            "reads variable 'step",
        ),
        (changing_table, lambda t: ids().map(t.lookup), "MapDataset", "a table that may change"),
        (
            lambda: tf.queue.FIFOQueue(9, [tf.int64], shapes=[[]]),
            lambda q: ids().map(lambda x: x + q.dequeue()),
            "MapDataset",
            "takes a resource from 'fifo_queue' (op 'FIFOQueueV2')",
        ),
        (
            lambda: None,
            lambda _: ids().map(lambda x: x + tf.raw_ops.Unstage(dtypes=[tf.int64])[0]),
            "MapDataset",
            "has 'Unstage' (op 'Unstage'), whose state a step may change",
        ),
        (
            lambda: tf1.data.make_initializable_iterator(ids()),
            lambda i: ids().map(lambda x: x + i.get_next()),
            "MapDataset",
            "(op 'IteratorV2')",
        ),
        (
            lambda: create_table(tf.int64, 1, "other", tf1.zeros_initializer()).handle,
            lambda t: ids().map(lambda x: x + tf.cast(ops.table_size(t), tf.int64)),
            "MapDataset",
            "(op 'MxRecTableSize'), whose state a step may change",
        ),
    ],
)
def test_datasets_that_read_what_a_step_may_change(state: Callable, build: Callable, dataset: str, what: str) -> None:
    with tf.Graph().as_default():
        (refusal,) = refusals(build(state()))
    assert refusal.startswith(dataset)
    assert what in refusal
    assert refusal.endswith(
        "; its batches are not prepared ahead of the step (lookup 'sparse_lookup_0' stays at the step)"
    )


@pytest.mark.parametrize("one_shot", [False, True])
@pytest.mark.parametrize(
    "build",
    [
        lambda: ids().shuffle(7, seed=1).cache().repeat(2),
        lambda: ids().map(lambda x: x + tf.random.uniform([], 0, 9, tf.int64)),
        lambda: ids().interleave(lambda x: tf.data.Dataset.range(x).shuffle(3), 2, num_parallel_calls=2),
        lambda: ids().map(lambda x: ids().reduce(x, lambda a, b: a + b)),
        lambda: ids().map(lambda x: tf.while_loop(lambda i: i < 9, lambda i: i + 1, [x])[0]),
        lambda: ids().map(lambda x: tf.map_fn(lambda y: y + 1, tf.reshape(x, [1]))[0]),
        lambda: ids().map(lambda x: tf.cond(x > 1, lambda: x, lambda: -x)),
        lambda: ids().map(lambda x: tf.numpy_function(lambda y: y, [x], tf.int64)).map(lambda x: tf.reshape(x, [])),
        lambda: tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3]])).map(
            lambda x: tf.cast(x[0], tf.int64)
        ),
        lambda: tf.data.Dataset.sample_from_datasets([ids(), ids()], seed=1),
        lambda: ids().window(2).flat_map(lambda x: x.batch(1)).unbatch(),
    ],
)
def test_datasets_that_read_nothing_of_the_kind(build: Callable, one_shot: bool) -> None:
    with tf.Graph().as_default():
        assert refusals(build(), one_shot=one_shot) == []


@pytest.mark.parametrize(
    "build",
    [
        lambda: ids().map(vocabulary().lookup),
        lambda: tf.data.Dataset.from_tensors(variable()),  # read once, when the iterator starts
        lambda: ids().take(variable()),
        lambda: tf.data.Dataset.from_generator(lambda: iter([1, 2]), tf.int64, []),
    ],
)
def test_what_is_captured_and_does_not_change(build: Callable) -> None:
    with tf.Graph().as_default():
        assert refusals(build()) == []


def ordered(dataset: Any) -> Any:
    """Without the prefetch that TensorFlow may add by itself, which would read ahead as well."""
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False
    options.autotune.enabled = False
    return dataset.with_options(options)


@pytest.mark.parametrize("kind", ["variable", "mutable_table"])
def test_values_stay_when_a_dataset_reads_what_the_step_writes(kind: str) -> None:
    values = []
    for is_rewritten in (False, True):
        terminate_config_initializer()
        init(use_dynamic_expansion=True)
        with tf.Graph().as_default() as graph:
            starts = []
            if kind == "variable":
                step = variable()
                dataset = ids().batch(4).map(added(step))
                starts.append(step.initializer)
            else:
                changing = changing_table()
                dataset = ids().batch(4).map(changing.lookup)
            iterator = tf1.data.make_initializable_iterator(ordered(dataset))
            batch = iterator.get_next()
            table = create_table(tf.int64, 4, "user", tf1.random_normal_initializer(seed=1))
            rows = sparse_lookup(table, batch)
            with tf.control_dependencies([rows]):
                write = tf1.assign_add(step, 100) if kind == "variable" else changing.insert(batch + 5, batch * 2 + 9)
        if is_rewritten:
            result = PassManager(default_pipeline()).run(graph.as_graph_def())
            assert sum(len(report.refusals) for report in result.reports) == 1
            apply_live(graph, result.edits)
        with tf1.Session(graph=graph) as session:
            session.run([*starts, iterator.initializer])
            values.append([session.run([batch, rows, write])[:2] for _ in range(6)])
    np.testing.assert_equal(values[1], values[0])
    assert len({tuple(batch) for batch, _ in values[0]}) > 1
