"""Parameter checks: each names the parameter, what is allowed and what came."""

from __future__ import annotations

import numbers
import re
from typing import Any, Optional


def check_bool(name: str, value: Any) -> bool:
    """`value` if it is a bool, else TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {value!r} of type {type(value).__name__}")
    return value


def check_int(name: str, value: Any, low: int, high: int) -> int:
    """`value` as an int in [low, high]; TypeError or ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer in [{low}, {high}], got {value!r} of type {type(value).__name__}")
    number = int(value)
    if not low <= number <= high:
        raise ValueError(f"{name} must be in [{low}, {high}], got {value}")
    return number


def check_optional_int(name: str, value: Any, low: int, high: int) -> Optional[int]:
    """None, or as `check_int`."""
    return None if value is None else check_int(name, value, low, high)


def check_float(
    name: str,
    value: Any,
    low: float,
    high: float,
    *,
    low_open: bool = False,
    high_open: bool = False,
) -> float:
    """`value` as a float in the range; TypeError or ValueError otherwise (NaN included)."""
    shown = f"{'(' if low_open else '['}{low}, {high}{')' if high_open else ']'}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number in {shown}, got {value!r} of type {type(value).__name__}")
    number = float(value)
    above = number > low if low_open else number >= low
    below = number < high if high_open else number <= high
    if not (above and below):
        raise ValueError(f"{name} must be in {shown}, got {value}")
    return number


def check_string(name: str, value: Any, low: int, high: int, pattern: Optional[str] = None) -> str:
    """`value` if it is a string of low..high characters matching `pattern` as a whole."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {value!r} of type {type(value).__name__}")
    if not low <= len(value) <= high:
        raise ValueError(f"{name} must have {low} to {high} characters, got {len(value)}: {value!r}")
    if pattern is not None and re.fullmatch(pattern, value) is None:
        raise ValueError(f"{name} must match {pattern}, got {value!r}")
    return value
