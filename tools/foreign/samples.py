"""Writes the graphs of other libraries that the tests run, tests/foreign/graphs/*.meta.gz.

Needs TensorFlow 2.15 and `pip install --no-deps deepctr==0.9.4`, which the tests then do not.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import models
import tensorflow as tf

TARGET = Path(__file__).resolve().parent.parent.parent / "tests" / "foreign" / "graphs"
SAMPLES = {
    "deepctr_deepfm_adam": "DeepCTR DeepFM, Adam",
    "deepctr_din_adagrad": "DeepCTR DIN, Adagrad",
    "estimator_wide_deep": "Estimator DNNLinearCombinedClassifier (v1), Adagrad and FTRL",
    "estimator_dnn_partitioned": "Estimator DNNClassifier (v1), 3 partitions, Adagrad",
    "keras_embedding_adam": "Keras Embedding, Keras Adam",
}


def main() -> None:
    tf.compat.v1.disable_eager_execution()
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, model in SAMPLES.items():
        data = models.MODELS[model]().SerializeToString(deterministic=True)
        path = TARGET / f"{name}.meta.gz"
        path.write_bytes(gzip.compress(data, mtime=0))
        print(f"{path.name}: {len(data):,} bytes, {path.stat().st_size:,} compressed")


if __name__ == "__main__":
    main()
