"""Attributes of the dataset and iterator nodes that the rewrite adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mx_rec.graph.attrs import (
    DT_INT64,
    AttrValue,
    Shape,
    attr_bytes,
    attr_func,
    attr_shapes,
    attr_tensor,
    attr_type,
    attr_types,
    known_shape,
    shape_dims,
    unknown_shape,
)


@dataclass(frozen=True)
class ElementSpec:
    """Flat dtypes and shapes of the elements of a dataset or iterator."""

    types: tuple[int, ...]
    shapes: tuple[Shape | None, ...]

    def attrs(self) -> dict[str, AttrValue]:
        """As the attributes that dataset and iterator ops share."""
        return {"output_types": attr_types(self.types), "output_shapes": attr_shapes(self.shapes)}


def merged_shape(one: Shape | None, other: Shape | None) -> Shape:
    """The shape that says what both say and no more."""
    left, right = shape_dims(one), shape_dims(other)
    if left is None or right is None or len(left) != len(right):
        return unknown_shape()
    return known_shape([a if a == b else None for a, b in zip(left, right)])


def map_op(parallel_calls: int) -> str:
    """The op that maps a dataset with this many calls at the same time."""
    return "ParallelMapDatasetV2" if parallel_calls > 1 else "MapDataset"


def map_attrs(
    spec: ElementSpec, function: str, captured_types: Sequence[int], parallel_calls: int
) -> dict[str, AttrValue]:
    """Attributes of `map_op(parallel_calls)`. Elements keep their order."""
    attrs = {"f": attr_func(function), "Targuments": attr_types(captured_types), **spec.attrs()}
    if parallel_calls > 1:
        attrs["deterministic"] = attr_bytes("true")
    return attrs


def int64_const_attrs(value: int) -> dict[str, AttrValue]:
    """Attributes of a scalar int64 Const."""
    return {"dtype": attr_type(DT_INT64), "value": attr_tensor(value, DT_INT64)}


def iterator_attrs(spec: ElementSpec, shared_name: str = "") -> dict[str, AttrValue]:
    """Attributes of an IteratorV2."""
    return {**spec.attrs(), "container": attr_bytes(""), "shared_name": attr_bytes(shared_name)}
