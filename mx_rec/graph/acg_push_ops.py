"""The older name of the slicer hooks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from mx_rec.graph.slicing import check_modified, slice_lookup_subgraph, slice_orphan_lookup_keys
from mx_rec.util.validate import check_bool

_OP_TYPES = ("StringSplit", "StringToNumber")


class ACGPushOpsToDatasetHook(tf.compat.v1.train.SessionRunHook):
    """`OrphanLookupKeySlicerHook` and `LookupSubgraphSlicerHook(["StringSplit", "StringToNumber"])` in one.

    Must stand before `GraphModifierHook`.
    """

    def __init__(self, dump_graph: bool = False) -> None:
        """Args:
        dump_graph: accepted; the files of both hooks are written always.

        Raises:
            TypeError: `dump_graph` is not a bool.
        """
        check_bool("dump_graph", dump_graph)

    def begin(self) -> None:
        """As those of both hooks."""
        slice_orphan_lookup_keys()
        slice_lookup_subgraph(_OP_TYPES)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """GraphRewriteError if no `GraphModifierHook` came after this hook."""
        check_modified(session.graph, type(self).__name__)
