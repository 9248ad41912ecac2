"""Sizes, checksums and copies of files, taken while their bytes are written; checksums also by reading them once.

XXH3-128, because it runs at the speed of memory, and its library is needed for the RocksDB blocks of Flink 2.x anyway.
It shows bytes that changed by accident, not those that somebody changed on purpose together with the manifest.
"""

from __future__ import annotations

import io
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Protocol

import xxhash
from typing_extensions import override

from state_pipelines.storage.locations import parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from state_pipelines.storage.locations import Location

CHECKSUM = "xxh3-128"
"""Name of the checksum."""


@dataclass(frozen=True)
class RecordedFile:
    """Size and checksum of a file.

    Attributes:
        name: file name.
        size: bytes.
        checksum: XXH3-128 of its content as 32 hexadecimal digits; None where the bytes were not read.
    """

    name: str
    size: int
    checksum: str | None = None


@dataclass
class FileRecorder:
    """Collects the files that one task writes into a directory.

    Attributes:
        directory: the directory; files elsewhere, such as temporary ones, are not recorded.
        files: by name; a file that is written again replaces its predecessor.
    """

    directory: Location
    files: dict[str, RecordedFile] = field(default_factory=dict)

    def covers(self, location: Location) -> bool:
        """Return whether a file is in the directory."""
        above = parent(location)
        return above.path == self.directory.path and above.filesystem == self.directory.filesystem


class FileCopy(Protocol):
    """The copy of a file that is being written; its errors are not those of the file."""

    def write(self, data: memoryview, /) -> None:
        """Write the next bytes."""

    def finish(self, checksum: str, /) -> None:
        """End the copy of a file that was written; `checksum` is that of its content."""

    def discard(self) -> None:
        """Remove the copy of a file that could not be written."""


_RECORDER: ContextVar[FileRecorder | None] = ContextVar("recorder", default=None)
_BEGIN_COPY: ContextVar[Callable[[Location], FileCopy] | None] = ContextVar("copies", default=None)


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
def copy_files(begin: Callable[[Location], FileCopy]) -> Iterator[None]:
    """Copy every file that this thread creates while the block runs; `begin` begins a copy."""
    token = _BEGIN_COPY.set(begin)
    try:
        yield
    finally:
        _BEGIN_COPY.reset(token)


@contextmanager
def recording(location: Location, file: IO[bytes]) -> Iterator[Any]:
    """Yield a new file that is being written.

    It is recorded at the end of the block where a recorder covers it, and copied where copies are wanted.
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
    """A file that is written from its beginning to its end, with the checksum of what was written."""

    def __init__(self, file: IO[bytes], copy: FileCopy | None = None) -> None:
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
    """XXH3-128 of bytes as 32 hexadecimal digits."""
    digest = xxhash.xxh3_128()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
