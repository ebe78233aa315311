"""Ops of pooled lookups, and their gradients. Shapes: n embeddings of d columns, m ids in b rows."""

from __future__ import annotations

from typing import Optional

import tensorflow as tf

from mx_rec.ops.library import load_library
from mx_rec.ops.table_ops import TensorLike


def row_splits(indices: TensorLike, num_rows: TensorLike, name: Optional[str] = None) -> tf.Tensor:
    """Row splits int64 [b + 1] of a SparseTensor of rank 2.

    Args:
        indices: int64 [m, 2], as in `tf.SparseTensor`; its rows must ascend.
        num_rows: int64 scalar, b.
        name: of the node.

    Raises:
        tf.errors.InvalidArgumentError: at run time, for a row that is not in [0, b) or comes after a greater one,
            naming position and row.
    """
    return load_library().mx_rec_row_splits(indices=indices, num_rows=num_rows, name=name)


def pool(
    embeddings: TensorLike,
    restore: TensorLike,
    row_splits: TensorLike,
    combiner: str,
    weights: Optional[TensorLike] = None,
    name: Optional[str] = None,
) -> tf.Tensor:
    """Embeddings float32 [b, d] of the rows of a batch of ids.

    With e_j the embeddings of a row and w_j their weights (1 if there are none), `sum` is the sum of w_j e_j, `mean`
    is that divided by the sum of w_j, and `sqrtn` is it divided by the square root of the sum of w_j^2, the formulae
    of `tf.nn.embedding_lookup_sparse`. Zeros where this divisor is 0, and for a row without ids. Terms are added in
    order of position.

    It has gradients for `embeddings` (float32 [n, d], dense: the sum over the ids of each embedding, in order of
    position) and for `weights`; those of a row whose divisor is 0 are 0.

    Args:
        embeddings: float32 [n, d].
        restore: int32 of any shape with m elements, the row of `embeddings` of each id.
        row_splits: int64 [b + 1]; the ids of row i are those from row_splits[i] up to row_splits[i + 1].
        combiner: `sum`, `mean` or `sqrtn`.
        weights: float32, of m elements.
        name: of the node.

    Raises:
        tf.errors.InvalidArgumentError: at run time, for a `restore` that is no row of `embeddings`, for row splits
            that do not lead from 0 to m without descending, or for another number of weights.
    """
    return load_library().mx_rec_pool(
        embeddings=embeddings,
        restore=restore,
        row_splits=row_splits,
        weights=[] if weights is None else [weights],
        combiner=combiner,
        name=name,
    )


@tf.RegisterGradient("MxRecPool")
def _pool_gradient(op: tf.Operation, gradient: tf.Tensor) -> list[Optional[tf.Tensor]]:
    """Gradients of embeddings and weights."""
    embeddings, restore, splits, *weights = op.inputs
    combiner = op.get_attr("combiner")
    library = load_library()
    by_embedding = library.mx_rec_pool_gradient(
        gradients=gradient,
        num_embeddings=tf.shape(embeddings, out_type=tf.int64)[0],
        restore=restore,
        row_splits=splits,
        weights=weights,
        combiner=combiner,
    )
    by_embedding.set_shape(embeddings.shape)
    by_weight = [
        library.mx_rec_pool_weight_gradient(
            gradients=gradient,
            embeddings=embeddings,
            restore=restore,
            row_splits=splits,
            weights=tensor,
            combiner=combiner,
        )
        for tensor in weights
    ]
    return [by_embedding, None, None, *by_weight]


@tf.RegisterGradient("MxRecPoolGradient")
def _second_gradient(op: tf.Operation, gradient: tf.Tensor) -> list[Optional[tf.Tensor]]:
    """`sum(sums * u)` is `sum(gradients * pool(u))`, for any u."""
    gradients, _, restore, splits, *weights = op.inputs
    combiner = op.get_attr("combiner")
    by_weight = [
        load_library().mx_rec_pool_weight_gradient(
            gradients=gradients,
            embeddings=gradient,
            restore=restore,
            row_splits=splits,
            weights=tensor,
            combiner=combiner,
        )
        for tensor in weights
    ]
    pooled = pool(gradient, restore, splits, combiner.decode(), weights[0] if weights else None)
    return [pooled, None, None, None, *by_weight]
