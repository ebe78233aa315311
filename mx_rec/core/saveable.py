"""How TensorFlow's `Saver` comes to save and restore tables, unchanged.

A `Saver` saves, besides variables, the `SaveableObject`s of the collection SAVEABLE_OBJECTS: some tensors each, which
`restore` gets back (`mx_rec.ops.saveables`). Names of a table's files match the pattern of TensorFlow's data files, so
whoever deletes a checkpoint by it (`max_to_keep`) deletes them too.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from mx_rec import ops
from mx_rec.core import graph_state
from mx_rec.core.table import EmbeddingTable
from mx_rec.graph.attrs import attr_bytes, attr_floats
from mx_rec.graph.op_signatures import OP_CHECKPOINT_FOLDER, OP_TABLE_RESTORE, OP_TABLE_SAVE
from mx_rec.ops import saveables as op_saveables
from mx_rec.ops.saveables import restore_op as restore_op
from mx_rec.saved_parts import SAVEABLE_OBJECTS, SavedParts
from mx_rec.tf_compat import add_control_inputs, set_attr
from mx_rec.util.log import logger

_COMPLETING = ("MergeV2Checkpoints", "SaveV2", "SaveSlices")  # ops that write a checkpoint's index


class TableSaveable(op_saveables.TableSaveable):
    """A table as a `Saver` sees it, with what optimizers have added."""

    @property
    def parts(self) -> SavedParts:
        """What is saved now: an optimizer may have added its slots since the table was made."""
        state = graph_state.state_of(self._graph)
        if not self._parts.variables:
            kind = self._kind_of_slots(state)
            return dataclasses.replace(self._parts, optimizer=kind.optimizer, slot_initials=kind.initial_values)
        slots = state.slots.get(self._parts.table_name)
        table = state.tables.get(self._parts.table_name)
        if slots is None or table is None or table.variable is None:
            return self._parts
        return dataclasses.replace(
            self._parts,
            variables=(table.variable.handle.name, *(variable.handle.name for variable in slots.variables)),
            steps=() if slots.steps is None else (slots.steps.handle.name,),
            optimizer=slots.optimizer,
            slot_initials=slots.initial_values,
        )

    def _kind_of_slots(self, state: graph_state.GraphState) -> graph_state.SlotKind:
        """That of the only optimizer with slots that trains a table that grows; else an empty one."""
        kinds = set(state.slot_kinds.get(self._parts.table_name, ()))
        if self._parts.optimizer:  # that it had in another process
            kinds.add(graph_state.SlotKind(self._parts.optimizer, self._parts.slot_initials))
        return kinds.pop() if len(kinds) == 1 else graph_state.SlotKind("", ())

    def tell_restores(self) -> None:
        """Lets restores that are in the graph already know of an optimizer, unless a session has them."""
        parts = self.parts
        if ops.graph_was_run(graph_state.state_of(self._graph).token):
            return
        for operation in self._tensor(parts.handle).consumers():
            if operation.type == OP_TABLE_RESTORE and operation.get_attr("with_slots"):
                set_attr(operation, "optimizer", attr_bytes(parts.optimizer))
                set_attr(operation, "slot_initials", attr_floats(parts.slot_initials))

    def restore(self, restored_tensors: Sequence[tf.Tensor], restored_shapes: Any) -> tf.Operation:
        """The op that restores the table from the manifest that the Saver's op reads."""
        operation = super().restore(restored_tensors, restored_shapes)
        _make_folders(operation.inputs[1])  # here, since TensorFlow makes the restoring half of a Saver last
        return operation


def _make_folders(prefix: tf.Tensor) -> None:
    """Has a Saver make the folder `sparse-<name>` of a checkpoint once that is complete, if it saves tables.

    Args:
        prefix: the tensor that the Saver is fed.
    """
    readers = prefix.consumers()
    if any(reader.type == OP_CHECKPOINT_FOLDER for reader in readers):
        return
    saves = [reader for reader in readers if reader.type == OP_TABLE_SAVE]
    # What a Saver runs in the end: the prefix again, after the op that completes the checkpoint.
    ends = [
        reader
        for reader in readers
        if reader.type == "Identity" and any(each.type in _COMPLETING for each in reader.control_inputs)
    ]
    if not saves or len(ends) != 1:
        return
    with tf.device(saves[0].device), tf.control_dependencies(ends[0].control_inputs):
        folder = ops.checkpoint_folder(prefix, [save.outputs[0] for save in saves])
    add_control_inputs(ends[0], [folder])


def add_saveable(table: EmbeddingTable) -> None:
    """Has every Saver that is made in the table's graph from now on save the table."""
    graph = table.handle.graph
    saveables = table_saveables(graph)
    variables = () if table.variable is None else (table.variable.handle.name,)
    number = 1 + max((saveable.parts.file_number for saveable in saveables), default=-1)
    parts = SavedParts(table.table_name, table.key_dtype.name, number, table.handle.name, variables)
    graph.add_to_collection(SAVEABLE_OBJECTS, TableSaveable(graph, parts))


def note_slots(handle: tf.Tensor, kind: graph_state.SlotKind) -> None:
    """Notes that an optimizer with slots trains a table that grows: what has other slots is not restored to it.

    Args:
        handle: of the table.
        kind: of slots.
    """
    name = handle.op.get_attr("table_name").decode()
    kinds = graph_state.state_of(handle.graph).slot_kinds.setdefault(name, set())
    if kind in kinds:
        return
    kinds.add(kind)
    for saveable in table_saveables(handle.graph):
        if saveable.parts.handle == handle.name:
            saveable.tell_restores()


def table_saveables(graph: tf.Graph) -> list[TableSaveable]:
    """The saveables of a graph's tables, in order of creation."""
    members = graph.get_collection_ref(SAVEABLE_OBJECTS) if graph.get_collection(SAVEABLE_OBJECTS) else []
    for i, member in enumerate(members):
        # Of a graph that was imported with the op library alone, which knows of no optimizers.
        if isinstance(member, op_saveables.TableSaveable) and not isinstance(member, TableSaveable):
            members[i] = TableSaveable(graph, member.parts)
    return [member for member in members if isinstance(member, TableSaveable)]


def register_saveables() -> None:
    """Lets MetaGraphDefs carry the saveables of tables, so that a Saver can be made after `import_meta_graph`."""
    op_saveables.make_saveables_by(TableSaveable)
    if not op_saveables.register_saveables():
        _warn_of_other_owner()


@functools.lru_cache(maxsize=1)
def _warn_of_other_owner() -> None:
    logger.warning(
        "the collection %s of MetaGraphDefs belongs to another library: after import_meta_graph, a new Saver does not "
        "know of tables",
        SAVEABLE_OBJECTS,
    )
