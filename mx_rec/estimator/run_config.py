"""`NPURunConfig`: a `RunConfig` that takes the options of a device and leaves them unused."""

from __future__ import annotations

import inspect
from typing import Any

from mx_rec.estimator import api
from mx_rec.util.log import logger

_RUN_CONFIG_OPTIONS = frozenset(inspect.signature(api.RunConfig.__init__).parameters) - {"self"}
# Options of the devices' RunConfig. They choose compilers, kernels and memory of a device, so CPUs have no use for them.
_DEVICE_OPTIONS = frozenset(
    """
    HCCL_algorithm accelerate_train_mode all_tensor_not_empty ac_parallel_enable aoe_config_file aoe_mode
    auto_multistream_parallel_mode auto_tune_mode buffer_optimize compress_weight_conf customize_dtypes debug_dir
    deterministic device_type distribute_config dump_config dynamic_dims dynamic_graph_execute_mode
    dynamic_input_config dynamic_inputs_shape_range dynamic_node_type enable_compress_weight enable_data_pre_proc
    enable_exception_dump enable_graph_parallel enable_reduce_precision enable_scope_fusion_passes
    enable_small_channel es_cluster_config event_sync_timeout execute_times experimental_config
    experimental_logical_device_cluster_deploy_mode experimental_logical_device_id export_compile_stat external_weight
    frozen_variable fusion_switch_file graph_compiler_cache_dir graph_memory_max_size graph_memory_optimize_config
    graph_parallel_option_path graph_run_mode graph_slice hccl_timeout hcom_multi_mode hcom_parallel horovod_mode
    in_out_pair in_out_pair_flag inference_compile input_fusion_size input_shape insert_op_file is_tailing_optimization
    iterations_per_loop jit_compile lite_slice_num local_device_list local_rank_id logical_device_cluster_deploy_mode
    logical_device_id lower_functional_ops memory_config memory_optimization_policy mix_compile_mode modify_mixlist
    mstune_mode oo_level op_compiler_cache_dir op_compiler_cache_mode op_debug_config op_debug_level op_execute_timeout
    op_precision_mode op_select_implmode op_tune_mode op_wait_timeout optimization_switch optypelist_for_implmode
    precision_mode precision_mode_v2 profiling_config quant_dumpable shape_generalization_mode skip_optimize soc_config
    static_memory_policy stream_max_parallel_num stream_sync_timeout topo_sorting_mode tune_bank_path tune_config
    tune_device_ids use_off_line variable_format_optimize variable_memory_max_size variable_placement
    variable_use_1g_huge_page weight_unquant work_path
    """.split()
)


class NPURunConfig(api.RunConfig):
    """A `tf.estimator.RunConfig` that scripts made for a device can build unchanged.

    Every option of `RunConfig` means what it means there. Options of the device are accepted and ignored, and one line
    of the log names them. A name that is neither is ignored too, with a warning.

    Args:
        iterations_per_loop: accepted; hooks see every step.
        profiling_config: accepted; `tf.compat.v1.train.ProfilerHook` profiles.
        model_dir: as in `RunConfig`.
        **options: of `RunConfig`, or of a device.

    Raises:
        ValueError: an option of `RunConfig` is out of its range.
    """

    def __init__(
        self, iterations_per_loop: int = 1, profiling_config: Any = None, model_dir: Any = None, **options: Any
    ) -> None:
        kept = {name: value for name, value in options.items() if name in _RUN_CONFIG_OPTIONS}
        super().__init__(model_dir=model_dir, **kept)
        ignored = set(options) - set(kept)
        if iterations_per_loop != 1:
            ignored.add("iterations_per_loop")
        if profiling_config is not None:
            ignored.add("profiling_config")
        known, unknown = sorted(ignored & _DEVICE_OPTIONS), sorted(ignored - _DEVICE_OPTIONS)
        if known:
            logger.info("NPURunConfig: options of a device have no effect here: %s", ", ".join(known))
        if unknown:
            logger.warning(
                "NPURunConfig ignores what is neither an option of RunConfig nor one of a device: %s",
                ", ".join(unknown),
            )
