"""Logged changes of keyed state: their bytes, the groups and streams of them, and checks of the handles that name them.

A change is an operation, a state id and the key, namespace and value of the operation; metadata changes name the state
after an id. Changes are stored in change sets, grouped by key group, the metadata (key group -1) first; change sets are
stored in streams, whose first byte says whether the rest is one snappy framed stream.

* `DataChange`, `MetadataChange`, `write_change_set`, `write_change_stream`: the bytes. Source:
  `AbstractStateChangeLogger`, `KvStateChangeLoggerImpl`, `ChangelogBackendLogApplier`, `StateChangeFormat`,
  `StateChangeFsUploader`, `ChangelogStreamWrapper`.
* `ChangeData`, `open_change_data`: the uncompressed data of streams of change sets, after the byte that marks
  compression. Positions count as the handles of the changes count them, so that the first byte of the data is at 0.
  Source: `ChangelogStreamWrapper`, `StateChangeFormat`.
* `read_groups`, `find_groups`: the groups of a change set, which hold the changes of one key group each, and the
  changes in them. A change set does not say how long its groups are: the lengths of all changes must be passed over.
  Source: `StateChangeFormat`.
* `ChangeLog`, `open_change_log`: the change sets that a handle names, and their changes by key group. Only the metadata
  changes are decoded when a log is opened. The first read finds the key groups of its change sets; after that only the
  bytes of the wanted key groups are read. A stream is never held as a whole. Source:
  `StateChangelogHandleStreamHandleReader`, `StateChangeFormat`, `ChangelogStreamWrapper`.
* `check_changelog_handle`, `find_missing_changes`: handles compared with the numbers of changes, and sizes, that they
  state. Flink does not number the handles of a log, so that only a size can show that a handle is missing. Source:
  `ChangelogKeyedStateBackend.buildSnapshotResult`, `FsStateChangelogWriter`, `InMemoryStateChangelogWriter`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.compiled import load_i32_big, njit
from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.binary.java_stream import read_stream
from state_pipelines.binary.snappy_frames import HEAD_SIZE, compress, iter_chunks, measure_chunk
from state_pipelines.errors import (
    EDITED_METADATA,
    FormatError,
    StateError,
    UnknownSerializerError,
    UnsupportedError,
    UsageError,
    Where,
    unsupported_version,
)
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    ChangelogStateHandleStream,
    EmptySegmentFileStateHandle,
    IncrementalRemoteKeyedStateHandle,
    InMemoryChangelogStateHandle,
    KeyGroupRange,
    KeyGroupsSavepointStateHandle,
    KeyGroupsStateHandle,
    LoggedChange,
)
from state_pipelines.metadata.streams import KeptStreams, StateStream
from state_pipelines.serializers.snapshot_classes import OpenBodyError, read_settled
from state_pipelines.serializers.state_meta_info import (
    BackendStateType,
    StateMetaInfo,
    read_state_meta_info,
    write_state_meta_info,
)
from state_pipelines.storage.reading import read_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from state_pipelines.metadata.handles import ChangelogStateBackendHandle, KeyedStateHandle, StreamStateHandle
    from state_pipelines.serializers.snapshot_classes import DeclaredSerializer

METADATA_KEY_GROUP = -1
"""Key group under which metadata changes are logged (`LoggedChange.META_KEY_GROUP`)."""

_PLAIN, _COMPRESSED = 0, 1
_VERSIONS = (6, 7)
_TYPE_CODES = {BackendStateType.KEY_VALUE: 0, BackendStateType.PRIORITY_QUEUE: 3, BackendStateType.KEY_VALUE_V2: 10}
# Bytes of the fields after the default value: state id and type code.
_TAIL = 3


class StateChangeOperation(IntEnum):
    """Operations of logged changes (Flink's `StateChangeOperation`); the number is the first byte of a change."""

    CLEAR = 0
    SET = 1
    SET_INTERNAL = 2
    ADD = 3
    MERGE_NS = 4
    ADD_ELEMENT = 5
    ADD_OR_UPDATE_ELEMENT = 6
    REMOVE_ELEMENT = 7
    METADATA = 8


@dataclass(frozen=True, kw_only=True)
class MetadataChange:
    """Change that gives a state its id in the changes that follow.

    Attributes:
        version: of the meta info, 6 or 7.
        info: the state.
        state_id: number in the data changes that follow.
        ttl_config: `StateTtlConfig` as a Java serialization stream, as it was read; None without TTL.
        default_value: default value in the state's serializer; None when there is none.
    """

    version: int = 7
    info: StateMetaInfo
    state_id: int
    ttl_config: bytes | None = field(default=None, repr=False)
    default_value: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class DataChange:
    """Logged change of the data of a state: one operation, such as a new value of a key.

    Attributes:
        operation: what was done.
        state_id: the id that an earlier metadata change has given to the state.
        payload: bytes after operation and state id: key and namespace, then what the operation adds, sets or removes
            (for timers only the timers). No lengths are stored: only layouts separate the fields.
    """

    operation: StateChangeOperation
    state_id: int
    payload: bytes


def read_metadata_change(
    change: bytes, name: str | None = None, declared: Sequence[DeclaredSerializer] = ()
) -> MetadataChange:
    """Read a metadata change, which is logged under key group -1.

    Where a serializer has no reader and the end of its snapshot cannot be proven, placeholders replace the serializers
    from there on, and neither TTL nor default value is known. Such a change cannot be written again.

    Args:
        change: all bytes of the change.
        name: of the file, for errors.
        declared: snapshot classes that the user declares.

    Raises:
        FormatError: the bytes are not a metadata change.
    """
    try:
        return _read_metadata_change(Reader(change, name))
    except UnknownSerializerError:
        pass
    try:
        return read_settled(_read_metadata_change, change, name, end=len(change), declared=declared)[0]
    except OpenBodyError as error:
        if not error.infos:
            raise
        (info,) = error.infos
        tail = Reader(change, name, len(change) - _TAIL)
        return MetadataChange(info=info, state_id=tail.u16())


def _read_metadata_change(reader: Reader) -> MetadataChange:
    if (operation := reader.u8()) != StateChangeOperation.METADATA:
        raise reader.error(f"a change of metadata begins with {StateChangeOperation.METADATA}, not {operation}", 0)
    version = reader.i32()
    if version not in _VERSIONS:
        known = " and ".join(map(str, _VERSIONS))
        raise unsupported_version("a change of metadata", version, known, Where(file=reader.name, offset=1))
    info = read_state_meta_info(reader)
    ttl_config = default_value = None
    if info.backend_type is not BackendStateType.PRIORITY_QUEUE:
        if reader.bool():
            start = reader.position
            read_stream(reader)
            end, reader.position = reader.position, start
            ttl_config = reader.take(end - start)
        if reader.bool():
            # The default value has no length: it ends where the fixed-size fields at the end begin.
            default_value = reader.take(reader.remaining - _TAIL)
    state_id = reader.u16()
    if (code := reader.u8()) != _TYPE_CODES.get(info.backend_type):
        raise reader.error(
            f"a metadata change ends with {code}, which is not the type code of {info.backend_type} state {info.name}",
            reader.position - 1,
        )
    reader.expect_end("the change of metadata")
    return MetadataChange(
        version=version, info=info, state_id=state_id, ttl_config=ttl_config, default_value=default_value
    )


def write_metadata_change(change: MetadataChange) -> bytes:
    """Return the bytes of a metadata change; the mirror of `read_metadata_change`.

    Raises:
        UsageError: the state is not keyed state, or a priority queue has TTL or a default value.
    """
    if change.info.backend_type not in _TYPE_CODES:
        raise UsageError(f"{change.info.backend_type} state has no changes", where=Where(state=change.info.name))
    writer = Writer()
    writer.u8(StateChangeOperation.METADATA)
    writer.i32(change.version)
    write_state_meta_info(writer, change.info)
    if change.info.backend_type is not BackendStateType.PRIORITY_QUEUE:
        for content in (change.ttl_config, change.default_value):
            writer.bool(content is not None)
            writer.take(content or b"")
    elif change.ttl_config is not None or change.default_value is not None:
        raise UsageError("a priority queue has neither TTL nor a default value", where=Where(state=change.info.name))
    writer.u16(change.state_id)
    writer.u8(_TYPE_CODES[change.info.backend_type])
    return writer.getvalue()


def write_change_set(writer: Writer, changes: Iterable[LoggedChange]) -> None:
    """Write one change set by ascending key group, so metadata (key group -1) comes first.

    The changes of a key group keep their order.
    """
    groups: dict[int, list[LoggedChange]] = {}
    for change in changes:
        groups.setdefault(change.key_group, []).append(change)
    writer.i32(len(groups))
    for key_group in sorted(groups):
        writer.i32(len(groups[key_group]))
        writer.i32(key_group)
        for change in groups[key_group]:
            writer.bytes32(change.change)


def is_compressed(flag: bytes, name: str) -> bool:
    """Return whether the first byte of a stream of change sets marks compression.

    Raises:
        FormatError: the byte is missing or has another value.
    """
    if flag not in (bytes((_PLAIN,)), bytes((_COMPRESSED,))):
        raise FormatError(
            f"a stream of changes begins with {flag.hex() or 'nothing'}, not with 00 (uncompressed) or 01 (compressed)",
            where=Where(file=name, offset=0),
        )
    return flag[0] == _COMPRESSED


def write_change_stream(
    change_sets: Sequence[Iterable[LoggedChange]], *, compressed: bool = False
) -> tuple[bytes, tuple[int, ...]]:
    """Write a stream of change sets; return it with the position of each change set, which the handle names.

    Returns:
        (bytes of the file, positions in the uncompressed data after the first byte).
    """
    writer, offsets = Writer(), []
    for changes in change_sets:
        offsets.append(len(writer))
        write_change_set(writer, changes)
    data = writer.getvalue()
    if compressed:
        return bytes((_COMPRESSED,)) + compress(data), tuple(offsets)
    return bytes((_PLAIN,)) + data, tuple(offsets)


Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]

FLAG = 1
"""Bytes in front of the data, which positions do not count."""

AHEAD = 4 << 20
"""Bytes that are read at once where a stream is read from its start to its end."""


class ChangeFiles:
    """Files of changes of one snapshot, each opened once; several handles name parts of one file.

    Args:
        streams: reads the files, and caches small ones.
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
    """Uncompressed change sets of a stream, without the compression flag in its first byte.

    Attributes:
        stream: the stream.
        size: bytes of data.
        chunks: i64[c + 1, 2] start offset of each chunk in the file and in the data, then the end offsets of the
            last one; None if the stream is not compressed.
        streams: reads the stream.
    """

    stream: StateStream
    size: int
    chunks: Positions | None
    streams: KeptStreams

    def read(self, start: int, end: int) -> Bytes:
        """Return the data from `start` up to `end`, u8; of a compressed stream only the chunks that hold it are read.

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
    """Buffered reader of bytes at mostly ascending positions; it reads ahead, so that near ones take one read.

    Args:
        read: returns the bytes from a start up to an end position.
        size: total number of bytes.
        ahead: smallest number of bytes per read.
    """

    def __init__(self, read: Callable[[int, int], Bytes], size: int, ahead: int = AHEAD) -> None:
        self.size = size
        self._read = read
        self._ahead = ahead
        self._start = 0
        self._held: Bytes = np.zeros(0, np.uint8)

    def take(self, start: int, size: int) -> Bytes:
        """Return `size` bytes from `start` on, u8; fewer only where the data ends."""
        stop = min(start + size, self.size)
        if start < self._start or stop > self._start + len(self._held):
            self._held = self._read(start, min(max(stop, start + self._ahead), self.size))
            self._start = start
        return self._held[start - self._start : max(start, stop) - self._start]

    def take_held(self, start: int) -> Bytes:
        """Return the buffered bytes from `start` on, u8; read more if there are none. Empty at the end of the data."""
        self.take(start, 1)
        return self._held[start - self._start :]


def open_change_data(stream: StateStream, streams: KeptStreams) -> ChangeData:
    """Open the data of a stream; of a compressed stream only the headers of the chunks are read.

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


GROUP, SET, START, END, COUNT = range(5)
"""Columns of groups: key group, number of the change set, first byte, end, number of changes."""

# Bytes of the smallest change: operation and state id.
_SMALLEST = 3


def read_groups(ahead: Lookahead, data: ChangeData, offset: int) -> Iterator[Positions]:
    """Yield the groups of a change set (its changes of one key group, or its metadata) in the order of the stream.

    Args:
        ahead: reads `data`.
        data: the stream.
        offset: position of the change set.

    Yields:
        i64[g, 5]: groups, with the columns `GROUP` to `COUNT`; the column `SET` is left 0, for the caller to fill.

    Raises:
        FormatError: the bytes are not a change set.
    """
    require_inside(data, offset)
    left = _read_count(ahead, data, offset, 8)
    position = offset + 4
    while left:
        held = ahead.take_held(position)
        rows = np.zeros((min(left, len(held) // 8), COUNT + 1), np.int64)
        found, after = find_groups(held.ctypes.data, len(held), position, rows)
        if not found:
            # The buffer ends inside the group, or a length in the group is wrong: pass over its changes one by one.
            count = _read_count(ahead, data, position, 4)
            if position + 8 > data.size:
                raise misfit(data.stream.name, position)
            key_group = _read_i32(ahead, position + 4)
            after = _skip(ahead, data, position + 8, count)
            rows, found = np.array([(key_group, 0, position + 8, after, count)], np.int64), 1
        yield rows[:found]
        left -= found
        position = after


def _read_i32(ahead: Lookahead, position: int) -> int:
    return int.from_bytes(ahead.take(position, 4).tobytes(), "big", signed=True)


def _read_count(ahead: Lookahead, data: ChangeData, position: int, minimum: int) -> int:
    """Read a count of items of at least `minimum` bytes each."""
    count = _read_i32(ahead, position)
    left = data.size - position - 4
    if left < 0 or count < 0 or count * minimum > left:
        what = f"a count of {count} does not fit in the {max(0, left)} bytes left"
        raise FormatError(what, where=Where(file=data.stream.name, offset=position + FLAG))
    return count


def _skip(ahead: Lookahead, data: ChangeData, position: int, count: int) -> int:
    """Return the end offset of `count` changes that begin at `position`."""
    while count:
        held = ahead.take_held(position)
        skipped, after = skip_changes(held.ctypes.data, len(held), count)
        count -= skipped
        position += after
        if count and not skipped:
            # The buffer ends inside the change, or the length of the change is wrong.
            size = _read_i32(ahead, position)
            if size < _SMALLEST or len(ahead.take(position, 4 + size)) < 4 + size:
                raise misfit(data.stream.name, position)
    return position


def misfit(name: str, position: int) -> FormatError:
    """Make the error for a change whose length does not fit its change set, for the caller to raise."""
    where = Where(file=name, offset=position + FLAG)
    return FormatError(
        "a logged change reaches beyond its change set, or is shorter than its operation and state id", where=where
    )


def require_inside(data: ChangeData, offset: int) -> None:
    """Make sure that a change set begins inside its stream.

    Raises:
        FormatError: it does not.
    """
    if not 0 <= offset <= data.size:
        where = Where(file=data.stream.name, offset=offset + FLAG)
        raise FormatError("a change set is outside its file", where=where)


@njit(cache=True, nogil=True)
def find_groups(base, size, first, rows):  # type: ignore[no-untyped-def]
    """Find groups of changes that follow each other.

    Args:
        base: address of the first group.
        size: bytes from there on.
        first: position of the first group.
        rows: i64[g, 5], zeros; gets the groups, except for the column `SET`.

    Returns:
        (number of complete and valid groups, end of the last one).
    """
    position = 0
    for row in range(len(rows)):
        if position + 8 > size:
            return row, first + position
        count = load_i32_big(base + position)
        if count < 0 or count > (size - position) // 4:
            return row, first + position
        skipped, after = skip_changes(base + position + 8, size - position - 8, count)
        if skipped < count:
            return row, first + position
        rows[row, 0] = load_i32_big(base + position + 4)
        rows[row, 2] = first + position + 8
        position += 8 + after
        rows[row, 3] = first + position
        rows[row, 4] = count
    return len(rows), first + position


@njit(cache=True, nogil=True)
def skip_changes(base, size, count):  # type: ignore[no-untyped-def]
    """Pass over consecutive changes, each preceded by its i32 length.

    Args:
        base: address of the first length.
        size: bytes from there on.
        count: how many at most.

    Returns:
        (number of complete changes of at least 3 bytes, end of the last one).
    """
    position = 0
    for row in range(count):
        if position + 4 > size:
            return row, position
        length = load_i32_big(base + position)
        if length < 3 or length > size - position - 4:
            return row, position
        position += 4 + length
    return count, position


@njit(cache=True, nogil=True)
def walk_groups(base, firsts, stops, counts, starts, ends):  # type: ignore[no-untyped-def]
    """Find the changes of groups, each preceded by its i32 length.

    Args:
        base: address to which positions are relative.
        firsts: i64[g], the first length of each group.
        stops: i64[g], no change of the group reaches beyond it.
        counts: i64[g], changes of each group.
        starts: i64[n], filled.
        ends: i64[n], filled.

    Returns:
        -1, or the first group that has a change that does not fit or has less than 3 bytes.
    """
    row = 0
    for group in range(len(firsts)):
        position = firsts[group]
        for _ in range(counts[group]):
            if position + 4 > stops[group]:
                return group
            size = load_i32_big(base + position)
            position += 4
            if size < 3 or size > stops[group] - position:
                return group
            starts[row] = position
            position += size
            ends[row] = position
            row += 1
    return -1


_FIRST_READ = 1 << 16
"""Bytes that are read at once in search of metadata changes."""

_LENGTH = 4
"""Bytes of the length of a change."""


@dataclass(frozen=True)
class ChangeSet:
    """A change set: the logged changes of one flush.

    Attributes:
        stream: stream that holds it.
        offset: position in the uncompressed data, without the first byte.
        key_groups: the key groups to replay; after a change of parallelism, the set has changes of others, too.
    """

    stream: StateStream
    offset: int
    key_groups: KeyGroupRange


@dataclass(frozen=True)
class StatedSize:
    """Size that a handle declares for its change sets, to be compared with their actual size.

    Attributes:
        sets: indexes, in the log, of the change sets of the handle.
        size: the declared size.
        stored: bytes of the streams that hold these change sets.
    """

    sets: range
    size: int
    stored: int


@dataclass(frozen=True)
class Changes:
    """Data changes of some key groups; those of one key group are in the order in which they were logged.

    Attributes:
        data: u8, holds the changes.
        starts: i64[n] in `data`.
        ends: i64[n].
        key_groups: i32[n].
        sets: i64[n] number of the change set.
        positions: i64[n] of each change in its stream, uncompressed and without the first byte.
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
        """Return some of the changes, by number or by mask."""
        return Changes(
            self.data, self.starts[rows], self.ends[rows], self.key_groups[rows], self.sets[rows], self.positions[rows]
        )


@dataclass(frozen=True)
class ChangeLog:
    """Change sets in the order of replay.

    Positions of changes are found once and cached; the cache is not sent to other processes.

    Attributes:
        sets: the change sets.
        size: approximate bytes of changes.
        stated: sizes that handles declare, compared with the change sets when these are read.
        files: reads the streams; logs of one snapshot share it.
    """

    sets: tuple[ChangeSet, ...]
    size: int
    stated: tuple[StatedSize, ...] = ()
    files: ChangeFiles = field(default_factory=ChangeFiles, compare=False, repr=False)

    def __reduce__(self) -> tuple[type[ChangeLog], tuple[tuple[ChangeSet, ...], int, tuple[StatedSize, ...]]]:
        return ChangeLog, (self.sets, self.size, self.stated)

    def metadata(self, declared: Sequence[DeclaredSerializer] = ()) -> list[list[MetadataChange]]:
        """Return the metadata changes of every change set.

        Args:
            declared: snapshot classes that the user declares.

        Raises:
            FormatError: the bytes are not change sets.
        """
        found: dict[int, list[MetadataChange]] = {}
        for data, numbers in self._streams:
            ahead = Lookahead(data.read, data.size, _FIRST_READ)
            for number in numbers:
                changes = _read_metadata(ahead, data, self.sets[number].offset)
                found[number] = [read_metadata_change(change, data.stream.name, declared) for change in changes]
        return [found[number] for number in range(len(self.sets))]

    def sizes(self, key_groups: KeyGroupRange) -> Positions:
        """Return the bytes of changes of each key group, i64[n].

        Raises:
            FormatError: the bytes are not change sets.
        """
        groups = self._find(key_groups)
        sizes = np.zeros(len(key_groups), np.int64)
        np.add.at(sizes, groups[:, GROUP] - key_groups.start, groups[:, END] - groups[:, START])
        return sizes

    def read(self, key_groups: KeyGroupRange) -> Changes:
        """Return the data changes of some key groups; only their bytes are read, once their positions are known.

        Raises:
            FormatError: the bytes are not change sets.
        """
        groups = self._find(key_groups)
        groups = groups[np.argsort(groups[:, SET], kind="stable")]
        bounds = np.flatnonzero(np.diff(groups[:, SET], prepend=-1, append=-1)).tolist()
        arrays: list[Bytes] = [np.zeros(0, np.uint8)]
        shifts = np.empty(len(groups), np.int64)
        size = 0
        for first, stop in pairwise(bounds):
            # Key groups ascend in a change set, so that the wanted ones are adjacent.
            start, end = int(groups[first:stop, START].min()), int(groups[first:stop, END].max())
            arrays.append(self._data[int(groups[first, SET])].read(start, end))
            shifts[first:stop] = size - start
            size += end - start
        data = arrays[1] if len(arrays) == 2 else np.concatenate(arrays)
        counts = np.ascontiguousarray(groups[:, COUNT])
        starts, ends = np.empty((2, int(counts.sum())), np.int64)
        wrong = walk_groups(data.ctypes.data, groups[:, START] + shifts, groups[:, END] + shifts, counts, starts, ends)
        if wrong >= 0:
            raise misfit(self.sets[int(groups[wrong, SET])].stream.name, int(groups[wrong, START]))
        sets = np.repeat(groups[:, SET], counts)
        key_groups_of = np.repeat(groups[:, GROUP], counts).astype(np.int32)
        return Changes(data, starts, ends, key_groups_of, sets, starts - np.repeat(shifts, counts))

    def windows(self, key_groups: KeyGroupRange, size: int) -> Iterator[KeyGroupRange]:
        """Yield the key groups in ranges, each with about `size` bytes of changes."""
        start, held = key_groups.start, 0
        for key_group, bytes_there in zip(key_groups, self.sizes(key_groups).tolist(), strict=True):
            held += bytes_there
            if held >= size or key_group == key_groups.end:
                yield KeyGroupRange(start, key_group - start + 1)
                start, held = key_group + 1, 0

    def _find(self, key_groups: KeyGroupRange) -> Positions:
        """Return the rows of `_groups` that belong to some key groups."""
        first = np.searchsorted(self._groups[:, GROUP], key_groups.start, side="left")
        stop = np.searchsorted(self._groups[:, GROUP], key_groups.end, side="right")
        return self._groups[first:stop]

    @cached_property
    def _streams(self) -> list[tuple[ChangeData, list[int]]]:
        """Each stream, opened once, and the change sets in it by position."""
        numbers: dict[StateStream, list[int]] = {}
        for number, each in enumerate(self.sets):
            numbers.setdefault(each.stream, []).append(number)
        location = next((stream.location for stream in numbers if stream.location is not None), None)
        return [
            (data, sorted(numbers[stream], key=lambda number: self.sets[number].offset))
            for stream, data in read_ahead(numbers, self.files.open, location, lambda stream: stream.size)
        ]

    @cached_property
    def _data(self) -> dict[int, ChangeData]:
        """The data of the stream that holds each change set, by index of the set."""
        return {number: data for data, numbers in self._streams for number in numbers}

    @cached_property
    def _groups(self) -> Positions:
        """Groups of data changes, i64[g, 5] with the columns `GROUP` to `COUNT`; by key group, then by change set."""
        found = [np.zeros((0, COUNT + 1), np.int64)]
        sizes = [0] * len(self.sets)
        # A handle that declares a size was not cut by a change of parallelism, so its change sets hold the changes of
        # its own key groups only.
        whole = {number for each in self.stated for number in each.sets}
        for data, numbers in self._streams:
            ahead = Lookahead(data.read, data.size)
            for number in numbers:
                each = self.sets[number]
                for groups in read_groups(ahead, data, each.offset):
                    groups[:, SET] = number
                    sizes[number] += int((groups[:, END] - groups[:, START] - _LENGTH * groups[:, COUNT]).sum())
                    groups = groups[groups[:, GROUP] != METADATA_KEY_GROUP]
                    wanted = (each.key_groups.start <= groups[:, GROUP]) & (groups[:, GROUP] <= each.key_groups.end)
                    if number in whole and not wanted.all():
                        raise FormatError(
                            f"the changes of key group {groups[~wanted][0, GROUP]} are in a log of key groups "
                            f"{each.key_groups.start}-{each.key_groups.end}",
                            where=Where(file=each.stream.name, offset=each.offset),
                            hint=EDITED_METADATA,
                        )
                    found.append(groups[wanted])
        self._check_sizes(sizes)
        table = np.concatenate(found)
        return table[np.lexsort((table[:, START], table[:, SET], table[:, GROUP]))]

    def _check_sizes(self, sizes: Sequence[int]) -> None:
        """Make sure that no change set of a handle is missing or has been replaced by another one.

        Flink declares in a handle the bytes of all changes without their length fields (`StateChangeSet.getSize`); the
        DataStream functions of this package declare the bytes of the stream.
        """
        for each in self.stated:
            found = sum(sizes[number] for number in each.sets)
            if each.size not in (found, each.stored):
                raise FormatError(
                    f"the change sets of a changelog handle have {found:,} bytes, and the handle states {each.size:,}: "
                    "a change set is missing, or another one is in its place",
                    where=Where(file=self.sets[each.sets.start].stream.name),
                    hint=EDITED_METADATA,
                )


def open_change_log(
    handles: Sequence[KeyedStateHandle],
    key_groups: KeyGroupRange,
    open_stream: Callable[[StreamStateHandle], StateStream],
    files: ChangeFiles | None = None,
) -> ChangeLog:
    """Open the log of the non-materialized handles; nothing is read yet.

    Args:
        handles: in the order of replay.
        key_groups: of the backend; changes of other key groups are ignored.
        open_stream: opens the stream of a handle.
        files: of the snapshot; None where no other log shares them.

    Raises:
        UnsupportedError: a handle is of another kind.
        FormatError: a change set is listed twice for a key group.
    """
    sets: list[ChangeSet] = []
    stated: list[StatedSize] = []
    size = 0
    for handle in handles:
        if isinstance(handle, InMemoryChangelogStateHandle):
            # Written as a stream with one change set, so that inlined changes and files are read in the same way.
            data, _ = write_change_stream([handle.changes])
            stream = StateStream(f"in-memory changes {handle.state_handle_id}", len(data), data=data)
            sets.append(ChangeSet(stream, 0, handle.key_groups.intersect(key_groups)))
            size += len(data)
        elif isinstance(handle, ChangelogStateHandleStream):
            wanted = handle.key_groups.intersect(key_groups)
            streams = [replace(open_stream(each.handle), holds_changes=True) for each in handle.streams]
            sets += [
                ChangeSet(stream, each.offset, wanted) for stream, each in zip(streams, handle.streams, strict=True)
            ]
            # After a change of parallelism the size in the handle is 0; the files' size is the best estimate then.
            stored = sum(stream.size for stream in dict.fromkeys(streams))
            size += handle.size or stored
            if handle.size and streams:
                stated.append(StatedSize(range(len(sets) - len(streams), len(sets)), handle.size, stored))
        else:
            raise UnsupportedError(f"a {type(handle).__name__} does not hold changes")
    _require_distinct(sets)
    return ChangeLog(tuple(sets), size, tuple(stated), files or ChangeFiles())


def _require_distinct(sets: Sequence[ChangeSet]) -> None:
    """Make sure that no change set is replayed twice for a key group.

    After changes of parallelism several handles may name one change set, each for key groups of its own.
    """
    seen: dict[tuple[StateStream, int], list[KeyGroupRange]] = {}
    for each in sets:
        before = seen.setdefault((each.stream, each.offset), [])
        again = next((groups for known in before if (groups := known.intersect(each.key_groups)).number), None)
        if again is not None:
            raise FormatError(
                f"a set of logged changes is listed twice for key groups {again.start}-{again.end}",
                where=Where(file=each.stream.name, offset=each.offset + FLAG),
                hint=EDITED_METADATA,
            )
        before.append(each.key_groups)


def _read_metadata(ahead: Lookahead, data: ChangeData, offset: int) -> list[bytes]:
    """Return the bytes of the metadata changes of a change set, which come first in it."""
    require_inside(data, offset)
    found = ahead.take_held(offset)
    while True:
        try:
            return _parse_metadata(Reader(found.tobytes(), data.stream.name))
        except FormatError as error:
            if offset + len(found) >= data.size:
                # All bytes up to the end of the data were parsed, so reading more does not help: the data is damaged.
                position = None if error.where.offset is None else error.where.offset + offset + FLAG
                error.where = Where(file=data.stream.name, offset=position)
                raise
        found = ahead.take(offset, max(_FIRST_READ, 8 * len(found)))


def _parse_metadata(reader: Reader) -> list[bytes]:
    if reader.i32() == 0:
        return []
    count, key_group = reader.i32(), reader.i32()
    if key_group != METADATA_KEY_GROUP:
        return []
    if count < 0:
        raise reader.error(f"a change set states a negative number of metadata changes: {count}")
    return [reader.bytes32() for _ in range(count)]


def locate(error: StateError, log: ChangeLog, changes: Changes) -> None:
    """Turn the position in `changes.data` that an error names into one in the file of the change."""
    offset = error.where.offset
    if offset is None or not len(changes):
        return
    order = np.argsort(changes.starts)
    row = int(order[max(0, int(np.searchsorted(changes.starts[order], offset, side="right")) - 1)])
    position = int(changes.positions[row]) + offset - int(changes.starts[row]) + FLAG
    known = error.where
    name = log.sets[int(changes.sets[row])].stream.name
    error.where = Where(name, position, known.operator, known.state, known.path)


def check_changelog_handle(handle: ChangelogStateBackendHandle, file: str) -> None:
    """Check that the changes of a handle are complete, as far as the handle shows.

    Args:
        handle: the handle.
        file: name for errors.

    Raises:
        FormatError: changes are missing, or there are too many.
    """
    for problem in find_missing_changes(handle):
        raise FormatError(problem, where=Where(file=file), hint=EDITED_METADATA)


def find_missing_changes(handle: ChangelogStateBackendHandle) -> Iterator[str]:
    """Yield contradictions within a handle and within the handles of its changes; no change is read."""
    found = [problem for change in handle.non_materialized for problem in _find_own(change)]
    # Flink drops a base without key groups of the handle (`IncrementalRemoteKeyedStateHandle.getIntersection`), so that
    # such a base in a handle is a contradiction.
    found += [
        f"the materialized state of key groups {base.key_groups.start}-{base.key_groups.end} is in a changelog "
        f"handle of key groups {handle.key_groups.start}-{handle.key_groups.end}"
        for base in handle.materialized
        if handle.key_groups.number and not base.key_groups.intersect(handle.key_groups).number
    ]
    # A missing change also makes the persisted size wrong, so the size is compared only where nothing else was found.
    yield from found or _compare_persisted_size(handle)


def find_missing_base(handle: ChangelogStateBackendHandle) -> str | None:
    """Describe the contradiction in a handle that counts materializations but has no materialized state; else None.

    Flink materializes only after a change, for which a state is registered, so that the base is not empty.
    """
    if handle.materialization_id <= 0 or handle.materialized:
        return None
    return f"a changelog handle counts {handle.materialization_id} materializations and has no materialized state"


def _find_own(change: KeyedStateHandle) -> Iterator[str]:
    if isinstance(change, InMemoryChangelogStateHandle):
        yield from _compare_sequence_numbers(change)
        wrong = [each.key_group for each in change.changes if not _belongs(each.key_group, change)]
        if wrong:
            groups = change.key_groups
            yield f"a change of key group {wrong[0]} is in a log of key groups {groups.start}-{groups.end}"
    elif isinstance(change, ChangelogStateHandleStream):
        yield from _compare_sizes(change)
        yield from _compare_order(change)


def _compare_sequence_numbers(change: InMemoryChangelogStateHandle) -> Iterator[str]:
    """Compare the number of changes in an in-memory handle with the range of sequence numbers that it states.

    Each change has its own number. A change of parallelism does not remove changes from the handle: an intersection
    is the whole handle (`InMemoryChangelogStateHandle.getIntersection`).
    """
    expected = change.end - change.start
    if len(change.changes) != expected:
        yield (
            f"an in-memory changelog handle holds {len(change.changes):,} changes, not the {expected:,} of its "
            f"sequence numbers {change.start}-{change.end}"
        )


def _compare_sizes(change: ChangelogStateHandleStream) -> Iterator[str]:
    """Compare the size that a handle states with its change sets, and with the bytes that the checkpoint added to it.

    Both sizes are 0 after a change of parallelism has cut the handle (`getIntersection`).
    """
    if change.size and not change.streams:
        yield f"a changelog handle of {change.size:,} bytes names no set of changes"
    elif 0 < change.size < change.persisted_size:
        yield (
            f"a changelog handle of {change.size:,} bytes says that the checkpoint added {change.persisted_size:,} "
            "bytes to it"
        )


def _belongs(key_group: int, change: InMemoryChangelogStateHandle) -> bool:
    return key_group == METADATA_KEY_GROUP or key_group in change.key_groups


def _compare_order(change: ChangelogStateHandleStream) -> Iterator[str]:
    """Check that the change sets in one file are replayed by ascending offset: both follow sequence numbers."""
    last: dict[StreamStateHandle, int] = {}
    for each in change.streams:
        if last.get(each.handle, -1) >= each.offset:
            yield "a changelog handle names sets of changes in another order than that of their file, or one twice"
            return
        last[each.handle] = each.offset


def _compare_persisted_size(handle: ChangelogStateBackendHandle) -> Iterator[str]:
    """Compare `persisted_size` with the size of the changes that this checkpoint added, which are the last ones.

    Checkpoints of the DataStream functions of this package add either changes or a base. Before Flink 1.16, when
    handles had no checkpoint id, `persisted_size` had another meaning.
    """
    if handle.checkpoint_id is None or handle.persisted_size <= 0:
        return
    last = _measure(handle.non_materialized[-1]) if handle.non_materialized else 0
    base = sum(_measure(each) or 0 for each in handle.materialized)
    if last is not None and handle.persisted_size not in (last, base, last + base):
        yield (
            f"a changelog handle says that the checkpoint added {handle.persisted_size:,} bytes of changes, and its "
            f"last changes are {last:,} bytes: the changes of this checkpoint are missing"
        )


def _measure(handle: KeyedStateHandle) -> int | None:
    """Return the bytes that a checkpoint added with a handle (`getCheckpointedSize`); None where not known."""
    match handle:
        case InMemoryChangelogStateHandle():
            return sum(len(each.change) for each in handle.changes)
        case ChangelogStateHandleStream():
            return handle.persisted_size
        case IncrementalRemoteKeyedStateHandle():
            return handle.persisted_size
        case KeyGroupsStateHandle() | KeyGroupsSavepointStateHandle():
            return _measure_stream(handle.delegate)
        case _:
            return None


def _measure_stream(handle: StreamStateHandle) -> int:
    while isinstance(handle, KeyGroupsStateHandle):
        handle = handle.delegate
    match handle:
        case ByteStreamStateHandle():
            return len(handle.data)
        case EmptySegmentFileStateHandle():
            return 0
        case _:
            return handle.size
