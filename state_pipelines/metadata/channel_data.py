"""In-flight data of unaligned checkpoints: the buffers of channel state handles, and their sizes.

A stream of channel state begins with an i32 version, 0; at every offset of a handle there are an i32 length and the
bytes of one network buffer. Channels, subtasks and even operators share a stream. Records are stored as `i32 length,
StreamElement` across the buffers: the buffers of input channel i of a subtask j, then those of subpartition j of the
upstream subtask i, are one stream of records. Small data inside `_metadata` is split: each channel has a stream of its
own with all its buffers merged into one, and its handle counts the version too
(`ChannelStateSerializerImpl.extractAndMerge`). Source: `ChannelStateSerializerImpl`, `ChannelStateCheckpointWriter`,
`SequentialChannelStateReaderImpl`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from state_pipelines.binary.reader import Reader
from state_pipelines.binary.writer import Writer
from state_pipelines.errors import FormatError, UnsupportedVersionError, Where
from state_pipelines.metadata.channel_handles import (
    ChannelDirection,
    ChannelInfo,
    ChannelState,
    ChannelStateHandle,
    MergedChannelStateHandle,
)
from state_pipelines.metadata.stream_handles import ByteStreamStateHandle
from state_pipelines.metadata.streams import StateStream, read_stream_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from state_pipelines.metadata.checkpoint import OperatorState
    from state_pipelines.metadata.stream_handles import StreamStateHandle

VERSION = 0
HEADER_SIZE = 4
LENGTH_SIZE = 4

AnyChannelStateHandle = ChannelStateHandle | MergedChannelStateHandle


@dataclass(frozen=True)
class ChannelData:
    """In-flight data of one channel of a subtask.

    Attributes:
        direction: input or output of the subtask.
        subtask: index of the subtask.
        info: gate and channel, or partition and subpartition.
        buffers: bytes of its network buffers, in the order in which they travel.
    """

    direction: ChannelDirection
    subtask: int
    info: ChannelInfo
    buffers: tuple[bytes, ...] = field(repr=False)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each buffer."""
        return tuple(len(buffer) for buffer in self.buffers)

    @property
    def size(self) -> int:
        """Bytes of all buffers."""
        return sum(self.sizes)

    @property
    def state_size(self) -> int:
        """Bytes that they take in a stream, lengths included."""
        return self.size + LENGTH_SIZE * len(self.buffers)


@dataclass(frozen=True, slots=True)
class ChannelSummary:
    """Amounts of in-flight data; known from the handles alone.

    Attributes:
        handles: channel state handles.
        channels: channels (or subpartitions) with data.
        buffers: network buffers.
        bytes: bytes of the buffers, without their lengths.
    """

    handles: int = 0
    channels: int = 0
    buffers: int = 0
    bytes: int = 0

    def __add__(self, other: ChannelSummary) -> ChannelSummary:
        """Return both together."""
        return ChannelSummary(
            self.handles + other.handles,
            self.channels + other.channels,
            self.buffers + other.buffers,
            self.bytes + other.bytes,
        )


def channel_states(handle: AnyChannelStateHandle) -> tuple[ChannelState, ...]:
    """Return the channels that a handle names, one or many."""
    return handle.states if isinstance(handle, MergedChannelStateHandle) else (handle.state,)


def measure_channel(state: ChannelState, delegate: StreamStateHandle) -> int:
    """Size of the buffers of a channel with their lengths; 4 bytes more for a stream inside `_metadata`."""
    alone = isinstance(delegate, ByteStreamStateHandle) and len(delegate.data) == state.state_size
    return state.state_size - HEADER_SIZE if alone and state.offsets == (HEADER_SIZE,) else state.state_size


def summarise_channels(handles: Iterable[AnyChannelStateHandle]) -> ChannelSummary:
    """Return how much in-flight data some handles name; no stream is read."""
    total = ChannelSummary()
    for handle in handles:
        states = channel_states(handle)
        buffers = sum(len(state.offsets) for state in states)
        size = sum(measure_channel(state, handle.delegate) for state in states) - LENGTH_SIZE * buffers
        total += ChannelSummary(1, sum(bool(state.offsets) for state in states), buffers, size)
    return total


def summarise_in_flight(operator: OperatorState) -> tuple[ChannelSummary, ChannelSummary]:
    """In-flight data of an operator: (inputs, outputs) of its subtasks."""
    return (
        summarise_channels(handle for subtask in operator.subtasks for handle in subtask.input_channel_state),
        summarise_channels(handle for subtask in operator.subtasks for handle in subtask.result_subpartition_state),
    )


def read_channel_data(
    handle: AnyChannelStateHandle, direction: ChannelDirection, stream: StateStream
) -> tuple[ChannelData, ...]:
    """Read the buffers that a handle names.

    Args:
        handle: of one channel, or merged.
        direction: the list of the subtask that contains the handle.
        stream: the stream of the handle; only its buffers are read.

    Raises:
        FormatError: a buffer is outside the stream, or the size of the buffers of a channel differs from its handle.
        UnsupportedVersionError: the stream has a version that is not known.
        MissingFileError: no such file.
    """
    states = channel_states(handle)
    offsets = [offset for state in states for offset in state.offsets]
    if offsets:
        _check_header(stream)
    for offset in offsets:
        if not HEADER_SIZE <= offset <= stream.size - LENGTH_SIZE:
            what = f"a buffer at {offset} is outside the {stream.size} bytes of the channel state"
            raise FormatError(what, where=Where(file=stream.name, offset=offset))
    # The last buffer of a channel ends at most the size of the channel after its offset.
    ends = [max(state.offsets) + max(state.state_size, LENGTH_SIZE) for state in states if state.offsets]
    start, end = min(offsets, default=0), min(max(ends, default=0), stream.size)
    data = read_stream_range(stream, start, end)
    return tuple(
        ChannelData(
            direction,
            handle.subtask_index,
            state.info,
            tuple(_read_buffers(state, measure_channel(state, handle.delegate), data, start, stream.name)),
        )
        for state in states
    )


def write_channel_data(channels: Sequence[ChannelData], position: int = 0) -> tuple[bytes, tuple[ChannelState, ...]]:
    """Write consecutive buffers, the inverse of `read_channel_data`.

    Args:
        channels: the channels, in their order in the stream.
        position: where the bytes go in the stream; at 0 the header is written too.

    Returns:
        (the bytes, the state of each channel for its handle).
    """
    writer = Writer()
    if position == 0:
        writer.i32(VERSION)
    states = []
    for channel in channels:
        sizes = [LENGTH_SIZE + size for size in channel.sizes]
        *offsets, _ = accumulate(sizes, initial=position + len(writer))
        states.append(ChannelState(channel.info, tuple(offsets), channel.state_size))
        for buffer in channel.buffers:
            writer.bytes32(buffer)
    return writer.getvalue(), tuple(states)


def _check_header(stream: StateStream) -> None:
    reader = Reader(read_stream_range(stream, 0, min(HEADER_SIZE, stream.size)), stream.name)
    version = reader.i32()
    if version != VERSION:
        raise UnsupportedVersionError(
            f"version {version} of channel state is not supported (known: {VERSION})",
            where=Where(file=stream.name, offset=0),
            hint="Savepoints hold no channel state; take one with the Flink release of this checkpoint",
        )


def _read_buffers(state: ChannelState, expected: int, data: bytes, start: int, name: str) -> Iterator[bytes]:
    size = 0
    for offset in state.offsets:
        reader = Reader(data, name, offset - start)
        length = reader.i32() if reader.remaining >= LENGTH_SIZE else -1
        if not 0 <= length <= reader.remaining:
            what = f"the length {length} of a buffer does not fit in the bytes of its channel"
            raise FormatError(what, where=Where(file=name, offset=offset))
        size += LENGTH_SIZE + length
        yield reader.take(length)
    if size != expected:
        raise FormatError(
            f"the buffers of channel {state.info.channel} of {state.info.group} have {size} bytes, "
            f"but its handle declares {expected}",
            where=Where(file=name, offset=state.offsets[0] if state.offsets else None),
        )
