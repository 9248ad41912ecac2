"""Contents of files that are not on this machine, read whole with one request and kept for several passes."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from state_pipelines.errors import FormatError, Where
from state_pipelines.metadata.streams import StateStream, measure_stream_file, read_stream_range, read_whole_stream
from state_pipelines.storage.locations import is_local

if TYPE_CHECKING:
    from state_pipelines.storage import Location

KEPT = 64 << 20
"""Bytes of files that are not on this machine and that one snapshot keeps; those used least recently go."""


class KeptStreams:
    """Streams of one snapshot, each file of which is read once and kept; several streams may be one file.

    A stream that is larger than half of what is kept, or local, is not kept. Threads may share it; a copy in another
    process starts empty.

    Args:
        capacity: bytes that are kept.
    """

    def __init__(self, capacity: int = KEPT) -> None:
        self._capacity = capacity
        self._contents: dict[StateStream | Location, bytes] = {}
        self._locks: dict[StateStream | Location, Lock] = {}
        self._lock = Lock()

    def read(self, stream: StateStream, start: int, end: int) -> bytes:
        """The bytes of a stream from `start` up to `end`; errors as for `read_stream_range`."""
        if not self._is_kept(stream):
            return read_stream_range(stream, start, end)
        content = self._fetch(stream)
        if not 0 <= start <= end <= len(content):
            what = f"bytes {start} to {end} are wanted but the file has {len(content)}"
            where = Where(file=stream.name, offset=start)
            raise FormatError(what, where=where, hint="The file was cut off or changed")
        return content[start:end]

    def read_whole(self, stream: StateStream) -> bytes:
        """All bytes of a stream; errors as for `read_whole_stream`."""
        return self._fetch(stream) if self._is_kept(stream) else read_whole_stream(stream)

    def find_end(self, stream: StateStream) -> int:
        """End offset of a stream (exclusive).

        Of a file only the file says it: handles of changes count the bytes before compression, and not the first byte.
        """
        if self._is_kept(stream):
            return len(self._fetch(stream))
        if stream.location is None or stream.is_segment:
            return stream.size
        return measure_stream_file(stream)

    def _is_kept(self, stream: StateStream) -> bool:
        is_elsewhere = stream.location is not None and not is_local(stream.location)
        return is_elsewhere and stream.size <= self._capacity // 2

    def _fetch(self, stream: StateStream) -> bytes:
        assert stream.location is not None
        key = stream if stream.is_segment else stream.location
        with self._lock:
            lock = self._locks.setdefault(key, Lock())
        with lock:
            with self._lock:
                content = self._contents.pop(key, None)
            if content is None:
                content = read_whole_stream(stream)
            with self._lock:
                # At the end, where those used last are.
                self._contents[key] = content
                while len(self._contents) > 1 and sum(map(len, self._contents.values())) > self._capacity:
                    del self._contents[next(iter(self._contents))]
        return content

    def __reduce__(self) -> tuple[type[KeptStreams], tuple[int]]:
        return KeptStreams, (self._capacity,)
