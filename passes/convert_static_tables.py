"""Puts dynamic tables in the place of variables that plain TensorFlow looks up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from mx_rec.graph.view import GraphView
from mx_rec.passes.base import Pass, PassOutcome, Refusal
from mx_rec.passes.static_lookups.calls import chosen_variables
from mx_rec.passes.static_lookups.conversion import Conversion
from mx_rec.passes.static_lookups.planning import plan_tables
from mx_rec.passes.static_lookups.plans import TableChoice, TablePlan
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
        calls_inlined: whether `inline_calls` has run before. A variable that functions still look up has been refused
            there then, with the reason, and is not refused again.

    Preconditions: the variable is float32 [rows, columns], known. The Saver of the graph saves the other variables.

    Refused, with the node in the way: a variable whose value is read otherwise than by rows; one trained by a rule
    that tables do not have, or by a dense gradient; one whose gradients are not those of its lookups; one whose
    slots begin with different numbers or are used otherwise; a lookup that names no row (batch dimensions, other
    axes, more than one index). What is refused stays as it is, as a whole.
    """

    name: ClassVar[str] = "convert_static_tables"
    tables: tuple[TableChoice, ...] = ()
    keep: frozenset[str] = field(default_factory=frozenset)
    calls_inlined: bool = False

    def run(self, view: GraphView) -> PassOutcome:
        """See `Pass.run`."""
        if not self.tables:
            return PassOutcome()
        conversion = Conversion(view, self.name, self.keep)
        plans, staying = plan_tables(view, self.tables, self.keep)
        left = set(chosen_variables(view, self.tables)) if self.calls_inlined else set()
        refusals = [
            Refusal(obstacle.node, f"{obstacle.reason} (variable {variable.name!r} stays)")
            for variable, obstacle in staying
            if left.isdisjoint(variable.nodes)
        ]
        # Variables that share bounded ids lose the bound together, so one that stays keeps it for the others.
        notes = [_note(plan) for plan in plans]
        for plan in plans:
            conversion.convert(plan)
        refusals = [*refusals, *unmatched(view, self.tables, left)]
        if not notes:
            return PassOutcome(refusals=refusals)
        return PassOutcome(conversion.finish(), notes, refusals)


def _note(plan: TablePlan) -> str:
    variable = plan.variable
    parts = f" in {len(variable.nodes)} parts ({variable.strategy})" if variable.strategy else ""
    how = "not trained" if plan.training is None else RULE_NAMES[plan.training.updates[0].rule.op]
    initial = "imported" if plan.imports else f"{plan.initializer.kind} by key"
    return (
        f"variable {variable.name!r} [{sum(variable.rows)}, {variable.dim}]{parts} is table {plan.table_name!r}: "
        f"{len(variable.lookups)} lookups, {how}, initial values {initial}"
    )
