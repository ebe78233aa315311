"""`recgraph verify`: equal and different graphs, names, feeds, failures."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from mx_rec.cli.verifying.compare import compare_arrays
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.ops.library import LIBRARY_ENV
from mx_rec.optimizers import lazy_adam_by_addr
from mx_rec.util.initialize import init, terminate_config_initializer

tf1 = tf.compat.v1


def model(rows, labels, rate=0.05, name="loss") -> None:
    """A dense layer over the rows of a lookup, its loss and its train op, in the collections of TensorFlow."""
    weights = tf1.get_variable("weights", [rows.shape[-1], 1], use_resource=True)  # no seed
    prediction = tf.reduce_sum(tf.tensordot(rows, weights, 1), axis=[1, 2])
    loss = tf.reduce_mean(tf.square(prediction - labels), name=name)
    embeddings = tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
    addresses = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
    gradients = tf.gradients(loss, [weights, *embeddings])
    optimizer = lazy_adam_by_addr.create_hash_optimizer_by_address(learning_rate=rate)
    sparse = optimizer.apply_gradients(list(zip(gradients[1:], addresses)))
    dense = tf1.train.GradientDescentOptimizer(rate).apply_gradients([(gradients[0], weights)])
    tf1.add_to_collection(tf1.GraphKeys.TRAIN_OP, tf.group(sparse, dense, name="train"))
    tf1.add_to_collection(tf1.GraphKeys.LOSSES, loss)


def script(rate=0.05, table="items", batches=12, shuffle=True, ids: Callable = lambda ids: ids) -> None:
    """A training script up to its first session."""
    random = np.random.RandomState(7)
    columns = {"ids": random.randint(0, 50, [8 * batches, 3]), "labels": random.rand(8 * batches).astype(np.float32)}
    dataset = tf.data.Dataset.from_tensor_slices(columns)
    if shuffle:
        dataset = dataset.shuffle(64)  # no seed: another order in every run
    iterator = tf1.data.make_initializable_iterator(dataset.batch(8))
    batch = iterator.get_next()
    tf1.add_to_collection("START", iterator.initializer)
    items = create_table(tf.int64, 4, table, tf1.truncated_normal_initializer(seed=3))
    keys = tf.math.floormod(ids(batch["ids"]) * 31 + 7, 23, name="moved_ids")
    model(sparse_lookup(items, keys, is_train=True), batch["labels"], rate)


@pytest.fixture
def export(tmp_path):
    """Runs a script in a graph of its own and writes the graph."""
    tf1.disable_eager_execution()

    def export(name: str, build: Callable, *, dynamic: bool = True, **options):
        terminate_config_initializer()
        path = tmp_path / name
        with tf.Graph().as_default() as graph:
            init(use_dynamic_expansion=dynamic)
            build(**options)
            if name.endswith("meta"):
                tf1.train.export_meta_graph(str(path), graph=graph)
            else:
                path.write_bytes(graph.as_graph_def().SerializeToString())
        terminate_config_initializer()
        return path

    return export


@pytest.fixture
def pair(export, recgraph, tmp_path):
    """The script's graph, and the same rewritten."""

    def pair(name: str = "train.meta", build: Callable = script, **options):
        source, out = export(name, build, **options), tmp_path / f"rewritten.{name}"
        assert recgraph("rewrite", source, out).code == 0
        return source, out

    return pair


class TestEqual:
    def test_rewritten_graph_without_any_seed(self, recgraph, pair):
        ended = recgraph("verify", *pair())
        assert (ended.code, ended.err) == (0, "")
        words = [line.split() for line in ended.out.splitlines()]
        assert ["fetch", "loss:0", "10", "steps", "equal"] in words
        assert ["op", "train", "10", "steps", "ran"] in words
        assert any(line[:2] == ["table", "items"] and line[-1] == "equal" for line in words)
        assert any(line[:2] == ["variable", "weights"] and line[-1] == "equal" for line in words)
        assert ended.out.splitlines()[-1] == "equal bit for bit: 10 steps"

    def test_json(self, recgraph, pair):
        source, out = pair()
        content = json.loads(recgraph("verify", source, out, "--json", "--steps", 4).out)
        assert (content["equal"], content["steps"], content["first_difference"]) == (True, 4, None)
        assert (content["a"], content["b"]) == (str(source), str(out))
        kinds = {(row["kind"], row["name"]): row for row in content["compared"]}
        assert kinds["table", "items"]["extent"] == "23 keys, rows of 12"
        assert all(row["is_equal"] for row in content["compared"])

    def test_graphdefs_have_no_collections_so_names_are_given(self, recgraph, pair):
        ended = recgraph("verify", *pair("train.pb"), "--fetch", "loss", "--fetch", "train")
        assert (ended.code, ended.err) == (0, "")
        assert "equal bit for bit" in ended.out

    def test_nodes_called_loss_and_train_are_the_default(self, recgraph, pair):
        ended = recgraph("verify", *pair("train.pb"), "--json")
        names = {(row["kind"], row["name"]) for row in json.loads(ended.out)["compared"]}
        assert {("fetch", "loss"), ("op", "train")} <= names

    def test_kinds_of_files_may_differ(self, recgraph, export):
        paths = export("a.meta", script), export("b.pb", script)
        assert recgraph("verify", *paths).code == 0

    def test_table_of_fixed_capacity(self, recgraph, pair):
        def build() -> None:
            random = np.random.RandomState(7)
            dataset = tf.data.Dataset.from_tensor_slices(random.randint(0, 50, [96, 3])).shuffle(64).batch(8)
            batch = tf1.data.make_initializable_iterator(dataset).get_next()
            items = create_table(tf.int64, 4, "items", tf1.truncated_normal_initializer(seed=3), 64)
            loss = tf.reduce_mean(tf.square(sparse_lookup(items, batch, is_train=True)), name="loss")
            train = tf1.train.AdagradOptimizer(0.1).minimize(loss, var_list=[items.variable])
            tf1.add_to_collection("train", train)

        ended = recgraph("verify", *pair(build=build, dynamic=False))
        assert (ended.code, ended.out.splitlines()[-1]) == (0, "equal bit for bit: 10 steps"), ended.out

    def test_input_that_ends_for_both_is_a_remark(self, recgraph, pair):
        ended = recgraph("verify", *pair(batches=5), "--steps", 20)
        assert ended.code == 0
        assert "the input ended after 5 steps" in ended.line
        assert "equal bit for bit: 5 steps" in ended.out

    def test_another_seed_gives_other_numbers_but_equal_ones(self, recgraph, pair):
        paths = pair()
        first, second = (recgraph("verify", *paths, "--seed", seed, "--json") for seed in (1, 2))
        assert first.code == second.code == 0

    def test_several_threads(self, recgraph, pair):
        assert recgraph("verify", *pair(), "--threads", 2, "--tolerance", 1e-4).code == 0


class TestDifferent:
    def test_first_difference_of_a_fetch(self, recgraph, export):
        paths = export("a.meta", script), export("b.meta", script, rate=0.06)
        ended = recgraph("verify", *paths)
        assert (ended.code, ended.err) == (1, "")
        last = ended.out.splitlines()[-1]
        assert last.startswith("different: step 2, fetch 'loss:0': A has ")  # step 1 reads before it updates
        content = json.loads(recgraph("verify", *paths, "--json").out)
        assert content["equal"] is False
        difference = content["first_difference"]
        assert (difference["kind"], difference["name"], difference["step"]) == ("fetch", "loss:0", 2)
        assert float(difference["a"]) != float(difference["b"])
        row = next(row for row in content["compared"] if row["name"] == "loss:0")
        assert row["differing"] == 9
        assert row["largest"] >= abs(float(difference["a"]) - float(difference["b"])) * 0.999

    def test_tolerance(self, recgraph, export):
        paths = export("a.meta", script), export("b.meta", script, rate=0.05000001)
        assert recgraph("verify", *paths).code == 1
        ended = recgraph("verify", *paths, "--tolerance", 1e-3)
        assert (ended.code, ended.out.splitlines()[-1]) == (0, "equal within 0.001: 10 steps")

    def test_element_of_a_vector(self, recgraph, export):
        def build(value):
            tf.constant([[1, 2], [3, value]], name="matrix")

        paths = export("a.pb", build, value=4), export("b.pb", build, value=5)
        ended = recgraph("verify", *paths, "--fetch", "matrix")
        assert ended.code == 1
        assert "step 1, fetch 'matrix', element [1, 1]: A has 4, B has 5" in ended.out

    def test_shape(self, recgraph, export):
        paths = export("a.pb", lambda: tf.zeros([2], name="x")), export("b.pb", lambda: tf.zeros([3], name="x"))
        ended = recgraph("verify", *paths, "--fetch", "x")
        assert ended.code == 1
        assert "A has float32 [2], B has float32 [3]" in ended.out

    def test_row_of_a_table(self, recgraph, export):
        paths = export("a.meta", script), export("b.meta", script, rate=0.06)
        ended = recgraph("verify", *paths, "--fetch", "train")
        assert ended.code == 1
        assert "after the last step, table 'items', key 0, row, column 0: A has " in ended.out

    def test_keys_of_a_table(self, recgraph, export):
        paths = export("a.meta", script), export("b.meta", script, ids=lambda ids: tf.minimum(ids, 3))
        ended = recgraph("verify", *paths, "--fetch", "train")
        assert ended.code == 1
        assert "A has the key, B has no such key" in ended.out

    def test_name_of_a_table(self, recgraph, export):
        paths = export("a.meta", script), export("b.meta", script, table="goods")
        ended = recgraph("verify", *paths, "--fetch", "train")
        assert ended.code == 1
        assert "table 'items': A has a table of that name, B has no table of that name" in ended.out

    def test_variable(self, recgraph, export):
        def build(value):
            tf1.get_variable("v", initializer=tf.constant([1.0, value]), use_resource=True)
            tf.constant(0, name="x")

        paths = export("a.pb", build, value=2.0), export("b.pb", build, value=3.0)
        ended = recgraph("verify", *paths, "--fetch", "x")
        assert ended.code == 1
        assert "variable 'v', element [1]: A has 2.0, B has 3.0" in ended.out

    def test_input_that_ends_for_one(self, recgraph, export):
        paths = export("a.meta", script, shuffle=False), export("b.meta", script, batches=5, shuffle=False)
        ended = recgraph("verify", *paths)
        assert ended.code == 1
        assert json.loads(recgraph("verify", *paths, "--json").out)["compared"]

    def test_only_the_end_of_input_differs(self, recgraph, export):
        def build(count):
            tf1.data.make_initializable_iterator(tf.data.Dataset.range(count)).get_next(name="x")

        paths = export("a.pb", build, count=9), export("b.pb", build, count=5)
        ended = recgraph("verify", *paths, "--fetch", "x")
        assert ended.code == 1
        assert "different: step 6, input: A has more input, B has ended after 5 steps" in ended.out


class TestNames:
    def test_a_replaced_batch_is_found(self, recgraph, pair):
        ended = recgraph("verify", *pair(), "--fetch", "IteratorGetNext:1", "--fetch", "train")
        assert ended.code == 0
        assert "fetch 'IteratorGetNext:1' is 'IteratorGetNext:1' in A and 'mx_rec/IteratorGetNext/get_next:1' in B" in (
            ended.line
        )

    def test_also_with_the_rewritten_graph_first(self, recgraph, pair):
        source, out = pair()
        assert recgraph("verify", out, source, "--fetch", "IteratorGetNext:1", "--fetch", "train").code == 0

    def test_a_fused_lookup_is_found(self, recgraph, pair):
        def build():
            batch = tf1.data.make_initializable_iterator(tf.data.Dataset.range(90).batch(6)).get_next()
            start = tf1.truncated_normal_initializer(seed=3)
            tables = [create_table(tf.int64, 4, name, start) for name in ("first", "second")]
            rows = [sparse_lookup(table, batch, is_train=True) for table in tables]
            model(tf.stack(rows, axis=1), 1.0)

        local = "mx_rec/first/sparse_lookup_0/embeddings"
        ended = recgraph("verify", *pair("train.pb", build), "--fetch", local, "--fetch", "train")
        assert ended.code == 0
        assert f"fetch '{local}' is '{local}:0' in A and '{local}/fused:0' in B" in ended.line

    def test_a_moved_tensor_that_nothing_reads_is_named(self, recgraph, pair):
        ended = recgraph("verify", *pair("train.pb"), "--fetch", "moved_ids")
        assert ended.code == 2
        assert "B (" in ended.line
        assert "has no 'moved_ids', and nothing in it stands for it" in ended.line

    def test_a_replaced_update_names_what_waits_for_it(self, recgraph, export, pair):
        source, out = pair()
        update = next(node for node in _nodes(source) if node.op.startswith("MxRecApply"))
        ended = recgraph("verify", source, out, "--fetch", update.name)
        if update.name in {node.name for node in _nodes(out)}:
            assert ended.code == 0  # a single update is not fused
        else:
            assert "fetch what waits for it" in ended.line

    def test_a_collection(self, recgraph, pair):
        ended = recgraph("verify", *pair(), "--fetch", "losses", "--fetch", "train_op")
        assert (ended.code, ended.err) == (0, "")

    def test_fetches_that_train_nothing_are_a_remark(self, recgraph, pair):
        ended = recgraph("verify", *pair(), "--fetch", "loss")
        assert ended.code == 0
        assert "no fetch updates a table" in ended.err

    def test_init(self, recgraph, pair):
        ended = recgraph("verify", *pair(), "--init", "START")
        assert (ended.code, ended.err) == (0, "")

    def test_an_iterator_with_two_initializers(self, recgraph, export):
        def build():
            first, second = (tf.data.Dataset.range(start, 100) for start in (0, 50))
            iterator = tf1.data.Iterator.from_structure(tf1.data.get_output_types(first), [])
            iterator.make_initializer(first, name="begin")
            iterator.make_initializer(second, name="middle")
            tf.identity(iterator.get_next(), name="x")

        path = export("a.pb", build)
        ended = recgraph("verify", path, path, "--fetch", "x")
        assert ended.code == 0
        assert "is filled by 'begin', the first of its initializers; --init chooses another ('middle')" in ended.err
        assert recgraph("verify", path, path, "--fetch", "x", "--init", "middle").err == ""


def _nodes(path):
    from mx_rec.graph.files import load_graph

    return load_graph(path).graph_def.node


def with_placeholder() -> None:
    ids = tf1.placeholder(tf.int64, [None, 2], name="ids")
    tf.reduce_sum(ids * 2, name="x")
    tf1.placeholder_with_default(tf.constant(["a"]), [1], name="words")


class TestFeeds:
    @pytest.fixture
    def feed(self, export, recgraph, tmp_path):
        path = export("a.pb", with_placeholder)

        def feed(*arguments):
            kept = sorted(os.listdir(tmp_path))
            ended = recgraph("verify", path, path, "--fetch", "x", *arguments)
            assert sorted(os.listdir(tmp_path)) == kept
            return ended

        return feed

    def array(self, tmp_path, value):
        np.save(tmp_path / "v.npy", value)
        return tmp_path / "v.npy"

    @pytest.mark.parametrize("name", ["ids", "ids:0"])
    def test_fed_to_both(self, feed, tmp_path, name):
        path = self.array(tmp_path, np.ones([3, 2], np.int64))
        ended = feed("--feed", f"{name}={path}")
        assert (ended.code, ended.err) == (0, "")

    def test_strings(self, feed, tmp_path):
        np.save(tmp_path / "w.npy", np.array(["b"]))
        path = self.array(tmp_path, np.ones([3, 2], np.int64))
        assert feed("--feed", f"ids={path}", "--feed", f"words={tmp_path / 'w.npy'}").code == 0

    def test_fed_into_the_lookup(self, recgraph, pair, tmp_path):
        def build():
            ids = tf1.placeholder(tf.int64, [None, 3], name="ids")
            items = create_table(tf.int64, 4, "items", tf1.truncated_normal_initializer(seed=3))
            model(sparse_lookup(items, ids, is_train=True), 1.0)

        path = self.array(tmp_path, np.arange(12, dtype=np.int64).reshape(4, 3))
        ended = recgraph("verify", *pair(build=build), "--feed", f"ids={path}")
        assert (ended.code, ended.err) == (0, "")
        assert "12 keys" in ended.out

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (np.ones([3, 2], np.float32), "holds float32 [3, 2], but placeholder 'ids' of A"),
            (np.ones([3, 2], np.int32), "takes int64 (None, 2)"),
            (np.ones([3], np.int64), "holds int64 [3], but placeholder 'ids' of A"),
            (np.ones([3, 5], np.int64), "holds int64 [3, 5]"),
            (np.array(["a", "b"], object), "expected plain numbers or strings: save strings as np.array(x, 'S')"),
        ],
    )
    def test_wrong_array(self, feed, tmp_path, value, expected):
        np.save(tmp_path / "v.npy", value, allow_pickle=True)
        ended = feed("--feed", f"ids={tmp_path / 'v.npy'}")
        assert (ended.code, ended.out) == (2, "")
        assert expected in ended.line

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ((), "placeholder 'ids' of A"),
            (("--feed", "ids"), "expected NAME=FILE.npy"),
            (("--feed", "=V"), "expected NAME=FILE.npy"),
            (("--feed", "ids=NONE"), "No such file"),
            (("--feed", "ids=DIR"), "Is a directory"),
            (("--feed", "ids=TEXT"), "no .npy file"),
            (("--feed", "ids=EMPTY"), "no .npy file"),
            (("--feed", "ids=MANY"), "holds several arrays"),
            (("--feed", "nosuch=V"), "has no placeholder 'nosuch'"),
            (("--feed", "x=V"), "'x' of A"),
            (("--feed", "ids=V", "--feed", "ids=V"), "'ids' is given twice"),
        ],
    )
    def test_bad_feed(self, feed, tmp_path, arguments, expected):
        (tmp_path / "DIR").mkdir()
        (tmp_path / "TEXT").write_text("1 2 3")
        (tmp_path / "EMPTY").write_bytes(b"")
        np.savez(tmp_path / "MANY.npz", a=np.ones(1))
        os.rename(tmp_path / "MANY.npz", tmp_path / "MANY")
        os.rename(self.array(tmp_path, np.ones([3, 2], np.int64)), tmp_path / "V")
        placed = []
        for argument in arguments:
            name, separator, path = argument.partition("=")
            placed.append(f"{name}={tmp_path / path}" if separator else argument)
        ended = feed(*placed)
        assert (ended.code, ended.out) == (2, "")
        assert expected in ended.line


def fails(text: str = "boom") -> None:
    """Runs two steps and then fails."""
    step = tf1.data.make_initializable_iterator(tf.data.Dataset.range(10)).get_next()
    with tf.control_dependencies([tf1.assert_less(step, tf.constant(2, tf.int64), message=text, name="guard")]):
        tf.identity(step, name="x")


class TestFailures:
    def run(self, recgraph, tmp_path, code, *arguments):
        kept = sorted(os.listdir(tmp_path))
        ended = recgraph("verify", *arguments)
        assert (ended.code, ended.out) == (code, "")
        assert sorted(os.listdir(tmp_path)) == kept
        return ended.line

    @pytest.mark.parametrize("place", ["A", "B"])
    def test_a_step_that_fails(self, recgraph, export, tmp_path, place):
        good = export("good.pb", lambda: tf.constant(1, tf.int64, name="x"))
        paths = [export("bad.pb", fails), good]
        line = self.run(recgraph, tmp_path, 3, *(paths if place == "A" else paths[::-1]), "--fetch", "x")
        assert f"{place} ('" in line
        assert re.search("step 3 failed at node '(guard/.*)?Assert'", line)  # alone if it is in a function
        assert "boom" in line

    def test_an_initializer_that_fails(self, recgraph, export, tmp_path):
        def build():
            missing = tf.lookup.TextFileInitializer("/nonexistent/words", tf.string, 0, tf.int64, 1)
            table = tf.lookup.StaticHashTable(missing, -1)
            tf.identity(table.lookup(tf.constant("a")), name="x")

        path = export("a.pb", build)
        line = self.run(recgraph, tmp_path, 3, path, path, "--fetch", "x")
        assert "initialization failed" in line
        assert "/nonexistent/words" in line

    def test_a_graph_that_waits_for_ever(self, recgraph, export, tmp_path):
        path = export("a.pb", lambda: tf1.FIFOQueue(1, tf.int32).dequeue(name="x"))
        line = self.run(recgraph, tmp_path, 3, path, path, "--fetch", "x", "--timeout", 1)
        assert "step 1 took more than 1 s" in line

    def test_no_input_at_all(self, recgraph, export, tmp_path):
        path = export("a.meta", script, batches=0)
        assert "out of input before the first step" in self.run(recgraph, tmp_path, 3, path, path)

    def test_an_op_that_is_not_known(self, recgraph, write, tmp_path):
        from tensorflow.core.framework import graph_pb2

        graph_def = graph_pb2.GraphDef()
        graph_def.versions.producer = 1
        graph_def.node.add(name="x", op="NoSuchOp")
        path = write("in.pb", graph_def)
        line = self.run(recgraph, tmp_path, 2, path, path, "--fetch", "x")
        assert "NoSuchOp" in line
        assert "cannot be imported" in line

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (("A",), "Missing argument 'B'"),
            (("A", "NONE"), "No such file"),
            (("A", "OTHER"), "another kind"),
            (("A", "A", "--steps", "0"), "not in the range"),
            (("A", "A", "--tolerance", "-1"), "not in the range"),
            (("A", "A", "--seed", "0"), "not in the range"),
            (("A", "A", "--threads", "0"), "not in the range"),
            (("A", "A"), "name the loss and the train op with --fetch"),
            (("A", "A", "--fetch", "numbr"), "neither graph has a node or collection 'numbr'"),
            (("A", "A", "--fetch", "numbr"), "did you mean 'number'?"),
            (("A", "A", "--fetch", "number:1"), "has 1 outputs, not 2"),
            (("A", "A", "--fetch", "number:one"), "expected NAME or NAME:INDEX"),
            (("A", "A", "--fetch", "variable"), "is a resource, which has no value to compare"),
            (("A", "A", "--fetch", "number", "--init", "nosuch"), "--init: A"),
        ],
    )
    def test_bad_usage(self, recgraph, export, write, tmp_path, arguments, expected):
        def build():
            tf.constant(1, name="number")
            tf1.get_variable("variable", [1], use_resource=True)

        export("A", build)
        write("OTHER", bytes(range(256)) * 9)
        placed = [tmp_path / argument if argument.isupper() else argument for argument in arguments]
        assert expected in self.run(recgraph, tmp_path, 2, *placed)

    def test_without_the_op_library(self, export, tmp_path):
        path = export("a.pb", lambda: tf.constant(1, name="x"))
        command = [sys.executable, "-m", "mx_rec.cli", "verify", path, path, "--fetch", "x"]
        env = {**os.environ, LIBRARY_ENV: str(tmp_path / "none.so")}
        ended = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert len(ended.stderr.splitlines()) == 1
        assert "verify runs the graphs and needs the op library" in ended.stderr
        assert "make TF=" in ended.stderr


class TestCompareArrays:
    def test_bits(self):
        assert compare_arrays(np.float32([0.1, np.nan]), np.float32([0.1, np.nan])) is None
        assert compare_arrays(np.float32([0.0]), np.float32([-0.0])).element == (0,)
        assert compare_arrays(np.array([b"a"], object), np.array([b"a"], object)) is None

    def test_first_of_several(self):
        first, second = np.zeros([2, 3]), np.zeros([2, 3])
        second[0, 2], second[1, 0] = 1, -4
        difference = compare_arrays(first, second)
        assert (difference.element, difference.values, difference.count) == ((0, 2), ("0.0", "1.0"), 2)
        assert difference.largest == 4

    def test_scalars_and_other_kinds(self):
        assert compare_arrays(np.int64(3), np.int64(3)) is None
        assert compare_arrays(np.int64(3), np.int64(4)).element == ()
        assert compare_arrays(True, False).largest is None
        assert compare_arrays(np.array([b"a", b"b"], object), np.array([b"a", b"c"], object)).element == (1,)
        assert compare_arrays(np.zeros([0, 3]), np.zeros([0, 3])) is None
        assert compare_arrays(np.int32([1]), np.int64([1])).values == ("int32 [1]", "int64 [1]")

    def test_tolerance_is_for_floats_alone(self):
        assert compare_arrays(np.float32([1.0]), np.float32([1.01]), 0.1) is None
        assert compare_arrays(np.int32([100]), np.int32([101]), 0.1) is not None
        assert compare_arrays(np.float64([np.inf]), np.float64([-np.inf]), 0.1).largest is None
        assert compare_arrays(np.float64([np.nan]), np.float64([1.0]), 0.1) is not None

    def test_bfloat16(self):
        kind = tf.bfloat16.as_numpy_dtype
        first, second = np.array([1, 2], kind), np.array([1, 2.5], kind)
        assert compare_arrays(first, first) is None
        assert compare_arrays(first, second).element == (1,)
        assert compare_arrays(first, second).largest == 0.5
        assert compare_arrays(first, second, 0.5) is None
