"""`recgraph rewrite` keeps what it has no business with, and refuses what does not fit into a file."""

from __future__ import annotations

import pytest
import tensorflow as tf
from cli_graphs import add_lookup, base_graph
from google.protobuf import text_format
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from mx_rec.graph import files

tf1 = tf.compat.v1
UNKNOWN = b"\xfa\x3e\x03abc"  # field 1007, which no version of these messages has


@pytest.fixture
def rich_graph() -> graph_pb2.GraphDef:
    """A lookup that moves, beside all that must stay: functions, devices, places, control edges."""
    graph = base_graph()
    with graph.as_default():
        batch = graph.get_tensor_by_name("IteratorGetNext:0")

        @tf.function
        def doubled(x):
            return 2 * x

        with tf.device("/device:CPU:0"), tf.control_dependencies([batch]):
            doubled(batch)
            beside = tf.constant(1.5, name="beside")
        with graph.colocate_with(beside.op):
            tf.identity(batch, name="near")
        with graph.colocate_with(batch.op):
            tf.identity(beside, name="near_the_batch")
    graph_def = graph.as_graph_def()
    add_lookup(graph_def, "movie", "movie_ids")
    graph_def.library.gradient.add(function_name=graph_def.library.function[0].signature.name, gradient_func="g")
    graph_def.library.registered_gradients.add(gradient_func="g", registered_op_type="Mul")
    node = next(node for node in graph_def.node if node.name == "beside")
    node.attr["_own"].s = b"\xff\x00"
    node.experimental_debug_info.original_node_names.append("somewhere")
    return graph_def


def nodes(graph_def) -> dict:
    return {node.name: node for node in graph_def.node}


class TestKept:
    def rewritten(self, recgraph, write, tmp_path, graph_def, tail: bytes = b""):
        source, out = write("in.pb", graph_def.SerializeToString() + tail), tmp_path / "out.pb"
        assert recgraph("rewrite", source, out).code == 0
        return graph_pb2.GraphDef.FromString(out.read_bytes())

    def test_library_and_versions(self, recgraph, write, tmp_path, rich_graph):
        after = self.rewritten(recgraph, write, tmp_path, rich_graph)
        before = {f.signature.name: f.SerializeToString(deterministic=True) for f in rich_graph.library.function}
        kept = {f.signature.name: f.SerializeToString(deterministic=True) for f in after.library.function}
        assert before and before.items() <= kept.items() and len(kept) == len(before) + 1
        assert after.library.gradient == rich_graph.library.gradient
        assert after.library.registered_gradients == rich_graph.library.registered_gradients
        assert after.versions == rich_graph.versions

    def test_nodes_that_are_not_touched_are_the_same_bytes(self, recgraph, write, tmp_path, rich_graph):
        before, after = nodes(rich_graph), nodes(self.rewritten(recgraph, write, tmp_path, rich_graph))
        touched = {name for name, node in before.items() if name in after and node != after[name]}
        assert "beside" in touched and "weights" not in touched and len(touched) < 15
        untouched = (before.keys() & after.keys()) - touched
        assert len(untouched) > 20
        for name in untouched:
            assert before[name].SerializeToString(deterministic=True) == after[name].SerializeToString(
                deterministic=True
            )
        order = [node.name for node in rich_graph.node if node.name in after]
        assert [name for name in after if name in before] == order

    def test_all_but_the_batch_of_nodes_that_read_it(self, recgraph, write, tmp_path, rich_graph):
        before, after = nodes(rich_graph), nodes(self.rewritten(recgraph, write, tmp_path, rich_graph))
        for name in ("beside", "near", "near_the_batch"):
            old, new = before[name], after[name]
            assert (old.device, old.op, dict(old.attr)) == (new.device, new.op, dict(new.attr))
            assert old.experimental_debug_info == new.experimental_debug_info
        assert after["beside"].device == "/device:CPU:0"
        assert list(after["near"].attr["_class"].list.s) == [b"loc:@beside"]
        assert list(after["near_the_batch"].attr["_class"].list.s)
        waiting = [text for text in after["beside"].input if text.startswith("^")]
        assert [text for text in before["beside"].input if text.startswith("^")] == ["^IteratorGetNext"]
        assert waiting == ["^mx_rec/IteratorGetNext/get_next"]

    def test_fields_of_another_tensorflow(self, recgraph, write, tmp_path, rich_graph, train_meta_graph):
        assert UNKNOWN in self.rewritten(recgraph, write, tmp_path, rich_graph, UNKNOWN).SerializeToString()
        out = tmp_path / "out.meta"
        source = write("in.meta", train_meta_graph.SerializeToString() + UNKNOWN)
        assert recgraph("rewrite", source, out).code == 0
        assert UNKNOWN in out.read_bytes()
        meta = meta_graph_pb2.MetaGraphDef.FromString(out.read_bytes())
        assert meta.saver_def == train_meta_graph.saver_def
        assert meta.meta_info_def.tags == train_meta_graph.meta_info_def.tags

    @pytest.mark.parametrize("name", ["g.pb", "g.pbtxt", "g.meta"])
    def test_byte_for_byte_where_nothing_changes(self, recgraph, write, tmp_path, plain_graph, name):
        meta = meta_graph_pb2.MetaGraphDef(graph_def=plain_graph)
        source, out = write(name, meta if "meta" in name else plain_graph), tmp_path / f"out_{name}"
        odd = {"g.pbtxt": b"\n# a comment\n\n"}.get(name, UNKNOWN)
        source.write_bytes(source.read_bytes() + odd)
        assert recgraph("rewrite", source, out).code == 0
        assert out.read_bytes() == source.read_bytes()

    def test_large_constants(self, recgraph, write, tmp_path, rich_graph):
        """They are written in pieces."""
        with tf.Graph().as_default() as graph, tf.device("/device:CPU:0"):
            tf.constant(list(range(400_000)), name="large")
        rich_graph.node.add().CopyFrom(graph.as_graph_def().node[0])
        rich_graph.node[-1].attr["_class"].list.s.append(b"loc:@beside")
        rich_graph.node[-1].input.append("^beside")
        after = self.rewritten(recgraph, write, tmp_path, rich_graph)
        assert nodes(after)["large"] == rich_graph.node[-1]


class TestBrokenGraphs:
    @pytest.mark.parametrize("command", ["inspect", "plot", "rewrite"])
    def test_one_line_and_exit_code_3(self, recgraph, write, tmp_path, train_graph, command):
        broken = graph_pb2.GraphDef.FromString(train_graph.SerializeToString())
        unique = next(node for node in broken.node if node.op == "MxRecUnique")
        del unique.input[:]
        out = tmp_path / "out.svg"
        ended = recgraph(command, write("in.pb", broken), *([] if command == "inspect" else [out]))
        assert ended.code == 3
        assert unique.name in ended.line and "has 0 inputs" in ended.line
        assert not out.exists()


def head_of_constant(name: str, size: int) -> bytes:
    """A Const node whose value's content of `size` bytes is to follow, as a field of a GraphDef."""

    def head(number: int, data: bytes) -> bytes:
        length, out = len(data) + size, bytearray([number << 3 | 2])
        while length > 0x7F:
            out.append(length & 0x7F | 0x80)
            length >>= 7
        return bytes([*out, length]) + data

    tensor = b"\x08\x04" + head(4, b"")  # uint8, content
    entry = b"\x0a\x05value" + head(2, head(8, tensor))
    return head(1, b"\x0a" + bytes([len(name)]) + name.encode() + b"\x12\x05Const" + head(5, entry))


class TestTwoGigabytes:
    @pytest.mark.parametrize("command", ["inspect", "plot", "rewrite"])
    def test_an_input_names_its_largest_constants(self, recgraph, tmp_path, command):
        source, out = tmp_path / "huge.pb", tmp_path / "out.svg"
        with source.open("wb") as stream:  # sparse: it takes no room on the disk
            for name, size in (("small", 1000), ("users", 900_000_000), ("items", 1_300_000_000)):
                stream.write(head_of_constant(name, size))
                stream.seek(size, 1)
            stream.write(tf.Graph().as_graph_def().SerializeToString())
        ended = recgraph(command, source, *([] if command == "inspect" else [out]))
        assert ended.code == 2
        assert "more than the 2 GB" in ended.line
        assert ended.line.index("'items' (1,300 MB)") < ended.line.index("'users' (900 MB)")
        assert not out.exists()

    @pytest.mark.parametrize("name", ["in.pb", "in.meta"])
    def test_a_result_names_its_largest_constants(
        self, recgraph, write, tmp_path, train_graph, train_meta_graph, name, monkeypatch
    ):
        message = train_meta_graph if "meta" in name else train_graph
        source, out = write(name, message), tmp_path / "out.pb"
        out.write_bytes(b"before")
        monkeypatch.setattr(files, "MAX_BYTES", source.stat().st_size + 100)  # which the new nodes exceed
        ended = recgraph("rewrite", source, out)
        assert (ended.code, out.read_bytes()) == (2, b"before")
        assert "more than the 2 GB" in ended.err and "the largest nodes are '" in ended.err


def test_text_is_written_as_protobuf_writes_it(recgraph, write, tmp_path, train_graph):
    source, out = write("in.pbtxt", train_graph), tmp_path / "out.pbtxt"
    assert recgraph("rewrite", source, out).code == 0
    assert out.read_text() == text_format.MessageToString(text_format.Parse(out.read_text(), graph_pb2.GraphDef()))
