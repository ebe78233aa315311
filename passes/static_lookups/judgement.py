"""What can be said of the variables that plain TensorFlow looks up: which of them could be tables, and why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.view import GraphView
from mx_rec.passes.static_lookups.lookups import StaticVariable, lookups_in_functions, static_variables
from mx_rec.passes.static_lookups.plans import training_of
from mx_rec.passes.static_lookups.rules import RULE_NAMES


@dataclass(frozen=True)
class Judged:
    """A variable and whether `convert_static_tables` would take it.

    Attributes:
        variable: the variable with its lookups.
        trained_by: the update as tables name it; "" if nothing trains the variable, or not in a way they have.
        obstacle: why it stays a variable; `None` if it could be a table.
    """

    variable: StaticVariable
    trained_by: str
    obstacle: Obstacle | None

    @property
    def shape(self) -> str:
        """Rows, columns and parts: "[100, 8] in 3 parts (div)"."""
        variable = self.variable
        parts = f" in {len(variable.nodes)} parts ({variable.strategy or 'unknown'})" if len(variable.nodes) > 1 else ""
        return f"[{sum(variable.rows)}, {variable.dim}]{parts}"

    @property
    def patterns(self) -> str:
        """The kinds of its lookups and how many there are of each: "2 embedding_lookup by ResourceGather"."""
        counts = Counter(f"{lookup.pattern} by {lookup.op}" for lookup in self.variable.lookups)
        return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def judged_variables(view: GraphView) -> list[Judged]:
    """All variables of which rows are looked up outside functions, in graph order."""
    found: list[Judged] = view.cached("judged_variables", lambda _: [_judge(view, v) for v in static_variables(view)])
    return found


def _judge(view: GraphView, variable: StaticVariable) -> Judged:
    training = None if variable.obstacle is not None else training_of(view, variable)
    if isinstance(training, Obstacle):
        return Judged(variable, "", training)
    rule = "" if training is None else RULE_NAMES[training.updates[0].rule.op]
    return Judged(variable, rule, variable.obstacle)


def remarks(view: GraphView) -> Iterator[str]:
    """A line for each variable, and for each lookup in a function."""
    for judged in judged_variables(view):
        trained = f", trained by {judged.trained_by}" if judged.trained_by else ""
        state = "could be a table" if judged.obstacle is None else f"stays: {judged.obstacle}"
        yield f"plain TensorFlow: {judged.variable.name!r} {judged.shape}: {judged.patterns}{trained}; {state}"
    for obstacle in lookups_in_functions(view):
        yield f"plain TensorFlow in a function: {obstacle}"
