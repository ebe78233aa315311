"""Protobuf messages in parts: what a message holds besides its large fields, and its bytes without a second copy.

TensorFlow of another version may have written fields that this one does not know. They are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, NamedTuple

from google.protobuf.unknown_fields import UnknownFieldSet
from tensorflow.core.framework import attr_value_pb2, graph_pb2, node_def_pb2, tensor_pb2

_VARINT, _FIXED64, _LENGTH, _GROUP, _END_GROUP, _FIXED32 = 0, 1, 2, 3, 4, 5
_LARGE = 1 << 20  # bytes of a constant that are not to be copied on their way to a file

# Field numbers of the messages in question.
_GRAPH_NODE, _GRAPH_LIBRARY = 1, 2
_LIBRARY_FUNCTION = 1
_NODE_ATTR = 5
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_ATTR_TENSOR = 8
_TENSOR_CONTENT = 4


class GraphParts(NamedTuple):
    """A GraphDef in parts, none of which is to be written to.

    Attributes:
        nodes: its nodes.
        functions: the functions of its library.
        rest: a GraphDef of everything else.
    """

    nodes: Sequence[Any]
    functions: Sequence[Any]
    rest: Any

    def message(self) -> Any:
        """A GraphDef with copies of all parts."""
        result = graph_pb2.GraphDef()
        result.CopyFrom(self.rest)
        result.library.function.extend(self.functions)
        result.node.extend(self.nodes)
        return result


def graph_rest(graph_def: Any) -> Any:
    """A GraphDef of everything but nodes and functions."""
    rest = graph_pb2.GraphDef()
    copy_others(graph_def, rest, "node", "library")
    if graph_def.HasField("library"):
        copy_others(graph_def.library, rest.library, "function")
    return rest


def graph_parts(graph_def: Any) -> GraphParts:
    """The parts of a GraphDef; nodes and functions are its own."""
    return GraphParts(graph_def.node, graph_def.library.function, graph_rest(graph_def))


def copy_others(source: Any, target: Any, *left_out: str) -> None:
    """Copies all fields of a message into an empty one of its type, but for those named."""
    for field in source.DESCRIPTOR.fields:  # not ListFields, which would make a copy of what is left out
        if field.name in left_out or (field.has_presence and not source.HasField(field.name)):
            continue
        value = getattr(source, field.name)
        if hasattr(value, "MergeFrom"):
            getattr(target, field.name).MergeFrom(value)
            if field.has_presence:
                getattr(target, field.name).SetInParent()
        else:
            setattr(target, field.name, value)
    unknown = _unknown_bytes(UnknownFieldSet(source))
    if unknown:
        target.MergeFromString(unknown)


def write_field(stream: BinaryIO, number: int, pieces: Iterable[bytes], size: int) -> int:
    """Writes a message, given by its bytes and their number, as a field of another. Returns the bytes written."""
    head = _head(number, size)
    stream.write(head)
    for piece in pieces:
        stream.write(piece)
    return len(head) + size


def write_graph(stream: BinaryIO, parts: GraphParts, sizes: GraphSizes) -> int:
    """Writes a GraphDef, whose parts have these sizes. Returns the bytes written."""
    written = 0
    for node, size in zip(parts.nodes, sizes.nodes):
        written += write_field(stream, _GRAPH_NODE, node_bytes(node), size)
    rest, library = _rest_bytes(parts)
    if parts.functions or library:
        head = _head(_GRAPH_LIBRARY, sizes.library)
        stream.write(head)
        written += len(head) + sizes.library
        for function, size in zip(parts.functions, sizes.functions):
            write_field(stream, _LIBRARY_FUNCTION, [function.SerializeToString(deterministic=True)], size)
        stream.write(library)
    stream.write(rest)
    return written + len(rest)


class GraphSizes(NamedTuple):
    """Sizes in bytes of the parts of a GraphDef, and of all of it."""

    nodes: Sequence[int]
    functions: Sequence[int]
    library: int
    total: int


def graph_sizes(parts: GraphParts) -> GraphSizes:
    """How many bytes the parts of a graph take."""
    nodes = [sum(map(len, node_bytes(node))) for node in parts.nodes]
    functions = [len(function.SerializeToString(deterministic=True)) for function in parts.functions]
    rest, library = _rest_bytes(parts)
    in_library = sum(field_size(_LIBRARY_FUNCTION, size) for size in functions) + len(library)
    total = sum(field_size(_GRAPH_NODE, size) for size in nodes) + len(rest)
    if functions or library:
        total += field_size(_GRAPH_LIBRARY, in_library)
    return GraphSizes(nodes, functions, in_library, total)


def field_size(number: int, size: int) -> int:
    """Bytes that a message of `size` bytes takes as a field."""
    return len(_head(number, size)) + size


def node_bytes(node: Any) -> list[bytes]:
    """The serialized node in pieces. The content of a large constant is one of them, and copied but once."""
    content = large_content(node)
    if content is None:
        return [node.SerializeToString(deterministic=True)]
    value = node.attr["value"]
    tensor = tensor_pb2.TensorProto()
    copy_others(value.tensor, tensor, "tensor_content")
    outer = attr_value_pb2.AttrValue()
    copy_others(value, outer, "tensor")
    rest = node_def_pb2.NodeDef()
    copy_others(node, rest, "attr")
    for name, other in node.attr.items():
        if name != "value":
            rest.attr[name].CopyFrom(other)
    size = len(content)
    before: list[bytes] = []  # from the inside out
    for number, ahead in (
        (_TENSOR_CONTENT, tensor.SerializeToString(deterministic=True)),
        (_ATTR_TENSOR, outer.SerializeToString(deterministic=True)),
        (_ENTRY_VALUE, _head(_ENTRY_KEY, len(b"value")) + b"value"),
        (_NODE_ATTR, rest.SerializeToString(deterministic=True)),
    ):
        head = ahead + _head(number, size)
        before.append(head)
        size += len(head)
    return [*reversed(before), content]


def tensor_size(node: Any) -> int:
    """Bytes of the value of a constant; large ones are not serialized to count them."""
    tensor = node.attr["value"].tensor
    content = large_content(node)
    if content is None:
        return int(tensor.ByteSize())
    rest = tensor_pb2.TensorProto()
    copy_others(tensor, rest, "tensor_content")
    return field_size(_TENSOR_CONTENT, len(content)) + int(rest.ByteSize())


def large_content(node: Any) -> bytes | None:
    """The content of a constant that is large and given as one block of bytes, else `None`."""
    if node.op != "Const" or "value" not in node.attr:
        return None
    content: bytes = node.attr["value"].tensor.tensor_content
    return content if len(content) >= _LARGE else None


def _rest_bytes(parts: GraphParts) -> tuple[bytes, bytes]:
    """(everything but nodes and library, the library but its functions)."""
    rest = graph_pb2.GraphDef()
    copy_others(parts.rest, rest, "library")
    return rest.SerializeToString(deterministic=True), parts.rest.library.SerializeToString(deterministic=True)


def _head(number: int, size: int) -> bytes:
    return _varint(number << 3 | _LENGTH) + _varint(size)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _unknown_bytes(fields: Any) -> bytes:
    out = bytearray()
    for field in fields:
        number, kind, data = field.field_number, field.wire_type, field.data
        out += _varint(number << 3 | kind)
        if kind == _VARINT:
            out += _varint(data)
        elif kind == _LENGTH:
            out += _varint(len(data)) + data
        elif kind == _GROUP:
            out += _unknown_bytes(data) + _varint(number << 3 | _END_GROUP)
        else:
            out += data.to_bytes(8 if kind == _FIXED64 else 4, "little")
    return bytes(out)
