"""State handles of `_metadata`: of streams, keyed state, operator state and in-flight data, with their type tags."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, TypeAlias

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.errors import UsageError, ValueRangeError

if TYPE_CHECKING:
    from collections.abc import Iterator


class HandleTag(IntEnum):
    """The tag byte of a state handle; stream, keyed and operator handles share one number space."""

    NULL = 0
    BYTE_STREAM = 1
    FILE = 2
    KEY_GROUPS = 3
    PARTITIONABLE_OPERATOR = 4
    INCREMENTAL = 5
    RELATIVE_FILE = 6
    SAVEPOINT_KEY_GROUPS = 7
    CHANGELOG = 8
    CHANGELOG_BYTE_INCREMENT = 9
    CHANGELOG_FILE_INCREMENT = 10
    INCREMENTAL_V2 = 11
    KEY_GROUPS_V2 = 12
    CHANGELOG_FILE_INCREMENT_V2 = 13
    CHANGELOG_V2 = 14
    SEGMENT_FILE = 15
    EMPTY_SEGMENT_FILE = 16
    SEGMENT_PARTITIONABLE_OPERATOR = 17


class ChannelTag(IntEnum):
    """The tag byte of a channel state handle since metadata version 6."""

    INPUT_CHANNEL = 1
    RESULT_SUBPARTITION = 2
    MERGED_INPUT_CHANNEL = 3
    MERGED_RESULT_SUBPARTITION = 4


MAX_PARALLELISM = 1 << 15
"""Most key groups that Flink allows (`KeyGroupRangeAssignment.UPPER_BOUND_MAX_PARALLELISM`)."""


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """`number` key groups from `start` on; empty when `number` is 0.

    Attributes:
        start: first key group.
        number: number of key groups.
    """

    start: int
    number: int

    @property
    def end(self) -> int:
        """Last key group, inclusive as in Flink; `start - 1` when the range is empty."""
        return self.start + self.number - 1

    def __len__(self) -> int:
        """Return the number of key groups."""
        return self.number

    def __iter__(self) -> Iterator[int]:
        """Yield the key groups in order."""
        return iter(range(self.start, self.start + self.number))

    def __contains__(self, key_group: object) -> bool:
        """Return whether a key group is in the range."""
        return isinstance(key_group, int) and self.start <= key_group <= self.end

    def intersect(self, other: KeyGroupRange) -> KeyGroupRange:
        """Return the key groups in both ranges; an empty range at 0 when there are none."""
        start = max(self.start, other.start)
        number = min(self.end, other.end) - start + 1
        return KeyGroupRange(start, number) if number > 0 else KeyGroupRange(0, 0)


_LONGEST = 1000
"""Maximum characters in the text of a range of key groups; Python cannot parse numbers of several thousand digits."""


def parse_key_groups(text: str) -> KeyGroupRange:
    """Return key groups from `a-b` (both included) or `a`.

    Raises:
        UsageError: the text has another form.
    """
    first, dash, last = text.partition("-")
    last = last if dash else first
    if not (first.isdecimal() and last.isdecimal() and len(text) < _LONGEST and int(first) <= int(last)):
        raise UsageError(f"{text!r} is not a range of key groups", hint="Write it as a-b, both ends included")
    if int(last) >= MAX_PARALLELISM:
        raise UsageError(f"there is no key group {last[:20]}", hint=f"Key groups are 0 to {MAX_PARALLELISM - 1}")
    return KeyGroupRange(int(first), int(last) - int(first) + 1)


def read_key_group_range(reader: Reader) -> KeyGroupRange:
    """Read a range of key groups: its start and its number, two i32.

    Raises:
        FormatError: the range leaves the 32,768 key groups that Flink allows.
    """
    at = reader.position
    key_groups = KeyGroupRange(reader.i32(), reader.i32())
    if key_groups.start < 0 or key_groups.number < 0 or key_groups.start + key_groups.number > MAX_PARALLELISM:
        raise reader.error(
            f"{key_groups.number} key groups from {key_groups.start} on are outside 0..{MAX_PARALLELISM - 1}", at
        )
    return key_groups


def write_key_group_range(writer: Writer, key_groups: KeyGroupRange) -> None:
    """Write start and number of a range of key groups, two i32; the inverse of `read_key_group_range`."""
    writer.i32(key_groups.start)
    writer.i32(key_groups.number)


MAX_DEPTH = 8
"""Maximum nesting depth of handles; Flink itself uses two levels."""


@dataclass(frozen=True, slots=True)
class ByteStreamStateHandle:
    """State inlined in `_metadata` (tag 1).

    Attributes:
        handle_name: a name that only identifies the handle; often the path that the state would have had as a file.
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

    Flink also accepts this handle where a stream handle is expected.

    Attributes:
        key_groups: range of key groups of the state.
        offsets: position of the section of each key group in the stream, in order of the key groups; -1 where there is
            no section (raw keyed state).
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
    """Read a stream handle that must not be null (tag 0).

    Raises:
        FormatError: the handle is null, the tag is unknown, or handles are nested too deeply.
    """
    at = reader.position
    handle = read_optional_stream_handle(reader, depth)
    if handle is None:
        raise reader.error("a stream handle is missing", at)
    return handle


def read_optional_stream_handle(reader: Reader, depth: int = 0) -> StreamStateHandle | None:
    """Read a stream handle; None for a null handle (tag 0).

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
    """Write a stream handle, or tag 0 for None, as `read_optional_stream_handle` reads it."""
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
    """Write the fields after tags 3, 7 and 12; the inverse of `read_key_groups_handle`."""
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
    """Read an i64 that is a number of bytes; FormatError if it is negative."""
    at = reader.position
    size = reader.i64()
    if size < 0:
        raise reader.error(f"a size or position of {size} is negative", at)
    return size


def read_offsets(reader: Reader, number: int) -> tuple[int, ...]:
    """Read `number` i64 positions."""
    return struct.unpack(f">{number}q", reader.take(8 * number))


def write_offsets(writer: Writer, offsets: tuple[int, ...]) -> None:
    """Write i64 positions, without their number; the inverse of `read_offsets`."""
    try:
        writer.take(struct.pack(f">{len(offsets)}q", *offsets))
    except struct.error:
        raise ValueRangeError("an offset does not fit in 8 bytes") from None


@dataclass(frozen=True, slots=True)
class KeyGroupsSavepointStateHandle:
    """Keyed state in the canonical format, with a position per key group (tag 7, since 1.13).

    Attributes:
        key_groups: range of key groups of the state.
        offsets: position of each key group's section in the stream, in order.
        delegate: the stream.
    """

    key_groups: KeyGroupRange
    offsets: tuple[int, ...] = field(repr=False)
    delegate: StreamStateHandle


@dataclass(frozen=True, slots=True)
class HandleAndLocalPath:
    """A file of a RocksDB directory (`IncrementalKeyedStateHandle.HandleAndLocalPath`)."""

    local_path: str
    handle: StreamStateHandle


@dataclass(frozen=True, slots=True)
class IncrementalRemoteKeyedStateHandle:
    """The files of a RocksDB (or ForSt) database directory (tags 5 and 11).

    Attributes:
        checkpoint_id: checkpoint that made the handle.
        backend_identifier: UUID text of the backend.
        key_groups: range of key groups of the state.
        meta_data_state: the stream with key serializer and state meta infos.
        shared_state: SST files that later checkpoints may reference too.
        private_state: all other files; in a native savepoint every file.
        persisted_size: bytes that this checkpoint added; None before 1.15 (tag 5).
        state_handle_id: unique text; None before 1.15 (tag 5).
    """

    checkpoint_id: int
    backend_identifier: str
    key_groups: KeyGroupRange
    meta_data_state: StreamStateHandle
    shared_state: tuple[HandleAndLocalPath, ...]
    private_state: tuple[HandleAndLocalPath, ...]
    persisted_size: int | None = None
    state_handle_id: str | None = None


@dataclass(frozen=True, slots=True)
class LoggedChange:
    """One logged change (`org.apache.flink.runtime.state.changelog.StateChange`).

    Attributes:
        key_group: key group; -1 for a change of the state's metadata.
        change: the change as the changelog backend wrote it.
    """

    key_group: int
    change: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class InMemoryChangelogStateHandle:
    """Logged changes inlined in `_metadata` (tag 9).

    Attributes:
        key_groups: range of key groups of the state.
        start: first sequence number.
        end: sequence number after the last.
        changes: the changes in order.
        state_handle_id: unique text.
    """

    key_groups: KeyGroupRange
    start: int
    end: int
    changes: tuple[LoggedChange, ...]
    state_handle_id: str


@dataclass(frozen=True, slots=True)
class ChangelogStream:
    """A stream of logged changes, and the position of a change set in it, in uncompressed bytes."""

    offset: int
    handle: StreamStateHandle


@dataclass(frozen=True, slots=True)
class ChangelogStateHandleStream:
    """Logged changes in files (tags 10 and 13; `ChangelogStateHandleStreamImpl`).

    Attributes:
        key_groups: range of key groups of the state.
        streams: streams with the position of the change set, in uncompressed bytes after the flag byte.
        size: bytes of state.
        persisted_size: bytes that this checkpoint added.
        state_handle_id: unique text.
        storage_identifier: `filesystem` or `memory`; None before 1.16 (tag 10), equivalent to `filesystem`.
    """

    key_groups: KeyGroupRange
    streams: tuple[ChangelogStream, ...]
    size: int
    persisted_size: int
    state_handle_id: str
    storage_identifier: str | None = None


@dataclass(frozen=True, slots=True)
class ChangelogStateBackendHandle:
    """A materialized base and the changes since (tags 8 and 14; `ChangelogStateBackendHandleImpl`).

    Attributes:
        key_groups: range of key groups of the state.
        persisted_size: bytes that this checkpoint added.
        materialized: handles of the base; none before the first materialization.
        non_materialized: handles of the changes, to be replayed in order.
        materialization_id: counts materializations.
        state_handle_id: unique text.
        checkpoint_id: checkpoint that made the handle; None before 1.16 (tag 8).
    """

    key_groups: KeyGroupRange
    persisted_size: int
    materialized: tuple[KeyedStateHandle, ...]
    non_materialized: tuple[KeyedStateHandle, ...]
    materialization_id: int
    state_handle_id: str
    checkpoint_id: int | None = None


KeyedStateHandle: TypeAlias = (
    KeyGroupsStateHandle
    | KeyGroupsSavepointStateHandle
    | IncrementalRemoteKeyedStateHandle
    | InMemoryChangelogStateHandle
    | ChangelogStateHandleStream
    | ChangelogStateBackendHandle
)


def read_keyed_handle(reader: Reader, depth: int = 0) -> KeyedStateHandle | None:
    """Read a keyed state handle; None for a null handle (tag 0).

    Raises:
        FormatError: the tag is not one of keyed state, or handles are nested too deeply.
    """
    at = reader.position
    if depth > MAX_DEPTH:
        raise reader.error(f"handles are nested more than {MAX_DEPTH} levels deep", at)
    match reader.u8():
        case HandleTag.NULL:
            return None
        case HandleTag.KEY_GROUPS:
            return read_key_groups_handle(reader, depth)
        case HandleTag.KEY_GROUPS_V2:
            return replace(read_key_groups_handle(reader, depth), state_handle_id=reader.utf())
        case HandleTag.SAVEPOINT_KEY_GROUPS:
            plain = read_key_groups_handle(reader, depth)
            return KeyGroupsSavepointStateHandle(plain.key_groups, plain.offsets, plain.delegate)
        case HandleTag.INCREMENTAL:
            return _read_incremental(reader, v2=False)
        case HandleTag.INCREMENTAL_V2:
            return _read_incremental(reader, v2=True)
        case HandleTag.CHANGELOG:
            return _read_changelog(reader, depth, v2=False)
        case HandleTag.CHANGELOG_V2:
            return _read_changelog(reader, depth, v2=True)
        case HandleTag.CHANGELOG_BYTE_INCREMENT:
            return _read_in_memory_changelog(reader)
        case HandleTag.CHANGELOG_FILE_INCREMENT:
            return _read_changelog_streams(reader, v2=False)
        case HandleTag.CHANGELOG_FILE_INCREMENT_V2:
            return _read_changelog_streams(reader, v2=True)
        case tag:
            raise reader.error(f"{tag} is not the tag of a keyed state handle", at)


def write_keyed_handle(writer: Writer, handle: KeyedStateHandle | None) -> None:
    """Write a keyed state handle or None; if its newer fields are None, it gets the older tag without them."""
    match handle:
        case None:
            writer.u8(HandleTag.NULL)
        case KeyGroupsStateHandle(state_handle_id=None):
            writer.u8(HandleTag.KEY_GROUPS)
            write_key_groups_handle(writer, handle)
        case KeyGroupsStateHandle(state_handle_id=str(state_handle_id)):
            writer.u8(HandleTag.KEY_GROUPS_V2)
            write_key_groups_handle(writer, handle)
            writer.utf(state_handle_id)
        case KeyGroupsSavepointStateHandle():
            writer.u8(HandleTag.SAVEPOINT_KEY_GROUPS)
            write_key_groups_handle(writer, KeyGroupsStateHandle(handle.key_groups, handle.offsets, handle.delegate))
        case IncrementalRemoteKeyedStateHandle():
            _write_incremental(writer, handle)
        case ChangelogStateBackendHandle():
            _write_changelog(writer, handle)
        case InMemoryChangelogStateHandle():
            _write_in_memory_changelog(writer, handle)
        case ChangelogStateHandleStream():
            _write_changelog_streams(writer, handle)


def _read_incremental(reader: Reader, *, v2: bool) -> IncrementalRemoteKeyedStateHandle:
    checkpoint_id = reader.i64()
    backend_identifier = reader.utf()
    key_groups = read_key_group_range(reader)
    persisted_size = reader.i64() if v2 else None
    return IncrementalRemoteKeyedStateHandle(
        checkpoint_id=checkpoint_id,
        backend_identifier=backend_identifier,
        key_groups=key_groups,
        persisted_size=persisted_size,
        meta_data_state=read_stream_handle(reader),
        shared_state=_read_files(reader),
        private_state=_read_files(reader),
        state_handle_id=reader.utf() if v2 else None,
    )


def _write_incremental(writer: Writer, handle: IncrementalRemoteKeyedStateHandle) -> None:
    size, identifier = handle.persisted_size, handle.state_handle_id
    if (size is None) != (identifier is None):
        raise ValueRangeError("an incremental handle needs both a persisted size and a state handle id, or neither")
    writer.u8(HandleTag.INCREMENTAL if size is None else HandleTag.INCREMENTAL_V2)
    writer.i64(handle.checkpoint_id)
    writer.utf(handle.backend_identifier)
    write_key_group_range(writer, handle.key_groups)
    if size is not None:
        writer.i64(size)
    write_stream_handle(writer, handle.meta_data_state)
    _write_files(writer, handle.shared_state)
    _write_files(writer, handle.private_state)
    if identifier is not None:
        writer.utf(identifier)


def _read_files(reader: Reader) -> tuple[HandleAndLocalPath, ...]:
    return tuple(HandleAndLocalPath(reader.utf(), read_stream_handle(reader)) for _ in range(reader.count(3)))


def _write_files(writer: Writer, files: tuple[HandleAndLocalPath, ...]) -> None:
    writer.i32(len(files))
    for file in files:
        writer.utf(file.local_path)
        write_stream_handle(writer, file.handle)


def _read_changelog(reader: Reader, depth: int, *, v2: bool) -> ChangelogStateBackendHandle:
    return ChangelogStateBackendHandle(
        key_groups=read_key_group_range(reader),
        persisted_size=reader.i64(),
        materialized=_read_handles(reader, depth),
        non_materialized=_read_handles(reader, depth),
        materialization_id=reader.i64(),
        checkpoint_id=reader.i64() if v2 else None,
        state_handle_id=reader.utf(),
    )


def _write_changelog(writer: Writer, handle: ChangelogStateBackendHandle) -> None:
    v2 = handle.checkpoint_id is not None
    writer.u8(HandleTag.CHANGELOG_V2 if v2 else HandleTag.CHANGELOG)
    write_key_group_range(writer, handle.key_groups)
    writer.i64(handle.persisted_size)
    for handles in (handle.materialized, handle.non_materialized):
        writer.i32(len(handles))
        for nested in handles:
            write_keyed_handle(writer, nested)
    writer.i64(handle.materialization_id)
    if handle.checkpoint_id is not None:
        writer.i64(handle.checkpoint_id)
    writer.utf(handle.state_handle_id)


def _read_handles(reader: Reader, depth: int) -> tuple[KeyedStateHandle, ...]:
    handles = []
    for _ in range(reader.count()):
        at = reader.position
        handle = read_keyed_handle(reader, depth + 1)
        if handle is None:
            raise reader.error("a nested handle of a changelog handle is missing", at)
        handles.append(handle)
    return tuple(handles)


def _read_in_memory_changelog(reader: Reader) -> InMemoryChangelogStateHandle:
    return InMemoryChangelogStateHandle(
        key_groups=read_key_group_range(reader),
        start=reader.i64(),
        end=reader.i64(),
        changes=tuple(LoggedChange(reader.i32(), reader.bytes32()) for _ in range(reader.count(8))),
        state_handle_id=reader.utf(),
    )


def _write_in_memory_changelog(writer: Writer, handle: InMemoryChangelogStateHandle) -> None:
    writer.u8(HandleTag.CHANGELOG_BYTE_INCREMENT)
    write_key_group_range(writer, handle.key_groups)
    writer.i64(handle.start)
    writer.i64(handle.end)
    writer.i32(len(handle.changes))
    for change in handle.changes:
        writer.i32(change.key_group)
        writer.bytes32(change.change)
    writer.utf(handle.state_handle_id)


def _read_changelog_streams(reader: Reader, *, v2: bool) -> ChangelogStateHandleStream:
    return ChangelogStateHandleStream(
        key_groups=read_key_group_range(reader),
        streams=tuple(ChangelogStream(reader.i64(), read_stream_handle(reader)) for _ in range(reader.count(9))),
        size=reader.i64(),
        persisted_size=reader.i64(),
        state_handle_id=reader.utf(),
        storage_identifier=reader.utf() if v2 else None,
    )


def _write_changelog_streams(writer: Writer, handle: ChangelogStateHandleStream) -> None:
    identifier = handle.storage_identifier
    writer.u8(HandleTag.CHANGELOG_FILE_INCREMENT if identifier is None else HandleTag.CHANGELOG_FILE_INCREMENT_V2)
    write_key_group_range(writer, handle.key_groups)
    writer.i32(len(handle.streams))
    for stream in handle.streams:
        writer.i64(stream.offset)
        write_stream_handle(writer, stream.handle)
    writer.i64(handle.size)
    writer.i64(handle.persisted_size)
    writer.utf(handle.state_handle_id)
    if identifier is not None:
        writer.utf(identifier)


class OperatorStateMode(IntEnum):
    """The way Flink distributes the elements of a state to new subtasks (`OperatorStateHandle.Mode`, by ordinal)."""

    SPLIT_DISTRIBUTE = 0
    UNION = 1
    BROADCAST = 2


@dataclass(frozen=True, slots=True)
class OperatorStateMetaInfo:
    """Offsets of the elements of one named state (`OperatorStateHandle.StateMetaInfo`).

    Attributes:
        state_name: name of the state; `_default_` for raw operator state.
        mode: distribution mode.
        offsets: position of each element in the stream; one for a broadcast state.
    """

    state_name: str
    mode: OperatorStateMode
    offsets: tuple[int, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class OperatorStreamStateHandle:
    """Operator state of one subtask in one stream (tag 4)."""

    states: tuple[OperatorStateMetaInfo, ...]
    delegate: StreamStateHandle


@dataclass(frozen=True, slots=True)
class FileMergingOperatorStreamStateHandle:
    """Operator state of one subtask in a slice of a merged file (tag 17, since 1.20).

    Attributes:
        states: the named states.
        task_owned_directory: directory of the merged files of this task.
        shared_directory: directory of the merged shared files.
        is_empty: no file was written.
        delegate: the slice.
    """

    states: tuple[OperatorStateMetaInfo, ...]
    task_owned_directory: str
    shared_directory: str
    is_empty: bool
    delegate: SegmentFileStateHandle | EmptySegmentFileStateHandle


OperatorStateHandle: TypeAlias = OperatorStreamStateHandle | FileMergingOperatorStreamStateHandle


def read_operator_handle(reader: Reader) -> OperatorStateHandle | None:
    """Read an operator state handle; None for a null handle (tag 0).

    Raises:
        FormatError: the tag, a mode or the kind of the stream is not allowed here.
    """
    at = reader.position
    match reader.u8():
        case HandleTag.NULL:
            return None
        case HandleTag.PARTITIONABLE_OPERATOR:
            return OperatorStreamStateHandle(_read_states(reader), read_stream_handle(reader))
        case HandleTag.SEGMENT_PARTITIONABLE_OPERATOR:
            return _read_file_merging_handle(reader)
        case tag:
            raise reader.error(f"{tag} is not the tag of an operator state handle", at)


def write_operator_handle(writer: Writer, handle: OperatorStateHandle | None) -> None:
    """Write an operator state handle or None; the inverse of `read_operator_handle`."""
    match handle:
        case None:
            writer.u8(HandleTag.NULL)
        case OperatorStreamStateHandle():
            writer.u8(HandleTag.PARTITIONABLE_OPERATOR)
            _write_states(writer, handle.states)
            write_stream_handle(writer, handle.delegate)
        case FileMergingOperatorStreamStateHandle():
            writer.u8(HandleTag.SEGMENT_PARTITIONABLE_OPERATOR)
            _write_states(writer, handle.states)
            writer.utf(handle.task_owned_directory)
            writer.utf(handle.shared_directory)
            writer.bool(handle.is_empty)
            write_stream_handle(writer, handle.delegate)


def _read_file_merging_handle(reader: Reader) -> FileMergingOperatorStreamStateHandle:
    states = _read_states(reader)
    task_owned_directory, shared_directory, is_empty = reader.utf(), reader.utf(), reader.bool()
    at = reader.position
    delegate = read_stream_handle(reader)
    if not isinstance(delegate, SegmentFileStateHandle | EmptySegmentFileStateHandle):
        raise reader.error("a file-merging operator state handle needs a segment of a file", at)
    return FileMergingOperatorStreamStateHandle(states, task_owned_directory, shared_directory, is_empty, delegate)


def _read_states(reader: Reader) -> tuple[OperatorStateMetaInfo, ...]:
    return tuple(_read_state(reader) for _ in range(reader.count(7)))


def _read_state(reader: Reader) -> OperatorStateMetaInfo:
    name = reader.utf()
    at = reader.position
    mode = reader.u8()
    if mode > OperatorStateMode.BROADCAST:
        raise reader.error(f"{mode} is not a distribution mode (0 split, 1 union, 2 broadcast)", at)
    return OperatorStateMetaInfo(name, OperatorStateMode(mode), read_offsets(reader, reader.count(8)))


def _write_states(writer: Writer, states: tuple[OperatorStateMetaInfo, ...]) -> None:
    names = {state.state_name for state in states}
    if len(names) != len(states):
        # Flink reads the states into a map, so of two states with the same name only the last would be restored.
        raise ValueRangeError("a state name occurs twice in one operator state handle")
    writer.i32(len(states))
    for state in states:
        writer.utf(state.state_name)
        writer.u8(state.mode)
        writer.i32(len(state.offsets))
        write_offsets(writer, state.offsets)


class ChannelDirection(Enum):
    """Direction of in-flight data; the value is (tag of a handle of one channel, tag of a merged handle)."""

    INPUT = (ChannelTag.INPUT_CHANNEL, ChannelTag.MERGED_INPUT_CHANNEL)
    OUTPUT = (ChannelTag.RESULT_SUBPARTITION, ChannelTag.MERGED_RESULT_SUBPARTITION)


@dataclass(frozen=True, slots=True)
class ChannelInfo:
    """One channel of a subtask (`InputChannelInfo` or `ResultSubpartitionInfo`, depending on the list).

    Attributes:
        group: index of the input gate or of the result partition.
        channel: index of the channel in the gate or of the subpartition.
    """

    group: int
    channel: int


@dataclass(frozen=True, slots=True)
class ChannelState:
    """The offsets of the buffers of one channel in a stream.

    Attributes:
        info: the channel.
        offsets: position of each buffer in the stream, where an i32 length precedes its bytes.
        state_size: bytes of the buffers, including their lengths.
    """

    info: ChannelInfo
    offsets: tuple[int, ...] = field(repr=False)
    state_size: int


@dataclass(frozen=True, slots=True)
class ChannelStateHandle:
    """In-flight data of one channel (`InputChannelStateHandle`, `ResultSubpartitionStateHandle`)."""

    subtask_index: int
    state: ChannelState
    delegate: StreamStateHandle


@dataclass(frozen=True, slots=True)
class MergedChannelStateHandle:
    """In-flight data of all channels of one direction (`MergedInputChannelStateHandle` and its twin, version 6)."""

    subtask_index: int
    state_size: int
    delegate: StreamStateHandle
    states: tuple[ChannelState, ...]


def read_channel_handles(
    reader: Reader, direction: ChannelDirection, version: int
) -> tuple[ChannelStateHandle | MergedChannelStateHandle, ...]:
    """Read a count and the channel state handles of one direction.

    Args:
        reader: the cursor.
        direction: direction of the channels.
        version: metadata version; since 6, each handle has a tag.

    Raises:
        FormatError: a tag does not belong to this direction.
    """
    read = _read_tagged if version >= 6 else _read_untagged
    return tuple(read(reader, direction) for _ in range(reader.count()))


def write_channel_handles(
    writer: Writer,
    handles: tuple[ChannelStateHandle | MergedChannelStateHandle, ...],
    direction: ChannelDirection,
    version: int,
) -> None:
    """Write a count and the channel state handles of one direction; the inverse of `read_channel_handles`.

    Raises:
        ValueRangeError: a merged handle for a version before 6.
    """
    single, merged = direction.value
    writer.i32(len(handles))
    for handle in handles:
        if version >= 6:
            writer.u8(merged if isinstance(handle, MergedChannelStateHandle) else single)
        elif isinstance(handle, MergedChannelStateHandle):
            raise ValueRangeError(f"metadata version {version} has no merged channel state, version 6 has")
        if isinstance(handle, MergedChannelStateHandle):
            _write_merged(writer, handle)
        else:
            _write_single(writer, handle)


def _read_untagged(reader: Reader, direction: ChannelDirection) -> ChannelStateHandle:
    del direction
    subtask_index = reader.i32()
    info = _read_info(reader)
    offsets = read_offsets(reader, reader.count(8))
    state = ChannelState(info, offsets, read_size(reader))
    return ChannelStateHandle(subtask_index, state, read_stream_handle(reader))


def _read_tagged(reader: Reader, direction: ChannelDirection) -> ChannelStateHandle | MergedChannelStateHandle:
    at = reader.position
    tag = reader.u8()
    single, merged = direction.value
    if tag == single:
        return _read_untagged(reader, direction)
    if tag == merged:
        return _read_merged(reader)
    raise reader.error(f"{tag} is not the tag of a channel state handle of direction {direction.name}", at)


def _write_single(writer: Writer, handle: ChannelStateHandle) -> None:
    writer.i32(handle.subtask_index)
    _write_info(writer, handle.state.info)
    writer.i32(len(handle.state.offsets))
    write_offsets(writer, handle.state.offsets)
    writer.i64(handle.state.state_size)
    write_stream_handle(writer, handle.delegate)


def _read_merged(reader: Reader) -> MergedChannelStateHandle:
    subtask_index = reader.i32()
    state_size = read_size(reader)
    delegate = read_stream_handle(reader)
    size = reader.count()
    blob = Reader(reader.data, reader.name, reader.position, reader.position + size)
    states = tuple(_read_merged_state(blob) for _ in range(blob.count(20)))
    blob.expect_end("the merged channel states")
    reader.skip(size)
    return MergedChannelStateHandle(subtask_index, state_size, delegate, states)


def _write_merged(writer: Writer, handle: MergedChannelStateHandle) -> None:
    blob = Writer()
    blob.i32(len(handle.states))
    for state in handle.states:
        _write_info(blob, state.info)
        blob.i64(state.state_size)
        blob.i32(len(state.offsets))
        write_offsets(blob, state.offsets)
    writer.i32(handle.subtask_index)
    writer.i64(handle.state_size)
    write_stream_handle(writer, handle.delegate)
    writer.bytes32(blob.getvalue())


def _read_merged_state(reader: Reader) -> ChannelState:
    info = _read_info(reader)
    state_size = read_size(reader)
    return ChannelState(info, read_offsets(reader, reader.count(8)), state_size)


def _read_info(reader: Reader) -> ChannelInfo:
    return ChannelInfo(reader.i32(), reader.i32())


def _write_info(writer: Writer, info: ChannelInfo) -> None:
    writer.i32(info.group)
    writer.i32(info.channel)
