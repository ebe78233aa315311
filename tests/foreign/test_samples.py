"""Graphs that other libraries have made (tools/foreign/samples.py), before and after their conversion."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import foreign_runs as runs
import numpy as np
import pytest
from tensorflow.core.protobuf import meta_graph_pb2

from mx_rec.graph.view import GraphView

GRAPHS = Path(__file__).resolve().parent / "graphs"
STEPS = 5
# Tables, refused variables, and how far losses may differ: Adagrad's root is rounded otherwise, Adam is exact.
EXPECTED = {
    "deepctr_deepfm_adam": (9, 0, 0.0),
    "deepctr_din_adagrad": (3, 0, 3e-6),
    "estimator_wide_deep": (3, 1, 3e-6),
    "estimator_dnn_partitioned": (3, 0, 3e-6),
    "keras_embedding_adam": (1, 0, 0.0),
}


def graph_of(name: str) -> Any:
    data = gzip.decompress((GRAPHS / f"{name}.meta.gz").read_bytes())
    return meta_graph_pb2.MetaGraphDef.FromString(data).graph_def


def test_every_sample_is_run() -> None:
    assert {path.name for path in GRAPHS.iterdir()} == {f"{name}.meta.gz" for name in EXPECTED}


@pytest.mark.parametrize("name", EXPECTED)
def test_converted_graphs_train_as_before(name: str) -> None:
    tables, refused, tolerance = EXPECTED[name]
    graph_def = graph_of(name)
    converted = runs.convert(graph_def, whole=True)
    assert len(GraphView(converted.graph_def).nodes_of("MxRecTable")) == tables
    (report,) = (report for report in converted.reports if report.name == "convert_static_tables")
    assert len(report.refusals) == refused
    before, after = (
        runs.losses(graph, ("the_loss:0", "the_step"), steps=STEPS) for graph in (graph_def, converted.graph_def)
    )
    assert len(set(before.tolist())) == STEPS
    np.testing.assert_allclose(after, before, rtol=tolerance, atol=0)
