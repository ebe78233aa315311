"""What of a SavedModel is outside its graph: assets."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2

from mx_rec.errors import GraphFileError
from mx_rec.graph.files import write_atomically

_BINARY = "saved_model.pb"
_TEXT = "saved_model.pbtxt"
_ASSETS = "saved_model_assets"
_ASSET_DIRS = ("assets", "assets.extra")


def read_saved_model(directory: Path) -> Any:
    """The SavedModel message of a directory.

    Raises:
        GraphFileError: there is none, or it is damaged.
    """
    try:
        if (directory / _BINARY).exists():
            return saved_model_pb2.SavedModel.FromString((directory / _BINARY).read_bytes())
        if (directory / _TEXT).exists():
            return text_format.Parse((directory / _TEXT).read_text("utf-8"), saved_model_pb2.SavedModel())
    except (DecodeError, text_format.ParseError, OSError) as error:
        raise GraphFileError(f"'{directory}': its SavedModel cannot be read: {error}") from error
    raise GraphFileError(f"'{directory}' is no SavedModel: it holds neither {_BINARY} nor {_TEXT}")


def copy_assets(source: Path, target: Path, without: Sequence[str] = ()) -> None:
    """Gives a SavedModel the assets of another: the files, and what its graph is told of them.

    Args:
        source: directory of the SavedModel that has them.
        target: directory of a SavedModel of one graph, whose asset tensors have the names of those of `source`.
        without: names of extra files that are left out.
    """
    for name in _ASSET_DIRS:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=shutil.ignore_patterns(*without), dirs_exist_ok=True)
            if not any((target / name).iterdir()):
                (target / name).rmdir()
    written = read_saved_model(target)
    (graph,) = written.meta_graphs
    tags = set(graph.meta_info_def.tags)
    for other in read_saved_model(source).meta_graphs:
        if set(other.meta_info_def.tags) == tags:
            graph.asset_file_def.extend(other.asset_file_def)
            if _ASSETS in other.collection_def:  # where the builder of TensorFlow 1 writes them
                graph.collection_def[_ASSETS].CopyFrom(other.collection_def[_ASSETS])
    write_atomically(target / _BINARY, written.SerializeToString(deterministic=True))
