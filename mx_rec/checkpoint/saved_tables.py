"""Tables in a checkpoint: a manifest in TensorFlow's part of it, and files beside."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from mx_rec.checkpoint.manifest import Column, Manifest, SavedFile, files_of
from mx_rec.checkpoint.table_file import Rows, TableFile, write_table_file
from mx_rec.errors import CheckpointError

NO_CANDIDATE = -1
"""The count, in a delta, of a key that is no candidate for admission any more."""

_PREFIX, _SUFFIX = "mx_rec/", "/manifest"


def manifest_key(table_name: str) -> str:
    """The name under which a checkpoint holds the manifest of a table, a string scalar."""
    return f"{_PREFIX}{table_name}{_SUFFIX}"


def table_of_key(key: str) -> Optional[str]:
    """The table whose manifest a checkpoint holds under `key`; None if it is something else."""
    if key.startswith(_PREFIX) and key.endswith(_SUFFIX):
        return key[len(_PREFIX) : -len(_SUFFIX)] or None
    return None


@dataclasses.dataclass(frozen=True)
class SavedTable:
    """A table of a checkpoint.

    Attributes:
        prefix: of the checkpoint.
        name: of the table.
        manifest: of the newest file.
        files: all files it consists of: one, or a full one and deltas, in order.
        text: what the checkpoint holds, the input of `mx_rec.ops.table_restore`.
    """

    prefix: str
    name: str
    manifest: Manifest
    files: tuple[SavedFile, ...]
    text: str

    @classmethod
    def decode(cls, prefix: str, name: str, text: str) -> SavedTable:
        """From what a checkpoint holds."""
        manifest, files = Manifest.decode(text, repr(prefix)), files_of(text)
        if not files:
            raise CheckpointError(f"{prefix!r}: the manifest of table {name!r} names no file")
        return cls(prefix, name, manifest, files, text)

    def open_files(self) -> list[TableFile]:
        """Its files in order, opened; CheckpointError, naming the file, if one is missing or damaged."""
        return [TableFile(self.prefix + file.suffix, file) for file in self.files]

    def verify(self) -> None:
        """Checks every byte; CheckpointError, naming the file, if something is wrong."""
        for file in self.open_files():
            file.verify()

    def blocks(self, history: bool = False) -> Iterator[Rows]:
        """Its rows in blocks of bounded size, each key once, newest file first; as the library restores them.

        Args:
            history: also the keys that wait for admission, in blocks of kind `history`.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        kinds = {"rows", "history"} if history else {"rows"}
        files = self.open_files()
        if len(files) == 1:
            yield from files[0].blocks(kinds)
            return
        # What newer files have said of a key. Blocks of a file are in no order of kinds, so rows come first.
        evicted: set[int] = set()
        with_row: set[int] = set()
        counted: set[int] = set()
        for file in reversed(files):
            is_oldest = file is files[0]
            evicted_here: set[int] = set()
            for block in file.blocks():
                keys = block.columns["keys"].tolist()
                if block.kind == "evicted":
                    evicted_here.update(keys)
                elif block.kind == "rows":
                    yield self._chosen(block, [key not in with_row and key not in evicted for key in keys])
                    if not is_oldest:  # a full file has each key once, with a row or waiting for one
                        with_row.update(keys)
            if history and file.manifest.history:
                for block in file.blocks({"history"}):
                    keys = block.columns["keys"].tolist()
                    stale = [key in with_row or key in evicted or key in counted for key in keys]
                    yield self._chosen(block, ~np.array(stale, bool) & (block.columns["counts"] != NO_CANDIDATE))
                    if not is_oldest:
                        counted.update(keys)
            evicted |= evicted_here

    def _chosen(self, block: Rows, chosen: Any) -> Rows:
        columns = {name: array[np.asarray(chosen, bool)] for name, array in block.columns.items()}
        return Rows(block.kind, {**columns, **self._with_slots(columns)})

    def _with_slots(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Rows of a file from before there were slots get the values that slots begin with."""
        rows = columns.get("rows")
        if rows is None or rows.shape[1] == self.manifest.stride:
            return {}
        initial = np.repeat(np.array(self.manifest.slot_initials, np.float32), self.manifest.dim)
        return {"rows": np.concatenate([rows, np.broadcast_to(initial, (len(rows), len(initial)))], axis=1)}


def read_saved_tables(prefix: str) -> dict[str, SavedTable]:
    """The tables of a checkpoint by name.

    Args:
        prefix: of the checkpoint, such as `model.ckpt-100`.

    Raises:
        CheckpointError: there is no such checkpoint, or it cannot be read.
    """
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(prefix)
        names = [(key, table_of_key(key)) for key in sorted(reader.get_variable_to_shape_map())]
        return {
            name: SavedTable.decode(prefix, name, reader.get_tensor(key).decode())
            for key, name in names
            if name is not None
        }
    except _unreadable() as error:
        raise CheckpointError(f"cannot read the checkpoint {prefix!r}: {_first_line(error)}") from error


def verify_dense(prefix: str) -> None:
    """Reads what TensorFlow itself keeps in a checkpoint, a tensor at a time; it checks each by its checksum.

    Raises:
        CheckpointError: something is missing or damaged; names the tensor.
    """
    import tensorflow as tf

    key = None
    try:
        reader = tf.train.load_checkpoint(prefix)
        for key in sorted(reader.get_variable_to_shape_map()):
            reader.get_tensor(key)
    except _unreadable() as error:
        what = "" if key is None else f": {key!r}"
        raise CheckpointError(f"cannot read the checkpoint {prefix!r}{what}: {_first_line(error)}") from error


def _unreadable() -> tuple[type[Exception], ...]:
    """What TensorFlow raises for a damaged checkpoint; an IndexError is its OutOfRange, of a file that is too short."""
    import tensorflow as tf

    return ValueError, RuntimeError, IndexError, tf.errors.OpError


def read_saved_table(prefix: str, name: str) -> SavedTable:
    """One table of a checkpoint by its saved name; CheckpointError, listing the tables, if there is none."""
    tables = read_saved_tables(prefix)
    if name not in tables:
        raise CheckpointError(f"{prefix!r} has no table {name!r}; it has {', '.join(map(repr, tables)) or 'none'}")
    return tables[name]


def write_saved_table(
    prefix: str,
    name: str,
    keys: np.ndarray,
    rows: np.ndarray,
    *,
    file_number: int,
    key_dtype: str = "int64",
    optimizer: str = "",
    slot_initials: Sequence[float] = (),
    slots: Sequence[np.ndarray] = (),
    steps: int = 0,
    notes: Optional[Mapping[str, str]] = None,
) -> SavedTable:
    """Writes the files of a table from arrays, without a session or the op library.

    The checkpoint `prefix` must then hold the result's `text` as a string scalar under `manifest_key(name)`.

    Args:
        prefix: of the checkpoint.
        name: of the table.
        keys: int64 [n], distinct.
        rows: float32 [n, dim].
        file_number: different for the tables of the checkpoint, 0..1679615.
        key_dtype: `int64` or `int32`.
        optimizer: whose slots there are: `LazyAdam` (momentum, velocity), `Adagrad` (accumulator) or `Ftrl` (accum,
            linear).
        slot_initials: what each slot begins with in a new row.
        slots: float32 [n, dim] each.
        steps: updates that the optimizer has done.
        notes: kept, for the reader.

    Raises:
        ValueError: arrays do not go together, or a key occurs twice.
        CheckpointError: the file cannot be written.
    """
    keys = np.ascontiguousarray(keys, np.int64)
    arrays = [np.asarray(array) for array in (rows, *slots)]
    if keys.ndim != 1 or any(array.ndim != 2 or array.shape != arrays[0].shape for array in arrays):
        raise ValueError(f"table {name!r}: keys must be [n], rows and slots [n, dim] each")
    if len(arrays[0]) != len(keys):
        raise ValueError(f"table {name!r}: {len(keys)} keys do not go with {len(arrays[0])} rows")
    if len(slots) != len(slot_initials):
        raise ValueError(f"table {name!r}: {len(slots)} slots do not go with {len(slot_initials)} initial values")
    if len(np.unique(keys)) != len(keys):
        raise ValueError(f"table {name!r}: keys must be distinct")
    manifest = Manifest(
        name,
        arrays[0].shape[1],
        key_dtype=key_dtype,
        optimizer=optimizer,
        slot_initials=tuple(slot_initials),
        steps=steps,
        updates=steps,
        size=len(keys),
        notes=dict(notes or {}),
    )
    return write_blocks(prefix, file_number, manifest, _blocks(keys, arrays))


def write_blocks(prefix: str, file_number: int, manifest: Manifest, blocks: Iterable[Rows]) -> SavedTable:
    """Writes a full file of blocks; `manifest.columns` says what they have, by default keys and rows.

    See `write_saved_table`.
    """
    if not manifest.columns:
        manifest.columns = {"rows": (Column("keys", "int64"), Column("rows", "float32", manifest.stride))}
    manifest.is_delta, manifest.base = False, ()
    os.makedirs(os.path.dirname(prefix) or ".", exist_ok=True)
    file = write_table_file(prefix, file_number, manifest, blocks)
    return SavedTable.decode(prefix, manifest.table, f"{manifest.encode()}file={file.encode()}\n")


def _blocks(keys: np.ndarray, arrays: Sequence[np.ndarray]) -> Iterator[Rows]:
    step = max(1, (1 << 18) // sum(array.shape[1] or 1 for array in arrays))
    for begin in range(0, len(keys), step):
        part = slice(begin, begin + step)
        rows = np.concatenate([np.asarray(array[part], np.float32) for array in arrays], axis=1)
        yield Rows("rows", {"keys": keys[part], "rows": rows})


def _first_line(error: Any) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
