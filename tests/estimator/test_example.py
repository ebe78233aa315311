"""The example on MovieLens, whole: train, evaluate, predict, warm start, export, serve."""

from __future__ import annotations

import importlib
import pathlib
import sys

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent.parent / "examples" / "estimator"
MODULES = [path.stem for path in EXAMPLES.glob("*.py")]


@pytest.fixture
def example(monkeypatch):
    """The module `run` of the example."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module("run")
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("model", ["two_tower", "multi_task"])
def test_the_example(example, tmp_path, model):
    arguments = ["--model", model, "--directory", str(tmp_path), "--rows", "6000", "--save-steps", "20"]
    if model == "multi_task":  # one of them is served
        arguments.append("--no-serve")
    results = example.main(arguments)
    first = results["train_and_evaluate"]
    assert first["global_step"] == 24
    assert first["auc"] > 0.55
    assert 0.9 < first["mx_rec/user/hit_rate"] <= 1
    assert 0.5 < first["mx_rec/movie/hit_rate"] < 1
    if model == "multi_task":
        assert first["rmse"] < 1.2
    # Before its first step the second model predicts what the first did; then it goes on.
    warm, second = results["warm_start"], results["second"]
    assert (warm["loss"], warm["auc"]) == (first["loss"], first["auc"])
    assert warm["mx_rec/film/hit_rate"] == first["mx_rec/movie/hit_rate"]
    assert second["global_step"] == 10
    assert second["loss"] != first["loss"]
    assert set(results["tables"]) == {"user", "movie", "genre", "context"}
    assert [row["movie"] for row in results["predict"]] == example.load(6000)[1]["movie"][: example.SHOWN].tolist()
    if model == "multi_task":
        assert all(0 < row["click"] < 1 and 0 < row["rating"] < 6 for row in results["predict"])
        return
    # A server predicts what the Estimator does, with the op library or frozen; it knows an unknown user too.
    served, frozen = results["serve"], results["serve_frozen"]
    for name, values in served.items():
        assert len(values) == example.SHOWN + 1
        np.testing.assert_allclose(values, frozen[name], rtol=1e-6)
        expected = [row[name] for row in results["predict"]]
        np.testing.assert_allclose(values[: example.SHOWN], expected, rtol=1e-5)
    assert served["liked"][0] != served["liked"][example.SHOWN]
