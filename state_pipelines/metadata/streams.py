"""The bytes behind stream handles, whole or in part (`StreamStateHandle.openInputStream`)."""

from __future__ import annotations

import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from state_pipelines.errors import FormatError, MissingFileError, ProofError, Where
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    EmptySegmentFileStateHandle,
    FileStateHandle,
    KeyGroupsStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from state_pipelines.storage import (
    Location,
    PathMapping,
    create_file,
    file_size,
    join,
    open_file,
    read_file,
    read_range,
    resolve_beside,
)
from state_pipelines.storage.files import remove_file
from state_pipelines.storage.locations import is_plain_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COPY_SIZE = 8 << 20
"""Bytes that are held at once while a stream is copied."""

_NO_MAPPING = PathMapping()
_MAP_HINT = "If the files were moved, say where they are now with --map FROM=TO"


@dataclass(frozen=True, slots=True)
class StateStream:
    """State that can be read; positions count from the first byte of the state.

    Attributes:
        name: path of the file, or name of the inlined handle, for errors.
        size: bytes of state, as the handle says.
        location: the file; None for inlined and empty state.
        start: first byte of the state in the file.
        data: the state when there is no file.
        is_segment: the state is a slice of the file, not all of it.
        is_absolute: the handle names the file by an absolute path.
        holds_changes: the file holds logged changes, whose handle counts the bytes before compression, and not the
            first byte, which says whether they are compressed (`StateChangeFsUploader`).
    """

    name: str
    size: int
    location: Location | None = None
    start: int = 0
    data: bytes = field(default=b"", repr=False)
    is_segment: bool = False
    is_absolute: bool = False
    holds_changes: bool = False


@dataclass(frozen=True, slots=True)
class StreamRange:
    """The bytes of a stream from `start` up to `end` (exclusive)."""

    stream: StateStream
    start: int
    end: int

    def __len__(self) -> int:
        """How many bytes."""
        return self.end - self.start


def open_stream(
    handle: StreamStateHandle,
    exclusive_directory: Location,
    path_mapping: PathMapping = _NO_MAPPING,
    *,
    holds_changes: bool = False,
) -> StateStream:
    """The stream behind a handle; nothing is read yet.

    Args:
        handle: the handle; a `KeyGroupsStateHandle` is looked through.
        exclusive_directory: the directory that holds `_metadata`; relative handles start there.
        path_mapping: where directories that absolute handles name are now.
        holds_changes: the handle is one of a `ChangelogStateHandleStream` (`StreamPart.CHANGES`).

    Raises:
        FormatError: a relative path leaves the exclusive directory.
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
            )


def locate_file(
    handle: FileStateHandle | RelativeFileStateHandle | SegmentFileStateHandle,
    exclusive_directory: Location,
    path_mapping: PathMapping = _NO_MAPPING,
) -> Location:
    """The file that a handle names; arguments and errors as for `open_stream`."""
    if not isinstance(handle, RelativeFileStateHandle):
        if "::" in handle.path or "\0" in handle.path:
            # fsspec would take the one for a chain of file systems, and no file system takes the other.
            raise FormatError("the path of a state handle is not one of Flink's", where=Where(file=handle.path))
        return resolve_beside(path_mapping.apply(handle.path), exclusive_directory)
    if is_plain_name(handle.relative_path):
        return join(exclusive_directory, handle.relative_path)
    path = PurePosixPath(handle.relative_path)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in handle.relative_path:
        what = f"the relative path {handle.relative_path!r} does not stay below the snapshot's directory"
        raise FormatError(what, where=Where(file=str(exclusive_directory)))
    return join(exclusive_directory, handle.relative_path)


def read_whole_stream(stream: StateStream) -> bytes:
    """All bytes of a stream.

    Of a file that is longer than its handle says everything comes: the handle of a plain changelog file does not count
    the first byte, which says whether the file is compressed.

    Raises:
        FormatError: the file is shorter than the handle says.
        MissingFileError: no such file.
    """
    if stream.location is None or stream.is_segment:
        return read_stream_range(stream, 0, stream.size)
    with _hinting(stream):
        data = read_file(stream.location)
    _require_size(stream, len(data))
    return data


def read_stream_range(stream: StateStream, start: int, end: int) -> bytes:
    """The bytes from `start` up to `end` (exclusive); nothing else of the stream is read.

    Raises:
        FormatError: the range is not inside the stream.
        MissingFileError: no such file.
    """
    # Only the file itself knows how long a whole file is, see `read_whole_stream`.
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
        FormatError: the file is shorter than the handle says.
        MissingFileError: no such file.
    """
    if stream.location is not None:
        with _hinting(stream):
            size = file_size(stream.location)
        _require_size(stream, size)


def copy_stream(stream: StateStream, target: Location, *, verify: bool = False) -> int:
    """Copy a stream into a new file without holding more than `COPY_SIZE` of it; returns the bytes written.

    Args:
        stream: the stream.
        target: the new file; when copying fails there is none.
        verify: read the new file again and compare its CRC-32 with that of the bytes that were read.

    Raises:
        FormatError: the file is shorter than the handle says.
        MissingFileError: no such file.
        TargetExistsError: the target exists.
        ProofError: the new file does not hold what was written.
    """
    return _write_pieces(_pieces(stream), target, verify=verify)


def copy_ranges(ranges: Sequence[StreamRange], target: Location, *, verify: bool = False) -> int:
    """Put a new file together from parts of streams; arguments, result and errors as of `copy_stream`."""
    return _write_pieces(_range_pieces(ranges), target, verify=verify)


def _write_pieces(pieces: Iterator[bytes], target: Location, *, verify: bool) -> int:
    size = checksum = 0
    begun = finished = False
    try:
        with create_file(target) as file:
            begun = True
            for piece in pieces:
                size += len(piece)
                if verify:
                    checksum = zlib.crc32(piece, checksum)
                file.write(piece)
        if verify:
            _require_content(target, size, checksum)
        finished = True
    finally:
        if begun and not finished:
            remove_file(target)
    return size


def _require_content(target: Location, size: int, checksum: int) -> None:
    found, check = 0, 0
    with open_file(target) as file:
        while piece := file.read(COPY_SIZE):
            found += len(piece)
            check = zlib.crc32(piece, check)
    if (found, check) != (size, checksum):
        written = f"{size} bytes with the CRC-32 {checksum:08x} were written"
        raise ProofError(
            f"the new file is not what was written to it: {written}, {found} with {check:08x} are there",
            where=Where(file=str(target)),
            hint="Nothing was published; the storage cannot be trusted",
        )


def _range_pieces(ranges: Sequence[StreamRange]) -> Iterator[bytes]:
    for group in _group_by_stream(ranges):
        stream = group[0].stream
        if stream.location is None:
            for each in group:
                yield read_stream_range(stream, each.start, each.end)
            continue
        with _hinting(stream):
            file = open_file(stream.location)
        with file:
            for each in group:
                file.seek(stream.start + each.start)
                rest = len(each)
                while rest:
                    piece = file.read(min(rest, COPY_SIZE))
                    if not piece:
                        what = f"the file ends {rest} bytes before its state does"
                        where = Where(file=stream.name, offset=each.end - rest)
                        raise FormatError(what, where=where, hint="The file was cut off or changed")
                    rest -= len(piece)
                    yield piece


def _group_by_stream(ranges: Sequence[StreamRange]) -> Iterator[list[StreamRange]]:
    group: list[StreamRange] = []
    for each in ranges:
        if group and each.stream is not group[0].stream and each.stream != group[0].stream:
            yield group
            group = []
        group.append(each)
    if group:
        yield group


def _pieces(stream: StateStream) -> Iterator[bytes]:
    if stream.location is None:
        yield stream.data
    elif stream.is_segment:
        for start in range(0, stream.size, COPY_SIZE):
            yield read_stream_range(stream, start, min(start + COPY_SIZE, stream.size))
    else:
        size = 0
        with _hinting(stream):
            file = open_file(stream.location)
        with file:
            while piece := file.read(COPY_SIZE):
                size += len(piece)
                yield piece
        _require_size(stream, size)


def _require_size(stream: StateStream, size: int) -> None:
    if size < stream.start + stream.size and not (size and stream.holds_changes and _is_compressed(stream)):
        what = f"the file has {size} bytes, its handle says {stream.start + stream.size}"
        raise FormatError(what, where=Where(file=stream.name, offset=size), hint="The file was cut off or changed")


def _is_compressed(stream: StateStream) -> bool:
    return read_stream_range(stream, 0, 1) != b"\0"


@contextmanager
def _hinting(stream: StateStream) -> Iterator[None]:
    try:
        yield
    except MissingFileError as error:
        if stream.is_absolute and not error.hint:
            error.hint = _MAP_HINT
        raise
