"""Jobs below the roots: which snapshots and files are whose, and which jobs may be running."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from state_pipelines.operations.retention.flink_names import find_area
from state_pipelines.operations.retention.references import SnapshotReferences
from state_pipelines.storage.resolution import CHECKPOINT_DIRECTORY, JOB_DIRECTORY, SAVEPOINT_DIRECTORY

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from state_pipelines.operations.retention.survey import FoundSnapshot, Survey

# Times of files that were copied say little: ids decide unless times contradict them by more than this.
_COPY_SECONDS = 60


@dataclass
class Job:
    """A Flink job as far as its files show it.

    Attributes:
        name: its id, or the directory that stands for it where Flink makes none per job.
        checkpoints: its completed checkpoints, oldest first.
        snapshots: these and its savepoints, oldest first.
        newest_change: time of the newest file of its checkpoints, None when there is none.
        may_run: a file changed within the minimal age, or has no time.
    """

    name: str
    checkpoints: list[FoundSnapshot] = field(default_factory=list)
    snapshots: list[FoundSnapshot] = field(default_factory=list)
    newest_change: datetime | None = None
    may_run: bool = False

    @property
    def newest_completed(self) -> datetime | None:
        """Completion time of its newest checkpoint, None without one."""
        return max((each.modified for each in self.checkpoints if each.modified is not None), default=None)

    @property
    def newest_id(self) -> int:
        """Id of the checkpoint that was completed last; -1 without one."""
        return checkpoint_number(self.checkpoints[-1]) if self.checkpoints else -1


class JobIndex:
    """The jobs of a survey.

    Args:
        found: the survey.
        now: the present.
        min_age: jobs with younger files may be running.
    """

    def __init__(self, found: Survey, now: datetime, min_age: timedelta) -> None:
        self._names: dict[str, str] = {}
        self.jobs: dict[str, Job] = {}
        self.snapshot_jobs: dict[str, Job] = {}
        self._collect_names(found)
        self._collect_snapshots(found)
        self._collect_activity(found, now, min_age)

    def job_of(self, directory_key: str) -> Job | None:
        """The job to whose checkpoints a directory belongs: `chk-N`, `shared` and the like; None for others."""
        name = self._names.get(directory_key)
        return None if name is None else self._job(name)

    def _job(self, name: str) -> Job:
        return self.jobs.setdefault(name, Job(name))

    def _collect_names(self, found: Survey) -> None:
        directories = {file.directory_key for file in found.files.values()} | set(found.directories)
        for key in directories:
            names = split_key(key)
            base = None
            if CHECKPOINT_DIRECTORY.fullmatch(names[-1]):
                base = names[:-1]
            elif JOB_DIRECTORY.fullmatch(names[-1]):
                base = names
            elif (area := find_area(names)) is not None:
                base = names[: area[1]]
            if base is not None:
                self._names[key] = base[-1] if base and JOB_DIRECTORY.fullmatch(base[-1]) else "/".join(base)

    def _collect_snapshots(self, found: Survey) -> None:
        ids: defaultdict[str, set[str]] = defaultdict(set)
        for name in self._names.values():
            if JOB_DIRECTORY.fullmatch(name):
                ids[name[:6]].add(name)
        for snapshot in found.snapshots.values():
            is_checkpoint = snapshot.key in self._names
            if is_checkpoint:
                job = self._job(self._names[snapshot.key])
                job.checkpoints.append(snapshot)
            else:
                job = self._job(_name_savepoint_job(snapshot, ids))
            job.snapshots.append(snapshot)
            self.snapshot_jobs[snapshot.key] = job
        for job in self.jobs.values():
            job.checkpoints = sort_by_age(job.checkpoints)
            job.snapshots = sort_by_age(job.snapshots)

    def _collect_activity(self, found: Survey, now: datetime, min_age: timedelta) -> None:
        unknown: set[str] = set()
        for file in found.files.values():
            name = self._names.get(file.directory_key)
            if name is None:
                continue
            job, modified = self._job(name), file.entry.modified
            if modified is None:
                unknown.add(name)
            elif job.newest_change is None or modified > job.newest_change:
                job.newest_change = modified
        for job in self.jobs.values():
            job.may_run = job.name in unknown or (job.newest_change is not None and now - job.newest_change < min_age)


def _name_savepoint_job(snapshot: FoundSnapshot, ids: dict[str, set[str]]) -> str:
    names = split_key(snapshot.key)
    match = SAVEPOINT_DIRECTORY.fullmatch(names[-1])
    if match is None or match[1] is None:
        return "/".join(names[:-1])
    known = ids.get(match[1], set())
    return next(iter(known)) if len(known) == 1 else match[1]


def checkpoint_number(snapshot: FoundSnapshot) -> int:
    """Id of a snapshot; of one that cannot be read, the number in its name, or -1."""
    if isinstance(snapshot.reading, SnapshotReferences):
        return snapshot.reading.checkpoint_id
    match = CHECKPOINT_DIRECTORY.fullmatch(snapshot.key.rpartition("/")[2])
    return -1 if match is None else int(match[1])


def sort_by_age(snapshots: list[FoundSnapshot]) -> list[FoundSnapshot]:
    """Snapshots of one job, oldest first; those of unknown age before all others.

    Ids of one job only grow, so they decide, unless the times say that a job with this id was restored from an older
    snapshot and began to count again.
    """
    by_id = sorted(snapshots, key=lambda each: (checkpoint_number(each), each.key))
    times = [each.modified.timestamp() for each in by_id if each.modified is not None]
    newest = 0.0
    for time in times:
        if time < newest - _COPY_SECONDS:
            return sorted(by_id, key=lambda each: 0.0 if each.modified is None else each.modified.timestamp())
        newest = max(newest, time)
    return sorted(by_id, key=lambda each: each.modified is not None)


def split_key(key: str) -> tuple[str, ...]:
    """The names in a key, outermost first."""
    return tuple(key.split("/"))
