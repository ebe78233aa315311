"""SavedModels of TensorFlow 2, whose lookups are in functions: inlined, converted, and the same predictions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import foreign_runs as runs
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2, trackable_object_graph_pb2
from tf2_models import ROWS

from mx_rec import ops
from mx_rec.cli import main
from mx_rec.graph.object_graphs import OBJECT_GRAPH_KEY

tf1 = tf.compat.v1

CONVERTED = {  # variables that become tables
    "keras": 1,
    "keras_fit": 1,
    "two": 2,
    "words": 1,
    "checked": 1,
    "random": 1,
    "bags": 2,
    "branch": 1,
    "sealed": 1,
    "trained": 1,
    "graded": 1,
    "nested": 1,
}
STAY = {  # why not
    "loop": "op 'While' takes a variable into a function that is not inlined",
    "momentum": "keeps a momentum in a slot",
    "adagrad": "slot: is a slot that has no initial value in the graph: of a SavedModel of TensorFlow 2",
}
PREDICT = """
import json, sys
import tensorflow as tf
from mx_rec.saved_model import load_saved_model

models = {directory: load_saved_model(directory) for directory in sys.argv[1:]}  # all at once: none is in another's way
for directory, model in models.items():
    signature = model.signatures["serving_default"]
    given = {"ids": tf.constant([[3, 7, 3], [48, 0, 1]], tf.int64), "words": tf.constant([["ant", "dog", "?"]])}
    names = signature.structured_input_signature[1]
    results = signature(**{name: given[name] for name in names})
    print("results", json.dumps({name: value.numpy().tolist() for name, value in results.items()}))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: Any) -> Path:
    """A directory with all models, and of two of them another version."""
    directory = tmp_path_factory.mktemp("models")
    script = Path(__file__).with_name("tf2_models.py")
    names = [*CONVERTED, *STAY]
    pairs = [f"{name}={directory / name}" for name in names] + [f"{name}={directory / f'{name}_2'}" for name in TWICE]
    done = subprocess.run([sys.executable, script, *pairs], capture_output=True, text=True, timeout=600, cwd=directory)
    assert done.returncode == 0, done.stderr
    return directory


TWICE = ("keras", "two")


def recgraph(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return stop.value.code


def graph_of(directory: Path) -> Any:
    message = saved_model_pb2.SavedModel.FromString((directory / "saved_model.pb").read_bytes())
    (meta_graph,) = message.meta_graphs
    return meta_graph


def ops_of(directory: Path) -> set[str]:
    return {node.op for node in graph_of(directory).graph_def.node}


def assert_same(before: Any, after: Any) -> None:
    assert len(before) == len(after)
    for one, other in zip(before, after):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    assert max(np.unique(value).size for value in before[0].values()) > 1, "a model that gives one number shows nothing"


@pytest.mark.parametrize("name", CONVERTED)
def test_inlined_calls_do_what_calls_did(models: Path, tmp_path: Path, name: str, capfd: Any) -> None:
    out = tmp_path / "out"
    assert recgraph("rewrite", models / name, out, "--convert", "*_embedding*", "--passes", "inline_calls") == 0
    assert "ResourceGather" in ops_of(out) or "GatherV2" in ops_of(out)
    assert not ops_of(models / name) & {"ResourceGather", "GatherV2"}
    capfd.readouterr()
    before = runs.served(models / name)
    printed = capfd.readouterr().out
    assert_same(before, runs.served(out))
    assert capfd.readouterr().out == printed
    assert printed.count("looked up 6") == (9 if name == "checked" else 0)


@pytest.mark.parametrize("name", CONVERTED)
def test_converted_models_predict_the_same(models: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    assert recgraph("rewrite", models / name, out, "--convert", "*_embedding*") == 0
    meta_graph = graph_of(out)
    tables = [node for node in meta_graph.graph_def.node if node.op == "MxRecTable"]
    assert len(tables) == CONVERTED[name]
    assert not meta_graph.HasField("object_graph_def")
    before = graph_of(models / name)
    assert {**meta_graph.signature_def} == {
        key: value for key, value in before.signature_def.items() if key != "__saved_model_init_op"
    }
    assert meta_graph.collection_def["saved_model_main_op"] == before.collection_def["saved_model_main_op"]
    assert meta_graph.saver_def == before.saver_def
    assert_same(runs.served(models / name), runs.served(out))


def predicted(*directories: Path) -> list[Any]:
    command = [sys.executable, "-c", PREDICT, *map(str, directories)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=directories[0].parent)
    assert done.returncode == 0, done.stderr
    return [json.loads(line[8:]) for line in done.stdout.splitlines() if line.startswith("results ")]


def test_a_fresh_process_loads_them_all(models: Path, tmp_path: Path) -> None:
    """By tf.saved_model.load; two versions of a model, of equal names, among them."""
    names = [name for name in CONVERTED if name not in ("random", "checked")] + [f"{name}_2" for name in TWICE]
    for name in names:
        assert recgraph("rewrite", models / name, tmp_path / name, "--convert", "*_embedding*") == 0
    found = predicted(*[models / name for name in names], *[tmp_path / name for name in names])
    before, after = found[: len(names)], found[len(names) :]
    assert before == after
    assert before[names.index("keras")] != before[names.index("keras_2")]


def test_gradients_that_functions_have_of_their_own(models: Path, tmp_path: Path) -> None:
    """Of a function that is called the gradient stays; of one that is not, nothing names it any more."""
    out = tmp_path / "out"
    assert recgraph("rewrite", models / "graded", out, "--convert", "*_embedding*") == 0
    before, after = (graph_of(directory).graph_def.library for directory in (models / "graded", out))
    assert before.registered_gradients
    names = {function.signature.name for function in after.function}
    called = {entry.registered_op_type for entry in after.registered_gradients}
    assert {entry.gradient_func for entry in after.registered_gradients} <= names
    nodes = [node for function in after.function for node in function.node_def]
    assert called == {node.attr["_gradient_op_type"].s.decode() for node in nodes if "_gradient_op_type" in node.attr}
    assert called


@pytest.mark.parametrize("name", ["trained", "nested"])
def test_training_in_a_signature(models: Path, tmp_path: Path, name: str) -> None:
    """SGD is known; ids of a batch are distinct, so the bits are the same."""
    out = tmp_path / "out"
    assert recgraph("rewrite", models / name, out, "--convert", "user_embedding") == 0
    assert "MxRecApplySgdByAddress" in ops_of(out)
    assert "MxRecFind" in ops_of(out)
    before, after = (runs.served(directory, "train", steps=5) for directory in (models / name, out))
    losses = [step["loss"] for step in before]
    assert len(set(map(float, losses))) == 5
    assert losses == [step["loss"] for step in after]


def test_what_is_saved_again_is_restored(models: Path, tmp_path: Path) -> None:
    """The Saver of the MetaGraph saves tables and variables under the names of before; the objects know of it."""
    out, copy = tmp_path / "out", tmp_path / "copy"
    assert recgraph("rewrite", models / "two", out, "--convert", "user_embedding") == 0
    ops.load_library()
    with tf.Graph().as_default(), tf1.Session() as session:
        meta_graph = tf1.saved_model.load(session, ["serve"], str(out))
        saver = meta_graph.saver_def
        prefix = str(copy / "variables" / "variables")
        copy.mkdir()
        (copy / "variables").mkdir()
        session.run(saver.save_tensor_name, {saver.filename_tensor_name: prefix})
    (copy / "saved_model.pb").write_bytes((out / "saved_model.pb").read_bytes())
    for directory in (out, copy):
        reader = tf.train.load_checkpoint(str(directory / "variables" / "variables"))
        names = set(reader.get_variable_to_shape_map())
        assert "dense/.ATTRIBUTES/VARIABLE_VALUE" in names
        assert "mx_rec/user_embedding/manifest" in names
        assert "user/.ATTRIBUTES/VARIABLE_VALUE" not in names
        data = reader.get_tensor(OBJECT_GRAPH_KEY)
        graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(data)
        keys = {attribute.checkpoint_key for node in graph.nodes for attribute in node.attributes}
        assert keys == {"dense/.ATTRIBUTES/VARIABLE_VALUE", "item/.ATTRIBUTES/VARIABLE_VALUE"}
    assert_same(runs.served(out), runs.served(copy))


def test_verify_runs_both(models: Path, tmp_path: Path, capsys: Any) -> None:
    """The model of calls and its conversion, with a vocabulary in an asset, by the name of the signature's input."""
    out, fed = tmp_path / "out", tmp_path / "words.npy"
    assert recgraph("rewrite", models / "words", out, "--convert", "user_embedding") == 0
    np.save(fed, np.array([["ant", "dog", "?"]]))
    assert recgraph("verify", models / "words", out, "--feed", f"words={fed}", "--steps", 2) == 0
    assert "equal bit for bit: 2 steps" in capsys.readouterr().out


@pytest.mark.parametrize("name", STAY)
def test_what_stays_is_a_copy(models: Path, tmp_path: Path, name: str, capsys: Any) -> None:
    out = tmp_path / "out"
    assert recgraph("rewrite", models / name, out, "--convert", "user_embedding") == 0
    captured = capsys.readouterr()
    assert STAY[name] in captured.out
    assert "is a copy of" in captured.err
    assert (out / "saved_model.pb").read_bytes() == (models / name / "saved_model.pb").read_bytes()


def test_why_single_variables_stay(models: Path, tmp_path: Path, capsys: Any) -> None:
    assert recgraph("rewrite", models / "sealed", tmp_path / "1", "--convert", "*_embedding", "--report", "json") == 0
    report = json.loads(capsys.readouterr().out)
    (inlining, converting, *_) = report["meta_graphs"][0]["passes"]
    assert converting["refusals"] == []
    reasons = [refusal["reason"] for refusal in inlining["refusals"]]
    assert len(reasons) == 2
    assert any("which is not to be inlined (_noinline)" in reason for reason in reasons)
    assert any("which XLA compiles as a whole" in reason for reason in reasons)
    assert recgraph("rewrite", models / "branch", tmp_path / "2", "--convert", "user*", "--strict") == 3
    assert "op 'If' takes a variable into a function" in capsys.readouterr().err
    assert not (tmp_path / "2").exists()


def test_a_pattern_that_names_nothing(models: Path, tmp_path: Path, capsys: Any) -> None:
    assert recgraph("rewrite", models / "two", tmp_path / "out", "--convert", "dens*", "--strict") == 3
    reason = "is the name or pattern of no variable of which rows are looked up; there are"
    assert f"{reason} 'item_embedding', 'user_embedding'" in capsys.readouterr().err
    assert recgraph("rewrite", models / "two", tmp_path / "written", "--convert", "dens*", "--convert", "user*") == 0
    captured = capsys.readouterr()
    assert captured.err == f"recgraph: warning: 'dens*' {reason} 'user_embedding', 'item_embedding'\n"
    assert recgraph("rewrite", models / "two", tmp_path / "out") == 0
    assert (tmp_path / "out" / "saved_model.pb").read_bytes() == (models / "two" / "saved_model.pb").read_bytes()


def test_ids_out_of_range_stay_errors(models: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert recgraph("rewrite", models / "keras", out, "--convert", "user*") == 0
    with tf.Graph().as_default(), tf1.Session() as session:
        served = tf1.saved_model.load(session, ["serve"], str(out)).signature_def["serving_default"]
        (result,) = served.outputs.values()
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"{ROWS}"):
            session.run(result.name, {served.inputs["ids"].name: [[0, 1, ROWS]]})
