"""`recgraph inspect`, `diff`, `passes`, the help, and what every command makes of a bad file."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import saved_model_pb2

from mx_rec.cli import app
from mx_rec.passes import PASSES, PIPELINE

COMMANDS = ("rewrite", "inspect", "diff", "plot", "verify", "passes", "freeze", "convert-checkpoint")


class TestInspect:
    def test_shows_tables_lookups_iterators_constants(self, recgraph, write, refused_graph):
        ended = recgraph("inspect", write("in.pb", refused_graph))
        assert (ended.code, ended.err) == (0, "")
        words = [line.split() for line in ended.out.splitlines()]
        assert "GraphDef, " in ended.out.splitlines()[0]
        assert ["movie", "4", "constant", "1", "0"] in words
        scope = "mx_rec/movie/lookup_train"
        assert [f"{scope}/addresses", "movie", "train", "movie_ids:0", "IteratorV2", "movable"] in words
        assert ["IteratorV2", "initializable", "BatchDatasetV2:0", "IteratorGetNext"] in words
        assert "stays: " in ended.out
        assert "Variables that plain TensorFlow looks up" in ended.out
        assert "embedding_lookup by ResourceGather" in ended.out
        assert "Largest constants" in ended.out

    def test_json(self, recgraph, write, refused_graph, train_meta_graph, tmp_path):
        content = json.loads(recgraph("inspect", write("in.pb", refused_graph), "--json").out)
        assert (content["kind"], content["nodes"]) == ("graphdef", len(refused_graph.node))
        states = {lookup["table"]: lookup["state"] for lookup in content["lookups"]}
        assert states == {"movie": "movable", "noise": "stays"}
        source = write("in.meta", train_meta_graph)
        assert json.loads(recgraph("inspect", source, "--json").out)["kind"] == "metagraph"
        recgraph("rewrite", source, source)
        after = json.loads(recgraph("inspect", source, "--json").out)
        assert [lookup["state"] for lookup in after["lookups"]] == ["moved"]

    def test_names_with_brackets_are_shown_as_they_are(self, recgraph, write):
        graph_def = graph_pb2.GraphDef()
        graph_def.versions.producer = 1
        graph_def.node.add(name="handle", op="MxRecTable").attr["table_name"].s = b"[red]t[/red]"
        assert "[red]t[/red]" in recgraph("inspect", write("in.pb", graph_def)).out


class TestDiff:
    def test_equal(self, recgraph, write, train_graph):
        ended = recgraph("diff", write("a.pb", train_graph), write("b.pbtxt", train_graph))
        assert (ended.code, ended.out, ended.err) == (0, "", "")

    def test_different(self, recgraph, write, train_graph, refused_graph):
        paths = write("a.pb", train_graph), write("b.pb", refused_graph)
        ended = recgraph("diff", *paths)
        assert (ended.code, ended.err) == (1, "")
        assert "+ mx_rec/noise/handle = MxRecTable()" in ended.out
        ended = recgraph("diff", *paths, "--json")
        assert ended.code == 1
        content = json.loads(ended.out)
        assert content["equal"] is False
        assert len(content["nodes"]["added"]) == len(refused_graph.node) - len(train_graph.node)


class TestPasses:
    def test_lists_the_pipeline(self, recgraph):
        lines = recgraph("passes").out.splitlines()
        assert [line.split()[1] for line in lines[::2]] == list(PASSES)

    def test_says_why_in_that_order(self, recgraph):
        lines = recgraph("passes").out.splitlines()
        assert [line.strip() for line in lines[1::2]] == [stage.reason for stage in PIPELINE]
        assert all(stage.reason for stage in PIPELINE)

    def test_explains(self, recgraph):
        ended = recgraph("passes", "prune", "hoist_lookups")
        assert ended.code == 0
        assert "Before::" in ended.out
        assert f"Place: {len(PIPELINE)} of {len(PIPELINE)}, last: " in ended.out

    def test_unknown(self, recgraph):
        ended = recgraph("passes", "nosuch")
        assert ended.code == 2
        assert "no pass 'nosuch'" in ended.line


class TestHelp:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_every_command_has_help_with_examples(self, recgraph, command):
        ended = recgraph(command, "--help")
        assert ended.code == 0
        assert f"  recgraph {command}" in ended.out
        assert ended.out == recgraph(command, "-h").out

    def test_group(self, recgraph):
        ended = recgraph("--help")
        assert ended.code == 0
        assert all(f"  {command} " in ended.out for command in COMMANDS)
        assert "Exit codes" in ended.out
        assert recgraph().out == ended.out

    def test_unknown_command(self, recgraph):
        ended = recgraph("nosuch")
        assert ended.code == 2
        assert "No such command 'nosuch'" in ended.line

    def test_version(self, recgraph):
        assert recgraph("--version").code == 0


@pytest.mark.parametrize("command", ["rewrite", "inspect", "diff", "plot", "verify"])
class TestBadFiles:
    def run(self, recgraph, command, path):
        out = path.parent / "out.pb"
        picture = path.parent / "out.svg"
        arguments = {
            "rewrite": (path, out),
            "inspect": (path,),
            "diff": (path, path),
            "plot": (path, picture, "--rewritten"),
            "verify": (path, path),
        }
        before = sorted(os.listdir(path.parent))
        ended = recgraph(command, *arguments[command])
        assert ended.code == 2
        assert ended.out == ""
        assert str(path) in ended.line
        assert sorted(os.listdir(path.parent)) == before
        return ended.line

    def test_missing(self, recgraph, command, tmp_path):
        assert "No such file" in self.run(recgraph, command, tmp_path / "none.pb")

    def test_empty(self, recgraph, command, write):
        assert "is empty" in self.run(recgraph, command, write("in.pb", b""))

    def test_random(self, recgraph, command, write):
        assert "another kind" in self.run(recgraph, command, write("in.pb", bytes(range(256)) * 9))

    def test_text(self, recgraph, command, write):
        assert "line 1" in self.run(recgraph, command, write("in.pb", b"import os\nprint(1)\n"))

    def test_bad_text_graph(self, recgraph, command, write):
        assert "line 3" in self.run(recgraph, command, write("in.pb", b'node {\n  name: "a"\n  bad: 1\n}\n'))

    def test_truncated(self, recgraph, command, write, train_graph):
        data = train_graph.SerializeToString()
        assert "truncated" in self.run(recgraph, command, write("in.pb", data[: len(data) // 2]))

    def test_truncated_between_nodes(self, recgraph, command, write, train_graph):
        cut = graph_pb2.GraphDef(node=train_graph.node[5:], versions=train_graph.versions)
        assert "truncated" in self.run(recgraph, command, write("in.pb", cut))

    def test_saved_model(self, recgraph, command, write, train_meta_graph):
        saved = saved_model_pb2.SavedModel(saved_model_schema_version=1, meta_graphs=[train_meta_graph])
        assert "SavedModel" in self.run(recgraph, command, write("in.pb", saved))


class TestProcess:
    """What only shows in a process of its own."""

    @pytest.fixture
    def python(self, tmp_path):
        """Starts a Python outside the checkout, without the settings that keep tests quiet."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}

        def start(*arguments: object) -> subprocess.Popen:
            command = [sys.executable, *map(str, arguments)]
            pipe = subprocess.PIPE
            return subprocess.Popen(command, env=env, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True)

        return start

    def test_stderr_is_free_of_tensorflow_notices(self, python, write, train_graph, tmp_path):
        arguments = ("rewrite", write("in.pb", train_graph), tmp_path / "out.pb", "--report", "json")
        process = python("-m", "mx_rec.cli", *arguments)
        out, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, "")
        assert json.loads(out)["modified"]

    def test_one_line_of_stderr(self, python, tmp_path):
        process = python("-m", "mx_rec.cli", "inspect", tmp_path / "none.pb")
        _, err = process.communicate(timeout=120)
        assert process.returncode == 2
        assert len(err.splitlines()) == 1

    def test_help_imports_no_tensorflow(self, python):
        checks = "assert code == 0 and 'tensorflow' not in sys.modules"
        code = f"import sys; from mx_rec.cli import app; code = app._run(['--help']); {checks}"
        process = python("-c", code)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err

    def test_a_reader_that_leaves_is_no_error(self, python, write, train_graph, refused_graph):
        paths = write("a.pb", train_graph), write("b.pb", refused_graph)
        process = python("-m", "mx_rec.cli", "diff", *paths)
        process.stdout.close()
        assert process.stderr.read() == ""
        process.stderr.close()
        process.wait(timeout=120)


def test_interrupt(recgraph, write, train_graph, monkeypatch):
    def interrupt(**kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(app.recgraph, "main", interrupt)
    ended = recgraph("passes")
    assert ended.code == 130
    assert "interrupted" in ended.line
