from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.binary.data_views import Reader
from state_pipelines.errors import FormatError, UnsupportedError
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    ChannelDirection,
    ChannelInfo,
    ChannelState,
    ChannelStateHandle,
    MergedChannelStateHandle,
)
from state_pipelines.metadata.streams import (
    ChannelData,
    ChannelSummary,
    StateStream,
    open_stream,
    read_channel_data,
    summarise_channels,
    summarise_in_flight,
)
from state_pipelines.snapshot import Operator, Snapshot, open_snapshot
from tests.metadata.channel_data import write_channel_data

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.metadata.streams import AnyChannelStateHandle

STREAM = bytes.fromhex("00000000 00000003 616263 00000000 00000002 7879")
INPUT, OUTPUT = ChannelDirection.INPUT, ChannelDirection.OUTPUT
BUFFERS = st.lists(st.binary(max_size=20), max_size=4)


def stream(data: bytes = STREAM) -> StateStream:
    return StateStream("in-flight", len(data), data=data)


def single(state: ChannelState, data: bytes = STREAM) -> ChannelStateHandle:
    return ChannelStateHandle(3, state, ByteStreamStateHandle("in-flight", data))


def merged(*states: ChannelState, data: bytes = STREAM) -> MergedChannelStateHandle:
    size = sum(state.state_size for state in states)
    return MergedChannelStateHandle(3, size, ByteStreamStateHandle("in-flight", data), states)


ONE = ChannelState(ChannelInfo(0, 1), (4, 15), 13)
OTHER = ChannelState(ChannelInfo(1, 0), (11,), 4)


def test_data_inside_the_metadata_has_a_stream_per_channel_whose_version_counts() -> None:
    data = bytes.fromhex("00000000 00000003 616263")
    handle = single(ChannelState(ChannelInfo(0, 1), (4,), len(data)), data)
    (found,) = read_channel_data(handle, INPUT, stream(data))
    assert found.buffers == (b"abc",)
    assert summarise_channels([handle]) == ChannelSummary(1, 1, 1, 3)


def test_the_buffers_of_one_channel_are_read_at_their_offsets() -> None:
    (found,) = read_channel_data(single(ONE), INPUT, stream())
    assert found == ChannelData(INPUT, 3, ChannelInfo(0, 1), (b"abc", b"xy"))


def test_a_merged_handle_gives_every_channel() -> None:
    found = read_channel_data(merged(ONE, OTHER), OUTPUT, stream())
    assert [(each.info, each.sizes) for each in found] == [(ChannelInfo(0, 1), (3, 2)), (ChannelInfo(1, 0), (0,))]


def test_a_channel_without_buffers_needs_no_stream() -> None:
    (found,) = read_channel_data(single(ChannelState(ChannelInfo(0, 0), (), 0)), INPUT, stream(b""))
    assert found.buffers == ()


def test_another_version_of_the_stream_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="version 1 of channel state"):
        read_channel_data(single(ONE), INPUT, stream(b"\0\0\0\1" + STREAM[4:]))


@pytest.mark.parametrize("offset", [0, 3, 18, 1000])
def test_a_buffer_outside_the_stream_is_an_error(offset: int) -> None:
    with pytest.raises(FormatError, match="outside the 21 bytes"):
        read_channel_data(single(ChannelState(ChannelInfo(0, 0), (offset,), 7)), INPUT, stream())


def test_a_length_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(FormatError, match="length 56713827 of a buffer"):
        read_channel_data(single(ChannelState(ChannelInfo(0, 0), (7,), 7)), INPUT, stream())


def test_a_handle_that_says_another_size_is_an_error() -> None:
    with pytest.raises(FormatError, match="have 13 bytes, but its handle declares 14"):
        read_channel_data(single(ChannelState(ChannelInfo(0, 1), (4, 15), 14)), INPUT, stream())


def test_handles_are_summed_up_without_their_streams() -> None:
    assert summarise_channels([single(ONE), merged(ONE, OTHER)]) == ChannelSummary(2, 3, 5, 10)


def test_a_channel_without_buffers_does_not_count() -> None:
    assert summarise_channels([merged(ChannelState(ChannelInfo(0, 0), (), 0))]) == ChannelSummary(1, 0, 0, 0)


def test_buffers_are_written_as_they_were_read() -> None:
    channels = (ChannelData(INPUT, 3, ChannelInfo(0, 1), (b"abc",)), ChannelData(INPUT, 3, ChannelInfo(1, 0), (b"",)))
    data, states = write_channel_data(channels)
    assert data == STREAM[:15]
    assert states == (ChannelState(ChannelInfo(0, 1), (4,), 7), ChannelState(ChannelInfo(1, 0), (11,), 4))


@pytest.mark.slow
@given(BUFFERS, BUFFERS, BUFFERS)
def test_buffers_survive_writing_and_reading(one: list[bytes], other: list[bytes], third: list[bytes]) -> None:
    first = tuple(ChannelData(INPUT, 3, ChannelInfo(0, i), tuple(each)) for i, each in enumerate((one, other)))
    second = (ChannelData(OUTPUT, 3, ChannelInfo(2, 2), tuple(third)),)
    data, states = write_channel_data(first)
    more, later = write_channel_data(second, len(data))
    data += more
    assert read_channel_data(merged(*states, data=data), INPUT, stream(data)) == first
    assert read_channel_data(single(later[0], data), OUTPUT, stream(data)) == second


def in_flight(fixtures: Path) -> Snapshot:
    case = fixtures / "made" / "2.2.1" / "inflight-hashmap-checkpoint"
    return open_snapshot(str(case / json.loads((case / "params.json").read_text())["snapshot"]))


def read_all(operator: Operator) -> list[ChannelData]:
    directory = operator.snapshot.location.directory

    def read(handle: AnyChannelStateHandle, direction: ChannelDirection) -> tuple[ChannelData, ...]:
        return read_channel_data(handle, direction, open_stream(handle.delegate, directory))

    found: list[ChannelData] = []
    for subtask in operator.metadata.subtasks:
        for handle in subtask.input_channel_state:
            found += read(handle, INPUT)
        for handle in subtask.result_subpartition_state:
            found += read(handle, OUTPUT)
    return found


def test_the_summary_of_a_checkpoint_is_what_its_streams_hold(fixtures: Path) -> None:
    for operator in in_flight(fixtures).operators:
        channels = read_all(operator)
        for summary, direction in zip(summarise_in_flight(operator.metadata), (INPUT, OUTPUT), strict=True):
            mine = [each for each in channels if each.direction is direction]
            assert (summary.channels, summary.buffers) == (len(mine), sum(len(each.buffers) for each in mine))
            assert summary.bytes == sum(each.size for each in mine)


def test_input_and_output_buffers_are_one_stream_of_records(fixtures: Path) -> None:
    snapshot = in_flight(fixtures)
    records = 0
    for upstream, downstream in (("src-inflight", "slow-map"), ("slow-map", "slow-count")):
        behind = {
            (each.info.channel, each.subtask): each
            for each in read_all(snapshot.operator(upstream))
            if each.direction is OUTPUT
        }
        front = {
            (each.subtask, each.info.channel): each
            for each in read_all(snapshot.operator(downstream))
            if each.direction is INPUT
        }
        for pair in sorted(behind.keys() | front.keys()):
            parts = [side[pair].buffers for side in (front, behind) if pair in side]
            reader = Reader(b"".join(buffer for buffers in parts for buffer in buffers))
            while reader.remaining:
                element = reader.bytes32()
                records += element[0] in (0, 1)
    assert records == 1823
