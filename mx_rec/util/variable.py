"""Dense and sparse parameters of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

import tensorflow as tf

from mx_rec.core import graph_state

if TYPE_CHECKING:
    from mx_rec.core.table import EmbeddingTable


def get_dense_and_sparse_variable() -> tuple[list[tf.Variable], list[Union[tf.Variable, EmbeddingTable]]]:
    """Parameters of the default graph.

    Returns:
        (dense, sparse): the trainable variables of TensorFlow, and the variables of the tables, in order of
        creation, for the `create_hash_optimizer` optimizers. With dynamic expansion a table has no variable:
        then `sparse` lists the tables, whose rows are trained by address.
    """
    dense = tf.compat.v1.trainable_variables()
    state = graph_state.state_of(tf.compat.v1.get_default_graph())
    return dense, [table if table.variable is None else table.variable for table in state.tables.values()]
