"""What mx_rec knows about each `tf.Graph`: its tables, lookups and rewritten initializers."""

from __future__ import annotations

import dataclasses
import uuid
import weakref
from typing import TYPE_CHECKING, Optional

import tensorflow as tf

if TYPE_CHECKING:
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
    """

    name: str
    table_name: str
    is_train: bool
    is_grad: bool
    addresses: tf.Tensor
    embeddings: tf.Tensor


@dataclasses.dataclass
class GraphState:
    """State of one graph.

    Attributes:
        epoch: which `init` it belongs to; state of an earlier one is void.
        token: stamped on the graph's table handles, so that the op library can tell whether a
            session has run the graph.
        tables: by name.
        lookups: by name, in order of creation.
        initializers: iterator initializer per side (True: training), set by the rewrite.
    """

    epoch: int
    token: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)
    tables: dict[str, EmbeddingTable] = dataclasses.field(default_factory=dict)
    lookups: dict[str, LookupRecord] = dataclasses.field(default_factory=dict)
    initializers: Optional[dict[bool, Optional[tf.Operation]]] = None


# The state hangs on its graph, so that both are collected together (tensors point back at their
# graph, which a weak-keyed dictionary would therefore keep alive for ever).
_STATE_ATTRIBUTE = "_mx_rec_state"
_epoch = 0
_last_modified: Optional[weakref.ref[tf.Graph]] = None


def state_of(graph: tf.Graph) -> GraphState:
    """The state of a graph, made on first use."""
    state = _existing_state(graph)
    if state is None:
        state = GraphState(epoch=_epoch)
        setattr(graph, _STATE_ATTRIBUTE, state)
    return state


def mark_modified(graph: tf.Graph, initializers: dict[bool, Optional[tf.Operation]]) -> None:
    """Records that a graph has been rewritten."""
    global _last_modified
    state_of(graph).initializers = initializers
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
