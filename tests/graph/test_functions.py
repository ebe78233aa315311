"""FunctionBuilder: names, references, equal work done once, and functions that TensorFlow runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from lookup_graphs import LookupGraph

from mx_rec.errors import GraphRewriteError
from mx_rec.graph.attrs import DT_INT64, DT_STRING, attr_bytes, attr_strings, attr_type, attr_types
from mx_rec.graph.functions import FunctionBuilder, sanitized
from mx_rec.graph.node import TensorRef
from mx_rec.graph.slices import slice_analysis
from mx_rec.graph.view import GraphView


def build(view: GraphView, roots: list[str], outputs: list[TensorRef]) -> Any:
    """A function from the components of "batch" to `outputs`."""
    builder = FunctionBuilder(view, "f")
    for index, dtype in enumerate(view.types("batch").outputs):
        builder.add_argument(f"component_{index}", dtype, [TensorRef("batch", index)])
    builder.clone(slice_analysis(view).nodes(roots), dropped_controls=["batch"])
    for index, ref in enumerate(outputs):
        builder.add_output(f"output_{index}", builder.ref(ref), view.dtype(ref))
    return builder.build()


def test_names_are_sanitized_and_unique() -> None:
    assert sanitized("a/b.c-d") == "a_b_c_d"
    assert sanitized("_x") == "n_x"
    graph = LookupGraph()
    ids, _, _ = graph.batch()
    first = graph.unary("a/b", "Neg", ids)
    second = graph.unary("a_b", "Abs", first)
    view = GraphView(graph.graph_def())
    function = build(view, ["a_b"], [second])
    assert [node.name for node in function.node_def] == ["a_b", "a_b_1"]
    assert list(function.node_def[1].input) == ["a_b:y:0"]
    assert function.ret["output_0"] == "a_b_1:y:0"
    assert not function.signature.is_stateful


def test_placement_and_marks_stay_outside() -> None:
    graph = LookupGraph()
    ids, _, _ = graph.batch()
    attrs = {
        "T": attr_type(DT_INT64),
        "_class": attr_strings(["loc:@batch"]),
        "_mx_rec_lookup": attr_bytes("x"),
        "_of_the_user": attr_bytes("kept"),
    }
    out = graph.add("out", "Neg", [ids], attrs, device="/device:GPU:0", controls=["batch"])
    function = build(GraphView(graph.graph_def()), ["out"], [out])
    (node,) = function.node_def
    assert sorted(node.attr) == ["T", "_of_the_user"]
    assert node.device == ""
    assert list(node.input) == ["component_0"]


def test_equal_work_is_done_once() -> None:
    graph = LookupGraph()
    ids, other_ids, _ = graph.batch()
    one, two = graph.mod("one", ids), graph.mod("two", ids)
    other_bucket, other_input = graph.mod("three", ids, buckets=8), graph.mod("four", other_ids)
    sums = [graph.unary(f"neg_{x.node}", "Neg", x) for x in (one, two, other_bucket, other_input)]
    view = GraphView(graph.graph_def())
    function = build(view, [ref.node for ref in sums], sums)
    assert sorted(node.op for node in function.node_def).count("FloorMod") == 3
    assert function.ret["output_0"] == function.ret["output_1"]
    assert len({function.ret[f"output_{index}"] for index in range(4)}) == 3


def test_equal_work_under_other_controls_or_with_effects_is_kept_apart() -> None:
    graph = LookupGraph()
    ids, _, _ = graph.batch()
    yes = graph.const("yes", True, 10)
    graph.add("assert", "Assert", [yes, ids], {"T": attr_types([DT_INT64])})
    free = graph.unary("free", "Neg", ids)
    bound = graph.unary("bound", "Neg", ids, controls=["assert"])
    view = GraphView(graph.graph_def())
    function = build(view, ["free", "bound"], [free, bound])
    assert [node.op for node in function.node_def].count("Neg") == 2
    assert function.signature.is_stateful
    assert "^assert" in next(list(node.input) for node in function.node_def if node.name == "bound")


def test_what_is_not_in_the_function_is_named() -> None:
    graph = LookupGraph()
    ids, _, _ = graph.batch()
    neg = graph.unary("neg", "Neg", graph.unary("abs", "Abs", ids))
    late = graph.unary("late", "Neg", ids, controls=["abs"])
    view = GraphView(graph.graph_def())
    builder = FunctionBuilder(view, "f")
    builder.add_argument("x", DT_INT64, [ids])
    with pytest.raises(GraphRewriteError, match="'abs' is read by a node of function 'f' but is not in it"):
        builder.clone([view.node(neg.node)])
    with pytest.raises(GraphRewriteError, match="'late' waits for 'abs', which is not in the function"):
        builder.clone([view.node(late.node)])
    with pytest.raises(GraphRewriteError, match="op 'Nobodys' is not known"):
        builder.call("Nobodys", "x", [])


def test_stripped_defaults_are_written_out() -> None:
    """A function body, unlike a graph, is not completed by TensorFlow when it is loaded."""
    graph = LookupGraph()
    ids, _, _ = graph.batch()
    words = graph.add("words", "AsString", [ids], {"T": attr_type(DT_INT64)})
    graph_def = graph.graph_def()
    node = next(node for node in graph_def.node if node.name == "words")
    for attr in ("precision", "width", "fill", "scientific", "shortest"):
        del node.attr[attr]
    function = build(GraphView(graph_def), ["words"], [words])
    assert function.node_def[0].attr["precision"].i == -1
    assert function.signature.output_arg[0].type == DT_STRING


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["AddV2", "Sub", "Mul", "Maximum", "FloorMod", "Neg", "Identity", "Cast", "Pack"]),
        st.integers(0, 50),
        st.integers(0, 50),
        st.booleans(),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=30, deadline=None)
@given(STEPS, st.integers(0, 2**31))
def test_a_function_computes_what_its_slice_computes(steps: list, seed: int) -> None:
    """Random slices, run as a dataset function by TensorFlow and as part of the step."""
    with tf.Graph().as_default() as graph:
        data = np.random.RandomState(seed % 1000).randint(-50, 50, (3, 4), dtype=np.int64)
        dataset = tf.data.Dataset.from_tensor_slices((data, data[:, :2] * 3))
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        x, y = iterator.get_next(name="batch")
        tensors = [tf.reduce_sum(y) + x, x, tf.constant(7, tf.int64) + tf.zeros_like(x)]
        for step in steps:
            tensors.append(add_step(tensors, *step))
        outputs = [tensors[-1], tensors[len(tensors) // 2]]
        view = GraphView(graph.as_graph_def())
        refs = [TensorRef(t.op.name, t.value_index) for t in outputs]
        function = build(view, [ref.node for ref in refs], refs)
        mapped = run_as_dataset_function(graph, function, dataset, outputs)
        with tf.compat.v1.Session(graph=graph) as session:
            session.run([iterator.initializer, mapped.initializer])
            element = mapped.get_next()
            for _ in range(3):
                at_step, ahead = session.run([outputs, element])
                np.testing.assert_equal(list(ahead), at_step)


def add_step(tensors: list, op: str, a: int, b: int, with_control: bool) -> tf.Tensor:
    left, right = tensors[a % len(tensors)], tensors[b % len(tensors)]
    with tf.control_dependencies([right] if with_control else []):
        if op == "FloorMod":
            return tf.math.floormod(left, tf.constant(11, tf.int64))
        if op == "Cast":
            return tf.cast(tf.cast(left, tf.int32), tf.int64)
        if op == "Pack":
            return tf.unstack(tf.stack([left, right]))[1]
        if op in ("Neg", "Identity"):
            return getattr(tf.raw_ops, op)(**{"x" if op == "Neg" else "input": left})
        return getattr(tf.raw_ops, op)(x=left, y=right)


def run_as_dataset_function(graph: tf.Graph, function: Any, dataset: Any, outputs: list) -> Any:
    graph_def = tf.compat.v1.GraphDef()
    graph_def.library.function.add().CopyFrom(function)
    node = graph_def.node.add(name="mapped", op="MapDataset", input=["source"])
    node.attr["f"].func.name = function.signature.name
    node.attr["Targuments"].list.SetInParent()
    node.attr["output_types"].list.type.extend([tensor.dtype.as_datatype_enum for tensor in outputs])
    node.attr["output_shapes"].list.shape.extend([tensor.shape.as_proto() for tensor in outputs])
    (mapped,) = tf.import_graph_def(
        graph_def, input_map={"source:0": dataset._variant_tensor}, return_elements=["mapped:0"], name="ahead"
    )
    spec = tuple(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in outputs)
    return tf.compat.v1.data.make_initializable_iterator(tf.data.experimental.from_variant(mapped, spec))
