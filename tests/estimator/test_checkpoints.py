"""What `init` says of checkpoints holds in an `NPUEstimator` without a hook of the script."""

from __future__ import annotations

import logging

import pytest
import tensorflow as tf
from estimator_model import LossHook, dataset, make

from mx_rec.checkpoint import read_saved_table
from mx_rec.checkpoint.versions import versions
from mx_rec.estimator import api
from mx_rec.graph import GraphModifierHook
from mx_rec.saver.saver import IncrementalCheckpointHook
from mx_rec.util.initialize import init, terminate_config_initializer

tf1 = tf.compat.v1
SETTINGS = {"is_incremental_checkpoint": True, "save_checkpoint_due_time": 1000, "save_delta_checkpoints_secs": 1000}


def _saved(directory):
    """(step, whether it is a delta) of each checkpoint."""
    return [(each.step, read_saved_table(each.prefix, "user").manifest.is_delta) for each in versions(str(directory))]


@pytest.mark.parametrize("hooks", [list, lambda: [GraphModifierHook()]], ids=["plain", "rewritten"])
def test_training_saves_deltas_and_begins_with_the_wanted_version(tmp_path, hooks, caplog):
    init(use_dynamic_expansion=True, **SETTINGS)
    model = make(tmp_path)
    model.train(lambda: dataset().repeat(), hooks=hooks(), max_steps=4)
    at_four = model.evaluate(dataset, hooks=hooks())
    model.train(lambda: dataset().repeat(), hooks=hooks(), max_steps=7)
    at_seven = model.evaluate(dataset, hooks=hooks())
    assert _saved(tmp_path) == [(0, False), (4, False), (7, True)]
    assert at_four["global_step"] == 4 and at_seven["global_step"] == 7
    assert "no hook of this session" not in caplog.text

    terminate_config_initializer()
    init(use_dynamic_expansion=True, restore_model_version=5, **SETTINGS)
    model = make(tmp_path)
    assert model.evaluate(dataset, hooks=hooks()) == at_four
    ids = [row["ids"] for row in model.predict(dataset, hooks=hooks())]
    assert len(ids) == 96
    # Asked for in words.
    assert model.evaluate(dataset, hooks=hooks(), checkpoint_path=str(tmp_path / "model.ckpt-0"))["global_step"] == 0
    losses = LossHook()
    model.train(lambda: dataset().repeat(), hooks=[*hooks(), losses], steps=2)
    assert model.evaluate(dataset, hooks=hooks())["global_step"] == 6
    model.train(lambda: dataset().repeat(), hooks=hooks(), steps=2)
    assert model.evaluate(dataset, hooks=hooks())["global_step"] == 8


def test_train_and_evaluate_and_a_hook_of_the_script(tmp_path):
    init(use_dynamic_expansion=True, **SETTINGS)
    result, _ = api.train_and_evaluate(
        make(tmp_path / "own"),
        api.TrainSpec(lambda: dataset().repeat(), max_steps=6),
        api.EvalSpec(dataset, start_delay_secs=0, throttle_secs=0),
    )
    assert result["global_step"] == 6
    assert _saved(tmp_path / "own") == [(0, False), (6, True)]
    given = IncrementalCheckpointHook(str(tmp_path / "elsewhere"))
    make(tmp_path / "given").train(lambda: dataset().repeat(), hooks=[given], max_steps=6)
    assert _saved(tmp_path / "elsewhere") == [(0, False), (6, True)]
    assert versions(str(tmp_path / "given")) == []


def test_who_has_no_such_hook_is_told(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "mx_rec")
    logging.getLogger("mx_rec").propagate = True
    init(use_dynamic_expansion=True, save_checkpoint_due_time=5)
    assert "save_checkpoint_due_time without is_incremental_checkpoint=True: no effect" in caplog.text
    terminate_config_initializer()
    assert "plain Saver" not in caplog.text
    init(use_dynamic_expansion=True, **SETTINGS)
    make(tmp_path / "plain", "plain").train(lambda: dataset().repeat(), hooks=[GraphModifierHook()], max_steps=2)
    assert caplog.text.count("add mx_rec.saver.saver.IncrementalCheckpointHook(checkpoint_dir)") == 1
    terminate_config_initializer()
    assert "all checkpoints were full, saved by a plain Saver" in caplog.text
