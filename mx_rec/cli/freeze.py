"""`recgraph freeze`: a SavedModel without the op library."""

from __future__ import annotations

import click

from mx_rec.cli.console import UnusableFile, add_row, examples, plain_table, stdout
from mx_rec.cli.params import GRAPH_PATH, NAME_LIST


@click.command(
    "freeze",
    short_help="Write a SavedModel that needs no op library.",
    epilog=examples(
        "recgraph freeze export/1700000000 frozen/1",
        "recgraph freeze export/1700000000 frozen/1 --tags serve",
    ),
)
@click.argument("source", metavar="IN", type=GRAPH_PATH)
@click.argument("target", metavar="OUT", type=GRAPH_PATH)
@click.option(
    "--tags", type=NAME_LIST, default="serve", show_default=True, metavar="A,B", help="Of the graph to freeze."
)
def freeze_command(source: str, target: str, tags: tuple[str, ...]) -> None:
    """Writes the SavedModel IN to the new directory OUT with the ops of TensorFlow alone.

    Each table becomes a hash table of TensorFlow and a variable of its rows, so that any TensorFlow server of the
    same version serves OUT. It predicts what IN predicts: equal bit for bit, pooled lookups to rounding.
    The signatures and assets stay. What they do not need is left out: optimizer slots, counts, training.

    This command runs IN, so it needs the op library.

    Exit codes: 0 written, 2 bad usage, IN is no such SavedModel or OUT exists, 3 an op of IN cannot be frozen.
    """
    from mx_rec.errors import LibraryNotLoadedError
    from mx_rec.saved_model.freeze import freeze_saved_model

    try:
        sizes = freeze_saved_model(source, target, tags)
    except LibraryNotLoadedError as error:
        raise UnusableFile(str(error)) from error
    except OSError as error:
        raise UnusableFile(f"cannot write '{error.filename or target}': {error.strerror}") from error
    table = plain_table(f"Frozen tables of {target}", "table", "keys", "dim")
    for size in sizes:
        add_row(table, size.table_name, f"{size.keys:,}", size.dim)
    stdout().print(table)
