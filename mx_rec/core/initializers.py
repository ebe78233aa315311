"""Turns TensorFlow's initializers into what the store computes itself."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import numbers
import re
from collections.abc import Callable
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from mx_rec.tf_compat import given_seed, with_seed

# Standard deviation of a standard normal truncated at two of its standard deviations; TensorFlow
# divides by it so that variance scaling keeps the variance it promises.
_TRUNCATED_STDDEV = 0.87962566103423978
_POOL_ELEMENTS = 1 << 18
_POOL_MAX_ROWS = 1024


@dataclasses.dataclass(frozen=True)
class NativeInitializer:
    """An initializer as the `MxRecTable` op takes it; see `mx_rec.ops.table_handle`."""

    kind: str
    a: float = 0.0
    b: float = 0.0
    pool: Optional[np.ndarray] = None


def table_seed(table_name: str, initializer: Any, graph_seed: Optional[int]) -> int:
    """Seed of a table: from its name and the initializer's seed, else the graph's seed, else 0.

    The same script gives the same initial rows in every process.
    """
    own = given_seed(initializer)
    seed = own if isinstance(own, numbers.Integral) else graph_seed
    digest = hashlib.sha256(f"{0 if seed is None else int(seed)}/{table_name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def to_native(initializer: Any, dim: int, vocabulary_size: int, seed: int) -> NativeInitializer:
    """Reads an initializer.

    Zeros, ones, scalar constants, uniform, normal, truncated normal and variance scaling (Glorot,
    He, LeCun) are computed by the store for every key. Any other initializer is evaluated once by
    TensorFlow for a block of rows [up to 1024, dim], and each key draws one of those rows by hash.

    Args:
        initializer: instance of a TensorFlow (v1 or v2) or Keras initializer.
        dim: columns of the table.
        vocabulary_size: rows assumed by variance scaling's fan-in.
        seed: of the table, for the block of rows.

    Raises:
        TypeError: `initializer` is a class or not callable.
        ValueError: a parameter of it is not finite or out of its range (the message names it), or it does not give a
            float tensor of the shape it is asked for.
    """
    if isinstance(initializer, type) or not callable(initializer):
        raise TypeError(
            "emb_initializer must be an initializer instance, such as "
            f"tf.compat.v1.random_normal_initializer(stddev=0.01), got {initializer!r}"
        )
    read = _READERS.get(_plain_class_name(initializer))
    native = read(initializer, dim, vocabulary_size) if read is not None else None
    return native if native is not None else _pool(initializer, dim, seed)


def _plain_class_name(initializer: Any) -> str:
    return re.sub(r"V\d$", "", type(initializer).__name__).lower()


def _title(initializer: Any) -> str:
    return f"emb_initializer {type(initializer).__name__}"


def _parameter(initializer: Any, name: str, default: Optional[float] = None) -> float:
    """A parameter of an initializer; it must be finite in float32, in which the store computes."""
    given = getattr(initializer, name) if default is None else getattr(initializer, name, default)
    value = float(given)
    if not abs(value) <= float(np.finfo(np.float32).max):
        raise ValueError(f"{_title(initializer)}: {name} must be finite in float32, got {given}")
    return value


def _constant(initializer: Any, dim: int, vocabulary_size: int) -> Optional[NativeInitializer]:
    if np.ndim(getattr(initializer, "value", 0.0)) != 0:
        return None
    return NativeInitializer("constant", _parameter(initializer, "value", 0.0))


def _uniform(initializer: Any, dim: int, vocabulary_size: int) -> Optional[NativeInitializer]:
    low = _parameter(initializer, "minval")
    # TensorFlow reads a missing maxval as 1 for floats.
    high = 1.0 if initializer.maxval is None else _parameter(initializer, "maxval")
    if low > high:
        raise ValueError(f"{_title(initializer)}: minval must be at most maxval, got minval={low} and maxval={high}")
    return NativeInitializer("uniform", low, high)


def _normal(kind: str) -> Callable[[Any, int, int], Optional[NativeInitializer]]:
    def read(initializer: Any, dim: int, vocabulary_size: int) -> Optional[NativeInitializer]:
        mean, stddev = _parameter(initializer, "mean"), _parameter(initializer, "stddev")
        if stddev < 0:
            raise ValueError(f"{_title(initializer)}: stddev must be at least 0, got {stddev}")
        return NativeInitializer(kind, mean, stddev)

    return read


def _variance_scaling(initializer: Any, dim: int, vocabulary_size: int) -> Optional[NativeInitializer]:
    fans = {
        "fan_in": float(vocabulary_size),
        "fan_out": float(dim),
        "fan_avg": (vocabulary_size + dim) / 2.0,
    }
    scale = _parameter(initializer, "scale") / max(1.0, fans[initializer.mode])
    if initializer.distribution == "uniform":
        limit = math.sqrt(3.0 * scale)
        return NativeInitializer("uniform", -limit, limit)
    if initializer.distribution == "untruncated_normal":
        return NativeInitializer("normal", 0.0, math.sqrt(scale))
    return NativeInitializer("truncated_normal", 0.0, math.sqrt(scale) / _TRUNCATED_STDDEV)


_READERS: dict[str, Callable[[Any, int, int], Optional[NativeInitializer]]] = {
    "zeros": lambda *_: NativeInitializer("constant", 0.0),
    "ones": lambda *_: NativeInitializer("constant", 1.0),
    "constant": _constant,
    "randomuniform": _uniform,
    "randomnormal": _normal("normal"),
    "truncatednormal": _normal("truncated_normal"),
    "variancescaling": _variance_scaling,
    "glorotuniform": _variance_scaling,
    "glorotnormal": _variance_scaling,
    "henormal": _variance_scaling,
    "heuniform": _variance_scaling,
    "lecunnormal": _variance_scaling,
    "lecununiform": _variance_scaling,
}


def _pool(initializer: Any, dim: int, seed: int) -> NativeInitializer:
    initializer = with_seed(initializer, seed % (1 << 31))
    rows = max(1, min(_POOL_MAX_ROWS, _POOL_ELEMENTS // dim))
    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(seed % (1 << 31))
        try:
            block = initializer([rows, dim], dtype=tf.float32)
        except TypeError:  # initializers of user code may take the shape alone
            block = initializer([rows, dim])
        with tf.compat.v1.Session(config=tf.compat.v1.ConfigProto(device_count={"GPU": 0})) as session:
            values = np.asarray(session.run(tf.convert_to_tensor(block)))
    if values.shape != (rows, dim) or not np.issubdtype(values.dtype, np.floating):
        raise ValueError(
            f"{_title(initializer)} must give a float tensor of shape "
            f"({rows}, {dim}), got {values.dtype} of shape {values.shape}"
        )
    return NativeInitializer("pool", pool=values.astype(np.float32))
