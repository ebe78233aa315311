"""Iterators of a graph: what kind they are, what fills them, and whether they can be replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mx_rec.graph.attrs import DT_VARIANT
from mx_rec.graph.dataset_state import dataset_state
from mx_rec.graph.marks import REPLACES
from mx_rec.graph.node import Node
from mx_rec.graph.view import GraphView

GET_NEXT = "IteratorGetNext"
MAKE_ITERATOR = "MakeIterator"
ONE_SHOT = "OneShotIterator"
TO_STRING_HANDLE = "IteratorToStringHandle"

_KINDS = {
    "IteratorV2": "initializable",
    "Iterator": "initializable",
    ONE_SHOT: "one_shot",
    "IteratorFromStringHandleV2": "string_handle",
    "IteratorFromStringHandle": "string_handle",
}
_FROM_STRING_HANDLE = ("IteratorFromStringHandle", "IteratorFromStringHandleV2")


class Obstacle(NamedTuple):
    """Why something cannot be moved: the node in the way, and what about it."""

    node: str
    reason: str


@dataclass(frozen=True)
class IteratorInfo:
    """An iterator and what touches it.

    Attributes:
        node: the iterator node.
        kind: "initializable", "one_shot", "string_handle" or "other".
        makers: its MakeIterator nodes, in graph order.
        get_nexts: its IteratorGetNext nodes, in graph order.
        obstacle: why it cannot be replaced, or `None`.
    """

    node: str
    kind: str
    makers: tuple[str, ...]
    get_nexts: tuple[str, ...]
    obstacle: Obstacle | None


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
    kind = _KINDS.get(node.op, "other")
    consumers = [view.node(edge.consumer) for edge in view.data_edges(node.name)]
    makers = tuple(dict.fromkeys(use.name for use in consumers if use.op == MAKE_ITERATOR))
    get_nexts = tuple(dict.fromkeys(use.name for use in consumers if use.op == GET_NEXT))
    return IteratorInfo(node.name, kind, makers, get_nexts, _obstacle(view, node, kind, consumers))


def _obstacle(view: GraphView, node: Node, kind: str, consumers: list[Node]) -> Obstacle | None:
    if kind == "string_handle":
        return Obstacle(node.name, "feedable iterators are not moved yet")
    if kind == "other":
        return Obstacle(node.name, f"op {node.op!r} is not an iterator that can be replaced")
    allowed = {GET_NEXT, TO_STRING_HANDLE} | ({MAKE_ITERATOR} if kind == "initializable" else set())
    for use in consumers:
        if use.op not in allowed:
            return Obstacle(use.name, f"op {use.op!r} uses the iterator {node.name!r}; only get_next may")
    if any(use.op == TO_STRING_HANDLE for use in consumers):
        feedable = _feedable_of_same_type(view, node)
        if feedable is not None:
            return Obstacle(
                feedable.name, f"may draw from iterator {node.name!r}; feedable iterators are not moved yet"
            )
    return _one_shot_obstacle(view, node) if kind == "one_shot" else _makers_obstacle(view, node, consumers)


def _feedable_of_same_type(view: GraphView, node: Node) -> Node | None:
    wanted = node.types_attr("output_types")
    for feedable in view.nodes_of(*_FROM_STRING_HANDLE):
        if feedable.types_attr("output_types") in ((), wanted):
            return feedable
    return None


def _one_shot_obstacle(view: GraphView, node: Node) -> Obstacle | None:
    factory = node.func_attr("dataset_factory")
    function = view.function(factory)
    if function is None:
        return Obstacle(node.name, f"its dataset function {factory!r} is not in the graph")
    outputs = function.signature.output_arg
    if len(outputs) != 1 or outputs[0].type != DT_VARIANT or function.signature.input_arg:
        return Obstacle(node.name, f"its dataset function {factory!r} does not make one dataset from nothing")
    reads = dataset_state(view).reader_in(factory)
    return None if reads is None else Obstacle(node.name, reads)


def _makers_obstacle(view: GraphView, node: Node, consumers: list[Node]) -> Obstacle | None:
    makers = [use for use in consumers if use.op == MAKE_ITERATOR]
    if not makers:
        return Obstacle(node.name, "no MakeIterator in this graph fills it")
    for maker in makers:
        dataset = view.producer(maker, 0)
        if dataset is None or dataset.op.startswith("Placeholder"):
            return Obstacle(maker.name, f"the dataset that fills iterator {node.name!r} is not in this graph")
    reader = dataset_state(view).reader([maker.inputs[0].node for maker in makers])
    return None if reader is None else Obstacle(*reader)
