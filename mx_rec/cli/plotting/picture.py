"""What `recgraph plot` shows of a graph: its lookups, row by row, and on which side of the iterator their parts are.

Everything else is collapsed: preprocessing to a count of ops, the input pipeline to the names of its datasets, the
model and its updates to one box. The number of rows is bounded; what is left out is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ENTRANCE, ATTR_COLLECTIONS, ATTR_PASS
from mx_rec.graph.edits import RemoveNode
from mx_rec.graph.iterator_groups import iterator_group
from mx_rec.graph.iterators import GET_NEXT, iterator_info
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.op_signatures import OP_LOOK_AHEAD, OP_LOOK_UP_MANY, OP_PREPARE_MANY
from mx_rec.graph.slices import slice_analysis
from mx_rec.passes import find_lookups
from mx_rec.passes.find_lookups import TRAIN
from mx_rec.passes.hoist_lookups import why_it_stays
from mx_rec.passes.prune import Prune

if TYPE_CHECKING:
    from mx_rec.graph.view import GraphView
    from mx_rec.passes import Lookup

MAX_ROWS = 40
MAX_GROUPS = 12
MAX_DATASETS = 50
MOVED, MOVABLE, STAYS = "moved", "movable", "stays"
_OWN_PREFIX = "MxRec"
_UPDATE_PREFIX = "MxRecApply"
_KINDS_SHOWN = 6
_NO_WORK = frozenset({"Const", "Identity", "IdentityN", "NoOp"})


@dataclass(frozen=True)
class Row:
    """One lookup.

    Attributes:
        name: of the lookup.
        table: name of its table.
        dim: columns of an embedding.
        side: "train" or "eval".
        state: `MOVED`, `MOVABLE` or `STAYS`.
        reason: why it stays.
        ops: ops between the batch and its ids, without constants and nodes that only pass on.
        op_kinds: the same by type, in words.
        has_unique: whether its keys are made unique by an op of the graph, not already given so.
        is_fused: whether one op does it and others.
        is_prepared: whether its keys are prepared by one op for several lookups.
    """

    name: str
    table: str
    dim: int
    side: str
    state: str
    reason: str
    ops: int
    op_kinds: str
    has_unique: bool
    is_fused: bool
    is_prepared: bool


@dataclass(frozen=True)
class Group:
    """Lookups that read one batch, on one side and in one state.

    Attributes:
        batch: the get_next node, "" if they do not depend on exactly one.
        iterator: its iterator, with its kind, in words.
        datasets: what the input pipeline consists of, last first; empty where the graph does not hold it.
        side: "train" or "eval".
        state: `MOVED`, `MOVABLE` or `STAYS`.
        fused: the node that does them all, "" if each has its own.
        rows: those that are shown.
        hidden: how many more there are.
        hidden_tables: of how many tables those are.
    """

    batch: str
    iterator: str
    datasets: tuple[str, ...]
    side: str
    state: str
    fused: str
    rows: tuple[Row, ...]
    hidden: int
    hidden_tables: int


class Update(NamedTuple):
    """Updates of tables by one rule: the rule, how many tables, by how many ops."""

    rule: str
    tables: int
    ops: int

    def __str__(self) -> str:
        how = "" if self.ops == self.tables else " in one op" if self.ops == 1 else f" in {self.ops:,} ops"
        return f"{self.tables:,} table{'' if self.tables == 1 else 's'}{how}"


@dataclass(frozen=True)
class Picture:
    """A graph.

    Attributes:
        title: what to call it.
        groups: those that are shown.
        hidden_groups: how many more there are.
        hidden_lookups: how many lookups those have.
        counts: lookups by state.
        other_ops: ops that belong neither to the input pipeline nor to a lookup. What leads from a batch to the ids
            of a lookup that has no row of its own is among them.
        updates: the updates of tables, by rule.
    """

    title: str
    groups: tuple[Group, ...]
    hidden_groups: int
    hidden_lookups: int
    counts: Counter[str]
    other_ops: int
    updates: tuple[Update, ...]

    @property
    def summarised(self) -> int:
        """Lookups that have no row of their own."""
        return self.hidden_lookups + sum(group.hidden for group in self.groups)


class _Key(NamedTuple):
    """Lookups with equal keys are one group."""

    batch: str
    side: str
    state: str
    fused: str


class _Preparation(NamedTuple):
    """What leads to the ids of a lookup: types of ops, the nodes of the step among them, whether one op is shared."""

    kinds: Counter[str]
    nodes: frozenset[str]
    is_shared: bool


def picture_of(view: GraphView, title: str) -> Picture:
    """Looks through a graph; nothing is changed or run."""
    members: dict[_Key, list[tuple[int, Lookup]]] = {}
    places: Counter[str] = Counter()
    for lookup in find_lookups(view):
        place = places[lookup.find_node]  # within an op that does several
        places[lookup.find_node] += 1
        members.setdefault(_key(view, lookup), []).append((place, lookup))
    ordered = sorted(members, key=lambda key: (key.side != TRAIN, key.state == STAYS))
    shown = {key: members[key] for key in ordered[:MAX_GROUPS]}
    quotas = _quotas([len(lookups) for lookups in shown.values()], MAX_ROWS)
    accounted = _left_behind(view)
    accounted.update(name for lookups in members.values() for _, lookup in lookups for name in lookup.restore_gathers)
    groups = [_group(view, key, lookups, quota, accounted) for (key, lookups), quota in zip(shown.items(), quotas)]
    rest = [lookups for key, lookups in members.items() if key not in shown]
    return Picture(
        title=title,
        groups=tuple(groups),
        hidden_groups=len(rest),
        hidden_lookups=sum(map(len, rest)),
        counts=Counter(_state(view, lookup) for lookups in members.values() for _, lookup in lookups),
        other_ops=sum(1 for node in view if node.name not in accounted and not _is_background(node)),
        updates=tuple(_updates(view)),
    )


def _key(view: GraphView, lookup: Lookup) -> _Key:
    fused = lookup.find_node if view.node(lookup.find_node).op == OP_LOOK_UP_MANY else ""
    return _Key(lookup.get_next or "", lookup.side, _state(view, lookup), fused)


def _state(view: GraphView, lookup: Lookup) -> str:
    if lookup.is_moved:
        return MOVED
    return STAYS if why_it_stays(view, lookup) else MOVABLE


def _quotas(sizes: Sequence[int], budget: int) -> list[int]:
    """How many rows each group may show: all in turn get one more until the budget is spent."""
    quotas = [0] * len(sizes)
    while budget > 0 and any(quota < size for quota, size in zip(quotas, sizes)):
        for index, size in enumerate(sizes):
            if quotas[index] < size and budget > 0:
                quotas[index] += 1
                budget -= 1
    return quotas


def _group(view: GraphView, key: _Key, lookups: Sequence[tuple[int, Lookup]], quota: int, accounted: set[str]) -> Group:
    rows = tuple(_row(view, lookup, place, accounted) for place, lookup in lookups[:quota])
    hidden = [lookup for _, lookup in lookups[quota:]]
    iterator, datasets = _input_pipeline(view, key.batch)
    return Group(
        batch=key.batch,
        iterator=iterator,
        datasets=datasets,
        side=key.side,
        state=key.state,
        fused=key.fused,
        rows=rows,
        hidden=len(hidden),
        hidden_tables=len({lookup.table_name for lookup in hidden}),
    )


def _row(view: GraphView, lookup: Lookup, place: int, accounted: set[str]) -> Row:
    find = view.node(lookup.find_node)
    is_fused = find.op == OP_LOOK_UP_MANY
    keys = find.inputs[find.int_attr("N") + place] if is_fused else find.inputs[1]
    ahead = _ahead_of_step(view, keys) if lookup.is_moved else None
    before = ahead or _in_step(view, lookup, keys)
    accounted.update(before.nodes)
    kinds = sorted(before.kinds.items(), key=lambda kind: (-kind[1], kind[0]))
    named = ", ".join(f"{count} {op}" for op, count in kinds[:_KINDS_SHOWN])
    obstacle = why_it_stays(view, lookup)
    return Row(
        name=lookup.name,
        table=lookup.table_name,
        dim=lookup.dim,
        side=lookup.side,
        state=_state(view, lookup),
        reason="" if obstacle is None else str(obstacle),
        ops=sum(before.kinds.values()),
        op_kinds=f"{named}, ..." if len(kinds) > _KINDS_SHOWN else named,
        has_unique=lookup.unique_node is not None or ahead is not None,
        is_fused=is_fused,
        is_prepared=before.is_shared,
    )


def _in_step(view: GraphView, lookup: Lookup, keys: TensorRef) -> _Preparation:
    """The ops between the batch and the ids, outside of any function."""
    root = keys.node if lookup.ids is None else lookup.ids.node
    analysis = slice_analysis(view)
    analysis.origin(root)
    nodes = [] if lookup.is_moved else analysis.nodes([root])
    kinds = Counter(node.op for node in nodes if _is_work(node.op))
    return _Preparation(kinds, frozenset(node.name for node in nodes), False)


def _ahead_of_step(view: GraphView, keys: TensorRef) -> Optional[_Preparation]:
    """What the dataset function does for a component of the batch; `None` if there is none to be found."""
    get_next = view.node(keys.node)
    for function in _functions_of(view, get_next):
        outputs = [function.ret[arg.name] for arg in function.signature.output_arg]
        if keys.index < len(outputs) and _prepares(function):
            return _walk_body(function, outputs[keys.index])
    return None


def _walk_body(function: Any, root: str) -> _Preparation:
    """The nodes of a function that an output, spelled `node:argument:index`, is computed from."""
    nodes = {node.name: node for node in function.node_def}
    kinds: Counter[str] = Counter()
    seen: set[str] = set()
    stack, is_shared = [root], False
    while stack:
        name, _, output = stack.pop().lstrip("^").partition(":")
        node = nodes.get(name)
        if node is None or name in seen:
            continue
        seen.add(name)
        if node.op == OP_PREPARE_MANY:  # of the ids of all lookups only those of this one
            is_shared = True
            stack.append(node.input[node.attr["N"].i + int(output.partition(":")[2] or 0)])
            continue
        if _is_work(node.op):
            kinds[node.op] += 1
        stack.extend(node.input)
    return _Preparation(kinds, frozenset(), is_shared)


def _functions_of(view: GraphView, get_next: Node) -> Iterator[Any]:
    """Functions that the input pipeline of a batch calls, nearest to the batch first."""
    iterator = view.producer(get_next, 0)
    if iterator is None:
        return
    sources = [view.node(source.node) for source in iterator_group(view, iterator.name).sources]
    names = [source.func_attr("dataset_factory") for source in sources]
    names.extend(node.func_attr("f") for node in _datasets(view, iterator.name))
    for name in filter(None, names):
        function = view.function(name)
        if function is None:
            continue
        yield function
        for node in reversed(function.node_def):  # a one-shot iterator: the pipeline is in a function itself
            inner = _called(view, node)
            if inner is not None:
                yield inner


def _called(view: GraphView, node: Any) -> Optional[Any]:
    """The function that a dataset in a function body calls."""
    return view.function(node.attr["f"].func.name) if "f" in node.attr else None


def _prepares(function: Optional[Any]) -> bool:
    """Whether it is a function that the rewrite made, for the keys of lookups."""
    return function is not None and any(node.op in (OP_LOOK_AHEAD, OP_PREPARE_MANY) for node in function.node_def)


def _datasets(view: GraphView, iterator: str) -> Iterable[Node]:
    """The dataset nodes that fill an iterator, nearest first; at most `MAX_DATASETS`."""
    pending = [view.node(maker).inputs[0].node for maker in iterator_group(view, iterator).makers]
    found: dict[str, Node] = {}
    while pending and len(found) < MAX_DATASETS:
        node = view.get(pending.pop(0))
        if node is not None and node.name not in found and _is_dataset(node.op):
            found[node.name] = node
            pending.extend(ref.node for ref in node.inputs)
    return found.values()


def _input_pipeline(view: GraphView, batch: str) -> tuple[str, tuple[str, ...]]:
    """(the iterator in words, short names of the script's datasets)."""
    iterator = view.producer(view.node(batch), 0) if batch else None
    if iterator is None:
        return "", ()
    info = iterator_info(view, iterator.name)
    datasets = [node.op for node in _datasets(view, iterator.name) if not node.str_attr(ATTR_PASS)]
    factory = view.function(iterator.func_attr("dataset_factory"))
    if factory is not None:
        nodes = [node for node in reversed(factory.node_def) if _is_dataset(node.op)]
        added = [index for index, node in enumerate(nodes) if _prepares(_called(view, node))]
        datasets = [node.op for node in nodes[added[0] + 1 if added else 0 :]]
    return f"{iterator.name} ({info.kind})", tuple(map(_short_dataset, datasets))


def _left_behind(view: GraphView) -> set[str]:
    """Originals that a rewrite left for the sake of collections; no step runs them.

    They are what `prune` would remove, and what leads to the ids of moved lookups alone.
    """
    left = {edit.node for edit in Prune().run(view).edits if isinstance(edit, RemoveNode)}
    stack = [node for node in view if ASCEND_SPARSE_LOOKUP_ENTRANCE in node.strings_attr(ATTR_COLLECTIONS)]
    while stack:
        node = stack.pop()
        if node.name in left or node.op == GET_NEXT:
            continue
        if not all(edge.consumer in left for edge in view.edges(node.name)):
            continue
        left.add(node.name)
        stack.extend(view.node(name) for name in {*(ref.node for ref in node.inputs), *node.controls})
    return left


def _is_work(op: str) -> bool:
    return op not in _NO_WORK and not op.startswith(_OWN_PREFIX)


def _is_dataset(op: str) -> bool:
    return "Dataset" in op and not op.startswith(_OWN_PREFIX)


def _short_dataset(op: str) -> str:
    """`ParallelMapDatasetV2` to `ParallelMap`."""
    return op.partition("Dataset")[0] or op


def _is_background(node: Node) -> bool:
    """Ops of lookups and updates, constants and the like, and what belongs to the input pipeline."""
    return not _is_work(node.op) or _is_dataset(node.op) or "Iterator" in node.op


def _updates(view: GraphView) -> Iterator[Update]:
    ops = Counter(node.op for node in view if node.op.startswith(_UPDATE_PREFIX))
    for op, count in sorted(ops.items()):
        is_many = op.endswith("Many")
        tables = sum(node.int_attr("N") for node in view.nodes_of(op)) if is_many else count
        yield Update(op[len(_UPDATE_PREFIX) :].partition("ByAddress")[0], tables, count if is_many else tables)
