"""Directories of the checkpoints and savepoints of a job, with Flink's names.

Source: `FsCheckpointStorageAccess`, `AbstractFsCheckpointStorageAccess`.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import TargetExistsError, UsageError, Where
from state_pipelines.operations.retention.flink_names import SHARED, TASK_OWNED
from state_pipelines.storage import METADATA_FILE, exists, is_directory, join, list_directory
from state_pipelines.storage.resolution import CHECKPOINT_DIRECTORY, JOB_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.storage import Location

_SAVEPOINT_ATTEMPTS = 10


def _random_digits() -> str:
    return secrets.token_hex(6)


@dataclass(frozen=True)
class CheckpointDirectories:
    """The directories below the directory of checkpoints of one job.

    Attributes:
        root: the directory of checkpoints (`execution.checkpointing.dir`).
        job_id: 32 hexadecimal digits.
        create_subdirectory: there is a directory by job id below `root` (`execution.checkpointing.create-subdir`).

    Raises:
        UsageError: the job id is none.
    """

    root: Location
    job_id: str
    create_subdirectory: bool = True

    def __post_init__(self) -> None:
        """Refuse what is no job id: it becomes the name of a directory."""
        if JOB_DIRECTORY.fullmatch(self.job_id) is None:
            raise UsageError(f"{self.job_id!r} is not a job id", hint="Write 32 hexadecimal digits in lower case")

    @property
    def job(self) -> Location:
        """The directory of the job."""
        return join(self.root, self.job_id) if self.create_subdirectory else self.root

    @property
    def shared(self) -> Location:
        """The directory of files that several checkpoints reference."""
        return join(self.job, SHARED)

    @property
    def task_owned(self) -> Location:
        """The directory of files that belong to tasks, which the coordinator never deletes."""
        return join(self.job, TASK_OWNED)

    def checkpoint(self, checkpoint_id: int) -> Location:
        """The directory of one checkpoint and of the files that only it references."""
        return join(self.job, f"chk-{checkpoint_id}")

    def find_last_id(self) -> int:
        """Return the highest id that a directory of the job names, completed or not; 0 where there is none.

        The remains of a run that was killed count: their names are not used again.

        Raises:
            StorageError: the storage fails.
        """
        return max(self._list_ids(), default=0)

    def find_completed_after(self, checkpoint_id: int) -> Location | None:
        """Return the directory of a completed checkpoint with a higher id, which another run has taken; None for none.

        Raises:
            StorageError: the storage fails.
        """
        later = (self.checkpoint(each) for each in self._list_ids() if each > checkpoint_id)
        return next((each for each in later if exists(join(each, METADATA_FILE))), None)

    def _list_ids(self) -> list[int]:
        if not is_directory(self.job):
            return []
        matches = (CHECKPOINT_DIRECTORY.fullmatch(entry.location.name) for entry in list_directory(self.job))
        return [int(match[1]) for match in matches if match]


def name_savepoint(root: Location, job_id: str, random_digits: Callable[[], str] = _random_digits) -> Location:
    """Choose a directory for a savepoint that is not there yet (`initializeLocationForSavepoint`).

    Args:
        root: directory of savepoints.
        job_id: 32 hexadecimal digits, of which the name has the first six.
        random_digits: gives twelve hexadecimal digits.

    Raises:
        TargetExistsError: ten names are all taken.
        StorageError: the storage fails.
    """
    for _ in range(_SAVEPOINT_ATTEMPTS):
        found = join(root, f"savepoint-{job_id[:6]}-{random_digits()}")
        if not exists(found):
            return found
    raise TargetExistsError(
        "no free name was found for a savepoint", where=Where(file=str(root)), hint="Choose another directory"
    )
