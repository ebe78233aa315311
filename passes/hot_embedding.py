"""Chooses the kernel that spreads rows over the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mx_rec.graph.attrs import attr_bytes
from mx_rec.graph.edits import EditSet
from mx_rec.graph.marks import HOT_KERNEL, KERNEL, OP_IMPL_MODE
from mx_rec.graph.op_impl_mode import HIGH_PERFORMANCE
from mx_rec.graph.view import GraphView
from mx_rec.passes.base import Pass, PassOutcome
from mx_rec.passes.find_lookups import is_row_gather, restore_gathers

_RESTORE_OP = "GatherV2"


@dataclass(frozen=True)
class HotEmbedding(Pass):
    """Lets the GatherV2 that restores a lookup's rows to the batch run by the kernel made for frequent keys.

    Before::

        MxRecGatherByAddress -> GatherV2

    After::

        MxRecGatherByAddress -> GatherV2 {_op_impl_mode="high_performance", _kernel="mx_rec_hot"}

    `_op_impl_mode` is the hint as other devices know it. `_kernel` is how TensorFlow itself chooses among the kernels
    of an op; ours gives the same values. It takes rows of float along axis 0; a gather that does otherwise gets the
    hint alone.

    Attributes:
        modes: (op type, implementation mode) pairs. Only GatherV2 has a meaning here; others are noted and
            left alone. A mode other than "high_performance" is written down and keeps TensorFlow's kernel.

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
        marked = chosen = 0
        for name in restore_gathers(view):
            node = view.node(name)
            if node.str_attr(OP_IMPL_MODE) != mode:
                edits.set_attr(name, OP_IMPL_MODE, attr_bytes(mode))
                marked += 1
            if mode == HIGH_PERFORMANCE and not node.has_attr(KERNEL) and is_row_gather(view, node):
                edits.set_attr(name, KERNEL, attr_bytes(HOT_KERNEL))
                chosen += 1
        if edits:
            notes.append(f"{marked} gathers marked {mode!r}, {chosen} of them run by kernel {HOT_KERNEL!r}")
        return PassOutcome(edits, notes)
