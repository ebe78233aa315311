"""The work of the whole rewrite is linear. Seconds are `tools/bench/bench_rewrite.py`'s to measure."""

from __future__ import annotations

import sys
from typing import Any

from lookup_graphs import LookupGraph, big_graph

from mx_rec.graph.view import GraphView
from mx_rec.passes import PassManager, default_pipeline, find_lookups
from mx_rec.passes.find_lookups import TRAIN


def work(graph_def: Any, train_lookups: int) -> int:
    """How many functions a rewrite calls, Python's and C's: the same on a busy machine as on an idle one."""
    calls = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    PassManager(default_pipeline()).run(graph_def)  # what is loaded and remembered once
    sys.setprofile(count)
    try:
        result = PassManager(default_pipeline()).run(graph_def)
    finally:
        sys.setprofile(None)
    moved = find_lookups(GraphView(result.graph_def))
    assert sum(lookup.side == TRAIN for lookup in moved) == train_lookups and all(lookup.is_moved for lookup in moved)
    return calls


def test_ten_times_the_nodes_are_ten_times_the_work() -> None:
    # Every third lookup is one of evaluation; those are merged by table.
    small, large = work(big_graph(2_000, 110), 73), work(big_graph(20_000, 1_100), 733)
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
