"""`recgraph diff`."""

from __future__ import annotations

import json
from typing import Any

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

    Of SavedModels the MetaGraphs of equal tags are compared; a graph file with the only one of a SavedModel.
    """
    from mx_rec.graph.diff import diff_forms

    first, second = (_forms(path) for path in (before, after))
    if len(first) > 1 or len(second) > 1:
        return _diff_parts(first, second, as_json)
    difference = diff_forms(next(iter(first.values())), next(iter(second.values())))
    if as_json:
        click.echo(json.dumps(difference.to_json(), indent=2))
    elif not difference.equal:
        click.echo(difference.text())
    return ExitCode.OK if difference.equal else ExitCode.DIFFERENT


def _forms(path: str) -> dict[str, Any]:
    """The form of each graph of a file by its tags. A file may take much memory, its form takes little."""
    from mx_rec.graph.diff import graph_form
    from mx_rec.graph.saved_model_files import load_graphs

    forms: dict[str, Any] = {}
    for graph in load_graphs(path).graphs:
        tags = "-" if graph.tags is None else ", ".join(sorted(graph.tags)) or "-"
        count = sum(key.partition(" (")[0] == tags for key in forms)
        forms[f"{tags} ({count + 1})" if count else tags] = graph_form(graph.graph_def)
    return forms


def _diff_parts(first: dict[str, Any], second: dict[str, Any], as_json: bool) -> int:
    """Of SavedModels with several MetaGraphs."""
    from mx_rec.graph.diff import diff_forms

    parts = {tags: diff_forms(first[tags], second[tags]) for tags in first if tags in second}
    missing = [("-", tags) for tags in first if tags not in second] + [
        ("+", tags) for tags in second if tags not in first
    ]
    if as_json:
        graphs = {tags: difference.to_json() for tags, difference in parts.items()}
        only = {side: [tags for sign, tags in missing if sign == side] for side in "-+"}
        click.echo(json.dumps({"only_a": only["-"], "only_b": only["+"], "meta_graphs": graphs}, indent=2))
    else:
        for sign, tags in missing:
            click.echo(f"{sign} MetaGraph of tags {tags}")
        for tags, difference in parts.items():
            if not difference.equal:
                click.echo(f"MetaGraph of tags {tags}:")
                click.echo(difference.text())
    equal = not missing and all(difference.equal for difference in parts.values())
    return ExitCode.OK if equal else ExitCode.DIFFERENT
