"""Reports of a pipeline run, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mx_rec.passes.manager import PassReport


def report_text(reports: Sequence[PassReport], *, with_times: bool = False) -> str:
    """A few lines per pass: what it did, its notes, and what it refused and why."""
    lines: list[str] = []
    for report in reports:
        change = f"{report.nodes_before} -> {report.nodes_after} nodes" if report.modified else "no change"
        timing = f", {report.seconds:.3f} s" if with_times else ""
        lines.append(f"{report.name}: {change}{timing}")
        lines.extend(f"  {note}" for note in report.notes)
        lines.extend(f"  refused {refusal}" for refusal in report.refusals)
    return "\n".join(lines) + "\n" if lines else ""


def report_json(reports: Sequence[PassReport]) -> list[dict[str, Any]]:
    """The same as plain lists and dicts, ready for `json.dumps`."""
    return [
        {
            "pass": report.name,
            "modified": report.modified,
            "seconds": round(report.seconds, 6),
            "nodes_before": report.nodes_before,
            "nodes_after": report.nodes_after,
            "notes": list(report.notes),
            "refusals": [{"node": refusal.node, "reason": refusal.reason} for refusal in report.refusals],
        }
        for report in reports
    ]
