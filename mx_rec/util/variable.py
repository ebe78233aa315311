"""Dense and sparse parameters of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from mx_rec.core import graph_state

if TYPE_CHECKING:
    from mx_rec.core.table import EmbeddingTable


def get_dense_and_sparse_variable() -> tuple[list[tf.Variable], list[EmbeddingTable]]:
    """Parameters of the default graph.

    Returns:
        (dense, sparse): the trainable variables of TensorFlow, and the tables in order of creation.
        With dynamic expansion a table has no variable; train its rows by address.
    """
    dense = tf.compat.v1.trainable_variables()
    state = graph_state.state_of(tf.compat.v1.get_default_graph())
    return dense, list(state.tables.values())
