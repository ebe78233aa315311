"""A graph under edit: applies edits one by one, then freezes the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mx_rec.errors import GraphRewriteError
from mx_rec.graph import edits as ed
from mx_rec.graph.attrs import AttrValue
from mx_rec.graph.node import Node, TensorRef


@dataclass(frozen=True)
class Delta:
    """What a set of edits touched, in the order of the first touch.

    Attributes:
        added: new nodes.
        changed: nodes that were there before and have other inputs, controls or attributes now.
        rewired: nodes whose inputs or controls differ, new and removed ones included.
        removed: nodes that are gone.
        replaced: nodes in whose place there is another of the same name.
        functions: new functions.
        is_private: whether nothing was touched but attributes that start with an underscore.
    """

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    rewired: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    is_private: bool = False
    replaced: tuple[str, ...] = ()

    @property
    def touched(self) -> frozenset[str]:
        """Every node that was added, changed, replaced or removed."""
        return frozenset((*self.added, *self.changed, *self.removed, *self.replaced))


class _Changes:
    """The pending changes of one node."""

    __slots__ = ("inputs", "controls", "attrs", "rewired")

    def __init__(self, node: Node) -> None:
        self.inputs = list(node.inputs)
        self.controls = dict.fromkeys(node.controls)
        self.attrs: dict[str, AttrValue | None] = dict(node.edited_attrs)
        self.rewired = False


class Draft:
    """Applies edits to a set of nodes and functions without touching the originals."""

    def __init__(self, nodes: Mapping[str, Node], functions: Mapping[str, Any]) -> None:
        self._before = nodes
        self._nodes = dict(nodes)
        self._functions = dict(functions)
        self._changes: dict[str, _Changes] = {}
        self._added: dict[str, None] = {}
        self._removed: dict[str, None] = {}
        self._replaced: dict[str, None] = {}
        self._new_functions: list[str] = []

    def apply(self, edit: ed.Edit) -> None:
        """Apply one edit.

        Raises:
            GraphRewriteError: it names a node that is not there, adds one that is, or an input out of range.
        """
        handler = _HANDLERS[type(edit)]
        handler(self, edit)

    def finish(self) -> tuple[dict[str, Node], dict[str, Any], Delta]:
        """The nodes, the functions, and what was touched."""
        rewired = [*self._added, *self._removed, *self._replaced]
        for name, changes in self._changes.items():
            node = self._nodes[name]
            self._nodes[name] = Node(
                name, node.op, tuple(changes.inputs), tuple(changes.controls), node.proto, changes.attrs
            )
            if changes.rewired and name not in self._added and name not in self._replaced:
                rewired.append(name)
        changed = tuple(name for name in self._changes if name not in self._added)
        is_private = not (rewired or self._new_functions) and all(
            attr.startswith("_") for changes in self._changes.values() for attr in changes.attrs
        )
        delta = Delta(
            tuple(self._added),
            changed,
            tuple(rewired),
            tuple(self._removed),
            tuple(self._new_functions),
            is_private,
            tuple(self._replaced),
        )
        return self._nodes, self._functions, delta

    def _of(self, name: str) -> _Changes:
        changes = self._changes.get(name)
        if changes is None:
            node = self._nodes.get(name)
            if node is None:
                raise GraphRewriteError(f"an edit names node {name!r}, which the graph does not have")
            changes = self._changes[name] = _Changes(node)
        return changes

    def _add_node(self, edit: ed.AddNode) -> None:
        name = edit.node.name
        if name in self._nodes:
            raise GraphRewriteError(f"an edit adds node {name!r}, but the graph already has a node of this name")
        if name in self._removed:
            raise GraphRewriteError(f"an edit adds node {name!r}, which an earlier edit removes; take another name")
        self._nodes[name] = edit.node
        self._added[name] = None

    def _replace_node(self, edit: ed.ReplaceNode) -> None:
        name = edit.node.name
        if name not in self._nodes:
            raise GraphRewriteError(f"an edit replaces node {name!r}, which the graph does not have")
        self._nodes[name] = edit.node
        self._changes.pop(name, None)
        if name not in self._added:
            self._replaced[name] = None

    def _add_function(self, edit: ed.AddFunction) -> None:
        name = edit.function.signature.name
        if name in self._functions:
            raise GraphRewriteError(f"an edit adds function {name!r}, but the library already has it")
        self._functions[name] = edit.function
        self._new_functions.append(name)

    def _set_input(self, edit: ed.SetInput) -> None:
        changes = self._of(edit.node)
        if edit.index >= len(changes.inputs):
            raise GraphRewriteError(
                f"an edit sets input {edit.index} of node {edit.node!r}, which has {len(changes.inputs)} inputs"
            )
        changes.inputs[edit.index] = TensorRef(*edit.source)
        changes.rewired = True

    def _add_control(self, edit: ed.AddControlInput) -> None:
        changes = self._of(edit.node)
        changes.controls[edit.source] = None
        changes.rewired = True

    def _remove_control(self, edit: ed.RemoveControlInput) -> None:
        changes = self._of(edit.node)
        if edit.source not in changes.controls:
            raise GraphRewriteError(f"node {edit.node!r} has no control input {edit.source!r} to remove")
        del changes.controls[edit.source]
        changes.rewired = True

    def _set_attr(self, edit: ed.SetAttr) -> None:
        self._of(edit.node).attrs[edit.name] = edit.value

    def _clear_attr(self, edit: ed.ClearAttr) -> None:
        self._of(edit.node).attrs[edit.name] = None

    def _remove_node(self, edit: ed.RemoveNode) -> None:
        if edit.node not in self._nodes:
            raise GraphRewriteError(f"an edit removes node {edit.node!r}, which the graph does not have")
        del self._nodes[edit.node]
        self._changes.pop(edit.node, None)
        self._added.pop(edit.node, None)
        self._replaced.pop(edit.node, None)
        if edit.node in self._before:
            self._removed[edit.node] = None


_HANDLERS: dict[type, Any] = {
    ed.AddNode: Draft._add_node,
    ed.ReplaceNode: Draft._replace_node,
    ed.AddFunction: Draft._add_function,
    ed.SetInput: Draft._set_input,
    ed.AddControlInput: Draft._add_control,
    ed.RemoveControlInput: Draft._remove_control,
    ed.SetAttr: Draft._set_attr,
    ed.ClearAttr: Draft._clear_attr,
    ed.RemoveNode: Draft._remove_node,
}
