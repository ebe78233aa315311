"""CRC-32C (Castagnoli), many bytes at a time.

A checksum is linear, so the parts of a buffer are summed side by side, as columns of an array, and then joined: the
checksum of `a + b` is that of `a`, moved on by the length of `b`, xor that of `b`.
"""

from __future__ import annotations

import functools
from typing import Union

import numpy as np

_POLYNOMIAL = 0x82F63B78  # reflected
_LANES = 2048
_WORD = 4  # bytes
_MIN_WORDS = 4


@functools.lru_cache(maxsize=1)
def _byte_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> 1) ^ np.where(table & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    return table


@functools.lru_cache(maxsize=1)
def _byte_list() -> list[int]:
    return _byte_table().tolist()  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=64)
def _zeros_operator(count: int) -> tuple[np.ndarray, np.ndarray]:
    """What `count` > 0 zero bytes make of a register: tables for its low and its high 16 bits."""
    if count == 1:
        halves = np.arange(1 << 16, dtype=np.uint32), np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
        low, high = ((half >> np.uint32(8)) ^ _byte_table()[half & np.uint32(0xFF)] for half in halves)
        return low, high
    half = _zeros_operator(count // 2)
    low, high = (_move_on(table, half) for table in half)
    if count % 2:
        one = _zeros_operator(1)
        low, high = _move_on(low, one), _move_on(high, one)
    return low, high


def _move_on(registers: np.ndarray, operator: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    low, high = operator
    return low[registers & np.uint32(0xFFFF)] ^ high[registers >> np.uint32(16)]


def _bytewise(register: int, data: bytes) -> int:
    table = _byte_list()
    for byte in data:
        register = (register >> 8) ^ table[(register ^ byte) & 0xFF]
    return register


def crc32c(data: Union[bytes, bytearray, memoryview, np.ndarray], crc: int = 0) -> int:
    """The checksum of `data`, or of what had the checksum `crc` followed by `data`."""
    buffer = np.frombuffer(data, np.uint8)
    register = crc ^ 0xFFFFFFFF
    words = len(buffer) // (_LANES * _WORD)  # of each lane
    if words >= _MIN_WORDS:
        whole = words * _LANES * _WORD
        lanes = np.ascontiguousarray(buffer[:whole].view("<u4").reshape(_LANES, words).T)
        registers = np.zeros(_LANES, np.uint32)
        registers[0] = register
        four = _zeros_operator(_WORD)
        for word in lanes:
            registers = _move_on(registers ^ word, four)
        length = words * _WORD
        while len(registers) > 1:
            registers = _move_on(registers[0::2], _zeros_operator(length)) ^ registers[1::2]
            length *= 2
        register = int(registers[0])
        buffer = buffer[whole:]
    return _bytewise(register, buffer.tobytes()) ^ 0xFFFFFFFF
