"""Canonical text: equal graphs give equal text, unequal graphs do not."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from mx_rec.graph.canonical import canonical_text

tf1 = tf.compat.v1


def small_graph() -> graph_pb2.GraphDef:
    with tf.Graph().as_default() as graph:
        dataset = tf.data.Dataset.range(10).map(lambda x: x * 2).batch(4)
        iterator = tf1.data.make_initializable_iterator(dataset)
        ids = iterator.get_next()
        weights = tf1.get_variable("weights", [20, 3], use_resource=True)
        tf.reduce_sum(tf.gather(weights, ids), name="loss")
    return graph.as_graph_def(add_shapes=True)


def const_graph(value, dtype=None) -> graph_pb2.GraphDef:
    with tf.Graph().as_default() as graph:
        tf.constant(value, dtype=dtype, name="c")
    return graph.as_graph_def()


def test_text_ignores_node_order():
    graph_def = small_graph()
    shuffled = graph_pb2.GraphDef()
    nodes = list(graph_def.node)
    random.Random(1).shuffle(nodes)
    shuffled.node.extend(nodes)
    shuffled.library.CopyFrom(graph_def.library)
    assert canonical_text(shuffled) == canonical_text(graph_def)


def test_text_ignores_shapes_versions_and_token():
    graph_def = small_graph()
    other = graph_pb2.GraphDef()
    other.CopyFrom(graph_def)
    other.ClearField("versions")
    for node in other.node:
        node.attr.pop("_output_shapes", None)
        node.attr["_mx_rec_graph"].s = b"token"
    assert canonical_text(other) == canonical_text(graph_def)


def test_text_ignores_spelled_out_defaults():
    graph_def = small_graph()
    gather = next(node for node in graph_def.node if node.op == "GatherV2" or node.op == "ResourceGather")
    assert "batch_dims" in gather.attr
    before = canonical_text(graph_def)
    del gather.attr["batch_dims"]
    assert canonical_text(graph_def) == before
    gather.attr["batch_dims"].i = 1
    assert canonical_text(graph_def) != before


def test_own_ops_are_written_in_full():
    graph_def = graph_pb2.GraphDef()
    node = graph_def.node.add(name="look", op="MxRecLookAhead")
    node.attr["reserve"].b = False
    assert canonical_text(graph_def) == "look = MxRecLookAhead() {reserve=false}\n"


def test_inputs_are_normalised_but_keep_their_order():
    graph_def = graph_pb2.GraphDef()
    graph_def.node.add(name="n", op="Unknown", input=["b:0", "a:1", "^z", "^y", "^z"], device="/cpu:0")
    assert canonical_text(graph_def) == "n = Unknown(b, a:1, ^y, ^z) device=/cpu:0\n"


def test_collections_are_a_set():
    first, second = graph_pb2.GraphDef(), graph_pb2.GraphDef()
    for graph_def, names in ((first, [b"A", b"B"]), (second, [b"B", b"A"])):
        graph_def.node.add(name="n", op="NoOp").attr["_mx_rec_collections"].list.s.extend(names)
    assert canonical_text(first) == canonical_text(second) == "n = NoOp() {_mx_rec_collections=['A', 'B']}\n"


def test_ignored_attributes_can_be_chosen():
    graph_def = graph_pb2.GraphDef()
    graph_def.node.add(name="n", op="NoOp").attr["_mx_rec_pass"].s = b"prune"
    assert "_mx_rec_pass='prune'" in canonical_text(graph_def)
    assert canonical_text(graph_def, ignore_attrs={"_mx_rec_pass"}) == "n = NoOp()\n"


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        ([0, 1], tf.int32, "int32[2] [0, 1]"),
        (0.1, tf.float32, "float[] [0.100000001]"),
        (0.1, tf.float64, "double[] [0.1]"),
        (b"key", tf.string, "string[] ['key']"),
        ([], tf.int64, "int64[0] []"),
        (True, tf.bool, "bool[] [True]"),
    ],
)
def test_small_constants_show_their_values(value, dtype, expected):
    assert f"value={expected}" in canonical_text(const_graph(value, dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.float16])
def test_a_change_past_the_shown_values_changes_the_text(dtype):
    values = np.zeros(100, dtype)
    before = canonical_text(const_graph(values))
    values[-1] = 1
    assert canonical_text(const_graph(values)) != before


def test_long_strings_differ_by_hash():
    assert canonical_text(const_graph("a" * 100 + "x")) != canonical_text(const_graph("a" * 100 + "y"))


def test_close_doubles_differ():
    assert canonical_text(const_graph(0.1, tf.float64)) != canonical_text(const_graph(0.1 + 1e-15, tf.float64))


def test_a_constant_packed_in_two_ways_is_the_same():
    packed = const_graph(np.full(50, 7, np.int32))
    spelled = const_graph(np.full(50, 7, np.int32))
    tensor = spelled.node[0].attr["value"].tensor
    tensor.ClearField("tensor_content")
    tensor.int_val[:] = [7]
    assert canonical_text(packed) == canonical_text(spelled)


def test_huge_and_broken_constants_are_hashed_without_being_laid_out():
    graph_def = const_graph(np.int32(1))
    tensor = graph_def.node[0].attr["value"].tensor
    tensor.tensor_shape.dim.add(size=1 << 40)
    assert "int32[1099511627776] #" in canonical_text(graph_def)
    tensor.tensor_shape.dim[0].size = 3
    tensor.tensor_content = b"odd"
    assert "int32[3] #" in canonical_text(graph_def)


def test_functions_are_part_of_the_text():
    graph_def = small_graph()
    text = canonical_text(graph_def)
    assert "function __inference_Dataset_map" in text
    function = graph_def.library.function[0]
    multiply = next(node for node in function.node_def if node.op == "Mul")
    multiply.op = "AddV2"
    assert canonical_text(graph_def) != text


def test_text_is_linear_in_size():
    graph_def = graph_pb2.GraphDef()
    for index in range(20_000):
        node = graph_def.node.add(name=f"n{index}", op="AddV2")
        node.input.extend([f"n{index - 1}", f"n{index // 2}"] if index else [])
        node.attr["T"].type = 1
    start = time.perf_counter()
    canonical_text(graph_def)
    assert time.perf_counter() - start < 5
