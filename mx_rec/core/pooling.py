"""Ids of a lookup that are sparse or ragged, and one embedding for each of their rows."""

from __future__ import annotations

from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf

from mx_rec import ops

COMBINERS = ("sum", "mean", "sqrtn")
Ids = Union[tf.Tensor, tf.SparseTensor, tf.RaggedTensor]

_FLAT_RANK = 1


def flat_ids(ids: Ids) -> tf.Tensor:
    """All ids in one tensor: the values of sparse or ragged ids, dense ids themselves."""
    if isinstance(ids, tf.SparseTensor):
        return ids.values
    return ids.flat_values if isinstance(ids, tf.RaggedTensor) else ids


def check_pooling(table_name: str, ids: Ids, combiner: Any, weights: Any) -> None:
    """Refuses a combiner, weights or form of ids that cannot go together.

    Raises:
        TypeError: weights are not of the type of the ids, or not floating point.
        ValueError: anything else.
    """
    where = f"table {table_name!r}"
    if combiner is not None and not (isinstance(combiner, str) and combiner in COMBINERS):
        raise ValueError(f"{where}: combiner must be None, 'sum', 'mean' or 'sqrtn', got {combiner!r}")
    if combiner is None:
        if isinstance(ids, tf.SparseTensor):
            raise ValueError(
                f"{where}: ids in a SparseTensor need a combiner ('sum', 'mean' or 'sqrtn'), got None; "
                "for rows without pooling look up ids.values, or a RaggedTensor"
            )
        if weights is not None:
            raise ValueError(f"{where}: weights need a combiner ('sum', 'mean' or 'sqrtn'), got combiner=None")
        return
    _check_rank(where, "ids", ids)
    if weights is not None:
        _check_weights(where, ids, weights)


def pool(embeddings: tf.Tensor, restore: tf.Tensor, ids: Ids, combiner: str, weights: Optional[Ids]) -> tf.Tensor:
    """Float32 [rows, dim] from the local embedding [n, dim]; `restore` leads each id to its row of it."""
    splits = _row_splits(ids, restore)
    factors = None
    if weights is not None:
        factors = tf.cast(_values_of_same_rows(ids, weights), tf.float32)
    pooled = ops.pool(embeddings, restore, splits, combiner, factors, name="embeddings")
    if not isinstance(ids, tf.Tensor):
        pooled.set_shape([ids.shape[0] if ids.shape.rank else None, embeddings.shape[1]])
    return pooled


def shaped(ids: Ids, rows: tf.Tensor, is_pooled: bool) -> Union[tf.Tensor, tf.RaggedTensor]:
    """What a lookup of these ids gives: its rows in the shape of the ids, without their last dimension if pooled."""
    if not is_pooled:
        return ids.with_flat_values(rows) if isinstance(ids, tf.RaggedTensor) else rows
    if not isinstance(ids, tf.Tensor) or ids.shape.rank == 2:
        return rows
    result = tf.reshape(rows, tf.concat([tf.shape(ids)[:-1], tf.shape(rows)[1:]], axis=0))
    result.set_shape(ids.shape[:-1].concatenate(rows.shape[1:]))
    return result


def _check_rank(where: str, what: str, ids: Ids) -> None:
    rank = ids.shape.rank
    if isinstance(ids, tf.RaggedTensor):
        if ids.ragged_rank != 1 or ids.flat_values.shape.rank not in (None, _FLAT_RANK):
            raise ValueError(
                f"{where}: with a combiner, ragged {what} must have rank 2, got ragged rank {ids.ragged_rank} and "
                f"flat values of rank {ids.flat_values.shape.rank}"
            )
    elif isinstance(ids, tf.SparseTensor):
        if rank not in (None, 2):
            raise ValueError(f"{where}: with a combiner, sparse {what} must have rank 2, got rank {rank}")
    elif not rank:  # None or 0
        raise ValueError(
            f"{where}: with a combiner, dense {what} must have a known rank of at least 1, got shape {ids.shape}"
        )


def _check_weights(where: str, ids: Ids, weights: Any) -> None:
    for kind in (tf.SparseTensor, tf.RaggedTensor, tf.Tensor):
        if isinstance(ids, kind) and not isinstance(weights, kind):
            raise TypeError(
                f"{where}: weights must be of the type of the ids, {kind.__name__}, got {type(weights).__name__}"
            )
    if not weights.dtype.is_floating:
        raise TypeError(f"{where}: weights must be floating point, got {weights.dtype.name}")
    _check_rank(where, "weights", weights)
    for part, of_ids, of_weights in _row_parts(ids, weights) + [("values", flat_ids(ids), flat_ids(weights))]:
        if not of_ids.shape.is_compatible_with(of_weights.shape):
            raise ValueError(
                f"{where}: weights must have the {part} shape of the ids, {of_ids.shape}, got {of_weights.shape}"
            )
    for part, of_ids, of_weights in _row_parts(ids, weights):
        expected, got = tf.get_static_value(of_ids), tf.get_static_value(of_weights)
        if expected is not None and got is not None and not np.array_equal(expected, got):
            raise ValueError(f"{where}: weights must have the {part} of the ids, {_shown(expected)}, got {_shown(got)}")


def _shown(value: np.ndarray) -> str:
    return np.array2string(value, threshold=20, separator=", ").replace("\n", "")


def _row_parts(ids: Ids, weights: Ids) -> list[tuple[str, tf.Tensor, tf.Tensor]]:
    """(name, of the ids, of the weights) of the tensors that say which row a value is in."""
    if isinstance(ids, tf.SparseTensor):
        return [
            ("indices", ids.indices, weights.indices),
            ("dense shape", ids.dense_shape, weights.dense_shape),
        ]
    if isinstance(ids, tf.RaggedTensor):
        return [("row splits", ids.row_splits, weights.row_splits)]
    return []


def _row_splits(ids: Ids, restore: tf.Tensor) -> tf.Tensor:
    """Int64 [rows + 1]."""
    if isinstance(ids, tf.SparseTensor):
        return ops.row_splits(ids.indices, ids.dense_shape[0], name="row_splits")
    if isinstance(ids, tf.RaggedTensor):
        return tf.cast(ids.row_splits, tf.int64, name="row_splits")
    shape = tf.shape(restore, out_type=tf.int64)
    splits = tf.range(tf.reduce_prod(shape[:-1]) + 1) * shape[-1]
    leading = ids.shape[:-1].num_elements()
    splits.set_shape([None if leading is None else leading + 1])
    return splits


def _values_of_same_rows(ids: Ids, weights: Ids) -> tf.Tensor:
    """The weights, after a check at run time that they are in the rows of the ids, unless they clearly are."""
    values = flat_ids(weights)
    checks = [
        tf.raw_ops.Assert(
            condition=tf.reduce_all(tf.raw_ops.Equal(x=of_ids, y=of_weights, incompatible_shape_error=False)),
            data=[f"weights must have the {part} of the ids, expected and got:", of_ids, of_weights],
        )
        for part, of_ids, of_weights in _row_parts(ids, _same_splits_dtype(ids, weights))
        if of_ids is not of_weights
    ]
    if isinstance(ids, tf.Tensor):
        shapes = tf.shape(ids), tf.shape(values)
        if not (ids.shape.is_fully_defined() and values.shape.is_fully_defined()):
            checks.append(
                tf.raw_ops.Assert(
                    condition=tf.reduce_all(tf.raw_ops.Equal(x=shapes[0], y=shapes[1], incompatible_shape_error=False)),
                    data=["weights must have the shape of the ids, expected and got:", *shapes],
                )
            )
    with tf.control_dependencies(checks):
        return tf.identity(values) if checks else values


def _same_splits_dtype(ids: Ids, weights: Ids) -> Ids:
    if isinstance(ids, tf.RaggedTensor) and weights.row_splits.dtype != ids.row_splits.dtype:
        return weights.with_row_splits_dtype(ids.row_splits.dtype)
    return weights
