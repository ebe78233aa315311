"""Signatures of this project's ops, for graphs read without the op library.

TensorFlow knows an op only once its library is loaded. The rewriter needs no kernels, so it reads types and
statefulness from here when the registry has no entry. `tests` compare this table with the loaded library.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from tensorflow.core.framework import op_def_pb2, types_pb2

OP_TABLE = "MxRecTable"
OP_UNIQUE = "MxRecUnique"
OP_LOOK_AHEAD = "MxRecLookAhead"
OP_FIND_OR_INSERT = "MxRecFindOrInsert"
OP_FIND = "MxRecFind"
OP_GATHER = "MxRecGatherByAddress"


class Signature(NamedTuple):
    """`inputs` and `outputs` are "name: dtype" or "name: type attribute"; `attrs` are "name: kind [= default]"."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: tuple[str, ...] = ()
    stateful: bool = True


SIGNATURES: dict[str, Signature] = {
    OP_TABLE: Signature((), ("handle: resource",)),
    OP_UNIQUE: Signature(
        ("ids: Tids",),
        ("keys: int64", "restore: int32", "counts: int32"),
        ("Tids: type = int64",),
        stateful=False,
    ),
    OP_LOOK_AHEAD: Signature(
        ("table: resource", "keys: int64"), ("hints: int64",), ("reserve: bool = false",)
    ),
    OP_FIND_OR_INSERT: Signature(
        ("table: resource", "keys: int64", "hints: int64", "counts: int32"), ("addresses: int64",)
    ),
    OP_FIND: Signature(("table: resource", "keys: int64", "hints: int64"), ("addresses: int64",)),
    OP_GATHER: Signature(
        ("table: resource", "addresses: int64", "default_row: float"), ("embeddings: float",), ("dim: int",)
    ),
    "MxRecApplySgdByAddress": Signature(
        ("table: resource", "addresses: int64", "gradients: float", "learning_rate: float"), ()
    ),
    "MxRecApplyLazyAdamByAddress": Signature(
        (
            "table: resource",
            "addresses: int64",
            "gradients: float",
            "learning_rate: float",
            "beta1: float",
            "beta2: float",
            "epsilon: float",
        ),
        (),
    ),
    "MxRecTableSize": Signature(("table: resource",), ("size: int64",)),
    "MxRecTableCapacity": Signature(("table: resource",), ("capacity: int64",)),
    "MxRecTableExport": Signature(
        ("table: resource",), ("keys: int64", "rows: float", "counts: int64")
    ),
}


def signature_op_def(op: str) -> Optional[Any]:
    """The `OpDef` of one of this project's ops, or `None` for an op that is not ours."""
    signature = SIGNATURES.get(op)
    if signature is None:
        return None
    op_def = op_def_pb2.OpDef(name=op, is_stateful=signature.stateful)
    for text in signature.inputs:
        _fill_arg(op_def.input_arg.add(), text)
    for text in signature.outputs:
        _fill_arg(op_def.output_arg.add(), text)
    for text in signature.attrs:
        _fill_attr(op_def.attr.add(), text)
    return op_def


def _fill_arg(arg: Any, text: str) -> None:
    arg.name, kind = text.split(": ")
    if kind[0].isupper():
        arg.type_attr = kind
    else:
        arg.type = types_pb2.DataType.Value(f"DT_{kind.upper()}")


def _fill_attr(attr: Any, text: str) -> None:
    attr.name, _, rest = text.partition(": ")
    attr.type, _, default = rest.partition(" = ")
    if not default:
        return
    if attr.type == "type":
        attr.default_value.type = types_pb2.DataType.Value(f"DT_{default.upper()}")
    elif attr.type == "bool":
        attr.default_value.b = default == "true"
    else:
        raise ValueError(f"attribute {text!r}: a default of kind {attr.type} is not supported")
