"""The golden cases: per pass a graph it rewrites, one it must leave alone, and one it refuses or fails on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lookup_graphs import LookupGraph
from static_graphs import (
    called,
    looked_up_in_the_open,
    momentum,
    near_misses,
    not_inlined,
    partitioned,
    summed,
    trained,
)
from tensorflow.core.framework import function_pb2

from mx_rec.graph import marks
from mx_rec.graph.attrs import (
    DT_BOOL,
    DT_FLOAT,
    DT_INT32,
    DT_INT64,
    DT_RESOURCE,
    DT_STRING,
    DT_VARIANT,
    attr_bool,
    attr_bytes,
    attr_func,
    attr_int,
    attr_strings,
    attr_tensor,
    attr_type,
    attr_types,
)
from mx_rec.graph.canonical import canonical_text
from mx_rec.graph.node import TensorRef
from mx_rec.passes import Pass, PassFailed, PassManager, report_text
from mx_rec.passes.adopt_orphans import AdoptOrphans
from mx_rec.passes.convert_static_tables import ConvertStaticTables
from mx_rec.passes.find_lookups import EVAL, TRAIN, FindLookups
from mx_rec.passes.fuse_lookups import FuseLookups
from mx_rec.passes.fuse_updates import FuseUpdates
from mx_rec.passes.hoist_lookups import HoistLookups
from mx_rec.passes.hot_embedding import HotEmbedding
from mx_rec.passes.inline_calls import InlineCalls
from mx_rec.passes.insert_collections import InsertCollections
from mx_rec.passes.merge_lookups import MergeLookups
from mx_rec.passes.prune import Prune
from mx_rec.passes.static_lookups.plans import BY_KEY, TableChoice
from mx_rec.passes.swap_iterators import SwapIterators

GOLDEN_DIR = Path(__file__).resolve().parent.parent / "golden_graphs"


@dataclass(frozen=True)
class GoldenCase:
    """One golden: `step` runs on `build()` after `before` has."""

    name: str
    step: Pass
    build: Callable[[], Any]
    before: Sequence[Pass] = field(default_factory=tuple)

    @property
    def path(self) -> Path:
        return GOLDEN_DIR / self.step.name / f"{self.name}.txt"

    def input(self) -> Any:
        return PassManager(self.before).run(self.build()).graph_def

    def actual(self) -> str:
        """The report, and the graph after the pass (or the failure)."""
        try:
            result = PassManager([self.step]).run(self.input())
        except PassFailed as error:
            return f"failed: {error}\n"
        return f"{report_text(result.reports)}\n{canonical_text(result.graph_def)}"


def one_lookup() -> Any:
    graph = LookupGraph()
    ids, _, label = graph.batch()
    result = graph.lookup("first", graph.table(), graph.mod("mod", ids))
    graph.add("use", "IdentityN", [result, label], {"T": attr_types([1, 1])})
    return graph.graph_def()


def train_and_eval() -> Any:
    """Two tables, both sides on one get_next; the eval lookup repeats the preprocessing of the train lookup."""
    graph = LookupGraph()
    ids, other_ids, _ = graph.batch()
    user, item = graph.table("user"), graph.table("item")
    graph.lookup("user_train", user, graph.mod("train/mod", ids))
    graph.lookup("item_train", item, other_ids)
    graph.lookup("user_eval", user, graph.mod("eval/mod", ids), is_train=False)
    return graph.graph_def()


def two_get_nexts() -> Any:
    """Two draws from one iterator, each with a lookup."""
    graph = LookupGraph()
    iterator = graph.iterator("iterator", graph.dataset())
    table = graph.table()
    for name in ("a", "b"):
        ids = graph.get_next(f"batch_{name}", iterator)[0]
        graph.lookup(f"lookup_{name}", table, graph.mod(f"mod_{name}", ids))
    return graph.graph_def()


def reinitializable() -> Any:
    """One iterator, two datasets: nothing may be reserved."""
    graph = LookupGraph()
    iterator = graph.iterator("iterator")
    for name in ("train", "eval"):
        graph.add(f"make_{name}", "MakeIterator", [graph.dataset(f"data_{name}"), iterator])
    graph.lookup("first", graph.table(), graph.get_next("batch", iterator)[0])
    return graph.graph_def()


def one_shot() -> Any:
    graph = LookupGraph()
    graph.add_function(dataset_factory())
    attrs = {**graph.element_attrs(), "dataset_factory": attr_func("make_dataset")}
    iterator = graph.add("iterator", "OneShotIterator", (), attrs)
    ids = graph.get_next("batch", iterator)[0]
    keys = graph.add("vocabulary", "HashTableV2", (), {**hash_types(), "shared_name": attr_bytes("vocabulary_1")})
    words = graph.add("words", "AsString", [ids], {"T": attr_type(DT_INT64)})
    attrs = {"Tin": attr_type(DT_STRING), "Tout": attr_type(DT_INT64)}
    found = graph.add("find", "LookupTableFindV2", [keys, words, graph.const("missing", -1)], attrs)
    graph.lookup("first", graph.table(), found)
    return graph.graph_def()


def dataset_factory() -> Any:
    function = function_pb2.FunctionDef()
    function.signature.name = "make_dataset"
    function.signature.output_arg.add(name="dataset", type=DT_VARIANT)
    inner = LookupGraph()
    inner.dataset("data")
    for node in inner.graph_def().node:
        target = function.node_def.add()
        target.CopyFrom(node)
        target.name = node.name.replace("/", "_")
        del target.input[:]
        target.input.extend(f"{source.replace('/', '_')}:output:0" for source in node.input)
    function.ret["dataset"] = "data:handle:0"
    return function


def hash_types() -> dict[str, Any]:
    return {"key_dtype": attr_type(DT_STRING), "value_dtype": attr_type(DT_INT64)}


def shared_tensors() -> Any:
    """Preprocessing that the step reads too, an assert, and something that waits for the batch."""
    graph = LookupGraph()
    ids, _, _ = graph.batch()
    keys = graph.mod("mod", ids)
    ok = graph.binary("not_negative", "GreaterEqual", keys, graph.const("zero", 0))
    axes = graph.const("axes", [0, 1], 3)
    all_ok = graph.add("all_ok", "All", [ok, axes], {"Tidx": attr_type(3)})
    graph.add("assert", "Assert", [all_ok, keys], {"T": attr_types([DT_INT64])})
    checked = graph.unary("checked", "Identity", keys, controls=["assert"])
    graph.lookup("first", graph.table(), checked)
    graph.unary("summary", "Neg", keys)
    graph.unary("dead_before", "Neg", ids)
    graph.add("after_batch", "NoOp", (), controls=["batch"])
    return graph.graph_def()


def plain_tensorflow() -> Any:
    """Gathers that are no lookups of ours."""
    graph = LookupGraph()
    ids, other_ids, _ = graph.batch()
    variable = graph.add(
        "variable",
        "VarHandleOp",
        (),
        {"dtype": attr_type(1), "shape": graph_shape([20, 4]), "shared_name": attr_bytes("v")},
    )
    attrs = {"dtype": attr_type(1), "Tindices": attr_type(DT_INT64)}
    graph.add("gather", "ResourceGather", [variable, ids], attrs)
    value = graph.add("read", "ReadVariableOp", [variable], {"dtype": attr_type(1)})
    types = {"Tparams": attr_type(1), "Tindices": attr_type(DT_INT64), "Taxis": attr_type(3)}
    graph.add("gather_v2", "GatherV2", [value, other_ids, graph.const("axis", 0, 3)], types)
    return graph.graph_def()


def graph_shape(dims: Sequence[int]) -> Any:
    from mx_rec.graph.attrs import attr_value_pb2, known_shape

    return attr_value_pb2.AttrValue(shape=known_shape(dims))


def unmovable() -> Any:
    """One lookup for each reason to refuse that needs no second iterator, and one that moves."""
    graph = LookupGraph()
    iterator = graph.iterator("iterator", graph.dataset())
    ids = graph.get_next("batch", iterator)[0]
    other = graph.get_next("second_batch", iterator)[0]
    table = graph.table()
    graph.lookup("moves", table, ids)
    graph.lookup("constant", table, graph.const("ids", [1, 2]))
    fed = graph.add("fed", "Placeholder", (), {"dtype": attr_type(DT_INT64), "shape": graph_shape([2, 3])})
    graph.lookup("placeholder", table, graph.binary("with_fed", "AddV2", ids, fed))
    graph.lookup("two_batches", table, graph.binary("sum", "AddV2", ids, other))
    variable = graph.add("offset", "VarHandleOp", (), {"dtype": attr_type(DT_INT64), "shape": graph_shape([])})
    value = graph.add("read_offset", "ReadVariableOp", [variable], {"dtype": attr_type(DT_INT64)})
    graph.lookup("variable", table, graph.binary("with_offset", "AddV2", ids, value))
    ref = graph.add("ref_offset", "VariableV2", (), {"dtype": attr_type(DT_INT64), "shape": graph_shape([])})
    graph.lookup("ref_variable", table, graph.binary("with_ref_offset", "AddV2", ids, ref))
    bounds = [graph.const("shape", [2, 3]), graph.const("low", 0), graph.const("high", 9)]
    types = {"Tout": attr_type(DT_INT64), "T": attr_type(DT_INT64)}
    noise = graph.add("noise", "RandomUniformInt", bounds, types)
    graph.lookup("random", table, graph.binary("with_noise", "AddV2", ids, noise))
    changing = graph.add(
        "changing",
        "MutableHashTableV2",
        (),
        {"key_dtype": attr_type(DT_INT64), "value_dtype": attr_type(DT_INT64)},
    )
    types = {"Tin": attr_type(DT_INT64), "Tout": attr_type(DT_INT64)}
    found = graph.add("find", "LookupTableFindV2", [changing, ids, graph.const("missing", -1)], types)
    graph.lookup("mutable_table", table, found)
    predicate = graph.const("predicate", True, 10)
    graph.add("switch", "Switch", [ids, predicate], {"T": attr_type(DT_INT64)})
    graph.lookup("control_flow", table, TensorRef("switch", 1))
    printed = graph.unary("printed", "Identity", ids, controls=["print"])
    graph.add("print", "PrintV2", [graph.const("text", "x", DT_STRING)])
    graph.lookup("side_effect", table, printed)
    return graph.graph_def()


def by_handle(graph: LookupGraph, name: str = "feedable") -> TensorRef:
    """An iterator that draws by a handle that is fed. Returns its batch."""
    handle = graph.add(f"{name}/handle", "Placeholder", (), {"dtype": attr_type(DT_STRING), "shape": graph_shape([])})
    feedable_iterator = graph.add(name, "IteratorFromStringHandleV2", [handle], graph.element_attrs())
    return graph.get_next(f"{name}/batch", feedable_iterator)[0]


def source(graph: LookupGraph, name: str) -> TensorRef:
    """An iterator whose handle may be fed."""
    iterator = graph.iterator(name, graph.dataset(f"{name}/data"))
    graph.add(f"{name}/string_handle", "IteratorToStringHandle", [iterator])
    return iterator


def feedable() -> Any:
    """Both sides on one get_next, which draws by handle from an initializable or a one-shot iterator."""
    graph = LookupGraph()
    ids = by_handle(graph)
    source(graph, "train")
    graph.add_function(dataset_factory())
    attrs = {**graph.element_attrs(), "dataset_factory": attr_func("make_dataset")}
    graph.add("eval/string_handle", "IteratorToStringHandle", [graph.add("eval", "OneShotIterator", (), attrs)])
    table = graph.table()
    keys = graph.mod("mod", ids)
    graph.lookup("train", table, keys)
    graph.lookup("eval", table, keys, is_train=False)
    graph.unary("summary", "Neg", keys)
    return graph.graph_def()


def feedable_and_direct() -> Any:
    """The source is drawn from directly too, with the same preprocessing: one dataset, training alone."""
    graph = LookupGraph()
    ids = by_handle(graph)
    iterator = source(graph, "iterator")
    table = graph.table()
    graph.lookup("from_handle", table, graph.mod("handle_mod", ids))
    direct = graph.get_next("source_batch", iterator)[0]
    graph.lookup("from_source", table, graph.mod("source_mod", direct))
    return graph.graph_def()


def feedable_other_keys() -> Any:
    """As above, but the direct draw makes other keys; an iterator whose handle nobody can fetch is moved."""
    graph = LookupGraph()
    ids = by_handle(graph)
    iterator = source(graph, "iterator")
    table = graph.table()
    graph.lookup("from_handle", table, graph.mod("mod", ids))
    graph.lookup("from_source", table, graph.get_next("source_batch", iterator)[0])
    alone = graph.iterator("alone", graph.dataset("alone/data"))
    graph.lookup("alone", table, graph.get_next("alone/batch", alone)[0])
    return graph.graph_def()


def feedable_constant_handle() -> Any:
    graph = LookupGraph()
    handle = graph.const("handle", "from elsewhere", DT_STRING)
    iterator = graph.add("feedable", "IteratorFromStringHandleV2", [handle], graph.element_attrs())
    source(graph, "iterator")
    graph.lookup("first", graph.table(), graph.get_next("batch", iterator)[0])
    return graph.graph_def()


def feedable_without_source() -> Any:
    graph = LookupGraph()
    graph.lookup("first", graph.table(), by_handle(graph))
    return graph.graph_def()


def dataset_reads_variable() -> Any:
    """A map function over the dataset captures a variable; the lookup's own path is clear."""
    graph = LookupGraph()
    function = function_pb2.FunctionDef()
    function.signature.name = "add_step"
    for index, dtype in enumerate((DT_INT64, DT_INT64, 1)):
        function.signature.input_arg.add(name=f"x{index}", type=dtype)
        function.signature.output_arg.add(name=f"y{index}", type=dtype)
        function.ret[f"y{index}"] = f"x{index}"
    function.signature.input_arg.add(name="variable", type=DT_RESOURCE)
    function.node_def.add(name="read", op="ReadVariableOp", input=["variable"]).attr["dtype"].type = DT_INT64
    function.node_def.add(name="sum", op="AddV2", input=["x0", "read:value:0"]).attr["T"].type = DT_INT64
    function.ret["y0"] = "sum:z:0"
    graph.add_function(function)
    variable = graph.add("step", "VarHandleOp", (), {"dtype": attr_type(DT_INT64), "shape": graph_shape([])})
    attrs = {"f": attr_func("add_step"), "Targuments": attr_types([DT_RESOURCE]), **graph.element_attrs()}
    mapped = graph.add("mapped", "MapDataset", [graph.dataset(), variable], attrs)
    size = graph.const("size", 2)
    prefetched = graph.add("prefetched", "PrefetchDataset", [mapped, size], graph.element_attrs())
    ids = graph.get_next("batch", graph.iterator("iterator", prefetched))[0]
    graph.lookup("first", graph.table(), ids)
    return graph.graph_def()


def factory_reads_variable() -> Any:
    """As above, in the dataset function of a one-shot iterator."""
    graph_def = one_shot()
    (factory,) = graph_def.library.function
    node = factory.node_def.add(name="step", op="VarHandleOp")
    node.attr["dtype"].type = DT_INT64
    node.attr["shape"].shape.SetInParent()
    return graph_def


def conditional() -> Any:
    """A conditional of TensorFlow 1 before the lookup; the step reads what it computes in one branch."""
    graph = LookupGraph()
    ids, _, _ = graph.batch()
    limit = graph.const("limit", 9)
    axes = graph.const("axes", [0, 1], DT_INT32)
    small = graph.binary("small", "Less", ids, limit)
    is_small = graph.add("is_small", "All", [small, axes], {"Tidx": attr_type(DT_INT32)})
    for name, source, dtype in (("ids", ids, DT_INT64), ("pivot", is_small, DT_BOOL)):
        graph.add(f"cond/{name}", "Switch", [source, is_small], {"T": attr_type(dtype)})
    graph.unary("cond/no", "Identity", "cond/pivot:0", DT_BOOL)
    graph.unary("cond/yes", "Identity", "cond/pivot:1", DT_BOOL)
    double = graph.binary("cond/double", "AddV2", "cond/ids:1", "cond/ids:1")
    zero = graph.add("cond/zero", "ZerosLike", ["cond/ids:0"], {"T": attr_type(DT_INT64)}, controls=["cond/no"])
    merged = graph.add("cond/Merge", "Merge", [zero, double], {"T": attr_type(DT_INT64), "N": attr_int(2)})
    graph.lookup("first", graph.table(), merged)
    graph.unary("in_branch", "Neg", double)
    return graph.graph_def()


def in_function() -> Any:
    """A lookup inside a library function."""
    graph = LookupGraph()
    graph.batch()
    function = function_pb2.FunctionDef()
    function.signature.name = "body"
    for name, dtype in (("table", 20), ("keys", 9), ("hints", 9)):
        function.signature.input_arg.add(name=name, type=dtype)
    function.node_def.add(name="addresses", op="MxRecFind", input=["table", "keys", "hints"])
    graph.add_function(function)
    return graph.graph_def()


def broken() -> Any:
    """A find node without its hints."""
    graph_def = one_lookup()
    find = next(node for node in graph_def.node if node.op == "MxRecFindOrInsert")
    del find.input[2:]
    return graph_def


def already_marked() -> Any:
    """As a file that was rewritten by `insert_collections` and marked by its owner as well."""
    graph_def = one_lookup()
    for node in graph_def.node:
        if node.op == "MxRecFindOrInsert":
            node.attr["_mx_rec_collections"].CopyFrom(attr_strings(["mine"]))
    return graph_def


def marks_that_lie() -> Any:
    """Hoist marks that name a component the new batch does not have."""
    graph_def = PassManager([HoistLookups()]).run(one_lookup()).graph_def
    for node in graph_def.node:
        if marks.HOIST_FIND_COMPONENTS in node.attr:
            node.attr[marks.HOIST_FIND_COMPONENTS].list.i[0] = 99
    return graph_def


def training() -> Any:
    """Four tables, one of another dim; two with an eval lookup; all updated by one call."""
    graph = LookupGraph()
    ids, other_ids, _ = graph.batch()
    dims = {"user": 4, "item": 4, "shop": 4, "city": 8}
    updates = []
    for name, dim in dims.items():
        table = graph.table(name, dim)
        result = graph.lookup("train", table, ids if name == "user" else other_ids, dim=dim)
        updates.append(graph.update(f"mx_rec/{name}/train", graph.unary(f"{name}_grad", "Neg", result, 1), dim=dim))
        if name in ("user", "item"):
            graph.unary(f"{name}_eval", "Relu", graph.lookup("eval", table, ids, is_train=False), 1)
    graph.add("train", "NoOp", (), controls=updates)
    return graph.graph_def()


def latest(graph: LookupGraph, times: TensorRef) -> TensorRef:
    """One time for a batch, from one per sample."""
    attrs = {"T": attr_type(DT_INT64), "Tidx": attr_type(DT_INT32), "keep_dims": attr_bool(True)}
    return graph.add("time", "Max", [times, graph.const("time/axis", [0], DT_INT32)], attrs)


def timed() -> Any:
    """Lookups with a time per batch, with a time per sample, and without."""
    graph = LookupGraph()
    ids, other_ids, label = graph.batch()
    time = latest(graph, other_ids)
    results = [
        graph.lookup("one", graph.table(), graph.mod("mod", ids), time=time, coefficient=3),
        graph.lookup("two", graph.table("item"), ids, time=other_ids, is_per_sample=True),
        graph.lookup("three", graph.table("shop"), other_ids),
    ]
    graph.add("use", "IdentityN", [*results, label], {"T": attr_types([1, 1, 1, 1])})
    return graph.graph_def()


def timed_lookups_of_one_table() -> Any:
    """Two that share a time, one with a time per sample, one whose occurrences count more."""
    graph = LookupGraph()
    ids, other_ids, label = graph.batch()
    table, time = graph.table(), latest(graph, other_ids)
    results = [
        graph.lookup("one", table, ids, time=time),
        graph.lookup("two", table, other_ids, time=time),
        graph.lookup("sample", table, ids, time=other_ids, is_per_sample=True),
        graph.lookup("more", table, ids, time=time, coefficient=2),
    ]
    graph.add("use", "IdentityN", [*results, label], {"T": attr_types([1] * 5)})
    return graph.graph_def()


def waiting_lookups() -> Any:
    """Lookups that wait or are waited for, beside two that are not, and one that needs the result of another."""
    graph = LookupGraph()
    ids, other_ids, _ = graph.batch()
    for name in ("one", "two", "waits", "is_waited_for", "by_hand"):
        graph.lookup("train", graph.table(name), other_ids)
    graph.lookup("needs_one", graph.table("chained"), "mx_rec/one/train/addresses")
    graph.add("before", "NoOp")
    graph.add("after", "NoOp", (), controls=["mx_rec/is_waited_for/train/local_emb"])
    graph_def = graph.graph_def()
    for node in graph_def.node:
        if node.name == "mx_rec/waits/train/addresses":
            node.input.append("^before")
        if node.name == "mx_rec/by_hand/train/local_emb":
            node.input[2] = "mx_rec/two/train/rows"
    graph_def.node.extend(row_of("mx_rec/two/train/rows"))
    return graph_def


def row_of(name: str) -> Any:
    """A default row that is computed."""
    graph = LookupGraph()
    graph.unary(name, "Neg", graph.const(f"{name}/of", [1.0] * 4, 1), 1)
    return graph.graph_def().node


def separate_updates() -> Any:
    """Updates that must not go together: by hand, of one table, with nobody waiting, or with other settings."""
    graph = LookupGraph()
    ids, other_ids, _ = graph.batch()
    for call in ("hand", "twice", "unused", "rates"):
        updates = []
        tables = [graph.table(f"{call}_0"), graph.table(f"{call}_1")]
        for index, batch in enumerate((ids, other_ids)):
            table = tables[index if call != "twice" else 0]
            result = graph.lookup(f"{call}_{index}", table, batch)
            gradient = graph.unary(f"{call}_{index}/upstream", "Neg", result, 1)
            scope = f"{table.node.rsplit('/', 1)[0]}/{call}_{index}"
            rate = 0.1 * index if call == "rates" else 0.1
            updates.append(graph.update(scope, gradient, call="" if call == "hand" else call, rate=rate))
        if call != "unused":
            graph.add(call, "NoOp", (), controls=updates)
    return graph.graph_def()


def bounded() -> Any:
    """Training lookups of which one has no bound on the keys of a batch, and eval lookups of which none has."""
    graph = LookupGraph()
    ids, other_ids, _ = graph.batch()
    for name, max_keys in (("user", 5), ("item", 0), ("shop", 7)):
        table = graph.table(name)
        graph.unary(f"use_{name}", "Relu", graph.lookup("train", table, other_ids, max_keys=max_keys), DT_FLOAT)
        graph.unary(f"read_{name}", "Relu", graph.lookup("eval", table, ids, is_train=False), DT_FLOAT)
    return graph.graph_def()


def waiting_updates() -> Any:
    """Updates of one call: two that wait for one node, two for two nodes, and one for none."""
    graph = LookupGraph()
    _, other_ids, _ = graph.batch()
    waits = {"a": ["one"], "b": ["one", "two"], "c": [], "d": ["two", "one"], "e": ["one"]}
    updates = []
    for name in waits:
        result = graph.lookup("train", graph.table(name), other_ids)
        updates.append(graph.update(f"mx_rec/{name}/train", graph.unary(f"{name}_grad", "Neg", result, DT_FLOAT)))
    for name in ("one", "two"):
        graph.add(name, "NoOp")
    graph.add("train", "NoOp", (), controls=updates)
    graph_def = graph.graph_def()
    for node in graph_def.node:
        if node.name in updates:
            node.input.extend(f"^{control}" for control in waits[node.name.split("/")[1]])
    return graph_def


def pooled() -> Any:
    """Pooled lookups of sparse ids: two that are trained, one that is not, and an eval lookup."""
    graph = LookupGraph()
    sparse = graph.sparse_batch()
    table = graph.table()
    results = {name: graph.pooled_lookup(name, table, sparse) for name in ("one", "two", "frozen")}
    results["eval"] = graph.pooled_lookup("eval", table, sparse, is_train=False)
    for name, result in results.items():
        graph.unary(f"model/{name}", "StopGradient" if name == "frozen" else "Relu", result, 1)
    return graph.graph_def()


def several_lookups() -> Any:
    """Three train lookups of one table on one batch, one of them without gradient, and two eval lookups."""
    graph = LookupGraph()
    ids, other_ids, _ = graph.batch()
    user, item = graph.table("user"), graph.table("item")
    graph.unary("use_first", "Relu", graph.lookup("first", user, graph.mod("mod", ids)), DT_FLOAT)
    graph.unary("use_second", "Relu", graph.lookup("second", user, other_ids), DT_FLOAT)
    graph.unary("stopped", "StopGradient", graph.lookup("no_gradient", user, ids), DT_FLOAT)
    graph.unary("use_item", "Relu", graph.lookup("item_train", item, ids), DT_FLOAT)
    graph.unary("use_eval", "Relu", graph.lookup("first_eval", user, ids, is_train=False), DT_FLOAT)
    graph.unary("use_other", "Relu", graph.lookup("second_eval", user, other_ids, is_train=False), DT_FLOAT)
    return graph.graph_def()


def separate_lookups() -> Any:
    """Two pairs that can be merged, and lookups of the same table that cannot be with them, each for its reason."""
    graph = LookupGraph()
    iterator = graph.iterator("iterator", graph.dataset())
    table = graph.table()
    batches = [graph.get_next(name, iterator) for name in ("batch_a", "batch_b")]
    for batch, (ids, other_ids, _) in zip("ab", batches):
        graph.lookup(f"{batch}_ids", table, ids)
        graph.lookup(f"{batch}_other", table, other_ids)
    (ids, other_ids, _), (ids_b, _, _) = batches
    graph.lookup("two_batches", table, graph.binary("sum", "AddV2", ids, ids_b))
    fed = graph.add("fed", "Placeholder", (), {"dtype": attr_type(DT_INT64), "shape": graph_shape([2, 3])})
    graph.lookup("placeholder", table, fed)
    graph.lookup("constant", table, graph.const("constants", [1, 2]))
    result = graph.lookup("trained", table, ids)
    graph.update("mx_rec/user/trained", graph.unary("grad", "Neg", result, DT_FLOAT))
    graph.lookup("waited_for", table, other_ids)
    graph.add("after", "NoOp", (), controls=["mx_rec/user/waited_for/local_emb"])
    graph.lookup("other_default", table, ids)
    graph_def = graph.graph_def()
    for node in graph_def.node:
        if node.name == "mx_rec/user/other_default/default_row":
            node.attr["value"].CopyFrom(attr_tensor([1.0] * 4, DT_FLOAT))
    return graph_def


def partly_fed_ids() -> Any:
    """The ids are hashed and then added to fed ones: the hash could move, the lookup cannot."""
    graph = LookupGraph()
    ids, other_ids, _ = graph.batch()
    fed = graph.add("fed", "Placeholder", (), {"dtype": attr_type(DT_INT64), "shape": graph_shape([2])})
    table = graph.table()
    graph.lookup("stays", table, graph.binary("sum", "AddV2", graph.mod("hash", other_ids), fed))
    graph.lookup("moves", table, graph.mod("mod", ids))
    return graph.graph_def()


def with_orphans() -> Any:
    """Ids from constants on both sides, beside lookups of two iterators."""
    graph = LookupGraph()
    train_ids = graph.get_next("train_batch", graph.iterator("train", graph.dataset("train_data")))[0]
    eval_ids = graph.get_next("eval_batch", graph.iterator("eval", graph.dataset("eval_data", seed=1)))[0]
    user, item = graph.table("user"), graph.table("item")
    graph.lookup("user_train", user, train_ids)
    graph.lookup("user_eval", user, eval_ids, is_train=False)
    for side in ("train", "eval"):
        parts = [graph.const(f"{side}/x", [1, 2, 3]), graph.const(f"{side}/y", 4)]
        constant = graph.binary(f"{side}/sum", "AddV2", *parts)
        graph.lookup(f"orphan_{side}", item, constant, is_train=side == "train")
    return graph.graph_def()


def orphans_that_stay() -> Any:
    """Ids that come from no batch and may not move, and an eval lookup without an iterator of its side."""
    graph = LookupGraph()
    table = graph.table()
    graph.lookup("train", table, graph.batch()[0])
    fed = graph.add("fed", "Placeholder", (), {"dtype": attr_type(DT_INT64), "shape": graph_shape([2])})
    graph.lookup("placeholder", table, fed)
    variable = graph.add("offset", "VarHandleOp", (), {"dtype": attr_type(DT_INT64), "shape": graph_shape([])})
    graph.lookup("variable", table, graph.add("read", "ReadVariableOp", [variable], {"dtype": attr_type(DT_INT64)}))
    bounds = [graph.const("shape", [2]), graph.const("low", 0), graph.const("high", 9)]
    types = {"Tout": attr_type(DT_INT64), "T": attr_type(DT_INT64)}
    graph.lookup("random", table, graph.add("noise", "RandomUniformInt", bounds, types))
    graph.lookup("eval", table, graph.const("ids", [1, 2]), is_train=False)
    return graph.graph_def()


def merged() -> tuple[Pass, ...]:
    return (MergeLookups((TRAIN, EVAL)),)


def swapped() -> tuple[Pass, ...]:
    return (HoistLookups(), SwapIterators())


CASES = [
    GoldenCase("positive", InlineCalls((TableChoice("emb"),)), called),
    GoldenCase("positive_entries", InlineCalls((TableChoice("emb"),), frozenset({"result"})), called),
    GoldenCase("no_match", InlineCalls((TableChoice("*"),)), looked_up_in_the_open),
    GoldenCase("no_match_not_chosen", InlineCalls((TableChoice("other"),)), called),
    GoldenCase("refused", InlineCalls((TableChoice("*"),)), not_inlined),
    GoldenCase(
        "positive_inlined", ConvertStaticTables((TableChoice("emb"),)), called, (InlineCalls((TableChoice("emb"),)),)
    ),
    GoldenCase("positive", ConvertStaticTables((TableChoice("emb", "user"),)), trained),
    GoldenCase("positive_by_key", ConvertStaticTables((TableChoice("e*", "", BY_KEY, drop_modulo=True),)), trained),
    GoldenCase("positive_partitioned", ConvertStaticTables((TableChoice("emb"),)), partitioned),
    GoldenCase("positive_summed", ConvertStaticTables((TableChoice("emb"),)), summed),
    GoldenCase("no_match", ConvertStaticTables((TableChoice("*"),)), train_and_eval),
    GoldenCase("no_match_not_chosen", ConvertStaticTables((TableChoice("other_*"),)), trained),
    GoldenCase("refused", ConvertStaticTables((TableChoice("*"),)), near_misses),
    GoldenCase("refused_momentum", ConvertStaticTables((TableChoice("*"),)), momentum),
    GoldenCase("static", FindLookups(), near_misses),
    GoldenCase("converted", Prune(), trained, (ConvertStaticTables((TableChoice("emb"),)),)),
    GoldenCase("positive", FindLookups(), train_and_eval),
    GoldenCase("pooled", FindLookups(), pooled),
    GoldenCase("no_match", FindLookups(), plain_tensorflow),
    GoldenCase("error", FindLookups(), broken),
    GoldenCase("positive", AdoptOrphans(), with_orphans),
    GoldenCase("no_match", AdoptOrphans(), train_and_eval),
    GoldenCase("refused", AdoptOrphans(), orphans_that_stay),
    GoldenCase("positive", MergeLookups((TRAIN, EVAL)), several_lookups),
    GoldenCase("eval_side", MergeLookups(), several_lookups),
    GoldenCase("no_match", MergeLookups((TRAIN, EVAL)), train_and_eval),
    GoldenCase("refused", MergeLookups((TRAIN, EVAL)), separate_lookups),
    GoldenCase("timed", MergeLookups((TRAIN,)), timed_lookups_of_one_table),
    GoldenCase("positive", InsertCollections(), train_and_eval),
    GoldenCase("keeps_other_collections", InsertCollections(), already_marked),
    GoldenCase("pooled", InsertCollections(), pooled),
    GoldenCase("no_match", InsertCollections(), plain_tensorflow),
    GoldenCase("error", InsertCollections(), broken),
    GoldenCase("positive", HoistLookups(), one_lookup),
    GoldenCase("train_and_eval", HoistLookups(), train_and_eval),
    GoldenCase("two_get_nexts", HoistLookups(prefetch=3, parallel_calls=2), two_get_nexts),
    GoldenCase("reinitializable", HoistLookups(), reinitializable),
    GoldenCase("one_shot", HoistLookups(), one_shot),
    GoldenCase("shared_tensors", HoistLookups(), shared_tensors),
    GoldenCase("fused", HoistLookups(fuse=True), training),
    GoldenCase("pooled", HoistLookups(), pooled),
    GoldenCase("merged", HoistLookups(fuse=True), several_lookups, merged()),
    GoldenCase("orphans", HoistLookups(), with_orphans, (AdoptOrphans(),)),
    GoldenCase("op_types", HoistLookups(op_types=("FloorMod",)), partly_fed_ids),
    GoldenCase("no_match", HoistLookups(), plain_tensorflow),
    GoldenCase("refused", HoistLookups(), unmovable),
    GoldenCase("feedable", HoistLookups(), feedable),
    GoldenCase("feedable_and_direct", HoistLookups(), feedable_and_direct),
    GoldenCase("refused_feedable_other_keys", HoistLookups(), feedable_other_keys),
    GoldenCase("refused_feedable_constant_handle", HoistLookups(), feedable_constant_handle),
    GoldenCase("refused_feedable_without_source", HoistLookups(), feedable_without_source),
    GoldenCase("refused_in_function", HoistLookups(), in_function),
    GoldenCase("refused_dataset_reads_variable", HoistLookups(), dataset_reads_variable),
    GoldenCase("refused_factory_reads_variable", HoistLookups(), factory_reads_variable),
    GoldenCase("conditional", HoistLookups(), conditional),
    GoldenCase("timed", HoistLookups(fuse=True), timed),
    GoldenCase("positive", SwapIterators(), one_lookup, (HoistLookups(),)),
    GoldenCase("two_get_nexts", SwapIterators(), two_get_nexts, (HoistLookups(),)),
    GoldenCase("one_shot", SwapIterators(), one_shot, (HoistLookups(),)),
    GoldenCase("shared_tensors", SwapIterators(), shared_tensors, (HoistLookups(),)),
    GoldenCase("conditional", SwapIterators(), conditional, (HoistLookups(),)),
    GoldenCase("pooled", SwapIterators(), pooled, (HoistLookups(),)),
    GoldenCase("feedable", SwapIterators(), feedable, (HoistLookups(),)),
    GoldenCase("feedable_and_direct", SwapIterators(), feedable_and_direct, (HoistLookups(),)),
    GoldenCase("no_match", SwapIterators(), one_lookup),
    GoldenCase("error", SwapIterators(), marks_that_lie),
    GoldenCase("positive", FuseLookups(), training, swapped()),
    GoldenCase("pooled", FuseLookups(), pooled, swapped()),
    GoldenCase("bounded", FuseLookups(), bounded, swapped()),
    GoldenCase("no_match", FuseLookups(), one_lookup, swapped()),
    GoldenCase("no_match_before_swap", FuseLookups(), training),
    GoldenCase("refused", FuseLookups(), waiting_lookups, swapped()),
    GoldenCase("timed", FuseLookups(), timed, swapped()),
    GoldenCase("positive", FuseUpdates(), training, (*swapped(), FuseLookups())),
    GoldenCase("single_lookups", FuseUpdates(), training),
    GoldenCase("waiting", FuseUpdates(), waiting_updates),
    GoldenCase("no_match", FuseUpdates(), one_lookup),
    GoldenCase("refused", FuseUpdates(), separate_updates),
    GoldenCase("positive", HotEmbedding(), train_and_eval),
    GoldenCase("after_swap", HotEmbedding(), one_lookup, swapped()),
    GoldenCase("pooled", HotEmbedding(), pooled),
    GoldenCase("no_match", HotEmbedding(), plain_tensorflow),
    GoldenCase("unused_mode", HotEmbedding((("MatMul", "high_precision"),)), one_lookup),
    GoldenCase("error", HotEmbedding(), broken),
    GoldenCase("positive", Prune(), train_and_eval, swapped()),
    GoldenCase("one_shot", Prune(), one_shot, swapped()),
    GoldenCase("shared_tensors", Prune(), shared_tensors, swapped()),
    GoldenCase("feedable", Prune(), feedable, swapped()),
    GoldenCase("merged", Prune(), several_lookups, (*merged(), *swapped(), FuseLookups())),
    GoldenCase("fused", Prune(), training, (*swapped(), FuseLookups(), FuseUpdates())),
    GoldenCase("keep", Prune(frozenset({"batch", "mod"})), one_lookup, swapped()),
    GoldenCase("no_match", Prune(), one_lookup),
    GoldenCase("error", Prune(), broken),
]
