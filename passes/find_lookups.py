"""Finds the lookups of a graph and says of each whether it can be moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ATTR_COLLECTIONS, ATTR_LOOKUP
from mx_rec.errors import GraphRewriteError
from mx_rec.graph import marks
from mx_rec.graph.attrs import DT_FLOAT, DT_INT32, is_zero
from mx_rec.graph.iterator_groups import iterator_group
from mx_rec.graph.iterators import GET_NEXT, IteratorInfo, Obstacle, iterator_of
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.op_signatures import (
    OP_FIND,
    OP_FIND_OR_INSERT,
    OP_FORWARD,
    OP_GATHER,
    OP_LOOK_UP_MANY,
    OP_OFFSETS,
    OP_POOL,
    OP_TABLE,
    OP_UNIQUE,
)
from mx_rec.graph.slices import slice_analysis
from mx_rec.graph.view import GraphView
from mx_rec.passes.base import Pass, PassOutcome
from mx_rec.passes.static_lookups.judgement import remarks

TRAIN = "train"
EVAL = "eval"
# Of a table of fixed capacity: of evaluation lookups, and of training lookups with admission.
_FROM_OFFSETS_TO_ROWS = ("Maximum", "ResourceGather", "SelectV2", "GatherNd", "TensorScatterUpdate")
_ROWS_OF_VARIABLE = ("ResourceGather", "SelectV2", "TensorScatterUpdate")
_TIMESTAMPS_INPUT = 4  # of MxRecFindOrInsert


@dataclass(frozen=True)
class Lookup:
    """One lookup of a table.

    Attributes:
        name: its name as given to `sparse_lookup`, else the name of its find node.
        table_name: the table; "" when its handle does not come from an MxRecTable node.
        dim: embedding dimension, 0 when unknown.
        side: "train" (inserts) or "eval" (only finds).
        find_node: the MxRecFindOrInsert or MxRecFind node, or the MxRecLookUpMany node that it is part of.
        table_node: the node that gives the table handle.
        unique_node: the MxRecUnique node that feeds it; `None` once it is moved.
        entrance: the Identity node of its ids; `None` if it has none or is moved.
        offset_node: the node whose output leads to the rows: the find node itself, or, for a table of fixed
            capacity, the MxRecOffsets node.
        gather_node: the node that gives the local embedding, if any: MxRecGatherByAddress, or, for a table of
            fixed capacity, the gather on its variable.
        restore_gathers: the GatherV2 nodes that spread rows over the batch.
        ids: the tensor it was called with; `None` once it is moved.
        get_next: the batch it depends on; `None` if it does not depend on exactly one.
        iterator: the iterator of that batch.
        iterator_kind: "initializable", "one_shot", "string_handle", "other", or "" without iterator.
        initializers: the MakeIterator nodes of that iterator, in graph order; if it draws by handle, those of the
            iterators that the handle may name.
        is_trained: whether it is a train lookup whose rows receive gradients: its result is not only read
            through StopGradient.
        is_moved: whether its keys come straight from the iterator already.
        obstacle: why it cannot be moved; `None` when it can be, or is.
    """

    name: str
    table_name: str
    dim: int
    side: str
    find_node: str
    table_node: str
    unique_node: str | None
    entrance: str | None
    offset_node: str
    gather_node: str | None
    restore_gathers: tuple[str, ...]
    ids: TensorRef | None
    get_next: str | None
    iterator: str | None
    iterator_kind: str
    initializers: tuple[str, ...]
    is_trained: bool
    is_moved: bool
    obstacle: Obstacle | None

    @property
    def reason(self) -> str:
        """Why it cannot be moved, or ""."""
        return "" if self.obstacle is None else str(self.obstacle)


@dataclass(frozen=True)
class FindLookups(Pass):
    """Reports the lookups; changes nothing.

    Graph before and after::

        IteratorGetNext -> ... -> ids -> MxRecUnique -> MxRecFindOrInsert (train) | MxRecFind (eval)
            -> MxRecGatherByAddress -> GatherV2

    Notes: one line per table and side, and one per variable that plain TensorFlow looks up: its lookups, how it is
    trained, and whether it could be a table (see `convert_static_tables`) or why not.
    Refuses nothing: `hoist_lookups` refuses what cannot be moved.
    """

    name: ClassVar[str] = "find_lookups"

    def run(self, view: GraphView) -> PassOutcome:
        """See `Pass.run`."""
        lookups = find_lookups(view)
        by_table = Counter((lookup.table_name, lookup.side) for lookup in lookups)
        notes = [f"table {table!r}: {count} {side} lookups" for (table, side), count in sorted(by_table.items())]
        moved = sum(lookup.is_moved for lookup in lookups)
        if moved:
            notes.append(f"{moved} lookups are fed by their iterator already")
        notes.extend(remarks(view))
        return PassOutcome(notes=notes or ["no lookups"])


def find_lookups(view: GraphView) -> list[Lookup]:
    """All lookups of the graph outside functions, train lookups first, each side in graph order."""
    found: list[Lookup] = view.cached("lookups", _find_lookups)
    return found


def function_lookups(view: GraphView) -> list[Obstacle]:
    """The lookups inside library functions (loops, conditionals, other dataset functions)."""
    return [
        Obstacle(
            f"{function.signature.name}/{node.name}",
            f"is a lookup inside function {function.signature.name!r}; such lookups are not moved",
        )
        for function in view.functions
        for node in function.node_def
        if node.op in (OP_FIND, OP_FIND_OR_INSERT, OP_LOOK_UP_MANY)
    ]


def _find_lookups(view: GraphView) -> list[Lookup]:
    many = view.nodes_of(OP_LOOK_UP_MANY)
    originals = {name for node in many for name in node.strings_attr(marks.FUSED_FINDS)}
    single = [
        _lookup(view, node)
        for node in view.nodes_of(OP_FIND_OR_INSERT, OP_FIND)
        if node.name not in originals and not node.has_attr(marks.MERGED_INTO)
    ]
    fused = [lookup for node in many for lookup in _fused_lookups(view, node)]
    return sorted([*single, *fused], key=lambda lookup: lookup.side != TRAIN)


def retired_uniques(view: GraphView) -> frozenset[str]:
    """The MxRecUnique nodes of lookups that were merged into others: no step reads them any more."""
    finds = (node for node in view.nodes_of(OP_FIND_OR_INSERT, OP_FIND) if node.has_attr(marks.MERGED_INTO))
    return frozenset(node.inputs[1].node for node in finds)


def _fused_lookups(view: GraphView, many: Node) -> Iterator[Lookup]:
    """The lookups that one op does."""
    n = many.int_attr("N")
    names = many.strings_attr(marks.FUSED_LOOKUPS)
    finds, gathers = many.strings_attr(marks.FUSED_FINDS), many.strings_attr(marks.FUSED_GATHERS)
    if not len(names) == len(finds) == len(gathers) or len(names) not in (0, n):
        raise GraphRewriteError(f"node {many.name!r}: its attributes '_mx_rec_fused_...' do not fit its {n} lookups")
    get_next = many.inputs[n].node
    iterator = iterator_of(view, get_next) if view.node(get_next).op == GET_NEXT else None
    for index, (find, gather) in enumerate(zip(finds, gathers)):
        table, original = view.node(many.inputs[index].node), view.get(find)
        collections = () if original is None else original.strings_attr(ATTR_COLLECTIONS)
        yield Lookup(
            name=names[index],
            table_name=table.str_attr("table_name"),
            dim=many.int_attr("dim"),
            side=TRAIN if many.int_attr("C") else EVAL,
            find_node=many.name,
            table_node=table.name,
            unique_node=None,
            entrance=None,
            offset_node=many.name if original is None else find,
            gather_node=gather if gather in view else None,
            restore_gathers=tuple(_restores(view, forwarded(view, TensorRef(many.name, n + index)))),
            ids=None,
            get_next=get_next,
            iterator=iterator.node if iterator else None,
            iterator_kind=iterator.kind if iterator else "",
            initializers=_initializers(view, iterator),
            is_trained=ASCEND_SPARSE_LOOKUP_ID_OFFSET in collections,
            is_moved=True,
            obstacle=None,
        )


def _lookup(view: GraphView, find: Node) -> Lookup:
    table, keys = view.node(find.inputs[0].node), view.node(find.inputs[1].node)
    unique = keys if keys.op == OP_UNIQUE else None
    entrance = _entrance(view, unique)
    offsets, gather, restores = _gathers(view, find)
    get_next, iterator, obstacle = _batch(view, find, table, keys)
    return Lookup(
        name=find.str_attr(ATTR_LOOKUP) or find.name,
        table_name=table.str_attr("table_name"),
        dim=table.int_attr("dim") or (gather.int_attr("dim") if gather else 0),
        side=TRAIN if find.op == OP_FIND_OR_INSERT else EVAL,
        find_node=find.name,
        table_node=table.name,
        unique_node=unique.name if unique else None,
        entrance=entrance.name if entrance else None,
        offset_node=offsets.name,
        gather_node=gather.name if gather else None,
        restore_gathers=restores,
        ids=(entrance or unique).inputs[0] if unique else None,  # type: ignore[union-attr]
        get_next=get_next,
        iterator=iterator.node if iterator else None,
        iterator_kind=iterator.kind if iterator else "",
        initializers=_initializers(view, iterator),
        is_trained=find.op == OP_FIND_OR_INSERT and not _is_stopped(view, [*restores, *pools(view, gather)]),
        is_moved=keys.op == GET_NEXT,
        obstacle=obstacle,
    )


def _initializers(view: GraphView, iterator: IteratorInfo | None) -> tuple[str, ...]:
    return iterator_group(view, iterator.node).makers if iterator else ()


def _entrance(view: GraphView, unique: Node | None) -> Node | None:
    source = view.producer(unique, 0) if unique else None
    return source if source is not None and source.op == "Identity" else None


def _gathers(view: GraphView, find: Node) -> tuple[Node, Node | None, tuple[str, ...]]:
    """(the node of the offsets, of the local embedding, those that restore the batch)."""
    for use in view.consumers(TensorRef(find.name, 0)):
        node = view.node(use.node)
        if node.op == OP_GATHER:
            return find, node, tuple(_restores(view, TensorRef(node.name, 0)))
        if node.op == OP_OFFSETS:
            gather = _variable_gather(view, node)
            return node, gather, tuple(_restores(view, TensorRef(gather.name, 0))) if gather else ()
    return find, None, ()


def _variable_gather(view: GraphView, offsets: Node) -> Node | None:
    """The local embedding of a table of fixed capacity: what is spread over the batch or pooled, or the last gather."""
    pending, last = [offsets], None
    while pending:
        node = pending.pop()
        if node.op in _ROWS_OF_VARIABLE:
            last = node
            if any(_restores(view, TensorRef(node.name, 0))) or pools(view, node):
                return node
        for use in view.consumers(TensorRef(node.name, 0)):
            reader = view.node(use.node)
            if reader.op in _FROM_OFFSETS_TO_ROWS and reader.str_attr(ATTR_LOOKUP) == offsets.str_attr(ATTR_LOOKUP):
                pending.append(reader)
    return last


def forwarded(view: GraphView, output: TensorRef) -> TensorRef:
    """The tensor that stands for an output of MxRecLookUpMany; the output itself if there is none."""
    for use in view.consumers(output):
        if view.node(use.node).op == OP_FORWARD:
            return TensorRef(use.node, 0)
    return output


def restore_gathers(view: GraphView) -> list[str]:
    """The GatherV2 nodes that spread the rows of any lookup over its batch."""
    return [node.name for node in view.nodes_of("GatherV2") if _is_local_embedding(view, node.inputs[0])]


def is_row_gather(view: GraphView, node: Node) -> bool:
    """Whether a GatherV2 takes rows of float by int32 positions along axis 0, an int32 constant."""
    types = view.types(node.name)
    if types is None or types.inputs != (DT_FLOAT, DT_INT32, DT_INT32) or node.int_attr("batch_dims"):
        return False
    axis = view.node(node.inputs[2].node)
    value = axis.attr("value")
    return is_free_constant(axis) and value is not None and is_zero(value)


def is_free_constant(node: Node) -> bool:
    """Whether a node is a constant that waits for nothing."""
    return node.op == "Const" and not node.controls


def _is_local_embedding(view: GraphView, tensor: TensorRef) -> bool:
    node = view.get(tensor.node)
    if node is not None and node.op == OP_FORWARD:
        tensor = node.inputs[0]
        node = view.get(tensor.node)
    if node is None:
        return False
    if node.op == OP_LOOK_UP_MANY:  # addresses, embeddings, restored batches
        n = node.int_attr("N")
        return n <= tensor.index < 2 * n
    # The gather on the variable of a table of fixed capacity is told by its lookup's name.
    return node.op == OP_GATHER or (node.op in _ROWS_OF_VARIABLE and node.str_attr(ATTR_LOOKUP) != "")


def _restores(view: GraphView, embedding: TensorRef) -> Iterator[str]:
    for use in view.consumers(embedding):
        if use.index == 0 and view.node(use.node).op == "GatherV2":
            yield use.node


def timestamps_of(find: Node) -> TensorRef | None:
    """What a find takes as the times of its keys, if anything."""
    if find.op == OP_FIND_OR_INSERT and len(find.inputs) > _TIMESTAMPS_INPUT:
        return find.inputs[_TIMESTAMPS_INPUT]
    return None


def pools(view: GraphView, gather: Node | None) -> list[str]:
    """The nodes that pool the rows of a local embedding."""
    uses = () if gather is None else view.consumers(TensorRef(gather.name, 0))
    return [use.node for use in uses if use.index == 0 and view.node(use.node).op == OP_POOL]


def _is_stopped(view: GraphView, results: list[str]) -> bool:
    """Whether no gradient can come back: all that reads the result is StopGradient."""
    readers = [view.node(edge.consumer).op for name in results for edge in view.data_edges(name)]
    return bool(readers) and all(op == "StopGradient" for op in readers)


def _batch(
    view: GraphView, find: Node, table: Node, keys: Node
) -> tuple[str | None, IteratorInfo | None, Obstacle | None]:
    """(get_next, its iterator, why the lookup cannot be moved)."""
    if keys.op == GET_NEXT:
        return keys.name, iterator_of(view, keys.name), None
    origin = slice_analysis(view).origin(keys.name)
    if len(origin.get_nexts) != 1:
        return None, None, origin.obstacle or _not_one_batch(find, origin.get_nexts)
    get_next = origin.get_nexts[0]
    iterator = iterator_of(view, get_next)
    if keys.op != OP_UNIQUE:
        return (
            get_next,
            iterator,
            Obstacle(keys.name, f"op {keys.op!r} gives the keys; expected {OP_UNIQUE!r}"),
        )
    if table.op != OP_TABLE:
        reason = f"op {table.op!r} gives the table handle; expected {OP_TABLE!r}"
        return get_next, iterator, origin.obstacle or Obstacle(table.name, reason)
    group_obstacle = iterator_group(view, iterator.node).obstacle if iterator else None
    return get_next, iterator, origin.obstacle or group_obstacle


def _not_one_batch(find: Node, get_nexts: tuple[str, ...]) -> Obstacle:
    if not get_nexts:
        return Obstacle(find.name, "its ids do not come from an iterator")
    return Obstacle(find.name, "its ids come from several batches: " + ", ".join(map(repr, get_nexts)))
