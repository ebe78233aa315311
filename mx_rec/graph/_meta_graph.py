"""What a MetaGraphDef holds beside its graph: references into it, collections, the list of ops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf import wrappers_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from tensorflow.core.framework import op_def_pb2, variable_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from mx_rec.constants.constants import ATTR_COLLECTIONS
from mx_rec.errors import GraphFileError
from mx_rec.graph import marks
from mx_rec.graph._messages import copy_others
from mx_rec.graph.op_signatures import OP_TABLE
from mx_rec.saved_parts import SAVEABLE_OBJECTS, SavedParts, element_text, parts_text, saved_member
from mx_rec.tf_compat import collection_proto_type, registered_op_def

_INIT_SIGNATURE = "__saved_model_init_op"
_MAIN_OP = "saved_model_main_op"


def referenced_nodes(
    meta_graph: meta_graph_pb2.MetaGraphDef, *, variables: bool = True, objects: bool = True
) -> dict[str, str]:
    """Nodes that the MetaGraphDef names outside its graph, each with the place that names it.

    Args:
        meta_graph: the file.
        variables: whether the collections of variables count, which follow the graph.
        objects: whether the object graph counts, which goes when a variable becomes a table.
    """
    names = {node.name for node in meta_graph.graph_def.node}
    found: dict[str, str] = {}
    for place, text in _texts(meta_graph, variables, objects):
        name = _node_name(text)
        if name in names:
            found.setdefault(name, place)
    return found


def header_of(
    meta_graph: meta_graph_pb2.MetaGraphDef, nodes: Iterable[Any], functions: Iterable[Any]
) -> meta_graph_pb2.MetaGraphDef:
    """A MetaGraphDef without graph, for a graph of these nodes and functions, which its collections and ops follow."""
    nodes = list(nodes)
    result = meta_graph_pb2.MetaGraphDef()
    copy_others(meta_graph, result, "graph_def")
    _drop_converted_variables(result, nodes)
    _check_references(meta_graph, result, {node.name for node in nodes})
    _fill_collections(result, nodes)
    _let_savers_know(result, nodes)
    _update_op_list(result, nodes, functions)
    return result


def loses_object_graph(nodes: Iterable[Any]) -> bool:
    """Whether an object graph does not fit these nodes any more, since variables that it names are tables."""
    return any(marks.CONVERTED in node.attr for node in nodes)


def collection_entries(nodes: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Collection and member of each membership that the nodes' attribute states, in node order.

    The member is the node's first output, or the operation itself if it has none.
    """
    for node in nodes:
        if ATTR_COLLECTIONS not in node.attr:
            continue
        for entry in node.attr[ATTR_COLLECTIONS].list.s:
            yield entry.decode(), _member(node)


def _member(node: Any) -> str:
    op_def = registered_op_def(node.op)
    has_output = op_def is None or len(op_def.output_arg) > 0
    return f"{node.name}:0" if has_output else node.name


def _check_references(
    meta_graph: meta_graph_pb2.MetaGraphDef, result: meta_graph_pb2.MetaGraphDef, left: set[str]
) -> None:
    """What `meta_graph` names and `result` still names must be left in the graph."""
    before = {node.name for node in meta_graph.graph_def.node}
    for place, text in _texts(result, True, True):
        name = _node_name(text)
        if name in before and name not in left:
            raise GraphFileError(
                f"node '{name}' is gone from the new graph, but {place} of the MetaGraphDef still names it: "
                f"keep that node (--keep {name})"
            )


def _drop_converted_variables(meta_graph: meta_graph_pb2.MetaGraphDef, nodes: Iterable[Any]) -> None:
    """The variables whose place tables have taken leave the collections of variables, and those of their own scopes.

    An object graph goes as a whole: TensorFlow makes the variables that it names before it looks at the graph, and runs
    functions that read them. Without one the SavedModel is loaded as those of TensorFlow 1 are, by its signatures.
    """
    gone = {
        name.decode() for node in nodes if marks.CONVERTED in node.attr for name in node.attr[marks.CONVERTED].list.s
    }
    if not loses_object_graph(nodes):
        return
    _drop_object_graph(meta_graph)
    for key, collection in list(meta_graph.collection_def.items()):
        if collection.WhichOneof("kind") == "node_list":
            members = list(collection.node_list.value)
            left = [text for text in members if not (_is_of_scope(key, text) and _node_name(text) in gone)]
            collection.node_list.value[:] = left
            if members and not left:
                del meta_graph.collection_def[key]
            continue
        if collection.WhichOneof("kind") != "bytes_list" or collection_proto_type(key) is not variable_pb2.VariableDef:
            continue
        variables = list(collection.bytes_list.value)
        kept = [data for data in variables if _variable_node(data) not in gone]
        if kept:
            collection.bytes_list.value[:] = kept
        elif variables:
            del meta_graph.collection_def[key]


def _drop_object_graph(meta_graph: meta_graph_pb2.MetaGraphDef) -> None:
    """Without an object graph, what initializes is in the collection alone, as TensorFlow 1 has it.

    TensorFlow 2 writes it as a signature too, and when it loads that of a graph without objects, it has no files of
    assets to feed to it.
    """
    if not meta_graph.HasField("object_graph_def"):
        return
    meta_graph.ClearField("object_graph_def")
    if _INIT_SIGNATURE not in meta_graph.signature_def:
        return
    if _MAIN_OP not in meta_graph.collection_def:
        info = meta_graph.signature_def[_INIT_SIGNATURE].outputs[_INIT_SIGNATURE]
        meta_graph.collection_def[_MAIN_OP].node_list.value.append(info.name)
    del meta_graph.signature_def[_INIT_SIGNATURE]


def _variable_node(data: bytes) -> str:
    variable: Any = variable_pb2.VariableDef()
    try:
        variable.ParseFromString(data)
    except DecodeError:
        return ""
    return _node_name(variable.variable_name)


def _fill_collections(meta_graph: meta_graph_pb2.MetaGraphDef, nodes: Iterable[Any]) -> None:
    present: dict[str, set[str]] = {}
    for collection, member in collection_entries(nodes):
        members = meta_graph.collection_def[collection]
        if members.WhichOneof("kind") not in (None, "node_list"):
            raise GraphFileError(
                f"collection '{collection}' is a {members.WhichOneof('kind')} in this MetaGraphDef, "
                f"expected a node_list, so '{member}' cannot be added to it"
            )
        known = present.setdefault(collection, set(members.node_list.value))
        if member not in known:
            known.add(member)
            members.node_list.value.append(member)


def _let_savers_know(meta_graph: meta_graph_pb2.MetaGraphDef, nodes: Iterable[Any]) -> None:
    """Puts converted tables where a Saver looks that is made after `import_meta_graph`."""
    handles = {f"{node.name}:0": node for node in nodes if node.op == OP_TABLE and marks.CONVERTED in node.attr}
    if not handles:
        return
    collection = meta_graph.collection_def[SAVEABLE_OBJECTS]
    members = [element_text(name) for name in collection.node_list.value]
    members += [_member_text(data) for data in collection.bytes_list.value]
    tables = [member for member in map(_saved_member, members) if isinstance(member, SavedParts)]
    known = {parts.handle for parts in tables}
    number = 1 + max((parts.file_number for parts in tables), default=-1)
    for handle, node in handles.items():
        if handle not in known:
            members.append(parts_text(SavedParts(node.attr["table_name"].s.decode(), "int64", number, handle)))
            number += 1
    collection.bytes_list.value[:] = [wrappers_pb2.StringValue(value=text).SerializeToString() for text in members]


def _member_text(data: bytes) -> str:
    try:
        return str(wrappers_pb2.StringValue.FromString(data).value)
    except DecodeError as error:
        raise _not_ours(data) from error


def _saved_member(text: str) -> SavedParts | str:
    try:
        return saved_member(text)
    except (ValueError, TypeError, KeyError) as error:
        raise _not_ours(text) from error


def _not_ours(member: bytes | str) -> GraphFileError:
    return GraphFileError(
        f"collection '{SAVEABLE_OBJECTS}' of this MetaGraphDef holds {member[:80]!r}, which another library has "
        "written, so tables cannot be added to it"
    )


def _update_op_list(meta_graph: meta_graph_pb2.MetaGraphDef, nodes: Iterable[Any], functions: Iterable[Any]) -> None:
    """Ops that are used: as the file described them, new ones as this TensorFlow does."""
    op_list = meta_graph.meta_info_def.stripped_op_list
    if not op_list.op:
        return
    known = {op.name: op for op in op_list.op}
    described = (known.get(name) or _described(name) for name in sorted(_used_ops(nodes, functions)))
    updated = op_def_pb2.OpList(op=[op for op in described if op is not None])
    op_list.CopyFrom(updated)


def _used_ops(nodes: Iterable[Any], functions: Iterable[Any]) -> set[str]:
    used = {node.op for node in nodes}
    for function in functions:
        used.update(node.op for node in function.node_def)
    return used - {function.signature.name for function in functions}


def _described(name: str) -> op_def_pb2.OpDef | None:
    registered = registered_op_def(name)
    if registered is None:
        return None
    op_def = op_def_pb2.OpDef()
    op_def.CopyFrom(registered)
    for message in (op_def, *op_def.input_arg, *op_def.output_arg, *op_def.attr):
        message.ClearField("description")
    op_def.ClearField("summary")
    return op_def


def _texts(meta_graph: meta_graph_pb2.MetaGraphDef, variables: bool, objects: bool) -> Iterator[tuple[str, str]]:
    """Every string that may name a node, with the place that holds it."""
    for text in _strings(meta_graph.saver_def):
        yield "saver_def", text
    for key, signature in meta_graph.signature_def.items():
        for text in _strings(signature):
            yield f"signature_def '{key}'", text
    for asset in meta_graph.asset_file_def:
        yield f"asset '{asset.filename}'", asset.tensor_info.name
    if objects and meta_graph.HasField(
        "object_graph_def"
    ):  # of a SavedModel of TensorFlow 2: constants, captures, variables
        for text in _strings(meta_graph.object_graph_def):
            yield "object graph", text
    for key, collection in meta_graph.collection_def.items():
        if not variables and collection_proto_type(key) is variable_pb2.VariableDef:
            continue
        place = f"collection '{key}'"
        for text in _collection_texts(key, collection):
            if variables or not _is_of_scope(key, text):
                yield place, text


def _is_of_scope(key: str, member: str) -> bool:
    """Whether a collection is named after a scope of its member, as that of a shared embedding column is."""
    return key in _node_name(member).split("/")[:-1]


def _collection_texts(key: str, collection: Any) -> Iterable[str]:
    kind = collection.WhichOneof("kind")
    if kind == "node_list":
        return collection.node_list.value
    message_type = collection_proto_type(key)
    if kind != "bytes_list" or message_type is None:
        return ()
    return [text for data in collection.bytes_list.value for text in _message_strings(message_type, data)]


def _message_strings(message_type: Any, data: bytes) -> list[str]:
    message = message_type()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return []  # Another program's collection under a name that TensorFlow uses.
    return list(_strings(message))


def _strings(message: Any) -> Iterator[str]:
    for field, value in message.ListFields():
        if field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE):
            continue
        for item in _field_values(value):
            if isinstance(item, str):
                yield item
            else:
                yield from _strings(item)


def _field_values(value: Any) -> Iterable[Any]:
    if isinstance(value, str) or hasattr(value, "ListFields"):
        return (value,)
    return list(value.values()) if hasattr(value, "values") else value


def _node_name(text: str) -> str:
    return text.lstrip("^").partition(":")[0]
