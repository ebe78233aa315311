"""Shared set-up: graph mode, quiet logs, and a clean mx_rec before and after each test."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MXREC_LOG_LEVEL", "WARNING")

import pytest


@pytest.fixture
def mxrec():
    """mx_rec initialised for dynamic expansion in a fresh default graph."""
    import tensorflow as tf

    from mx_rec.util.initialize import init, terminate_config_initializer

    tf.compat.v1.disable_eager_execution()
    terminate_config_initializer()
    with tf.Graph().as_default() as graph:
        init(use_dynamic_expansion=True)
        yield graph
    terminate_config_initializer()


def pytest_addoption(parser):
    parser.addoption(
        "--cases",
        type=int,
        default=0,
        metavar="N",
        help="run at most N of the cases of a parametrised test, spread over all of them (default: all)",
    )


def pytest_collection_modifyitems(config, items):
    most = config.getoption("--cases")
    if most <= 0:
        return
    cases: dict[str, list] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {item for of_test in cases.values() for item in of_test[:: -(-len(of_test) // most)]}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]
