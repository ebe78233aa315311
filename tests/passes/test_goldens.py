"""What each pass does to small graphs, as text. Refresh with tools/update_goldens.py."""

from __future__ import annotations

import pytest
from golden_cases import CASES, GOLDEN_DIR, GoldenCase

CASE_IDS = [f"{case.step.name}-{case.name}" for case in CASES]


@pytest.mark.parametrize("case", CASES, ids=CASE_IDS)
def test_golden(case: GoldenCase) -> None:
    assert case.path.exists(), "no golden yet: run tools/update_goldens.py and look at it"
    assert case.actual() == case.path.read_text(encoding="utf-8")


def test_every_golden_file_has_a_case() -> None:
    assert sorted(GOLDEN_DIR.rglob("*.txt")) == sorted(case.path for case in CASES)
