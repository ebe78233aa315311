"""Estimator: what a script needs to train, evaluate, predict and export with `tf.estimator`.

Importing this package imports neither TensorFlow nor Estimator; the names below are loaded on first use. `api` holds
the names of `tf.estimator` for every TensorFlow, also where TensorFlow itself has them no longer.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "DumpConfig": "mx_rec.estimator.device_names",
    "NPUEstimator": "mx_rec.estimator.npu_estimator",
    "NPURunConfig": "mx_rec.estimator.run_config",
    "ProfilingConfig": "mx_rec.estimator.device_names",
    "TableSummaryHook": "mx_rec.estimator.summaries",
    "WarmStartSettings": "mx_rec.estimator.api",
    "hccl_ops": "mx_rec.estimator.device_names",
    "npu_allreduce": "mx_rec.estimator.device_names",
    "npu_config_proto": "mx_rec.estimator.device_names",
    "npu_distributed_optimizer_wrapper": "mx_rec.estimator.device_names",
    "npu_hooks_append": "mx_rec.estimator.device_names",
    "npu_ops": "mx_rec.estimator.device_names",
    "npu_plugin": "mx_rec.estimator.device_names",
    "table_metrics": "mx_rec.estimator.summaries",
    "util": "mx_rec.estimator.device_names",
    "with_warm_start": "mx_rec.estimator.warm_start",
}

__all__ = ["api", *_HOME]


def __getattr__(name: str) -> Any:
    if name == "api":
        return importlib.import_module("mx_rec.estimator.api")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(list(globals()) + __all__)
