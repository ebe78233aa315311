"""Finds, checks and loads the op library."""

from __future__ import annotations

import functools
import json
import os
import pathlib
from types import ModuleType

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from mx_rec.errors import LibraryNotLoadedError

LIBRARY_ENV = "MX_REC_LIBRARY"
_LIBRARY_NAME = "libmxrec_ops.so"
_NOT_DIFFERENTIABLE = (
    "MxRecApplyAdagradByAddress",
    "MxRecApplyAdagradByAddressMany",
    "MxRecApplyAdamByAddress",
    "MxRecApplyAdamByAddressMany",
    "MxRecApplyFtrlByAddress",
    "MxRecApplyFtrlByAddressMany",
    "MxRecApplyLazyAdamByAddress",
    "MxRecApplyLazyAdamByAddressMany",
    "MxRecApplySgdByAddress",
    "MxRecApplySgdByAddressMany",
    "MxRecCheckIds",
    "MxRecCheckpointFolder",
    "MxRecEvict",
    "MxRecFind",
    "MxRecFindOrInsert",
    "MxRecForward",
    "MxRecFreshRows",
    # Rows are trained by address, not by differentiating through the table.
    "MxRecGatherByAddress",
    "MxRecKeyTimes",
    "MxRecLookAhead",
    "MxRecLookUpMany",
    "MxRecOffsets",
    "MxRecPrepareMany",
    "MxRecReadySlots",
    "MxRecResetSlots",
    "MxRecRowSplits",
    "MxRecSetThreshold",
    "MxRecTable",
    "MxRecTableCapacity",
    "MxRecTableClear",
    "MxRecTableExport",
    "MxRecTableHistory",
    "MxRecTableImport",
    "MxRecTableRestore",
    "MxRecTableSave",
    "MxRecTableSize",
    "MxRecTrainedPositions",
    "MxRecUnique",
)


def library_path() -> pathlib.Path:
    """Where the op library is expected; `MX_REC_LIBRARY` overrides it."""
    override = os.environ.get(LIBRARY_ENV)
    if override:
        return pathlib.Path(override)
    return pathlib.Path(__file__).parent / "lib" / _LIBRARY_NAME


@functools.lru_cache(maxsize=1)
def load_library() -> ModuleType:
    """Loads the op library once.

    Returns:
        The module of generated op functions.

    Raises:
        LibraryNotLoadedError: the library is missing, or was built for another TensorFlow minor
            version. The message names the command that builds it.
    """
    path = library_path()
    if not path.exists():
        raise LibraryNotLoadedError(f"no op library at {path}; build it with: {_rebuild_command()}")
    built_for = _built_for(path)
    if _minor(built_for) != _minor(tf.__version__):
        raise LibraryNotLoadedError(
            f"the op library {path} was built for TensorFlow {built_for}, but this is TensorFlow "
            f"{tf.__version__}; a library is good for one minor version only. "
            f"Rebuild it with: {_rebuild_command()}"
        )
    try:
        module = tf.load_op_library(str(path))
    except tf.errors.NotFoundError as error:
        raise LibraryNotLoadedError(
            f"the op library {path} does not load in TensorFlow {tf.__version__}: {error}. "
            f"Rebuild it with: {_rebuild_command()}"
        ) from error
    for op_type in _NOT_DIFFERENTIABLE:
        tf_ops.NotDifferentiable(op_type)
    # Imported late: it makes ops, which ask for this library.
    from mx_rec.ops.saveables import register_saveables

    register_saveables()
    return module


def _built_for(path: pathlib.Path) -> str:
    """The TensorFlow version recorded beside the library."""
    record = path.with_name("mxrec_ops.json")
    try:
        return str(json.loads(record.read_text())["tensorflow"])
    except (OSError, ValueError, KeyError) as error:
        raise LibraryNotLoadedError(
            f"cannot read {record}, which records the TensorFlow version of the op library: {error}. "
            f"Rebuild it with: {_rebuild_command()}"
        ) from error


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def _rebuild_command() -> str:
    return (
        f"make TF={tf.__version__} build   (or, in this environment, from a checkout: "
        "pip install --no-build-isolation --force-reinstall --no-deps .)"
    )
