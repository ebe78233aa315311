"""`recgraph plot`: what the picture shows, how large it may get, and what happens with bad input."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from cli_graphs import add_lookup, base_graph
from tensorflow.core.framework import graph_pb2

from mx_rec.cli.plotting.picture import MAX_GROUPS, MAX_ROWS, MOVABLE, MOVED, STAYS, picture_of
from mx_rec.graph import files
from mx_rec.graph.files import load_graph
from mx_rec.graph.view import GraphView
from mx_rec.passes import PASSES, PassManager, PipelineOptions, default_pipeline

SVG = "{http://www.w3.org/2000/svg}"


def texts(path) -> list[str]:
    """What one reads in an SVG, without tooltips."""
    root = ET.parse(path).getroot()
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def many_lookups(count: int) -> graph_pb2.GraphDef:
    graph_def = base_graph().as_graph_def()
    for index in range(count):
        add_lookup(graph_def, f"table_{index}", "movie_ids" if index % 4 else "random_ids")
    return graph_def


def rewritten(graph_def, *, fuse: bool = True) -> GraphView:
    return GraphView(PassManager(default_pipeline(PipelineOptions(fuse=fuse))).run(graph_def).graph_def)


class TestPicture:
    """What is shown, before it is drawn."""

    def test_before(self, refused_graph):
        picture = picture_of(GraphView(refused_graph), "g")
        movable, stays = picture.groups
        assert (movable.batch, movable.iterator) == ("IteratorGetNext", "IteratorV2 (initializable)")
        assert movable.datasets == ("Batch", "Range")
        assert [row.table for row in movable.rows] == ["movie"]
        assert (movable.state, movable.rows[0].ops, movable.rows[0].op_kinds) == (MOVABLE, 1, "1 FloorMod")
        assert (stays.state, stays.batch, stays.rows[0].table) == (STAYS, "", "noise")
        assert "random_ids" in stays.rows[0].reason

    @pytest.mark.parametrize("fuse", [True, False])
    def test_after(self, refused_graph, fuse):
        picture = picture_of(rewritten(refused_graph, fuse=fuse), "g")
        moved, stays = picture.groups
        row = moved.rows[0]
        assert (row.state, row.table, row.dim, row.ops, row.op_kinds) == (MOVED, "movie", 4, 1, "1 FloorMod")
        assert row.has_unique
        assert row.is_fused is fuse
        assert moved.datasets == ("Batch", "Range")  # of the script; the map that the rewrite adds is what is shown
        assert stays.state == STAYS
        assert picture.counts == {MOVED: 1, STAYS: 1}

    def test_each_lookup_of_one_op_has_its_own_preprocessing(self, train_graph):
        graph_def = graph_pb2.GraphDef()
        graph_def.CopyFrom(train_graph)
        add_lookup(graph_def, "raw", "IteratorGetNext")
        rows = {row.table: row for group in picture_of(rewritten(graph_def), "g").groups for row in group.rows}
        assert rows["movie"].is_prepared
        assert rows["raw"].is_prepared
        assert (rows["movie"].ops, rows["raw"].ops) == (1, 0)

    def test_the_rest_is_counted_once_whatever_the_lookups(self, train_graph, plain_graph):
        plain = picture_of(GraphView(plain_graph), "g")
        assert plain.groups == ()
        # The FloorMod that leads to the ids is part of the lookup.
        assert picture_of(GraphView(train_graph), "g").other_ops == plain.other_ops - 1

    def test_what_a_rewrite_left_behind_belongs_to_no_step(self, train_graph):
        options = PipelineOptions(keep=frozenset({"mx_rec/movie/lookup_train/ids"}))
        kept = PassManager(default_pipeline(options)).run(train_graph).graph_def
        assert "movie_ids" in {node.name for node in kept.node}
        assert picture_of(GraphView(kept), "g").other_ops == picture_of(rewritten(train_graph), "g").other_ops

    def test_rows_are_bounded_and_the_rest_counted(self):
        graph_def = many_lookups(400)
        before, after = picture_of(GraphView(graph_def), "g"), picture_of(rewritten(graph_def), "g")
        for picture in (before, after):
            rows = sum(len(group.rows) for group in picture.groups)
            assert rows == MAX_ROWS
            assert picture.summarised == 400 - MAX_ROWS
            assert sum(group.hidden_tables for group in picture.groups) == 400 - MAX_ROWS
        names = [[row.table for group in picture.groups for row in group.rows] for picture in (before, after)]
        assert names[0] == names[1]

    def test_groups_are_bounded(self):
        import tensorflow as tf

        count = MAX_GROUPS + 5
        with tf.Graph().as_default() as graph:
            for index in range(count):
                dataset = tf.data.Dataset.range(8).batch(2)
                batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
                tf.identity(batch, f"ids_{index}")
        graph_def = graph.as_graph_def()
        for index in range(count):
            add_lookup(graph_def, f"table_{index}", f"ids_{index}")
        picture = picture_of(GraphView(graph_def), "g")
        assert (len(picture.groups), picture.hidden_groups, picture.hidden_lookups) == (MAX_GROUPS, 5, 5)
        assert picture.groups[0].datasets == ("Batch", "Range")
        after = picture_of(rewritten(graph_def), "g").groups[0]
        assert (after.state, after.datasets) == (MOVED, ("Batch", "Range"))
        assert after.rows[0].has_unique


class TestSvg:
    def test_one_graph(self, recgraph, write, refused_graph, tmp_path):
        out = tmp_path / "out.svg"
        source = write("in.pb", refused_graph)
        ended = recgraph("plot", source, out)
        assert (ended.code, ended.err) == (0, "")
        assert ended.out == f"{source}: 2 lookups, 1 movable, 1 stay\n"
        shown = texts(out)
        assert "movie [4]" in shown
        assert "noise [4]" in shown
        assert any(text.startswith("stays: random_ids") for text in shown)
        assert "unique" in shown
        assert "unique, look ahead" not in shown

    def test_rewritten_is_shown_below(self, recgraph, write, train_graph, tmp_path):
        source, out, written = write("in.pb", train_graph), tmp_path / "out.svg", tmp_path / "rewritten.pb"
        assert recgraph("plot", source, out, "--rewritten").code == 0
        assert [text for text in texts(out) if text[:6] == "unique"] == [
            "unique keys, look ahead",
            "unique keys",
            "unique",
            "unique keys, look ahead",
            "unique keys",
            "unique, look ahead",
        ]
        # The same as two files, but for the title of the second.
        recgraph("rewrite", source, written)
        both = tmp_path / "both.svg"
        assert recgraph("plot", source, written, both).code == 0
        one, two = texts(out), texts(both)
        assert [pair for pair in zip(one, two) if pair[0] != pair[1]] == [(f"{source}, rewritten", str(written))]

    def test_moved_parts_are_on_the_other_side_of_the_iterator(self, recgraph, write, train_graph, tmp_path):
        out = tmp_path / "out.svg"
        recgraph("plot", write("in.pb", train_graph), out, "--rewritten")
        root = ET.parse(out).getroot()
        wall = next(line for line in root.iter(f"{SVG}line") if line.get("class") == "wall")
        edges = {
            style: [
                float(r.get("x")) for r in root.iter(f"{SVG}rect") if r.get("class") == style and r.get("rx") == "5"
            ]
            for style in ("movable", "moved")
        }
        boundary = float(wall.get("x1"))
        drawn = {style: places[:-1] for style, places in edges.items()}  # the last is the legend's
        assert len(drawn["movable"]) == len(drawn["moved"]) == 2
        assert all(x > boundary for x in drawn["movable"])
        assert all(x < boundary for x in drawn["moved"])

    def test_needs_nothing_from_elsewhere(self, recgraph, write, refused_graph, tmp_path):
        for name in ("out.svg", "out.html"):
            recgraph("plot", write("in.pb", refused_graph), tmp_path / name, "--rewritten")
            text = (tmp_path / name).read_text()
            links = set(re.findall(r"[a-z]+://[^\"' ]+", text)) - {"http://www.w3.org/2000/svg"}
            assert not links
            assert not re.search(r"<script|<link|<image|<use|@import|url\(|javascript:|href", text)

    def test_light_and_dark(self, recgraph, write, train_graph, tmp_path):
        out = tmp_path / "out.svg"
        recgraph("plot", write("in.pb", train_graph), out)
        root = ET.parse(out).getroot()
        style = root.find(f"{SVG}style").text
        light, dark = style.split("@media (prefers-color-scheme:dark)")
        classes = {name for element in root.iter() for name in (element.get("class") or "").split()}
        for name in classes - {"m", "h"}:  # those say nothing of colours
            assert f".{name}{{" in light
            assert f".{name}{{" in dark
        page = root.find(f"{SVG}rect")  # no page shines through
        assert (page.get("class"), page.get("width")) == ("page", root.get("width"))

    @pytest.mark.parametrize("name", ["out.svg", "out.html"])
    def test_text_is_escaped(self, recgraph, write, tmp_path, name):
        graph_def = base_graph().as_graph_def()
        evil = "</text><script>alert('1')</script>&\x01\"<b>"
        add_lookup(graph_def, "evil", "movie_ids")
        for node in graph_def.node:
            if node.op == "MxRecTable":
                node.attr["table_name"].s = evil.encode()
        out = tmp_path / name
        assert recgraph("plot", write("in.pb", graph_def), out).code == 0
        text = out.read_text()
        assert "<script" not in text
        assert "\x01" not in text
        if name == "out.svg":
            tips = [element.text for element in ET.fromstring(text).iter(f"{SVG}title")]
            assert any(evil.replace("\x01", "\ufffd") in tip for tip in tips)

    def test_thousands_of_lookups_stay_small(self, recgraph, write, tmp_path):
        out = tmp_path / "out.svg"
        ended = recgraph("plot", write("in.pb", many_lookups(1000)), out)
        assert "1,000 lookups, 750 movable, 250 stay, 960 summarised" in ended.out
        assert out.stat().st_size < 150_000
        shown = texts(out)
        assert "and 730 more train lookups of 730 tables: rewrite would move this" in shown
        assert "and 230 more train lookups of 230 tables: stays at the step" in shown

    def test_twenty_six_lookups_have_a_row_each(self, recgraph, write, tmp_path):
        out = tmp_path / "out.svg"
        recgraph("plot", write("in.pb", many_lookups(26)), out, "--rewritten")
        shown = texts(out)
        assert all(shown.count(f"table_{index} [4]") == 2 for index in range(26))
        root = ET.parse(out).getroot()
        boxes = [r for r in root.iter(f"{SVG}rect") if r.get("class") in ("movable", "moved", "stays", "box")]
        places = {(r.get("x"), r.get("y")) for r in boxes}
        assert len(places) == len(boxes)
        assert all(float(r.get("y")) + float(r.get("height")) <= float(root.get("height")) for r in boxes)

    def test_graph_without_lookups(self, recgraph, write, plain_graph, tmp_path):
        out = tmp_path / "out.svg"
        assert recgraph("plot", write("in.pb", plain_graph), out).code == 0
        assert "no lookups" in texts(out)

    def test_same_input_same_picture(self, recgraph, write, refused_graph, tmp_path):
        source, first, second = write("in.pb", refused_graph), tmp_path / "1.svg", tmp_path / "2.svg"
        for out in (first, second):
            recgraph("plot", source, out, "--rewritten")
        assert first.read_bytes() == second.read_bytes()

    def test_metagraph(self, recgraph, write, train_meta_graph, tmp_path):
        out = tmp_path / "out.svg"
        assert recgraph("plot", write("in.meta", train_meta_graph), out, "--rewritten").code == 0
        assert "movie [4]" in texts(out)

    def test_reading_does_not_need_the_library(self, write, train_graph, tmp_path):
        source = write("in.pb", train_graph)
        code = (
            "import sys; from mx_rec.cli import app; "
            f"code = app._run(['plot', {str(source)!r}, {str(tmp_path / 'out.svg')!r}, '--rewritten']); "
            "assert code == 0; assert not [m for m in sys.modules if m.startswith('mx_rec.ops')]"
        )
        env = {**os.environ, "MX_REC_LIBRARY": str(tmp_path / "none.so")}
        subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=env)


class TestHtml:
    def test_page_lists_the_lookups(self, recgraph, write, refused_graph, tmp_path):
        out = tmp_path / "out.html"
        assert recgraph("plot", write("in.pb", refused_graph), out, "--rewritten").code == 0
        text = out.read_text()
        assert text.startswith("<!DOCTYPE html>")

        class Reader(HTMLParser):
            seen: list[str] = []

            def handle_starttag(self, tag, attrs):
                self.seen.append(tag)

        reader = Reader()
        reader.feed(text)
        assert reader.seen.count("svg") == 1
        assert reader.seen.count("tr") == 2 * (1 + 2)
        assert text.count("random_ids: op") >= 2


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ((), "Missing argument"),
            (("OUT.svg",), "Missing argument"),
            (("IN", "OUT.png"), "OUT must end in .svg or .html"),
            (("IN", "IN", "IN", "OUT.svg"), "expected one or two graph files before OUT, got 3"),
            (("IN", "IN", "OUT.svg", "--rewritten"), "--rewritten takes one graph file"),
            (("IN", "-"), "not supported: give a file"),
            (("NONE", "OUT.svg"), "No such file"),
            (("IN", "NONE/OUT.svg"), "create it first"),
            (("IN", "DIR.svg"), "is a directory"),
            (("SAVED.svg", "SAVED.svg"), "would be overwritten"),
            (("OTHER", "OUT.svg"), "another kind"),
        ],
    )
    def test_one_line_code_2_nothing_left(self, recgraph, write, train_graph, tmp_path, arguments, expected):
        write("IN", train_graph)
        write("SAVED.svg", train_graph)
        write("OTHER", bytes(range(256)) * 9)
        (tmp_path / "DIR.svg").mkdir()
        kept = sorted(os.listdir(tmp_path))
        plain = ("-", "--rewritten")
        ended = recgraph("plot", *(a if a in plain else tmp_path / a for a in arguments))
        assert ended.code == 2
        assert expected in ended.line
        assert ended.out == ""
        assert sorted(os.listdir(tmp_path)) == kept
        assert load_graph(tmp_path / "SAVED.svg").graph_def == train_graph

    def test_a_name_that_is_no_text(self, recgraph, write, tmp_path):
        graph_def = base_graph().as_graph_def()
        add_lookup(graph_def, "movie", "movie_ids")
        handle = next(node for node in graph_def.node if node.op == "MxRecTable")
        handle.attr["table_name"].s = b"\xff"
        ended = recgraph("plot", write("in.pb", graph_def), tmp_path / "out.svg")
        assert ended.code == 3
        assert f"node '{handle.name}': attribute 'table_name' is b'\\xff'; expected UTF-8" in ended.line
        assert os.listdir(tmp_path) == ["in.pb"]

    def test_full_disk_leaves_what_was_there(self, recgraph, write, train_graph, tmp_path, monkeypatch):
        def fail(*args):
            raise OSError(28, "No space left on device")

        source, out = write("in.pb", train_graph), write("out.svg", b"before")
        monkeypatch.setattr(files.os, "fsync", fail)
        ended = recgraph("plot", source, out)
        assert ended.code == 2
        assert "No space left on device" in ended.line
        assert out.read_bytes() == b"before"
        assert sorted(os.listdir(tmp_path)) == ["in.pb", "out.svg"]

    def test_a_failing_pass_is_code_3_and_leaves_nothing(self, recgraph, write, train_graph, tmp_path, monkeypatch):
        def fail(self, view):
            raise KeyError("boom")

        monkeypatch.setattr(PASSES["swap_iterators"], "run", fail)
        ended = recgraph("plot", write("in.pb", train_graph), tmp_path / "out.svg", "--rewritten")
        assert ended.code == 3
        assert "pass swap_iterators failed" in ended.line
        assert os.listdir(tmp_path) == ["in.pb"]
