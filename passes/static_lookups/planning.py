"""The plans of all variables that become tables together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.op_signatures import OP_TABLE
from mx_rec.graph.view import GraphView
from mx_rec.passes.static_lookups.lookups import StaticVariable, static_variables
from mx_rec.passes.static_lookups.plans import TableChoice, TablePlan, make_plan, readers_of_ids, table_name_of


class Planned(NamedTuple):
    """What becomes of the variables that were chosen.

    Attributes:
        plans: of those that become tables, in graph order.
        stay: the others, each with the reason.
    """

    plans: list[TablePlan]
    stay: list[tuple[StaticVariable, Obstacle]]


def plan_tables(view: GraphView, tables: Sequence[TableChoice], keep: frozenset[str]) -> Planned:
    """The plans of all variables that can become tables together, and why the others cannot.

    Args:
        view: the graph.
        tables: which variables, and how.
        keep: nodes that must stay.
    """
    chosen = [(variable, choice) for variable in static_variables(view) if (choice := _choice(tables, variable))]
    unbounded = [variable for variable, choice in chosen if choice.drop_modulo]
    while True:
        readers = frozenset(name for variable in unbounded for name in readers_of_ids(view, variable))
        planned = _plans_with(view, tables, chosen, keep, readers)
        variables = [plan.variable for plan in planned.plans]
        left = [variable for variable in unbounded if variable in variables]
        if len(left) == len(unbounded):
            return planned
        unbounded = left


def _plans_with(
    view: GraphView,
    tables: Iterable[TableChoice],
    chosen: Sequence[tuple[StaticVariable, TableChoice]],
    keep: frozenset[str],
    readers: Collection[str],
) -> Planned:
    planned = Planned([], [])
    owners = {node.str_attr("table_name"): f"node {node.name!r}" for node in view.nodes_of(OP_TABLE)}
    reserved = {choice.name for choice in tables if choice.name}
    for variable, choice in chosen:
        name = choice.name or table_name_of(variable.name, reserved.union(owners))
        if name in owners:
            reason = (
                f"would be table {name!r}, which is the name of that of {owners[name]} already; name each differently"
            )
            planned.stay.append((variable, Obstacle(variable.nodes[0], reason)))
            continue
        plan = make_plan(view, variable, choice, name, keep, readers)
        if isinstance(plan, Obstacle):
            planned.stay.append((variable, plan))
            continue
        owners[plan.table_name] = f"variable {variable.name!r}"
        planned.plans.append(plan)
    return planned


def _choice(tables: Iterable[TableChoice], variable: StaticVariable) -> TableChoice | None:
    """The first that matches."""
    return next((choice for choice in tables if choice.matches(variable)), None)
