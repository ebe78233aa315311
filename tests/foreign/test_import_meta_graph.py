"""Scripts that import a converted MetaGraphDef and make initializers, Savers and sessions of their own."""

from __future__ import annotations

import subprocess
import sys
import threading

import foreign_runs as runs
import numpy as np
import plain_models as plain
import pytest
import tensorflow as tf
from google.protobuf import wrappers_pb2

from mx_rec import ops
from mx_rec.cli import app
from mx_rec.core.saveable import table_saveables
from mx_rec.errors import GraphFileError
from mx_rec.graph.files import load_graph, save_graph
from mx_rec.saved_parts import SAVEABLE_OBJECTS

tf1 = tf.compat.v1
STEP = ["loss:0", "train"]
PARTS = "lookup_parts_div"


def converted(directory, model: str = PARTS, optimizer: str = "adam", *options: str, meta_graph=None) -> str:
    """The path of the converted MetaGraphDef of a model."""
    meta_graph = plain.meta_graph(model, optimizer) if meta_graph is None else meta_graph
    (directory / "in.meta").write_bytes(meta_graph.SerializeToString())
    arguments = ["rewrite", str(directory / "in.meta"), str(directory / "out.meta"), "--convert", "*", *options]
    with pytest.raises(SystemExit) as stop:
        app.main(arguments)
    assert stop.value.code == 0
    return str(directory / "out.meta")


def session_of(graph: tf.Graph) -> tf1.Session:
    return tf1.Session(graph=graph, config=runs.session_config(grappler=False))


def start_data(session: tf1.Session) -> None:
    session.run([op for op in session.graph.get_operations() if op.type == "MakeIterator"])


def imports(graph: tf.Graph) -> list[tf.Operation]:
    return [op for op in graph.get_operations() if op.type == "MxRecTableImport"]


def test_without_initial_values_a_table_is_not_used(tmp_path) -> None:
    path = converted(tmp_path)
    expected = runs.losses(plain.meta_graph(PARTS, "adam").graph_def, steps=3)
    ops.load_library()
    with tf.Graph().as_default() as graph:
        saver = tf1.train.import_meta_graph(path)
        with session_of(graph) as session:
            session.run(tf1.global_variables_initializer())
            start_data(session)
            some, *others = imports(graph)
            assert others
            missing = "table 'emb' has no values yet: .* op 'mx_rec/emb/import' gives it. Run the initializer"
            for _ in range(2):  # a part of the values is not enough
                for fetch in ("loss:0", "train"):
                    with pytest.raises(tf.errors.FailedPreconditionError, match=missing):
                        session.run(fetch)
                with pytest.raises(tf.errors.FailedPreconditionError, match=missing):
                    saver.save(session, str(tmp_path / "no"), write_meta_graph=False)
                session.run(some)
            session.run(others)
            assert session.run("loss:0") > 0
        with session_of(graph) as session:
            session.run("begin")
            assert [session.run(STEP)[0] for _ in range(3)] == expected.tolist()


def test_initial_values_by_key_need_no_initializer(tmp_path) -> None:
    path = converted(tmp_path, "lookup_resource", "adam", "--initial-values", "by_key")
    ops.load_library()
    with tf.Graph().as_default() as graph:
        tf1.train.import_meta_graph(path)
        with session_of(graph) as session:
            session.run(tf1.global_variables_initializer())
            start_data(session)
            assert session.run(STEP)[0] > 0


SCRIPT = """
import sys, tensorflow as tf
tf1 = tf.compat.v1
tf1.disable_eager_execution()
{load}
losses = []
for first in (True, False):
    with tf.Graph().as_default() as graph:
        tf1.train.import_meta_graph({path!r}, import_scope={scope!r})
        saver, at = tf1.train.Saver(), {scope!r} + "/" if {scope!r} else ""
        with tf1.Session() as session:
            session.run(at + "begin")
            for _ in range(2):
                session.run(at + "train") if first else session.run(at + "loss:0")
            if first:
                saver.save(session, {prefix!r}, write_meta_graph=False)
            else:
                saver.restore(session, {prefix!r})
            losses.append([float(session.run([at + "loss:0", at + "train"])[0]) for _ in range(3)])
assert losses[0] == losses[1], losses
assert tf.train.load_checkpoint({prefix!r}).has_tensor("mx_rec/emb/manifest")
"""


@pytest.mark.parametrize("load", ["from mx_rec.ops import load_library; load_library()", "import mx_rec; INIT"])
@pytest.mark.parametrize("scope", ["", "inner"])
def test_a_new_saver_knows_the_tables(tmp_path, load: str, scope: str) -> None:
    load = load.replace("INIT", "from mx_rec.util.initialize import init; init()")
    code = SCRIPT.format(load=load, path=converted(tmp_path), scope=scope, prefix=str(tmp_path / "model"))
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_a_job_with_the_default_saver_goes_on(tmp_path) -> None:
    path = converted(tmp_path, "matrix_factorization", "adam")
    ops.load_library()

    def job(steps: int) -> list[float]:
        with tf.Graph().as_default() as graph:
            tf1.train.import_meta_graph(path)
            names = [saveable.parts.table_name for saveable in table_saveables(graph)]
            assert sorted(names) == ["item", "item_bias", "user", "user_bias"]
            assert len({saveable.parts.file_number for saveable in table_saveables(graph)}) == 4
            scaffold = tf1.train.Scaffold(init_op=graph.get_operation_by_name("begin"))
            return run_job(tmp_path / "job", steps, scaffold)

    expected = runs.losses(plain.meta_graph("matrix_factorization", "adam").graph_def, steps=2)
    assert job(2) == expected.tolist()
    prefix = tf.train.latest_checkpoint(str(tmp_path / "job"))
    saved = {name: tf.train.load_variable(prefix, name) for name in ("mean", "global_step")}
    job(2)
    assert tf.train.load_variable(prefix, "global_step") == saved["global_step"]
    assert tf.train.latest_checkpoint(str(tmp_path / "job")) != prefix


def test_other_saveables_stay(tmp_path) -> None:
    meta_graph = plain.meta_graph("lookup_resource", "adam")
    name = meta_graph.graph_def.node[0].name
    meta_graph.collection_def[SAVEABLE_OBJECTS].node_list.value.append(f"{name}:0")
    path = converted(tmp_path, meta_graph=meta_graph)
    ops.load_library()
    for _ in range(2):  # a file that is written once more does not have them twice
        with tf.Graph().as_default() as graph:
            tf1.train.import_meta_graph(path)
            element, table = graph.get_collection(SAVEABLE_OBJECTS)
            assert (element.name, table.parts.handle) == (f"{name}:0", "mx_rec/emb/handle:0")
        loaded = load_graph(path)
        path = str(tmp_path / "again.meta")
        save_graph(loaded, loaded.graph_def, path)


def test_saveables_of_another_library_are_an_error(tmp_path) -> None:
    loaded = load_graph(converted(tmp_path))
    data = wrappers_pb2.StringValue(value="of another").SerializeToString()
    loaded.message.collection_def[SAVEABLE_OBJECTS].bytes_list.value.append(data)
    with pytest.raises(GraphFileError, match="holds 'of another', which another library has written"):
        save_graph(loaded, loaded.graph_def, tmp_path / "no.meta")


def test_concurrent_steps_see_all_values_or_an_error(tmp_path) -> None:
    """Lookups that run while the parts are imported fail, or see the whole variable."""
    path = converted(tmp_path, PARTS, "")
    expected = runs.losses(plain.meta_graph(PARTS, "").graph_def, ("loss:0",), steps=1)[0]
    ops.load_library()
    with tf.Graph().as_default() as graph:
        tf1.train.import_meta_graph(path)
        batch = next(op for op in graph.get_operations() if op.type == "IteratorGetNext")
        with tf1.Session(graph=graph) as session:
            start_data(session)
            values = session.run(list(batch.outputs))
            feed = dict(zip(batch.outputs, values))
            results: list[object] = []
            stop = threading.Event()

            def look_up() -> None:
                while not stop.is_set():
                    try:
                        results.append(session.run("loss:0", feed))
                    except tf.errors.FailedPreconditionError:
                        results.append(None)

            threads = [threading.Thread(target=look_up) for _ in range(3)]
            for thread in threads:
                thread.start()
            for operation in imports(graph):
                session.run(operation)
            session.run("loss:0", feed)
            stop.set()
            for thread in threads:
                thread.join()
            assert {value for value in results if value is not None} <= {np.float32(expected)}


def run_job(directory, steps: int, scaffold=None) -> list[float]:
    """Runs a training job in the default graph, from its last checkpoint on if it has one."""
    with tf1.train.MonitoredTrainingSession(
        checkpoint_dir=str(directory),
        scaffold=scaffold,
        config=runs.session_config(grappler=False),
        save_checkpoint_steps=2,
        save_summaries_steps=None,
        log_step_count_steps=None,
    ) as session:
        return [float(session.run(STEP)[0]) for _ in range(steps)]


def write_job(directory, own: bool) -> tuple[list[float], str]:
    """The losses of a job of two steps, and the `.meta` that it wrote; with an initializer and Saver of its own."""
    with tf.Graph().as_default():
        tf1.set_random_seed(1)
        plain.train_step("", plain.MODELS["lookup_resource"](), "adam")
        scaffold = None
        if own:
            init_op = tf.group(tf1.global_variables_initializer(), name="my_init")
            scaffold = tf1.train.Scaffold(init_op=init_op, saver=tf1.train.Saver(sharded=True))
        losses = run_job(directory, 2, scaffold)
    return losses, str(directory / "model.ckpt-0.meta")


@pytest.mark.parametrize("own", [False, True])
def test_the_file_of_a_job_is_a_job(tmp_path, own: bool) -> None:
    losses, meta = write_job(tmp_path / "before", own)
    path = converted(tmp_path, meta_graph=load_graph(meta).message)
    ops.load_library()

    def go_on(directory, steps: int, names_init: bool) -> list[float]:
        with tf.Graph().as_default() as graph:
            saver = tf1.train.import_meta_graph(path)
            init_op = graph.get_operation_by_name("my_init") if names_init else None
            scaffold = tf1.train.Scaffold(init_op=init_op, saver=saver) if own else None
            return run_job(directory, steps, scaffold)

    if own:
        with pytest.raises(RuntimeError, match="Variables not initialized: emb"):
            go_on(tmp_path / "no", 1, names_init=False)
    assert go_on(tmp_path / "after", 2, names_init=own) == losses
    with tf.Graph().as_default():  # the original goes on likewise, each with the data from the beginning
        tf1.train.import_meta_graph(meta)
        scaffold = tf1.train.Scaffold(init_op=tf1.get_default_graph().get_operation_by_name("my_init")) if own else None
        expected = run_job(tmp_path / "before", 2, scaffold)
    assert go_on(tmp_path / "after", 2, names_init=own) == expected
