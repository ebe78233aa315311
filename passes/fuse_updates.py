"""Does the updates of one optimizer in one op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Union

from mx_rec.constants.constants import ATTR_UPDATE
from mx_rec.graph import marks
from mx_rec.graph.attrs import DT_FLOAT, DT_INT32, AttrValue, attr_bytes, attr_int, attr_strings, const_value
from mx_rec.graph.edits import EditSet
from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.op_signatures import (
    MANY_OF,
    OP_FIND,
    OP_FIND_OR_INSERT,
    OP_FORWARD,
    OP_GATHER,
    OP_LOOK_UP_MANY,
    OP_SUM_GRADIENTS_MANY,
)
from mx_rec.graph.view import GraphView
from mx_rec.passes.base import Pass, PassOutcome, Refusal
from mx_rec.passes.find_lookups import forwarded

_TENSORS = 3  # handle, addresses, gradients; scalars follow
_SINGLE_OF = {many: single for single, many in MANY_OF.items()}


class _Key(NamedTuple):
    """Updates with equal keys can be one op."""

    op: str
    call: str  # what says which apply_gradients made it
    waiting: tuple[str, ...]
    controls: tuple[str, ...]
    device: str
    scalars: tuple[Union[TensorRef, bytes], ...]
    attrs: tuple[tuple[str, bytes], ...]


class _Summed(NamedTuple):
    """A gradient that is the sum of the rows of `gradients` by their positions `restore`."""

    node: str
    gradients: TensorRef
    restore: TensorRef
    dim: int


@dataclass(frozen=True)
class FuseUpdates(Pass):
    """Replaces the updates of several tables by one op.

    Before, for each table::

        gradient -> Reshape -> UnsortedSegmentSum -> MxRecApply<Optimizer>ByAddress -> group

    After, for all of them::

        gradients -> MxRecSumGradientsMany -> MxRecApply<Optimizer>ByAddressMany -> group

    Updates go together if one call of `apply_gradients` made them (node attribute `_mx_rec_update`), with equal
    settings, and the same nodes wait for them. Such a call gives away the group of its updates only, so they run
    all or none. Sums over the ids that repeat in a batch go together if the gradient is that of the result of a
    lookup and only the update reads it; they add in the same order as before.

    The original ops stay in a live graph; nothing waits for them any more.

    No update of a group leads to another one: it would do so through a node that waits for both.

    Preconditions: none. Refused, where there is another update to go with: one that no `apply_gradients` made,
    since a script may run it alone; one that nothing waits for; one of a table that the group has already.
    """

    name: ClassVar[str] = "fuse_updates"

    def run(self, view: GraphView) -> PassOutcome:
        """See `Pass.run`."""
        groups: dict[_Key, list[Node]] = {}
        refused: dict[_Key, list[Refusal]] = {}
        fused = {name for node in view.nodes_of(*_SINGLE_OF) for name in node.strings_attr(marks.DISCONNECTED)}
        for node in view.nodes_of(*MANY_OF):
            if node.name in fused:
                continue
            key = _key(view, node)
            group = groups.setdefault(key, [])
            obstacle = _obstacle(node, key, group)
            if obstacle is None:
                group.append(node)
            else:
                refused.setdefault(key, []).append(Refusal(*obstacle))
        edits = EditSet(author=self.name)
        notes: list[str] = []
        for key, group in groups.items():
            if len(group) > 1:
                notes.extend(_fuse(view, edits, key, group))
        together = Counter(_key(view, node) for node in view.nodes_of(*_SINGLE_OF))
        for key, refusals in refused.items():
            together[key] += len(refusals) + len(groups[key])
        refusals = [refusal for key, members in refused.items() if together[key] > 1 for refusal in members]
        return PassOutcome(edits, notes, refusals)


def _key(view: GraphView, node: Node) -> _Key:
    is_many = node.op in _SINGLE_OF
    scalars = node.inputs[_TENSORS * (node.int_attr("N") if is_many else 1) :]
    attrs = sorted((name, value) for name, value in node.attrs().items() if name != "N" and not name.startswith("_"))
    return _Key(
        _SINGLE_OF.get(node.op, node.op),
        node.str_attr(ATTR_UPDATE),
        tuple(sorted(view.control_consumers(node.name))),
        tuple(sorted(node.controls)),
        node.device,
        tuple(_scalar(view, ref) for ref in scalars),
        tuple((name, _bytes(value)) for name, value in attrs),
    )


def _scalar(view: GraphView, ref: TensorRef) -> TensorRef | bytes:
    """Equal for equal values: the content of a constant, else the tensor."""
    node = view.node(ref.node)
    value = node.attr("value")
    if node.op != "Const" or value is None:
        return ref
    return _bytes(value) + "".join(f" ^{name}" for name in sorted(node.controls)).encode()


def _bytes(value: AttrValue) -> bytes:
    serialized: bytes = value.SerializeToString(deterministic=True)
    return serialized


def _obstacle(node: Node, key: _Key, group: Sequence[Node]) -> Obstacle | None:
    """Why the update must stay an op of its own."""
    if not key.call:
        return Obstacle(node.name, "was not made by apply_gradients of an optimizer, so it may be run alone")
    if not key.waiting:
        return Obstacle(node.name, "is an update that nothing waits for")
    if any(other.inputs[0] == node.inputs[0] for other in group):
        return Obstacle(node.name, f"updates the table of {node.inputs[0].node!r} a second time")
    return None


def _fuse(view: GraphView, edits: EditSet, key: _Key, group: Sequence[Node]) -> list[str]:
    """Write the edits of one group. Returns notes for the report."""
    gradients, sums, notes = _sum_gradients(view, edits, key, group)
    inputs = [
        *(node.inputs[0] for node in group),
        *(node.inputs[1] for node in group),
        *gradients,
        *group[0].inputs[_TENSORS:],
    ]
    private = {
        ATTR_UPDATE: attr_bytes(key.call),
        marks.DISCONNECTED: attr_strings([*(node.name for node in group), *sums]),
    }
    settings = {name: value for name, value in group[0].attrs().items() if not name.startswith("_")}
    attrs = {"N": attr_int(len(group)), **settings, **private}
    name = view.unique_name(f"mx_rec/{key.call}/update")
    edits.add_node(name, MANY_OF[key.op], inputs, attrs, controls=key.controls, device=key.device)
    for node in group:
        edits.redirect_controls(view, node.name, name)
    return [f"{len(group)} {key.op} are {name!r}", *notes]


def _sum_gradients(
    view: GraphView, edits: EditSet, key: _Key, group: Sequence[Node]
) -> tuple[list[TensorRef], list[str], list[str]]:
    """(the gradient of each update, the sums that nothing reads any more, notes for the report)."""
    gradients = [node.inputs[2] for node in group]
    by_dim: dict[int, list[tuple[int, _Summed]]] = {}
    for index, node in enumerate(group):
        summed = _summed(view, node)
        if summed is not None:
            by_dim.setdefault(summed.dim, []).append((index, summed))
    replaced: list[str] = []
    notes: list[str] = []
    for dim, members in by_dim.items():
        if len(members) < 2:
            continue
        inputs = [
            *(summed.gradients for _, summed in members),
            *(summed.restore for _, summed in members),
            *(group[index].inputs[1] for index, _ in members),
        ]
        name = view.unique_name(f"mx_rec/{key.call}/sum_gradients")
        attrs = {"N": attr_int(len(members)), "dim": attr_int(dim)}
        edits.add_node(name, OP_SUM_GRADIENTS_MANY, inputs, attrs, device=key.device)
        for output, (index, summed) in enumerate(members):
            gradients[index] = TensorRef(name, output)
            replaced.append(summed.node)
        notes.append(f"{len(members)} sums of gradients of dim {dim} are {name!r}")
    return gradients, replaced, notes


def _summed(view: GraphView, update: Node) -> _Summed | None:
    """The parts of the gradient of a lookup's result, which TensorFlow makes of GatherV2; `None` for others."""
    total = view.node(update.inputs[2].node)
    if total.op != "UnsortedSegmentSum" or total.controls or len(view.edges(total.name)) != 1:
        return None
    types = view.types(total.name)
    rows, dim = _looked_up(view, update.inputs[1])
    if types is None or types.inputs != (DT_FLOAT, DT_INT32, DT_INT32) or rows is None or total.device != update.device:
        return None
    if _rows_of(view, total.inputs[2]) != rows:
        return None
    return _Summed(total.name, _unshaped(view, total.inputs[0]), _unshaped(view, total.inputs[1]), dim)


def _looked_up(view: GraphView, addresses: TensorRef) -> tuple[TensorRef | None, int]:
    """(the local embedding that these addresses lead to, its dim)."""
    node = view.node(addresses.node)
    if node.op == OP_FORWARD:
        (source,) = node.inputs
        many = view.node(source.node)
        n = many.int_attr("N")
        rows = forwarded(view, TensorRef(many.name, n + source.index))
        return (rows if many.op == OP_LOOK_UP_MANY and source.index < n else None), many.int_attr("dim")
    if node.op in (OP_FIND, OP_FIND_OR_INSERT):
        for use in view.consumers(addresses):
            gather = view.node(use.node)
            if gather.op == OP_GATHER:
                return TensorRef(gather.name, 0), gather.int_attr("dim")
    return None, 0


def _rows_of(view: GraphView, count: TensorRef) -> TensorRef | None:
    """The tensor whose rows `count` counts: `shape(tensor)[0]`."""
    node = view.node(count.node)
    if node.op != "StridedSlice" or node.controls or not _takes_first(view, node):
        return None
    node = view.node(node.inputs[0].node)
    if node.op == "Cast" and not node.controls:
        node = view.node(node.inputs[0].node)
    return node.inputs[0] if node.op == "Shape" and not node.controls else None


def _takes_first(view: GraphView, node: Node) -> bool:
    """Whether a StridedSlice is `x[0]`."""
    masks = [node.int_attr(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")]
    bounds = [view.node(ref.node).attr("value") for ref in node.inputs[1:]]
    values = [None if value is None else const_value(value).tolist() for value in bounds]
    return masks == [0, 0, 0, 0, 1] and values == [[0], [1], [1]]


def _unshaped(view: GraphView, ref: TensorRef) -> TensorRef:
    """The tensor before a Reshape, which keeps its elements in their order."""
    node = view.node(ref.node)
    return node.inputs[0] if node.op == "Reshape" and not node.controls else ref
