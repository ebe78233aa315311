"""The example with a Session, in all its modes."""

from __future__ import annotations

import importlib
import pathlib
import sys

import numpy as np
import pytest
import tensorflow as tf

from mx_rec.util.initialize import terminate_config_initializer

EXAMPLES = pathlib.Path(__file__).parent.parent.parent / "examples" / "session"
MODULES = [path.stem for path in EXAMPLES.glob("*.py")]
SMALL = ["--rows", "1200", "--batch-size", "32", "--steps", "8", "--save-steps", "4"]


@pytest.fixture(scope="module")
def example():
    """The module `run` of the example."""
    sys.path.insert(0, str(EXAMPLES))
    yield importlib.import_module("run")
    sys.path.remove(str(EXAMPLES))
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture(autouse=True)
def clean():
    tf.compat.v1.disable_eager_execution()
    terminate_config_initializer()
    yield
    terminate_config_initializer()


def _run(example, directory, *options):
    return example.main(["--directory", str(directory), *SMALL, *options])


@pytest.mark.parametrize("grow", [False, True], ids=["fixed", "grow"])
def test_it_trains_goes_on_and_predicts(example, tmp_path, grow):
    options = ["--grow"] if grow else []
    unbroken = _run(example, tmp_path / "unbroken", *options, "--steps", "16")
    first = _run(example, tmp_path / "parts", *options)
    second = _run(example, tmp_path / "parts", *options, "--mode", "load_and_train")
    np.testing.assert_array_equal([*first["losses"], *second["losses"]], unbroken["losses"])
    assert np.mean(unbroken["losses"][-4:]) < np.mean(unbroken["losses"][:4])
    assert second["last_saved"] == 16
    predicted = _run(example, tmp_path / "parts", *options, "--mode", "predict")
    assert predicted["predictions"] == second["predictions"] == unbroken["predictions"]
    assert predicted["sizes"] == second["sizes"]
    folders = sorted(path.name for path in (tmp_path / "parts").glob("*sparse-*"))
    assert folders == sorted(f"sparse-model-{step}" for step in (4, 8, 12, 16))


def test_how_batches_come_changes_nothing(example, tmp_path):
    expected = _run(example, tmp_path / "first")
    for number, options in enumerate(
        (
            ["--features", "spec"],
            ["--features", "spec", "--static", "--cache", "DDR", "--one-shot"],
            ["--one-shot", "--tuple", "--cache", "SSD"],
            ["--grow", "--tuple", "--static"],
        )
    ):
        got = _run(example, tmp_path / str(number), *options)
        np.testing.assert_allclose(got["losses"], expected["losses"], rtol=1e-5)
        assert got["sizes"] == expected["sizes"]
    assert got["capacities"] != expected["capacities"]


@pytest.mark.parametrize(("features", "grow"), [("spec", False), ("tensor", True)], ids=["spec", "tensor"])
def test_admission_padding_and_several_lookups(example, tmp_path, features, grow):
    options = ["--features", features, *(["--grow"] if grow else [])]
    plain = _run(example, tmp_path / "plain", *options)
    options += ["--admission", "--padding", "--lookups", "3"]
    more = _run(example, tmp_path / "more", *options)
    assert more["sizes"]["movie"] < plain["sizes"]["movie"]
    assert more["evicted"] == {"user": 0, "movie": 0, "genres": 0}
    loaded = _run(example, tmp_path / "more", *options, "--mode", "predict")
    assert loaded["predictions"] == more["predictions"]


def test_deltas(example, tmp_path):
    trained = _run(example, tmp_path, "--deltas", "--steps", "12")
    assert sorted(path.name for path in tmp_path.glob("*sparse-*")) == [
        "delta-sparse-model-12",
        "delta-sparse-model-8",
        "sparse-model-4",
    ]
    assert _run(example, tmp_path, "--mode", "predict")["predictions"] == trained["predictions"]


def test_without_a_checkpoint_it_says_what_to_do(example, tmp_path):
    with pytest.raises(FileNotFoundError, match="train first"):
        _run(example, tmp_path, "--mode", "load_and_train")
