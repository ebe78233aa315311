"""The structural difference agrees with the canonical text and names what changed."""

from __future__ import annotations

import json

import pytest
from tensorflow.core.framework import graph_pb2, types_pb2

from mx_rec.graph.canonical import canonical_text
from mx_rec.graph.diff import GraphDiff, diff_graphs


def chain() -> graph_pb2.GraphDef:
    graph_def = graph_pb2.GraphDef()
    graph_def.node.add(name="a", op="Placeholder").attr["dtype"].type = types_pb2.DT_FLOAT
    graph_def.node.add(name="b", op="Square", input=["a"]).attr["T"].type = types_pb2.DT_FLOAT
    graph_def.node.add(name="c", op="AddV2", input=["a", "b"]).attr["T"].type = types_pb2.DT_FLOAT
    function = graph_def.library.function.add()
    function.signature.name = "f"
    function.node_def.add(name="inner", op="Square", input=["x"])
    return graph_def


def changed_chain(change) -> GraphDiff:
    before, after = chain(), chain()
    change(after)
    diff = diff_graphs(before, after)
    assert diff.equal == (canonical_text(before) == canonical_text(after))
    assert bool(diff.text()) == (not diff.equal)
    json.dumps(diff.to_json())
    return diff


def test_equal_graphs():
    assert changed_chain(lambda graph_def: None).equal


def test_what_canonical_text_ignores_is_no_difference():
    def change(graph_def):
        graph_def.versions.producer = 7
        graph_def.node[1].attr["_output_shapes"].list.shape.add()
        graph_def.node[1].input[0] = "a:0"

    assert changed_chain(change).equal


def test_added_and_removed_nodes():
    def change(graph_def):
        graph_def.node[1].name = "renamed"

    diff = changed_chain(change)
    assert diff.nodes.added == ("renamed = Square(a) {T=float}",)
    assert diff.nodes.removed == ("b = Square(a) {T=float}",)
    assert diff.text() == "- b = Square(a) {T=float}\n+ renamed = Square(a) {T=float}"


def test_changed_inputs_attrs_device_and_op():
    def change(graph_def):
        node = graph_def.node[2]
        node.op = "Mul"
        node.device = "/cpu:0"
        node.input[:] = ["b", "b", "^a"]
        node.attr["T"].type = types_pb2.DT_HALF
        node.attr["_extra"].i = 3

    diff = changed_chain(change)
    assert diff.text().splitlines() == [
        "~ c (Mul)",
        "    op: AddV2 -> Mul",
        "    device: none -> /cpu:0",
        "    input 0: a -> b",
        "    control input: none -> a",
        "    attr T: float -> half",
        "    attr _extra: none -> 3",
    ]


def test_fewer_inputs():
    def change(graph_def):
        del graph_def.node[2].input[1]

    (node,) = changed_chain(change).nodes.changed
    assert [change.text() for change in node.changes] == ["input 1: b -> none"]


def test_functions():
    def change(graph_def):
        graph_def.library.function[0].node_def[0].op = "Sqrt"
        graph_def.library.function[0].signature.input_arg.add(name="x", type=types_pb2.DT_FLOAT)
        graph_def.library.function.add().signature.name = "g"

    assert changed_chain(change).text().splitlines() == [
        "+ function g",
        "~ function f",
        "    signature: function f() -> () -> function f(x: float) -> ()",
        "    ~ inner (Sqrt)",
        "        op: Square -> Sqrt",
    ]


def test_removed_function_and_gradient():
    def change(graph_def):
        del graph_def.library.function[0]
        graph_def.library.gradient.add(function_name="f", gradient_func="df")

    assert changed_chain(change).text().splitlines() == ["- function f", "+ gradient f = df"]


@pytest.mark.parametrize("swap", [False, True])
def test_direction(swap):
    first, second = chain(), chain()
    second.node.add(name="new", op="NoOp")
    diff = diff_graphs(second, first) if swap else diff_graphs(first, second)
    assert (diff.nodes.removed if swap else diff.nodes.added) == ("new = NoOp()",)
