"""From the ids of a script to keys of a table."""

from __future__ import annotations

import tensorflow as tf

from mx_rec.core import pooling
from mx_rec.core.table import EmbeddingTable
from mx_rec.util.log import logger

_EXACT_UP_TO = {tf.float32: 2**24, tf.float64: 2**53}


def as_keys(table: EmbeddingTable, ids: pooling.Ids) -> pooling.Ids:
    """The ids in the table's `key_dtype`.

    int32 ids of an int64 table are widened. Floating-point ids, as `tf.strings.to_number` gives them by default, are
    converted; at run time one that is no whole number, or not in the range of `key_dtype`, fails the step. A warning
    says up to which number the type holds every id.

    Args:
        table: to be looked up.
        ids: integers, float32 or float64.

    Raises:
        TypeError: their dtype is none of these, or int64 for an int32 table.
    """
    if ids.dtype == table.key_dtype:
        return ids
    if ids.dtype in _EXACT_UP_TO:
        logger.warning(
            "table %r: ids are %s, which holds every whole number up to %d only: larger ids may have become others "
            "before they come here",
            table.table_name,
            ids.dtype.name,
            _EXACT_UP_TO[ids.dtype],
        )
        return _with_values(ids, _whole(table, pooling.flat_ids(ids)))
    if ids.dtype == tf.int32 and table.key_dtype == tf.int64:
        return _with_values(ids, tf.cast(pooling.flat_ids(ids), tf.int64))
    if ids.dtype != tf.int64:
        raise TypeError(
            f"table {table.table_name!r}: ids must be int64, int32, float32 or float64, got {ids.dtype.name}"
        )
    raise TypeError(
        f"table {table.table_name!r} was created with key_dtype {table.key_dtype.name}, but ids are {ids.dtype.name}; "
        "cast one of them"
    )


def _whole(table: EmbeddingTable, values: tf.Tensor) -> tf.Tensor:
    """Floating-point values as integers, checked at run time."""
    keys = tf.cast(values, table.key_dtype)
    changed = tf.not_equal(tf.cast(keys, values.dtype), values)
    message = f"ids of table {table.table_name} must be whole numbers in the range of {table.key_dtype.name}, got "
    check = tf.raw_ops.Assert(
        condition=tf.logical_not(tf.reduce_any(changed)), data=[message, tf.boolean_mask(values, changed)]
    )
    with tf.control_dependencies([check]):
        return tf.identity(keys)


def _with_values(ids: pooling.Ids, values: tf.Tensor) -> pooling.Ids:
    if isinstance(ids, tf.SparseTensor):
        return tf.SparseTensor(ids.indices, values, ids.dense_shape)
    return ids.with_flat_values(values) if isinstance(ids, tf.RaggedTensor) else values
