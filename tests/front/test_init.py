"""`init`, `terminate_config_initializer` and the getters."""

from __future__ import annotations

import logging

import pytest

from mx_rec.util import initialize
from mx_rec.util.initialize import ConfigInitializer, init, terminate_config_initializer


@pytest.fixture(autouse=True)
def clean():
    terminate_config_initializer()
    yield
    terminate_config_initializer()


def test_use_before_init_is_an_environment_error():
    with pytest.raises(EnvironmentError, match="call mx_rec.util.initialize.init"):
        ConfigInitializer.get_instance()


def test_second_init_is_an_environment_error_and_terminate_allows_it_again():
    init(use_dynamic_expansion=True)
    with pytest.raises(EnvironmentError, match="already initialised"):
        init()
    terminate_config_initializer()
    init()
    assert not initialize.get_use_dynamic_expansion()


def test_unknown_keyword_is_ignored_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING, logger="mx_rec"):
        init(use_hot=True, max_steps=5)
    assert "use_hot" in caplog.text
    assert ConfigInitializer.get_instance().max_steps == 5


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"max_steps": -2}, ValueError, r"max_steps must be in \[-1, 2147483647\], got -2"),
        ({"train_steps": 2**31}, ValueError, "train_steps"),
        ({"eval_steps": 1.5}, TypeError, "eval_steps must be an integer"),
        ({"max_steps": 0, "train_steps": 0, "eval_steps": 0}, ValueError, "must not all be 0"),
        ({"use_dynamic": 1}, TypeError, "use_dynamic must be a bool"),
        ({"prefetch_batch_number": 0}, ValueError, r"prefetch_batch_number must be in \[1, 1024\]"),
        ({"is_incremental_checkpoint": True}, ValueError, "needs both save_checkpoint_due_time"),
        ({"restore_model_version": -1}, ValueError, "restore_model_version"),
    ],
)
def test_parameters_are_checked(kwargs, error, message):
    with pytest.raises(error, match=message):
        init(**kwargs)
    with pytest.raises(EnvironmentError):
        ConfigInitializer.get_instance()


def test_older_getters_and_setters(monkeypatch):
    init(rank_id=3, rank_size=8, if_load=True, use_dynamic_expansion=True)
    assert initialize.get_rank_id() == 3
    assert initialize.get_rank_size() == 8
    assert initialize.get_use_dynamic_expansion()
    assert initialize.get_if_load()
    initialize.set_if_load(False)
    assert not ConfigInitializer.get_instance().if_load
    with pytest.raises(TypeError, match="if_load"):
        initialize.set_if_load("yes")
    terminate_config_initializer()
    init()
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    assert initialize.get_rank_id() == 2
    assert initialize.get_rank_size() == 1


def test_other_older_getters(monkeypatch):
    for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "HOT_EMBEDDING"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EnvironmentError, match="call mx_rec.util.initialize.init"):
        initialize.get_use_hot()
    init(rank_id=3, rank_size=8, use_dynamic=False)
    assert (initialize.get_local_rank_size(), initialize.get_device_id()) == (8, 3)
    assert initialize.get_use_static() and initialize.get_use_hot()
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1")
    monkeypatch.setenv("HOT_EMBEDDING", "0")
    assert (initialize.get_local_rank_size(), initialize.get_device_id()) == (4, 1)
    assert not initialize.get_use_hot()
    initialize.clear_channel(is_train_channel=True)
    with pytest.raises(TypeError, match="is_train_channel"):
        initialize.clear_channel(1)
    channel_of = initialize.ConfigInitializer.get_instance().train_params_config.get_training_mode_channel_id
    assert (channel_of(True), channel_of(False)) == (0, 1)
    with pytest.raises(TypeError, match="is_training"):
        channel_of(0)


def test_get_initializer_before_the_rewrite_says_what_to_call():
    init()
    with pytest.raises(EnvironmentError, match="modify_graph_and_start_emb_cache"):
        initialize.get_initializer(True)


def test_modes_have_names_and_values():
    from mx_rec.constants.constants import MxRecMode

    assert MxRecMode.mapping("fixed_capacity") is MxRecMode.FIXED_CAPACITY
    assert MxRecMode.mapping(MxRecMode.DYNAMIC_EXPANSION) is MxRecMode.DYNAMIC_EXPANSION
    for wrong in (None, "FIXED_CAPACITY"):
        with pytest.raises(KeyError, match="MxRecMode has no .*; it has 'ASC', 'fixed_capacity', 'dynamic_expansion'"):
            MxRecMode.mapping(wrong)


def test_names_of_older_scripts():
    from mx_rec.constants import constants
    from mx_rec.util import ops, tf_version_adapter

    init(use_dynamic=False)
    instance = initialize.ConfigInitializer.get_instance()
    assert instance.host_pipeline_ops is ops
    assert not instance.use_dynamic
    assert tf_version_adapter.hccl_ops.allreduce(3, "sum") == 3
    assert constants.CacheModeEnum.mapping("DDR") is constants.CacheModeEnum.DDR
    assert constants.ApplyGradientsStrategy.mapping("direct_apply").name == "DIRECT_APPLY"
    # Each key's address is there once, so gradients of equal keys are summed before they are applied.
    assert constants.ASCEND_SPARSE_LOOKUP_UNIQUE_KEYS == constants.ASCEND_SPARSE_LOOKUP_ID_OFFSET
