"""Tensors and nodes of a `GraphView`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tensorflow.core.framework import node_def_pb2

from mx_rec.errors import GraphRewriteError
from mx_rec.graph.attrs import AttrValue

NodeDef = Any  # tensorflow.NodeDef; protobuf classes carry no static types

_MAX_DIGITS = 9


class TensorRef(NamedTuple):
    """Output `index` (flat, over all output arguments) of the node `node`."""

    node: str
    index: int  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"{self.node}:{self.index}"

    def as_input(self) -> str:
        """The spelling in `NodeDef.input`."""
        return self.node if self.index == 0 else f"{self.node}:{self.index}"


def parse_ref(text: str) -> TensorRef:
    """`"a/b:1"` or `"a/b"` to a `TensorRef`. Control inputs (`"^a"`) are not tensors.

    Raises:
        ValueError: what follows the colon is no output number.
    """
    name, colon, index = text.partition(":")
    if colon and not (index.isascii() and index.isdigit() and len(index) <= _MAX_DIGITS):
        raise ValueError(f"{text!r} is no tensor; expected name or name:index")
    return TensorRef(name, int(index) if colon else 0)


class Node:
    """A node: name, op, data inputs and control inputs, attributes. Immutable.

    The proto it was read from is shared with the graph and never written to; edits of a view make new nodes.
    """

    __slots__ = ("name", "op", "inputs", "controls", "is_edited", "_proto", "_attrs")

    def __init__(
        self,
        name: str,
        op: str,
        inputs: tuple[TensorRef, ...],
        controls: tuple[str, ...],
        proto: NodeDef,
        attrs: Mapping[str, AttrValue | None] | None = None,
    ) -> None:
        self.name = name
        self.op = op
        self.inputs = inputs
        self.controls = controls
        self.is_edited = attrs is not None
        self._proto = proto
        self._attrs = attrs  # edited attributes, over those of the proto; None: removed

    def __repr__(self) -> str:
        return f"Node({self.name!r}, {self.op!r})"

    @property
    def device(self) -> str:
        """The device as written, "" for none."""
        return str(self._proto.device)

    @property
    def edited_attrs(self) -> Mapping[str, AttrValue | None]:
        """Attributes that differ from the proto's; `None` for a removed one."""
        return self._attrs or {}

    def attr(self, name: str) -> AttrValue | None:
        """The value of an attribute, or `None` when the node does not carry it."""
        if self._attrs and name in self._attrs:
            return self._attrs[name]
        attrs = self._proto.attr
        return attrs.get(name, None)

    def has_attr(self, name: str) -> bool:
        """Whether the node carries the attribute."""
        if self._attrs and name in self._attrs:
            return self._attrs[name] is not None
        return name in self._proto.attr

    def attrs(self) -> dict[str, AttrValue]:
        """All attributes the node carries."""
        values = dict(self._proto.attr)
        for name, value in self.edited_attrs.items():
            values.pop(name, None)
            if value is not None:
                values[name] = value
        return values

    def str_attr(self, name: str, default: str = "") -> str:
        """A string attribute."""
        value = self.attr(name)
        return default if value is None else self._text(name, value.s)

    def int_attr(self, name: str, default: int = 0) -> int:
        """An integer attribute."""
        value = self.attr(name)
        return default if value is None else int(value.i)

    def strings_attr(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty when the node does not carry it."""
        value = self.attr(name)
        return () if value is None else tuple(self._text(name, item) for item in value.list.s)

    def ints_attr(self, name: str) -> tuple[int, ...]:
        """A list of integers; empty when the node does not carry it."""
        value = self.attr(name)
        return () if value is None else tuple(value.list.i)

    def types_attr(self, name: str) -> tuple[int, ...]:
        """A list of dtypes; empty when the node does not carry it."""
        value = self.attr(name)
        return () if value is None else tuple(value.list.type)

    def shapes_attr(self, name: str) -> tuple[Any, ...]:
        """A list of shapes; empty when the node does not carry it."""
        value = self.attr(name)
        return () if value is None else tuple(value.list.shape)

    def _text(self, attr: str, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise GraphRewriteError(f"node {self.name!r}: attribute {attr!r} is {data!r}; expected UTF-8") from error

    def func_attr(self, name: str) -> str:
        """Name of the library function an attribute refers to, or ""."""
        value = self.attr(name)
        return "" if value is None else str(value.func.name)

    def write(self, target: NodeDef) -> None:
        """Bring `target`, a copy of this node's proto, to this node's inputs and attributes."""
        del target.input[:]
        target.input.extend([ref.as_input() for ref in self.inputs])
        target.input.extend([f"^{name}" for name in self.controls])
        for name, value in self.edited_attrs.items():
            if value is None:
                target.attr.pop(name, None)
            else:
                target.attr[name].CopyFrom(value)

    def written(self) -> NodeDef:
        """This node as a proto, with its edits. Not to be written to: without edits it is that of the graph."""
        if not self.is_edited:
            return self._proto
        target = node_def_pb2.NodeDef()
        target.CopyFrom(self._proto)
        self.write(target)
        return target

    @property
    def proto(self) -> NodeDef:
        """The proto this node was read from, without later edits. Not to be written to."""
        return self._proto
