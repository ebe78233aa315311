"""Asks for the fast kernel where rows are spread over the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mx_rec.graph.attrs import attr_bytes
from mx_rec.graph.edits import EditSet
from mx_rec.graph.marks import OP_IMPL_MODE
from mx_rec.graph.op_impl_mode import HIGH_PERFORMANCE
from mx_rec.graph.view import GraphView
from mx_rec.passes.base import Pass, PassOutcome
from mx_rec.passes.find_lookups import restore_gathers

_RESTORE_OP = "GatherV2"


@dataclass(frozen=True)
class HotEmbedding(Pass):
    """Sets `_op_impl_mode` on the GatherV2 that restores a lookup's rows to the batch.

    Before::

        MxRecGatherByAddress -> GatherV2

    After::

        MxRecGatherByAddress -> GatherV2 {_op_impl_mode="high_performance"}

    Attributes:
        modes: (op type, implementation mode) pairs. Only GatherV2 has a meaning here; others are noted and
            left alone.

    Preconditions: none. Refuses nothing. Gathers that restore no lookup are never touched.
    """

    name: ClassVar[str] = "hot_embedding"
    modes: tuple[tuple[str, str], ...] = ((_RESTORE_OP, HIGH_PERFORMANCE),)

    def run(self, view: GraphView) -> PassOutcome:
        """See `Pass.run`."""
        modes = dict(self.modes)
        notes = [f"op_impl_mode of {op!r} is not used: only {_RESTORE_OP} is" for op in modes if op != _RESTORE_OP]
        mode = modes.get(_RESTORE_OP)
        if mode is None:
            return PassOutcome(notes=notes)
        edits = EditSet()
        value = attr_bytes(mode)
        for name in restore_gathers(view):
            if view.node(name).str_attr(OP_IMPL_MODE) != mode:
                edits.set_attr(name, OP_IMPL_MODE, value)
        if edits:
            notes.append(f"{len(edits)} gathers set to {mode!r}")
        return PassOutcome(edits, notes)
