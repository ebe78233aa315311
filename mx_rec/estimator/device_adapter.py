"""All that the module names of a device's TensorFlow adapter answer with.

Scripts have files of such names themselves (`tf_adapter.py` beside the main file), so no module of those names imports
another one of them.
"""

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
