"""Eviction and thresholds while a model is trained."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from mx_rec import ops
from mx_rec.constants.constants import MAX_INT32
from mx_rec.core import graph_state
from mx_rec.core.admission import evicts_by_time
from mx_rec.core.imported import lookup_names, state_with_tables
from mx_rec.core.table import EmbeddingTable
from mx_rec.core.timestamps import connect_timestamps
from mx_rec.util.initialize import ConfigInitializer
from mx_rec.util.log import logger
from mx_rec.util.validate import check_bool, check_int, check_optional_int, check_string


def evict(session: Any = None, table_names: Optional[Sequence[str]] = None) -> dict[str, int]:
    """Evicts keys that were not seen for the `eviction_threshold` of their table.

    A key goes if the newest timestamp that its table has seen is at least the threshold later than the timestamp it was
    last seen with; no clock of the machine has a say. It loses its row, the optimizer's slots, its count: seen again,
    it starts anew. Keys that were never admitted go too. Training may go on meanwhile, in other threads.

    Args:
        session: of the graph with the tables, also a MonitoredSession. If None, the tables are those of the default
            graph (or of the graph rewritten last), and of each the newest live one of its name.
        table_names: of tables with an eviction_threshold; all of them if None.

    Returns:
        How many keys lost their rows, by table; without a session a table that no session has made yet is left out.

    Raises:
        EnvironmentError: before `init`.
        ValueError: the graph has no such table, or the table has no eviction_threshold or a lookup of it no timestamp.
    """
    ConfigInitializer.get_instance()
    graph = tf.compat.v1.get_default_graph() if session is None else session.graph
    state = state_with_tables(graph)
    if session is None and not state.tables:
        state = graph_state.modified_state() or state
    tables = _evicting(state, table_names)
    if session is not None:
        _check_timestamps(state, tables)
        return {name: table.evict(session) for name, table in tables.items()}
    counts = {name: ops.evict_from_table(name) for name in tables}
    return {name: count for name, count in counts.items() if count is not None}


class EvictHook(tf.compat.v1.train.SessionRunHook):
    """Evicts by time and by step while a model is trained; see `evict`.

    It does nothing where there are no training lookups of a table with an `eviction_threshold`, such as in an
    evaluation.

    Args:
        evict_enable: whether it evicts at all.
        evict_time_interval: 1..2147483647, seconds of the machine's clock between evictions.
        evict_step_interval: 1..2147483647, evict also when the global step passes a multiple of it; None: by time only.

    Raises:
        TypeError, ValueError: a parameter is not as said above.
    """

    def __init__(
        self,
        evict_enable: bool = False,
        evict_time_interval: int = 86400,
        evict_step_interval: Optional[int] = None,
    ) -> None:
        check_bool("evict_enable", evict_enable)
        self._is_enabled = evict_enable
        self._seconds = check_int("evict_time_interval", evict_time_interval, 1, MAX_INT32)
        self._steps = check_optional_int("evict_step_interval", evict_step_interval, 1, MAX_INT32)
        self._tables: dict[str, EmbeddingTable] = {}
        self._global_step: Optional[tf.Tensor] = None
        self._last_time = 0.0
        self._last_multiple: Optional[int] = None

    def begin(self) -> None:
        """Prepares the default graph.

        Raises:
            EnvironmentError: before `init`.
            ValueError: a lookup of a table with an eviction_threshold has no timestamp; or the graph has no global step
                and `evict_step_interval` is given.
        """
        ConfigInitializer.get_instance()
        self._tables = {}
        if not self._is_enabled:
            return
        graph = tf.compat.v1.get_default_graph()
        self._tables = _evicting(state_with_tables(graph), None)
        if not self._tables:
            logger.info("EvictHook: the graph trains no table with an eviction_threshold, so nothing is evicted")
            return
        connect_timestamps(graph)
        if self._steps is None:
            return
        self._global_step = tf.compat.v1.train.get_global_step(graph)
        if self._global_step is None:
            raise ValueError(
                f"evict_step_interval={self._steps} needs a global step: create it with "
                "tf.compat.v1.train.get_or_create_global_step() and let the optimizer advance it"
            )

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Begins to count seconds and steps."""
        self._last_time = time.monotonic()
        if self._tables and self._steps is not None:
            self._last_multiple = int(session.run(self._global_step)) // self._steps

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Evicts if it is time to."""
        if self._tables and (self._is_step(run_context.session) or self._is_time()):
            self._last_time = time.monotonic()
            counts = {name: table.evict(run_context.session) for name, table in self._tables.items()}
            logger.info("evicted keys: %s", ", ".join(f"{name}: {count}" for name, count in counts.items()))

    def _is_time(self) -> bool:
        return time.monotonic() - self._last_time >= self._seconds

    def _is_step(self, session: Any) -> bool:
        """Whether the global step has passed a multiple of the interval since it was asked last."""
        if self._steps is None:
            return False
        before, self._last_multiple = self._last_multiple, int(session.run(self._global_step)) // self._steps
        return before is not None and self._last_multiple > before


def set_threshold(tensor: Any, emb_name: str = "", ids_name: str = "", name: Optional[str] = None) -> tf.Tensor:
    """An op that changes the threshold of admission while a model is trained.

    Args:
        tensor: int32, of which the first element is taken when the op runs: 0 lets counts stay as they are, under the
            threshold of before; greater: the new threshold, and counting goes on. Keys that have a row keep it.
        emb_name: of the table; empty: all tables of the default graph that have an access_threshold.
        ids_name: of a lookup of the table or of its FeatureSpec, or empty. A key has one count in its table, so it only
            has to be right.
        name: of the node.

    Returns:
        int32 scalar: the threshold then in force; of several tables the greatest. Without any table with an
        access_threshold the op does nothing and gives the first element back.

    Raises:
        EnvironmentError: before `init`.
        ValueError: there is no such table or lookup (the message lists what there is), or the table has no
            access_threshold.
        tf.errors.InvalidArgumentError: at run time, for a negative threshold; names the table.
    """
    ConfigInitializer.get_instance()
    threshold = tf.convert_to_tensor(tensor, tf.int32)
    state = state_with_tables(tf.compat.v1.get_default_graph())
    check_string("emb_name", emb_name, 0, 255)
    check_string("ids_name", ids_name, 0, 255)
    admitting = [table for known, table in state.tables.items() if _access_threshold(state, known) is not None]
    if emb_name:
        if emb_name not in state.tables:
            raise ValueError(f"emb_name: the graph has no table {emb_name!r}; it has {_listed(state.tables)}")
        if state.tables[emb_name] not in admitting:
            raise ValueError(
                f"table {emb_name!r} has no admission: give its training lookups an access_threshold first, 0 or more"
            )
        admitting = [state.tables[emb_name]]
    if ids_name:
        _check_ids_name(state, emb_name, ids_name)
    with tf.compat.v1.name_scope(name, "set_threshold"):
        if not admitting:
            return tf.reshape(threshold, [-1])[0]
        in_force = [ops.set_threshold(table.handle, threshold) for table in admitting]
        return in_force[0] if len(in_force) == 1 else tf.reduce_max(tf.stack(in_force))


def _evicting(state: graph_state.GraphState, names: Optional[Sequence[str]]) -> dict[str, EmbeddingTable]:
    """The tables to evict from, by name."""
    if names is None:
        return {name: table for name, table in state.tables.items() if evicts_by_time(state, table)}
    if isinstance(names, str):
        raise TypeError(f"table_names must be a list of names or None, got {names!r}")
    for name in names:
        if name not in state.tables:
            raise ValueError(f"table_names: the graph has no table {name!r}; it has {_listed(state.tables)}")
        if not evicts_by_time(state, state.tables[name]):
            raise ValueError(f"table {name!r} has no eviction_threshold: give one to its training lookups")
    return {name: state.tables[name] for name in names}


def _check_timestamps(state: graph_state.GraphState, tables: dict[str, EmbeddingTable]) -> None:
    for name in state.timeless:
        table = state.lookups[name].table_name
        if table in tables:
            raise ValueError(
                f"table {table!r}: lookup {name!r} has no timestamp, so nothing of the table grows old; let one join "
                "ASCEND_TIMESTAMP before sparse_lookup or the rewrite, or name one by FeatureSpec(is_timestamp=True)"
            )


def _check_ids_name(state: graph_state.GraphState, emb_name: str, ids_name: str) -> None:
    known: dict[str, None] = {}
    for record in state.lookups.values():
        if record.table_name == emb_name or not emb_name:
            known[record.name] = None
            if record.feature is not None:
                known[record.feature.name] = None
    if not state.lookups:
        tables = [state.tables[emb_name]] if emb_name else state.tables.values()
        known.update((name, None) for table in tables for name in lookup_names(table))
    if ids_name not in known:
        of_table = f" of table {emb_name!r}" if emb_name else ""
        raise ValueError(f"ids_name: there is no lookup {ids_name!r}{of_table}; there are {_listed(known)}")


def _access_threshold(state: graph_state.GraphState, table_name: str) -> Optional[int]:
    known = state.admission.get(table_name)
    return None if known is None else known[1].access_threshold


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names)) or "none"
