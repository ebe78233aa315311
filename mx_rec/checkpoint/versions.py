"""The checkpoints of a directory, and which of them to restore."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Optional

from mx_rec.checkpoint.saved_tables import read_saved_tables, verify_dense
from mx_rec.errors import CheckpointError

_INDEX = ".index"
_STEP = re.compile(r"-(\d+)$")


@dataclasses.dataclass(frozen=True)
class Version:
    """A checkpoint.

    Attributes:
        prefix: of the checkpoint.
        step: the number at the end of its name; None if it has none.
    """

    prefix: str
    step: Optional[int]


def versions(directory: str, basename: Optional[str] = None) -> list[Version]:
    """The complete checkpoints of a directory, in order of steps; those without one first.

    Args:
        directory: to look in.
        basename: only those of this name, such as `model.ckpt`.

    Raises:
        CheckpointError: there is no such directory.
    """
    try:
        names = [name[: -len(_INDEX)] for name in os.listdir(directory) if name.endswith(_INDEX)]
    except OSError as error:
        raise CheckpointError(f"cannot read {directory!r}: {error.strerror}") from error
    found = []
    for name in sorted(names):
        match = _STEP.search(name)
        if basename is None or (name[: match.start()] if match else name) == basename:
            found.append(Version(os.path.join(directory, name), int(match[1]) if match else None))
    return sorted(found, key=lambda each: -1 if each.step is None else each.step)


def damage_of(prefix: str) -> Optional[str]:
    """What is wrong with a checkpoint, its tables or its variables; None if every byte is as it was written."""
    try:
        verify_dense(prefix)
        for table in read_saved_tables(prefix).values():
            table.verify()
    except CheckpointError as error:
        return str(error)
    return None


def checkpoint_to_restore(
    directory: str, version: Optional[int] = None, basename: Optional[str] = None, verify: bool = True
) -> str:
    """The newest checkpoint of a directory, or the newest at or before a step.

    A checkpoint has all the files it needs beside it, the full state and the deltas after it.

    Args:
        directory: to look in.
        version: a step; None for the newest.
        basename: only checkpoints of this name.
        verify: whether to read all of it first.

    Returns:
        Its prefix, for `Saver.restore`.

    Raises:
        ValueError: there is no checkpoint, or none at or before `version`; lists those there are.
        CheckpointError: it is damaged; names the file, and the newest checkpoint before it that is whole.
    """
    found = versions(directory, basename)
    fitting = [each for each in found if version is None or (each.step is not None and each.step <= version)]
    if not fitting:
        there = ", ".join(str(each.step) for each in found if each.step is not None) or "none"
        wanted = "" if version is None else f" at or before step {version}"
        raise ValueError(f"{directory!r} has no checkpoint{wanted}; steps there: {there}")
    chosen = fitting[-1]
    damage = damage_of(chosen.prefix) if verify else None
    if damage is None:
        return chosen.prefix
    whole = next((each.prefix for each in reversed(fitting[:-1]) if damage_of(each.prefix) is None), None)
    offer = "no older one is whole" if whole is None else f"the newest one that is whole is {whole!r}"
    raise CheckpointError(f"{chosen.prefix!r} cannot be restored: {damage}; {offer}")
