"""Hooks that say what the rewrite shall move; for `MonitoredTrainingSession`, before `GraphModifierHook`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from mx_rec.graph.slicing import check_modified, check_op_types, slice_lookup_subgraph, slice_orphan_lookup_keys


class LookupSubgraphSlicerHook(tf.compat.v1.train.SessionRunHook):
    """Moves nodes of the given op types between a batch and the ids of lookups into the dataset.

    Must stand before `GraphModifierHook`, which does the rewrite. Files and meaning: `slice_lookup_subgraph`, the
    form for scripts without hooks.

    Args:
        op_types: op types, such as `["StringToHashBucketFast", "Cast"]`.

    Raises:
        TypeError: `op_types` is not a list or tuple of strings.
        ValueError: `op_types` or one of its strings is empty.
    """

    def __init__(self, op_types: Sequence[str]) -> None:
        check_op_types(op_types)
        self._op_types = list(op_types)

    def begin(self) -> None:
        """Analyses the default graph, writes the files and tells the rewrite.

        Raises:
            EnvironmentError: before `init`, or the graph has been rewritten already.
        """
        slice_lookup_subgraph(self._op_types)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """GraphRewriteError if no `GraphModifierHook` came after this hook."""
        check_modified(session.graph, type(self).__name__)


class OrphanLookupKeySlicerHook(tf.compat.v1.train.SessionRunHook):
    """Lets lookups whose ids come from no batch, such as constants, be prepared with one.

    Must stand before `GraphModifierHook`, which does the rewrite. Files and meaning: `slice_orphan_lookup_keys`, the
    form for scripts without hooks.
    """

    def begin(self) -> None:
        """Analyses the default graph, writes the files and tells the rewrite.

        Raises:
            EnvironmentError: before `init`, or the graph has been rewritten already.
        """
        slice_orphan_lookup_keys()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """GraphRewriteError if no `GraphModifierHook` came after this hook."""
        check_modified(session.graph, type(self).__name__)
