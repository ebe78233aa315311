"""`recgraph plot`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mx_rec.cli.console import RewriteRefused, examples, say
from mx_rec.cli.params import GRAPH_PATH
from mx_rec.cli.soundness import sound_view

if TYPE_CHECKING:
    from mx_rec.cli.plotting.picture import Picture
    from mx_rec.graph.files import LoadedGraph
    from mx_rec.graph.view import GraphView

_FORMATS = (".svg", ".html", ".htm")
_MAX_SOURCES = 2


@click.command(
    "plot",
    short_help="Draw the lookups of a graph file as SVG or HTML.",
    epilog=examples(
        "recgraph plot train.meta lookups.svg",
        "recgraph plot train.meta rewrite.svg --rewritten",
        "recgraph plot train.meta train.rewritten.meta rewrite.html",
    ),
)
@click.argument("sources", metavar="IN [AFTER]", nargs=-1, required=True, type=GRAPH_PATH)
@click.argument("target", metavar="OUT", type=GRAPH_PATH)
@click.option("--rewritten", is_flag=True, help="Show IN and, below, what `recgraph rewrite IN` makes of it.")
def plot_command(sources: tuple[str, ...], target: str, rewritten: bool) -> None:
    """Draws where the parts of each lookup are: in the input pipeline, or at the step.

    OUT is an .svg picture or an .html page. Both need nothing from elsewhere and follow the reader's light or
    dark setting. With a second file, or --rewritten, both graphs are shown: what moved is on the other side of the
    iterator in the second. What is not about lookups is collapsed to counts of ops, and beyond 40 lookups the rest is
    counted too. Full names and op types are in the tooltips.

    The op library is not needed and nothing is run. OUT is written only on success and replaced in one step.
    """
    from mx_rec.cli.plotting.drawing import html_text, summary, svg_text
    from mx_rec.graph import files

    suffix = os.path.splitext(target)[1].lower()
    _check_usage(sources, target, suffix, rewritten)
    graphs = [graph for source in sources for graph in _load(source)]
    files.check_writable(target)
    pictures = _pictures(graphs, rewritten)
    names = " and ".join(dict.fromkeys(loaded.path.name for loaded in graphs))
    draw = svg_text if suffix == ".svg" else html_text
    files.write_atomically(target, draw(pictures, f"Lookups of {names}").encode())
    for picture in pictures:
        click.echo(f"{picture.title}: {summary(picture)}")


def _check_usage(sources: Sequence[str], target: str, suffix: str, rewritten: bool) -> None:
    if suffix not in _FORMATS:
        raise click.UsageError(f"OUT must end in {' or '.join(_FORMATS[:2])}, got '{target}'")
    if len(sources) > _MAX_SOURCES:
        raise click.UsageError(f"expected one or two graph files before OUT, got {len(sources)}")
    if rewritten and len(sources) > 1:
        raise click.UsageError("--rewritten takes one graph file; two are shown as they are")
    for source in sources:
        if Path(target).exists() and Path(source).exists() and os.path.samefile(source, target):
            raise click.UsageError(f"OUT is '{source}' itself, which would be overwritten")


def _load(source: str) -> tuple[LoadedGraph, ...]:
    from mx_rec.graph.saved_model_files import load_graphs

    loaded = load_graphs(source)
    for warning in loaded.warnings:
        say(f"warning: '{source}': {warning}")
    return loaded.graphs


def _pictures(graphs: Sequence[LoadedGraph], rewritten: bool) -> list[Picture]:
    from mx_rec.cli.plotting.picture import picture_of

    views = [sound_view(loaded) for loaded in graphs]
    titles = [loaded.label for loaded in graphs]
    if rewritten:
        views.extend(_rewritten(loaded) for loaded in graphs)
        titles.extend([f"{title}, rewritten" for title in titles])
    return [picture_of(view, title) for view, title in zip(views, titles)]


def _rewritten(loaded: LoadedGraph) -> GraphView:
    """The graph as `recgraph rewrite` writes it."""
    from mx_rec.passes import PassFailed, PassManager, PipelineOptions, default_pipeline

    options = PipelineOptions(keep=loaded.referenced_nodes())
    try:
        return PassManager(default_pipeline(options)).run(loaded.graph_def).view
    except PassFailed as error:
        node = f" at node '{error.node}'" if error.node else ""
        raise RewriteRefused(f"pass {error.pass_name} failed{node}: {error.reason}; nothing was written") from error
