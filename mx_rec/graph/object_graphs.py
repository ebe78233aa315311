"""The object graph of a checkpoint of TensorFlow 2: which tensor belongs to which object."""

from __future__ import annotations

from collections.abc import Collection

from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import trackable_object_graph_pb2

OBJECT_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"  # the name of the tensor that holds it


def without_tensors(data: bytes, names: Collection[str]) -> bytes:
    """An object graph that says of no object that its value is in one of these tensors; what is none stays as it is."""
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    try:
        graph.ParseFromString(data)
    except DecodeError:
        return data
    gone = frozenset(names)
    for node in graph.nodes:
        left = [attribute for attribute in node.attributes if attribute.checkpoint_key not in gone]
        if len(left) < len(node.attributes):
            del node.attributes[:]
            node.attributes.extend(left)
    result: bytes = graph.SerializeToString(deterministic=True)
    return result
