"""What a Saver needs to know of a table, in the form that a MetaGraphDef carries it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, Union

SAVEABLE_OBJECTS = "saveable_objects"  # tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS
_ELEMENT = "element"


def manifest_key(table_name: str) -> str:
    """The name of a table's manifest in a checkpoint."""
    return f"mx_rec/{table_name}/manifest"


@dataclasses.dataclass(frozen=True)
class SavedParts:
    """What of a graph a table's saveable saves, by name; the form it has in a MetaGraphDef.

    Attributes:
        table_name: also the first part of the manifest's name in the checkpoint.
        key_dtype: `int64` or `int32`.
        file_number: of the table's files, different for the tables of a graph.
        handle: tensor of the table's handle.
        variables: tensors of the handles of rows and slots, of a table of fixed capacity.
        steps: tensor of the handle of its optimizer's step count, or none.
        optimizer: whose slots they are; of a table that grows, the one that trains it in the graph, if that is known.
        slot_initials: what each slot begins with.
    """

    table_name: str
    key_dtype: str
    file_number: int
    handle: str
    variables: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    optimizer: str = ""
    slot_initials: tuple[float, ...] = ()

    @property
    def tensors(self) -> tuple[str, ...]:
        """All names of tensors."""
        return (self.handle, *self.variables, *self.steps)

    def renamed(self, rename: Callable[[str], str]) -> SavedParts:
        """The same with other names of tensors."""
        return dataclasses.replace(
            self,
            handle=rename(self.handle),
            variables=tuple(map(rename, self.variables)),
            steps=tuple(map(rename, self.steps)),
        )


def parts_text(parts: SavedParts) -> str:
    """A table as a member of the collection SAVEABLE_OBJECTS of a MetaGraphDef."""
    return json.dumps(dataclasses.asdict(parts))


def element_text(name: str) -> str:
    """Any other member, by the name of its node or tensor."""
    return json.dumps({_ELEMENT: name})


def saved_member(text: str) -> Union[SavedParts, str]:
    """The inverse of `parts_text` and `element_text`: a table, or the name of another member.

    Raises:
        ValueError, TypeError, KeyError: the text is no such thing.
    """
    fields: dict[str, Any] = json.loads(text)
    if _ELEMENT in fields:
        return str(fields[_ELEMENT])
    return SavedParts(
        table_name=str(fields["table_name"]),
        key_dtype=str(fields["key_dtype"]),
        file_number=int(fields["file_number"]),
        handle=str(fields["handle"]),
        variables=tuple(map(str, fields["variables"])),
        steps=tuple(map(str, fields["steps"])),
        optimizer=str(fields["optimizer"]),
        slot_initials=tuple(map(float, fields["slot_initials"])),
    )
