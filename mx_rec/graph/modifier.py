"""The rewrite of a script's live graph."""

from __future__ import annotations

import os
from typing import Optional, Union

import tensorflow as tf

from mx_rec import ops
from mx_rec.constants.constants import ASCEND_CUTTING_POINT_INITIALIZER, ATTR_GRAPH_TOKEN, HOT_EMBEDDING_ENV
from mx_rec.core import graph_state
from mx_rec.core.timestamps import connect_timestamps
from mx_rec.errors import GraphRewriteError
from mx_rec.graph.apply_live import apply_live
from mx_rec.graph.iterator_groups import iterator_group
from mx_rec.graph.iterators import MAKE_ITERATOR, replaced_get_nexts
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
from mx_rec.passes.find_lookups import TRAIN
from mx_rec.tf_compat import is_open_session_of, set_control_inputs
from mx_rec.util.initialize import ConfigInitializer
from mx_rec.util.log import logger
from mx_rec.util.validate import check_bool

DUMP_DIR = "export_graph"
_WARM_START = "checkpoint_initializer"  # the name that init_from_checkpoint of TensorFlow gives
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

    Evaluation lookups of one table on one batch become one (see `do_merge_lookup`), so a run that reads the result of
    one of them needs the ids of all.

    The step then reads another batch tensor than before: to fetch or feed a batch, use
    `get_target_batch`. Fetching an old batch tensor raises an error that says so; feeding one has no effect.

    Args:
        full_graph: the graph; the default graph if None.
        dump_graph: write the graph before and after as text, to ./export_graph/old_graph.pbtxt and
            new_graph.pbtxt.
        op_impl_mode: path of an `op_impl_mode.ini`; without it the gathers that restore the batch are marked
            `high_performance` and run by a kernel made for it. HOT_EMBEDDING=0 in the environment turns that off.

    Returns:
        One report per pass.

    Raises:
        EnvironmentError: before `init`, or the graph has been rewritten already.
        RuntimeError: the graph has training lookups, but no optimizer updates them yet.
        ValueError: a training lookup has an `eviction_threshold`, but no timestamp belongs to its batch.
        GraphRewriteError: a session has already run the graph, the graph is finalized, or a pass
            failed. The graph is as it was.
    """
    ConfigInitializer.get_instance()
    check_bool("dump_graph", dump_graph)
    graph = tf.compat.v1.get_default_graph() if full_graph is None else full_graph
    if not isinstance(graph, tf.Graph):
        raise TypeError(f"full_graph must be a tf.Graph or None, got {type(graph).__name__}")
    return rewrite_graph(graph, "modify_graph_and_start_emb_cache", dump_graph, op_impl_mode)


def rewrite_graph(
    graph: tf.Graph,
    caller: str,
    dump_graph: bool = False,
    op_impl_mode: Optional[Union[str, os.PathLike]] = None,
    may_precede_gradients: bool = False,
) -> tuple[PassReport, ...]:
    """See `modify_graph_and_start_emb_cache`.

    Args:
        graph: the graph.
        caller: the function that messages name.
        dump_graph: see there.
        op_impl_mode: see there.
        may_precede_gradients: whether training lookups may have no update yet. Nothing is fused then: a gradient
            that is built later must reach the lookups' own ops.
    """
    config = ConfigInitializer.get_instance().config
    _check_ready(graph, caller)
    state = graph_state.state_of(graph)
    untrained = _untrained(state)
    if untrained and not may_precede_gradients:
        raise RuntimeError(
            f"{caller} must come after the gradients: no optimizer updates "
            f"the rows of {', '.join(map(repr, untrained))} yet. Build "
            "tf.gradients(loss, local_embs) and optimizer.apply_gradients(...) first"
        )
    if untrained:
        logger.info("%s before the gradients: lookups keep ops of their own", caller)
    options = PipelineOptions(
        prefetch=config.prefetch_batch_number,
        fuse=not untrained,
        adopt_orphans=state.adopt_orphans,
        op_types=state.op_types,
        hot_embedding=os.environ.get(HOT_EMBEDDING_ENV, "1") != "0",
        op_impl_mode=None if op_impl_mode is None else read_op_impl_mode(op_impl_mode),
        prune=False,  # a live graph keeps its nodes; a session runs only what a fetch needs
    )
    connect_timestamps(graph)
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
    _record(graph, GraphView(result.graph_def))
    logger.info("rewrite report:\n%s", report_text(result.reports))
    return result.reports


def _check_ready(graph: tf.Graph, caller: str) -> None:
    """Refuses a graph that cannot be rewritten now, with what to do."""
    state = graph_state.state_of(graph)
    if state.initializers is not None:
        raise EnvironmentError(
            f"{caller}: this graph has been rewritten already, and a graph is rewritten once, by "
            "modify_graph_and_start_emb_cache() or by start_asc_pipeline()"
        )
    if graph.finalized:
        raise GraphRewriteError("the graph is finalized; modify it before tf.Graph.finalize()")
    if was_run(graph, state):
        raise GraphRewriteError(
            "a session has already run this graph, and TensorFlow silently ignores edits after that: "
            f"call {caller}() before the first session.run"
        )


def _untrained(state: graph_state.GraphState) -> list[str]:
    """The lookups that train, if no optimizer updates the rows of any of them yet."""
    trained = [record for record in state.lookups.values() if record.is_train and record.is_grad]
    return [] if any(_is_updated(record, state) for record in trained) else [record.name for record in trained]


def _is_updated(record: graph_state.LookupRecord, state: graph_state.GraphState) -> bool:
    """Whether an optimizer updates the lookup's table, or an update op takes its addresses."""
    table = state.tables[record.table_name]
    if table.table_name in state.updated:
        return True
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


def was_run(graph: tf.Graph, state: graph_state.GraphState) -> bool:
    """Whether an open session has taken the graph over, so that it would ignore edits."""
    if not graph_state.live_sessions(graph):
        return False
    operations = graph.get_operations()
    if any(op.type == "MxRecTable" and _token(op) == state.token for op in operations) and ops.graph_was_run(
        state.token
    ):
        return True
    # A session older than the graph's tables may have run it without them.
    known = [session() for session in state.early_sessions]
    early = [session for session in known if session is not None and is_open_session_of(session, graph)]
    incarnations = [device.incarnation for session in early for device in session.list_devices()]
    return bool(incarnations) and ops.beginning_was_run([op.name for op in operations], incarnations)


def _token(operation: tf.Operation) -> str:
    try:
        return str(operation.get_attr(ATTR_GRAPH_TOKEN).decode())
    except ValueError:  # made without the front
        return ""


def _record(graph: tf.Graph, view: GraphView) -> None:
    """Notes what get_initializer and get_target_batch answer."""
    state = graph_state.state_of(graph)
    lookups = find_lookups(view)
    for old, new in replaced_get_nexts(view).items():
        outputs = graph.get_operation_by_name(new).outputs
        for component, tensor in enumerate(graph.get_operation_by_name(old).outputs):
            state.replaced[tensor.name] = outputs[component]
    old_of_new = {new: old for old, new in replaced_get_nexts(view).items()}
    for is_train in (True, False):
        names = [lookup.get_next for lookup in lookups if _is_train(lookup) == is_train]
        state.batches[is_train] = [
            tuple(
                state.replaced.get(tensor.name, tensor)
                for tensor in graph.get_operation_by_name(old_of_new.get(name, name)).outputs
            )
            for name in dict.fromkeys(names)
            if name is not None
        ]
    state.initializers = _initializers(graph, view, lookups)
    graph_state.mark_modified(graph)


def _is_train(lookup: Lookup) -> bool:
    return lookup.side == TRAIN


def _initializers(graph: tf.Graph, view: GraphView, lookups: list[Lookup]) -> dict[bool, Optional[tf.Operation]]:
    """The operation that starts the iterators of each side, None where the graph has no lookup.

    One iterator with several datasets (`Iterator.from_structure`) serves both sides: its first
    initializer is training's, its second evaluation's. So do the iterators whose handles may be fed: the first is
    training's, the second evaluation's. Iterators that feed no lookup are started on both sides, since the loss may
    need them.
    """
    makers: dict[bool, dict[str, None]] = {True: {}, False: {}}
    sides = {_is_train(lookup) for lookup in lookups}
    for lookup in lookups:
        by_side = _makers_by_side(view, lookup)
        if by_side is not None:
            sides = {True, False}
            for side, names in zip((True, False), by_side):
                makers[side].update(dict.fromkeys(names))
        else:
            makers[_is_train(lookup)].update(dict.fromkeys(lookup.initializers))
    of_lookups = {name for lookup in lookups for name in lookup.initializers}
    for node in view.nodes_of(MAKE_ITERATOR):
        if node.name not in of_lookups:
            makers[True][node.name] = makers[False][node.name] = None
    return {side: _group(graph, list(makers[side]), side) if side in sides else None for side in (True, False)}


def _makers_by_side(view: GraphView, lookup: Lookup) -> Optional[tuple[tuple[str, ...], tuple[str, ...]]]:
    """What starts training and evaluation where the iterator of a lookup serves both; None where it serves one."""
    sources = iterator_group(view, lookup.iterator).sources if lookup.iterator else ()
    if len(sources) > 1:
        return sources[0].makers[:1], sources[1].makers[:1]
    makers = lookup.initializers
    return (makers[:1], makers[1:2]) if len(makers) > 1 else None


def _group(graph: tf.Graph, names: list[str], is_train: bool) -> tf.Operation:
    operations = [graph.get_operation_by_name(name) for name in names]
    if len(operations) == 1:
        return operations[0]
    with graph.as_default(), tf.compat.v1.name_scope(None), tf.control_dependencies(None):
        return tf.group(*operations, name=f"mx_rec/initializer_{'train' if is_train else 'eval'}")


def _dump(graph_def: tf.compat.v1.GraphDef, name: str) -> None:
    path = tf.io.write_graph(graph_def, DUMP_DIR, name, as_text=True)
    logger.info("graph written to %s", path)


class GraphModifierHook(tf.compat.v1.train.SessionRunHook):
    """Rewrites the default graph before a session with hooks (or an Estimator) finalizes it, and starts iterators.

    Hooks that tell the rewrite what to move (`LookupSubgraphSlicerHook`, `OrphanLookupKeySlicerHook`) stand before it.

    Args:
        dump_graph: see `modify_graph_and_start_emb_cache`.
        modify_graph: whether lookups are of tensors. If False they are of features, and `start_asc_pipeline` does the
            rewrite; a graph without lookups then stays as it is.
    """

    def __init__(self, dump_graph: bool = False, modify_graph: bool = True) -> None:
        self._dump_graph = check_bool("dump_graph", dump_graph)
        self._modify_graph = check_bool("modify_graph", modify_graph)

    def begin(self) -> None:
        """Calls `modify_graph_and_start_emb_cache` or `start_asc_pipeline`; raises what that raises.

        Raises:
            EnvironmentError: the graph was rewritten by another hook already.
        """
        graph = tf.compat.v1.get_default_graph()
        state = graph_state.state_of(graph)
        if state.initializers is not None and (self._modify_graph or state.lookups):
            raise EnvironmentError(
                "GraphModifierHook: this graph has been rewritten already, by another GraphModifierHook, or "
                "by a call of modify_graph_and_start_emb_cache() or start_asc_pipeline(); keep one of them"
            )
        _warn_of_fresh_tables(graph, state)
        if self._modify_graph:
            modify_graph_and_start_emb_cache(dump_graph=self._dump_graph)
        elif state.lookups:
            # Imported late: it is built on this module.
            from mx_rec.core.asc.manager import start_asc_pipeline

            start_asc_pipeline()
        _note_starts(graph)

    def after_create_session(self, session: tf.compat.v1.Session, coord: Optional[tf.train.Coordinator]) -> None:
        """Starts the rebuilt iterators that nothing has started yet, after a recovery of the session too.

        An iterator with several datasets begins with that of training, or, in a graph without training lookups, with
        that of evaluation. Starting one twice would begin its dataset anew: shuffled in another order, say.
        """
        _warn_of_full_saves(session.graph)
        starts = _iterator_starts(session.graph)
        if starts:
            was_started = session.run([_was_started(start) for start in starts])
            for start, done in zip(starts, was_started):
                if not done:
                    session.run(start)


def _warn_of_full_saves(graph: tf.Graph) -> None:
    """Says which hook is missing where `init` asks for deltas and a training with hooks makes none."""
    state = graph_state.state_of(graph)
    is_trained = any(record.is_train for record in state.lookups.values())
    is_asked = ConfigInitializer.get_instance().config.is_incremental_checkpoint
    if is_asked and is_trained and not state.saves_deltas:
        state.saves_deltas = "warned"
        logger.warning(
            "init(is_incremental_checkpoint=True), but no hook of this session saves deltas: add "
            "mx_rec.saver.saver.IncrementalCheckpointHook(checkpoint_dir), and pass save_checkpoint_secs=None to "
            "MonitoredTrainingSession (NPUEstimator adds it by itself)"
        )


def _warn_of_fresh_tables(graph: tf.Graph, state: graph_state.GraphState) -> None:
    """TensorFlow's warm start, as Estimator does it for `warm_start_from`, knows no tables."""
    restores = [op for op in graph.get_operations() if op.type == "RestoreV2" and _WARM_START in op.name]
    if not restores or any(op.type == "MxRecTableRestore" for op in graph.get_operations()):
        return
    trained = sorted({record.table_name for record in state.lookups.values() if record.is_train})
    if trained:
        logger.warning(
            "%d variables start from a checkpoint, but tables %s start empty: TensorFlow's warm start knows no tables; "
            "use NPUEstimator(warm_start_from=...) or mx_rec.estimator.with_warm_start to fill them too",
            len(restores),
            ", ".join(map(repr, trained)),
        )


def _iterator_starts(graph: tf.Graph) -> list[tf.Operation]:
    """One initializer for each rebuilt iterator."""
    makers = _makers_of_iterators(graph)
    lookups = graph_state.state_of(graph).lookups.values()
    place = 1 if lookups and not any(record.is_train for record in lookups) else 0
    return [group[min(place, len(group) - 1)] for group in makers.values()]


def _makers_of_iterators(graph: tf.Graph) -> dict[str, list[tf.Operation]]:
    """The initializers of each rebuilt iterator."""
    rebuilt = set(graph.get_collection(ASCEND_CUTTING_POINT_INITIALIZER))
    makers: dict[str, list[tf.Operation]] = {}
    for operation in graph.get_operations() if rebuilt else ():
        if operation.type == MAKE_ITERATOR and operation in rebuilt:
            makers.setdefault(operation.inputs[1].name, []).append(operation)
    return makers


def _note_starts(graph: tf.Graph) -> None:
    """Lets every initializer of a rebuilt iterator leave a mark in the session that runs it.

    No op tells whether an iterator has been started; so a variable that nothing else reads is given a value before.
    """
    for iterator, makers in _makers_of_iterators(graph).items():
        scope = f"mx_rec/started/{iterator.split(':')[0]}"
        with graph.as_default(), tf.compat.v1.name_scope(None), tf.control_dependencies(None):
            mark = tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=[], shared_name=f"{scope}/mark", name=f"{scope}/mark")
            setting = tf.raw_ops.AssignVariableOp(resource=mark, value=tf.constant(True), name=f"{scope}/set")
            query = tf.raw_ops.VarIsInitializedOp(resource=mark, name=f"{scope}/query")
        for maker in makers:
            set_control_inputs(maker, [*maker.control_inputs, setting])
        graph_state.state_of(graph).started[iterator] = query


def _was_started(maker: tf.Operation) -> tf.Tensor:
    return graph_state.state_of(maker.graph).started[maker.inputs[1].name]
