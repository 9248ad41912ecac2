"""Files: read whole or in ranges, measured, listed, created, copied, removed.

`FileRecorder`, `record_files`: sizes, checksums and copies of files, taken while their bytes are written;
`compute_checksum`: by reading them once. XXH3-128, because it runs at the speed of memory, and its library is needed
for the RocksDB blocks of Flink 2.x anyway. It shows bytes that changed by accident, not those that somebody changed on
purpose together with the manifest.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, cast
from uuid import uuid4

import xxhash
from typing_extensions import override

from state_pipelines.errors import FormatError, MissingFileError, StateError, StorageError, TargetExistsError, Where
from state_pipelines.storage.locations import (
    Location,
    add_requests,
    client_errors,
    find_status,
    has_directories,
    is_azure,
    is_local,
    is_s3,
    join,
    parent,
    request,
    translating,
)
from state_pipelines.storage.uploads import Upload, copy_blob, is_refusal, warn_of_refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fsspec import AbstractFileSystem

_FIRST = datetime(1, 1, 2, tzinfo=UTC).timestamp()
_LAST = datetime(9999, 12, 30, tzinfo=UTC).timestamp()


def make_time(seconds: float) -> datetime:
    """Convert seconds since 1970 to a time; times outside of Python's range become its first or last time.

    A local file may have a time of any 64-bit number of seconds.
    """
    return datetime.fromtimestamp(min(max(seconds, _FIRST), _LAST), UTC)


CHECKED_FROM = 256 << 20
"""Smallest number of bytes for which the free memory of the machine is checked."""

_MEMINFO = Path("/proc/meminfo")
_OWN_SIZE = Path("/proc/self/statm")
_CGROUP = Path("/sys/fs/cgroup")
_GIB = 1 << 30


def require_memory(size: int, file: str, offset: int | None = None) -> None:
    """Check that the free memory can hold some bytes of a file.

    Args:
        size: number of bytes.
        file: the file, for errors.
        offset: offset of the bytes in the file, for errors.

    Raises:
        StorageError: there is less free memory.
    """
    if size <= CHECKED_FROM:
        return
    free = measure_free_memory()
    if free is not None and size > free:
        raise StorageError(
            f"{size / _GIB:.1f} GiB are to be read at once, and {free / _GIB:.1f} GiB of memory are free",
            where=Where(file=file, offset=offset),
            hint="Give the process more memory; if the file is longer than it should be, it is damaged",
        )


def measure_free_memory() -> int | None:
    """Return the bytes that the machine, the control group or the limit of this process has left; None if not known."""
    limits = []
    if _MEMINFO.exists():
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text(encoding="ascii").splitlines())
        limits.append(1024 * sum(int(lines[name].split()[0]) for name in ("MemAvailable", "SwapFree") if name in lines))
    if (_CGROUP / "memory.max").exists() and (most := (_CGROUP / "memory.max").read_text().strip()) != "max":
        # The kernel counts the page cache as used memory, but frees it when memory is short.
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        used = int((_CGROUP / "memory.current").read_text()) - int(stat["inactive_file"])
        limits.append(int(most) - used)
    if sys.platform != "win32" and _OWN_SIZE.exists():
        import resource  # there is none on Windows

        most_addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
        if most_addresses != resource.RLIM_INFINITY:
            pages = int(_OWN_SIZE.read_text().split()[0])
            limits.append(most_addresses - pages * resource.getpagesize())
    return max(0, min(limits)) if limits else None


CHECKSUM = "xxh3-128"
"""Name of the checksum."""


@dataclass(frozen=True)
class RecordedFile:
    """Size and checksum of a file.

    Attributes:
        name: file name.
        size: bytes.
        checksum: XXH3-128 of its content as 32 hexadecimal digits; None if its bytes did not pass through this process.
    """

    name: str
    size: int
    checksum: str | None = None


@dataclass
class FileRecorder:
    """Collects the files that one task writes into a directory.

    Attributes:
        directory: the directory; files elsewhere, such as temporary ones, are not recorded.
        files: recorded files by name; a file that is written again replaces the earlier one.
    """

    directory: Location
    files: dict[str, RecordedFile] = field(default_factory=dict)

    def covers(self, location: Location) -> bool:
        """Return whether a file is in the recorded directory."""
        above = parent(location)
        return above.path == self.directory.path and above.filesystem == self.directory.filesystem


class CopyWriter(Protocol):
    """Writer of the copy of a file that is being written; if the copy fails, the methods must not raise."""

    def write(self, data: memoryview, /) -> None:
        """Write the next bytes to the copy."""

    def finish(self, checksum: str, /) -> None:
        """Complete the copy after the file is complete; `checksum` is the checksum of the content."""

    def discard(self) -> None:
        """Remove the copy, because the file could not be written."""


_RECORDER: ContextVar[FileRecorder | None] = ContextVar("recorder", default=None)
_BEGIN_COPY: ContextVar[Callable[[Location], CopyWriter] | None] = ContextVar("copies", default=None)


@contextmanager
def record_files(directory: Location) -> Iterator[FileRecorder]:
    """Record the files that this thread creates in a directory (`storage.files.create_file`) while the block runs."""
    recorder = FileRecorder(directory)
    token = _RECORDER.set(recorder)
    try:
        yield recorder
    finally:
        _RECORDER.reset(token)


@contextmanager
def copy_files(begin: Callable[[Location], CopyWriter]) -> Iterator[None]:
    """Copy every file that this thread creates while the block runs; `begin` returns the writer of a file's copy."""
    token = _BEGIN_COPY.set(begin)
    try:
        yield
    finally:
        _BEGIN_COPY.reset(token)


@contextmanager
def recording(location: Location, file: IO[bytes]) -> Iterator[Any]:
    """Yield the object to which the content of a new file is written.

    Inside a block of `record_files`, a file in its directory is recorded when the block of `recording` has ended.
    Inside a block of `copy_files`, everything that is written is also copied.
    """
    recorder, begin = _RECORDER.get(), _BEGIN_COPY.get()
    is_recorded = recorder is not None and recorder.covers(location)
    copy = None if begin is None else begin(location)
    if not is_recorded and copy is None:
        yield file
        return
    output = _Checksummed(file, copy)
    try:
        yield output
    except BaseException:
        if copy is not None:
            copy.discard()
        raise
    if recorder is not None and is_recorded:
        recorder.files[location.name] = RecordedFile(location.name, output.size, output.checksum)
    if copy is not None:
        copy.finish(output.checksum)


class _Checksummed(io.BufferedIOBase):
    """A file that is written sequentially, with the size and checksum of the bytes written so far."""

    def __init__(self, file: IO[bytes], copy: CopyWriter | None = None) -> None:
        self._file = file
        self._copy = copy
        self._digest = xxhash.xxh3_128()
        self.size = 0

    @property
    def checksum(self) -> str:
        return self._digest.hexdigest()

    @override
    def writable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self.size

    @override
    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._file.write(view)
        if self._copy is not None:
            self._copy.write(view)
        self._digest.update(view)
        self.size += len(view)
        return len(view)

    @override
    def flush(self) -> None:
        self._file.flush()

    @override
    def fileno(self) -> int:
        return self._file.fileno()


def compute_checksum(chunks: Iterable[bytes]) -> str:
    """Return the XXH3-128 of bytes as 32 hexadecimal digits."""
    digest = xxhash.xxh3_128()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


COPY_SIZE = 8 << 20
"""Bytes that are held at once while a file is copied."""

# S3 copies objects of up to 5 GiB in one request.
_ONE_COPY = 5 << 30
_TIME_KEYS = ("mtime", "LastModified", "last_modified", "updated", "created")


@dataclass(frozen=True)
class FileEntry:
    """A file or directory in a listing.

    Attributes:
        location: its location.
        size: bytes; 0 for a directory.
        is_directory: whether it is a directory.
        modified: time of the last change, None when the storage does not say.
    """

    location: Location
    size: int
    is_directory: bool
    modified: datetime | None


def exists(location: Location) -> bool:
    """Return whether there is a file or directory at a location."""
    return request(location, "look for the file", lambda: _find_type(location) is not None)


def is_directory(location: Location) -> bool:
    """Return whether there is a directory at a location."""

    def look() -> bool:
        filesystem = location.filesystem
        if is_s3(filesystem):
            bucket, key, _ = filesystem.split_path(location.path)
            prefix = f"{key.rstrip('/')}/" if key.strip("/") else ""
            answer = filesystem.call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1)
            return not prefix or bool(answer.get("Contents"))
        return _find_type(location) == "directory"

    try:
        return request(location, "look for the directory", look)
    except MissingFileError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return False
        raise


def _find_type(location: Location) -> str | None:
    # `info` is used because `exists` and `isdir` of fsspec return False for every fault.
    location.filesystem.invalidate_cache(location.path)
    try:
        return str(location.filesystem.info(location.path)["type"])
    except (FileNotFoundError, NotADirectoryError):
        return None


def file_size(location: Location) -> int:
    """Return the size of a file in bytes.

    Raises:
        MissingFileError: no such file.
    """
    return request(location, "measure the file", lambda: int(location.filesystem.size(location.path) or 0))


def find_entry(location: Location) -> FileEntry:
    """Return size and time of one file or directory.

    Raises:
        MissingFileError: there is none.
    """
    info = request(location, "measure the file", lambda: location.filesystem.info(location.path))
    return to_entry(location.filesystem, info)


def read_file(location: Location, *, most: int | None = None) -> bytes:
    """Read the whole content of a file.

    Args:
        location: the file.
        most: largest accepted size in bytes; None to accept any size that fits into memory.

    Raises:
        FormatError: the file is larger than `most`.
        MissingFileError: no such file, or it is a device or a pipe.
        StorageError: the storage fails, or the file does not fit into memory.
    """
    if is_local(location):
        content = request(location, "read the file", lambda: _read_local(location, most))
    elif most is None:
        # Without this limit on concurrency, s3fs asks for the size first, with another request.
        options = {"max_concurrency": 1} if is_s3(location.filesystem) else {}
        content = request(
            location, "read the file", lambda: bytes(location.filesystem.cat_file(location.path, **options))
        )
    else:
        content = request(location, "read the file", lambda: _read_beginning(location, most + 1))
    if most is not None and len(content) > most:
        raise _too_large(location, most)
    add_requests(0, len(content))
    return content


def _read_local(location: Location, most: int | None) -> bytes:
    size = require_regular(location).st_size
    if most is not None and size > most:
        raise _too_large(location, most)
    require_memory(size, str(location))
    chunks: list[bytes] = []
    with Path(location.path).open("rb", buffering=0) as file:
        require_reach(location, file.fileno())
        # Read on beyond the size: files of the kernel, as in /proc, have more bytes than their size says.
        wanted = size + 1
        while (most is None or sum(map(len, chunks)) <= most) and (chunk := file.read(wanted)):
            chunks.append(chunk)
            wanted = COPY_SIZE
    return b"".join(chunks)


def _read_beginning(location: Location, size: int) -> bytes:
    """Return the first `size` bytes of a remote file, or all bytes if it is smaller."""
    try:
        return bytes(location.filesystem.cat_file(location.path, start=0, end=size))
    except client_errors() as error:
        # An empty object has no first byte, which the storage reports as an error.
        if find_status(error) == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and not location.filesystem.size(
            location.path
        ):
            return b""
        raise


def _too_large(location: Location, most: int) -> FormatError:
    limit = f"{most >> 20:,} MiB" if most >= 1 << 20 else f"{most:,} bytes"
    return FormatError(f"the file has more than {limit}, the limit for such a file", where=Where(file=str(location)))


def require_regular(location: Location) -> os.stat_result:
    """Return the status of a local file or directory, with symbolic links followed.

    Raises:
        MissingFileError: there is no such file, or it is a device or a pipe, from which reading may never end.
    """
    with translating(location, "measure the file"):
        status = Path(location.path).stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise MissingFileError("this is a device or pipe, not a file", where=Where(file=str(location)))
    return status


def require_reach(location: Location, descriptor: int) -> None:
    """Check that an open local file is in the directories that the snapshot may name.

    Its path was checked before it was opened, but a directory may have been replaced by a symbolic link since then.

    Raises:
        OutOfReachError: the file is elsewhere.
    """
    if location.reach is not None:
        location.reach.require(location.path, descriptor)


def list_directory(location: Location) -> list[FileEntry]:
    """List the files and directories in a directory, in the order of their names.

    Raises:
        MissingFileError: no such directory.
    """

    def read() -> list[dict[str, Any]]:
        location.filesystem.invalidate_cache(location.path)
        return list(location.filesystem.ls(location.path, detail=True))

    infos = request(location, "list the directory", read)
    # Object stores may list the directory itself as an empty object.
    own = location.path.rstrip("/")
    return sorted(
        (to_entry(location.filesystem, info) for info in infos if info["name"].rstrip("/") != own),
        key=lambda entry: entry.location.path,
    )


def open_file(location: Location) -> IO[bytes]:
    """Open a file for reading, seekable; the caller closes it.

    Raises:
        MissingFileError: no such file, or it is a device or a pipe.
        OutOfReachError: see `require_reach`.
    """
    if is_local(location):
        require_regular(location)
    file = request(location, "open the file", lambda: cast("IO[bytes]", location.filesystem.open(location.path, "rb")))
    if location.reach is not None:
        try:
            require_reach(location, file.fileno())
        except BaseException:
            file.close()
            raise
    return file


@contextmanager
def create_file(location: Location, *, replace: bool = False) -> Iterator[IO[bytes]]:
    """Write a new file; directories above it are created.

    Safe to call in any process. When the block fails, nothing is left on an object store; other storages keep what was
    written until `SnapshotWriter` removes it with the whole target.

    Args:
        location: the file.
        replace: a file of this name is replaced, such as the remains of a failed attempt.

    Raises:
        TargetExistsError: something is there already.
        StorageError: the storage refuses.
    """
    filesystem = location.filesystem
    if replace:
        # Remove the old file: overwriting it would also change the other names of the same file (hard links).
        if is_local(location):
            remove_file(location)
    elif request(location, "write the file", lambda: _find_type(location) is not None, writes=True):
        raise TargetExistsError("a file of this name exists already", where=Where(file=str(location)))
    if has_directories(filesystem):
        make_directory(parent(location))
    if is_local(location):
        with (
            translating(location, "write the file", writes=True),
            filesystem.open(location.path, "wb") as file,
            recording(location, file) as output,
        ):
            yield output
    else:
        with Upload(location) as upload, recording(location, cast("IO[bytes]", upload)) as output:
            yield output


def make_directory(location: Location) -> None:
    """Create a directory and its parents; do nothing if it exists.

    Raises:
        StorageError: the storage refuses.
    """

    def make() -> None:
        location.filesystem.makedirs(location.path, exist_ok=True)

    request(location, "create the directory", make, writes=True)


def replace_file(location: Location, data: bytes) -> None:
    """Write a small file, which may replace an existing one; readers see either the old or the new content.

    A local file is written under another name and renamed. Object stores publish an object when all of it has arrived.

    Raises:
        StorageError: the storage refuses.
    """
    if not is_local(location):
        with create_file(location, replace=True) as file:
            file.write(data)
        return
    with translating(location, "write the file", writes=True):
        location.filesystem.makedirs(parent(location).path, exist_ok=True)
        pending = Path(f"{location.path}.{uuid4().hex}.pending")
        try:
            pending.write_bytes(data)
            pending.replace(location.path)
        finally:
            pending.unlink(missing_ok=True)


def create_file_at_once(location: Location, data: bytes) -> None:
    """Write a small new file that exists only when it is complete, even after a crash.

    Raises:
        TargetExistsError: something is there already.
        StorageError: the storage refuses.
    """
    if exists(location):
        raise TargetExistsError("a file of this name exists already", where=Where(file=str(location)))
    if not has_directories(location.filesystem):
        # An object exists only when its upload is complete.
        with create_file(location) as file:
            file.write(data)
        return
    pending = join(parent(location), f".{location.name}.{uuid4().hex}")
    with create_file(pending) as file:
        file.write(data)
        if is_local(location):
            file.flush()
            os.fsync(file.fileno())
    with translating(location, "write the file", writes=True):
        if not is_local(location):
            location.filesystem.mv(pending.path, location.path)
            return
        try:
            # Unlike a rename, a hard link fails if another process has created a file of this name meanwhile.
            os.link(pending.path, location.path)
        except FileExistsError:
            raise TargetExistsError("a file of this name exists already", where=Where(file=str(location))) from None
        finally:
            Path(pending.path).unlink()


def copy_file(source: Location, target: Location, *, replace: bool = False) -> int:
    """Copy a file, also between storages, with at most `COPY_SIZE` of it in memory; return the number of bytes.

    Args:
        source: the file.
        target: the new file.
        replace: replace a file that is there already.

    Raises:
        MissingFileError: no such source.
        TargetExistsError: the target exists.
    """
    size = 0
    with open_file(source) as content, create_file(target, replace=replace) as file:
        while chunk := content.read(COPY_SIZE):
            size += len(chunk)
            file.write(chunk)
    return size


def can_copy_inside(source: Location, target: Location) -> bool:
    """Return whether a storage can copy a file to `target` without its bytes passing through this process."""
    return not is_local(source) and source.filesystem == target.filesystem


def copy_inside(source: Location, target: Location, size: int) -> None:
    """Let a storage copy a file by itself; a file at the target is replaced.

    If the storage refuses, this logs a warning and copies the bytes through this process.

    Args:
        source: the file.
        target: the new file, for which `can_copy_inside` holds; its directory exists.
        size: size of the file in bytes.

    Raises:
        MissingFileError: no such file.
        StorageError: the storage refuses.
    """
    filesystem = source.filesystem

    def copy() -> None:
        if is_s3(filesystem) and size <= _ONE_COPY:
            # `cp_file` of s3fs is not used, because it asks for the size first, with another request.
            bucket, key, version = filesystem.split_path(source.path)
            target_bucket, target_key, _ = filesystem.split_path(target.path)
            copied = {"Bucket": bucket, "Key": key} | ({"VersionId": version} if version else {})
            filesystem.call_s3("copy_object", Bucket=target_bucket, Key=target_key, CopySource=copied)
        elif is_azure(filesystem):
            copy_blob(source, target)
        else:
            filesystem.cp_file(source.path, target.path)

    try:
        request(source, f"copy the file to {target}", copy)
    except StateError as error:
        if not is_refusal(error):
            raise
        warn_of_refusal(source, str(error))
        copy_file(source, target, replace=True)


def remove_file(location: Location) -> None:
    """Remove a file; do nothing if it does not exist."""

    def remove() -> None:
        with suppress(FileNotFoundError):
            if is_local(location):
                # Removes a symbolic link, not the file that it leads to.
                Path(location.path).unlink()
                return
            if has_directories(location.filesystem) and _find_type(location) is None:
                return
            location.filesystem.rm_file(location.path)

    request(location, "remove the file", remove, writes=True)


def remove_directory(location: Location) -> None:
    """Remove a directory with its content; do nothing if it does not exist."""

    def remove() -> None:
        location.filesystem.invalidate_cache(location.path)
        with suppress(FileNotFoundError):
            if _find_type(location) is not None:
                location.filesystem.rm(location.path, recursive=True)

    request(location, "remove the directory", remove, writes=True)


def to_entry(filesystem: AbstractFileSystem, info: dict[str, Any]) -> FileEntry:
    """Make an entry from the properties that fsspec returns for a file."""
    is_directory = info["type"] == "directory"
    location = Location(filesystem, str(info["name"]))
    return FileEntry(location, 0 if is_directory else int(info["size"] or 0), is_directory, modified_time(info))


def modified_time(info: dict[str, Any]) -> datetime | None:
    """Return the time of the last change in the properties that fsspec lists; None if the storage does not say."""
    for key in _TIME_KEYS:
        value = info.get(key)
        if isinstance(value, int | float):
            return make_time(value)
        if isinstance(value, str):
            with suppress(ValueError):
                value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return value if value.tzinfo else value.replace(tzinfo=UTC)
    return None
