"""How a variable is trained by sparse gradients, in the forms of TensorFlow's optimizers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Union

from mx_rec.graph.inlining import CALLS
from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.view import GraphView
from mx_rec.passes.static_lookups.adam import match_adam
from mx_rec.passes.static_lookups.rules import (
    ADAGRAD,
    FTRL,
    SGD,
    Rule,
    Slot,
    Update,
    why_not_one_initial_value,
)
from mx_rec.passes.static_lookups.surroundings import SEGMENT_GRADIENTS
from mx_rec.passes.static_lookups.values import flat_origin, small_number, small_value, stripped, uniform_value
from mx_rec.passes.static_lookups.variables import uses_of

_SCATTERS = {"ResourceScatterAdd": -1.0, "ScatterAdd": -1.0, "ResourceScatterSub": 1.0, "ScatterSub": 1.0}
_ASSIGN_SUBS = frozenset({"AssignSubVariableOp", "AssignSub"})
_OF_ROWS = frozenset(
    {"UnsortedSegmentSum", "SegmentSum", "GatherV2", "Gather", "ResourceGather", "ConcatV2", *SEGMENT_GRADIENTS}
)
_ELEMENTWISE = frozenset(
    {"Mul", "Neg", "Add", "AddV2", "Sub", "RealDiv", "Cast", "Identity", "ClipByValue", "Maximum", "Minimum"}
)
_MAX_DEPTH = 16
_NO_RULE = {
    "Momentum": "keeps a momentum in a slot; train it with SGD, Adagrad, FTRL or Adam",
    "KerasMomentum": "keeps a momentum in a slot; train it with SGD, Adagrad, FTRL or Adam",
    "RMSProp": "keeps the mean square of RMSProp in a slot; train it with Adagrad or Adam",
    "CenteredRMSProp": "keeps the means of RMSProp in slots; train it with Adagrad or Adam",
    "Adadelta": "is Adadelta; train it with Adagrad or Adam",
    "AdagradDA": "is AdagradDA; train it with Adagrad",
    "ProximalAdagrad": "is ProximalAdagrad; train it with FTRL",
    "ProximalGradientDescent": "is ProximalGradientDescent; train it with FTRL",
}

Found = Union[Update, Obstacle, None]


def find_update(view: GraphView, variable: str) -> Found:
    """The update that trains a variable; why it is not one that a table has; or `None` if nothing changes it."""
    writes = [view.node(name) for name in uses_of(view, variable).writes]
    if not writes:
        return None
    if len(writes) > 1:
        return Obstacle(writes[1].name, f"changes variable {variable!r} a second time, after {writes[0].name!r}")
    node = writes[0]
    if node.op in _SCATTERS:
        return _scatter(view, node)
    matcher = _MATCHERS.get(node.op.replace("Resource", "", 1))
    if matcher is not None:
        return matcher(view, node)
    if node.op in _ASSIGN_SUBS:
        return match_adam(view, node)
    return Obstacle(node.name, _why_unknown(node, variable))


def _why_unknown(node: Node, variable: str) -> str:
    kind = node.op.replace("Resource", "", 1)
    if kind.startswith("SparseApply"):
        return (
            f"op {node.op!r} {_NO_RULE.get(kind[len('SparseApply') :], 'is an update for which tables have no rule')}"
        )
    if kind.startswith("Apply"):
        reason = (
            "since its gradient is one of all rows: of a regularization of the whole variable, or of an op such as "
            "tf.sparse.segment_mean with num_segments"
        )
        return f"op {node.op!r} changes every row of variable {variable!r} at each step, {reason}"
    return f"op {node.op!r} changes variable {variable!r} in a way that tables do not have"


def _scatter(view: GraphView, node: Node) -> Found:
    _, indices, values = node.inputs[:3]
    if not _has_rows(view, values):
        calls = calls_that_give(view, [values])
        if calls:
            reason = (
                f"adds what comes out of call {calls[0]!r}, which is not inlined; a table needs the values of each row"
            )
            return Obstacle(node.name, reason)
        return Obstacle(node.name, "adds what may be one number for all rows; a table needs the values of each row")
    # What is added is the gradient times a rate already; a rate of 1 or -1 changes no bit of it.
    rule = Rule(SGD, constants=(("learning_rate", _SCATTERS[node.op]),), attrs=(("weight_decay", 0.0),))
    return Update(rule, indices, values, (node.name,), ())


def _has_rows(view: GraphView, values: TensorRef, depth: int = 0) -> bool:
    """Whether the values of a scatter are no scalar, so that they are those of its rows."""
    dims = view.shape(values)
    if dims is not None and not dims.unknown_rank:
        return len(dims.dim) > 0
    node = view.node(stripped(view, values).node)
    if node.op in _OF_ROWS:
        return True
    if node.op == "Reshape":
        shape = view.node(stripped(view, node.inputs[1]).node)
        known = small_value(view, node.inputs[1])
        return shape.op in ("ConcatV2", "Pack") or (known is not None and known.size > 0)
    elementwise = node.op in _ELEMENTWISE and depth < _MAX_DEPTH
    return elementwise and any(_has_rows(view, source, depth + 1) for source in node.inputs)


def calls_of_gradients(view: GraphView, variable: str) -> list[str]:
    """The calls out of which come the rows and the gradients of the sparse updates of a variable."""
    writes = [view.node(name) for name in uses_of(view, variable).writes]
    sparse = [node for node in writes if node.op in _SCATTERS or "SparseApply" in node.op]
    return calls_that_give(view, [ref for node in sparse for ref in node.inputs[1:]])


def calls_that_give(view: GraphView, refs: Iterable[TensorRef]) -> list[str]:
    """The calls behind tensors and ops that compute element by element, or with the shape, what calls gave."""
    found: dict[str, None] = {}
    stack, seen = list(refs), set()
    while stack:
        ref = stripped(view, stack.pop())
        node = view.node(ref.node)
        if node.name in seen:
            continue
        seen.add(node.name)
        if node.op in CALLS:
            found[node.name] = None
        elif node.op in _ELEMENTWISE or node.op in ("Reshape", "ConcatV2", "Unique", "UnsortedSegmentSum"):
            stack.extend(node.inputs)
    return list(found)


def _adagrad(view: GraphView, node: Node) -> Found:
    rate, gradient, indices = node.inputs[2:5]
    return _adagrad_rule(view, node, rate, 0.0, gradient, indices)


def _adagrad_v2(view: GraphView, node: Node) -> Found:
    rate, epsilon, gradient, indices = node.inputs[2:6]
    known = small_number(view, epsilon, waiting=True)
    if known is None:
        return Obstacle(node.name, "has an epsilon that is not constant")
    return _adagrad_rule(view, node, rate, float(known), gradient, indices)


def _adagrad_rule(
    view: GraphView, node: Node, rate: TensorRef, epsilon: float, gradient: TensorRef, indices: TensorRef
) -> Found:
    update_slots = node.attr("update_slots")
    if update_slots is not None and not update_slots.b:
        return Obstacle(node.name, "leaves its accumulator as it is (update_slots is false)")
    slot = initial_slot(view, node.inputs[1].node, {node.name})
    if isinstance(slot, Obstacle):
        return slot
    attrs = (("initial_accumulator_value", slot.initial_value), ("epsilon", 0.0), ("root_epsilon", epsilon))
    return Update(Rule(ADAGRAD, (("learning_rate", rate),), attrs=attrs), indices, gradient, (node.name,), (slot,))


def _ftrl(view: GraphView, node: Node) -> Found:
    gradient, indices, rate, l1, l2, power = node.inputs[3:9]
    return _ftrl_rule(view, node, gradient, indices, rate, {"l1": l1, "l2": l2, "learning_rate_power": power})


def _ftrl_v2(view: GraphView, node: Node) -> Found:
    gradient, indices, rate, l1, l2, shrinkage, power = node.inputs[3:10]
    settings = {"l1": l1, "l2": l2, "l2_shrinkage": shrinkage, "learning_rate_power": power}
    return _ftrl_rule(view, node, gradient, indices, rate, settings)


def _ftrl_rule(
    view: GraphView,
    node: Node,
    gradient: TensorRef,
    indices: TensorRef,
    rate: TensorRef,
    settings: Mapping[str, TensorRef],
) -> Found:
    by_rate = node.attr("multiply_linear_by_lr")
    if by_rate is not None and by_rate.b:
        return Obstacle(node.name, "multiplies its linear slot by the rate (multiply_linear_by_lr); tables do not")
    attrs: list[tuple[str, float]] = []
    for name, ref in settings.items():
        value = small_number(view, ref, waiting=True)
        if value is None:
            why = "; FtrlOptimizer makes it of beta and of a rate that is not constant" if name == "l2" else ""
            return Obstacle(node.name, f"has a {name} that is not constant, as that of a table must be{why}")
        attrs.append((name, float(value)))
    accum, linear = (initial_slot(view, node.inputs[index].node, {node.name}) for index in (1, 2))
    for slot in (accum, linear):
        if isinstance(slot, Obstacle):
            return slot
    assert isinstance(accum, Slot) and isinstance(linear, Slot)
    if linear.initial_value != 0:
        return Obstacle(linear.variable, f"begins at {linear.initial_value}; the linear slot of a table begins at 0")
    attrs.append(("initial_accumulator_value", accum.initial_value))
    rule = Rule(FTRL, (("learning_rate", rate),), attrs=tuple(attrs))
    return Update(rule, indices, gradient, (node.name,), (accum, linear))


_MATCHERS: Mapping[str, Callable[[GraphView, Node], Found]] = {
    "SparseApplyAdagrad": _adagrad,
    "SparseApplyAdagradV2": _adagrad_v2,
    "SparseApplyFtrl": _ftrl,
    "SparseApplyFtrlV2": _ftrl_v2,
}


@dataclass(frozen=True)
class Gradient:
    """The gradient of an update, before rows that repeat are summed.

    Attributes:
        values: float [m, dim].
        segments: the tensors of ids whose flat concatenation says which row each of `values` belongs to.
        total: the sum by distinct ids, float [n, dim], in order of first occurrence, if the graph has it.
    """

    values: TensorRef
    segments: tuple[TensorRef, ...]
    total: TensorRef | None


def gradient_of(view: GraphView, update: Update, looked_up: Collection[TensorRef]) -> Gradient | Obstacle:
    """Where the rows of an update's gradient come from.

    Args:
        view: the graph.
        update: the update.
        looked_up: the tensors of ids of lookups, as `flat_origin` gives them.
    """
    indices, values, total = update.indices, update.gradient, None
    unique = view.node(stripped(view, indices).node)
    summed = view.node(stripped(view, values).node)
    if unique.op == "Unique" and stripped(view, indices).index == 0:
        if summed.op != "UnsortedSegmentSum" or stripped(view, summed.inputs[1]) != TensorRef(unique.name, 1):
            # The sum is not the one that the optimizer makes of these ids: distinct ids are ids all the same.
            return Gradient(values, (stripped(view, indices),), None)
        total, values, indices = values, summed.inputs[0], unique.inputs[0]
    return Gradient(values, tuple(_segments(view, indices, looked_up)), total)


def _segments(view: GraphView, indices: TensorRef, looked_up: Collection[TensorRef]) -> list[TensorRef]:
    origin = flat_origin(view, indices)
    node = view.node(origin.node)
    if origin in looked_up or node.op != "ConcatV2" or small_number(view, node.inputs[-1], waiting=True) != 0:
        return [origin]
    return [part for ref in node.inputs[:-1] for part in _segments(view, ref, looked_up)]


def initial_slot(view: GraphView, variable: str, owners: set[str]) -> Slot | Obstacle:
    """A slot whose every row begins with one value and that only `owners` use.

    Args:
        view: the graph.
        variable: its variable.
        owners: the nodes of the update.
    """
    uses = uses_of(view, variable)
    alone = [*uses.gathers, *uses.others, *(name for name in uses.writes if name not in owners)]
    alone = [name for name in alone if name not in owners]
    if alone:
        return Obstacle(alone[0], f"uses {variable!r}, a slot of {next(iter(sorted(owners)))!r}, for another purpose")
    if len(uses.initial) != 1:
        return Obstacle(variable, why_not_one_initial_value("a slot", len(uses.initial)))
    value = uniform_value(view, view.node(uses.initial[0]).inputs[1])
    if value is None:
        return Obstacle(uses.initial[0], "gives a slot an initial value that is not one number for all rows")
    return Slot(variable, value)
