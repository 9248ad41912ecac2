"""Every stream that a `_metadata` file references, with its role; for inventory, copying and retention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from state_pipelines.errors import ValueRangeError
from state_pipelines.metadata.checkpoint import CheckpointMetadata, OperatorState, SubtaskState
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    ChangelogStateBackendHandle,
    ChangelogStateHandleStream,
    EmptySegmentFileStateHandle,
    FileMergingOperatorStreamStateHandle,
    HandleAndLocalPath,
    IncrementalRemoteKeyedStateHandle,
    InMemoryChangelogStateHandle,
    KeyedStateHandle,
    KeyGroupsStateHandle,
    OperatorStateHandle,
    OperatorStreamStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.metadata.handles import ChannelStateHandle, MergedChannelStateHandle


class StateCategory(Enum):
    """The field of an operator or subtask that a stream belongs to."""

    COORDINATOR = "coordinator"
    MANAGED_OPERATOR = "managed operator"
    RAW_OPERATOR = "raw operator"
    MANAGED_KEYED = "managed keyed"
    RAW_KEYED = "raw keyed"
    INPUT_CHANNEL = "input channel"
    RESULT_SUBPARTITION = "result subpartition"


class StreamRole(Enum):
    """The role of a stream inside its handle."""

    STATE = "state"
    """The whole state of the handle."""
    META_DATA = "meta data"
    """Key serializer and state meta infos of an incremental handle."""
    SHARED = "shared"
    """A file of an incremental handle that other checkpoints may reference."""
    PRIVATE = "private"
    """A file of an incremental handle that belongs to this checkpoint."""
    CHANGES = "changes"
    """Logged changes."""


@dataclass(frozen=True, slots=True)
class StreamReference:
    """A stream handle and its role.

    Attributes:
        handle: the stream; never a `KeyGroupsStateHandle`, those are looked through.
        operator: the operator.
        subtask_index: the subtask; None for coordinator state.
        category: the kind of state.
        role: the role of the stream inside its handle.
        local_path: file name inside the RocksDB directory, for `SHARED` and `PRIVATE`.
    """

    handle: StreamStateHandle
    operator: OperatorState
    subtask_index: int | None
    category: StateCategory
    role: StreamRole
    local_path: str | None = None


Replacement: TypeAlias = Callable[[StreamReference], StreamStateHandle]


def list_references(metadata: CheckpointMetadata) -> list[StreamReference]:
    """Return every stream handle of a snapshot, in the order of the file; a stream referenced twice comes twice.

    Logged changes inlined in `InMemoryChangelogStateHandle` are no stream and do not come.
    """
    return [reference for operator in metadata.operator_states for reference in operator_handles(operator)]


def operator_handles(operator: OperatorState) -> Iterator[StreamReference]:
    """Yield the stream handles of one operator, like `list_references`."""
    if operator.coordinator_state is not None:
        yield StreamReference(operator.coordinator_state, operator, None, StateCategory.COORDINATOR, StreamRole.STATE)
    for subtask in operator.subtasks:
        for category, handle in (
            (StateCategory.MANAGED_OPERATOR, subtask.managed_operator_state),
            (StateCategory.RAW_OPERATOR, subtask.raw_operator_state),
        ):
            if handle is not None:
                yield _refer(handle.delegate, operator, subtask, category)
        for category, keyed in (
            (StateCategory.MANAGED_KEYED, subtask.managed_keyed_state),
            (StateCategory.RAW_KEYED, subtask.raw_keyed_state),
        ):
            if keyed is not None:
                for stream, role, local_path in _iter_keyed(keyed):
                    yield _refer(stream, operator, subtask, category, role, local_path)
        for category, channels in (
            (StateCategory.INPUT_CHANNEL, subtask.input_channel_state),
            (StateCategory.RESULT_SUBPARTITION, subtask.result_subpartition_state),
        ):
            for channel in channels:
                yield _refer(channel.delegate, operator, subtask, category)


def _refer(
    handle: StreamStateHandle,
    operator: OperatorState,
    subtask: SubtaskState,
    category: StateCategory,
    role: StreamRole = StreamRole.STATE,
    local_path: str | None = None,
) -> StreamReference:
    return StreamReference(_look_through(handle), operator, subtask.index, category, role, local_path)


def list_keyed_streams(handle: KeyedStateHandle) -> list[StreamStateHandle]:
    """Return the streams of one keyed handle, like `list_references`."""
    return [_look_through(stream) for stream, _, _ in _iter_keyed(handle)]


def _look_through(handle: StreamStateHandle) -> StreamStateHandle:
    while isinstance(handle, KeyGroupsStateHandle):
        handle = handle.delegate
    return handle


def _iter_keyed(handle: KeyedStateHandle) -> Iterator[tuple[StreamStateHandle, StreamRole, str | None]]:
    """Yield the streams of a handle in order, with their roles and local paths."""
    match handle:
        case IncrementalRemoteKeyedStateHandle():
            yield handle.meta_data_state, StreamRole.META_DATA, None
            for role, files in ((StreamRole.SHARED, handle.shared_state), (StreamRole.PRIVATE, handle.private_state)):
                for file in files:
                    yield file.handle, role, file.local_path
        case ChangelogStateBackendHandle():
            for each in (*handle.materialized, *handle.non_materialized):
                yield from _iter_keyed(each)
        case ChangelogStateHandleStream():
            for stream in handle.streams:
                yield stream.handle, StreamRole.CHANGES, None
        case InMemoryChangelogStateHandle():
            pass
        case _:
            yield handle.delegate, StreamRole.STATE, None


def replace_stream_handles(metadata: CheckpointMetadata, replacement: Replacement) -> CheckpointMetadata:
    """Return the snapshot with every stream handle replaced by what `replacement` returns for it.

    File-merging operator state turns into ordinary operator state when its segment is replaced by another kind of
    stream, since Flink allows only segments there.

    Args:
        metadata: the snapshot.
        replacement: called once per stream handle, in the order of `list_references`; returns the handle to put there.

    Raises:
        ValueRangeError: coordinator state would not be inlined any more.
    """
    operators = tuple(_replace_in_operator(operator, replacement) for operator in metadata.operator_states)
    return metadata if _same(operators, metadata.operator_states) else replace(metadata, operator_states=operators)


@dataclass(frozen=True, slots=True)
class _Visit:
    """The current handle of the walk."""

    replacement: Replacement
    operator: OperatorState
    subtask_index: int | None
    category: StateCategory

    def stream(
        self, handle: StreamStateHandle, role: StreamRole = StreamRole.STATE, local_path: str | None = None
    ) -> StreamStateHandle:
        if isinstance(handle, KeyGroupsStateHandle):
            delegate = self.stream(handle.delegate, role, local_path)
            return handle if delegate is handle.delegate else replace(handle, delegate=delegate)
        reference = StreamReference(handle, self.operator, self.subtask_index, self.category, role, local_path)
        return self.replacement(reference)

    def files(self, files: tuple[HandleAndLocalPath, ...], role: StreamRole) -> tuple[HandleAndLocalPath, ...]:
        new = tuple(self._file(file, role) for file in files)
        return files if _same(new, files) else new

    def _file(self, file: HandleAndLocalPath, role: StreamRole) -> HandleAndLocalPath:
        handle = self.stream(file.handle, role, file.local_path)
        return file if handle is file.handle else HandleAndLocalPath(file.local_path, handle)


def _replace_in_operator(operator: OperatorState, replacement: Replacement) -> OperatorState:
    coordinator = operator.coordinator_state
    if coordinator is not None:
        visit = _Visit(replacement, operator, None, StateCategory.COORDINATOR)
        handle = visit.stream(coordinator)
        if not isinstance(handle, ByteStreamStateHandle):
            raise ValueRangeError("coordinator state must stay inlined, Flink refuses any other handle")
        coordinator = handle
    subtasks = tuple(_replace_in_subtask(operator, subtask, replacement) for subtask in operator.subtasks)
    if coordinator is operator.coordinator_state and _same(subtasks, operator.subtasks):
        return operator
    return replace(operator, coordinator_state=coordinator, subtasks=subtasks)


def _replace_in_subtask(operator: OperatorState, subtask: SubtaskState, replacement: Replacement) -> SubtaskState:
    def visit(category: StateCategory) -> _Visit:
        return _Visit(replacement, operator, subtask.index, category)

    new = SubtaskState(
        subtask.index,
        subtask.finished,
        _replace_in_operator_handle(subtask.managed_operator_state, visit(StateCategory.MANAGED_OPERATOR)),
        _replace_in_operator_handle(subtask.raw_operator_state, visit(StateCategory.RAW_OPERATOR)),
        _replace_in_optional_keyed_handle(subtask.managed_keyed_state, visit(StateCategory.MANAGED_KEYED)),
        _replace_in_optional_keyed_handle(subtask.raw_keyed_state, visit(StateCategory.RAW_KEYED)),
        _replace_in_channels(subtask.input_channel_state, visit(StateCategory.INPUT_CHANNEL)),
        _replace_in_channels(subtask.result_subpartition_state, visit(StateCategory.RESULT_SUBPARTITION)),
        subtask.reference_checkpoint_id,
    )
    unchanged = (
        new.managed_operator_state is subtask.managed_operator_state
        and new.raw_operator_state is subtask.raw_operator_state
        and new.managed_keyed_state is subtask.managed_keyed_state
        and new.raw_keyed_state is subtask.raw_keyed_state
        and _same(new.input_channel_state, subtask.input_channel_state)
        and _same(new.result_subpartition_state, subtask.result_subpartition_state)
    )
    return subtask if unchanged else new


def _replace_in_operator_handle(handle: OperatorStateHandle | None, visit: _Visit) -> OperatorStateHandle | None:
    if handle is None:
        return None
    delegate = visit.stream(handle.delegate)
    if delegate is handle.delegate:
        return handle
    if isinstance(handle, FileMergingOperatorStreamStateHandle) and isinstance(
        delegate, SegmentFileStateHandle | EmptySegmentFileStateHandle
    ):
        return replace(handle, delegate=delegate)
    return OperatorStreamStateHandle(handle.states, delegate)


def _replace_in_optional_keyed_handle(handle: KeyedStateHandle | None, visit: _Visit) -> KeyedStateHandle | None:
    return None if handle is None else _replace_in_keyed_handle(handle, visit)


def _replace_in_keyed_handle(handle: KeyedStateHandle, visit: _Visit) -> KeyedStateHandle:
    match handle:
        case IncrementalRemoteKeyedStateHandle():
            return _replace_in_incremental(handle, visit)
        case ChangelogStateBackendHandle():
            materialized = tuple(_replace_in_keyed_handle(each, visit) for each in handle.materialized)
            changes = tuple(_replace_in_keyed_handle(each, visit) for each in handle.non_materialized)
            if _same(materialized, handle.materialized) and _same(changes, handle.non_materialized):
                return handle
            return replace(handle, materialized=materialized, non_materialized=changes)
        case ChangelogStateHandleStream():
            return _replace_in_changelog_streams(handle, visit)
        case InMemoryChangelogStateHandle():
            return handle
        case _:
            delegate = visit.stream(handle.delegate)
            return handle if delegate is handle.delegate else replace(handle, delegate=delegate)


def _replace_in_incremental(
    handle: IncrementalRemoteKeyedStateHandle, visit: _Visit
) -> IncrementalRemoteKeyedStateHandle:
    meta_data = visit.stream(handle.meta_data_state, StreamRole.META_DATA)
    shared = visit.files(handle.shared_state, StreamRole.SHARED)
    private = visit.files(handle.private_state, StreamRole.PRIVATE)
    if meta_data is handle.meta_data_state and shared is handle.shared_state and private is handle.private_state:
        return handle
    return replace(handle, meta_data_state=meta_data, shared_state=shared, private_state=private)


def _replace_in_changelog_streams(handle: ChangelogStateHandleStream, visit: _Visit) -> ChangelogStateHandleStream:
    handles = tuple(visit.stream(stream.handle, StreamRole.CHANGES) for stream in handle.streams)
    if _same(handles, tuple(stream.handle for stream in handle.streams)):
        return handle
    streams = zip(handle.streams, handles, strict=True)
    return replace(handle, streams=tuple(replace(stream, handle=new) for stream, new in streams))


def _replace_in_channels(
    handles: tuple[ChannelStateHandle | MergedChannelStateHandle, ...], visit: _Visit
) -> tuple[ChannelStateHandle | MergedChannelStateHandle, ...]:
    delegates = tuple(visit.stream(handle.delegate) for handle in handles)
    pairs = zip(handles, delegates, strict=True)
    return tuple(old if new is old.delegate else replace(old, delegate=new) for old, new in pairs)


def _same(new: tuple[object, ...], old: tuple[object, ...]) -> bool:
    return all(a is b for a, b in zip(new, old, strict=True))
