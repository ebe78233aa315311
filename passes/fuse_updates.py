"""Does the updates of one optimizer in one op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Union

from mx_rec.constants.constants import ATTR_UPDATE
from mx_rec.graph import marks
from mx_rec.graph.attrs import AttrValue, attr_bytes, attr_int, attr_strings
from mx_rec.graph.edits import EditSet
from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.op_signatures import (
    MANY_OF,
    OP_SUM_GRADIENTS_MANY,
)
from mx_rec.graph.view import GraphView
from mx_rec.passes.base import Pass, PassOutcome, Refusal

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
    """A gradient that is the sum of the rows of `gradients` by their positions `restore` in `keys`."""

    node: str
    gradients: TensorRef
    restore: TensorRef
    keys: TensorRef
    dim: int


@dataclass(frozen=True)
class FuseUpdates(Pass):
    """Replaces the updates of several tables by one op.

    Before, for each table::

        gradient -> MxRecSumGradientsMany of one -> MxRecApply<Optimizer>ByAddress -> group

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
            *(summed.keys for _, summed in members),
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
    """The parts of the gradient of a lookup's result; `None` for other gradients."""
    total = view.node(update.inputs[2].node)
    if total.op != OP_SUM_GRADIENTS_MANY or total.int_attr("N") != 1 or total.controls:
        return None
    if len(view.edges(total.name)) != 1 or total.device != update.device:
        return None
    gradients, restore, keys = total.inputs
    return _Summed(total.name, gradients, restore, keys, total.int_attr("dim"))
