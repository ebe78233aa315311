"""Incremental checkpoints.

Any `tf.compat.v1.train.Saver` saves tables, in full. What is here adds deltas: checkpoints whose tables hold only what
has changed since the last one. A delta checkpoint is complete in itself: the files that it builds on become its own
too (as hard links), so it can be restored, moved with `cp -a`, and outlive the checkpoints before it.
"""

from __future__ import annotations

import numbers
import time
from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf

from mx_rec import ops
from mx_rec.checkpoint.versions import checkpoint_to_restore as checkpoint_to_restore
from mx_rec.core import graph_state
from mx_rec.tf_compat import saver_prefix
from mx_rec.util.initialize import ConfigInitializer, InitConfig
from mx_rec.util.log import logger
from mx_rec.util.validate import check_bool, check_int

Step = Union[int, np.integer, tf.Tensor, tf.Variable]


def save_incremental(
    saver: tf.compat.v1.train.Saver,
    session: tf.compat.v1.Session,
    save_path: str,
    global_step: Optional[Step] = None,
    *,
    delta: bool,
    **kwargs: Any,
) -> str:
    """Saves by a Saver, so that deltas may follow, or a delta itself.

    Args:
        saver: any Saver of the session's graph.
        session: of the tables.
        save_path: as in `Saver.save`.
        global_step: as in `Saver.save`.
        delta: whether tables hold only rows that have changed since the last call that succeeded, and the keys that
            were evicted. Without one in this process since the table was made or restored they are full. Keys that
            were looked up fewer times than `init(recent_key_count_threshold=)` are left to a later save.
        **kwargs: as in `Saver.save`.

    Returns:
        The prefix of the checkpoint.

    Raises:
        EnvironmentError: before `init`.
        tf.errors.OpError: a file cannot be written; names it.
    """
    check_bool("delta", delta)
    threshold = ConfigInitializer.get_instance().config.recent_key_count_threshold
    step = None if global_step is None else _step_number(session, global_step)
    prefix = saver_prefix(saver, save_path, step)
    kind = ops.SaveKind.DELTA if delta else ops.SaveKind.BASE
    with ops.saving(prefix, kind, threshold):
        saved = str(saver.save(session, save_path, global_step=step, **kwargs))
    ConfigInitializer.get_instance().has_saved_incrementally = True
    return saved


def _step_number(session: tf.compat.v1.Session, global_step: Step) -> int:
    """A step as TensorFlow's Saver takes it: an integer of Python or numpy, a tensor or a variable."""
    if isinstance(global_step, (numbers.Integral, np.integer)):
        return int(global_step)
    return int(tf.compat.v1.train.global_step(session, global_step))


class Saver(tf.compat.v1.train.Saver):
    """TensorFlow's Saver, whose `save` also makes the bases and deltas of incremental checkpoints."""

    def save(  # type: ignore[override]
        self,
        sess: tf.compat.v1.Session,
        save_path: str,
        global_step: Optional[Step] = None,
        *args: Any,
        is_incremental_checkpoint: bool = False,
        save_delta: bool = False,
        **kwargs: Any,
    ) -> str:
        """As TensorFlow's.

        Args:
            sess: as in TensorFlow.
            save_path: as in TensorFlow.
            global_step: as in TensorFlow.
            *args: as in TensorFlow.
            is_incremental_checkpoint: whether deltas may build on this save.
            save_delta: whether it is a delta itself; needs `is_incremental_checkpoint`.
            **kwargs: as in TensorFlow.

        Raises:
            ValueError: `save_delta` without `is_incremental_checkpoint`.
        """
        check_bool("is_incremental_checkpoint", is_incremental_checkpoint)
        if check_bool("save_delta", save_delta) and not is_incremental_checkpoint:
            raise ValueError("save_delta=True needs is_incremental_checkpoint=True")
        if not is_incremental_checkpoint:
            return str(super().save(sess, save_path, global_step, *args, **kwargs))
        names = ("latest_filename", "meta_graph_suffix", "write_meta_graph", "write_state", "strip_default_attrs")
        kwargs.update(zip(names, args))
        return save_incremental(_Plain(self), sess, save_path, global_step, delta=save_delta, **kwargs)


class _Plain:
    """A `Saver` of this module without what it adds."""

    def __init__(self, saver: Saver) -> None:
        self._saver = saver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._saver, name)

    def save(self, *args: Any, **kwargs: Any) -> Any:
        return tf.compat.v1.train.Saver.save(self._saver, *args, **kwargs)


class SaveSchedule:
    """When a full save and when a delta is due. The first save is full; when both are due, full wins."""

    def __init__(self, due_time: int, delta_secs: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Args:
        due_time: seconds between full saves, 1..2147483647.
        delta_secs: seconds between saves of either kind, 1..2147483647.
        clock: seconds.
        """
        self._due_time = check_int("save_checkpoint_due_time", due_time, 1, 2**31 - 1)
        self._delta_secs = check_int("save_delta_checkpoints_secs", delta_secs, 1, 2**31 - 1)
        self._clock = clock
        self._last_full: Optional[float] = None
        self._last: Optional[float] = None

    @classmethod
    def of_config(cls, config: InitConfig) -> SaveSchedule:
        """As `init` was told; ValueError if it was not."""
        if not config.is_incremental_checkpoint:
            raise ValueError(
                "incremental checkpoints need init(is_incremental_checkpoint=True, save_checkpoint_due_time=..., "
                "save_delta_checkpoints_secs=...)"
            )
        assert config.save_checkpoint_due_time is not None and config.save_delta_checkpoints_secs is not None
        return cls(config.save_checkpoint_due_time, config.save_delta_checkpoints_secs)

    @property
    def shortest(self) -> int:
        """Seconds after which, at the earliest, one save may follow another."""
        return min(self._due_time, self._delta_secs)

    def full_is_due(self) -> bool:
        """Whether the next save must be full."""
        return self._last_full is None or self._clock() - self._last_full >= self._due_time

    def is_due(self) -> bool:
        """Whether it is time for a save."""
        return self.full_is_due() or self._last is None or self._clock() - self._last >= self._delta_secs

    def saved(self, full: bool) -> None:
        """Notes a save that has succeeded."""
        self._last = self._clock()
        if full:
            self._last_full = self._last


class IncrementalSaver:
    """Saves on the schedule of `init`, for scripts with a training loop of their own.

    ```
    saver = IncrementalSaver("/models/ctr/model.ckpt")
    while ...:
        session.run(train)
        saver.save_if_due(session, step)
    ```
    """

    def __init__(
        self, save_path: str, saver: Optional[tf.compat.v1.train.Saver] = None, schedule: Optional[SaveSchedule] = None
    ) -> None:
        """Args:
        save_path: as in `Saver.save`.
        saver: of the graph; by default a new one.
        schedule: by default that of `init`.

        Raises:
            EnvironmentError: before `init`.
            ValueError: `init` was not told of incremental checkpoints.
        """
        self._save_path = save_path
        self._schedule = schedule or SaveSchedule.of_config(ConfigInitializer.get_instance().config)
        self._saver = saver or tf.compat.v1.train.Saver()

    def save_if_due(self, session: tf.compat.v1.Session, global_step: Step) -> Optional[str]:
        """Saves if a full save or a delta is due; the prefix, or None if nothing was."""
        return self.save(session, global_step) if self._schedule.is_due() else None

    def save(self, session: tf.compat.v1.Session, global_step: Step, **kwargs: Any) -> str:
        """Saves now: in full if that is due, else a delta."""
        full = self._schedule.full_is_due()
        prefix = save_incremental(
            self._saver, session, self._save_path, global_step=global_step, delta=not full, **kwargs
        )
        self._schedule.saved(full)
        return prefix


def saver_of(saver: Optional[tf.compat.v1.train.Saver], scaffold: Any, owner: str) -> tf.compat.v1.train.Saver:
    """The given Saver, else that of the scaffold, else the only one of the graph; RuntimeError if it is not one."""
    if saver is not None:
        return saver
    if scaffold is not None:
        return scaffold.saver
    savers = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SAVERS)
    if len(savers) != 1:
        raise RuntimeError(
            f"{owner}: the graph has {len(savers)} Savers in the collection SAVERS, not one; pass saver="
        )
    return savers[0]


class _ScheduledSaver:
    """What a CheckpointSaverHook takes for a Saver."""

    def __init__(self, schedule: SaveSchedule, saver: Optional[tf.compat.v1.train.Saver], scaffold: Any) -> None:
        self._schedule, self._saver, self._scaffold = schedule, saver, scaffold

    def find(self) -> tf.compat.v1.train.Saver:
        """The Saver of the graph; it may have been made after the hook."""
        return saver_of(self._saver, self._scaffold, "IncrementalCheckpointHook")

    def save(self, session: tf.compat.v1.Session, save_path: str, global_step: int, **kwargs: Any) -> str:
        full = self._schedule.full_is_due()
        prefix = save_incremental(
            self.find(), session, save_path, global_step=int(global_step), delta=not full, **kwargs
        )
        self._schedule.saved(full)
        return prefix

    def __getattr__(self, name: str) -> Any:
        return getattr(self.find(), name)


class IncrementalCheckpointHook(tf.compat.v1.train.CheckpointSaverHook):
    """Saves full checkpoints and deltas on the schedule of `init`, for `MonitoredTrainingSession` and Estimator.

    It takes the place of the hook that these would add: pass `save_checkpoint_secs=None` to the session (an Estimator
    sees it among its hooks, and `NPUEstimator` adds it by itself). The first save, at the start, is full; the last, at
    the end, is a delta if no full one is due. With `init(restore_model_version=N)` the session begins with the newest
    checkpoint at or before step N.
    """

    _is_given = True  # by the script

    def __init__(
        self,
        checkpoint_dir: str,
        checkpoint_basename: str = "model.ckpt",
        saver: Optional[tf.compat.v1.train.Saver] = None,
        scaffold: Optional[Any] = None,
        listeners: Optional[Sequence[Any]] = None,
    ) -> None:
        """Args:
        checkpoint_dir: of the checkpoints.
        checkpoint_basename: of the checkpoints.
        saver: by default that of the graph.
        scaffold: whose Saver to use.
        listeners: as of CheckpointSaverHook.

        Raises:
            EnvironmentError: before `init`.
            ValueError: `init` was not told of incremental checkpoints.
        """
        config = ConfigInitializer.get_instance().config
        schedule = SaveSchedule.of_config(config)
        self._scheduled = _ScheduledSaver(schedule, saver, scaffold)
        self._directory, self._basename = checkpoint_dir, checkpoint_basename
        self._version = config.restore_model_version
        super().__init__(
            checkpoint_dir,
            save_secs=schedule.shortest,
            saver=self._scheduled,
            checkpoint_basename=checkpoint_basename,
            listeners=listeners,
        )

    def begin(self) -> None:
        """Lets other hooks know that there is one."""
        state = graph_state.state_of(tf.compat.v1.get_default_graph())
        state.saves_deltas = "given" if self._is_given else state.saves_deltas or "added"
        super().begin()

    def after_create_session(self, session: tf.compat.v1.Session, coord: Any) -> None:
        """Restores the version asked for, once, and saves."""
        if self._version is not None:
            prefix = checkpoint_to_restore(self._directory, self._version, self._basename)
            logger.info("restoring %s, the newest checkpoint at or before step %d", prefix, self._version)
            self._scheduled.find().restore(session, prefix)
            self._version = None
        super().after_create_session(session, coord)
