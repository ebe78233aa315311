"""What the file of a table says of itself; the counterpart of kernels/core/src/manifest.cc."""

from __future__ import annotations

import dataclasses
import re
from typing import Optional

import numpy as np

from mx_rec.errors import CheckpointError

VERSION = 1
_FIRST = "mxrec-table="
_ESCAPED = re.compile(r"[%\n\r ,:=]")
_DTYPES: dict[str, np.dtype] = {"int64": np.dtype("<i8"), "float32": np.dtype("<f4")}


@dataclasses.dataclass(frozen=True)
class Column:
    """An array of a block: `width` values of a dtype per element."""

    name: str
    dtype: str
    width: int = 1

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return self.width * _DTYPES[self.dtype].itemsize

    @property
    def numpy(self) -> np.dtype:
        """Its dtype, little-endian."""
        return _DTYPES[self.dtype]


@dataclasses.dataclass(frozen=True)
class SavedFile:
    """A file that a saved table consists of.

    Attributes:
        suffix: its name behind the checkpoint's prefix.
        content: id of its content.
        manifest_crc: checksum of its manifest.
    """

    suffix: str
    content: str
    manifest_crc: int

    def encode(self) -> str:
        """Its text in a manifest."""
        return f"{_escape(self.suffix)},{self.content},{self.manifest_crc:08x}"

    @classmethod
    def decode(cls, text: str) -> SavedFile:
        """From its text."""
        suffix, content, crc = text.split(",")
        return cls(_unescape(suffix), content, int(crc, 16))


@dataclasses.dataclass
class Manifest:
    """See docs/checkpoint-format.md for the meaning of each line."""

    table: str
    dim: int
    key_dtype: str = "int64"
    optimizer: str = ""
    slot_initials: tuple[float, ...] = ()
    steps: int = 0
    updates: int = 0
    content: str = ""
    checkpoint: str = ""
    sequence: int = 0
    index_before: str = ""
    is_delta: bool = False
    rows: int = 0
    evicted: int = 0
    history: int = 0
    size: int = 0
    blocks: int = 0
    blocks_crc: int = 0
    columns: dict[str, tuple[Column, ...]] = dataclasses.field(default_factory=dict)
    base: tuple[SavedFile, ...] = ()
    notes: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def stride(self) -> int:
        """Values of a row, slots included."""
        return self.dim * (1 + len(self.slot_initials))

    def encode(self) -> str:
        """The text, as it stands in a file."""
        lines = [
            f"{_FIRST}{VERSION}",
            f"table={_escape(self.table)}",
            f"key_dtype={self.key_dtype}",
            f"dim={self.dim}",
            f"optimizer={_escape(self.optimizer)}",
            f"slot_initials={','.join(f'{np.float32(value):.9g}' for value in self.slot_initials)}",
            f"steps={self.steps}",
            f"updates={self.updates}",
            f"content={self.content}",
            f"checkpoint={_escape(self.checkpoint)}",
            f"sequence={self.sequence}",
            f"index_before={self.index_before}",
            f"kind={'delta' if self.is_delta else 'full'}",
            f"rows={self.rows}",
            f"evicted={self.evicted}",
            f"history={self.history}",
            f"size={self.size}",
            f"blocks={self.blocks}",
            f"blocks_crc={self.blocks_crc:08x}",
        ]
        for kind in ("rows", "evicted", "history"):
            if kind in self.columns:
                columns = ",".join(f"{each.name} {each.dtype} {each.width}" for each in self.columns[kind])
                lines.append(f"columns={kind}:{columns}")
        lines += [f"base={file.encode()}" for file in self.base]
        lines += [f"note={_escape(name)},{_escape(value)}" for name, value in sorted(self.notes.items())]
        return "\n".join(lines) + "\n"

    @classmethod
    def decode(cls, text: str, source: str) -> Manifest:
        """From its text; lines of unknown names are skipped.

        Args:
            text: as `encode` gives it.
            source: what messages call it.

        Raises:
            CheckpointError: it is no manifest, or of a later version.
        """
        lines = text.split("\n")
        if not lines[0].startswith(_FIRST):
            raise CheckpointError(f"{source}: no manifest of a table")
        version = lines[0][len(_FIRST) :]
        if not version.isdigit() or not 1 <= int(version) <= VERSION:
            raise CheckpointError(f"{source}: format version {version}, but this program reads up to {VERSION}")
        manifest = cls("", 0)
        try:
            for line in lines[1:]:
                name, _, value = line.partition("=")
                manifest._read(name, value)
        except (ValueError, KeyError) as error:
            raise CheckpointError(f"{source}: the manifest's line {line!r} cannot be read") from error
        if not 1 <= manifest.dim <= 8192 or manifest.rows < 0:
            raise CheckpointError(f"{source}: a manifest with impossible numbers")
        return manifest

    def _read(self, name: str, value: str) -> None:
        if name in ("table", "optimizer", "checkpoint"):
            setattr(self, name, _unescape(value))
        elif name in ("key_dtype", "content", "index_before"):
            setattr(self, name, value)
        elif name in ("dim", "steps", "updates", "sequence", "rows", "evicted", "history", "size", "blocks"):
            setattr(self, name, int(value))
        elif name == "slot_initials":
            self.slot_initials = tuple(float(np.float32(part)) for part in value.split(",") if part)
        elif name == "kind":
            self.is_delta = value == "delta"
        elif name == "blocks_crc":
            self.blocks_crc = int(value, 16)
        elif name == "columns":
            kind, _, columns = value.partition(":")
            self.columns[kind] = tuple(_column(part) for part in columns.split(","))
        elif name == "base":
            self.base = (*self.base, SavedFile.decode(value))
        elif name == "note":
            note, _, content = value.partition(",")
            self.notes[_unescape(note)] = _unescape(content)


def files_of(text: str) -> tuple[SavedFile, ...]:
    """The files that a checkpoint names behind the manifest of a table, the one it describes last."""
    return tuple(SavedFile.decode(line[len("file=") :]) for line in text.split("\n") if line.startswith("file="))


def _column(text: str) -> Column:
    name, dtype, width = text.split(" ")
    column = Column(name, dtype, int(width))
    column.numpy  # noqa: B018 - KeyError for a dtype that is not known
    return column


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)


def _unescape(text: str) -> str:
    return re.sub("%([0-9A-Fa-f]{2})", lambda match: chr(int(match[1], 16)), text)


def optional_int(notes: dict[str, str], name: str) -> Optional[int]:
    """A note that is a number."""
    return int(notes[name]) if name in notes else None
