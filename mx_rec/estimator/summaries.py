"""What tables do, for TensorBoard: sizes and hit rates while training, hit rates of an evaluation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Optional, Union

import tensorflow as tf

from mx_rec import ops
from mx_rec.core import graph_state
from mx_rec.util.validate import check_int

tf1 = tf.compat.v1


class TableSummaryHook(tf.compat.v1.train.SessionRunHook):
    """Writes scalars of each table while training: `size`, `hit_rate` and `evicted`, as `mx_rec/<table>/size` ...

    `size` is the number of keys, `evicted` that of the keys that lost their rows since the last time. `hit_rate` is the
    share of the keys looked up since the last time that the table held already; a key counts once per batch and lookup.
    A key that is not admitted yet is not held, but not inserted either, so it counts as a hit.

    Tensors are counted only in steps that compute them anyway, so the hook draws no batch and inserts no key.

    Args:
        output_dir: where to write, such as the `model_dir` of the Estimator.
        every_n_steps: global steps between two writes.

    Raises:
        TypeError, ValueError: `every_n_steps` is not an int of at least 1.
    """

    def __init__(self, output_dir: Union[str, os.PathLike], every_n_steps: int = 100) -> None:
        self._output_dir = os.fspath(output_dir)
        self._every_n_steps = check_int("every_n_steps", every_n_steps, 1, 2**31 - 1)

    def begin(self) -> None:
        """Adds what it reads to the default graph, before or after the rewrite.

        Raises:
            RuntimeError: the graph has no global step.
        """
        graph = tf1.get_default_graph()
        state = graph_state.state_of(graph)
        self._global_step = tf1.train.get_global_step(graph)
        if self._global_step is None:
            raise RuntimeError(
                "TableSummaryHook needs a global step: call tf.compat.v1.train.get_or_create_global_step() before"
            )
        with tf1.name_scope(None), tf.control_dependencies(None):
            self._sizes = {
                name: ops.table_size(table.handle, name=f"mx_rec/{name}/summary_size")
                for name, table in state.tables.items()
            }
            lookups = [record for record in state.lookups.values() if record.is_train]
            addresses = {_of_step(record.addresses).name: record.table_name for record in lookups}
            self._keys = [(table, tf.size(graph.get_tensor_by_name(name))) for name, table in addresses.items()]
        self._needed: dict[tuple[str, ...], list[tuple[str, tf.Tensor]]] = {}
        self._counted: Sequence[tuple[str, tf.Tensor]] = ()

    def after_create_session(self, session: tf.compat.v1.Session, coord: Optional[tf.train.Coordinator]) -> None:
        """Notes the sizes to begin with."""
        self._last_sizes, step = session.run([self._sizes, self._global_step])
        self._last_step = int(step)
        self._looked_up = dict.fromkeys(self._sizes, 0)
        self._last_evicted = {name: _evicted(name, int(size)) or 0 for name, size in self._last_sizes.items()}

    def before_run(self, run_context: Any) -> Any:
        """Asks for the numbers of keys that the step looks up."""
        self._counted = self._computed_by(run_context.original_args.fetches)
        return tf1.train.SessionRunArgs([self._global_step, [size for _, size in self._counted]])

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Counts, and writes if it is time."""
        _, counts = run_values.results
        for (name, _), count in zip(self._counted, counts):
            self._looked_up[name] += int(count)
        # The step was read before or after it was counted; one that is due is looked at once more.
        if int(run_values.results[0]) + 1 - self._last_step >= self._every_n_steps:
            sizes, step = run_context.session.run([self._sizes, self._global_step])
            if int(step) - self._last_step >= self._every_n_steps:
                self._write(sizes, int(step))

    def end(self, session: tf.compat.v1.Session) -> None:
        """Writes what is left."""
        sizes, step = session.run([self._sizes, self._global_step])
        if int(step) > self._last_step:
            self._write(sizes, int(step))

    def _write(self, sizes: dict[str, int], step: int) -> None:
        values = []
        for name, size in sizes.items():
            values.append(tf1.Summary.Value(tag=f"mx_rec/{name}/size", simple_value=float(size)))
            total = _evicted(name, int(size))
            evicted = 0 if total is None else total - self._last_evicted[name]
            if total is not None:
                values.append(tf1.Summary.Value(tag=f"mx_rec/{name}/evicted", simple_value=float(evicted)))
                self._last_evicted[name] = total
            looked_up = self._looked_up[name]
            if looked_up:
                inserted = max(0, int(size) - int(self._last_sizes[name]) + evicted)
                rate = max(0.0, 1.0 - inserted / looked_up)
                values.append(tf1.Summary.Value(tag=f"mx_rec/{name}/hit_rate", simple_value=rate))
        writer = tf1.summary.FileWriterCache.get(self._output_dir)
        writer.add_summary(tf1.Summary(value=values), step)
        writer.flush()
        self._last_sizes, self._last_step = sizes, step
        self._looked_up = dict.fromkeys(self._sizes, 0)

    def _computed_by(self, fetches: Any) -> list[tuple[str, tf.Tensor]]:
        """The lookups that a run of these fetches does, and the numbers of their keys."""
        graph = self._global_step.graph
        operations = [
            graph.as_graph_element(fetch, allow_tensor=True, allow_operation=True)
            for fetch in tf.nest.flatten(fetches)
            if fetch is not None
        ]
        names = tuple(getattr(operation, "op", operation).name for operation in operations)
        if names not in self._needed:
            seen = _upstream(graph, names)
            self._needed[names] = [(table, size) for table, size in self._keys if size.op.inputs[0].op.name in seen]
        return self._needed[names]


def _evicted(name: str, size: int) -> Optional[int]:
    """Keys that a table of `size` keys has evicted so far; None if the newest live table of that name is another."""
    stats = ops.table_stats(name)
    return None if stats is None or stats.size != size else stats.evicted_keys


def _of_step(addresses: tf.Tensor) -> tf.Tensor:
    """The addresses that a step computes: those of a lookup itself, or of the op that it is fused into."""
    return next((source for source in addresses.op.inputs if source.op.type == "MxRecForward"), addresses)


def _upstream(graph: tf.Graph, names: Sequence[str]) -> set[str]:
    """Names of the ops that these ops need."""
    seen: set[str] = set()
    stack = [graph.get_operation_by_name(name) for name in names]
    while stack:
        operation = stack.pop()
        if operation.name not in seen:
            seen.add(operation.name)
            stack.extend(tensor.op for tensor in operation.inputs)
            stack.extend(operation.control_inputs)
    return seen


def table_metrics() -> dict[str, tuple[tf.Tensor, tf.Operation]]:
    """Hit rates of the evaluation lookups of the default graph, for `EstimatorSpec(eval_metric_ops=...)`.

    Returns:
        Per table with evaluation lookups, under `mx_rec/<table>/hit_rate`, a metric as those of `tf.metrics`: the share
        of the keys that the table held; a key counts once per batch and lookup.
    """
    state = graph_state.state_of(tf1.get_default_graph())
    found: dict[str, dict[str, tf.Tensor]] = {}
    for record in state.lookups.values():
        if not record.is_train:
            found.setdefault(record.table_name, {})[record.addresses.name] = record.addresses
    metrics = {}
    for name, addresses in found.items():
        is_found = tf.cast(tf.not_equal(tf.concat(list(addresses.values()), 0), tf.constant(0, tf.int64)), tf.float32)
        metrics[f"mx_rec/{name}/hit_rate"] = tf1.metrics.mean(is_found, name=f"hit_rate_of_{name}")
    return metrics
