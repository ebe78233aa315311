"""Tables of the last save as arrays in files."""

from __future__ import annotations

from typing import Any, Optional

from mx_rec import ops
from mx_rec.checkpoint.export import ExportedTable, directory_of_table, export_table
from mx_rec.checkpoint.saved_tables import read_saved_tables
from mx_rec.util.log import logger


def export(
    table_list: Any = None, checkpoint: Optional[str] = None, directory: Optional[str] = None
) -> dict[str, ExportedTable]:
    """Writes the keys and embeddings of saved tables as `.npy` files, in both storage modes.

    Per table `<directory>/<table>/keys.npy`, int64 [n], and `embeddings.npy`, float32 [n, dim], in the same order.
    Read from the checkpoint a block at a time, so a table may be larger than the memory that is left.

    Args:
        table_list: tables or names of tables, or one of them; None for all. One that the checkpoint has not is
            skipped with a warning.
        checkpoint: prefix of the checkpoint; by default the last one that this process has saved.
        directory: by default `<checkpoint>-export`.

    Returns:
        What was written, by table.

    Raises:
        EnvironmentError: this process has saved no checkpoint, and none is given.
        CheckpointError: the checkpoint is missing or damaged, or nothing can be written; names the file.
    """
    prefix = checkpoint or ops.last_saved_prefix()
    if prefix is None:
        raise EnvironmentError("export: this process has saved no checkpoint yet; save one, or pass checkpoint=")
    tables = read_saved_tables(prefix)
    if isinstance(table_list, str) or hasattr(table_list, "table_name"):
        table_list = [table_list]
    names = list(tables) if table_list is None else [getattr(table, "table_name", table) for table in table_list]
    unknown = [name for name in names if name not in tables]
    if unknown:
        logger.warning("export: %r has no table %s", prefix, ", ".join(map(repr, unknown)))
    into = directory or f"{prefix}-export"
    return {name: export_table(tables[name], directory_of_table(into, name)) for name in names if name in tables}
