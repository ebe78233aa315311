"""The gradients of lookups that gather rows and add them up in one op.

::

    SparseSegmentMean(variable, ids, segments)
    SparseSegmentMeanGradV2(gradients, ids, segments, rows) -> sums, distinct ids

The gradient op sums what each distinct id gets. It can do so by positions among the distinct keys of the lookup instead
of by ids, which gives the same sums in the order of the keys. So nothing may depend on the order of these rows: between
the sums and the update they may be scaled, clipped, compared with each other, or reduced over all rows.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.view import GraphView
from mx_rec.passes.static_lookups.rules import Update
from mx_rec.passes.static_lookups.surroundings import SEGMENT_GRADIENTS
from mx_rec.passes.static_lookups.updates import Gradient
from mx_rec.passes.static_lookups.values import flat_origin, small_number, small_value, stripped, written_dims
from mx_rec.passes.static_lookups.variables import variable_behind

# Of each element by itself, and of those of several tensors of one shape.
_ELEMENTWISE = frozenset(
    {"Identity", "StopGradient", "PreventGradient", "CheckNumerics", "Cast", "Neg", "Abs", "Sign"}
    | {"Square", "Sqrt", "Rsqrt", "Reciprocal", "Exp", "Log", "Tanh", "Sigmoid", "Relu", "ZerosLike"}
    | {"OnesLike", "IsFinite", "IsNan", "IsInf", "LogicalNot", "LogicalAnd", "LogicalOr", "Mul", "RealDiv"}
    | {"Div", "DivNoNan", "MulNoNan", "Add", "AddV2", "AddN", "Sub", "Maximum", "Minimum", "Pow"}
    | {"SquaredDifference", "Greater", "GreaterEqual", "Less", "LessEqual", "Equal", "NotEqual", "SelectV2"}
    | {"ClipByValue"}
)
_REDUCTIONS = frozenset({"Sum", "Mean", "Max", "Min", "Prod", "Any", "All", "EuclideanNorm"})
_OF_ALL_ROWS = frozenset({"L2Loss", "HistogramSummary"})
_OF_NUMBERS = frozenset({"Floor", "FloorDiv", "FloorMod", "Ceil", "Cos", "Sin", "Select", "Switch", "Merge", "Enter"})
_HANDS_ON = frozenset({"Identity", "Reshape", "Cast", "ConcatV2"})
_MAX_DEPTH = 32  # of the formula of a rate
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
    return _order_matters(view, name, own, total)


class _Rows(NamedTuple):
    """A tensor that has the rows of the sums.

    Attributes:
        rank: its rank; the rows are along the first dimension.
        among: the node that has put them among other rows; "" if they are alone.
    """

    rank: int
    among: str


def _order_matters(view: GraphView, name: str, own: Collection[str], total: TensorRef | None) -> Obstacle | None:
    """What would give something else if the rows of the sums came in another order."""
    found: dict[TensorRef, _Rows] = {}
    readers: dict[str, None] = {}
    pending = [(TensorRef(name, 0), _Rows(2, ""))]
    while pending:
        ref, rows = pending.pop()
        if ref in found:
            continue
        found[ref] = rows
        uses = view.consumers(ref)
        if not uses:
            reason = f"gives the sums of {name!r} to nothing in the graph, so it is there to be fetched"
            return Obstacle(ref.node, reason)
        for use in uses:
            node = view.node(use.node)
            if node.name in own or node.op in _VALUE_FREE | _OF_ALL_ROWS or (total and node.name == total.node):
                continue
            left = _rank_with_rows(view, node, rows.rank)
            if left is None:
                return Obstacle(node.name, f"op {node.op!r} may depend on the order of the rows of {name!r}")
            readers[node.name] = None
            if left > 0:
                among = node.name if node.op == "ConcatV2" else rows.among
                pending.append((TensorRef(node.name, 0), _Rows(left, among)))
    for reader in readers:
        node = view.node(reader)
        if node.op not in _ELEMENTWISE:
            continue
        rows = next(found[ref] for ref in node.inputs if ref in found)
        for ref in node.inputs:
            fits = found[ref] == rows if ref in found else _has_no_rows(view, ref, rows.rank)
            if not fits:
                reason = f"computes with {ref.node!r} and the rows of {name!r}, the order of which would change"
                return Obstacle(reader, reason)
    return None


def _rank_with_rows(view: GraphView, node: Node, rank: int) -> int | None:
    """The rank of the result of a node on a tensor with these rows, 0 if it has them no more.

    `None` if it may depend on their order.
    """
    if node.op in _ELEMENTWISE:
        return rank
    if node.op == "ConcatV2":
        return rank if small_number(view, node.inputs[-1], waiting=True) == 0 else None
    if node.op not in _REDUCTIONS:
        return None
    axes = view.node(stripped(view, node.inputs[1]).node)
    if axes.op == "Range" and view.node(axes.inputs[1].node).op == "Rank":
        return 0
    known = small_value(view, node.inputs[1], waiting=True)
    if known is None:
        return None
    reduced = {int(axis) % rank for axis in known.reshape(-1)}
    if 0 in reduced:
        return 0
    keeps = node.attr("keep_dims")
    return rank if keeps is not None and keeps.b else rank - len(reduced)


def _has_no_rows(view: GraphView, ref: TensorRef, rank: int, depth: int = 0) -> bool:
    """Whether a tensor is the same for all rows of a tensor of that rank that it is computed with.

    So are numbers, and beside rows of rank 2 a vector of columns or one row.
    """
    shape = view.shape(ref)
    if shape is not None and not shape.unknown_rank:
        dims = [dim.size for dim in shape.dim]
        return len(dims) < rank or (len(dims) == rank and dims[0] == 1)
    node = view.node(ref.node)
    variable = variable_behind(view, ref)
    if variable is not None:
        written = written_dims(view.node(variable))
        return written is not None and len(written) < rank
    if node.op == "Const":
        value = node.attr("value")
        return value is not None and len(value.tensor.tensor_shape.dim) < rank
    if node.op in ("L2Loss", "Fill"):
        return True
    if node.op in _REDUCTIONS and rank == 2 and _rank_with_rows(view, node, rank) == 0:
        return True
    if node.op == "Pack":
        return rank == 2 and all(view.node(source.node).op == "L2Loss" for source in node.inputs)
    if depth >= _MAX_DEPTH or not node.inputs or node.op not in _ELEMENTWISE | _OF_NUMBERS | _REDUCTIONS:
        return False
    sources = node.inputs[:1] if node.op in _REDUCTIONS else node.inputs
    return all(_has_no_rows(view, source, rank, depth + 1) for source in sources)


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
