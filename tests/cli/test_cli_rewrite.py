"""`recgraph rewrite`: what is written, what is said, and the exit code."""

from __future__ import annotations

import json
import os

import pytest
from tensorflow.core.framework import graph_pb2

from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.graph import files
from mx_rec.graph.canonical import canonical_text
from mx_rec.graph.files import load_graph
from mx_rec.graph.view import GraphView
from mx_rec.passes import PASSES, default_pipeline, find_lookups

DEFAULT = [step.name for step in default_pipeline()]


def moved(path) -> dict[str, bool]:
    return {lookup.table_name: lookup.is_moved for lookup in find_lookups(GraphView(load_graph(path).graph_def))}


def ops(path) -> set[str]:
    return {node.op for node in load_graph(path).graph_def.node}


class TestWritten:
    @pytest.mark.parametrize("name", ["in.pb", "in.pbtxt", "in.meta", "in.metatxt"])
    def test_same_kind_out_and_lookup_moved(self, recgraph, write, train_graph, train_meta_graph, tmp_path, name):
        source = write(name, train_meta_graph if "meta" in name else train_graph)
        out = tmp_path / "out"
        ended = recgraph("rewrite", source, out)
        assert (ended.code, ended.err) == (0, "")
        assert load_graph(out).kind == load_graph(source).kind
        assert moved(out) == {"movie": True}

    def test_output_may_be_the_input(self, recgraph, write, train_graph, tmp_path):
        source = write("in.pb", train_graph)
        assert recgraph("rewrite", source, source).code == 0
        assert moved(source) == {"movie": True}
        assert os.listdir(tmp_path) == ["in.pb"]

    def test_existing_output_is_replaced(self, recgraph, write, train_graph):
        source, out = write("in.pb", train_graph), write("out.pb", b"old")
        assert recgraph("rewrite", source, out).code == 0
        assert moved(out) == {"movie": True}

    def test_meta_graph_gets_collections_and_keeps_its_nodes(self, recgraph, write, train_meta_graph, tmp_path):
        source, out = write("in.meta", train_meta_graph), tmp_path / "out.meta"
        assert recgraph("rewrite", source, out).code == 0
        collections = load_graph(out).message.collection_def
        scope = "mx_rec/movie/lookup_train"
        assert list(collections[ASCEND_SPARSE_LOOKUP_LOCAL_EMB].node_list.value) == [f"{scope}/local_emb:0"]
        assert list(collections[ASCEND_SPARSE_LOOKUP_ID_OFFSET].node_list.value) == [f"{scope}/addresses:0"]
        assert list(collections["KEPT"].node_list.value) == ["movie_ids:0"]
        assert "movie_ids" in {node.name for node in load_graph(out).graph_def.node}

    def test_twice_is_once(self, recgraph, write, train_graph, tmp_path):
        source, once, twice = write("in.pb", train_graph), tmp_path / "once.pb", tmp_path / "twice.pb"
        recgraph("rewrite", source, once)
        ended = recgraph("rewrite", once, twice)
        assert ended.code == 0
        assert "nothing to do" in ended.line
        assert twice.read_bytes() == once.read_bytes()

    def test_nothing_to_do_copies(self, recgraph, write, plain_graph, tmp_path):
        source, out = write("in.pb", plain_graph), tmp_path / "out.pb"
        ended = recgraph("rewrite", source, out)
        assert ended.code == 0
        assert "nothing to do" in ended.line
        assert "is a copy of" in ended.line
        assert out.read_bytes() == source.read_bytes()

    def test_nothing_to_do_in_place(self, recgraph, write, plain_graph):
        source = write("in.pb", plain_graph)
        before = source.stat()
        assert "stays as it is" in recgraph("rewrite", source, source).line
        assert source.stat().st_mtime_ns == before.st_mtime_ns

    def test_odd_input_is_read_with_a_warning(self, recgraph, write, train_graph, tmp_path):
        unstamped = graph_pb2.GraphDef()
        unstamped.CopyFrom(train_graph)
        unstamped.ClearField("versions")
        ended = recgraph("rewrite", write("in.pb", unstamped), tmp_path / "out.pb")
        assert ended.code == 0
        assert "warning" in ended.line
        assert "version stamp" in ended.line


class TestOptions:
    def test_passes_picks_and_keeps_pipeline_order(self, recgraph, write, train_graph, tmp_path):
        out = tmp_path / "out.pb"
        arguments = ("--passes", "hot_embedding, insert_collections", "--report", "json")
        ended = recgraph("rewrite", write("in.pb", train_graph), out, *arguments)
        assert ended.code == 0
        names = [step["pass"] for step in json.loads(ended.out)["passes"]]
        assert names == ["insert_collections", "hot_embedding"]
        assert moved(out) == {"movie": False}

    def test_text_report(self, recgraph, write, train_graph, tmp_path):
        source = write("in.pb", train_graph)
        plain = recgraph("rewrite", source, tmp_path / "out.pb").out
        timed = recgraph("rewrite", source, tmp_path / "out.pb", "--time-passes").out
        for name in DEFAULT:
            assert f"{name}: " in plain
        assert " s\n" not in plain
        assert " s\n" in timed

    def test_json_report(self, recgraph, write, train_graph, tmp_path):
        ended = recgraph("rewrite", write("in.pb", train_graph), tmp_path / "out.pb", "--report", "json")
        report = json.loads(ended.out)
        assert report["modified"] is True
        assert [step["pass"] for step in report["passes"]] == DEFAULT

    def test_dump_dir(self, recgraph, write, train_graph, tmp_path):
        dumps, out = tmp_path / "new" / "dumps", tmp_path / "out.pb"
        assert recgraph("rewrite", write("in.pb", train_graph), out, "--dump-dir", dumps).code == 0
        texts = sorted(dumps.iterdir())
        assert len(texts) == len(DEFAULT) + 1
        assert texts[0].read_text() == canonical_text(train_graph)
        assert texts[-1].read_text() == canonical_text(load_graph(out).graph_def)

    def test_prefetch_and_parallel_calls(self, recgraph, write, train_graph, tmp_path):
        source, out = write("in.pb", train_graph), tmp_path / "out.pb"
        recgraph("rewrite", source, out)
        assert "ParallelMapDatasetV2" not in ops(out)
        recgraph("rewrite", source, out, "--prefetch", 7, "--parallel-calls", 3)
        assert "ParallelMapDatasetV2" in ops(out)
        assert "[7]" in canonical_text(load_graph(out).graph_def)

    def test_hot_embedding_switch(self, recgraph, write, train_graph, tmp_path):
        source, out = write("in.pb", train_graph), tmp_path / "out.pb"
        recgraph("rewrite", source, out)
        assert "_op_impl_mode='high_performance'" in canonical_text(load_graph(out).graph_def)
        recgraph("rewrite", source, out, "--no-hot-embedding")
        assert "_op_impl_mode" not in canonical_text(load_graph(out).graph_def)

    def test_no_merge(self, recgraph, write, train_graph, tmp_path):
        arguments = (write("in.pb", train_graph), tmp_path / "out.pb", "--no-merge", "--report", "json")
        report = json.loads(recgraph("rewrite", *arguments).out)
        assert [step["pass"] for step in report["passes"]] == [name for name in DEFAULT if name != "merge_lookups"]

    def test_adopt_orphans_runs_when_it_is_named(self, recgraph, write, refused_graph, tmp_path):
        arguments = ("--passes", "adopt_orphans,hoist_lookups", "--report", "json")
        report = json.loads(recgraph("rewrite", write("in.pb", refused_graph), tmp_path / "o.pb", *arguments).out)
        assert [step["pass"] for step in report["passes"]] == ["adopt_orphans", "hoist_lookups"]

    def test_no_fuse(self, recgraph, write, train_graph, tmp_path):
        source, out = write("in.pb", train_graph), tmp_path / "out.pb"
        report = json.loads(recgraph("rewrite", source, out, "--no-fuse", "--report", "json").out)
        names = [step["pass"] for step in report["passes"]]
        assert names == [name for name in DEFAULT if name not in ("fuse_lookups", "fuse_updates")]

    def test_op_impl_mode_file(self, recgraph, write, train_graph, tmp_path):
        modes = write("op_impl_mode.ini", b"GatherV2=high_precision\n")
        source, out = write("in.pb", train_graph), tmp_path / "out.pb"
        assert recgraph("rewrite", source, out, "--op-impl-mode", modes).code == 0
        assert "_op_impl_mode='high_precision'" in canonical_text(load_graph(out).graph_def)

    def test_keep(self, recgraph, write, train_graph, tmp_path):
        source, out = write("in.pb", train_graph), tmp_path / "out.pb"
        unique = "mx_rec/movie/lookup_train/unique"
        recgraph("rewrite", source, out)
        assert unique not in {node.name for node in load_graph(out).graph_def.node}
        recgraph("rewrite", source, out, "--keep", unique, "--keep", "movie_ids")
        assert unique in {node.name for node in load_graph(out).graph_def.node}


class TestRefusals:
    def test_a_refused_lookup_is_reported_and_stays(self, recgraph, write, refused_graph, tmp_path):
        out = tmp_path / "out.pb"
        ended = recgraph("rewrite", write("in.pb", refused_graph), out)
        assert (ended.code, ended.err) == (0, "")
        assert "refused" in ended.out
        assert moved(out) == {"movie": True, "noise": False}

    def test_strict_refuses_the_whole(self, recgraph, write, refused_graph, tmp_path):
        source = write("in.pb", refused_graph)
        ended = recgraph("rewrite", source, tmp_path / "out.pb", "--strict")
        assert ended.code == 3
        assert "hoist_lookups refused" in ended.line
        assert "nothing was written" in ended.line
        assert "refused" in ended.out
        assert os.listdir(tmp_path) == ["in.pb"]

    def test_strict_without_refusals(self, recgraph, write, train_graph, tmp_path):
        assert recgraph("rewrite", write("in.pb", train_graph), tmp_path / "out.pb", "--strict").code == 0

    def test_a_broken_graph_fails_with_node_and_reason(self, recgraph, write, train_graph, tmp_path):
        broken = graph_pb2.GraphDef()
        broken.CopyFrom(train_graph)
        node = next(node for node in broken.node if node.op == "MxRecFindOrInsert")
        node.input[1] = "mx_rec/movie/lookup_train/axis"
        source, out = write("in.pb", broken), write("out.pb", b"before")
        ended = recgraph("rewrite", source, out)
        assert ended.code == 3
        assert "verify_input failed" in ended.line
        assert f"node '{node.name}'" in ended.line
        assert out.read_bytes() == b"before"
        assert sorted(os.listdir(tmp_path)) == ["in.pb", "out.pb"]

    def test_a_bug_in_a_pass_is_one_line(self, recgraph, write, train_graph, tmp_path, monkeypatch):
        def fail(self, view):
            raise KeyError("boom")

        monkeypatch.setattr(PASSES["swap_iterators"], "run", fail)
        ended = recgraph("rewrite", write("in.pb", train_graph), tmp_path / "out.pb")
        assert ended.code == 3
        assert "pass swap_iterators failed" in ended.line
        assert os.listdir(tmp_path) == ["in.pb"]


class TestBadUsage:
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ((), "Missing argument"),
            (("IN",), "Missing argument 'OUT'"),
            (("IN", "OUT", "more"), "unexpected extra argument"),
            (("-", "OUT"), "not supported: give a file"),
            (("IN", "-"), "not supported: give a file"),
            (("", "OUT"), "the path is empty"),
            (("IN", "OUT", "--passes", "nosuch"), "no pass 'nosuch'; the passes are inline_calls"),
            (("IN", "OUT", "--passes", "prune,,prune"), "expected names separated by commas"),
            (("IN", "OUT", "--passes", ""), "expected names separated by commas"),
            (("IN", "OUT", "--passes", "hot_embedding", "--no-hot-embedding"), "switched off"),
            (("IN", "OUT", "--passes", "fuse_lookups", "--no-fuse"), "switched off"),
            (("IN", "OUT", "--report", "xml"), "'xml' is not one of"),
            (("IN", "OUT", "--prefetch", "0"), "0 is not in the range"),
            (("IN", "OUT", "--prefetch", "two"), "not a valid integer"),
            (("IN", "OUT", "--parallel-calls", "5000"), "not in the range"),
            (("IN", "OUT", "--keep", "nosuch"), "has no node 'nosuch'"),
            (("IN", "OUT", "--op-impl-mode", "NONE"), "cannot be read"),
            (("IN", "OUT", "--op-impl-mode", "IN"), "cannot be read"),
            (("IN", "OUT", "--dump-dir", "IN"), "--dump-dir: cannot write"),
            (("IN", "OUT", "--nosuch"), "No such option"),
            (("IN", "NONE/OUT"), "create it first"),
            (("IN", "DIR"), "is a directory"),
            (("NONE", "OUT"), "No such file"),
            (("DIR", "OUT"), "is a directory"),
        ],
    )
    def test_one_line_code_2_nothing_left(self, recgraph, write, train_graph, tmp_path, arguments, expected):
        write("IN", train_graph)
        (tmp_path / "DIR").mkdir()
        places = {name: str(tmp_path / name) for name in ("IN", "OUT", "NONE", "DIR", "NONE/OUT")}
        ended = recgraph("rewrite", *(places.get(argument, argument) for argument in arguments))
        assert ended.code == 2
        assert expected in ended.line
        assert ended.out == ""
        assert sorted(os.listdir(tmp_path)) == ["DIR", "IN"]

    def test_unwritable_directory(self, recgraph, write, train_graph, tmp_path, monkeypatch):
        def refuse(*args, **kwargs):
            raise PermissionError(13, "Permission denied")

        source = write("in.pb", train_graph)
        monkeypatch.setattr(files.tempfile, "mkstemp", refuse)
        ended = recgraph("rewrite", source, tmp_path / "out.pb")
        assert ended.code == 2
        assert "Permission denied" in ended.line
        assert os.listdir(tmp_path) == ["in.pb"]

    def test_full_disk(self, recgraph, write, train_graph, tmp_path, monkeypatch):
        def fail(*args):
            raise OSError(28, "No space left on device")

        source = write("in.pb", train_graph)
        monkeypatch.setattr(os, "fsync", fail)
        ended = recgraph("rewrite", source, tmp_path / "out.pb")
        assert ended.code == 2
        assert "No space left on device" in ended.line
        assert os.listdir(tmp_path) == ["in.pb"]
