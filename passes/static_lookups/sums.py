"""The gradients of lookups that gather rows and add them up in one op.

::

    SparseSegmentMean(variable, ids, segments)
    SparseSegmentMeanGradV2(gradients, ids, segments, rows) -> sums, distinct ids

The gradient op sums what each distinct id gets. It can do so by positions among the distinct keys of the lookup instead
of by ids, which gives the same sums in the order of the keys.
"""

from __future__ import annotations

from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.node import TensorRef
from mx_rec.graph.view import GraphView
from mx_rec.passes.static_lookups.rules import Update
from mx_rec.passes.static_lookups.surroundings import SEGMENT_GRADIENTS
from mx_rec.passes.static_lookups.updates import Gradient
from mx_rec.passes.static_lookups.values import flat_origin, stripped

_HANDS_ON = frozenset({"Identity", "Reshape", "Cast", "ConcatV2"})
_VALUE_FREE = frozenset({"Shape", "Size", "Rank"})


def ids_summed_by(view: GraphView, segment: TensorRef) -> TensorRef | None:
    """The ids whose distinct ones `segment` holds, as the op gives them that has summed their gradients.

    `None` if no such op gives them.
    """
    node = view.node(segment.node)
    if node.op not in SEGMENT_GRADIENTS or segment.index != 1:
        return None
    return flat_origin(view, node.inputs[1])


def why_not_by_position(view: GraphView, name: str, update: Update, gradient: Gradient) -> Obstacle | None:
    """Why an op must go on to sum gradients by ids.

    Args:
        view: the graph.
        name: the op.
        update: of the variable.
        gradient: of the update.
    """
    own = set(update.nodes)
    total = None if gradient.total is None else stripped(view, gradient.total)
    pending, seen = [TensorRef(name, 1)], {TensorRef(name, 1)}
    while pending:
        for use in view.consumers(pending.pop()):
            node = view.node(use.node)
            if node.name in own or node.op in _VALUE_FREE:
                continue
            if total is not None and node.name == total.node:
                foreign = _foreign_reader(view, total, own)
                if foreign is None:
                    continue
                return Obstacle(foreign, f"reads the sums of {node.name!r}, the order of which would change")
            if node.op not in _HANDS_ON and not (node.op == "Unique" and use.index == 0):
                return Obstacle(node.name, f"op {node.op!r} reads the distinct ids of {name!r} for another purpose")
            outputs = [TensorRef(node.name, index) for index in range(2 if node.op == "Unique" else 1)]
            pending.extend(ref for ref in outputs if ref not in seen)
            seen.update(outputs)
    return None


def _foreign_reader(view: GraphView, tensor: TensorRef, own: set[str]) -> str | None:
    """A node that computes something from a tensor of which nothing in the end comes to the update."""
    pending, seen = [tensor.node], {tensor.node}
    while pending:
        name = pending.pop()
        edges = view.data_edges(name)
        if not edges and name != tensor.node:
            return name
        for edge in edges:
            if edge.consumer not in own and edge.consumer not in seen:
                seen.add(edge.consumer)
                pending.append(edge.consumer)
    return None
