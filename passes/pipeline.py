"""The passes by name, their order, and the reason for each place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from mx_rec.passes.adopt_orphans import AdoptOrphans
from mx_rec.passes.base import Pass
from mx_rec.passes.convert_static_tables import ConvertStaticTables
from mx_rec.passes.find_lookups import FindLookups
from mx_rec.passes.fuse_lookups import FuseLookups
from mx_rec.passes.fuse_updates import FuseUpdates
from mx_rec.passes.hoist_lookups import HoistLookups
from mx_rec.passes.hot_embedding import HotEmbedding
from mx_rec.passes.inline_calls import InlineCalls
from mx_rec.passes.insert_collections import InsertCollections
from mx_rec.passes.merge_lookups import MergeLookups
from mx_rec.passes.prune import Prune
from mx_rec.passes.static_lookups.plans import TableChoice
from mx_rec.passes.swap_iterators import SwapIterators


@dataclass(frozen=True)
class PipelineOptions:
    """Options of the whole rewrite.

    Attributes:
        static_tables: variables of plain TensorFlow that become tables.
        static_keep: names of nodes that such a variable must not take with it.
        inline_calls: whether calls that look such variables up are inlined before.
        entries: names of the nodes by which the graph is used; `None` where not all are known.
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

    static_tables: tuple[TableChoice, ...] = ()
    static_keep: frozenset[str] = field(default_factory=frozenset)
    inline_calls: bool = True
    entries: frozenset[str] | None = None
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


class Stage(NamedTuple):
    """A pass in its place.

    Attributes:
        step: the pass.
        reason: why it stands here; `recgraph passes` shows it.
        make: the pass with its options, or `None` where they switch it off.
    """

    step: type[Pass]
    reason: str
    make: Callable[[PipelineOptions], Optional[Pass]]


PIPELINE: tuple[Stage, ...] = (
    Stage(
        InlineCalls,
        "first: brings lookups that functions do into the open; only for variables that become tables",
        lambda options: _inline_calls(options) if options.static_tables and options.inline_calls else None,
    ),
    Stage(
        ConvertStaticTables,
        "before the others: what it makes are lookups like others; on request only",
        lambda options: _convert_static_tables(options) if options.static_tables else None,
    ),
    Stage(
        FindLookups,
        "before what changes lookups: its report says what the other passes will meet",
        lambda options: FindLookups(),
    ),
    Stage(
        AdoptOrphans,
        "before merge: lookups of one batch can be merged; on request only",
        lambda options: AdoptOrphans() if options.adopt_orphans else None,
    ),
    Stage(
        MergeLookups,
        "before hoist: the merged keys move as one",
        lambda options: MergeLookups() if options.merge else None,
    ),
    Stage(
        InsertCollections,
        "before anything moves: marks the tensors that scripts reach by collection",
        lambda options: InsertCollections(),
    ),
    Stage(
        HoistLookups,
        "before the swap: adds the dataset functions, nothing uses them yet",
        lambda options: HoistLookups(options.prefetch, options.parallel_calls, options.fuse, options.op_types),
    ),
    Stage(
        SwapIterators,
        "after hoist: switches the step over, all iterators in one go",
        lambda options: SwapIterators(),
    ),
    Stage(
        FuseLookups,
        "after swap: only now do all lookups of an iterator read one batch",
        lambda options: FuseLookups() if options.fuse else None,
    ),
    Stage(
        FuseUpdates,
        "after the lookups are fused: it reads their final addresses",
        lambda options: FuseUpdates() if options.fuse else None,
    ),
    Stage(
        HotEmbedding,
        "after swap: the gathers read their final inputs",
        lambda options: _hot_embedding(options) if options.hot_embedding else None,
    ),
    Stage(
        Prune,
        "last: only now is known what nothing reads any more",
        lambda options: Prune(options.keep) if options.prune else None,
    ),
)

PASSES: Mapping[str, type[Pass]] = {stage.step.name: stage.step for stage in PIPELINE}


def default_pipeline(options: PipelineOptions | None = None) -> list[Pass]:
    """The rewrite, in order."""
    made = (stage.make(options or PipelineOptions()) for stage in PIPELINE)
    return [step for step in made if step is not None]


def _inline_calls(options: PipelineOptions) -> InlineCalls:
    return InlineCalls(options.static_tables, options.entries, options.static_keep)


def _convert_static_tables(options: PipelineOptions) -> ConvertStaticTables:
    return ConvertStaticTables(options.static_tables, options.static_keep, options.inline_calls)


def _hot_embedding(options: PipelineOptions) -> HotEmbedding:
    if options.op_impl_mode is None:
        return HotEmbedding()
    return HotEmbedding(tuple(sorted(options.op_impl_mode.items())))
