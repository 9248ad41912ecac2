"""One handle of every tag: literal bytes, the value, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.errors import FormatError, ValueRangeError
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    ChangelogStateBackendHandle,
    ChangelogStateHandleStream,
    ChangelogStream,
    ChannelDirection,
    ChannelInfo,
    ChannelState,
    ChannelStateHandle,
    CheckpointedStateScope,
    EmptySegmentFileStateHandle,
    FileMergingOperatorStreamStateHandle,
    FileStateHandle,
    HandleAndLocalPath,
    IncrementalRemoteKeyedStateHandle,
    InMemoryChangelogStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
    KeyGroupsSavepointStateHandle,
    KeyGroupsStateHandle,
    LoggedChange,
    MergedChannelStateHandle,
    OperatorStateHandle,
    OperatorStateMetaInfo,
    OperatorStateMode,
    OperatorStreamStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
    read_channel_handles,
    read_keyed_handle,
    read_operator_handle,
    read_optional_stream_handle,
    read_stream_handle,
    write_channel_handles,
    write_keyed_handle,
    write_operator_handle,
    write_stream_handle,
)

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = FileStateHandle("file:/s/a", 7)
FILE_BYTES = "02 0000000000000007 0009 66696c653a2f732f61"
SEGMENT = SegmentFileStateHandle("/s", 5, 6, CheckpointedStateScope.SHARED, "id")
SEGMENT_BYTES = "0f 0000000000000005 0000000000000006 00000001 0002 2f73 0002 6964"
RANGE = KeyGroupRange(2, 2)
RANGE_BYTES = "00000002 00000002"
OFFSETS_BYTES = "0000000000000010 ffffffffffffffff"
STATES = (OperatorStateMetaInfo("s", OperatorStateMode.UNION, (16, 17)),)
STATES_BYTES = "00000001 0001 73 01 00000002 0000000000000010 0000000000000011"

STREAMS: list[tuple[StreamStateHandle, str]] = [
    (ByteStreamStateHandle("n", b"ab"), "01 0001 6e 00000002 6162"),
    (FILE, FILE_BYTES),
    (RelativeFileStateHandle("a", 7), "06 0001 61 0000000000000007"),
    (SEGMENT, SEGMENT_BYTES),
    (EmptySegmentFileStateHandle(), "10"),
    (KeyGroupsStateHandle(RANGE, (16, -1), FILE), f"03 {RANGE_BYTES} {OFFSETS_BYTES} {FILE_BYTES}"),
]
INCREMENTAL = IncrementalRemoteKeyedStateHandle(
    checkpoint_id=9,
    backend_identifier="u",
    key_groups=RANGE,
    meta_data_state=FILE,
    shared_state=(HandleAndLocalPath("1.sst", FILE),),
    private_state=(),
)
SHARED_BYTES = f"00000001 0005 312e737374 {FILE_BYTES} 00000000"
IN_MEMORY = InMemoryChangelogStateHandle(RANGE, 0, 2, (LoggedChange(-1, b"m"), LoggedChange(3, b"")), "i")
IN_MEMORY_BYTES = (
    f"09 {RANGE_BYTES} 0000000000000000 0000000000000002 00000002 ffffffff 00000001 6d 00000003 00000000 0001 69"
)
CHANGES = ChangelogStateHandleStream(RANGE, (ChangelogStream(4, FILE),), 7, 8, "i")
CHANGES_BYTES = f"{RANGE_BYTES} 00000001 0000000000000004 {FILE_BYTES} 0000000000000007 0000000000000008 0001 69"
PARTS_BYTES = f"{RANGE_BYTES} 0000000000000008 00000000 00000001 {IN_MEMORY_BYTES} 0000000000000001"

KEYED: list[tuple[KeyedStateHandle, str]] = [
    (KeyGroupsStateHandle(RANGE, (16, -1), FILE), f"03 {RANGE_BYTES} {OFFSETS_BYTES} {FILE_BYTES}"),
    (KeyGroupsStateHandle(RANGE, (16, -1), FILE, "i"), f"0c {RANGE_BYTES} {OFFSETS_BYTES} {FILE_BYTES} 0001 69"),
    (KeyGroupsSavepointStateHandle(RANGE, (16, -1), FILE), f"07 {RANGE_BYTES} {OFFSETS_BYTES} {FILE_BYTES}"),
    (INCREMENTAL, f"05 0000000000000009 0001 75 {RANGE_BYTES} {FILE_BYTES} {SHARED_BYTES}"),
    (
        IncrementalRemoteKeyedStateHandle(9, "u", RANGE, FILE, INCREMENTAL.shared_state, (), 3, "i"),
        f"0b 0000000000000009 0001 75 {RANGE_BYTES} 0000000000000003 {FILE_BYTES} {SHARED_BYTES} 0001 69",
    ),
    (IN_MEMORY, IN_MEMORY_BYTES),
    (CHANGES, f"0a {CHANGES_BYTES}"),
    (ChangelogStateHandleStream(RANGE, CHANGES.streams, 7, 8, "i", "fs"), f"0d {CHANGES_BYTES} 0002 6673"),
    (ChangelogStateBackendHandle(RANGE, 8, (), (IN_MEMORY,), 1, "i"), f"08 {PARTS_BYTES} 0001 69"),
    (ChangelogStateBackendHandle(RANGE, 8, (), (IN_MEMORY,), 1, "i", 9), f"0e {PARTS_BYTES} 0000000000000009 0001 69"),
]
OPERATOR: list[tuple[OperatorStateHandle, str]] = [
    (OperatorStreamStateHandle(STATES, FILE), f"04 {STATES_BYTES} {FILE_BYTES}"),
    (
        FileMergingOperatorStreamStateHandle(STATES, "t", "s", False, SEGMENT),
        f"11 {STATES_BYTES} 0001 74 0001 73 00 {SEGMENT_BYTES}",
    ),
    (
        FileMergingOperatorStreamStateHandle((), "t", "s", True, EmptySegmentFileStateHandle()),
        "11 00000000 0001 74 0001 73 01 10",
    ),
]
CHANNEL = ChannelState(ChannelInfo(1, 2), (4,), 3111)
SINGLE = ChannelStateHandle(5, CHANNEL, FILE)
SINGLE_BYTES = f"00000005 00000001 00000002 00000001 0000000000000004 0000000000000c27 {FILE_BYTES}"
MERGED = MergedChannelStateHandle(5, 3111, FILE, (CHANNEL,))
MERGED_BYTES = (
    f"00000005 0000000000000c27 {FILE_BYTES} 00000020"
    "00000001 00000001 00000002 0000000000000c27 00000001 0000000000000004"
)


def names(handles: list[tuple[object, str]]) -> list[str]:
    return [f"tag{int(written[:2], 16)}" for _, written in handles]


def at_end(reader: Reader) -> bool:
    return reader.remaining == 0


@pytest.mark.parametrize(("handle", "written"), STREAMS, ids=names([*STREAMS]))
def test_stream_handle_is_read(handle: StreamStateHandle, written: str) -> None:
    reader = Reader(bytes.fromhex(written))
    assert read_stream_handle(reader) == handle
    assert at_end(reader)


@pytest.mark.parametrize(("handle", "written"), STREAMS, ids=names([*STREAMS]))
def test_stream_handle_is_written(handle: StreamStateHandle, written: str) -> None:
    writer = Writer()
    write_stream_handle(writer, handle)
    assert writer.getvalue() == bytes.fromhex(written)


@pytest.mark.parametrize(("handle", "written"), KEYED, ids=names([*KEYED]))
def test_keyed_handle_is_read(handle: KeyedStateHandle, written: str) -> None:
    reader = Reader(bytes.fromhex(written))
    assert read_keyed_handle(reader) == handle
    assert at_end(reader)


@pytest.mark.parametrize(("handle", "written"), KEYED, ids=names([*KEYED]))
def test_keyed_handle_is_written(handle: KeyedStateHandle, written: str) -> None:
    writer = Writer()
    write_keyed_handle(writer, handle)
    assert writer.getvalue() == bytes.fromhex(written)


@pytest.mark.parametrize(("handle", "written"), OPERATOR, ids=names([*OPERATOR]))
def test_operator_handle_is_read(handle: OperatorStateHandle, written: str) -> None:
    reader = Reader(bytes.fromhex(written))
    assert read_operator_handle(reader) == handle
    assert at_end(reader)


@pytest.mark.parametrize(("handle", "written"), OPERATOR, ids=names([*OPERATOR]))
def test_operator_handle_is_written(handle: OperatorStateHandle, written: str) -> None:
    writer = Writer()
    write_operator_handle(writer, handle)
    assert writer.getvalue() == bytes.fromhex(written)


@pytest.mark.parametrize("written", [written for _, written in [*STREAMS, *KEYED, *OPERATOR]])
def test_truncated_handle_is_an_error(written: str) -> None:
    data = bytes.fromhex(written)
    read: Callable[[Reader], object] = read_keyed_handle
    if data[0] in (4, 17):
        read = read_operator_handle
    elif data[0] in (1, 2, 6, 15, 16):
        read = read_optional_stream_handle
    for size in range(len(data)):
        with pytest.raises(FormatError):
            read(Reader(data[:size]))


CHANNELS = [
    (ChannelDirection.INPUT, 3, SINGLE, SINGLE_BYTES),
    (ChannelDirection.OUTPUT, 5, SINGLE, SINGLE_BYTES),
    (ChannelDirection.INPUT, 6, SINGLE, "01" + SINGLE_BYTES),
    (ChannelDirection.OUTPUT, 6, SINGLE, "02" + SINGLE_BYTES),
    (ChannelDirection.INPUT, 6, MERGED, "03" + MERGED_BYTES),
    (ChannelDirection.OUTPUT, 7, MERGED, "04" + MERGED_BYTES),
]


@pytest.mark.parametrize(("direction", "version", "handle", "written"), CHANNELS)
def test_channel_handle_is_read(
    direction: ChannelDirection, version: int, handle: ChannelStateHandle, written: str
) -> None:
    reader = Reader(bytes.fromhex("00000001" + written))
    assert read_channel_handles(reader, direction, version) == (handle,)
    assert at_end(reader)


@pytest.mark.parametrize(("direction", "version", "handle", "written"), CHANNELS)
def test_channel_handle_is_written(
    direction: ChannelDirection, version: int, handle: ChannelStateHandle, written: str
) -> None:
    writer = Writer()
    write_channel_handles(writer, (handle,), direction, version)
    assert writer.getvalue() == bytes.fromhex("00000001" + written)


def test_channel_handle_of_the_other_direction_is_an_error() -> None:
    with pytest.raises(FormatError, match="2 is not the tag of a channel state handle of direction INPUT"):
        read_channel_handles(Reader(bytes.fromhex("00000001 02" + SINGLE_BYTES)), ChannelDirection.INPUT, 6)


def test_merged_channel_state_has_no_place_before_version_6() -> None:
    with pytest.raises(ValueRangeError, match="version 5 has no merged channel state"):
        write_channel_handles(Writer(), (MERGED,), ChannelDirection.INPUT, 5)


def test_merged_channel_state_with_bytes_left_over_is_an_error() -> None:
    written = "00000001 03" + MERGED_BYTES.replace("00000020", "00000021", 1) + "00"
    with pytest.raises(FormatError, match="left over after the merged channel states"):
        read_channel_handles(Reader(bytes.fromhex(written)), ChannelDirection.INPUT, 6)


def test_no_handle_is_tag_0() -> None:
    for read in (read_optional_stream_handle, read_keyed_handle, read_operator_handle):
        assert read(Reader(b"\0")) is None


def test_unknown_stream_tag_is_an_error() -> None:
    with pytest.raises(FormatError, match=r"18 is not the tag of a stream handle \[file f, offset 0\]"):
        read_stream_handle(Reader(bytes.fromhex("12"), "f"))


def test_missing_stream_is_an_error() -> None:
    with pytest.raises(FormatError, match="a stream handle is missing"):
        read_stream_handle(Reader(b"\0"))


def test_stream_handles_nested_too_deep_are_an_error() -> None:
    with pytest.raises(FormatError, match="more than 8 levels deep"):
        read_stream_handle(Reader(bytes.fromhex("03 00000000 00000000") * 100))


def test_keyed_handles_nested_too_deep_are_an_error() -> None:
    with pytest.raises(FormatError, match="more than 8 levels deep"):
        read_keyed_handle(Reader(bytes.fromhex("0e 00000000 00000000 0000000000000000 00000001") * 100))


def test_unknown_distribution_mode_is_an_error() -> None:
    with pytest.raises(FormatError, match="3 is not a distribution mode"):
        read_operator_handle(Reader(bytes.fromhex("04 00000001 0001 73 03 00000000")))


def test_file_merging_handle_over_a_plain_file_is_an_error() -> None:
    with pytest.raises(FormatError, match="needs a segment"):
        read_operator_handle(Reader(bytes.fromhex(f"11 00000000 0000 0000 00 {FILE_BYTES}")))


@pytest.mark.parametrize("key_groups", ["ffffffff 00000001", "00000000 ffffffff", "00007fff 00000002"])
def test_key_groups_outside_flinks_bounds_are_an_error(key_groups: str) -> None:
    with pytest.raises(FormatError, match=r"are outside 0\.\.32767"):
        read_keyed_handle(Reader(bytes.fromhex("03" + key_groups)))


def test_offsets_that_do_not_fit_the_range_are_refused() -> None:
    with pytest.raises(ValueRangeError, match="1 offsets do not fit 2 key groups"):
        write_keyed_handle(Writer(), KeyGroupsStateHandle(RANGE, (16,), FILE))


def test_state_name_that_stands_twice_is_refused() -> None:
    with pytest.raises(ValueRangeError, match="occurs twice"):
        write_operator_handle(Writer(), OperatorStreamStateHandle(STATES * 2, FILE))


def test_key_group_range_ends_with_its_last_key_group() -> None:
    assert (RANGE.end, list(RANGE), 3 in RANGE, 4 in RANGE) == (3, [2, 3], True, False)


@pytest.mark.parametrize(
    ("other", "common"),
    [
        (KeyGroupRange(3, 5), KeyGroupRange(3, 1)),
        (KeyGroupRange(0, 9), RANGE),
        (KeyGroupRange(4, 5), KeyGroupRange(0, 0)),
    ],
)
def test_ranges_intersect(other: KeyGroupRange, common: KeyGroupRange) -> None:
    assert RANGE.intersect(other) == common
