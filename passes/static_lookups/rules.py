"""What an update of a variable is, in terms of the updates that tables have."""

from __future__ import annotations

from dataclasses import dataclass

from mx_rec.graph.node import TensorRef

SGD = "MxRecApplySgdByAddress"
ADAGRAD = "MxRecApplyAdagradByAddress"
FTRL = "MxRecApplyFtrlByAddress"
ADAM = "MxRecApplyAdamByAddress"
SLOT_OWNERS = {ADAGRAD: "Adagrad", FTRL: "Ftrl", ADAM: "Adam"}
"""Names of optimizers as tables keep them with their slots."""
RULE_NAMES = {SGD: "SGD", ADAGRAD: "Adagrad", FTRL: "FTRL", ADAM: "Adam"}


@dataclass(frozen=True)
class Rule:
    """An update by address with its settings.

    Attributes:
        op: the op.
        scalars: its scalar inputs in order: name and tensor.
        constants: scalar inputs that no tensor of the graph gives, after `scalars`: name and value.
        attrs: its float attributes.
    """

    op: str
    scalars: tuple[tuple[str, TensorRef], ...] = ()
    constants: tuple[tuple[str, float], ...] = ()
    attrs: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Slot:
    """A slot variable: all its elements begin as one number."""

    variable: str
    initial_value: float


@dataclass(frozen=True)
class Update:
    """The update of one variable node.

    Attributes:
        rule: what it computes.
        indices: rows of the variable, distinct or not.
        gradient: what the rule takes as gradient, [rows of `indices`, dim].
        nodes: the nodes that do it, the first of which writes the variable; what waits for them waits for the update.
        slots: its slot variables, in the order of the table's slots.
    """

    rule: Rule
    indices: TensorRef
    gradient: TensorRef
    nodes: tuple[str, ...]
    slots: tuple[Slot, ...]


def why_not_one_initial_value(what: str, count: int) -> str:
    """Why a slot variable with so many initial values in the graph cannot be that of a table."""
    if count:
        return f"is {what} with {count} initial values; expected one"
    return (
        f"is {what} that has no initial value in the graph: of a SavedModel of TensorFlow 2, which has none, only SGD "
        "training is converted"
    )
