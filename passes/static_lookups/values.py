"""Values and sameness of tensors that a graph gives without running it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from mx_rec.graph.attrs import const_value, shape_dims
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.view import GraphView

_SMALL = 64  # elements of a constant that is worked with
_MAX_DEPTH = 16
_SAME_VALUE = frozenset({"Identity", "Snapshot", "PreventGradient", "StopGradient"})
_SAME_ORDER = frozenset({"Reshape", "ExpandDims", "Squeeze"})
_INTEGER_TYPES = frozenset({3, 9})  # DT_INT32, DT_INT64
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add,
    "AddV2": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "RealDiv": np.divide,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
}


def stripped(view: GraphView, ref: TensorRef) -> TensorRef:
    """The tensor behind nodes that hand on its value as it is."""
    node = view.node(ref.node)
    while (node.op in _SAME_VALUE or node.op == "IdentityN") and ref.index < len(node.inputs):
        ref = node.inputs[ref.index]
        node = view.node(ref.node)
    return ref


def flat_origin(view: GraphView, ref: TensorRef) -> TensorRef:
    """The tensor behind nodes that keep its elements in their order: other shapes, other integer types."""
    while True:
        ref = stripped(view, ref)
        node = view.node(ref.node)
        if node.op in _SAME_ORDER or (node.op == "Cast" and _between_integers(node)):
            ref = node.inputs[0]
        else:
            return ref


def _between_integers(node: Node) -> bool:
    return all((value := node.attr(name)) is not None and value.type in _INTEGER_TYPES for name in ("SrcT", "DstT"))


def small_value(view: GraphView, ref: TensorRef, depth: int = 0, *, waiting: bool = False) -> Any | None:
    """The value of a small tensor that follows from constants alone, as a numpy array; `None` if it does not.

    Args:
        view: the graph.
        ref: the tensor.
        depth: how far it is from the tensor that is asked for.
        waiting: whether constants count that wait for something: whoever takes the value must see to it that what
            they wait for still comes first (see `awaited_by_constants`).
    """
    ref = stripped(view, ref)
    node = view.node(ref.node)
    if node.op == "Const":
        return None if node.controls and not waiting else _small_constant(node)
    if depth >= _MAX_DEPTH:
        return None
    known = [small_value(view, source, depth + 1, waiting=waiting) for source in node.inputs[:2]]
    inputs: list[Any] = [value for value in known if value is not None]
    if not inputs or len(inputs) < len(known):
        return None
    if node.op == "Cast":
        target = node.attr("DstT")
        return inputs[0].astype(_NUMPY[target.type]) if target is not None and target.type in _NUMPY else None
    if node.op in _ARITHMETIC and len(inputs) == 2:
        with np.errstate(all="ignore"):
            return np.asarray(_ARITHMETIC[node.op](*inputs))
    return None


_NUMPY = {1: np.float32, 2: np.float64, 3: np.int32, 9: np.int64}


def awaited_by_constants(view: GraphView, names: Iterable[str]) -> list[str]:
    """What the constants wait for that these nodes compute with."""
    found: dict[str, None] = {}
    seen = set(names)
    level = list(seen)
    for _ in range(_MAX_DEPTH):
        sources = [view.node(ref.node) for name in level for ref in view.node(name).inputs]
        level = []
        for node in sources:
            if node.name in seen:
                continue
            seen.add(node.name)
            if node.op == "Const":
                found.update(dict.fromkeys(node.controls))
            elif node.op in _ARITHMETIC or node.op in _SAME_VALUE or node.op == "Cast":
                level.append(node.name)
    return list(found)


def small_number(view: GraphView, ref: TensorRef, *, waiting: bool = False) -> Any | None:
    """The value of a scalar that follows from constants alone, else `None`; `waiting` as for `small_value`."""
    value = small_value(view, ref, waiting=waiting)
    return value.reshape(()).item() if value is not None and value.size == 1 else None


def uniform_value(view: GraphView, ref: TensorRef) -> float | None:
    """The number that all elements of a tensor are, if constants say so; `None` otherwise."""
    ref = stripped(view, ref)
    node = view.node(ref.node)
    if node.op == "Fill":
        return small_number(view, node.inputs[1])
    if node.op in _ARITHMETIC and len(node.inputs) == 2:
        left, right = (uniform_value(view, source) for source in node.inputs)
        if left is None or right is None:
            return None
        with np.errstate(all="ignore"):
            return float(_ARITHMETIC[node.op](np.float32(left), np.float32(right)))
    if node.op != "Const":
        return None
    proto = node.proto.attr["value"].tensor
    if proto.float_val:
        first = proto.float_val[0]
        return first if all(value == first for value in proto.float_val) else None
    if not proto.tensor_content:
        return 0.0 if proto.dtype == 1 else None
    values = np.frombuffer(proto.tensor_content, np.float32) if proto.dtype == 1 else np.zeros(0, np.float32)
    return float(values[0]) if values.size and bool((values == values[0]).all()) else None


def same(view: GraphView, left: TensorRef, right: TensorRef, *, waiting: bool = False) -> bool:
    """Whether two tensors hold one value: the same tensor, equal small constants, or reads of one variable.

    `waiting` as for `small_value`.
    """
    left, right = stripped(view, left), stripped(view, right)
    if left == right:
        return True
    one, other = view.node(left.node), view.node(right.node)
    if one.op == other.op == "ReadVariableOp":
        return one.inputs[0] == other.inputs[0]
    first, second = (small_value(view, ref, waiting=waiting) for ref in (left, right))
    return first is not None and second is not None and bool(np.array_equal(first, second))


def same_formula(view: GraphView, left: TensorRef, right: TensorRef, depth: int = 0, *, waiting: bool = False) -> bool:
    """Whether two tensors are one formula over the same values; `waiting` as for `small_value`."""
    if same(view, left, right, waiting=waiting):
        return True
    left, right = stripped(view, left), stripped(view, right)
    one, other = view.node(left.node), view.node(right.node)
    schema = view.schema(one.op)
    if depth >= _MAX_DEPTH or one.op != other.op or left.index != right.index or schema is None:
        return False
    if schema.has_effects or not one.inputs or len(one.inputs) != len(other.inputs):
        return False
    pairs = zip(one.inputs, other.inputs)
    return all(same_formula(view, a, b, depth + 1, waiting=waiting) for a, b in pairs)


def is_one_minus(view: GraphView, ref: TensorRef, value: TensorRef) -> bool:
    """Whether a scalar is 1 minus `value`, whatever its constants wait for."""
    node = view.node(stripped(view, ref).node)
    is_one = node.op == "Sub" and small_number(view, node.inputs[0], waiting=True) == 1
    if is_one and same(view, node.inputs[1], value, waiting=True):
        return True
    known, number = (small_value(view, tensor, waiting=True) for tensor in (ref, value))
    return known is not None and number is not None and bool(np.array_equal(known, np.float32(1) - number))


def written_dims(node: Node) -> tuple[int | None, ...] | None:
    """The shape in a variable node's attribute."""
    shape = node.attr("shape")
    return None if shape is None else shape_dims(shape.shape)


def _small_constant(node: Node) -> Any | None:
    value = node.attr("value")
    if value is None:
        return None
    size = 1
    for dim in value.tensor.tensor_shape.dim:
        size *= dim.size
    if size > _SMALL or value.tensor.dtype not in _NUMPY:
        return None
    return const_value(value)
