"""Runs passes one after another, verifying after each."""

from __future__ import annotations

import contextlib
import functools
import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mx_rec.errors import GraphRewriteError
from mx_rec.graph.edits import EditSet
from mx_rec.graph.verify import GraphVerifyError, verify, verify_delta
from mx_rec.graph.view import GraphView
from mx_rec.passes.base import Pass, PassOutcome, Refusal

GraphDef = Any  # tensorflow.GraphDef; protobuf classes carry no static types

INPUT_STAGE = "verify_input"


@dataclass(frozen=True)
class PassReport:
    """What one pass did.

    Attributes:
        name: the pass.
        modified: whether it changed the graph.
        seconds: time of the pass, its edits and the verification after it.
        notes: facts it reports.
        refusals: what it left as it is.
        nodes_before: nodes of the graph before it.
        nodes_after: nodes of the graph after it.
    """

    name: str
    modified: bool
    seconds: float
    notes: tuple[str, ...]
    refusals: tuple[Refusal, ...]
    nodes_before: int
    nodes_after: int


@dataclass(frozen=True)
class PipelineResult:
    """What a run of passes gives.

    Attributes:
        view: the rewritten graph. It shares what did not change with the input, which must stay as it is.
        edits: the edits of all passes, in order; for `apply_graphdef` or `apply_live`.
        reports: one per pass.
        modified: whether anything changed.
    """

    view: GraphView
    edits: EditSet
    reports: tuple[PassReport, ...]
    modified: bool

    @functools.cached_property
    def graph_def(self) -> GraphDef:
        """The rewritten graph as a GraphDef of its own, made when it is first asked for."""
        return self.view.to_graph_def()


class PassFailed(GraphRewriteError):  # noqa: N818 - says what happened
    """A pass failed, or left a broken graph. The input graph is as it was.

    Attributes:
        pass_name: the pass, or `INPUT_STAGE` when the input itself is broken.
        node: the node at fault, or "" when no single one is.
        reason: what went wrong.
        done: reports of the passes that had succeeded before.
    """

    def __init__(self, pass_name: str, node: str, reason: str, done: Sequence[PassReport]) -> None:
        self.pass_name = pass_name
        self.node = node
        self.reason = reason
        self.done = tuple(done)
        before = ", ".join(report.name for report in done) or "none"
        super().__init__(f"pass {pass_name!r} failed: {reason} (passes done before: {before}; the input is unharmed)")


class PassManager:
    """Runs passes in order. Stops at the first failure.

    Args:
        passes: the passes, in order.
        dump_dir: where to write the canonical text of the graph before the first and after every pass.
    """

    def __init__(self, passes: Sequence[Pass], dump_dir: Path | None = None) -> None:
        self._passes = tuple(passes)
        self._dump_dir = None if dump_dir is None else Path(dump_dir)

    def run(self, graph_def: GraphDef) -> PipelineResult:
        """Run the passes on a graph, which is not changed.

        Args:
            graph_def: the graph.

        Raises:
            PassFailed: the input is broken, or a pass failed or left a broken graph.
        """
        with _collector_paused():
            return self._run(graph_def)

    def _run(self, graph_def: GraphDef) -> PipelineResult:
        reports: list[PassReport] = []
        view = self._verified_input(graph_def)
        self._dump(view, 0, "input")
        edits = EditSet()
        for number, step in enumerate(self._passes, start=1):
            before = view
            view, outcome, report = self._run_pass(step, before, reports)
            if not (view is before or view.delta.is_private):  # else the new view shares what the old one worked out
                before.release()
            edits = edits + outcome.edits
            reports.append(report)
            self._dump(view, number, step.name)
        view.release()
        return PipelineResult(view, edits, tuple(reports), any(report.modified for report in reports))

    def _verified_input(self, graph_def: GraphDef) -> GraphView:
        try:
            view = GraphView(graph_def)
            verify(view)
        except GraphRewriteError as error:
            raise PassFailed(INPUT_STAGE, _node_of(error), str(error), ()) from error
        return view

    def _run_pass(
        self, step: Pass, view: GraphView, done: Sequence[PassReport]
    ) -> tuple[GraphView, PassOutcome, PassReport]:
        start = time.perf_counter()
        try:
            outcome = step.run(view)
            after = view.edited(outcome.edits) if outcome.edits else view
            if outcome.edits:
                verify_delta(after)
        except GraphRewriteError as error:
            raise PassFailed(step.name, _node_of(error), str(error), done) from error
        except Exception as error:  # a bug in a pass must not leave half a rewrite: name the pass and stop
            raise PassFailed(step.name, "", f"{type(error).__name__}: {error}", done) from error
        report = PassReport(
            step.name,
            bool(outcome.edits),
            time.perf_counter() - start,
            tuple(outcome.notes),
            tuple(outcome.refusals),
            len(view),
            len(after),
        )
        return after, outcome, report

    def _dump(self, view: GraphView, number: int, name: str) -> None:
        if self._dump_dir is None:
            return
        from mx_rec.graph.canonical import canonical_text

        self._dump_dir.mkdir(parents=True, exist_ok=True)
        path = self._dump_dir / f"{number:02d}_{name}.txt"
        path.write_text(canonical_text(view.to_graph_def()), encoding="utf-8")


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Views hold many small objects and no cycles: collecting while they are built takes a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _node_of(error: GraphRewriteError) -> str:
    if isinstance(error, GraphVerifyError):
        return error.problems[0].node
    return str(getattr(error, "node", ""))
