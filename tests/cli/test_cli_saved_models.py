"""SavedModels through the commands: rewritten ones load in a fresh process and predict the same."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from cli_graphs import base_graph
from google.protobuf import text_format
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from mx_rec.checkpoint.tensors import write_tensors
from mx_rec.ops import load_library

tf1 = tf.compat.v1

IDS, WORDS = [3, 7, 3, 49], ["a", "b", "c", "?"]
PREDICT = f"""
import json, sys
from mx_rec.saved_model import load_saved_model
import tensorflow as tf
model = load_saved_model(sys.argv[1])
out = model.signatures["serving_default"](ids=tf.constant({IDS}, tf.int64), words=tf.constant({WORDS}))["out"]
print(json.dumps(out.numpy().ravel().tolist()))
"""


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    load_library()


def export(directory: Path, tags: tuple = (("serve",),), asset: Path | None = None) -> Path:
    """A serving graph of TensorFlow 1 with an embedding, a dense variable and a vocabulary."""
    with tf.Graph().as_default(), tf1.Session() as session:
        ids, words = tf1.placeholder(tf.int64, [None], "ids"), tf1.placeholder(tf.string, [None], "words")
        random = tf1.random_normal_initializer(seed=3)
        emb = tf1.get_variable("emb", [50, 4], use_resource=True, initializer=random)
        weights = tf1.get_variable("weights", [4, 1], use_resource=True, initializer=random)
        out = tf.matmul(tf.nn.embedding_lookup(emb, ids), weights)
        if asset is not None:
            file = tf.lookup.TextFileInitializer(
                str(asset), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
            )
            index = tf.lookup.StaticHashTable(file, -1).lookup(words)
        else:
            index = tf.strings.length(words)
        out += tf.reshape(tf.cast(index, tf.float32), [-1, 1])
        session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
        signature = tf1.saved_model.predict_signature_def({"ids": ids, "words": words}, {"out": out})
        options = {
            "signature_def_map": {"serving_default": signature},
            "main_op": tf1.tables_initializer(),
            "assets_collection": tf1.get_collection(tf1.GraphKeys.ASSET_FILEPATHS),
        }
        builder = tf1.saved_model.Builder(str(directory))
        builder.add_meta_graph_and_variables(session, list(tags[0]), **options)
        for others in tags[1:]:
            builder.add_meta_graph(list(others), **options)
        builder.save()
    return directory


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    (directory / "words.txt").write_text("a\nb\nc\n")
    exported = export(directory / "plain", asset=directory / "words.txt")
    (exported / "assets.extra").mkdir()
    (exported / "assets.extra" / "note.txt").write_text("a note")
    return exported


def predicted(directory: Path) -> list[float]:
    # Elsewhere than in the repository, whose mx_rec has no library.
    done = subprocess.run(
        [sys.executable, "-c", PREDICT, str(directory)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=Path(directory).parent,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def tree(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def parsed(directory: Path) -> saved_model_pb2.SavedModel:
    return saved_model_pb2.SavedModel.FromString((directory / "saved_model.pb").read_bytes())


def saved(meta_graph, *tags: str) -> saved_model_pb2.SavedModel:
    message = saved_model_pb2.SavedModel(saved_model_schema_version=1)
    for tag in tags:
        part = message.meta_graphs.add()
        part.CopyFrom(meta_graph)
        part.meta_info_def.tags.append(tag)
    return message


def write(directory: Path, message: saved_model_pb2.SavedModel, text: bool = False) -> Path:
    (directory / "variables").mkdir(parents=True)
    (directory / "variables" / "variables.index").write_bytes(b"index")
    if text:
        (directory / "saved_model.pbtxt").write_text(text_format.MessageToString(message))
    else:
        (directory / "saved_model.pb").write_bytes(message.SerializeToString())
    return directory


def test_converted_model_predicts_the_same(recgraph, model, tmp_path):
    target = tmp_path / "new" / "1"
    target.parent.mkdir()
    ended = recgraph("rewrite", model, target, "--convert", "emb")
    assert ended.code == 0, ended.err
    assert "MetaGraph of tags serve:" in ended.out
    assert "table 'emb': 50 rows of 'emb'" in ended.out
    assert [path.name for path in target.parent.iterdir()] == ["1"]
    (meta_graph,) = parsed(target).meta_graphs
    assert "MxRecFind" in {node.op for node in meta_graph.graph_def.node}
    assert "emb" not in {node.name for node in meta_graph.graph_def.node}
    assert dict(tf.train.list_variables(str(target / "variables" / "variables"))).keys() >= {"weights"}
    assert meta_graph.signature_def == parsed(model).meta_graphs[0].signature_def
    assert tree(target)["assets/words.txt"] == b"a\nb\nc\n"
    assert tree(target)["assets.extra/note.txt"] == b"a note"
    assert "fingerprint.pb" not in tree(target)
    before = predicted(model)
    assert len(set(np.round(before, 5))) == 4
    assert predicted(target) == before
    again = recgraph("rewrite", target, tmp_path / "again", "--report", "json")
    assert (again.code, json.loads(again.out)["modified"]) == (0, False)
    assert tree(tmp_path / "again") == tree(target)


def test_nothing_to_do_is_a_copy(recgraph, model, tmp_path):
    ended = recgraph("rewrite", model, tmp_path / "out")
    assert ended.code == 0
    assert "is a copy of" in ended.err
    assert tree(tmp_path / "out") == tree(model)


@pytest.mark.parametrize("text", [False, True])
def test_each_meta_graph_is_rewritten_and_kept(recgraph, train_meta_graph, tmp_path, text):
    graph = base_graph()
    with graph.as_default():
        plain = tf1.train.export_meta_graph(graph=graph)
    message = saved(train_meta_graph, "train", "other")
    part = message.meta_graphs.add()
    part.CopyFrom(plain)
    part.meta_info_def.tags.append("plain")
    source = write(tmp_path / "in", message, text)
    name = "saved_model.pbtxt" if text else "saved_model.pb"
    ended = recgraph("rewrite", source / name, tmp_path / "out", "--report", "json", "--dump-dir", tmp_path / "dump")
    assert ended.code == 0, ended.err
    report = json.loads(ended.out)
    assert [(part["tags"], part["modified"]) for part in report["meta_graphs"]] == [
        (["train"], True),
        (["other"], True),
        (["plain"], False),
    ]
    assert sorted(path.name for path in (tmp_path / "dump").iterdir()) == ["0_train", "1_other", "2_plain"]
    assert (tmp_path / "out" / "variables" / "variables.index").read_bytes() == b"index"
    data = (tmp_path / "out" / name).read_bytes()
    written = text_format.Parse(data, saved_model_pb2.SavedModel()) if text else parsed(tmp_path / "out")
    assert written.saved_model_schema_version == 1
    assert written.meta_graphs[2] == message.meta_graphs[2]
    single = meta_graph_pb2.MetaGraphDef()
    single.CopyFrom(message.meta_graphs[0])
    (tmp_path / "one.meta").write_bytes(single.SerializeToString())
    assert recgraph("rewrite", tmp_path / "one.meta", tmp_path / "one.out").code == 0
    assert written.meta_graphs[0] == meta_graph_pb2.MetaGraphDef.FromString((tmp_path / "one.out").read_bytes())
    differs = recgraph("diff", source, tmp_path / "out")
    assert differs.code == 1
    assert "MetaGraph of tags train:" in differs.out
    assert "tags plain" not in differs.out
    assert recgraph("diff", source, source).code == 0


def test_what_the_object_graph_names_stays(recgraph, train_meta_graph, tmp_path):
    message = saved(train_meta_graph, "serve")
    removed = recgraph("rewrite", write(tmp_path / "in", message), tmp_path / "out")
    assert removed.code == 0
    left = {node.name for node in parsed(tmp_path / "out").meta_graphs[0].graph_def.node}
    gone = next(node.name for node in train_meta_graph.graph_def.node if node.name not in left)
    message.meta_graphs[0].object_graph_def.nodes.add().constant.operation = gone
    assert recgraph("rewrite", write(tmp_path / "named", message), tmp_path / "kept").code == 0
    assert gone in {node.name for node in parsed(tmp_path / "kept").meta_graphs[0].graph_def.node}


def test_inspect_and_plot(recgraph, train_meta_graph, tmp_path):
    source = write(tmp_path / "in", saved(train_meta_graph, "train", "other"))
    shown = recgraph("inspect", source).out
    assert shown.startswith(f"{source}: SavedModel, ")
    assert shown.count("movable") == 2
    content = json.loads(recgraph("inspect", source, "--json").out)
    assert [part["tags"] for part in content["meta_graphs"]] == [["train"], ["other"]]
    plotted = recgraph("plot", source, tmp_path / "x.svg", "--rewritten")
    assert len(plotted.out.splitlines()) == 4
    assert f"{source} (other), rewritten: 1 lookup, 1 moved" in plotted.out


EXPORT_OF_TENSORFLOW_2 = """
import sys
import tensorflow as tf

class Model(tf.Module):
    def __init__(self):
        super().__init__()
        self.emb = tf.Variable(tf.ones([5, 2]), name="emb")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def __call__(self, ids):
        return {"out": tf.nn.embedding_lookup(self.emb, ids)}

model = Model()
tf.saved_model.save(model, sys.argv[1], signatures=model.__call__)
"""
CALL_OF_TENSORFLOW_2 = """
import sys
import tensorflow as tf

loaded = tf.saved_model.load(sys.argv[1])
assert loaded(tf.constant([1], tf.int64))["out"].numpy().tolist() == [[1.0, 1.0]]
"""


def test_lookups_in_functions_of_tensorflow_2_stay(recgraph, tmp_path):
    def run_eagerly(code: str, directory: Path) -> None:  # which this process may have turned off for good
        subprocess.run([sys.executable, "-c", code, str(directory)], check=True, timeout=300, cwd=tmp_path)

    run_eagerly(EXPORT_OF_TENSORFLOW_2, tmp_path / "in")
    shown = recgraph("inspect", tmp_path / "in").out
    assert "converted only where the calls of that can be inlined" in shown
    assert recgraph("rewrite", tmp_path / "in", tmp_path / "out").code == 0
    run_eagerly(CALL_OF_TENSORFLOW_2, tmp_path / "out")


def test_verify_and_checkpoints_of_saved_models(recgraph, model, tmp_path):
    """A second checkpoint goes into a converted graph; the results are those of the model that it is of."""
    converted, other = tmp_path / "converted", tmp_path / "other"
    assert recgraph("rewrite", model, converted, "--convert", "emb").code == 0
    np.save(tmp_path / "ids.npy", np.array(IDS, np.int64))
    np.save(tmp_path / "words.npy", np.array(WORDS))
    feeds = ("--feed", f"ids={tmp_path / 'ids.npy'}", "--feed", f"words={tmp_path / 'words.npy'}", "--steps", 2)
    ended = recgraph("verify", model, converted, *feeds)
    assert (ended.code, "equal bit for bit: 2 steps" in ended.out) == (0, True), ended.err
    assert "out" in ended.out
    shutil.copytree(converted, other, ignore=shutil.ignore_patterns("variables"))
    prefix = str(model / "variables" / "variables")
    reader = tf.train.load_checkpoint(prefix)
    values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    write_tensors(str(tmp_path / "trained"), {**values, "emb": values["emb"] + 1})
    assert recgraph("convert-checkpoint", converted, tmp_path / "trained", other).code == 0
    ended = recgraph("verify", model, other, *feeds, "--tags", "serve", "--signature", "serving_default")
    assert (ended.code, "different: " in ended.out) == (1, True)
    again = tmp_path / "again"
    shutil.copytree(converted, again, ignore=shutil.ignore_patterns("variables"))
    assert recgraph("convert-checkpoint", converted, model, again).code == 0
    assert recgraph("verify", model, again, *feeds).code == 0


class TestRefused:
    @pytest.fixture
    def source(self, train_meta_graph, tmp_path):
        return write(tmp_path / "in", saved(train_meta_graph, "train"))

    def test_target_exists(self, recgraph, source, tmp_path):
        (tmp_path / "out").mkdir()
        for target in (tmp_path / "out", source):
            ended = recgraph("rewrite", source, target)
            assert (ended.code, "needs a new directory" in ended.line) == (2, True)

    def test_target_inside_the_source(self, recgraph, source):
        before = tree(source)
        assert "inside the SavedModel" in recgraph("rewrite", source, source / "out").line
        assert tree(source) == before

    def test_no_directory_for_the_target(self, recgraph, source, tmp_path):
        assert "create it first" in recgraph("rewrite", source, tmp_path / "none" / "out").line

    def test_strict_writes_nothing(self, recgraph, model, tmp_path):
        ended = recgraph("rewrite", model, tmp_path / "out", "--convert", "emb", "--strict")
        assert (ended.code, list(tmp_path.iterdir())) == (3, [])

    def test_convert_without_the_checkpoint(self, recgraph, model, tmp_path):
        (tmp_path / "bare").mkdir()
        (tmp_path / "bare" / "saved_model.pb").write_bytes((model / "saved_model.pb").read_bytes())
        ended = recgraph("rewrite", tmp_path / "bare", tmp_path / "out", "--convert", "emb")
        assert ended.code == 2
        assert "cannot read the checkpoint" in ended.line
        assert [path.name for path in tmp_path.iterdir()] == ["bare"]

    def test_damaged(self, recgraph, source):
        file = source / "saved_model.pb"
        file.write_bytes(file.read_bytes()[:-20])
        assert "truncated" in recgraph("inspect", source).line
        file.write_bytes(b"\xff" * 50)
        assert "is no SavedModel" in recgraph("inspect", source).line

    def test_in_chunks(self, recgraph, tmp_path):
        (tmp_path / "saved_model.cpb").write_bytes(b"x")
        assert "in chunks" in recgraph("inspect", tmp_path).line

    def test_convert_checkpoint(self, recgraph, source, model, tmp_path):
        assert "has no tables" in recgraph("convert-checkpoint", source, tmp_path / "a", tmp_path / "b").line
        assert recgraph("rewrite", model, tmp_path / "new", "--convert", "emb").code == 0
        ended = recgraph("convert-checkpoint", tmp_path / "new", model, tmp_path / "new")
        assert (ended.code, "has variables already" in ended.line) == (2, True)
        ended = recgraph("convert-checkpoint", tmp_path / "new", tmp_path / "new", tmp_path / "b")
        assert (ended.code, "has no tensor 'emb'" in ended.line) == (2, True)
        ended = recgraph("convert-checkpoint", tmp_path / "new", tmp_path / "none", tmp_path / "b")
        assert (ended.code, "cannot read the checkpoint" in ended.line) == (2, True)

    def test_verify(self, recgraph, train_meta_graph, model, tmp_path):
        several = write(tmp_path / "several", saved(train_meta_graph, "train", "other"))
        assert "several MetaGraphs: choose one by its tags" in recgraph("verify", several, several).line
        assert "no MetaGraph of the tags 'x'" in recgraph("verify", several, several, "--tags", "x").line
        ended = recgraph("verify", model, model, "--signature", "none")
        assert (ended.code, "no SavedModel with a signature 'none'" in ended.line) == (2, True)
        assert "placeholder 'words' of A" in recgraph("verify", model, model).line
