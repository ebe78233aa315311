"""From a checkpoint with deltas to one without."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil

from mx_rec.checkpoint.manifest import Manifest
from mx_rec.checkpoint.saved_tables import (
    SavedTable,
    manifest_key,
    read_saved_tables,
    write_blocks,
)
from mx_rec.checkpoint.tensors import write_tensors
from mx_rec.errors import CheckpointError

_PIECE_BYTES = 1 << 30  # of values that are in memory, and in a session, at a time


def merge_checkpoint(prefix: str, target: str) -> dict[str, SavedTable]:
    """Writes a checkpoint of equal content whose tables are full files, with the MetaGraphDef if there is one.

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
    try:
        _write_dense(prefix, target, {manifest_key(name): table.text for name, table in merged.items()})
    except (IndexError, tf.errors.OpError) as error:
        raise CheckpointError(f"cannot write {target!r} from {prefix!r}: {error}") from error
    if os.path.exists(f"{prefix}.meta"):
        shutil.copyfile(f"{prefix}.meta", f"{target}.meta")
    return merged


def _write_dense(prefix: str, target: str, texts: dict[str, str]) -> None:
    """Writes the variables of `prefix`, and the manifests, to `target`, a piece of about a gigabyte at a time."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(prefix)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    pieces: list[list[str]] = [[]]
    size = 0
    for name in sorted(shapes):
        size += math.prod(shapes[name]) * dtypes[name].size
        if size > _PIECE_BYTES and pieces[-1]:
            pieces.append([])
            size = 0
        pieces[-1].append(name)
    # Of several pieces each is a checkpoint of its own first; TensorFlow then joins them by name.
    parts = [target if len(pieces) == 1 else f"{target}.part{number}" for number in range(len(pieces))]
    for names, part in zip(pieces, parts):
        write_tensors(part, {name: texts[name] if name in texts else reader.get_tensor(name) for name in names})
    if len(parts) > 1:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            session.run(
                tf.raw_ops.MergeV2Checkpoints(
                    checkpoint_prefixes=parts, destination_prefix=target, delete_old_dirs=False
                )
            )


def _full(table: SavedTable) -> Manifest:
    columns = {kind: each for kind, each in table.manifest.columns.items() if kind != "evicted"}
    return dataclasses.replace(table.manifest, columns=columns)
