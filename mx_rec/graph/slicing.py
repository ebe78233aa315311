"""What a script may ask the rewrite to move beyond the lookups that it moves by itself."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from mx_rec.core import graph_state
from mx_rec.errors import GraphRewriteError
from mx_rec.graph.slices import slice_analysis
from mx_rec.graph.view import GraphView
from mx_rec.passes import PassManager, PipelineOptions, default_pipeline, find_lookups
from mx_rec.passes.adopt_orphans import orphan_batch, orphans
from mx_rec.passes.hoist_lookups import ids_nodes, slice_of
from mx_rec.util.initialize import ConfigInitializer
from mx_rec.util.log import logger

LOOKUP_DIR, ORPHAN_DIR = "lookup_slicing", "orphan_slicing"
SUMMARY = "slicing_summary.csv"


class SlicedNode(NamedTuple):
    """A row of the summary.

    Attributes:
        op_type: of the node.
        node: its name.
        moved: whether the rewrite moves it out of the step.
        reason: why not, else "".
    """

    op_type: str
    node: str
    moved: bool
    reason: str


def slice_lookup_subgraph(op_types: Sequence[str], full_graph: Optional[tf.Graph] = None) -> list[SlicedNode]:
    """Says which op types between a batch and the ids of lookups must move into the dataset.

    The rewrite moves all of these nodes anyway if their lookup can move. This makes it move them also if the lookup
    stays for another reason (fed ids, a variable that is added to them), and writes down what moves and what does
    not. The graph is changed by `modify_graph_and_start_emb_cache` alone, which must come later.

    Files, in ./lookup_slicing: `slicing_summary.csv` (op_type, node, moved, reason: one line per node of these types),
    `unsliced_full_graph.pbtxt` (the graph as it is), `sliced_sub_graph.pbtxt` (the nodes that move, with what they
    need), `sliced_full_graph.pbtxt` (the graph as the rewrite will make it). Control dependencies move along.

    Args:
        op_types: op types, such as `["StringToHashBucketFast", "Cast"]`; a later call adds to an earlier one.
        full_graph: the graph; the default graph if None.

    Returns:
        The lines of the summary; empty if no node of these types leads to ids.

    Raises:
        EnvironmentError: before `init`, or the graph has been rewritten already.
        TypeError: `op_types` is not a list or tuple of strings.
        ValueError: `op_types` or one of its strings is empty.
    """
    check_op_types(op_types)
    graph, state = _graph_to_slice(full_graph, "slice_lookup_subgraph")
    before = GraphView(graph.as_graph_def())
    wanted = tuple(dict.fromkeys([*state.op_types, *op_types]))
    options = PipelineOptions(adopt_orphans=state.adopt_orphans, op_types=wanted)
    after = GraphView(PassManager(default_pipeline(options)).run(before.to_graph_def()).graph_def)
    left = _in_step(after)
    rows = [_row(before, node, node.name not in left) for node in ids_nodes(before, op_types)]
    state.op_types = wanted
    _write(LOOKUP_DIR, rows, before, [row.node for row in rows if row.moved], after)
    return rows


def slice_orphan_lookup_keys(full_graph: Optional[tf.Graph] = None) -> list[SlicedNode]:
    """Lets the rewrite prepare lookups whose ids come from no batch, such as constants, with a batch.

    They become part of the batch that feeds lookups of their side; if there is none, of that of the first iterator
    (training) or the second (evaluation). Values stay. But a run that reads such a lookup then draws a batch, and
    ends with the data. Ids that are fed, read a variable or are drawn at random stay at the step.

    The graph is changed by `modify_graph_and_start_emb_cache` alone, which must come later. Files as those of
    `slice_lookup_subgraph`, in ./orphan_slicing; a line per such lookup, with the node that gives its ids.

    Args:
        full_graph: the graph; the default graph if None.

    Returns:
        The lines of the summary; empty if all ids come from batches.

    Raises:
        EnvironmentError: before `init`, or the graph has been rewritten already.
    """
    graph, state = _graph_to_slice(full_graph, "slice_orphan_lookup_keys")
    before = GraphView(graph.as_graph_def())
    options = PipelineOptions(adopt_orphans=True, op_types=state.op_types)
    after = GraphView(PassManager(default_pipeline(options)).run(before.to_graph_def()).graph_def)
    finds = {lookup.find_node for lookup in find_lookups(after) if not lookup.is_moved}
    rows: list[SlicedNode] = []
    for lookup in orphans(before):
        ids = before.node(lookup.ids.node if lookup.ids is not None else lookup.find_node)
        batch = orphan_batch(before, lookup)
        reason = "" if isinstance(batch, str) else f"{batch.node}: {batch.reason}"
        if not reason and lookup.find_node in finds:
            reason = f"{lookup.find_node}: its lookup stays at the step"
        rows.append(SlicedNode(ids.op, ids.name, not reason, reason))
    state.adopt_orphans = True
    _write(ORPHAN_DIR, rows, before, [row.node for row in rows if row.moved], after)
    return rows


def check_op_types(op_types: Any) -> None:
    """TypeError or ValueError unless it is a non-empty list or tuple of op types."""
    if not isinstance(op_types, (list, tuple)):
        raise TypeError(f"op_types must be a list of op types, got {type(op_types).__name__}")
    if not op_types:
        raise ValueError("op_types must name at least one op type, got an empty list")
    for op_type in op_types:
        if not isinstance(op_type, str):
            raise TypeError(f"op_types must be a list of strings, got {op_type!r} in it")
        if not op_type:
            raise ValueError("op_types must be names of op types, got an empty string in it")


def _graph_to_slice(full_graph: Optional[tf.Graph], function: str) -> tuple[tf.Graph, graph_state.GraphState]:
    ConfigInitializer.get_instance()
    graph = tf.compat.v1.get_default_graph() if full_graph is None else full_graph
    if not isinstance(graph, tf.Graph):
        raise TypeError(f"full_graph must be a tf.Graph or None, got {type(graph).__name__}")
    state = graph_state.state_of(graph)
    if state.initializers is not None:
        raise EnvironmentError(
            f"{function} must come before modify_graph_and_start_emb_cache(); as a hook, before GraphModifierHook"
        )
    return graph, state


def _in_step(view: GraphView) -> set[str]:
    """The nodes that keys still need at the step."""
    uniques = [lookup.unique_node for lookup in find_lookups(view) if lookup.unique_node is not None]
    return {node.name for node in slice_analysis(view).nodes(uniques)}


def _row(view: GraphView, node: Any, moved: bool) -> SlicedNode:
    if moved:
        return SlicedNode(node.op, node.name, True, "")
    _, obstacle = slice_of(view, node)
    reason = "its lookup stays at the step" if obstacle is None else str(obstacle)
    return SlicedNode(node.op, node.name, False, reason)


def _write(
    directory: str, rows: Sequence[SlicedNode], before: GraphView, moved: Sequence[str], after: GraphView
) -> None:
    Path(directory).mkdir(exist_ok=True)
    with open(Path(directory) / SUMMARY, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(SlicedNode._fields)
        writer.writerows((row.op_type, row.node, "yes" if row.moved else "no", row.reason) for row in rows)
    for name, graph_def in (
        ("unsliced_full_graph.pbtxt", before.to_graph_def()),
        ("sliced_sub_graph.pbtxt", before.closure(moved)),
        ("sliced_full_graph.pbtxt", after.to_graph_def()),
    ):
        tf.io.write_graph(graph_def, directory, name, as_text=True)
    for row in rows:
        if not row.moved:
            logger.warning("node %r (%s) stays at the step: %s", row.node, row.op_type, row.reason)
    logger.info("%d of %d nodes move; see ./%s/%s", len(moved), len(rows), directory, SUMMARY)


def check_modified(graph: tf.Graph, who: str) -> None:
    """GraphRewriteError if what `who` has asked for never came: no rewrite followed."""
    if graph_state.state_of(graph).initializers is None:
        raise GraphRewriteError(
            f"{who} has no effect without the rewrite: put GraphModifierHook() after it in the list of hooks"
        )
