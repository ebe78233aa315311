"""Reads `tables.toml`: which variables become tables."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from mx_rec.errors import GraphFileError
from mx_rec.passes.static_lookups.plans import BY_KEY, FROM_VARIABLE, INITIAL_VALUES, TableChoice

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KEYS = {"variable": str, "name": str, "initial_values": str, "drop_modulo": bool}


def read_tables(path: str | os.PathLike[str]) -> tuple[TableChoice, ...]:
    """The choices of a `tables.toml`, in order: of those whose patterns match a variable the first holds.

    ::

        [[table]]
        variable = "user_emb*"        # name, or pattern with * and ?
        name = "user"                 # of the table; made of the variable's if not given
        initial_values = "by_key"     # or "variable", the default
        drop_modulo = true            # default false

    Raises:
        GraphFileError: the file cannot be read, is no TOML, or a key or value is not as above; names the file.
    """
    shown = os.fspath(path)
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise GraphFileError(f"{shown}: cannot be read as TOML: {error}") from error
    unknown = sorted(set(content) - {"table"})
    tables = content.get("table")
    if unknown or not isinstance(tables, list) or not tables:
        wrong = f"key {unknown[0]!r}" if unknown else "no [[table]]"
        raise GraphFileError(f"{shown}: expected [[table]] entries, got {wrong}")
    choices = tuple(_choice(shown, number, entry) for number, entry in enumerate(tables, start=1))
    first: dict[str, int] = {}
    for number, choice in enumerate(choices, start=1):
        if first.setdefault(choice.variable, number) != number:
            raise GraphFileError(
                f"{shown}: [[table]] number {number}: variable {choice.variable!r} has an entry already, number "
                f"{first[choice.variable]}; a variable becomes one table"
            )
    return choices


def _choice(path: str, number: int, entry: Any) -> TableChoice:
    place = f"{path}: [[table]] number {number}"
    if not isinstance(entry, dict) or not entry.get("variable"):
        raise GraphFileError(f'{place} names no variable: expected variable = "..."')
    for key, value in entry.items():
        if key not in _KEYS:
            raise GraphFileError(f"{place}: unknown key {key!r}; the keys are {', '.join(_KEYS)}")
        if not isinstance(value, _KEYS[key]):
            raise GraphFileError(f"{place}: {key} must be a {_KEYS[key].__name__}, got {value!r}")
    drop = entry.get("drop_modulo", False)
    initial = entry.get("initial_values", BY_KEY if drop else FROM_VARIABLE)
    try:
        return TableChoice(entry["variable"], entry.get("name", ""), initial, drop)
    except ValueError as error:
        raise GraphFileError(f"{place}: {error}") from error


__all__ = ["INITIAL_VALUES", "read_tables"]
