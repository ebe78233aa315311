"""What the optimizers of fixed-capacity tables share.

The rows of such a table are a `tf.Variable`, and its optimizers are TensorFlow optimizers: slots are
slot variables, `compute_gradients`, `apply_gradients` and `minimize` are TensorFlow's own. What they
add: gradients of a repeated row are summed first (skipped where rows are known to be distinct: a single
lookup has made them unique already), and rows of padding keys are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Optional

import tensorflow as tf

from mx_rec import ops
from mx_rec.constants.constants import ATTR_LOOKUP
from mx_rec.core import graph_state
from mx_rec.core.admission import may_evict
from mx_rec.graph.merge_lookup import merge_for_gradients
from mx_rec.util.initialize import ConfigInitializer
from mx_rec.util.validate import check_string

if TYPE_CHECKING:
    from mx_rec.core.table import EmbeddingTable

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

    The lookups of each table are merged before gradients are built. Slots of a table are saved with it, in the form
    of a table that grows; so they are in no collection of TensorFlow and get their values when they are first used.
    """

    def _table_slot_kind(self) -> tuple[str, tuple[float, ...]]:
        """The name of the optimizer in saved tables, and what its slots begin with, in order of their names."""
        return "", ()

    def _table_steps(self, variable: tf.Variable) -> Optional[tf.Variable]:
        """The count of updates of a table, if the optimizer keeps one."""
        return None

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        optimizer, initial_values = self._table_slot_kind()
        for variable in var_list:
            table = graph_state.table_of_variable(variable)
            slots = graph_state.state_of(variable.graph).slots
            if not optimizer or table is None or table.table_name in slots:
                super()._create_slots([variable])  # type: ignore[misc]
                continue
            with tf.variable_creator_scope(_in_no_collection):
                super()._create_slots([variable])  # type: ignore[misc]
                names = self.get_slot_names()  # type: ignore[attr-defined]
                made = tuple(self.get_slot(variable, name) for name in names)  # type: ignore[attr-defined]
            slots[table.table_name] = graph_state.TableSlots(
                optimizer, made, initial_values, self._table_steps(variable)
            )

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
        ready = self._ready_slots(table)
        with tf.control_dependencies(ready):
            reset = self._reset_slots(handle, table, rows)
        with tf.control_dependencies([*ready, *reset]):
            return self._resource_apply_sparse(gradients, handle, rows)  # type: ignore[attr-defined]

    def _reset_slots(self, variable: Any, table: Optional[EmbeddingTable], rows: tf.Tensor) -> list[tf.Operation]:
        """What gives their initial values to the slots of rows that were an evicted key's."""
        initial_values = self._table_slot_kind()[1]
        if table is None or not initial_values or not may_evict(graph_state.state_of(variable.graph), table):
            return []
        names = self.get_slot_names()  # type: ignore[attr-defined]
        handles = [self.get_slot(variable, name).handle for name in names]  # type: ignore[attr-defined]
        return [ops.reset_slots(table.handle, handles, rows, initial_values)]

    def _ready_slots(self, table: Optional[EmbeddingTable]) -> list[tf.Operation]:
        """What must run before the slots are used."""
        if table is None:
            return []
        slots = graph_state.state_of(table.handle.graph).slots.get(table.table_name)
        if slots is None:
            return []
        steps = [] if slots.steps is None else [slots.steps.handle]
        handles = [slot.handle for slot in slots.variables]
        return [ops.ready_slots(table.handle, handles, steps, slots.initial_values)]

    def _apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        raise NotImplementedError(_dense_message(var))

    def _resource_apply_dense(self, grad: tf.Tensor, handle: Any) -> tf.Operation:
        raise NotImplementedError(_dense_message(handle))


def _in_no_collection(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
    return next_creator(**{**kwargs, "collections": []})


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
