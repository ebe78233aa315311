"""`recgraph`: rewrites, inspects, draws and compares graph files from the command line.

Importing this package imports neither TensorFlow nor the op library; a command imports what it needs.
"""

from __future__ import annotations

from mx_rec.cli.app import main

__all__ = ["main"]
