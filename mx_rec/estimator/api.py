"""The names of `tf.estimator`, whatever the TensorFlow: `from mx_rec.estimator import api as estimator`.

Up to TensorFlow 2.15 they are those of `tf.compat.v1.estimator`. Later ones have no Estimator; there they come from the
package tensorflow-estimator 2.15, which the extra `mx-rec[estimator]` brings.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from mx_rec.estimator.on_new_tensorflow import import_estimator_package

_PACKAGE = "tensorflow_estimator.python.estimator"
_HOME = {
    "BestExporter": "exporter",
    "Estimator": "estimator",
    "EstimatorSpec": "model_fn",
    "EvalSpec": "training",
    "Exporter": "exporter",
    "FinalExporter": "exporter",
    "LatestExporter": "exporter",
    "ModeKeys": "mode_keys",
    "RunConfig": "run_config",
    "TrainSpec": "training",
    "VocabInfo": "estimator",
    "WarmStartSettings": "estimator",
    "add_metrics": "extenders",
    "train_and_evaluate": "training",
}
_EXPORT = (
    "ClassificationOutput",
    "EvalOutput",
    "ExportOutput",
    "PredictOutput",
    "RegressionOutput",
    "ServingInputReceiver",
    "TensorServingInputReceiver",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
)

__all__ = [*_HOME, "export"]  # noqa: F822


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    built_in = getattr(tf.compat.v1, "estimator", None)
    if built_in is not None:
        return getattr(built_in, name)
    import_estimator_package()
    if name == "export":
        module = importlib.import_module(f"{_PACKAGE}.export.export_lib")
        return SimpleNamespace(**{member: getattr(module, member) for member in _EXPORT})
    return getattr(importlib.import_module(f"{_PACKAGE}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
