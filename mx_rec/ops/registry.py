"""What the op library tells without a Session."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import enum
import functools
from collections.abc import Iterator, Sequence
from typing import Optional

from mx_rec.ops.library import library_path, load_library


@dataclasses.dataclass(frozen=True)
class TableStats:
    """State of a live table.

    Attributes:
        size: visible keys.
        capacity: rows that fit without new memory.
        stride: float32 values of a row, slots included.
        update_count: optimizer steps applied.
        index_bytes: bytes of the key index.
        row_bytes: bytes of the rows handed out.
        other_bytes: bytes of keys, counts, marks and candidates.
        candidates: keys that are counted and have no row yet.
        evicted_keys: keys that lost their rows so far.
        evicted_candidates: candidates that were forgotten so far.
        rows_waiting: rows of evicted keys that no other key has yet.
    """

    size: int
    capacity: int
    stride: int
    update_count: int
    index_bytes: int
    row_bytes: int
    other_bytes: int
    candidates: int
    evicted_keys: int
    evicted_candidates: int
    rows_waiting: int


@functools.lru_cache(maxsize=1)
def _c_library() -> ctypes.CDLL:
    load_library()  # so that TensorFlow's symbols are there
    library = ctypes.CDLL(str(library_path()))
    library.mxrec_graph_was_run.argtypes = [ctypes.c_char_p]
    library.mxrec_graph_was_run.restype = ctypes.c_int
    library.mxrec_beginning_was_run.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64), ctypes.c_int]
    library.mxrec_beginning_was_run.restype = ctypes.c_int
    library.mxrec_table_stats.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_int64)]
    library.mxrec_table_stats.restype = ctypes.c_int
    library.mxrec_request_save.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int64]
    library.mxrec_request_save.restype = None
    library.mxrec_end_save.argtypes = [ctypes.c_char_p, ctypes.c_int]
    library.mxrec_end_save.restype = None
    library.mxrec_last_saved_prefix.argtypes = [ctypes.c_char_p, ctypes.c_int64]
    library.mxrec_last_saved_prefix.restype = ctypes.c_int64
    library.mxrec_evict.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_int64)]
    library.mxrec_evict.restype = ctypes.c_int
    library.mxrec_release_all.argtypes = []
    library.mxrec_release_all.restype = ctypes.c_int
    return library


def graph_was_run(token: str) -> bool:
    """Whether a session has run a graph whose table handles carry this token."""
    return bool(_c_library().mxrec_graph_was_run(token.encode()))


def beginning_was_run(node_names: Sequence[str], incarnations: Sequence[int]) -> bool:
    """Whether a session has run a graph of exactly the first few of these nodes.

    Args:
        node_names: in order of creation.
        incarnations: of the devices of the sessions in question (`Session.list_devices`), which tell sessions apart.
    """
    values = (ctypes.c_uint64 * len(incarnations))(*incarnations)
    return bool(_c_library().mxrec_beginning_was_run("\n".join(node_names).encode(), values, len(values)))


def table_stats(table_name: str) -> Optional[TableStats]:
    """State of the newest live table of that name, None if no session has one."""
    values = (ctypes.c_int64 * len(dataclasses.fields(TableStats)))()
    if not _c_library().mxrec_table_stats(table_name.encode(), values):
        return None
    return TableStats(*values)


class SaveKind(enum.IntEnum):
    """What a save of tables is for."""

    PLAIN = 0
    """For itself; it leaves the files that deltas build on alone."""
    BASE = 1
    """Full; later deltas may build on it."""
    DELTA = 2
    """What has changed since the last base or delta that is complete; full if there is none."""


@contextlib.contextmanager
def saving(prefix: str, kind: SaveKind, least_count: int = 0) -> Iterator[None]:
    """What a Saver does to the checkpoint `prefix` meanwhile is of this kind, and complete unless an error is raised.

    Args:
        prefix: exactly as the Saver gives it to its ops.
        kind: of the save.
        least_count: keys that were met fewer times since the last save are left out of a delta.
    """
    library = _c_library()
    library.mxrec_request_save(prefix.encode(), kind, least_count)
    complete = False
    try:
        yield
        complete = True
    finally:
        library.mxrec_end_save(prefix.encode(), complete)


def last_saved_prefix() -> Optional[str]:
    """The checkpoint that a table of this process was last saved to, None if none was."""
    library = _c_library()
    length = library.mxrec_last_saved_prefix(None, 0)
    while True:
        text = ctypes.create_string_buffer(length + 1)
        now = library.mxrec_last_saved_prefix(text, length + 1)
        if now <= length:
            return text.value.decode() or None
        length = now


def evict_from_table(table_name: str) -> Optional[int]:
    """Evicts from the newest live table of that name by its `eviction_threshold`.

    Returns:
        How many keys lost their rows; None if no session has such a table, or it has no such threshold.
    """
    evicted = ctypes.c_int64()
    if not _c_library().mxrec_evict(table_name.encode(), ctypes.byref(evicted)):
        return None
    return evicted.value


def release_all_tables() -> int:
    """Frees all live tables of the process; returns how many there were.

    Ops on a released table raise `FailedPreconditionError`.
    """
    if not load_library.cache_info().currsize:
        return 0
    return int(_c_library().mxrec_release_all())
