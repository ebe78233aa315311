"""What a gather of rows is part of: the function of TensorFlow's API that builds such nodes around it."""

from __future__ import annotations

from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.view import GraphView
from mx_rec.passes.static_lookups.values import flat_origin

SEGMENT_OPS = {
    "SparseSegmentSum": "sum",
    "SparseSegmentMean": "mean",
    "SparseSegmentSqrtN": "sqrtn",
    "SparseSegmentSumWithNumSegments": "sum",
    "SparseSegmentMeanWithNumSegments": "mean",
    "SparseSegmentSqrtNWithNumSegments": "sqrtn",
}
SEGMENT_GRADIENTS = frozenset({"SparseSegmentSumGradV2", "SparseSegmentMeanGradV2", "SparseSegmentSqrtNGradV2"})
"""Their gradients: sums by distinct ids, and the ids."""
_WEIGHTED = frozenset({"SegmentSum", "SegmentSumV2", "UnsortedSegmentSum"})
_HANDS_ON = frozenset({"Identity", "Reshape", "Cast"})
_MAX_STEPS = 8  # from the gather to what adds rows up


def pattern_of(view: GraphView, rows: TensorRef, ids: TensorRef) -> str:
    """The name of the pattern, with combiner and weights.

    Args:
        view: the graph.
        rows: what the lookup gives: the rows, or, if one op gathers them and adds them up, their sums.
        ids: the ids.
    """
    combiner = SEGMENT_OPS.get(view.node(rows.node).op) or _combiner(view, rows)
    if combiner is None:
        return "embedding_lookup"
    kind = "safe_embedding_lookup_sparse" if _fills_empty_rows(view, ids) else "embedding_lookup_sparse"
    return f"{kind} ({combiner})"


def _combiner(view: GraphView, rows: TensorRef) -> str | None:
    pending = [(rows, 0)]
    while pending:
        ref, steps = pending.pop(0)
        for use in view.consumers(ref):
            node = view.node(use.node)
            if use.index == 0 and node.op in SEGMENT_OPS:
                return SEGMENT_OPS[node.op]
            if use.index == 0 and _gathers_by_unique(view, node) and _is_weighted(view, node):
                return "weighted"
            if use.index == 0 and node.op in _HANDS_ON and steps < _MAX_STEPS:
                pending.append((TensorRef(node.name, 0), steps + 1))
    return None


def _gathers_by_unique(view: GraphView, node: Node) -> bool:
    return node.op in ("GatherV2", "Gather") and view.node(flat_origin(view, node.inputs[1]).node).op == "Unique"


def _is_weighted(view: GraphView, gather: Node) -> bool:
    """Whether its rows are multiplied and then added up."""
    for use in view.consumers(TensorRef(gather.name, 0)):
        node = view.node(use.node)
        if node.op == "Mul":
            readers = (view.node(reader.node).op for reader in view.consumers(TensorRef(node.name, 0)))
            if any(op in _WEIGHTED for op in readers):
                return True
    return False


def _fills_empty_rows(view: GraphView, ids: TensorRef) -> bool:
    node = view.node(flat_origin(view, ids).node)
    if node.op == "Unique":
        node = view.node(flat_origin(view, node.inputs[0]).node)
    return node.op == "SparseFillEmptyRows"
