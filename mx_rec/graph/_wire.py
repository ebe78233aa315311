"""Looks into serialized protobufs without parsing them.

Used to tell what a file holds (protobuf parses almost anything as almost anything) and to name the
largest nodes of a file that is too big to parse.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

BinaryKind = Literal["graphdef", "metagraph", "savedmodel"]

_VARINT, _FIXED64, _MESSAGE, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_MAX_PROBED_FIELDS = 16
_MAX_NAME_BYTES = 4096
NODE_NAME = re.compile(rb"[A-Za-z0-9_.][A-Za-z0-9_.\\/>-]*")  # with those of TensorFlow's own nodes, like _SOURCE
OP_NAME = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9_.\\/>-]*")

# Field numbers of the messages in question.
_GRAPH_NODE, _GRAPH_VERSIONS = 1, 4
_GRAPH_FIELDS = frozenset({1, 2, 3, 4, 5})
_NODE_NAME_FIELD, _NODE_OP_FIELD = 1, 2
_META_GRAPH_DEF = 2
_SAVED_MODEL_VERSION, _SAVED_MODEL_GRAPHS = 1, 2


class Buffer(Protocol):
    """What is read: `bytes` or `mmap`."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: slice) -> bytes: ...


@dataclass(frozen=True)
class WireField:
    """One field of a message: where its payload lies, and whether all of it is there."""

    number: int
    wire_type: int
    start: int
    end: int
    complete: bool = True


def binary_kind(data: Buffer) -> BinaryKind | None:
    """What a serialized protobuf is, judged by its first fields; None for anything else."""
    fields = _probe(data, 0, len(data))
    if not fields:
        return None
    if _is_saved_model(fields):
        return "savedmodel"
    if _is_graph(data, fields):
        return "graphdef"
    return "metagraph" if _is_meta_graph(data, fields) else None


def truncated_at(data: Buffer) -> int | None:
    """Offset of the first top-level field that runs past the end, None if there is none."""
    for field in _fields(data, 0, len(data)):
        if not field.complete:
            return field.start
    return None


def largest_nodes(data: Buffer, kind: BinaryKind, count: int) -> list[tuple[str, int]]:
    """Name and serialized size of the largest nodes of a GraphDef or MetaGraphDef."""
    sizes = ((field.end - field.start, field) for field in _node_fields(data, kind))
    largest = heapq.nlargest(count, sizes, key=lambda item: item[0])
    return [(_node_name(data, field), size) for size, field in largest]


def _node_name(data: Buffer, node: WireField) -> str:
    return _text_field(data, node, _NODE_NAME_FIELD).decode(errors="replace")


def _node_fields(data: Buffer, kind: BinaryKind) -> Iterator[WireField]:
    if kind == "graphdef":
        yield from _numbered(_fields(data, 0, len(data)), _GRAPH_NODE)
        return
    for graph in _numbered(_fields(data, 0, len(data)), _META_GRAPH_DEF):
        yield from _numbered(_fields(data, graph.start, graph.end), _GRAPH_NODE)


def _numbered(fields: Iterable[WireField], number: int) -> Iterator[WireField]:
    return (field for field in fields if field.number == number)


def _is_saved_model(fields: list[WireField]) -> bool:
    version = fields[0]
    if (version.number, version.wire_type) != (_SAVED_MODEL_VERSION, _VARINT):
        return False
    graphs = [(field.number, field.wire_type) for field in fields[1:]]
    return bool(graphs) and set(graphs) == {(_SAVED_MODEL_GRAPHS, _MESSAGE)}


def _is_graph(data: Buffer, fields: list[WireField]) -> bool:
    if not all(field.number in _GRAPH_FIELDS for field in fields):
        return False
    nodes = [field for field in fields if field.number == _GRAPH_NODE]
    if nodes:
        return all(_is_node(data, field) for field in nodes)
    return any(_is_versions(data, field) for field in fields)


def _is_meta_graph(data: Buffer, fields: list[WireField]) -> bool:
    graphs = [field for field in fields if field.number == _META_GRAPH_DEF and field.wire_type == _MESSAGE]
    return len(graphs) == 1 and _is_graph(data, _probe(data, graphs[0].start, graphs[0].end))


def _is_node(data: Buffer, field: WireField) -> bool:
    if field.wire_type != _MESSAGE:
        return False
    name = _text_field(data, field, _NODE_NAME_FIELD)
    op = _text_field(data, field, _NODE_OP_FIELD)
    return bool(NODE_NAME.fullmatch(name) and (OP_NAME.fullmatch(op) or not field.complete))


def _is_versions(data: Buffer, field: WireField) -> bool:
    if (field.number, field.wire_type) != (_GRAPH_VERSIONS, _MESSAGE):
        return False
    inner = _probe(data, field.start, field.end)
    return bool(inner) and (inner[0].number, inner[0].wire_type) == (1, _VARINT)


def _text_field(data: Buffer, message: WireField, number: int) -> bytes:
    """The first field of that number among a message's first fields, empty if it is not there."""
    for field in itertools.islice(_fields(data, message.start, message.end), number + 1):
        if field.number == number and field.wire_type == _MESSAGE:
            return data[field.start : min(field.end, field.start + _MAX_NAME_BYTES)]
    return b""


def _probe(data: Buffer, start: int, end: int) -> list[WireField]:
    return list(itertools.islice(_fields(data, start, end), _MAX_PROBED_FIELDS))


def _fields(data: Buffer, start: int, end: int) -> Iterator[WireField]:
    """The fields of a message; ends after the first that is cut or is no protobuf field."""
    position = start
    while position < end:
        tag, position = _varint(data, position, end)
        wire_type, number = tag & 7, tag >> 3
        size, position = _payload_size(data, position, end, wire_type)
        if number == 0 or size < 0:
            yield WireField(number, wire_type, position, end, complete=False)
            return
        stop = position + size
        yield WireField(number, wire_type, position, min(stop, end), complete=stop <= end)
        position = stop


def _payload_size(data: Buffer, position: int, end: int, wire_type: int) -> tuple[int, int]:
    """Size of a field's payload and where it starts; -1 if it is not a valid field."""
    if wire_type == _MESSAGE:
        return _varint(data, position, end)
    if wire_type == _VARINT:
        _, after = _varint(data, position, end)
        return after - position, position
    return _FIXED_SIZES.get(wire_type, -1), position


def _varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """A varint and the position after it; -1 if it is cut or too long."""
    value = 0
    for shift, byte in enumerate(data[position : min(position + 10, end)]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, position + shift + 1
    return -1, end
