"""The masked CRC-32C of RocksDB, which is that of framed snappy."""

from __future__ import annotations

import cramjam

_STREAM_HEADER, _CHUNK_HEADER = 10, 4


def masked_crc32c(data: bytes) -> int:
    """The CRC-32C of at most 64 KiB, rotated and shifted."""
    at = _STREAM_HEADER + _CHUNK_HEADER
    return int.from_bytes(bytes(cramjam.snappy.compress(data))[at : at + 4], "little")
