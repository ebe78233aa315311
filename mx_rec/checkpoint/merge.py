"""From a checkpoint with deltas to one without."""

from __future__ import annotations

import dataclasses
import os

from mx_rec.checkpoint.manifest import Manifest
from mx_rec.checkpoint.saved_tables import (
    SavedTable,
    read_saved_tables,
    table_of_key,
    write_blocks,
)
from mx_rec.errors import CheckpointError


def merge_checkpoint(prefix: str, target: str) -> dict[str, SavedTable]:
    """Writes a checkpoint of equal content whose tables are full files.

    Args:
        prefix: of the checkpoint.
        target: prefix of the new one; must not exist.

    Returns:
        The tables of the new one.

    Raises:
        CheckpointError: a file is missing or damaged, `target` exists, or it cannot be written.
    """
    import tensorflow as tf

    if os.path.exists(f"{target}.index"):
        raise CheckpointError(f"{target!r} exists; give another name")
    tables = read_saved_tables(prefix)
    merged = {
        name: write_blocks(target, number, _full(table), table.blocks(history=True))
        for number, (name, table) in enumerate(sorted(tables.items()))
    }
    reader = tf.train.load_checkpoint(prefix)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        names, tensors = [], []
        for name in sorted(reader.get_variable_to_shape_map()):
            table_name = table_of_key(name)
            names.append(name)
            tensors.append(
                tf.constant(merged[table_name].text) if table_name in merged else tf.constant(reader.get_tensor(name))
            )
        session.run(
            tf.raw_ops.SaveV2(prefix=target, tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors)
        )
    return merged


def _full(table: SavedTable) -> Manifest:
    columns = {kind: each for kind, each in table.manifest.columns.items() if kind != "evicted"}
    return dataclasses.replace(table.manifest, columns=columns)
