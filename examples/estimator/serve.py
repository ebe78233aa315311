"""Loads a SavedModel in a process of its own and predicts for the first held-out ratings; prints JSON.

python examples/estimator/serve.py /tmp/movielens/export/1700000000
python examples/estimator/serve.py /tmp/movielens/frozen/1 --without-library
"""

from __future__ import annotations

import argparse
import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow as tf
from data import FEATURES, load

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("directory")
parser.add_argument("--rows", type=int, default=3, help="to predict for")
parser.add_argument("--ratings", type=int, default=40000, help="as --rows of run.py")
parser.add_argument("--signature", default="serving_default")
parser.add_argument("--without-library", action="store_true", help="for a SavedModel that recgraph freeze wrote")
options = parser.parse_args()

if options.without_library:
    model = tf.saved_model.load(options.directory)
else:
    from mx_rec.saved_model import load_saved_model

    model = load_saved_model(options.directory)
_, test = load(options.ratings)
columns = {name: test[name][: options.rows].tolist() for name in FEATURES}
columns["user"].append(-1)  # nobody: its embeddings are those of unknown keys
for name in FEATURES:
    if name != "user":
        columns[name].append(columns[name][0])
inputs = {name: tf.constant(columns[name], dtype) for name, dtype in FEATURES.items()}
outputs = model.signatures[options.signature](**inputs)
print(json.dumps({name: value.numpy().tolist() for name, value in outputs.items()}))
