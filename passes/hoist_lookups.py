"""Moves the work between a batch and its keys into the dataset."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from mx_rec.graph import marks
from mx_rec.graph.attrs import (
    DT_INT64,
    DT_RESOURCE,
    DT_VARIANT,
    Shape,
    attr_bool,
    attr_bytes,
    attr_int,
    attr_ints,
    attr_shapes,
    attr_strings,
    attr_type,
    attr_types,
    is_ref,
    known_shape,
)
from mx_rec.graph.datasets import ElementSpec, int64_const_attrs, map_attrs, map_op, merged_shape
from mx_rec.graph.edits import EditSet
from mx_rec.graph.functions import FunctionBuilder, sanitized
from mx_rec.graph.iterator_groups import IteratorGroup, iterator_group
from mx_rec.graph.iterators import ONE_SHOT, IteratorInfo, Obstacle, iterator_info, iterator_of
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.op_signatures import OP_LOOK_AHEAD, OP_PREPARE_MANY, OP_UNIQUE
from mx_rec.graph.resources import IMMUTABLE_TABLES
from mx_rec.graph.slices import captured_tables, slice_analysis
from mx_rec.graph.view import GraphView
from mx_rec.passes.base import Pass, PassOutcome, Refusal
from mx_rec.passes.find_lookups import (
    TRAIN,
    Lookup,
    find_lookups,
    function_lookups,
    retired_uniques,
    timestamps_of,
)
from mx_rec.passes.merge_lookups import MergeLookups, merged_names

_TASK = re.compile(r"/job:[^/]*|/replica:[^/]*|/task:[^/]*")


@dataclass(frozen=True)
class HoistLookups(Pass):
    """Gives every iterator with lookups a dataset function that prepares their keys.

    Before::

        dataset -> MakeIterator(iterator)
        iterator -> IteratorGetNext -> preprocessing -> MxRecUnique -> MxRecFindOrInsert(table, keys, hints=[])

    After (the step still runs as before; `swap_iterators` switches it over)::

        dataset -> MapDataset(f, table) -> PrefetchDataset
        f(batch, table) = batch, and of every lookup: MxRecUnique(preprocessing(batch)), MxRecLookAhead(table, keys)

    All lookups of all get_nexts of an iterator share one function, in which equal work is done once. Other
    tensors of the moved part that the step reads are outputs as well. A one-shot iterator gets a new dataset
    function instead, which makes the table handles again, since it cannot capture them. The function reserves
    rows only if the iterator feeds training lookups alone and has one dataset. What the function gives is
    written on the iterator (`mx_rec.graph.marks`). With `fuse`, one MxRecPrepareMany in the function does what
    MxRecUnique and MxRecLookAhead of several lookups would; all of the function runs for every batch, so this
    is as good for any of them.

    An iterator that draws by handle (`Iterator.from_string_handle`) may draw from any iterator of the graph with
    its elements whose handle can be fetched. They form a group: one function for all of them, behind the dataset of
    each source, so that any of them can be fed as before. Where get_nexts of several iterators of a group draw,
    all must make the same keys of their batches, since nothing says which of them will draw a batch.

    What leads from the restore index of a lookup to the gathers that read it moves along, and what leads from the
    batch to the times of its keys. So do, with `op_types`, the
    nodes of these types, and what they need, between a batch and the ids of a lookup that stays for another reason.

    Attributes:
        prefetch: batches prepared ahead of the step, at least 1.
        parallel_calls: batches prepared at the same time, at least 1. Their order stays.
        fuse: prepare the keys of several lookups in one op.
        op_types: ops to move even if their lookup stays.

    Preconditions: none. Refused, lookup by lookup, which then stay where they are:
        ids from no iterator or from several batches; anything between batch and keys that is fed at the step,
        reads a variable or a table that may change, draws random numbers, has side effects, is a loop of
        TensorFlow 1 or an unknown op, or calls a function that holds such; lookups in one branch of a conditional
        of TensorFlow 1 (a whole conditional before the keys moves); iterators used by other ops; handles that may
        name an iterator of which the graph does not tell the elements, and groups whose get_nexts make other keys of
        their batches; datasets that are not in the graph, or that read what a step may change; tables on another
        task; lookups inside functions.
    """

    name: ClassVar[str] = "hoist_lookups"
    prefetch: int = 1
    parallel_calls: int = 1
    fuse: bool = False
    op_types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for option in ("prefetch", "parallel_calls"):
            value = getattr(self, option)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{option} is {value!r}; expected an integer of at least 1")

    def run(self, view: GraphView) -> PassOutcome:
        """See `Pass.run`."""
        edits = EditSet(author=self.name)
        refusals = [Refusal(*obstacle) for obstacle in function_lookups(view)]
        notes: list[str] = []
        groups: dict[str, list[Lookup]] = {}  # by the first member
        kept: Counter[str] = Counter()  # other lookups that do not train
        for lookup in find_lookups(view):
            group = _first_member(view, lookup)
            obstacle = _own_obstacle(view, lookup)
            if obstacle is None and not lookup.is_moved:
                groups.setdefault(group, []).append(lookup)
                continue
            if obstacle is not None:
                refusals.append(_refusal(view, lookup, obstacle))
            kept[group] += lookup.side != TRAIN
        slices = _slices(view, self.op_types)
        for first in dict.fromkeys([*groups, *slices]):
            if view.node(first).has_attr(marks.HOIST_TYPES):
                continue
            lookups, roots = groups.get(first, []), slices.get(first, [])
            drawn = iterator_group(view, first)
            obstacle = _other_work(view, drawn, lookups, ())
            if obstacle is not None:
                refusals.extend(_refusal(view, lookup, obstacle) for lookup in lookups)
                continue
            obstacle = _other_work(view, drawn, lookups, roots) if roots else None
            if obstacle is not None:  # what was asked for besides must not keep the lookups from moving
                reason = f"stays at the step: {obstacle.node!r} {obstacle.reason}"
                refusals.extend(Refusal(root, reason) for root in roots)
                roots = []
            if not lookups and not roots:
                continue
            hoist = _GroupHoist(view, edits, self, first, lookups, roots, has_other_readers=bool(kept[first]))
            notes.append(hoist.apply())
        return PassOutcome(edits, notes, refusals)


def why_it_stays(view: GraphView, lookup: Lookup) -> Obstacle | None:
    """Why this pass would refuse a lookup; `None` for one that it would move, and for one that is moved already."""
    obstacle = _own_obstacle(view, lookup)
    if obstacle is not None or lookup.is_moved:
        return obstacle
    first = _first_member(view, lookup)
    of_group: dict[str, list[Lookup]] = view.cached("movable_by_group", _movable_by_group)
    key = ("other_work", first)
    found: Obstacle | None = view.cached(
        key, lambda view: _other_work(view, iterator_group(view, first), of_group[first], ())
    )
    return found


def _movable_by_group(view: GraphView) -> dict[str, list[Lookup]]:
    groups: dict[str, list[Lookup]] = {}
    for lookup in find_lookups(view):
        if not lookup.is_moved and _own_obstacle(view, lookup) is None:
            groups.setdefault(_first_member(view, lookup), []).append(lookup)
    return groups


def _own_obstacle(view: GraphView, lookup: Lookup) -> Obstacle | None:
    """Why a lookup cannot move, whatever the others of its iterator do."""
    if lookup.is_moved:
        return None
    if lookup.obstacle is None and lookup.iterator is None:
        return Obstacle(lookup.find_node, "its iterator is not known")
    return lookup.obstacle or _table_obstacle(view, lookup)


def _first_member(view: GraphView, lookup: Lookup) -> str:
    """What stands for the group of a lookup's iterator, "" if it has none."""
    return iterator_group(view, lookup.iterator).members[0].node if lookup.iterator else ""


def ids_nodes(view: GraphView, op_types: Iterable[str]) -> list[Node]:
    """The nodes of these types that the keys of lookups are computed with, up to their batches, inputs first."""
    wanted = set(op_types)
    uniques = [lookup.unique_node for lookup in find_lookups(view) if lookup.unique_node is not None]
    if not wanted:
        return []
    return [node for node in slice_analysis(view).nodes(uniques) if node.op in wanted and node.name not in uniques]


def _slices(view: GraphView, op_types: Iterable[str]) -> dict[str, list[str]]:
    """The nodes of these types that can move, by the first member of their iterator's group."""
    slices: dict[str, list[str]] = {}
    for node in ids_nodes(view, op_types):
        iterator, obstacle = slice_of(view, node)
        if iterator is not None and obstacle is None:
            slices.setdefault(iterator_group(view, iterator).members[0].node, []).append(node.name)
    return slices


def slice_of(view: GraphView, node: Node) -> tuple[str | None, Obstacle | None]:
    """(the iterator of the only batch that a node is computed from, why it cannot move to the dataset)."""
    origin = slice_analysis(view).origin(node.name)
    if origin.obstacle is not None:
        return None, origin.obstacle
    if not origin.get_nexts:
        return None, Obstacle(node.name, "is computed from no batch: it is the same at every step")
    if len(origin.get_nexts) > 1:
        batches = ", ".join(map(repr, origin.get_nexts))
        return None, Obstacle(node.name, f"is computed from several batches: {batches}")
    iterator = iterator_of(view, origin.get_nexts[0])
    if iterator is None:
        return None, Obstacle(node.name, "is computed from a batch whose iterator is not known")
    group = iterator_group(view, iterator.node)
    if group.obstacle is not None:
        return iterator.node, group.obstacle
    has_one_shot = any(view.node(source.node).op == ONE_SHOT for source in group.sources)
    nameless = _nameless_tables_read(view, node.name) if has_one_shot else []
    return iterator.node, _no_shared_name(nameless[0]) if nameless else None


def _refusal(view: GraphView, lookup: Lookup, obstacle: Obstacle) -> Refusal:
    names = ", ".join(map(repr, merged_names(view, lookup)))
    return Refusal(obstacle.node, f"{obstacle.reason} (lookup {names} stays at the step)")


def _table_obstacle(view: GraphView, lookup: Lookup) -> Obstacle | None:
    """Why the dataset function cannot have the lookup's table."""
    group = iterator_group(view, lookup.iterator or "")
    table = view.node(lookup.table_node)
    if any(view.node(source.node).op == ONE_SHOT for source in group.sources):
        read = _nameless_tables_read(view, lookup.unique_node or "")
        nameless = [node for node in [table, *read] if not _has_shared_name(node)]
        if nameless:
            return _no_shared_name(nameless[0])
    for maker in group.makers:
        home, place = _task(view.node(maker).device), _task(table.device)
        if home and place and home != place:
            return Obstacle(table.name, f"is placed on {place!r}, which a dataset function on {home!r} cannot reach")
    return None


def _no_shared_name(table: Node) -> Obstacle:
    return Obstacle(table.name, "has no shared_name, so a one-shot iterator cannot reach the same table")


def _nameless_tables_read(view: GraphView, name: str) -> list[Node]:
    nameless = {node.name for node in view.nodes_of(*IMMUTABLE_TABLES) if not _has_shared_name(node)}
    if not nameless:
        return []
    handles = captured_tables(view, slice_analysis(view).nodes([name]))
    return [view.node(handle.node) for handle in handles if handle.node in nameless]


def _has_shared_name(node: Node) -> bool:
    return bool(node.str_attr("shared_name") or node.str_attr("table_name"))  # ours defaults to the table's name


def _task(device: str) -> str:
    return "".join(_TASK.findall(device))


def _behind(view: GraphView, lookups: Sequence[Lookup]) -> list[str]:
    """The nodes that give what these lookups read besides keys, if they may run in the dataset.

    These are what their gathers read as index, and the times of their keys.
    """
    analysis = slice_analysis(view)
    found: dict[str, None] = {}
    for lookup in lookups:
        times = timestamps_of(view.node(lookup.find_node))
        read = [view.node(name).inputs[1] for name in lookup.restore_gathers] + ([] if times is None else [times])
        for ref in read:
            origin = analysis.origin(ref.node)
            is_prepared = ref.node in (lookup.unique_node, lookup.get_next)
            if not is_prepared and origin.obstacle is None and origin.get_nexts == (lookup.get_next,):
                found[ref.node] = None
    return list(found)


def _other_work(
    view: GraphView, group: IteratorGroup, lookups: Sequence[Lookup], roots: Sequence[str]
) -> Obstacle | None:
    """Why not every batch of the group can be prepared in one way.

    What prepares the batches of one get_next could fail on those of another, on which it never ran.
    """
    if len(group.readers) < 2:
        return None
    analysis = slice_analysis(view)
    of_reader: dict[str, list[Node]] = {}
    for reader in group.readers:
        own = [lookup for lookup in lookups if lookup.iterator == reader.node]
        asked = [root for root in roots if analysis.origin(root).get_nexts[0] in reader.get_nexts]
        ends = [*(lookup.unique_node or "" for lookup in own), *_behind(view, own), *asked]
        of_reader[reader.node] = analysis.nodes(ends)
    together = analysis.nodes(node.name for nodes in of_reader.values() for node in nodes)
    builder = FunctionBuilder(view, "all_work")
    _add_batch(view, builder, group)
    for index, handle in enumerate(captured_tables(view, together)):
        builder.add_argument(f"table_{index}", DT_RESOURCE, [handle])
    builder.clone(together, dropped_controls=group.get_nexts)
    work = [{builder.body(node.name) for node in nodes if not _cannot_fail(node)} for nodes in of_reader.values()]
    first = group.readers[0].get_nexts[0]
    for reader, done in zip(group.readers, work):
        if done != work[0]:
            reason = (
                f"may draw the same batches as {first!r}, by handle from {group.feedables[0].node!r}, "
                "but other keys are made of them; let one get_next draw for both"
            )
            return Obstacle(reader.get_nexts[0], reason)
    return None


def _cannot_fail(node: Node) -> bool:
    """Nodes that do well for any ids: one side may have merged its lookups, and the other not."""
    return node.op == OP_UNIQUE or MergeLookups.made(node)


def _add_batch(view: GraphView, builder: FunctionBuilder, group: IteratorGroup) -> list[str]:
    """The components of a batch as arguments, each for every get_next of the group."""
    types = view.node(group.get_nexts[0]).types_attr("output_types")
    return [
        builder.add_argument(f"component_{index}", dtype, [TensorRef(name, index) for name in group.get_nexts])
        for index, dtype in enumerate(types)
    ]


class _GroupHoist:
    """The hoist of one iterator, or of all that draw from one another by handle."""

    def __init__(
        self,
        view: GraphView,
        edits: EditSet,
        options: HoistLookups,
        first: str,
        lookups: Sequence[Lookup],
        roots: Sequence[str],
        *,
        has_other_readers: bool,
    ) -> None:
        self._view = view
        self._edits = edits
        self._options = options
        self._lookups = lookups
        iterator = lookups[0].iterator if lookups else None
        self._iterator: IteratorInfo = iterator_info(view, iterator or first)
        self._group: IteratorGroup = iterator_group(view, first)
        self._analysis = slice_analysis(view)
        # The nodes that keys need, and, cloned after them, those that lead on from there to what the step reads.
        self._nodes = self._analysis.nodes([*(lookup.unique_node or "" for lookup in lookups), *roots])
        before = {node.name for node in self._nodes}
        self._behind = [node for node in self._analysis.nodes(_behind(view, lookups)) if node.name not in before]
        self._function = view.unique_name(f"mx_rec_look_ahead_{sanitized(self._iterator.node)}")
        self._builder = FunctionBuilder(view, self._function)
        self._types: list[int] = []
        self._shapes: list[Shape | None] = []
        self._components: dict[str, int] = {}  # what the function returns, to its place in the element
        is_train_only = not has_other_readers and all(lookup.side == TRAIN for lookup in lookups)
        datasets = sum(len(source.makers) or 1 for source in self._group.sources)
        self._reserve = is_train_only and datasets == 1
        self._fused = self._fusable() if options.fuse else []

    def apply(self) -> str:
        """Write the edits. Returns a note for the report."""
        self._take_batch()
        captured = self._capture()
        fused = {lookup.unique_node for group in self._fused for lookup in group}
        self._builder.clone(
            [node for node in self._nodes if node.name not in fused], dropped_controls=self._group.get_nexts
        )
        hints = self._look_ahead()
        self._builder.clone(self._behind, dropped_controls=self._group.get_nexts)
        tensors = self._give_tensors()
        spec = ElementSpec(tuple(self._types), tuple(self._shapes))
        self._edits.add_function(self._builder.build())
        self._mark(spec, tensors, hints)
        for source in self._group.sources:
            if self._view.node(source.node).op == ONE_SHOT:
                self._new_factory(source.node, spec, captured)
            else:
                self._new_datasets(source, spec, captured)
        return self._note()

    def _take_batch(self) -> None:
        """The components of the batch: arguments, returned as they are."""
        get_nexts = [self._view.node(name) for name in self._group.get_nexts]
        types = get_nexts[0].types_attr("output_types")
        for index, argument in enumerate(_add_batch(self._view, self._builder, self._group)):
            for get_next in get_nexts:
                shapes = get_next.shapes_attr("output_shapes")
                self._give(argument, types[index], shapes[index] if index < len(shapes) else None)

    def _capture(self) -> list[TensorRef]:
        """Tables that the function reads, as further arguments."""
        tables = [self._view.node(lookup.find_node).inputs[0] for lookup in self._lookups]
        captured = list(dict.fromkeys([*captured_tables(self._view, [*self._nodes, *self._behind]), *tables]))
        for index, handle in enumerate(captured):
            self._builder.add_argument(f"table_{index}", DT_RESOURCE, [handle])
        return captured

    def _look_ahead(self) -> list[tuple[str, str, int]]:
        """(find node, get_next, component of its hints) per lookup; equal keys of a table share one."""
        hints = self._prepare_many()
        given: list[tuple[str, str, int]] = []
        for lookup in self._lookups:
            table, keys = (self._builder.ref(ref) for ref in self._view.node(lookup.find_node).inputs[:2])
            if (table, keys) not in hints:
                call = self._builder.call(
                    OP_LOOK_AHEAD,
                    f"look_ahead_{lookup.name}",
                    [table, keys],
                    {"reserve": attr_bool(self._reserve)},
                )
                hints[table, keys] = f"{call}:hints:0"
            component = self._give(hints[table, keys], DT_INT64, known_shape([None]))
            given.append((lookup.find_node, lookup.get_next or "", component))
        return given

    def _fusable(self) -> list[list[Lookup]]:
        """The lookups to prepare in one op, by dtype of their ids: nothing else in the function may read their keys."""
        moved = {node.name for node in self._nodes}
        groups: dict[int, list[Lookup]] = {}
        for lookup in self._lookups:
            unique = self._view.node(lookup.unique_node or "")
            if unique.controls or any(edge.consumer in moved for edge in self._view.edges(unique.name)):
                continue
            groups.setdefault(self._view.dtype(unique.inputs[0]) or DT_INT64, []).append(lookup)
        return [group for group in groups.values() if len(group) > 1]

    def _prepare_many(self) -> dict[tuple[str, str], str]:
        """One op per group of fused lookups. Returns the hints by table and keys."""
        hints: dict[tuple[str, str], str] = {}
        for group in self._fused:
            entries: dict[tuple[str, str], list[Node]] = {}
            for unique, table in {lookup.unique_node or "": lookup.table_node for lookup in group}.items():
                node = self._view.node(unique)
                entry = self._builder.ref(TensorRef(table, 0)), self._builder.ref(node.inputs[0])
                entries.setdefault(entry, []).append(node)
            tables, ids = zip(*entries)
            attrs = {
                "N": attr_int(len(entries)),
                "Tids": attr_type(self._view.dtype(next(iter(entries.values()))[0].inputs[0]) or DT_INT64),
                "reserve": attr_bool(self._reserve),
            }
            call = self._builder.call(OP_PREPARE_MANY, "prepare", [*tables, *ids], attrs)
            for index, (table, uniques) in enumerate(zip(tables, entries.values())):
                hints[table, f"{call}:keys:{index}"] = f"{call}:hints:{index}"
                for unique in uniques:
                    for output, arg in enumerate(("keys", "restores", "counts")):
                        self._builder.stand_for(TensorRef(unique.name, output), f"{call}:{arg}:{index}")
        return hints

    def _give_tensors(self) -> list[tuple[TensorRef, str, int]]:
        """(tensor, get_next, component) of everything in the moved part that the step reads."""
        given: list[tuple[TensorRef, str, int]] = []
        for tensor, dtype in self._tensors_read_by_step():
            get_next = self._analysis.origin(tensor.node).get_nexts[0]
            component = self._give(self._builder.ref(tensor), dtype, self._view.shape(tensor))
            given.append((tensor, get_next, component))
        return given

    def _tensors_read_by_step(self) -> Iterator[tuple[TensorRef, int]]:
        nodes = [*self._nodes, *self._behind]
        moved = {node.name for node in nodes} | retired_uniques(self._view)
        for node in nodes:
            if not self._analysis.origin(node.name).get_nexts:
                continue  # the same for every batch: nothing to prepare
            outputs = {edge.output for edge in self._view.data_edges(node.name) if edge.consumer not in moved}
            for output in sorted(outputs):
                tensor = TensorRef(node.name, output)
                if self._analysis.is_in_branch(tensor):
                    continue  # it may have no value; the step's own conditional takes what leads to it
                dtype = self._view.dtype(tensor)
                if dtype is not None and dtype not in (DT_RESOURCE, DT_VARIANT) and not is_ref(dtype):
                    yield tensor, dtype

    def _give(self, ref: str, dtype: int, shape: Shape | None) -> int:
        """Return `ref` from the function, if it is not returned yet; its place in the element."""
        if ref not in self._components:
            self._components[ref] = self._append(ref, dtype, shape)
        index = self._components[ref]
        if self._shapes[index] != shape:
            self._shapes[index] = merged_shape(self._shapes[index], shape)
        return index

    def _append(self, ref: str, dtype: int, shape: Shape | None) -> int:
        index = len(self._types)
        self._builder.add_output(f"output_{index}", ref, dtype)
        self._types.append(dtype)
        self._shapes.append(shape)
        return index

    def _mark(
        self,
        spec: ElementSpec,
        tensors: Sequence[tuple[TensorRef, str, int]],
        hints: Sequence[tuple[str, str, int]],
    ) -> None:
        for member in self._group.members:
            own_tensors = [entry for entry in tensors if entry[1] in member.get_nexts]
            own_hints = [entry for entry in hints if entry[1] in member.get_nexts]
            for attr, value in {
                marks.HOIST_TYPES: attr_types(spec.types),
                marks.HOIST_SHAPES: attr_shapes(spec.shapes),
                marks.HOIST_TENSORS: attr_strings(str(tensor) for tensor, _, _ in own_tensors),
                marks.HOIST_TENSOR_SOURCES: attr_strings(get_next for _, get_next, _ in own_tensors),
                marks.HOIST_TENSOR_COMPONENTS: attr_ints(component for _, _, component in own_tensors),
                marks.HOIST_FINDS: attr_strings(find for find, _, _ in own_hints),
                marks.HOIST_FIND_SOURCES: attr_strings(get_next for _, get_next, _ in own_hints),
                marks.HOIST_FIND_COMPONENTS: attr_ints(component for _, _, component in own_hints),
            }.items():
                self._edits.set_attr(member.node, attr, value)

    def _new_datasets(self, source: IteratorInfo, spec: ElementSpec, captured: Sequence[TensorRef]) -> None:
        """A mapped and prefetched dataset beside each dataset of a source."""
        for name in source.makers:
            maker = self._view.node(name)
            dataset = self._add_map(maker, spec, captured)
            prefetched = self._add_prefetch(maker, spec, dataset)
            self._edits.set_attr(name, marks.HOIST_DATASET, attr_bytes(prefetched.node))

    def _add_map(self, maker: Node, spec: ElementSpec, captured: Sequence[TensorRef]) -> TensorRef:
        calls = self._options.parallel_calls
        inputs = [maker.inputs[0], *captured]
        if calls > 1:
            inputs.append(self._add_const(maker, "parallel_calls", calls))
        attrs = map_attrs(spec, self._function, [DT_RESOURCE] * len(captured), calls)
        name = self._view.unique_name(f"mx_rec/{maker.name}/map")
        return self._edits.add_node(name, map_op(calls), inputs, attrs, device=maker.device)

    def _add_prefetch(self, maker: Node, spec: ElementSpec, dataset: TensorRef) -> TensorRef:
        size = self._add_const(maker, "buffer_size", self._options.prefetch)
        name = self._view.unique_name(f"mx_rec/{maker.name}/prefetch")
        return self._edits.add_node(name, "PrefetchDataset", [dataset, size], spec.attrs(), device=maker.device)

    def _add_const(self, maker: Node, hint: str, value: int) -> TensorRef:
        name = self._view.unique_name(f"mx_rec/{maker.name}/{hint}")
        return self._edits.add_node(name, "Const", (), int64_const_attrs(value), device=maker.device)

    def _new_factory(self, iterator: str, spec: ElementSpec, captured: Sequence[TensorRef]) -> None:
        """The dataset function of a one-shot iterator, with map and prefetch behind its dataset."""
        old = self._view.function(self._view.node(iterator).func_attr("dataset_factory"))
        name = self._view.unique_name(f"mx_rec_dataset_{sanitized(iterator)}")
        builder = FunctionBuilder(self._view, name, start=old)
        output = old.signature.output_arg[0].name  # type: ignore[union-attr]
        inputs = [old.ret[output]]  # type: ignore[union-attr]
        inputs.extend(self._remade(builder, handle) for handle in captured)
        calls = self._options.parallel_calls
        if calls > 1:
            inputs.append(f"{builder.call('Const', 'parallel_calls', [], int64_const_attrs(calls))}:output:0")
        attrs = map_attrs(spec, self._function, [DT_RESOURCE] * len(captured), calls)
        mapped = builder.call(map_op(calls), "mx_rec_map", inputs, attrs)
        size = builder.call("Const", "buffer_size", [], int64_const_attrs(self._options.prefetch))
        prefetched = builder.call(
            "PrefetchDataset", "mx_rec_prefetch", [f"{mapped}:handle:0", f"{size}:output:0"], spec.attrs()
        )
        builder.set_output(output, f"{prefetched}:handle:0")
        self._edits.add_function(builder.build())
        self._edits.set_attr(iterator, marks.HOIST_FACTORY, attr_bytes(name))

    def _remade(self, builder: FunctionBuilder, handle: TensorRef) -> str:
        """The same table, by its shared name: a handle op in the function with the attributes of the original."""
        node = self._view.node(handle.node)
        arg, index = self._view.output_arg(handle)
        return f"{builder.copy(node)}:{arg}:{index}"

    def _note(self) -> str:
        sides = Counter(lookup.side for lookup in self._lookups)
        counted = ", ".join(f"{count} {side}" for side, count in sorted(sides.items(), reverse=True)) or "no"
        reserve = "reserves rows" if self._reserve else "reserves no rows"
        fused = "".join(f"; {len(group)} lookups are prepared in one op" for group in self._fused)
        by_handle = ""
        if self._group.feedables:
            by_handle = f" (by handle, from {', '.join(repr(source.node) for source in self._group.sources)})"
        moved = len(self._nodes) + len(self._behind)
        return (
            f"iterator {self._iterator.node!r}{by_handle}: {counted} lookups, {moved} nodes moved into "
            f"function {self._function!r}, which {reserve}{fused}"
        )
