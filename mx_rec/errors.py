"""Exceptions of mx_rec.

Parameter checks raise the builtin `ValueError` / `TypeError`; calls out of order raise
`EnvironmentError`, as scripts written for this API expect. What is particular to this project
derives from `MxRecError`.
"""

from __future__ import annotations


class MxRecError(Exception):
    """Base class of the errors that only this project raises."""


class LibraryNotLoadedError(MxRecError, ImportError):
    """The op library is missing or was built for another TensorFlow."""


class GraphRewriteError(MxRecError):
    """A rewrite failed or was refused; the graph is as it was."""


class GraphFileError(MxRecError):
    """A graph file cannot be read or written."""


class CheckpointError(MxRecError):
    """A checkpoint or one of its files cannot be read or written, or is damaged."""
