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
    from mx_rec.graph.saved_model_files import LoadedSavedModel


@click.command(
    "inspect",
    short_help="Show tables, lookups and iterators of a graph file.",
    epilog=examples("recgraph inspect train.meta", "recgraph inspect export/17", "recgraph inspect train.pb --json"),
)
@click.argument("source", metavar="IN", type=GRAPH_PATH)
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def inspect_command(source: str, as_json: bool) -> None:
    """Shows the kind and size of a graph file, its tables, lookups, iterators and largest constants.

    A lookup is `moved` when its keys come from the input pipeline already, `movable` when `recgraph
    rewrite` would move it, and `stays` with a reason otherwise. Variables that plain TensorFlow looks up are
    listed with their lookups, what trains them, and whether `recgraph rewrite --convert` could make tables of them.

    Of a SavedModel all MetaGraphs are shown, each with its tags and signatures.
    """
    from mx_rec.cli.summary import summarize
    from mx_rec.graph.saved_model_files import LoadedSavedModel, load_graphs

    loaded = load_graphs(source)
    for warning in loaded.warnings:
        say(f"warning: '{source}': {warning}")
    summaries = [summarize(graph) for graph in loaded.graphs]
    if isinstance(loaded, LoadedSavedModel):
        _show_saved_model(loaded, summaries, as_json)
    elif as_json:
        click.echo(json.dumps(summaries[0].to_json(), indent=2))
    else:
        _show(summaries[0], loaded.title)


def _show_saved_model(loaded: LoadedSavedModel, summaries: Sequence[Summary], as_json: bool) -> None:
    if as_json:
        content = {"path": str(loaded.path), "kind": loaded.kind, "size_bytes": loaded.size_bytes}
        graphs = [summary.to_json() for summary in summaries]
        click.echo(json.dumps({**content, "meta_graphs": graphs}, indent=2))
        return
    count = f"{len(summaries)} MetaGraph{'s' if len(summaries) > 1 else ''}"
    stdout().print(f"{loaded.path}: {loaded.title}, {loaded.size_bytes:,} bytes, {count}", markup=False, soft_wrap=True)
    for graph, summary in zip(loaded.graphs, summaries):
        stdout().print()
        _show(summary, graph.title)


def _show(summary: Summary, title: str) -> None:
    console = stdout()
    if summary.tags is not None:
        console.print(f"tags: {', '.join(summary.tags) or '-'}", markup=False, soft_wrap=True)
        console.print(f"signatures: {', '.join(summary.signatures) or '-'}", markup=False, soft_wrap=True)
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
