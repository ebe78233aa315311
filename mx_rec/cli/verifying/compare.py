"""Compares arrays bit for bit, or within a tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np


@dataclass(frozen=True)
class ArrayDifference:
    """Where two arrays differ first.

    Attributes:
        element: index of the first element that differs; `None` if dtype or shape do.
        values: that element of both, or dtype and shape of both, as text.
        count: elements that differ.
        largest: largest absolute difference; `None` where that has no meaning.
    """

    element: Optional[tuple[int, ...]]
    values: tuple[str, str]
    count: int
    largest: Optional[float]


def compare_arrays(first: Any, second: Any, tolerance: Optional[float] = None) -> Optional[ArrayDifference]:
    """The first difference of two arrays, or `None`.

    Without a tolerance equal means equal bits: 0.0 and -0.0 differ, a NaN is equal to the same NaN. With one,
    floating-point elements are equal if |a - b| <= tolerance * (1 + |b|); two NaNs are equal, as are two infinities
    of one sign.
    """
    first, second = np.asarray(first), np.asarray(second)
    if first.dtype != second.dtype or first.shape != second.shape:
        return ArrayDifference(None, (_kind(first), _kind(second)), max(first.size, second.size), None)
    differs = _differing(first, second, tolerance)
    if not differs.any():
        return None
    element = tuple(int(place) for place in np.unravel_index(int(np.argmax(differs)), first.shape))
    values = str(first[element]), str(second[element])
    return ArrayDifference(element, values, int(differs.sum()), _largest(first[differs], second[differs]))


def _differing(first: np.ndarray, second: np.ndarray, tolerance: Optional[float]) -> Any:
    if first.dtype.kind == "O" or first.dtype.kind in "US":
        return np.asarray(first != second)
    if tolerance is not None and _is_floating(first):
        with np.errstate(all="ignore"):
            wide, other = _widened(first), _widened(second)
            return ~np.isclose(wide, other, rtol=tolerance, atol=tolerance, equal_nan=True)
    size = first.dtype.itemsize
    shape = (*first.shape, size)
    raw = (np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(shape) for array in (first, second))
    return np.asarray(np.not_equal(*raw).any(axis=-1))


def _is_floating(array: np.ndarray) -> bool:
    """Also bfloat16 and its like, which numpy does not count as numbers."""
    return array.dtype.kind in "fc" or (array.dtype.kind == "V" and "float" in array.dtype.name)


def _widened(array: np.ndarray) -> Any:
    return array if array.dtype.kind == "c" else array.astype("float64")


def _largest(first: np.ndarray, second: np.ndarray) -> Optional[float]:
    """Largest absolute difference of numbers; `None` of others, and where it is no number."""
    if not (_is_floating(first) or first.dtype.kind in "iu"):
        return None
    with np.errstate(all="ignore"):
        largest = float(np.max(np.abs(_widened(first) - _widened(second))))
    return largest if np.isfinite(largest) else None


def _kind(array: np.ndarray) -> str:
    return f"{array.dtype.name} {list(array.shape)}"
