"""What `recgraph inspect` shows, gathered from a graph file."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mx_rec.cli.soundness import sound_view

if TYPE_CHECKING:
    from mx_rec.graph.files import ConstantSize, LoadedGraph
    from mx_rec.graph.view import GraphView
    from mx_rec.passes import Lookup

_SHOWN_CONSTANTS = 5
_ITERATOR_OPS = (  # in the order shown
    "IteratorV2",
    "Iterator",
    "OneShotIterator",
    "IteratorFromStringHandleV2",
    "IteratorFromStringHandle",
)


@dataclass(frozen=True)
class TableSummary:
    """A dynamic table and how often it is looked up."""

    name: str
    dim: int
    initializer: str
    train_lookups: int
    eval_lookups: int


@dataclass(frozen=True)
class LookupSummary:
    """A lookup and whether the rewrite has moved it, can move it, or why it cannot."""

    name: str
    table: str
    side: str
    ids: str | None
    iterator: str | None
    state: str
    reason: str


@dataclass(frozen=True)
class StaticLookupSummary:
    """A lookup of a variable by plain TensorFlow; `reason`: why it is none that a table could do."""

    node: str
    op: str
    pattern: str
    ids: str | None
    reason: str


@dataclass(frozen=True)
class StaticVariableSummary:
    """A variable that plain TensorFlow looks up, and whether it could be a table or why not."""

    name: str
    shape: str
    patterns: str
    trained_by: str
    state: str
    reason: str
    lookups: tuple[StaticLookupSummary, ...]


@dataclass(frozen=True)
class IteratorSummary:
    """An iterator, the datasets that fill it and the batches drawn from it."""

    name: str
    kind: str
    datasets: tuple[str, ...]
    batches: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """All of it; `tags` are of a MetaGraphDef in a SavedModel alone."""

    path: str
    kind: str
    size_bytes: int
    nodes: int
    functions: int
    producer: int
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    tables: tuple[TableSummary, ...]
    lookups: tuple[LookupSummary, ...]
    static_variables: tuple[StaticVariableSummary, ...]
    iterators: tuple[IteratorSummary, ...]
    largest_constants: tuple[ConstantSize, ...]
    tags: tuple[str, ...] | None = None
    signatures: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The same as plain dictionaries and lists."""
        content = dataclasses.asdict(self)
        if self.tags is None:  # no part of a SavedModel
            del content["tags"], content["signatures"]
        return content


def summarize(loaded: LoadedGraph) -> Summary:
    """Looks through a graph; nothing is changed or run."""
    from mx_rec.graph.files import largest_constants
    from mx_rec.passes import find_lookups
    from mx_rec.passes.find_lookups import FindLookups, function_lookups

    view = sound_view(loaded)
    lookups = find_lookups(view)
    return Summary(
        path=str(loaded.path),
        kind=loaded.kind,
        size_bytes=loaded.size_bytes,
        nodes=len(loaded.graph_def.node),
        functions=len(loaded.graph_def.library.function),
        producer=loaded.graph_def.versions.producer,
        warnings=loaded.warnings,
        notes=(
            *(note for note in FindLookups().run(view).notes if not note.startswith(("table ", "plain TensorFlow: "))),
            *(f"stays: {obstacle}" for obstacle in function_lookups(view)),
        ),
        tables=_tables(view, lookups),
        lookups=tuple(_lookup(view, lookup) for lookup in lookups),
        static_variables=_static_variables(view),
        iterators=_iterators(view),
        largest_constants=tuple(largest_constants(loaded.graph_def, _SHOWN_CONSTANTS)),
        tags=loaded.tags,
        signatures=loaded.signatures(),
    )


def _tables(view: GraphView, lookups: list[Lookup]) -> tuple[TableSummary, ...]:
    from mx_rec.graph.op_signatures import OP_TABLE

    sides = Counter((lookup.table_node, lookup.side) for lookup in lookups)
    return tuple(
        TableSummary(
            name=node.str_attr("table_name"),
            dim=node.int_attr("dim"),
            initializer=node.str_attr("initializer"),
            train_lookups=sides[node.name, "train"],
            eval_lookups=sides[node.name, "eval"],
        )
        for node in view.nodes_of(OP_TABLE)
    )


def _lookup(view: GraphView, lookup: Lookup) -> LookupSummary:
    from mx_rec.passes.hoist_lookups import why_it_stays

    obstacle = why_it_stays(view, lookup)
    state = "moved" if lookup.is_moved else "stays" if obstacle else "movable"
    return LookupSummary(
        name=lookup.name,
        table=lookup.table_name,
        side=lookup.side,
        ids=None if lookup.ids is None else str(lookup.ids),
        iterator=lookup.iterator,
        state=state,
        reason="" if obstacle is None else str(obstacle),
    )


def _static_variables(view: GraphView) -> tuple[StaticVariableSummary, ...]:
    from mx_rec.passes.static_lookups.judgement import judged_variables

    return tuple(
        StaticVariableSummary(
            name=judged.variable.name,
            shape=judged.shape,
            patterns=judged.patterns,
            trained_by=judged.trained_by,
            state="could be a table" if judged.obstacle is None else "stays",
            reason="" if judged.obstacle is None else str(judged.obstacle),
            lookups=tuple(
                StaticLookupSummary(
                    node=lookup.node,
                    op=lookup.op,
                    pattern=lookup.pattern,
                    ids=None if lookup.ids is None else str(lookup.ids),
                    reason="" if lookup.obstacle is None else str(lookup.obstacle),
                )
                for lookup in judged.variable.lookups
            ),
        )
        for judged in judged_variables(view)
    )


def _iterators(view: GraphView) -> tuple[IteratorSummary, ...]:
    from mx_rec.graph.iterators import iterator_info

    infos = (iterator_info(view, node.name) for node in view.nodes_of(*_ITERATOR_OPS))
    return tuple(
        IteratorSummary(
            name=info.node,
            kind=info.kind,
            datasets=tuple(str(view.node(maker).inputs[0]) for maker in info.makers),
            batches=info.get_nexts,
        )
        for info in infos
    )
