"""Rewriting a synthetic graph, beside what TensorFlow's own tools take on the same graph.

A graph `plain:L` has L lookups of plain TensorFlow (`tf.gather` or `tf.nn.embedding_lookup` on a variable of its
own), each with a dense layer behind it: the passes search it and find nothing to move. 5,700 lookups are 100,000
nodes.

A graph `moved:L/N` has L lookups of mx_rec tables: each feature slices its ids from the batch, hashes them and looks
up a table; a tower sums them up, and the loss is differentiated by every N-th local embedding. All lookups are
moved, fused and their dead nodes pruned. About 100,000 nodes are 2,600 lookups that are all trained, or 5,700 of
which one in thirty is.

    bench_rewrite.py [--graphs plain:570,plain:5700,moved:260/1,moved:2600/1,moved:560/30,moved:5700/30] [--peers]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import networkx
import numpy as np
import tensorflow as tf
from harness import environment, interleave
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.grappler import tf_optimizer

from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.optimizers import gradient_descent_by_addr
from mx_rec.passes import PassManager, default_pipeline
from mx_rec.util.initialize import init, terminate_config_initializer

tf1 = tf.compat.v1
tf1.disable_eager_execution()
LOOKUPS_PER_TABLE = 10
GRAPHS = "plain:570,plain:5700,moved:260/1,moved:2600/1,moved:560/30,moved:5700/30"


def build_plain(lookups: int) -> tuple[tf.Graph, list[str]]:
    """The graph and the names of its targets."""
    graph = tf.Graph()
    with graph.as_default():
        outputs = []
        for f in range(lookups):
            with tf1.name_scope(f"feature{f}"):
                ids = tf1.placeholder(tf.int64, [None], "ids")
                zeros = tf1.zeros_initializer()
                table = tf1.get_variable(f"table{f}", [10, 8], use_resource=True, initializer=zeros)
                weights = tf1.get_variable(f"weights{f}", [8, 4], use_resource=True, initializer=zeros)
                rows = tf.gather(table, ids) if f % 2 else tf.nn.embedding_lookup(table, ids)
                outputs.append(tf.nn.relu(tf.nn.bias_add(tf.matmul(rows, weights), np.zeros(4, np.float32))))
        towers = [tf.reduce_sum(tf.concat(outputs[k : k + 50], 1), 1) for k in range(0, lookups, 50)]
        output = tf.add_n(towers, name="output")
    return graph, [output.op.name]


def build_moved(lookups: int, trained_every: int) -> tuple[tf.Graph, list[str]]:
    """The graph and the names of its targets: the training operation and the iterator's initializer."""
    terminate_config_initializer()
    init(use_dynamic_expansion=True)
    graph = tf.Graph()
    with graph.as_default():
        data = tf.data.Dataset.from_tensors({"ids": np.zeros([16, lookups], np.int64), "y": np.zeros([16], np.float32)})
        iterator = tf1.data.make_initializable_iterator(data)
        batch = iterator.get_next()
        zeros = tf1.zeros_initializer()
        tables = [create_table(tf.int64, 8, f"table{t}", zeros) for t in range(-(-lookups // LOOKUPS_PER_TABLE))]
        outputs = []
        for f in range(lookups):
            key = tf.bitwise.bitwise_xor(batch["ids"][:, f], f)
            is_grad = f % trained_every == 0
            rows = sparse_lookup(tables[f // LOOKUPS_PER_TABLE], key, name=f"feature{f}", is_grad=is_grad)
            outputs.append(tf.reduce_sum(rows, 1))
        towers = [tf.add_n(outputs[k : k + 50]) for k in range(0, lookups, 50)]
        loss = tf.reduce_mean(tf.square(tf.add_n(towers) - batch["y"]))
        gradients = tf.gradients(loss, tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB))
        addresses = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
        optimizer = gradient_descent_by_addr.create_hash_optimizer_by_addr(0.1)
        step = optimizer.apply_gradients(list(zip(gradients, addresses)), name="train")
    return graph, [step.name, iterator.initializer.name]


def grappler_pruning(graph_def: tf1.GraphDef, targets: list[str]) -> Callable[[], object]:
    config = config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    options.min_graph_nodes = -1
    options.optimizers[:] = ["pruning"]
    options.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.ONE
    # By hand: export_meta_graph takes time that grows with the square of the number of variables.
    meta = tf1.MetaGraphDef(graph_def=graph_def)
    meta.collection_def["train_op"].node_list.value.extend(targets)
    return lambda: tf_optimizer.OptimizeGraph(config, meta, verbose=False)


def to_networkx(graph_def: tf1.GraphDef) -> networkx.DiGraph:
    digraph = networkx.DiGraph()
    for node in graph_def.node:
        digraph.add_node(node.name)
        for name in node.input:
            digraph.add_edge(name.lstrip("^").split(":")[0], node.name)
    return digraph


def import_new(graph_def: tf1.GraphDef) -> None:
    with tf.Graph().as_default():
        tf.import_graph_def(graph_def, name="")


def measure(which: str, with_peers: bool, repeats: int) -> None:
    """Prints a row of the table for each thing timed, as soon as it is."""
    kind, _, size = which.partition(":")
    if kind == "plain":
        graph, targets = build_plain(int(size))
    else:
        lookups, trained_every = map(int, size.split("/"))
        graph, targets = build_moved(lookups, trained_every)
    graph_def = graph.as_graph_def()
    nodes = len(graph_def.node)
    raw = graph_def.SerializeToString()
    manager = PassManager(default_pipeline())
    result = manager.run(graph_def)
    assert result.modified == (kind == "moved")
    assert not any(report.refusals for report in result.reports)

    candidates = {
        "mx_rec, whole pipeline": lambda: manager.run(graph_def).graph_def,
        "parse and serialize": lambda: tf1.GraphDef.FromString(raw).SerializeToString(),
        "networkx DiGraph": lambda: to_networkx(graph_def),
    }
    if with_peers:
        candidates["Grappler, pruning alone"] = grappler_pruning(graph_def, targets)
        candidates["extract_sub_graph"] = lambda: tf1.graph_util.extract_sub_graph(graph_def, targets)
    # In turn, so that what else the machine does hits all alike.
    times = interleave({name: lambda i, run=run: run() for name, run in candidates.items()}, repeats, 1, warmup=0)
    if with_peers:
        times["import_graph_def"] = interleave({"import": lambda i: import_new(graph_def)}, 1, 1, warmup=0)["import"]
    for what, values in times.items():
        seconds = float(np.median(values))
        print(f"| {which} | {nodes:,} | {what} | {seconds:.2f} | {seconds / nodes * 1e6:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", default=GRAPHS)
    parser.add_argument("--peers", action="store_true", help="also TensorFlow's own tools (slow)")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    print(environment() + "\n")
    print("| graph | nodes | what | s | us/node |\n|---|---|---|---|---|")
    for graph in args.graphs.split(","):
        measure(graph, args.peers, args.repeats)


if __name__ == "__main__":
    main()
