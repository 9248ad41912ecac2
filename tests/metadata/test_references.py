from __future__ import annotations

from dataclasses import replace

import pytest

from state_pipelines.errors import ValueRangeError
from state_pipelines.metadata.checkpoint import CheckpointMetadata, OperatorState, SubtaskState
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    ChangelogStateBackendHandle,
    ChangelogStateHandleStream,
    ChangelogStream,
    ChannelInfo,
    ChannelState,
    ChannelStateHandle,
    CheckpointedStateScope,
    FileMergingOperatorStreamStateHandle,
    FileStateHandle,
    HandleAndLocalPath,
    IncrementalRemoteKeyedStateHandle,
    InMemoryChangelogStateHandle,
    KeyGroupRange,
    KeyGroupsSavepointStateHandle,
    KeyGroupsStateHandle,
    OperatorStreamStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from state_pipelines.metadata.streams import (
    StateCategory,
    StreamReference,
    StreamRole,
    list_references,
    replace_stream_handles,
)

ALL = KeyGroupRange(0, 1)
SEGMENT = SegmentFileStateHandle("/s", 0, 6, CheckpointedStateScope.EXCLUSIVE, "id")


def file(name: str) -> RelativeFileStateHandle:
    return RelativeFileStateHandle(name, 1)


INCREMENTAL = IncrementalRemoteKeyedStateHandle(
    1, "u", ALL, file("meta"), (HandleAndLocalPath("1.sst", file("s")),), (HandleAndLocalPath("CURRENT", file("p")),)
)
CHANGELOG = ChangelogStateBackendHandle(
    ALL,
    0,
    (INCREMENTAL,),
    (
        ChangelogStateHandleStream(ALL, (ChangelogStream(3, file("log")),), 1, 1, "i"),
        InMemoryChangelogStateHandle(ALL, 0, 0, (), "i"),
    ),
    1,
    "i",
)
CHANNEL = ChannelStateHandle(0, ChannelState(ChannelInfo(0, 0), (4,), 5), file("channel"))
OPERATOR = OperatorState(
    b"o" * 16,
    2,
    1,
    (
        SubtaskState(
            0,
            managed_operator_state=FileMergingOperatorStreamStateHandle((), "t", "s", False, SEGMENT),
            raw_operator_state=OperatorStreamStateHandle((), file("raw operator")),
            managed_keyed_state=CHANGELOG,
            raw_keyed_state=KeyGroupsStateHandle(ALL, (0,), file("raw keyed"), "i"),
            input_channel_state=(CHANNEL,),
            result_subpartition_state=(replace(CHANNEL, delegate=file("subpartition")),),
        ),
        SubtaskState(1, managed_keyed_state=KeyGroupsSavepointStateHandle(ALL, (0,), file("savepoint"))),
    ),
    coordinator_state=ByteStreamStateHandle("c", b"x"),
)
METADATA = CheckpointMetadata(6, 1, (), (OPERATOR,), b"")


def mark(reference: StreamReference) -> StreamStateHandle:
    handle = reference.handle
    return replace(handle, relative_path="new") if isinstance(handle, RelativeFileStateHandle) else handle


def test_every_stream_comes_with_its_role() -> None:
    assert [
        (reference.category, reference.role, reference.subtask_index, reference.handle)
        for reference in list_references(METADATA)
    ] == [
        (StateCategory.COORDINATOR, StreamRole.STATE, None, ByteStreamStateHandle("c", b"x")),
        (StateCategory.MANAGED_OPERATOR, StreamRole.STATE, 0, SEGMENT),
        (StateCategory.RAW_OPERATOR, StreamRole.STATE, 0, file("raw operator")),
        (StateCategory.MANAGED_KEYED, StreamRole.META_DATA, 0, file("meta")),
        (StateCategory.MANAGED_KEYED, StreamRole.SHARED, 0, file("s")),
        (StateCategory.MANAGED_KEYED, StreamRole.PRIVATE, 0, file("p")),
        (StateCategory.MANAGED_KEYED, StreamRole.CHANGES, 0, file("log")),
        (StateCategory.RAW_KEYED, StreamRole.STATE, 0, file("raw keyed")),
        (StateCategory.INPUT_CHANNEL, StreamRole.STATE, 0, file("channel")),
        (StateCategory.RESULT_SUBPARTITION, StreamRole.STATE, 0, file("subpartition")),
        (StateCategory.MANAGED_KEYED, StreamRole.STATE, 1, file("savepoint")),
    ]


def test_files_of_rocksdb_come_with_their_names() -> None:
    assert [reference.local_path for reference in list_references(METADATA) if reference.local_path] == [
        "1.sst",
        "CURRENT",
    ]


def test_every_replaced_stream_is_there_afterwards() -> None:
    changed = replace_stream_handles(METADATA, mark)
    assert [getattr(reference.handle, "relative_path", "kept") for reference in list_references(changed)] == [
        "kept",
        "kept",
        *["new"] * 9,
    ]


def test_replacing_nothing_gives_the_same_value() -> None:
    assert replace_stream_handles(METADATA, lambda reference: reference.handle) is METADATA


def test_what_surrounds_a_stream_is_kept() -> None:
    changed = replace_stream_handles(METADATA, mark)
    handle = changed.operator_states[0].subtasks[0].raw_keyed_state
    assert handle == KeyGroupsStateHandle(ALL, (0,), file("new"), "i")


def test_stream_inside_a_key_groups_stream_is_looked_through() -> None:
    nested = KeyGroupsStateHandle(ALL, (0,), KeyGroupsStateHandle(ALL, (0,), file("inner")))
    metadata = CheckpointMetadata(
        3, 1, (), (OperatorState(b"o" * 16, 1, 1, (SubtaskState(0, raw_keyed_state=nested),)),)
    )
    assert [reference.handle for reference in list_references(metadata)] == [file("inner")]


def test_merged_operator_state_turns_into_ordinary_operator_state() -> None:
    changed = replace_stream_handles(
        METADATA, lambda reference: file("copy") if reference.handle == SEGMENT else reference.handle
    )
    assert changed.operator_states[0].subtasks[0].managed_operator_state == OperatorStreamStateHandle((), file("copy"))


def test_coordinator_state_must_stay_inlined() -> None:
    with pytest.raises(ValueRangeError, match="coordinator state must stay inlined"):
        replace_stream_handles(METADATA, lambda _: FileStateHandle("/f", 1))


def test_streams_come_in_the_order_in_which_they_are_replaced() -> None:
    replaced: list[StreamReference] = []

    def note(reference: StreamReference) -> StreamStateHandle:
        replaced.append(reference)
        return reference.handle

    replace_stream_handles(METADATA, note)
    assert list_references(METADATA) == replaced
