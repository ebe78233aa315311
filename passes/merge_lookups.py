"""Makes one lookup of several lookups of one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Union

from mx_rec.constants.constants import (
    ASCEND_SPARSE_LOOKUP_ENTRANCE,
    ASCEND_SPARSE_LOOKUP_ID_OFFSET,
    ASCEND_SPARSE_LOOKUP_LOCAL_EMB,
    ATTR_COLLECTIONS,
    ATTR_LOOKUP,
    ATTR_PASS,
)
from mx_rec.graph import marks
from mx_rec.graph.attrs import (
    DT_INT32,
    DT_INT64,
    AttrValue,
    attr_bytes,
    attr_int,
    attr_strings,
    attr_tensor,
    attr_type,
    is_zero,
)
from mx_rec.graph.edits import EditSet
from mx_rec.graph.iterators import Obstacle
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.op_signatures import OP_FIND_OR_INSERT, OP_KEY_TIMES, OP_UNIQUE
from mx_rec.graph.slices import slice_analysis
from mx_rec.graph.view import CONTROL, GraphView
from mx_rec.passes.base import Pass, PassOutcome, Refusal
from mx_rec.passes.find_lookups import EVAL, TRAIN, Lookup, find_lookups, pools, timestamps_of

_KEYS, _RESTORE, _COUNTS = range(3)  # outputs of MxRecUnique
_HINTS_INPUT, _COUNTS_INPUT = 2, 3  # of MxRecFindOrInsert
_MAX_KEYS = "max_keys"  # of a find: what a merged one may have is the sum
_MAX_CHAIN = 64  # a lookup has about ten nodes; more is not one of ours

Part = Union[str, int, bytes, tuple["Part", ...]]


class _Parts(NamedTuple):
    """The nodes of one lookup that another one can share.

    Attributes:
        lookup: the lookup.
        names: the calls of `sparse_lookup` that it stands for.
        unique: its MxRecUnique.
        chain: from the find to the local embedding, inputs first.
        get_next: the batch that its ids come from; "" for ids that are the same at every step.
        form: equal for lookups whose chains do the same with equal keys.
        tie: what uses more of the lookup than its result, so that it must stay as it is.
    """

    lookup: Lookup
    names: tuple[str, ...]
    unique: Node
    chain: tuple[Node, ...]
    get_next: str
    form: tuple[Part, ...]
    tie: Obstacle | None


@dataclass(frozen=True)
class MergeLookups(Pass):
    """Looks up the ids of several lookups of one table together.

    Before, for each lookup::

        ids -> MxRecUnique -> MxRecFindOrInsert (train) | MxRecFind (eval) -> ... -> local embedding -> GatherV2

    After::

        all ids -> Reshape -> ConcatV2 -> MxRecUnique -> MxRecFindOrInsert | MxRecFind -> ... -> local embedding
        local embedding, Reshape(SplitV(restore)) -> GatherV2, for each lookup

    The GatherV2 are those of before, so the tensors that a script holds keep their names and values. Counts are those
    of all ids together. What leads from the find to the local embedding is copied from the first lookup. The nodes
    of the single lookups stay until `prune`; those of a live graph stay, and a find among them, if fetched, runs the
    merged find first and counts nothing of its own.

    Pooled lookups, whose rows are summed up and not spread, are left alone.

    A run that reads one result now needs the ids of all lookups that were merged, and in training inserts and counts
    them.

    Attributes:
        sides: which lookups to merge, "train" or "eval".
        names: of the lookups to merge; empty for all. Others are left out without a refusal.

    Preconditions: in training, gradients come later: they must be those of the merged local embedding. Refused, where
    a table has another lookup on that side: a lookup of which another node (a gradient) reads or waits for more than
    the result, or that waits for a node; one whose ids may not run ahead of the step, such as fed ones, since a run
    of another lookup would need them; ids of several batches; a lookup with a time per sample; and lookups that differ
    in their batch, serving default, dtype or device, in what an occurrence counts, or in whether they take a gradient,
    stay apart from each other. (With a gradient of zero an optimizer would move the moments, and so the rows, of keys
    that only a lookup without gradient reads.)
    """

    name: ClassVar[str] = "merge_lookups"
    sides: tuple[str, ...] = (EVAL,)
    names: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not set(self.sides) <= {TRAIN, EVAL}:
            raise ValueError(f"sides are {self.sides!r}; expected {TRAIN!r}, {EVAL!r} or both")

    def run(self, view: GraphView) -> PassOutcome:
        """See `Pass.run`."""
        edits = EditSet(author=self.name)
        notes: list[str] = []
        refusals: list[Refusal] = []
        for (table, side), lookups in _by_table(view, self.sides, self.names).items():
            if len(lookups) < 2:
                continue
            groups, refused = _groups(view, lookups)
            refusals += refused
            refusals.extend(_stays_apart(groups[0], group) for group in groups[1:])
            for group in groups:
                refusals.extend(_ties(view, group))
                free = [parts for parts in group if parts.tie is None]
                if len(free) > 1:
                    notes.append(_Merge(view, edits, table, side, free).apply())
        return PassOutcome(edits, notes, refusals)

    @classmethod
    def made(cls, node: Node) -> bool:
        """Whether this pass added the node."""
        return node.str_attr(ATTR_PASS) == cls.name


def tied_lookups(view: GraphView, side: str) -> list[Refusal]:
    """The lookups that would be merged if nothing used more of them than their results."""
    several = [lookups for lookups in _by_table(view, [side]).values() if len(lookups) > 1]
    return [refusal for lookups in several for group in _groups(view, lookups)[0] for refusal in _ties(view, group)]


def merged_names(view: GraphView, lookup: Lookup) -> tuple[str, ...]:
    """The calls of `sparse_lookup` that a lookup stands for."""
    for name in (lookup.find_node, lookup.offset_node):  # of a fused lookup the second one is the find
        node = view.get(name)
        names = () if node is None else node.strings_attr(marks.MERGED_LOOKUPS)
        if names:
            return names
    return (lookup.name,)


def _by_table(
    view: GraphView, sides: Sequence[str], names: frozenset[str] = frozenset()
) -> dict[tuple[str, str], list[Lookup]]:
    found: dict[tuple[str, str], list[Lookup]] = {}
    for lookup in find_lookups(view):
        is_wanted = not names or names.issuperset(merged_names(view, lookup))
        if pools(view, view.get(lookup.gather_node or "")):
            continue
        if lookup.side in sides and lookup.unique_node is not None and is_wanted:
            found.setdefault((lookup.table_node, lookup.side), []).append(lookup)
    return found


def _groups(view: GraphView, lookups: Sequence[Lookup]) -> tuple[list[list[_Parts]], list[Refusal]]:
    """(lookups that would be merged with each other, the refusals of those that cannot be with any)."""
    groups: dict[tuple[bool, str, tuple[Part, ...]], list[_Parts]] = {}
    refusals: list[Refusal] = []
    for lookup in lookups:
        parts = _parts(view, lookup)
        if isinstance(parts, Obstacle):
            refusals.append(_refusal(view, lookup, parts))
        else:
            groups.setdefault((lookup.is_trained, parts.get_next, parts.form), []).append(parts)
    return sorted(groups.values(), key=_order), refusals


def _order(group: Sequence[_Parts]) -> tuple[bool, bool, str, str]:
    """The same once lookups have been merged."""
    return not group[0].lookup.is_trained, not group[0].get_next, group[0].get_next, min(_all_names(group))


def _ties(view: GraphView, group: Sequence[_Parts]) -> list[Refusal]:
    if len(group) < 2:
        return []
    return [_refusal(view, parts.lookup, parts.tie) for parts in group if parts.tie is not None]


def _all_names(group: Sequence[_Parts]) -> list[str]:
    return [name for parts in group for name in parts.names]


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))


def _refusal(view: GraphView, lookup: Lookup, obstacle: Obstacle) -> Refusal:
    names = _quoted(merged_names(view, lookup))
    return Refusal(
        obstacle.node, f"{obstacle.reason} (lookup {names} of table {lookup.table_name!r} is not merged with others)"
    )


def _stays_apart(first: Sequence[_Parts], group: Sequence[_Parts]) -> Refusal:
    """Why the lookups of a group are not merged with those of `first`; the same once either has been merged."""
    parts = group[0]
    node = min((name for member in group for name in member.lookup.restore_gathers), default=parts.lookup.find_node)
    others = _quoted(_all_names(first))
    if parts.get_next != first[0].get_next:
        node = parts.get_next or node
        reason = f"ids come from {_place(parts)}, those of {others} from {_place(first[0])}"
    elif parts.lookup.is_trained != first[0].lookup.is_trained:
        reason = f"takes no gradient, unlike {others}: an update of the merged keys would reach keys of it alone"
    else:
        reason = (
            f"rows are looked up in another way than those of {others} (serving default, dtype, device, time or weight)"
        )
    names = _quoted(_all_names(group))
    return Refusal(node, f"{reason} (lookup {names} of table {parts.lookup.table_name!r} is not merged with those)")


def _place(parts: _Parts) -> str:
    return f"batch {parts.get_next!r}" if parts.get_next else "no batch"


def _parts(view: GraphView, lookup: Lookup) -> _Parts | Obstacle:
    """The nodes of a lookup, or why it must stay as it is."""
    unique, find = view.node(lookup.unique_node or ""), view.node(lookup.find_node)
    if lookup.gather_node is None:
        return Obstacle(find.name, "finds rows that nothing gathers")
    times = timestamps_of(find)
    if times is not None and view.node(times.node).op == OP_KEY_TIMES:
        return Obstacle(times.node, "gives its keys times of their own: they are those of samples")
    chain = _chain(view, view.node(lookup.gather_node), unique)
    if isinstance(chain, Obstacle):
        return chain
    origin = slice_analysis(view).origin(unique.name)
    if origin.obstacle is not None:
        return origin.obstacle
    if len(origin.get_nexts) > 1:
        return Obstacle(find.name, "its ids come from several batches: " + ", ".join(map(repr, origin.get_nexts)))
    get_next = origin.get_nexts[0] if origin.get_nexts else ""
    names, form = merged_names(view, lookup), _form(view, unique, chain)
    return _Parts(lookup, names, unique, chain, get_next, form, _outside(view, lookup, unique, chain))


def _chain(view: GraphView, gather: Node, unique: Node) -> tuple[Node, ...] | Obstacle:
    """The nodes between the keys and the local embedding, inputs first."""
    order: dict[str, Node] = {}
    opened: set[str] = set()
    stack = [gather]
    while stack:
        node = stack[-1]
        if node.name in order:
            stack.pop()
            continue
        sources = [view.node(ref.node) for ref in node.inputs if ref != timestamps_of(node)]
        missing = [s for s in sources if s.name != unique.name and s.inputs and s.name not in order]
        if missing and node.name not in opened:
            opened.add(node.name)
            stack.extend(reversed(missing))
            if len(opened) > _MAX_CHAIN:
                return Obstacle(node.name, f"lies between {unique.name!r} and {gather.name!r}, which are far apart")
            continue
        stack.pop()
        order[node.name] = node
    return tuple(order.values())


def _outside(view: GraphView, lookup: Lookup, unique: Node, chain: Sequence[Node]) -> Obstacle | None:
    """What ties the nodes of a lookup to others than its result."""
    inside = {node.name for node in chain}
    restored = set(_restored(view, lookup))
    for node in (unique, *chain):
        if node.controls:
            return Obstacle(node.name, f"waits for {node.controls[0]!r}")
        for edge in view.edges(node.name):
            reader = view.node(edge.consumer)
            if reader.name in inside or _is_own_helper(reader):
                continue
            if node is unique and edge.output == _RESTORE and edge.index == 1 and reader.name in restored:
                continue
            if node.name == lookup.gather_node and edge.index == 0 and reader.name in restored:
                continue
            if edge.output == CONTROL:
                return Obstacle(reader.name, f"waits for {node.name!r}")
            return Obstacle(reader.name, f"reads {node.name!r}, as gradients do; lookups are merged before those")
    return None


def _restored(view: GraphView, lookup: Lookup) -> Iterator[str]:
    """The GatherV2 that spread the rows over the batch, by the restore index of the lookup itself."""
    for name in lookup.restore_gathers:
        node = view.node(name)
        index, axis = view.node(node.inputs[1].node), view.node(node.inputs[2].node).attr("value")
        while _is_own_helper(index):  # of lookups that were merged before
            index = view.node(index.inputs[0].node)
        is_plain = axis is not None and is_zero(axis) and not node.int_attr("batch_dims")
        if index.name == lookup.unique_node and is_plain:
            yield name


def _is_own_helper(node: Node) -> bool:
    """Whether this pass made it to lead from a merged lookup to the single ones."""
    return node.op in ("Reshape", "SplitV", "Slice") and MergeLookups.made(node)


def _form(view: GraphView, unique: Node, chain: Sequence[Node]) -> tuple[Part, ...]:
    """What a chain does, without the names of its nodes: equal for chains that give equal rows for equal keys."""
    place: dict[str, int] = {node.name: index for index, node in enumerate(chain)}
    place[unique.name] = -1

    def source(ref: TensorRef) -> Part:
        node = view.node(ref.node)
        if ref.node in place:
            return (place[ref.node], ref.index)
        return _settings(node) if node.op == "Const" else (ref.node, ref.index)

    return (_settings(unique), *((*_settings(node), *map(source, node.inputs)) for node in chain))


def _settings(node: Node) -> tuple[Part, ...]:
    attrs = (
        (name, value)
        for name, value in sorted(node.attrs().items())
        if name != _MAX_KEYS and (name[:1] != "_" or name == "_class")
    )
    return (node.op, node.device, *((name, value.SerializeToString(deterministic=True)) for name, value in attrs))


class _Merge:
    """The merge of one group."""

    def __init__(self, view: GraphView, edits: EditSet, table: str, side: str, group: Sequence[_Parts]) -> None:
        self._view = view
        self._edits = edits
        self._group = group
        self._first = group[0]
        self._side = side
        self._n = len(group)
        self._device = self._first.unique.device
        self._scope = self._free_scope(f"{table.rpartition('/')[0] or table}/merged_{side}")
        self._mark = {ATTR_LOOKUP: attr_bytes(self._scope)}

    def apply(self) -> str:
        """Write the edits. Returns a note for the report."""
        ids = [parts.unique.inputs[0] for parts in self._group]
        unique = self._add_unique(ids)
        clones = self._clone_chain(unique)
        self._restore(unique, ids)
        self._retire(clones)
        names = ", ".join(repr(name) for name in _all_names(self._group))
        return f"table {self._first.lookup.table_name!r}: {self._side} lookups {names} are {self._scope!r}"

    def _free_scope(self, hint: str) -> str:
        """A scope that has none of the nodes that this makes."""
        scope = self._view.unique_name(hint)
        while f"{scope}/unique" in self._view:
            scope = self._view.unique_name(hint)
        return scope

    def _add(
        self, part: str, op: str, inputs: Sequence[TensorRef] = (), attrs: dict[str, AttrValue] | None = None
    ) -> TensorRef:
        name = self._view.unique_name(f"{self._scope}/{part}")
        return self._edits.add_node(name, op, inputs, attrs, device=self._device)

    def _add_const(self, part: str, value: object, dtype: int) -> TensorRef:
        return self._add(part, "Const", (), {"dtype": attr_type(dtype), "value": attr_tensor(value, dtype)})

    def _add_unique(self, ids: Sequence[TensorRef]) -> str:
        dtype = self._first.unique.attr("Tids") or attr_type(DT_INT64)
        types = {"T": dtype, "Tshape": attr_type(DT_INT32)}
        flat = self._add_const("flat", [-1], DT_INT32)
        lists = [self._add(f"ids_{index}", "Reshape", [ref, flat], types) for index, ref in enumerate(ids)]
        types = {"T": dtype, "Tidx": attr_type(DT_INT32), "N": attr_int(self._n)}
        every = self._add("ids", "ConcatV2", [*lists, self._add_const("axis", 0, DT_INT32)], types)
        return self._add("unique", OP_UNIQUE, [every], {"Tids": dtype, **self._mark}).node

    def _clone_chain(self, unique: str) -> dict[str, str]:
        """Copies the nodes from the find to the local embedding. Returns their names by those of the originals."""
        clones = {self._first.unique.name: unique}
        for node in self._first.chain:
            name = self._view.unique_name(f"{self._scope}/{node.name.rpartition('/')[2]}")
            attrs = {key: value for key, value in node.attrs().items() if not key.startswith("_mx_rec")}
            if node.has_attr(ATTR_LOOKUP):
                attrs.update(self._mark)
            if node.name == self._first.lookup.find_node:
                bounds = [self._view.node(parts.lookup.find_node).int_attr(_MAX_KEYS) for parts in self._group]
                attrs[_MAX_KEYS] = attr_int(sum(bounds) if all(bounds) else 0)
                attrs[marks.MERGED_LOOKUPS] = attr_strings(_all_names(self._group))
                attrs[marks.DISCONNECTED] = attr_strings(self._disconnected())
            collections = self._collections(node.name)
            if collections:
                attrs[ATTR_COLLECTIONS] = attr_strings(collections)
            inputs = [TensorRef(clones.get(ref.node, ref.node), ref.index) for ref in node.inputs]
            self._edits.add_node(name, node.op, inputs, attrs, device=node.device)
            clones[node.name] = name
        gather = TensorRef(clones[self._first.lookup.gather_node or ""], 0)
        for parts in self._group:
            for name in parts.lookup.restore_gathers:
                self._edits.set_input(name, 0, gather)
        return clones

    def _disconnected(self) -> list[str]:
        """The nodes that this takes a reader from: prune may begin with them."""
        names = [parts.lookup.gather_node or "" for parts in self._group]
        if self._side == TRAIN:
            names += [self._view.node(parts.lookup.find_node).inputs[_HINTS_INPUT].node for parts in self._group]
        return names

    def _collections(self, original: str) -> list[str]:
        if not self._first.lookup.is_trained:
            return []
        pairs = [
            (self._first.lookup.gather_node, ASCEND_SPARSE_LOOKUP_LOCAL_EMB),
            (self._first.lookup.offset_node, ASCEND_SPARSE_LOOKUP_ID_OFFSET),
        ]
        return [collection for name, collection in pairs if name == original]

    def _restore(self, unique: str, ids: Sequence[TensorRef]) -> None:
        """Lets each lookup read its part of the restore index, in the form of its ids."""
        types = {"T": attr_type(DT_INT32)}
        attrs = {"out_type": attr_type(DT_INT32), "T": self._first.unique.attr("Tids") or attr_type(DT_INT64)}
        sizes = [self._add(f"size_{index}", "Size", [ref], attrs) for index, ref in enumerate(ids)]
        size = self._add("sizes", "Pack", sizes, {**types, "N": attr_int(self._n)})
        inputs = [TensorRef(unique, _RESTORE), size, self._add_const("split_axis", 0, DT_INT32)]
        split = {**types, "Tlen": attr_type(DT_INT32), "num_split": attr_int(self._n)}
        pieces = self._add("restore", "SplitV", inputs, split).node
        for index, (parts, ref) in enumerate(zip(self._group, ids)):
            shape = self._add(f"shape_{index}", "Shape", [ref], attrs)
            types = {"T": attr_type(DT_INT32), "Tshape": attr_type(DT_INT32)}
            piece = self._add(f"restore_{index}", "Reshape", [TensorRef(pieces, index), shape], types)
            for use in self._view.consumers(TensorRef(parts.unique.name, _RESTORE)):
                self._edits.set_input(use.node, use.index, piece)

    def _retire(self, clones: dict[str, str]) -> None:
        """The nodes of the single lookups: where they are merged, and finds that count nothing."""
        no_hints = self._after(TensorRef(clones[self._first.lookup.find_node], 0)) if self._side == TRAIN else None
        for parts in self._group:
            for node, original in zip(parts.chain, self._first.chain):
                self._edits.set_attr(node.name, marks.MERGED_INTO, attr_bytes(clones[original.name]))
                if node.has_attr(ATTR_COLLECTIONS):
                    self._edits.clear_attr(node.name, ATTR_COLLECTIONS)
            if no_hints is not None:
                self._count_nothing(self._view.node(parts.lookup.find_node), no_hints)
            self._mark_entrance(parts.lookup.entrance)

    def _after(self, addresses: TensorRef) -> TensorRef:
        """Hints for nothing, known once the merged find has run."""
        zero = self._add_const("zero", [0], DT_INT32)
        types = {"T": attr_type(DT_INT64), "Index": attr_type(DT_INT32)}
        return self._add("no_hints", "Slice", [addresses, zero, zero], types)

    def _count_nothing(self, find: Node, no_hints: TensorRef) -> None:
        if find.op != OP_FIND_OR_INSERT:
            return
        zeros = self._view.unique_name(f"{find.name}/no_counts")
        self._edits.add_node(
            zeros, "ZerosLike", [find.inputs[_COUNTS_INPUT]], {"T": attr_type(DT_INT32)}, device=find.device
        )
        self._edits.set_input(find.name, _HINTS_INPUT, no_hints)
        self._edits.set_input(find.name, _COUNTS_INPUT, TensorRef(zeros, 0))

    def _mark_entrance(self, name: str | None) -> None:
        present = () if name is None else self._view.node(name).strings_attr(ATTR_COLLECTIONS)
        if name is not None and ASCEND_SPARSE_LOOKUP_ENTRANCE not in present:
            value = attr_strings([*present, ASCEND_SPARSE_LOOKUP_ENTRANCE])
            self._edits.set_attr(name, ATTR_COLLECTIONS, value)
