"""Handles of in-flight data in unaligned checkpoints (`org.apache.flink.runtime.state.AbstractChannelStateHandle`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from state_pipelines.binary.reader import Reader
from state_pipelines.binary.writer import Writer
from state_pipelines.errors import ValueRangeError
from state_pipelines.metadata.handle_tags import ChannelTag
from state_pipelines.metadata.stream_handles import (
    StreamStateHandle,
    read_offsets,
    read_size,
    read_stream_handle,
    write_offsets,
    write_stream_handle,
)


class ChannelDirection(Enum):
    """The list of a subtask that contains a channel state handle: (tag of one channel, tag of merged channels)."""

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
        offsets: position of each buffer; an i32 length, then that many bytes.
        state_size: bytes of its buffers with their lengths.
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
        direction: which list of the subtask this is.
        version: metadata version; handles have a tag from 6 on.

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
    """Write what `read_channel_handles` reads.

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
