"""Graphs: the IR that passes work on, and (lazily) the front functions that apply them.

The IR lives in `view`, `edits`, `verify`, `functions`, `apply_graphdef` and `apply_live`. Importing this
package imports none of them, nor the op library: the front names below are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

_FRONT = {
    "modify_graph_and_start_emb_cache": "mx_rec.graph.modifier",
    "GraphModifierHook": "mx_rec.graph.modifier",
    "do_merge_lookup": "mx_rec.graph.merge_lookup",
    "LookupSubgraphSlicerHook": "mx_rec.graph.hooks",
    "OrphanLookupKeySlicerHook": "mx_rec.graph.hooks",
    "slice_lookup_subgraph": "mx_rec.graph.slicing",
    "slice_orphan_lookup_keys": "mx_rec.graph.slicing",
}

__all__ = list(_FRONT)


def __getattr__(name: str) -> Any:
    if name not in _FRONT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_FRONT[name]), name)


def __dir__() -> list[str]:
    return sorted(list(globals()) + __all__)
