"""The ops that scripts reach through `import_host_pipeline_ops()`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Optional

import tensorflow as tf

from mx_rec.core.feature_process import set_threshold as _set_threshold

__all__ = ["clear_channel", "import_host_pipeline_ops", "return_timestamp", "set_threshold"]


def import_host_pipeline_ops(so_pkg_name: Optional[str] = None) -> ModuleType:
    """The module of these ops.

    Args:
        so_pkg_name: accepted; the op library is found by `mx_rec.ops.library_path`.
    """
    return sys.modules[__name__]


def set_threshold(input: Any, emb_name: str = "", ids_name: str = "", name: Optional[str] = None) -> tf.Tensor:
    """See `mx_rec.core.feature_process.set_threshold`."""
    return _set_threshold(input, emb_name, ids_name, name)


def return_timestamp(x: Any, name: Optional[str] = None) -> tf.Tensor:
    """The time at which the op runs, in seconds since 1970: int64 of the shape of `x` (int64)."""
    shape = tf.shape(tf.convert_to_tensor(x, tf.int64))
    return tf.fill(shape, tf.cast(tf.timestamp(), tf.int64), name=name)


def clear_channel(channel_id: int = 0, name: Optional[str] = None) -> tf.Operation:
    """An op that does nothing: an iterator's initializer begins anew, with nothing left of batches prepared before."""
    return tf.no_op(name=name)
