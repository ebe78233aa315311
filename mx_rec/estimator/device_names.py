"""What scripts import from a device's TensorFlow adapter; on CPUs there is nothing to do in it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Optional

import tensorflow as tf

from mx_rec.util.log import logger
from mx_rec.util.tf_version_adapter import hccl_ops as hccl_ops
from mx_rec.util.tf_version_adapter import npu_ops as npu_ops


def npu_hooks_append(hooks_list: Optional[Sequence[Any]] = None) -> list[Any]:
    """The hooks as a list. A device adds hooks of its own here; CPUs need none.

    Raises:
        TypeError: `hooks_list` is neither None nor a list or tuple of hooks.
    """
    if hooks_list is None:
        return []
    if not isinstance(hooks_list, (list, tuple)):
        raise TypeError(f"hooks_list must be a list of hooks or None, got {type(hooks_list).__name__}")
    for hook in hooks_list:
        if not isinstance(hook, tf.compat.v1.train.SessionRunHook):
            raise TypeError(f"hooks_list must hold SessionRunHooks, got {type(hook).__name__}")
    return list(hooks_list)


def npu_config_proto(config_proto: Optional[Any] = None, job_start_file: Optional[str] = None) -> Any:
    """The session configuration itself, a new one if None. `job_start_file` is accepted."""
    return tf.compat.v1.ConfigProto() if config_proto is None else config_proto


def npu_distributed_optimizer_wrapper(optimizer: Any) -> Any:
    """The optimizer itself: one process has no gradients to reduce."""
    return optimizer


def npu_allreduce(values: Any, reduction: str = "mean", fusion: int = 1, fusion_id: int = -1, group: str = "") -> Any:
    """The values themselves: the mean or sum over one process. Other arguments are accepted."""
    return values


def _set_iteration_per_loop(session: Any, train_op: Any, iterations_per_loop: int = 1) -> Any:
    """The operation itself. Loops of several steps in one run need a device: ValueError."""
    if iterations_per_loop != 1:
        raise ValueError(f"iterations_per_loop must be 1 on CPUs, one step per session.run, got {iterations_per_loop}")
    return train_op


npu_plugin = SimpleNamespace(set_device_sat_mode=lambda mode: None)
util = SimpleNamespace(set_iteration_per_loop=_set_iteration_per_loop)


class DumpConfig:
    """Accepted: a device would dump tensors as it says. To look at tensors here, use `LoggingTensorHook` or tfdbg."""

    def __init__(self, *args: Any, **options: Any) -> None:
        _log_ignored("DumpConfig", options)


class ProfilingConfig:
    """Accepted: a device would profile as it says. To profile here, use `tf.compat.v1.train.ProfilerHook`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        _log_ignored("ProfilingConfig", options)


def _log_ignored(name: str, options: dict[str, Any]) -> None:
    logger.info("%s has no effect here: %s", name, ", ".join(sorted(options)) or "no options")
