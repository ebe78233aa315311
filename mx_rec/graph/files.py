"""Graph files: GraphDef and MetaGraphDef, binary or text. SavedModels, made of several: `saved_model_files`.

A file is told apart by what it holds, not by its name, and is written back as the same kind. Reading needs
no op library: graphs with unknown ops load. Writing is atomic: a failed write leaves what was there.
"""

from __future__ import annotations

import contextlib
import heapq
import io
import mmap
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from google.protobuf import text_format
from google.protobuf.message import DecodeError
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from mx_rec.errors import GraphFileError
from mx_rec.graph import _messages, _meta_graph, _wire
from mx_rec.graph.attrs import dtype_name
from mx_rec.graph.view import GraphView
from mx_rec.tf_compat import registered_op_def

GraphKind = Literal["graphdef", "graphdef_text", "metagraph", "metagraph_text"]

MAX_BYTES = (1 << 31) - 1  # A serialized protobuf is smaller than 2 GB.

_TITLES = {
    "graphdef": "GraphDef",
    "graphdef_text": "GraphDef (text)",
    "metagraph": "MetaGraphDef",
    "metagraph_text": "MetaGraphDef (text)",
}
_EXPECTED = "expected a GraphDef (.pb, .pbtxt) or a MetaGraphDef (.meta), binary or text, or a SavedModel"
_NO_SAVED_MODEL = (
    "a SavedModel is the directory that holds this file as saved_model.pb or saved_model.pbtxt, variables beside it; "
    "commands take such a directory as a whole"
)
_MAGIC = {
    b"\x1f\x8b": "gzip data (unpack it first)",
    b"PK\x03\x04": "a zip archive (a .keras model?)",
    b"\x89HDF": "an HDF5 file (a Keras .h5 model?)",
    b"version https://git-lfs": "a Git LFS pointer (run git lfs pull)",
}
_CONTROL_BYTES = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_FIRST_FIELD = re.compile(rb"(?:\s|#[^\n]*(?:\n|\Z))*(?P<field>[A-Za-z_][A-Za-z0-9_]*)?")
_GRAPH_FIELDS = frozenset(field.name for field in graph_pb2.GraphDef.DESCRIPTOR.fields)
_META_FIELDS = frozenset(field.name for field in meta_graph_pb2.MetaGraphDef.DESCRIPTOR.fields)
_SAVED_MODEL_FIELDS = frozenset({"saved_model_schema_version", "meta_graphs"})
_SHOWN_NAMES = 3
_PROBED_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 24
_META_GRAPH_DEF = 2  # field number of the graph


@dataclass(frozen=True)
class LoadedGraph:
    """A graph file as read.

    Attributes:
      path: Where it was read from.
      kind: What the file is; the same kind is written back.
      message: The GraphDef or MetaGraphDef as it was in the file.
      size_bytes: Size of the file.
      warnings: What looked odd but did not keep the file from being read.
      tags: Of a MetaGraphDef in a SavedModel; `None` for a file of its own.
    """

    path: Path
    kind: GraphKind
    message: Any
    size_bytes: int
    warnings: tuple[str, ...] = ()
    tags: tuple[str, ...] | None = None

    @property
    def graphs(self) -> tuple[LoadedGraph, ...]:
        """The graph itself; a SavedModel has several."""
        return (self,)

    @property
    def label(self) -> str:
        """The path, and which MetaGraph of a SavedModel it is."""
        return str(self.path) if self.tags is None else f"{self.path} ({', '.join(self.tags) or 'no tags'})"

    @property
    def graph_def(self) -> graph_pb2.GraphDef:
        """The graph of the file."""
        return self.message.graph_def if self.kind.startswith("metagraph") else self.message

    @property
    def title(self) -> str:
        """The kind in words."""
        return _TITLES[self.kind]

    def signatures(self) -> tuple[str, ...]:
        """The names of the signatures of a MetaGraphDef."""
        return tuple(sorted(self.message.signature_def)) if self.kind.startswith("metagraph") else ()

    def collections(self) -> tuple[str, ...]:
        """The names of the collections of a MetaGraphDef."""
        return tuple(sorted(self.message.collection_def)) if self.kind.startswith("metagraph") else ()

    def collection(self, name: str) -> tuple[str, ...]:
        """The tensors and nodes in a collection of a MetaGraphDef, as they are spelled there."""
        return tuple(self.message.collection_def[name].node_list.value) if self._has_collection(name) else ()

    def collection_bytes(self, name: str) -> tuple[bytes, ...]:
        """The serialized members of a collection of a MetaGraphDef, such as its variables."""
        return tuple(self.message.collection_def[name].bytes_list.value) if self._has_collection(name) else ()

    def _has_collection(self, name: str) -> bool:
        return self.kind.startswith("metagraph") and name in self.message.collection_def

    def referenced_nodes(self, *, variables: bool = True, objects: bool = True) -> frozenset[str]:
        """Nodes that collections, saver, signatures and the object graph of a MetaGraphDef name: a rewrite keeps them.

        Without `variables` those that only the collections of variables name, which a variable may leave; without
        `objects` those that only the object graph names, which is gone once a variable has become a table.
        """
        if not self.kind.startswith("metagraph"):
            return frozenset()
        return frozenset(_meta_graph.referenced_nodes(self.message, variables=variables, objects=objects))


@dataclass(frozen=True)
class ConstantSize:
    """A constant and the bytes it takes in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


def load_graph(path: str | os.PathLike[str]) -> LoadedGraph:
    """Reads a graph file.

    Raises:
      GraphFileError: The file is missing, unreadable, too large, cut off, or something else.
    """
    source = Path(path)
    data = read_file(source)
    kind, message = _parse_text(source, data) if is_text(data) else _parse_binary(source, data)
    loaded = LoadedGraph(source, kind, message, len(data), _warnings(kind, message))
    check_complete(loaded)
    return loaded


def save_graph(loaded: LoadedGraph, graph: GraphView | graph_pb2.GraphDef, path: str | os.PathLike[str]) -> int:
    """Writes a graph as the same kind of file that it was read from; returns the bytes written.

    A MetaGraphDef keeps all it holds; it gets the collections that the nodes' attribute states, and its
    list of ops is brought up to date. A view is written node by node, so that a large graph is not copied for it.

    Raises:
      GraphFileError: The graph is too large, or the file cannot be written. What was at `path` is untouched.
    """
    parts = graph.parts() if isinstance(graph, GraphView) else _messages.graph_parts(graph)
    header = _header(loaded, parts)
    sizes = _messages.graph_sizes(parts)
    total = sizes.total
    if header is not None:
        total = _messages.field_size(_META_GRAPH_DEF, total) + header.ByteSize()
    if total > MAX_BYTES:
        raise too_large_to_write("the graph", total, parts)
    with _replaced(path) as stream:
        if loaded.kind.endswith("_text"):
            _write_text(stream, parts, header)
        elif header is None:
            _messages.write_graph(stream, parts, sizes)
        else:
            _messages.write_field(stream, _META_GRAPH_DEF, (), sizes.total)
            _messages.write_graph(stream, parts, sizes)
            stream.write(header.SerializeToString(deterministic=True))
        return stream.tell()


def too_large_to_write(what: str, size: int, parts: _messages.GraphParts) -> GraphFileError:
    """The error that names the largest constants of a graph whose file would be larger than a protobuf may be."""
    largest = [(constant.name, constant.size_bytes) for constant in _largest_constants(parts, _SHOWN_NAMES)]
    return GraphFileError(_too_large(what, size, largest))


def _header(loaded: LoadedGraph, parts: _messages.GraphParts) -> Any:
    """What a MetaGraphDef holds besides the graph, `None` for a GraphDef."""
    if not loaded.kind.startswith("metagraph"):
        return None
    return _meta_graph.header_of(loaded.message, parts.nodes, parts.functions)


def _write_text(stream: BinaryIO, parts: _messages.GraphParts, header: Any) -> None:
    message = parts.message()
    if header is not None:
        header.graph_def.CopyFrom(message)
        message = header
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="\n")
    text_format.PrintMessage(message, text)
    text.flush()
    text.detach()


def copy_graph(loaded: LoadedGraph, path: str | os.PathLike[str]) -> int:
    """Writes the file as it was read, byte for byte; returns the bytes written, 0 if it is the same file."""
    target = Path(path)
    if target.exists() and target.samefile(loaded.path):
        return 0
    with _opened(loaded.path) as source, _replaced(target) as stream:
        shutil.copyfileobj(source, stream, _CHUNK_BYTES)
        return stream.tell()


def check_writable(path: str | os.PathLike[str]) -> None:
    """Fails early, before any work, when `path` cannot be written.

    Raises:
      GraphFileError: With what is in the way.
    """
    target = _write_target(path)
    with named_os_errors(f"cannot write '{path}'"):
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
        os.close(handle)
        os.unlink(name)


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes to a temporary file beside `path`, then renames it; on failure nothing changed."""
    with _replaced(path) as stream:
        stream.write(data)


@contextlib.contextmanager
def _replaced(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A temporary file beside `path`, which takes its place in the end; on failure nothing changed."""
    target = _write_target(path)
    with named_os_errors(f"cannot write '{path}'"):
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(name, _file_mode(target))
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise


def largest_constants(graph_def: graph_pb2.GraphDef, count: int) -> list[ConstantSize]:
    """The constants that take most of the file, functions included, largest first."""
    return _largest_constants(_messages.graph_parts(graph_def), count)


def _largest_constants(parts: _messages.GraphParts, count: int) -> list[ConstantSize]:
    sizes = [_constant_size(node, "") for node in parts.nodes if node.op == "Const"]
    for function in parts.functions:
        prefix = f"{function.signature.name}/"
        sizes.extend(_constant_size(node, prefix) for node in function.node_def if node.op == "Const")
    return heapq.nlargest(count, sizes, key=lambda item: item.size_bytes)


def _constant_size(node: Any, prefix: str) -> ConstantSize:
    tensor = node.attr["value"].tensor
    return ConstantSize(
        name=prefix + node.name,
        dtype=dtype_name(tensor.dtype),
        shape=tuple(dim.size for dim in tensor.tensor_shape.dim),
        size_bytes=_messages.tensor_size(node),
    )


def _checked_size(path: Path) -> int:
    with named_os_errors(f"cannot read '{path}'"):
        info = path.stat()
    if stat.S_ISDIR(info.st_mode):
        if any(path.glob("saved_model.pb*")):
            raise GraphFileError(
                f"'{path}' is a SavedModel directory; expected a graph file (`load_graphs` reads both)"
            )
        raise GraphFileError(f"'{path}' is a directory; {_EXPECTED}")
    if not stat.S_ISREG(info.st_mode):
        raise GraphFileError(f"'{path}' is not a regular file; {_EXPECTED}")
    if info.st_size == 0:
        raise GraphFileError(f"'{path}' is empty; {_EXPECTED}")
    return info.st_size


def read_file(path: Path) -> bytes:
    """The bytes of a file that is no larger than a protobuf may be.

    Raises:
      GraphFileError: It is missing, empty, too large, or no regular file.
    """
    size = _checked_size(path)
    if size > MAX_BYTES:
        raise GraphFileError(_too_large(f"'{path}'", size, _largest_in_file(path)))
    with named_os_errors(f"cannot read '{path}'"):
        return path.read_bytes()


def _opened(path: Path) -> BinaryIO:
    with named_os_errors(f"cannot read '{path}'"):
        return path.open("rb")


def is_text(data: bytes) -> bool:
    """Whether a file is text, judged by its beginning."""
    return _CONTROL_BYTES.search(data, 0, _PROBED_BYTES) is None


def _parse_binary(path: Path, data: bytes) -> tuple[GraphKind, Any]:
    kind = _wire.binary_kind(data)
    if kind == "savedmodel":
        raise GraphFileError(f"'{path}' is the .pb of a SavedModel: {_NO_SAVED_MODEL}")
    if kind is None:
        raise GraphFileError(_not_a_graph(path, data))
    message = graph_pb2.GraphDef() if kind == "graphdef" else meta_graph_pb2.MetaGraphDef()
    fill_from_binary(path, data, message, _TITLES[kind])
    return kind, message


def fill_from_binary(path: Path, data: bytes, message: Any, title: str) -> None:
    """Parses the bytes of a file into a message; GraphFileError with the place if they are damaged."""
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise GraphFileError(f"'{path}' starts as a {title} but is {_damage(data)}") from error


def _damage(data: bytes) -> str:
    offset = _wire.truncated_at(data)
    if offset is None:
        return "damaged: a message inside it is not valid"
    return f"truncated or damaged: the field at byte {offset} runs past the end ({len(data)} bytes)"


def _not_a_graph(path: Path, data: bytes) -> str:
    for magic, name in _MAGIC.items():
        if data.startswith(magic):
            return f"'{path}' is {name}; {_EXPECTED}"
    return f"'{path}' is a binary file of another kind, or was cut off near its start; {_EXPECTED}"


def _parse_text(path: Path, data: bytes) -> tuple[GraphKind, Any]:
    if data.startswith(b"version https://git-lfs"):
        raise GraphFileError(_not_a_graph(path, data))
    check_utf8(path, data)
    kind = _text_kind(path, data)
    message = graph_pb2.GraphDef() if kind == "graphdef_text" else meta_graph_pb2.MetaGraphDef()
    fill_from_text(path, data, message, _TITLES[kind])
    return kind, message


def fill_from_text(path: Path, data: bytes, message: Any, title: str) -> None:
    """Parses the text of a file, UTF-8, into a message; GraphFileError with the line if it is damaged."""
    try:
        text_format.ParseLines(io.BytesIO(data), message)  # line by line: a text and its copies would take much memory
    except text_format.ParseError as error:
        raise GraphFileError(f"'{path}' is no valid {title}: {_parse_problem(error)}") from error
    except RecursionError as error:
        raise GraphFileError(f"'{path}' is no valid {title}: its messages are nested too deeply") from error


def check_utf8(path: Path, data: bytes) -> None:
    """GraphFileError with the place if a file is no text."""
    offset = 0
    try:
        for line in io.BytesIO(data):
            line.decode("utf-8")
            offset += len(line)
    except UnicodeDecodeError as error:
        raise GraphFileError(f"{_not_a_graph(path, data)} (byte {offset + error.start} is neither)") from error


def is_saved_model(data: bytes) -> bool:
    """Whether the bytes of a file are those of a SavedModel, judged by its first fields."""
    if not is_text(data):
        return _wire.binary_kind(data) == "savedmodel"
    match = _FIRST_FIELD.match(data)
    return match is not None and (match["field"] or b"").decode() in _SAVED_MODEL_FIELDS


def _text_kind(path: Path, data: bytes) -> GraphKind:
    match = _FIRST_FIELD.match(data)
    field = match["field"].decode() if match and match["field"] else None
    if field in _GRAPH_FIELDS:
        return "graphdef_text"
    if field in _META_FIELDS:
        return "metagraph_text"
    if field in _SAVED_MODEL_FIELDS:
        raise GraphFileError(f"'{path}' is the .pbtxt of a SavedModel: {_NO_SAVED_MODEL}")
    if not data.strip():
        raise GraphFileError(f"'{path}' holds nothing but white space; {_EXPECTED}")
    position = match.start("field") if match and field else len(data) - len(data.lstrip())
    found = f"'{field}'" if field else repr(data[position : position + 80].decode(errors="ignore")[:20])
    line = data.count(b"\n", 0, position) + 1
    raise GraphFileError(f"'{path}' is text but no graph: line {line} starts with {found}; {_EXPECTED}")


def _parse_problem(error: text_format.ParseError) -> str:
    reason = re.sub(r"^\d+:\d+ : ", "", str(error)).splitlines()[0]
    line = error.GetLine()
    return reason if line is None else f"line {line}: {reason}"


def _warnings(kind: GraphKind, message: Any) -> tuple[str, ...]:
    graph_def = message.graph_def if kind.startswith("metagraph") else message
    if kind == "graphdef" and not graph_def.HasField("versions"):
        return ("the graph has no version stamp, which TensorFlow writes last: the file may be truncated",)
    return ()


def check_complete(loaded: LoadedGraph) -> None:
    """A file cut between two nodes still parses; it then lacks nodes or functions that others name.

    Raises:
      GraphFileError: With the first that is missing, spelled wrongly or there twice.
    """
    graph_def = loaded.graph_def
    names = {node.name for node in graph_def.node}
    _check_spelling(loaded.path, "a node", names, _wire.NODE_NAME)
    _check_spelling(loaded.path, "an op", {node.op for node in graph_def.node}, _wire.OP_NAME)
    if len(names) != len(graph_def.node):
        raise GraphFileError(f"'{loaded.path}' holds two nodes named '{_first_duplicate(graph_def)}'")
    _check_none_missing(loaded.path, "node", _dangling_inputs(graph_def, names))
    _check_none_missing(loaded.path, "function", _dangling_functions(graph_def))


def _check_spelling(path: Path, what: str, names: Iterable[str], pattern: re.Pattern[bytes]) -> None:
    wrong = sorted(name for name in names if not pattern.fullmatch(name.encode()))
    if wrong:
        raise GraphFileError(f"'{path}' may be damaged: {wrong[0]!r} is no name of {what}")


def _check_none_missing(path: Path, what: str, missing: Iterator[tuple[str, str]]) -> None:
    found = list(missing)
    if not found:
        return
    name, user = found[0]
    others = f" (and {len(found) - 1} more such references)" if len(found) > 1 else ""
    raise GraphFileError(
        f"'{path}' may be truncated: node '{user}' needs {what} '{name}', which the file lacks{others}"
    )


def _first_duplicate(graph_def: graph_pb2.GraphDef) -> str:
    seen: set[str] = set()
    for node in graph_def.node:
        if node.name in seen:
            return node.name
        seen.add(node.name)
    raise AssertionError("there is no duplicate")


def _dangling_inputs(graph_def: graph_pb2.GraphDef, names: set[str]) -> Iterator[tuple[str, str]]:
    for node in graph_def.node:
        for text in node.input:
            name = text.lstrip("^").partition(":")[0]
            if name not in names:
                yield name, node.name


def _dangling_functions(graph_def: graph_pb2.GraphDef) -> Iterator[tuple[str, str]]:
    known = {function.signature.name for function in graph_def.library.function}
    bodies = [graph_def.node, *(function.node_def for function in graph_def.library.function)]
    for nodes in bodies:
        for node in nodes:
            for name in _function_names(node):
                if name not in known and registered_op_def(name) is None:
                    yield name, node.name


def _function_names(node: Any) -> Iterator[str]:
    for value in node.attr.values():
        kind = value.WhichOneof("value")
        if kind == "func" and value.func.name:
            yield value.func.name
        elif kind == "list":
            yield from (function.name for function in value.list.func)


def _too_large(what: str, size: int, largest: list[tuple[str, int]]) -> str:
    listed = ", ".join(f"'{name}' ({_megabytes(taken)})" for name, taken in largest)
    detail = f"; the largest nodes are {listed}: keep such values in a variable or a file" if listed else ""
    return f"{what} takes {_megabytes(size)}, more than the 2 GB that a protobuf may take{detail}"


def _largest_in_file(path: Path) -> list[tuple[str, int]]:
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        kind = None if is_text(data[:_PROBED_BYTES]) else _wire.binary_kind(data)
        if kind is None or kind == "savedmodel":
            return []
        return _wire.largest_nodes(data, kind, _SHOWN_NAMES)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def _write_target(path: str | os.PathLike[str]) -> Path:
    """The file that is really written: symbolic links are followed, so that they stay links."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise GraphFileError(f"cannot write '{path}': it is a directory")
    if target.exists() and not target.is_file():
        raise GraphFileError(f"cannot write '{path}': it is not a regular file")
    if not target.parent.is_dir():
        raise GraphFileError(f"cannot write '{path}': no directory '{target.parent}'; create it first")
    return target


def _file_mode(target: Path) -> int:
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@contextlib.contextmanager
def named_os_errors(action: str) -> Iterator[None]:
    """An OSError inside becomes a GraphFileError that names the action."""
    try:
        yield
    except OSError as error:
        raise GraphFileError(f"{action}: {error.strerror or error}") from error
