"""Inlined calls: the same results in a Session, and every reason to leave a call alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from static_graphs import DIM, Function, StaticGraph, called, not_inlined, placeholder_attr

from mx_rec.graph.apply_live import apply_live
from mx_rec.graph.attrs import (
    DT_BOOL,
    DT_FLOAT,
    DT_INT64,
    DT_RESOURCE,
    attr_bool,
    attr_bytes,
    attr_func,
    attr_int,
    attr_tensor,
    attr_type,
    attr_types,
)
from mx_rec.graph.devices import is_device, merged_device, usable_device
from mx_rec.graph.edits import EditSet
from mx_rec.graph.inlining import Inlined, inline_call
from mx_rec.graph.node import TensorRef
from mx_rec.graph.view import GraphView
from mx_rec.passes import PassManager, inline_calls
from mx_rec.passes.convert_static_tables import ConvertStaticTables
from mx_rec.passes.inline_calls import InlineCalls
from mx_rec.passes.static_lookups.plans import TableChoice

tf1 = tf.compat.v1
EMB = InlineCalls((TableChoice("emb"),))


def inlined(graph_def: Any, step: InlineCalls = EMB) -> Any:
    return PassManager([step]).run(graph_def)


def run(graph_def: Any, fetches: list[str]) -> Any:
    """With one thread and without devices that this process does not have."""
    local = type(graph_def)()
    local.CopyFrom(graph_def)
    for node in (*local.node, *(node for function in local.library.function for node in function.node_def)):
        node.device = ""
        if node.op == "VarHandleOp":
            node.attr["shared_name"].s = node.name.encode()
    with tf.Graph().as_default():
        tf.import_graph_def(local, name="")
        with tf1.Session() as session:
            values = np.random.RandomState(1).rand(20, DIM).astype(np.float32)
            session.run("emb/Assign", {"emb/Initializer/random:0": values})
            session.run("other/Assign", {"other/Initializer/random:0": values[:3]})
            return session.run(fetches, {"ids:0": [3, 7]})


def test_the_same_results() -> None:
    before = called()
    result = inlined(before)
    assert not [node for node in result.graph_def.node if node.op == "ResourceGather" and node.name == "call"]
    for one, other in zip(run(before, ["result:0", "ids_again:0"]), run(result.graph_def, ["result:0", "ids_again:0"])):
        np.testing.assert_array_equal(one, other)


def test_a_check_that_fails_still_fails() -> None:
    """Nothing reads what the function checks, nor the call that waits for it."""

    def change(_: Any, inner: Function) -> None:
        for node in inner.proto.node_def:
            if node.name == "fine":
                node.attr["value"].CopyFrom(attr_tensor(False, DT_BOOL))

    for graph_def in (called(change), inlined(called(change)).graph_def):
        with pytest.raises(tf.errors.InvalidArgumentError, match="wrong"):
            run(graph_def, ["ids_again:0"])


def test_state_that_nothing_waits_for_still_changes() -> None:
    """TensorFlow runs the ops of a function that have state, whether its results need them or not."""

    def change(_: Any, inner: Function) -> None:
        zeros = {"dtype": attr_type(DT_FLOAT), "value": attr_tensor(np.zeros([20, DIM], np.float32), DT_FLOAT)}
        inner.node("zeros", "Const", ["^lookup"], zeros)
        inner.node("forgotten", "AssignVariableOp", ["table", "zeros:output:0"], {"dtype": attr_type(DT_FLOAT)})

    view = GraphView(called(change)).edited(EditSet())
    for name in ("call", "call/first"):
        edits = EditSet()
        assert isinstance(inline_call(view, view.node(name), edits), Inlined)
        view = view.edited(edits)
    assert "call/first/forgotten" in view.node("call/first").controls
    # The pass itself lets the call be: what writes the variable is no update that tables have.
    assert inlined(called(change)).reports[0].refusals[0].node == "call/first/forgotten"


def refused(change: Callable[[Any, Function], None]) -> str:
    graph_def = called(change)
    result = inlined(graph_def)
    assert not result.modified
    (refusal,) = result.reports[0].refusals
    assert "'emb'" in refusal.reason
    return str(refusal)


def set_attr(name: str, value: Any) -> Callable[[Any, Function], None]:
    return lambda _, inner: inner.proto.attr[name].CopyFrom(value)


def add(*node: Any) -> Callable[[Any, Function], None]:
    return lambda _, inner: inner.node(*node) and None


def missing_attr(_: Any, inner: Function) -> None:
    inner.node("cast", "Identity", ["ids"], {"T": placeholder_attr("not_given")})


def by_name(graph: StaticGraph, inner: Function) -> None:
    other = Function("old", {"x": DT_INT64}, {"y": DT_INT64})
    graph.add_function(other.gives(y="x"))
    inner.node("old_call", "old", ["ids"])


def calls_itself(_: Any, inner: Function) -> None:
    inner.call("again", "rows", {"table": DT_RESOURCE, "ids": DT_INT64}, [DT_FLOAT])
    inner.proto.node_def[-1].attr["f"].func.attr["kind"].type = DT_FLOAT


def branches(graph: StaticGraph, inner: Function) -> None:
    branch = Function("branch", {"table": DT_RESOURCE, "ids": DT_INT64}, {"rows": DT_FLOAT})
    branch.gather("lookup", "table", "ids")
    graph.add_function(branch.gives(rows="lookup:output:0"))
    types = {"Tcond": attr_type(DT_BOOL), "Tin": attr_types([DT_RESOURCE, DT_INT64]), "Tout": attr_types([DT_FLOAT])}
    functions = {"then_branch": attr_func("branch"), "else_branch": attr_func("branch")}
    inner.node("if", "If", ["fine:output:0", "table", "ids"], {**types, **functions})


def two_results(_: Any, inner: Function) -> None:
    inner.proto.signature.output_arg.add(name="more", type=DT_FLOAT)
    inner.proto.ret["more"] = "rows:z:0"


def no_such_wait(_: Any, inner: Function) -> None:
    inner.proto.control_ret["check"] = "nothing"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (set_attr("_noinline", attr_bool(True)), "is not to be inlined (_noinline)"),
        (set_attr("_XlaMustCompile", attr_bool(True)), "which XLA compiles as a whole"),
        (set_attr("api_implements", attr_bytes("x")), "may choose another (api_implements)"),
        (missing_attr, "needs attribute 'not_given', which the call does not give"),
        (add("strange", "NoSuchOp", []), "op 'NoSuchOp' is not known to this TensorFlow"),
        (by_name, "calls function 'old' by its name"),
        (calls_itself, "calls function 'rows', which calls itself"),
        (branches, "op 'If' takes a variable into a function that is not inlined"),
        (two_results, "does not fit the results of function 'rows'"),
        (no_such_wait, "has no node 'nothing'"),
        (add("switch", "Switch", ["ids", "fine:output:0"], {"T": attr_type(DT_INT64)}), "op 'Switch' is of a condit"),
        (add("placed", "NoOp", [], {}, "é"), "device 'é' is none that TensorFlow can read"),
    ],
)
def test_refused(change: Callable[[Any, Function], None], reason: str) -> None:
    assert reason in refused(change)


def test_a_gradient_of_its_own_or_an_executor() -> None:
    graph_def = called()
    graph_def.library.gradient.add(function_name="rows", gradient_func="beside")
    assert "a gradient of its own" in str(inlined(graph_def).reports[0].refusals[0])
    graph_def = called()
    (call,) = [node for node in graph_def.node if node.name == "call"]
    call.attr["executor_type"].s = b"SINGLE_THREADED_EXECUTOR"
    assert "by an executor of its own" in str(inlined(graph_def).reports[0].refusals[0])


def test_calls_in_conditionals_and_loops_of_tensorflow_1() -> None:
    graph_def = called()
    predicate = graph_def.node.add(name="which", op="Placeholder")
    predicate.attr["dtype"].type = DT_BOOL
    switch = graph_def.node.add(name="switch", op="Switch", input=["ids", "which"])
    switch.attr["T"].type = DT_INT64
    (call,) = [node for node in graph_def.node if node.name == "call"]
    call.input[0] = "switch:1"
    refusal = str(inlined(graph_def).reports[0].refusals[0])
    assert "decides whether 'call' runs: a conditional of TensorFlow 1" in refusal
    enter = graph_def.node.add(name="enter", op="Enter", input=["ids"])
    enter.attr["T"].type = DT_INT64
    enter.attr["frame_name"].s = b"loop"
    call.input[0] = "enter"
    assert "is of a loop of TensorFlow 1" in str(inlined(graph_def).reports[0].refusals[0])


def test_one_variable_may_stay_and_the_other_not() -> None:
    def change(graph: StaticGraph, _: Function) -> None:
        apart = Function("apart", {"table": DT_RESOURCE, "ids": DT_INT64}, {"rows": DT_FLOAT})
        apart.gather("lookup", "table", "ids")
        graph.add_function(apart.gives(rows="lookup:output:0"))
        apart.proto.attr["_noinline"].b = True
        ids = graph.const("few", [1, 2])
        types = {"Tin": attr_types([DT_RESOURCE, DT_INT64]), "Tout": attr_types([DT_FLOAT])}
        graph.add("stays", "PartitionedCall", [graph.variable("apart"), ids], {"f": attr_func("apart"), **types})

    result = inlined(called(change), InlineCalls((TableChoice("*"),)))
    assert result.modified
    (refusal,) = result.reports[0].refusals
    assert (refusal.node, "'apart'" in refusal.reason) == ("stays", True)
    view = GraphView(result.graph_def)
    assert view.node("stays").op == "PartitionedCall"
    assert view.node("call").op == "IdentityN"


def conditions(count: int) -> Any:
    """A signature that looks up variables in branches, and one beside them."""
    graph = StaticGraph()
    branch = Function("branch", {"table": DT_RESOURCE, "ids": DT_INT64}, {"rows": DT_FLOAT})
    branch.gather("lookup", "table", "ids")
    graph.add_function(branch.gives(rows="lookup:output:0"))
    tables = [f"table{index}" for index in range(count)]
    serve = Function("serve", {"ids": DT_INT64, **dict.fromkeys([*tables, "good"], DT_RESOURCE)}, {"rows": DT_FLOAT})
    serve.node("yes", "Const", [], {"dtype": attr_type(DT_BOOL), "value": attr_tensor(True, DT_BOOL)})
    types = {"Tcond": attr_type(DT_BOOL), "Tin": attr_types([DT_RESOURCE, DT_INT64]), "Tout": attr_types([DT_FLOAT])}
    functions = {"then_branch": attr_func("branch"), "else_branch": attr_func("branch")}
    for table in tables:
        serve.node(f"if_{table}", "If", ["yes:output:0", table, "ids"], {**types, **functions})
    serve.gather("lookup", "good", "ids")
    graph.add_function(serve.gives(rows="lookup:output:0", waits=[f"if_{table}" for table in tables]))
    ids = graph.add("ids", "Placeholder", (), {"dtype": attr_type(DT_INT64)})
    handles = [graph.variable(name) for name in (*tables, "good")]
    types = {"Tin": attr_types([DT_INT64, *[DT_RESOURCE] * len(handles)]), "Tout": attr_types([DT_FLOAT])}
    graph.add("call", "StatefulPartitionedCall", [ids, *handles], {"f": attr_func("serve"), **types})
    return graph.graph_def()


def test_what_is_in_the_way_of_many_variables_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And under the names that the nodes have if the call is inlined in the end, for the variable beside them."""
    inlined_calls: list[str] = []

    def counted(view: GraphView, call: Any, edits: EditSet) -> Any:
        inlined_calls.append(call.name)
        return inline_call(view, call, edits)

    monkeypatch.setattr(inline_calls, "inline_call", counted)
    result = inlined(conditions(9), InlineCalls((TableChoice("*"),)))
    assert inlined_calls == ["call", "call"]
    refused_nodes = [refusal.node for refusal in result.reports[0].refusals]
    assert refused_nodes == [f"call/if_table{index}" for index in range(9)]
    view = GraphView(result.graph_def)
    assert all(view.node(name).op == "If" for name in refused_nodes)
    assert view.node("call/lookup").op == "ResourceGather"


@pytest.mark.parametrize(
    ("choice", "keep", "reason"),
    [
        (TableChoice("emb"), {"emb"}, "is named outside the graph, so it must stay"),
        (TableChoice("emb", initial_values="by_key", drop_modulo=True), set(), "Placeholder"),
        (TableChoice("emb", "taken"), set(), "would be table 'taken', which is the name of that of node 'table'"),
    ],
)
def test_calls_stay_for_all_reasons_of_the_conversion(choice: TableChoice, keep: set[str], reason: str) -> None:
    graph_def = called()
    table = graph_def.node.add(name="table", op="MxRecTable")
    for name, value in {"table_name": "taken", "shared_name": "taken", "initializer": "constant"}.items():
        table.attr[name].s = value.encode()
    table.attr["dim"].i = DIM
    inlining = InlineCalls((choice,), keep=frozenset(keep))
    result = inlined(graph_def, inlining)
    assert not result.modified
    (refusal,) = result.reports[0].refusals
    assert reason in str(refusal)
    assert "its calls stay for variable 'emb'" in refusal.reason


def test_a_gradient_out_of_a_call_that_stays() -> None:
    """The lookup is in the open, so that nothing is inlined for it."""
    graph = StaticGraph()
    ids = graph.add("ids", "Placeholder", (), {"dtype": attr_type(DT_INT64)})
    emb = graph.variable("emb")
    rows = graph.gather("lookup", emb, ids)
    backward = Function("backward", {"rows": DT_FLOAT}, {"values": DT_FLOAT})
    backward.node("minus", "Neg", ["rows"], {"T": attr_type(DT_FLOAT)})
    graph.add_function(backward.gives(values="minus:y:0"))
    types = {"Tin": attr_types([DT_FLOAT]), "Tout": attr_types([DT_FLOAT])}
    values = graph.add("gradient", "PartitionedCall", [rows], {"f": attr_func("backward"), **types})
    graph.apply("update", "ResourceScatterSub", [emb], ids, values)
    choices = (TableChoice("emb"),)
    _, report = PassManager([EMB, ConvertStaticTables(choices, calls_inlined=True)]).run(graph.graph_def()).reports
    (refusal,) = report.refusals
    assert refusal.node == "update"
    assert "adds what comes out of call 'gradient', which is not inlined" in refusal.reason


def test_a_variable_is_refused_once() -> None:
    choices = (TableChoice("emb"),)
    first, second = PassManager([EMB, ConvertStaticTables(choices, calls_inlined=True)]).run(not_inlined()).reports
    assert (len(first.refusals), len(second.refusals)) == (1, 0)
    (alone,) = PassManager([ConvertStaticTables(choices)]).run(not_inlined()).reports
    assert "is looked up in a function of 'call' only" in str(alone.refusals[0])


def test_a_live_graph_cannot_replace_a_node() -> None:
    with tf.Graph().as_default() as graph:
        tf1.placeholder(tf.float32, name="x")
        edits = EditSet()
        edits.replace_node("x", "Placeholder", (), {"dtype": attr_type(DT_INT64)})
        with pytest.raises(Exception, match="which TensorFlow cannot do in a live graph"):
            apply_live(graph, edits)


def test_replaced_nodes_are_found_by_their_new_op() -> None:
    view = GraphView(called())
    assert [node.name for node in view.nodes_of("StatefulPartitionedCall")] == ["call"]
    assert view.edges("before")[0].consumer == "call"
    edits = EditSet()
    types = {"T": attr_types([DT_FLOAT, DT_INT64])}
    value = edits.add_node("value", "Const", (), {"dtype": attr_type(1), "value": attr_tensor(1.0, 1)})
    edits.replace_node("call", "IdentityN", [value, TensorRef("ids", 0)], types)
    edits.set_attr("call", "_x", attr_int(1))
    after = view.edited(edits)
    assert not after.nodes_of("StatefulPartitionedCall")
    assert [node.name for node in after.nodes_of("IdentityN")] == ["call"]
    assert not after.edges("before")
    assert after.node("call").int_attr("_x") == 1
    assert [edge.consumer for edge in after.edges("call")] == [edge.consumer for edge in view.edges("call")]
    again = GraphView(after.to_graph_def())
    assert again.node("call").op == "IdentityN"


@pytest.mark.parametrize(
    ("inner", "outer", "merged"),
    [
        ("", "", ""),
        ("/cpu:1", "", "/cpu:1"),
        ("", "/job:worker/task:2", "/job:worker/task:2"),
        ("/device:CPU:*", "/job:worker/task:2/device:CPU:0", "/job:worker/task:2/device:CPU:0"),
        ("é", "/cpu:0", None),
        ("/cpu:0", "/job:a b/x", None),
    ],
)
def test_devices(inner: str, outer: str, merged: str | None) -> None:
    assert merged_device(inner, outer) == merged


def test_devices_that_cannot_be_read() -> None:
    assert is_device("") and is_device("/job:worker/replica:0/task:1/device:CPU:0")
    assert not is_device("é") and not is_device("/no/device")
    assert (usable_device("é"), usable_device("/cpu:0")) == ("", "/cpu:0")
    edits = EditSet()
    edits.add_node("x", "NoOp", (), device="é")
    (edit,) = edits
    assert edit.node.device == ""  # type: ignore[union-attr]
