"""`NPUEstimator`: an `Estimator` whose warm start knows tables, and whose exports say what they need."""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

import tensorflow as tf

from mx_rec.estimator import api
from mx_rec.estimator.checkpoints import with_checkpoints
from mx_rec.estimator.model_functions import wrap_model_fn
from mx_rec.estimator.run_config import NPURunConfig
from mx_rec.estimator.warm_start import with_warm_start
from mx_rec.saved_model.load import serving_notice

_GET_NEXT = "IteratorGetNext"


class NPUEstimator(api.Estimator):
    """A `tf.estimator.Estimator`, used like one. `train`, `evaluate`, `predict` and exports are those of TensorFlow.

    It differs in that `warm_start_from` reaches tables too (see `with_warm_start`), that `predict` may return tensors
    of the batch as they came from the input function (after the rewrite TensorFlow's Estimator needs `tf.identity` of
    them), that a SavedModel holds a note on how to load it, and that it saves and restores as `init` says of
    checkpoints (see `with_checkpoints`).

    Args:
        model_fn: as in `Estimator`.
        model_dir: as in `Estimator`; overrides that of `config`.
        config: a `NPURunConfig` or `RunConfig`; a new `NPURunConfig` if None.
        params: as in `Estimator`.
        job_start_file: accepted.
        warm_start_from: path of a checkpoint, of its directory or of a SavedModel, or a `WarmStartSettings`.

    Raises:
        TypeError, ValueError: as `Estimator`, or `warm_start_from` is not as `with_warm_start` takes it.
    """

    def __init__(
        self,
        model_fn: Optional[Callable[..., Any]] = None,
        model_dir: Optional[str] = None,
        config: Optional[Any] = None,
        params: Optional[Any] = None,
        job_start_file: str = "",
        warm_start_from: Optional[Union[str, Any]] = None,
    ) -> None:
        if model_fn is None:
            raise ValueError("NPUEstimator needs a model_fn")
        prepared = with_warm_start(model_fn, warm_start_from) if warm_start_from is not None else model_fn
        super().__init__(
            model_fn=with_checkpoints(wrap_model_fn(prepared, _with_own_predictions)),
            model_dir=model_dir,
            config=NPURunConfig() if config is None else config,
            params=params,
        )

    def _export_all_saved_models(
        self,
        export_dir_base: str,
        input_receiver_fn_map: dict[str, Any],
        assets_extra: Optional[dict[str, str]] = None,
        **options: Any,
    ) -> bytes:
        """Is called by every export; Estimator lets subclasses override it."""
        extra = {**serving_notice(), **(assets_extra or {})}
        return super()._export_all_saved_models(export_dir_base, input_receiver_fn_map, assets_extra=extra, **options)


def _with_own_predictions(spec: Any, mode: str, config: Any) -> Any:
    """Gives components of the batch among the predictions nodes of their own: those the rewrite can redirect."""
    if mode != api.ModeKeys.PREDICT:
        return spec

    def own(tensor: Any) -> Any:
        is_component = isinstance(tensor, tf.Tensor) and tensor.op.type == _GET_NEXT
        return tf.identity(tensor) if is_component else tensor

    return spec._replace(predictions=tf.nest.map_structure(own, spec.predictions))
