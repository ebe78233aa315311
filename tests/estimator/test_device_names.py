"""`NPURunConfig`, `NPUEstimator` and the module names of device adapters."""

from __future__ import annotations

import copy
import functools
import logging
import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf
from estimator_model import BATCH, ROWS, input_fn, make, model_fn

from mx_rec.estimator import (
    NPUEstimator,
    NPURunConfig,
    api,
    npu_allreduce,
    npu_config_proto,
    npu_distributed_optimizer_wrapper,
    npu_hooks_append,
    npu_ops,
    util,
)
from mx_rec.util.initialize import init

COMPAT = pathlib.Path(__file__).parent.parent.parent / "compat"
WITHOUT_ESTIMATOR = not hasattr(tf.compat.v1, "estimator")


@pytest.fixture
def log(caplog):
    with caplog.at_level(logging.INFO, "mx_rec"):
        yield lambda: [record.getMessage() for record in caplog.records if record.name == "mx_rec"]


def test_device_options_are_ignored_with_one_line(log, tmp_path):
    config = NPURunConfig(
        iterations_per_loop=1,
        model_dir=str(tmp_path),
        save_checkpoints_steps=7,
        keep_checkpoint_max=2,
        precision_mode="allow_mix_precision",
        op_precision_mode="./op_precision.ini",
        HCCL_algorithm="level0:pairwise",
        save_checkpoint_steps=3,
    )
    assert (config.model_dir, config.save_checkpoints_steps, config.keep_checkpoint_max) == (str(tmp_path), 7, 2)
    (line,) = log()
    assert "HCCL_algorithm, op_precision_mode, precision_mode" in line
    assert "save_checkpoint_steps (is save_checkpoints_steps meant?)" in line


def test_without_device_options_nothing_is_logged(log):
    NPURunConfig(save_checkpoints_secs=30)
    assert log() == []


def test_a_run_config_like_others():
    config = NPURunConfig(iterations_per_loop=4, tf_random_seed=3)
    assert isinstance(config, api.RunConfig)
    assert copy.deepcopy(config).tf_random_seed == 3
    changed = config.replace(model_dir="elsewhere")
    assert (changed.model_dir, changed.tf_random_seed, config.model_dir) == ("elsewhere", 3, None)
    assert isinstance(changed, NPURunConfig)
    with pytest.raises(ValueError, match="save_checkpoints"):
        NPURunConfig(save_checkpoints_steps=1, save_checkpoints_secs=1)


def test_estimator_takes_every_form_of_model_function(tmp_path):
    init(use_dynamic_expansion=True)

    class Callable:
        def __call__(self, features, labels, mode, params):
            return model_fn(features, labels, mode, params)

        def method(self, features, labels, mode, params, config):
            assert config.tf_random_seed == 1
            return model_fn(features, labels, mode, params)

    def with_more(more, features, labels, mode, params):
        return model_fn(features, labels, mode, {**params, **more})

    forms = [model_fn, Callable(), Callable().method, functools.partial(with_more, {"user": "user2"})]
    for place, form in enumerate(forms):
        config = NPURunConfig(tf_random_seed=1)
        model = NPUEstimator(form, str(tmp_path / str(place)), config, {})
        assert model.train(input_fn, steps=1) is model
        assert isinstance(model, api.Estimator)
    assert NPUEstimator(lambda features, mode: None).config.model_dir


def test_a_model_function_is_checked_as_by_estimator():
    with pytest.raises(ValueError, match="needs a model_fn"):
        NPUEstimator()
    with pytest.raises(ValueError, match="features"):
        NPUEstimator(lambda labels, mode: None)
    with pytest.raises(ValueError, match="not expected args"):
        NPUEstimator(lambda features, labels, mode, more: None)
    with pytest.raises(ValueError, match="params"):
        NPUEstimator(lambda features, labels, mode: None, params={"a": 1})


def test_batches_come_whole_from_predict(tmp_path):
    init(use_dynamic_expansion=True)
    batches = list(make(tmp_path).predict(input_fn, yield_single_examples=False))
    assert [len(batch["ids"]) for batch in batches] == [BATCH] * (ROWS // BATCH)


def test_functions_that_have_nothing_to_do():
    hook = tf.compat.v1.train.StopAtStepHook(last_step=1)
    assert npu_hooks_append() == []
    given = [hook]
    assert npu_hooks_append(hooks_list=given) == [hook]
    assert npu_hooks_append((hook,)) == [hook]
    for wrong in (hook, ["hook"]):
        with pytest.raises(TypeError, match="hooks_list"):
            npu_hooks_append(wrong)
    config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    assert npu_config_proto(config_proto=config) is config
    assert isinstance(npu_config_proto(), tf.compat.v1.ConfigProto)
    assert npu_distributed_optimizer_wrapper(hook) is hook
    assert npu_allreduce([1, 2]) == [1, 2]
    assert util.set_iteration_per_loop(None, hook, 1) is hook
    with pytest.raises(ValueError, match="iterations_per_loop must be 1"):
        util.set_iteration_per_loop(None, hook, 10)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        kept = session.run(npu_ops.dropout(tf.ones([1000]), keep_prob=0.8, seed=1))
    assert set(kept) == {0.0, 1.25}
    assert 700 < (kept > 0).sum() < 900


def _python(code, *path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)


def test_module_names_of_device_adapters():
    code = """
from tf_adapter import NPURunConfig, NPUEstimator, npu_hooks_append, DumpConfig
import mx_rec.estimator as own
assert NPUEstimator is own.NPUEstimator and NPURunConfig is own.NPURunConfig
from npu_device.compat.v1.npu_init import NPURunConfig as second, npu_config_proto
assert second is NPURunConfig
from rec_sdk_common.communication.hccl.hccl_info import get_rank_id, get_rank_size, get_local_rank_size, get_device_id
assert (get_rank_id(), get_rank_size(), get_local_rank_size(), get_device_id()) == (0, 1, 1, 0)  # before init
from rec_sdk_common.util.tf_adapter import hccl_ops, npu_ops
from npu_bridge.npu_init import *
assert hccl_ops.allreduce(3, "sum") == 3
DumpConfig(enable_dump=True)
print(tf.constant(1).shape)
"""
    result = _python(code, str(COMPAT / "src"))
    assert result.returncode == 0, result.stderr
    assert result.stdout == "()\n"


def test_a_script_may_have_a_file_of_such_a_name(tmp_path):
    """As scripts have, to choose the adapter of their TensorFlow."""
    names = "NPURunConfig, NPUEstimator, npu_hooks_append"
    (tmp_path / "tf_adapter.py").write_text(f"from npu_device.compat.v1.npu_init import {names}\n")
    modules = ("npu_bridge.npu_init", "rec_sdk_common.util.tf_adapter")
    imports = "".join(f"from {module} import hccl_ops; " for module in modules)
    code = f"{imports}from tf_adapter import {names}; print(NPUEstimator.__name__)"
    result = _python(code, str(tmp_path), str(COMPAT / "src"))
    assert result.stdout == "NPUEstimator\n", result.stderr


def test_the_names_are_free_without_the_extra():
    result = _python("import mx_rec.estimator, importlib.util as u; print(u.find_spec('npu_bridge'))")
    assert result.stdout == "None\n", result.stderr


def test_the_extra_lists_its_modules():
    text = (COMPAT / "README.md").read_text(encoding="utf-8")
    for path in (COMPAT / "src").rglob("*.py"):
        names = path.relative_to(COMPAT / "src").with_suffix("").parts
        if names[-1] != "__init__":
            assert f"`{'.'.join(names)}`" in text


@pytest.mark.skipif(not WITHOUT_ESTIMATOR, reason="this TensorFlow has Estimator itself")
def test_without_estimator_the_message_says_what_to_install():
    code = "import sys; sys.modules['tensorflow_estimator'] = None; from mx_rec.estimator import NPUEstimator"
    result = _python(code)
    assert result.returncode == 1
    assert "pip install 'mx-rec[estimator]'" in result.stderr.splitlines()[-1]


@pytest.mark.skipif(not WITHOUT_ESTIMATOR, reason="this TensorFlow has Estimator itself")
def test_what_newer_tensorflow_lacks_says_so():
    with pytest.raises(ValueError, match="need TensorFlow 2.15"):
        api.RunConfig(train_distribute=tf.distribute.OneDeviceStrategy("/cpu:0"))
    assert "tensorflow_estimator" not in vars(tf)
    assert not hasattr(tf, "estimator")


def test_the_names_of_estimator():
    assert set(dir(api)) == set(api.__all__)
    for name in api.__all__:
        assert getattr(api, name) is not None
    with pytest.raises(AttributeError, match="it has BestExporter"):
        _ = api.DNNClassifier
