"""What the optimizers of fixed-capacity tables share.

The rows of such a table are a `tf.Variable`, and its optimizers are TensorFlow optimizers: slots are
slot variables, `compute_gradients`, `apply_gradients` and `minimize` are TensorFlow's own. What they
add: gradients of a repeated row are summed first (skipped where rows are known to be distinct: a single
lookup has made them unique already), and rows of padding keys are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from mx_rec import ops
from mx_rec.constants.constants import ATTR_LOOKUP
from mx_rec.core import graph_state
from mx_rec.core.admission import may_evict
from mx_rec.core.table import EmbeddingTable
from mx_rec.graph.merge_lookup import merge_for_gradients
from mx_rec.util.initialize import ConfigInitializer
from mx_rec.util.validate import check_string

_OFFSETS_OP = "MxRecOffsets"


def check_fixed_capacity(name: str) -> None:
    """Refuses an optimizer on variables where tables expand dynamically."""
    config = ConfigInitializer.get_instance()
    check_string("name", name, 1, 200)
    if config.use_dynamic_expansion:
        raise ValueError(
            f"{name}: with init(use_dynamic_expansion=True) rows are reached by address; "
            "use create_hash_optimizer_by_address"
        )


class DistinctRowsMixin:
    """Sums gradients of repeated rows before a sparse update, where rows can repeat; skips padding keys.

    The lookups of each table are merged before gradients are built.
    """

    def compute_gradients(
        self, loss: Any, var_list: Optional[Sequence[tf.Variable]] = None, *args: Any, **kwargs: Any
    ) -> list[tuple[Any, Any]]:
        """As TensorFlow's, after a merge (see `mx_rec.graph.do_merge_lookup`).

        Args:
            loss: scalar.
            var_list: rows of tables; by default of all tables in the graph of `loss`, which are not trainable variables
                and so not what TensorFlow would take.
            *args: as in TensorFlow.
            **kwargs: as in TensorFlow.
        """
        if isinstance(loss, tf.Tensor):
            merge_for_gradients(loss)
            if var_list is None:
                var_list = graph_state.variables_of_tables(loss.graph) or None
        return super().compute_gradients(loss, var_list, *args, **kwargs)  # type: ignore[misc, no-any-return]

    def _resource_apply_sparse_duplicate_indices(self, grad: tf.Tensor, handle: Any, indices: tf.Tensor) -> Any:
        rows, gradients = distinct_rows(indices, grad)
        table = graph_state.table_of_variable(handle)
        if table is not None and table.padding_keys:
            positions = ops.trained_positions(table.handle, rows)
            rows, gradients = tf.gather(rows, positions), tf.gather(gradients, positions)
        slots = self._initial_slots() if table is not None and self._reuses_rows(handle, table) else {}
        if table is None or not slots:
            return self._resource_apply_sparse(gradients, handle, rows)  # type: ignore[attr-defined]
        variables = [self.get_slot(handle, name).handle for name in slots]  # type: ignore[attr-defined]
        with tf.control_dependencies([ops.reset_slots(table.handle, variables, rows, list(slots.values()))]):
            return self._resource_apply_sparse(gradients, handle, rows)  # type: ignore[attr-defined]

    def _initial_slots(self) -> dict[str, float]:
        """The slots of a row by name, with the value that each begins with."""
        return {}

    @staticmethod
    def _reuses_rows(variable: Any, table: EmbeddingTable) -> bool:
        """Whether slots may hold what they were for an evicted key, whose row another key has now."""
        return may_evict(graph_state.state_of(variable.graph), table)

    def _apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        raise NotImplementedError(_dense_message(var))

    def _resource_apply_dense(self, grad: tf.Tensor, handle: Any) -> tf.Operation:
        raise NotImplementedError(_dense_message(handle))


def distinct_rows(indices: tf.Tensor, gradients: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Distinct row indices [m] and the sums of their gradients [m, dim], in order of first occurrence."""
    if _are_distinct(indices):
        return indices, gradients
    keys, position, _ = ops.unique(indices)
    return keys, tf.math.unsorted_segment_sum(gradients, position, tf.size(keys))


def _are_distinct(indices: tf.Tensor) -> bool:
    """Whether the indices come from one lookup, whose keys are unique."""
    operation = indices.op
    while operation.type in ("Identity", "Reshape") or _picks_admitted(operation):
        operation = operation.inputs[0].op
    return operation.type == _OFFSETS_OP


def _picks_admitted(operation: tf.Operation) -> bool:
    """Whether an op of a lookup leaves the rows of keys that are admitted, each once."""
    return operation.type == "GatherNd" and ATTR_LOOKUP in operation.node_def.attr


def _dense_message(variable: Any) -> str:
    return (
        f"{getattr(variable, 'name', variable)}: this optimizer updates rows of tables only; "
        "train dense variables with a TensorFlow optimizer"
    )
