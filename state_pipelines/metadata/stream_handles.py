"""Handles of streams, which locate the bytes of state (`org.apache.flink.runtime.state.StreamStateHandle`)."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

from state_pipelines.errors import ValueRangeError
from state_pipelines.metadata.handle_tags import HandleTag
from state_pipelines.metadata.key_groups import KeyGroupRange, read_key_group_range, write_key_group_range

if TYPE_CHECKING:
    from state_pipelines.binary.reader import Reader
    from state_pipelines.binary.writer import Writer

MAX_DEPTH = 8
"""Maximum nesting depth of handles; Flink itself uses two levels."""


@dataclass(frozen=True, slots=True)
class ByteStreamStateHandle:
    """State inlined in `_metadata` (tag 1).

    Attributes:
        handle_name: an identity only; often the path that the state would have had as a file.
        data: the state.
    """

    handle_name: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class FileStateHandle:
    """A whole file under an absolute path (tag 2).

    Attributes:
        path: absolute path or URL, as Flink wrote it.
        size: bytes of state; a plain changelog file is one byte longer.
    """

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class RelativeFileStateHandle:
    """A whole file under a path relative to the directory that holds `_metadata` (tag 6, since 1.11).

    Attributes:
        relative_path: path below the exclusive directory, in practice a plain file name.
        size: bytes of state.
    """

    relative_path: str
    size: int


class CheckpointedStateScope(IntEnum):
    """The checkpoints that may use the state (`CheckpointedStateScope`, by ordinal)."""

    EXCLUSIVE = 0
    SHARED = 1


@dataclass(frozen=True, slots=True)
class SegmentFileStateHandle:
    """A slice of a file that several handles share (tag 15, file merging since 1.20).

    Attributes:
        path: absolute path of the physical file.
        start: first byte of the slice.
        size: bytes of the slice.
        scope: exclusive or shared.
        logical_file_id: unique text, in practice a UUID.
    """

    path: str
    start: int
    size: int
    scope: CheckpointedStateScope
    logical_file_id: str


@dataclass(frozen=True, slots=True)
class EmptySegmentFileStateHandle:
    """A slice without bytes (tag 16)."""


@dataclass(frozen=True, slots=True)
class KeyGroupsStateHandle:
    """Keyed state in one stream, with a position per key group (tags 3 and 12).

    Flink accepts this handle also in place of a stream handle, hence its module.

    Attributes:
        key_groups: the range.
        offsets: position of each key group's section in the stream, in order; -1 = no section (raw keyed state).
        delegate: the stream.
        state_handle_id: unique text; None in handles of releases before 1.15 (tag 3).
    """

    key_groups: KeyGroupRange
    offsets: tuple[int, ...] = field(repr=False)
    delegate: StreamStateHandle
    state_handle_id: str | None = None


StreamStateHandle: TypeAlias = (
    ByteStreamStateHandle
    | FileStateHandle
    | RelativeFileStateHandle
    | SegmentFileStateHandle
    | EmptySegmentFileStateHandle
    | KeyGroupsStateHandle
)


def read_stream_handle(reader: Reader, depth: int = 0) -> StreamStateHandle:
    """Read a stream handle that must be there.

    Raises:
        FormatError: there is none, the tag is unknown, or handles are nested too deeply.
    """
    at = reader.position
    handle = read_optional_stream_handle(reader, depth)
    if handle is None:
        raise reader.error("a stream handle is missing", at)
    return handle


def read_optional_stream_handle(reader: Reader, depth: int = 0) -> StreamStateHandle | None:
    """Read a stream handle or none (tag 0).

    Raises:
        FormatError: the tag is unknown, or handles are nested too deeply.
    """
    at = reader.position
    if depth > MAX_DEPTH:
        raise reader.error(f"handles are nested more than {MAX_DEPTH} levels deep", at)
    match reader.u8():
        case HandleTag.NULL:
            return None
        case HandleTag.BYTE_STREAM:
            return ByteStreamStateHandle(reader.utf(), reader.bytes32())
        case HandleTag.FILE:
            size = read_size(reader)
            return FileStateHandle(reader.utf(), size)
        case HandleTag.RELATIVE_FILE:
            return RelativeFileStateHandle(reader.utf(), read_size(reader))
        case HandleTag.SEGMENT_FILE:
            return _read_segment(reader)
        case HandleTag.EMPTY_SEGMENT_FILE:
            return EmptySegmentFileStateHandle()
        case HandleTag.KEY_GROUPS:
            return read_key_groups_handle(reader, depth)
        case tag:
            raise reader.error(f"{tag} is not the tag of a stream handle", at)


def write_stream_handle(writer: Writer, handle: StreamStateHandle | None) -> None:
    """Write what `read_stream_handle` reads and `read_optional_stream_handle`."""
    match handle:
        case None:
            writer.u8(HandleTag.NULL)
        case ByteStreamStateHandle():
            writer.u8(HandleTag.BYTE_STREAM)
            writer.utf(handle.handle_name)
            writer.bytes32(handle.data)
        case FileStateHandle():
            writer.u8(HandleTag.FILE)
            writer.i64(handle.size)
            writer.utf(handle.path)
        case RelativeFileStateHandle():
            writer.u8(HandleTag.RELATIVE_FILE)
            writer.utf(handle.relative_path)
            writer.i64(handle.size)
        case SegmentFileStateHandle():
            _write_segment(writer, handle)
        case EmptySegmentFileStateHandle():
            writer.u8(HandleTag.EMPTY_SEGMENT_FILE)
        case KeyGroupsStateHandle():
            if handle.state_handle_id is not None:
                raise ValueRangeError("a key-groups handle in a stream field has no state handle id")
            writer.u8(HandleTag.KEY_GROUPS)
            write_key_groups_handle(writer, handle)


def read_key_groups_handle(reader: Reader, depth: int = 0) -> KeyGroupsStateHandle:
    """Read the fields after tags 3, 7 and 12: range, offsets, stream (without the state handle id of tag 12)."""
    key_groups = read_key_group_range(reader)
    offsets = read_offsets(reader, key_groups.number)
    return KeyGroupsStateHandle(key_groups, offsets, read_stream_handle(reader, depth + 1))


def write_key_groups_handle(writer: Writer, handle: KeyGroupsStateHandle) -> None:
    """Write what `read_key_groups_handle` reads."""
    if len(handle.offsets) != handle.key_groups.number:
        raise ValueRangeError(f"{len(handle.offsets)} offsets do not fit {handle.key_groups.number} key groups")
    write_key_group_range(writer, handle.key_groups)
    write_offsets(writer, handle.offsets)
    write_stream_handle(writer, handle.delegate)


def _read_segment(reader: Reader) -> SegmentFileStateHandle:
    start, size = read_size(reader), read_size(reader)
    at = reader.position
    scope = reader.i32()
    if scope not in (CheckpointedStateScope.EXCLUSIVE, CheckpointedStateScope.SHARED):
        raise reader.error(f"{scope} is not a state scope (0 exclusive, 1 shared)", at)
    return SegmentFileStateHandle(reader.utf(), start, size, CheckpointedStateScope(scope), reader.utf())


def _write_segment(writer: Writer, handle: SegmentFileStateHandle) -> None:
    writer.u8(HandleTag.SEGMENT_FILE)
    writer.i64(handle.start)
    writer.i64(handle.size)
    writer.i32(handle.scope)
    writer.utf(handle.path)
    writer.utf(handle.logical_file_id)


def read_size(reader: Reader) -> int:
    """Read an i64 that counts bytes; a negative one is an error."""
    at = reader.position
    size = reader.i64()
    if size < 0:
        raise reader.error(f"a size or position of {size} is negative", at)
    return size


def read_offsets(reader: Reader, number: int) -> tuple[int, ...]:
    """Read `number` i64 positions."""
    return struct.unpack(f">{number}q", reader.take(8 * number))


def write_offsets(writer: Writer, offsets: tuple[int, ...]) -> None:
    """Write what `read_offsets` reads; the number is not written."""
    try:
        writer.take(struct.pack(f">{len(offsets)}q", *offsets))
    except struct.error:
        raise ValueRangeError("an offset does not fit in 8 bytes") from None
