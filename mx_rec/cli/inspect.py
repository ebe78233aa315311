"""`recgraph inspect`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from mx_rec.cli.console import add_row, examples, plain_table, say, stdout
from mx_rec.cli.params import GRAPH_PATH

if TYPE_CHECKING:
    from mx_rec.cli.summary import Summary


@click.command(
    "inspect",
    short_help="Show tables, lookups and iterators of a graph file.",
    epilog=examples("recgraph inspect train.meta", "recgraph inspect train.pb --json"),
)
@click.argument("source", metavar="IN", type=GRAPH_PATH)
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def inspect_command(source: str, as_json: bool) -> None:
    """Shows the kind and size of a graph file, its tables, lookups, iterators and largest constants.

    A lookup is `moved` when its keys come from the input pipeline already, `movable` when `recgraph
    rewrite` would move it, and `stays` with a reason otherwise. Variables that plain TensorFlow looks up are
    listed with their lookups, what trains them, and whether `recgraph rewrite --convert` could make tables of them.
    """
    from mx_rec.cli.summary import summarize
    from mx_rec.graph.files import load_graph

    loaded = load_graph(source)
    for warning in loaded.warnings:
        say(f"warning: '{source}': {warning}")
    summary = summarize(loaded)
    if as_json:
        click.echo(json.dumps(summary.to_json(), indent=2))
        return
    _show(summary, loaded.title)


def _show(summary: Summary, title: str) -> None:
    console = stdout()
    console.print(
        f"{summary.path}: {title}, {summary.size_bytes:,} bytes, {summary.nodes:,} nodes, "
        f"{summary.functions:,} functions, graph version {summary.producer}",
        markup=False,
        soft_wrap=True,
    )
    for note in summary.notes:
        console.print(note, markup=False, soft_wrap=True)
    _show_rows("Tables", ("table", "dim", "initializer", "train lookups", "eval lookups"), _table_rows(summary))
    _show_rows("Lookups", ("lookup", "table", "side", "ids", "iterator", "state"), _lookup_rows(summary))
    columns = ("variable", "shape", "lookups", "trained by", "state")
    _show_rows("Variables that plain TensorFlow looks up", columns, _static_rows(summary))
    _show_rows("Iterators", ("iterator", "kind", "datasets", "batches"), _iterator_rows(summary))
    _show_rows("Largest constants", ("constant", "dtype", "shape", "bytes"), _constant_rows(summary))


def _show_rows(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table, or nothing when it has no rows."""
    cells = list(rows)
    if not cells:
        return
    table = plain_table(title, *columns)
    for row in cells:
        add_row(table, *row)
    console = stdout()
    console.print()
    console.print(table)


def _table_rows(summary: Summary) -> Iterable[Sequence[Any]]:
    for table in summary.tables:
        yield table.name, table.dim, table.initializer, table.train_lookups, table.eval_lookups


def _lookup_rows(summary: Summary) -> Iterable[Sequence[Any]]:
    for lookup in summary.lookups:
        state = f"{lookup.state}: {lookup.reason}" if lookup.reason else lookup.state
        yield lookup.name, lookup.table, lookup.side, lookup.ids or "-", lookup.iterator or "-", state


def _static_rows(summary: Summary) -> Iterable[Sequence[Any]]:
    for variable in summary.static_variables:
        state = f"{variable.state}: {variable.reason}" if variable.reason else variable.state
        yield variable.name, variable.shape, variable.patterns, variable.trained_by or "-", state


def _iterator_rows(summary: Summary) -> Iterable[Sequence[Any]]:
    for iterator in summary.iterators:
        datasets, batches = (", ".join(names) or "-" for names in (iterator.datasets, iterator.batches))
        yield iterator.name, iterator.kind, datasets, batches


def _constant_rows(summary: Summary) -> Iterable[Sequence[Any]]:
    for constant in summary.largest_constants:
        yield constant.name, constant.dtype, list(constant.shape), f"{constant.size_bytes:,}"
