"""apply_live: the same result as on a GraphDef, all or nothing."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from golden_cases import CASES
from lookup_graphs import LookupGraph

from mx_rec import ops, tf_compat
from mx_rec.errors import GraphRewriteError
from mx_rec.graph.apply_graphdef import apply_graphdef
from mx_rec.graph.apply_live import apply_live
from mx_rec.graph.attrs import DT_INT64, attr_bytes, attr_strings, attr_type
from mx_rec.graph.canonical import canonical_text
from mx_rec.graph.edits import EditSet
from mx_rec.graph.node import TensorRef
from mx_rec.graph.view import GraphView
from mx_rec.passes import PassManager, default_pipeline


@pytest.fixture(autouse=True)
def graph_mode() -> None:
    tf.compat.v1.disable_eager_execution()
    ops.load_library()


def imported(graph_def: Any) -> tf.Graph:
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    return graph


def small() -> tf.Graph:
    graph = LookupGraph()
    ids, _, _ = graph.batch()
    graph.unary("neg", "Neg", graph.mod("mod", ids), controls=["batch"])
    return imported(graph.graph_def())


def without(graph_def: Any, names: set[str]) -> Any:
    result = tf.compat.v1.GraphDef()
    result.CopyFrom(graph_def)
    del result.node[:]
    result.node.extend([node for node in graph_def.node if node.name not in names])
    return result


@pytest.mark.parametrize("case", CASES, ids=[f"{case.step.name}-{case.name}" for case in CASES])
def test_live_equals_file(case: Any) -> None:
    if case.name == "error":
        return
    graph = imported(case.build())
    graph_def = graph.as_graph_def()
    result = PassManager(default_pipeline()).run(graph_def)
    apply_live(graph, result.edits)
    live = graph.as_graph_def()
    gone = {node.name for node in live.node} - {node.name for node in result.graph_def.node}
    assert canonical_text(without(live, gone)) == canonical_text(result.graph_def)
    assert canonical_text(apply_graphdef(graph_def, result.edits)) == canonical_text(result.graph_def)
    assert canonical_text(apply_graphdef(graph_def, result.edits.without_removals())) == canonical_text(live)


def test_existing_tensors_keep_their_identity_and_see_the_new_inputs() -> None:
    graph = small()
    tensor = graph.get_tensor_by_name("neg:0")
    edits = EditSet()
    edits.set_input("neg", 0, TensorRef("batch", 0))
    edits.remove_control_input("neg", "batch")
    edits.add_control_input("neg", "mod")
    edits.set_attr("neg", "_x", attr_bytes("y"))
    apply_live(graph, edits)
    assert graph.get_tensor_by_name("neg:0") is tensor
    assert tensor.op.inputs[0] is graph.get_tensor_by_name("batch:0")
    assert [op.name for op in tensor.op.control_inputs] == ["mod"]
    assert tensor.op.get_attr("_x") == b"y"


def test_collections_are_filled_once_and_take_ops_without_outputs() -> None:
    graph = small()
    neg = graph.get_tensor_by_name("neg:0")
    graph.add_to_collection("c", neg)
    edits = EditSet()
    edits.set_attr("neg", "_mx_rec_collections", attr_strings(["c", "d"]))
    edits.set_attr("iterator/make", "_mx_rec_collections", attr_strings(["d"]))
    apply_live(graph, edits)
    assert graph.get_collection("c") == [neg]
    assert graph.get_collection("d") == [neg, graph.get_operation_by_name("iterator/make")]
    apply_live(graph, edits)
    assert len(graph.get_collection("d")) == 2


def refusable() -> list[tuple[EditSet, str]]:
    cases = []
    for build, message in [
        (lambda e: e.set_input("neg", 0, TensorRef("batch", 2)), "of dtype float; expected int64"),
        (
            lambda e: (
                e.set_input("neg", 0, TensorRef("mod", 0)),
                e.set_input("mod", 0, TensorRef("neg", 0)),
            ),
            "cycle",
        ),
        (lambda e: e.set_input("neg", 0, TensorRef("gone", 0)), "no node 'gone'"),
        (lambda e: e.add_node("mod", "NoOp"), "already has a node"),
        (
            lambda e: e.add_node("new", "Neg", [TensorRef("batch", 2)], {"T": attr_type(DT_INT64)}),
            "expected int64",
        ),
        (lambda e: e.add_node("bad name!", "NoOp"), "TensorFlow does not accept the new nodes"),
        (
            lambda e: e.add_node("new", "Reshape", [TensorRef("batch", 0)] * 2, reshape_attrs()),
            "does not accept",
        ),
    ]:
        edits = EditSet()
        edits.set_attr("mod", "_before", attr_bytes("x"))
        edits.set_input("neg", 0, TensorRef("batch", 0))
        build(edits)
        cases.append((edits, message))
    return cases


def reshape_attrs() -> dict:
    return {"T": attr_type(DT_INT64), "Tshape": attr_type(DT_INT64)}


@pytest.mark.parametrize("index", range(7))
def test_a_refused_rewrite_leaves_the_graph_alone(index: int) -> None:
    edits, message = refusable()[index]
    graph = small()
    before = graph.as_graph_def().SerializeToString(deterministic=True)
    with pytest.raises(GraphRewriteError, match=message):
        apply_live(graph, edits)
    assert graph.as_graph_def().SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("function", ["update_input", "set_attr", "set_control_inputs"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_failure_halfway_is_taken_back(monkeypatch: Any, function: str, after: int) -> None:
    graph = small()
    before = GraphView(graph.as_graph_def())
    real, calls = getattr(tf_compat, function), []

    def fails(*args: Any) -> None:
        calls.append(args)
        if len(calls) == after + 1:
            raise RuntimeError("TensorFlow changed its mind")
        real(*args)

    edits = EditSet()
    edits.add_node("new", "Neg", [TensorRef("batch", 0)], {"T": attr_type(DT_INT64)})
    for name in ("neg", "mod"):
        edits.set_input(name, 0, TensorRef("new", 0))
        edits.set_attr(name, "_x", attr_bytes("y"))
        edits.add_control_input(name, "iterator/make")
    edits.set_attr("batch", "_x", attr_bytes("z"))
    monkeypatch.setattr(tf_compat, function, fails)
    if function != "set_attr" and after == 2:
        return  # there are only two such calls
    with pytest.raises(GraphRewriteError, match="taken back: RuntimeError: TensorFlow changed its mind"):
        apply_live(graph, edits)
    monkeypatch.undo()
    left = GraphView(graph.as_graph_def())
    assert canonical_text(without(left.to_graph_def(), {"new"})) == canonical_text(before.to_graph_def())
    assert left.edges("new") == []


def test_finalized_graph_is_refused() -> None:
    graph = small()
    graph.finalize()
    with pytest.raises(GraphRewriteError, match="the graph is finalized"):
        apply_live(graph, EditSet())


def test_new_nodes_ignore_the_scopes_of_the_caller() -> None:
    graph = small()
    edits = EditSet()
    edits.add_node("new", "Neg", [TensorRef("batch", 0)], {"T": attr_type(DT_INT64)}, controls=["mod"])
    with graph.as_default(), tf.name_scope("scope"), tf.device("/cpu:0"), tf.control_dependencies(["neg:0"]):
        apply_live(graph, edits)
    new = graph.get_operation_by_name("new")
    assert (new.device, [op.name for op in new.control_inputs]) == ("", ["mod"])
    with graph.as_default():
        assert tf.no_op(name="new").name == "new_1"
