"""Copies of files in a directory on a local disk, found by the URL of the file.

A copy is written together with the file, so that nothing is read again, or linked to a local file of the same bytes.
One that cannot be written is left out: the file does not depend on it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING
from uuid import uuid4

from state_pipelines.storage.written_files import compute_checksum, copy_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


_log = logging.getLogger(__name__)

_CHUNK = 1 << 20
_PARTIAL = ".partial"


@contextmanager
def write_copies(directory: Path) -> Iterator[None]:
    """Copy every file that this thread creates (`storage.files.create_file`) into a directory while the block runs."""
    with copy_files(lambda location: _WrittenCopy(directory, location.url)):
        yield


def link_copy(file: Path, directory: Path, url: str) -> None:
    """Make a local file the copy of an uploaded one; linked, or copied from another disk.

    Raises:
        OSError: the disk refuses.
    """
    _link(file, directory / _name_copy(url))


def find_copy(directory: Path, url: str, size: int, *, verify: bool = True) -> Path | None:
    """Find the copy of a file in a directory; None where none has its size and the checksum of what was written.

    A linked copy has no checksum: the tables and logs of RocksDB have their own.

    Args:
        directory: of the copies.
        url: of the file.
        size: of the file, in bytes.
        verify: read the copy and compare the checksum; without, the size counts alone.
    """
    linked = directory / _name_copy(url)
    for path in (linked, *directory.glob(f"{linked.name}.*")):
        with suppress(OSError):
            if path.suffix == _PARTIAL or path.stat().st_size != size:
                continue
            if path == linked or not verify or _is_whole(path):
                return path
    return None


def take_copy(copy: Path, directory: Path) -> None:
    """Have a copy in another directory too; linked, or copied from another disk.

    Raises:
        OSError: the disk refuses.
    """
    _link(copy, directory / copy.name)


def remove_other_copies(directory: Path, urls: Iterable[str]) -> None:
    """Remove all files of a directory that are not copies of some files."""
    names = set(map(_name_copy, urls))
    for path in directory.iterdir():
        if path.stem not in names or path.suffix == _PARTIAL:
            path.unlink(missing_ok=True)


class _WrittenCopy:
    """The copy of a file that is being written; its name gets the checksum when it is complete."""

    def __init__(self, directory: Path, url: str) -> None:
        self._url = url
        self._target = directory / _name_copy(url)
        self._partial = self._target.with_suffix(f".{uuid4().hex}{_PARTIAL}")
        self._file: IO[bytes] | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = self._partial.open("wb")
        except OSError as error:
            self._give_up(error)

    def write(self, data: memoryview) -> None:
        """Write the next bytes."""
        if self._file is not None:
            try:
                self._file.write(data)
            except OSError as error:
                self._give_up(error)

    def finish(self, checksum: str) -> None:
        """Give the copy its name."""
        if self._file is not None:
            try:
                self._file.close()
                self._partial.replace(self._target.with_suffix(f".{checksum}"))
            except OSError as error:
                self._give_up(error)

    def discard(self) -> None:
        """Remove what was written."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._file = None
        with suppress(OSError):
            self._partial.unlink()

    def _give_up(self, error: OSError) -> None:
        _log.warning("no local copy of %s: %s", self._url, error)
        self.discard()


def _name_copy(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()


def _is_whole(path: Path) -> bool:
    with path.open("rb") as file:
        return compute_checksum(iter(lambda: file.read(_CHUNK), b"")) == path.suffix[1:]


def _link(path: Path, target: Path) -> None:
    with suppress(FileExistsError):
        try:
            os.link(path, target)
        except FileExistsError:
            raise
        except OSError:
            # It is on another disk. The copy gets its name when it is complete.
            partial = target.with_name(f"{target.name}.{uuid4().hex}{_PARTIAL}")
            shutil.copyfile(path, partial)
            partial.replace(target)
