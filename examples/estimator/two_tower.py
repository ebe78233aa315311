"""A two-tower model: one tower for the user, one for the movie; how well they agree is how well the movie is liked.

Each tower alone gives a vector, so that those of all movies can be stored and searched.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from layers import dense, embeddings, train_op

from mx_rec.estimator import api as estimator
from mx_rec.estimator import table_metrics

tf1 = tf.compat.v1


def model_fn(features: dict[str, tf.Tensor], labels: Any, mode: str, params: dict[str, Any]) -> Any:
    """See `embeddings` for the features; the label is `liked`."""
    rows = embeddings(features, mode, params.get("tables", {}))
    user = _tower([rows["user"], rows["context"]], "user_tower")
    movie = _tower([rows["movie"], rows["genre"]], "movie_tower")
    logits = tf.reduce_sum(user * movie, axis=1)
    predictions = {"liked": tf.sigmoid(logits), "user_vector": user, "movie_vector": movie}
    if mode == estimator.ModeKeys.PREDICT:
        outputs = {"serving_default": estimator.export.PredictOutput(predictions)}
        predictions = {**predictions, "movie": features["movie"]}
        return estimator.EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)
    liked = labels["liked"]
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=liked, logits=logits))
    if mode == estimator.ModeKeys.EVAL:
        metrics = {"auc": tf1.metrics.auc(liked, predictions["liked"]), **table_metrics()}
        return estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op(loss))


def _tower(rows: list[tf.Tensor], name: str) -> tf.Tensor:
    hidden = dense(tf.concat(rows, axis=1), 16, f"{name}/hidden", tf.nn.relu)
    return dense(hidden, 8, f"{name}/vector")
