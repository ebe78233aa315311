"""Lets tensorflow-estimator 2.15 be imported beside a TensorFlow that has no Estimator any more (2.16 and later).

That package asks TensorFlow for a few modules which later versions do not have. They are only needed for TPUs and for
the distribution strategies of Estimator, so stand-ins that say so are given under the names it imports, before it is
imported and only if nothing of that name exists. Nothing of TensorFlow is changed.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any, Callable, NoReturn

REQUIREMENT = "tensorflow-estimator==2.15.0"
_TRAINING = "tensorflow.python.distribute.estimator_training"
_TPU = (
    "tensorflow.python.tpu.session_support",
    "tensorflow.python.tpu.tpu_embedding",
    "tensorflow.python.tpu.tpu_embedding_gradient",
)
_NAMES = "tensorflow_estimator.python.estimator.estimator_export"


def import_estimator_package() -> None:
    """Makes `tensorflow_estimator.python.estimator` importable.

    Raises:
        ImportError: tensorflow-estimator is not installed; the message says how to get it.
    """
    if "tensorflow_estimator.python.estimator.estimator" in sys.modules:
        return
    if importlib.util.find_spec("tensorflow_estimator") is None:
        raise ImportError(
            "this TensorFlow has no tf.estimator, and tensorflow-estimator is not installed: "
            f"pip install 'mx-rec[estimator]'   (or: pip install {REQUIREMENT})"
        )
    if not _exists(_TRAINING):
        sys.modules[_TRAINING] = _estimator_training()
    for name in _TPU:
        if not _exists(name):
            sys.modules[name] = _TpuNames(name)
    # Registers names in the API of TensorFlow by a table that TensorFlow no longer has.
    sys.modules.setdefault(_NAMES, _estimator_export())
    importlib.import_module("tensorflow_estimator.python.estimator.estimator")


def _exists(name: str) -> bool:
    return name in sys.modules or importlib.util.find_spec(name) is not None


class _TpuNames(ModuleType):
    """A module whose every name is a class that cannot be made."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": _refuse(f"{self.__name__}.{name}")})


def _refuse(what: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(f"{what} is not part of this TensorFlow; Estimator here runs in one process, on CPUs")

    return refuse


def _estimator_training() -> ModuleType:
    module: Any = ModuleType(_TRAINING)

    def init_run_config(config: Any, tf_config: Any) -> NoReturn:
        """Is called for a RunConfig with a distribution strategy."""
        raise ValueError(
            "RunConfig: train_distribute, eval_distribute and experimental_distribute need TensorFlow 2.15; "
            "later ones have no distribution strategies for Estimator"
        )

    module.init_run_config = init_run_config
    module.should_run_distribute_coordinator = lambda config: False
    for name in ("train_and_evaluate", "estimator_train", "estimator_evaluate"):
        setattr(module, name, _refuse(f"{_TRAINING}.{name}"))
    return module


def _estimator_export() -> ModuleType:
    module: Any = ModuleType(_NAMES)

    class estimator_export:  # noqa: N801
        """Leaves what it decorates as it is."""

        def __init__(self, *names: str, **kwargs: Any) -> None:
            pass

        def __call__(self, decorated: Any) -> Any:
            return decorated

    module.estimator_export = estimator_export
    return module
