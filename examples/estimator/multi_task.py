"""A multi-task model: whether a movie is clicked on (here: liked) and how it is rated, from shared layers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from layers import dense, embeddings, train_op

from mx_rec.estimator import api as estimator
from mx_rec.estimator import table_metrics

tf1 = tf.compat.v1
RATING_WEIGHT = 0.5
MEAN_RATING = 3.5


def model_fn(features: dict[str, tf.Tensor], labels: Any, mode: str, params: dict[str, Any]) -> Any:
    """See `embeddings` for the features; the labels are `liked` and `rating`."""
    rows = embeddings(features, mode, params.get("tables", {}))
    shared = dense(tf.concat(list(rows.values()), axis=1), 32, "shared", tf.nn.relu)
    click = dense(dense(shared, 16, "click/hidden", tf.nn.relu), 1, "click/logit")[:, 0]
    rating = MEAN_RATING + dense(dense(shared, 16, "rating/hidden", tf.nn.relu), 1, "rating/value")[:, 0]
    predictions = {"click": tf.sigmoid(click), "rating": rating}
    if mode == estimator.ModeKeys.PREDICT:
        outputs = {
            "serving_default": estimator.export.PredictOutput(predictions),
            "click": estimator.export.PredictOutput({"click": predictions["click"]}),
        }
        predictions = {**predictions, "movie": features["movie"]}
        return estimator.EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)
    click_loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels["liked"], logits=click))
    rating_loss = tf.reduce_mean(tf.square(rating - labels["rating"]))
    loss = click_loss + RATING_WEIGHT * rating_loss
    if mode == estimator.ModeKeys.EVAL:
        metrics = {
            "auc": tf1.metrics.auc(labels["liked"], predictions["click"]),
            "rmse": tf1.metrics.root_mean_squared_error(labels["rating"], rating),
            **table_metrics(),
        }
        return estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    tf1.summary.scalar("click_loss", click_loss)
    tf1.summary.scalar("rating_loss", rating_loss)
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op(loss))
