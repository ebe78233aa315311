"""Graph mode and a clean mx_rec around every test."""

from __future__ import annotations

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))


@pytest.fixture(autouse=True)
def clean():
    import tensorflow as tf

    from mx_rec.util.initialize import terminate_config_initializer

    tf.compat.v1.disable_eager_execution()
    tf.compat.v1.reset_default_graph()
    yield
    terminate_config_initializer()
    tf.compat.v1.reset_default_graph()
