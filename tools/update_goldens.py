"""Rewrites the golden graphs that differ from what the passes give now, and shows each difference.

Usage: python tools/update_goldens.py [--check] [PASS ...]
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "passes"))

from golden_cases import CASES, GOLDEN_DIR


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if anything differs")
    parser.add_argument("passes", nargs="*", metavar="PASS", help="only the goldens of these passes")
    options = parser.parse_args()
    changed = 0
    for case in CASES:
        if options.passes and case.step.name not in options.passes:
            continue
        old = case.path.read_text(encoding="utf-8") if case.path.exists() else ""
        new = case.actual()
        if old == new:
            continue
        changed += 1
        name = str(case.path.relative_to(GOLDEN_DIR))
        lines = difflib.unified_diff(
            old.splitlines(keepends=True), new.splitlines(keepends=True), f"{name} (golden)", f"{name} (now)"
        )
        sys.stdout.writelines(lines)
        if not options.check:
            case.path.parent.mkdir(parents=True, exist_ok=True)
            case.path.write_text(new, encoding="utf-8")
    print(f"{changed} of {len(CASES)} goldens {'differ' if options.check else 'rewritten'}")
    return 1 if options.check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
