"""Which state may be read ahead of the step: resources whose content a step cannot change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mx_rec.graph.attrs import DT_RESOURCE
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.op_schema import OpSchema
from mx_rec.graph.view import GraphView

# A resource that a dataset function may capture: its content never changes once it is initialised.
IMMUTABLE_TABLES = frozenset({"HashTableV2"})

VARIABLE_HANDLES = frozenset({"VarHandleOp", "_VarHandlesOp"})
_PASS_ON = frozenset({"Identity", "Switch"})  # their first input is what they give


def resource_origin(view: GraphView, handle: TensorRef) -> Node:
    """The node that makes a resource, looking through nodes that only pass it on."""
    node = view.node(handle.node)
    while node.op in _PASS_ON and node.inputs:
        node = view.node(node.inputs[0].node)
    return node


def resources_read(view: GraphView, node: Node) -> Iterable[Node]:
    """The nodes that make the resources a node takes."""
    types = view.types(node.name)
    for ref, dtype in zip(node.inputs, types.inputs if types else ()):
        if dtype == DT_RESOURCE:
            yield resource_origin(view, ref)


def why_it_may_change(source: Node) -> str:
    """What a refusal says of one who reads the resource that `source` makes."""
    if source.op in VARIABLE_HANDLES:
        return f"reads variable {source.name!r}, whose value ahead of the step may be another"
    if "HashTable" in source.op:
        return f"reads {source.name!r} (op {source.op!r}), a table that may change between steps"
    return f"takes a resource from {source.name!r} (op {source.op!r}), whose state may change between steps"


def called_functions(proto: Any, schema: OpSchema) -> list[str]:
    """The functions that the attributes of a node, given as a proto, refer to."""
    names: list[str] = []
    for attr in schema.function_attrs:
        if attr in proto.attr:
            value = proto.attr[attr]
            names.extend([value.func.name] if value.HasField("func") else [func.name for func in value.list.func])
    return names
