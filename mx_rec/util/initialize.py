"""`init`, `terminate_config_initializer` and the process-wide configuration."""

from __future__ import annotations

import dataclasses
import os
from types import ModuleType
from typing import Any, Optional

import tensorflow as tf

from mx_rec.constants.constants import ASCEND_GLOBAL_HASHTABLE_COLLECTION, HOT_EMBEDDING_ENV, MAX_INT32
from mx_rec.core import graph_state
from mx_rec.util.log import logger
from mx_rec.util.validate import check_bool, check_int, check_optional_int, check_string


@dataclasses.dataclass(frozen=True)
class InitConfig:
    """The checked arguments of `init`; see there."""

    use_mpi: bool = False
    rank_id: Optional[int] = None
    rank_size: Optional[int] = None
    max_steps: int = -1
    train_steps: int = -1
    eval_steps: int = -1
    save_steps: int = -1
    if_load: bool = False
    use_dynamic: bool = True
    use_dynamic_expansion: bool = False
    bind_cpu: bool = True
    prefetch_batch_number: int = 1
    is_incremental_checkpoint: bool = False
    save_checkpoint_due_time: Optional[int] = None
    save_delta_checkpoints_secs: Optional[int] = None
    restore_model_version: Optional[int] = None
    recent_key_count_threshold: int = 0

    def __post_init__(self) -> None:
        for name in (
            "use_mpi",
            "if_load",
            "use_dynamic",
            "use_dynamic_expansion",
            "bind_cpu",
            "is_incremental_checkpoint",
        ):
            check_bool(name, getattr(self, name))
        for name in ("max_steps", "train_steps", "eval_steps", "save_steps"):
            check_int(name, getattr(self, name), -1, MAX_INT32)
        if self.max_steps == self.train_steps == self.eval_steps == 0:
            raise ValueError("max_steps, train_steps and eval_steps must not all be 0")
        check_int("prefetch_batch_number", self.prefetch_batch_number, 1, 1024)
        check_optional_int("rank_id", self.rank_id, 0, MAX_INT32)
        check_optional_int("rank_size", self.rank_size, 1, MAX_INT32)
        self._check_incremental()

    def _check_incremental(self) -> None:
        check_optional_int("save_checkpoint_due_time", self.save_checkpoint_due_time, 1, MAX_INT32)
        check_optional_int("save_delta_checkpoints_secs", self.save_delta_checkpoints_secs, 1, MAX_INT32)
        check_optional_int("restore_model_version", self.restore_model_version, 0, MAX_INT32)
        check_int("recent_key_count_threshold", self.recent_key_count_threshold, 0, MAX_INT32)
        if self.is_incremental_checkpoint and None in (
            self.save_checkpoint_due_time,
            self.save_delta_checkpoints_secs,
        ):
            raise ValueError(
                "is_incremental_checkpoint=True needs both save_checkpoint_due_time and "
                f"save_delta_checkpoints_secs (seconds), got {self.save_checkpoint_due_time} and "
                f"{self.save_delta_checkpoints_secs}"
            )
        unused = [
            name
            for name in ("save_checkpoint_due_time", "save_delta_checkpoints_secs", "recent_key_count_threshold")
            if getattr(self, name)
        ]
        if unused and not self.is_incremental_checkpoint:
            logger.warning("init: %s without is_incremental_checkpoint=True: no effect", " and ".join(unused))


class TrainParamsConfig:
    """What the rewrite leaves for the training loop."""

    def __init__(self) -> None:
        self._collection = ASCEND_GLOBAL_HASHTABLE_COLLECTION

    @property
    def ascend_global_hashtable_collection(self) -> str:
        """Name of the graph collection that lists the tables' handles."""
        return self._collection

    @ascend_global_hashtable_collection.setter
    def ascend_global_hashtable_collection(self, name: str) -> None:
        self._collection = check_string("ascend_global_hashtable_collection", name, 1, 255)

    def get_initializer(self, is_training: bool) -> tf.Operation:
        """The operation that starts the iterators of one side of the rewritten graph.

        A one-shot iterator starts by itself; then the operation does nothing.

        Args:
            is_training: True for the iterators of training lookups, False for evaluation.

        Raises:
            EnvironmentError: the graph has not been rewritten yet.
            ValueError: the graph has no lookup on that side.
        """
        check_bool("is_training", is_training)
        state = graph_state.modified_state()
        if state is None or state.initializers is None:
            raise EnvironmentError(
                "get_initializer needs a rewritten graph: call modify_graph_and_start_emb_cache() or "
                "start_asc_pipeline() first"
            )
        initializer = state.initializers.get(is_training)
        if initializer is None:
            side = "training" if is_training else "evaluation"
            raise ValueError(
                f"the graph has no {side} iterator: no sparse_lookup(..., is_train={is_training}) is fed by one"
            )
        return initializer

    def get_training_mode_channel_id(self, is_training: bool) -> int:
        """The number of a side: 0 for training, 1 for evaluation. Here it leads to no channel."""
        return 0 if check_bool("is_training", is_training) else 1

    def get_target_batch(self, is_training: bool, batch: Any = None) -> Any:
        """The batch that the rewritten graph reads, in place of the one the script got from `get_next`.

        Args:
            is_training: side of the lookups that read the batch.
            batch: the old batch, in any structure of tensors; the result then has that structure. Without
                it the result is a tuple of the batch's components in flat order (dict batches by sorted key).

        Raises:
            EnvironmentError: the graph has not been rewritten yet.
            ValueError: without `batch`, if not exactly one batch feeds the lookups of that side.
        """
        check_bool("is_training", is_training)
        state = graph_state.modified_state()
        if state is None:
            raise EnvironmentError(
                "get_target_batch needs a rewritten graph: call modify_graph_and_start_emb_cache() or "
                "start_asc_pipeline() first"
            )
        if batch is not None:
            return tf.nest.map_structure(lambda tensor: state.replaced.get(getattr(tensor, "name", ""), tensor), batch)
        batches = state.batches.get(is_training, [])
        if len(batches) != 1:
            side = "training" if is_training else "evaluation"
            raise ValueError(
                f"the {side} lookups read {len(batches)} batches, not one: pass the old batch to say which"
            )
        return batches[0]


class ConfigInitializer:
    """The configuration of the process, made by `init`."""

    _instance: Optional[ConfigInitializer] = None

    def __init__(self, config: InitConfig) -> None:
        self.config = config
        self.if_load = config.if_load
        self.max_steps = config.max_steps
        self.train_steps = config.train_steps
        self.eval_steps = config.eval_steps
        self.save_steps = config.save_steps
        self.train_params_config = TrainParamsConfig()
        self.has_saved_incrementally = False
        self.prefix_before: Optional[str] = None

    @classmethod
    def get_instance(cls) -> ConfigInitializer:
        """The instance made by `init`; EnvironmentError before that."""
        if cls._instance is None:
            raise EnvironmentError("mx_rec is not initialised: call mx_rec.util.initialize.init() first")
        return cls._instance

    @property
    def use_dynamic_expansion(self) -> bool:
        """Whether tables grow while training."""
        return self.config.use_dynamic_expansion

    @property
    def use_static(self) -> bool:
        """Whether shapes and send counts are checked (`use_dynamic=False`)."""
        return not self.config.use_dynamic

    @property
    def use_dynamic(self) -> bool:
        """Whether shapes may vary from batch to batch."""
        return self.config.use_dynamic

    @property
    def host_pipeline_ops(self) -> ModuleType:
        """See `mx_rec.util.ops.import_host_pipeline_ops`, whose result it is."""
        from mx_rec.util.ops import import_host_pipeline_ops  # imported late, since it imports this module

        return import_host_pipeline_ops()


def init(use_mpi: bool = False, **kwargs: Any) -> None:
    """Configures mx_rec for this process.

    Args:
        use_mpi: accepted for scripts that pass it; one process is used.
        **kwargs: `rank_id=None`, `rank_size=None`; `max_steps=-1`, `train_steps=-1`,
            `eval_steps=-1`, `save_steps=-1` (each -1..2147483647; -1 is "until the data ends");
            `if_load=False`; `use_dynamic=True`; `use_dynamic_expansion=False`; `bind_cpu=True`;
            `prefetch_batch_number=1` (batches the rewritten pipeline works ahead, 1..1024);
            `is_incremental_checkpoint=False` with `save_checkpoint_due_time` and
            `save_delta_checkpoints_secs` (seconds); `restore_model_version=None`;
            `recent_key_count_threshold=0`. An unknown keyword is ignored with a warning.

    Raises:
        EnvironmentError: `init` was called before, without `terminate_config_initializer`.
        TypeError, ValueError: a parameter is out of its range; the message names it.
        LibraryNotLoadedError: the op library is missing or was built for another TensorFlow.
    """
    if ConfigInitializer._instance is not None:
        raise EnvironmentError(
            "mx_rec is already initialised: init() must be called once; "
            "call terminate_config_initializer() before initialising again"
        )
    known = {field.name for field in dataclasses.fields(InitConfig)}
    unknown = sorted(set(kwargs) - known)
    if unknown:
        logger.warning("init ignores unknown parameters: %s", ", ".join(unknown))
    # Loaded early, so that it sees which graphs sessions run from here on, and so that a missing library is
    # reported here.
    from mx_rec.ops.library import load_library
    from mx_rec.ops.registry import last_saved_prefix

    load_library()
    # Imported late: it needs the ops.
    from mx_rec.core.saveable import register_saveables

    register_saveables()
    arguments = {name: value for name, value in kwargs.items() if name in known}
    instance = ConfigInitializer(InitConfig(use_mpi=use_mpi, **arguments))
    instance.prefix_before = last_saved_prefix()
    ConfigInitializer._instance = instance


def terminate_config_initializer() -> None:
    """Frees all tables of the process and forgets the configuration; `init` may follow.

    Does nothing before `init`. Ops of a session that still uses a table then raise
    `FailedPreconditionError`.
    """
    if ConfigInitializer._instance is None:
        return
    # Imported late: a process that made no table need not load the library.
    from mx_rec.ops.registry import last_saved_prefix, release_all_tables

    instance = ConfigInitializer._instance
    is_plain = not instance.has_saved_incrementally and last_saved_prefix() != instance.prefix_before
    if instance.config.is_incremental_checkpoint and is_plain:
        logger.warning(
            "init(is_incremental_checkpoint=True): all checkpoints were full, saved by a plain Saver; save by "
            "mx_rec.saver.saver.IncrementalSaver or save_incremental, or add IncrementalCheckpointHook(checkpoint_dir)"
        )
    release_all_tables()
    graph_state.forget_all()
    ConfigInitializer._instance = None


def get_initializer(is_training: bool) -> tf.Operation:
    """See `TrainParamsConfig.get_initializer`."""
    return ConfigInitializer.get_instance().train_params_config.get_initializer(is_training)


def get_target_batch(is_training: bool, batch: Any = None) -> Any:
    """See `TrainParamsConfig.get_target_batch`."""
    return ConfigInitializer.get_instance().train_params_config.get_target_batch(is_training, batch)


def get_rank_id() -> int:
    """Rank of this process: `init(rank_id=)`, else the MPI environment, else 0."""
    rank_id = ConfigInitializer.get_instance().config.rank_id
    return int(os.environ.get("OMPI_COMM_WORLD_RANK", 0)) if rank_id is None else rank_id


def get_rank_size() -> int:
    """Number of processes: `init(rank_size=)`, else the MPI environment, else 1."""
    rank_size = ConfigInitializer.get_instance().config.rank_size
    return int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1)) if rank_size is None else rank_size


def get_local_rank_size() -> int:
    """Number of processes on this machine: the MPI environment, else `get_rank_size()`."""
    size = get_rank_size()
    return int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", size))


def get_device_id() -> int:
    """Number of the device of this process; on CPUs its number among the processes of this machine."""
    rank_id = get_rank_id()
    return int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", rank_id))


def get_use_static() -> bool:
    """Whether shapes and send counts are checked (`init(use_dynamic=False)`)."""
    return ConfigInitializer.get_instance().use_static


def get_use_hot() -> bool:
    """Whether frequent keys are treated apart; always, unless HOT_EMBEDDING=0 is in the environment."""
    ConfigInitializer.get_instance()
    return os.environ.get(HOT_EMBEDDING_ENV, "1") != "0"


def clear_channel(is_train_channel: bool = False) -> None:
    """Accepted: an iterator's initializer already begins anew, with nothing left of the batches prepared before."""
    check_bool("is_train_channel", is_train_channel)
    ConfigInitializer.get_instance()


def trigger_evict() -> dict[str, int]:
    """Evicts from all tables now; see `mx_rec.core.feature_process.evict`, whose result it returns."""
    from mx_rec.core.feature_process import evict  # imported late, since it imports this module

    return evict()


def get_use_dynamic_expansion() -> bool:
    """Whether tables grow while training."""
    return ConfigInitializer.get_instance().use_dynamic_expansion


def get_if_load() -> bool:
    """Whether the script means to load a checkpoint."""
    return ConfigInitializer.get_instance().if_load


def set_if_load(if_load: bool) -> None:
    """Sets whether the script means to load a checkpoint."""
    ConfigInitializer.get_instance().if_load = check_bool("if_load", if_load)
