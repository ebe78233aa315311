"""Does the lookups of equal settings in one op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from mx_rec.constants.constants import ATTR_COLLECTIONS
from mx_rec.graph import marks
from mx_rec.graph.attrs import (
    DT_FLOAT,
    DT_INT32,
    DT_INT64,
    AttrValue,
    attr_int,
    attr_ints,
    attr_strings,
    attr_tensor,
    attr_type,
)
from mx_rec.graph.edits import EditSet
from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.op_signatures import (
    OP_FIND,
    OP_FIND_OR_INSERT,
    OP_FORWARD,
    OP_GATHER,
    OP_LOOK_UP_MANY,
    OP_TABLE,
)
from mx_rec.graph.view import GraphView
from mx_rec.passes.base import Pass, PassOutcome, Refusal
from mx_rec.passes.find_lookups import (
    TRAIN,
    Lookup,
    find_lookups,
    is_free_constant,
    is_row_gather,
    timestamps_of,
)
from mx_rec.passes.prune import disconnected

_HINTS_INPUT, _COUNTS_INPUT = 2, 3  # of MxRecFindOrInsert


class _Key(NamedTuple):
    """Lookups with equal keys can be one op."""

    op: str
    get_next: str
    dim: int
    device: str


class _Parts(NamedTuple):
    """The nodes of one lookup; `restores` are the GatherV2 that can be part of the op."""

    name: str
    find: Node
    gather: Node
    restores: tuple[Node, ...]


@dataclass(frozen=True)
class FuseLookups(Pass):
    """Replaces the ops of the lookups that read one batch by one op.

    Before, for each lookup::

        new get_next -> MxRecFindOrInsert (train) | MxRecFind (eval) -> MxRecGatherByAddress -> GatherV2 -> model

    After, for all of them::

        new get_next -> MxRecLookUpMany -> MxRecForward -> model

    Lookups go together if they are on one side, read one batch and have one dim and device. One lookup alone gains
    too: its batch is spread straight from the rows of the table, and its local embedding is made only if something
    reads it. It changes nothing
    that a run computes or leaves in a table, whatever is fetched: MxRecLookUpMany does those lookups whose
    outputs are read in the run and no others, as their own ops would, and all else that it reads comes from the
    one batch or is constant. (It reads the handles of all, so a table that a run does not use may exist, empty.)

    The GatherV2 that gives the result of a lookup stays, since a script fetches it by name, and so do the other
    ops that a collection names. Such a find takes its addresses from the new op and counts nothing, and such a gather
    reads those addresses. A fetch of them gives what it gave before, with one exception: nothing orders the original
    gather and the update of the same run. A value that is fed for one of them no longer reaches the model.

    Preconditions: `swap_iterators` has let the iterators feed the lookups. Lookups that stay at the step, and those
    of tables of fixed capacity, stay single, with a note. Refused, where there is another lookup to go with: one
    that waits for a node, one whose find or gather a node waits for, and one whose table handle or default row is
    not simply given.
    """

    name: ClassVar[str] = "fuse_lookups"

    def run(self, view: GraphView) -> PassOutcome:
        """See `Pass.run`."""
        groups: dict[_Key, list[_Parts]] = {}
        refused: dict[_Key, list[Refusal]] = {}
        single: Counter[str] = Counter()
        discarded = frozenset(name for name in disconnected(view) if not view.edges(name))
        for lookup in find_lookups(view):
            find = view.node(lookup.find_node)
            if find.op == OP_LOOK_UP_MANY:
                continue
            gather = view.get(lookup.gather_node or "")
            if not lookup.is_moved or lookup.get_next is None:
                single["not fed by their iterator"] += 1
            elif gather is None or gather.op != OP_GATHER:
                single["their rows are not reached by address"] += 1
            else:
                key = _Key(find.op, lookup.get_next, gather.int_attr("dim"), find.device)
                obstacle = _obstacle(view, find, gather, lookup.get_next, discarded)
                if obstacle is None:
                    parts = _Parts(lookup.name, find, gather, tuple(_restores(view, lookup, gather)))
                    groups.setdefault(key, []).append(parts)
                else:
                    reason = f"{obstacle.reason} (lookup {lookup.name!r} stays single)"
                    refused.setdefault(key, []).append(Refusal(obstacle.node, reason))
        edits = EditSet(author=self.name)
        notes = [_fuse(view, edits, key, group) for key, group in groups.items()]
        notes.extend(f"lookups that stay single, {reason}: {count}" for reason, count in single.items())
        together = _fused(view)
        for key, refusals in refused.items():
            together[key] += len(refusals) + len(groups.get(key, ()))
        refusals = [refusal for key, members in refused.items() if together[key] > 1 for refusal in members]
        return PassOutcome(edits, notes if edits else [], refusals)


def _fused(view: GraphView) -> Counter[_Key]:
    """How many lookups are fused already."""
    counts: Counter[_Key] = Counter()
    for node in view.nodes_of(OP_LOOK_UP_MANY):
        n = node.int_attr("N")
        op = OP_FIND_OR_INSERT if node.int_attr("C") else OP_FIND
        counts[_Key(op, node.inputs[n].node, node.int_attr("dim"), node.device)] += n
    return counts


def _obstacle(view: GraphView, find: Node, gather: Node, get_next: str, discarded: frozenset[str]) -> Obstacle | None:
    """Why the lookup must keep its own ops. That nodes wait which nothing will run any more does not count."""
    for node in (find, gather):
        if node.controls:
            return Obstacle(node.name, f"waits for {node.controls[0]!r}")
        waiting = [name for name in view.control_consumers(node.name) if name not in discarded]
        if waiting:
            return Obstacle(waiting[0], f"waits for {node.name!r}")
    gathers = [use.node for use in view.consumers(TensorRef(find.name, 0)) if view.node(use.node).op == OP_GATHER]
    if len(gathers) > 1:
        return Obstacle(gathers[1], f"is a second gather of the addresses of {find.name!r}")
    table, default_row = view.node(find.inputs[0].node), view.node(gather.inputs[2].node)
    if table.op != OP_TABLE or table.controls:
        return Obstacle(table.name, f"op {table.op!r} gives the table handle; expected a free {OP_TABLE!r}")
    if gather.inputs[0] != find.inputs[0]:
        return Obstacle(gather.name, f"does not gather from the table of {find.name!r}")
    if gather.device != find.device:
        return Obstacle(gather.name, f"is placed on {gather.device!r}, but {find.name!r} on {find.device!r}")
    if not is_free_constant(default_row):
        return Obstacle(default_row.name, "gives a default row that is not a constant")
    for ref in find.inputs[_HINTS_INPUT:]:  # counts and timestamps too
        if ref.node != get_next and not is_free_constant(view.node(ref.node)):
            return Obstacle(ref.node, f"gives {find.name!r} what does not come from the batch {get_next!r}")
    return None


def _restores(view: GraphView, lookup: Lookup, gather: Node) -> Iterator[Node]:
    """The nodes that spread the rows over the batch, in the form that the fused op has."""
    for name in lookup.restore_gathers:
        node = view.node(name)
        is_fed = node.inputs[1].node == lookup.get_next
        if is_fed and not node.controls and node.device == gather.device and is_row_gather(view, node):
            yield node


def _fuse(view: GraphView, edits: EditSet, key: _Key, group: Sequence[_Parts]) -> str:
    """Write the edits of one group. Returns a note for the report."""
    side = TRAIN if key.op == OP_FIND_OR_INSERT else "eval"
    n = len(group)
    restores = [(index, restore) for index, parts in enumerate(group) for restore in parts.restores]
    counts = [parts.find.inputs[_COUNTS_INPUT] for parts in group] if side == TRAIN else []
    timestamps = _timestamps(view, edits, group, key.device)
    inputs = [
        *(parts.find.inputs[0] for parts in group),
        *(parts.find.inputs[1] for parts in group),
        *(parts.find.inputs[_HINTS_INPUT] for parts in group),
        *counts,
        *timestamps,
        *(parts.gather.inputs[2] for parts in group),
        *(restore.inputs[1] for _, restore in restores),
    ]
    originals = [
        node.name
        for parts in group
        for node in (parts.gather, parts.find)
        if view.data_edges(node.name) and not node.has_attr(ATTR_COLLECTIONS)
    ]
    bounds = [parts.find.int_attr("max_keys") for parts in group]
    coefficients = [parts.find.int_attr("coefficient") or 1 for parts in group]
    is_weighted = side == TRAIN and any(coefficient > 1 for coefficient in coefficients)
    attrs = {
        "N": attr_int(n),
        "C": attr_int(len(counts)),
        "R": attr_int(len(restores)),
        "restore_of": attr_ints(index for index, _ in restores),
        "dim": attr_int(key.dim),
        "max_keys": attr_ints(bounds if any(bounds) else ()),
        "coefficients": attr_ints(coefficients if is_weighted else ()),
        "M": attr_int(len(timestamps)),
        marks.FUSED_LOOKUPS: attr_strings(parts.name for parts in group),
        marks.FUSED_FINDS: attr_strings(parts.find.name for parts in group),
        marks.FUSED_GATHERS: attr_strings(parts.gather.name for parts in group),
        marks.DISCONNECTED: attr_strings(originals),
    }
    name = view.unique_name(f"mx_rec/look_up_{side}")
    edits.add_node(name, OP_LOOK_UP_MANY, inputs, attrs, device=key.device)
    for index, parts in enumerate(group):
        addresses = _stand_in(view, edits, parts.find, TensorRef(name, index), DT_INT64)
        _stand_in(view, edits, parts.gather, TensorRef(name, n + index), DT_FLOAT)
        _keep_find_valid(view, edits, parts.find, addresses)
    for index, (_, restore) in enumerate(restores):
        _stand_in(view, edits, restore, TensorRef(name, 2 * n + index), DT_FLOAT)
    return f"{n} {side} lookup{'s' if n > 1 else ''} of dim {key.dim} from {key.get_next!r} are {name!r}"


def _timestamps(view: GraphView, edits: EditSet, group: Sequence[_Parts], device: str) -> list[TensorRef]:
    """The times of the keys of each lookup; none if no lookup has them."""
    given = [timestamps_of(parts.find) for parts in group]
    if not any(given):
        return []
    attrs: dict[str, AttrValue] = {"dtype": attr_type(DT_INT64), "value": attr_tensor([], DT_INT64)}
    none = TensorRef("", 0)
    if not all(given):
        name = view.unique_name("mx_rec/no_timestamps")
        none = edits.add_node(name, "Const", (), attrs, device=device)
    return [none if ref is None else ref for ref in given]


def _stand_in(view: GraphView, edits: EditSet, old: Node, output: TensorRef, dtype: int) -> TensorRef:
    """Let what reads the old node read an output of the new one, by way of an op that is not optimized away.

    Whether this op runs tells MxRecLookUpMany whether the output is wanted.
    """
    name = view.unique_name(f"{old.name}/fused")
    tensor = edits.add_node(name, OP_FORWARD, [output], {"T": attr_type(dtype)}, device=old.device)
    edits.redirect(view, TensorRef(old.name, 0), tensor)
    return tensor


def _keep_find_valid(view: GraphView, edits: EditSet, find: Node, addresses: TensorRef) -> None:
    """Let the original op, if fetched, give the addresses of the new one and count nothing."""
    edits.set_input(find.name, _HINTS_INPUT, addresses)
    if find.op == OP_FIND_OR_INSERT:
        zeros = view.unique_name(f"{find.name}/no_counts")
        counts = find.inputs[_COUNTS_INPUT]
        edits.add_node(zeros, "ZerosLike", [counts], {"T": attr_type(DT_INT32)}, device=find.device)
        edits.set_input(find.name, _COUNTS_INPUT, TensorRef(zeros, 0))
