"""Device names of nodes."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf


def is_device(name: str) -> bool:
    """Whether TensorFlow can read a device name; "", for none, is one."""
    return _parsed(name) is not None


def usable_device(name: str) -> str:
    """The device name for a new node beside one that has it: "" if TensorFlow cannot read it."""
    return name if is_device(name) else ""


def merged_device(inner: str, outer: str) -> str | None:
    """The device of a node that a call runs: what `inner` leaves open is as `outer`, the call's, has it.

    Returns:
        The name; `None` if TensorFlow cannot read one of the two.
    """
    own, around = _parsed(inner), _parsed(outer)
    if own is None or around is None:
        return None
    if not inner or not outer:
        return inner or outer
    return str(around.make_merged_spec(own).to_string())


@functools.lru_cache(maxsize=256)
def _parsed(name: str) -> Any:
    try:
        return tf.DeviceSpec.from_string(name)
    except (ValueError, TypeError):
        return None
