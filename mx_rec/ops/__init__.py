"""Typed wrappers of the C++ ops. The op library is loaded when the first op is made."""

from mx_rec.ops.library import library_path, load_library
from mx_rec.ops.registry import TableStats, graph_was_run, release_all_tables, table_stats
from mx_rec.ops.table_ops import (
    apply_lazy_adam_by_address,
    apply_sgd_by_address,
    find,
    find_or_insert,
    fresh_rows,
    gather_by_address,
    look_ahead,
    offsets,
    table_capacity,
    table_export,
    table_handle,
    table_size,
    unique,
)

__all__ = [
    "TableStats",
    "apply_lazy_adam_by_address",
    "apply_sgd_by_address",
    "find",
    "find_or_insert",
    "fresh_rows",
    "gather_by_address",
    "graph_was_run",
    "library_path",
    "load_library",
    "look_ahead",
    "offsets",
    "release_all_tables",
    "table_capacity",
    "table_export",
    "table_handle",
    "table_size",
    "table_stats",
    "unique",
]
