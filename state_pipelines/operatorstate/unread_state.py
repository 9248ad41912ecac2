"""Unread operator state: its header, and the location of the rest."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import numpy as np

from state_pipelines.binary.reader import Reader
from state_pipelines.errors import StateError, UnsupportedError
from state_pipelines.metadata.header_bytes import read_header_bytes
from state_pipelines.metadata.kept_streams import KeptStreams
from state_pipelines.operatorstate.element_offsets import order_offsets
from state_pipelines.operatorstate.header import OperatorHeader, read_operator_header, settle_operator_header
from state_pipelines.operatorstate.state_files import read_operator_file

if TYPE_CHECKING:
    from state_pipelines.metadata.operator_handles import OperatorStateHandle, OperatorStateMetaInfo
    from state_pipelines.metadata.streams import StateStream
    from state_pipelines.operatorstate.state_files import OperatorStateFile
    from state_pipelines.serializers.declared_snapshots import DeclaredSerializer

FIRST_READ = 64 << 10
"""Bytes of a file that are read at first; its header is longer when the serializers are many."""

_GROWTH = 8


@dataclass(frozen=True)
class UnreadOperatorState:
    """The operator state of one subtask, as far as a handle names it; can be sent to other processes.

    Attributes:
        stream: the stream of the handle.
        handle: locates the elements.
        header: as read.
        header_end: offset of the first byte after the header.
        kept: reads the stream, and keeps it for the other states in it.
        shared: the states of all handles over the stream, where it has several.
    """

    stream: StateStream
    handle: OperatorStateHandle
    header: OperatorHeader
    header_end: int
    kept: KeptStreams = field(default_factory=KeptStreams, compare=False, repr=False)
    shared: tuple[OperatorStateMetaInfo, ...] = field(default=(), repr=False)

    @property
    def name(self) -> str:
        """Name of the file, for errors."""
        return self.stream.name

    def read(self) -> OperatorStateFile:
        """Read the whole state; errors as in `read_operator_file`."""
        data = self.kept.read_whole(self.stream)
        # Where elements are is found once, since each of thousands of states reads the file again.
        size, located = cast("tuple[int, OperatorStateFile | None]", self.__dict__.get("_located", (-1, None)))
        if located is not None and size == len(data):
            return located.refill(data, self.header_end)
        file = read_operator_file(data, self.handle, self.stream.name, (self.header, self.header_end), self.shared)
        self.__dict__["_located"] = len(data), replace(file, data=np.zeros(0, np.uint8))
        return file

    def check(self) -> None:
        """Check what the handles say of the file without reading it further.

        Raises:
            FormatError: as of `order_offsets`.
        """
        if "_is_checked" not in self.__dict__:
            bounds = self.header_end, self.stream.size
            order_offsets(self.handle.states, self.shared, self.header, bounds, self.stream.name)
            self.__dict__["_is_checked"] = True

    def __getstate__(self) -> dict[str, object]:
        # What was found once is found again elsewhere.
        return {each.name: getattr(self, each.name) for each in fields(self)}


@lru_cache(maxsize=64)
def _parse_header(data: bytes, name: str | None = None) -> tuple[OperatorHeader, int]:
    """Return the header at the beginning of `data`; where all elements follow it, subtasks mostly share its bytes."""
    reader = Reader(data, name)
    return read_operator_header(reader), reader.position


@lru_cache(maxsize=64)
def _settle_header(
    data: bytes,
    name: str | None,
    states: tuple[tuple[str, str], ...],
    declared: tuple[DeclaredSerializer, ...],
) -> tuple[OperatorHeader, int]:
    return settle_operator_header(data, name, len(data), dict(states), declared)


def open_operator_state(
    stream: StateStream,
    handle: OperatorStateHandle,
    kept: KeptStreams | None = None,
    *,
    first_read: int = FIRST_READ,
    header_end: int = 0,
    declared: tuple[DeclaredSerializer, ...] = (),
) -> UnreadOperatorState:
    """Read the header of operator state by a short read of the beginning of the file.

    Args:
        stream: the stream of the handle.
        handle: locates the elements; the header ends before the first one.
        kept: keeps streams of the snapshot; those that a first read would hold are read whole.
        first_read: bytes that are read at first.
        header_end: bound of the header that the handles of other subtasks over this stream give; 0: none.
        declared: snapshot classes that the user declares.

    Raises:
        FormatError: the bytes are not the header of operator state, or the file is cut off in it.
        UnsupportedError: see `read_operator_header`.
        MissingFileError: no such file.
    """
    kept = kept or KeptStreams()
    if not stream.size and not handle.states:
        # The handle of file merging for a subtask without state.
        return UnreadOperatorState(stream, handle, OperatorHeader(), 0, kept)
    # Invalid offsets are reported when elements are read.
    offsets = [offset for state in handle.states for offset in state.offsets if 0 < offset < stream.size]
    end = min([stream.size, *offsets])
    if 0 < header_end < end:
        end = header_end
    size = min(first_read, end)
    while True:
        data = kept.read(stream, 0, size) if stream.size <= first_read else read_header_bytes(stream, size)
        try:
            return UnreadOperatorState(stream, handle, *_parse_header(data), kept)
        except StateError as error:
            # A truncated header looks damaged; only the complete one is conclusive.
            if size == end:
                if isinstance(error, UnsupportedError):
                    states = tuple((state.state_name, state.mode.name) for state in handle.states)
                    return UnreadOperatorState(
                        stream, handle, *_settle_header(data, stream.name, states, declared), kept
                    )
                # Cached headers have no name; the error needs that of this file.
                return UnreadOperatorState(stream, handle, *_parse_header.__wrapped__(data, stream.name), kept)
        size = min(size * _GROWTH, end)
