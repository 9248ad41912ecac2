"""Handles of keyed state (`org.apache.flink.runtime.state.KeyedStateHandle`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from state_pipelines.errors import ValueRangeError
from state_pipelines.metadata.handle_tags import HandleTag
from state_pipelines.metadata.key_groups import KeyGroupRange, read_key_group_range, write_key_group_range
from state_pipelines.metadata.stream_handles import (
    MAX_DEPTH,
    KeyGroupsStateHandle,
    StreamStateHandle,
    read_key_groups_handle,
    read_stream_handle,
    write_key_groups_handle,
    write_stream_handle,
)

if TYPE_CHECKING:
    from state_pipelines.binary.reader import Reader
    from state_pipelines.binary.writer import Writer


@dataclass(frozen=True, slots=True)
class KeyGroupsSavepointStateHandle:
    """Keyed state in the canonical format, with a position per key group (tag 7, since 1.13).

    Attributes:
        key_groups: the range.
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
    """The files of a RocksDB (or ForSt) directory (tags 5 and 11).

    Attributes:
        checkpoint_id: checkpoint that made the handle.
        backend_identifier: UUID text of the backend.
        key_groups: the range.
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
class StateChange:
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
        key_groups: the range.
        start: first sequence number.
        end: sequence number after the last.
        changes: the changes in order.
        state_handle_id: unique text.
    """

    key_groups: KeyGroupRange
    start: int
    end: int
    changes: tuple[StateChange, ...]
    state_handle_id: str


@dataclass(frozen=True, slots=True)
class ChangelogStream:
    """A stream of logged changes and the logical position of the change set in it."""

    offset: int
    handle: StreamStateHandle


@dataclass(frozen=True, slots=True)
class ChangelogStateHandleStream:
    """Logged changes in files (tags 10 and 13; `ChangelogStateHandleStreamImpl`).

    Attributes:
        key_groups: the range.
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
        key_groups: the range.
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
    """Read a keyed state handle or none (tag 0).

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
    """Write what `read_keyed_handle` reads; fields that are None select the older tag without them."""
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
        raise ValueRangeError("an incremental handle has both a persisted size and a state handle id, or neither")
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
        changes=tuple(StateChange(reader.i32(), reader.bytes32()) for _ in range(reader.count(8))),
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
