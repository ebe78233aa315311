"""mx_rec: a graph-rewriting compiler for TensorFlow recommenders over a dynamic embedding store.

Importing this package imports neither TensorFlow nor the op library.
"""

from __future__ import annotations

__version__ = "0.1.0"


def version() -> str:
    """The version of this package."""
    return __version__
