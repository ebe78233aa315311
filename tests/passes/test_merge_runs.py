"""Merged lookups, adopted ids and sliced ops give the values of the graph as it was, as a file and live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from golden_cases import partly_fed_ids, several_lookups, with_orphans
from hypothesis import given, settings
from hypothesis import strategies as st
from test_runs import LOOKUPS, OPTIONS, STEPS, imported, random_graph, run_random

from mx_rec.graph.apply_live import apply_live
from mx_rec.passes import Pass, PassManager, PipelineOptions, PipelineResult, default_pipeline, find_lookups
from mx_rec.passes.find_lookups import EVAL, TRAIN
from mx_rec.passes.merge_lookups import MergeLookups
from mx_rec.util.initialize import init, terminate_config_initializer

tf1 = tf.compat.v1
MERGE_ALL = MergeLookups((TRAIN, EVAL))


@pytest.fixture(autouse=True)
def fresh() -> Any:
    tf1.disable_eager_execution()
    terminate_config_initializer()
    init(use_dynamic_expansion=True)
    yield
    terminate_config_initializer()


@settings(max_examples=25, deadline=None)
@given(STEPS, LOOKUPS, st.sampled_from(OPTIONS), st.booleans(), st.booleans())
def test_random_graphs_with_all_that_can_be_merged(
    steps: list, lookups: list, options: PipelineOptions, use_v2: bool, twice: bool
) -> None:
    """Lookups behind preprocessing that may or may not move, of two batches; all of a side are run together."""
    (tf1.enable_control_flow_v2 if use_v2 else tf1.disable_control_flow_v2)()
    lookups = lookups + [(source + 1, is_train, table) for source, is_train, table in lookups]
    graph, fetches = random_graph(steps, lookups, [])
    expected = run_random(graph, fetches)
    for passes in ([MERGE_ALL], [MERGE_ALL, *default_pipeline(options)]):
        graph, fetches = random_graph(steps, lookups, [])
        result = PassManager(passes).run(graph.as_graph_def())
        np.testing.assert_equal(run_random(imported(result.graph_def), fetches), expected)
        apply_live(graph, result.edits)
        if twice:
            assert not PassManager([MERGE_ALL]).run(graph.as_graph_def()).modified
        np.testing.assert_equal(run_random(graph, fetches), expected)


def values(graph: tf.Graph, makers: Sequence[str], fetches: Sequence[str], feed: dict) -> list:
    """Of every batch, until the data ends. Train and eval lookups of one run would be unordered."""
    sides = [[name for name in fetches if ("eval" in name) == is_eval] for is_eval in (False, True)]
    found: list = []
    with tf1.Session(graph=graph) as session:
        session.run(list(makers))
        while len(found) < 20:
            try:
                found.append([session.run(names, feed) for names in sides if names])
            except tf.errors.OutOfRangeError:
                break
    return found


def with_random_rows(graph_def: Any) -> Any:
    """Rows that differ by key: the golden graphs' tables begin with zeros."""
    for node in graph_def.node:
        if node.op == "MxRecTable":
            node.attr["initializer"].s = b"normal"
            node.attr["initializer_b"].f = 1.0
    return graph_def


CASES = {
    "merged": (several_lookups, [MERGE_ALL], PipelineOptions(), ["iterator/make"], {}),
    "orphans": (with_orphans, [], PipelineOptions(adopt_orphans=True), ["train/make", "eval/make"], {}),
    "op_types": (partly_fed_ids, [], PipelineOptions(op_types=("FloorMod",)), ["iterator/make"], {"fed:0": [3, 5]}),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_golden_graphs_run_before_and_after(name: str) -> None:
    build, before, options, makers, feed = CASES[name]
    graph_def = with_random_rows(build())
    fetches = [f"{node.name}:0" for node in graph_def.node if node.name.endswith("/embeddings")]
    expected = values(imported(graph_def), makers, fetches, feed)
    assert len(expected) in (4, 8)
    assert len(np.unique(expected[0][0][0])) > 4
    result = rewrite(graph_def, before, options)
    np.testing.assert_equal(values(imported(result.graph_def), makers, fetches, feed), expected)
    live = imported(graph_def)
    apply_live(live, result.edits)
    np.testing.assert_equal(values(live, makers, fetches, feed), expected)


def rewrite(graph_def: Any, before: Sequence[Pass], options: PipelineOptions) -> PipelineResult:
    result = PassManager([*before, *default_pipeline(options)]).run(graph_def)
    assert any(report.modified for report in result.reports if report.name == "hoist_lookups")
    return result


def test_one_result_alone_needs_no_feed_of_another_lookup() -> None:
    """That is why lookups of fed ids are not merged with others."""
    graph_def = partly_fed_ids()
    result = PassManager([MERGE_ALL]).run(graph_def)
    assert not result.modified
    assert "is fed at the step" in result.reports[0].refusals[0].reason
    with tf1.Session(graph=imported(result.graph_def)) as session:
        session.run("iterator/make")
        assert session.run("mx_rec/user/moves/embeddings:0").shape == (2, 3, 4)


def test_names_restrict_what_is_merged() -> None:
    lookups = find_lookups_after(MergeLookups((TRAIN, EVAL), frozenset({"first", "second", "first_eval"})))
    assert len(lookups) == 5
    assert len(find_lookups_after(MERGE_ALL)) == 4
    assert len(find_lookups_after(MergeLookups())) == 5


def find_lookups_after(step: Pass) -> list:
    from mx_rec.graph.view import GraphView

    return find_lookups(GraphView(PassManager([step]).run(several_lookups()).graph_def))


def test_sides_are_checked() -> None:
    with pytest.raises(ValueError, match="sides are .*'both'.*expected 'train', 'eval' or both"):
        MergeLookups(("both",))
