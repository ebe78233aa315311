"""A modulo, or the bucket count of a hash, that does nothing but keep ids below the rows of a variable."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.view import GraphView
from mx_rec.passes.static_lookups.lookups import StaticVariable
from mx_rec.passes.static_lookups.values import flat_origin, small_number, stripped
from mx_rec.passes.static_lookups.variables import GATHERS

MAX_BUCKETS = 2**63 - 1
_MODULOS = frozenset({"FloorMod", "Mod"})
_HASHES = frozenset({"StringToHashBucketFast", "StringToHashBucket", "StringToHashBucketStrong"})
# Input and output by which ids pass through an op unchanged, as a whole or some of them.
_PASSES = {
    "Identity": (0, 0),
    "Snapshot": (0, 0),
    "Reshape": (0, 0),
    "ExpandDims": (0, 0),
    "Squeeze": (0, 0),
    "Unique": (0, 0),
    "GatherV2": (0, 0),
    "SparseFillEmptyRows": (1, 1),
    "ConcatV2": (None, 0),
}
_VALUE_FREE = frozenset({"Shape", "Size", "Rank"})


@dataclass(frozen=True)
class Bound:
    """What bounds the ids.

    Attributes:
        node: the modulo or hash.
        is_hash: whether it is a hash, whose bucket count grows; a modulo is passed by.
    """

    node: str
    is_hash: bool


def are_rows(view: GraphView, ids: TensorRef, rows: int) -> bool:
    """Whether ids are in [0, rows) by the way they are made."""
    node = view.node(flat_origin(view, ids).node)
    while node.op == "Unique":
        node = view.node(flat_origin(view, node.inputs[0]).node)
    if node.op in _HASHES:
        return 0 < node.int_attr("num_buckets") <= rows
    divisor = small_number(view, node.inputs[1]) if node.op == "FloorMod" else None
    return divisor is not None and 0 < divisor <= rows


def bounds_of(
    view: GraphView, variable: StaticVariable, readers: Collection[str], keep: Collection[str]
) -> list[Bound] | Obstacle:
    """What bounds the ids of all lookups of a variable, or why it must stay.

    Args:
        view: the graph.
        variable: the variable.
        readers: the gathers and updates that may read the ids without their bound.
        keep: nodes that must give what they gave.
    """
    if variable.strategy:
        return Obstacle(variable.nodes[0], "is partitioned by its rows, so a modulo of its ids is part of the lookup")
    found: dict[str, Bound] = {}
    for lookup in variable.lookups:
        assert lookup.ids is not None
        bound = _bound(view, lookup.ids, variable.rows[0])
        if isinstance(bound, Obstacle):
            return bound
        obstacle = _read_otherwise(view, bound, readers, keep)
        if obstacle is not None:
            return obstacle
        found[bound.node] = bound
    return list(found.values())


def _bound(view: GraphView, ids: TensorRef, rows: int) -> Bound | Obstacle:
    ref = ids
    while True:
        ref = stripped(view, ref)
        node = view.node(ref.node)
        if node.op in _HASHES:
            return Bound(node.name, True)
        if node.op in _MODULOS:
            divisor = small_number(view, node.inputs[1])
            if divisor is None or not 0 < divisor <= rows:
                return Obstacle(node.name, f"is a modulo of {divisor}, not one that keeps ids below {rows} rows")
            return Bound(node.name, False)
        through, output = _PASSES.get(node.op, (None, 0))
        if through is None or ref.index != output:
            return Obstacle(node.name, f"op {node.op!r} gives the ids; expected a modulo or a hash of them")
        ref = node.inputs[through]


def _read_otherwise(view: GraphView, bound: Bound, readers: Collection[str], keep: Collection[str]) -> Obstacle | None:
    """What reads the bounded ids for anything but lookups of these tables and their updates."""
    if bound.node in keep:
        return Obstacle(bound.node, "is named outside the graph, so its ids are read for another purpose")
    pending, seen = [TensorRef(bound.node, 0)], {TensorRef(bound.node, 0)}
    while pending:
        ref = pending.pop()
        for use in view.consumers(ref):
            node = view.node(use.node)
            if node.name in readers or node.op in _VALUE_FREE:
                continue
            through, output = _PASSES.get(node.op, (-1, 0))
            if node.op in GATHERS and use.index != 0:
                return Obstacle(
                    node.name, f"takes the ids of {bound.node!r} too, and is no lookup of a table that takes all"
                )
            if through is None or through == use.index:
                if not view.edges(node.name) or node.name in keep:
                    reason = f"gives the ids of {bound.node!r} to nothing in the graph, so it is there to be fetched"
                    return Obstacle(node.name, reason)
                following = TensorRef(node.name, output)
                if following not in seen:
                    seen.add(following)
                    pending.append(following)
            elif not (bound.is_hash and _is_sign_test(view, node)):
                return Obstacle(node.name, f"op {node.op!r} reads the ids of {bound.node!r} for another purpose")
    return None


def _is_sign_test(view: GraphView, node: Node) -> bool:
    """`ids >= 0`, which holds for every hash."""
    return node.op == "GreaterEqual" and small_number(view, node.inputs[1]) == 0
