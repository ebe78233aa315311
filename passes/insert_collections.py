"""Writes into the graph which tensors belong to which collection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mx_rec.constants.constants import (
    ASCEND_SPARSE_LOOKUP_ENTRANCE,
    ASCEND_SPARSE_LOOKUP_ID_OFFSET,
    ASCEND_SPARSE_LOOKUP_LOCAL_EMB,
    ATTR_COLLECTIONS,
)
from mx_rec.graph.attrs import attr_strings
from mx_rec.graph.edits import EditSet
from mx_rec.graph.view import GraphView
from mx_rec.passes.base import Pass, PassOutcome
from mx_rec.passes.find_lookups import Lookup, find_lookups


@dataclass(frozen=True)
class InsertCollections(Pass):
    """Marks the tensors of lookups with their collections, as node attribute `_mx_rec_collections`.

    Before::

        Identity -> MxRecUnique -> MxRecFindOrInsert -> MxRecGatherByAddress

    After::

        Identity {ENTRANCE} -> MxRecUnique -> MxRecFindOrInsert {ID_OFFSET} -> MxRecGatherByAddress {LOCAL_EMB}

    ENTRANCE for train and eval lookups, the other two for train lookups whose result gets a gradient. Other
    collections of a node are kept. Preconditions: none. Refuses nothing.
    """

    name: ClassVar[str] = "insert_collections"

    def run(self, view: GraphView) -> PassOutcome:
        """See `Pass.run`."""
        edits = EditSet()
        marked = 0
        members: dict[str, dict[str, None]] = {}
        for lookup in find_lookups(view):
            for node, collection in _memberships(lookup):
                members.setdefault(node, {})[collection] = None
        for node, collections in members.items():
            present = view.node(node).strings_attr(ATTR_COLLECTIONS)
            missing = [collection for collection in collections if collection not in present]
            if missing:
                edits.set_attr(node, ATTR_COLLECTIONS, attr_strings([*present, *missing]))
                marked += len(missing)
        return PassOutcome(edits, [f"{marked} tensors marked"] if marked else [])


def _memberships(lookup: Lookup) -> list[tuple[str, str]]:
    pairs = [(lookup.entrance, ASCEND_SPARSE_LOOKUP_ENTRANCE)]
    if lookup.is_trained:
        pairs.append((lookup.gather_node, ASCEND_SPARSE_LOOKUP_LOCAL_EMB))
        pairs.append((lookup.offset_node, ASCEND_SPARSE_LOOKUP_ID_OFFSET))
    return [(node, collection) for node, collection in pairs if node is not None]
