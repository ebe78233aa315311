"""SavedModels with tables: served with the op library, and frozen without."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from estimator_model import DIM, columns, input_fn, make, model_fn

from mx_rec.cli.app import _run as recgraph
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.errors import GraphFileError, GraphRewriteError
from mx_rec.estimator import api
from mx_rec.graph import GraphModifierHook
from mx_rec.ops import load_library
from mx_rec.saved_model import freeze_saved_model, serving_notice
from mx_rec.util.initialize import init, terminate_config_initializer

tf1 = tf.compat.v1
ROWS = 5
LOAD = """
import json, sys
{before}
import tensorflow as tf
{load}
inputs = json.loads(sys.argv[2])
outputs = model.signatures["serving_default"](
    **{{name: tf.constant(value, tf.int64) for name, value in inputs.items()}}
)
print(json.dumps({{name: value.numpy().tolist() for name, value in outputs.items()}}))
"""
WITH_LIBRARY = LOAD.format(
    before="", load="from mx_rec.saved_model import load_saved_model\nmodel = load_saved_model(sys.argv[1])"
)
BARE = LOAD.format(before="sys.modules['mx_rec'] = None", load="model = tf.saved_model.load(sys.argv[1])")


def serving_inputs():
    inputs = {
        "ids": tf1.placeholder(tf.int64, [None, 3], name="ids"),
        "other": tf1.placeholder(tf.int64, [None], name="other"),
    }
    return api.export.ServingInputReceiver(inputs, inputs)


def _inputs():
    """Known ids, and a row of ids that no one has seen."""
    data = columns()
    ids = np.concatenate([data["ids"][: ROWS - 1], [[900, 901, data["ids"][0, 0]]]])
    return {"ids": ids.tolist(), "other": [*data["other"][: ROWS - 1].tolist(), 77]}


def _serve(code, directory, **environment):
    command = [sys.executable, "-c", code, str(directory), json.dumps(_inputs())]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


def _served(code, directory):
    result = _serve(code, directory)
    assert result.returncode == 0, result.stderr
    return np.array(json.loads(result.stdout)["p"], np.float32)


@pytest.fixture(scope="module", params=[True, False], ids=["dynamic", "fixed"])
def exported(request, tmp_path_factory):
    """(directory of a SavedModel, the probabilities that it must predict)."""
    tf1.disable_eager_execution()
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    terminate_config_initializer()
    init(use_dynamic_expansion=request.param)
    directory = tmp_path_factory.mktemp("model")
    model = make(directory)
    model.train(input_fn, hooks=[GraphModifierHook()], max_steps=12)
    inputs = {name: np.array(value) for name, value in _inputs().items()}
    rows = model.predict(lambda: tf.data.Dataset.from_tensor_slices(inputs).batch(ROWS))
    expected = np.array([row["p"] for row in rows], np.float32)
    path = tf.compat.as_str(model.export_saved_model(str(directory / "export"), serving_inputs))
    terminate_config_initializer()
    return pathlib.Path(path), expected


def test_serves_in_a_fresh_process(exported):
    directory, expected = exported
    assert len(set(expected.tolist())) == ROWS
    np.testing.assert_allclose(_served(WITH_LIBRARY, directory), expected, rtol=1e-6)


def test_says_which_library_to_load(tmp_path):
    init(use_dynamic_expansion=True)
    model = make(tmp_path)
    model.train(input_fn, max_steps=1)
    directory = pathlib.Path(tf.compat.as_str(model.export_saved_model(str(tmp_path / "export"), serving_inputs)))
    result = _serve(BARE, directory)
    assert result.returncode != 0
    assert "MxRecTable" in result.stderr
    notice = (directory / "assets.extra" / "mx_rec.txt").read_text(encoding="utf-8")
    for part in ("libmxrec_ops.so", "load_library()", "Op type not registered 'MxRecTable'", "recgraph freeze"):
        assert part in notice
    assert pathlib.Path(serving_notice()["mx_rec.txt"]).read_text(encoding="utf-8") == notice
    result = _serve(WITH_LIBRARY, directory, MX_REC_LIBRARY=str(tmp_path / "nowhere.so"))
    assert "LibraryNotLoadedError: no op library at" in result.stderr
    assert "build" in result.stderr.splitlines()[-1]


def test_serves_in_a_session(exported):
    directory, expected = exported
    load_library()
    with tf1.Session(graph=tf.Graph()) as session:
        meta = tf1.saved_model.load(session, ["serve"], str(directory))
        signature = meta.signature_def["serving_default"]
        feed = {signature.inputs[name].name: value for name, value in _inputs().items()}
        for _ in range(2):  # a lookup of an unknown key leaves none behind
            np.testing.assert_allclose(session.run(signature.outputs["p"].name, feed), expected, rtol=1e-6)


def test_frozen_it_needs_no_library(exported, tmp_path, capsys):
    directory, expected = exported
    target = tmp_path / "sub" / "frozen"
    assert recgraph(["freeze", str(directory), str(target)]) == 0
    out = capsys.readouterr().out.split()
    keys = {"user": len(np.unique(columns()["ids"])), "other": 9}
    for name, count in keys.items():
        assert out[out.index(name) : out.index(name) + 3] == [name, str(count), str(DIM)]
    np.testing.assert_allclose(_served(BARE, target), expected, rtol=1e-6)
    assert not (target / "assets.extra").exists()
    assert {path.name for path in target.parent.iterdir()} == {"frozen"}
    with tf1.Session(graph=tf.Graph()) as session:
        meta = tf1.saved_model.load(session, ["serve"], str(target))
        assert not [node.name for node in meta.graph_def.node if node.op.startswith("MxRec")]
        assert {node.op for node in meta.graph_def.node} >= {"HashTableV2", "LookupTableFindV2", "VarHandleOp"}
    for arguments, message in (
        ([str(directory), str(target)], "exists; give a new directory"),
        ([str(tmp_path), str(tmp_path / "x")], "cannot be loaded as a SavedModel"),
        ([str(directory), str(tmp_path / "x"), "--tags", "train"], "cannot be loaded as a SavedModel with tags"),
    ):
        assert recgraph(["freeze", *arguments]) == 2
        captured = capsys.readouterr()
        assert message in captured.err
        assert captured.err.count("\n") == 1
    assert not (tmp_path / "x").exists()


def _save(directory, build, dynamic=True):
    """A SavedModel of what `build` makes: (inputs, outputs), after one run of all training lookups."""
    init(use_dynamic_expansion=dynamic)
    with tf.Graph().as_default(), tf1.Session() as session:
        inputs, outputs, train = build()
        session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
        session.run(train)
        signature = tf1.saved_model.predict_signature_def(inputs, outputs)
        builder = tf1.saved_model.Builder(str(directory))
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            signature_def_map={"serving_default": signature},
            assets_collection=tf1.get_collection(tf1.GraphKeys.ASSET_FILEPATHS),
            main_op=tf1.tables_initializer(),
        )
        builder.save()
    terminate_config_initializer()


def _predict(directory, feed):
    with tf1.Session(graph=tf.Graph()) as session:
        meta = tf1.saved_model.load(session, ["serve"], str(directory))
        signature = meta.signature_def["serving_default"]
        fetches = {name: info.name for name, info in signature.outputs.items()}
        return session.run(fetches, {signature.inputs[name].name: value for name, value in feed.items()})


@pytest.mark.parametrize("dynamic", [True, False])
def test_every_form_of_lookup_is_frozen(tmp_path, dynamic):
    (tmp_path / "words.txt").write_text("a\nb\nc\n", encoding="utf-8")
    weights = np.float32([0.5, 2.0, 0.0, 1.5, 1.0, 3.0])

    def build():
        initializer = tf1.random_normal_initializer(seed=1)
        user = create_table(tf.int64, 4, "user", initializer, 40)
        small = create_table(tf.int32, 3, "small", initializer, 40)
        empty = create_table(tf.int64, 2, "empty", initializer, 40)
        ids = tf1.placeholder(tf.int64, [None, 2])
        words = tf1.placeholder(tf.string, [None])
        vocabulary = tf.lookup.StaticVocabularyTable(
            tf.lookup.TextFileInitializer(
                str(tmp_path / "words.txt"),
                tf.string,
                tf.lookup.TextFileIndex.WHOLE_LINE,
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
            ),
            2,
        )
        indices = tf.constant([[0, 0], [0, 3], [1, 1], [3, 0], [3, 1], [3, 2]], tf.int64)
        sparse = tf.SparseTensor(indices, tf.reshape(ids, [-1])[:6], tf.constant([5, 4], tf.int64))
        by_weight = tf.SparseTensor(indices, tf.constant(weights), sparse.dense_shape)
        ragged = tf.RaggedTensor.from_row_splits(sparse.values, tf.constant([0, 2, 2, 6], tf.int64))
        outputs = {
            "zeros": sparse_lookup(user, ids, is_train=False),
            "default": sparse_lookup(user, ids, is_train=False, serving_default_value=[1, 2, 3, 4.0]),
            "int32": sparse_lookup(small, tf.cast(ids, tf.int32), is_train=False, serving_default_value=2.0),
            "empty": sparse_lookup(empty, ids, is_train=False, serving_default_value=-1.0),
            "words": sparse_lookup(user, vocabulary.lookup(words), is_train=False),
            "rows": sparse_lookup(user, ragged, is_train=False).flat_values,
        }
        for combiner in ("sum", "mean", "sqrtn"):
            outputs[combiner] = sparse_lookup(user, sparse, is_train=False, combiner=combiner)
            outputs[f"weighted_{combiner}"] = sparse_lookup(
                user, sparse, is_train=False, combiner=combiner, weights=by_weight
            )
            outputs[f"ragged_{combiner}"] = sparse_lookup(user, ragged, is_train=False, combiner=combiner)
            outputs[f"dense_{combiner}"] = sparse_lookup(user, ids, is_train=False, combiner=combiner)
        kernel = tf1.get_variable("d/kernel", [4, 2], use_resource=True)
        outputs["dense"] = tf.matmul(outputs["zeros"][:, 0], kernel)
        known = tf.range(0, 40, 2, tf.int64)
        train = [sparse_lookup(user, known - 10), sparse_lookup(small, tf.cast(known, tf.int32))]
        return {"ids": ids, "words": words}, {name: tf.identity(value) for name, value in outputs.items()}, train

    _save(tmp_path / "model", build, dynamic)
    sizes = freeze_saved_model(tmp_path / "model", tmp_path / "frozen")
    assert [(size.table_name, size.keys) for size in sizes] == [("empty", 0), ("small", 20), ("user", 20)]
    (tmp_path / "words.txt").unlink()  # it is among the assets
    feed = {"ids": np.random.RandomState(0).randint(-20, 50, (4, 2)), "words": np.array(["c", "a", "zzz"])}
    expected, got = (_predict(tmp_path / name, feed) for name in ("model", "frozen"))
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        if "weighted" in name or any(name.endswith(combiner) for combiner in ("sum", "mean", "sqrtn")):
            np.testing.assert_allclose(got[name], value, rtol=1e-6, atol=1e-7, err_msg=name)
        else:
            np.testing.assert_array_equal(got[name], value, err_msg=name)
    assert (expected["default"] == [1, 2, 3, 4.0]).all(-1).any()
    assert (expected["empty"] == -1).all()
    assert expected["sum"].shape == (5, 4)


def test_a_model_that_inserts_is_refused(tmp_path):
    def build():
        table = create_table(tf.int64, 4, "user", tf1.zeros_initializer())
        ids = tf1.placeholder(tf.int64, [None])
        return {"ids": ids}, {"rows": sparse_lookup(table, ids)}, []

    _save(tmp_path / "model", build)
    with pytest.raises(GraphRewriteError, match="'mx_rec/user/sparse_lookup_0/addresses' inserts keys"):
        freeze_saved_model(tmp_path / "model", tmp_path / "frozen")
    assert recgraph(["freeze", str(tmp_path / "model"), str(tmp_path / "frozen")]) == 3
    assert not (tmp_path / "frozen").exists()


def _with_reference_variables(extra):
    """Builds a model whose dense weights are reference variables; `extra` gets one and adds to what it predicts."""

    def build():
        table = create_table(tf.int64, 4, "user", tf1.random_normal_initializer(seed=2))
        ids = tf1.placeholder(tf.int64, [None])
        rows = sparse_lookup(table, ids, is_train=False)
        parts = tf1.get_variable("w", [4, 2], partitioner=tf1.fixed_size_partitioner(2), use_resource=False)
        bias = tf1.get_variable("bias", [2], initializer=tf1.constant_initializer([1.0, -2.0]), use_resource=False)
        assert all(variable.op.type == "VariableV2" for variable in (*parts, bias))
        outputs = {"y": tf.matmul(rows, tf.convert_to_tensor(parts)) + bias, **extra(bias)}
        return {"ids": ids}, outputs, [sparse_lookup(table, tf.range(3, dtype=tf.int64))]

    return build


def test_reference_variables_are_frozen(tmp_path, capfd):
    def more(bias):
        is_on = tf1.placeholder_with_default(True, [])
        itself = tf1.get_default_graph().get_tensor_by_name("bias:0")
        tf1.disable_control_flow_v2()
        branches = tf1.cond(is_on, lambda: tf.add(itself, 1.0), lambda: tf.add(itself, 2.0))
        _, total = tf1.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, tf.add(itself, x)), (0, tf.zeros([2])))
        tf1.enable_control_flow_v2()
        types = {operation.type for operation in tf1.get_default_graph().get_operations()}
        assert {"RefSwitch", "RefEnter"} <= types
        return {"itself": itself, "cond": branches, "loop": total}

    _save(tmp_path / "model", _with_reference_variables(more))
    capfd.readouterr()
    assert recgraph(["freeze", str(tmp_path / "model"), str(tmp_path / "frozen")]) == 0
    assert "deprecated" not in capfd.readouterr().err
    with tf1.Session(graph=tf.Graph()) as session:
        nodes = tf1.saved_model.load(session, ["serve"], str(tmp_path / "frozen")).graph_def.node
        assert not {"VariableV2", "RefSwitch", "RefEnter"} & {node.op for node in nodes}
    feed = {"ids": np.array([0, 2, 77])}
    expected, got = (_predict(tmp_path / name, feed) for name in ("model", "frozen"))
    assert expected["itself"].tolist() == [1.0, -2.0]
    assert expected["loop"].tolist() == [3.0, -6.0]
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


def test_a_write_of_a_reference_variable_is_refused(tmp_path, capsys):
    _save(
        tmp_path / "model",
        _with_reference_variables(lambda bias: {"count": tf1.assign_add(bias, [1.0, 1.0], name="counted")}),
    )
    assert recgraph(["freeze", str(tmp_path / "model"), str(tmp_path / "frozen")]) == 3
    error = " ".join(capsys.readouterr().err.split())
    assert "node 'counted' (AssignAdd) needs the reference variable 'bias' itself" in error
    assert not (tmp_path / "frozen").exists()


def test_what_is_no_saved_model(tmp_path):
    with pytest.raises(GraphFileError, match="cannot be loaded as a SavedModel"):
        freeze_saved_model(tmp_path / "none", tmp_path / "frozen")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(GraphFileError, match="exists; give a new directory"):
        freeze_saved_model(tmp_path / "none", tmp_path / "full")


def test_plain_estimator_exports_too(tmp_path):
    init(use_dynamic_expansion=True)
    model = api.Estimator(model_fn, str(tmp_path), api.RunConfig(tf_random_seed=1), {})
    model.train(input_fn, max_steps=2)
    path = model.export_saved_model(str(tmp_path / "export"), serving_inputs, assets_extra=serving_notice())
    freeze_saved_model(tf.compat.as_str(path), tmp_path / "frozen")
    feed = _inputs()
    np.testing.assert_array_equal(_predict(tmp_path / "frozen", feed)["p"], _predict(tf.compat.as_str(path), feed)["p"])
