"""What a graph says of its tables itself, for graphs that came from a file (`import_meta_graph`)."""

from __future__ import annotations

import tensorflow as tf

from mx_rec.constants.constants import ATTR_LOOKUP
from mx_rec.core import graph_state
from mx_rec.core.admission import AdmissionConfig
from mx_rec.core.saveable import table_saveables
from mx_rec.core.table import EmbeddingTable

_TABLE = "MxRecTable"


def state_with_tables(graph: tf.Graph) -> graph_state.GraphState:
    """The state of a graph; if no script has made tables in it, with those of its nodes and their thresholds.

    The dtype of the keys is that of the table's saveable; of a table that checkpoints leave out it is int64.
    """
    state = graph_state.state_of(graph)
    if state.tables:
        return state
    saved = {saveable.parts.handle: saveable.parts for saveable in table_saveables(graph)}
    for operation in graph.get_operations():
        if operation.type != _TABLE:
            continue
        handle = operation.outputs[0]
        name = operation.get_attr("table_name").decode()
        if name in state.tables:  # imported twice, the handles are one table in a session
            continue
        state.tables[name] = EmbeddingTable(
            name,
            operation.get_attr("dim"),
            tf.as_dtype(saved[handle.name].key_dtype if handle.name in saved else "int64"),
            handle,
            is_save=handle.name in saved,
            padding_keys=tuple(operation.get_attr("padding_keys")),
            max_keys=operation.get_attr("max_keys"),
        )
        thresholds = [operation.get_attr(what) for what in ("access_threshold", "eviction_threshold")]
        config = AdmissionConfig(*(None if value < 0 else value for value in thresholds))
        if config != AdmissionConfig():
            state.admission[name] = (f"the node {operation.name!r} of the imported graph", config)
    return state


def lookup_names(table: EmbeddingTable) -> list[str]:
    """The names of a table's lookups by the marks on its nodes."""
    marked = [op for op in table.handle.consumers() if ATTR_LOOKUP in op.node_def.attr]
    return list(dict.fromkeys(op.get_attr(ATTR_LOOKUP).decode() for op in marked))
