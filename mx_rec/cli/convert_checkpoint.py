"""`recgraph convert-checkpoint`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from mx_rec.cli.console import UnusableFile, examples
from mx_rec.cli.params import GRAPH_PATH

if TYPE_CHECKING:
    import numpy as np

    from mx_rec.checkpoint import Rows
    from mx_rec.graph.origins import SavedVariable, TableOrigin

_BLOCK_ELEMENTS = 1 << 20


@click.command(
    "convert-checkpoint",
    short_help="Take trained values into the tables of a converted graph.",
    epilog=examples(
        "recgraph convert-checkpoint converted.meta old/model.ckpt-100 new/model.ckpt-100",
        "recgraph convert-checkpoint converted/1 export/1700000000 new/model.ckpt-100",
    ),
)
@click.argument("graph", metavar="GRAPH", type=GRAPH_PATH)
@click.argument("source", metavar="OLD", type=GRAPH_PATH)
@click.argument("target", metavar="NEW", type=GRAPH_PATH)
def convert_checkpoint_command(graph: str, source: str, target: str) -> None:
    """Writes the checkpoint NEW for GRAPH, which `recgraph rewrite --convert` has made, from OLD, a checkpoint of the
    graph of before.

    The variables that became tables, and their optimizer slots, become the tables' files beside NEW; all other
    variables are copied. Slots that OLD does not have at all begin anew. OLD and NEW are prefixes, such as
    `model.ckpt-100`, or SavedModels, which stands for their variables; a SavedModel as NEW must have none yet. GRAPH
    may be a SavedModel too. Exit codes: 0 written, 2 bad usage, or something that cannot be read, written or converted.
    """
    from mx_rec.errors import CheckpointError
    from mx_rec.graph.origins import table_origins
    from mx_rec.graph.saved_model_files import load_graphs, variables_prefix

    # The MetaGraphs of a SavedModel have the same tables, or they would not share one checkpoint.
    origins = table_origins(load_graphs(graph).graphs[0].graph_def.node)
    if not origins:
        raise click.UsageError(f"GRAPH: '{graph}' has no tables that 'recgraph rewrite --convert' has made")
    source = variables_prefix(source)
    target = _new_prefix(target, variables_prefix(target))
    if os.path.realpath(source) == os.path.realpath(target):
        raise click.UsageError("NEW must be another prefix than OLD")
    try:
        for line in convert_checkpoint(source, target, origins):
            click.echo(line)
    except (CheckpointError, OSError) as error:
        raise UnusableFile(str(error)) from error


def _new_prefix(given: str, prefix: str) -> str:
    """Where to write, if the variables of a SavedModel are not in the way."""
    if prefix != given and os.path.exists(f"{prefix}.index"):
        raise click.UsageError(f"NEW: the SavedModel '{given}' has variables already; give one that has none")
    if prefix != given:
        os.makedirs(os.path.dirname(prefix), exist_ok=True)
    return prefix


def convert_checkpoint(source: str, target: str, origins: Sequence[TableOrigin]) -> Iterator[str]:
    """Writes the new checkpoint; says what each table got.

    Raises:
        UnusableFile, CheckpointError: one of the checkpoints cannot be read, written or converted.
    """
    import numpy as np
    import tensorflow as tf

    from mx_rec.checkpoint import manifest_key
    from mx_rec.graph.object_graphs import OBJECT_GRAPH_KEY, without_tensors

    try:
        reader = tf.train.load_checkpoint(source)
        shapes = reader.get_variable_to_shape_map()
    except (ValueError, tf.errors.OpError) as error:
        raise UnusableFile(f"OLD: cannot read the checkpoint '{source}': {str(error).splitlines()[0]}") from error
    gone: set[str] = set()
    tensors: dict[str, Any] = {}
    all_have_slots = [_check(source, shapes, origin) for origin in origins]  # before anything is written
    for number, (origin, has_slots) in enumerate(zip(origins, all_have_slots)):
        saved = _write_table(reader, target, origin, number, has_slots)
        tensors[manifest_key(origin.table_name)] = np.array(saved.text, np.object_)
        gone.update([*origin.variable.names, *(name for slot in origin.slots for name in slot.names)])
        slots = f" with the slots of {origin.optimizer}" if has_slots else ""
        if origin.slots and not has_slots:
            slots = f"; OLD has no slots of {origin.optimizer}, so they begin anew"
        yield f"table '{origin.table_name}': {sum(origin.rows):,} rows of {origin.variable.names[0]!r}{slots}"
    copied = sorted(set(shapes) - gone)
    tensors.update((name, np.asarray(reader.get_tensor(name))) for name in copied)
    if OBJECT_GRAPH_KEY in tensors:
        objects = without_tensors(reader.get_tensor(OBJECT_GRAPH_KEY), gone)
        tensors[OBJECT_GRAPH_KEY] = np.array(objects, np.object_)
    _save(target, tensors)
    yield f"{len(copied)} other tensors copied"


def _check(source: str, shapes: dict[str, list[int]], origin: TableOrigin) -> bool:
    """Whether the old checkpoint has the slots of a table; an error if it lacks anything else."""
    if not origin.same_ids:
        raise UnusableFile(
            f"table '{origin.table_name}' was converted with --drop-modulo: its keys are not the rows of variable "
            f"{origin.variable.names[0]!r}, so the values of '{source}' belong to no keys; convert without it"
        )
    has_slots = any(name in shapes for slot in origin.slots for name in slot.names)
    for saved in (origin.variable, *(origin.slots if has_slots else ())):
        missing = [name for name in saved.names if name not in shapes]
        if missing:
            raise UnusableFile(
                f"OLD: '{source}' has no tensor {missing[0]!r}, from which table '{origin.table_name}' was made"
            )
        for name in saved.names:
            if len(shapes[name]) != 2 or shapes[name][1] != origin.dim:
                raise UnusableFile(
                    f"OLD: {name!r} has shape {shapes[name]} in '{source}'; expected [rows, {origin.dim}], since table "
                    f"'{origin.table_name}' of the graph has dim {origin.dim}: give the checkpoint of the graph that "
                    "was converted"
                )
        rows = sum(shapes[name][0] for name in saved.names)
        if rows != sum(origin.rows):
            raise UnusableFile(
                f"OLD: {saved.names[0]!r} has {rows} rows in '{source}'; the graph has {sum(origin.rows)}"
            )
    return has_slots


def _write_table(reader: Any, target: str, origin: TableOrigin, file_number: int, has_slots: bool) -> Any:
    import numpy as np

    from mx_rec.checkpoint import Manifest
    from mx_rec.checkpoint.saved_tables import write_blocks

    keys = _keys(origin)
    arrays = [_whole(reader, saved) for saved in (origin.variable, *(origin.slots if has_slots else ()))]
    initials = () if has_slots else origin.slot_initials
    manifest = Manifest(
        origin.table_name,
        arrays[0].shape[1],
        key_dtype="int64",
        optimizer=origin.optimizer,
        slot_initials=origin.slot_initials,
        size=len(keys),
    )
    return write_blocks(target, file_number, manifest, _blocks(np.asarray(keys), arrays, initials))


def _keys(origin: TableOrigin) -> np.ndarray:
    """The id of each row, in the order in which a checkpoint has them."""
    import numpy as np

    from mx_rec.graph.origins import MOD

    if origin.strategy != MOD:
        return np.arange(sum(origin.rows), dtype=np.int64)
    step = len(origin.rows)
    return np.concatenate([np.arange(count, dtype=np.int64) * step + part for part, count in enumerate(origin.rows)])


def _whole(reader: Any, saved: SavedVariable) -> np.ndarray:
    import numpy as np

    parts = [reader.get_tensor(name) for name in saved.names]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _blocks(keys: np.ndarray, arrays: Sequence[np.ndarray], initials: Sequence[float]) -> Iterator[Rows]:
    """The rows of a table: the columns of the arrays, then those of a slot for each initial value."""
    import numpy as np

    from mx_rec.checkpoint import Rows

    dim = arrays[0].shape[1]
    step = max(1, _BLOCK_ELEMENTS // (dim * (len(arrays) + len(initials))))
    for begin in range(0, len(keys), step):
        part = slice(begin, begin + step)
        fresh = [np.full([len(keys[part]), dim], value, np.float32) for value in initials]
        rows = np.concatenate([*(array[part] for array in arrays), *fresh], axis=1)
        yield Rows("rows", {"keys": keys[part], "rows": rows})


def _save(prefix: str, tensors: dict[str, Any]) -> None:
    import tensorflow as tf

    from mx_rec.checkpoint.tensors import write_tensors

    try:
        write_tensors(prefix, tensors)
    except tf.errors.OpError as error:
        raise UnusableFile(f"NEW: cannot write the checkpoint '{prefix}': {error.message}") from error
