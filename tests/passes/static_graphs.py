"""Graphs in which plain TensorFlow looks up variables, built node by node."""

from __future__ import annotations

from typing import Any

from lookup_graphs import LookupGraph

from mx_rec.graph.attrs import (
    DT_FLOAT,
    DT_INT32,
    DT_INT64,
    DT_STRING,
    attr_int,
    attr_shapes,
    attr_strings,
    attr_tensor,
    attr_type,
    attr_types,
    known_shape,
)
from mx_rec.graph.node import TensorRef

DIM = 4


class StaticGraph(LookupGraph):
    """Adds nodes the way `get_variable`, `tf.nn` and `tf.compat.v1.train` do."""

    def reshape(self, name: str, value: Any, shape: list[int], dtype: int) -> TensorRef:
        attrs = {"T": attr_type(dtype), "Tshape": attr_type(DT_INT32)}
        return self.add(name, "Reshape", [value, self.const(f"{name}/shape", shape, DT_INT32)], attrs)

    def variable(self, name: str, rows: int = 20, *, slot_value: float | None = None) -> TensorRef:
        """A variable with a random initial value, or a slot with one number."""
        place = {"_class": attr_strings([f"loc:@{name}"])}
        shape = {"dtype": attr_type(DT_FLOAT), "shape": _shape([rows, DIM])}
        handle = self.add(name, "VarHandleOp", (), {**shape, **place})
        dims = self.const(f"{name}/Initializer/shape", [rows, DIM], DT_INT32)
        if slot_value is None:
            types = {"T": attr_type(DT_INT32), "dtype": attr_type(DT_FLOAT), "seed": attr_int(1), **place}
            value = self.add(f"{name}/Initializer/random", "TruncatedNormal", [dims], types)
        else:
            number = self.const(f"{name}/Initializer/number", slot_value, DT_FLOAT)
            types = {"T": attr_type(DT_FLOAT), "index_type": attr_type(DT_INT32)}
            value = self.add(f"{name}/Initializer/fill", "Fill", [dims, number], types)
        self.add(f"{name}/Assign", "AssignVariableOp", [handle, value], {"dtype": attr_type(DT_FLOAT)})
        self.add(f"{name}/IsInitialized", "VarIsInitializedOp", [handle])
        self.read(f"{name}/Read", handle)
        return handle

    def read(self, name: str, handle: TensorRef) -> TensorRef:
        return self.add(name, "ReadVariableOp", [handle], {"dtype": attr_type(DT_FLOAT)})

    def gather(self, name: str, handle: TensorRef, ids: Any) -> TensorRef:
        attrs = {"dtype": attr_type(DT_FLOAT), "Tindices": attr_type(DT_INT64)}
        return self.add(name, "ResourceGather", [handle, ids], attrs)

    def gradient(self, name: str, rows: TensorRef, ids: Any) -> tuple[TensorRef, TensorRef]:
        """(ids, gradients) without repetition, of a loss that is half the square of `rows`."""
        values = self.reshape(f"{name}/values", rows, [-1, DIM], DT_FLOAT)
        flat = self.reshape(f"{name}/indices", ids, [-1], DT_INT64)
        self.add(f"{name}/Unique", "Unique", [flat], {"T": attr_type(DT_INT64), "out_idx": attr_type(DT_INT32)})
        distinct, index = TensorRef(f"{name}/Unique", 0), TensorRef(f"{name}/Unique", 1)
        types = {"T": attr_type(DT_INT64), "out_type": attr_type(DT_INT32)}
        size = self.add(f"{name}/Size", "Size", [distinct], types)
        types = {"T": attr_type(DT_FLOAT), "Tindices": attr_type(DT_INT32), "Tnumsegments": attr_type(DT_INT32)}
        return distinct, self.add(f"{name}/Sum", "UnsortedSegmentSum", [values, index, size], types)

    def apply(self, name: str, op: str, handles: list[TensorRef], *rest: Any) -> TensorRef:
        """A sparse update: handles, then scalars, gradient and indices in the op's order."""
        scalars = [self.const(f"{name}/{i}", x, DT_FLOAT) if isinstance(x, float) else x for i, x in enumerate(rest)]
        dtype = "dtype" if "Scatter" in op else "T"
        attrs = {dtype: attr_type(DT_FLOAT), "Tindices": attr_type(DT_INT64)}
        return self.add(name, op, [*handles, *scalars], attrs)

    def saver(self, *handles: TensorRef) -> None:
        names = [handle.node for handle in handles]
        name = self.const("save/filename", "model", DT_STRING)
        attrs = {"dtype": attr_type(DT_STRING), "shape": _shape([])}
        prefix = self.add("save/Const", "PlaceholderWithDefault", [name], attrs)
        lists = [self._strings("save/names", names), self._strings("save/slices", [""] * len(names))]
        values = [self.read(f"save/{name}", handle) for name, handle in zip(names, handles)]
        attrs = {"dtypes": attr_types([DT_FLOAT] * len(names))}
        self.add("save/SaveV2", "SaveV2", [prefix, *lists, *values], attrs)
        self.unary("save/control_dependency", "Identity", prefix, DT_STRING, controls=["save/SaveV2"])
        self.add("save/RestoreV2", "RestoreV2", [prefix, *lists], attrs)
        assigns = []
        for index, (name, handle) in enumerate(zip(names, handles)):
            value = self.unary(f"save/Identity_{index}", "Identity", TensorRef("save/RestoreV2", index), DT_FLOAT)
            assigns.append(f"save/Assign_{name}")
            self.add(assigns[-1], "AssignVariableOp", [handle, value], {"dtype": attr_type(DT_FLOAT)})
        self.add("save/restore_all", "NoOp", (), controls=assigns)

    def _strings(self, name: str, values: list[str]) -> TensorRef:
        attrs = {"dtype": attr_type(DT_STRING), "value": attr_tensor(values, DT_STRING)}
        return self.add(name, "Const", (), attrs)


def _shape(dims: list[int]) -> Any:
    value = attr_shapes([known_shape(dims)])
    result = type(value)()
    result.shape.CopyFrom(value.list.shape[0])
    return result


def trained(update: str = "ResourceSparseApplyAdagrad") -> Any:
    """One lookup, trained with Adagrad (or Momentum, which has the same form), and a Saver; one dense variable."""
    graph = StaticGraph()
    ids, _, _ = graph.batch()
    emb, slot, other = graph.variable("emb"), graph.variable("emb/slot", slot_value=0.5), graph.variable("other", 3)
    rows = graph.gather("lookup", emb, graph.mod("mod", ids, 20))
    graph.unary("use", "Identity", rows, DT_FLOAT)
    distinct, total = graph.gradient("grad", rows, TensorRef("mod", 0))
    rest = [0.1, total, distinct] + ([0.9] if "Momentum" in update else [])
    graph.apply("update", update, [emb, slot], *rest)
    graph.add("train", "NoOp", (), controls=["update"])
    graph.add("init", "NoOp", (), controls=["emb/Assign", "emb/slot/Assign", "other/Assign"])
    graph.saver(emb, slot, other)
    return graph.graph_def()


def momentum() -> Any:
    return trained("ResourceSparseApplyMomentum")


def summed() -> Any:
    """Rows that one op gathers and adds up, trained with SGD."""
    graph = StaticGraph()
    _, ids, _ = graph.batch()
    emb = graph.variable("emb")
    segments = graph.const("segments", [0, 0], DT_INT32)
    types = {"T": attr_type(DT_FLOAT), "Tidx": attr_type(DT_INT64), "Tsegmentids": attr_type(DT_INT32)}
    rows = graph.add("lookup", "SparseSegmentMean", [graph.read("emb/value", emb), ids, segments], types)
    count = graph.const("rows", 20, DT_INT32)
    graph.add("grad", "SparseSegmentMeanGradV2", [rows, ids, segments, count], types)
    scaled = graph.binary("scaled", "Mul", TensorRef("grad", 0), graph.const("rate", 0.1, DT_FLOAT), DT_FLOAT)
    graph.apply("update", "ResourceScatterSub", [emb], TensorRef("grad", 1), scaled)
    graph.add("train", "NoOp", (), controls=["update"])
    return graph.graph_def()


def partitioned() -> Any:
    """A variable in two parts, `mod`, without an update."""
    graph = StaticGraph()
    _, ids, _ = graph.batch()
    parts = [graph.variable(f"emb/part_{index}", 10) for index in range(2)]
    two = graph.const("two", 2)
    part_of = graph.binary("mod", "FloorMod", ids, two)
    to_int = graph.add("part", "Cast", [part_of], {"SrcT": attr_type(DT_INT64), "DstT": attr_type(DT_INT32)})
    local = graph.binary("local", "FloorDiv", ids, two)
    size = graph.add("size", "Size", [ids], {"T": attr_type(DT_INT64), "out_type": attr_type(DT_INT32)})
    bounds = [graph.const("start", 0, DT_INT32), size, graph.const("step", 1, DT_INT32)]
    positions = graph.add("range", "Range", bounds, {"Tidx": attr_type(DT_INT32)})
    two_parts = {"num_partitions": attr_int(2)}
    graph.add("ids", "DynamicPartition", [local, to_int], {"T": attr_type(DT_INT64), **two_parts})
    graph.add("places", "DynamicPartition", [positions, to_int], {"T": attr_type(DT_INT32), **two_parts})
    rows = [graph.gather(f"gather_{index}", part, TensorRef("ids", index)) for index, part in enumerate(parts)]
    places = [TensorRef("places", index) for index in range(2)]
    attrs = {"N": attr_int(2), "T": attr_type(DT_FLOAT)}
    result = graph.add("lookup", "ParallelDynamicStitch", [*places, *rows], attrs)
    graph.unary("use", "Relu", result, DT_FLOAT)
    return graph.graph_def()


def near_misses() -> Any:
    """Variables that stay: read as a whole, with ids that no table has, and as one partition of two alone."""
    graph = StaticGraph()
    ids, _, _ = graph.batch()
    whole = graph.variable("whole")
    graph.gather("whole_rows", whole, ids)
    graph.unary("whole_value", "L2Loss", graph.read("whole_read", whole), DT_FLOAT)
    batched = graph.variable("batched")
    attrs = {"dtype": attr_type(DT_FLOAT), "Tindices": attr_type(DT_INT64), "batch_dims": attr_int(1)}
    graph.add("batched_rows", "ResourceGather", [batched, ids], attrs)
    tensor = graph.variable("tensor")
    values = graph.read("tensor_read", tensor)
    types = {"Tparams": DT_FLOAT, "Tindices": DT_INT64, "Taxis": DT_INT32}
    axis = graph.const("axis", 1, DT_INT32)
    graph.add("columns", "GatherV2", [values, ids, axis], {name: attr_type(dtype) for name, dtype in types.items()})
    unknown = graph.variable("unknown")
    rows = graph.gather("unknown_rows", unknown, ids)
    graph.apply("unknown_update", "ResourceScatterUpdate", [unknown], ids, rows)
    return graph.graph_def()
