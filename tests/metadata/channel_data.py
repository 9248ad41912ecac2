"""Writes in-flight data, as Flink does (`ChannelStateSerializerImpl`)."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Writer
from state_pipelines.metadata.handles import ChannelState
from state_pipelines.metadata.streams import LENGTH_SIZE, VERSION, ChannelData

if TYPE_CHECKING:
    from collections.abc import Sequence


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
