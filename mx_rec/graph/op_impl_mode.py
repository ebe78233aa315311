"""Reads `op_impl_mode.ini`: one `OpType=mode` per line, `#` starts a comment."""

from __future__ import annotations

import os
import re
from pathlib import Path

from mx_rec.errors import GraphFileError

HIGH_PERFORMANCE = "high_performance"
HIGH_PRECISION = "high_precision"
MODES = (HIGH_PERFORMANCE, HIGH_PRECISION)

_OP_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def read_op_impl_mode(path: str | os.PathLike[str]) -> dict[str, str]:
    """Implementation mode by op type.

    Raises:
        GraphFileError: the file cannot be read, or a line is not `OpType=mode`; names file and line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GraphFileError(f"{os.fspath(path)}: cannot be read: {error}") from error
    modes: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        try:
            op, mode = _parse_line(content)
        except ValueError as error:
            raise GraphFileError(f"{os.fspath(path)}:{number}: {error}") from error
        if modes.get(op, mode) != mode:
            raise GraphFileError(f"{os.fspath(path)}:{number}: {op} is {modes[op]!r} above and {mode!r} here")
        modes[op] = mode
    return modes


def _parse_line(content: str) -> tuple[str, str]:
    op, separator, mode = (part.strip() for part in content.partition("="))
    if not separator or not _OP_TYPE.fullmatch(op):
        raise ValueError(f"expected OpType=mode, got {content!r}")
    if mode not in MODES:
        raise ValueError(f"mode of {op} is {mode!r}; expected one of {', '.join(MODES)}")
    return op, mode
