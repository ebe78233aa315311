"""Builds library functions from nodes of a graph."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from tensorflow.core.framework import function_pb2

from mx_rec.errors import GraphRewriteError
from mx_rec.graph.attrs import AttrValue
from mx_rec.graph.node import Node, NodeDef, TensorRef
from mx_rec.graph.view import FunctionDef, GraphView

_DROPPED_ATTRS = frozenset({"_class", "_output_shapes"})
_OWN_PREFIX = "_mx_rec_"
_GRADIENT_TYPE = "_gradient_op_type"
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_]")


def sanitized(name: str) -> str:
    """A node name as an identifier that may stand in a function: letters, digits, underscores."""
    cleaned = _NOT_IN_A_NAME.sub("_", name)
    return cleaned if cleaned[:1].isalpha() else f"n{cleaned}"


def functions_called(
    functions: Iterable[FunctionDef], nodes: Iterable[NodeDef], gradients: Mapping[str, str] | None = None
) -> list[FunctionDef]:
    """Those of the functions that the nodes call, or that one of these calls, in order.

    Args:
        functions: of a library.
        nodes: of the graph.
        gradients: function of each type of gradient that the library registers, as `tf.custom_gradient` does; one that
            a node names as its own counts as called.
    """
    gradients = gradients or {}
    by_name = {function.signature.name: function for function in functions}
    called: set[str] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        names = [node.op]
        if _GRADIENT_TYPE in node.attr:
            names.append(gradients.get(node.attr[_GRADIENT_TYPE].s.decode(), ""))
        for value in node.attr.values():
            if value.HasField("func"):
                names.append(value.func.name)
            elif value.HasField("list"):
                names.extend(function.name for function in value.list.func)
        for name in names:
            if name in by_name and name not in called:
                called.add(name)
                stack.extend(by_name[name].node_def)
    return [function for name, function in by_name.items() if name in called]


class FunctionBuilder:
    """Collects arguments, nodes and outputs of one function.

    Tensors inside a function are spelled `argument` or `node:output argument:index`; the methods take and
    return these spellings.
    """

    def __init__(self, view: GraphView, name: str, start: FunctionDef | None = None) -> None:
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
        self._equal: dict[bytes | None, str] = {}

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
            target = self._copy_of(node)
            for name in [name for name in target.attr if name.startswith(_OWN_PREFIX)]:
                del target.attr[name]
            self._bodies[node.name] = self._settle(target, node.name, inputs, controls)

    def call(self, op: str, hint: str, inputs: Sequence[str], attrs: Mapping[str, AttrValue] | None = None) -> str:
        """Add a node that is not in the graph. Returns its name in the function."""
        target = self._function.node_def.add(op=op)
        for name, value in (attrs or {}).items():
            target.attr[name].CopyFrom(value)
        return self._settle(target, hint, inputs, ())

    def copy(self, node: Node) -> str:
        """Add a node without inputs with every attribute of a graph node, so that it reaches the same resource."""
        return self._settle(self._copy_of(node), node.name, (), ())

    def stand_for(self, tensor: TensorRef, ref: str) -> None:
        """Let `ref`, a tensor of the function, stand for a tensor of the graph."""
        self._refs[tensor] = ref

    def body(self, name: str) -> str:
        """The node of this function that does what the cloned graph node `name` does."""
        return self._bodies[name]

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

    def _copy_of(self, node: Node) -> NodeDef:
        """Placed by its function, not by where the original was."""
        target = self._function.node_def.add()
        target.CopyFrom(node.proto)
        if node.is_edited:
            node.write(target)
        target.device = ""
        target.ClearField("experimental_debug_info")
        target.ClearField("experimental_type")  # which TensorFlow adds to nodes of a live graph
        for name in _DROPPED_ATTRS:
            target.attr.pop(name, None)
        return target

    def _settle(self, target: NodeDef, hint: str, inputs: Sequence[str], controls: Sequence[str]) -> str:
        """Complete the last node of the body, or take it out again if an equal one is there. Returns the name."""
        schema = self._view.schema(target.op)
        if schema is None:
            raise GraphRewriteError(
                f"op {target.op!r} is not known to this TensorFlow; load the library that defines it"
            )
        for name, value in schema.defaults.items():
            if name not in target.attr:
                target.attr[name].CopyFrom(value)
        target.name = ""
        del target.input[:]
        target.input.extend([*inputs, *sorted(f"^{control}" for control in controls)])
        key = None if schema.has_effects else target.SerializeToString(deterministic=True)
        if key in self._equal:
            del self._function.node_def[-1]
            return self._equal[key]
        name = target.name = self._free_name(sanitized(hint))
        if key is not None:
            self._equal[key] = name
        return name

    def _free_name(self, hint: str) -> str:
        name, suffix = hint, 0
        while name in self._taken:
            suffix += 1
            name = f"{hint}_{suffix}"
        self._taken.add(name)
        return name
