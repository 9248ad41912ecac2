"""Owners of directories in the layout of Flink's checkpoints (`AbstractFsCheckpointStorageAccess`).

A job writes `<root>/<job id>/chk-<n>` for each checkpoint, and beside them `shared` and `taskowned`; logged changes are
in `<base>/<job id>/dstl` (`FsStateChangelogStorage`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.storage.locations import is_below, parent
from state_pipelines.storage.resolution import CHECKPOINT_DIRECTORY, COMMON, JOB_DIRECTORY, SAVEPOINT_DIRECTORY

if TYPE_CHECKING:
    import re

    from state_pipelines.storage import Location


def find_owner(directory: str, exclusive: Location) -> str:
    """Describe the owner of a directory that is not the snapshot's own; empty where it is, or is its job's.

    Args:
        directory: path or URL of the directory, after path mapping.
        exclusive: directory of the snapshot.
    """
    own = str(exclusive).rstrip("/")
    if is_below(directory, own):
        return ""
    checkpoint = _find_name(directory, CHECKPOINT_DIRECTORY)
    savepoint = _find_name(directory, SAVEPOINT_DIRECTORY)
    if savepoint:
        return f"the savepoint {savepoint}"
    job_directory = str(parent(exclusive)).rstrip("/")
    job = exclusive.path.rstrip("/").rpartition("/")[0].rpartition("/")[2]
    names = directory.split("/")
    ours = is_below(directory, job_directory) or (JOB_DIRECTORY.fullmatch(job) is not None and job in names)
    if checkpoint:
        return f"the directory of checkpoint {checkpoint}" + ("" if ours else " of another job")
    if ours and any(name in COMMON for name in names):
        return ""
    if ours:
        return "a directory beside the snapshot"
    other = _find_name(directory, JOB_DIRECTORY)
    return f"a directory of another job ({other})" if other else "a directory outside that of its job"


def _find_name(path: str, pattern: re.Pattern[str]) -> str:
    return next((name for name in reversed(path.split("/")) if pattern.fullmatch(name)), "")
