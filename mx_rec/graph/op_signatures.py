"""Signatures of this project's ops, for graphs read without the op library.

TensorFlow knows an op only once its library is loaded. The rewriter needs no kernels, so it reads types and
statefulness from here when the registry has no entry. `tests` compare this table with the loaded library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tensorflow.core.framework import op_def_pb2, types_pb2

OP_TABLE = "MxRecTable"
OP_UNIQUE = "MxRecUnique"
OP_LOOK_AHEAD = "MxRecLookAhead"
OP_FIND_OR_INSERT = "MxRecFindOrInsert"
OP_FIND = "MxRecFind"
OP_GATHER = "MxRecGatherByAddress"
OP_OFFSETS = "MxRecOffsets"
OP_PREPARE_MANY = "MxRecPrepareMany"
OP_LOOK_UP_MANY = "MxRecLookUpMany"
OP_SUM_GRADIENTS_MANY = "MxRecSumGradientsMany"
OP_KEY_TIMES = "MxRecKeyTimes"
OP_FORWARD = "MxRecForward"
OP_POOL = "MxRecPool"
OP_CHECK_IDS = "MxRecCheckIds"
OP_CHECKPOINT_FOLDER = "MxRecCheckpointFolder"
OP_TABLE_CLEAR = "MxRecTableClear"
OP_TABLE_IMPORT = "MxRecTableImport"
OP_TABLE_RESTORE = "MxRecTableRestore"
OP_TABLE_SAVE = "MxRecTableSave"
OP_TABLE_SIZE = "MxRecTableSize"
OP_ROW_SPLITS = "MxRecRowSplits"


class Signature(NamedTuple):
    """One op, in the spelling of `REGISTER_OP`.

    `inputs` and `outputs` are "name: dtype" or "name: type attribute", "name: N * dtype" for N of them, and
    `attrs` are "name: kind [= default]";
    the default of a tensor is an empty one of the dtype named, that of a list is empty.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: tuple[str, ...] = ()
    stateful: bool = True


_HANDLE = "handle: resource"
_UPDATE_MANY = ("handles: N * resource", "addresses: N * int64", "gradients: N * float")

SIGNATURES: dict[str, Signature] = {
    OP_TABLE: Signature(
        (),
        (_HANDLE,),
        (
            "table_name: string",
            "dim: int",
            "initializer: string = constant",
            "initializer_a: float = 0",
            "initializer_b: float = 0",
            "initializer_scale: float = 1",
            "initializer_pool: tensor = float []",
            "seed: int = 0",
            "record_counts: bool = false",
            "fixed_capacity: int = 0",
            "padding_keys: list(int) = []",
            "access_threshold: int = -1",
            "eviction_threshold: int = -1",
            "record_times: bool = false",
            "use_lookup_clock: bool = false",
            "max_keys: int = 0",
            "evict_policy: string = lru",
            "shared_counts: string = ",
            "initial_rows: int = 0",
            "begun_by: string = ",
            "container: string = ",
            "shared_name: string = ",
        ),
    ),
    OP_UNIQUE: Signature(
        ("ids: Tids",),
        ("keys: int64", "restore: int32", "counts: int32"),
        ("Tids: type = int64",),
        stateful=False,
    ),
    OP_LOOK_AHEAD: Signature((_HANDLE, "keys: int64"), ("hints: int64",), ("reserve: bool = false",)),
    OP_FIND_OR_INSERT: Signature(
        (_HANDLE, "keys: int64", "hints: int64", "counts: int32", "timestamps: M * int64"),
        ("addresses: int64",),
        ("max_keys: int = 0", "coefficient: int = 1", "M: int = 0"),
    ),
    OP_FIND: Signature((_HANDLE, "keys: int64", "hints: int64"), ("addresses: int64",), ("max_keys: int = 0",)),
    OP_GATHER: Signature((_HANDLE, "addresses: int64", "default_row: float"), ("embeddings: float",), ("dim: int",)),
    OP_OFFSETS: Signature((_HANDLE, "rows: resource", "addresses: int64"), ("offsets: int64",)),
    "MxRecFreshRows": Signature((_HANDLE,), ("rows: float",), ("capacity: int", "dim: int")),
    "MxRecApplySgdByAddress": Signature(
        (_HANDLE, "addresses: int64", "gradients: float", "learning_rate: float"),
        (),
        ("weight_decay: float = 0",),
    ),
    "MxRecApplyAdagradByAddress": Signature(
        (_HANDLE, "addresses: int64", "gradients: float", "learning_rate: float"),
        (),
        ("initial_accumulator_value: float = 0.9", "epsilon: float = 1e-7", "root_epsilon: float = 0"),
    ),
    "MxRecApplyAdamByAddress": Signature(
        (
            _HANDLE,
            "addresses: int64",
            "gradients: float",
            "step_size: float",
            "beta1: float",
            "beta2: float",
            "epsilon: float",
        ),
        (),
    ),
    "MxRecApplyFtrlByAddress": Signature(
        (_HANDLE, "addresses: int64", "gradients: float", "learning_rate: float"),
        (),
        (
            "learning_rate_power: float = -0.5",
            "initial_accumulator_value: float = 0.1",
            "l1: float = 0",
            "l2: float = 0",
            "l2_shrinkage: float = 0",
        ),
    ),
    "MxRecApplyLazyAdamByAddress": Signature(
        (
            _HANDLE,
            "addresses: int64",
            "gradients: float",
            "learning_rate: float",
            "beta1: float",
            "beta2: float",
            "epsilon: float",
        ),
        (),
    ),
    "MxRecTrainedPositions": Signature((_HANDLE, "offsets: int64"), ("positions: int64",)),
    OP_PREPARE_MANY: Signature(
        ("handles: N * resource", "ids: N * Tids"),
        ("keys: N * int64", "restores: N * int32", "counts: N * int32", "hints: N * int64"),
        ("N: int", "Tids: type = int64", "reserve: bool = false"),
    ),
    OP_LOOK_UP_MANY: Signature(
        (
            "handles: N * resource",
            "keys: N * int64",
            "hints: N * int64",
            "counts: C * int32",
            "timestamps: M * int64",
            "default_rows: N * float",
            "restores: R * int32",
        ),
        ("addresses: N * int64", "embeddings: N * float", "restored: R * float"),
        (
            "N: int",
            "C: int",
            "R: int",
            "restore_of: list(int)",
            "dim: int",
            "max_keys: list(int) = []",
            "coefficients: list(int) = []",
            "M: int = 0",
        ),
    ),
    OP_SUM_GRADIENTS_MANY: Signature(
        ("gradients: N * float", "restores: N * int32", "keys: N * int64"),
        ("sums: N * float",),
        ("N: int", "dim: int"),
        stateful=False,
    ),
    OP_KEY_TIMES: Signature(
        ("keys: int64", "restore: int32", "timestamps: int64"), ("key_times: int64",), stateful=False
    ),
    OP_FORWARD: Signature(("tensor: T",), ("forwarded: T",), ("T: type",)),
    OP_ROW_SPLITS: Signature(("indices: int64", "num_rows: int64"), ("row_splits: int64",), stateful=False),
    OP_POOL: Signature(
        ("embeddings: float", "restore: int32", "row_splits: int64", "weights: W * float"),
        ("pooled: float",),
        ("W: int", "combiner: string"),
        stateful=False,
    ),
    "MxRecPoolGradient": Signature(
        ("gradients: float", "num_embeddings: int64", "restore: int32", "row_splits: int64", "weights: W * float"),
        ("sums: float",),
        ("W: int", "combiner: string"),
        stateful=False,
    ),
    "MxRecPoolWeightGradient": Signature(
        ("gradients: float", "embeddings: float", "restore: int32", "row_splits: int64", "weights: float"),
        ("weight_gradients: float",),
        ("combiner: string",),
        stateful=False,
    ),
    OP_TABLE_SAVE: Signature(
        (_HANDLE, "prefix: string", "variables: V * resource", "steps: S * resource"),
        ("manifest: string",),
        (
            "V: int",
            "S: int",
            "file_number: int",
            "key_dtype: string = int64",
            "optimizer: string = ",
            "slot_initials: list(float) = []",
        ),
    ),
    OP_CHECKPOINT_FOLDER: Signature(("prefix: string", "manifests: N * string"), (), ("N: int",)),
    OP_TABLE_RESTORE: Signature(
        (_HANDLE, "prefix: string", "manifest: string", "variables: V * resource", "steps: S * resource"),
        (),
        (
            "V: int",
            "S: int",
            "key_dtype: string = int64",
            "optimizer: string = ",
            "slot_initials: list(float) = []",
            "with_slots: bool = true",
            "part: int = 0",
            "parts: int = 1",
        ),
    ),
    "MxRecReadySlots": Signature(
        (_HANDLE, "slots: V * resource", "steps: S * resource"),
        (),
        ("V: int", "S: int", "slot_initials: list(float) = []"),
    ),
    OP_TABLE_SIZE: Signature((_HANDLE,), ("size: int64",)),
    "MxRecTableCapacity": Signature((_HANDLE,), ("capacity: int64",)),
    "MxRecEvict": Signature((_HANDLE, "threshold: int64"), ("evicted: int64", "evicted_candidates: int64")),
    "MxRecSetThreshold": Signature((_HANDLE, "threshold: int32"), ("in_force: int32",)),
    "MxRecResetSlots": Signature(
        (_HANDLE, "slots: N * resource", "offsets: int64"), (), ("N: int", "initial_values: list(float)")
    ),
    "MxRecTableHistory": Signature((_HANDLE,), ("keys: int64", "counts: int64", "times: int64", "has_row: bool")),
    OP_CHECK_IDS: Signature(
        ("ids: Tids",), ("checked: Tids",), ("rows: int", "variable: string", "Tids: type = int64"), stateful=False
    ),
    OP_TABLE_CLEAR: Signature((_HANDLE,), ()),
    OP_TABLE_IMPORT: Signature((_HANDLE, "keys: int64", "rows: float"), ()),
    "MxRecTableExport": Signature((_HANDLE,), ("keys: int64", "rows: float", "counts: int64")),
}


def _many(update: str) -> Signature:
    """The signature of the op that does the updates of several tables in one."""
    single = SIGNATURES[update]
    return Signature((*_UPDATE_MANY, *single.inputs[len(_UPDATE_MANY) :]), (), ("N: int", *single.attrs))


MANY_OF: dict[str, str] = {
    update: f"{update}Many"
    for update in (
        "MxRecApplyAdagradByAddress",
        "MxRecApplyAdamByAddress",
        "MxRecApplyFtrlByAddress",
        "MxRecApplyLazyAdamByAddress",
        "MxRecApplySgdByAddress",
    )
}
"""The op for several tables by the op for one."""

SIGNATURES.update({many: _many(update) for update, many in MANY_OF.items()})


def signature_op_def(op: str) -> Any | None:
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
    arg.number_attr, _, kind = kind.rpartition(" * ")
    if kind[0].isupper():
        arg.type_attr = kind
    else:
        arg.type = types_pb2.DataType.Value(f"DT_{kind.upper()}")


def _fill_attr(attr: Any, text: str) -> None:
    attr.name, _, rest = text.partition(": ")
    attr.type, separator, default = rest.partition(" = ")
    if separator:
        _DEFAULTS[attr.type](attr.default_value, default)


def _set_type(value: Any, text: str) -> None:
    value.type = types_pb2.DataType.Value(f"DT_{text.upper()}")


def _set_scalar_tensor_type(value: Any, text: str) -> None:
    dtype, _ = text.split()
    value.tensor.dtype = types_pb2.DataType.Value(f"DT_{dtype.upper()}")
    value.tensor.tensor_shape.SetInParent()


def _set_bool(value: Any, text: str) -> None:
    value.b = text == "true"


def _set_int(value: Any, text: str) -> None:
    value.i = int(text)


def _set_float(value: Any, text: str) -> None:
    value.f = float(text)


def _set_empty_list(value: Any, text: str) -> None:
    assert text == "[]", text
    value.list.SetInParent()


def _set_string(value: Any, text: str) -> None:
    value.s = text.encode()


_DEFAULTS: dict[str, Callable[[Any, str], None]] = {
    "type": _set_type,
    "tensor": _set_scalar_tensor_type,
    "bool": _set_bool,
    "int": _set_int,
    "float": _set_float,
    "string": _set_string,
    "list(int)": _set_empty_list,
    "list(float)": _set_empty_list,
}
