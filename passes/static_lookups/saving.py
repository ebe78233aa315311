"""Takes variables out of what a Saver writes and reads, and puts the tables in that have their place.

The Saver then has what `mx_rec.core.saveable` gives one: of each table a string, its manifest, which the op that writes
the table's files makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mx_rec.graph.attrs import DT_INT32, DT_STRING, attr_int, attr_tensor, attr_type, attr_types, const_value
from mx_rec.graph.edits import EditSet
from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.object_graphs import OBJECT_GRAPH_KEY, without_tensors
from mx_rec.graph.op_signatures import OP_TABLE_RESTORE, OP_TABLE_SAVE
from mx_rec.graph.view import GraphView
from mx_rec.passes.static_lookups.values import stripped
from mx_rec.passes.static_lookups.variables import uses_of
from mx_rec.saved_parts import manifest_key

_SAVE_INPUTS = 3  # prefix, names, slices; tensors follow
_NOTHING_LEFT = "mx_rec/converted_tables"
_PREFIXES = ("PlaceholderWithDefault", "Placeholder")  # of TensorFlow 1, and of a SavedModel of TensorFlow 2
_MAX_STEPS = 16  # from what a Saver writes to back to the prefix that it is given


@dataclass
class SavedTable:
    """A table and where its variables were saved and restored.

    Attributes:
        name: of the table.
        handle: of the table.
        saves: the SaveV2 nodes that wrote its variables.
        restores: the assignments of restored values.
    """

    name: str
    handle: TensorRef
    saves: list[str] = field(default_factory=list)
    restores: list[str] = field(default_factory=list)


def why_not_taken_out(view: GraphView, saves: Iterable[tuple[str, int]], restores: Iterable[str]) -> Obstacle | None:
    """Why entries of a Saver cannot be taken out: its lists are not constants."""
    nodes = [view.node(name) for name, _ in saves] + [_restore_of(view, name) for name in restores]
    for node in nodes:
        if node.op not in ("SaveV2", "RestoreV2"):
            return Obstacle(node.name, f"op {node.op!r} reads a checkpoint of before TensorFlow 1.0")
        for ref in node.inputs[1:_SAVE_INPUTS]:
            if view.node(stripped(view, ref).node).op != "Const":
                return Obstacle(node.name, "does not name what it saves by constants")
        if _prefix(view, node) is None:
            reason = (
                "reads a checkpoint of a fixed path, as tf.train.init_from_checkpoint does, not of one that a Saver is "
                "given; leave that out of the graph, and take the values along with `recgraph convert-checkpoint`"
            )
            return Obstacle(node.name, reason)
    for name in _handed_on(view, restores):
        if len(view.edges(name)) > 1:
            return Obstacle(name, "hands on a restored value to more than the variable")
    return None


def saved_apart(view: GraphView, variables: Sequence[str]) -> Obstacle | None:
    """A Saver that has some of these variables without the others: a table has its rows and slots together."""
    for what in ("saves", "restores"):
        by_prefix: dict[TensorRef | None, dict[str, str]] = {}
        for name in variables:
            uses = uses_of(view, name)
            nodes = [save for save, _ in uses.saves]
            if what == "restores":
                nodes = [_restore_of(view, assign).name for assign in uses.restores]
            for node in nodes:
                by_prefix.setdefault(_prefix(view, view.node(node)), {})[name] = node
        for found in by_prefix.values():
            missing = next((name for name in variables if name not in found), None)
            if missing is not None:
                having, node = next(iter(found.items()))
                reason = (
                    f"{what} {having!r} without {missing!r}; the rows of a table and the slots of its optimizer are "
                    "saved and restored together, so let that Saver have both or neither"
                )
                return Obstacle(node, reason)
    return None


def saved_name(view: GraphView, variable: str) -> str:
    """The name under which the graph saves a variable; its own if it does not."""
    for save, index in uses_of(view, variable).saves:
        names = _strings(view, view.node(save).inputs[1])
        if index - _SAVE_INPUTS < len(names):
            return str(names[index - _SAVE_INPUTS].decode())
    return variable


def _prefix(view: GraphView, node: Node) -> TensorRef | None:
    """The prefix that a Saver is given, from which a SaveV2 or RestoreV2 makes the name that it uses."""
    pending = [(node.inputs[0], 0)]
    while pending:
        ref, steps = pending.pop(0)
        source = view.node(ref.node)
        if source.op in _PREFIXES and view.dtype(ref) == DT_STRING:
            return ref
        if steps < _MAX_STEPS:
            pending.extend((following, steps + 1) for following in source.inputs if view.dtype(following) == DT_STRING)
    return None


def _restore_of(view: GraphView, assign: str) -> Node:
    return view.node(stripped(view, view.node(assign).inputs[1]).node)


def take_out(view: GraphView, edits: EditSet, saves: Mapping[str, set[int]], tables: Sequence[SavedTable]) -> list[str]:
    """Write the edits that put tables in the place of variables. Returns the nodes that nothing needs any more.

    Args:
        view: the graph.
        edits: to add to.
        saves: by SaveV2 node the inputs that are gone.
        tables: the tables that have their place.
    """
    numbers = {table.name: number for number, table in enumerate(tables, start=len(view.nodes_of(OP_TABLE_SAVE)))}
    manifests: dict[str, list[tuple[str, TensorRef]]] = {}
    for table in tables:
        for save in _one_per_prefix(view, table.saves):
            manifests.setdefault(save, []).append(_save_table(view, edits, view.node(save), table, numbers[table.name]))
    for name, gone in saves.items():
        _shorten_save(view, edits, view.node(name), gone, manifests.get(name, ()), [table.name for table in tables])
    by_restore: dict[str, set[int]] = {}
    restores = [assign for table in tables for assign in table.restores]
    for assign in restores:
        source = stripped(view, view.node(assign).inputs[1])
        by_restore.setdefault(source.node, set()).add(source.index)
    for table in tables:
        _restore_table(view, edits, table)
    for name, outputs in by_restore.items():
        _shorten_restore(view, edits, view.node(name), outputs)
    return [*_handed_on(view, restores), *saves, *by_restore]


def _one_per_prefix(view: GraphView, saves: Iterable[str]) -> list[str]:
    """Of each Saver the first node that wrote a part of a variable."""
    first: dict[TensorRef | None, str] = {}
    for name in saves:
        first.setdefault(_prefix(view, view.node(name)), name)
    return list(first.values())


def _save_table(
    view: GraphView, edits: EditSet, save: Node, table: SavedTable, file_number: int
) -> tuple[str, TensorRef]:
    """The op that writes a table's file. Returns the name and the tensor that a Saver keeps of it."""
    prefix = _prefix(view, save)
    assert prefix is not None
    attrs = {"V": attr_int(0), "S": attr_int(0), "file_number": attr_int(file_number)}
    name = view.unique_name(f"{save.name}/{table.name}")
    device = view.node(save.name).device
    return manifest_key(table.name), edits.add_node(name, OP_TABLE_SAVE, [table.handle, prefix], attrs, device=device)


def _restore_table(view: GraphView, edits: EditSet, table: SavedTable) -> None:
    """The op that reads a table's file, in the place of the assignments to its variables, once for each Saver."""
    by_prefix: dict[TensorRef, list[str]] = {}
    for assign in table.restores:
        prefix = _prefix(view, _restore_of(view, assign))
        assert prefix is not None
        by_prefix.setdefault(prefix, []).append(assign)
    for prefix, assigns in by_prefix.items():
        place = f"{_restore_of(view, assigns[0]).name}/{table.name}"
        lists = [
            _strings_node(view, edits, f"{place}/{word}", [text])
            for word, text in (("name", manifest_key(table.name)), ("slice", ""))
        ]
        attrs = {"dtypes": attr_types([DT_STRING])}
        manifest = edits.add_node(view.unique_name(f"{place}/manifest"), "RestoreV2", [prefix, *lists], attrs)
        empty = {"dtype": attr_type(DT_INT32), "value": attr_tensor(np.zeros(0, np.int32), DT_INT32)}
        shape = edits.add_node(view.unique_name(f"{place}/shape"), "Const", (), empty)
        types = {"T": attr_type(DT_STRING), "Tshape": attr_type(DT_INT32)}
        text = edits.add_node(view.unique_name(f"{place}/text"), "Reshape", [manifest, shape], types)
        attrs = {"V": attr_int(0), "S": attr_int(0)}
        node = edits.add_node(view.unique_name(place), OP_TABLE_RESTORE, [table.handle, prefix, text], attrs)
        waiting: dict[str, None] = {}
        for assign in assigns:
            for consumer in view.control_consumers(assign):
                edits.remove_control_input(consumer, assign)
                waiting[consumer] = None
        for consumer in waiting:
            edits.add_control_input(consumer, node.node)


def _handed_on(view: GraphView, restores: Iterable[str]) -> list[str]:
    """The nodes between a RestoreV2 and these assignments."""
    found: list[str] = []
    for assign in restores:
        node = view.node(view.node(assign).inputs[1].node)
        while node.op not in ("RestoreV2",):
            found.append(node.name)
            node = view.node(node.inputs[0].node)
    return found


def _strings(view: GraphView, ref: TensorRef) -> list[Any]:
    value = view.node(stripped(view, ref).node).attr("value")
    return [] if value is None else list(const_value(value).reshape(-1))


def _strings_node(view: GraphView, edits: EditSet, name: str, values: Sequence[Any]) -> TensorRef:
    attrs = {"dtype": attr_type(DT_STRING), "value": attr_tensor(list(values), DT_STRING)}
    return edits.add_node(view.unique_name(name), "Const", (), attrs)


def _shorten_save(
    view: GraphView,
    edits: EditSet,
    node: Node,
    gone: set[int],
    manifests: Sequence[tuple[str, TensorRef]],
    tables: Sequence[str],
) -> None:
    left = [index for index in range(_SAVE_INPUTS, len(node.inputs)) if index not in gone]
    positions = [index - _SAVE_INPUTS for index in left]
    names, slices = (_strings(view, ref) for ref in node.inputs[1:_SAVE_INPUTS])
    dtypes = node.types_attr("dtypes")
    gone_names = {names[index - _SAVE_INPUTS].decode(errors="replace") for index in gone}
    tensors = [
        _object_graph(view, edits, node, index, gone_names)
        if names[index - _SAVE_INPUTS] == OBJECT_GRAPH_KEY.encode()
        else node.inputs[index]
        for index in left
    ]
    kept_names, kept_slices = [names[i] for i in positions], [slices[i] for i in positions]
    kept_types = [dtypes[i] for i in positions]
    for key, manifest in manifests:
        tensors.append(manifest)
        kept_names.append(key.encode())
        kept_slices.append(b"")
        kept_types.append(DT_STRING)
    if not tensors:
        tensors = [_strings_node(view, edits, f"{node.name}/tables", list(tables))]
        kept_names, kept_slices, kept_types = [_NOTHING_LEFT.encode()], [b""], [DT_STRING]
    new_names = _strings_node(view, edits, f"{node.name}/other_names", kept_names)
    new_slices = _strings_node(view, edits, f"{node.name}/other_slices", kept_slices)
    name = view.unique_name(f"{node.name}/others")
    inputs = [node.inputs[0], new_names, new_slices, *tensors]
    edits.add_node(
        name, "SaveV2", inputs, {"dtypes": attr_types(kept_types)}, controls=node.controls, device=node.device
    )
    edits.redirect_controls(view, node.name, name)


def _object_graph(view: GraphView, edits: EditSet, save: Node, index: int, gone: set[str]) -> TensorRef:
    """What a Saver of TensorFlow 2 writes of its objects, without the tensors that it writes no longer."""
    value = view.node(stripped(view, save.inputs[index]).node).attr("value")
    data = None if value is None else const_value(value)
    if data is None or data.size != 1:
        return save.inputs[index]
    attrs = {"dtype": attr_type(DT_STRING), "value": attr_tensor(without_tensors(data.item(), gone), DT_STRING)}
    return edits.add_node(view.unique_name(f"{save.name}/objects"), "Const", (), attrs, device=save.device)


def _shorten_restore(view: GraphView, edits: EditSet, node: Node, gone: set[int]) -> None:
    names, slices = (_strings(view, ref) for ref in node.inputs[1:_SAVE_INPUTS])
    left = [index for index in range(len(names)) if index not in gone]
    if not left:
        for waiting in view.control_consumers(node.name):
            edits.remove_control_input(waiting, node.name)
        return
    new_names = _strings_node(view, edits, f"{node.name}/other_names", [names[i] for i in left])
    new_slices = _strings_node(view, edits, f"{node.name}/other_slices", [slices[i] for i in left])
    name = view.unique_name(f"{node.name}/others")
    dtypes = node.types_attr("dtypes")
    attrs = {"dtypes": attr_types([dtypes[i] for i in left])}
    inputs = [node.inputs[0], new_names, new_slices]
    edits.add_node(name, "RestoreV2", inputs, attrs, controls=node.controls, device=node.device)
    for output, index in enumerate(left):
        edits.redirect(view, TensorRef(node.name, index), TensorRef(name, output))
    edits.redirect_controls(view, node.name, name)
