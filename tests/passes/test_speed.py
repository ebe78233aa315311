"""The work of the whole rewrite is linear. Seconds are `tools/bench/bench_rewrite.py`'s to measure."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from lookup_graphs import LookupGraph, big_graph

from mx_rec.graph.view import GraphView
from mx_rec.passes import Pass, PassManager, PipelineOptions, default_pipeline, find_lookups
from mx_rec.passes.merge_lookups import MergeLookups


def work(graph_def: Any, lookups: int, steps: Sequence[Pass] = ()) -> int:
    """How many functions a rewrite calls, Python's and C's: the same on a busy machine as on an idle one.

    Args:
        graph_def: the graph.
        lookups: how many there are afterwards.
        steps: the passes; by default the rewrite, without merging, which makes other work of some lookups.
    """
    calls = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    steps = steps or default_pipeline(PipelineOptions(merge=False))
    PassManager(steps).run(graph_def)  # what is loaded and remembered once
    sys.setprofile(count)
    try:
        result = PassManager(steps).run(graph_def)
    finally:
        sys.setprofile(None)
    left = find_lookups(GraphView(result.graph_def))
    assert len(left) == lookups and all(lookup.is_moved == (len(steps) > 1) for lookup in left)
    return calls


def test_ten_times_the_nodes_are_ten_times_the_work() -> None:
    small, large = work(big_graph(2_000, 110), 110), work(big_graph(20_000, 1_100), 1_100)
    assert large < 11 * small


def test_many_lookups_behind_one_deep_chain() -> None:
    """Each node is visited once, not once per lookup."""

    def behind_a_chain(length: int, lookups: int) -> int:
        graph = LookupGraph()
        previous = graph.batch()[0]
        for index in range(length):
            previous = graph.unary(f"deep_{index}", "Neg", previous)
        table = graph.table()
        for index in range(lookups):
            graph.lookup(f"lookup_{index}", table, previous)
        return work(graph.graph_def(), lookups)

    of_the_chain = behind_a_chain(2_000, 10) - behind_a_chain(100, 10)
    with_many_lookups = behind_a_chain(2_000, 200) - behind_a_chain(100, 200)
    assert with_many_lookups < 1.1 * of_the_chain


def test_ten_times_the_lookups_are_ten_times_the_work_to_merge() -> None:
    def of_one_table(lookups: int) -> int:
        graph = LookupGraph()
        ids, table = graph.batch()[0], graph.table()
        for index in range(lookups):
            graph.unary(f"use_{index}", "Relu", graph.lookup(f"lookup_{index}", table, ids, is_train=False), 1)
        return work(graph.graph_def(), 1, [MergeLookups()])

    assert of_one_table(1_000) < 11 * of_one_table(100)
