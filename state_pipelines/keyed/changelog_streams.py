"""Logged changes where they lie: which change sets a handle names, and the changes of some key groups out of them.

Nothing but the metadata changes is read when a log is opened. The first read of a stream finds where the key groups of
its change sets lie; after that only the bytes of the wanted key groups are read.
Source: `StateChangelogHandleStreamHandleReader`, `StateChangeFormat`, `ChangelogStreamWrapper`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from numba import njit

from state_pipelines.binary.reader import Reader
from state_pipelines.binary.snappyframed import iter_chunks
from state_pipelines.codecs.memory import load_i32_big
from state_pipelines.errors import FormatError, StateError, UnsupportedError, Where
from state_pipelines.keyed.changes import (
    METADATA_KEY_GROUP,
    MetadataChange,
    is_compressed,
    read_metadata_change,
    write_change_stream,
)
from state_pipelines.metadata.key_groups import KeyGroupRange
from state_pipelines.metadata.keyed import ChangelogStateHandleStream, InMemoryChangelogStateHandle
from state_pipelines.metadata.streams import StateStream, read_stream_range
from state_pipelines.storage import file_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from state_pipelines.metadata.handles import StreamStateHandle
    from state_pipelines.metadata.keyed import KeyedStateHandle

Positions = npt.NDArray[np.int64]

_FIRST_READ = 1 << 16
"""Bytes that are read at once in search of metadata changes."""

# The flag byte, which positions do not count.
_FLAG = 1


@dataclass(frozen=True)
class ChangeSet:
    """One change set.

    Attributes:
        stream: stream that holds it.
        offset: position in the uncompressed data behind the first byte.
        key_groups: what of it counts; after a change of parallelism it has others too.
    """

    stream: StateStream
    offset: int
    key_groups: KeyGroupRange


@dataclass(frozen=True)
class Changes:
    """Data changes of some key groups; those of one key group are in the order in which they were logged.

    Attributes:
        data: u8, holds the changes.
        starts: i64[n] in `data`.
        ends: i64[n].
        key_groups: i32[n].
        sets: i64[n] number of the change set.
        positions: i64[n] of each change in its stream, uncompressed and behind the first byte.
    """

    data: npt.NDArray[np.uint8]
    starts: Positions
    ends: Positions
    key_groups: npt.NDArray[np.int32]
    sets: Positions
    positions: Positions

    def __len__(self) -> int:
        """Number of changes."""
        return len(self.starts)

    def select(self, rows: npt.NDArray[np.generic]) -> Changes:
        """Some of the changes, by number or by mask."""
        return Changes(
            self.data, self.starts[rows], self.ends[rows], self.key_groups[rows], self.sets[rows], self.positions[rows]
        )


@dataclass(frozen=True)
class ChangeLog:
    """Change sets in the order of replay.

    Attributes:
        sets: the change sets.
        size: bytes of changes, as the handles say.
    """

    sets: tuple[ChangeSet, ...]
    size: int

    def metadata(self) -> list[list[MetadataChange]]:
        """The metadata changes of every change set.

        Raises:
            FormatError: the bytes are not change sets.
        """
        return [
            [read_metadata_change(change, each.stream.name) for change in _read_metadata(each)] for each in self.sets
        ]

    def sizes(self, key_groups: KeyGroupRange) -> Positions:
        """i64[n], bytes of changes of each key group.

        Raises:
            FormatError: the bytes are not change sets.
        """
        sizes = np.zeros(len(key_groups), np.int64)
        for _, _, groups in self._groups(key_groups):
            np.add.at(sizes, groups[:, 0] - key_groups.start, groups[:, 3] - groups[:, 2])
        return sizes

    def read(self, key_groups: KeyGroupRange) -> Changes:
        """The data changes of some key groups.

        Raises:
            FormatError: the bytes are not change sets.
        """
        parts: list[Changes] = []
        base = 0
        pieces: list[npt.NDArray[np.uint8]] = []
        for number, index, groups in self._groups(key_groups):
            # Key groups ascend in a change set, so that the wanted ones lie together.
            first, last = int(groups[:, 2].min()), int(groups[:, 3].max())
            name = self.sets[number].stream.name
            data = index.read(self.sets[number].stream, first, last)
            for key_group, count, start, end in groups.tolist():
                starts, ends, _ = _walk(data, start - first, end - first, count, name, first)
                parts.append(
                    Changes(
                        data,
                        starts + base,
                        ends + base,
                        np.full(count, key_group, np.int32),
                        np.full(count, number, np.int64),
                        starts + first,
                    )
                )
            pieces.append(data)
            base += len(data)
        if not parts:
            none = np.zeros(0, np.int64)
            return Changes(np.zeros(0, np.uint8), none, none, none.astype(np.int32), none, none)
        columns = [
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("starts", "ends", "key_groups", "sets", "positions")
        ]
        return Changes(pieces[0] if len(pieces) == 1 else np.concatenate(pieces), *columns)

    def windows(self, key_groups: KeyGroupRange, size: int) -> Iterator[KeyGroupRange]:
        """The key groups in ranges with changes of about `size` bytes."""
        start, held = key_groups.start, 0
        for key_group, bytes_there in zip(key_groups, self.sizes(key_groups).tolist(), strict=True):
            held += bytes_there
            if held >= size or key_group == key_groups.end:
                yield KeyGroupRange(start, key_group - start + 1)
                start, held = key_group + 1, 0

    def _groups(self, key_groups: KeyGroupRange) -> Iterator[tuple[int, _Index, Positions]]:
        """(number of the change set, index of its stream, its wanted groups) where there are any."""
        offsets: dict[StateStream, list[int]] = {}
        for each in self.sets:
            offsets.setdefault(each.stream, []).append(each.offset)
        indices = {stream: _index(stream, tuple(each)) for stream, each in offsets.items()}
        for number, each in enumerate(self.sets):
            index = indices[each.stream]
            groups = index.groups[each.offset]
            wanted = each.key_groups.intersect(key_groups)
            groups = groups[(groups[:, 0] >= wanted.start) & (groups[:, 0] <= wanted.end)]
            if len(groups):
                yield number, index, groups


def open_change_log(
    handles: Sequence[KeyedStateHandle],
    key_groups: KeyGroupRange,
    open_stream: Callable[[StreamStateHandle], StateStream],
) -> ChangeLog:
    """The log behind the non-materialized handles; nothing is read yet.

    Args:
        handles: in the order of replay.
        key_groups: of the backend; changes of others do not count.
        open_stream: the stream behind a handle.

    Raises:
        UnsupportedError: a handle is of another kind.
    """
    sets: list[ChangeSet] = []
    size = 0
    for handle in handles:
        if isinstance(handle, InMemoryChangelogStateHandle):
            # One change set in one stream, so that there is one form only.
            data, _ = write_change_stream([handle.changes])
            stream = StateStream(f"in-memory changes {handle.state_handle_id}", len(data), data=data)
            sets.append(ChangeSet(stream, 0, handle.key_groups.intersect(key_groups)))
            size += len(data)
        elif isinstance(handle, ChangelogStateHandleStream):
            wanted = handle.key_groups.intersect(key_groups)
            sets += [ChangeSet(open_stream(each.handle), each.offset, wanted) for each in handle.streams]
            size += handle.size
        else:
            raise UnsupportedError(f"a {type(handle).__name__} does not hold changes")
    return ChangeLog(tuple(sets), size)


@dataclass(frozen=True, eq=False)
class _Index:
    """Where things lie in a stream.

    Attributes:
        chunks: i64[c, 2] first byte in the file and in the data, of each chunk; None of a plain stream.
        groups: by position of the change set, i64[g, 4]: key group, number of changes, first byte, behind the last.
    """

    chunks: Positions | None
    groups: dict[int, Positions]

    def read(self, stream: StateStream, start: int, end: int) -> npt.NDArray[np.uint8]:
        """u8, the data from `start` up to `end`."""
        if self.chunks is None:
            return np.frombuffer(read_stream_range(stream, _FLAG + start, _FLAG + end), np.uint8)
        first = int(np.searchsorted(self.chunks[:, 1], start, side="right")) - 1
        last = int(np.searchsorted(self.chunks[:, 1], end, side="left"))
        raw = read_stream_range(stream, int(self.chunks[first, 0]), int(self.chunks[last, 0]))
        data = b"".join(chunk.data for chunk in iter_chunks(raw, name=stream.name))
        skipped = start - int(self.chunks[first, 1])
        return np.frombuffer(data, np.uint8, end - start, skipped)


@lru_cache(maxsize=1024)
def _index(stream: StateStream, offsets: tuple[int, ...]) -> _Index:
    raw = _read_all(stream)
    chunks: Positions | None = None
    data = memoryview(raw)[_FLAG:]
    if is_compressed(raw[:_FLAG], stream.name):
        found, places, position = [], [], 0
        end = _FLAG
        for chunk in iter_chunks(raw, _FLAG, name=stream.name):
            places.append((chunk.start, position))
            found.append(chunk.data)
            position += len(chunk.data)
            end = chunk.end
        chunks = np.array([*places, (end, position)], np.int64)
        data = memoryview(b"".join(found))
    flat = np.frombuffer(data, np.uint8)
    return _Index(chunks, {offset: _find_groups(flat, offset, stream.name) for offset in offsets})


def _find_groups(data: npt.NDArray[np.uint8], offset: int, name: str) -> Positions:
    """The data groups of a change set: key group, number of changes, first byte, behind the last."""
    if not 0 <= offset <= len(data):
        raise FormatError("a change set lies outside its file", where=Where(file=name, offset=offset + _FLAG))
    reader = Reader(data.data, name, offset)  # type: ignore[arg-type]
    groups = []
    for _ in range(reader.count(8)):
        count, key_group, start = reader.count(4), reader.i32(), reader.position
        _, _, end = _walk(data, start, len(data), count, name, 0)
        if key_group != METADATA_KEY_GROUP:
            groups.append((key_group, count, start, end))
        reader.position = end
    return np.array(groups, np.int64).reshape(-1, 4)


def _walk(
    data: npt.NDArray[np.uint8], start: int, end: int, count: int, name: str, offset: int
) -> tuple[Positions, Positions, int]:
    """Starts and ends of `count` changes, and the position behind them."""
    starts, ends = np.empty(count, np.int64), np.empty(count, np.int64)
    behind = walk_changes(data.ctypes.data, start, end, starts, ends)
    if behind < 0:
        where = Where(file=name, offset=offset + start + _FLAG)
        raise FormatError("a change reaches beyond its change set or is shorter than its head", where=where)
    return starts, ends, int(behind)


@njit(cache=True, nogil=True)
def walk_changes(base, start, end, starts, ends):  # type: ignore[no-untyped-def]
    """Find changes that follow each other, each behind its i32 length.

    Args:
        base: address to which positions are relative.
        start: first length.
        end: no change reaches beyond it.
        starts: i64[n], filled.
        ends: i64[n], filled.

    Returns:
        The position behind the last change; -1 when one does not fit or has less than 3 bytes.
    """
    position = start
    for row in range(len(starts)):
        if position + 4 > end:
            return -1
        size = load_i32_big(base + position)
        position += 4
        if size < 3 or size > end - position:
            return -1
        starts[row] = position
        position += size
        ends[row] = position
    return position


def _read_metadata(change_set: ChangeSet) -> list[bytes]:
    """The metadata changes of a change set, which come first in it."""
    stream = change_set.stream
    if is_compressed(read_stream_range(stream, 0, _FLAG), stream.name):
        raw = _read_all(stream)
        data = b"".join(chunk.data for chunk in iter_chunks(raw, _FLAG, name=stream.name))
        return _parse_metadata(Reader(data, stream.name, change_set.offset))
    size = _FIRST_READ
    start, stop = _FLAG + change_set.offset, _stream_end(stream)
    if not _FLAG <= start <= stop:
        raise FormatError("a change set lies outside its file", where=Where(file=stream.name, offset=start))
    while True:
        data = read_stream_range(stream, start, min(start + size, stop))
        try:
            return _parse_metadata(Reader(data, stream.name))
        except FormatError as error:
            if len(data) < size:
                # The file ends here: more bytes would not help.
                offset = None if error.where.offset is None else error.where.offset + start
                error.where = Where(file=stream.name, offset=offset)
                raise
        size *= 8


def _read_all(stream: StateStream) -> bytes:
    return read_stream_range(stream, 0, _stream_end(stream))


def _stream_end(stream: StateStream) -> int:
    """Where the stream ends.

    Of a file only the file says it: handles count the bytes before compression, and not the first byte.
    """
    if stream.location is None or stream.is_segment:
        return stream.size
    return file_size(stream.location)


def _parse_metadata(reader: Reader) -> list[bytes]:
    if reader.i32() == 0:
        return []
    count, key_group = reader.i32(), reader.i32()
    if key_group != METADATA_KEY_GROUP:
        return []
    if count < 0:
        raise reader.error(f"a change set has {count} changes of metadata")
    return [reader.bytes32() for _ in range(count)]


def locate(error: StateError, log: ChangeLog, changes: Changes) -> None:
    """Turn the position in `changes.data` that an error names into one in the file of the change."""
    offset = error.where.offset
    if offset is None or not len(changes):
        return
    order = np.argsort(changes.starts)
    row = int(order[max(0, int(np.searchsorted(changes.starts[order], offset, side="right")) - 1)])
    place = int(changes.positions[row]) + offset - int(changes.starts[row]) + _FLAG
    known = error.where
    name = log.sets[int(changes.sets[row])].stream.name
    error.where = Where(name, place, known.operator, known.state, known.path)
