"""Local backups: the files of the last snapshots of a subtask, on a disk of the worker that has written them.

A subtask that is restored on the same worker takes its files from there and downloads nothing.
Source: `TaskLocalStateStoreImpl`, `LocalSnapshotDirectoryProviderImpl`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError, Where
from state_pipelines.metadata.stream_handles import FileStateHandle, RelativeFileStateHandle
from state_pipelines.metadata.streams import locate_file
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from state_pipelines.metadata.key_groups import KeyGroupRange
    from state_pipelines.metadata.keyed_handles import IncrementalRemoteKeyedStateHandle
    from state_pipelines.snapshot.handle_readers import HandleReader
    from state_pipelines.storage import Location

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LocalBackup:
    """Backups of one subtask.

    A copy is found by the URL of the uploaded file, which is never written twice, and counts only with the size that
    the handle gives. A copy that is missing, or that could not be made, is downloaded instead.

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
        try:
            kept.mkdir(parents=True, exist_ok=True)
            for url, path in files.items():
                _link(path, kept / _name_file(url))
        except OSError as error:
            _log.warning("no local backup of checkpoint %d: %s", checkpoint_id, error)
            shutil.rmtree(kept, ignore_errors=True)
        with suppress(OSError):
            for each in self.directory.iterdir():
                if each not in (kept, self._name_snapshot(base)):
                    shutil.rmtree(each, ignore_errors=True)

    def find(self, handles: Iterable[IncrementalRemoteKeyedStateHandle], reader: HandleReader) -> dict[str, Location]:
        """Find the files of snapshots.

        Args:
            handles: of the snapshots.
            reader: of the restored snapshot.

        Returns:
            The local copies by the URL of the uploaded ones, for `HandleReader`.
        """
        found: dict[str, Location] = {}
        for handle in handles:
            files = [each.handle for each in (*handle.shared_state, *handle.private_state)]
            for file in (handle.meta_data_state, *files):
                # A slice of a merged file is no file of its own.
                if not isinstance(file, FileStateHandle | RelativeFileStateHandle):
                    continue
                url = locate_file(file, reader.directory, reader.path_mapping).url
                path = self._name_snapshot(handle.checkpoint_id) / _name_file(url)
                with suppress(OSError):
                    if path.stat().st_size == file.size:
                        found[url] = resolve(str(path))
        return found

    def _name_snapshot(self, checkpoint_id: int) -> Path:
        return self.directory / f"chk-{checkpoint_id}"


def _name_file(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()


def _link(path: Path, target: Path) -> None:
    with suppress(FileExistsError):
        try:
            os.link(path, target)
        except FileExistsError:
            raise
        except OSError:
            # Another disk. A name without a copy behind it must never be seen.
            partial = target.with_suffix(f".{os.getpid()}")
            shutil.copyfile(path, partial)
            partial.replace(target)
