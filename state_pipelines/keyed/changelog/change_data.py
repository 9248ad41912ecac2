"""The uncompressed data of streams of change sets, after the byte that marks compression.

Positions count as the handles of the changes count them, so that the first byte of the data is at 0.
Source: `ChangelogStreamWrapper`, `StateChangeFormat`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.snappy_frames import HEAD_SIZE, iter_chunks, measure_chunk
from state_pipelines.errors import FormatError, Where
from state_pipelines.keyed.changelog.changes import is_compressed
from state_pipelines.metadata.streams import KeptStreams

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.metadata.streams import StateStream

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]

FLAG = 1
"""Bytes in front of the data, which positions do not count."""

AHEAD = 4 << 20
"""Bytes that are read at once where a stream is read from its start to its end."""


class ChangeFiles:
    """Files of changes of one snapshot, each opened once; several handles name parts of one file.

    Args:
        streams: reads and keeps the files.
    """

    def __init__(self, streams: KeptStreams | None = None) -> None:
        self.streams = streams or KeptStreams()
        self._opened: dict[StateStream, ChangeData] = {}

    def open(self, stream: StateStream) -> ChangeData:
        """Find the data of a stream; errors as for `open_change_data`."""
        data = self._opened.get(stream)
        if data is None:
            data = self._opened[stream] = open_change_data(stream, self.streams)
        return data

    def __reduce__(self) -> tuple[type[ChangeFiles], tuple[KeptStreams]]:
        return ChangeFiles, (self.streams,)


@dataclass(frozen=True, eq=False)
class ChangeData:
    """The data of a stream.

    Attributes:
        stream: the stream.
        size: bytes of data.
        chunks: i64[c + 1, 2] start offset of each chunk in the file and in the data, then the end offsets of the
            last one; None of a stream that is not compressed.
        streams: reads the stream.
    """

    stream: StateStream
    size: int
    chunks: Positions | None
    streams: KeptStreams

    def read(self, start: int, end: int) -> Bytes:
        """u8, the data from `start` up to `end`; of a compressed stream only the chunks that hold it are read.

        Raises:
            FormatError: the range is outside the data, or a chunk is damaged.
        """
        if not 0 <= start <= end <= self.size:
            what = f"changes from {start} to {end} lie outside {self.size} bytes of changes"
            raise FormatError(what, where=Where(file=self.stream.name, offset=start + FLAG))
        if start == end:
            return np.zeros(0, np.uint8)
        if self.chunks is None:
            return np.frombuffer(self.streams.read(self.stream, FLAG + start, FLAG + end), np.uint8)
        first = int(np.searchsorted(self.chunks[:, 1], start, side="right")) - 1
        last = int(np.searchsorted(self.chunks[:, 1], end, side="left"))
        position, stop = int(self.chunks[first, 0]), int(self.chunks[last, 0])
        raw = self.streams.read(self.stream, position, stop)
        data = b"".join(chunk.data for chunk in iter_chunks(raw, name=self.stream.name))
        if len(data) != self.chunks[last, 1] - self.chunks[first, 1]:
            raise FormatError(
                "a snappy chunk has another size than its header says", where=Where(self.stream.name, position)
            )
        return np.frombuffer(data, np.uint8, end - start, start - int(self.chunks[first, 1]))


class Lookahead:
    """Reads data mostly forward, some of it ahead, so that positions near each other take one read.

    Args:
        read: gives bytes from a position up to another one.
        size: how many there are.
        ahead: bytes that are read at once at least.
    """

    def __init__(self, read: Callable[[int, int], Bytes], size: int, ahead: int = AHEAD) -> None:
        self.size = size
        self._read = read
        self._ahead = ahead
        self._start = 0
        self._held: Bytes = np.zeros(0, np.uint8)

    def take(self, start: int, size: int) -> Bytes:
        """u8, `size` bytes from `start` on; fewer only where the data ends."""
        stop = min(start + size, self.size)
        if start < self._start or stop > self._start + len(self._held):
            self._held = self._read(start, min(max(stop, start + self._ahead), self.size))
            self._start = start
        return self._held[start - self._start : max(start, stop) - self._start]

    def take_held(self, start: int) -> Bytes:
        """u8, all bytes from `start` on that need no further read; at least one unless the data ends there."""
        self.take(start, 1)
        return self._held[start - self._start :]


def open_change_data(stream: StateStream, streams: KeptStreams) -> ChangeData:
    """The data of a stream; of a compressed one the headers of the chunks are looked up, nothing is decoded.

    Args:
        stream: the stream.
        streams: reads it.

    Raises:
        FormatError: the stream does not begin as one of changes, or is not snappy framed.
    """
    end = streams.find_end(stream)
    if not is_compressed(streams.read(stream, 0, min(FLAG, end)), stream.name):
        return ChangeData(stream, end - FLAG, None, streams)
    raw = Lookahead(lambda start, stop: np.frombuffer(streams.read(stream, start, stop), np.uint8), end)
    positions = [(FLAG, 0)]
    position, size = FLAG, 0
    while position < end:
        length, held = measure_chunk(raw.take(position, HEAD_SIZE).tobytes(), name=stream.name, position=position)
        position += length
        size += held
        positions.append((position, size))
    if position > end:
        raise FormatError("a snappy chunk is cut off", where=Where(file=stream.name, offset=positions[-2][0]))
    return ChangeData(stream, size, np.array(positions, np.int64), streams)
