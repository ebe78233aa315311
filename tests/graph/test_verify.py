"""verify finds every kind of damage, and nothing in sound graphs."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden_cases import CASES, one_lookup, one_shot

from mx_rec.graph.attrs import DT_FLOAT, DT_INT64, attr_bytes, attr_strings, attr_type
from mx_rec.graph.edits import EditSet
from mx_rec.graph.node import TensorRef
from mx_rec.graph.verify import GraphVerifyError, verify, verify_delta
from mx_rec.graph.view import GraphView
from mx_rec.passes import PassManager, default_pipeline

# GraphDefs that hold no lookups of ours; MX_REC_TEST_GRAPHS is a directory of further ones (.pb) to try.
MORE_GRAPHS = sorted((Path(__file__).parent / "samples").glob("*.pb.gz"))
if "MX_REC_TEST_GRAPHS" in os.environ:
    MORE_GRAPHS += sorted(Path(os.environ["MX_REC_TEST_GRAPHS"]).glob("*.pb"))


def node(graph_def: Any, name: str) -> Any:
    return next(item for item in graph_def.node if item.name == name)


def function(graph_def: Any) -> Any:
    return graph_def.library.function[0]


def body(graph_def: Any, op: str) -> Any:
    return next(item for item in function(graph_def).node_def if item.op == op)


def dangling(graph_def: Any) -> None:
    node(graph_def, "mod").input[0] = "gone"


def dangling_control(graph_def: Any) -> None:
    node(graph_def, "mod").input.append("^gone")


def index_out_of_range(graph_def: Any) -> None:
    node(graph_def, "mod").input[0] = "batch:7"


def wrong_dtype(graph_def: Any) -> None:
    node(graph_def, "mod").input[0] = "batch:2"


def too_many_inputs(graph_def: Any) -> None:
    node(graph_def, "mod").input.insert(0, "batch")


def duplicate(graph_def: Any) -> None:
    graph_def.node.add(name="mod", op="NoOp")


def cycle(graph_def: Any) -> None:
    node(graph_def, "mod").input[0] = "mx_rec/user/first/ids"


def control_cycle(graph_def: Any) -> None:
    node(graph_def, "batch").input.append("^mod")


def lost_function(graph_def: Any) -> None:
    del graph_def.library.function[:]


def lost_colocation(graph_def: Any) -> None:
    node(graph_def, "mod").attr["_class"].CopyFrom(attr_strings(["loc:@gone"]))


def body_dangling(graph_def: Any) -> None:
    body(graph_def, "FloorMod").input[0] = "gone:z:0"


def body_wrong_output(graph_def: Any) -> None:
    body(graph_def, "Identity").input[0] = "mod:nothing:0"


def body_output_out_of_range(graph_def: Any) -> None:
    body(graph_def, "Identity").input[0] = "mod:z:1"


def body_wrong_dtype(graph_def: Any) -> None:
    body(graph_def, "FloorMod").input[0] = "component_2"


def body_wrong_count(graph_def: Any) -> None:
    body(graph_def, "FloorMod").input.append("component_0")


def body_control(graph_def: Any) -> None:
    body(graph_def, "FloorMod").input.append("^gone")


def body_duplicate(graph_def: Any) -> None:
    body(graph_def, "Const").name = "mod"


def return_missing(graph_def: Any) -> None:
    del function(graph_def).ret["output_3"]


def return_dtype(graph_def: Any) -> None:
    function(graph_def).ret["output_3"] = "component_2"


DAMAGE: list[tuple[Callable[[Any], None], str, str]] = [
    (dangling, "mod", "input 0 is gone:0, but there is no node 'gone'"),
    (dangling_control, "mod", "waits for node 'gone', which does not exist"),
    (index_out_of_range, "mod", "input 0 is batch:7, but node 'batch' has 3 outputs"),
    (wrong_dtype, "mod", "input 0 is batch:2 of dtype float; expected int64"),
    (too_many_inputs, "mod", "has 3 inputs; op 'FloorMod' takes 2"),
    (duplicate, "mod", "two nodes have this name"),
    (cycle, "mod", "is on a cycle: mod <- mx_rec/user/first/ids <- mod"),
    (control_cycle, "batch", "is on a cycle: batch <- mod <- batch"),
    (lost_colocation, "mod", "is colocated with node 'gone', which does not exist"),
    (
        lost_function,
        "mx_rec/iterator/make/map",
        "calls function 'mx_rec_look_ahead_iterator', which the library",
    ),
    (body_dangling, "mx_rec_look_ahead_iterator", "'gone:z:0' names nothing in the body"),
    (body_wrong_output, "mx_rec_look_ahead_iterator", "node 'mod' has no such output; it has ['z']"),
    (body_output_out_of_range, "mx_rec_look_ahead_iterator", "output 'z' of node 'mod' has 1 tensors"),
    (
        body_wrong_dtype,
        "mx_rec_look_ahead_iterator",
        "body node 'mod': input 0 has dtype float; expected int64",
    ),
    (body_wrong_count, "mx_rec_look_ahead_iterator", "body node 'mod' has 3 inputs; op 'FloorMod' takes 2"),
    (body_control, "mx_rec_look_ahead_iterator", "body node 'mod' waits for 'gone', which does not exist"),
    (body_duplicate, "mx_rec_look_ahead_iterator", "two things in its body are called 'mod'"),
    (return_missing, "mx_rec_look_ahead_iterator", "output 'output_3' is not returned"),
    (return_dtype, "mx_rec_look_ahead_iterator", "output 'output_3' returns dtype float; expected int64"),
]


def hoisted() -> Any:
    from mx_rec.passes.hoist_lookups import HoistLookups

    return PassManager([HoistLookups()]).run(one_lookup()).graph_def


@pytest.mark.parametrize(("damage", "name", "what"), DAMAGE, ids=[case[0].__name__ for case in DAMAGE])
def test_damage_is_found(damage: Callable[[Any], None], name: str, what: str) -> None:
    graph_def = hoisted()
    verify(GraphView(graph_def))
    damage(graph_def)
    with pytest.raises(GraphVerifyError) as caught:
        verify(GraphView(graph_def))
    problems = caught.value.problems
    assert any(problem.node == name and what in problem.what for problem in problems), problems


def edits_with(*commands: Callable[[EditSet], Any]) -> EditSet:
    edits = EditSet()
    for command in commands:
        command(edits)
    return edits


@pytest.mark.parametrize(
    ("edits", "what"),
    [
        (edits_with(lambda e: e.set_input("mod", 0, TensorRef("gone", 0))), "there is no node 'gone'"),
        (edits_with(lambda e: e.set_input("mod", 0, TensorRef("batch", 2))), "expected int64"),
        (edits_with(lambda e: e.set_input("mod", 0, TensorRef("batch", 3))), "has 3 outputs"),
        (edits_with(lambda e: e.set_input("mod", 0, TensorRef("mx_rec/user/first/ids", 0))), "cycle"),
        (edits_with(lambda e: e.add_control_input("batch", "mx_rec/user/first/addresses")), "cycle"),
        (edits_with(lambda e: e.add_control_input("batch", "gone")), "waits for node 'gone'"),
        (edits_with(lambda e: e.remove_node("mod")), "node 'mod'"),
        (edits_with(lambda e: e.set_attr("mod", "T", attr_type(DT_FLOAT))), "of dtype int64; expected float"),
        (
            edits_with(lambda e: e.add_node("n", "Neg", [TensorRef("batch", 2)], {"T": attr_type(DT_INT64)})),
            "int64",
        ),
        (edits_with(lambda e: e.add_node("n", "NoOp", controls=["gone"])), "waits for node 'gone'"),
    ],
)
def test_the_check_after_edits_finds_what_the_full_check_finds(edits: EditSet, what: str) -> None:
    before = GraphView(one_lookup())
    verify(before)
    after = before.edited(edits)
    with pytest.raises(GraphVerifyError, match=what):
        verify_delta(after)
    with pytest.raises(GraphVerifyError, match=what):
        verify(GraphView(after.to_graph_def()))


def test_the_check_after_private_attributes_passes() -> None:
    after = GraphView(one_lookup()).edited(edits_with(lambda e: e.set_attr("mod", "_x", attr_bytes("y"))))
    assert after.delta.is_private
    verify_delta(after)


@pytest.mark.parametrize("case", CASES, ids=[f"{case.step.name}-{case.name}" for case in CASES])
def test_sound_graphs_pass_before_and_after_the_rewrite(case: Any) -> None:
    graph_def = case.build()
    if case.name == "error":
        return
    verify(GraphView(graph_def))
    verify(GraphView(PassManager(default_pipeline()).run(graph_def).graph_def))


@pytest.mark.parametrize("use_v2", [False, True])
def test_graphs_of_tensorflow_itself_pass(use_v2: bool) -> None:
    """While loops, conditionals, functions, reference variables: all of it is sound."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    tf1.disable_eager_execution()
    (tf1.enable_control_flow_v2 if use_v2 else tf1.disable_control_flow_v2)()
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [3])
        variable = tf1.get_variable("v", [3], use_resource=use_v2)
        _, total = tf1.while_loop(lambda i, _: i < 3, lambda i, t: (i + 1, t + x * variable), [0, x])
        chosen = tf1.cond(tf.reduce_sum(total) > 0, lambda: total, lambda: -total)
        table = tf1.lookup.StaticHashTable(tf1.lookup.KeyValueTensorInitializer(["a"], [1]), 0)
        table.lookup(tf.constant(["a"]))
        batch = tf1.data.make_initializable_iterator(tf.data.Dataset.range(3).map(lambda i: i + 1)).get_next()
        loss = tf.reduce_sum(chosen) + tf.cast(batch, tf.float32)
        tf1.train.AdamOptimizer(0.1).minimize(loss)
    tf1.disable_control_flow_v2()
    verify(GraphView(graph.as_graph_def()))


@pytest.mark.parametrize("path", MORE_GRAPHS, ids=lambda path: path.stem)
def test_graphs_from_elsewhere_pass(path: Path) -> None:
    from tensorflow.core.framework import graph_pb2

    data = path.read_bytes()
    graph_def = graph_pb2.GraphDef.FromString(gzip.decompress(data) if path.suffix == ".gz" else data)
    verify(GraphView(graph_def))
    result = PassManager(default_pipeline()).run(graph_def)
    assert not result.modified


def test_message_names_the_first_and_counts_the_rest() -> None:
    graph_def = one_shot()
    for item in graph_def.node:
        if item.op == "Const":
            item.input.append("^gone")
    with pytest.raises(GraphVerifyError, match="waits for node 'gone', which does not exist; ") as caught:
        verify(GraphView(graph_def))
    assert len(caught.value.problems) == sum(item.op == "Const" for item in graph_def.node)
