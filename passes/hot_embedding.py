"""Leaves a hint for kernels where rows are spread over the batch."""

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
    """Marks the GatherV2 that restores a lookup's rows to the batch with `_op_impl_mode`, a hint to kernels.

    Before::

        MxRecGatherByAddress -> GatherV2

    After::

        MxRecGatherByAddress -> GatherV2 {_op_impl_mode="high_performance"}

    It is a hint and no more: no kernel of TensorFlow or of this project reads it yet, so today it changes neither
    speed nor values. It travels with the graph for a device whose kernels do.

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
            notes.append(f"{len(edits)} gathers marked {mode!r}: a hint that no kernel reads yet")
        return PassOutcome(edits, notes)
