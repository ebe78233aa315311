"""Tables as TensorFlow's `Saver` sees them, in a script's graph and in one from a file.

A table's only tensor is its manifest, a short string; the op that makes it has written the table's files beside the
checkpoint. TensorFlow asks for the tensor while it builds the Saver's ops, when the checkpoint's prefix is a tensor of
the Saver's name scope; and what it gives `restore` was read by an op that has the prefix as an input.

With the op library MetaGraphDefs carry the saveables of tables, so that a Saver made after `import_meta_graph` saves
and restores them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import tensorflow as tf

from mx_rec.ops.table_ops import table_restore, table_save
from mx_rec.saved_parts import SAVEABLE_OBJECTS, SavedParts, element_text, manifest_key, parts_text, saved_member
from mx_rec.tf_compat import SaveableObject, SaveSpec, register_collection_proto

_FILENAME_NODE = "Const"  # of a Saver's scope, as TensorFlow names it


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
        """What is saved."""
        return self._parts

    def restore(self, restored_tensors: Sequence[tf.Tensor], restored_shapes: Any) -> tf.Operation:
        """The op that restores the table from the manifest that the Saver's op reads."""
        del restored_shapes
        (manifest,) = restored_tensors
        # A reshape or a cast of a Saver of another kind would stand between.
        operation = manifest.op
        while operation.type in ("Identity", "Reshape"):
            operation = operation.inputs[0].op
        return restore_op(self._graph, self.parts, operation.inputs[0], tf.reshape(manifest, []))

    def _save(self) -> tf.Tensor:
        parts = self.parts
        with tf.device(self.op.device):
            return table_save(
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
        return table_restore(
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


SaveableMaker = Callable[[tf.Graph, SavedParts], TableSaveable]
_makers: list[SaveableMaker] = [TableSaveable]


def make_saveables_by(maker: SaveableMaker) -> None:
    """Has tables of graphs that are imported from now on seen by what `maker` makes."""
    _makers[-1] = maker


@functools.lru_cache(maxsize=1)
def register_saveables() -> bool:
    """Lets MetaGraphDefs carry the saveables of tables.

    Other members of the collection come back as what TensorFlow makes of them by itself: the node of their name.

    Returns:
        False if the collection belongs to another library, so that a Saver made after `import_meta_graph` does not
        know of tables.
    """
    return register_collection_proto(SAVEABLE_OBJECTS, _to_text, _from_text)


def _to_text(member: Any, export_scope: Optional[str]) -> Optional[str]:
    prefix = f"{export_scope}/" if export_scope else ""
    if not isinstance(member, TableSaveable):
        if not member.name.startswith(prefix):
            return None
        return element_text(member.name[len(prefix) :])
    parts = member.parts
    if not all(name.startswith(prefix) for name in parts.tensors):
        return None
    return parts_text(parts.renamed(lambda name: name[len(prefix) :]))


def _from_text(text: str, import_scope: Optional[str]) -> Any:
    prefix = f"{import_scope}/" if import_scope else ""
    graph = tf.compat.v1.get_default_graph()
    member = saved_member(text)
    if isinstance(member, str):
        return graph.as_graph_element(prefix + member)
    return _makers[-1](graph, member.renamed(lambda name: prefix + name))
