"""The form that TensorFlow's Adam has for sparse gradients: moments of all rows decay and move all rows.

::

    m = m * beta1;  m[indices] += g * (1 - beta1)
    v = v * beta2;  v[indices] += g * g * (1 - beta2)
    variable -= step_size * m / (sqrt(v) + epsilon)

`tf.compat.v1.train.AdamOptimizer` and Keras' Adam of before TensorFlow 2.11 build it of these single ops.
"""

from __future__ import annotations

from typing import NamedTuple

from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.view import GraphView
from mx_rec.passes.static_lookups.rules import ADAM, Rule, Slot, Update, why_not_one_initial_value
from mx_rec.passes.static_lookups.values import is_one_minus, same, stripped, uniform_value
from mx_rec.passes.static_lookups.variables import ASSIGNS, Uses, uses_of

_SCATTER_ADDS = frozenset({"ResourceScatterAdd", "ScatterAdd"})


class _Moment(NamedTuple):
    """A slot that decays by `beta` in all rows and then takes `added` at `indices`."""

    variable: str
    beta: TensorRef
    indices: TensorRef
    added: TensorRef
    decay: Node
    scatter: Node


def match_adam(view: GraphView, node: Node) -> Update | Obstacle:
    """The update whose last op is `node`, which subtracts from all of a variable."""
    quotient = view.node(stripped(view, node.inputs[1]).node)
    if quotient.op != "RealDiv":
        return _not_adam(node)
    above, below = (view.node(stripped(view, ref).node) for ref in quotient.inputs)
    if above.op != "Mul" or below.op not in ("Add", "AddV2"):
        return _not_adam(node)
    root = view.node(stripped(view, below.inputs[0]).node)
    if root.op != "Sqrt":
        return _not_adam(node)
    step_size, epsilon = above.inputs[0], below.inputs[1]
    first = _moment(view, above.inputs[1])
    second = _moment(view, root.inputs[0])
    if first is None or second is None:
        return _not_adam(node)
    gradient = _gradient(view, first, second)
    if gradient is None or not same(view, first.indices, second.indices, waiting=True):
        return _not_adam(node)
    owned = [node.name, quotient.name, above.name, below.name, root.name]
    slots: list[Slot] = []
    for moment in (first, second):
        nodes, slot = _slot(view, moment, {node.name, above.name, root.name})
        if isinstance(slot, Obstacle):
            return slot
        owned.extend(nodes)
        slots.append(slot)
    foreign = _foreign_reader(view, owned)
    if foreign is not None:
        return foreign
    scalars = (("step_size", step_size), ("beta1", first.beta), ("beta2", second.beta), ("epsilon", epsilon))
    return Update(Rule(ADAM, scalars), first.indices, gradient, tuple(owned), tuple(slots))


def _not_adam(node: Node) -> Obstacle:
    return Obstacle(node.name, "subtracts from all rows at each step, and not as Adam does it with sparse gradients")


def _foreign_reader(view: GraphView, owned: list[str]) -> Obstacle | None:
    """What else reads a value of the update that a table does not give."""
    known = set(owned)
    for name in owned:
        for edge in view.data_edges(name):
            if edge.consumer not in known:
                return Obstacle(edge.consumer, f"reads {name!r}, a part of the update that a table does not give")
    return None


def _moment(view: GraphView, value: TensorRef) -> _Moment | None:
    """The slot whose value after its update is `value`."""
    node = view.node(stripped(view, value).node)
    if node.op == "ReadVariableOp":  # that waits for the update
        scatters = [view.node(name) for name in node.controls if view.node(name).op in _SCATTER_ADDS]
        if len(scatters) != 1 or scatters[0].inputs[0] != node.inputs[0]:
            return None
        node = scatters[0]
    if node.op not in _SCATTER_ADDS:
        return None
    variable = view.node(_variable(view, node.inputs[0]))
    decays = [view.node(name) for name in uses_of(view, variable.name).writes if view.node(name).op in ASSIGNS]
    if len(decays) != 1 or not _comes_after(view, node, decays[0]):
        return None
    product = view.node(stripped(view, decays[0].inputs[1]).node)
    if product.op != "Mul" or _variable(view, product.inputs[0]) != variable.name:
        return None
    return _Moment(variable.name, product.inputs[1], node.inputs[1], node.inputs[2], decays[0], node)


def _comes_after(view: GraphView, scatter: Node, decay: Node) -> bool:
    return decay.name in scatter.controls or scatter.inputs[0].node == decay.name


def _variable(view: GraphView, ref: TensorRef) -> str:
    node = view.node(ref.node)
    while node.op in ("Identity", "ReadVariableOp", "Assign") and node.inputs:
        node = view.node(node.inputs[0].node)
    return node.name


def _gradient(view: GraphView, first: _Moment, second: _Moment) -> TensorRef | None:
    """g, if the first moment takes `g * (1 - beta1)` and the second `g * g * (1 - beta2)`."""
    linear, scaled = (view.node(stripped(view, moment.added).node) for moment in (first, second))
    if linear.op != "Mul" or scaled.op != "Mul":
        return None
    gradient = linear.inputs[0]
    square = view.node(stripped(view, scaled.inputs[0]).node)
    is_square = square.op == "Square" or (square.op == "Mul" and same(view, *square.inputs))
    if not is_square or not same(view, square.inputs[0], gradient):
        return None
    if not is_one_minus(view, linear.inputs[1], first.beta) or not is_one_minus(view, scaled.inputs[1], second.beta):
        return None
    return gradient


def _slot(view: GraphView, moment: _Moment, readers: set[str]) -> tuple[list[str], Slot | Obstacle]:
    """(the nodes that change or read the moment in the update, the slot)."""
    uses = uses_of(view, moment.variable)
    product = stripped(view, moment.decay.inputs[1]).node
    mine = {moment.decay.name, moment.scatter.name, product, *readers}
    foreign = [name for name in (*uses.writes, *uses.others, *uses.gathers) if name not in mine]
    if foreign:
        return [], Obstacle(foreign[0], f"uses {moment.variable!r}, a moment of Adam, for another purpose")
    if len(uses.initial) != 1:
        return [], Obstacle(moment.variable, why_not_one_initial_value("a moment of Adam", len(uses.initial)))
    if uniform_value(view, view.node(uses.initial[0]).inputs[1]) != 0:
        return [], Obstacle(uses.initial[0], "gives a moment of Adam an initial value other than 0")
    nodes = [moment.decay.name, moment.scatter.name, product, *_reads_of_update(view, uses)]
    return nodes, Slot(moment.variable, 0.0)


def _reads_of_update(view: GraphView, uses: Uses) -> list[str]:
    """The reads that wait for something, that something waits for or that it computes with."""
    saved = {view.node(save).inputs[index].node for save, index in uses.saves}
    return [
        name
        for name in uses.reads
        if name not in saved and (view.node(name).controls or view.edges(name)) and not _leads_to_save(view, name)
    ]


def _leads_to_save(view: GraphView, name: str) -> bool:
    """Whether a read is only handed on to a Saver."""
    edges = view.edges(name)
    return bool(edges) and all(
        view.node(edge.consumer).op == "SaveV2"
        or (view.node(edge.consumer).op == "Identity" and _leads_to_save(view, edge.consumer))
        for edge in edges
    )
