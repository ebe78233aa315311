"""Fused lookups and updates do what single ones do, whatever a run fetches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mx_rec import ops
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.graph.apply_live import apply_live
from mx_rec.graph.canonical import canonical_text
from mx_rec.optimizers import adagrad_by_addr, ftrl_by_addr, gradient_descent_by_addr, lazy_adam_by_addr
from mx_rec.passes import PassManager, PipelineOptions, PipelineResult, default_pipeline
from mx_rec.util.initialize import init, terminate_config_initializer

tf1 = tf.compat.v1
TABLES = 4
OPTIMIZERS = {
    "adagrad": lambda: adagrad_by_addr.create_hash_optimizer_by_address(0.05),
    "ftrl": lambda: ftrl_by_addr.create_hash_optimizer_by_address(0.05, l1_regularization_strength=0.01),
    "lazy_adam": lambda: lazy_adam_by_addr.create_hash_optimizer_by_address(0.05),
    "sgd": lambda: gradient_descent_by_addr.create_hash_optimizer_by_address(0.05, weight_decay=0.01),
}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("RECORD_KEY_COUNT", "1")
    tf1.disable_eager_execution()
    terminate_config_initializer()
    init(use_dynamic_expansion=True)
    yield
    terminate_config_initializer()


class Model:
    """Some tables of dim 4 and one of dim 3, looked up for training and evaluation; the first one twice."""

    def __init__(self, optimizer: str = "lazy_adam", id_dtype: tf.DType = tf.int64) -> None:
        terminate_config_initializer()
        init(use_dynamic_expansion=True)
        with tf.Graph().as_default() as self.graph:
            self.tables = [
                create_table(id_dtype, 3 if t == TABLES - 1 else 4, f"t{t}", tf1.random_normal_initializer(seed=t))
                for t in range(TABLES)
            ]
            ids = np.random.RandomState(0).randint(-30, 30, (48, TABLES, 2)).astype(id_dtype.as_numpy_dtype)
            data = tf.data.Dataset.from_tensor_slices(ids).batch(6).repeat()
            self.iterator = tf1.data.make_initializable_iterator(data)
            batch = self.iterator.get_next()
            self.results = [self._lookup(t, batch, True) for t in range(TABLES)]
            again = sparse_lookup(self.tables[0], batch[:, 0, 0], name="again")
            self.evals = [self._lookup(t, batch, False) for t in range(TABLES)]
            squares = [tf.reduce_sum(tf.square(tf.reduce_sum(rows, -1))) for rows in (*self.results, again)]
            self.loss = tf.add_n(squares)
            self.local = tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
            self.addresses = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
            gradients = tf.gradients(self.loss, self.local)
            pairs = list(zip(gradients, self.addresses))
            self.step = OPTIMIZERS[optimizer]().apply_gradients(pairs, tf1.train.get_or_create_global_step())
            self.init = tf1.global_variables_initializer()

    def _lookup(self, t: int, batch: tf.Tensor, is_train: bool) -> tf.Tensor:
        default = None if is_train else float(t)
        name = f"{'train' if is_train else 'eval'}{t}"
        return sparse_lookup(self.tables[t], batch[:, t], is_train=is_train, serving_default_value=default, name=name)

    def rewrite(self, *, fuse: bool = True, prune: bool = True) -> PipelineResult:
        return PassManager(default_pipeline(PipelineOptions(fuse=fuse, prune=prune))).run(self.graph.as_graph_def())

    def rewritten(self, *, fuse: bool = True) -> Model:
        result = self.rewrite(fuse=fuse)
        assert not any(report.refusals for report in result.reports)
        apply_live(self.graph, result.edits)
        return self

    def run(self, *fetches: Any, steps: int = 9) -> tuple[list, list]:
        """The values of some steps, each a run of every argument, and what the tables hold at the end."""
        with tf1.Session(graph=self.graph) as session:
            session.run([self.init, self.iterator.initializer])
            values = [[session.run(fetch) for fetch in fetches] for _ in range(steps)]
            return values, self.contents(session, self.tables)

    @staticmethod
    def contents(session: Any, tables: Iterable[Any]) -> list:
        with session.graph.as_default():
            return [session.run(ops.table_export(table.handle)) for table in tables]


def op_types(graph: tf.Graph) -> list[str]:
    return [operation.type for operation in graph.get_operations()]


@pytest.mark.parametrize("id_dtype", [tf.int64, tf.int32])
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_losses_rows_slots_and_counts_are_equal(optimizer: str, id_dtype: tf.DType) -> None:
    runs = []
    for rewrite in (None, False, True):
        model = Model(optimizer, id_dtype)
        if rewrite is not None:
            model.rewritten(fuse=rewrite)
        runs.append(model.run([model.loss, model.results, model.step], model.evals))
    np.testing.assert_equal(runs[1], runs[0])
    np.testing.assert_equal(runs[2], runs[0])
    assert {"MxRecLookUpMany", "MxRecSumGradientsMany"} <= set(op_types(model.graph))
    update = {"adagrad": "Adagrad", "ftrl": "Ftrl", "lazy_adam": "LazyAdam", "sgd": "Sgd"}[optimizer]
    assert f"MxRecApply{update}ByAddressMany" in op_types(model.graph)
    assert all(content.counts.sum() > 0 for content in map(ops.table_ops.TableContent._make, runs[0][1]))


def fetches_of(model: Model, kind: str) -> Any:
    return {
        "one_result": [model.results[1]],
        "one_local_embedding": [model.local[2]],
        "some_addresses": [model.addresses[0], model.addresses[2]],
        "an_eval_result": [model.evals[1]],
        "loss": [model.loss],
        "step_and_addresses": [model.step, model.addresses],
        "step_and_results": [model.step, model.results],
        "waits_for_one_result": [tf.group(tf.identity(model.results[1]))],
        "waits_for_parts": [tf.group(tf.identity(model.local[1]), tf.identity(model.addresses[2]))],
        "gradient_of_one": [tf.gradients(tf.reduce_sum(model.results[0] ** 2), model.local[0])],
    }[kind]


KINDS = [
    "one_result",
    "one_local_embedding",
    "an_eval_result",
    "loss",
    "step_and_results",
    "waits_for_one_result",
    "waits_for_parts",
    "gradient_of_one",
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_fetch_runs_the_lookups_it_needs_and_no_others(kind: str) -> None:
    """What a run leaves in the tables, counts included, depends on what it fetches, not on fusing.

    Of a tensor that is only waited for, TensorFlow takes the value away and keeps the waiting.
    """
    runs = []
    for is_rewritten in (False, True):
        model = Model()
        with model.graph.as_default():
            fetches = fetches_of(model, kind)
        runs.append((model.rewritten() if is_rewritten else model).run(fetches))
    np.testing.assert_equal(runs[1], runs[0])


@pytest.mark.parametrize("kind", ["some_addresses", "step_and_addresses"])
def test_original_addresses_are_fetched_without_counting_twice(kind: str) -> None:
    contents = []
    for is_rewritten in (False, True):
        model = Model()
        with model.graph.as_default():
            fetches = fetches_of(model, kind)
        values, content = (model.rewritten() if is_rewritten else model).run(fetches)
        contents.append(content)
        found = [address for address in tf.nest.flatten(values[-1]) if np.ndim(address)]
        assert found and all(len(set(address)) == len(address) for address in found)
    np.testing.assert_equal(contents[1], contents[0])


def test_one_table_of_a_group_stays_untouched_while_another_is_read() -> None:
    model = Model().rewritten()
    with tf1.Session(graph=model.graph) as session:
        session.run([model.init, model.iterator.initializer])
        session.run(model.results[1])
        sizes = [len(content[0]) for content in model.contents(session, model.tables)]
    assert sizes[1] > 0
    assert sizes[0] == sizes[2] == sizes[3] == 0


def test_live_equals_file_and_a_second_rewrite_changes_nothing() -> None:
    model = Model()
    expected = model.rewrite(prune=False).graph_def
    apply_live(model.graph, model.rewrite(prune=False).edits)
    assert canonical_text(model.graph.as_graph_def()) == canonical_text(expected)
    for prune in (False, True):
        once = Model().rewrite(prune=prune).graph_def
        again = PassManager(default_pipeline(PipelineOptions(prune=prune))).run(once)
        assert not again.modified


def test_a_pruned_file_runs_alike() -> None:
    model = Model()
    expected = model.run([model.loss, model.step])
    model = Model()
    graph_def = model.rewrite().graph_def
    kept = [node.op for node in graph_def.node]
    assert "MxRecApplyLazyAdamByAddress" not in kept
    assert "MxRecFind" not in kept  # nothing names them in a collection
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
        handles = [graph.get_tensor_by_name(table.handle.name) for table in model.tables]
        exports = [ops.table_export(handle) for handle in handles]
    with tf1.Session(graph=graph) as session:
        session.run([model.init.name, model.iterator.initializer.name])
        values = [[session.run([model.loss.name, model.step.name])] for _ in range(9)]
        np.testing.assert_equal((values, session.run(exports)), expected)


def test_scripts_that_hold_updates_keep_them() -> None:
    """Updates made by hand are refused: a script may run one of them alone."""
    model = Model()
    with model.graph.as_default():
        gradients = tf.gradients(model.loss, model.local)
        updates = [
            ops.apply_sgd_by_address(model.tables[t].handle, model.addresses[t], gradients[t], 0.1) for t in (1, 2)
        ]
        tf.group(*updates, name="by_hand")
    reports = {report.name: report for report in model.rewrite().reports}
    assert [refusal.node for refusal in reports["fuse_updates"].refusals] == [update.name for update in updates]
    assert "may be run alone" in reports["fuse_updates"].refusals[0].reason


def test_a_lookup_by_the_result_of_another_is_not_fused_with_it() -> None:
    model = Model()
    with model.graph.as_default():
        ids = tf.cast(tf.reduce_sum(model.results[1], -1) * 10, tf.int64)
        chained = sparse_lookup(model.tables[2], ids, name="chained")
    result = model.rewrite()
    (note,) = [note for report in result.reports for note in report.notes if "not fed by their iterator" in note]
    assert note.endswith(": 1")
    apply_live(model.graph, result.edits)
    values, _ = model.run([chained, model.loss], model.step)
    plain = Model()
    with plain.graph.as_default():
        ids = tf.cast(tf.reduce_sum(plain.results[1], -1) * 10, tf.int64)
        chained = sparse_lookup(plain.tables[2], ids, name="chained")
    np.testing.assert_equal(values, plain.run([chained, plain.loss], plain.step)[0])
