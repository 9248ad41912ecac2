"""Names that Flink and this package write below the roots of checkpoints and savepoints.

Sources: `AbstractFsCheckpointStorageAccess`, `FsCheckpointStreamFactory`, `FileMergingSnapshotManager`,
`FsStateChangelogStorage`, and the recoverable writers of Flink's file systems.
"""

from __future__ import annotations

import re
from enum import Enum

CHECKPOINT_DIRECTORY = re.compile(r"chk-(\d+)")
"""Directory of one checkpoint (`CHECKPOINT_DIR_PREFIX`)."""

JOB_DIRECTORY = re.compile(r"[0-9a-f]{32}")
"""Directory of one job: its id."""

SAVEPOINT_DIRECTORY = re.compile(r"savepoint-(?:([0-9a-f]{6})-)?[0-9a-f]{12}")
"""Directory of one savepoint: digits of the job id, then random ones (`initializeLocationForSavepoint`)."""

_UUID_TEXT = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_UUID = re.compile(_UUID_TEXT)
_TEMPORARY = re.compile(
    # Local and Hadoop writers, S3 writers, the constant of old releases, and `SnapshotWriter` of this package.
    rf"\.(?:_metadata|{_UUID_TEXT})\.inprogress\.{_UUID_TEXT}"
    rf"|_(?:_metadata|{_UUID_TEXT})_tmp_{_UUID_TEXT}"
    r"|\._metadata_temp"
    r"|_metadata\.pending"
)
# Directories of spilled parts beside the target of a write to the data source `flink-state`.
_SPILLS = re.compile(rf"\..+-{_UUID_TEXT}")
# `SubtaskKey.getManagedDirName` and the id of a task manager's manager, other characters replaced by `_`.
_MERGED = re.compile(r"job_[0-9a-f]{32}_(?:op|tm)_[\w-]+", re.ASCII)
# `job_<job>_op_<operator>_<subtask>_<parallelism>` is below `shared`, `job_<job>_tm_<task manager>` below `taskowned`.
_DATABASE = re.compile(r"op_[\w-]+__\d+_\d+__attempt_\d+", re.ASCII)
# ForSt keeps its open database in `<_DATABASE>/db` below `shared` (`ForStResourceContainer`, `ForStPathContainer`).

SHARED, TASK_OWNED, CHANGELOG = "shared", "taskowned", "dstl"


class Area(Enum):
    """Job, kind and number that the directories above a file name."""

    SHARED = SHARED
    TASK_OWNED = TASK_OWNED
    CHANGELOG = CHANGELOG
    DATABASE = "db"


def is_data_name(name: str) -> bool:
    """Whether a file has a name that Flink gives to files of state: a random UUID."""
    return _UUID.fullmatch(name) is not None


def is_temporary_name(name: str) -> bool:
    """Whether a file is one that becomes another by renaming: an unfinished `_metadata`, for instance."""
    return _TEMPORARY.fullmatch(name) is not None


def is_spill_directory(name: str) -> bool:
    """Whether a directory holds spilled parts of a write of this package."""
    return _SPILLS.fullmatch(name) is not None


def is_merged_directory(name: str) -> bool:
    """Whether a directory holds physical files of file merging (`FileMergingSnapshotManager`)."""
    return _MERGED.fullmatch(name) is not None


def find_area(parents: tuple[str, ...]) -> tuple[Area, int] | None:
    """The area of a file by the names of the directories above it, outermost first.

    Returns:
        The area and the index of its directory; None where Flink writes no such files.
    """
    last = len(parents) - 1
    if last < 0:
        return None
    if parents[last] in (SHARED, TASK_OWNED):
        return Area(parents[last]), last
    if parents[last] == CHANGELOG and last and JOB_DIRECTORY.fullmatch(parents[last - 1]):
        return Area.CHANGELOG, last
    if last and parents[last - 1] in (SHARED, TASK_OWNED) and is_merged_directory(parents[last]):
        return Area(parents[last - 1]), last - 1
    if last > 1 and parents[last] == "db" and parents[last - 2] == SHARED and _DATABASE.fullmatch(parents[last - 1]):
        return Area.DATABASE, last - 2
    return None


def is_flink_directory(parents: tuple[str, ...]) -> bool:
    """Whether Flink makes directories of this name at this place; `parents` ends with the directory itself."""
    name = parents[-1]
    return (
        name in (SHARED, TASK_OWNED)
        or CHECKPOINT_DIRECTORY.fullmatch(name) is not None
        or JOB_DIRECTORY.fullmatch(name) is not None
        or SAVEPOINT_DIRECTORY.fullmatch(name) is not None
        or find_area(parents) is not None
    )
