"""Trains the small model in a process of its own: `python train_script.py DIRECTORY SKIP MAX_STEPS KILL_AFTER`.

Prints the loss of each step as it comes, exactly. KILL_AFTER > 0 kills the process in the middle of the step after it.
"""

from __future__ import annotations

import os
import signal
import sys

import tensorflow as tf
from estimator_model import LossHook, dataset, make

from mx_rec.graph import GraphModifierHook
from mx_rec.util.initialize import init

tf.compat.v1.disable_eager_execution()
directory, skip, max_steps, kill_after = sys.argv[1], *map(int, sys.argv[2:5])


class Killer(LossHook):
    """Ends the process as a power cut would."""

    def before_run(self, run_context):
        if kill_after and len(self.losses) == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().before_run(run_context)

    def after_run(self, run_context, run_values):
        super().after_run(run_context, run_values)
        print(self.losses[-1].hex(), flush=True)


init(use_dynamic_expansion=os.environ["DYNAMIC"] == "1", prefetch_batch_number=3)
make(directory).train(
    lambda: dataset().repeat(2).skip(skip), hooks=[GraphModifierHook(), Killer()], max_steps=max_steps
)
