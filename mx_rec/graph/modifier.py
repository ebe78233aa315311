"""The rewrite of a script's live graph."""

from __future__ import annotations

import os
from typing import Optional, Union

import tensorflow as tf

from mx_rec import ops
from mx_rec.constants.constants import ATTR_GRAPH_TOKEN
from mx_rec.core import graph_state
from mx_rec.core.table import EmbeddingTable
from mx_rec.errors import GraphRewriteError
from mx_rec.graph.apply_live import apply_live
from mx_rec.graph.op_impl_mode import read_op_impl_mode
from mx_rec.graph.view import GraphView
from mx_rec.passes import (
    Lookup,
    PassManager,
    PassReport,
    PipelineOptions,
    default_pipeline,
    find_lookups,
    report_text,
)
from mx_rec.util.initialize import ConfigInitializer
from mx_rec.util.log import logger
from mx_rec.util.validate import check_bool

DUMP_DIR = "export_graph"
HOT_EMBEDDING_ENV = "HOT_EMBEDDING"
_VARIABLE_UPDATES = ("ResourceScatter", "ResourceSparseApply")


def modify_graph_and_start_emb_cache(
    full_graph: Optional[tf.Graph] = None,
    dump_graph: bool = False,
    op_impl_mode: Optional[Union[str, os.PathLike]] = None,
) -> tuple[PassReport, ...]:
    """Rewrites a live graph: moves id-to-address work into the input pipeline.

    Call it after the gradients and before the first `session.run`. Afterwards
    `get_initializer(True)` and `get_initializer(False)` start the iterators; the script's own
    `iterator.initializer` does the same. What a model computes does not change. A lookup that cannot
    be moved stays where it is and still trains; the report says which and why.

    Args:
        full_graph: the graph; the default graph if None.
        dump_graph: write the graph before and after as text, to ./export_graph/old_graph.pbtxt and
            new_graph.pbtxt.
        op_impl_mode: path of an `op_impl_mode.ini`; without it `GatherV2` is marked
            `high_performance`. HOT_EMBEDDING=0 in the environment turns the marks off.

    Returns:
        One report per pass.

    Raises:
        EnvironmentError: before `init`, or the graph has been rewritten already.
        RuntimeError: the graph has training lookups, but no optimizer updates them yet.
        GraphRewriteError: a session has already run the graph, the graph is finalized, or a pass
            failed. The graph is as it was.
    """
    config = ConfigInitializer.get_instance().config
    check_bool("dump_graph", dump_graph)
    graph = tf.compat.v1.get_default_graph() if full_graph is None else full_graph
    if not isinstance(graph, tf.Graph):
        raise TypeError(f"full_graph must be a tf.Graph or None, got {type(graph).__name__}")
    _check_ready(graph)
    options = PipelineOptions(
        prefetch=config.prefetch_batch_number,
        hot_embedding=os.environ.get(HOT_EMBEDDING_ENV, "1") != "0",
        op_impl_mode=None if op_impl_mode is None else read_op_impl_mode(op_impl_mode),
        prune=False,  # a live graph keeps its nodes; a session runs only what a fetch needs
    )
    before = graph.as_graph_def()
    if dump_graph:
        _dump(before, "old_graph.pbtxt")
    result = PassManager(default_pipeline(options)).run(before)
    if result.modified:
        apply_live(graph, result.edits)
    else:
        logger.warning("the rewrite found nothing to move")
    if dump_graph:
        _dump(graph.as_graph_def(), "new_graph.pbtxt")
    lookups = find_lookups(GraphView(result.graph_def))
    graph_state.mark_modified(graph, _initializers(graph, lookups))
    logger.info("rewrite report:\n%s", report_text(result.reports))
    return result.reports


def _check_ready(graph: tf.Graph) -> None:
    """Refuses a graph that cannot be rewritten now, with what to do."""
    state = graph_state.state_of(graph)
    if state.initializers is not None:
        raise EnvironmentError(
            "this graph has been rewritten already: call modify_graph_and_start_emb_cache() once per graph"
        )
    trained = [record for record in state.lookups.values() if record.is_train and record.is_grad]
    if trained and not any(_is_updated(record, state.tables[record.table_name]) for record in trained):
        raise RuntimeError(
            "modify_graph_and_start_emb_cache must come after the gradients: no optimizer updates "
            f"the rows of {', '.join(repr(record.name) for record in trained)} yet. Build "
            "tf.gradients(loss, local_embs) and optimizer.apply_gradients(...) first"
        )
    if graph.finalized:
        raise GraphRewriteError("the graph is finalized; modify it before tf.Graph.finalize()")
    if any(ops.graph_was_run(token) for token in _tokens(graph)):
        raise GraphRewriteError(
            "a session has already run this graph, and TensorFlow silently ignores edits after that: "
            "call modify_graph_and_start_emb_cache() before the first session.run"
        )


def _is_updated(record: graph_state.LookupRecord, table: EmbeddingTable) -> bool:
    """Whether an update op takes the lookup's addresses, or changes the variable of its table."""
    if table.variable is not None:
        return any(op.type.startswith(_VARIABLE_UPDATES) for op in table.variable.handle.consumers())
    seen = set()
    pending = list(record.addresses.consumers())
    while pending:
        operation = pending.pop()
        if operation.name in seen:
            continue
        seen.add(operation.name)
        if operation.type.startswith("MxRecApply"):
            return True
        if operation.type in ("ConcatV2", "Identity"):
            pending.extend(operation.outputs[0].consumers())
    return False


def _tokens(graph: tf.Graph) -> set[str]:
    tokens = set()
    for operation in graph.get_operations():
        if operation.type != "MxRecTable":
            continue
        try:
            tokens.add(operation.get_attr(ATTR_GRAPH_TOKEN).decode())
        except ValueError:  # made without the front
            continue
    return tokens


def _initializers(graph: tf.Graph, lookups: list[Lookup]) -> dict[bool, Optional[tf.Operation]]:
    """The operation that starts the iterators of each side, None where no iterator feeds it.

    One iterator with several datasets (`Iterator.from_structure`) serves both sides: its first
    initializer is training's, its second evaluation's.
    """
    makers: dict[bool, dict[str, None]] = {True: {}, False: {}}
    served: dict[bool, bool] = {True: False, False: False}
    for lookup in lookups:
        if lookup.iterator is None:
            continue
        is_train = lookup.side == "train"
        served[is_train] = True
        if len(lookup.initializers) > 1:
            served = {True: True, False: True}
            makers[True][lookup.initializers[0]] = None
            makers[False][lookup.initializers[1]] = None
        else:
            makers[is_train].update(dict.fromkeys(lookup.initializers))
    return {side: _group(graph, list(makers[side]), side) if served[side] else None for side in (True, False)}


def _group(graph: tf.Graph, names: list[str], is_train: bool) -> tf.Operation:
    operations = [graph.get_operation_by_name(name) for name in names]
    if len(operations) == 1:
        return operations[0]
    with graph.as_default(), tf.compat.v1.name_scope(None), tf.control_dependencies(None):
        return tf.group(*operations, name=f"mx_rec/initializer_{'train' if is_train else 'eval'}")


def _dump(graph_def: tf.compat.v1.GraphDef, name: str) -> None:
    path = tf.io.write_graph(graph_def, DUMP_DIR, name, as_text=True)
    logger.info("graph written to %s", path)
