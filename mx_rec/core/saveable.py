"""How TensorFlow's `Saver` comes to save and restore tables, unchanged.

A `Saver` saves, besides variables, the `SaveableObject`s of the collection SAVEABLE_OBJECTS: some tensors each, which
`restore` gets back. A table's only tensor is its manifest, a short string; the op that makes it has written the
table's files beside the checkpoint. TensorFlow asks for the tensor while it builds the Saver's ops, when the
checkpoint's prefix is a tensor of the Saver's name scope; and what it gives `restore` was read by an op that has the
prefix as an input. Names of the files match the pattern of TensorFlow's data files, so whoever deletes a checkpoint by
it (`max_to_keep`) deletes them too.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import tensorflow as tf

from mx_rec import ops
from mx_rec.checkpoint import manifest_key
from mx_rec.core import graph_state
from mx_rec.core.table import EmbeddingTable
from mx_rec.graph.attrs import attr_bytes, attr_floats
from mx_rec.graph.op_signatures import OP_CHECKPOINT_FOLDER, OP_TABLE_RESTORE, OP_TABLE_SAVE
from mx_rec.tf_compat import SaveableObject, SaveSpec, add_control_inputs, register_collection_proto, set_attr
from mx_rec.util.log import logger

SAVEABLE_OBJECTS = tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS
_FILENAME_NODE = "Const"  # of a Saver's scope, as TensorFlow names it
_COMPLETING = ("MergeV2Checkpoints", "SaveV2", "SaveSlices")  # ops that write a checkpoint's index


@dataclasses.dataclass(frozen=True)
class SavedParts:
    """What of a graph a table's saveable saves, by name; the form it has in a MetaGraphDef.

    Attributes:
        table_name: also the first part of the manifest's name in the checkpoint.
        key_dtype: `int64` or `int32`.
        file_number: of the table's files, different for the tables of a graph.
        handle: tensor of the table's handle.
        variables: tensors of the handles of rows and slots, of a table of fixed capacity.
        steps: tensor of the handle of its optimizer's step count, or none.
        optimizer: whose slots they are; of a table that grows, the one that trains it in the graph, if that is known.
        slot_initials: what each slot begins with.
    """

    table_name: str
    key_dtype: str
    file_number: int
    handle: str
    variables: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    optimizer: str = ""
    slot_initials: tuple[float, ...] = ()


class TableSaveable(SaveableObject):
    """A table as a `Saver` sees it."""

    def __init__(self, graph: tf.Graph, parts: SavedParts) -> None:
        self._graph = graph
        self._parts = parts
        handle = graph.get_tensor_by_name(parts.handle)
        key = manifest_key(parts.table_name)
        spec = SaveSpec(self._save, "", key, dtype=tf.string, device=handle.device)
        super().__init__(handle, [spec], key)

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
        del restored_shapes
        (manifest,) = restored_tensors
        # A reshape or a cast of a Saver of another kind would stand between.
        operation = manifest.op
        while operation.type in ("Identity", "Reshape"):
            operation = operation.inputs[0].op
        prefix = operation.inputs[0]
        _make_folders(prefix)  # here, since TensorFlow makes the restoring half of a Saver last
        return restore_op(self._graph, self.parts, prefix, tf.reshape(manifest, []))

    def _save(self) -> tf.Tensor:
        parts = self.parts
        with tf.device(self.op.device):
            return ops.table_save(
                self._tensor(parts.handle),
                saver_prefix(self._graph),
                [self._tensor(name) for name in parts.variables],
                [self._tensor(name) for name in parts.steps],
                file_number=parts.file_number,
                key_dtype=parts.key_dtype,
                # A table that grows knows its slots itself.
                optimizer=parts.optimizer if parts.variables else "",
                slot_initials=parts.slot_initials if parts.variables else (),
            )

    def _tensor(self, name: str) -> tf.Tensor:
        return self._graph.get_tensor_by_name(name)


def saver_prefix(graph: tf.Graph) -> tf.Tensor:
    """The prefix of the checkpoint that the Saver being built will be asked to write.

    Raises:
        RuntimeError: no Saver is being built.
    """
    scope = graph.get_name_scope()
    while scope:
        found = None
        # The scope may have had a Saver before, of an imported graph: the last one is being built.
        for operation in _operations_named(graph, f"{scope}/{_FILENAME_NODE}"):
            if operation.type == "PlaceholderWithDefault" and operation.outputs[0].dtype == tf.string:
                found = operation.outputs[0]
        if found is not None:
            return found
        scope = scope.rpartition("/")[0]
    raise RuntimeError(
        "a table can be saved by tf.compat.v1.train.Saver only: no checkpoint prefix in scope "
        f"{graph.get_name_scope()!r}"
    )


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


def _operations_named(graph: tf.Graph, name: str) -> Iterator[tf.Operation]:
    """The operation of a name, and those whose names TensorFlow has made distinct from it."""
    for number in itertools.count():
        try:
            yield graph.get_operation_by_name(f"{name}_{number}" if number else name)
        except KeyError:
            return


def restore_op(
    graph: tf.Graph, parts: SavedParts, prefix: tf.Tensor, manifest: tf.Tensor, with_slots: bool = True
) -> tf.Operation:
    """The op that replaces a table's content by a saved one.

    Args:
        graph: of the table.
        parts: what there is of the table.
        prefix: string scalar, of the checkpoint.
        manifest: string scalar, that the checkpoint holds under `manifest_key` of the saved table, which may have
            another name.
        with_slots: else slots begin anew.
    """
    handle = graph.get_tensor_by_name(parts.handle)
    with tf.device(handle.device):
        return ops.table_restore(
            handle,
            prefix,
            manifest,
            [graph.get_tensor_by_name(name) for name in parts.variables],
            [graph.get_tensor_by_name(name) for name in parts.steps],
            key_dtype=parts.key_dtype,
            optimizer=parts.optimizer,
            slot_initials=parts.slot_initials,
            with_slots=with_slots,
        )


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
    return [member for member in graph.get_collection(SAVEABLE_OBJECTS) if isinstance(member, TableSaveable)]


@functools.lru_cache(maxsize=1)
def register_saveables() -> None:
    """Lets MetaGraphDefs carry the saveables of tables, so that a Saver can be made after `import_meta_graph`.

    Other members of the collection come back as what TensorFlow makes of them by itself: the node of their name.
    """
    if not register_collection_proto(SAVEABLE_OBJECTS, _to_text, _from_text):
        logger.warning(
            "the collection %s of MetaGraphDefs belongs to another library: after import_meta_graph, a new Saver "
            "does not know of tables",
            SAVEABLE_OBJECTS,
        )


def _to_text(member: Any, export_scope: Optional[str]) -> Optional[str]:
    prefix = f"{export_scope}/" if export_scope else ""
    if not isinstance(member, TableSaveable):
        if not member.name.startswith(prefix):
            return None
        return json.dumps({"element": member.name[len(prefix) :]})
    parts = member.parts
    names = (parts.handle, *parts.variables, *parts.steps)
    if not all(name.startswith(prefix) for name in names):
        return None
    return json.dumps(dataclasses.asdict(_renamed(parts, lambda name: name[len(prefix) :])))


def _from_text(text: str, import_scope: Optional[str]) -> Any:
    prefix = f"{import_scope}/" if import_scope else ""
    graph = tf.compat.v1.get_default_graph()
    fields: dict[str, Any] = json.loads(text)
    if "element" in fields:
        return graph.as_graph_element(prefix + fields["element"])
    for name, value in fields.items():
        fields[name] = tuple(value) if isinstance(value, list) else value
    parts = SavedParts(**fields)
    return TableSaveable(graph, _renamed(parts, lambda name: prefix + name))


def _renamed(parts: SavedParts, rename: Callable[[str], str]) -> SavedParts:
    return dataclasses.replace(
        parts,
        handle=rename(parts.handle),
        variables=tuple(map(rename, parts.variables)),
        steps=tuple(map(rename, parts.steps)),
    )
