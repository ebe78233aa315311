"""Checks that a graph is well formed: what a rewrite must never break."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mx_rec.errors import GraphRewriteError
from mx_rec.graph.attrs import base_dtype, dtype_name, is_ref
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.verify_functions import function_problems
from mx_rec.graph.view import GraphView

_BACK_EDGE_OPS = frozenset({"NextIteration", "RefNextIteration"})
_MAX_SHOWN = 5


class Problem(NamedTuple):
    """One thing that is wrong, at one node (or function)."""

    node: str
    what: str

    def __str__(self) -> str:
        return f"node {self.node!r}: {self.what}"


class GraphVerifyError(GraphRewriteError):
    """The graph is broken.

    Attributes:
        problems: what was found, in graph order.
    """

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        shown = "; ".join(str(problem) for problem in problems[:_MAX_SHOWN])
        more = len(problems) - _MAX_SHOWN
        super().__init__(shown + (f"; and {more} more" if more > 0 else ""))


def verify(view: GraphView) -> None:
    """Check a whole graph and its function library, in time linear in nodes plus edges.

    Checked: names are unique; inputs exist, in range and with the dtype the op takes; no cycle except through
    `NextIteration`; colocation targets and functions exist; function bodies hold together. What an unknown op
    takes and gives is not checked.

    Raises:
        GraphVerifyError: it lists what is broken.
    """
    _raise(_all_problems(view))


def verify_delta(view: GraphView) -> None:
    """Check what the last edits of `view` touched; the graph before them must have been verified.

    Raises:
        GraphVerifyError: it lists what is broken.
    """
    _raise(_delta_problems(view))


def _raise(problems: Iterator[Problem]) -> None:
    found = list(problems)
    if found:
        raise GraphVerifyError(found)


def _all_problems(view: GraphView) -> Iterator[Problem]:
    for name in view.duplicate_names:
        yield Problem(name, "two nodes have this name; names must be unique")
    for node in view:
        if not _is_plainly_sound(view, node):
            yield from _node_problems(view, node)
    yield from _cycle_problems(view, (node.name for node in view))
    for function in view.functions:
        for what in function_problems(view, function):
            yield Problem(function.signature.name, what)


def _delta_problems(view: GraphView) -> Iterator[Problem]:
    delta = view.delta
    for name in delta.removed:
        for edge in view.edges(name):
            yield Problem(edge.consumer, f"reads node {name!r}, which was removed")
    names = dict.fromkeys(name for name in delta.rewired if name in view)
    for name in delta.replaced:
        names.update(dict.fromkeys(edge.consumer for edge in view.edges(name)))
    for name in () if delta.is_private else delta.changed:
        if any(not attr.startswith("_") for attr in view.node(name).edited_attrs):
            names[name] = None
            names.update(dict.fromkeys(edge.consumer for edge in view.edges(name)))
    for name in names:
        node = view.node(name)
        if not _is_plainly_sound(view, node):
            yield from _node_problems(view, node)
    yield from _cycle_problems(view, (name for name in delta.rewired if name in view))
    for name in delta.functions:
        for what in function_problems(view, view.function(name)):
            yield Problem(name, what)


def _is_plainly_sound(view: GraphView, node: Node) -> bool:
    """A quick look that settles nearly every node; what it cannot settle, `_node_problems` looks at closely."""
    known = view.known_types
    types = known.get(node.name) or view.types(node.name)
    if types is None or len(types.inputs) != len(node.inputs):
        return False
    for (source, index), wanted in zip(node.inputs, types.inputs):
        given = known.get(source) or view.types(source)
        if given is None or given.outputs[index : index + 1] != (wanted,):
            return False
    schema = view.schema(node.op)
    if schema is None or schema.function_attrs:
        return False
    if node.controls and not all(name in view for name in node.controls):
        return False
    return not node.has_attr("_class") or all(name in view for name in colocated_with(node))


def _node_problems(view: GraphView, node: Node) -> Iterator[Problem]:
    for name in node.controls:
        if name not in view:
            yield Problem(node.name, f"waits for node {name!r}, which does not exist")
    yield from _input_problems(view, node)
    for name in colocated_with(node):
        if name not in view:
            yield Problem(node.name, f"is colocated with node {name!r}, which does not exist")
    schema = view.schema(node.op)
    if schema is not None and view.types(node.name) is None:
        attrs = ", ".join(map(repr, schema.type_attrs))
        yield Problem(node.name, f"op {node.op!r} needs sound attributes {attrs}, which say its dtypes")
    if schema is not None and schema.function_attrs:
        for name in _function_names(node, schema.function_attrs):
            if view.function(name) is None and view.schema(name) is None:
                yield Problem(node.name, f"calls function {name!r}, which the library does not have")


def _input_problems(view: GraphView, node: Node) -> Iterator[Problem]:
    types = view.types(node.name)
    if types is not None and len(types.inputs) != len(node.inputs):
        yield Problem(node.name, f"has {len(node.inputs)} inputs; op {node.op!r} takes {len(types.inputs)}")
        types = None
    wanted_types = (None,) * len(node.inputs) if types is None else types.inputs
    for index, (ref, wanted) in enumerate(zip(node.inputs, wanted_types)):
        what = _source_problem(view, ref, wanted)
        if what is not None:
            yield Problem(node.name, f"input {index} {what}")


def _source_problem(view: GraphView, ref: TensorRef, wanted: int | None) -> str | None:
    if ref.node not in view:
        return f"is {ref}, but there is no node {ref.node!r}"
    types = view.types(ref.node)
    if types is None:
        return None
    outputs = types.outputs
    if ref.index >= len(outputs):
        return f"is {ref}, but node {ref.node!r} has {len(outputs)} outputs"
    given = outputs[ref.index]
    if wanted is None or given == wanted or (is_ref(given) and base_dtype(given) == wanted):
        return None
    return f"is {ref} of dtype {dtype_name(given)}; expected {dtype_name(wanted)}"


def colocated_with(node: Node) -> list[str]:
    """The nodes that `node` is to be placed with."""
    if not node.has_attr("_class"):  # nearly always, and cheaper to ask than for the value
        return []
    value = node.attr("_class")
    return (
        []
        if value is None
        else [item[5:].decode(errors="replace") for item in value.list.s if item.startswith(b"loc:@")]
    )


def _function_names(node: Node, attrs: Iterable[str]) -> Iterator[str]:
    for attr in attrs:
        value = node.attr(attr)
        if value is None:
            continue
        if value.HasField("func"):
            yield value.func.name
        for func in value.list.func:
            yield func.name


def _cycle_problems(view: GraphView, starts: Iterable[str]) -> Iterator[Problem]:
    """A cycle through any of `starts`: walks from them against the edges. At most one is reported."""
    finished: set[str] = set()
    for start in starts:
        node = view.node(start)
        if not node.controls and all(source in finished for source, _ in node.inputs):
            finished.add(start)  # most graphs list inputs first
        elif start not in finished:
            cycle = _find_cycle(view, start, finished)
            if cycle:
                yield Problem(start if start in cycle else cycle[0], "is on a cycle: " + " <- ".join(cycle))
                return


def _find_cycle(view: GraphView, start: str, finished: set[str]) -> list[str]:
    stack = [(start, _predecessors(view, start, finished))]
    on_path = {start}
    while stack:
        name, sources = stack[-1]
        for source in sources:
            if source in on_path:
                path = [step for step, _ in stack]
                return [*path[path.index(source) :], source]
            if source not in finished:
                stack.append((source, _predecessors(view, source, finished)))
                on_path.add(source)
                break
        else:
            finished.add(name)
            on_path.discard(name)
            stack.pop()
    return []


def _predecessors(view: GraphView, name: str, finished: set[str]) -> Iterator[str]:
    """Nodes that must run before this one and are not known to be free of cycles."""
    node = view.get(name)
    if node is None or node.op in _BACK_EDGE_OPS:
        return iter(())
    sources = [ref[0] for ref in node.inputs if ref[0] not in finished]
    if node.controls:
        sources.extend(node.controls)
    return iter(sources)
