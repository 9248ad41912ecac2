"""All streams of a `_metadata` file, the bytes of their handles, whole or in ranges, and in-flight data.

* `list_references`: all streams that a `_metadata` file names, with their role.
* `open_stream`, `read_whole_stream`, `read_stream_range`: the bytes of stream handles.
* `read_channel_data`, `summarise_channels`: in-flight data of unaligned checkpoints: the buffers of channel state
  handles, and their sizes. A stream of channel state begins with an i32 version, 0; at every offset of a handle there
  are an i32 length and the bytes of one network buffer. Channels, subtasks and even operators share a stream. Records
  are stored as `i32 length, StreamElement` across the buffers: the buffers of input channel i of a subtask j, then
  those of subpartition j of the upstream subtask i, are one stream of records. Small data inside `_metadata` is split:
  each channel has a stream of its own with all its buffers merged into one, and its handle counts the version too
  (`ChannelStateSerializerImpl.extractAndMerge`). Source: `ChannelStateSerializerImpl`, `ChannelStateCheckpointWriter`,
  `SequentialChannelStateReaderImpl`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

from state_pipelines.binary.data_views import Reader
from state_pipelines.errors import (
    FormatError,
    MissingFileError,
    ProofError,
    SnapshotGoneError,
    StateError,
    UnsupportedVersionError,
    ValueRangeError,
    Where,
)
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    ChangelogStateBackendHandle,
    ChangelogStateHandleStream,
    ChannelDirection,
    ChannelInfo,
    ChannelState,
    ChannelStateHandle,
    EmptySegmentFileStateHandle,
    FileMergingOperatorStreamStateHandle,
    FileStateHandle,
    HandleAndLocalPath,
    IncrementalRemoteKeyedStateHandle,
    InMemoryChangelogStateHandle,
    KeyedStateHandle,
    KeyGroupsStateHandle,
    MergedChannelStateHandle,
    OperatorStateHandle,
    OperatorStreamStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from state_pipelines.storage import Location, PathMapping, create_file, file_size, read_file
from state_pipelines.storage.files import can_copy_inside, copy_inside, remove_file
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.reading import attempt_together, read_range, read_ranges
from state_pipelines.storage.resolution import locate_named, name_named
from state_pipelines.storage.snapshot_writer import is_removed
from state_pipelines.storage.uploads import (
    CopyRefusedError,
    FileRange,
    can_copy_ranges,
    plan_parts,
    warn_of_refusal,
    write_parts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from state_pipelines.metadata.checkpoint import CheckpointMetadata, OperatorState, SubtaskState

COPY_SIZE = 8 << 20
"""Buffer size for copying a stream."""

_MOST_UNDECLARED = 64 << 20
"""Bytes by which a file that is read whole may be longer than twice what its handle declares."""

_NO_MAPPING = PathMapping()
_MAP_HINT = (
    "If the files were moved, give their new location with --map FROM=TO; `verify` looks for them and shows the option"
)


@dataclass(frozen=True, slots=True)
class StateStream:
    """State that can be read; positions count from the first byte of the state.

    Attributes:
        name: path of the file, or name of the inlined handle, for errors.
        size: bytes of state, from the handle.
        location: the file; None for inlined and empty state.
        start: first byte of the state in the file.
        data: the state if there is no file.
        is_segment: the state is a slice of the file, not all of it.
        is_absolute: the handle names the file by an absolute path.
        holds_changes: the file holds logged changes. Its handle counts the bytes before compression, without the
            first byte of the file, the compression flag (`StateChangeFsUploader`).
        directory: directory of the snapshot whose handle names the file.
    """

    name: str
    size: int
    location: Location | None = None
    start: int = 0
    data: bytes = field(default=b"", repr=False)
    is_segment: bool = False
    is_absolute: bool = False
    holds_changes: bool = False
    directory: Location | None = None


@dataclass(frozen=True, slots=True)
class StreamRange:
    """The bytes of a stream from `start` up to `end` (exclusive)."""

    stream: StateStream
    start: int
    end: int

    def __len__(self) -> int:
        """Return the number of bytes."""
        return self.end - self.start


def open_stream(
    handle: StreamStateHandle,
    exclusive_directory: Location,
    path_mapping: PathMapping = _NO_MAPPING,
    *,
    holds_changes: bool = False,
) -> StateStream:
    """Open the stream of a handle without reading.

    Args:
        handle: the handle; for a `KeyGroupsStateHandle`, its delegate is opened.
        exclusive_directory: the directory that holds `_metadata`; paths of relative handles start there.
        path_mapping: current locations of directories that absolute handles name, and further allowed directories.
        holds_changes: the handle is one of a `ChangelogStateHandleStream` (`StreamRole.CHANGES`).

    Raises:
        FormatError: a relative path leaves the exclusive directory, or a path is not one of Flink's.
        OutOfReachError: the file is outside the directories that the snapshot may name.
        UsageError: the storage of an absolute handle cannot be reached.
    """
    match handle:
        case ByteStreamStateHandle():
            return StateStream(handle.handle_name, len(handle.data), data=handle.data)
        case EmptySegmentFileStateHandle():
            return StateStream("an empty segment", 0)
        case KeyGroupsStateHandle():
            return open_stream(handle.delegate, exclusive_directory, path_mapping, holds_changes=holds_changes)
        case _:
            location = locate_file(handle, exclusive_directory, path_mapping)
            return StateStream(
                name=str(location),
                size=handle.size,
                location=location,
                start=handle.start if isinstance(handle, SegmentFileStateHandle) else 0,
                is_segment=isinstance(handle, SegmentFileStateHandle),
                is_absolute=not isinstance(handle, RelativeFileStateHandle),
                holds_changes=holds_changes,
                directory=exclusive_directory,
            )


def locate_file(
    handle: FileStateHandle | RelativeFileStateHandle | SegmentFileStateHandle,
    exclusive_directory: Location,
    path_mapping: PathMapping = _NO_MAPPING,
) -> Location:
    """Return the file that a handle names; arguments and errors as for `open_stream`.

    All access to files of a snapshot begins here, so that no file outside the allowed directories is touched:
    `locate_named` raises OutOfReachError.
    """
    path, relative = _get_path(handle)
    return locate_named(path, exclusive_directory, path_mapping, relative=relative, handle=type(handle).__name__)


def name_file(
    handle: FileStateHandle | RelativeFileStateHandle | SegmentFileStateHandle,
    exclusive_directory: Location,
    path_mapping: PathMapping = _NO_MAPPING,
) -> Location | None:
    """Return the file that a handle names even if it is out of reach, for comparisons only; None on another storage."""
    path, relative = _get_path(handle)
    return name_named(path, exclusive_directory, path_mapping, relative=relative)


def _get_path(handle: FileStateHandle | RelativeFileStateHandle | SegmentFileStateHandle) -> tuple[str, bool]:
    """Return the path in a handle, and whether it is relative to the directory of the snapshot."""
    if isinstance(handle, RelativeFileStateHandle):
        return handle.relative_path, True
    return handle.path, False


def measure_stream_file(stream: StateStream) -> int:
    """Ask the storage for the size in bytes of the file of a stream, which must not be inlined.

    Raises:
        MissingFileError: no such file.
    """
    assert stream.location is not None
    with _hinting(stream):
        return file_size(stream.location)


def read_whole_stream(stream: StateStream) -> bytes:
    """Read all bytes of a stream.

    A file longer than its handle declares is read completely: the handle of a plain changelog file does not count the
    first byte, the compression flag.

    Raises:
        FormatError: the file is shorter than its handle declares, or so much longer that it is another one.
        MissingFileError: no such file.
    """
    if stream.location is None or stream.is_segment:
        return read_stream_range(stream, 0, stream.size)
    most = 2 * stream.size + _MOST_UNDECLARED
    try:
        with _hinting(stream):
            data = read_file(stream.location, most=most)
    except FormatError:
        what = f"the file has more than {most} bytes, but its handle declares {stream.size}"
        raise FormatError(
            what, where=Where(file=stream.name, offset=stream.size), hint="The file was changed"
        ) from None
    _require_size(stream, len(data), data)
    return data


def read_together(streams: Sequence[StateStream]) -> Callable[[StateStream], bytes]:
    """Read several whole streams at the same time; local ones only when they are asked for.

    Returns:
        A function like `read_whole_stream`, which returns the bytes that have been read, or raises the error of
        reading them. It reads streams that have not been read.
    """
    remote = [each for each in streams if each.location is not None and not is_local(each.location)]
    if len(remote) < 2:
        return read_whole_stream
    reads = attempt_together([partial(read_whole_stream, each) for each in remote], remote[0].location)
    known = dict(zip(remote, reads, strict=True))

    def read(stream: StateStream) -> bytes:
        found = known.get(stream)
        if isinstance(found, StateError):
            raise found
        return read_whole_stream(stream) if found is None else found

    return read


def read_stream_range(stream: StateStream, start: int, end: int) -> bytes:
    """Read the bytes from `start` up to `end` (exclusive); nothing else of the stream is read.

    Raises:
        FormatError: the range is not inside the stream.
        MissingFileError: no such file.
    """
    # The size in the handle is no limit for a whole file, which may be longer (see `read_whole_stream`).
    bounded = stream.location is None or stream.is_segment
    if not 0 <= start <= end or (bounded and end > stream.size):
        what = f"bytes {start} to {end} are not inside the state of {stream.size} bytes"
        raise FormatError(what, where=Where(file=stream.name, offset=start))
    if stream.location is None:
        return stream.data[start:end]
    with _hinting(stream):
        return read_range(stream.location, stream.start + start, stream.start + end)


def check_stream(stream: StateStream) -> None:
    """Make sure that the bytes of a stream are there, without reading them.

    Raises:
        FormatError: the file is shorter than its handle declares.
        MissingFileError: no such file.
    """
    if stream.location is not None:
        with _hinting(stream):
            size = file_size(stream.location)
        _require_size(stream, size)


def is_copied_inside(stream: StateStream, target: Location) -> bool:
    """Return whether the object store can copy a stream by itself: it is a whole file whose size the handle has."""
    return (
        stream.location is not None
        and not stream.is_segment
        and not stream.holds_changes
        and can_copy_inside(stream.location, target)
    )


def copy_unmeasured(stream: StateStream, target: Location) -> int:
    """Copy a whole file inside an object store without asking for its size; return the size in its handle.

    The file may be longer or cut off, so the caller has to check the size of the copy.

    Args:
        stream: the stream, for which `is_copied_inside` holds.
        target: the new file.

    Raises:
        MissingFileError: no such file.
        StorageError: the storage fails.
    """
    assert stream.location is not None
    with _hinting(stream):
        copy_inside(stream.location, target, stream.size)
    return stream.size


def copy_stream(stream: StateStream, target: Location, *, verify: bool = False) -> int:
    """Copy a stream to a new file, with a few `COPY_SIZE` in memory at most; return the number of bytes written.

    If the file is longer than the handle declares, only the declared bytes are copied. Files of logged changes are
    copied whole, since their handles do not have the size of the file. Within one object store, the store copies whole
    files itself, unless `verify` is set. A file that a failed attempt has left at the target is replaced.

    Args:
        stream: the stream.
        target: the new file; it does not exist if copying fails.
        verify: read the new file again and compare its CRC-32 with that of the bytes that were read.

    Raises:
        FormatError: the file is shorter than its handle declares.
        MissingFileError: no such file.
        ProofError: the new file does not hold what was written.
        StorageError: the storage fails.
    """
    if stream.location is None or stream.is_segment or verify or not can_copy_inside(stream.location, target):
        return _write_chunks(_chunks(stream), target, verify=verify)
    with _hinting(stream):
        size = file_size(stream.location)
        _require_size(stream, size)
        if _measure_named(stream, size) == size:
            copy_inside(stream.location, target, size)
            return size
    return _write_chunks(_chunks(stream), target, verify=False)


def copy_ranges(ranges: Sequence[StreamRange], target: Location, *, verify: bool = False) -> int:
    """Concatenate ranges of streams to a new file; arguments, result and errors as in `copy_stream`.

    S3 and Azure copy ranges of at least 5 MiB by themselves, where old and new file are in the same store; if the store
    refuses, which is logged, their bytes pass through this process.
    """
    wanted = [_find_range(each) for each in ranges]
    if not can_copy_ranges(wanted, target):
        return _write_chunks(_range_chunks(ranges), target, verify=verify)
    try:
        with _hinting(ranges[0].stream):
            size = write_parts(plan_parts(wanted, target), target, _read_sent)
    except CopyRefusedError as error:
        warn_of_refusal(target, str(error))
        return _write_chunks(_range_chunks(ranges), target, verify=verify)
    if verify:
        checksum = 0
        for chunk in _range_chunks(ranges):
            checksum = zlib.crc32(chunk, checksum)
        try:
            _require_content(target, size, checksum)
        except BaseException:
            remove_file(target)
            raise
    return size


def _find_range(wanted: StreamRange) -> FileRange | bytes:
    stream = wanted.stream
    if stream.location is None:
        return read_stream_range(stream, wanted.start, wanted.end)
    return FileRange(stream.location, stream.start + wanted.start, stream.start + wanted.end)


def _read_sent(wanted: FileRange) -> bytes:
    return read_range(wanted.location, wanted.start, wanted.end)


def _write_chunks(chunks: Iterator[bytes], target: Location, *, verify: bool) -> int:
    size = checksum = 0
    begun = finished = False
    try:
        with create_file(target, replace=True) as file:
            begun = True
            for chunk in chunks:
                size += len(chunk)
                if verify:
                    checksum = zlib.crc32(chunk, checksum)
                file.write(chunk)
        if verify:
            _require_content(target, size, checksum)
        finished = True
    finally:
        if begun and not finished:
            remove_file(target)
    return size


def _require_content(target: Location, size: int, checksum: int) -> None:
    found, check = file_size(target), 0
    for chunk in read_ranges([(target, 0, found)], COPY_SIZE):
        check = zlib.crc32(chunk, check)
    if (found, check) != (size, checksum):
        written = f"{size} bytes with the CRC-32 {checksum:08x} were written"
        raise ProofError(
            f"the new file differs from the bytes written: {written}, but it has {found} with {check:08x}",
            where=Where(file=str(target)),
            hint="Nothing was published; the storage cannot be trusted",
        )


def _range_chunks(ranges: Sequence[StreamRange]) -> Iterator[bytes]:
    """Yield the bytes of ranges in order; files are read ahead."""
    rest = list(ranges)
    while rest:
        count = next((n for n, each in enumerate(rest) if each.stream.location is None), len(rest))
        wanted = [
            (each.stream.location, each.stream.start + each.start, each.stream.start + each.end)
            for each in rest[:count]
            if each.stream.location is not None
        ]
        if wanted:
            with _hinting(rest[0].stream):
                yield from read_ranges(wanted, COPY_SIZE)
        for each in rest[count : count + 1]:
            yield read_stream_range(each.stream, each.start, each.end)
        rest = rest[count + 1 :]


def _chunks(stream: StateStream) -> Iterator[bytes]:
    if stream.location is None:
        yield stream.data
    elif stream.is_segment:
        yield from _range_chunks([StreamRange(stream, 0, stream.size)])
    else:
        with _hinting(stream):
            if stream.size < COPY_SIZE and not is_local(stream.location):
                # The whole file is read with one request, including bytes that the handle does not count.
                data = read_file(stream.location)
                _require_size(stream, len(data), data)
                yield data[: _measure_named(stream, len(data))]
                return
            size = file_size(stream.location)
        _require_size(stream, size)
        with _hinting(stream):
            yield from read_ranges([(stream.location, 0, _measure_named(stream, size))], COPY_SIZE)


def _measure_named(stream: StateStream, size: int) -> int:
    """Return how many bytes of a whole file of `size` bytes belong to its stream."""
    return size if stream.holds_changes else min(size, stream.size)


def _require_size(stream: StateStream, size: int, data: bytes = b"") -> None:
    """Raise FormatError if the file of a stream is shorter than its handle declares.

    Compressed changes are exempt, because their handle has the size before compression.

    Args:
        stream: the stream.
        size: size of the file.
        data: content of the file, if it has been read.
    """
    if size < stream.start + stream.size and not (size and stream.holds_changes and _is_compressed(stream, data)):
        what = f"the file has {size} bytes, but its handle declares {stream.start + stream.size}"
        raise FormatError(what, where=Where(file=stream.name, offset=size), hint="The file was cut off or changed")


def _is_compressed(stream: StateStream, data: bytes) -> bool:
    return (data[:1] or read_stream_range(stream, 0, 1)) != b"\0"


@contextmanager
def _hinting(stream: StateStream) -> Iterator[None]:
    try:
        yield
    except MissingFileError as error:
        if stream.directory is not None and is_removed(stream.directory):
            raise SnapshotGoneError(str(stream.directory)) from error
        if not stream.is_absolute or error.hint:
            raise
        raise MissingFileError(error.what, where=error.where, hint=_MAP_HINT) from error


MOST_HEADER = 256 << 20
"""Maximum bytes of a header of state; it suffices for a thousand states, each with an Avro schema of 250 KiB."""


def read_header_bytes(stream: StateStream, end: int) -> bytes:
    """Read the bytes of a stream up to `end`, which contain a header.

    Raises:
        FormatError: `end` is larger than any header, or the stream ends before.
        MissingFileError: no such file.
    """
    check_header_size(stream, end)
    return read_stream_range(stream, 0, end)


def check_header_size(stream: StateStream, end: int) -> None:
    """Check that `end` is not larger than the largest header.

    Raises:
        FormatError: it is larger.
    """
    if end > MOST_HEADER:
        what = f"the header of the file has at least {end:,} bytes, more than the {MOST_HEADER >> 20} MiB that are read"
        raise FormatError(what, where=Where(file=stream.name, offset=MOST_HEADER), hint="The file was changed")


KEPT = 64 << 20
"""Maximum bytes of remote files that are kept in memory for one snapshot; the least recently used files are dropped."""


class KeptStreams:
    """Cache of the files of one snapshot, for streams that are read repeatedly; several streams may be in one file.

    Local files, and streams larger than half of the capacity, are read without the cache. Threads may share it; a
    pickled cache is empty in the other process.

    Args:
        capacity: maximum bytes in the cache.
    """

    def __init__(self, capacity: int = KEPT) -> None:
        self._capacity = capacity
        self._contents: dict[StateStream | Location, bytes] = {}
        self._locks: dict[StateStream | Location, Lock] = {}
        self._lock = Lock()

    def read(self, stream: StateStream, start: int, end: int) -> bytes:
        """Return the bytes of a stream from `start` up to `end`; errors as for `read_stream_range`."""
        if not self._is_kept(stream):
            return read_stream_range(stream, start, end)
        content = self._fetch(stream)
        if not 0 <= start <= end <= len(content):
            what = f"bytes {start} to {end} are wanted but the file has {len(content)}"
            where = Where(file=stream.name, offset=start)
            raise FormatError(what, where=where, hint="The file was cut off or changed")
        return content[start:end]

    def read_whole(self, stream: StateStream) -> bytes:
        """Return all bytes of a stream; errors as for `read_whole_stream`."""
        return self._fetch(stream) if self._is_kept(stream) else read_whole_stream(stream)

    def find_end(self, stream: StateStream) -> int:
        """Return the end offset of a stream (exclusive).

        For a whole file this is the size of the file and not that in the handle, because handles of changes have the
        size before compression.
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
                # Insert it at the end of the dict, since the first entries are dropped as the least recently used.
                self._contents[key] = content
                while len(self._contents) > 1 and sum(map(len, self._contents.values())) > self._capacity:
                    del self._contents[next(iter(self._contents))]
        return content

    def __reduce__(self) -> tuple[type[KeptStreams], tuple[int]]:
        return KeptStreams, (self._capacity,)


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
        buffers: bytes of its network buffers, in the order in which they were sent.
    """

    direction: ChannelDirection
    subtask: int
    info: ChannelInfo
    buffers: tuple[bytes, ...] = field(repr=False)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Size of each buffer in bytes."""
        return tuple(len(buffer) for buffer in self.buffers)

    @property
    def size(self) -> int:
        """Size of all buffers together in bytes."""
        return sum(self.sizes)

    @property
    def state_size(self) -> int:
        """Bytes of all buffers in the stream, with the length before each."""
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
        """Return the sums of both summaries."""
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
    """Return the bytes of the buffers of a channel including their lengths.

    The size in an inlined handle includes the stream header, which is subtracted.
    """
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
    """Return the amounts of in-flight data of an operator: (inputs, outputs) of all its subtasks."""
    return (
        summarise_channels(handle for subtask in operator.subtasks for handle in subtask.input_channel_state),
        summarise_channels(handle for subtask in operator.subtasks for handle in subtask.result_subpartition_state),
    )


def read_channel_data(
    handle: AnyChannelStateHandle, direction: ChannelDirection, stream: StateStream
) -> tuple[ChannelData, ...]:
    """Read the buffers that a handle names.

    Args:
        handle: handle of one channel, or merged handle of several.
        direction: direction of the channels.
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
    # Upper bound of the end of each channel: its last buffer is no larger than all buffers of the channel together.
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
            f"the buffers of channel {state.info.channel} of gate or partition {state.info.group} have {size} bytes, "
            f"but its handle declares {expected}",
            where=Where(file=name, offset=state.offsets[0] if state.offsets else None),
        )


class StateCategory(Enum):
    """The field of an operator or subtask that a stream belongs to."""

    COORDINATOR = "coordinator"
    MANAGED_OPERATOR = "managed operator"
    RAW_OPERATOR = "raw operator"
    MANAGED_KEYED = "managed keyed"
    RAW_KEYED = "raw keyed"
    INPUT_CHANNEL = "input channel"
    RESULT_SUBPARTITION = "result subpartition"


class StreamRole(Enum):
    """The role of a stream inside its handle."""

    STATE = "state"
    """The whole state of the handle."""
    META_DATA = "meta data"
    """Key serializer and state meta infos of an incremental handle."""
    SHARED = "shared"
    """A file of an incremental handle that other checkpoints may reference."""
    PRIVATE = "private"
    """A file of an incremental handle that belongs to this checkpoint."""
    CHANGES = "changes"
    """Logged changes."""


@dataclass(frozen=True, slots=True)
class StreamReference:
    """A stream handle and its role.

    Attributes:
        handle: handle of the stream; for a `KeyGroupsStateHandle`, this is its delegate.
        operator: the operator.
        subtask_index: the subtask; None for coordinator state.
        category: the kind of state.
        role: the role of the stream inside its handle.
        local_path: file name inside the RocksDB directory, for `SHARED` and `PRIVATE`.
    """

    handle: StreamStateHandle
    operator: OperatorState
    subtask_index: int | None
    category: StateCategory
    role: StreamRole
    local_path: str | None = None


Replacement: TypeAlias = Callable[[StreamReference], StreamStateHandle]


def list_references(metadata: CheckpointMetadata) -> list[StreamReference]:
    """Return every stream handle of a snapshot, in the order of the file; a stream with two handles occurs twice.

    Logged changes that are inlined in an `InMemoryChangelogStateHandle` are not a stream, and are left out.
    """
    return [reference for operator in metadata.operator_states for reference in operator_handles(operator)]


def operator_handles(operator: OperatorState) -> list[StreamReference]:
    """Return the stream handles of one operator, like `list_references`."""
    found: list[StreamReference] = []

    def note(reference: StreamReference) -> StreamStateHandle:
        found.append(reference)
        return reference.handle

    _replace_in_operator(operator, note)
    return found


def list_keyed_streams(handle: KeyedStateHandle) -> list[StreamStateHandle]:
    """Return the streams of one keyed handle, like `list_references`."""
    found: list[StreamStateHandle] = []

    def note(stream: StreamStateHandle, role: StreamRole, local_path: str | None) -> StreamStateHandle:
        found.append(stream)
        return stream

    _replace_in_keyed_handle(handle, _Visit(note))
    return found


def replace_stream_handles(metadata: CheckpointMetadata, replacement: Replacement) -> CheckpointMetadata:
    """Return the snapshot with every stream handle replaced by the result of `replacement` for it.

    File-merging operator state turns into ordinary operator state when its segment is replaced by another kind of
    stream, since Flink allows only segments there.

    Args:
        metadata: the snapshot.
        replacement: called once per stream handle, in the order of `list_references`; returns the handle to put there.

    Raises:
        ValueRangeError: coordinator state would not be inlined any more.
    """
    operators = tuple(_replace_in_operator(operator, replacement) for operator in metadata.operator_states)
    return metadata if _same(operators, metadata.operator_states) else replace(metadata, operator_states=operators)


@dataclass(frozen=True, slots=True)
class _Visit:
    """Visitor that replaces each stream in a handle. To only list streams, a function returns each unchanged."""

    replace_stream: Callable[[StreamStateHandle, StreamRole, str | None], StreamStateHandle]

    @classmethod
    def of(
        cls, replacement: Replacement, operator: OperatorState, subtask_index: int | None, category: StateCategory
    ) -> _Visit:
        return cls(
            lambda handle, role, local_path: replacement(
                StreamReference(handle, operator, subtask_index, category, role, local_path)
            )
        )

    def stream(
        self, handle: StreamStateHandle, role: StreamRole = StreamRole.STATE, local_path: str | None = None
    ) -> StreamStateHandle:
        if isinstance(handle, KeyGroupsStateHandle):
            delegate = self.stream(handle.delegate, role, local_path)
            return handle if delegate is handle.delegate else replace(handle, delegate=delegate)
        return self.replace_stream(handle, role, local_path)

    def files(self, files: tuple[HandleAndLocalPath, ...], role: StreamRole) -> tuple[HandleAndLocalPath, ...]:
        new = tuple(self._file(file, role) for file in files)
        return files if _same(new, files) else new

    def _file(self, file: HandleAndLocalPath, role: StreamRole) -> HandleAndLocalPath:
        handle = self.stream(file.handle, role, file.local_path)
        return file if handle is file.handle else HandleAndLocalPath(file.local_path, handle)


def _replace_in_operator(operator: OperatorState, replacement: Replacement) -> OperatorState:
    coordinator = operator.coordinator_state
    if coordinator is not None:
        visit = _Visit.of(replacement, operator, None, StateCategory.COORDINATOR)
        handle = visit.stream(coordinator)
        if not isinstance(handle, ByteStreamStateHandle):
            raise ValueRangeError("coordinator state must stay inlined, Flink refuses any other handle")
        coordinator = handle
    subtasks = tuple(_replace_in_subtask(operator, subtask, replacement) for subtask in operator.subtasks)
    if coordinator is operator.coordinator_state and _same(subtasks, operator.subtasks):
        return operator
    return replace(operator, coordinator_state=coordinator, subtasks=subtasks)


def _replace_in_subtask(operator: OperatorState, subtask: SubtaskState, replacement: Replacement) -> SubtaskState:
    changed: dict[str, Any] = {}
    for name, category, replace_in in _HANDLES_OF_SUBTASK:
        handle = getattr(subtask, name)
        # Skip empty fields early: metadata may have millions of subtasks, most with one or two kinds of state.
        if handle is None or handle == ():
            continue
        new = replace_in(handle, _Visit.of(replacement, operator, subtask.index, category))
        if new is not handle:
            changed[name] = new
    return replace(subtask, **changed) if changed else subtask


def _replace_in_operator_handle(handle: OperatorStateHandle, visit: _Visit) -> OperatorStateHandle:
    delegate = visit.stream(handle.delegate)
    if delegate is handle.delegate:
        return handle
    if isinstance(handle, FileMergingOperatorStreamStateHandle) and isinstance(
        delegate, SegmentFileStateHandle | EmptySegmentFileStateHandle
    ):
        return replace(handle, delegate=delegate)
    return OperatorStreamStateHandle(handle.states, delegate)


def _replace_in_keyed_handle(handle: KeyedStateHandle, visit: _Visit) -> KeyedStateHandle:
    match handle:
        case IncrementalRemoteKeyedStateHandle():
            return _replace_in_incremental(handle, visit)
        case ChangelogStateBackendHandle():
            materialized = tuple(_replace_in_keyed_handle(each, visit) for each in handle.materialized)
            changes = tuple(_replace_in_keyed_handle(each, visit) for each in handle.non_materialized)
            if _same(materialized, handle.materialized) and _same(changes, handle.non_materialized):
                return handle
            return replace(handle, materialized=materialized, non_materialized=changes)
        case ChangelogStateHandleStream():
            return _replace_in_changelog_streams(handle, visit)
        case InMemoryChangelogStateHandle():
            return handle
        case _:
            delegate = visit.stream(handle.delegate)
            return handle if delegate is handle.delegate else replace(handle, delegate=delegate)


def _replace_in_incremental(
    handle: IncrementalRemoteKeyedStateHandle, visit: _Visit
) -> IncrementalRemoteKeyedStateHandle:
    meta_data = visit.stream(handle.meta_data_state, StreamRole.META_DATA)
    shared = visit.files(handle.shared_state, StreamRole.SHARED)
    private = visit.files(handle.private_state, StreamRole.PRIVATE)
    if meta_data is handle.meta_data_state and shared is handle.shared_state and private is handle.private_state:
        return handle
    return replace(handle, meta_data_state=meta_data, shared_state=shared, private_state=private)


def _replace_in_changelog_streams(handle: ChangelogStateHandleStream, visit: _Visit) -> ChangelogStateHandleStream:
    handles = tuple(visit.stream(stream.handle, StreamRole.CHANGES) for stream in handle.streams)
    if _same(handles, tuple(stream.handle for stream in handle.streams)):
        return handle
    streams = zip(handle.streams, handles, strict=True)
    return replace(handle, streams=tuple(replace(stream, handle=new) for stream, new in streams))


def _replace_in_channels(
    handles: tuple[ChannelStateHandle | MergedChannelStateHandle, ...], visit: _Visit
) -> tuple[ChannelStateHandle | MergedChannelStateHandle, ...]:
    delegates = tuple(visit.stream(handle.delegate) for handle in handles)
    if all(new is old.delegate for old, new in zip(handles, delegates, strict=True)):
        return handles
    pairs = zip(handles, delegates, strict=True)
    return tuple(old if new is old.delegate else replace(old, delegate=new) for old, new in pairs)


_HANDLES_OF_SUBTASK: tuple[tuple[str, StateCategory, Callable[[Any, _Visit], Any]], ...] = (
    ("managed_operator_state", StateCategory.MANAGED_OPERATOR, _replace_in_operator_handle),
    ("raw_operator_state", StateCategory.RAW_OPERATOR, _replace_in_operator_handle),
    ("managed_keyed_state", StateCategory.MANAGED_KEYED, _replace_in_keyed_handle),
    ("raw_keyed_state", StateCategory.RAW_KEYED, _replace_in_keyed_handle),
    ("input_channel_state", StateCategory.INPUT_CHANNEL, _replace_in_channels),
    ("result_subpartition_state", StateCategory.RESULT_SUBPARTITION, _replace_in_channels),
)
"""Handles of a `SubtaskState`, in the order of `list_references`: field, category, and the walk over its streams."""


def _same(new: tuple[object, ...], old: tuple[object, ...]) -> bool:
    return all(a is b for a, b in zip(new, old, strict=True))
