"""Makes one lookup of several lookups of one table, in a live graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Optional

import tensorflow as tf

from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core import graph_state
from mx_rec.errors import GraphRewriteError
from mx_rec.graph.apply_live import apply_live
from mx_rec.graph.marks import MERGED_INTO
from mx_rec.graph.modifier import was_run
from mx_rec.graph.view import GraphView
from mx_rec.passes import PassManager, PassReport, report_text
from mx_rec.passes.find_lookups import EVAL, TRAIN
from mx_rec.passes.merge_lookups import MergeLookups, tied_lookups
from mx_rec.util.initialize import ConfigInitializer
from mx_rec.util.log import logger
from mx_rec.util.validate import check_bool


def do_merge_lookup(is_train: bool = True) -> PassReport:
    """Makes one lookup of the lookups of each table on one side, in the default graph.

    Afterwards a table has one find and one local embedding for all ids of those lookups; the results of the lookups,
    and what reads them, are the tensors of before. The collections ASCEND_SPARSE_LOOKUP_LOCAL_EMB and
    ASCEND_SPARSE_LOOKUP_ID_OFFSET then hold the merged tensors: one pair per table, and one more for each lookup that
    has to stay apart. Rows that several lookups read get one summed gradient. Counts are those of all ids together.

    For training it must come before the gradients. The optimizers of `mx_rec.optimizers` do the same in
    `compute_gradients` and `minimize` for the lookups that the loss comes from; a script that uses
    `tf.gradients(loss, local_embs)` calls it by hand before it reads the collections. For evaluation,
    `modify_graph_and_start_emb_cache` does the same.

    It does nothing for a table with one lookup, or whose lookups have been merged. Lookups stay apart if their ids
    come from different batches, or may not run ahead of the step (such as fed ids: a run of another lookup would need
    them), or if they differ in `serving_default_value` or `is_grad`; the report says which and why. Pooled lookups are
    left alone. The `send_count` of a merged lookup is the sum of those of its parts. Lookups with
    `is_grad=False` are merged with each other: so their keys get no update, not even of moments.

    Args:
        is_train: which lookups: of training or of evaluation.

    Returns:
        The report of the pass: which lookups were merged, and which not and why.

    Raises:
        EnvironmentError: before `init`, or the graph has been rewritten already.
        RuntimeError: a table of the graph has no lookup on that side; or gradients have been built through the local
            embeddings of lookups that would be merged.
        ValueError: lookups of one table have different `access_and_evict_config`.
        GraphRewriteError: a session has already run the graph, or the graph is finalized. The graph is as it was.
    """
    ConfigInitializer.get_instance()
    check_bool("is_train", is_train)
    graph = tf.compat.v1.get_default_graph()
    state = graph_state.state_of(graph)
    looked_up = {record.table_name for record in state.lookups.values() if record.is_train == is_train}
    missing = [name for name in state.tables if name not in looked_up]
    if missing:
        side = "training" if is_train else "evaluation"
        raise RuntimeError(
            f"do_merge_lookup(is_train={is_train}): no {side} lookup of {', '.join(map(repr, missing))}; call "
            f"sparse_lookup(..., is_train={is_train}) for each table first"
        )
    if state.initializers is not None:
        raise EnvironmentError("do_merge_lookup must come before modify_graph_and_start_emb_cache()")
    if not _has_several(state.lookups.values(), is_train):
        return PassReport(MergeLookups.name, False, 0.0, (), (), 0, 0)
    if is_train:
        _check_gradients(graph)
    return _merge(graph, state, is_train, frozenset())


def merge_for_gradients(loss: tf.Tensor) -> None:
    """What optimizers do before they differentiate: merges the training lookups that `loss` comes from.

    A lookup that gives the loss no gradient is left out: as a part of a merged one its keys would get a gradient of 0,
    with which some optimizers move rows.

    Raises:
        ValueError: lookups of one table have different `access_and_evict_config`.
    """
    graph = loss.graph
    state = graph_state.state_of(graph)
    # Inside a function or a branch there is nothing to merge: sparse_lookup refuses to be called there.
    if not _has_several(state.lookups.values(), True) or state.initializers is not None or graph.finalized:
        return
    names = _lookups_of(state, loss)
    if not _has_several([state.lookups[name] for name in names], True):
        return
    if was_run(graph, state):
        logger.warning("lookups are not merged: a session has run the graph before the gradients were built")
        return
    _merge(graph, state, True, names)


def merged_into(tensor: Any) -> Optional[str]:
    """The name of the node that does the work of the lookup of `tensor` since it was merged; None if it was not."""
    if not isinstance(tensor, tf.Tensor):
        return None
    try:
        return str(tensor.op.get_attr(MERGED_INTO).decode())
    except ValueError:
        return None


def _lookups_of(state: graph_state.GraphState, loss: tf.Tensor) -> frozenset[str]:
    """The training lookups that `loss` differentiates, and those without gradient that it reads."""
    read = _upstream(loss, lambda _: True)
    differentiated = _upstream(loss, lambda tensor: tensor.dtype.is_floating and tensor.op.type != "StopGradient")
    return frozenset(
        name
        for name, record in state.lookups.items()
        if record.is_train and record.embeddings.op.name in (differentiated if record.is_grad else read)
    )


def _upstream(loss: tf.Tensor, leads_on: Callable[[tf.Tensor], bool]) -> set[str]:
    """Names of the ops that `loss` is computed from by tensors that lead on."""
    seen: set[str] = set()
    stack = [loss] if leads_on(loss) else []
    while stack:
        operation = stack.pop().op
        if operation.name not in seen:
            seen.add(operation.name)
            stack.extend(tensor for tensor in operation.inputs if leads_on(tensor))
    return seen


def _has_several(records: Iterable[graph_state.LookupRecord], is_train: bool) -> bool:
    """Whether a table has lookups that could be merged."""
    seen: dict[str, str] = {}
    for record in records:
        if record.is_train == is_train and seen.setdefault(record.table_name, record.embeddings.name) != (
            record.embeddings.name
        ):
            return True
    return False


def _check_gradients(graph: tf.Graph) -> None:
    """Refuses to merge training lookups through whose own local embeddings gradients have been built."""
    tied = tied_lookups(GraphView(graph.as_graph_def()), TRAIN)
    if tied:
        raise RuntimeError(
            "do_merge_lookup(is_train=True) must come before the gradients and all else that reads the local "
            f"embeddings of single lookups: {tied[0]}. Call it after the last sparse_lookup, then read the "
            "collections and build the gradients"
        )


def _merge(graph: tf.Graph, state: graph_state.GraphState, is_train: bool, names: frozenset[str]) -> PassReport:
    _check_thresholds(state, is_train)
    if graph.finalized:
        raise GraphRewriteError("the graph is finalized; merge its lookups before tf.Graph.finalize()")
    if was_run(graph, state):
        raise GraphRewriteError(
            "a session has already run this graph, and TensorFlow silently ignores edits after that: "
            "merge its lookups before the first session.run"
        )
    result = PassManager([MergeLookups((TRAIN if is_train else EVAL,), names)]).run(graph.as_graph_def())
    (report,) = result.reports
    if result.modified:
        apply_live(graph, result.edits)
        _follow(graph, state)
    logger.info("merged lookups:\n%s", report_text(result.reports))
    return report


def _check_thresholds(state: graph_state.GraphState, is_train: bool) -> None:
    first: dict[str, graph_state.LookupRecord] = {}
    for record in state.lookups.values():
        if record.is_train != is_train:
            continue
        other = first.setdefault(record.table_name, record)
        if record.admission.thresholds != other.admission.thresholds:
            raise ValueError(
                f"table {record.table_name!r}: lookups {other.name!r} and {record.name!r} must have equal thresholds "
                f"of admission and eviction to be merged, got {other.admission} and {record.admission}"
            )


def _follow(graph: tf.Graph, state: graph_state.GraphState) -> None:
    """Brings the collections and what is known of the lookups to the merged tensors."""
    for collection in (ASCEND_SPARSE_LOOKUP_LOCAL_EMB, ASCEND_SPARSE_LOOKUP_ID_OFFSET):
        members = graph.get_collection_ref(collection)
        members[:] = _distinct(_current(graph, tensor) for tensor in members)
    for name, record in state.lookups.items():
        state.lookups[name] = dataclasses.replace(
            record, addresses=_current(graph, record.addresses), embeddings=_current(graph, record.embeddings)
        )


def _current(graph: tf.Graph, tensor: tf.Tensor) -> tf.Tensor:
    into = merged_into(tensor)
    while into is not None:
        tensor = graph.get_tensor_by_name(f"{into}:0")
        into = merged_into(tensor)
    return tensor


def _distinct(tensors: Iterable[tf.Tensor]) -> list[tf.Tensor]:
    return list({tensor.name: tensor for tensor in tensors}.values())
