"""Tables live across train, evaluate and train, in one process and across processes."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from estimator_model import LossHook, dataset, input_fn, make

from mx_rec.graph import GraphModifierHook
from mx_rec.util.initialize import init

SCRIPT = pathlib.Path(__file__).with_name("train_script.py")


@pytest.mark.parametrize(
    ("dynamic", "hooks"),
    [(True, lambda: [GraphModifierHook()]), (False, list)],
    ids=["dynamic-rewritten", "fixed-plain"],
)
def test_train_evaluate_train(tmp_path, dynamic, hooks):
    init(use_dynamic_expansion=dynamic, prefetch_batch_number=2)

    def train(directory, *stops):
        model, losses, sizes, done = make(directory), [], [], 0
        for stop in stops:
            trained, evaluated = LossHook(), LossHook()
            model.train(lambda done=done: dataset().skip(done), hooks=[*hooks(), trained], max_steps=stop)
            metrics = model.evaluate(lambda: input_fn(seed=7, high=90), hooks=[*hooks(), evaluated])
            losses += trained.losses
            sizes.append((trained.sizes[0], evaluated.sizes[0]))
            done = stop
        return losses, metrics, sizes

    unbroken, metrics, (sizes,) = train(tmp_path / "unbroken", 12)
    broken, broken_metrics, parts = train(tmp_path / "broken", 5, 12)
    assert broken == unbroken
    assert len(set(broken)) == 12
    assert broken_metrics == metrics
    assert parts[-1] == sizes
    assert all(trained == evaluated for trained, evaluated in parts)
    assert 20 < parts[0][0]["user"] <= parts[1][0]["user"]


def test_a_killed_and_restarted_training_goes_on_as_if_unbroken(tmp_path, dynamic="1"):
    def run(directory, skip, max_steps, kill_after):
        command = [sys.executable, str(SCRIPT), str(directory), *map(str, (skip, max_steps, kill_after))]
        result = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "DYNAMIC": dynamic}, check=False
        )
        assert result.returncode == (-signal.SIGKILL if kill_after else 0), result.stderr
        return [float.fromhex(loss) for loss in result.stdout.split()]

    init(use_dynamic_expansion=dynamic == "1")
    losses = LossHook()
    make(tmp_path / "unbroken").train(lambda: dataset().repeat(2), hooks=[losses], max_steps=14)
    # Between processes the kernels of TensorFlow may round the last bit of a product otherwise.
    unbroken = losses.losses
    assert len(set(unbroken)) == 14
    killed = run(tmp_path / "killed", 0, 14, 8)
    np.testing.assert_allclose(killed, unbroken[:8], rtol=1e-6)
    assert tf.train.latest_checkpoint(str(tmp_path / "killed")).endswith("model.ckpt-5")
    np.testing.assert_allclose(run(tmp_path / "killed", 5, 14, 0), unbroken[5:], rtol=1e-6)
