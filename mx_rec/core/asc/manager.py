"""The start of the look-ahead in FeatureSpec mode."""

from __future__ import annotations

import tensorflow as tf

from mx_rec.core import graph_state
from mx_rec.graph.modifier import rewrite_graph
from mx_rec.passes import PassReport
from mx_rec.util.initialize import ConfigInitializer
from mx_rec.util.log import logger


def start_asc_pipeline() -> tuple[PassReport, ...]:
    """Moves the id-to-address work of the default graph's lookups into the input pipeline.

    The same rewrite as `modify_graph_and_start_emb_cache`, whose contract holds here too; lookups of features and
    of tensors may stand in one graph. Call it once, before the first `session.run`; better after the gradients, since
    lookups that nothing trains yet keep their own ops, for the gradients to reach them.
    Afterwards `get_initializer(True)` and `get_initializer(False)`, or the script's own initializers, start the
    iterators.

    Returns:
        One report per pass.

    Raises:
        EnvironmentError: before `init`, or the graph has been rewritten already.
        RuntimeError: the graph has no lookup.
        ValueError: a feature of the dataset names a table that the graph does not have.
        GraphRewriteError: a session has already run the graph, the graph is finalized, or a pass failed. The
            graph is as it was.
    """
    ConfigInitializer.get_instance()
    graph = tf.compat.v1.get_default_graph()
    state = graph_state.state_of(graph)
    if not state.lookups:
        raise RuntimeError(
            "start_asc_pipeline needs lookups, and the default graph has none: call sparse_lookup first, in the "
            "graph that is the default one here"
        )
    _check_features(state)
    return rewrite_graph(graph, "start_asc_pipeline", may_precede_gradients=True)


def _check_features(state: graph_state.GraphState) -> None:
    """Every feature needs its table; a feature without a lookup is only odd."""
    looked_up = {(record.table_name, record.is_train) for record in state.lookups.values()}
    for feature in state.features:
        if feature.table_name is None:
            continue
        if feature.table_name not in state.tables:
            raise ValueError(
                f"{feature.owner}: the graph has no table {feature.table_name!r}; "
                f"it has {', '.join(map(repr, state.tables))}"
            )
        if (feature.table_name, feature.is_train) not in looked_up:
            side = "training" if feature.is_train else "evaluation"
            logger.warning("%s: the graph has no %s lookup of table %r", feature.owner, side, feature.table_name)
