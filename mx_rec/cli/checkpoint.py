"""`recgraph checkpoint`."""

from __future__ import annotations

import json
import os
from typing import Any, Optional

import click

from mx_rec.cli.console import ExitCode, add_row, examples, plain_table, stdout
from mx_rec.cli.params import NAME_LIST


@click.group("checkpoint", short_help="List, check, export and merge saved tables.")
def checkpoint_command() -> None:
    """Works on the tables of checkpoints, without a session and without the op library.

    A CHECKPOINT is the prefix of one (such as model.ckpt-100) or a directory, which stands for all that are complete
    in it.
    """


@checkpoint_command.command(
    "inspect",
    short_help="List the tables of checkpoints.",
    epilog=examples("recgraph checkpoint inspect model.ckpt-100", "recgraph checkpoint inspect models --json"),
)
@click.argument("checkpoint", metavar="CHECKPOINT")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def inspect_command(checkpoint: str, as_json: bool) -> int:
    """Lists tables with their keys, dim, optimizer, steps and files; JSON has their notes too. Reads no rows."""
    from mx_rec.checkpoint.saved_tables import read_saved_tables

    found = {prefix: read_saved_tables(prefix) for prefix in _prefixes(checkpoint)}
    if as_json:
        click.echo(
            json.dumps(
                {prefix: {name: _facts(table) for name, table in tables.items()} for prefix, tables in found.items()},
                indent=2,
            )
        )
        return ExitCode.OK
    table = plain_table("", "checkpoint", "table", "keys", "dim", "optimizer", "steps", "kind", "files", "bytes")
    for prefix, tables in found.items():
        for name, saved in tables.items():
            facts = _facts(saved)
            optimizer = facts["optimizer"] or "-"
            kind = f"delta of {facts['rows']} rows" if facts["kind"] == "delta" else "full"
            size = "missing" if facts["bytes"] is None else facts["bytes"]
            add_row(table, prefix, name, facts["keys"], facts["dim"], optimizer, facts["steps"], kind,
                    len(facts["files"]), size)  # fmt: skip
        if not tables:
            add_row(table, prefix, "(no tables)", "", "", "", "", "", "", "")
    stdout().print(table)
    return ExitCode.OK


@checkpoint_command.command(
    "verify",
    short_help="Check every byte of checkpoints.",
    epilog=examples("recgraph checkpoint verify model.ckpt-100", "recgraph checkpoint verify models"),
)
@click.argument("checkpoint", metavar="CHECKPOINT")
def verify_command(checkpoint: str) -> int:
    """Reads all files of tables, and all variables, and compares checksums.

    Exit code 1 if something is missing or damaged.
    """
    from mx_rec.checkpoint.versions import damage_of

    code = ExitCode.OK
    for prefix in _prefixes(checkpoint):
        damage = damage_of(prefix)
        click.echo(f"{prefix}: {'whole' if damage is None else damage}")
        if damage is not None:
            code = ExitCode.DIFFERENT
    return code


@checkpoint_command.command(
    "export",
    short_help="Write tables as .npy files.",
    epilog=examples("recgraph checkpoint export model.ckpt-100 arrays --tables user,item"),
)
@click.argument("checkpoint", metavar="CHECKPOINT")
@click.argument("directory", metavar="DIRECTORY")
@click.option("--tables", type=NAME_LIST, help="Names of tables, separated by commas; all by default.")
def export_command(checkpoint: str, directory: str, tables: Optional[tuple[str, ...]]) -> int:
    """Writes DIRECTORY/<table>/keys.npy, int64 [n], and embeddings.npy, float32 [n, dim], a block at a time."""
    from mx_rec.checkpoint.export import directory_of_table, export_table
    from mx_rec.checkpoint.saved_tables import read_saved_table, read_saved_tables

    found = read_saved_tables(checkpoint)
    for name in tables or found:
        into = directory_of_table(directory, name)
        exported = export_table(read_saved_table(checkpoint, name), into)
        click.echo(f"{name}: {exported.size} keys in {into}")
    return ExitCode.OK


@checkpoint_command.command(
    "merge",
    short_help="Write a checkpoint with deltas as a full one.",
    epilog=examples("recgraph checkpoint merge model.ckpt-160 merged/model.ckpt-160"),
)
@click.argument("checkpoint", metavar="CHECKPOINT")
@click.argument("target", metavar="TARGET")
def merge_command(checkpoint: str, target: str) -> int:
    """Writes the checkpoint TARGET with the same variables and, for each table, one full file.

    Keys, rows, slots, counts, times and keys that wait for admission are kept.
    """
    from mx_rec.checkpoint.merge import merge_checkpoint

    for name, table in merge_checkpoint(checkpoint, target).items():
        click.echo(f"{name}: {table.manifest.rows} keys")
    return ExitCode.OK


def _prefixes(checkpoint: str) -> list[str]:
    from mx_rec.checkpoint.versions import versions
    from mx_rec.errors import CheckpointError

    if not os.path.isdir(checkpoint):
        if not os.path.exists(f"{checkpoint}.index"):
            raise CheckpointError(f"{checkpoint!r} is neither a directory nor the prefix of a complete checkpoint")
        return [checkpoint]
    found = [each.prefix for each in versions(checkpoint)]
    if not found:
        raise CheckpointError(f"{checkpoint!r} has no complete checkpoint")
    return found


def _facts(table: Any) -> dict[str, Any]:
    manifest = table.manifest
    paths = [table.prefix + file.suffix for file in table.files]
    return {
        "keys": manifest.size,
        "dim": manifest.dim,
        "key_dtype": manifest.key_dtype,
        "optimizer": manifest.optimizer,
        "slots": len(manifest.slot_initials),
        "steps": manifest.steps,
        "updates": manifest.updates,
        "kind": "delta" if manifest.is_delta else "full",
        "rows": manifest.rows,
        "evicted": manifest.evicted,
        "candidates": manifest.history,
        "files": [os.path.basename(path) for path in paths],
        "bytes": sum(map(os.path.getsize, paths)) if all(map(os.path.exists, paths)) else None,
        "notes": manifest.notes,
    }
