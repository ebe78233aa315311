"""The sound graphs that the fuzzing begins with, each made in this process or read from a file."""

from __future__ import annotations

import functools
import gzip
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "passes"))

from golden_cases import CASES

from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.optimizers import lazy_adam_by_addr
from mx_rec.passes import PassManager, default_pipeline
from mx_rec.util.initialize import init, terminate_config_initializer

tf1 = tf.compat.v1


@functools.cache
def seed_graphs() -> dict[str, Any]:
    """GraphDefs by name: inputs of the goldens, a training script, what the rewrite makes of them, and real files.

    `MX_REC_FUZZ_GRAPHS` names a folder of further `.pb` files.
    """
    graphs = {f"golden/{case.step.name}/{case.name}": case.build() for case in CASES}
    graphs.update({f"golden/{case.step.name}/{case.name}/input": case.input() for case in CASES if case.before})
    graphs["training"] = training_graph()
    rewritten = {
        f"rewritten/{name}": PassManager(default_pipeline()).run(graphs[name]).graph_def
        for name in ("training", "golden/hoist_lookups/pooled", "golden/hoist_lookups/train_and_eval")
    }
    graphs.update(rewritten)
    for path in sorted((TESTS / "graph" / "samples").glob("*.pb.gz")):
        graphs[f"sample/{path.name}"] = graph_pb2.GraphDef.FromString(gzip.decompress(path.read_bytes()))
    more = os.environ.get("MX_REC_FUZZ_GRAPHS")
    for path in sorted(Path(more).glob("*.pb")) if more else ():
        graphs[f"file/{path.name}"] = graph_pb2.GraphDef.FromString(path.read_bytes())
    return graphs


def training_graph() -> Any:
    """A training script: vocabulary, mapped dataset, a conditional, pooled and evaluation lookups, LazyAdam."""
    terminate_config_initializer()
    init(use_dynamic_expansion=True)
    with tf.Graph().as_default() as graph:
        words = tf.lookup.StaticVocabularyTable(
            tf.lookup.KeyValueTensorInitializer(["a", "b", "c"], np.arange(3, dtype=np.int64)), 2
        )
        data = tf.data.Dataset.from_tensor_slices(
            {"user": np.arange(8), "word": np.array(["a", "b", "c", "d"] * 2), "y": np.zeros(8, np.float32)}
        )
        data = data.map(
            lambda row: {**row, "user": tf.cond(row["user"] > 3, lambda: row["user"], lambda: 1 + row["user"])}
        )
        data = data.batch(4, drop_remainder=True).prefetch(1)
        iterator = tf1.data.make_initializable_iterator(data)
        batch = iterator.get_next()
        zeros = tf1.zeros_initializer()
        tables = [create_table(tf.int64, 4, name, zeros) for name in ("user", "word", "pair")]
        word_ids = words.lookup(batch["word"])
        with tf.device("/cpu:0"):
            user = sparse_lookup(tables[0], batch["user"], name="user")
        word = sparse_lookup(tables[1], word_ids, name="word")
        pair = sparse_lookup(tables[2], tf.stack([word_ids, batch["user"]], 1), name="pair")
        seen = sparse_lookup(tables[0], batch["user"] % 5, name="seen", is_train=False)
        also = sparse_lookup(tables[0], batch["user"] % 3, name="also", is_train=False)
        weights = tf1.get_variable("weights", [4, 1], use_resource=True)
        with graph.colocate_with(weights.op):
            logits = tf.matmul(user + word + tf.reduce_sum(pair, 1), weights)
        loss = tf.reduce_mean(tf.square(tf.reshape(logits, [-1]) - batch["y"]), name="loss")
        tf.add_n([seen, also], name="evaluation")
        gradients = tf.gradients(loss, tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB))
        addresses = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
        optimizer = lazy_adam_by_addr.create_hash_optimizer_by_address(0.1)
        with tf.control_dependencies([loss]):
            optimizer.apply_gradients(list(zip(gradients, addresses)), name="train")
        graph_def = graph.as_graph_def()
    terminate_config_initializer()
    return graph_def
