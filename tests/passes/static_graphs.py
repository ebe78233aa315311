"""Graphs in which plain TensorFlow looks up variables, built node by node."""

from __future__ import annotations

from typing import Any

from lookup_graphs import LookupGraph
from tensorflow.core.framework import function_pb2

from mx_rec.graph.attrs import (
    DT_BOOL,
    DT_FLOAT,
    DT_INT32,
    DT_INT64,
    DT_RESOURCE,
    DT_STRING,
    attr_func,
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


class Function:
    """A library function, node by node, in the spelling of function bodies."""

    def __init__(self, name: str, arguments: dict[str, int], results: dict[str, int]) -> None:
        self.proto = function_pb2.FunctionDef()
        self.proto.signature.name = name
        self.proto.signature.is_stateful = True
        for args, dtypes in ((self.proto.signature.input_arg, arguments), (self.proto.signature.output_arg, results)):
            for arg, dtype in dtypes.items():
                args.add(name=arg, type=dtype)

    def node(self, name: str, op: str, inputs: list[str], attrs: dict[str, Any] | None = None, device: str = "") -> str:
        node = self.proto.node_def.add(name=name, op=op, input=inputs, device=device)
        for key, value in (attrs or {}).items():
            node.attr[key].CopyFrom(value)
        return name

    def call(self, name: str, function: str, inputs: dict[str, int], results: list[int]) -> str:
        attrs = {"f": attr_func(function), "Tin": attr_types(inputs.values()), "Tout": attr_types(results)}
        return self.node(name, "StatefulPartitionedCall", [*inputs], attrs)

    def gather(self, name: str, handle: str, ids: str, attrs: dict[str, Any] | None = None) -> str:
        types = {"dtype": attr_type(DT_FLOAT), "Tindices": attr_type(DT_INT64)}
        return self.node(name, "ResourceGather", [handle, ids], {**types, **(attrs or {})})

    def gives(self, *, waits: tuple[str, ...] = (), **results: str) -> Any:
        for name, ref in results.items():
            self.proto.ret[name] = ref
        for name in waits:
            self.proto.signature.control_output.append(name)
            self.proto.control_ret[name] = name
        return self.proto


def placeholder_attr(name: str) -> Any:
    """An attribute that the call gives."""
    value = type(attr_int(0))()
    value.placeholder = name
    return value


def rows_function(name: str = "rows") -> Function:
    """Looks up an argument, doubles the rows by an op whose type the call says, and checks something."""
    function = Function(name, {"table": DT_RESOURCE, "ids": DT_INT64}, {"rows": DT_FLOAT})
    function.gather("lookup", "table", "ids", {"_class": attr_strings(["loc:@captured/12"])})
    function.node("rows", "AddV2", ["lookup:output:0", "lookup:output:0"], {"T": placeholder_attr("kind")}, "/cpu:1")
    true = {"dtype": attr_type(DT_BOOL), "value": attr_tensor(True, DT_BOOL)}
    function.node("fine", "Const", [], true)
    text = {"dtype": attr_type(DT_STRING), "value": attr_tensor("wrong", DT_STRING)}
    function.node("message", "Const", [], {**text, "_class": attr_strings(["loc:@fine", "loc:@table"])})
    types = {"T": attr_types([DT_STRING]), "summarize": attr_int(3)}
    function.node("check", "Assert", ["fine:output:0", "message:output:0"], types)
    function.gives(rows="rows:z:0", waits=("check",))
    return function


def called(change: Any = None) -> Any:
    """The serving graph of a SavedModel of TensorFlow 2: a signature that calls a function that looks up twice.

    Args:
        change: called with the graph and its function of the lookups, before the graph is made.
    """
    graph = StaticGraph()
    inner = rows_function()
    serve = Function("serve", {"ids": DT_INT64, "table": DT_RESOURCE, "other": DT_RESOURCE}, {"a": DT_FLOAT, "b": 9})
    serve.call("first", "rows", {"table": DT_RESOURCE, "ids": DT_INT64}, [DT_FLOAT])
    serve.call("second", "rows", {"table": DT_RESOURCE, "first_ids:z:0": DT_INT64, "^first": 0}, [DT_FLOAT])
    serve.node("first_ids", "AddV2", ["ids", "ids"], {"T": attr_type(DT_INT64)})
    serve.call("beside", "beside", {"other": DT_RESOURCE}, [DT_FLOAT])
    for node in serve.proto.node_def:
        if node.op == "StatefulPartitionedCall":
            node.attr["f"].func.attr["kind"].type = DT_FLOAT
            del node.attr["Tin"].list.type[2:]
    types = {"T": attr_type(DT_FLOAT)}
    serve.node("sum", "AddV2", ["first:output:0", "beside:output:0", "^second"], types)
    serve.gives(a="sum:z:0", b="ids", waits=("first", "second", "beside"))
    beside = Function("beside", {"variable": DT_RESOURCE}, {"value": DT_FLOAT})
    beside.node("read", "ReadVariableOp", ["variable"], {"dtype": attr_type(DT_FLOAT)})
    beside.node("mean", "Sum", ["read:value:0", "axes:output:0"], {"T": attr_type(DT_FLOAT), "Tidx": attr_type(3)})
    beside.node("axes", "Const", [], {"dtype": attr_type(3), "value": attr_tensor([0, 1], 3)})
    beside.gives(value="mean:output:0", waits=("read",))
    if change is not None:
        change(graph, inner)
    for function in (inner, serve, beside):
        graph.add_function(function.proto)
    ids = graph.add("ids", "Placeholder", (), {"dtype": attr_type(DT_INT64), "shape": _shape([2])})
    emb, other = graph.variable("emb"), graph.variable("other", 3)
    types = {"Tin": attr_types([DT_INT64, DT_RESOURCE, DT_RESOURCE]), "Tout": attr_types([DT_FLOAT, DT_INT64])}
    attrs = {"f": attr_func("serve"), **types}
    waits = [graph.add(name, "NoOp").node for name in ("before", "also_before")]
    graph.add("call", "StatefulPartitionedCall", [ids, emb, other], attrs, controls=waits, device="/job:worker")
    graph.unary("result", "Identity", TensorRef("call", 0), DT_FLOAT)
    graph.unary("ids_again", "Identity", TensorRef("call", 1), DT_INT64, controls=["call"])
    return graph.graph_def()


def not_inlined() -> Any:
    """As above, but its functions say that they are not to be inlined."""

    def change(_: Any, inner: Function) -> None:
        inner.proto.attr["_noinline"].b = True

    return called(change)


def looked_up_in_the_open() -> Any:
    """A lookup outside functions, and a function that is given another variable."""
    graph = StaticGraph()
    ids, _, _ = graph.batch()
    graph.gather("lookup", graph.variable("emb"), ids)
    inner = Function("beside", {"variable": DT_RESOURCE}, {"value": DT_FLOAT})
    inner.node("read", "ReadVariableOp", ["variable"], {"dtype": attr_type(DT_FLOAT)})
    graph.add_function(inner.gives(value="read:value:0"))
    types = {"Tin": attr_types([DT_RESOURCE]), "Tout": attr_types([DT_FLOAT])}
    graph.add("call", "StatefulPartitionedCall", [graph.variable("other")], {"f": attr_func("beside"), **types})
    return graph.graph_def()
