"""`recgraph diff`."""

from __future__ import annotations

import json

import click

from mx_rec.cli.console import ExitCode, examples
from mx_rec.cli.params import GRAPH_PATH


@click.command(
    "diff",
    short_help="Compare two graph files.",
    epilog=examples("recgraph diff before.pb after.pb", "recgraph diff before.pbtxt after.meta --json"),
)
@click.argument("before", metavar="A", type=GRAPH_PATH)
@click.argument("after", metavar="B", type=GRAPH_PATH)
@click.option("--json", "as_json", is_flag=True, help="Write the difference as JSON.")
def diff_command(before: str, after: str, as_json: bool) -> int:
    """Compares the graphs of two files by structure.

    Node order, attribute order, spelled-out defaults, inferred shapes and version stamps do not count; the
    files may be of different kinds. Writes nothing for equal graphs. Exit code 0 when equal, 1 when
    different.
    """
    from mx_rec.graph.diff import diff_forms, graph_form
    from mx_rec.graph.files import load_graph

    # One after the other: a file may take much memory, its form takes little.
    difference = diff_forms(*(graph_form(load_graph(path).graph_def) for path in (before, after)))
    if as_json:
        click.echo(json.dumps(difference.to_json(), indent=2))
    elif not difference.equal:
        click.echo(difference.text())
    return ExitCode.OK if difference.equal else ExitCode.DIFFERENT
