"""Iterators of a graph: what kind they are and what touches them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mx_rec.graph.marks import REPLACES
from mx_rec.graph.node import Node
from mx_rec.graph.view import GraphView

GET_NEXT = "IteratorGetNext"
MAKE_ITERATOR = "MakeIterator"
ONE_SHOT = "OneShotIterator"
TO_STRING_HANDLE = "IteratorToStringHandle"
FILLED = ("IteratorV2", "Iterator", ONE_SHOT)  # iterators that a dataset of the graph fills
BY_HANDLE = ("IteratorFromStringHandleV2", "IteratorFromStringHandle")

INITIALIZABLE = "initializable"
STRING_HANDLE = "string_handle"
_KINDS = {
    "IteratorV2": INITIALIZABLE,
    "Iterator": INITIALIZABLE,
    ONE_SHOT: "one_shot",
    **dict.fromkeys(BY_HANDLE, STRING_HANDLE),
}


class Obstacle(NamedTuple):
    """Why something cannot be moved: the node in the way, and what about it."""

    node: str
    reason: str

    def __str__(self) -> str:
        return f"{self.node}: {self.reason}"


@dataclass(frozen=True)
class IteratorInfo:
    """An iterator and what touches it.

    Attributes:
        node: the iterator node.
        kind: "initializable", "one_shot", "string_handle" or "other".
        makers: its MakeIterator nodes, in graph order.
        get_nexts: its IteratorGetNext nodes, in graph order.
        handles: its IteratorToStringHandle nodes, in graph order.
    """

    node: str
    kind: str
    makers: tuple[str, ...]
    get_nexts: tuple[str, ...]
    handles: tuple[str, ...]


def iterator_of(view: GraphView, get_next: str) -> IteratorInfo | None:
    """The iterator a get_next draws from, or `None` if its input has no node."""
    node = view.producer(view.node(get_next), 0)
    return None if node is None else iterator_info(view, node.name)


def iterator_info(view: GraphView, name: str) -> IteratorInfo:
    """Facts about the iterator node `name`."""
    info: IteratorInfo = view.cached(("iterator", name), lambda view: _iterator_info(view, view.node(name)))
    return info


def replaced_get_nexts(view: GraphView) -> dict[str, str]:
    """New get_next by the name of the one it replaced, for every iterator that has been swapped."""
    pairs = ((node.str_attr(REPLACES), node.name) for node in view.nodes_of(GET_NEXT))
    return {old: new for old, new in pairs if old}


def _iterator_info(view: GraphView, node: Node) -> IteratorInfo:
    consumers = [view.node(edge.consumer) for edge in view.data_edges(node.name)]
    makers, get_nexts, handles = (
        tuple(dict.fromkeys(use.name for use in consumers if use.op == op))
        for op in (MAKE_ITERATOR, GET_NEXT, TO_STRING_HANDLE)
    )
    return IteratorInfo(node.name, _KINDS.get(node.op, "other"), makers, get_nexts, handles)
