"""Decisions about files and directories: unreferenced ones go, unless there is a doubt that they are orphans."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from state_pipelines.metadata.checkpoint import SnapshotKind
from state_pipelines.operations.retention import flink_names
from state_pipelines.operations.retention.flink_names import Area
from state_pipelines.operations.retention.jobs import split_key
from state_pipelines.operations.retention.plan import PathKind, PlannedPath
from state_pipelines.operations.retention.policy import MIN_AGE
from state_pipelines.operations.retention.references import SnapshotReferences
from state_pipelines.operations.retention.snapshot_decisions import NOT_IN_EARLIER_PLAN, kind_of
from state_pipelines.storage import METADATA_FILE
from state_pipelines.storage.resolution import (
    CHECKPOINT_DIRECTORY,
    MANIFEST_FILE,
    SAVEPOINT_DIRECTORY,
    find_scratch_target,
    is_own_file,
    is_state_file,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from datetime import datetime

    from state_pipelines.operations.retention.audit_log import Leftovers
    from state_pipelines.operations.retention.jobs import Job, JobIndex
    from state_pipelines.operations.retention.policy import RetentionPolicy
    from state_pipelines.operations.retention.snapshot_decisions import Decision
    from state_pipelines.operations.retention.survey import FoundFile, FoundSnapshot, Neighbour, Survey

YOUNG = "younger than the minimal age, or of unknown age"
"""Reason of an unreferenced file that stays."""

# Tasks upload before `_metadata` exists; what was uploaded this shortly before the newest checkpoint was completed may
# belong to the next one (default of `execution.checkpointing.timeout`).
_UPLOAD_TIME = timedelta(minutes=10)

_AREA_KINDS = {
    Area.SHARED: PathKind.SHARED,
    Area.TASK_OWNED: PathKind.TASK_OWNED,
    Area.CHANGELOG: PathKind.CHANGELOG,
    Area.DATABASE: PathKind.SHARED,
}


@dataclass(frozen=True)
class _Directory:
    """The files of one directory, as far as they are known.

    Attributes:
        kind: kind of files with a name that Flink writes; OTHER where it writes none.
        job: the job whose checkpoints they belong to, or None.
        number: checkpoint number of a `chk-N` directory without `_metadata`, or None.
        newest: time of the newest file; None when one has no time, or there is none.
        everything: all files are candidates whatever their names.
        is_merged: each holds the state of many checkpoints, and tasks append to it (`FileMergingSnapshotManager`).
        is_database: the files of a ForSt database, which its running job needs though no checkpoint references them.
    """

    kind: PathKind
    job: Job | None
    number: int | None = None
    newest: datetime | None = None
    everything: bool = False
    is_merged: bool = False
    is_database: bool = False


class FileJudge:
    """Judges files and directories.

    Args:
        found: the survey.
        index: its jobs.
        decisions: the decisions about snapshots.
        policy: the policy.
        stopped: keys of the roots below which references are not known.
        leftovers: key, size and time of files that an interrupted application of a plan was deleting.
        candidates: paths that may be deleted; None for all.
    """

    def __init__(
        self,
        found: Survey,
        index: JobIndex,
        decisions: Mapping[str, Decision],
        policy: RetentionPolicy,
        stopped: Collection[str],
        leftovers: Leftovers = frozenset(),
        candidates: Collection[str] | None = None,
    ) -> None:
        self._found = found
        self._index = index
        self._decisions = decisions
        self._policy = policy
        self._now = found.time
        self._stopped = stopped
        self._leftovers = leftovers
        self._candidates = candidates
        staying = [each for each in found.snapshots.values() if not decisions[each.key].delete]
        going = [each for each in found.snapshots.values() if decisions[each.key].delete]
        needed = dict(_list_references((*staying, *found.neighbours)))
        self._live = _count(needed)
        self._released = _count(dict(_list_references(going)))
        self._names: defaultdict[str, set[str]] = defaultdict(set)
        for key in self._live:
            self._names[key.rpartition("/")[2]].add(key)
        self._has_log = any(each.has_write_ahead_log for each in needed.values())
        self._merged = {name for each in needed.values() for name in each.directories}
        self._passed = {key for each in needed.values() for key in each.passed}
        self._unresolved = {key: (path, link) for path, each in needed.items() for key, link in each.unresolved.items()}
        self._newest: dict[str, datetime | None] = {}
        self._pending: set[str] = set()
        self._lone_manifests: set[str] = set()
        self._collect_times()
        self._known: dict[str, _Directory] = {}
        self.delete: list[PlannedPath] = []
        self.keep: list[PlannedPath] = []
        self.unknown: list[PlannedPath] = []
        self._going: set[str] = set()

    def judge(self) -> None:
        """Fill `delete` (files, then directories), `keep` and `unknown`."""
        for file in self._found.files.values():
            self._judge_file(file)
        for link in self._found.links:
            self._mark_unknown(link, "a symbolic link or special file; links are not followed")
        # Nothing is deleted that a `_metadata` still names: all of these go first, the oldest before the others.
        self.delete.sort(key=_find_turn)
        self.delete += self._judge_directories()
        self.keep.sort(key=lambda path: path.path)
        self.unknown.sort(key=lambda path: path.path)

    def _delete(self, file: FoundFile, kind: PathKind, reason: str) -> None:
        if self._candidates is not None and file.path not in self._candidates:
            self._keep(file, kind, NOT_IN_EARLIER_PLAN)
            return
        self._going.add(file.key)
        self.delete.append(PlannedPath(file.path, file.entry.size, kind, reason, file.entry.modified))

    def _keep(self, file: FoundFile, kind: PathKind, reason: str) -> None:
        self.keep.append(PlannedPath(file.path, file.entry.size, kind, reason, file.entry.modified))

    def _mark_unknown(self, file: FoundFile, reason: str) -> None:
        self.unknown.append(PlannedPath(file.path, file.entry.size, PathKind.OTHER, reason, file.entry.modified))

    def _collect_times(self) -> None:
        for file in self._found.files.values():
            directory, modified = file.directory_key, file.entry.modified
            if directory not in self._newest:
                self._newest[directory] = modified
            else:
                newest = self._newest[directory]
                known = newest is not None and modified is not None
                self._newest[directory] = max(newest, modified) if known else None  # type: ignore[type-var]
            # A manifest does not make a directory temporary: after a claim, checkpoints may name the files beside it.
            if file.name == METADATA_FILE + ".pending":
                self._pending.add(directory)

        self._lone_manifests = self._find_lone_manifests()

    def _find_lone_manifests(self) -> set[str]:
        """Directories that hold a manifest alone: Flink removes all else of a snapshot that it claimed, but not that.

        It deletes the files that it knows, and then the directory only where that is empty
        (`CompletedCheckpoint.CompletedCheckpointDiscardObject`).
        """
        found = {each.directory_key for each in self._found.files.values() if each.name == MANIFEST_FILE}
        others = (*self._found.links, *self._found.directories.values())
        taken = {each.directory_key for each in self._found.files.values() if each.name != MANIFEST_FILE}
        return found - taken - {each.directory_key for each in others}

    def _describe(self, directory: str) -> _Directory:
        if directory not in self._known:
            self._known[directory] = self._find_kind(directory)
        return self._known[directory]

    def _find_kind(self, directory: str) -> _Directory:
        names = split_key(directory)
        newest = self._newest.get(directory)
        job = self._index.job_of(directory)
        snapshot = self._found.snapshots.get(directory)
        if snapshot is not None:
            is_savepoint = kind_of(snapshot) is SnapshotKind.SAVEPOINT
            return _Directory(PathKind.SAVEPOINT_FILE if is_savepoint else PathKind.CHECKPOINT_FILE, job, newest=newest)
        area = flink_names.find_area(names)
        if area is not None:
            return _Directory(
                _AREA_KINDS[area[0]],
                job,
                newest=newest,
                is_merged=flink_names.is_merged_directory(names[-1]),
                is_database=area[0] is Area.DATABASE,
            )
        match = CHECKPOINT_DIRECTORY.fullmatch(names[-1])
        if match is not None:
            return _Directory(PathKind.INCOMPLETE_CHECKPOINT, job, int(match[1]), newest)
        if directory in self._lone_manifests:
            return _Directory(PathKind.MANIFEST, job, newest=newest)
        if SAVEPOINT_DIRECTORY.fullmatch(names[-1]):
            return _Directory(PathKind.INCOMPLETE_SAVEPOINT, job, newest=newest)
        if directory in self._pending:
            return _Directory(PathKind.TEMPORARY, job, newest=newest)
        spills = next((index for index, name in enumerate(names) if find_scratch_target(name) is not None), None)
        if spills is not None:
            prefix = "/".join(names[: spills + 1])
            times = [time for key, time in self._newest.items() if key == prefix or key.startswith(prefix + "/")]
            newest = None if None in times else max(time for time in times if time is not None)
            return _Directory(PathKind.TEMPORARY, job, newest=newest, everything=True)
        return _Directory(PathKind.OTHER, job, newest=newest)

    def _judge_file(self, file: FoundFile) -> None:
        directory = self._describe(file.directory_key)
        snapshot = self._found.snapshots.get(file.directory_key)
        kind = directory.kind
        released = self._released.get(file.key)
        if snapshot is not None and file.name == METADATA_FILE:
            decision = self._decisions[snapshot.key]
            judge = self._delete if decision.delete else self._keep
            judge(file, PathKind.METADATA, "; ".join(decision.reasons))
        elif file.key in self._live:
            first, number = self._live[file.key]
            more = f" and {number - 1} more" if number > 1 else ""
            self._keep(file, kind, f"referenced by {first}{more}")
        elif file.directory_key in self._unresolved:
            snapshot_path, link = self._unresolved[file.directory_key]
            self._keep(file, kind, f"{snapshot_path} references {link}, a symbolic link that may mean any file here")
        elif self._is_leftover(file) and file.root.key not in self._stopped:
            self._delete(file, kind, "an interrupted application of a plan was deleting it")
        elif flink_names.is_temporary_name(file.name):
            if self._is_young(file.entry.modified):
                self._keep(file, PathKind.TEMPORARY, YOUNG)
            else:
                self._delete(file, PathKind.TEMPORARY, "an unfinished file that was never completed")
        elif released is None and not directory.everything and not _is_known_name(file.name, kind):
            self._mark_unknown(file, "not a name that Flink writes")
        elif snapshot is not None:
            self._judge_own_file(file, snapshot, kind)
        elif kind is PathKind.OTHER and released is None:
            self._mark_unknown(file, "not in a directory in which Flink keeps state")
        elif doubt := self._find_doubt(file, directory, is_released=released is not None):
            self._keep(file, kind, doubt)
        elif released is not None:
            self._delete(file, kind, f"only snapshots that go reference it: {released[0]}")
        else:
            self._delete(file, kind, _ORPHAN_REASONS[kind])

    def _judge_own_file(self, file: FoundFile, snapshot: FoundSnapshot, kind: PathKind) -> None:
        if not self._decisions[snapshot.key].delete:
            self._keep(file, kind, f"in the directory of a snapshot that stays, {snapshot.path}")
        # Flink has written references to a directory in which the file is not (FLINK-39964).
        elif copied := self._find_copied(file, is_released=True):
            self._keep(file, kind, copied)
        else:
            self._delete(file, kind, f"belongs to {snapshot.path}, which goes")

    def _find_doubt(self, file: FoundFile, directory: _Directory, *, is_released: bool) -> str | None:
        """The reason for which an unreferenced file stays, or None."""
        kind = directory.kind
        is_own_group = kind in _GROUPS
        if self._is_young(file.entry.modified) or (is_own_group and self._is_young(directory.newest)):
            return YOUNG
        if kind is PathKind.TEMPORARY and directory.everything:
            return None
        if file.root.key in self._stopped:
            return "an unreadable or foreign reference may need it (see stopped)"
        copied = self._find_copied(file, is_released=is_released)
        if copied is not None:
            return copied
        if kind is PathKind.TASK_OWNED and self._has_log:
            return "a write-ahead sink stores names of task-owned files inside its state"
        job = directory.job
        if directory.is_database and not self._has_ended(job):
            return "a running job may have it open in its database"
        if directory.is_merged and job is not None and job.may_run and self._is_young(directory.newest):
            return "a running task may still append to merged files of this directory"
        if is_released:
            return None
        if job is None or not job.may_run:
            return None
        if directory.number is not None:
            newest_id = job.newest_id
            return None if directory.number < newest_id else "its checkpoint may be in progress"
        completed = job.newest_completed
        margin = min(_UPLOAD_TIME, self._policy.min_age)
        modified = file.entry.modified
        if completed is None or modified is None or modified >= completed - margin:
            return "its job may be running, and no later checkpoint was completed"
        return None

    def _find_copied(self, file: FoundFile, *, is_released: bool) -> str | None:
        """The reason for which a file stays whose random name a kept snapshot references elsewhere, or None."""
        others = self._names.get(file.name, set()) - {file.key}
        if is_released:
            # Its references are known, unless it is the only copy of a file that is missing elsewhere.
            others = {key for key in others if key not in self._found.files}
        return f"a snapshot references a file of this name at {min(others)}; this may be its copy" if others else None

    def _has_ended(self, job: Job | None) -> bool:
        """Whether a job has changed nothing for so long that no lower `min_age` counts."""
        newest = None if job is None else job.newest_change
        return job is not None and not job.may_run and newest is not None and self._now - newest >= MIN_AGE

    def _is_leftover(self, file: FoundFile) -> bool:
        in_kept_snapshot = file.directory_key in self._found.snapshots
        return not in_kept_snapshot and (file.key, file.entry.size, file.entry.modified) in self._leftovers

    def _is_young(self, modified: datetime | None) -> bool:
        # A time in the future is no age at all, and neither is no time.
        return (
            modified is None or self._now - modified < max(self._policy.min_age, timedelta(0)) or modified > self._now
        )

    def _judge_directories(self) -> list[PlannedPath]:
        blocked: set[str] = set()
        for key in self._passed:
            _block(key, blocked)
        for file in (*self._found.links, *(each for each in self._found.files.values() if each.key not in self._going)):
            _block(file.directory_key, blocked)
        filled = {key.rpartition("/")[0] for key in self._going}
        planned = []
        for directory in sorted(self._found.directories.values(), key=lambda each: (-each.key.count("/"), each.path)):
            key = directory.key
            if key in blocked:
                continue
            is_candidate = self._candidates is None or directory.path in self._candidates
            if not is_candidate or not self._may_remove(directory, is_filled=key in filled):
                _block(key, blocked)
                continue
            reason = "empty once its files are deleted" if key in filled else "empty"
            filled.add(key.rpartition("/")[0])
            planned.append(PlannedPath(directory.path, 0, PathKind.DIRECTORY, reason))
        return self._drop_files_of_kept_jobs(planned, blocked)

    def _may_remove(self, directory: FoundFile, *, is_filled: bool) -> bool:
        names = split_key(directory.key)
        snapshot = self._found.snapshots.get(directory.key)
        if snapshot is not None:
            return True
        is_staging = directory.key in self._pending or any(find_scratch_target(name) is not None for name in names)
        is_staging |= directory.key in self._lone_manifests
        if not is_staging and not flink_names.is_flink_directory(names):
            return False
        if not is_filled and self._is_young(directory.entry.modified):
            return False
        if names[-1] in self._merged:
            return False
        job = self._index.job_of(directory.key)
        if job is None or not job.may_run:
            return True
        match = CHECKPOINT_DIRECTORY.fullmatch(names[-1])
        return match is not None and int(match[1]) < job.newest_id

    def _drop_files_of_kept_jobs(self, planned: list[PlannedPath], blocked: Collection[str]) -> list[PlannedPath]:
        """Leave out `shared` and the like below a job that stays: Flink makes them for each job, empty or not."""
        keys = {directory.path: directory.key for directory in self._found.directories.values()}
        result = []
        for path in planned:
            key = keys[path.path]
            area = flink_names.find_area(split_key(key))
            if area is not None:
                base = "/".join(split_key(key)[: area[1]])
                if base in blocked or base not in self._found.directories:
                    continue
            result.append(path)
        return result


_GROUPS = frozenset({PathKind.INCOMPLETE_CHECKPOINT, PathKind.INCOMPLETE_SAVEPOINT, PathKind.TEMPORARY})
_ORPHAN_REASONS = {
    PathKind.SHARED: "no snapshot references it",
    PathKind.TASK_OWNED: "no snapshot references it",
    PathKind.CHANGELOG: "no snapshot references it",
    PathKind.INCOMPLETE_CHECKPOINT: "its checkpoint was never completed",
    PathKind.INCOMPLETE_SAVEPOINT: "its savepoint was never completed",
    PathKind.MANIFEST: "the snapshot that it describes is gone",
    PathKind.TEMPORARY: "left over by a write that did not finish",
}


def _find_turn(path: PlannedPath) -> tuple[bool, float, str]:
    """Sort key of the order of deletion."""
    is_metadata = path.kind is PathKind.METADATA
    return not is_metadata, path.modified.timestamp() if is_metadata and path.modified else 0.0, path.path


def _list_references(snapshots: Iterable[FoundSnapshot | Neighbour]) -> Iterator[tuple[str, SnapshotReferences]]:
    for snapshot in sorted(snapshots, key=lambda each: each.path):
        if isinstance(snapshot.reading, SnapshotReferences):
            yield snapshot.path, snapshot.reading


def _count(references: Mapping[str, SnapshotReferences]) -> dict[str, tuple[str, int]]:
    """The first snapshot that references each file, and the number of all that do."""
    counts: defaultdict[str, int] = defaultdict(int)
    first: dict[str, str] = {}
    for path, each in references.items():
        for key in each.files:
            counts[key] += 1
            first.setdefault(key, path)
    return {key: (path, counts[key]) for key, path in first.items()}


def _block(key: str, blocked: set[str]) -> None:
    while key and key not in blocked:
        blocked.add(key)
        key = key.rpartition("/")[0]


def _is_known_name(name: str, kind: PathKind) -> bool:
    return is_state_file(name) or (kind is PathKind.TEMPORARY and is_own_file(name))
