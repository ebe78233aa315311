"""Model functions around model functions."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable

ModelFn = Callable[..., Any]
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def wrap_model_fn(model_fn: ModelFn, change: Callable[[Any, str, Any], Any]) -> ModelFn:
    """A model function that calls another and changes what it returns.

    It takes the parameters of the other, by which Estimator decides what to pass, and `mode` and `config` in any case.

    Args:
        model_fn: the other.
        change: called with the EstimatorSpec, the mode and the RunConfig, in the graph of the model; returns the
            EstimatorSpec to use.
    """
    own = _parameters_of(model_fn)
    added = [name for name in ("mode", "config") if name not in own]

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        passed = {name: value for name, value in kwargs.items() if name not in added}
        return change(model_fn(*args, **passed), kwargs["mode"], kwargs["config"])

    wrapped.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in [*own, *added]]
    )
    wrapped.__name__ = getattr(model_fn, "__name__", type(model_fn).__name__)
    wrapped.__doc__ = model_fn.__doc__
    return wrapped


def _parameters_of(model_fn: ModelFn) -> list[str]:
    """Names of the parameters that Estimator passes: no keyword-only ones, none that a partial has bound."""
    if isinstance(model_fn, functools.partial):
        free = _parameters_of(model_fn.func)[len(model_fn.args) :]
        return [name for name in free if name not in model_fn.keywords]
    parameters = inspect.signature(model_fn).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind in _POSITIONAL]
