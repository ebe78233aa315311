"""The manager: order, verification after each pass, atomicity, dumps, reports."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from golden_cases import broken, one_lookup, unmovable

from mx_rec.errors import GraphRewriteError
from mx_rec.graph.apply_graphdef import apply_graphdef
from mx_rec.graph.canonical import canonical_text
from mx_rec.graph.edits import EditSet
from mx_rec.graph.node import TensorRef
from mx_rec.graph.view import GraphView
from mx_rec.passes import (
    Pass,
    PassFailed,
    PassManager,
    PassOutcome,
    default_pipeline,
    report_json,
    report_text,
)
from mx_rec.passes.find_lookups import FindLookups
from mx_rec.passes.insert_collections import InsertCollections


@dataclass(frozen=True)
class BreaksDtype(Pass):
    name: ClassVar[str] = "breaks_dtype"

    def run(self, view: GraphView) -> PassOutcome:
        edits = EditSet()
        edits.set_input("mod", 0, TensorRef("batch", 2))
        return PassOutcome(edits)


@dataclass(frozen=True)
class RemovesWhatIsRead(Pass):
    name: ClassVar[str] = "removes_what_is_read"

    def run(self, view: GraphView) -> PassOutcome:
        edits = EditSet()
        edits.remove_node("mod")
        return PassOutcome(edits)


@dataclass(frozen=True)
class HasABug(Pass):
    name: ClassVar[str] = "has_a_bug"

    def run(self, view: GraphView) -> PassOutcome:
        raise KeyError("oops")


@dataclass(frozen=True)
class NamesNobody(Pass):
    name: ClassVar[str] = "names_nobody"

    def run(self, view: GraphView) -> PassOutcome:
        edits = EditSet()
        edits.remove_control_input("mod", "batch")
        return PassOutcome(edits)


@pytest.mark.parametrize(
    ("bad", "node", "message"),
    [
        (BreaksDtype(), "mod", "input 0 is batch:2 of dtype float; expected int64"),
        (RemovesWhatIsRead(), "mx_rec/user/first/ids", "reads node 'mod', which was removed"),
        (HasABug(), "", "KeyError: 'oops'"),
        (NamesNobody(), "", "node 'mod' has no control input 'batch' to remove"),
    ],
)
def test_failure_names_pass_and_node_and_leaves_the_input_alone(bad: Pass, node: str, message: str) -> None:
    graph_def = one_lookup()
    before = graph_def.SerializeToString(deterministic=True)
    with pytest.raises(PassFailed) as caught:
        PassManager([FindLookups(), InsertCollections(), bad, FindLookups()]).run(graph_def)
    error = caught.value
    assert isinstance(error, GraphRewriteError)
    assert (error.pass_name, error.node) == (bad.name, node)
    assert message in error.reason
    assert message in str(error)
    assert [report.name for report in error.done] == ["find_lookups", "insert_collections"]
    assert "passes done before: find_lookups, insert_collections" in str(error)
    assert graph_def.SerializeToString(deterministic=True) == before


def test_broken_input_is_refused_before_any_pass() -> None:
    with pytest.raises(PassFailed, match="verify_input.*takes 4") as caught:
        PassManager([HasABug()]).run(broken())
    assert caught.value.pass_name == "verify_input"
    assert caught.value.node == "mx_rec/user/first/addresses"


def test_edits_of_all_passes_compose() -> None:
    graph_def = unmovable()
    result = PassManager(default_pipeline()).run(graph_def)
    assert result.modified
    assert canonical_text(apply_graphdef(graph_def, result.edits)) == canonical_text(result.graph_def)


def test_unmodified_result_is_a_copy() -> None:
    graph_def = one_lookup()
    result = PassManager([FindLookups()]).run(graph_def)
    assert result.graph_def is not graph_def
    assert result.graph_def == graph_def


def test_dumps_between_passes(tmp_path: Path) -> None:
    result = PassManager(default_pipeline(), dump_dir=tmp_path / "dump").run(one_lookup())
    names = sorted(path.name for path in (tmp_path / "dump").iterdir())
    assert names == [
        "00_input.txt",
        "01_find_lookups.txt",
        "02_merge_lookups.txt",
        "03_insert_collections.txt",
        "04_hoist_lookups.txt",
        "05_swap_iterators.txt",
        "06_fuse_lookups.txt",
        "07_fuse_updates.txt",
        "08_hot_embedding.txt",
        "09_prune.txt",
    ]
    assert (tmp_path / "dump" / "09_prune.txt").read_text(encoding="utf-8") == canonical_text(result.graph_def)


def test_reports() -> None:
    reports = PassManager(default_pipeline()).run(unmovable()).reports
    text = report_text(reports)
    assert "hoist_lookups: 111 -> 114 nodes" in text
    assert "refused noise: op 'RandomUniformInt' draws random numbers" in text
    assert " s\n" in report_text(reports, with_times=True)
    entries = json.loads(json.dumps(report_json(reports)))
    assert [entry["pass"] for entry in entries] == [report.name for report in reports]
    (hoist,) = [entry for entry in entries if entry["pass"] == "hoist_lookups"]
    assert hoist["refusals"][0]["node"] == "mx_rec/user/constant/addresses"
    assert report_text([]) == ""


def test_garbage_collector_is_left_as_it_was() -> None:
    import gc

    assert gc.isenabled()
    with pytest.raises(PassFailed):
        PassManager([HasABug()]).run(one_lookup())
    assert gc.isenabled()
