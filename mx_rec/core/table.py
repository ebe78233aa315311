"""The table a script holds."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional

import tensorflow as tf

from mx_rec import ops


@dataclasses.dataclass(frozen=True, eq=False)
class EmbeddingTable:
    """A dynamic embedding table of one graph; its content lives in the session.

    Attributes:
        table_name: unique in the graph.
        dim: columns of an embedding.
        key_dtype: dtype of the ids it is looked up with, tf.int64 or tf.int32.
        handle: scalar resource tensor.
        is_save: whether checkpoints include it.
        variable: its rows float32 [capacity, dim] if its capacity is fixed, else None.
        padding_keys: keys whose rows are never updated.
        max_keys: the bound that it comes down from by itself, 0 for none.
    """

    table_name: str
    dim: int
    key_dtype: tf.DType
    handle: tf.Tensor
    is_save: bool = True
    variable: Optional[tf.Variable] = None
    padding_keys: tuple[int, ...] = ()
    max_keys: int = 0

    def size(self, session: Optional[tf.compat.v1.Session] = None) -> int:
        """Number of keys: of the table in `session`, else of the newest live one; 0 if none lives."""
        if session is not None:
            return int(session.run(self._query("size")))
        stats = ops.table_stats(self.table_name)
        return 0 if stats is None else stats.size

    def capacity(self, session: Optional[tf.compat.v1.Session] = None) -> int:
        """Number of rows that fit without new memory; which table: as `size`."""
        if session is not None:
            return int(session.run(self._query("capacity")))
        stats = ops.table_stats(self.table_name)
        return 0 if stats is None else stats.capacity

    def export(self, session: tf.compat.v1.Session) -> ops.table_ops.TableContent:
        """Keys, rows and counts of the table in `session`, as numpy arrays sorted by key."""
        return session.run(self._query("export"))

    def memory(self) -> Optional[ops.TableStats]:
        """State and bytes of the newest live table of that name, None if none lives."""
        return ops.table_stats(self.table_name)

    def history(self, session: tf.compat.v1.Session) -> ops.table_ops.TableHistory:
        """Counts and times of all keys that the table in `session` counts, with a row or not yet; sorted by key."""
        return session.run(self._query("history"))

    def evict(self, session: tf.compat.v1.Session) -> int:
        """Evicts by the table's `eviction_threshold`; how many keys lost their rows.

        Raises:
            tf.errors.FailedPreconditionError: the table has no such threshold.
        """
        return int(session.run(self._query("evict").keys))

    def make_evict_op(self) -> tf.Tensor:
        """The op that evicts by the table's `eviction_threshold`; its value is how many keys lost their rows."""
        return self._query("evict").keys

    def _query(self, what: str) -> Any:
        """The query op of this table, made once per graph."""
        makers: dict[str, Callable[..., Any]] = {
            "size": ops.table_size,
            "capacity": ops.table_capacity,
            "export": ops.table_export,
            "history": ops.table_history,
            "evict": ops.evict,
        }
        make = makers[what]
        graph = self.handle.graph
        # Beside the handle, which may have been imported into a scope.
        name = f"{self.handle.op.name.rpartition('/')[0]}/{what}"
        try:
            operation = graph.get_operation_by_name(name)
        except KeyError:
            with graph.as_default(), tf.compat.v1.name_scope(None), tf.control_dependencies(None):
                return make(self.handle, name=name)
        results: dict[str, Callable[..., Any]] = {
            "export": ops.table_ops.TableContent,
            "history": ops.table_ops.TableHistory,
            "evict": ops.table_ops.Evicted,
        }
        return results[what](*operation.outputs) if what in results else operation.outputs[0]
