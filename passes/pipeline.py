"""The passes by name, and their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mx_rec.passes.adopt_orphans import AdoptOrphans
from mx_rec.passes.base import Pass
from mx_rec.passes.find_lookups import FindLookups
from mx_rec.passes.fuse_lookups import FuseLookups
from mx_rec.passes.fuse_updates import FuseUpdates
from mx_rec.passes.hoist_lookups import HoistLookups
from mx_rec.passes.hot_embedding import HotEmbedding
from mx_rec.passes.insert_collections import InsertCollections
from mx_rec.passes.merge_lookups import MergeLookups
from mx_rec.passes.prune import Prune
from mx_rec.passes.swap_iterators import SwapIterators

PASSES: Mapping[str, type[Pass]] = {
    step.name: step
    for step in (
        FindLookups,
        AdoptOrphans,
        MergeLookups,
        InsertCollections,
        HoistLookups,
        SwapIterators,
        FuseLookups,
        FuseUpdates,
        HotEmbedding,
        Prune,
    )
}


@dataclass(frozen=True)
class PipelineOptions:
    """Options of the whole rewrite.

    Attributes:
        prefetch: batches prepared ahead of the step, at least 1.
        parallel_calls: batches prepared at the same time, at least 1.
        adopt_orphans: prepare lookups whose ids come from no batch with one.
        merge: make one of the evaluation lookups of one table. Those of training are merged before their gradients
            are built (`mx_rec.graph.do_merge_lookup`).
        op_types: ops to move out of the step even if the lookup that needs them stays.
        fuse: do the work of lookups, and of updates, of equal settings in one op each.
        hot_embedding: let the gathers that restore the batch run by the kernel made for frequent keys.
        op_impl_mode: implementation mode by op type (see `mx_rec.graph.op_impl_mode`); `None`: GatherV2 only.
        prune: remove the nodes that the rewrite made dead. A live graph keeps them anyway.
        keep: names of nodes that are never removed, such as those a caller fetches by name.
    """

    prefetch: int = 1
    parallel_calls: int = 1
    adopt_orphans: bool = False
    merge: bool = True
    op_types: tuple[str, ...] = ()
    fuse: bool = True
    hot_embedding: bool = True
    op_impl_mode: Mapping[str, str] | None = None
    prune: bool = True
    keep: frozenset[str] = field(default_factory=frozenset)


def default_pipeline(options: PipelineOptions | None = None) -> list[Pass]:
    """The rewrite, in order."""
    options = options or PipelineOptions()
    passes: list[Pass] = [FindLookups()]  # first: its report says what the other passes will meet
    if options.adopt_orphans:
        passes.append(AdoptOrphans())  # before merge: lookups of one batch can be merged
    if options.merge:
        passes.append(MergeLookups())  # before hoist: the merged keys move as one
    passes += [
        InsertCollections(),  # before anything moves: marks the tensors that scripts reach by collection
        # adds the dataset functions, nothing uses them yet
        HoistLookups(options.prefetch, options.parallel_calls, options.fuse, options.op_types),
        SwapIterators(),  # after hoist: switches the step over, all iterators in one go
    ]
    if options.fuse:
        passes.append(FuseLookups())  # after swap: only now do all lookups of an iterator read one batch
        passes.append(FuseUpdates())  # after the lookups: it reads their final addresses
    if options.hot_embedding:
        passes.append(_hot_embedding(options))  # after swap: the gathers read their final inputs
    if options.prune:
        passes.append(Prune(options.keep))  # last: only now is known what nothing reads any more
    return passes


def _hot_embedding(options: PipelineOptions) -> HotEmbedding:
    if options.op_impl_mode is None:
        return HotEmbedding()
    return HotEmbedding(tuple(sorted(options.op_impl_mode.items())))
