"""`recgraph inspect`."""

from __future__ import annotations

import click

from mx_rec.cli.params import GRAPH_PATH


@click.command("inspect", short_help="Show tables, lookups and iterators of a graph file.")
@click.argument("source", metavar="IN", type=GRAPH_PATH)
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def inspect_command(source: str, as_json: bool) -> None:
    """Shows."""
