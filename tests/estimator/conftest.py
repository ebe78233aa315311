"""Fixtures of the tests with Estimator."""

from __future__ import annotations

import logging

import pytest
import tensorflow as tf

from mx_rec.util.initialize import terminate_config_initializer


@pytest.fixture(autouse=True)
def clean(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tf.compat.v1.disable_eager_execution()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    logging.getLogger("mx_rec").setLevel(logging.WARNING)
    terminate_config_initializer()
    yield
    terminate_config_initializer()
