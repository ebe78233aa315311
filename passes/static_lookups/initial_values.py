"""The initial values of a variable, as a table computes them for each key."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from mx_rec.graph.node import Node, TensorRef
from mx_rec.graph.view import GraphView
from mx_rec.passes.static_lookups.values import small_number, stripped, uniform_value

_UNIFORM = frozenset({"RandomUniform", "StatelessRandomUniform", "StatelessRandomUniformV2"})
_NORMAL = {
    "RandomStandardNormal": "normal",
    "StatelessRandomNormal": "normal",
    "StatelessRandomNormalV2": "normal",
    "TruncatedNormal": "truncated_normal",
    "StatelessTruncatedNormal": "truncated_normal",
    "StatelessTruncatedNormalV2": "truncated_normal",
}
_SUMS = ("Add", "AddV2")


class ByKey(NamedTuple):
    """Initializer attributes of an MxRecTable: kind, its two parameters, and the seed."""

    kind: str
    a: float
    b: float
    seed: int

    @property
    def is_constant(self) -> bool:
        """Whether every row begins with the same values, so that nothing is drawn."""
        return self.kind == "constant"


def by_key(view: GraphView, value: TensorRef, table_name: str) -> ByKey | None:
    """The initializer of a table whose rows have the distribution of `value`; `None` if it is not known.

    A constant is exactly itself. Random rows follow the same distribution but are other draws.
    """
    number = uniform_value(view, value)
    if number is not None:
        return ByKey("constant", number, 0.0, 0)
    node = view.node(stripped(view, value).node)
    offset, scaled = 0.0, node
    if node.op in _SUMS:
        known = small_number(view, node.inputs[1])
        if known is None:
            return None
        offset, scaled = float(known), view.node(stripped(view, node.inputs[0]).node)
    factor = 1.0
    if scaled.op == "Mul":
        known = small_number(view, scaled.inputs[1])
        if known is None:
            return None
        factor, scaled = float(known), view.node(stripped(view, scaled.inputs[0]).node)
    seed = _seed(scaled, table_name)
    if scaled.op in _UNIFORM and factor >= 0:
        return ByKey("uniform", offset, offset + factor, seed)
    if scaled.op in _NORMAL and factor >= 0:
        return ByKey(_NORMAL[scaled.op], offset, factor, seed)
    return None


def _seed(random: Node, table_name: str) -> int:
    text = f"{random.int_attr('seed')}/{random.int_attr('seed2')}/{table_name}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
