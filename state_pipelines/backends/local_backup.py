"""Local backups: the files of the last snapshots of a subtask, on a disk of the worker that has written them.

A subtask that is restored on the same worker takes its files from there and downloads nothing.
Source: `TaskLocalStateStoreImpl`, `LocalSnapshotDirectoryProviderImpl`.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError, Where
from state_pipelines.metadata.handles import FileStateHandle, RelativeFileStateHandle
from state_pipelines.metadata.references import list_keyed_streams
from state_pipelines.metadata.streams import locate_file
from state_pipelines.storage import join, resolve
from state_pipelines.storage.reading import find_copy, link_copy, remove_other_copies, take_copy, write_copies

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from state_pipelines.metadata.handles import KeyedStateHandle, KeyGroupRange
    from state_pipelines.snapshot.handle_readers import HandleReader
    from state_pipelines.storage import Location

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LocalBackup:
    """Backups of one subtask.

    A copy is found by the URL of the uploaded file, which is never written twice, and counts only with the size that
    the handle gives and, where it was written and not linked, with the checksum of what was written. A file whose copy
    is missing or damaged is downloaded.

    Attributes:
        directory: of the subtask.
    """

    directory: Path

    @staticmethod
    def open(roots: Sequence[str], job_id: str, operator_id: bytes, key_groups: KeyGroupRange) -> LocalBackup:
        """Open the backups of a subtask on this machine.

        Args:
            roots: directories of all backups, among which subtasks are divided; without any it is one of this user
                below the directory for temporary files.
            job_id: of the job, 32 hexadecimal digits.
            operator_id: 16 bytes.
            key_groups: of the subtask.

        Raises:
            UsageError: the directory cannot be made, or it belongs to another user.
        """
        top = Path(tempfile.gettempdir()) / f"state-pipelines-local-{os.getuid()}"
        if roots:
            top = Path(roots[key_groups.start % len(roots)])
        try:
            top.mkdir(mode=0o700, parents=True, exist_ok=True)
            owner = top.lstat().st_uid
        except OSError as error:
            raise UsageError(f"no directory for local backups: {error}", where=Where(file=str(top))) from error
        if not roots and (owner != os.getuid() or top.is_symlink()):
            raise UsageError(
                "the directory for local backups belongs to another user",
                where=Where(file=str(top)),
                hint="Name another one by execution.checkpointing.local-backup.dirs",
            )
        return LocalBackup(top / job_id / operator_id.hex() / f"{key_groups.start}-{key_groups.end}")

    def keep(self, checkpoint_id: int, files: Mapping[str, Path], base: int) -> None:
        """Keep the files of a snapshot, linked where the disk allows it, in place of older snapshots.

        Args:
            checkpoint_id: of the snapshot.
            files: local files by the URL of their uploaded copy.
            base: checkpoint id of the last completed snapshot, whose files are kept until this one is completed.
        """
        kept = self._name_snapshot(checkpoint_id)
        with self._replacing(checkpoint_id, base):
            kept.mkdir(parents=True, exist_ok=True)
            for url, path in files.items():
                link_copy(path, kept, url)
            remove_other_copies(kept, files)

    @contextmanager
    def write_copies(self, checkpoint_id: int) -> Iterator[None]:
        """Copy the files of a snapshot that are written while the block runs; then comes `keep_written`."""
        with write_copies(self._name_snapshot(checkpoint_id)):
            yield

    def keep_written(self, checkpoint_id: int, handle: KeyedStateHandle | None, directory: Location, base: int) -> None:
        """Keep the copies of the files of a snapshot in place of older snapshots.

        Args:
            checkpoint_id: of the snapshot.
            handle: of the snapshot; copies of files that the last completed snapshot has too are linked.
            directory: of the snapshot.
            base: checkpoint id of the last completed snapshot, whose files are kept until this one is completed.
        """
        kept = self._name_snapshot(checkpoint_id)
        with self._replacing(checkpoint_id, base):
            kept.mkdir(parents=True, exist_ok=True)
            files = [] if handle is None else _list_files(handle)
            sizes = {_name_written(file, directory): file.size for file in files}
            for url, size in sizes.items():
                # What was written is read again when it is restored.
                copy = self._find_copy(url, size, verify=False)
                if copy is not None:
                    take_copy(copy, kept)
            remove_other_copies(kept, sizes)

    def find(self, handles: Iterable[KeyedStateHandle], reader: HandleReader) -> dict[str, Location]:
        """Find the files of snapshots.

        Args:
            handles: of the snapshots.
            reader: of the restored snapshot.

        Returns:
            The local copies by the URL of the uploaded ones, for `HandleReader`.
        """
        found: dict[str, Location] = {}
        for handle in handles:
            for file in _list_files(handle):
                url = locate_file(file, reader.directory, reader.path_mapping).url
                copy = self._find_copy(url, file.size, verify=True)
                if copy is not None:
                    found[url] = resolve(str(copy))
        return found

    def _find_copy(self, url: str, size: int, *, verify: bool) -> Path | None:
        found = (find_copy(snapshot, url, size, verify=verify) for snapshot in self.directory.glob("chk-*"))
        return next((copy for copy in found if copy is not None), None)

    @contextmanager
    def _replacing(self, checkpoint_id: int, base: int) -> Iterator[None]:
        kept = self._name_snapshot(checkpoint_id)
        try:
            yield
        except OSError as error:
            _log.warning("no local backup of checkpoint %d: %s", checkpoint_id, error)
            shutil.rmtree(kept, ignore_errors=True)
        with suppress(OSError):
            for each in self.directory.iterdir():
                if each not in (kept, self._name_snapshot(base)):
                    shutil.rmtree(each, ignore_errors=True)

    def _name_snapshot(self, checkpoint_id: int) -> Path:
        return self.directory / f"chk-{checkpoint_id}"


def _name_written(file: FileStateHandle | RelativeFileStateHandle, directory: Location) -> str:
    """The URL of a file that was written, or restored, by this subtask."""
    if isinstance(file, RelativeFileStateHandle):
        return join(directory, file.relative_path).url
    return resolve(file.path).url


def _list_files(handle: KeyedStateHandle) -> list[FileStateHandle | RelativeFileStateHandle]:
    """The files of a handle; a slice of a merged file is no file of its own."""
    streams = list_keyed_streams(handle)
    return [each for each in streams if isinstance(each, FileStateHandle | RelativeFileStateHandle)]
