"""From saved tables to arrays in `.npy` files, a block at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from mx_rec.checkpoint.saved_tables import SavedTable
from mx_rec.errors import CheckpointError

KEYS_FILE, EMBEDDINGS_FILE = "keys.npy", "embeddings.npy"


@dataclasses.dataclass(frozen=True)
class ExportedTable:
    """What an export has written.

    Attributes:
        keys: path of int64 [n].
        embeddings: path of float32 [n, dim], in the same order.
        size: n.
    """

    keys: str
    embeddings: str
    size: int


def directory_of_table(directory: str, table_name: str) -> str:
    """Where a table is exported to; CheckpointError for a name that would lead elsewhere."""
    if table_name in (os.curdir, os.pardir) or os.path.basename(table_name) != table_name:
        raise CheckpointError(f"table {table_name!r} cannot be exported: its name is no name of a directory")
    return os.path.join(directory, table_name)


def export_table(table: SavedTable, directory: str) -> ExportedTable:
    """Writes `keys.npy` and `embeddings.npy` to a directory, which is made; never more than a block in memory.

    Raises:
        CheckpointError: a file of the table is missing or damaged, or nothing can be written; nothing is left then.
    """
    dim, size = table.manifest.dim, table.manifest.size
    paths = os.path.join(directory, KEYS_FILE), os.path.join(directory, EMBEDDINGS_FILE)
    try:
        os.makedirs(directory, exist_ok=True)
        with contextlib.ExitStack() as stack:
            keys, rows = (stack.enter_context(_replacing(path)) for path in paths)
            _write_header(keys, "<i8", (size,))
            _write_header(rows, "<f4", (size, dim))
            written = 0
            for block in table.blocks():
                keys.write(np.ascontiguousarray(block.columns["keys"], "<i8").tobytes())
                rows.write(np.ascontiguousarray(block.columns["rows"][:, :dim], "<f4").tobytes())
                written += len(block.columns["keys"])
            if written != size:
                raise CheckpointError(
                    f"{table.prefix!r}: table {table.name!r} should have {size} keys, but its files have {written}"
                )
    except OSError as error:
        raise CheckpointError(f"cannot write {directory!r}: {error.strerror}") from error
    return ExportedTable(*paths, size)


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[BinaryIO]:
    """A file that takes its name when all is well."""
    temporary = f"{path}.tmp{os.getpid()}"
    try:
        with open(temporary, "wb") as stream:
            yield stream
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _write_header(stream: BinaryIO, dtype: str, shape: tuple[int, ...]) -> None:
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
