"""Files of saved tables, read and written with numpy alone; see docs/checkpoint-format.md."""

from mx_rec.checkpoint.manifest import Manifest, SavedFile
from mx_rec.checkpoint.saved_tables import SavedTable, manifest_key, read_saved_table, write_saved_table
from mx_rec.checkpoint.table_file import Rows, TableFile

__all__ = [
    "Manifest",
    "Rows",
    "SavedFile",
    "SavedTable",
    "TableFile",
    "manifest_key",
    "read_saved_table",
    "write_saved_table",
]
