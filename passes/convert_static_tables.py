"""Puts dynamic tables in the place of variables that plain TensorFlow looks up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.op_signatures import OP_TABLE
from mx_rec.graph.view import GraphView
from mx_rec.passes.base import Pass, PassOutcome, Refusal
from mx_rec.passes.static_lookups.conversion import Conversion
from mx_rec.passes.static_lookups.lookups import StaticVariable, static_variables
from mx_rec.passes.static_lookups.plans import TableChoice, TablePlan, make_plan, readers_of_ids, table_name_of
from mx_rec.passes.static_lookups.rules import RULE_NAMES
from mx_rec.passes.static_lookups.unmatched import unmatched


@dataclass(frozen=True)
class ConvertStaticTables(Pass):
    """Converts the variables that it is told to.

    Before::

        variable <- ids -> ResourceGather | GatherV2 | GatherNd | (partitions, gathers, stitch) -> model
        gradient -> Unique, UnsortedSegmentSum -> ResourceSparseApply... | ResourceScatterAdd -> variable, slots
        initial value -> AssignVariableOp -> variable

    After::

        ids -> Identity -> MxRecUnique -> MxRecFindOrInsert -> MxRecGatherByAddress -> GatherV2 -> model
        gradient -> MxRecSumGradientsMany -> MxRecApply<Optimizer>ByAddress -> table, slots in its rows
        initial value -> MxRecTableImport -> table

    These are the nodes of `sparse_lookup`, so the passes that follow move, fuse and merge them. Lookups that no
    update trains become MxRecFind, which inserts nothing. Where initial values are constant or come by key the
    assignment becomes MxRecTableClear. Unless initial values come by key, MxRecCheckIds reports ids that are no rows
    of the variable, where the way they are made does not exclude them.

    Attributes:
        tables: which variables, and how; without any the pass changes nothing.
        keep: names of nodes that must stay.

    Preconditions: the variable is float32 [rows, columns], known. The Saver of the graph saves the other variables.

    Refused, with the node in the way: a variable whose value is read otherwise than by rows; one trained by a rule
    that tables do not have, or by a dense gradient; one whose gradients are not those of its lookups; one whose
    slots begin with different numbers or are used otherwise; a lookup that names no row (batch dimensions, other
    axes, more than one index). What is refused stays as it is, as a whole.
    """

    name: ClassVar[str] = "convert_static_tables"
    tables: tuple[TableChoice, ...] = ()
    keep: frozenset[str] = field(default_factory=frozenset)

    def run(self, view: GraphView) -> PassOutcome:
        """See `Pass.run`."""
        if not self.tables:
            return PassOutcome()
        conversion = Conversion(view, self.name, self.keep)
        plans, refusals = self._plans(view)
        # Variables that share bounded ids lose the bound together, so one that stays keeps it for the others.
        notes = [_note(plan) for plan in plans]
        for plan in plans:
            conversion.convert(plan)
        refusals = [*refusals, *unmatched(view, self.tables)]
        if not notes:
            return PassOutcome(refusals=refusals)
        return PassOutcome(conversion.finish(), notes, refusals)

    def _plans(self, view: GraphView) -> tuple[list[TablePlan], list[Refusal]]:
        """The plans of all variables that can become tables together, and why the others cannot."""
        chosen = [
            (variable, choice) for variable in static_variables(view) if (choice := _choice(self.tables, variable))
        ]
        unbounded = [variable for variable, choice in chosen if choice.drop_modulo]
        while True:
            readers = frozenset(name for variable in unbounded for name in readers_of_ids(view, variable))
            plans, refusals = self._plans_with(view, chosen, readers)
            planned = [plan.variable for plan in plans]
            left = [variable for variable in unbounded if variable in planned]
            if len(left) == len(unbounded):
                return plans, refusals
            unbounded = left

    def _plans_with(
        self, view: GraphView, chosen: Sequence[tuple[StaticVariable, TableChoice]], readers: Collection[str]
    ) -> tuple[list[TablePlan], list[Refusal]]:
        plans: list[TablePlan] = []
        refusals: list[Refusal] = []
        owners = {node.str_attr("table_name"): f"node {node.name!r}" for node in view.nodes_of(OP_TABLE)}
        reserved = {choice.name for choice in self.tables if choice.name}
        for variable, choice in chosen:
            name = choice.name or table_name_of(variable.name, reserved.union(owners))
            if name in owners:
                reason = (
                    f"would be table {name!r}, which is the name of that of {owners[name]} already; name each "
                    f"differently (variable {variable.name!r} stays)"
                )
                refusals.append(Refusal(variable.nodes[0], reason))
                continue
            plan = make_plan(view, variable, choice, name, self.keep, readers)
            if isinstance(plan, Obstacle):
                refusals.append(Refusal(plan.node, f"{plan.reason} (variable {variable.name!r} stays)"))
                continue
            owners[plan.table_name] = f"variable {variable.name!r}"
            plans.append(plan)
        return plans, refusals


def _choice(tables: Iterable[TableChoice], variable: StaticVariable) -> TableChoice | None:
    """The first that matches."""
    return next((choice for choice in tables if choice.matches(variable)), None)


def _note(plan: TablePlan) -> str:
    variable = plan.variable
    parts = f" in {len(variable.nodes)} parts ({variable.strategy})" if variable.strategy else ""
    how = "not trained" if plan.training is None else RULE_NAMES[plan.training.updates[0].rule.op]
    initial = "imported" if plan.imports else f"{plan.initializer.kind} by key"
    return (
        f"variable {variable.name!r} [{sum(variable.rows)}, {variable.dim}]{parts} is table {plan.table_name!r}: "
        f"{len(variable.lookups)} lookups, {how}, initial values {initial}"
    )
