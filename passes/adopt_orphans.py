"""Lets lookups whose ids come from no batch be prepared with one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mx_rec.graph.edits import EditSet
from mx_rec.graph.iterator_groups import iterator_group
from mx_rec.graph.iterators import GET_NEXT, IteratorInfo, Obstacle, iterator_of, replaced_get_nexts
from mx_rec.graph.slices import slice_analysis
from mx_rec.graph.view import GraphView
from mx_rec.passes.base import Pass, PassOutcome, Refusal
from mx_rec.passes.find_lookups import EVAL, TRAIN, Lookup, find_lookups
from mx_rec.passes.merge_lookups import MergeLookups, merged_names

_PLACE = {TRAIN: 0, EVAL: 1}  # of the iterator to take when no lookup of the side shows one


@dataclass(frozen=True)
class AdoptOrphans(Pass):
    """Ties ids that come from no iterator, such as constants, to a batch, so that `hoist_lookups` moves them.

    Before::

        Const -> ... -> Identity (ids) -> MxRecUnique -> MxRecFindOrInsert | MxRecFind
        iterator -> get_next -> other lookups

    After::

        Const -> ... -> Identity (ids, ^get_next) -> MxRecUnique -> MxRecFindOrInsert | MxRecFind
        iterator -> get_next -> other lookups

    The batch is one that feeds lookups of the same side. If there is none, it is that of the first iterator for a
    train lookup and that of the second for an eval lookup, unless it feeds lookups of the other side.

    Values stay; but a run that reads such a lookup now draws a batch, and fails with the end of the data. Therefore
    the pass runs on request only (`OrphanLookupKeySlicerHook`).

    Attributes:
        sides: which lookups to tie, "train" or "eval".

    Preconditions: none. Refused: ids that are fed, read a variable, are drawn at random or may not run ahead of the
    step for another reason; a graph without a fitting iterator, or one whose iterator cannot be replaced.
    """

    name: ClassVar[str] = "adopt_orphans"
    sides: tuple[str, ...] = (TRAIN, EVAL)

    def run(self, view: GraphView) -> PassOutcome:
        """See `Pass.run`."""
        edits = EditSet(author=self.name)
        notes: list[str] = []
        refusals: list[Refusal] = []
        for lookup in orphans(view):
            if lookup.side not in self.sides:
                continue
            get_next = orphan_batch(view, lookup)
            names = ", ".join(map(repr, merged_names(view, lookup)))
            if isinstance(get_next, Obstacle):
                reason = f"{get_next.reason} (lookup {names}, whose ids come from no batch, stays at the step)"
                refusals.append(Refusal(get_next.node, reason))
                continue
            edits.add_control_input(_holder(view, lookup), get_next)
            notes.append(f"the ids of {lookup.side} lookup {names} are prepared with batch {get_next!r}")
        return PassOutcome(edits, notes, refusals)


def orphans(view: GraphView) -> list[Lookup]:
    """The lookups whose ids come from no iterator."""
    return [
        lookup
        for lookup in find_lookups(view)
        if lookup.unique_node is not None and not slice_analysis(view).origin(lookup.unique_node).get_nexts
    ]


def orphan_batch(view: GraphView, lookup: Lookup) -> str | Obstacle:
    """The get_next to prepare the ids of an orphan with, or why there is none."""
    obstacle = slice_analysis(view).origin(lookup.unique_node or "").obstacle
    if obstacle is not None:
        return obstacle
    found = _get_next(view, lookup.side)
    if found is None:
        return Obstacle(lookup.find_node, f"no iterator of the graph fits {lookup.side} lookups")
    get_next, iterator = found
    return iterator_group(view, iterator.node).obstacle or get_next


def _get_next(view: GraphView, side: str) -> tuple[str, IteratorInfo] | None:
    replaced = replaced_get_nexts(view)
    sides: dict[str, set[str]] = {}
    live: dict[str, tuple[str, IteratorInfo]] = {}  # the first get_next of each iterator
    for lookup in find_lookups(view):
        if lookup.get_next is not None and lookup.iterator is not None:
            sides.setdefault(lookup.get_next, set()).add(lookup.side)
    for node in view.nodes_of(GET_NEXT):
        iterator = iterator_of(view, node.name)
        if node.name in replaced or iterator is None:
            continue
        if side in sides.get(node.name, ()):
            return node.name, iterator
        live.setdefault(iterator.node, (node.name, iterator))
    place = _PLACE[side]
    if place >= len(live):
        return None
    get_next, iterator = list(live.values())[place]
    return None if any(name in sides for name in iterator.get_nexts) else (get_next, iterator)


def _holder(view: GraphView, lookup: Lookup) -> str:
    """The node of the lookup that its ids pass through."""
    if lookup.entrance is not None:
        return lookup.entrance
    unique = view.node(lookup.unique_node or "")
    ids = view.node(unique.inputs[0].node)
    return ids.name if MergeLookups.made(ids) else unique.name
