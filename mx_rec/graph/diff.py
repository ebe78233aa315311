"""Structural difference of two GraphDefs, on their canonical form (see `mx_rec.graph.canonical`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tensorflow.core.framework import graph_pb2, node_def_pb2

from mx_rec.graph.canonical import (
    DEFAULT_IGNORED_ATTRS,
    CanonicalNode,
    canonical_node,
    function_header,
    gradient_lines,
)


@dataclass(frozen=True)
class FieldChange:
    """One field of a node: `None` stands for "not there"."""

    field: str
    before: str | None
    after: str | None

    def text(self) -> str:
        """The change as one line."""
        return f"{self.field}: {_or_none(self.before)} -> {_or_none(self.after)}"


@dataclass(frozen=True)
class NodeChange:
    """A node that both graphs hold, with all that differs."""

    name: str
    op: str
    changes: tuple[FieldChange, ...]


@dataclass(frozen=True)
class NodeSetDiff:
    """The difference of two sets of nodes; nodes that only one side holds are given as their text."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[NodeChange, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether there is no difference."""
        return not (self.added or self.removed or self.changed)

    def lines(self) -> list[str]:
        """`+` added, `-` removed, `~` changed; one line per node and per changed field."""
        result = [f"- {text}" for text in self.removed]
        result.extend(f"+ {text}" for text in self.added)
        for node in self.changed:
            result.append(f"~ {node.name} ({node.op})")
            result.extend(f"    {change.text()}" for change in node.changes)
        return result


@dataclass(frozen=True)
class FunctionChange:
    """A function that both libraries hold, with all that differs."""

    name: str
    header: FieldChange | None
    nodes: NodeSetDiff

    def lines(self) -> list[str]:
        """The change as lines."""
        result = [f"~ function {self.name}"]
        if self.header is not None:
            result.append(f"    {self.header.text()}")
        return result + [f"    {line}" for line in self.nodes.lines()]


@dataclass(frozen=True)
class GraphDiff:
    """The difference of two graphs and their function libraries."""

    nodes: NodeSetDiff
    functions_added: tuple[str, ...]
    functions_removed: tuple[str, ...]
    functions_changed: tuple[FunctionChange, ...]
    gradients_added: tuple[str, ...]
    gradients_removed: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether the two graphs are the same in canonical form."""
        functions = self.functions_added or self.functions_removed or self.functions_changed
        return self.nodes.equal and not (functions or self.gradients_added or self.gradients_removed)

    def text(self) -> str:
        """The difference as lines; empty for equal graphs."""
        lines = self.nodes.lines()
        lines.extend(f"- function {name}" for name in self.functions_removed)
        lines.extend(f"+ function {name}" for name in self.functions_added)
        for function in self.functions_changed:
            lines.extend(function.lines())
        lines.extend(f"- {text}" for text in self.gradients_removed)
        lines.extend(f"+ {text}" for text in self.gradients_added)
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The difference as plain dictionaries and lists."""
        return {"equal": self.equal, **dataclasses.asdict(self)}


@dataclass(frozen=True)
class GraphForm:
    """A graph in canonical form: all that a comparison needs of it, without its constants.

    Attributes:
        nodes: by name.
        functions: header and nodes by name, of each function of the library.
        gradients: the registered gradient functions.
    """

    nodes: dict[str, CanonicalNode]
    functions: dict[str, tuple[str, dict[str, CanonicalNode]]]
    gradients: frozenset[str]


def graph_form(graph_def: graph_pb2.GraphDef, *, ignore_attrs: Iterable[str] = DEFAULT_IGNORED_ATTRS) -> GraphForm:
    """The form of a GraphDef.

    Args:
      graph_def: The graph.
      ignore_attrs: Names of attributes whose differences do not count.
    """
    ignored = frozenset(ignore_attrs)
    functions = {
        function.signature.name: (function_header(function, ignored), _node_forms(function.node_def, ignored))
        for function in graph_def.library.function
    }
    return GraphForm(_node_forms(graph_def.node, ignored), functions, frozenset(gradient_lines(graph_def)))


def diff_graphs(
    before: graph_pb2.GraphDef,
    after: graph_pb2.GraphDef,
    *,
    ignore_attrs: Iterable[str] = DEFAULT_IGNORED_ATTRS,
) -> GraphDiff:
    """What changed from one GraphDef to another.

    Args:
      before: The first graph.
      after: The second graph.
      ignore_attrs: Names of attributes whose differences do not count.
    """
    ignored = frozenset(ignore_attrs)
    return diff_forms(graph_form(before, ignore_attrs=ignored), graph_form(after, ignore_attrs=ignored))


def diff_forms(before: GraphForm, after: GraphForm) -> GraphDiff:
    """What changed from one graph to another, by their forms."""
    old, new = before.functions, after.functions
    changed = [name for name in sorted(old.keys() & new.keys()) if old[name] != new[name]]
    return GraphDiff(
        nodes=_diff_nodes(before.nodes, after.nodes),
        functions_added=tuple(sorted(new.keys() - old.keys())),
        functions_removed=tuple(sorted(old.keys() - new.keys())),
        functions_changed=tuple(_function_change(name, *old[name], *new[name]) for name in changed),
        gradients_added=tuple(sorted(after.gradients - before.gradients)),
        gradients_removed=tuple(sorted(before.gradients - after.gradients)),
    )


def _node_forms(nodes: Iterable[node_def_pb2.NodeDef], ignored: frozenset[str]) -> dict[str, CanonicalNode]:
    return {node.name: canonical_node(node, ignore_attrs=ignored) for node in nodes}


def _function_change(
    name: str, header: str, nodes: dict[str, CanonicalNode], new_header: str, new_nodes: dict[str, CanonicalNode]
) -> FunctionChange:
    return FunctionChange(
        name=name,
        header=None if header == new_header else FieldChange("signature", header, new_header),
        nodes=_diff_nodes(nodes, new_nodes),
    )


def _diff_nodes(old: dict[str, CanonicalNode], new: dict[str, CanonicalNode]) -> NodeSetDiff:
    common = sorted(name for name in old.keys() & new.keys() if old[name] != new[name])
    return NodeSetDiff(
        added=tuple(new[name].text() for name in sorted(new.keys() - old.keys())),
        removed=tuple(old[name].text() for name in sorted(old.keys() - new.keys())),
        changed=tuple(_node_change(old[name], new[name]) for name in common),
    )


def _node_change(before: CanonicalNode, after: CanonicalNode) -> NodeChange:
    changes = []
    if before.op != after.op:
        changes.append(FieldChange("op", before.op, after.op))
    if before.device != after.device:
        changes.append(FieldChange("device", before.device or None, after.device or None))
    changes.extend(_input_changes(before.inputs, after.inputs))
    changes.extend(_control_changes(before.controls, after.controls))
    changes.extend(_attr_changes(before.attrs, after.attrs))
    return NodeChange(before.name, after.op, tuple(changes))


def _input_changes(before: tuple[str, ...], after: tuple[str, ...]) -> list[FieldChange]:
    count = max(len(before), len(after))
    padded = (values + (None,) * (count - len(values)) for values in (before, after))
    pairs = enumerate(zip(*padded))
    return [FieldChange(f"input {index}", old, new) for index, (old, new) in pairs if old != new]


def _control_changes(before: tuple[str, ...], after: tuple[str, ...]) -> list[FieldChange]:
    lost, gained = sorted(set(before) - set(after)), sorted(set(after) - set(before))
    changes = [FieldChange("control input", name, None) for name in lost]
    return changes + [FieldChange("control input", None, name) for name in gained]


def _attr_changes(before: dict[str, str], after: dict[str, str]) -> list[FieldChange]:
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return [FieldChange(f"attr {name}", before.get(name), after.get(name)) for name in names]


def _or_none(value: str | None) -> str:
    return "none" if value is None else value
