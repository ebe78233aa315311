"""Applies edits to a live `tf.Graph`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from mx_rec import tf_compat
from mx_rec.constants.constants import ATTR_COLLECTIONS
from mx_rec.errors import GraphRewriteError
from mx_rec.graph.edits import EditSet, ReplaceNode
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.verify import verify_delta
from mx_rec.graph.view import GraphView


def apply_live(graph: tf.Graph, edits: EditSet) -> None:
    """Apply edits to a graph, all of them or none.

    New nodes and functions are imported, inputs redirected, attributes set, and tensors added to the
    collections that `_mx_rec_collections` names (an op without outputs is added itself). Removals are ignored,
    since TensorFlow cannot remove a node: what was to go is edited like the rest and nothing reads it. A
    session that has run the graph before goes on running it as it was.

    Raises:
        GraphRewriteError: an edit does not fit the graph, or the result would be broken. No existing node is
            changed then; after a failure halfway, new nodes that nothing reads may be left.
    """
    if graph.finalized:
        raise GraphRewriteError("the graph is finalized; rewrite it before a session or hook finalizes it")
    before = GraphView(graph.as_graph_def())
    replaced = next((edit.node.name for edit in edits if isinstance(edit, ReplaceNode)), None)
    if replaced is not None:
        raise GraphRewriteError(f"node {replaced!r} is to be replaced, which TensorFlow cannot do in a live graph")
    after = before.edited(edits.without_removals())
    verify_delta(after)
    _try_import(graph, before, after)
    undo: list[Callable[[], None]] = []
    try:
        _import(graph, after)
        _change(graph, before, after, undo)
    except Exception as error:  # whatever TensorFlow raises, the graph must be as it was
        for step in reversed(undo):
            step()
        raise GraphRewriteError(f"the rewrite was taken back: {type(error).__name__}: {error}") from error
    _fill_collections(graph, after)


def _new_graph_def(after: GraphView) -> Any:
    """New nodes and functions as a GraphDef of its own, without control inputs from elsewhere.

    The importer maps the tensors they read from elsewhere; it cannot map control inputs.
    """
    new = set(after.delta.added)
    graph_def = graph_pb2.GraphDef()
    graph_def.versions.CopyFrom(after.versions)
    graph_def.library.function.extend([after.function(name) for name in after.delta.functions])
    for name in after.delta.added:
        node = after.node(name)
        target = graph_def.node.add()
        target.CopyFrom(node.proto)
        node.write(target)
        kept = [text for text in target.input if text[:1] != "^" or text[1:] in new]
        del target.input[:]
        target.input.extend(kept)
    return graph_def


def _outer_inputs(after: GraphView) -> list[TensorRef]:
    """The tensors that new nodes take from nodes that were there before."""
    new = set(after.delta.added)
    nodes = (after.node(name) for name in after.delta.added)
    return list(dict.fromkeys(ref for node in nodes for ref in node.inputs if ref.node not in new))


def _try_import(graph: tf.Graph, before: GraphView, after: GraphView) -> None:
    """Import the new nodes into a graph that is thrown away, so that TensorFlow's own checks speak first."""
    graph_def = _new_graph_def(after)
    present = {function.signature.name for function in graph_def.library.function}
    graph_def.library.function.extend([f for f in before.functions if f.signature.name not in present])
    try:
        with tf.Graph().as_default():
            input_map = {str(ref): _stand_in(graph.get_tensor_by_name(str(ref))) for ref in _outer_inputs(after)}
            tf.import_graph_def(graph_def, input_map=input_map, name="new")
    except Exception as error:  # import raises several types; each means that the nodes are not acceptable
        raise GraphRewriteError(f"TensorFlow does not accept the new nodes: {error}") from error


def _stand_in(tensor: tf.Tensor) -> tf.Tensor:
    """In the default graph, of the same dtype and static shape."""
    return tf.compat.v1.placeholder(tensor.dtype.base_dtype, tensor.shape)


def _import(graph: tf.Graph, after: GraphView) -> None:
    input_map = {str(ref): graph.get_tensor_by_name(str(ref)) for ref in _outer_inputs(after)}
    with graph.as_default(), graph.control_dependencies(None), graph.device(None):
        tf.import_graph_def(_new_graph_def(after), input_map=input_map, name="")
    new = set(after.delta.added)
    for name in after.delta.added:
        controls = after.node(name).controls
        if not new.issuperset(controls):
            operations = [graph.get_operation_by_name(control) for control in controls]
            tf_compat.set_control_inputs(graph.get_operation_by_name(name), operations)


def _change(graph: tf.Graph, before: GraphView, after: GraphView, undo: list[Callable[[], None]]) -> None:
    """Bring the nodes that were there before to what `after` says; `undo` takes each step back."""
    for name in after.delta.changed:
        old, new = before.node(name), after.node(name)
        op = graph.get_operation_by_name(name)
        _change_inputs(graph, op, old, new, undo)
        _change_controls(graph, op, old, new, undo)
        _change_attrs(op, old, new, undo)


def _change_inputs(graph: tf.Graph, op: tf.Operation, old: Node, new: Node, undo: list[Callable[[], None]]) -> None:
    for index, (was, now) in enumerate(zip(old.inputs, new.inputs)):
        if was == now:
            continue
        former = op.inputs[index]
        undo.append(lambda index=index, former=former: tf_compat.update_input(op, index, former))  # type: ignore[misc]
        tf_compat.update_input(op, index, graph.get_tensor_by_name(str(now)))
        if op.inputs[index].name != str(now):
            raise GraphRewriteError(f"node {op.name!r}: TensorFlow did not take {now} as input {index}")


def _change_controls(graph: tf.Graph, op: tf.Operation, old: Node, new: Node, undo: list[Callable[[], None]]) -> None:
    if set(old.controls) == set(new.controls):
        return
    former = list(op.control_inputs)
    undo.append(lambda: tf_compat.set_control_inputs(op, former))
    tf_compat.set_control_inputs(op, [graph.get_operation_by_name(name) for name in new.controls])


def _change_attrs(op: tf.Operation, old: Node, new: Node, undo: list[Callable[[], None]]) -> None:
    for name, value in new.edited_attrs.items():
        former = old.attr(name)
        undo.append(lambda name=name, former=former: _put_attr(op, name, former))  # type: ignore[misc]
        _put_attr(op, name, value)


def _put_attr(op: tf.Operation, name: str, value: Any | None) -> None:
    if value is None:
        tf_compat.clear_attr(op, name)
    else:
        tf_compat.set_attr(op, name, value)


def _fill_collections(graph: tf.Graph, after: GraphView) -> None:
    for name in (*after.delta.added, *after.delta.changed):
        collections = after.node(name).strings_attr(ATTR_COLLECTIONS)
        if not collections:
            continue
        op = graph.get_operation_by_name(name)
        _add_to_collections(graph, collections, op.outputs[0] if op.outputs else op)


def _add_to_collections(graph: tf.Graph, collections: Iterable[str], member: Any) -> None:
    for collection in collections:
        if all(present is not member for present in graph.get_collection_ref(collection)):
            graph.add_to_collection(collection, member)
