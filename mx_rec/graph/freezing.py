"""Lookups in the ops of TensorFlow alone: what a frozen graph computes them with.

::

    MxRecUnique -> MxRecFind(table) -> MxRecGatherByAddress(table) -> GatherV2

becomes, with a `frozen_index` from keys to positions and `frozen_rows`, whose row 0 is of zeros::

    UniqueWithCounts -> LookupTableFindV2(frozen_index) -> ResourceGather(frozen_rows) -> GatherV2

Position 0 is that of a key without a row, as is the address 0. The index and the rows are placeholders here: a graph
holds no table's content. Reference variables become resource variables (`frozen_variables`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mx_rec.errors import GraphRewriteError
from mx_rec.graph.attrs import (
    DT_BOOL,
    DT_FLOAT,
    DT_INT32,
    DT_INT64,
    DT_RESOURCE,
    DT_STRING,
    AttrValue,
    attr_int,
    attr_tensor,
    attr_type,
    attr_types,
    const_value,
)
from mx_rec.graph.edits import EditSet
from mx_rec.graph.frozen_variables import FrozenVariable, frozen_variables, read_by_handle
from mx_rec.graph.marks import KERNEL, OP_IMPL_MODE
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.op_signatures import (
    OP_CHECK_IDS,
    OP_FIND,
    OP_FIND_OR_INSERT,
    OP_FORWARD,
    OP_GATHER,
    OP_LOOK_UP_MANY,
    OP_OFFSETS,
    OP_POOL,
    OP_ROW_SPLITS,
    OP_TABLE,
    OP_UNIQUE,
)
from mx_rec.graph.view import GraphView

_OURS = "MxRec"


@dataclass(frozen=True)
class FrozenTable:
    """A table of a frozen graph.

    Attributes:
        table_name: its name.
        handle: the node of its handle in the graph before.
        dim: columns of an embedding.
        index: the placeholder (resource) of a lookup table from keys int64 to positions int64, 0 where there is no key.
        rows: the placeholder (resource) of a variable float32 [keys + 1, dim], by position; None for a table of fixed
            capacity, whose rows are a variable of the graph: position p is its row p - 1.
    """

    table_name: str
    handle: str
    dim: int
    index: str
    rows: str | None


@dataclass(frozen=True)
class FrozenGraph:
    """A graph without ops of this project.

    Attributes:
        graph_def: the graph; it lacks the placeholders of its tables and the handles of its variables, for which
            `tf.import_graph_def` takes an `input_map`.
        tables: what takes the places of the placeholders.
        variables: its variables.
    """

    graph_def: Any
    tables: tuple[FrozenTable, ...]
    variables: tuple[FrozenVariable, ...]


def freeze_graph(graph_def: Any, outputs: Sequence[str]) -> FrozenGraph:
    """The part of a graph that some nodes need, with lookups in the ops of TensorFlow.

    Pooled sums and means are those of MxRecPool to rounding; all else is equal bit for bit.

    Args:
        graph_def: with evaluation lookups (`is_train=False`).
        outputs: names of nodes.

    Raises:
        GraphRewriteError: an output is missing, or the part holds an op of this project that has no equivalent: one
            that inserts or updates, or one in a function; or it holds an op that writes a reference variable. The
            message names the node.
    """
    view = GraphView(GraphView(graph_def).closure(outputs))
    tables: dict[str, FrozenTable] = {}
    for rule in (_CheckIds, _Unique, _RowSplits, _LookUpMany, _Find, _Offsets, _Gather, _Pool, _Forward):
        stage = rule(view, tables)
        for node in view.nodes_of(rule.op):
            stage.replace(node)
        view = view.edited(stage.edits)
    view = GraphView(view.edited(_without_kernels(view)).closure(outputs))
    _check_no_op_of_ours(view)
    left = [table for table in tables.values() if table.index in view or (table.rows or "") in view]
    variables = frozen_variables(view)
    of_tables = (name for table in left for name in (table.index, table.rows) if name)
    given = {*(variable.handle for variable in variables), *of_tables}
    graph_def = view.closure(outputs)
    kept = [node for node in graph_def.node if node.name not in given]
    del graph_def.node[:]
    graph_def.node.extend(kept)
    read_by_handle(graph_def.node, variables)
    functions = _called(graph_def)
    del graph_def.library.function[:]
    graph_def.library.function.extend(functions)
    for node in graph_def.node:
        if "_class" in node.attr:  # may name a node that is given
            del node.attr["_class"]
    return FrozenGraph(graph_def, tuple(left), variables)


def _without_kernels(view: GraphView) -> EditSet:
    edits = EditSet()
    for node in view:
        for attribute in (KERNEL, OP_IMPL_MODE):
            if node.has_attr(attribute):
                edits.clear_attr(node.name, attribute)
    return edits


def _check_no_op_of_ours(view: GraphView) -> None:
    for node in view.nodes_of(OP_FIND_OR_INSERT):
        raise GraphRewriteError(
            f"node {node.name!r} inserts keys, which a frozen table cannot: export the model with "
            "sparse_lookup(..., is_train=False)"
        )
    for node in sorted(view, key=lambda node: node.op == OP_TABLE):  # the use of a table says more than its handle
        if node.op.startswith(_OURS):
            raise GraphRewriteError(f"node {node.name!r}: {node.op} has no equivalent in the ops of TensorFlow")


def _called(graph_def: Any) -> list[Any]:
    """The functions that the nodes of a graph call, and those that these call."""
    library = {function.signature.name: function for function in graph_def.library.function}
    called: dict[str, Any] = {}
    bodies = [graph_def.node]
    while bodies:
        for node in bodies.pop():
            names = [node.op]
            for value in node.attr.values():
                names += [value.func.name, *(function.name for function in value.list.func)]
            for name in names:
                if name in library and name not in called:
                    called[name] = library[name]
                    bodies.append(library[name].node_def)
    for name, function in called.items():
        for node in function.node_def:
            if node.op.startswith(_OURS):
                raise GraphRewriteError(
                    f"node {node.name!r} of function {name!r}: {node.op} in a function cannot be frozen; export a "
                    "model whose lookups are in the graph itself"
                )
    return list(called.values())


class _Rule:
    """Replaces the nodes of one op type."""

    op = ""

    def __init__(self, view: GraphView, tables: dict[str, FrozenTable]) -> None:
        self.view = view
        self.tables = tables
        self.edits = EditSet()

    def replace(self, node: Node) -> None:
        """Lets the consumers of the node read equivalent tensors."""
        for index, new in enumerate(self.outputs(node)):
            self.edits.redirect(self.view, TensorRef(node.name, index), new)
        self.edits.redirect_controls(self.view, node.name, node.inputs[-1].node)

    def outputs(self, node: Node) -> Sequence[TensorRef]:
        """What stands for each output of the node."""
        raise AssertionError("a rule says what stands for the outputs of its op")

    def add(
        self, node: Node, what: str, op: str, inputs: Iterable[TensorRef], attrs: dict[str, AttrValue] | None = None
    ) -> TensorRef:
        """A node in the scope of the one that is replaced, on its device."""
        name = self.view.unique_name(f"{node.name}/frozen/{what}")
        return self.edits.add_node(name, op, list(inputs), attrs, device=node.device)

    def const(self, node: Node, what: str, value: Any, dtype: int) -> TensorRef:
        """A constant."""
        return self.add(node, what, "Const", (), {"dtype": attr_type(dtype), "value": attr_tensor(value, dtype)})

    def table(self, handle: TensorRef) -> FrozenTable:
        """The table behind a handle."""
        if handle.node not in self.tables:
            node = self.view.node(handle.node)
            if node.op != OP_TABLE:
                raise GraphRewriteError(
                    f"node {node.name!r} ({node.op}) gives a table's handle; only {OP_TABLE} is known to"
                )
            is_fixed = node.int_attr("fixed_capacity") > 0
            index, rows = (
                self.edits.add_node(
                    self.view.unique_name(f"{node.name}/{part}"), "Placeholder", (), {"dtype": attr_type(DT_RESOURCE)}
                ).node
                for part in ("frozen_index", "frozen_rows")
            )
            self.tables[node.name] = FrozenTable(
                node.str_attr("table_name"), node.name, node.int_attr("dim"), index, None if is_fixed else rows
            )
        return self.tables[handle.node]

    def find(self, node: Node, what: str, handle: TensorRef, keys: TensorRef) -> TensorRef:
        """Positions of keys."""
        index = TensorRef(self.table(handle).index, 0)
        missing = self.const(node, f"{what}/missing", 0, DT_INT64)
        types = {"Tin": attr_type(DT_INT64), "Tout": attr_type(DT_INT64)}
        return self.add(node, what, "LookupTableFindV2", [index, keys, missing], types)

    def gather(self, node: Node, what: str, table: FrozenTable, positions: TensorRef, default: TensorRef) -> TensorRef:
        """The rows at positions; at position 0 the default row, zeros where that is empty."""
        if table.rows is None:
            raise GraphRewriteError(f"node {node.name!r} gathers by address from a table of fixed capacity")
        types = {"dtype": attr_type(DT_FLOAT), "Tindices": attr_type(DT_INT64)}
        rows = self.add(node, what, "ResourceGather", [TensorRef(table.rows, 0), positions], types)
        source = self.view.node(default.node)
        if source.op == "Const" and const_value(source.attr("value")).size == 0:
            return rows
        zero = self.const(node, f"{what}/zero", 0, DT_INT64)
        is_missing = self.add(node, f"{what}/equal", "Equal", [positions, zero], {"T": attr_type(DT_INT64)})
        by_row = self.expanded(node, f"{what}/is_missing", is_missing, 1, DT_BOOL)
        return self.add(node, f"{what}/or_default", "SelectV2", [by_row, default, rows], {"T": attr_type(DT_FLOAT)})

    def restored(self, node: Node, what: str, rows: TensorRef, places: TensorRef) -> TensorRef:
        """Rows spread over the batch."""
        axis = self.const(node, f"{what}/axis", 0, DT_INT32)
        types = {"Tparams": attr_type(DT_FLOAT), "Tindices": attr_type(DT_INT32), "Taxis": attr_type(DT_INT32)}
        return self.add(node, what, "GatherV2", [rows, places, axis], types)

    def expanded(self, node: Node, what: str, tensor: TensorRef, axis: int, dtype: int) -> TensorRef:
        """The tensor with one more dimension, of size 1."""
        place = self.const(node, f"{what}/axis", axis, DT_INT32)
        types = {"T": attr_type(dtype), "Tdim": attr_type(DT_INT32)}
        return self.add(node, what, "ExpandDims", [tensor, place], types)

    def reshaped(self, node: Node, what: str, tensor: TensorRef, shape: TensorRef, dtype: int) -> TensorRef:
        """The tensor in another shape (int32)."""
        types = {"T": attr_type(dtype), "Tshape": attr_type(DT_INT32)}
        return self.add(node, what, "Reshape", [tensor, shape], types)

    def flat(self, node: Node, what: str, tensor: TensorRef, dtype: int) -> TensorRef:
        """All elements in one dimension."""
        return self.reshaped(node, what, tensor, self.const(node, f"{what}/shape", [-1], DT_INT32), dtype)


class _CheckIds(_Rule):
    op = OP_CHECK_IDS

    def outputs(self, node: Node) -> Sequence[TensorRef]:
        ids = node.inputs[0]
        given = node.attr("Tids")
        dtype = DT_INT64 if given is None else given.type
        rows, name = node.int_attr("rows"), node.str_attr("variable")
        of_ids = {"T": attr_type(dtype)}
        low = self.add(node, "low", "GreaterEqual", [ids, self.const(node, "zero", 0, dtype)], of_ids)
        high = self.add(node, "high", "Less", [ids, self.const(node, "rows", rows, dtype)], of_ids)
        both = self.flat(node, "both", self.add(node, "in_range", "LogicalAnd", [low, high]), DT_BOOL)
        axis = self.const(node, "axis", [0], DT_INT32)
        every = self.add(node, "all", "All", [both, axis], {"Tidx": attr_type(DT_INT32)})
        text = self.const(node, "text", f"an id is not in [0, {rows}), the rows of variable {name!r}: ", DT_STRING)
        types = {"T": attr_types([DT_STRING, dtype])}
        check = self.add(node, "check", "Assert", [every, text, ids], types)
        checked = self.add(node, "ids", "Identity", [ids], of_ids)
        self.edits.add_control_input(checked.node, check.node)
        return (checked,)


class _Unique(_Rule):
    op = OP_UNIQUE

    def outputs(self, node: Node) -> Sequence[TensorRef]:
        ids = node.inputs[0]
        given = node.attr("Tids")
        dtype = DT_INT64 if given is None else given.type
        flat = self.flat(node, "flat", ids, dtype)
        if dtype != DT_INT64:
            flat = self.add(node, "keys", "Cast", [flat], {"SrcT": attr_type(dtype), "DstT": attr_type(DT_INT64)})
        types = {"T": attr_type(DT_INT64), "out_idx": attr_type(DT_INT32)}
        name = self.add(node, "unique", "UniqueWithCounts", [flat], types).node
        shape = self.add(node, "shape", "Shape", [ids], {"T": attr_type(dtype), "out_type": attr_type(DT_INT32)})
        restore = self.reshaped(node, "restore", TensorRef(name, 1), shape, DT_INT32)
        return TensorRef(name, 0), restore, TensorRef(name, 2)


class _RowSplits(_Rule):
    op = OP_ROW_SPLITS

    def outputs(self, node: Node) -> Sequence[TensorRef]:
        indices, num_rows = node.inputs
        column = self.const(node, "column", [0], DT_INT32)
        axis = self.const(node, "axis", 1, DT_INT32)
        types = {"Tparams": attr_type(DT_INT64), "Tindices": attr_type(DT_INT32), "Taxis": attr_type(DT_INT32)}
        of_values = self.add(node, "rows", "GatherV2", [indices, column, axis], types)
        one = self.const(node, "one", 1, DT_INT64)
        end = self.add(node, "end", "AddV2", [num_rows, one], {"T": attr_type(DT_INT64)})
        zero = self.const(node, "zero", 0, DT_INT64)
        rows = self.add(node, "range", "Range", [zero, end, one], {"Tidx": attr_type(DT_INT64)})
        as_row = self.const(node, "as_row", [1, -1], DT_INT32)
        sorted_rows = self.reshaped(node, "sorted", of_values, as_row, DT_INT64)
        wanted = self.reshaped(node, "wanted", rows, as_row, DT_INT64)
        types = {"T": attr_type(DT_INT64), "out_type": attr_type(DT_INT64)}
        bounds = self.add(node, "bounds", "LowerBound", [sorted_rows, wanted], types)
        return [self.flat(node, "row_splits", bounds, DT_INT64)]


class _LookUpMany(_Rule):
    op = OP_LOOK_UP_MANY

    def outputs(self, node: Node) -> Sequence[TensorRef]:
        n, training, restored = (node.int_attr(name) for name in ("N", "C", "R"))
        if training:
            raise GraphRewriteError(
                f"node {node.name!r} inserts keys, which a frozen table cannot: export the model with "
                "sparse_lookup(..., is_train=False)"
            )
        handles, keys = node.inputs[:n], node.inputs[n : 2 * n]
        end = len(node.inputs) - restored
        defaults, places = node.inputs[end - n : end], node.inputs[end:]
        positions = [self.find(node, f"find_{i}", handles[i], keys[i]) for i in range(n)]
        rows = [self.gather(node, f"gather_{i}", self.table(handles[i]), positions[i], defaults[i]) for i in range(n)]
        spread = [
            self.restored(node, f"restored_{i}", rows[lookup], places[i])
            for i, lookup in enumerate(node.ints_attr("restore_of"))
        ]
        return [*positions, *rows, *spread]


class _Find(_Rule):
    op = OP_FIND

    def outputs(self, node: Node) -> Sequence[TensorRef]:
        return [self.find(node, "find", node.inputs[0], node.inputs[1])]


class _Offsets(_Rule):
    op = OP_OFFSETS

    def outputs(self, node: Node) -> Sequence[TensorRef]:
        one = self.const(node, "one", 1, DT_INT64)
        return [self.add(node, "offsets", "Sub", [node.inputs[2], one], {"T": attr_type(DT_INT64)})]


class _Gather(_Rule):
    op = OP_GATHER

    def outputs(self, node: Node) -> Sequence[TensorRef]:
        handle, positions, default = node.inputs
        return [self.gather(node, "gather", self.table(handle), positions, default)]


class _Pool(_Rule):
    op = OP_POOL

    def outputs(self, node: Node) -> Sequence[TensorRef]:
        rows, restore, splits = node.inputs[:3]
        combiner = node.str_attr("combiner")
        places = self.flat(node, "places", restore, DT_INT32)
        embeddings = self.restored(node, "embeddings", rows, places)
        row_of_id, count = self._row_of_id(node, places, splits)
        weights = None
        if node.int_attr("W"):
            weights = self.flat(node, "weights", node.inputs[3], DT_FLOAT)
            by_row = self.expanded(node, "weights_by_row", weights, 1, DT_FLOAT)
            embeddings = self.add(node, "weighted", "Mul", [embeddings, by_row], {"T": attr_type(DT_FLOAT)})
        total = self._sum(node, "sum", embeddings, row_of_id, count)
        if combiner == "sum":
            return [total]
        if weights is None:
            counts = self._sizes(node, splits)
        else:
            terms = weights
            if combiner == "sqrtn":
                terms = self.add(node, "squares", "Mul", [weights, weights], {"T": attr_type(DT_FLOAT)})
            counts = self._sum(node, "weight", terms, row_of_id, count)
        if combiner == "sqrtn":
            counts = self.add(node, "root", "Sqrt", [counts], {"T": attr_type(DT_FLOAT)})
        divisor = self.expanded(node, "divisor", counts, 1, DT_FLOAT)
        return [self.add(node, "pooled", "DivNoNan", [total, divisor], {"T": attr_type(DT_FLOAT)})]

    def _row_of_id(self, node: Node, places: TensorRef, splits: TensorRef) -> tuple[TensorRef, TensorRef]:
        """The row of each id, int32, and the number of rows, int32: ids up to split i + 1 are in rows up to i."""
        ends = self._part(node, "ends", splits, 1, 0)
        types = {"T": attr_type(DT_INT64), "out_type": attr_type(DT_INT32)}
        count = self.add(node, "num_rows", "Size", [ends], types)
        ids = self.add(node, "num_ids", "Size", [places], {"T": attr_type(DT_INT32), "out_type": attr_type(DT_INT64)})
        zero, one = self.const(node, "zero", 0, DT_INT64), self.const(node, "one", 1, DT_INT64)
        positions = self.add(node, "positions", "Range", [zero, ids, one], {"Tidx": attr_type(DT_INT64)})
        as_row = self.const(node, "as_row", [1, -1], DT_INT32)
        sorted_ends = self.reshaped(node, "sorted_ends", ends, as_row, DT_INT64)
        wanted = self.reshaped(node, "wanted", positions, as_row, DT_INT64)
        rows = self.add(node, "rows", "UpperBound", [sorted_ends, wanted], types)
        return self.flat(node, "row_of_id", rows, DT_INT32), count

    def _sizes(self, node: Node, splits: TensorRef) -> TensorRef:
        """The number of ids of each row, float."""
        ends, begins = self._part(node, "to", splits, 1, 0), self._part(node, "from", splits, 0, -1)
        sizes = self.add(node, "sizes", "Sub", [ends, begins], {"T": attr_type(DT_INT64)})
        types = {"SrcT": attr_type(DT_INT64), "DstT": attr_type(DT_FLOAT)}
        return self.add(node, "counts", "Cast", [sizes], types)

    def _part(self, node: Node, what: str, splits: TensorRef, begin: int, end: int) -> TensorRef:
        """Row splits from `begin` on, up to `end` (negative; 0 for all)."""
        bounds = [
            self.const(node, f"{what}/{name}", [value], DT_INT32)
            for name, value in (("begin", begin), ("end", end), ("strides", 1))
        ]
        attrs = {"T": attr_type(DT_INT64), "Index": attr_type(DT_INT32), "end_mask": attr_int(0 if end else 1)}
        return self.add(node, what, "StridedSlice", [splits, *bounds], attrs)

    def _sum(self, node: Node, what: str, terms: TensorRef, rows: TensorRef, count: TensorRef) -> TensorRef:
        types = {"T": attr_type(DT_FLOAT), "Tindices": attr_type(DT_INT32), "Tnumsegments": attr_type(DT_INT32)}
        return self.add(node, what, "UnsortedSegmentSum", [terms, rows, count], types)


class _Forward(_Rule):
    op = OP_FORWARD

    def outputs(self, node: Node) -> Sequence[TensorRef]:
        return [node.inputs[0]]
