"""Removes what the rewrite made dead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from mx_rec.graph import marks
from mx_rec.graph.edits import EditSet
from mx_rec.graph.iterators import BY_HANDLE, FILLED
from mx_rec.graph.node import Node
from mx_rec.graph.op_signatures import MANY_OF, OP_FIND, OP_FIND_OR_INSERT, OP_LOOK_UP_MANY, OP_TABLE
from mx_rec.graph.verify import colocated_with
from mx_rec.graph.view import GraphView
from mx_rec.passes.base import Pass, PassOutcome

_MARKED_OPS = (*FILLED, *BY_HANDLE, OP_FIND_OR_INSERT, OP_FIND, OP_LOOK_UP_MANY, OP_TABLE, *MANY_OF.values())


@dataclass(frozen=True)
class Prune(Pass):
    """Removes the nodes whose every consumer the rewrite took away.

    Before::

        stand-in iterator -> get_next -> preprocessing -> MxRecUnique          old iterator {disconnected=...}
        new iterator -> new get_next -> MxRecFindOrInsert

    After::

        new iterator -> new get_next -> MxRecFindOrInsert

    It begins with the nodes that `convert_static_tables`, `merge_lookups`, `swap_iterators`, `fuse_lookups` and
    `fuse_updates` disconnected and goes on to what only they read. A node that nothing read before the rewrite is
    left alone, and so is everything it reads: a caller may fetch it.

    Attributes:
        keep: nodes that stay, such as those a caller fetches by name, and with them what they read.

    Preconditions: the marks that those passes leave; without them it changes nothing. Refuses nothing.
    """

    name: ClassVar[str] = "prune"
    keep: frozenset[str] = field(default_factory=frozenset)

    def run(self, view: GraphView) -> PassOutcome:
        """See `Pass.run`."""
        candidates = disconnected(view)
        if not candidates:
            return PassOutcome()
        dead = _dead(view, candidates, self.keep)
        edits = EditSet()
        for name in dead:
            edits.remove_node(name)
        return PassOutcome(edits, [f"{len(dead)} nodes removed"] if dead else [])


def disconnected(view: GraphView) -> list[str]:
    """The nodes from which passes took the consumers, as far as they are marked; some may be gone."""
    return [name for node in view.nodes_of(*_MARKED_OPS) for name in node.strings_attr(marks.DISCONNECTED)]


def _dead(view: GraphView, candidates: list[str], keep: frozenset[str]) -> list[str]:
    """The nodes to remove: consumers before what they read."""
    readers: dict[str, int] = {}
    companions = _companions(view)
    dead: dict[str, None] = {}
    stack = list(reversed(candidates))
    while stack:
        name = stack.pop()
        node = view.get(name)
        if node is None or name in dead or name in keep:
            continue
        left = readers.setdefault(name, len(view.edges(name)) + companions.get(name, 0))
        if left:
            continue
        dead[name] = None
        sources = [*(ref.node for ref in node.inputs), *node.controls, *_companions_of(node)]
        for source in sources:
            count = readers.setdefault(source, len(view.edges(source)) + companions.get(source, 0))
            readers[source] = count - 1
        stack.extend(reversed(list(dict.fromkeys(sources))))
    return list(dead)


def _companions(view: GraphView) -> dict[str, int]:
    """How many nodes are to be placed with each node: a node cannot go while another names it so."""
    counts: dict[str, int] = {}
    for node in view:
        for name in _companions_of(node):
            counts[name] = counts.get(name, 0) + 1
    return counts


def _companions_of(node: Node) -> list[str]:
    return [name for name in colocated_with(node) if name != node.name]
