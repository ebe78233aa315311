"""What two runs have in common and where they part."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from mx_rec.cli.console import GraphFailed
from mx_rec.cli.verifying.compare import ArrayDifference, compare_arrays

if TYPE_CHECKING:
    from mx_rec.cli.verifying.fetches import Fetch
    from mx_rec.cli.verifying.graph_run import GraphRun


@dataclass
class Compared:
    """One thing that both graphs have.

    Attributes:
        kind: "fetch", "op", "table" or "variable".
        name: what it is called.
        extent: how much was compared, in words.
        differing: how many steps (of a fetch) or elements differ.
        largest: largest absolute difference; `None` if nothing differs or it has no meaning.
        is_equal: whether nothing differs.
    """

    kind: str
    name: str
    extent: str = ""
    differing: int = 0
    largest: Optional[float] = None
    is_equal: bool = True


@dataclass(frozen=True)
class FirstDifference:
    """Where the runs part.

    Attributes:
        kind: "fetch", "input", "table" or "variable".
        name: of what differs.
        step: number of the step, from 1; `None` for what is compared after the last.
        element: which element, in words; "" where the whole differs.
        a: what A has.
        b: what B has.
    """

    kind: str
    name: str
    step: Optional[int]
    element: str
    a: str
    b: str

    def __str__(self) -> str:
        place = [f"step {self.step}"] if self.step else ["after the last step"]
        place.append(f"{self.kind} '{self.name}'" if self.name else self.kind)
        if self.element:
            place.append(self.element)
        return f"{', '.join(place)}: A has {self.a}, B has {self.b}"


@dataclass
class Verdict:
    """The outcome of a comparison."""

    steps: int = 0
    tolerance: Optional[float] = None
    compared: list[Compared] = field(default_factory=list)
    first_difference: Optional[FirstDifference] = None
    remarks: list[str] = field(default_factory=list)

    def differ(self, difference: FirstDifference) -> None:
        """Keeps the first difference."""
        self.first_difference = self.first_difference or difference

    def to_json(self) -> dict[str, Any]:
        """The same as plain dictionaries and lists."""
        return {"equal": self.first_difference is None, **dataclasses.asdict(self)}


def compare_steps(runs: Sequence[GraphRun], fetches: Sequence[Fetch], steps: int, verdict: Verdict) -> None:
    """Runs both graphs step by step and compares what they fetch.

    Raises:
        GraphFailed: a graph fails, or neither has input for a single step.
    """
    rows = [Compared("op" if fetch.is_op else "fetch", fetch.name) for fetch in fetches]
    for number in range(1, steps + 1):
        first, second = (run.step(number) for run in runs)
        if first is None or second is None:
            _note_end(number, first is None, second is None, verdict)
            break
        verdict.steps = number
        for row, a, b in zip(rows, first, second):
            difference = None if row.kind == "op" else compare_arrays(a, b, verdict.tolerance)
            if difference is not None:
                _count(row, difference, 1)
                verdict.differ(_first(row, difference, _element(difference), step=number))
    for row in rows:
        row.extent = f"{verdict.steps} steps"
    verdict.compared.extend(rows)


def _note_end(number: int, a_ended: bool, b_ended: bool, verdict: Verdict) -> None:
    words = [f"ended after {number - 1} steps" if ended else "more input" for ended in (a_ended, b_ended)]
    if a_ended != b_ended:
        verdict.differ(FirstDifference("input", "", number, "", words[0], words[1]))
        return
    if number == 1:
        raise GraphFailed("both graphs ran out of input before the first step")
    verdict.remarks.append(f"the input {words[0]}")


def compare_tables(runs: Sequence[GraphRun], verdict: Verdict) -> None:
    """Compares what the dynamic tables hold, by name and key."""
    first, second = runs
    for name in dict.fromkeys([*first.tables, *second.tables]):
        missing = [name not in run.tables for run in runs]
        if any(missing) and any(name in run.converted for run in runs):
            side = "A" if missing[1] else "B"
            verdict.remarks.append(f"table '{name}' of {side} has the place of a variable of the other: not compared")
            continue
        row = Compared("table", name)
        verdict.compared.append(row)
        if name not in first.tables or name not in second.tables:
            row.is_equal = False
            has = [f"{'a' if name in run.tables else 'no'} table of that name" for run in runs]
            verdict.differ(FirstDifference("table", name, None, "", has[0], has[1]))
            continue
        _compare_table(row, first.table(name), second.table(name), verdict)


def _compare_table(row: Compared, first: tuple[Any, Any, Any], second: tuple[Any, Any, Any], verdict: Verdict) -> None:
    keys = first[0]
    row.extent = f"{len(keys)} keys, rows of {first[1].shape[-1]}"
    missing = _first_missing_key(keys, second[0])
    if missing is not None:
        key, has, count = missing
        row.is_equal, row.differing = False, count
        verdict.differ(FirstDifference("table", row.name, None, f"key {key}", has[0], has[1]))
        return
    for what, a, b in (("row", first[1], second[1]), ("count", first[2], second[2])):
        difference = compare_arrays(a, b, verdict.tolerance)
        if difference is None:
            continue
        _count(row, difference, difference.count)
        element = f"{what}s"
        if difference.element is not None:
            column = f", column {difference.element[1]}" if len(difference.element) > 1 else ""
            element = f"key {keys[difference.element[0]]}, {what}{column}"
        verdict.differ(_first(row, difference, element))


def _first_missing_key(first: Any, second: Any) -> Optional[tuple[int, list[str], int]]:
    """(smallest key that one table lacks, what each says of it, how many keys only one has), if any."""
    only = np.setxor1d(first, second, assume_unique=True)
    if not only.size:
        return None
    key = only[0]
    return int(key), ["the key" if key in keys else "no such key" for keys in (first, second)], int(only.size)


def compare_variables(runs: Sequence[GraphRun], verdict: Verdict) -> None:
    """Compares the variables that both graphs have and that at least one has initialized."""
    first, second = runs
    known = set(second.variables)
    for name in first.variables:
        if name not in known:
            continue
        a, b = first.variable(name), second.variable(name)
        if a is None and b is None:
            continue
        row = Compared("variable", name)
        verdict.compared.append(row)
        if a is None or b is None:
            row.is_equal = False
            words = ["not initialized" if value is None else "initialized" for value in (a, b)]
            verdict.differ(FirstDifference("variable", name, None, "", words[0], words[1]))
            continue
        row.extent = f"{a.dtype.name} {list(a.shape)}"
        difference = compare_arrays(a, b, verdict.tolerance)
        if difference is not None:
            _count(row, difference, difference.count)
            verdict.differ(_first(row, difference, _element(difference)))


def _count(row: Compared, difference: ArrayDifference, differing: int) -> None:
    row.is_equal = False
    row.differing += differing
    if difference.largest is not None:
        row.largest = max(difference.largest, row.largest or 0.0)


def _first(row: Compared, difference: ArrayDifference, element: str, step: Optional[int] = None) -> FirstDifference:
    return FirstDifference(row.kind, row.name, step, element, difference.values[0], difference.values[1])


def _element(difference: ArrayDifference) -> str:
    return f"element {list(difference.element)}" if difference.element else ""
