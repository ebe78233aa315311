"""One file of a table: a header, blocks with checksums, the manifest and a trailer."""

from __future__ import annotations

import dataclasses
import errno
import os
import secrets
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, Optional

import numpy as np

from mx_rec.checkpoint.crc32c import crc32c
from mx_rec.checkpoint.manifest import VERSION, Column, Manifest, SavedFile
from mx_rec.errors import CheckpointError

_HEADER = struct.Struct("<8sII16sII")
_BLOCK = struct.Struct("<IIQQII")
_TRAILER = struct.Struct("<8sQQII")
_FILE_MAGIC, _END_MAGIC, _BLOCK_MAGIC = b"MXRECTBL", b"MXRECEND", 0x214B4C42
_KINDS = {1: "rows", 2: "evicted", 3: "history"}
_NUMBERS = {name: number for number, name in _KINDS.items()}
_MANIFEST = 4
_BLOCK_BYTES = 1 << 20
_MAX_BLOCK_ELEMENTS = 1 << 16
_MAX_PAYLOAD = 1 << 31
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclasses.dataclass(frozen=True)
class Rows:
    """Elements of a block.

    Attributes:
        kind: `rows` (keys that the table holds), `evicted` or `history` (keys not admitted yet).
        columns: by name, arrays of n elements; `keys` int64 [n], of `rows` also `rows` float32 [n, stride].
    """

    kind: str
    columns: Mapping[str, np.ndarray]


def file_suffix(content: str, number: int, finished: bool = True) -> str:
    """The name of a file behind the checkpoint's prefix; it matches TensorFlow's pattern of data files."""
    digits = ""
    for _ in range(4):
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return f".data-{content[:5]}-of-{'m' if finished else 't'}{digits}"


class TableFile:
    """A file opened for reading; its header, trailer and manifest are checked then, blocks when they are read.

    Attributes:
        path: of the file.
        manifest: what it says of itself.
    """

    def __init__(self, path: str, expected: Optional[SavedFile] = None) -> None:
        """Opens a file.

        Args:
            path: of the file.
            expected: the file must be that one.

        Raises:
            CheckpointError: it is missing, damaged, or another file; names it.
        """
        self.path = path
        try:
            with open(path, "rb") as stream:
                self._open(stream, expected)
        except FileNotFoundError as error:
            raise CheckpointError(f"{path!r} is missing; a checkpoint needs all of its files") from error
        except OSError as error:
            raise CheckpointError(f"cannot read {path!r}: {error.strerror}") from error

    def blocks(self, kinds: Iterable[str] = ("rows", "evicted", "history")) -> Iterator[Rows]:
        """The blocks of these kinds, in order; all blocks are checked.

        Raises:
            CheckpointError: at a block that is damaged; names the file.
        """
        wanted = set(kinds)
        try:
            with open(self.path, "rb") as stream:
                stream.seek(_HEADER.size)
                count, crc_of_all = 0, 0
                while stream.tell() < self._manifest_offset:
                    number, size, payload, crc = self._block(stream, self._manifest_offset)
                    count += 1
                    crc_of_all = crc32c(struct.pack("<I", crc), crc_of_all)
                    kind = _KINDS.get(number, "")
                    rows = self._divide(kind, size, payload)
                    if kind in wanted:
                        yield rows
        except OSError as error:
            raise CheckpointError(f"cannot read {self.path!r}: {error.strerror}") from error
        if (count, crc_of_all) != (self.manifest.blocks, self.manifest.blocks_crc):
            raise self._bad("its blocks are not those of its manifest")

    def verify(self) -> None:
        """Checks every block; CheckpointError, naming the file, if one is damaged."""
        for _ in self.blocks():
            pass

    def _bad(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self.path!r} is damaged: {why}")

    def _open(self, stream: BinaryIO, expected: Optional[SavedFile]) -> None:
        size = os.fstat(stream.fileno()).st_size
        raw = stream.read(_HEADER.size)
        if len(raw) < _HEADER.size:
            raise self._bad(f"it has {len(raw)} bytes, less than a header")
        magic, version, _, content, _, crc = _HEADER.unpack(raw)
        if magic != _FILE_MAGIC:
            raise CheckpointError(f"{self.path!r} is not a file of a table")
        if crc != crc32c(raw[:-4]):
            raise self._bad("checksum of its header")
        if not 1 <= version <= VERSION:
            raise CheckpointError(f"{self.path!r} has format version {version}, but this program reads up to {VERSION}")
        if size < _HEADER.size + _BLOCK.size + _TRAILER.size:
            raise self._bad("it is truncated")
        stream.seek(size - _TRAILER.size)
        raw = stream.read(_TRAILER.size)
        magic, self._manifest_offset, file_bytes, manifest_crc, crc = _TRAILER.unpack(raw)
        if magic != _END_MAGIC or crc != crc32c(raw[:-4]):
            raise self._bad("it is truncated, or its end is overwritten")
        if file_bytes != size or not _HEADER.size <= self._manifest_offset <= size - _BLOCK.size - _TRAILER.size:
            raise self._bad(f"it has {size} bytes, not {file_bytes}")
        stream.seek(self._manifest_offset)
        number, _, payload, crc = self._block(stream, size - _TRAILER.size)
        if number != _MANIFEST or crc != manifest_crc or stream.tell() != size - _TRAILER.size:
            raise self._bad("its manifest")
        self.manifest = Manifest.decode(payload.decode(errors="replace"), repr(self.path))
        self.manifest_crc = manifest_crc
        if self.manifest.content.encode() != content:
            raise self._bad("its manifest is of another file")
        if expected is not None and (expected.content, expected.manifest_crc) != (self.manifest.content, crc):
            raise CheckpointError(
                f"{self.path!r} is not the file that the checkpoint was saved with: "
                f"expected content {expected.content}, got {self.manifest.content}"
            )

    def _block(self, stream: BinaryIO, end: int) -> tuple[int, int, bytes, int]:
        """(kind, elements, payload, checksum)."""
        where = f"block at byte {stream.tell()}"
        raw = stream.read(_BLOCK.size) if stream.tell() + _BLOCK.size <= end else b""
        if len(raw) < _BLOCK.size:
            raise self._bad(f"its {where} is not whole")
        magic, kind, size, count, payload_crc, crc = _BLOCK.unpack(raw)
        if magic != _BLOCK_MAGIC or crc != crc32c(raw[:-4]):
            raise self._bad(f"checksum of the header of its {where}")
        if count > _MAX_PAYLOAD or stream.tell() + count > end:
            raise self._bad(f"its {where} is not whole")
        payload = stream.read(count)
        if len(payload) < count:
            raise self._bad(f"its {where} is not whole")
        if crc32c(payload) != payload_crc:
            raise self._bad(f"checksum of its {where}")
        return kind, size, payload, payload_crc

    def _divide(self, kind: str, size: int, payload: bytes) -> Rows:
        columns = self.manifest.columns.get(kind)
        if columns is None:
            raise self._bad(f"a block of kind {kind!r}, which its manifest does not know")
        arrays, at = {}, 0
        for column in columns:
            end = at + size * column.element_bytes
            if end > len(payload):
                raise self._bad("a block whose size is not that of its columns")
            array = np.frombuffer(payload, column.numpy, size * column.width, at)
            arrays[column.name] = array if column.width == 1 and column.name != "rows" else array.reshape(size, -1)
            at = _aligned(end)
        if at != len(payload):
            raise self._bad("a block whose size is not that of its columns")
        return Rows(kind, arrays)


def write_table_file(prefix: str, number: int, manifest: Manifest, blocks: Iterable[Rows]) -> SavedFile:
    """Writes a file under a temporary name, flushes it to disk and renames it.

    Args:
        prefix: of the checkpoint; its directory must exist.
        number: of the file, different for the tables of a checkpoint.
        manifest: `columns` says what the blocks have; what depends on the blocks is completed here.
        blocks: in order; large ones are divided.

    Raises:
        CheckpointError: the file cannot be written; names it.
    """
    content = secrets.token_hex(8)
    suffix = file_suffix(content, number)
    temporary = prefix + file_suffix(content, number, finished=False)
    manifest.content, manifest.checkpoint = content, os.path.basename(prefix)
    try:
        try:
            with open(temporary, "xb") as stream:
                crc = _write(stream, manifest, blocks)
                stream.flush()
                os.fsync(stream.fileno())
            os.rename(temporary, prefix + suffix)
        except BaseException:
            if os.path.exists(temporary):
                os.unlink(temporary)
            raise
        _sync_directory(os.path.dirname(prefix) or ".")
    except OSError as error:
        raise CheckpointError(f"cannot write {temporary!r}: {error.strerror}") from error
    return SavedFile(suffix, content, crc)


def _write(stream: BinaryIO, manifest: Manifest, blocks: Iterable[Rows]) -> int:
    header = _HEADER.pack(_FILE_MAGIC, VERSION, 0, manifest.content.encode(), 0, 0)[:-4]
    stream.write(header + struct.pack("<I", crc32c(header)))
    elements = dict.fromkeys(_NUMBERS, 0)
    manifest.blocks, manifest.blocks_crc = 0, 0
    for block in blocks:
        columns = manifest.columns[block.kind]
        size = len(block.columns["keys"])
        most = max(1, min(_MAX_BLOCK_ELEMENTS, _BLOCK_BYTES // sum(column.element_bytes for column in columns)))
        for begin in range(0, size, most):
            part = {name: array[begin : begin + most] for name, array in block.columns.items()}
            payload = b"".join(_column_bytes(column, part[column.name]) for column in columns)
            crc = _write_block(stream, _NUMBERS[block.kind], len(part["keys"]), payload)
            manifest.blocks += 1
            manifest.blocks_crc = crc32c(struct.pack("<I", crc), manifest.blocks_crc)
        elements[block.kind] += size
    manifest.rows, manifest.evicted, manifest.history = (elements[kind] for kind in ("rows", "evicted", "history"))
    if not manifest.is_delta:
        manifest.size = manifest.rows
    offset = stream.tell()
    crc = _write_block(stream, _MANIFEST, 1, manifest.encode().encode())
    trailer = _TRAILER.pack(_END_MAGIC, offset, stream.tell() + _TRAILER.size, crc, 0)[:-4]
    stream.write(trailer + struct.pack("<I", crc32c(trailer)))
    return crc


def _write_block(stream: BinaryIO, kind: int, size: int, payload: bytes) -> int:
    crc = crc32c(payload)
    header = _BLOCK.pack(_BLOCK_MAGIC, kind, size, len(payload), crc, 0)[:-4]
    stream.write(header + struct.pack("<I", crc32c(header)))
    stream.write(payload)
    return crc


def _column_bytes(column: Column, values: Any) -> bytes:
    raw = np.ascontiguousarray(values, column.numpy).tobytes()
    return raw + bytes(_aligned(len(raw)) - len(raw))


def _aligned(count: int) -> int:
    return (count + 7) & ~7


def _sync_directory(directory: str) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot
            raise
    finally:
        os.close(handle)
