"""Takes variables out of what a Saver writes and reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mx_rec.graph.attrs import DT_STRING, attr_tensor, attr_type, attr_types, const_value
from mx_rec.graph.edits import EditSet
from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.view import GraphView
from mx_rec.passes.static_lookups.values import stripped

_SAVE_INPUTS = 3  # prefix, names, slices; tensors follow
_NOTHING_LEFT = "mx_rec/converted_tables"


def why_not_taken_out(view: GraphView, saves: Iterable[tuple[str, int]], restores: Iterable[str]) -> Obstacle | None:
    """Why entries of a Saver cannot be taken out: its lists are not constants."""
    nodes = [view.node(name) for name, _ in saves] + [_restore_of(view, name) for name in restores]
    for node in nodes:
        if node.op not in ("SaveV2", "RestoreV2"):
            return Obstacle(node.name, f"op {node.op!r} reads a checkpoint of before TensorFlow 1.0")
        for ref in node.inputs[1:_SAVE_INPUTS]:
            if view.node(stripped(view, ref).node).op != "Const":
                return Obstacle(node.name, "does not name what it saves by constants")
    for name in _handed_on(view, restores):
        if len(view.edges(name)) > 1:
            return Obstacle(name, "hands on a restored value to more than the variable")
    return None


def _restore_of(view: GraphView, assign: str) -> Node:
    return view.node(stripped(view, view.node(assign).inputs[1]).node)


def take_out(
    view: GraphView, edits: EditSet, saves: Mapping[str, set[int]], restores: Sequence[str], tables: Sequence[str]
) -> list[str]:
    """Write the edits that leave entries out. Returns the nodes that nothing reads or waits for any more.

    Args:
        view: the graph.
        edits: to add to.
        saves: by SaveV2 node the inputs that are gone.
        restores: the assignments of restored values that are gone.
        tables: the names of the tables that the variables have become; written where nothing else is left to save.
    """
    dead = list(saves)
    for name, gone in saves.items():
        _shorten_save(view, edits, view.node(name), gone, tables)
    by_restore: dict[str, set[int]] = {}
    for assign in restores:
        source = stripped(view, view.node(assign).inputs[1])
        by_restore.setdefault(source.node, set()).add(source.index)
    for name, outputs in by_restore.items():
        _shorten_restore(view, edits, view.node(name), outputs)
        dead.append(name)
    return [*_handed_on(view, restores), *dead]


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


def _shorten_save(view: GraphView, edits: EditSet, node: Node, gone: set[int], tables: Sequence[str]) -> None:
    left = [index for index in range(_SAVE_INPUTS, len(node.inputs)) if index not in gone]
    positions = [index - _SAVE_INPUTS for index in left]
    names, slices = (_strings(view, ref) for ref in node.inputs[1:_SAVE_INPUTS])
    dtypes = node.types_attr("dtypes")
    tensors = [node.inputs[index] for index in left]
    kept_names, kept_slices = [names[i] for i in positions], [slices[i] for i in positions]
    kept_types = [dtypes[i] for i in positions]
    if not left:
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
