"""What was asked for and is no variable of which rows are looked up in the open."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Iterator

from mx_rec.graph import marks
from mx_rec.graph.op_signatures import OP_TABLE
from mx_rec.graph.view import GraphView
from mx_rec.passes.base import Refusal
from mx_rec.passes.static_lookups.calls import caller_that_looks_up, is_named
from mx_rec.passes.static_lookups.lookups import static_variables
from mx_rec.passes.static_lookups.plans import TableChoice
from mx_rec.passes.static_lookups.variables import variable_nodes

_SHOWN = 5


def unmatched(view: GraphView, choices: Iterable[TableChoice], refused: Collection[str] = ()) -> Iterator[Refusal]:
    """Refusals of variables that functions alone look up, and of patterns that name no variable that is looked up.

    Args:
        view: the graph.
        choices: what was asked for.
        refused: variables that have been refused before.
    """
    static = static_variables(view)
    known = {name for variable in static for name in variable.nodes}
    nodes = [name for node in view.nodes_of(OP_TABLE) for name in node.strings_attr(marks.CONVERTED)]
    converted = [*nodes, *(name.rpartition("/part_")[0] for name in nodes)]
    others = [node for node in variable_nodes(view) if node.name not in known]
    told = set(refused)
    for choice in choices:
        found = any(choice.matches(variable) for variable in static)
        for node in others:
            if not is_named(choice, node.name):
                continue
            caller = caller_that_looks_up(view, node.name)
            if caller is not None:
                found = True
                if node.name not in told:
                    told.add(node.name)
                    reason = f"is looked up in a function of {caller!r} only, where lookups are not converted"
                    yield Refusal(node.name, f"{reason} (it stays a variable)")
        if not found and not any(fnmatch.fnmatchcase(name, choice.variable) for name in converted):
            names = [repr(variable.name) for variable in static if variable.obstacle is None]
            names += [repr(node.name) for node in others if caller_that_looks_up(view, node.name) is not None]
            more = ", ..." if len(names) > _SHOWN else ""
            there = f"there are {', '.join(names[:_SHOWN])}{more}" if names else "there is none"
            reason = f"is the name or pattern of no variable of which rows are looked up; {there}"
            yield Refusal(choice.variable, reason, is_pattern=True)
