"""The edits that put a table in the place of a variable."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from mx_rec.constants.constants import ATTR_LOOKUP, ATTR_UPDATE
from mx_rec.errors import GraphRewriteError
from mx_rec.graph import marks
from mx_rec.graph.attrs import (
    DT_BOOL,
    DT_FLOAT,
    DT_INT32,
    DT_INT64,
    AttrValue,
    attr_bytes,
    attr_float,
    attr_int,
    attr_ints,
    attr_strings,
    attr_tensor,
    attr_type,
)
from mx_rec.graph.edits import EditSet
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.op_signatures import (
    OP_CHECK_IDS,
    OP_FIND,
    OP_FIND_OR_INSERT,
    OP_GATHER,
    OP_SUM_GRADIENTS_MANY,
    OP_TABLE,
    OP_TABLE_CLEAR,
    OP_TABLE_IMPORT,
    OP_TABLE_SIZE,
    OP_UNIQUE,
)
from mx_rec.graph.origins import SavedVariable, TableOrigin
from mx_rec.graph.verify import colocated_with
from mx_rec.graph.view import GraphView
from mx_rec.passes.static_lookups.lookups import StaticLookup
from mx_rec.passes.static_lookups.modulo import MAX_BUCKETS, Bound, are_rows
from mx_rec.passes.static_lookups.partitions import MOD
from mx_rec.passes.static_lookups.plans import Source, TablePlan
from mx_rec.passes.static_lookups.rules import SLOT_OWNERS, Update
from mx_rec.passes.static_lookups.saving import SavedTable, saved_name, take_out
from mx_rec.passes.static_lookups.values import awaited_by_constants, same_formula
from mx_rec.passes.static_lookups.variables import Uses, reads_before, uses_of


def _is_inner_group(node: Node) -> bool:
    """Whether a node groups the ops of one update, and is none that a script has named."""
    return node.op == "NoOp" and node.name.rpartition("/")[2].startswith("group_deps")


class _Rows:
    """The tensors of a lookup of a table that updates need."""

    def __init__(self, addresses: TensorRef, keys: TensorRef, restore: TensorRef) -> None:
        self.addresses = addresses
        self.keys = keys
        self.restore = restore


class Conversion:
    """Writes the edits for all tables of a pass, and in the end those that belong to several."""

    def __init__(self, view: GraphView, author: str, keep: frozenset[str]) -> None:
        self._view = view
        self._keep = keep
        self.edits = EditSet(author=author)
        self._removed: dict[str, None] = {}
        self._saves: dict[str, set[int]] = {}
        self._handles: dict[str, list[str]] = {}  # table node: variables that are gone
        self._scalars: list[TensorRef] = []
        self._tables: list[SavedTable] = []
        self._lifted: dict[TensorRef, TensorRef] = {}  # ids without a modulo, by those with it
        self._unbounded: set[str] = set()
        self._redirected: set[str] = set()  # nodes that nothing waits for any more
        self._instead: dict[str, str] = {}  # what to wait for in the place of a node that goes
        self._waits: list[tuple[str, tuple[str, ...]]] = []  # new nodes, and what they are to wait for
        self._checked: dict[tuple[TensorRef, str], TensorRef] = {}  # ids that are rows, by ids and table
        self._sums: dict[TensorRef, TensorRef] = {}  # sums of gradients by position, by those by id

    def convert(self, plan: TablePlan) -> None:
        """Write the edits of one table."""
        scope = f"mx_rec/{plan.table_name}"
        handle = self._table(plan, scope)
        for bound in plan.bounds:
            self._lift(bound)
        rows = {lookup.node: self._look_up(plan, lookup, handle, scope) for lookup in plan.variable.lookups}
        if plan.training is not None:
            self._train(plan, handle, scope, rows)
        self._begin(plan, handle, scope)
        self._tables.append(SavedTable(plan.table_name, handle))
        for name, count in zip(plan.variable.nodes, plan.variable.rows):
            self._retire(name, (count, plan.variable.dim), scope, handle if plan.imports else None)
        if plan.training is not None:
            for update in plan.training.updates:
                for slot in update.slots:
                    self._retire_slot(slot.variable, scope)

    def finish(self) -> EditSet:
        """All edits, those that remove nodes last."""
        dead = take_out(self._view, self.edits, self._saves, self._tables)
        self._redirected.update(dead)
        removed = dict.fromkeys([*self._removed, *dead])
        self._let_wait(removed)
        for name in removed:
            for waiting in self._view.control_consumers(name):
                if waiting not in removed and name not in self._redirected:
                    self.edits.remove_control_input(waiting, name)
        self._free_companions(removed)
        orphans = self._orphans(removed)
        for handle, variables in self._handles.items():
            self.edits.set_attr(handle, marks.CONVERTED, attr_strings(variables))
            if orphans:
                self.edits.set_attr(handle, marks.DISCONNECTED, attr_strings(orphans))
                orphans = []
        for name in removed:
            self.edits.remove_node(name)
        return self.edits

    def _let_wait(self, removed: Collection[str]) -> None:
        """Let new nodes wait for what is there in the end of what they are to wait for."""
        for node, controls in self._waits:
            for name in dict.fromkeys(self._instead.get(name, name) for name in controls):
                if name in removed:
                    raise GraphRewriteError(f"node {name!r} goes with its variable, but {node!r} must wait for it")
                self.edits.add_control_input(node, name)

    # Nodes

    def _name(self, hint: str) -> str:
        return self._view.unique_name(hint)

    def _const(self, hint: str, value: Any, dtype: int, device: str = "") -> TensorRef:
        attrs = {"dtype": attr_type(dtype), "value": attr_tensor(value, dtype)}
        return self.edits.add_node(self._name(hint), "Const", (), attrs, device=device)

    def _add(
        self,
        hint: str,
        op: str,
        inputs: Sequence[TensorRef],
        attrs: dict[str, AttrValue] | None = None,
        *,
        controls: Iterable[str] = (),
        device: str = "",
    ) -> TensorRef:
        added = self.edits.add_node(self._name(hint), op, inputs, attrs, device=device)
        self._waits.append((added.node, tuple(controls)))
        return added

    def _redirect(self, old: TensorRef, new: TensorRef) -> None:
        self.edits.redirect(self._view, old, new)

    def _redirect_controls(self, old: Iterable[str], new: str) -> None:
        """Let what waits for any of `old` wait for `new`."""
        waiting: dict[str, None] = {}
        names = list(dict.fromkeys(old))
        for name in names:
            for consumer in self._view.control_consumers(name):
                if consumer not in names:
                    self.edits.remove_control_input(consumer, name)
                    waiting[consumer] = None
        for consumer in waiting:
            self.edits.add_control_input(consumer, new)
        self._redirected.update(names)
        self._instead.update(dict.fromkeys(names, new))

    # The table and its lookups

    def _table(self, plan: TablePlan, scope: str) -> TensorRef:
        first = self._view.node(plan.variable.nodes[0])
        attrs = {
            "table_name": attr_bytes(plan.table_name),
            "shared_name": attr_bytes(plan.table_name),
            "dim": attr_int(plan.variable.dim),
            "initializer": attr_bytes(plan.initializer.kind),
            "initializer_a": attr_float(plan.initializer.a),
            "initializer_b": attr_float(plan.initializer.b),
            "seed": attr_int(plan.initializer.seed),
        }
        handle = self._add(f"{scope}/handle", OP_TABLE, (), attrs, device=first.device)
        slots = [] if plan.training is None else [s.variable for u in plan.training.updates for s in u.slots]
        self._handles[handle.node] = [*plan.variable.nodes, *slots]
        self.edits.set_attr(handle.node, marks.ORIGIN, attr_bytes(self._origin(plan).encode()))
        return handle

    def _origin(self, plan: TablePlan) -> TableOrigin:
        updates: tuple[Update, ...] = () if plan.training is None else plan.training.updates
        slots = list(zip(*(update.slots for update in updates)))  # of each slot the variable of each part
        return TableOrigin(
            table_name=plan.table_name,
            rows=plan.variable.rows,
            strategy=plan.variable.strategy,
            variable=self._saved(plan.variable.nodes),
            optimizer=SLOT_OWNERS[updates[0].rule.op] if slots else "",
            slots=tuple(self._saved([slot.variable for slot in parts]) for parts in slots),
            slot_initials=tuple(slot.initial_value for slot in updates[0].slots) if updates else (),
            same_ids=not plan.bounds,
        )

    def _saved(self, nodes: Iterable[str]) -> SavedVariable:
        return SavedVariable(tuple(dict.fromkeys(saved_name(self._view, name) for name in nodes)))

    def _lift(self, bound: Bound) -> None:
        """Let ids pass a modulo by, or a hash have all buckets; other tables may have asked for it already."""
        if bound.node in self._unbounded:
            return
        self._unbounded.add(bound.node)
        if bound.is_hash:
            self.edits.set_attr(bound.node, "num_buckets", attr_int(MAX_BUCKETS))
            return
        ids = self._view.node(bound.node).inputs[0]
        self._lifted[TensorRef(bound.node, 0)] = ids
        self._redirect(TensorRef(bound.node, 0), ids)

    def _look_up(self, plan: TablePlan, lookup: StaticLookup, handle: TensorRef, scope: str) -> _Rows:
        node = self._view.node(lookup.node)
        place = f"{scope}/{lookup.node}"
        mark = {ATTR_LOOKUP: attr_bytes(lookup.node)}
        assert lookup.ids is not None
        ids = self._lifted.get(lookup.ids, lookup.ids)
        dtype = self._view.dtype(ids) or DT_INT64
        if lookup.is_nd:
            attrs = {"T": attr_type(dtype), "squeeze_dims": attr_ints([-1])}
            ids = self._add(f"{place}/row_ids", "Squeeze", [ids], attrs, device=node.device)
        if plan.checks_ids:
            ids = self._rows_only(plan, ids, dtype, scope, node.device)
        ids = self._add(f"{place}/ids", "Identity", [ids], {"T": attr_type(dtype), **mark}, device=node.device)
        attrs = {"Tids": attr_type(dtype), **mark}
        keys = self._add(f"{place}/unique", OP_UNIQUE, [ids], attrs, device=node.device)
        restore, counts = TensorRef(keys.node, 1), TensorRef(keys.node, 2)
        hints = self._const(f"{place}/no_hints", [], DT_INT64, node.device)
        is_trained = lookup.node in plan.trained
        find, inputs = (OP_FIND_OR_INSERT, [counts]) if is_trained else (OP_FIND, [])
        addresses = self._add(
            f"{place}/addresses",
            find,
            [handle, keys, hints, *inputs],
            dict(mark),
            controls=lookup.controls,
            device=node.device,
        )
        default = self._default_row(plan, f"{place}/default_row", is_trained, node.device)
        attrs = {"dim": attr_int(plan.variable.dim), **mark}
        embedding = self._add(
            f"{place}/local_emb",
            OP_GATHER,
            [handle, addresses, default],
            attrs,
            controls=lookup.controls,
            device=node.device,
        )
        if lookup.is_pooled:
            rows = self._pool_rows(node, embedding, restore)
        else:
            axis = self._const(f"{place}/axis", 0, DT_INT32, node.device)
            rows = self._gather(f"{place}/embeddings", embedding, restore, axis, DT_FLOAT, node.device, mark)
            self._redirect(TensorRef(lookup.node, 0), rows)
            self._redirect_controls([lookup.node, *lookup.gathers], rows.node)
            for name in (lookup.node, *lookup.gathers):
                self._removed[name] = None
        for gather in lookup.gathers:
            for read in reads_before(self._view, self._view.node(gather).inputs[0]):
                waiting = self._view.control_consumers(read)
                self._waits.extend((name, (rows.node,)) for name in waiting if name not in lookup.controls)
        return _Rows(addresses, keys, restore)

    def _pool_rows(self, node: Node, embedding: TensorRef, restore: TensorRef) -> TensorRef:
        """Let an op that adds up rows of the variable add up the same rows of the lookup, in the same order."""
        self.edits.set_input(node.name, 0, embedding)
        self.edits.set_input(node.name, 1, restore)
        self.edits.set_attr(node.name, "Tidx", attr_type(DT_INT32))
        return TensorRef(node.name, 0)

    def _rows_only(self, plan: TablePlan, ids: TensorRef, dtype: int, scope: str, device: str) -> TensorRef:
        """The ids, or an error as from the gather of a variable if one is no row of it."""
        rows = sum(plan.variable.rows)
        if ids.node in self._view and are_rows(self._view, ids, rows):
            return ids
        key = (ids, plan.table_name)
        if key not in self._checked:
            attrs = {
                "Tids": attr_type(dtype),
                "rows": attr_int(rows),
                "variable": attr_bytes(plan.variable.name),
            }
            self._checked[key] = self._add(f"{scope}/rows_only", OP_CHECK_IDS, [ids], attrs, device=device)
        return self._checked[key]

    def _default_row(self, plan: TablePlan, hint: str, is_trained: bool, device: str) -> TensorRef:
        """What a lookup that does not insert gives where the table has no row: the row that it would begin with."""
        value = plan.initializer.a if plan.initializer.is_constant else 0.0
        row = [value] * plan.variable.dim if value and not is_trained else []
        return self._const(hint, row, DT_FLOAT, device)

    def _gather(
        self,
        hint: str,
        rows: TensorRef,
        positions: TensorRef,
        axis: TensorRef,
        dtype: int,
        device: str,
        mark: dict[str, AttrValue] | None = None,
    ) -> TensorRef:
        attrs = {
            "Tparams": attr_type(dtype),
            "Tindices": attr_type(DT_INT32),
            "Taxis": attr_type(DT_INT32),
            **(mark or {}),
        }
        return self._add(hint, "GatherV2", [rows, positions, axis], attrs, device=device)

    # Training

    def _train(self, plan: TablePlan, handle: TensorRef, scope: str, rows: dict[str, _Rows]) -> None:
        training = plan.training
        assert training is not None
        first = training.updates[0]
        owned = self._owned(training.updates)
        controls = [name for node in owned for name in self._view.node(node).controls]
        controls = [name for name in (*controls, *awaited_by_constants(self._view, owned)) if name not in owned]
        device = self._view.node(first.nodes[0]).device
        single = len(training.updates) == 1 and len(training.sources[0]) == 1
        for group in training.sources:
            for source in group:
                self._sum_by_position(scope, source, rows[source.lookup.node])
        if single:
            addresses, gradient = self._one_lookup(plan, scope, rows, device)
        else:
            addresses, gradient = self._many_lookups(plan, scope, rows, device)
        scalars = [self._shared_scalar(ref) for _, ref in first.rule.scalars]
        for name, value in first.rule.constants:
            scalars.append(self._const(f"{scope}/{name}", value, DT_FLOAT, device))
        attrs = {name: attr_float(value) for name, value in first.rule.attrs}
        waiting = sorted({w for node in owned for w in self._view.control_consumers(node) if w not in owned})
        if waiting:  # a run that needs one of the updates needs what waits for it, so it needs them all
            attrs[ATTR_UPDATE] = attr_bytes(waiting[0])
        inputs = [handle, addresses, gradient, *scalars]
        update = self._add(
            f"{scope}/update", first.rule.op, inputs, attrs, controls=dict.fromkeys(controls), device=device
        )
        self._redirect_controls(owned, update.node)
        for name in owned:
            self._removed[name] = None

    def _owned(self, updates: Iterable[Update]) -> list[str]:
        """The nodes of the updates, and groups that wait for them alone."""
        owned = [name for update in updates for name in update.nodes]
        known = set(owned)
        for name in owned:
            for waiting in self._view.control_consumers(name):
                node = self._view.node(waiting)
                is_group = _is_inner_group(node) and known.issuperset(node.controls) and self._view.edges(waiting)
                if waiting not in known and is_group and waiting not in self._keep:
                    known.add(waiting)
                    owned.append(waiting)
        return owned

    def _shared_scalar(self, ref: TensorRef) -> TensorRef:
        """A scalar that another table uses already if it is the same, so that updates can be one op."""
        for known in self._scalars:
            if known == ref or same_formula(self._view, known, ref):
                return known
        self._scalars.append(ref)
        return ref

    def _one_lookup(
        self, plan: TablePlan, scope: str, rows: dict[str, _Rows], device: str
    ) -> tuple[TensorRef, TensorRef]:
        """Of one lookup the addresses, and the gradients summed by its distinct ids: the same order, the same sums."""
        assert plan.training is not None
        gradient = plan.training.gradients[0]
        source = plan.training.sources[0][0]
        own = rows[source.lookup.node]
        if source.summed_by:
            return own.addresses, self._sums.get(gradient.values, gradient.values)
        attrs = {"N": attr_int(1), "dim": attr_int(plan.variable.dim)}
        inputs = [gradient.values, own.restore, own.keys]
        return own.addresses, self._add(f"{scope}/sum_gradients", OP_SUM_GRADIENTS_MANY, inputs, attrs, device=device)

    def _many_lookups(
        self, plan: TablePlan, scope: str, rows: dict[str, _Rows], device: str
    ) -> tuple[TensorRef, TensorRef]:
        """Address and gradient of each position; the update sums those of one address in this order."""
        assert plan.training is not None
        axis = self._const(f"{scope}/update/axis", 0, DT_INT32, device)
        parts: list[TensorRef] = []
        for sources in plan.training.sources:
            for source in sources:
                own = rows[source.lookup.node]
                parts.append(
                    own.addresses
                    if source.summed_by
                    else self._addresses_of_positions(scope, source.lookup, source.part, own, axis, device)
                )
        values = [self._sums.get(gradient.values, gradient.values) for gradient in plan.training.gradients]
        return (
            self._concat(f"{scope}/update/addresses", parts, axis, DT_INT64, device),
            self._concat(f"{scope}/update/gradients", values, axis, DT_FLOAT, device),
        )

    def _sum_by_position(self, scope: str, source: Source, rows: _Rows) -> None:
        """Of a pooled lookup, sum gradients by the position of a key instead of by id."""
        if not source.summed_by or TensorRef(source.summed_by, 0) in self._sums:
            return
        node = self._view.node(source.summed_by)
        place = f"{scope}/{source.lookup.node}/update"
        attrs = {"T": attr_type(DT_INT64), "out_type": attr_type(DT_INT32)}
        count = self._add(f"{place}/count", "Size", [rows.keys], attrs, device=node.device)
        settings = {name: value for name, value in node.attrs().items() if not name.startswith("_")}
        sums = self._add(
            f"{place}/sums",
            node.op,
            [node.inputs[0], rows.restore, node.inputs[2], count],
            {**settings, "Tidx": attr_type(DT_INT32)},
            controls=node.controls,
            device=node.device,
        )
        self._sums[TensorRef(node.name, 0)] = sums
        self._redirect(TensorRef(node.name, 0), sums)

    def _addresses_of_positions(
        self, scope: str, lookup: StaticLookup, part: int, rows: _Rows, axis: TensorRef, device: str
    ) -> TensorRef:
        place = f"{scope}/{lookup.node}/update"
        all_positions = self._const(f"{place}/flat", [-1], DT_INT32, device)
        attrs = {"T": attr_type(DT_INT32), "Tshape": attr_type(DT_INT32)}
        restore = self._add(f"{place}/restore", "Reshape", [rows.restore, all_positions], attrs, device=device)
        if lookup.positions:
            restore = self._gather(f"{place}/part", restore, lookup.positions[part], axis, DT_INT32, device)
        return self._gather(f"{place}/addresses", rows.addresses, restore, axis, DT_INT64, device)

    def _concat(self, hint: str, tensors: Sequence[TensorRef], axis: TensorRef, dtype: int, device: str) -> TensorRef:
        if len(tensors) == 1:
            return tensors[0]
        attrs = {"N": attr_int(len(tensors)), "T": attr_type(dtype), "Tidx": attr_type(DT_INT32)}
        return self._add(hint, "ConcatV2", [*tensors, axis], attrs, device=device)

    # Initial values, and whatever else there was of the variable

    def _begin(self, plan: TablePlan, handle: TensorRef, scope: str) -> None:
        """In the place of the assignment of the initial value: its import, or an empty table."""
        if not plan.imports:
            self._begin_empty(plan, handle, scope)
            return
        start = 0
        imports: list[str] = []
        for part, (name, count) in enumerate(zip(plan.variable.nodes, plan.variable.rows)):
            for assign in uses_of(self._view, name).initial:
                node = self._view.node(assign)
                keys = self._row_keys(plan, f"{scope}/initial_keys", part, start, count)
                inputs = [handle, keys, node.inputs[1]]
                new = self._add(f"{scope}/import", OP_TABLE_IMPORT, inputs, controls=node.controls, device=node.device)
                self._redirect_controls([assign], new.node)
                imports.append(new.node)
            start += count
        if imports:  # without them the table would begin with other rows than the variable
            self.edits.set_attr(handle.node, "initial_rows", attr_int(start))
            self.edits.set_attr(handle.node, "begun_by", attr_bytes(imports[0]))

    def _begin_empty(self, plan: TablePlan, handle: TensorRef, scope: str) -> None:
        assigns = [assign for name in plan.variable.nodes for assign in uses_of(self._view, name).initial]
        if assigns:
            controls = dict.fromkeys(name for assign in assigns for name in self._view.node(assign).controls)
            device = self._view.node(assigns[0]).device
            clear = self._add(f"{scope}/begin", OP_TABLE_CLEAR, [handle], controls=controls, device=device)
            self._redirect_controls(assigns, clear.node)

    def _row_keys(self, plan: TablePlan, hint: str, part: int, start: int, count: int) -> TensorRef:
        """The ids of the rows of one node of the variable."""
        step = len(plan.variable.nodes) if plan.variable.strategy == MOD else 1
        first = part if plan.variable.strategy == MOD else start
        bounds = (first, first + count * step, step)
        inputs = [
            self._const(f"{hint}/{word}", value, DT_INT64) for word, value in zip(("start", "limit", "delta"), bounds)
        ]
        return self._add(hint, "Range", inputs, {"Tidx": attr_type(DT_INT64)})

    def _retire(self, name: str, dims: tuple[int, int], scope: str, imported: TensorRef | None) -> None:
        uses = uses_of(self._view, name)
        for shape in uses.shapes:
            dtype = self._view.dtype(TensorRef(shape, 0)) or DT_INT32
            known = self._const(f"{scope}/shape", list(dims), dtype, self._view.node(shape).device)
            self._redirect(TensorRef(shape, 0), known)
            self._redirect_controls([shape], known.node)
        for question in uses.initialized:
            answer = self._is_initialized(scope, imported)
            self._redirect(TensorRef(question, 0), answer)
            self._redirect_controls([question], answer.node)
        self._forget(name, uses)

    def _retire_slot(self, name: str, scope: str) -> None:
        uses = uses_of(self._view, name)
        for question in uses.initialized:
            answer = self._is_initialized(scope, None)
            self._redirect(TensorRef(question, 0), answer)
            self._redirect_controls([question], answer.node)
        self._forget(name, uses)

    def _is_initialized(self, scope: str, imported: TensorRef | None) -> TensorRef:
        if imported is None:
            return self._const(f"{scope}/is_initialized", True, DT_BOOL)
        size = self._add(f"{scope}/size", OP_TABLE_SIZE, [imported])
        zero = self._const(f"{scope}/empty", 0, DT_INT64)
        return self._add(f"{scope}/is_initialized", "Greater", [size, zero], {"T": attr_type(DT_INT64)})

    def _forget(self, name: str, uses: Uses) -> None:
        for save, index in uses.saves:
            self._saves.setdefault(save, set()).add(index)
            self._tables[-1].saves.append(save)
        self._tables[-1].restores.extend(uses.restores)
        self._redirected.update(uses.restores)
        for node in (*uses.shapes, *uses.initialized, *uses.initial, *uses.restores, *uses.reads, *uses.writes):
            self._removed[node] = None
        self._removed[name] = None

    # In the end

    def _free_companions(self, removed: dict[str, None]) -> None:
        """No node may be placed with one that is gone."""
        for node in self._view:
            if node.name in removed or not node.has_attr("_class"):
                continue
            places = colocated_with(node)
            left = [place for place in places if place not in removed]
            if len(left) == len(places):
                continue
            if left:
                self.edits.set_attr(node.name, "_class", attr_strings([f"loc:@{place}" for place in left]))
            else:
                self.edits.clear_attr(node.name, "_class")

    def _orphans(self, removed: dict[str, None]) -> list[str]:
        """What only removed nodes read."""
        sources: dict[str, None] = {}
        for name in removed:
            node = self._view.node(name)
            sources.update(dict.fromkeys([*(ref.node for ref in node.inputs), *node.controls]))
        return [name for name in sources if name not in removed]
