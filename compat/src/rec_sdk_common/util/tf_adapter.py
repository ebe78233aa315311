"""Names of a device's TensorFlow adapter, answered by mx_rec."""

from mx_rec.estimator import (
    DumpConfig,
    NPUEstimator,
    NPURunConfig,
    ProfilingConfig,
    hccl_ops,
    npu_allreduce,
    npu_config_proto,
    npu_distributed_optimizer_wrapper,
    npu_hooks_append,
    npu_ops,
    npu_plugin,
    util,
)

__all__ = [
    "DumpConfig",
    "NPUEstimator",
    "NPURunConfig",
    "ProfilingConfig",
    "hccl_ops",
    "npu_allreduce",
    "npu_config_proto",
    "npu_distributed_optimizer_wrapper",
    "npu_hooks_append",
    "npu_ops",
    "npu_plugin",
    "util",
]
