"""Files, whole or in part: read, measured, listed, created, copied."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, cast

from fsspec.implementations.local import LocalFileSystem

from state_pipelines.errors import FormatError, MissingFileError, StateError, TargetExistsError, Where
from state_pipelines.storage.locations import Location, parent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsspec import AbstractFileSystem

COPY_SIZE = 8 << 20
"""Bytes that are held at once while a file is copied."""

# A read of more bytes than this first asks for the size of the file, so that a wrong size cannot demand the memory.
_TRUSTED_SIZE = 16 << 20
_TIME_KEYS = ("mtime", "LastModified", "last_modified", "updated", "created")


@dataclass(frozen=True)
class FileEntry:
    """A file or directory in a listing.

    Attributes:
        location: where it is.
        size: bytes; 0 for a directory.
        is_directory: whether it is one.
        modified: time of the last change, None when the storage does not say.
    """

    location: Location
    size: int
    is_directory: bool
    modified: datetime | None


def exists(location: Location) -> bool:
    """Whether a file or directory is there."""
    with _opening(location):
        location.filesystem.invalidate_cache(location.path)
        return bool(location.filesystem.exists(location.path))


def is_directory(location: Location) -> bool:
    """Whether a directory is there."""
    with _opening(location):
        return bool(location.filesystem.isdir(location.path))


def file_size(location: Location) -> int:
    """Size of a file in bytes.

    Raises:
        MissingFileError: no such file.
    """
    with _opening(location):
        return int(location.filesystem.size(location.path) or 0)


def read_file(location: Location) -> bytes:
    """The whole content of a file.

    Raises:
        MissingFileError: no such file.
    """
    with _opening(location):
        return bytes(location.filesystem.cat_file(location.path))


def read_range(location: Location, start: int, end: int) -> bytes:
    """The bytes from `start` up to `end` (exclusive) of a file; nothing else of it is read.

    Raises:
        FormatError: the range is not inside the file.
        MissingFileError: no such file.
    """
    if not 0 <= start <= end:
        raise FormatError(f"{start} to {end} is not a range of bytes", where=Where(file=str(location), offset=start))
    if start == end:
        return b""
    if end - start > _TRUSTED_SIZE:
        _require_range(location, start, end)
    try:
        data = _read_part(location, start, end)
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        raise missing_file(location, error) from None
    except OSError as error:
        # Object stores refuse a range behind the end; anything else is the storage's own trouble.
        _require_range(location, start, end)
        raise missing_file(location, error) from None
    if len(data) != end - start:
        _require_range(location, start, end)
        what = f"only {len(data)} of {end - start} bytes came"
        raise FormatError(what, where=Where(file=str(location), offset=start))
    return data


def _read_part(location: Location, start: int, end: int) -> bytes:
    if type(location.filesystem) is LocalFileSystem:
        # What fsspec does for a local file takes three times as long; headers are read from thousands of files.
        with open(location.path, "rb", buffering=0) as file:  # noqa: PTH123
            file.seek(start)
            parts = []
            while start < end and (part := file.read(end - start)):
                parts.append(part)
                start += len(part)
            return b"".join(parts)
    return bytes(location.filesystem.cat_file(location.path, start=start, end=end))


def list_directory(location: Location) -> list[FileEntry]:
    """What a directory holds, by name.

    Raises:
        MissingFileError: no such directory.
    """
    with _opening(location):
        location.filesystem.invalidate_cache(location.path)
        infos = location.filesystem.ls(location.path, detail=True)
    # Object stores may list the directory itself as an empty object.
    own = location.path.rstrip("/")
    return sorted(
        (_to_entry(location.filesystem, info) for info in infos if info["name"].rstrip("/") != own),
        key=lambda entry: entry.location.path,
    )


def find_files(location: Location) -> Iterator[FileEntry]:
    """Every file below a directory, one directory after the other; nothing when the directory does not exist.

    Raises:
        MissingFileError: a directory cannot be listed.
    """
    if not exists(location):
        return
    directories = [location]
    while directories:
        for entry in list_directory(directories.pop()):
            if entry.is_directory:
                directories.append(entry.location)
            else:
                yield entry


def open_file(location: Location) -> IO[bytes]:
    """Open a file for reading, seekable; the caller closes it.

    Raises:
        MissingFileError: no such file.
    """
    with _opening(location):
        return cast("IO[bytes]", location.filesystem.open(location.path, "rb"))


@contextmanager
def create_file(location: Location) -> Iterator[IO[bytes]]:
    """Write a new file; directories above it are made.

    Safe to call in any process; whoever publishes the snapshot removes what was written when something fails.

    Raises:
        TargetExistsError: something is there already.
        StateError: the storage refuses.
    """
    with writing(location):
        if location.filesystem.exists(location.path):
            raise TargetExistsError("a file of this name exists already", where=Where(file=str(location)))
        location.filesystem.makedirs(parent(location).path, exist_ok=True)
        with location.filesystem.open(location.path, "wb") as file:
            yield file


def copy_file(source: Location, target: Location) -> int:
    """Copy a file, also between storages, without holding more than `COPY_SIZE` of it; returns the bytes copied.

    Raises:
        MissingFileError: no such source.
        TargetExistsError: the target exists.
    """
    size = 0
    with open_file(source) as content, create_file(target) as file:
        while piece := content.read(COPY_SIZE):
            size += len(piece)
            file.write(piece)
    return size


def remove_file(location: Location) -> None:
    """Remove a file; nothing happens when there is none."""
    with writing(location):
        if location.filesystem.exists(location.path):
            location.filesystem.rm_file(location.path)


def remove_directory(location: Location) -> None:
    """Remove a directory and all that is in it; nothing happens when there is none."""
    with writing(location):
        location.filesystem.invalidate_cache(location.path)
        if location.filesystem.exists(location.path):
            location.filesystem.rm(location.path, recursive=True)


def missing_file(location: Location, error: OSError) -> MissingFileError:
    """The error for a file that cannot be opened, for the caller to raise."""
    reason = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be opened ({error})"
    return MissingFileError(f"the file {reason}", where=Where(file=str(location)))


@contextmanager
def _opening(location: Location) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise missing_file(location, error) from None


@contextmanager
def writing(location: Location) -> Iterator[None]:
    """Turn an `OSError` into the error of `write_error`."""
    try:
        yield
    except OSError as error:
        raise write_error(location, error) from error


def write_error(location: Location, error: OSError) -> StateError:
    """The error for a storage that refuses to write, for the caller to raise."""
    return StateError(f"cannot write: {error}", where=Where(file=str(location)), hint="Check space and permissions")


def _require_range(location: Location, start: int, end: int) -> None:
    size = file_size(location)
    if end > size:
        what = f"bytes {start} to {end} are wanted but the file has {size}"
        raise FormatError(what, where=Where(file=str(location), offset=start), hint="The file was cut off or changed")


def _to_entry(filesystem: AbstractFileSystem, info: dict[str, Any]) -> FileEntry:
    is_directory = info["type"] == "directory"
    location = Location(filesystem, str(info["name"]))
    return FileEntry(location, 0 if is_directory else int(info["size"] or 0), is_directory, _to_time(info))


def _to_time(info: dict[str, Any]) -> datetime | None:
    for key in _TIME_KEYS:
        value = info.get(key)
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC)
        if isinstance(value, str):
            with suppress(ValueError):
                value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return value if value.tzinfo else value.replace(tzinfo=UTC)
    return None
