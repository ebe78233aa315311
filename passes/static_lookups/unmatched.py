"""What was asked for and is no variable of which rows are looked up in the open."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator

from mx_rec.graph import marks
from mx_rec.graph.node import Node
from mx_rec.graph.op_signatures import OP_TABLE
from mx_rec.graph.view import GraphView
from mx_rec.passes.base import Refusal
from mx_rec.passes.static_lookups.lookups import static_variables
from mx_rec.passes.static_lookups.plans import TableChoice
from mx_rec.passes.static_lookups.variables import RESOURCE_VARIABLE, variable_nodes

_GATHERS = ("ResourceGather", "ResourceGatherNd")
_SHOWN = 5


def unmatched(view: GraphView, choices: Iterable[TableChoice]) -> Iterator[Refusal]:
    """Refusals of variables that functions alone look up, and of patterns that name no variable that is looked up."""
    static = static_variables(view)
    known = {name for variable in static for name in variable.nodes}
    nodes = [name for node in view.nodes_of(OP_TABLE) for name in node.strings_attr(marks.CONVERTED)]
    converted = [*nodes, *(name.rpartition("/part_")[0] for name in nodes)]
    others = [node for node in variable_nodes(view) if node.name not in known]
    told: set[str] = set()
    for choice in choices:
        found = any(choice.matches(variable) for variable in static)
        for node in others:
            if not fnmatch.fnmatchcase(node.name, choice.variable):
                continue
            caller = _caller(view, node)
            if caller is not None:
                found = True
                if node.name not in told:
                    told.add(node.name)
                    reason = f"is looked up in a function of {caller!r} only, where lookups are not converted"
                    yield Refusal(node.name, f"{reason} (it stays a variable)")
        if not found and not any(fnmatch.fnmatchcase(name, choice.variable) for name in converted):
            names = [repr(variable.name) for variable in static if variable.obstacle is None]
            more = ", ..." if len(names) > _SHOWN else ""
            there = f"there are {', '.join(names[:_SHOWN])}{more}" if names else "there is none"
            yield Refusal(
                choice.variable, f"is the name or pattern of no variable of which rows are looked up; {there}"
            )


def _caller(view: GraphView, variable: Node) -> str | None:
    """A node that gives the variable to a function that looks up rows of it."""
    if variable.op != RESOURCE_VARIABLE:
        return None
    for use in view.data_edges(variable.name):
        node = view.node(use.consumer)
        for name, first in _functions(view, node.op, node.proto.attr):
            if _is_looked_up(view, name, use.index - first, set()):
                return node.name
    return None


def _functions(view: GraphView, op: str, attrs: object) -> Iterator[tuple[str, int]]:
    """(a function that a node calls, the input of the node that is its first argument)."""
    if view.function(op) is not None:
        yield op, 0
    first = 1 if op in ("If", "StatelessIf", "Case", "StatelessCase") else 0
    for value in attrs.values():  # type: ignore[attr-defined]
        names = [value.func.name] if value.HasField("func") else [func.name for func in value.list.func]
        yield from ((name, first) for name in names)


def _is_looked_up(view: GraphView, function: str, argument: int, seen: set[tuple[str, int]]) -> bool:
    definition = view.function(function)
    if definition is None or not 0 <= argument < len(definition.signature.input_arg) or (function, argument) in seen:
        return False
    seen.add((function, argument))
    name = definition.signature.input_arg[argument].name
    for node in definition.node_def:
        positions = [index for index, source in enumerate(node.input) if source == name]
        if node.op in _GATHERS and 0 in positions:
            return True
        for called, first in _functions(view, node.op, node.attr):
            if any(_is_looked_up(view, called, index - first, seen) for index in positions):
                return True
    return False
