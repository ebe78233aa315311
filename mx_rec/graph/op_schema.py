"""What an op takes and gives: `OpDef`s compiled for fast questions about nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional

from mx_rec import tf_compat
from mx_rec.graph.attrs import REF_OFFSET, AttrValue
from mx_rec.graph.op_signatures import signature_op_def

Dtypes = tuple[int, ...]
AttrGetter = Callable[[str], Optional[AttrValue]]


# Ops that TensorFlow calls stateful, although running one again, or earlier, with equal inputs changes nothing.
REPEATABLE_OPS = frozenset({"Assert", "CheckNumerics", "CheckNumericsV2", "LookupTableFindV2", "LookupTableSizeV2"})


_MAX_COUNT = 1 << 22  # of tensors in an argument; more is damage


class ArgSpec(NamedTuple):
    """One argument of an op. Exactly one of `dtype`, `type_attr`, `type_list_attr` is set."""

    name: str
    dtype: int
    type_attr: str
    type_list_attr: str
    number_attr: str
    is_ref: bool


class NodeTypes(NamedTuple):
    """Flat dtypes of a node, and how many tensors each argument holds."""

    inputs: Dtypes
    outputs: Dtypes
    input_counts: tuple[int, ...]
    output_counts: tuple[int, ...]


class OpSchema:
    """An `OpDef` (or the signature of a library function), compiled. Immutable."""

    def __init__(self, op_def: Any) -> None:
        self.name: str = op_def.name
        self.is_stateful: bool = op_def.is_stateful
        self.inputs = tuple(_arg_spec(arg) for arg in op_def.input_arg)
        self.outputs = tuple(_arg_spec(arg) for arg in op_def.output_arg)
        self.defaults: Mapping[str, AttrValue] = {
            attr.name: attr.default_value for attr in op_def.attr if attr.HasField("default_value")
        }
        self.function_attrs = tuple(attr.name for attr in op_def.attr if attr.type in ("func", "list(func)"))
        self._type_attrs = _type_attr_kinds(self.inputs + self.outputs)
        self._memo: dict[tuple[Any, ...], NodeTypes] = {}
        self._only_type_attr = _only_type_attr(self._type_attrs)

    @property
    def type_attrs(self) -> tuple[str, ...]:
        """The attributes that decide dtypes or numbers of tensors."""
        return tuple(self._type_attrs)

    @property
    def has_effects(self) -> bool:
        """Whether it matters how often and when a node of this op runs."""
        return self.is_stateful and self.name not in REPEATABLE_OPS

    def types(self, attr: AttrGetter) -> NodeTypes | None:
        """Dtypes of a node of this op with these attributes; `None` if one is missing, symbolic or out of range."""
        if self._only_type_attr:  # most ops: worth a short cut
            value = attr(self._only_type_attr)
            known = None if value is None or not value.type else self._memo.get((value.type,))
            if known is not None:
                return known
        key = self._key(attr)
        if key is None:
            return None
        known = self._memo.get(key)
        if known is None:
            known = self._memo[key] = self._expand(dict(zip(self._type_attrs, key)))
        return known

    def _key(self, attr: AttrGetter) -> tuple[Any, ...] | None:
        key = []
        for name, kind in self._type_attrs.items():
            value = attr(name)
            if value is None:
                value = self.defaults.get(name)
            if value is None or value.placeholder:
                return None
            if kind == "number" and not 0 <= value.i <= _MAX_COUNT:
                return None
            key.append(tuple(value.list.type) if kind == "list" else value.type if kind == "type" else value.i)
        return tuple(key)

    def _expand(self, values: Mapping[str, Any]) -> NodeTypes:
        inputs = [_expand_arg(arg, values) for arg in self.inputs]
        outputs = [_expand_arg(arg, values) for arg in self.outputs]
        return NodeTypes(
            tuple(dtype for group in inputs for dtype in group),
            tuple(dtype for group in outputs for dtype in group),
            tuple(len(group) for group in inputs),
            tuple(len(group) for group in outputs),
        )


def _arg_spec(arg: Any) -> ArgSpec:
    return ArgSpec(arg.name, arg.type, arg.type_attr, arg.type_list_attr, arg.number_attr, arg.is_ref)


def _type_attr_kinds(args: tuple[ArgSpec, ...]) -> dict[str, str]:
    """Attributes that decide dtypes or counts: name to "type", "list" or "number"."""
    kinds: dict[str, str] = {}
    for arg in args:
        if arg.type_attr:
            kinds[arg.type_attr] = "type"
        if arg.type_list_attr:
            kinds[arg.type_list_attr] = "list"
        if arg.number_attr:
            kinds[arg.number_attr] = "number"
    return kinds


def _only_type_attr(kinds: Mapping[str, str]) -> str:
    """The attribute that alone decides the dtypes, or ""."""
    return next(iter(kinds)) if list(kinds.values()) == ["type"] else ""


def _expand_arg(arg: ArgSpec, values: Mapping[str, Any]) -> Dtypes:
    if arg.type_list_attr:
        return tuple(values[arg.type_list_attr])
    dtype = values[arg.type_attr] if arg.type_attr else arg.dtype
    if arg.is_ref:
        dtype += REF_OFFSET
    count = values[arg.number_attr] if arg.number_attr else 1
    return (dtype,) * count


_registered: dict[str, OpSchema] = {}
_signatures: dict[str, OpSchema] = {}


def op_schema(op: str) -> OpSchema | None:
    """The schema of a registered op, else of one of this project's ops, else `None`.

    A miss is not remembered: loading an op library later makes its ops known.
    """
    known = _registered.get(op)
    if known is not None:
        return known
    op_def = tf_compat.registered_op_def(op)
    if op_def is not None:
        return _registered.setdefault(op, OpSchema(op_def))
    if op not in _signatures:
        op_def = signature_op_def(op)
        if op_def is None:
            return None
        _signatures[op] = OpSchema(op_def)
    return _signatures[op]
