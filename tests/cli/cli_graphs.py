"""Graphs with lookups, made without the op library."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, types_pb2

tf1 = tf.compat.v1


def base_graph() -> tf.Graph:
    """A training graph whose lookups are still missing."""
    with tf.Graph().as_default() as graph:
        dataset = tf.data.Dataset.range(64).batch(8, drop_remainder=True)
        batch = tf1.data.make_initializable_iterator(dataset).get_next()
        tf.math.floormod(batch, 10, name="movie_ids")
        tf.random.uniform([8], maxval=10, dtype=tf.int64, name="random_ids")
        weights = tf1.get_variable("weights", [10, 2], use_resource=True)
        tf.nn.embedding_lookup(weights, batch, name="plain_lookup")
    return graph


def add_lookup(graph_def: graph_pb2.GraphDef, table: str, ids: str, *, is_train: bool = True) -> None:
    """Adds the nodes that `sparse_lookup` makes."""
    names = {node.name for node in graph_def.node}
    scope = f"mx_rec/{table}/lookup_{'train' if is_train else 'eval'}"
    if f"mx_rec/{table}/handle" not in names:
        handle = graph_def.node.add(name=f"mx_rec/{table}/handle", op="MxRecTable")
        handle.attr["table_name"].s = table.encode()
        handle.attr["dim"].i = 4
        handle.attr["initializer"].s = b"constant"
        handle.attr["shared_name"].s = table.encode()
    hints = graph_def.node.add(name=f"{scope}/no_hints", op="Const")
    hints.attr["dtype"].type = types_pb2.DT_INT64
    hints.attr["value"].tensor.CopyFrom(tf.make_tensor_proto([], tf.int64))
    entrance = graph_def.node.add(name=f"{scope}/ids", op="Identity", input=[ids])
    entrance.attr["T"].type = types_pb2.DT_INT64
    unique = graph_def.node.add(name=f"{scope}/unique", op="MxRecUnique", input=[entrance.name])
    unique.attr["Tids"].type = types_pb2.DT_INT64
    find = graph_def.node.add(name=f"{scope}/addresses", op="MxRecFindOrInsert" if is_train else "MxRecFind")
    find.input.extend([f"mx_rec/{table}/handle", unique.name, hints.name])
    if is_train:
        find.input.append(f"{unique.name}:2")
    default_row = graph_def.node.add(name=f"{scope}/default_row", op="Const")
    default_row.attr["dtype"].type = types_pb2.DT_FLOAT
    default_row.attr["value"].tensor.CopyFrom(tf.make_tensor_proto([], tf.float32))
    gather = graph_def.node.add(name=f"{scope}/local_emb", op="MxRecGatherByAddress")
    gather.input.extend([f"mx_rec/{table}/handle", find.name, default_row.name])
    gather.attr["dim"].i = 4
    axis = graph_def.node.add(name=f"{scope}/axis", op="Const")
    axis.attr["dtype"].type = types_pb2.DT_INT32
    axis.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0, tf.int32))
    restore = graph_def.node.add(name=f"{scope}/embeddings", op="GatherV2")
    restore.input.extend([gather.name, f"{unique.name}:1", axis.name])
    restore.attr["Tparams"].type = types_pb2.DT_FLOAT
    restore.attr["Tindices"].type = types_pb2.DT_INT32
    restore.attr["Taxis"].type = types_pb2.DT_INT32
