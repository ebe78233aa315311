"""Whole training loops with and without the rewrite: what preparing batches ahead of the step gains.

*movielens* is the model of `demo/` on its data. *heavy* looks up keys that take long to make: words that are split,
lower-cased, joined in pairs and hashed, for batches of 2,048. With 4 features of 8 words a step can make the keys of
one on one core and those of another on the next; with 1 feature of 32 words they are one chain of ops. All are fed by
tf.data with a prefetch of their own, as scripts have it; TensorFlow may use all cores.

    bench_prefetch.py [--rounds 7] [--calls 30] [--prefetch 2]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf
from harness import environment, interleave, table

from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.graph import modify_graph_and_start_emb_cache
from mx_rec.optimizers import lazy_adam_by_addr
from mx_rec.util.initialize import get_initializer, init

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "demo"))
import movielens
import movielens_deepfm

tf1 = tf.compat.v1
tf1.disable_eager_execution()
HEAVY_BATCH, HEAVY_DIM = 2_048, 16
VOCABULARY = 50_000


def train(rewrite: bool, start: tf.Operation, loss: tf.Tensor) -> Callable[[int], object]:
    """A session that has begun; each call is a step."""
    dense = tf1.trainable_variables()
    rows = tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
    addresses = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
    gradients = tf.gradients(loss, [*dense, *rows])
    step = tf.group(
        tf1.train.AdamOptimizer(0.001).apply_gradients(list(zip(gradients, dense))),
        lazy_adam_by_addr.create_hash_optimizer_by_address(0.001).apply_gradients(
            list(zip(gradients[len(dense) :], addresses))
        ),
    )
    if rewrite:
        reports = modify_graph_and_start_emb_cache()
        assert not any(report.refusals for report in reports)
        start = get_initializer(True)
    initialize = tf1.global_variables_initializer()
    session = tf1.Session()
    session.run([initialize, start])
    call = session.make_callable([loss, step])
    return lambda _: call()


def movielens_loop(rewrite: bool) -> Callable[[int], object]:
    columns, _ = movielens.load_ratings()
    with tf.Graph().as_default():
        tables = movielens_deepfm.make_tables()
        data = movielens_deepfm.make_dataset(columns, 256, epochs=100_000, shuffle=True)
        iterator = tf1.data.make_initializable_iterator(data)
        _, loss = movielens_deepfm.deep_fm(tables, iterator.get_next(), is_train=True)
        return train(rewrite, iterator.initializer, loss)


def heavy_loop(rewrite: bool, features: int, length: int) -> Callable[[int], object]:
    words = np.array([f"Word{n}" for n in range(VOCABULARY)])
    random = np.random.RandomState(0)
    shape = (16 * HEAVY_BATCH, features, length)
    picked = np.minimum(random.zipf(1.2, shape) - 1, VOCABULARY - 1)
    texts = np.array([[" ".join(words[row]) for row in sample] for sample in picked])
    labels = random.rand(len(texts)).astype(np.float32)
    with tf.Graph().as_default():
        data = tf.data.Dataset.from_tensor_slices((texts, labels)).repeat()
        iterator = tf1.data.make_initializable_iterator(data.batch(HEAVY_BATCH, drop_remainder=True).prefetch(2))
        text, label = iterator.get_next()
        results = []
        for feature in range(features):
            parts = tf.strings.split(tf.strings.lower(text[:, feature]), " ")
            parts = parts.to_tensor(default_value="", shape=[None, length])
            pairs = tf.strings.join([parts[:, :-1], parts[:, 1:]], "_")
            keys = tf.strings.to_hash_bucket_fast(tf.concat([parts, pairs], 1), 1 << 40)
            store = create_table(tf.int64, HEAVY_DIM, f"words{feature}", tf1.truncated_normal_initializer(stddev=0.01))
            results.append(tf.reduce_sum(sparse_lookup(store, keys), 1))
        weights = tf1.get_variable("weights", [features * HEAVY_DIM, 1], use_resource=True)
        logits = tf.squeeze(tf.matmul(tf.concat(results, 1), weights), 1)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=logits))
        return train(rewrite, iterator.initializer, loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--prefetch", type=int, default=2)
    args = parser.parse_args()
    print(environment() + "\n")
    init(use_dynamic_expansion=True, prefetch_batch_number=args.prefetch)
    loops: dict[str, tuple[Callable[[bool], Callable[[int], object]], int]] = {
        "movielens": (movielens_loop, 256),
        "heavy, 4 features of 8 words": (lambda rewrite: heavy_loop(rewrite, 4, 8), HEAVY_BATCH),
        "heavy, 1 feature of 32 words": (lambda rewrite: heavy_loop(rewrite, 1, 32), HEAVY_BATCH),
    }
    for name, (make, samples) in loops.items():
        candidates = {"with the rewrite": make(True), "without": make(False)}
        times = interleave(candidates, args.rounds, args.calls, warmup=40)
        title = f"{name}: training step of {samples:,} samples"
        print(table(title, times, "with the rewrite", samples), flush=True)


if __name__ == "__main__":
    main()
