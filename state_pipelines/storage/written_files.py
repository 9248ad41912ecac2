"""Sizes and checksums of files, taken while their bytes are written, or by reading them once.

XXH3-128, because it runs at the speed of memory, and its library is needed for the RocksDB blocks of Flink 2.x anyway.
It shows bytes that changed by accident, not those that somebody changed on purpose together with the manifest.
"""

from __future__ import annotations

import io
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import xxhash
from typing_extensions import override

from state_pipelines.storage.locations import parent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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


_RECORDER: ContextVar[FileRecorder | None] = ContextVar("recorder", default=None)


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
def recording(location: Location, file: IO[bytes]) -> Iterator[Any]:
    """Yield a new file that is being written; it is recorded at the end of the block where a recorder covers it."""
    recorder = _RECORDER.get()
    if recorder is None or not recorder.covers(location):
        yield file
        return
    output = _Checksummed(file)
    yield output
    recorder.files[location.name] = RecordedFile(location.name, output.size, output.checksum)


class _Checksummed(io.BufferedIOBase):
    """A file that is written from its beginning to its end, with the checksum of what was written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
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
