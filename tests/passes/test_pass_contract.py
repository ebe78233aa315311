"""What holds for every pass: its place, its honesty, its idempotency."""

from __future__ import annotations

import ast
import dataclasses
import importlib
from pathlib import Path

import pytest
from golden_cases import CASES, GOLDEN_DIR, GoldenCase
from tensorflow.core.framework import graph_pb2

import mx_rec.passes
from mx_rec.graph.canonical import canonical_text
from mx_rec.graph.view import GraphView
from mx_rec.passes import PASSES, Pass, PassManager, PipelineOptions, default_pipeline
from mx_rec.passes.static_lookups.plans import TableChoice

PASS_DIR = Path(mx_rec.passes.__file__).parent
SUCCEEDING = [case for case in CASES if case.name != "error"]
each_succeeding_case = pytest.mark.parametrize(
    "case", SUCCEEDING, ids=[f"{case.step.name}-{case.name}" for case in SUCCEEDING]
)


def test_order_of_the_pipeline() -> None:
    assert list(PASSES) == [
        "inline_calls",
        "convert_static_tables",
        "find_lookups",
        "adopt_orphans",
        "merge_lookups",
        "insert_collections",
        "hoist_lookups",
        "swap_iterators",
        "fuse_lookups",
        "fuse_updates",
        "hot_embedding",
        "prune",
    ]
    every = PipelineOptions(static_tables=(TableChoice("*"),), adopt_orphans=True)
    assert [step.name for step in default_pipeline(every)] == list(PASSES)
    on_request = {"inline_calls", "convert_static_tables", "adopt_orphans"}
    assert [step.name for step in default_pipeline()] == [name for name in PASSES if name not in on_request]


def test_pipeline_options_leave_passes_out() -> None:
    steps = default_pipeline(PipelineOptions(merge=False, fuse=False, hot_embedding=False, prune=False))
    assert [step.name for step in steps] == ["find_lookups", "insert_collections", "hoist_lookups", "swap_iterators"]
    assert not steps[2].fuse


@pytest.mark.parametrize("name", PASSES)
def test_one_pass_one_file_one_class_one_golden_folder(name: str) -> None:
    module = importlib.import_module(f"mx_rec.passes.{name}")
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Pass) and value.__module__ == module.__name__
    ]
    assert classes == [PASSES[name]]
    assert PASSES[name].name == name
    kinds = {case.name.split("_")[0] for case in CASES if case.step.name == name}
    assert {"positive", "no"} <= kinds, "a pass needs a positive golden and one it leaves alone"
    assert kinds & {"error", "refused"}, "a pass needs a golden of what it refuses or fails on"
    assert (GOLDEN_DIR / name).is_dir()


def test_every_pass_file_is_registered() -> None:
    defining = set()
    for path in PASS_DIR.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bases = [
            base.id
            for node in tree.body
            if isinstance(node, ast.ClassDef)
            for base in node.bases
            if isinstance(base, ast.Name)
        ]
        if "Pass" in bases:
            defining.add(path.stem)
    assert defining == set(PASSES)


def test_no_golden_folder_without_a_pass() -> None:
    assert {path.name for path in GOLDEN_DIR.iterdir() if path.is_dir()} == set(PASSES)


@pytest.mark.parametrize("name", PASSES)
def test_docstring_and_frozen_options(name: str) -> None:
    doc = PASSES[name].__doc__ or ""
    for part in ("fore", "fter", "efuse"):
        assert part in doc, f"the docstring of {name} must show before and after, and say what it refuses"
    step = PASSES[name]()
    with pytest.raises(dataclasses.FrozenInstanceError):
        step.prefetch = 2  # type: ignore[attr-defined]


@each_succeeding_case
def test_second_run_changes_nothing_and_modified_is_true(case: GoldenCase) -> None:
    graph_def = case.input()
    first = PassManager([case.step]).run(graph_def)
    before = graph_def.SerializeToString(deterministic=True)
    second = PassManager([case.step]).run(first.graph_def)
    assert not second.modified
    assert not second.edits
    assert first.modified == (canonical_text(graph_def) != canonical_text(first.graph_def))
    assert graph_def.SerializeToString(deterministic=True) == before
    assert second.reports[0].refusals == first.reports[0].refusals


@each_succeeding_case
def test_second_run_of_the_pipeline_changes_nothing(case: GoldenCase) -> None:
    first = PassManager(default_pipeline()).run(case.build())
    second = PassManager(default_pipeline()).run(first.graph_def)
    assert not second.modified
    assert canonical_text(second.graph_def) == canonical_text(first.graph_def)
    assert not any("_mx_rec_hoist" in attr for node in first.graph_def.node for attr in node.attr)


@each_succeeding_case
def test_inserted_nodes_carry_the_name_of_their_pass(case: GoldenCase) -> None:
    graph_def = case.input()
    result = PassManager([case.step]).run(graph_def)
    old = {node.name for node in graph_def.node}
    for node in result.graph_def.node:
        if node.name not in old:
            assert node.attr["_mx_rec_pass"].s.decode() == case.step.name


def test_passes_work_on_an_empty_graph() -> None:
    result = PassManager(default_pipeline()).run(graph_pb2.GraphDef())
    assert not result.modified
    assert len(GraphView(result.graph_def)) == 0


@pytest.mark.parametrize("option", ["prefetch", "parallel_calls"])
@pytest.mark.parametrize("value", [0, -1, 1.5])
def test_hoist_refuses_senseless_options(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{option} is {value!r}; expected an integer of at least 1"):
        PASSES["hoist_lookups"](**{option: value})
