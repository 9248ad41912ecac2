"""Decisions about snapshots, files and directories: which stay, and which go unless there is a doubt.

* `Area`, `find_area`: names that Flink and this package write below the roots of checkpoints and savepoints. Source:
  `AbstractFsCheckpointStorageAccess`, `FsCheckpointStreamFactory`, `FileMergingSnapshotManager`,
  `FsStateChangelogStorage`, and the recoverable writers of Flink's file systems.
* `decide`: the `Decision` about each snapshot; `FileJudge`: about each file.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING

from state_pipelines.metadata.checkpoint import SnapshotKind
from state_pipelines.operations.retention.policy import FOREVER, MIN_AGE, PERIODS, KeepRule, PathKind, PlannedPath
from state_pipelines.operations.retention.references import SnapshotReferences, Unreadable
from state_pipelines.storage import METADATA_FILE
from state_pipelines.storage.resolution import (
    CHECKPOINT_DIRECTORY,
    JOB_DIRECTORY,
    MANIFEST_FILE,
    PENDING_METADATA,
    SAVEPOINT_DIRECTORY,
    UUID,
    find_scratch_target,
    is_own_file,
    is_state_file,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from state_pipelines.operations.retention.own_directory import Leftovers
    from state_pipelines.operations.retention.policy import PolicyRule, RetentionPolicy
    from state_pipelines.operations.retention.survey import FoundFile, FoundSnapshot, Neighbour, Survey

_TEMPORARY = re.compile(
    # Unfinished files of, in this order: Flink's local and Hadoop writers, its S3 writers, an old release of Flink, and
    # `SnapshotWriter` of this package.
    rf"\.(?:_metadata|{UUID})\.inprogress\.{UUID}"
    rf"|_(?:_metadata|{UUID})_tmp_{UUID}"
    r"|\._metadata_temp"
    rf"|{PENDING_METADATA.pattern}"
)
# Directories of merged files: `job_<job>_op_<operator>_<subtask>_<parallelism>` below `shared`, named by
# `SubtaskKey.getManagedDirName`, and `job_<job>_tm_<task manager>` below `taskowned`, named by the id of the
# `FileMergingSnapshotManager`. In both names, `_` replaces characters that this expression does not match.
_MERGED = re.compile(r"job_[0-9a-f]{32}_(?:op|tm)_[\w-]+", re.ASCII)
# ForSt keeps its open database below `shared`, in the directory `db` of a directory with such a name
# (`ForStResourceContainer`, `ForStPathContainer`).
_DATABASE = re.compile(r"op_[\w-]+__\d+_\d+__attempt_\d+", re.ASCII)

SHARED, TASK_OWNED, CHANGELOG = "shared", "taskowned", "dstl"


class Area(Enum):
    """Kind of a directory in which Flink keeps files that do not belong to a single snapshot."""

    SHARED = SHARED
    TASK_OWNED = TASK_OWNED
    CHANGELOG = CHANGELOG
    DATABASE = "db"


def is_temporary_name(name: str) -> bool:
    """Return whether a file has a name under which writers keep an unfinished file until they rename it."""
    return _TEMPORARY.fullmatch(name) is not None


def is_merged_directory(name: str) -> bool:
    """Return whether a name is one that file merging gives to its directories (`FileMergingSnapshotManager`)."""
    return _MERGED.fullmatch(name) is not None


def find_area(parents: tuple[str, ...]) -> tuple[Area, int] | None:
    """Find the `Area` in which a file is, such as `shared`, by the names of the directories above it, outermost first.

    Returns:
        (the area, index of its directory in `parents`); None if the file is in no area.
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
    """Return whether Flink creates a directory, according to `parents`: the names on its path, its own name last."""
    name = parents[-1]
    return (
        name in (SHARED, TASK_OWNED)
        or CHECKPOINT_DIRECTORY.fullmatch(name) is not None
        or JOB_DIRECTORY.fullmatch(name) is not None
        or SAVEPOINT_DIRECTORY.fullmatch(name) is not None
        or find_area(parents) is not None
    )


# Snapshots are ordered by id unless their times contradict that by more than this: copying changes times a little.
_COPY_SECONDS = 60


@dataclass
class JobFiles:
    """A Flink job and its snapshots, as the files below the roots show them.

    Attributes:
        name: job id. If that is not known: key of the directory that holds the snapshots, or the first digits of the
            id, from the name of a savepoint.
        checkpoints: completed checkpoints of the job, oldest first.
        snapshots: completed checkpoints and savepoints of the job, oldest first.
        newest_change: time of the newest file in its directories, such as `chk-N` and `shared`; None if there is none.
        may_run: the job may be running: a file has changed within the minimal age, or has no time.
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
    """The Flink jobs to which the snapshots and directories of a survey belong.

    Args:
        found: the survey.
        now: time of the survey.
        min_age: a job with files younger than this may be running.
    """

    def __init__(self, found: Survey, now: datetime, min_age: timedelta) -> None:
        self._names: dict[str, str] = {}
        self.jobs: dict[str, JobFiles] = {}
        self.snapshot_jobs: dict[str, JobFiles] = {}
        self._collect_names(found)
        self._collect_snapshots(found)
        self._collect_activity(found, now, min_age)

    def job_of(self, directory_key: str) -> JobFiles | None:
        """Return the job to which a directory such as `chk-N` or `shared` belongs; None for other directories."""
        name = self._names.get(directory_key)
        return None if name is None else self._job(name)

    def _job(self, name: str) -> JobFiles:
        return self.jobs.setdefault(name, JobFiles(name))

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
    """Return the checkpoint id of a snapshot; if it cannot be read, the number in the directory name, or -1."""
    if isinstance(snapshot.reading, SnapshotReferences):
        return snapshot.reading.checkpoint_id
    match = CHECKPOINT_DIRECTORY.fullmatch(snapshot.key.rpartition("/")[2])
    return -1 if match is None else int(match[1])


def sort_by_age(snapshots: list[FoundSnapshot]) -> list[FoundSnapshot]:
    """Sort the snapshots of one job, oldest first; snapshots without a time come first.

    They are sorted by checkpoint id, since the ids of a job only grow. If times contradict the ids, they are sorted by
    time: a job with the same job id was restored from an older snapshot, and has used checkpoint ids again.
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
    """Split a key into the names on its path, outermost first."""
    return tuple(key.split("/"))


_BUCKETS = {"hourly": "%Y-%m-%d %Hh", "daily": "%Y-%m-%d", "weekly": "%G week %V", "monthly": "%Y-%m", "yearly": "%Y"}


NOT_IN_EARLIER_PLAN = "not in the earlier plan that this one confirms; a later plan may delete it"
"""Reason for keeping a path that could be deleted now, but is not in the earlier plan that is being confirmed."""


YOUNG_SNAPSHOT = "younger than the minimal age"
"""Reason for keeping a snapshot."""


@dataclass(frozen=True)
class Decision:
    """The decision about one snapshot.

    Attributes:
        delete: whether the snapshot is deleted.
        reasons: why it is deleted or kept, the strongest reason first.
    """

    delete: bool
    reasons: tuple[str, ...]


def decide(
    found: Survey,
    index: JobIndex,
    policy: RetentionPolicy,
    stopped: Collection[str],
    candidates: Collection[str] | None = None,
) -> dict[str, Decision]:
    """Decide for every snapshot whether it is deleted or kept.

    Args:
        found: the survey.
        index: jobs of the survey.
        policy: the policy.
        stopped: keys of roots whose files unknown references may need (`RetentionPlan.stopped`).
        candidates: the only paths that may be deleted, those of an earlier plan to confirm; None for all paths.

    Returns:
        The decisions, by key of the snapshot.
    """
    restorable = {key: snapshot.restorable for key, snapshot in found.snapshots.items()}
    decisions: dict[str, Decision] = {}
    for job in index.jobs.values():
        protected = _protect(job, restorable, policy, found.time, stopped)
        kept = _apply_rules(job, restorable, policy, protected, found)
        for snapshot in job.snapshots:
            reasons = (*protected.get(snapshot.key, ()), *kept[snapshot.key].kept)
            if not reasons and candidates is not None and f"{snapshot.path}/{METADATA_FILE}" not in candidates:
                reasons = (NOT_IN_EARLIER_PLAN,)
            decisions[snapshot.key] = Decision(not reasons, tuple(reasons or kept[snapshot.key].dropped))
    return decisions


def kind_of(snapshot: FoundSnapshot) -> SnapshotKind:
    """Return the kind of a snapshot from its `_metadata` or, if that does not say it, from its directory name."""
    reading = snapshot.reading
    if isinstance(reading, SnapshotReferences) and reading.kind is not SnapshotKind.UNKNOWN:
        return reading.kind
    name = snapshot.key.rpartition("/")[2]
    if CHECKPOINT_DIRECTORY.fullmatch(name):
        return SnapshotKind.CHECKPOINT
    return SnapshotKind.SAVEPOINT if SAVEPOINT_DIRECTORY.fullmatch(name) else SnapshotKind.UNKNOWN


def _protect(
    job: JobFiles,
    restorable: Mapping[str, bool | None],
    policy: RetentionPolicy,
    now: datetime,
    stopped: Collection[str],
) -> dict[str, list[str]]:
    """Collect the reasons that keep snapshots of a job whatever the policy says, by key of the snapshot."""
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for snapshot in job.snapshots:
        if isinstance(snapshot.reading, Unreadable):
            reasons[snapshot.key].append(f"its {METADATA_FILE} cannot be read: {snapshot.reading.reason}")
        if snapshot.pin is not None:
            reason = f": {snapshot.pin.reason}" if snapshot.pin.reason else ""
            reasons[snapshot.key].append(f"pinned{reason}")
    for newest in _newest_restorable(job, restorable):
        reasons[newest.key].append("newest restorable snapshot of its job")
    if job.may_run:
        for snapshot in job.checkpoints[-policy.num_retained :]:
            reasons[snapshot.key].append("among the newest completed checkpoints of a job that may be running")
    for snapshot in job.snapshots:
        times = [file.entry.modified for file in snapshot.files]
        known = [time for time in times if time is not None]
        if len(known) < len(times):
            reasons[snapshot.key].append("its age is not known")
        elif now - max(known) < policy.min_age:
            reasons[snapshot.key].append(YOUNG_SNAPSHOT)
        if snapshot.root.key in stopped:
            reasons[snapshot.key].append("other snapshots may reference its files (see stopped)")
    return reasons


def _newest_restorable(job: JobFiles, restorable: Mapping[str, bool | None]) -> list[FoundSnapshot]:
    """Return the newest restorable snapshot of a job; and a newer one, if it is not known whether that is restorable.

    Return the same for checkpoints alone. A savepoint may belong to another job, because its name has only the first
    digits of the job id.
    """
    found: dict[str, FoundSnapshot] = {}
    for snapshots in (job.snapshots, job.checkpoints):
        for wanted in ((True,), (True, None)):
            newest = next((each for each in reversed(snapshots) if restorable[each.key] in wanted), None)
            if newest is not None:
                found[newest.key] = newest
    return list(found.values())


@dataclass(frozen=True)
class _Outcome:
    kept: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def _apply_rules(
    job: JobFiles,
    restorable: Mapping[str, bool | None],
    policy: RetentionPolicy,
    protected: Mapping[str, Collection[str]],
    found: Survey,
) -> dict[str, _Outcome]:
    groups: defaultdict[str, list[FoundSnapshot]] = defaultdict(list)
    outcomes: dict[str, _Outcome] = {}
    rules = policy.ordered_rules
    for snapshot in job.snapshots:
        name = _find_rule(snapshot, job, rules)
        if name is None:
            text = "no rule of the policy is for it" if rules else "no policy: only orphans are deleted"
            outcomes[snapshot.key] = _Outcome(kept=(text,))
        else:
            groups[name].append(snapshot)
    for name, snapshots in groups.items():
        rule = rules[name]
        reasons = _keep(rule, snapshots, found.time)
        # Apply the rule a second time without damaged snapshots. Otherwise damaged ones would count in place of
        # restorable ones, for instance among the last three.
        whole = [snapshot for snapshot in snapshots if restorable[snapshot.key] is not False]
        for key, texts in _keep(rule, whole, found.time).items():
            reasons[key] = list(dict.fromkeys((*reasons.get(key, ()), *texts)))
        over_budget = _exceeds_budget(rule, snapshots, reasons, protected, found)
        words = ", ".join(f"{option} {value}" for option, value in rule.keep.to_json().items())
        for snapshot in snapshots:
            if snapshot.key in over_budget:
                text = f"{name}: over max_size {rule.keep.max_size:,} bytes of job {job.name}"
                outcomes[snapshot.key] = _Outcome(dropped=(text,))
            elif snapshot.key in reasons:
                outcomes[snapshot.key] = _Outcome(kept=tuple(f"{name}: {text}" for text in reasons[snapshot.key]))
            else:
                text = f"{name} ({words}) keeps other snapshots of job {job.name}"
                outcomes[snapshot.key] = _Outcome(dropped=(text,))
    return outcomes


def _find_rule(snapshot: FoundSnapshot, job: JobFiles, rules: Mapping[str, PolicyRule]) -> str | None:
    reading = snapshot.reading
    formats = reading.formats if isinstance(reading, SnapshotReferences) else frozenset()
    kind = kind_of(snapshot)
    for name, rule in rules.items():
        if rule.match.hold(kind=kind, formats=formats, job=job.name, path=snapshot.path, tags=snapshot.tags):
            return name
    return None


def _keep(rule: PolicyRule, snapshots: Sequence[FoundSnapshot], now: datetime) -> dict[str, list[str]]:
    """Collect the reasons for which a rule keeps snapshots of one job, by key of the snapshot.

    Args:
        rule: the rule.
        snapshots: snapshots of the job to which the rule applies, oldest first.
        now: time of the survey.
    """
    keep = rule.keep
    newest_first = [snapshot for snapshot in reversed(snapshots) if snapshot.modified is not None]
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    if keep.keeps_by_budget_only:
        for snapshot in newest_first:
            reasons[snapshot.key].append("max_size")
    if keep.last is not None:
        for snapshot in newest_first if keep.last == FOREVER else newest_first[: keep.last]:
            reasons[snapshot.key].append("all" if keep.last == FOREVER else f"last {keep.last}")
    for snapshot in newest_first:
        if keep.within is not None and snapshot.modified is not None and now - snapshot.modified < keep.within:
            reasons[snapshot.key].append(f"within {keep.within}")
        reasons_by_tag = [f"tag {tag}" for tag in keep.tags if tag in snapshot.tags]
        if reasons_by_tag:
            reasons[snapshot.key] += reasons_by_tag
    for period in PERIODS:
        _keep_by_period(keep, period, newest_first, reasons)
    return dict(reasons)


def _keep_by_period(
    keep: KeepRule, period: str, newest_first: Sequence[FoundSnapshot], reasons: defaultdict[str, list[str]]
) -> None:
    number = getattr(keep, period)
    last = None
    for snapshot in newest_first if number else ():
        assert snapshot.modified is not None
        bucket = snapshot.modified.strftime(_BUCKETS[period])
        if bucket == last:
            continue
        last = bucket
        reasons[snapshot.key].append(f"{period} {bucket}")
        number -= 1
        if number == 0:
            break


def _exceeds_budget(
    rule: PolicyRule,
    snapshots: Sequence[FoundSnapshot],
    reasons: Mapping[str, Collection[str]],
    protected: Mapping[str, Collection[str]],
    found: Survey,
) -> set[str]:
    """Return the keys of the snapshots that a rule does not keep because of its `max_size`.

    Protected snapshots always stay, and count first. Of the others the newest stay as long as all files fit.

    Args:
        rule: the rule.
        snapshots: snapshots of one job to which the rule applies, oldest first.
        reasons: reasons for which the rule keeps snapshots, by key.
        protected: reasons that no policy overrules, by key.
        found: the survey.
    """
    budget = rule.keep.max_size
    if budget is None:
        return set()
    counted: set[str] = set()
    total = 0
    staying = [snapshot for snapshot in snapshots if protected.get(snapshot.key)]
    for snapshot in staying:
        total += _add_files(snapshot, counted, found)
    dropped: set[str] = set()
    for snapshot in reversed(snapshots):
        if protected.get(snapshot.key) or snapshot.key not in reasons:
            continue
        if not dropped:
            total += _add_files(snapshot, counted, found)
        if dropped or total > budget:
            dropped.add(snapshot.key)
    return dropped


def _add_files(snapshot: FoundSnapshot, counted: set[str], found: Survey) -> int:
    """Return the bytes of the files of a snapshot that are not in `counted` yet, and add their keys to it."""
    keys = {file.key for file in snapshot.files}
    if isinstance(snapshot.reading, SnapshotReferences):
        keys |= snapshot.reading.files.keys()
    new = {key for key in keys - counted if key in found.files}
    counted |= new
    return sum(found.files[key].entry.size for key in new)


YOUNG = "younger than the minimal age, or of unknown age"
"""Reason for keeping a file that no kept snapshot references."""

# Tasks upload files before the `_metadata` of their checkpoint is written. So a file that was uploaded within this time
# before the newest checkpoint was completed may belong to the next checkpoint. The time is the default of
# `execution.checkpointing.timeout`.
_UPLOAD_TIME = timedelta(minutes=10)

_AREA_KINDS = {
    Area.SHARED: PathKind.SHARED,
    Area.TASK_OWNED: PathKind.TASK_OWNED,
    Area.CHANGELOG: PathKind.CHANGELOG,
    Area.DATABASE: PathKind.SHARED,
}


@dataclass(frozen=True)
class _Directory:
    """Properties that the files of one directory have in common.

    Attributes:
        kind: kind of the files that have a name that Flink writes; OTHER if Flink writes no files to the directory.
        job: the job to whose checkpoints the files belong, or None.
        number: checkpoint id of a `chk-N` directory without `_metadata`, or None.
        newest: time of the newest file; None if a file has no time, or there are no files.
        everything: files may be deleted whatever their names.
        is_merged: each file holds state of many checkpoints, and tasks append to it (`FileMergingSnapshotManager`).
        is_database: the files belong to a ForSt database, which a running job needs though no checkpoint references
            them.
    """

    kind: PathKind
    job: JobFiles | None
    number: int | None = None
    newest: datetime | None = None
    everything: bool = False
    is_merged: bool = False
    is_database: bool = False


class FileJudge:
    """Decides about every file and directory of a survey: it is deleted, kept or unknown.

    Args:
        found: the survey.
        index: jobs of the survey.
        decisions: the decisions about snapshots.
        policy: the policy.
        stopped: keys of roots whose files unknown references may need (`RetentionPlan.stopped`).
        leftovers: (key, size, time) of files that an interrupted application of a plan was deleting.
        candidates: the only paths that may be deleted, those of an earlier plan to confirm; None for all paths.
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
        # Delete all `_metadata` files first, the oldest first, so that none of them references a deleted file.
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
            # A file `_metadata.pending` of this package marks an unfinished snapshot: its directory is temporary. A
            # manifest without `_metadata` does not: Flink may have claimed the snapshot, and checkpoints may reference
            # the files beside the manifest.
            if file.name == METADATA_FILE + ".pending":
                self._pending.add(directory)

        self._lone_manifests = self._find_lone_manifests()

    def _find_lone_manifests(self) -> set[str]:
        """Find the directories that hold nothing but a manifest of this package.

        They remain of snapshots that Flink has claimed. When Flink discards such a snapshot, it deletes the files that
        it knows, and then the directory only if that is empty (`CompletedCheckpoint.CompletedCheckpointDiscardObject`).
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
        area = find_area(names)
        if area is not None:
            return _Directory(
                _AREA_KINDS[area[0]],
                job,
                newest=newest,
                is_merged=is_merged_directory(names[-1]),
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
        elif is_temporary_name(file.name):
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
        # A kept snapshot may need this file, but reference it by a wrong path, in another directory that has no such
        # file: Flink has written such references (FLINK-39964).
        elif copied := self._find_copied(file, is_released=True):
            self._keep(file, kind, copied)
        else:
            self._delete(file, kind, f"belongs to {snapshot.path}, which goes")

    def _find_doubt(self, file: FoundFile, directory: _Directory, *, is_released: bool) -> str | None:
        """Return the reason for keeping a file that no kept snapshot references, or None.

        Args:
            file: the file.
            directory: properties of its directory.
            is_released: a snapshot that is deleted references the file.
        """
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
        """Return the reason for keeping a file whose random name a kept snapshot references elsewhere, or None.

        The file may be a copy of the referenced one.

        Args:
            file: the file.
            is_released: the file belongs to a snapshot that is deleted, or such a snapshot references it.
        """
        others = self._names.get(file.name, set()) - {file.key}
        if is_released:
            # A copy is needed only if the referenced file itself does not exist.
            others = {key for key in others if key not in self._found.files}
        return f"a snapshot references a file of this name at {min(others)}; this may be its copy" if others else None

    def _has_ended(self, job: JobFiles | None) -> bool:
        """Return whether a job has written no file for at least `MIN_AGE`, even if the policy has a lower `min_age`."""
        newest = None if job is None else job.newest_change
        return job is not None and not job.may_run and newest is not None and self._now - newest >= MIN_AGE

    def _is_leftover(self, file: FoundFile) -> bool:
        in_kept_snapshot = file.directory_key in self._found.snapshots
        return not in_kept_snapshot and (file.key, file.entry.size, file.entry.modified) in self._leftovers

    def _is_young(self, modified: datetime | None) -> bool:
        # The age of a file without a time, or with a time in the future, is not known: it counts as young.
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
        if not is_staging and not is_flink_directory(names):
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
        """Return the planned directories, without directories such as `shared` of jobs whose own directory stays.

        Flink creates such directories for each job, so that a job may need one that is empty.

        Args:
            planned: directories that could be removed.
            blocked: keys of directories that stay.
        """
        keys = {directory.path: directory.key for directory in self._found.directories.values()}
        result = []
        for path in planned:
            key = keys[path.path]
            area = find_area(split_key(key))
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
    """Sort key for the order of deletion: `_metadata` files by time, then all other files by path."""
    is_metadata = path.kind is PathKind.METADATA
    return not is_metadata, path.modified.timestamp() if is_metadata and path.modified else 0.0, path.path


def _list_references(snapshots: Iterable[FoundSnapshot | Neighbour]) -> Iterator[tuple[str, SnapshotReferences]]:
    for snapshot in sorted(snapshots, key=lambda each: each.path):
        if isinstance(snapshot.reading, SnapshotReferences):
            yield snapshot.path, snapshot.reading


def _count(references: Mapping[str, SnapshotReferences]) -> dict[str, tuple[str, int]]:
    """Return, for each referenced file, (the first snapshot that references it, number of such snapshots)."""
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
