"""Graph files: told apart by content, written back as the same kind, and never half written."""

from __future__ import annotations

import gzip
import os
import stat
from pathlib import Path

import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework import graph_pb2, tensor_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from mx_rec.errors import GraphFileError
from mx_rec.graph import files
from mx_rec.graph.files import copy_graph, largest_constants, load_graph, save_graph

SAMPLES = sorted((Path(__file__).parent / "samples").glob("*.pb.gz"))

tf1 = tf.compat.v1


def build_graph() -> tf.Graph:
    with tf.Graph().as_default() as graph:
        dataset = tf.data.Dataset.range(10).map(lambda x: x * 2).batch(4)
        ids = tf1.data.make_initializable_iterator(dataset).get_next()
        weights = tf1.get_variable("weights", [20, 3], use_resource=True)
        loss = tf.reduce_sum(tf.gather(weights, ids), name="loss")
        tf1.add_to_collection("LOSSES", loss)
    return graph


@pytest.fixture(scope="module")
def graph_def() -> graph_pb2.GraphDef:
    return build_graph().as_graph_def()


@pytest.fixture(scope="module")
def meta_graph() -> meta_graph_pb2.MetaGraphDef:
    graph = build_graph()
    with graph.as_default():
        return tf1.train.export_meta_graph(graph=graph, saver_def=tf1.train.Saver().as_saver_def())


@pytest.fixture(params=["graphdef", "graphdef_text", "metagraph", "metagraph_text"])
def kind(request) -> str:
    return request.param


@pytest.fixture
def graph_file(kind, graph_def, meta_graph, tmp_path) -> Path:
    message = meta_graph if kind.startswith("metagraph") else graph_def
    path = tmp_path / "graph.any"
    if kind.endswith("_text"):
        path.write_text(text_format.MessageToString(message))
    else:
        path.write_bytes(message.SerializeToString())
    return path


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "in.pb"
    path.write_bytes(data)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(GraphFileError) as caught:
        load_graph(path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert str(path) in message
    return message


def listing(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


class TestRoundTrip:
    def test_kind_is_found_and_kept(self, graph_file, kind, tmp_path):
        loaded = load_graph(graph_file)
        assert (loaded.kind, loaded.size_bytes, loaded.warnings) == (kind, graph_file.stat().st_size, ())
        out = tmp_path / "out.any"
        assert save_graph(loaded, loaded.graph_def, out) == out.stat().st_size
        again = load_graph(out)
        assert again.kind == kind
        assert again.message == loaded.message

    def test_output_may_be_the_input(self, graph_file, kind):
        loaded = load_graph(graph_file)
        save_graph(loaded, loaded.graph_def, graph_file)
        assert load_graph(graph_file).kind == kind
        assert listing(graph_file.parent) == ["graph.any"]

    def test_copy_is_byte_for_byte(self, graph_file, tmp_path):
        loaded = load_graph(graph_file)
        assert copy_graph(loaded, tmp_path / "copy") == loaded.size_bytes
        assert (tmp_path / "copy").read_bytes() == graph_file.read_bytes()
        assert copy_graph(loaded, graph_file) == 0

    def test_unknown_ops_load(self, tmp_path, meta_graph):
        changed = meta_graph_pb2.MetaGraphDef()
        changed.CopyFrom(meta_graph)
        changed.graph_def.node.add(name="own", op="NoSuchOpAnywhere")
        loaded = load_graph(write(tmp_path, changed.SerializeToString()))
        assert loaded.kind == "metagraph"
        save_graph(loaded, loaded.graph_def, tmp_path / "out")

    def test_a_graph_without_nodes_loads(self, tmp_path):
        empty = tf.Graph().as_graph_def()
        assert load_graph(write(tmp_path, empty.SerializeToString())).kind == "graphdef"

    def test_text_may_start_with_comments(self, tmp_path, graph_def):
        text = "# a comment\n\n  # another\n" + text_format.MessageToString(graph_def)
        assert load_graph(write(tmp_path, text.encode())).kind == "graphdef_text"

    @pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
    def test_sample_graphs(self, path, tmp_path):
        loaded = load_graph(write(tmp_path, gzip.decompress(path.read_bytes())))
        assert loaded.kind == "graphdef"
        assert len(loaded.graph_def.node) > 100


class TestMetaGraph:
    def load(self, meta_graph, tmp_path):
        return load_graph(write(tmp_path, meta_graph.SerializeToString()))

    def changed(self, loaded):
        graph_def = graph_pb2.GraphDef()
        graph_def.CopyFrom(loaded.graph_def)
        return graph_def

    def test_collections_come_from_the_attribute(self, meta_graph, tmp_path):
        loaded = self.load(meta_graph, tmp_path)
        graph_def = self.changed(loaded)
        node = next(node for node in graph_def.node if node.name == "loss")
        node.attr["_mx_rec_collections"].list.s.extend([b"LOSSES", b"NEW", b"OTHER"])
        node = next(node for node in graph_def.node if node.op == "MakeIterator")
        node.attr["_mx_rec_collections"].list.s.append(b"OTHER")
        save_graph(loaded, graph_def, tmp_path / "out.meta")
        collections = load_graph(tmp_path / "out.meta").message.collection_def
        assert list(collections["NEW"].node_list.value) == ["loss:0"]
        assert list(collections["LOSSES"].node_list.value) == ["loss:0"]
        assert sorted(collections["OTHER"].node_list.value) == ["MakeIterator", "loss:0"]

    def test_tensorflow_imports_what_is_written(self, meta_graph, tmp_path):
        loaded = self.load(meta_graph, tmp_path)
        graph_def = self.changed(loaded)
        node = next(node for node in graph_def.node if node.name == "loss")
        node.attr["_mx_rec_collections"].list.s.append(b"NEW")
        save_graph(loaded, graph_def, tmp_path / "out.meta")
        with tf.Graph().as_default():
            tf1.train.import_meta_graph(str(tmp_path / "out.meta"))
            assert [item.name for item in tf1.get_collection("NEW")] == ["loss:0"]

    def test_collection_of_another_kind(self, meta_graph, tmp_path):
        loaded = self.load(meta_graph, tmp_path)
        graph_def = self.changed(loaded)
        graph_def.node[0].attr["_mx_rec_collections"].list.s.append(b"trainable_variables")
        with pytest.raises(GraphFileError, match="collection 'trainable_variables' is a bytes_list"):
            save_graph(loaded, graph_def, tmp_path / "out.meta")
        assert listing(tmp_path) == ["in.pb"]

    def test_op_list_follows_the_graph(self, meta_graph, tmp_path):
        loaded = self.load(meta_graph, tmp_path)
        before = {op.name for op in loaded.message.meta_info_def.stripped_op_list.op}
        graph_def = self.changed(loaded)
        graph_def.node.add(name="extra", op="PrefetchDataset")
        graph_def.node.add(name="own", op="NoSuchOpAnywhere")
        save_graph(loaded, graph_def, tmp_path / "out.meta")
        after = load_graph(tmp_path / "out.meta").message.meta_info_def.stripped_op_list
        names = [op.name for op in after.op]
        assert names == sorted(names)
        assert set(names) == before | {"PrefetchDataset"}
        assert not any(op.description or op.summary for op in after.op)

    def test_referenced_nodes(self, meta_graph, tmp_path):
        names = self.load(meta_graph, tmp_path).referenced_nodes()
        assert {"loss", "weights", "weights/Assign", "save/restore_all", "save/control_dependency"} <= names
        assert "MakeIterator" not in names

    def test_graph_defs_reference_nothing(self, graph_def, tmp_path):
        assert load_graph(write(tmp_path, graph_def.SerializeToString())).referenced_nodes() == frozenset()

    def test_a_referenced_node_must_stay(self, meta_graph, tmp_path):
        loaded = self.load(meta_graph, tmp_path)
        graph_def = self.changed(loaded)
        del graph_def.node[[node.name for node in graph_def.node].index("loss")]
        with pytest.raises(GraphFileError, match="'loss' is gone.*collection 'LOSSES'.*--keep loss"):
            save_graph(loaded, graph_def, tmp_path / "out.meta")


class TestUnreadable:
    def test_missing(self, tmp_path):
        assert "No such file" in refusal(tmp_path / "none.pb")

    def test_directory(self, tmp_path):
        assert "is a directory" in refusal(tmp_path)

    def test_saved_model_directory(self, tmp_path):
        (tmp_path / "saved_model.pb").write_bytes(b"x")
        assert "SavedModel directory; expected a graph file" in refusal(tmp_path)

    def test_device(self):
        assert "not a regular file" in refusal(Path("/dev/null"))

    def test_empty(self, tmp_path):
        assert "is empty" in refusal(write(tmp_path, b""))

    @pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
    def test_no_permission(self, tmp_path, graph_def):
        path = write(tmp_path, graph_def.SerializeToString())
        path.chmod(0)
        assert "Permission denied" in refusal(path)

    def test_permission_error_is_reported(self, tmp_path, graph_def, monkeypatch):
        path = write(tmp_path, graph_def.SerializeToString())

        def refuse(self):
            raise PermissionError(13, "Permission denied", str(self))

        monkeypatch.setattr(Path, "read_bytes", refuse)
        assert "Permission denied" in refusal(path)

    @pytest.mark.parametrize(
        ("data", "expected"),
        [
            (bytes(range(256)) * 20, "another kind"),
            (b"\x00" * 100, "another kind"),
            (b"\xff" * 100, "another kind"),
            (gzip.compress(b"x" * 100), "gzip"),
            (b"PK\x03\x04" + b"\x00" * 50, "zip"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
            (tensor_pb2.TensorProto(dtype=1, float_val=[1.0] * 10).SerializeToString(), "another kind"),
        ],
        ids=["random", "zeros", "ones", "gzip", "zip", "lfs", "tensor"],
    )
    def test_something_else(self, data, expected, tmp_path):
        assert expected in refusal(write(tmp_path, data))

    def test_function_proto(self, tmp_path, graph_def):
        assert "another kind" in refusal(write(tmp_path, graph_def.library.function[0].SerializeToString()))

    def test_saved_model_file(self, tmp_path, meta_graph):
        saved = saved_model_pb2.SavedModel(saved_model_schema_version=1, meta_graphs=[meta_graph])
        assert ".pb of a SavedModel" in refusal(write(tmp_path, saved.SerializeToString()))
        assert "SavedModel" in refusal(write(tmp_path, text_format.MessageToString(saved).encode()))

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("hello world\n", "line 1 starts with 'hello'"),
            ("\n\n{'node': 1}\n", "line 3 starts with"),
            ("# only a comment\n", "line 1 starts with"),
            (" \n\n", "white space"),
            ('node {\n  name: "a"\n  nam: "b"\n}\n', "line 3"),
            ('node {\n  name: "a"\n', "line"),
            ("node = 1\n", "line 1"),
            ("meta_info_def { tags: 3 }", "line 1"),
            ("node { name: 'é' }", "line 1"),
        ],
    )
    def test_bad_text(self, text, expected, tmp_path):
        data = text.encode("latin-1") if "é" in text else text.encode()
        message = refusal(write(tmp_path, data))
        assert expected in message or "is neither" in message

    def test_too_large(self, tmp_path, graph_def, meta_graph, monkeypatch):
        monkeypatch.setattr(files, "MAX_BYTES", 1000)
        for message in (graph_def, meta_graph):
            text = refusal(write(tmp_path, message.SerializeToString()))
            assert "2 GB" in text
            assert "the largest nodes are '" in text

    def test_a_real_file_over_2_gb_is_refused_unread(self, tmp_path):
        path = tmp_path / "huge.pb"
        with path.open("wb") as stream:
            stream.truncate((1 << 31) + 10)
        assert "2 GB" in refusal(path)


class TestTruncated:
    def test_binary_cut_anywhere_is_refused_or_warned(self, graph_def, tmp_path):
        data = graph_def.SerializeToString()
        step = max(1, len(data) // 150)
        for size in [*range(8, len(data), step), len(data) - 1]:
            path = write(tmp_path, data[:size])
            try:
                assert load_graph(path).warnings, f"cut at {size} of {len(data)}"
            except GraphFileError as error:
                assert "trunc" in str(error) or "cut off" in str(error), str(error)

    def test_meta_graph_cut_inside_the_graph(self, meta_graph, tmp_path):
        data = meta_graph.SerializeToString()
        assert "truncated" in refusal(write(tmp_path, data[: len(data) // 2]))

    def test_cut_between_nodes_names_the_missing_one(self, graph_def, tmp_path):
        cut = graph_pb2.GraphDef(node=list(graph_def.node)[:-1])
        cut.node.add(name="user", op="Identity", input=["gone:1"])
        message = refusal(write(tmp_path, cut.SerializeToString()))
        assert "may be truncated" in message
        assert "'user'" in message
        assert "'gone'" in message

    def test_cut_before_the_library(self, graph_def, tmp_path):
        cut = graph_pb2.GraphDef(node=graph_def.node, versions=graph_def.versions)
        assert "needs function '__inference" in refusal(write(tmp_path, cut.SerializeToString()))

    def test_duplicate_nodes(self, tmp_path):
        twice = graph_pb2.GraphDef()
        for _ in range(2):
            twice.node.add(name="same", op="NoOp")
        assert "two nodes named 'same'" in refusal(write(tmp_path, twice.SerializeToString()))


class TestWriting:
    @pytest.fixture
    def loaded(self, graph_def, tmp_path):
        (tmp_path / "src").mkdir()
        return load_graph(write(tmp_path / "src", graph_def.SerializeToString()))

    def test_missing_directory(self, loaded, tmp_path):
        with pytest.raises(GraphFileError, match="no directory .*create it"):
            save_graph(loaded, loaded.graph_def, tmp_path / "none" / "out.pb")

    def test_target_is_a_directory(self, loaded, tmp_path):
        with pytest.raises(GraphFileError, match="is a directory"):
            save_graph(loaded, loaded.graph_def, tmp_path)

    def test_target_is_a_device(self, loaded):
        with pytest.raises(GraphFileError, match="not a regular file"):
            save_graph(loaded, loaded.graph_def, "/dev/null")

    @pytest.mark.parametrize("failing", ["fsync", "replace", "chmod"])
    def test_a_failed_write_changes_nothing(self, loaded, tmp_path, monkeypatch, failing):
        out = tmp_path / "out.pb"
        out.write_bytes(b"before")

        def fail(*args):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, failing, fail)
        with pytest.raises(GraphFileError, match="No space left on device"):
            save_graph(loaded, loaded.graph_def, out)
        assert out.read_bytes() == b"before"
        assert listing(tmp_path) == ["out.pb", "src"]

    def test_an_interrupt_leaves_nothing(self, loaded, tmp_path, monkeypatch):
        def interrupt(*args):
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            save_graph(loaded, loaded.graph_def, tmp_path / "out.pb")
        assert listing(tmp_path) == ["src"]

    def test_links_stay_links(self, loaded, tmp_path):
        target, link = tmp_path / "target.pb", tmp_path / "link.pb"
        target.write_bytes(b"before")
        link.symlink_to(target)
        save_graph(loaded, loaded.graph_def, link)
        assert link.is_symlink()
        assert load_graph(target).message == loaded.message

    def test_mode_is_kept(self, loaded, tmp_path):
        out = tmp_path / "out.pb"
        out.write_bytes(b"before")
        out.chmod(0o640)
        save_graph(loaded, loaded.graph_def, out)
        assert stat.S_IMODE(out.stat().st_mode) == 0o640

    def test_too_large_graph_names_its_constants(self, loaded, tmp_path, monkeypatch):
        monkeypatch.setattr(files, "MAX_BYTES", 1000)
        with tf.Graph().as_default() as graph:
            tf.constant(list(range(1000)), name="big_table")
        with pytest.raises(GraphFileError, match="2 GB.*'big_table'"):
            save_graph(loaded, graph.as_graph_def(), tmp_path / "out.pb")

    def test_largest_constants(self):
        with tf.Graph().as_default() as graph:
            tf.constant(list(range(1000)), name="big")
            tf.constant([1.5, 2.5], name="small")
        big, small = largest_constants(graph.as_graph_def(), 5)
        assert (big.name, big.dtype, big.shape) == ("big", "int32", (1000,))
        assert big.size_bytes > 4000
        assert small.name == "small"
