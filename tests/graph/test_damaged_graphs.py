"""What is wrong with a graph is said, whatever it is; each of these once crashed or passed unseen."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from lookup_graphs import LookupGraph
from tensorflow.core.framework import graph_pb2

from mx_rec.errors import GraphFileError
from mx_rec.graph import marks
from mx_rec.graph.attrs import DT_FLOAT, const_value, is_zero, raw_values
from mx_rec.graph.canonical import tensor_text
from mx_rec.graph.files import largest_constants, load_graph
from mx_rec.graph.node import TensorRef, parse_ref
from mx_rec.graph.verify import GraphVerifyError, verify
from mx_rec.graph.view import GraphView
from mx_rec.passes import PassFailed, PassManager, default_pipeline


def trained() -> graph_pb2.GraphDef:
    graph = LookupGraph()
    ids, other_ids, _ = graph.batch()
    graph.lookup("first", graph.table("user"), graph.mod("mod", ids))
    graph.lookup("second", graph.table("item"), other_ids)
    return graph.graph_def()


def node_of(graph_def, name: str):
    return next(node for node in graph_def.node if node.name == name)


def rewritten(graph_def) -> graph_pb2.GraphDef:
    return PassManager(default_pipeline()).run(graph_def).graph_def


class TestVerify:
    def problem(self, graph_def) -> str:
        with pytest.raises(GraphVerifyError) as caught:
            verify(GraphView(graph_def))
        return str(caught.value)

    @pytest.mark.parametrize("count", [2**62, -1])
    def test_an_impossible_number_of_inputs(self, count):
        graph_def = graph_pb2.GraphDef()
        node = graph_def.node.add(name="sum", op="AddN")
        node.attr["N"].i, node.attr["T"].type = count, DT_FLOAT
        assert "'sum'" in self.problem(graph_def) and "'N'" in self.problem(graph_def)

    def test_a_missing_dtype(self):
        graph_def = trained()
        del node_of(graph_def, "mod").attr["T"]
        assert "node 'mod': op 'FloorMod' needs sound attributes 'T'" in self.problem(graph_def)

    def test_a_place_that_is_no_text(self):
        graph_def = trained()
        node_of(graph_def, "mod").attr["_class"].list.s.append(b"loc:@\xec")
        assert "is colocated with node '\ufffd', which does not exist" in self.problem(graph_def)


@pytest.mark.parametrize("text", ["a:", "a:-1", "a:x", "a:1:2", "a:1_0", "a:\u0663", "a:" + "9" * 30])
def test_no_tensor(text):
    with pytest.raises(ValueError, match="no tensor"):
        parse_ref(text)


def test_tensors():
    assert parse_ref("a") == parse_ref("a:0") == TensorRef("a", 0)
    assert parse_ref("a/b:12") == TensorRef("a/b", 12)


class TestConstants:
    def test_damaged_ones_have_no_value(self):
        value = tf.compat.v1.AttrValue()
        assert const_value(value) is None
        value.tensor.CopyFrom(tf.make_tensor_proto(np.arange(3)))
        value.tensor.tensor_content = b"abc"
        assert const_value(value) is None and not is_zero(value)
        value.tensor.CopyFrom(tf.make_tensor_proto(0))
        value.tensor.tensor_shape.dim.add(size=2**50)  # one value for all: not to be laid out
        assert const_value(value) is None

    def test_a_single_zero(self):
        value = tf.compat.v1.AttrValue()
        for array, expected in ((0, True), ([0], True), (1, False), ([0, 0], False), ([], False)):
            value.tensor.CopyFrom(tf.make_tensor_proto(array, tf.int32))
            assert is_zero(value) is expected

    def test_an_unknown_dtype_is_listed(self):
        graph_def = graph_pb2.GraphDef()
        graph_def.node.add(name="c", op="Const").attr["value"].tensor.dtype = -1
        assert largest_constants(graph_def, 1)[0].dtype == "dtype -1"

    @pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool", "float16", "uint8", "complex64"])
    def test_large_ones_are_written_as_small_ones_are(self, dtype):
        array = (np.arange(150_000) % 7).astype(dtype).reshape(100, -1)
        proto = tf.make_tensor_proto(array)
        assert (raw_values(proto) is None) == (len(proto.tensor_content) < 1 << 16)
        text = tensor_text(proto)
        spelled = tf.make_tensor_proto(array)
        spelled.ClearField("tensor_content")
        field = {"float32": "float_val", "float64": "double_val", "int64": "int64_val", "bool": "bool_val"}.get(dtype)
        if field:
            spelled.ClearField(field)
            getattr(spelled, field).extend(array.reshape(-1).tolist())
            assert tensor_text(spelled) == text


class TestFiles:
    def refusal(self, tmp_path, data: bytes) -> str:
        path = tmp_path / "in.pb"
        path.write_bytes(data)
        with pytest.raises(GraphFileError) as caught:
            load_graph(path)
        return str(caught.value)

    def test_a_name_that_tensorflow_does_not_take(self, tmp_path):
        graph_def = trained()
        graph_def.node.add(name="caf\u00e9", op="NoOp")
        assert "'caf\u00e9' is no name of a node" in self.refusal(tmp_path, graph_def.SerializeToString())

    def test_an_op_without_name(self, tmp_path):
        graph_def = trained()
        graph_def.node.add(name="last")
        assert "'' is no name of an op" in self.refusal(tmp_path, graph_def.SerializeToString())

    def test_text_nested_without_end(self, tmp_path):
        text = 'node { name: "a" op: "b" attr { key: "f" value ' + "{ func { attr { value " * 3000
        assert "nested too deeply" in self.refusal(tmp_path, text.encode())

    def test_names_in_text(self, tmp_path):
        graph_def = trained()
        graph_def.node.add(name="caf\u00e9", op="NoOp")
        assert "is no name of a node" in self.refusal(tmp_path, text_format.MessageToString(graph_def).encode())


class TestMarks:
    """Attributes with an underscore come through TensorFlow unseen, so anything may stand there."""

    def failure(self, graph_def) -> str:
        with pytest.raises(PassFailed) as caught:
            rewritten(graph_def)
        return str(caught.value)

    def test_of_hoisting(self):
        hoisted = PassManager(default_pipeline()[:4]).run(trained()).graph_def
        assert node_of(hoisted, "iterator").attr[marks.HOIST_TYPES].list.type
        damaged = graph_pb2.GraphDef.FromString(hoisted.SerializeToString())
        node_of(damaged, "iterator").attr[marks.HOIST_TENSORS].list.s[0] = b"no_such:0"
        assert "'iterator': its attributes '_mx_rec_hoist_...' contradict" in self.failure(damaged)
        for attr in (marks.HOIST_SHAPES, marks.HOIST_TYPES, marks.HOIST_FIND_SOURCES, marks.HOIST_FIND_COMPONENTS):
            damaged = graph_pb2.GraphDef.FromString(hoisted.SerializeToString())
            node_of(damaged, "iterator").attr[attr].list.Clear()
            assert "'iterator': its attributes '_mx_rec_hoist_...' contradict" in self.failure(damaged), attr
        damaged = graph_pb2.GraphDef.FromString(hoisted.SerializeToString())
        node_of(damaged, "iterator").attr[marks.HOIST_TENSORS].list.s[0] = b"x:y"
        assert "contradict" in self.failure(damaged)

    def test_of_fused_lookups(self):
        graph_def = rewritten(trained())
        node = next(node for node in graph_def.node if node.op == "MxRecLookUpMany")
        del node.attr[marks.FUSED_LOOKUPS].list.s[0]
        assert f"{node.name!r}: its attributes '_mx_rec_fused_...' do not fit its 2 lookups" in self.failure(graph_def)


def test_what_waits_and_is_pruned_does_not_keep_lookups_apart():
    """A second rewrite would fuse them."""
    graph_def = trained()
    node_of(graph_def, "mx_rec/item/second/no_hints").input.append("^mx_rec/user/first/addresses")
    once = rewritten(graph_def)
    assert not PassManager(default_pipeline()).run(once).modified
