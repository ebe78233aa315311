"""`recgraph plot` on the graphs of the golden cases, before and after the rewrite."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
from golden_cases import CASES

from mx_rec.cli.plotting.drawing import html_text, svg_text
from mx_rec.cli.plotting.picture import MOVABLE, MOVED, STAYS, picture_of
from mx_rec.graph.view import GraphView
from mx_rec.passes import PassFailed, PassManager, PipelineOptions, default_pipeline

FATE = {MOVABLE: MOVED, STAYS: STAYS}


def rows_by_lookup(picture) -> dict[tuple[str, str], object]:
    return {(row.name, row.side): row for group in picture.groups for row in group.rows}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.step.name}-{case.name}")
def test_every_lookup_is_where_the_rewrite_put_it_with_the_ops_it_had(case):
    graph_def = case.build()
    pictures = [picture_of(GraphView(graph_def), "before")]
    try:
        # Without merging, which makes one lookup of several.
        after = PassManager(default_pipeline(PipelineOptions(merge=False))).run(graph_def).graph_def
    except PassFailed:
        pass  # the case is about that; the graph can be drawn all the same
    else:
        pictures.append(picture_of(GraphView(after), "after"))
        first, second = map(rows_by_lookup, pictures)
        assert first.keys() == second.keys()
        for key, row in first.items():
            assert second[key].state == FATE[row.state]
            assert (second[key].ops, second[key].op_kinds) == (row.ops, row.op_kinds)
            assert second[key].has_unique
    assert ET.fromstring(svg_text(pictures, "title")).tag.endswith("svg")
    assert html_text(pictures, "title").count("<svg") == 1
