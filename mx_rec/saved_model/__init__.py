"""SavedModels with tables: loading them, and freezing them for servers that load no op library.

Importing this package imports neither TensorFlow nor the op library.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "freeze_saved_model": "mx_rec.saved_model.freeze",
    "load_saved_model": "mx_rec.saved_model.load",
    "serving_notice": "mx_rec.saved_model.load",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(list(globals()) + __all__)
