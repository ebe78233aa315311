"""Puts dynamic tables in the place of variables that plain TensorFlow looks up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.op_signatures import OP_TABLE
from mx_rec.graph.view import GraphView
from mx_rec.passes.base import Pass, PassOutcome, Refusal
from mx_rec.passes.static_lookups.conversion import Conversion
from mx_rec.passes.static_lookups.lookups import StaticVariable, static_variables
from mx_rec.passes.static_lookups.plans import TableChoice, TablePlan, make_plan, table_name_of
from mx_rec.passes.static_lookups.rules import RULE_NAMES


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
    update trains become MxRecFind, which inserts nothing. The ids are the keys, also beyond the rows that the
    variable had, for which TensorFlow reported an error.

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
        notes: list[str] = []
        refusals: list[Refusal] = []
        names = [node.str_attr("table_name") for node in view.nodes_of(OP_TABLE)]
        for variable in static_variables(view):
            choice = _choice(self.tables, variable)
            if choice is None:
                continue
            plan = make_plan(view, variable, choice, choice.name or table_name_of(variable.name, names), self.keep)
            if isinstance(plan, Obstacle):
                refusals.append(Refusal(plan.node, f"{plan.reason} (variable {variable.name!r} stays)"))
                continue
            names.append(plan.table_name)
            conversion.convert(plan)
            notes.append(_note(plan))
        if not notes:
            return PassOutcome(refusals=refusals)
        return PassOutcome(conversion.finish(), notes, refusals)


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
