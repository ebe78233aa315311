"""Questions about paths, asked with networkx."""

from __future__ import annotations

import networkx as nx

from mx_rec.errors import GraphRewriteError
from mx_rec.graph.view import CONTROL, GraphView


def to_networkx(view: GraphView) -> nx.MultiDiGraph:
    """The nodes (attribute `op`) and edges (`output`, `input`, or `control=True`) of a view."""
    graph = nx.MultiDiGraph()
    for node in view:
        graph.add_node(node.name, op=node.op)
    for node in view:
        for edge in view.edges(node.name):
            if edge.output == CONTROL:
                graph.add_edge(node.name, edge.consumer, control=True)
            else:
                graph.add_edge(node.name, edge.consumer, output=edge.output, input=edge.index)
    return graph


def find_path(view: GraphView, source: str, target: str) -> list[str] | None:
    """Names of the nodes on a shortest path from `source` to `target`, or `None` when there is none.

    Raises:
        GraphRewriteError: one of them is not in the graph.
    """
    for name in (source, target):
        if name not in view:
            raise GraphRewriteError(f"the graph has no node {name!r}")
    try:
        path: list[str] = nx.shortest_path(to_networkx(view), source, target)
    except nx.NetworkXNoPath:
        return None
    return path
