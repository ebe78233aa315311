"""Where the content of a converted table is in a checkpoint of the graph of before."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from mx_rec.errors import GraphFileError
from mx_rec.graph import marks
from mx_rec.graph.op_signatures import OP_TABLE

MOD = "mod"


@dataclasses.dataclass(frozen=True)
class SavedVariable:
    """A variable in a checkpoint: of a partitioned one all rows, part after part, or a name for each part.

    Attributes:
        names: one name, or one for each part.
    """

    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class TableOrigin:
    """What a table was.

    Attributes:
        table_name: the table.
        rows: of each part of the variable.
        strategy: "mod" or "div" of a partitioned variable, else "".
        variable: its value.
        optimizer: whose slots the table keeps, in the words of its file format; "" for none.
        slots: their values.
        slot_initials: what each slot begins with.
        same_ids: whether the keys of the table are the rows of the variable.
        dim: columns of the table; the text does not have it, since the node does.
    """

    table_name: str
    rows: tuple[int, ...]
    strategy: str
    variable: SavedVariable
    optimizer: str = ""
    slots: tuple[SavedVariable, ...] = ()
    slot_initials: tuple[float, ...] = ()
    same_ids: bool = True
    dim: int = 0

    def encode(self) -> str:
        """As text, for an attribute of a node."""
        fields = dataclasses.asdict(self)
        del fields["dim"]
        return json.dumps(fields, sort_keys=True)


def decode_origin(text: str, dim: int) -> TableOrigin:
    """The inverse of `TableOrigin.encode`, of a table of `dim` columns.

    Raises:
        GraphFileError: the text is no such thing.
    """
    try:
        values = json.loads(text)
        return TableOrigin(
            table_name=str(values["table_name"]),
            rows=tuple(int(count) for count in values["rows"]),
            strategy=str(values["strategy"]),
            variable=_variable(values["variable"]),
            optimizer=str(values["optimizer"]),
            slots=tuple(_variable(slot) for slot in values["slots"]),
            slot_initials=tuple(float(value) for value in values["slot_initials"]),
            same_ids=bool(values["same_ids"]),
            dim=dim,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise GraphFileError(f"attribute {marks.ORIGIN!r} of a table is damaged: {error!r}") from error


def _variable(values: Any) -> SavedVariable:
    return SavedVariable(tuple(str(name) for name in values["names"]))


def table_origins(nodes: Iterable[Any]) -> list[TableOrigin]:
    """Those of the converted tables among the nodes of a GraphDef."""
    return [
        decode_origin(node.attr[marks.ORIGIN].s.decode(), node.attr["dim"].i)
        for node in nodes
        if node.op == OP_TABLE and marks.ORIGIN in node.attr
    ]
