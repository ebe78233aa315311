"""Canonical text of a GraphDef: equal graphs give equal text.

The text does not depend on node order, attribute order, spelled-out defaults, inferred
shapes, the order of control inputs or version stamps. It is meant for goldens and for
comparing graphs; a line per node, sorted by name::

    loss = Mean(sub, axis, ^init) {T=float}
    axis = Const() {dtype=int32, value=int32[2] [0, 1]}

Attributes of ops that come from this project's own library are always written in full: whether
TensorFlow knows their defaults depends on whether that library was loaded, and a
golden must not.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np
from tensorflow.core.framework import attr_value_pb2, function_pb2, graph_pb2, node_def_pb2, types_pb2

from mx_rec.constants.constants import ATTR_COLLECTIONS, ATTR_GRAPH_TOKEN
from mx_rec.graph.attrs import dense_array, raw_values
from mx_rec.tf_compat import registered_op_def

DEFAULT_IGNORED_ATTRS = frozenset({"_output_shapes", ATTR_GRAPH_TOKEN})

_OWN_OP_PREFIX = "MxRec"
_UNORDERED_LIST_ATTRS = frozenset({"_class", ATTR_COLLECTIONS})
_MAX_VALUES = 8
_MAX_TEXT = 64


@dataclass(frozen=True)
class CanonicalNode:
    """One node in canonical form: every field is text that can be compared."""

    name: str
    op: str
    device: str
    inputs: tuple[str, ...]
    controls: tuple[str, ...]
    attrs: dict[str, str]

    def text(self) -> str:
        """The node as one line."""
        arguments = ", ".join((*self.inputs, *(f"^{name}" for name in self.controls)))
        line = f"{self.name} = {self.op}({arguments})"
        if self.attrs:
            line += " {" + ", ".join(f"{key}={value}" for key, value in self.attrs.items()) + "}"
        return f"{line} device={self.device}" if self.device else line


def canonical_text(graph_def: graph_pb2.GraphDef, *, ignore_attrs: Iterable[str] = DEFAULT_IGNORED_ATTRS) -> str:
    """Stable text of a GraphDef and its function library.

    Args:
      graph_def: The graph to write.
      ignore_attrs: Names of node and function attributes to leave out.
    """
    ignored = frozenset(ignore_attrs)
    lines = _node_lines(graph_def.node, ignored)
    for function in sorted(graph_def.library.function, key=lambda item: item.signature.name):
        lines.append("")
        lines.extend(function_lines(function, ignored))
    lines.extend(gradient_lines(graph_def))
    return "\n".join(lines) + "\n"


def canonical_node(node: node_def_pb2.NodeDef, *, ignore_attrs: Iterable[str] = DEFAULT_IGNORED_ATTRS) -> CanonicalNode:
    """The canonical form of one node."""
    defaults = _default_attrs(node.op)
    attrs = {}
    for key in sorted(set(node.attr) - frozenset(ignore_attrs)):
        value = attr_text(node.attr[key], unordered=key in _UNORDERED_LIST_ATTRS)
        if defaults.get(key) != value:
            attrs[key] = value
    return CanonicalNode(
        name=node.name,
        op=node.op,
        device=node.device,
        inputs=tuple(_input_text(name) for name in node.input if not name.startswith("^")),
        controls=tuple(sorted({name[1:] for name in node.input if name.startswith("^")})),
        attrs=attrs,
    )


def function_header(function: function_pb2.FunctionDef, ignored: frozenset[str]) -> str:
    """The signature and attributes of a function as one line."""
    signature = function.signature
    arguments = ", ".join(_argument_text(item) for item in signature.input_arg)
    results = ", ".join(f"{_argument_text(item)} = {function.ret.get(item.name, '?')}" for item in signature.output_arg)
    header = f"function {signature.name}({arguments}) -> ({results})"
    if signature.is_stateful:
        header += " stateful"
    controls = sorted(set(function.control_ret.values()))
    if controls:
        header += " after " + ", ".join(f"^{name}" for name in controls)
    attrs = [f"{key}={attr_text(function.attr[key])}" for key in sorted(set(function.attr) - ignored)]
    return header + (" {" + ", ".join(attrs) + "}" if attrs else "")


def function_lines(function: function_pb2.FunctionDef, ignored: frozenset[str]) -> list[str]:
    """A function: its header, then its nodes indented."""
    body = _node_lines(function.node_def, ignored)
    return [function_header(function, ignored), *(f"  {line}" for line in body)]


def gradient_lines(graph_def: graph_pb2.GraphDef) -> list[str]:
    """The registered gradient functions, one a line, sorted."""
    gradients = graph_def.library.gradient
    return sorted(f"gradient {item.function_name} = {item.gradient_func}" for item in gradients)


def attr_text(value: attr_value_pb2.AttrValue, *, unordered: bool = False) -> str:
    """An attribute value as short text.

    Args:
      value: The value.
      unordered: The list is a set by meaning and is written sorted.
    """
    kind = value.WhichOneof("value")
    if kind is None:
        return "unset"
    if kind == "list":
        return _list_text(value.list, unordered)
    if kind == "placeholder":
        return f"${value.placeholder}"
    return _WRITERS[kind](getattr(value, kind))


def tensor_text(proto: Any) -> str:
    """A constant: dtype, shape, its first values, and a hash when values were left out."""
    head = f"{_type_text(proto.dtype)}{_shape_text(proto.tensor_shape)}"
    block = raw_values(proto)
    if block is not None:
        values, content = block
        return f"{head} [{', '.join(_texts(values[:_MAX_VALUES]))}, ...] #{_digest(content)}"
    array = dense_array(proto)
    if array is None:  # hashing the message is enough
        return f"{head} #{_digest(proto.SerializeToString(deterministic=True))}"
    values = _texts(array.reshape(-1)[:_MAX_VALUES])
    if array.size <= _MAX_VALUES and not any(text.endswith("...") for text in values):
        return f"{head} [{', '.join(values)}]"
    return f"{head} [{', '.join(values)}, ...] #{_digest(_array_bytes(array))}"


def _texts(values: np.ndarray) -> list[str]:
    write = repr if values.dtype == np.float64 else _scalar_text
    return [write(item) for item in values.tolist()]


def _node_lines(nodes: Iterable[node_def_pb2.NodeDef], ignored: frozenset[str]) -> list[str]:
    ordered = sorted(nodes, key=lambda node: node.name)
    return [canonical_node(node, ignore_attrs=ignored).text() for node in ordered]


def _input_text(name: str) -> str:
    return name[:-2] if name.endswith(":0") and name.count(":") == 1 else name


def _argument_text(argument: Any) -> str:
    kind = argument.type_attr or argument.type_list_attr or _type_text(argument.type)
    return f"{argument.name}: {kind}" + (f"*{argument.number_attr}" if argument.number_attr else "")


def _list_text(values: Any, unordered: bool) -> str:
    items: list[str] = []
    for field, members in values.ListFields():
        items.extend(_WRITERS[field.name](member) for member in members)
    return "[" + ", ".join(sorted(set(items)) if unordered else items) + "]"


def _bytes_text(value: bytes) -> str:
    text = repr(value)[1:]
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[:_MAX_TEXT]}{text[0]}... #{_digest(value)}"


def _float_text(value: float) -> str:
    return f"{value:.9g}"


def _type_text(value: int) -> str:
    names = types_pb2.DataType.DESCRIPTOR.values_by_number
    return names[value].name[len("DT_") :].lower() if value in names else f"type{value}"


def _shape_text(shape: Any) -> str:
    if shape.unknown_rank:
        return "[*]"
    return "[" + ",".join("?" if dim.size < 0 else str(dim.size) for dim in shape.dim) + "]"


def _func_text(value: Any) -> str:
    attrs = ", ".join(f"{key}={attr_text(value.attr[key])}" for key in sorted(value.attr))
    return f"@{value.name}" + (f"{{{attrs}}}" if attrs else "")


def _scalar_text(value: Any) -> str:
    if isinstance(value, bytes):
        return _bytes_text(value)
    return _float_text(value) if isinstance(value, float) else str(value)


def _array_bytes(array: np.ndarray) -> bytes:
    if array.dtype != object:
        return np.ascontiguousarray(array).tobytes()
    return b"".join(len(item).to_bytes(8, "little") + item for item in array.reshape(-1).tolist())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _default_attrs(op: str) -> dict[str, str]:
    if op.startswith(_OWN_OP_PREFIX):
        return {}
    return _registered_defaults(op)


@functools.cache
def _registered_defaults(op: str) -> dict[str, str]:
    op_def = registered_op_def(op)
    attrs = () if op_def is None else op_def.attr
    return {attr.name: attr_text(attr.default_value) for attr in attrs if attr.HasField("default_value")}


_WRITERS: dict[str, Callable[[Any], str]] = {
    "s": _bytes_text,
    "i": str,
    "f": _float_text,
    "b": lambda value: "true" if value else "false",
    "type": _type_text,
    "shape": _shape_text,
    "tensor": tensor_text,
    "func": _func_text,
}
