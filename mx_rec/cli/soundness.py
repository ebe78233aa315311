"""The graph of a file as a view, for the commands that look at it without running passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mx_rec.cli.console import BrokenGraph

if TYPE_CHECKING:
    from mx_rec.graph.files import LoadedGraph
    from mx_rec.graph.view import GraphView


def sound_view(loaded: LoadedGraph) -> GraphView:
    """The view of a graph that holds together.

    Raises:
        BrokenGraph: it does not; what looks for lookups in it relies on that.
    """
    from mx_rec.errors import GraphRewriteError
    from mx_rec.graph.verify import verify
    from mx_rec.graph.view import GraphView

    try:
        view = GraphView(loaded.graph_def)
        verify(view)
    except GraphRewriteError as error:
        raise BrokenGraph(f"the graph of '{loaded.label}' is broken: {error}") from error
    return view
