"""Warm start of an Estimator with tables."""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf

from mx_rec.core.warm_start import settings_of, warm_start
from mx_rec.estimator.model_functions import wrap_model_fn

tf1 = tf.compat.v1


def with_warm_start(model_fn: Callable[..., Any], warm_start_from: Any) -> Callable[..., Any]:
    """A model function whose model starts from checkpoints: `Estimator(with_warm_start(model_fn, settings), ...)`.

    `NPUEstimator(warm_start_from=...)` does the same. As in TensorFlow it counts only while the `model_dir` has no
    checkpoint of its own. Tables are filled when a session is initialised, before its first checkpoint is written, by
    the `init_fn` of the Scaffold; one that the model brings runs before.

    Args:
        model_fn: as for an Estimator.
        warm_start_from: see `mx_rec.core.warm_start.warm_start`.

    Raises:
        TypeError, ValueError: see there; what concerns the model is raised when training, evaluation or prediction
            builds it, before the first step.
    """
    settings_of(warm_start_from)

    def start(spec: Any, mode: str, config: Any) -> Any:
        if tf.train.latest_checkpoint(config.model_dir) is not None:
            return spec
        fill = warm_start(warm_start_from)
        return spec._replace(scaffold=_with_init(spec.scaffold, fill)) if fill else spec

    return wrap_model_fn(model_fn, start)


def _with_init(scaffold: Any, operations: list[tf.Operation]) -> Any:
    """A copy of the scaffold that runs the operations after its own initialisation."""
    own = scaffold.init_fn

    def initialise(_: Any, session: tf.compat.v1.Session) -> None:
        if own is not None:
            own(session)
        session.run(operations)

    return tf1.train.Scaffold(init_fn=initialise, copy_from_scaffold=scaffold)
