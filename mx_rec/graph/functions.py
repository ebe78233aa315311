"""Builds library functions from nodes of a graph."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from tensorflow.core.framework import function_pb2

from mx_rec.errors import GraphRewriteError
from mx_rec.graph.attrs import AttrValue
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.op_schema import OpSchema
from mx_rec.graph.view import FunctionDef, GraphView

_DROPPED_ATTRS = frozenset({"_class", "_output_shapes"})
_OWN_PREFIX = "_mx_rec_"
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_]")


def sanitized(name: str) -> str:
    """A node name as an identifier that may stand in a function: letters, digits, underscores."""
    cleaned = _NOT_IN_A_NAME.sub("_", name)
    return cleaned if cleaned[:1].isalpha() else f"n{cleaned}"


class FunctionBuilder:
    """Collects arguments, nodes and outputs of one function.

    Tensors inside a function are spelled `argument` or `node:output argument:index`; the methods take and
    return these spellings.
    """

    def __init__(self, view: GraphView, name: str, start: Optional[FunctionDef] = None) -> None:
        """Args: the graph nodes are cloned from, the new function's name, a function to begin with a copy of."""
        self._view = view
        self._function = function_pb2.FunctionDef()
        if start is not None:
            self._function.CopyFrom(start)
        self._function.signature.name = name
        self._taken = {node.name for node in self._function.node_def}
        self._taken.update(arg.name for arg in self._function.signature.input_arg)
        self._refs: dict[TensorRef, str] = {}
        self._bodies: dict[str, str] = {}
        self._equal: dict[Any, str] = {}

    def add_argument(self, hint: str, dtype: int, tensors: Iterable[TensorRef] = ()) -> str:
        """Add an argument that stands for these tensors of the graph."""
        name = self._free_name(sanitized(hint).lower())
        self._function.signature.input_arg.add(name=name, type=dtype)
        for tensor in tensors:
            self._refs[tensor] = name
        return name

    def clone(self, nodes: Iterable[Node], *, dropped_controls: Iterable[str] = ()) -> None:
        """Clone nodes of the graph, given inputs first. Nodes that compute the same are cloned once.

        Args:
            nodes: the nodes; what they read is among them or stands behind an argument.
            dropped_controls: nodes that have run before the function is called; waiting for them is dropped.

        Raises:
            GraphRewriteError: a node reads or waits for something that the function does not have.
        """
        dropped = set(dropped_controls)
        for node in nodes:
            inputs = [self.ref(source) for source in node.inputs]
            controls = [self._control(node, name) for name in node.controls if name not in dropped]
            self._bodies[node.name] = self._add(node.op, node.name, inputs, controls, _kept_attrs(node))

    def call(
        self, op: str, hint: str, inputs: Sequence[str], attrs: Optional[Mapping[str, AttrValue]] = None
    ) -> str:
        """Add a node that is not in the graph. Returns its name in the function."""
        return self._add(op, hint, inputs, [], dict(attrs or {}))

    def copy(self, node: Node) -> str:
        """Add a node without inputs with every attribute of a graph node, so that it reaches the same resource."""
        attrs = {name: value for name, value in node.attrs().items() if name not in _DROPPED_ATTRS}
        return self._add(node.op, node.name, [], [], attrs)

    def ref(self, tensor: TensorRef) -> str:
        """The spelling of a graph tensor in this function.

        Raises:
            GraphRewriteError: nothing in the function stands for it.
        """
        known = self._refs.get(tensor)
        if known is not None:
            return known
        body = self._bodies.get(tensor.node)
        if body is None:
            name = self._function.signature.name
            raise GraphRewriteError(f"node {tensor.node!r} is read by a node of function {name!r} but is not in it")
        arg, index = self._view.output_arg(tensor)
        spelling = self._refs[tensor] = f"{body}:{arg}:{index}"
        return spelling

    def add_output(self, name: str, ref: str, dtype: int) -> None:
        """Return `ref` as the next output."""
        self._function.signature.output_arg.add(name=name, type=dtype)
        self._function.ret[name] = ref

    def set_output(self, name: str, ref: str) -> None:
        """Return something else as the existing output `name`."""
        self._function.ret[name] = ref

    def build(self) -> FunctionDef:
        """The function. The builder must not be used afterwards."""
        schemas = (self._view.schema(node.op) for node in self._function.node_def)
        self._function.signature.is_stateful = any(schema is not None and schema.is_stateful for schema in schemas)
        return self._function

    def _control(self, node: Node, name: str) -> str:
        if name not in self._bodies:
            raise GraphRewriteError(f"node {node.name!r} waits for {name!r}, which is not in the function")
        return self._bodies[name]

    def _add(
        self, op: str, hint: str, inputs: Sequence[str], controls: Sequence[str], attrs: dict[str, AttrValue]
    ) -> str:
        schema = self._view.schema(op)
        if schema is None:
            raise GraphRewriteError(f"op {op!r} is not known to this TensorFlow; load the library that defines it")
        for name, value in schema.defaults.items():
            attrs.setdefault(name, value)
        key = _value_key(schema, inputs, controls, attrs)
        if key is not None and key in self._equal:
            return self._equal[key]
        node = self._function.node_def.add(name=self._free_name(sanitized(hint)), op=op)
        node.input.extend(inputs)
        node.input.extend([f"^{control}" for control in controls])
        for name, value in attrs.items():
            node.attr[name].CopyFrom(value)
        if key is not None:
            self._equal[key] = node.name
        return str(node.name)

    def _free_name(self, hint: str) -> str:
        name, suffix = hint, 0
        while name in self._taken:
            suffix += 1
            name = f"{hint}_{suffix}"
        self._taken.add(name)
        return name


def _kept_attrs(node: Node) -> dict[str, AttrValue]:
    """A clone is placed and tracked by its function, not by where the original was."""
    return {
        name: value
        for name, value in node.attrs().items()
        if name not in _DROPPED_ATTRS and not name.startswith(_OWN_PREFIX)
    }


def _value_key(
    schema: OpSchema, inputs: Sequence[str], controls: Sequence[str], attrs: Mapping[str, AttrValue]
) -> Any:
    """Equal for nodes that give equal values; `None` for a node whose every run counts."""
    if schema.has_effects:
        return None
    spelled = tuple((name, attrs[name].SerializeToString(deterministic=True)) for name in sorted(attrs))
    return schema.name, tuple(inputs), tuple(sorted(controls)), spelled
