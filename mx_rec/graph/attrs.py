"""Attribute values: Python values to and from `AttrValue` protos."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, tensor_shape_pb2, types_pb2

AttrValue = Any  # tensorflow.AttrValue; protobuf classes carry no static types
Shape = Any  # tensorflow.TensorShapeProto

DT_INVALID = types_pb2.DT_INVALID
DT_FLOAT = types_pb2.DT_FLOAT
DT_INT32 = types_pb2.DT_INT32
DT_INT64 = types_pb2.DT_INT64
DT_STRING = types_pb2.DT_STRING
DT_BOOL = types_pb2.DT_BOOL
DT_RESOURCE = types_pb2.DT_RESOURCE
DT_VARIANT = types_pb2.DT_VARIANT
REF_OFFSET = 100  # DT_X_REF = DT_X + 100
_MAX_DENSE_ELEMENTS = 1 << 24
_MIN_RAW_BYTES = 1 << 16


def dtype_name(dtype: int) -> str:
    """Lower-case name of a `DataType` number: "int64", "float_ref", "resource"."""
    if dtype not in types_pb2.DataType.values():
        return f"dtype {dtype}"
    return types_pb2.DataType.Name(dtype)[3:].lower()


def is_ref(dtype: int) -> bool:
    """Whether the dtype is a reference to a mutable tensor (variables before resources)."""
    return dtype > REF_OFFSET


def base_dtype(dtype: int) -> int:
    """The dtype without its reference mark."""
    return dtype - REF_OFFSET if dtype > REF_OFFSET else dtype


def attr_type(dtype: int) -> AttrValue:
    """One dtype."""
    return attr_value_pb2.AttrValue(type=dtype)


def attr_types(dtypes: Iterable[int]) -> AttrValue:
    """A list of dtypes."""
    return attr_value_pb2.AttrValue(list=attr_value_pb2.AttrValue.ListValue(type=dtypes))


def attr_shapes(shapes: Iterable[Shape | None]) -> AttrValue:
    """A list of shapes; `None` becomes a shape of unknown rank."""
    known = [unknown_shape() if shape is None else shape for shape in shapes]
    return attr_value_pb2.AttrValue(list=attr_value_pb2.AttrValue.ListValue(shape=known))


def attr_bytes(value: str | bytes) -> AttrValue:
    """A string."""
    return attr_value_pb2.AttrValue(s=value.encode() if isinstance(value, str) else value)


def attr_strings(values: Iterable[str]) -> AttrValue:
    """A list of strings."""
    return attr_value_pb2.AttrValue(list=attr_value_pb2.AttrValue.ListValue(s=[value.encode() for value in values]))


def attr_ints(values: Iterable[int]) -> AttrValue:
    """A list of integers."""
    return attr_value_pb2.AttrValue(list=attr_value_pb2.AttrValue.ListValue(i=values))


def attr_int(value: int) -> AttrValue:
    """An integer."""
    return attr_value_pb2.AttrValue(i=value)


def attr_float(value: float) -> AttrValue:
    """A float."""
    return attr_value_pb2.AttrValue(f=value)


def attr_floats(values: Iterable[float]) -> AttrValue:
    """A list of floats."""
    return attr_value_pb2.AttrValue(list=attr_value_pb2.AttrValue.ListValue(f=values))


def attr_bool(value: bool) -> AttrValue:
    """A truth value."""
    return attr_value_pb2.AttrValue(b=value)


def attr_func(name: str) -> AttrValue:
    """A function of the library, without attributes of its own."""
    value = attr_value_pb2.AttrValue()
    value.func.name = name
    return value


def attr_tensor(value: Any, dtype: int) -> AttrValue:
    """A constant tensor."""
    return attr_value_pb2.AttrValue(tensor=tf.make_tensor_proto(value, dtype=tf.as_dtype(dtype)))


def const_value(value: AttrValue) -> Any:
    """The numpy array of a `tensor` attribute, or `None` where `dense_array` gives none."""
    return dense_array(value.tensor)


def is_zero(value: AttrValue) -> bool:
    """Whether a `tensor` attribute is a single 0."""
    array = const_value(value)
    return array is not None and array.size == 1 and bool(array.reshape(-1)[0] == 0)


def dense_array(tensor: Any) -> Any:
    """The numpy array of a `TensorProto`; `None` when it is damaged, or huge and given by few values."""
    sizes = [max(dim.size, 0) for dim in tensor.tensor_shape.dim]
    if not tensor.tensor_content and math.prod(sizes) > _MAX_DENSE_ELEMENTS:
        return None
    try:
        return tf.make_ndarray(tensor)
    except (TypeError, ValueError, OverflowError):
        return None


def raw_values(tensor: Any) -> tuple[Any, bytes] | None:
    """(a flat array over the content, the content) of a large `TensorProto` given as one sound block of bytes.

    `None` for any other. The array shares memory with the content: nothing is copied but the content, once.
    """
    if (
        tensor.dtype not in types_pb2.DataType.values()
        or tensor.dtype in (DT_INVALID, DT_STRING)
        or is_ref(tensor.dtype)
    ):
        return None
    dtype = tf.as_dtype(tensor.dtype)
    count = math.prod(dim.size for dim in tensor.tensor_shape.dim)
    if not dtype.is_numpy_compatible or count * dtype.size < _MIN_RAW_BYTES:
        return None
    content: bytes = tensor.tensor_content
    if len(content) != count * dtype.size:
        return None
    return np.frombuffer(content, dtype.as_numpy_dtype), content


def unknown_shape() -> Shape:
    """The shape of which not even the rank is known."""
    return tensor_shape_pb2.TensorShapeProto(unknown_rank=True)


def known_shape(dims: Iterable[int | None]) -> Shape:
    """A shape of known rank; a `None` dimension is unknown."""
    shape = tensor_shape_pb2.TensorShapeProto()
    for size in dims:
        shape.dim.add(size=-1 if size is None else size)
    return shape


def shape_dims(shape: Shape | None) -> tuple[int | None, ...] | None:
    """Dimensions of a shape, `None` for each unknown one; `None` when the rank is unknown."""
    if shape is None or shape.unknown_rank:
        return None
    return tuple(None if dim.size < 0 else dim.size for dim in shape.dim)
