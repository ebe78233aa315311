"""What older scripts import of a device's operations; one process of CPUs has nothing to do in them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Optional

import tensorflow as tf

__all__ = ["hccl_ops", "npu_ops"]


def _dropout(
    x: tf.Tensor, keep_prob: Any, noise_shape: Any = None, seed: Optional[int] = None, name: Optional[str] = None
) -> tf.Tensor:
    """`tf.compat.v1.nn.dropout` that keeps each element with probability `keep_prob`."""
    return tf.compat.v1.nn.dropout(x, rate=1 - keep_prob, noise_shape=noise_shape, seed=seed, name=name)


def _of_one_process(tensor: Any, *args: Any, **options: Any) -> Any:
    """The tensor itself: what a collective operation of one process gives."""
    return tensor


npu_ops = SimpleNamespace(dropout=_dropout)
hccl_ops = SimpleNamespace(allreduce=_of_one_process, broadcast=_of_one_process)
