"""GraphView: nodes, edges, dtypes, shapes, and views after edits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lookup_graphs import LookupGraph
from tensorflow.core.framework import graph_pb2

from mx_rec.errors import GraphRewriteError
from mx_rec.graph.attrs import DT_FLOAT, DT_INT32, DT_INT64, attr_bytes, attr_int, attr_types, shape_dims
from mx_rec.graph.edits import EditSet
from mx_rec.graph.node import TensorRef, parse_ref
from mx_rec.graph.view import CONTROL, Edge, GraphView, Use


def small() -> GraphView:
    graph = LookupGraph()
    ids, _, label = graph.batch()
    key = graph.mod("mod", ids)
    graph.lookup("first", graph.table(), key)
    graph.add("pair", "IdentityN", [key, label], {"T": attr_types([DT_INT64, DT_FLOAT])}, controls=["mod"])
    return GraphView(graph.graph_def())


def test_nodes_and_edges() -> None:
    view = small()
    assert view.node("mod").op == "FloorMod"
    assert view.node("mod").inputs == (TensorRef("batch", 0), TensorRef("mod/y", 0))
    assert view.node("pair").controls == ("mod",)
    assert view.consumers(TensorRef("mod", 0)) == [Use("mx_rec/user/first/ids", 0), Use("pair", 0)]
    assert view.control_consumers("mod") == ["pair"]
    assert Edge(CONTROL, "pair", CONTROL) in view.edges("mod")
    assert view.consumers(TensorRef("mx_rec/user/first/unique", 2)) == [Use("mx_rec/user/first/addresses", 3)]
    assert [node.name for node in view.nodes_of("IteratorGetNext", "MakeIterator")] == [
        "batch",
        "iterator/make",
    ]
    assert view.edges("pair") == []
    with pytest.raises(GraphRewriteError, match="no node 'nobody'"):
        view.node("nobody")


def test_dtypes_of_all_kinds_of_arguments() -> None:
    view = small()
    assert view.dtype(TensorRef("mod", 0)) == DT_INT64  # type attribute
    assert view.dtype(TensorRef("mx_rec/user/first/unique", 1)) == DT_INT32  # fixed
    assert view.types("pair").outputs == (DT_INT64, DT_FLOAT)  # list of types
    graph = LookupGraph()
    parts = [graph.const(f"part_{index}", [index]) for index in range(3)]
    graph.add("concat", "ConcatV2", [*parts, graph.const("axis", 0, DT_INT32)], concat_attrs(3))
    view = GraphView(graph.graph_def())
    assert view.types("concat").inputs == (DT_INT64, DT_INT64, DT_INT64, DT_INT32)  # number of a type
    assert view.types("concat").input_counts == (3, 1)
    assert view.dtype(TensorRef("concat", 1)) is None


def concat_attrs(count: int) -> dict:
    from mx_rec.graph.attrs import attr_int, attr_type

    return {"N": attr_int(count), "T": attr_type(DT_INT64), "Tidx": attr_type(DT_INT32)}


def test_unknown_op_has_no_dtypes_and_breaks_nothing() -> None:
    graph_def = graph_pb2.GraphDef()
    graph_def.node.add(name="x", op="OpOfSomebodyElse")
    graph_def.node.add(name="y", op="Neg", input=["x:5"]).attr["T"].type = DT_FLOAT
    view = GraphView(graph_def)
    assert view.types("x") is None
    assert view.dtype(TensorRef("x", 5)) is None
    with pytest.raises(GraphRewriteError, match="outputs of op 'OpOfSomebodyElse' are not known"):
        view.output_arg(TensorRef("x", 0))


def test_output_arg_is_the_spelling_in_functions() -> None:
    view = small()
    spelled = {
        "batch": [("components", 0), ("components", 1), ("components", 2)],
        "mx_rec/user/first/unique": [("keys", 0), ("restore", 0), ("counts", 0)],
        "mod": [("z", 0)],
    }
    for name, expected in spelled.items():
        assert [view.output_arg(TensorRef(name, index)) for index in range(len(expected))] == expected
    with pytest.raises(GraphRewriteError, match="has 3 outputs, not 4"):
        view.output_arg(TensorRef("mx_rec/user/first/unique", 3))


def test_defaults_of_stripped_attributes_count() -> None:
    graph_def = graph_pb2.GraphDef()
    graph_def.node.add(name="u", op="MxRecUnique", input=["c"])
    graph_def.node.add(name="c", op="Const").attr["dtype"].type = DT_INT64
    assert GraphView(graph_def).types("u").inputs == (DT_INT64,)


def test_ref_spelling() -> None:
    assert parse_ref("a/b:12") == TensorRef("a/b", 12)
    assert parse_ref("a/b") == TensorRef("a/b", 0)
    assert (TensorRef("a", 0).as_input(), TensorRef("a", 2).as_input()) == ("a", "a:2")
    graph_def = graph_pb2.GraphDef()
    graph_def.node.add(name="x", op="Neg", input=["y:z"])
    with pytest.raises(GraphRewriteError, match="node 'x': 'y:z' is not an input"):
        GraphView(graph_def)


def test_unique_name_ignores_case_and_remembers() -> None:
    view = small()
    assert view.unique_name("MOD") == "MOD_1"
    assert view.unique_name("mod") == "mod_2"
    assert view.unique_name("fresh") == "fresh"
    assert view.unique_name("fresh") == "fresh_1"


def test_edits_do_not_touch_the_original() -> None:
    graph = LookupGraph()
    ids, _, _ = graph.batch()
    graph.mod("mod", ids)
    graph_def = graph.graph_def()
    before = graph_def.SerializeToString(deterministic=True)
    view = GraphView(graph_def)
    edits = EditSet()
    edits.set_input("mod", 0, TensorRef("batch", 1))
    edits.set_attr("mod", "_mark", attr_bytes("x"))
    edits.remove_node("iterator/make")
    after = view.edited(edits)
    assert view.node("mod").inputs[0] == TensorRef("batch", 0)
    assert view.node("mod").attr("_mark") is None
    assert "iterator/make" in view and "iterator/make" not in after
    assert after.node("mod").str_attr("_mark") == "x"
    changed = {node.name: node for node in after.to_graph_def().node}
    assert list(changed["mod"].input) == ["batch:1", "mod/y"]
    assert changed["mod"].attr["_mark"].s == b"x"
    assert graph_def.SerializeToString(deterministic=True) == before


def test_edits_that_do_not_fit_are_refused() -> None:
    view = small()
    for build, message in [
        (lambda e: e.set_input("nobody", 0, TensorRef("mod", 0)), "names node 'nobody'"),
        (lambda e: e.set_input("mod", 2, TensorRef("mod/y", 0)), "sets input 2 of node 'mod', which has 2"),
        (lambda e: e.add_node("mod", "NoOp"), "already has a node"),
        (lambda e: e.remove_node("nobody"), "removes node 'nobody'"),
        (lambda e: e.remove_control_input("pair", "batch"), "no control input 'batch'"),
        (lambda e: (e.remove_node("pair"), e.add_node("pair", "NoOp")), "which an earlier edit removes"),
    ]:
        edits = EditSet()
        build(edits)
        with pytest.raises(GraphRewriteError, match=message):
            view.edited(edits)


def test_later_edits_see_earlier_ones_across_concatenation() -> None:
    view = small()
    first, second = EditSet(author="first"), EditSet()
    first.add_node("new", "Neg", [TensorRef("mod", 0)], {"T": view.node("mod").attr("T")})
    second.set_input("new", 0, TensorRef("mod/y", 0))
    second.add_control_input("new", "batch")
    second.set_attr("new", "_x", attr_bytes("y"))
    second.clear_attr("new", "_x")
    after = view.edited(first + second)
    assert after.delta.added == ("new",) and after.delta.changed == ()
    assert after.node("new").inputs == (TensorRef("mod/y", 0),)
    assert after.node("new").controls == ("batch",)
    assert not after.node("new").has_attr("_x")
    assert after.node("new").str_attr("_mx_rec_pass") == "first"
    third = EditSet()
    third.remove_node("new")
    assert "new" not in view.edited(first + second + third)
    assert view.edited(first + third).delta.added == ()


def test_redirect_moves_every_consumer() -> None:
    view = small()
    edits = EditSet()
    assert edits.redirect(view, TensorRef("mod", 0), TensorRef("mod/y", 0)) == 2
    assert edits.redirect_controls(view, "mod", "batch") == 1
    after = view.edited(edits)
    assert after.edges("mod") == []
    assert after.node("pair").controls == ("batch",)


OPS = st.tuples(st.sampled_from(["add", "input", "control", "remove", "attr"]), st.integers(0, 30), st.integers(0, 30))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(OPS, max_size=8), min_size=1, max_size=4))
def test_derived_facts_of_edited_views_equal_those_of_a_fresh_view(rounds: list) -> None:
    """Fan-out, op index and dtypes are kept up to date edit by edit; a fresh view computes them anew."""
    view = small()
    view.edges("mod"), view.nodes_of("Const")
    for name in [node.name for node in view]:
        view.types(name)
    for number, commands in enumerate(rounds):
        view = view.edited(random_edits(view, number, commands))
        fresh = GraphView(view.to_graph_def())
        assert [node.name for node in fresh] == [node.name for node in view]
        for node in fresh:
            assert sorted(view.edges(node.name)) == sorted(fresh.edges(node.name))
            assert view.types(node.name) == fresh.types(node.name)
            assert view.node(node.name).attrs() == node.attrs()
        for op in {node.op for node in fresh} | {"Neg", "FloorMod"}:
            assert {n.name for n in view.nodes_of(op)} == {n.name for n in fresh.nodes_of(op)}


def random_edits(view: GraphView, number: int, commands: list) -> EditSet:
    names = [node.name for node in view]
    edits, removed = EditSet(), set()
    for position, (kind, a, b) in enumerate(commands):
        node, other = view.node(names[a % len(names)]), names[b % len(names)]
        if node.name in removed or other in removed:
            continue
        if kind == "add":
            edits.add_node(f"new_{number}_{position}", "NoOp", controls=[other])
        elif kind == "input" and node.inputs:
            edits.set_input(node.name, b % len(node.inputs), TensorRef(other, 0))
        elif kind == "control":
            edits.add_control_input(node.name, other)
        elif kind == "attr":
            edits.set_attr(node.name, "_x", attr_bytes(other))
        elif kind == "remove" and len(names) - len(removed) > 3:
            removed.add(node.name)
            edits.remove_node(node.name)
    return edits


def test_shapes_by_rule() -> None:
    graph = LookupGraph()
    ids, other_ids, _ = graph.batch()
    key = graph.mod("mod", ids)
    wide = graph.add("wide", "ExpandDims", [key, graph.const("axis", -1, DT_INT32)], {"T": attr(DT_INT64)})
    flat = graph.add("flat", "Reshape", [wide, graph.const("target", [-1, 3], DT_INT32)], {"T": attr(DT_INT64)})
    odd = graph.add("odd", "Reverse", [key, graph.const("which", [True, False], 10)], {"T": attr(DT_INT64)})
    graph.lookup("first", graph.table(), key)
    view = GraphView(graph.graph_def())
    assert shape_dims(view.shape(key)) == (2, 3)
    assert shape_dims(view.shape(wide)) == (2, 3, 1)
    assert shape_dims(view.shape(flat)) == (None, 3)
    assert view.shape(odd) is None
    assert shape_dims(view.shape(other_ids)) == (2,)
    assert shape_dims(view.shape(TensorRef("mx_rec/user/first/unique", 1))) == (2, 3)
    assert shape_dims(view.shape(TensorRef("mx_rec/user/first/unique", 0))) == (None,)


def test_shapes_of_pooled_lookups() -> None:
    graph = LookupGraph()
    sparse = graph.sparse_batch()
    pooled = graph.pooled_lookup("first", graph.table(), sparse)
    types = {"Tvalues": attr(DT_INT64), "output_ragged_rank": attr_int(1), "input_ragged_rank": attr_int(0)}
    graph.add("ragged", "RaggedTensorFromVariant", [TensorRef("batch", 0)], types)
    splits = graph.const("splits", [0, 1, 1, 4])
    rows = graph.const("rows", np.zeros([3, 4], np.float32), DT_FLOAT)
    restore = graph.const("restore", [0, 0, 2, 1], DT_INT32)
    attrs = {"W": attr_int(0), "combiner": attr_bytes("sum")}
    known = graph.add("known", "MxRecPool", [rows, restore, splits], attrs)
    view = GraphView(graph.graph_def())
    assert [shape_dims(view.shape(part)) for part in sparse] == [(None, None), (None,), (None,)]
    assert shape_dims(view.shape(TensorRef("mx_rec/user/first/row_splits", 0))) == (None,)
    assert shape_dims(view.shape(pooled)) == (None, None)
    assert shape_dims(view.shape(known)) == (3, 4)
    assert shape_dims(view.shape(TensorRef("ragged", 0))) == (None,)
    assert view.shape(TensorRef("ragged", 1)) is None


def attr(dtype: int) -> object:
    from mx_rec.graph.attrs import attr_type

    return attr_type(dtype)


def test_shape_of_a_very_deep_chain() -> None:
    graph = LookupGraph()
    previous = graph.batch()[0]
    for index in range(3000):
        previous = graph.unary(f"deep_{index}", "Identity", previous)
    assert shape_dims(GraphView(graph.graph_def()).shape(previous)) == (2, 3)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ((2, 3), (3,), (2, 3)),
        ((2, 1), (1, 5), (2, 5)),
        ((None, 3), (4, 1), (4, 3)),
        ((None,), (1,), (None,)),
        (None, (2,), None),
    ],
)
def test_broadcast(left: tuple, right: tuple, expected: tuple) -> None:
    from mx_rec.graph.shapes import broadcast

    assert broadcast(left, right) == expected
    assert broadcast(right, left) == expected
