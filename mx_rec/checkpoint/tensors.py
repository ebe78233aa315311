"""TensorFlow's own part of a checkpoint, under names of the caller's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def write_tensors(prefix: str, values: Mapping[str, Any]) -> None:
    """Writes a checkpoint of these values (arrays, or text).

    In a graph of its own it is the same with and without eager execution; fed, values know no bound on constants.

    Raises:
        tf.errors.OpError: it cannot be written.
    """
    import numpy as np
    import tensorflow as tf

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        fed = [tf.compat.v1.placeholder(tf.as_dtype(np.asarray(value).dtype)) for value in values.values()]
        slices = [""] * len(fed)
        save = tf.raw_ops.SaveV2(prefix=prefix, tensor_names=list(values), shape_and_slices=slices, tensors=fed)
        session.run(save, dict(zip(fed, values.values())))
