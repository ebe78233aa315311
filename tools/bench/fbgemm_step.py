"""The fbgemm side of bench_optimizers.py: answers JSON lines on stdin with JSON lines on stdout.

A question with an optimizer, the kind of ids, keys, dim, rate and batches makes the table; one with the first call
and how many calls runs them and is answered with the seconds per call.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings

from harness import BATCH, id_batches, timed

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
answers, sys.stdout = sys.stdout, sys.stderr

import fbgemm_gpu
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

OPTIMIZERS = {"sgd": EmbOptimType.EXACT_SGD, "adagrad": EmbOptimType.EXACT_ADAGRAD}


def make_step(question):
    embedding = SplitTableBatchedEmbeddingBagsCodegen(
        [(question["keys"], question["dim"], EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=OPTIMIZERS[question["optimizer"]],
        learning_rate=question["rate"],
        pooling_mode=PoolingMode.SUM,  # of one id each: several times as fast as NONE
    )
    weights = torch.rand(BATCH, question["dim"])
    offsets = torch.arange(BATCH + 1, dtype=torch.int64)
    rows = id_batches(question["kind"], question["keys"], question["batches"])
    batches = [torch.from_numpy(batch) for batch in rows]

    def step(i):
        (embedding(batches[i % len(batches)], offsets) * weights).sum().backward()

    for i in range(len(batches)):
        step(i)
    return step


def answer(what):
    answers.write(json.dumps(what) + "\n")
    answers.flush()


def main():
    answer(f"torch {torch.__version__}, fbgemm {fbgemm_gpu.__version__}, {torch.get_num_threads()} threads")
    step = None
    for line in sys.stdin:
        question = json.loads(line)
        if "optimizer" in question:
            step = make_step(question)
            answer("ready")
        else:
            answer(timed(step, question["first"], question["calls"]))


if __name__ == "__main__":
    main()
