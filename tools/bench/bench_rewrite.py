"""Rewriting a synthetic training graph, beside what TensorFlow's own tools take on the same graph.

Each feature slices its ids from the batch, hashes them and looks up a table; a tower sums them up, and the
loss is differentiated by all local embeddings, or by every n-th. About 100,000 nodes are 2,600 lookups that are
all trained, or 5,700 of which one in thirty is.

    bench_rewrite.py [--graphs 260/1,820/1,2600/1,560/30,1770/30,5700/30] [--peers]
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


def build(lookups: int, trained_every: int) -> tuple[tf.Graph, str, str]:
    """The graph, the name of its training operation and of its initializer."""
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
    return graph, step.name, iterator.initializer.name


def grappler_pruning(graph: tf.Graph, fetch: str) -> Callable[[], object]:
    config = config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    options.min_graph_nodes = -1
    options.optimizers[:] = ["pruning"]
    options.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.ONE
    meta = tf1.train.export_meta_graph(graph=graph, clear_extraneous_savers=True)
    meta.collection_def.clear()
    meta.collection_def["train_op"].node_list.value.append(fetch)
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


def measure(lookups: int, trained_every: int, with_peers: bool, repeats: int) -> None:
    """Prints a row of the table for each thing timed, as soon as it is."""
    graph, step, initializer = build(lookups, trained_every)
    graph_def = graph.as_graph_def()
    nodes = len(graph_def.node)
    raw = graph_def.SerializeToString()
    manager = PassManager(default_pipeline())
    result = manager.run(graph_def)
    assert result.modified
    assert not any(report.refusals for report in result.reports)

    candidates = {
        "mx_rec, whole pipeline": lambda: manager.run(graph_def),
        "parse and serialize": lambda: tf1.GraphDef.FromString(raw).SerializeToString(),
        "networkx DiGraph": lambda: to_networkx(graph_def),
    }
    if with_peers:
        candidates["Grappler, pruning alone"] = grappler_pruning(graph, step)
        candidates["extract_sub_graph"] = lambda: tf1.graph_util.extract_sub_graph(graph_def, [step, initializer])
    # In turn, so that what else the machine does hits all alike.
    times = interleave({name: lambda i, run=run: run() for name, run in candidates.items()}, repeats, 1, warmup=0)
    if with_peers:
        times["import_graph_def"] = interleave({"import": lambda i: import_new(graph_def)}, 1, 1, warmup=0)["import"]
    for what, values in times.items():
        seconds = float(np.median(values))
        print(f"| {lookups:,} | {nodes:,} | {what} | {seconds:.2f} | {seconds / nodes * 1e6:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", default="260/1,820/1,2600/1,560/30,1770/30,5700/30", help="lookups/trained every")
    parser.add_argument("--peers", action="store_true", help="also TensorFlow's own tools (slow)")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    print(environment() + "\n")
    print("| lookups | nodes | what | s | us/node |\n|---|---|---|---|---|")
    for graph in args.graphs.split(","):
        lookups, trained_every = map(int, graph.split("/"))
        measure(lookups, trained_every, args.peers, args.repeats)


if __name__ == "__main__":
    main()
