"""Names that Flink and this package write below the roots of checkpoints and savepoints.

Sources: `AbstractFsCheckpointStorageAccess`, `FsCheckpointStreamFactory`, `FileMergingSnapshotManager`,
`FsStateChangelogStorage`, and the recoverable writers of Flink's file systems.
"""

from __future__ import annotations

import re
from enum import Enum

from state_pipelines.storage.resolution import (
    CHECKPOINT_DIRECTORY,
    JOB_DIRECTORY,
    PENDING_METADATA,
    SAVEPOINT_DIRECTORY,
    UUID,
)

_TEMPORARY = re.compile(
    # Local and Hadoop writers, S3 writers, the constant of old releases, and `SnapshotWriter` of this package.
    rf"\.(?:_metadata|{UUID})\.inprogress\.{UUID}"
    rf"|_(?:_metadata|{UUID})_tmp_{UUID}"
    r"|\._metadata_temp"
    rf"|{PENDING_METADATA.pattern}"
)
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


def is_temporary_name(name: str) -> bool:
    """Whether a file is one that becomes another by renaming: an unfinished `_metadata`, for instance."""
    return _TEMPORARY.fullmatch(name) is not None


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
    """Whether Flink makes directories of this name there; `parents` ends with the directory itself."""
    name = parents[-1]
    return (
        name in (SHARED, TASK_OWNED)
        or CHECKPOINT_DIRECTORY.fullmatch(name) is not None
        or JOB_DIRECTORY.fullmatch(name) is not None
        or SAVEPOINT_DIRECTORY.fullmatch(name) is not None
        or find_area(parents) is not None
    )
