"""Operator ids: their text and how Flink makes them from a uid (`StreamGraphHasherV2`, `OperatorID`)."""

from __future__ import annotations

import re
import struct

from state_pipelines.errors import UsageError

_MASK = (1 << 64) - 1
_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F
_HEX = re.compile("[0-9a-fA-F]{32}")


def compute_operator_id(uid: str) -> bytes:
    """Return the 16 bytes of the operator id for `uid`: murmur3_128 (x64, seed 0) of its UTF-8 bytes.

    Half a character, which UTF-8 does not have, is a question mark, as in Java.
    """
    return murmur3_128(uid.encode(errors="replace"))


def format_operator_id(operator_id: bytes) -> str:
    """Return the 32 hexadecimal digits of an operator id, as Flink prints them."""
    return operator_id.hex()


def parse_operator_id(text: str) -> bytes:
    """Mirror of `format_operator_id`.

    Raises:
        UsageError: `text` is not 32 hexadecimal digits.
    """
    if not is_operator_id(text):
        raise UsageError(f"{text!r} is not an operator id of 32 hexadecimal digits")
    return bytes.fromhex(text)


def is_operator_id(text: str) -> bool:
    """Return whether `text` has the form of an operator id (a uid may have that form too)."""
    return _HEX.fullmatch(text) is not None


def find_operator_id(name: str) -> bytes:
    """Return the operator id of `name`: 32 hexadecimal digits are an id, anything else is a uid."""
    return parse_operator_id(name) if is_operator_id(name) else compute_operator_id(name)


def murmur3_128(data: bytes, seed: int = 0) -> bytes:
    """MurmurHash3 x64 128 bit: both halves little-endian, as Guava's `Hashing.murmur3_128` gives them."""
    h1 = h2 = seed
    whole = len(data) // 16 * 16
    for k1, k2 in struct.iter_unpack("<QQ", data[:whole]):
        h1 ^= _mix_k1(k1)
        h1 = (_rotate(h1, 27) + h2 & _MASK) * 5 + 0x52DCE729 & _MASK
        h2 ^= _mix_k2(k2)
        h2 = (_rotate(h2, 31) + h1 & _MASK) * 5 + 0x38495AB5 & _MASK
    tail = data[whole:].ljust(16, b"\0")
    k1, k2 = struct.unpack("<QQ", tail)
    h1 ^= _mix_k1(k1) ^ len(data)
    h2 ^= _mix_k2(k2) ^ len(data)
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    h1, h2 = _finish(h1), _finish(h2)
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    return struct.pack("<QQ", h1, h2)


def _mix_k1(k1: int) -> int:
    return _rotate(k1 * _C1 & _MASK, 31) * _C2 & _MASK


def _mix_k2(k2: int) -> int:
    return _rotate(k2 * _C2 & _MASK, 33) * _C1 & _MASK


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _finish(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33
