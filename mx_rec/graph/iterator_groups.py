"""Which iterators must change together: those that draw by handle, and those that a handle may name.

A handle is a string that a script fetches from an iterator and feeds to another. The graph does not say which goes
where, but TensorFlow hands over elements of equal dtypes and compatible shapes only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mx_rec.graph.attrs import DT_VARIANT, Shape, shape_dims
from mx_rec.graph.dataset_state import dataset_state
from mx_rec.graph.iterators import (
    BY_HANDLE,
    FILLED,
    GET_NEXT,
    INITIALIZABLE,
    MAKE_ITERATOR,
    ONE_SHOT,
    STRING_HANDLE,
    TO_STRING_HANDLE,
    IteratorInfo,
    Obstacle,
    iterator_info,
)
from mx_rec.graph.node import Node
from mx_rec.graph.view import GraphView

_FED = ("Placeholder", "PlaceholderV2")
# Ops that pass one of these inputs on as it is.
_PASS_ON = {"Identity": (0,), "PlaceholderWithDefault": (0,), "Select": (1, 2), "SelectV2": (1, 2)}


@dataclass(frozen=True)
class IteratorGroup:
    """Iterators whose elements must stay alike; nearly always one iterator alone.

    Attributes:
        members: all of them, in graph order.
        sources: those that datasets fill.
        feedables: those that draw by handle from any of the sources.
        get_nexts: what draws from any of them.
        obstacle: why they cannot be replaced, or `None`.
    """

    members: tuple[IteratorInfo, ...]
    sources: tuple[IteratorInfo, ...]
    feedables: tuple[IteratorInfo, ...]
    get_nexts: tuple[str, ...]
    obstacle: Obstacle | None

    @property
    def makers(self) -> tuple[str, ...]:
        """The MakeIterator nodes of all sources."""
        return tuple(maker for source in self.sources for maker in source.makers)

    @property
    def readers(self) -> tuple[IteratorInfo, ...]:
        """The members that a get_next draws from."""
        return tuple(member for member in self.members if member.get_nexts)


def iterator_group(view: GraphView, name: str) -> IteratorGroup:
    """The group of the iterator node `name`."""
    names: tuple[str, ...] = view.cached("iterator_groups", _names).get(name, (name,))
    group: IteratorGroup = view.cached(("iterator_group", names), lambda view: _group(view, names))
    return group


def _names(view: GraphView) -> dict[str, tuple[str, ...]]:
    """The members of every group with an iterator that draws by handle, by the name of each."""
    feedables = [node for node in view.nodes_of(*BY_HANDLE) if view.data_edges(node.name)]
    if not feedables:
        return {}
    together: dict[str, set[str]] = {node.name: {node.name} for node in feedables}
    for source in _possible_sources(view):
        joined = {source.name}
        for feedable in feedables:
            if _may_draw_from(feedable, source):
                joined |= together[feedable.name]
        if len(joined) > 1:
            together.update(dict.fromkeys(joined, joined))
    order = {node.name: index for index, node in enumerate(view)}
    return {name: tuple(sorted(group, key=order.__getitem__)) for name, group in together.items()}


def _possible_sources(view: GraphView) -> Iterator[Node]:
    """The iterators of the graph whose handle can be fetched."""
    for node in view.nodes_of(*FILLED):
        if iterator_info(view, node.name).handles:
            yield node


def _may_draw_from(feedable: Node, source: Node) -> bool:
    types = feedable.types_attr("output_types")
    if types and types != source.types_attr("output_types"):
        return False
    one, other = feedable.shapes_attr("output_shapes"), source.shapes_attr("output_shapes")
    return len(one) != len(other) or all(map(_are_compatible, one, other))


def _are_compatible(one: Shape | None, other: Shape | None) -> bool:
    left, right = shape_dims(one), shape_dims(other)
    if left is None or right is None:
        return True
    return len(left) == len(right) and all(a == b or a is None or b is None for a, b in zip(left, right))


def _group(view: GraphView, names: Iterable[str]) -> IteratorGroup:
    members = tuple(iterator_info(view, name) for name in names)
    sources = tuple(member for member in members if member.kind != STRING_HANDLE)
    feedables = tuple(member for member in members if member.kind == STRING_HANDLE)
    get_nexts = tuple(name for member in members for name in member.get_nexts)
    obstacle = _feedables_obstacle(view, feedables, sources) or _sources_obstacle(view, sources)
    return IteratorGroup(members, sources, feedables, get_nexts, obstacle)


def _feedables_obstacle(
    view: GraphView, feedables: tuple[IteratorInfo, ...], sources: tuple[IteratorInfo, ...]
) -> Obstacle | None:
    members = {member.node for member in (*feedables, *sources)}
    for feedable in feedables:
        obstacle = _use_obstacle(view, feedable, {GET_NEXT, TO_STRING_HANDLE})
        obstacle = obstacle or _handle_obstacle(view, feedable.node, members)
        if obstacle is None and not sources:
            reason = (
                "draws by handle, but no iterator of the graph gives a handle and has its elements; "
                "make the iterators that feed it in this graph"
            )
            obstacle = Obstacle(feedable.node, reason)
        if obstacle is not None:
            return obstacle
    return (_other_elements(view, feedables, sources) or _foreign_handle(view)) if feedables else None


def _handle_obstacle(view: GraphView, feedable: str, members: set[str]) -> Obstacle | None:
    """Why the handle may name an iterator that is not in the group."""
    seen: set[str] = set()
    stack = [view.node(feedable).inputs[0].node]
    while stack:
        node = view.node(stack.pop())
        if node.name in seen:
            continue
        seen.add(node.name)
        if node.op in _PASS_ON:
            stack.extend(node.inputs[index].node for index in _PASS_ON[node.op])
        elif node.op == TO_STRING_HANDLE:
            if node.inputs[0].node not in members:
                reason = f"gives {feedable!r} the handle of {node.inputs[0].node!r}, which has other elements"
                return Obstacle(node.name, reason)
        elif node.op not in _FED:
            reason = (
                f"op {node.op!r} gives the handle that {feedable!r} draws by, so which iterator it names is not known; "
                "feed a placeholder"
            )
            return Obstacle(node.name, reason)
    return None


def _other_elements(
    view: GraphView, feedables: tuple[IteratorInfo, ...], sources: tuple[IteratorInfo, ...]
) -> Obstacle | None:
    """A member of other dtypes than the rest: an iterator by handle that tells none may draw from any."""
    first = sources[0].node
    get_nexts = (name for member in (*feedables, *sources) for name in member.get_nexts)
    for name in (*(source.node for source in sources), *get_nexts):
        if view.node(name).types_attr("output_types") != view.node(first).types_attr("output_types"):
            reason = f"has elements of other dtypes than {first!r}, and {feedables[0].node!r} may draw from both"
            return Obstacle(name, reason)
    return None


def _foreign_handle(view: GraphView) -> Obstacle | None:
    """A handle that can be fetched and fed, of an iterator whose elements are not known."""
    for node in view.nodes_of(TO_STRING_HANDLE):
        source = view.producer(node, 0)
        if source is None or source.op not in (*FILLED, *BY_HANDLE):
            what = "nothing" if source is None else f"op {source.op!r}"
            return Obstacle(node.name, f"gives the handle of an iterator from {what}, whose elements are not known")
    return None


def _sources_obstacle(view: GraphView, sources: Iterable[IteratorInfo]) -> Obstacle | None:
    for source in sources:
        obstacle = _source_obstacle(view, source)
        if obstacle is not None:
            return obstacle
    return None


def _source_obstacle(view: GraphView, source: IteratorInfo) -> Obstacle | None:
    node = view.node(source.node)
    if source.kind not in (INITIALIZABLE, "one_shot"):
        return Obstacle(node.name, f"op {node.op!r} is not an iterator that can be replaced")
    allowed = {GET_NEXT, TO_STRING_HANDLE} | ({MAKE_ITERATOR} if source.kind == INITIALIZABLE else set())
    obstacle = (
        _use_obstacle(view, source, allowed) or _handle_use_obstacle(view, source) or _drawn_in_function(view, node)
    )
    if obstacle is not None:
        return obstacle
    return _one_shot_obstacle(view, node) if node.op == ONE_SHOT else _makers_obstacle(view, source)


def _use_obstacle(view: GraphView, iterator: IteratorInfo, allowed: set[str]) -> Obstacle | None:
    for edge in view.data_edges(iterator.node):
        use = view.node(edge.consumer)
        if use.op not in allowed:
            return Obstacle(use.name, f"op {use.op!r} uses the iterator {iterator.node!r}; only get_next may")
    return None


def _handle_use_obstacle(view: GraphView, source: IteratorInfo) -> Obstacle | None:
    """A handle that the graph itself takes somewhere else than to an iterator that draws by it."""
    for handle in source.handles:
        for edge in view.data_edges(handle):
            use = view.node(edge.consumer)
            if use.op not in BY_HANDLE and use.op not in _PASS_ON:
                return Obstacle(
                    use.name, f"op {use.op!r} takes the handle of iterator {source.node!r}, and may draw by it"
                )
    return None


def _drawn_in_function(view: GraphView, source: Node) -> Obstacle | None:
    if not iterator_info(view, source.name).handles:
        return None
    wanted = source.types_attr("output_types")
    drawing: list[tuple[str, tuple[int, ...]]] = view.cached("functions_that_draw_by_handle", _functions_that_draw)
    for name, types in drawing:
        if types in ((), wanted):
            reason = f"draws by handle inside a function, which may be the handle of iterator {source.name!r}"
            return Obstacle(name, reason)
    return None


def _functions_that_draw(view: GraphView) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (f"{function.signature.name}/{node.name}", tuple(node.attr["output_types"].list.type))
        for function in view.functions
        for node in function.node_def
        if node.op in BY_HANDLE
    ]


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


def _makers_obstacle(view: GraphView, source: IteratorInfo) -> Obstacle | None:
    makers = [view.node(maker) for maker in source.makers]
    if not makers:
        return Obstacle(source.node, "no MakeIterator in this graph fills it")
    for maker in makers:
        dataset = view.producer(maker, 0)
        if dataset is None or dataset.op.startswith("Placeholder"):
            return Obstacle(maker.name, f"the dataset that fills iterator {source.node!r} is not in this graph")
    reader = dataset_state(view).reader([maker.inputs[0].node for maker in makers])
    return None if reader is None else Obstacle(*reader)
