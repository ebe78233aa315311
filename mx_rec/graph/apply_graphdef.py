"""Applies edits to a GraphDef."""

from __future__ import annotations

from typing import Any

from mx_rec.graph.edits import EditSet
from mx_rec.graph.verify import verify
from mx_rec.graph.view import GraphView

GraphDef = Any  # tensorflow.GraphDef; protobuf classes carry no static types


def apply_graphdef(graph_def: GraphDef, edits: EditSet) -> GraphDef:
    """A new GraphDef: `graph_def` with the edits applied, verified. The argument is not changed.

    Raises:
        GraphRewriteError: an edit does not fit the graph, or the result would be broken.
    """
    view = GraphView(graph_def).edited(edits)
    verify(view)
    return view.to_graph_def()
