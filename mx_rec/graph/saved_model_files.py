"""SavedModels as graph files: a directory with MetaGraphDefs, variables and assets, read and written as one.

Nothing of a SavedModel is loaded into a session. Each of its MetaGraphDefs is a `LoadedGraph` as that of a `.meta`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional, Union

from google.protobuf import text_format
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import saved_model_pb2

from mx_rec.errors import GraphFileError
from mx_rec.graph import _messages, _meta_graph, files
from mx_rec.graph.files import LoadedGraph
from mx_rec.graph.functions import functions_called
from mx_rec.graph.view import GraphView

_BINARY = "saved_model.pb"
_TEXT = "saved_model.pbtxt"
_IN_CHUNKS = "saved_model.cpb"
_FINGERPRINT = "fingerprint.pb"  # of the graphs, so that it is wrong for others; TensorFlow can do without
_VARIABLES = "variables"
_TITLE = "SavedModel"

VariablesWriter = Callable[[Path, Path], None]


@dataclass(frozen=True)
class LoadedSavedModel:
    """A SavedModel as read.

    Attributes:
        path: its directory.
        file: the file of its graphs.
        message: the SavedModel as it was in the file.
        size_bytes: size of the file.
        graphs: its MetaGraphDefs, in order.
    """

    path: Path
    file: Path
    message: Any
    size_bytes: int
    graphs: tuple[LoadedGraph, ...]

    @property
    def title(self) -> str:
        """The kind in words."""
        return _TITLE if self.file.name == _BINARY else f"{_TITLE} (text)"

    @property
    def kind(self) -> str:
        """As those of graph files."""
        return "savedmodel" if self.file.name == _BINARY else "savedmodel_text"

    @property
    def warnings(self) -> tuple[str, ...]:
        """As those of graph files."""
        return tuple(text for graph in self.graphs for text in graph.warnings)


AnyGraphFile = Union[LoadedGraph, LoadedSavedModel]


def load_graphs(path: str | os.PathLike[str]) -> AnyGraphFile:
    """Reads a graph file or a SavedModel: its directory, or the file in it.

    Raises:
        GraphFileError: see `files.load_graph`.
    """
    source = Path(path)
    file = _file_in(source)
    if file is None:
        return files.load_graph(source)
    data = files.read_file(file)
    if not files.is_saved_model(data):
        if file == source:  # what else has such a name
            return files.load_graph(source)
        raise GraphFileError(f"'{file}' is no SavedModel, is damaged, or was cut off near its start")
    message = saved_model_pb2.SavedModel()
    if files.is_text(data):
        files.check_utf8(file, data)
        files.fill_from_text(file, data, message, _TITLE)
    else:
        files.fill_from_binary(file, data, message, _TITLE)
    if not message.meta_graphs:
        raise GraphFileError(f"'{file}' is a SavedModel without MetaGraphs, so there is nothing in it")
    graphs = tuple(_graph(file.parent, meta_graph) for meta_graph in message.meta_graphs)
    for graph in graphs:
        files.check_complete(graph)
    return LoadedSavedModel(file.parent, file, message, len(data), graphs)


def _file_in(source: Path) -> Path | None:
    if not source.is_dir():
        return source if source.name in (_BINARY, _TEXT) else None
    for name in (_BINARY, _TEXT):  # the order in which TensorFlow looks
        if (source / name).is_file():
            return source / name
    if (source / _IN_CHUNKS).exists():
        raise GraphFileError(
            f"'{source}' is a SavedModel in chunks ({_IN_CHUNKS}), which is not supported: "
            f"save it without tf.saved_model.SaveOptions(experimental_image_format=True)"
        )
    return None


def _graph(directory: Path, meta_graph: Any) -> LoadedGraph:
    return LoadedGraph(
        directory, "metagraph", meta_graph, meta_graph.ByteSize(), tags=tuple(meta_graph.meta_info_def.tags)
    )


def variables_prefix(path: str | os.PathLike[str]) -> str:
    """The prefix of the checkpoint of a SavedModel, if `path` is its directory or its `variables`; else `path`."""
    directory = Path(path)
    if directory.is_dir():
        if any((directory / name).is_file() for name in (_BINARY, _TEXT)):
            return str(directory / _VARIABLES / _VARIABLES)
        if directory.name == _VARIABLES:
            return str(directory / _VARIABLES)
    return os.fspath(path)


def meta_graph_of(loaded: AnyGraphFile, tags: str | None) -> LoadedGraph:
    """The graph of a file; of a SavedModel the only MetaGraph, or that of the tags.

    Args:
        loaded: what was read.
        tags: with commas, in any order; `None` for the only one.

    Raises:
        GraphFileError: there is no such MetaGraph, or there are several.
    """
    graphs = list(loaded.graphs)
    if isinstance(loaded, LoadedSavedModel) and tags is not None:
        wanted = {tag.strip() for tag in tags.split(",") if tag.strip()}
        graphs = [graph for graph in graphs if set(graph.tags or ()) == wanted]
    if len(graphs) == 1:
        return graphs[0]
    there = "; ".join(", ".join(graph.tags or ()) or "no tags" for graph in loaded.graphs)
    what = "several MetaGraphs: choose one by its tags" if graphs else f"no MetaGraph of the tags {tags!r}"
    raise GraphFileError(f"'{loaded.path}' has {what} (there are: {there})")


def check_new_directory(loaded: LoadedSavedModel, target: str | os.PathLike[str]) -> None:
    """Fails early, before any work, when a SavedModel cannot be written.

    Raises:
        GraphFileError: `target` exists or lies in the directory of `loaded`, or there is no directory for it.
    """
    directory = Path(os.path.realpath(target))
    if os.path.lexists(target):
        raise GraphFileError(f"cannot write '{target}': it exists; a SavedModel needs a new directory")
    if Path(os.path.realpath(loaded.path)) in directory.parents:
        raise GraphFileError(f"cannot write '{target}': it would be inside the SavedModel '{loaded.path}' itself")
    if not directory.parent.is_dir():
        raise GraphFileError(f"cannot write '{target}': no directory '{directory.parent}'; create it first")
    with files.named_os_errors(f"cannot write '{target}'"):
        os.rmdir(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))


def save_saved_model(
    loaded: LoadedSavedModel,
    views: Sequence[Optional[GraphView]],
    target: str | os.PathLike[str],
    write_variables: Optional[VariablesWriter] = None,
) -> None:
    """Writes a SavedModel of other graphs; all else is that of the one that was read.

    Args:
        loaded: the SavedModel as read.
        views: the new graph of each of its MetaGraphs, or `None` where it stays.
        target: a directory that does not exist. It is written under a name beside it and renamed.
        write_variables: writes the checkpoint of its second argument, a prefix, from that of its first, where the
            variables do not stay as they are.

    Raises:
        GraphFileError: something a SavedModel names is gone from its graph, it is too large, or cannot be written.
    """
    check_new_directory(loaded, target)
    unchanged = all(view is None for view in views)
    data = None if unchanged else _serialized(loaded, views)
    directory = Path(os.path.realpath(target))
    with files.named_os_errors(f"cannot write '{target}'"):
        scratch = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        try:
            written = scratch / "model"
            left_out = set() if unchanged else {_BINARY, _TEXT, _FINGERPRINT}
            if write_variables is not None:
                left_out.add(_VARIABLES)

            def ignored(folder: str, names: list[str]) -> set[str]:
                return left_out.intersection(names) if Path(folder) == loaded.path else set()

            shutil.copytree(loaded.path, written, ignore=ignored)
            if write_variables is not None:
                (written / _VARIABLES).mkdir()
                write_variables(loaded.path / _VARIABLES / _VARIABLES, written / _VARIABLES / _VARIABLES)
            if data is not None:
                files.write_atomically(written / loaded.file.name, data)
            written.rename(directory)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _serialized(loaded: LoadedSavedModel, views: Sequence[Optional[GraphView]]) -> bytes:
    result = saved_model_pb2.SavedModel()
    _messages.copy_others(loaded.message, result, "meta_graphs")
    for graph, view in zip(loaded.graphs, views):
        written = result.meta_graphs.add()
        if view is None:
            written.CopyFrom(graph.message)
            continue
        parts = _without_dead_functions(graph.message, view.parts())
        size = _messages.graph_sizes(parts).total
        if size + result.ByteSize() > files.MAX_BYTES:
            raise files.too_large_to_write("the SavedModel", size + result.ByteSize(), parts)
        written.CopyFrom(_meta_graph.header_of(graph.message, parts.nodes, parts.functions))
        written.graph_def.CopyFrom(parts.message())
    if result.ByteSize() > files.MAX_BYTES:
        raise files.too_large_to_write("the SavedModel", result.ByteSize(), _largest_parts(loaded))
    if loaded.file.name == _TEXT:
        return text_format.MessageToString(result).encode()
    data: bytes = result.SerializeToString(deterministic=True)
    return data


def _without_dead_functions(meta_graph: Any, parts: _messages.GraphParts) -> _messages.GraphParts:
    """Without the functions that only the object graph has named, if it goes."""
    goes = meta_graph.HasField("object_graph_def") and _meta_graph.loses_object_graph(parts.nodes)
    if not goes or parts.rest.library.gradient:  # which names functions too
        return parts
    registered = {entry.registered_op_type: entry.gradient_func for entry in parts.rest.library.registered_gradients}
    functions = functions_called(parts.functions, parts.nodes, registered)
    rest = graph_pb2.GraphDef()
    rest.CopyFrom(parts.rest)
    del rest.library.registered_gradients[:]
    names = {function.signature.name for function in functions}  # TensorFlow waits for those that are not there
    rest.library.registered_gradients.extend(
        entry for entry in parts.rest.library.registered_gradients if entry.gradient_func in names
    )
    return parts._replace(functions=functions, rest=rest)


def _largest_parts(loaded: LoadedSavedModel) -> _messages.GraphParts:
    return _messages.graph_parts(max(loaded.graphs, key=lambda graph: graph.size_bytes).graph_def)
