"""Snappy framing as Flink writes it: a stream id, then chunks of at most 64 KiB of data each with a masked CRC-32C.

Format: `framing_format.txt` of google/snappy. Flink compresses through `SnappyFramedOutputStream` of snappy-java
(`org.apache.flink.runtime.state.SnappyStreamCompressionDecorator`), which stores a chunk as it is when compression
saves less than 15 %. The checksums are computed and verified by cramjam, in compiled code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import cramjam

from state_pipelines.errors import FormatError, Where

if TYPE_CHECKING:
    from collections.abc import Iterator

STREAM_ID = b"\xff\x06\x00\x00sNaPpY"
BLOCK_SIZE = 1 << 16
"""Maximum bytes of uncompressed data in one chunk."""

HEAD_SIZE = 11
"""Bytes of a chunk that determine the size of its data: header, checksum, and up to 3 bytes of a length."""

_HEADER_SIZE = 4
_CRC_SIZE = 4
_COMPRESSED = 0x00
_UNCOMPRESSED = 0x01
_STREAM_ID = 0xFF
_FIRST_SKIPPABLE = 0x80
_LARGEST_KEPT = 0.85


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of a framed stream.

    Attributes:
        start: offset of the chunk's header.
        end: offset of the end of the chunk (exclusive).
        data: decompressed data of the chunk; empty for stream ids and padding.
    """

    start: int
    end: int
    data: bytes


def compress(data: bytes | memoryview) -> bytes:
    """Return a whole framed stream: the stream id and the chunks of `data`."""
    return STREAM_ID + compress_chunks(data)


def compress_chunks(data: bytes | memoryview) -> bytes:
    """Return the chunks of `data` without a stream id, for appending to a stream; nothing when `data` is empty."""
    framed = memoryview(cramjam.snappy.compress(data)) if len(data) else memoryview(b"")
    written: list[bytes | memoryview] = []
    position, taken = len(STREAM_ID), 0
    while position < len(framed):
        size = int.from_bytes(framed[position + 1 : position + _HEADER_SIZE], "little")
        end = position + _HEADER_SIZE + size
        block = data[taken : taken + BLOCK_SIZE]
        taken += len(block)
        # Blocks that save less than 15 % are written uncompressed. cramjam leaves a block uncompressed only if it saves
        # less than 12.5 %, so its output has all blocks that are written compressed.
        if framed[position] == _COMPRESSED and size - _CRC_SIZE > _LARGEST_KEPT * len(block):
            crc = framed[position + _HEADER_SIZE : position + _HEADER_SIZE + _CRC_SIZE]
            written += [bytes((_UNCOMPRESSED,)), (len(block) + _CRC_SIZE).to_bytes(3, "little"), crc, block]
        else:
            written.append(framed[position:end])
        position = end
    return b"".join(written)


def decompress(data: bytes | memoryview, start: int = 0, end: int | None = None, *, name: str | None = None) -> bytes:
    """Return the data of the chunks in `data[start:end]`.

    Args:
        data: holds the stream.
        start: position of a stream id or of a chunk.
        end: end of the last chunk; by default the end of `data`.
        name: file name, for errors.

    Raises:
        FormatError: a chunk is cut off at `end`, is damaged or does not match its checksum.
    """
    stop = len(data) if end is None else end
    size = measure_chunks(data, start, stop)
    if size is not None:
        plain = bytearray(size)
        if decompress_into(data, start, stop, memoryview(plain)):
            return bytes(plain)
    # The data are invalid: decode again chunk by chunk, to find the chunk with the error.
    return b"".join(chunk.data for chunk in iter_chunks(data, start, stop, name=name))


def decompress_into(data: bytes | memoryview, start: int, end: int, target: memoryview) -> bool:
    """Decompress the chunks in `data[start:end]` into `target`; return whether they are valid and fill it.

    All chunks are decoded at once, which takes half as long as decoding them one by one.
    """
    framed = memoryview(data)[start:end]
    if framed[: len(STREAM_ID)] != STREAM_ID:
        framed = memoryview(STREAM_ID + framed)
    try:
        return cramjam.snappy.decompress_into(framed, target) == len(target)
    except cramjam.DecompressionError:
        return False


def measure_chunks(data: bytes | memoryview, start: int, end: int) -> int | None:
    """Return the decompressed size of the chunks in `data[start:end]`, according to their headers.

    Returns None unless these are only data chunks and stream ids, the last of which ends at `end`. (Several streams may
    follow each other.)
    """
    if end > len(data):
        return None
    position, held = start, 0
    while position < end and data[position] in (_COMPRESSED, _UNCOMPRESSED, _STREAM_ID):
        if data[position] == _STREAM_ID:
            if data[position : position + len(STREAM_ID)] != STREAM_ID:
                return None
            position += len(STREAM_ID)
            continue
        try:
            size, more = measure_chunk(data[position : min(position + HEAD_SIZE, end)])
        except FormatError:
            return None
        position, held = position + size, held + more
    return held if start < position == end else None


def iter_chunks(
    data: bytes | memoryview, start: int = 0, end: int | None = None, *, name: str | None = None
) -> Iterator[Chunk]:
    """Yield the decoded chunks of a stream one by one, so that the caller can stop where its content ends.

    Args:
        data: holds the stream.
        start: position of a stream id or of a chunk.
        end: limit that no chunk may exceed; by default the end of `data`.
        name: file name, for errors.

    Raises:
        FormatError: a chunk is cut off at `end`, is damaged or does not match its checksum; raised when the walk
            reaches that chunk, not before.
    """
    stop = len(data) if end is None else end
    view = memoryview(data)
    position = start
    while position < stop:
        size = int.from_bytes(view[position + 1 : position + _HEADER_SIZE], "little")
        chunk_end = position + _HEADER_SIZE + size
        if position + _HEADER_SIZE > stop or chunk_end > stop or stop > len(view):
            raise _error("a snappy chunk is cut off", name, position)
        yield Chunk(position, chunk_end, _decode(view[position:chunk_end], name, position))
        position = chunk_end


def measure_chunk(head: bytes | memoryview, *, name: str | None = None, position: int = 0) -> tuple[int, int]:
    """Return the size of a chunk and of its data, from its first `HEAD_SIZE` bytes; nothing is decoded.

    Args:
        head: first bytes of the chunk, fewer only at the end of the stream.
        name: file name, for errors.
        position: offset of the chunk, for errors.

    Returns:
        (bytes of the chunk with its header, bytes of its data).

    Raises:
        FormatError: the bytes do not begin a chunk.
    """
    if len(head) < _HEADER_SIZE:
        raise _error("a snappy chunk is cut off", name, position)
    kind, size = head[0], int.from_bytes(head[1:_HEADER_SIZE], "little")
    if kind == _STREAM_ID or kind >= _FIRST_SKIPPABLE:
        return _HEADER_SIZE + size, 0
    if kind == _UNCOMPRESSED and size >= _CRC_SIZE:
        return _HEADER_SIZE + size, size - _CRC_SIZE
    if kind == _COMPRESSED:
        # Raw snappy data begin with their decompressed size, in groups of 7 bits, low group first.
        held = 0
        for shift, byte in enumerate(head[_HEADER_SIZE + _CRC_SIZE : HEAD_SIZE]):
            held |= (byte & 0x7F) << 7 * shift
            if byte < 0x80 and held <= BLOCK_SIZE:
                return _HEADER_SIZE + size, held
    elif kind != _UNCOMPRESSED:
        raise _error(f"{kind:#04x} is not a kind of snappy chunk", name, position)
    raise _error("a snappy chunk is damaged (the size of its data is missing)", name, position)


def _decode(chunk: memoryview, name: str | None, position: int) -> bytes:
    kind = chunk[0]
    if kind == _STREAM_ID:
        if chunk != STREAM_ID:
            raise _error("not the stream id of snappy framing", name, position)
        return b""
    if kind in (_COMPRESSED, _UNCOMPRESSED):
        try:
            return bytes(cramjam.snappy.decompress(STREAM_ID + bytes(chunk)))
        except cramjam.DecompressionError as error:
            raise _error(f"a snappy chunk is damaged ({error})", name, position) from None
    if kind < _FIRST_SKIPPABLE:
        raise _error(f"{kind:#04x} is not a kind of snappy chunk", name, position)
    return b""


def _error(what: str, name: str | None, position: int) -> FormatError:
    hint = "The file was changed after Flink wrote it, or the position is wrong"
    return FormatError(what, where=Where(file=name, offset=position), hint=hint)
