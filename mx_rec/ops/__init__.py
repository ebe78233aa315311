"""Typed wrappers of the C++ ops. The op library is loaded when the first op is made."""

from mx_rec.ops.library import library_path, load_library
from mx_rec.ops.registry import (
    TableStats,
    beginning_was_run,
    graph_was_run,
    release_all_tables,
    table_stats,
)
from mx_rec.ops.table_ops import (
    apply_adagrad_by_address,
    apply_ftrl_by_address,
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
    trained_positions,
    unique,
)

__all__ = [
    "TableStats",
    "apply_adagrad_by_address",
    "apply_ftrl_by_address",
    "apply_lazy_adam_by_address",
    "apply_sgd_by_address",
    "beginning_was_run",
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
    "trained_positions",
    "unique",
]
