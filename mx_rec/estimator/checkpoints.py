"""What `init` says of checkpoints, in a model function: deltas while it is trained, and the version to begin with."""

from __future__ import annotations

import os
from typing import Any, Callable

import tensorflow as tf

from mx_rec.core import graph_state
from mx_rec.estimator import api
from mx_rec.estimator.model_functions import wrap_model_fn
from mx_rec.saver.saver import IncrementalCheckpointHook, checkpoint_to_restore, saver_of
from mx_rec.util.initialize import ConfigInitializer
from mx_rec.util.log import logger

tf1 = tf.compat.v1
_BASENAME = "model.ckpt"


def with_checkpoints(model_fn: Callable[..., Any]) -> Callable[..., Any]:
    """A model function that does what `init` was told of checkpoints.

    With `is_incremental_checkpoint` its training saves by an `IncrementalCheckpointHook`, in place of the hook that
    Estimator would add; not if it is given one, nor if the RunConfig turns saving off. With `restore_model_version` its
    first training, and evaluation and prediction before any training, begin with the newest checkpoint of `model_dir`
    at or before that step; not if they are given a `checkpoint_path` of another step than the latest. Without `init`
    nothing changes.

    Args:
        model_fn: as for an Estimator.
    """
    version = _Version()

    def change(spec: Any, mode: str, config: Any) -> Any:
        try:
            settings = ConfigInitializer.get_instance().config
        except EnvironmentError:
            return spec
        added: list[Any] = []
        if settings.restore_model_version is not None and not version.is_past:
            added.append(_VersionHook(config.model_dir, settings.restore_model_version, version, mode, spec.scaffold))
        saves = config.save_checkpoints_secs or config.save_checkpoints_steps
        if mode == api.ModeKeys.TRAIN and settings.is_incremental_checkpoint and saves:
            added.append(_AddedCheckpointHook(config.model_dir, _BASENAME, scaffold=_given(spec.scaffold)))
        field = {
            api.ModeKeys.TRAIN: "training_chief_hooks",
            api.ModeKeys.EVAL: "evaluation_hooks",
            api.ModeKeys.PREDICT: "prediction_hooks",
        }[mode]
        return spec._replace(**{field: (*getattr(spec, field), *added)}) if added else spec

    return wrap_model_fn(model_fn, change)


class _Version:
    """Whether a training has begun with the version that was asked for; what it saves is what counts from then on."""

    def __init__(self) -> None:
        self.is_past = False


class _VersionHook(tf1.train.SessionRunHook):
    """Restores a version over the latest checkpoint, which Estimator restores."""

    def __init__(self, directory: str, step: int, version: _Version, mode: str, scaffold: Any) -> None:
        self._directory, self._step, self._version = directory, step, version
        self._is_training, self._scaffold = mode == api.ModeKeys.TRAIN, scaffold

    def after_create_session(self, session: tf1.Session, coord: Any) -> None:
        latest = tf.train.latest_checkpoint(self._directory)
        # A script may have given a checkpoint to evaluate.
        is_latest = latest is not None and _step_of(latest) == tf1.train.global_step(
            session, tf1.train.get_global_step(session.graph)
        )
        if not self._version.is_past and (is_latest or self._is_training):
            prefix = checkpoint_to_restore(self._directory, self._step, _BASENAME)
            if latest is None or os.path.abspath(prefix) != os.path.abspath(latest):
                logger.info("restoring %s, the newest checkpoint at or before step %d", prefix, self._step)
                saver_of(None, _given(self._scaffold), type(self).__name__).restore(session, prefix)
        self._version.is_past = self._version.is_past or self._is_training


class _AddedCheckpointHook(IncrementalCheckpointHook):
    """Gives way to one that the script has among its hooks."""

    _is_given = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._version = None  # the other hook restores it

    def _gives_way(self) -> bool:
        return graph_state.state_of(tf1.get_default_graph()).saves_deltas == "given"

    def after_create_session(self, session: Any, coord: Any) -> None:
        if not self._gives_way():
            super().after_create_session(session, coord)

    def before_run(self, run_context: Any) -> Any:
        return None if self._gives_way() else super().before_run(run_context)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if not self._gives_way():
            super().after_run(run_context, run_values)

    def end(self, session: Any) -> None:
        if not self._gives_way():
            super().end(session)


def _given(scaffold: Any) -> Any:
    """A scaffold with a Saver of its own; else the Saver is that of the graph."""
    return scaffold if scaffold is not None and scaffold.saver is not None else None


def _step_of(prefix: str) -> int:
    number = prefix.rpartition("-")[2]
    return int(number) if number.isdigit() else -1
