"""Static shapes of a GraphDef's tensors, by rule, for the ops found between a batch and its keys.

A shape that no rule knows is unknown, never guessed: what depends on it stays right and only less static.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Optional

from mx_rec.graph.attrs import Shape, const_value, known_shape, shape_dims
from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.op_signatures import (
    OP_CHECK_IDS,
    OP_FIND,
    OP_FIND_OR_INSERT,
    OP_LOOK_AHEAD,
    OP_POOL,
    OP_ROW_SPLITS,
    OP_UNIQUE,
)

Dims = Optional[tuple[Optional[int], ...]]  # None: rank unknown; a None entry: dimension unknown
Rule = Callable[["ShapeRules", Node, int], Dims]

_MAX_CONST_ELEMENTS = 64  # axes and target shapes are small; larger constants are not read

_SAME_AS_INPUT_0 = [
    "Abs",
    "AsString",
    "Bucketize",
    "Cast",
    "CheckNumerics",
    OP_CHECK_IDS,
    "Floor",
    "Identity",
    "Invert",
    "LogicalNot",
    "Neg",
    "OnesLike",
    "PreventGradient",
    "Relu",
    "Round",
    "Sign",
    "Snapshot",
    "Square",
    "StopGradient",
    "StringLower",
    "StringStrip",
    "StringToHashBucket",
    "StringToHashBucketFast",
    "StringToHashBucketStrong",
    "StringToNumber",
    "StringUpper",
    "ZerosLike",
]
_BROADCAST = [
    "Add",
    "AddV2",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Equal",
    "FloorDiv",
    "FloorMod",
    "Greater",
    "GreaterEqual",
    "LeftShift",
    "Less",
    "LessEqual",
    "LogicalAnd",
    "LogicalOr",
    "Maximum",
    "Minimum",
    "Mod",
    "Mul",
    "NotEqual",
    "RightShift",
    "SelectV2",
    "Sub",
    "TruncateDiv",
    "TruncateMod",
]


class ShapeRules:
    """Shapes by rule over one graph. `get_node` gives a node by name. Results are remembered."""

    def __init__(self, get_node: Callable[[str], Node]) -> None:
        self._node = get_node
        self._known: dict[TensorRef, Dims] = {}

    def shape(self, ref: TensorRef) -> Shape | None:
        """The shape of a tensor, or `None` when no rule knows it."""
        self._work_out(ref)
        dims = self._known[ref]
        return None if dims is None else known_shape(dims)

    def _work_out(self, ref: TensorRef) -> None:
        """Inputs first, without recursion: preprocessing chains may be deeper than Python's stack."""
        opened: set[TensorRef] = set()
        stack = [ref]
        while stack:
            current = stack[-1]
            if current in self._known:
                stack.pop()
                continue
            node = self._node(current.node)
            missing = [source for source in _needed(node, current.index) if source not in self._known]
            if missing and current not in opened:
                opened.add(current)
                stack.extend(missing)
                continue
            # Still missing inputs after they were opened: a loop. No rule applies in one.
            self._known[current] = _written(node, current.index)
            if self._known[current] is None and not missing and node.op in _RULES:
                self._known[current] = _RULES[node.op](self, node, current.index)
            stack.pop()

    def input_dims(self, node: Node) -> list[Dims]:
        """Shapes of the data inputs; only for a node whose inputs have been worked out."""
        return [self._known[source] for source in node.inputs]

    def shape_of(self, ref: TensorRef) -> Dims:
        """The shape whose Shape this tensor is; only for an input of a node whose inputs have been worked out."""
        node = self._node(ref.node)
        return self._known.get(node.inputs[0]) if node.op == "Shape" else None

    def const(self, ref: TensorRef) -> Any:
        """The value of a small constant as a numpy array, else `None`."""
        node = self._node(ref.node)
        value = node.attr("value") if node.op == "Const" else None
        if value is None:
            return None
        dims = shape_dims(value.tensor.tensor_shape)
        is_small = dims is not None and math.prod(size or 0 for size in dims) <= _MAX_CONST_ELEMENTS
        return const_value(value) if is_small else None


def _needed(node: Node, index: int) -> Sequence[TensorRef]:
    """The inputs whose shapes the rule of this node reads."""
    if node.op not in _READS_INPUTS or (node.op == OP_UNIQUE and index != 1):
        return ()
    return node.inputs


def _written(node: Node, index: int) -> Dims:
    """The shape that TensorFlow wrote into the node, if it did."""
    shapes = node.shapes_attr("_output_shapes")
    return shape_dims(shapes[index]) if index < len(shapes) else None


def broadcast(left: Dims, right: Dims) -> Dims:
    """The shape of an elementwise op over two shapes; a clash of known sizes gives an unknown size."""
    if left is None or right is None:
        return None
    rank = max(len(left), len(right))
    padded_left = (1,) * (rank - len(left)) + left
    padded_right = (1,) * (rank - len(right)) + right
    return tuple(_broadcast_size(a, b) for a, b in zip(padded_left, padded_right))


def _broadcast_size(left: int | None, right: int | None) -> int | None:
    if left == right or right == 1:
        return left
    if left == 1:
        return right
    return left if right is None else right if left is None else None


def _of_output_shapes(_: ShapeRules, node: Node, index: int) -> Dims:
    shapes = node.shapes_attr("output_shapes")
    return shape_dims(shapes[index]) if index < len(shapes) else None


def _of_const(_: ShapeRules, node: Node, index: int) -> Dims:
    value = node.attr("value")
    return None if value is None or index else shape_dims(value.tensor.tensor_shape)


def _of_placeholder(_: ShapeRules, node: Node, index: int) -> Dims:
    value = node.attr("shape")
    return None if value is None or index else shape_dims(value.shape)


def _same_as_input_0(rules: ShapeRules, node: Node, index: int) -> Dims:
    return rules.input_dims(node)[0] if node.inputs and not index else None


def _of_table_find(rules: ShapeRules, node: Node, index: int) -> Dims:
    return rules.input_dims(node)[1] if len(node.inputs) > 1 and not index else None


def _of_broadcast(rules: ShapeRules, node: Node, _: int) -> Dims:
    dims: Dims = ()
    for other in rules.input_dims(node):
        dims = broadcast(dims, other)
    return dims


def _of_unique(rules: ShapeRules, node: Node, index: int) -> Dims:
    return rules.input_dims(node)[0] if index == 1 else (None,)


def _vector(_: ShapeRules, __: Node, ___: int) -> Dims:
    return (None,)


def _of_deserialized_sparse(_: ShapeRules, __: Node, index: int) -> Dims:
    return (None, None) if index == 0 else (None,)


def _of_ragged_from_variant(_: ShapeRules, node: Node, index: int) -> Dims:
    """The row splits come first, then the flat values, whose rank the node does not tell."""
    return (None,) if index < node.int_attr("output_ragged_rank") else None


def _of_pool(rules: ShapeRules, node: Node, _: int) -> Dims:
    embeddings, _restore, splits = rules.input_dims(node)[:3]
    size = splits[0] if splits else None
    return (None if size is None else size - 1, embeddings[1] if embeddings else None)


def _of_expand_dims(rules: ShapeRules, node: Node, _: int) -> Dims:
    dims, axis = rules.input_dims(node)[0], rules.const(node.inputs[1])
    if dims is None or axis is None:
        return None
    position = int(axis) if axis >= 0 else int(axis) + len(dims) + 1
    return (*dims[:position], 1, *dims[position:])


def _of_shape(rules: ShapeRules, node: Node, _: int) -> Dims:
    dims = rules.input_dims(node)[0]
    return None if dims is None else (len(dims),)


def _of_reshape(rules: ShapeRules, node: Node, _: int) -> Dims:
    like = rules.shape_of(node.inputs[1])
    if like is not None:
        return like
    target = rules.const(node.inputs[1])
    if target is None:
        return None
    return tuple(None if size < 0 else int(size) for size in target)


_RULES: dict[str, Rule] = {
    "IteratorGetNext": _of_output_shapes,
    "Const": _of_const,
    "Placeholder": _of_placeholder,
    "LookupTableFindV2": _of_table_find,
    "ExpandDims": _of_expand_dims,
    "Reshape": _of_reshape,
    "Shape": _of_shape,
    OP_UNIQUE: _of_unique,
    OP_LOOK_AHEAD: _vector,
    OP_FIND: _vector,
    OP_FIND_OR_INSERT: _vector,
    OP_ROW_SPLITS: _vector,
    OP_POOL: _of_pool,
    "DeserializeSparse": _of_deserialized_sparse,
    "RaggedTensorFromVariant": _of_ragged_from_variant,
    **dict.fromkeys(_SAME_AS_INPUT_0, _same_as_input_0),
    **dict.fromkeys(_BROADCAST, _of_broadcast),
}
_READS_INPUTS = frozenset(
    ["LookupTableFindV2", "ExpandDims", "Reshape", "Shape", OP_POOL, OP_UNIQUE, *_SAME_AS_INPUT_0, *_BROADCAST]
)
