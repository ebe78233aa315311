"""A script's exported graph, rewritten as a file and loaded again, trains to the same losses."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.graph.files import load_graph
from mx_rec.ops.library import load_library
from mx_rec.optimizers import lazy_adam_by_addr

tf1 = tf.compat.v1
STEPS = 12


def build_script() -> None:
    """A small training script, up to its first session."""
    random = np.random.RandomState(7)
    columns = {"ids": random.randint(0, 50, [96, 3]), "labels": random.rand(96).astype(np.float32)}
    dataset = tf.data.Dataset.from_tensor_slices(columns).batch(8)
    iterator = tf1.data.make_initializable_iterator(dataset)
    batch = iterator.get_next()
    table = create_table(tf.int64, 4, "items", tf1.truncated_normal_initializer(seed=3))
    keys = tf.math.floormod(batch["ids"] * 31 + 7, 23)
    rows = sparse_lookup(table, keys, is_train=True)
    prediction = tf.reduce_sum(rows, axis=[1, 2])
    loss = tf.reduce_mean(tf.square(prediction - batch["labels"]), name="loss")
    embeddings = tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
    addresses = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
    optimizer = lazy_adam_by_addr.create_hash_optimizer_by_address(learning_rate=0.05)
    pairs = list(zip(tf.gradients(loss, embeddings), addresses))
    tf1.add_to_collection("TRAIN", optimizer.apply_gradients(pairs))
    tf1.add_to_collection("START", iterator.initializer)


def build_pooled_script() -> None:
    """The same with sparse and ragged ids, pooled."""
    random = np.random.RandomState(7)
    indices = np.argwhere(random.rand(96, 5) < 0.4)
    sparse = tf.SparseTensor(indices, tf.constant(random.randint(0, 50, len(indices))), [96, 5])
    ragged = tf.RaggedTensor.from_value_rowids(sparse.values * 7, indices[:, 0], nrows=96)
    weights = sparse.with_values(tf.constant(random.rand(len(indices)).astype(np.float32) + 0.5))
    labels = tf.constant(random.rand(96).astype(np.float32))
    dataset = tf.data.Dataset.from_tensor_slices((sparse, weights, ragged, labels)).batch(8)
    iterator = tf1.data.make_initializable_iterator(dataset)
    sparse, weights, ragged, labels = iterator.get_next()
    table = create_table(tf.int64, 4, "items", tf1.truncated_normal_initializer(seed=3))
    rows = sparse_lookup(table, sparse, combiner="mean", weights=weights) + sparse_lookup(table, ragged, combiner="sum")
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(rows, axis=1) - labels), name="loss")
    tf1.add_to_collection("TRAIN", lazy_adam_by_addr.create_hash_optimizer_by_address(0.05).minimize(loss))
    tf1.add_to_collection("START", iterator.initializer)


def losses_of(path) -> np.ndarray:
    """Imports a MetaGraphDef, knowing nothing else of the script, and trains."""
    load_library()
    with tf.Graph().as_default() as graph:
        tf1.train.import_meta_graph(str(path))
        with tf1.Session(graph=graph) as session:
            session.run(tf1.get_collection("START"))
            fetches = ["loss:0", tf1.get_collection("TRAIN")]
            return np.array([session.run(fetches)[0] for _ in range(STEPS)])


@pytest.mark.parametrize("name", ["train.meta", "train.metatxt"])
@pytest.mark.parametrize("options", [(), ("--prefetch", 5, "--parallel-calls", 2)], ids=["plain", "ahead"])
def test_rewritten_file_trains_to_the_same_losses(mxrec, recgraph, tmp_path, name, options):
    build_script()
    source, out = tmp_path / name, tmp_path / f"rewritten.{name}"
    tf1.train.export_meta_graph(str(source), graph=mxrec, as_text=name.endswith("txt"))
    ended = recgraph("rewrite", source, out, *options)
    assert (ended.code, ended.err) == (0, "")
    before, after = losses_of(source), losses_of(out)
    assert before[0] > before[-1] > 0
    np.testing.assert_array_equal(before, after)


def test_pooled_lookups_are_rewritten_without_the_library(mxrec, tmp_path):
    build_pooled_script()
    source, out = tmp_path / "train.meta", tmp_path / "rewritten.meta"
    tf1.train.export_meta_graph(str(source), graph=mxrec)
    environment = {**os.environ, "MX_REC_LIBRARY": str(tmp_path / "nothing.so")}
    for arguments in (["rewrite", source, out, "--strict"], ["inspect", out]):
        command = [sys.executable, "-m", "mx_rec.cli", *map(str, arguments)]
        # Elsewhere than in the repository, whose mx_rec has no passes.
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
    before, after = losses_of(source), losses_of(out)
    assert before[0] > before[-1] > 0
    np.testing.assert_array_equal(before, after)
    nodes = {node.name: node.op for node in load_graph(out).graph_def.node}
    assert "MxRecUnique" not in nodes.values()
    assert list(nodes.values()).count("MxRecPool") == 2


def test_collections_of_the_script_stay_as_they_are(mxrec, recgraph, tmp_path):
    build_script()
    source, out = tmp_path / "train.meta", tmp_path / "out.meta"
    tf1.train.export_meta_graph(str(source), graph=mxrec)
    assert recgraph("rewrite", source, out).code == 0
    with tf.Graph().as_default():
        tf1.train.import_meta_graph(str(out))
        for collection in (ASCEND_SPARSE_LOOKUP_LOCAL_EMB, ASCEND_SPARSE_LOOKUP_ID_OFFSET):
            names = [tensor.name for tensor in tf1.get_collection(collection)]
            assert names == [tensor.name for tensor in mxrec.get_collection(collection)]
