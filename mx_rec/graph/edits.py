"""What a pass wants changed: a list of edits, applied by `GraphView.edited` and the two appliers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from tensorflow.core.framework import node_def_pb2

from mx_rec.constants.constants import ATTR_PASS
from mx_rec.errors import GraphRewriteError
from mx_rec.graph.attrs import AttrValue, attr_bytes
from mx_rec.graph.devices import usable_device
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.op_schema import op_schema

if TYPE_CHECKING:
    from mx_rec.graph.view import GraphView


class AddNode(NamedTuple):
    """Add a node."""

    node: Node


class ReplaceNode(NamedTuple):
    """Put a node in the place of the one of its name; who reads that reads this."""

    node: Node


class AddFunction(NamedTuple):
    """Add a function to the library."""

    function: Any  # FunctionDef


class SetInput(NamedTuple):
    """Make `source` the data input `index` of `node`."""

    node: str
    index: int  # type: ignore[assignment]
    source: TensorRef


class AddControlInput(NamedTuple):
    """Let `node` wait for `source`."""

    node: str
    source: str


class RemoveControlInput(NamedTuple):
    """Let `node` no longer wait for `source`."""

    node: str
    source: str


class SetAttr(NamedTuple):
    """Set one attribute of `node`."""

    node: str
    name: str
    value: AttrValue


class ClearAttr(NamedTuple):
    """Remove one attribute of `node`."""

    node: str
    name: str


class RemoveNode(NamedTuple):
    """Remove `node`; what reads it must be removed or redirected too."""

    node: str


Edit = Union[
    AddNode, ReplaceNode, AddFunction, SetInput, AddControlInput, RemoveControlInput, SetAttr, ClearAttr, RemoveNode
]


class EditSet:
    """An ordered list of edits. Later edits see the effect of earlier ones, also across concatenation.

    Nothing is checked against a graph here: `GraphView.edited` refuses an edit whose node does not exist, and
    `verify` judges the result.
    """

    def __init__(self, edits: Iterable[Edit] = (), *, author: str = "") -> None:
        """`author` is the pass whose name new nodes carry as `_mx_rec_pass`."""
        self._edits: list[Edit] = list(edits)
        self._author = author

    def __len__(self) -> int:
        return len(self._edits)

    def __iter__(self) -> Iterator[Edit]:
        return iter(self._edits)

    def __add__(self, other: EditSet) -> EditSet:
        return EditSet([*self._edits, *other])

    def without_removals(self) -> EditSet:
        """The same edits, all nodes kept: what a live graph can take."""
        return EditSet(edit for edit in self._edits if not isinstance(edit, RemoveNode))

    def add_node(
        self,
        name: str,
        op: str,
        inputs: Sequence[TensorRef] = (),
        attrs: Mapping[str, AttrValue] | None = None,
        *,
        controls: Sequence[str] = (),
        device: str = "",
    ) -> TensorRef:
        """Add a node; default values of its op's attributes are written out. Returns its first output.

        A device that TensorFlow cannot read is left out: passes give new nodes the device of one that was there, which
        may be one that TensorFlow has never looked at.

        Raises:
            GraphRewriteError: the op is not known, so its defaults cannot be written.
        """
        self._edits.append(AddNode(self._made(name, op, inputs, attrs, controls, device)))
        return TensorRef(name, 0)

    def replace_node(
        self,
        name: str,
        op: str,
        inputs: Sequence[TensorRef] = (),
        attrs: Mapping[str, AttrValue] | None = None,
        *,
        controls: Sequence[str] = (),
        device: str = "",
    ) -> TensorRef:
        """As `add_node`, in the place of the node of that name. A live graph cannot take this edit.

        Raises:
            GraphRewriteError: the op is not known, so its defaults cannot be written.
        """
        self._edits.append(ReplaceNode(self._made(name, op, inputs, attrs, controls, device)))
        return TensorRef(name, 0)

    def _made(
        self,
        name: str,
        op: str,
        inputs: Sequence[TensorRef],
        attrs: Mapping[str, AttrValue] | None,
        controls: Sequence[str],
        device: str,
    ) -> Node:
        schema = op_schema(op)
        if schema is None:
            raise GraphRewriteError(f"node {name!r}: op {op!r} is not known to this TensorFlow")
        proto = node_def_pb2.NodeDef(name=name, op=op, device=usable_device(device))
        for attr, value in {**schema.defaults, **(attrs or {})}.items():
            proto.attr[attr].CopyFrom(value)
        if self._author:
            proto.attr[ATTR_PASS].CopyFrom(attr_bytes(self._author))
        proto.input.extend([ref.as_input() for ref in inputs])
        proto.input.extend([f"^{control}" for control in controls])
        return Node(name, op, tuple(inputs), tuple(controls), proto)

    def add_function(self, function: Any) -> None:
        """Add a `FunctionDef` to the library."""
        self._edits.append(AddFunction(function))

    def set_input(self, node: str, index: int, source: TensorRef) -> None:
        """Make `source` the data input `index` of `node`."""
        self._edits.append(SetInput(node, index, source))

    def add_control_input(self, node: str, source: str) -> None:
        """Let `node` run after the node `source`."""
        self._edits.append(AddControlInput(node, source))

    def remove_control_input(self, node: str, source: str) -> None:
        """Let `node` no longer wait for `source`; it must have waited for it."""
        self._edits.append(RemoveControlInput(node, source))

    def set_attr(self, node: str, name: str, value: AttrValue) -> None:
        """Set one attribute. `value` must not change afterwards."""
        self._edits.append(SetAttr(node, name, value))

    def clear_attr(self, node: str, name: str) -> None:
        """Remove an attribute; no error if the node does not carry it."""
        self._edits.append(ClearAttr(node, name))

    def remove_node(self, node: str) -> None:
        """Remove a node; what reads it must be removed or redirected too."""
        self._edits.append(RemoveNode(node))

    def redirect(self, view: GraphView, old: TensorRef, new: TensorRef) -> int:
        """Make every data consumer of `old` read `new`. Returns how many inputs that were."""
        uses = view.consumers(old)
        for use in uses:
            self.set_input(use.node, use.index, new)
        return len(uses)

    def redirect_controls(self, view: GraphView, old: str, new: str) -> int:
        """Make every node that waits for `old` wait for `new` instead. Returns how many those were."""
        waiting = view.control_consumers(old)
        for name in waiting:
            self.remove_control_input(name, old)
            self.add_control_input(name, new)
        return len(waiting)
