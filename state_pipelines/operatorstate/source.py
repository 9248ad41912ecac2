"""Operator state that is not read yet: its header, and where the rest lies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from state_pipelines.binary.reader import Reader
from state_pipelines.errors import StateError
from state_pipelines.metadata.streams import read_stream_range, read_whole_stream
from state_pipelines.operatorstate.backend import read_operator_file
from state_pipelines.operatorstate.header import OperatorHeader, read_operator_header

if TYPE_CHECKING:
    from state_pipelines.metadata.operator import OperatorStateHandle
    from state_pipelines.metadata.streams import StateStream
    from state_pipelines.operatorstate.backend import OperatorStateFile

FIRST_READ = 64 << 10
"""Bytes of a file that are read at first; its header is longer when the serializers are many."""

_GROWTH = 8


@dataclass(frozen=True)
class OperatorStateSource:
    """The operator state of one subtask, or what a handle names of it; can be sent to other processes.

    Attributes:
        stream: the stream of the handle.
        handle: says where the elements begin.
        header: as read.
    """

    stream: StateStream
    handle: OperatorStateHandle
    header: OperatorHeader

    @property
    def name(self) -> str:
        """Name of the file, for errors."""
        return self.stream.name

    def read(self) -> OperatorStateFile:
        """All of it; errors as of `read_operator_file`."""
        return read_operator_file(read_whole_stream(self.stream), self.handle, self.stream.name)


@lru_cache(maxsize=64)
def _parse_header(data: bytes, name: str | None = None) -> OperatorHeader:
    """The header at the beginning of `data`; where all elements stand behind it, subtasks mostly share its bytes."""
    return read_operator_header(Reader(data, name))


def open_operator_state(
    stream: StateStream, handle: OperatorStateHandle, *, first_read: int = FIRST_READ
) -> OperatorStateSource:
    """Read the header of operator state, and nothing behind the first element but what a short read brings along.

    Args:
        stream: the stream of the handle.
        handle: says where the elements begin; the header ends before the first one.
        first_read: bytes that are read at first.

    Raises:
        FormatError: the bytes are not the header of operator state, or the file is cut off in it.
        UnsupportedError, UnknownSerializerError: see `read_operator_header`.
        MissingFileError: no such file.
    """
    if not stream.size and not handle.states:
        # The handle of file merging for a subtask without state.
        return OperatorStateSource(stream, handle, OperatorHeader())
    # An offset that is none is told by whoever reads the elements.
    offsets = [offset for state in handle.states for offset in state.offsets if 0 < offset < stream.size]
    end = min([stream.size, *offsets])
    size = min(first_read, end)
    while True:
        data = read_stream_range(stream, 0, size)
        try:
            return OperatorStateSource(stream, handle, _parse_header(data))
        except StateError:
            # What is cut off looks damaged; only the whole header is to be believed.
            if size == end:
                # What is cached has no name; the error needs the one of this file.
                return OperatorStateSource(stream, handle, _parse_header.__wrapped__(data, stream.name))
        size = min(size * _GROWTH, end)
