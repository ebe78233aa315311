"""What mx_rec knows about each `tf.Graph`: its tables, lookups and rewritten initializers."""

from __future__ import annotations

import dataclasses
import gc
import uuid
import weakref
from typing import TYPE_CHECKING, Optional

import tensorflow as tf

from mx_rec.tf_compat import is_open_session_of

if TYPE_CHECKING:
    from mx_rec.core.admission import AdmissionConfig
    from mx_rec.core.asc.feature_spec import FeatureSpec
    from mx_rec.core.table import EmbeddingTable


@dataclasses.dataclass(frozen=True)
class LookupRecord:
    """One call of `sparse_lookup`.

    Attributes:
        name: of the lookup.
        table_name: of its table.
        is_train: side of the lookup.
        is_grad: whether its rows are trained.
        addresses: int64 [n].
        embeddings: float32 [n, dim], the local embedding.
        admission: its thresholds.
        feature: the specification it was called with, None if it was called with a tensor.
        has_dense_ids: whether its ids are neither sparse nor ragged.
    """

    name: str
    table_name: str
    is_train: bool
    is_grad: bool
    addresses: tf.Tensor
    embeddings: tf.Tensor
    admission: AdmissionConfig
    feature: Optional[FeatureSpec] = None
    has_dense_ids: bool = True


@dataclasses.dataclass(frozen=True)
class PipelineFeature:
    """What a dataset was said to give for a lookup.

    Attributes:
        owner: what to call it in messages.
        table_name: the table it is looked up in; None for the time of the batch.
        is_train: side of the dataset.
        spec: its specification, None if it was named by its place in the batch.
    """

    owner: str
    table_name: Optional[str]
    is_train: bool
    spec: Optional[FeatureSpec]


@dataclasses.dataclass(frozen=True)
class TableSlots:
    """What an optimizer keeps for the rows of a table of fixed capacity.

    Attributes:
        optimizer: `LazyAdam`, `Adagrad` or `Ftrl`, as tables that grow name theirs.
        variables: float32 [capacity, dim] each, in the order that such a table has its slots.
        initial_values: what each slot begins with.
        steps: int64 scalar variable, the updates so far, if the optimizer counts them.
    """

    optimizer: str
    variables: tuple[tf.Variable, ...]
    initial_values: tuple[float, ...]
    steps: Optional[tf.Variable] = None


@dataclasses.dataclass(frozen=True)
class SlotKind:
    """What kind of slots an optimizer gives rows.

    Attributes:
        optimizer: as saved tables name it.
        initial_values: what each slot begins with.
    """

    optimizer: str
    initial_values: tuple[float, ...]


@dataclasses.dataclass
class GraphState:
    """State of one graph.

    Attributes:
        epoch: which `init` it belongs to; state of an earlier one is void.
        token: stamped on the graph's table handles, so that the op library can tell whether a
            session has run the graph.
        tables: by name.
        lookups: by name, in order of creation.
        features: what the datasets of the graph were said to give, in order.
        admission: of tables whose training lookups have said it: which lookup was the first, and its thresholds.
        coefficients: by table, the `faae_coefficient` of its training lookups.
        times: the timestamp of a batch as lookups take it, by the name of the tensor it comes from.
        timeless: the finds of lookups that need a timestamp and have none yet, by lookup.
        updated: tables that an optimizer updates.
        slots: by table of fixed capacity, of the first optimizer that trains it.
        slot_kinds: by table that grows, of all optimizers with slots that train it.
        early_sessions: sessions that existed before mx_rec knew the graph.
        op_types: ops that the rewrite moves even if the lookups that need them stay.
        adopt_orphans: whether the rewrite prepares lookups whose ids come from no batch with one.
        initializers: iterator initializer per side (True: training), set by the rewrite.
        batches: per side, the components of the batches that its lookups read, set by the rewrite.
        replaced: old batch component by name, and what replaced it.
        saves_deltas: whose IncrementalCheckpointHook the graph has: `given` by the script, `added`, or empty.
        started: per iterator that `GraphModifierHook` starts, by the name of its tensor, whether it was started.
    """

    epoch: int
    token: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)
    tables: dict[str, EmbeddingTable] = dataclasses.field(default_factory=dict)
    lookups: dict[str, LookupRecord] = dataclasses.field(default_factory=dict)
    features: dict[PipelineFeature, None] = dataclasses.field(default_factory=dict)
    admission: dict[str, tuple[str, AdmissionConfig]] = dataclasses.field(default_factory=dict)
    coefficients: dict[str, set[int]] = dataclasses.field(default_factory=dict)
    times: dict[str, tf.Tensor] = dataclasses.field(default_factory=dict)
    timeless: dict[str, tf.Operation] = dataclasses.field(default_factory=dict)
    updated: set[str] = dataclasses.field(default_factory=set)
    slots: dict[str, TableSlots] = dataclasses.field(default_factory=dict)
    slot_kinds: dict[str, set[SlotKind]] = dataclasses.field(default_factory=dict)
    early_sessions: tuple[weakref.ref, ...] = ()
    op_types: tuple[str, ...] = ()
    adopt_orphans: bool = False
    initializers: Optional[dict[bool, Optional[tf.Operation]]] = None
    batches: dict[bool, list[tuple[tf.Tensor, ...]]] = dataclasses.field(default_factory=dict)
    replaced: dict[str, tf.Tensor] = dataclasses.field(default_factory=dict)
    saves_deltas: str = ""
    started: dict[str, tf.Tensor] = dataclasses.field(default_factory=dict)


_SESSION_TYPES = (tf.compat.v1.Session, tf.compat.v1.InteractiveSession)
# The state hangs on its graph, so that both are collected together (tensors point back at their
# graph, which a weak-keyed dictionary would therefore keep alive for ever).
_STATE_ATTRIBUTE = "_mx_rec_state"
_epoch = 0
_last_modified: Optional[weakref.ref[tf.Graph]] = None


def state_of(graph: tf.Graph) -> GraphState:
    """The state of a graph, made on first use."""
    state = _existing_state(graph)
    if state is None:
        state = GraphState(epoch=_epoch, early_sessions=tuple(map(weakref.ref, live_sessions(graph))))
        setattr(graph, _STATE_ATTRIBUTE, state)
    return state


def table_of_variable(variable: tf.Variable) -> Optional[EmbeddingTable]:
    """The table whose rows `variable` holds, None if it is a variable of another kind."""
    state = _existing_state(variable.graph)
    tables = state.tables.values() if state is not None else ()
    return next((table for table in tables if table.variable is variable), None)


def variables_of_tables(graph: tf.Graph) -> list[tf.Variable]:
    """The rows of the tables of fixed capacity in a graph, in order of creation."""
    state = _existing_state(graph)
    tables = state.tables.values() if state is not None else ()
    return [table.variable for table in tables if table.variable is not None]


def live_sessions(graph: tf.Graph) -> list[tf.compat.v1.Session]:
    """Open sessions of a graph. Only the garbage collector knows them all."""
    return [
        candidate
        for candidate in gc.get_objects()
        if issubclass(type(candidate), _SESSION_TYPES) and is_open_session_of(candidate, graph)
    ]


def mark_modified(graph: tf.Graph) -> None:
    """Records that a graph has been rewritten last."""
    global _last_modified
    _last_modified = weakref.ref(graph)


def modified_state() -> Optional[GraphState]:
    """State of the default graph if it has been rewritten, else of the graph rewritten last."""
    default = _existing_state(tf.compat.v1.get_default_graph())
    if default is not None and default.initializers is not None:
        return default
    graph = _last_modified() if _last_modified is not None else None
    return _existing_state(graph) if graph is not None else None


def forget_all() -> None:
    """Drops the state of every graph."""
    global _epoch, _last_modified
    _epoch += 1
    _last_modified = None


def _existing_state(graph: tf.Graph) -> Optional[GraphState]:
    state = getattr(graph, _STATE_ATTRIBUTE, None)
    return state if state is not None and state.epoch == _epoch else None
