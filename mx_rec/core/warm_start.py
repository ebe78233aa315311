"""Starting a model from what others have learned: tables and dense variables of checkpoints."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from mx_rec.checkpoint.manifest import Manifest
from mx_rec.checkpoint.saved_tables import SavedTable, read_saved_tables
from mx_rec.core import graph_state
from mx_rec.core.saveable import restore_op, table_saveables
from mx_rec.core.table import EmbeddingTable
from mx_rec.ops.saveables import TableSaveable
from mx_rec.util.log import logger

tf1 = tf.compat.v1
_EVERYTHING = ".*"
_OPTIMIZER_OF = re.compile(r"MxRecApply(\w+?)ByAddress(Many)?")
_WITHOUT_SLOTS = "Sgd"
_ACCUMULATOR = "initial_accumulator_value"


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """What to take from one checkpoint; see `warm_start`.

    Attributes:
        checkpoint: its prefix.
        variables: a regex, a table name, a list of them or of variables and tables, or None.
        vocabularies: `VocabInfo` by variable name.
        previous_names: of tables and variables in the checkpoint, by name here.
    """

    checkpoint: str
    variables: Any
    vocabularies: Mapping[str, Any]
    previous_names: Mapping[str, str]


def warm_start(warm_start_from: Any) -> list[tf.Operation]:
    """Has the default graph start from checkpoints, once its tables, variables and optimizers are there.

    Dense variables get other initializers, as by `tf.compat.v1.train.warm_start`. Tables are filled by the operations
    that it returns: run them after the initializers, and not after a checkpoint was restored.

    What is named: a string that is the name of a table means that table; any other is a regex, which tables match as a
    whole, and which chooses dense variables as TensorFlow does: trainable ones if it stands alone, all global ones if
    it stands in a list. A list may also hold variables and tables. None chooses nothing but the variables of
    `var_name_to_vocab_info`. The default `.*` is all tables and all trainable variables.

    A table takes keys, rows and counts. It takes optimizer slots too if the same kind of optimizer trains it here;
    otherwise its slots begin anew, as do those of dense variables that are not named one by one.

    Args:
        warm_start_from: the path of a checkpoint, of a directory (its latest checkpoint) or of a SavedModel, then all
            is taken; or a `tf.estimator.WarmStartSettings`. Its `ckpt_to_initialize_from` may be a list of paths; they
            are applied in order, and for what several name the last one counts. Each other field then is one value for
            all of them, or a list of as many. `var_name_to_prev_var_name` maps names of tables too.

    Returns:
        One operation per table that is filled.

    Raises:
        TypeError, ValueError: a field is not as said; a name or regex chooses nothing; a checkpoint is missing or lacks
            a table; or a saved table has another dim or key_dtype. The message names it.
    """
    graph = tf1.get_default_graph()
    sources: dict[str, tuple[EmbeddingTable, SavedTable]] = {}
    for setting in settings_of(warm_start_from):
        tables, dense = _chosen(setting, graph)
        _check_names(setting, graph, tables)
        for table in tables:
            sources[table.table_name] = (table, _saved(setting, table))
        if dense is None or dense or (setting.variables is None and setting.vocabularies):
            known = {name: value for name, value in setting.previous_names.items() if name not in _tables(graph)}
            tf1.train.warm_start(
                setting.checkpoint,
                vars_to_warm_start=dense,
                var_name_to_vocab_info=dict(setting.vocabularies) or None,
                var_name_to_prev_var_name=known or None,
            )
    return [_fill(*source) for source in sources.values()]


def settings_of(warm_start_from: Any) -> list[WarmStart]:
    """One `WarmStart` per checkpoint, in order; raises as `warm_start`."""
    if isinstance(warm_start_from, (str, bytes, os.PathLike)):
        return [WarmStart(_checkpoint(warm_start_from), _EVERYTHING, {}, {})]
    try:
        paths = warm_start_from.ckpt_to_initialize_from
        fields = {
            "vars_to_warm_start": warm_start_from.vars_to_warm_start,
            "var_name_to_vocab_info": warm_start_from.var_name_to_vocab_info,
            "var_name_to_prev_var_name": warm_start_from.var_name_to_prev_var_name,
        }
    except AttributeError:
        raise ValueError(
            f"warm_start_from must be a path or a WarmStartSettings, got {type(warm_start_from).__name__}"
        ) from None
    is_list = isinstance(paths, (list, tuple))
    checkpoints = list(paths) if is_list else [paths]
    if not checkpoints:
        raise ValueError("ckpt_to_initialize_from must name at least one checkpoint, got an empty list")
    columns = [_per_checkpoint(name, value, len(checkpoints), is_list) for name, value in fields.items()]
    return [
        WarmStart(
            _checkpoint(path),
            variables,
            _mapping("var_name_to_vocab_info", vocabularies),
            _mapping("var_name_to_prev_var_name", previous_names),
        )
        for path, variables, vocabularies, previous_names in zip(checkpoints, *columns)
    ]


def _per_checkpoint(name: str, value: Any, count: int, is_list: bool) -> list[Any]:
    if not is_list or not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise ValueError(
            f"{name} must be one value, or one per checkpoint: {count} checkpoints, but {len(value)} values"
        )
    return list(value)


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a dict by name, or a list of dicts, got {type(value).__name__}")
    return value


def _checkpoint(path: Any) -> str:
    """The prefix that a path means."""
    if not isinstance(path, (str, bytes, os.PathLike)) or not os.fspath(path):
        raise TypeError(f"ckpt_to_initialize_from must be a path, got {path!r}")
    prefix = tf.compat.as_str(os.fspath(path))
    in_saved_model = os.path.join(prefix, "variables", "variables")
    if tf.io.gfile.exists(f"{in_saved_model}.index"):
        return in_saved_model
    if tf.io.gfile.isdir(prefix):
        latest = tf.train.latest_checkpoint(prefix)
        if latest is None:
            raise ValueError(
                f"warm start: the directory '{prefix}' holds no checkpoint (no file 'checkpoint' names one)"
            )
        return latest
    if not tf.io.gfile.exists(f"{prefix}.index"):
        raise ValueError(f"warm start: no checkpoint '{prefix}' (there is no '{prefix}.index')")
    return prefix


def _tables(graph: tf.Graph) -> dict[str, EmbeddingTable]:
    return graph_state.state_of(graph).tables


def _chosen(setting: WarmStart, graph: tf.Graph) -> tuple[list[EmbeddingTable], Optional[list[Any]]]:
    """The tables, and the dense variables as TensorFlow takes them."""
    if setting.variables is None:
        return [], None
    if isinstance(setting.variables, str):
        return _named(setting, setting.variables, tf1.GraphKeys.TRAINABLE_VARIABLES, graph)
    if not isinstance(setting.variables, (list, tuple)):
        raise TypeError(
            "vars_to_warm_start must be a string, a list of strings, variables or tables, or None, got "
            f"{type(setting.variables).__name__}"
        )
    tables: dict[str, EmbeddingTable] = {}
    dense: dict[int, Any] = {}
    for member in setting.variables:
        found, variables = _of_member(setting, member, graph)
        tables.update({table.table_name: table for table in found})
        dense.update({id(variable): variable for variable in variables})
    return list(tables.values()), list(dense.values())


def _of_member(setting: WarmStart, member: Any, graph: tf.Graph) -> tuple[list[EmbeddingTable], list[Any]]:
    if isinstance(member, str):
        return _named(setting, member, tf1.GraphKeys.GLOBAL_VARIABLES, graph)
    if isinstance(member, EmbeddingTable):
        return [member], []
    if not isinstance(member, tf.Variable):
        raise TypeError(f"vars_to_warm_start must list strings, variables or tables, got {type(member).__name__}")
    table = graph_state.table_of_variable(member)
    return ([], [member]) if table is None else ([table], [])


def _named(setting: WarmStart, name: str, collection: str, graph: tf.Graph) -> tuple[list[EmbeddingTable], list[Any]]:
    tables = _tables(graph)
    if name in tables:
        return [tables[name]], []
    try:
        matched = [table for table in tables.values() if re.fullmatch(name, table.table_name) and table.is_save]
        dense = graph.get_collection(collection, scope=name)
    except re.error as error:
        raise ValueError(f"vars_to_warm_start: {name!r} is no regex: {error}") from error
    if not matched and not dense:
        variables = [variable.op.name for variable in graph.get_collection(collection)]
        raise ValueError(
            f"warm start from '{setting.checkpoint}': {name!r} names no table and no variable; the tables are "
            f"{_list(tables)}, the variables {_list(variables)}"
        )
    logger.info(
        "warm start from '%s': %r means tables %s and variables %s",
        setting.checkpoint,
        name,
        _list(table.table_name for table in matched),
        _list(variable.op.name for variable in dense),
    )
    return matched, dense


def _check_names(setting: WarmStart, graph: tf.Graph, chosen: Sequence[EmbeddingTable]) -> None:
    """Refuses mappings of what is not there; TensorFlow would only log them."""
    tables = _tables(graph)
    known = {variable.op.name.split("/part_")[0] for variable in tf1.global_variables()}
    for name in [*setting.previous_names, *setting.vocabularies]:
        if name not in tables and name not in known:
            raise ValueError(
                f"warm start from '{setting.checkpoint}': {name!r} is mapped, but is no table ({_list(tables)}) and no "
                f"variable ({_list(sorted(known))})"
            )
    for name in setting.vocabularies:
        if name in tables:
            raise ValueError(f"warm start: table {name!r} needs no var_name_to_vocab_info: its keys are ids")
    names = {table.table_name for table in chosen}
    for name in setting.previous_names:
        if name in tables and name not in names:
            raise ValueError(
                f"warm start from '{setting.checkpoint}': table {name!r} is mapped to "
                f"{setting.previous_names[name]!r}, but vars_to_warm_start does not name it"
            )


def _list(names: Any) -> str:
    return ", ".join(map(repr, names)) or "none"


def _saved(setting: WarmStart, table: EmbeddingTable) -> SavedTable:
    """The saved table that a table begins with."""
    if not table.is_save:
        raise ValueError(
            f"warm start: table {table.table_name!r} was made with is_save=False, so checkpoints have none"
        )
    name = setting.previous_names.get(table.table_name, table.table_name)
    tables = read_saved_tables(setting.checkpoint)
    if name not in tables:
        raise ValueError(
            f"warm start: the checkpoint '{setting.checkpoint}' has no table {name!r}; its tables are {_list(tables)}"
        )
    saved = tables[name]
    for what, expected, got in (
        ("dim", table.dim, saved.manifest.dim),
        ("key_dtype", table.key_dtype.name, saved.manifest.key_dtype),
    ):
        if expected != got:
            raise ValueError(
                f"warm start: table {table.table_name!r} has {what} {expected}, but table {name!r} of "
                f"'{setting.checkpoint}' has {got}"
            )
    return saved


def _fill(table: EmbeddingTable, saved: SavedTable) -> tf.Operation:
    graph = table.handle.graph
    saveable = next(member for member in table_saveables(graph) if member.parts.table_name == table.table_name)
    with_slots = _takes_slots(saveable, table, saved.manifest)
    logger.info(
        "warm start: table %r begins with the %d keys of table %r of '%s'%s",
        table.table_name,
        saved.manifest.size,
        saved.name,
        saved.prefix,
        f", slots of {saved.manifest.optimizer} included" if with_slots and saved.manifest.optimizer else "",
    )
    with tf1.name_scope(None), tf.control_dependencies(None):
        prefix, text = tf.constant(saved.prefix), tf.constant(saved.text)
        return restore_op(graph, saveable.parts, prefix, text, with_slots)


def _takes_slots(saveable: TableSaveable, table: EmbeddingTable, manifest: Manifest) -> bool:
    """Whether the table is trained here by an optimizer whose slots are like those that were saved."""
    if table.variable is not None:
        parts = saveable.parts
        return (parts.optimizer, parts.slot_initials) == (manifest.optimizer, manifest.slot_initials)
    kinds = set()
    for operation in table.handle.consumers():
        match = _OPTIMIZER_OF.fullmatch(operation.type)
        if match is None or match.group(1) == _WITHOUT_SLOTS:
            continue
        kinds.add(match.group(1))
        if _ACCUMULATOR in operation.node_def.attr:
            initial = np.float32(operation.get_attr(_ACCUMULATOR))
            if not manifest.slot_initials or initial != np.float32(manifest.slot_initials[0]):
                return False
    return kinds == ({manifest.optimizer} if manifest.optimizer else set())
