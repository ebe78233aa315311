"""A SavedModel with tables, written anew with the ops of TensorFlow alone."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Union

import numpy as np
import tensorflow as tf

from mx_rec import ops
from mx_rec.errors import GraphFileError, GraphRewriteError
from mx_rec.graph.freezing import FrozenGraph, FrozenTable, freeze_graph
from mx_rec.graph.saved_models import copy_assets
from mx_rec.saved_model.load import NOTICE
from mx_rec.tf_compat import load_into_session

tf1 = tf.compat.v1

_INIT = "__saved_model_init_op"
_NO_SIGNATURES = (_INIT, "__saved_model_train_op")
_MAIN_OPS = ("saved_model_main_op", "legacy_init_op")
_KEYS_AT_A_TIME = 1 << 18


@dataclasses.dataclass(frozen=True)
class FrozenTableSize:
    """What a frozen table holds.

    Attributes:
        table_name: its name.
        keys: keys that a lookup finds.
        dim: columns of an embedding.
    """

    table_name: str
    keys: int
    dim: int


@dataclasses.dataclass(frozen=True)
class _Values:
    """Content of a table: keys int64 [n], positions int64 [n], rows float32 [n + 1, dim] or None."""

    keys: np.ndarray
    positions: np.ndarray
    rows: Union[np.ndarray, None]


@dataclasses.dataclass(frozen=True)
class _Model:
    """A SavedModel as loaded: what the frozen one is made of."""

    frozen: FrozenGraph
    main_ops: list[str]
    signatures: dict[str, Any]
    variables: dict[str, np.ndarray]  # by the node whose place a handle takes
    tables: dict[str, _Values]


def freeze_saved_model(
    source: Union[str, bytes, os.PathLike],
    target: Union[str, bytes, os.PathLike],
    tags: Sequence[str] = (tf.saved_model.SERVING,),
) -> list[FrozenTableSize]:
    """Writes a SavedModel that predicts the same without the op library.

    Tables become a hash table of TensorFlow from keys to positions and a variable of their rows; both are in the
    checkpoint of the new SavedModel. Signatures and assets stay what they are; variables get longer names and are
    resource variables, also those that were reference variables. A pooled lookup is equal to rounding, all else bit
    for bit. Optimizer slots, counts and all that the signatures do not need are left out.

    Args:
        source: directory of a SavedModel whose lookups are those of evaluation.
        target: directory to write, which must not exist or be empty.
        tags: of the graph to freeze.

    Returns:
        The tables, by name.

    Raises:
        LibraryNotLoadedError: the op library, which reads the tables, is missing.
        GraphFileError: `source` is no SavedModel with these tags, or `target` cannot be written.
        GraphRewriteError: the model holds an op that cannot be frozen; the message names the node.
    """
    ops.load_library()
    model_directory, directory = Path(os.fsdecode(source)), Path(os.fsdecode(target))
    _check_target(directory)
    model = _load(str(model_directory), list(tags))
    directory.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        written = scratch / "model"
        _write(model, str(written), list(tags))
        copy_assets(model_directory, written, without=(NOTICE,))
        if directory.exists():
            directory.rmdir()
        written.rename(directory)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return sorted(
        (
            FrozenTableSize(table.table_name, len(model.tables[table.handle].keys), table.dim)
            for table in model.frozen.tables
        ),
        key=lambda size: size.table_name,
    )


def _check_target(directory: Path) -> None:
    if directory.is_dir() and not any(directory.iterdir()):
        return
    if directory.exists() or directory.is_symlink():
        raise GraphFileError(f"'{directory}' exists; give a new directory")


def _load(source: str, tags: list[str]) -> _Model:
    with tf.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
        try:
            meta = load_into_session(session, tags, source)
        except (OSError, RuntimeError) as error:
            raise GraphFileError(f"'{source}' cannot be loaded as a SavedModel with tags {tags}: {error}") from error
        signatures = {name: value for name, value in meta.signature_def.items() if name not in _NO_SIGNATURES}
        main_ops = list(dict.fromkeys(_main_ops(graph, meta)))
        outputs = [_node(info.name) for value in signatures.values() for info in value.outputs.values()]
        inputs = [_node(info.name) for value in signatures.values() for info in value.inputs.values()]
        if not outputs:
            raise GraphFileError(f"'{source}' has no signature with an output, so nothing could be served from it")
        frozen = freeze_graph(graph.as_graph_def(), [*dict.fromkeys([*outputs, *inputs, *main_ops])])
        # Tables first: the rows of one of fixed capacity get values when they are first used.
        tables = {table.handle: _read_table(session, graph, table) for table in frozen.tables}
        variables = _read_variables(session, frozen)
    return _Model(frozen, main_ops, signatures, variables, tables)


def _main_ops(graph: tf.Graph, meta: Any) -> Iterator[str]:
    """Names of the ops that a server runs after it has loaded the model."""
    for collection in _MAIN_OPS:
        yield from (member.name for member in graph.get_collection(collection) if member is not None)
    if _INIT in meta.signature_def:
        yield from (_node(info.name) for info in meta.signature_def[_INIT].outputs.values())


def _node(tensor_name: str) -> str:
    return tensor_name.split(":")[0]


def _read_variables(session: tf.compat.v1.Session, frozen: FrozenGraph) -> dict[str, np.ndarray]:
    values = {}
    for variable in frozen.variables:
        operation = session.graph.get_operation_by_name(variable.name)
        value = operation.outputs[0]
        if value.dtype == tf.resource:
            value = tf.raw_ops.ReadVariableOp(resource=value, dtype=operation.get_attr("dtype"))
        try:
            values[variable.handle] = session.run(value)
        except tf.errors.FailedPreconditionError as error:
            raise GraphRewriteError(
                f"variable {variable.name!r} has no value in the SavedModel, but its graph reads it"
            ) from error
    return values


def _read_table(session: tf.compat.v1.Session, graph: tf.Graph, table: FrozenTable) -> _Values:
    """The content as lookups see it: keys that have no row for them are left out."""
    handle = graph.get_operation_by_name(table.handle).outputs[0]
    batch = tf1.placeholder(tf.int64, [None])
    addresses = ops.find(handle, batch)
    fetches = {"addresses": addresses}
    if table.rows is None:
        fetches["positions"] = ops.offsets(handle, _rows_variable(graph, handle), addresses) + 1
    else:
        fetches["rows"] = ops.gather_by_address(handle, addresses, table.dim)
    keys = session.run(ops.table_export(handle).keys)
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ("keys", "positions", "rows")}
    for start in range(0, max(1, len(keys)), _KEYS_AT_A_TIME):
        some = keys[start : start + _KEYS_AT_A_TIME]
        found = session.run(fetches, {batch: some})
        has_row = found.pop("addresses") != 0
        parts["keys"].append(some[has_row])
        for name, values in found.items():
            parts[name].append(values[has_row])
    present = np.concatenate([np.zeros([0], np.int64), *parts["keys"]])
    if table.rows is None:
        return _Values(present, np.concatenate([np.zeros([0], np.int64), *parts["positions"]]), None)
    rows = np.concatenate([np.zeros([1, table.dim], np.float32), *parts["rows"]])
    return _Values(present, np.arange(1, len(present) + 1, dtype=np.int64), rows)


def _rows_variable(graph: tf.Graph, handle: tf.Tensor) -> tf.Tensor:
    """The variable of a table of fixed capacity."""
    offsets = next(op for op in handle.consumers() if op.type == "MxRecOffsets")
    return offsets.inputs[1]


def _not_empty(content: _Values) -> _Values:
    """A hash table of TensorFlow must have a key: one that leads to position 0 is as good as missing."""
    if len(content.keys):
        return content
    return dataclasses.replace(content, keys=np.zeros([1], np.int64), positions=np.zeros([1], np.int64))


def _write(model: _Model, directory: str, tags: list[str]) -> None:
    with tf.Graph().as_default() as graph:
        given: dict[str, tf.Tensor] = {}
        values: list[tuple[tf.Variable, np.ndarray]] = []
        with tf1.name_scope(_free_scope(model)):  # what is imported keeps the names that signatures and main ops know
            starts = _add_content(model, given, values)
        tf.import_graph_def(model.frozen.graph_def, input_map=given, name="")
        starts.extend(graph.get_operation_by_name(name) for name in model.main_ops)
        main_op = tf.group(*starts)
        with tf1.Session(graph=graph) as session:
            for made, value in values:
                session.run(made.initializer, {made.initializer.inputs[1]: value})
            builder = tf1.saved_model.Builder(directory)
            builder.add_meta_graph_and_variables(session, tags, signature_def_map=model.signatures, main_op=main_op)
            builder.save()


def _free_scope(model: _Model) -> str:
    taken = {node.name.split("/")[0].lower() for node in model.frozen.graph_def.node}
    scope, count = "mx_rec_frozen", 0
    while scope in taken:
        count += 1
        scope = f"mx_rec_frozen_{count}"
    return scope


def _add_content(
    model: _Model, given: dict[str, tf.Tensor], values: list[tuple[tf.Variable, np.ndarray]]
) -> list[tf.Operation]:
    """Adds variables and hash tables to the default graph.

    Args:
        model: whose they are.
        given: gets the tensors that the frozen graph is to read, by the names it has for them.
        values: gets the variables with their values.

    Returns:
        What fills the hash tables.
    """

    def variable(name: str, value: np.ndarray) -> tf.Variable:
        initial = tf1.placeholder(value.dtype, value.shape)
        made = tf1.Variable(initial, name=name, trainable=False, use_resource=True)
        values.append((made, value))
        return made

    for name, value in model.variables.items():
        given[f"{name}:0"] = variable(name, value).handle
    for table in model.frozen.tables:
        content = _not_empty(model.tables[table.handle])
        scope = f"tables/{table.table_name}"
        if table.rows is not None and content.rows is not None:
            given[f"{table.rows}:0"] = variable(f"{scope}/rows", content.rows).handle
        keys = variable(f"{scope}/keys", content.keys).read_value()
        positions = variable(f"{scope}/positions", content.positions).read_value()
        index = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(keys, positions), default_value=0, name=f"{scope}/index"
        )
        given[f"{table.index}:0"] = index.resource_handle
    return tf1.get_collection(tf1.GraphKeys.TABLE_INITIALIZERS)
