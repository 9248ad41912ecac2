"""Application of a retention plan: deletes what the plan of a fingerprint names, and nothing else.

A plan is made again, and must have the same fingerprint. Every path is checked once more right before it is deleted,
every deletion is written to the audit log before and after it, and a run that was killed continues where it stopped.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from state_pipelines import snapshot
from state_pipelines.errors import (
    FormatError,
    IncompatibleError,
    MissingFileError,
    NotFoundError,
    SnapshotGoneError,
    StateError,
    StorageError,
    UsageError,
    Where,
)
from state_pipelines.operations.auditing import Depth, Property, Severity, audit_snapshot
from state_pipelines.operations.retention.own_directory import (
    QUARANTINED,
    AuditLog,
    AuditRecord,
    AuditRun,
    DeletionOutcome,
    find_leftovers,
    is_fingerprint,
    open_audit_log,
)
from state_pipelines.operations.retention.planner import open_policy, plan_retention
from state_pipelines.operations.retention.policy import PathKeys, PathKind, PlannedPath
from state_pipelines.operations.retention.quarantine import quarantine_location, require_own_quarantine
from state_pipelines.operations.retention.references import ReferenceReader
from state_pipelines.operations.retention.survey import SnapshotWatch, open_roots
from state_pipelines.storage import FileEntry, Location, PathMapping, exists, join, parse_path_mapping, resolve
from state_pipelines.storage.snapshot_writer import (
    delete_files,
    is_same_time,
    move_files,
    remove_empty_directory,
    stat_files,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from state_pipelines.operations.retention.own_directory import Leftovers
    from state_pipelines.operations.retention.policy import RetentionPlan, RetentionPolicy, SnapshotVerdict
    from state_pipelines.operations.retention.survey import Root
    from state_pipelines.snapshot import Snapshot


@dataclass(frozen=True)
class ApplyLimits:
    """Limits of one run of `apply_plan`. A run that reaches a limit stops; the next one with its fingerprint continues.

    Attributes:
        paths: maximum number of paths that are deleted.
        bytes: maximum number of bytes that are deleted.
        paths_per_second: maximum rate of deletion.
        batch: number of paths that are checked and deleted together. Between batches the roots are searched for new
            snapshots.
    """

    paths: int | None = None
    bytes: int | None = None
    paths_per_second: float = 500.0
    batch: int = 500

    def __post_init__(self) -> None:
        """Refuse limits of zero or less, with which nothing could be deleted."""
        for name in ("paths", "bytes", "paths_per_second", "batch"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"the limit {name} is {value}", hint="Give a number above zero")


@dataclass
class ApplyContext:
    """Inputs of the application of a retention plan.

    Attributes:
        roots: the roots.
        make_plan: function that plans again. Its arguments are the files that interrupted runs have left, the paths of
            an earlier plan to confirm (or None), and the time between two passes.
        watch: finds snapshots that appear or vanish. Create it before the plan is made, so that it misses none.
        key: function that returns the key of a path (`PathKeys.key`).
        log: the audit log.
        open_snapshot: opens a snapshot for the audit.
        limits: limits of a run.
        quarantine: move files to the quarantine instead of deleting them.
        report: called after every batch, with the number of handled paths and the number of all paths.
        clock: returns the current time.
    """

    roots: Sequence[Root]
    make_plan: Callable[[Leftovers, Sequence[PlannedPath] | None, timedelta], RetentionPlan]
    watch: SnapshotWatch
    key: Callable[[str], str]
    log: AuditLog
    open_snapshot: Callable[[str], Snapshot]
    limits: ApplyLimits = field(default_factory=ApplyLimits)
    quarantine: bool = False
    report: Callable[[int, int], None] | None = None
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)


_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def find_newest_kept(plan: RetentionPlan) -> list[SnapshotVerdict]:
    """Find, for each job, the newest snapshot that the plan keeps and that is restorable; sorted by path."""
    newest: dict[str, SnapshotVerdict] = {}
    for each in sorted(plan.snapshots, key=lambda each: (each.modified or _LONG_AGO, each.path)):
        if not each.delete and each.restorable:
            newest[each.job] = each
    return sorted(newest.values(), key=lambda each: each.path)


def require_restorable(
    plan: RetentionPlan, open_snapshot: Callable[[str], Snapshot], depth: Depth = Depth.SAMPLE
) -> None:
    """Audit the newest snapshot of each job that a plan keeps.

    Raises:
        IncompatibleError: one of these snapshots is damaged, so that older ones that the plan deletes may be needed; or
            its job has removed it meanwhile.
    """
    for kept in find_newest_kept(plan):
        try:
            report = audit_snapshot(open_snapshot(kept.path), depth)
        except (NotFoundError, SnapshotGoneError) as error:
            raise IncompatibleError(
                f"the newest snapshot of job {kept.job} that would stay was removed while it was checked",
                where=Where(file=kept.path),
                hint="This call has deleted nothing; the job has newer snapshots by now, plan again",
            ) from error
        # A file that cannot be checked counts as missing. Otherwise the plan might delete the last restorable snapshot.
        errors = [
            each for each in report.findings if each.severity is Severity.ERROR or each.property is Property.FILES
        ]
        if errors:
            raise IncompatibleError(
                f"the newest snapshot of job {kept.job} that would stay is damaged: {errors[0]}",
                where=Where(file=kept.path),
                hint="Nothing was deleted; restore its files or move its directory out of the roots, and plan again",
            )


class DeletionBatches:
    """Deletes the paths of one run, batch by batch, and collects the outcomes.

    Attributes:
        numbers: number of paths that were deleted, quarantined or found missing, by kind.
        sizes: bytes of these files, by kind.
        kept: paths that are not deleted, because they have changed or are needed.
        failed: paths that could not be checked or deleted.
        stopped: why the run ends before all paths are handled; empty if it does not.
    """

    def __init__(self, context: ApplyContext, run: AuditRun, since: datetime, total: int) -> None:
        """Prepare a run over `total` paths."""
        self._context = context
        self._run = run
        self._since = since
        self._total = total
        self._began = time.monotonic()
        self._handled = 0
        # Files that must stay because snapshots newer than the plan reference them: by key of the file, the path of one
        # such snapshot.
        self._needed: dict[str, str] = {}
        self.numbers: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()
        self.kept: list[AuditRecord] = []
        self.failed: list[AuditRecord] = []
        self.stopped = ""

    @property
    def paths(self) -> int:
        """Number of paths that the run has deleted or quarantined, or found missing."""
        return sum(self.numbers.values())

    @property
    def bytes(self) -> int:
        """Bytes of the files that the run has deleted or quarantined, or found missing."""
        return sum(self.sizes.values())

    @property
    def remaining(self) -> int:
        """Number of paths that the run has not handled yet."""
        return self._total - self._handled

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return not self.remaining and not self.failed

    def drop_unplanned(self, left: Iterable[AuditRecord], planned: set[str]) -> None:
        """Log the outcome of paths that an interrupted run was going to delete, but that the current plan does not.

        Args:
            left: records of the paths that the interrupted run has left.
            planned: paths that the current plan deletes.
        """
        now = self._context.clock()
        dropped = [record for record in left if record.path not in planned]
        states = self._stat(dropped)
        records = [
            record.with_outcome(DeletionOutcome.MISSING, now)
            if state is None
            else record.with_outcome(DeletionOutcome.KEPT, now, "the current plan keeps it")
            for record, state in zip(dropped, states, strict=True)
        ]
        self.kept += [record for record in records if record.outcome is DeletionOutcome.KEPT]
        self._run.append(records)

    def delete(self, todo: list[PlannedPath]) -> None:
        """Delete paths in their order until all are handled or something stops the run."""
        context = self._context
        while todo and not self.stopped:
            batch = self._take(todo)
            if not batch:
                return
            try:
                needed, vanished = context.watch.look()
            except IncompatibleError as error:
                self.stopped = str(error)
                return
            self._needed.update(needed)
            if vanished and any(each.kind is PathKind.METADATA for each in todo):
                # Flink or a user has deleted a snapshot. If the policy kept that snapshot, it now keeps an older one in
                # its place, perhaps one that the plan deletes: plan again.
                plan = context.make_plan(
                    frozenset((each.path, each.bytes, each.modified) for each in todo), todo, timedelta(0)
                )
                allowed = {(each.path, each.bytes) for each in plan.delete}
                self._keep(
                    [each for each in todo if (each.path, each.bytes) not in allowed], "the current plan keeps it"
                )
                todo = [each for each in todo if (each.path, each.bytes) in allowed]
                continue
            todo = todo[len(batch) :]
            self._delete_batch(batch)
            if context.report is not None:
                context.report(self._handled, self._total)
            self._wait()

    def _take(self, todo: Sequence[PlannedPath]) -> list[PlannedPath]:
        """Return the paths of the next batch, as far as the limits allow; if they allow none, set `stopped`."""
        limits = self._context.limits
        batch: list[PlannedPath] = []
        paths, size = self.paths, self.bytes
        for each in todo[: limits.batch]:
            paths, size = paths + 1, size + each.bytes
            reached = ""
            if limits.paths is not None and paths > limits.paths:
                reached = f"the limit of {limits.paths:,} paths per run is reached"
            # A file that is larger than the limit is deleted nevertheless if it is the first one of its run.
            elif limits.bytes is not None and size > limits.bytes and paths > 1:
                reached = f"the limit of {limits.bytes:,} bytes per run is reached"
            if reached:
                self.stopped = "" if batch else reached
                break
            batch.append(each)
        return batch

    def _delete_batch(self, batch: Sequence[PlannedPath]) -> None:
        fine = self._check([each for each in batch if each.kind is not PathKind.DIRECTORY])
        # Delete `_metadata` before other files: a directory without it is no longer taken for a snapshot, whereas a
        # directory with it would look like a snapshot with missing files.
        metadata = [each for each in fine if each.kind is PathKind.METADATA]
        if not self._delete_files(metadata):
            self.stopped = "a _metadata file could not be deleted, and what it references must stay"
        if self.stopped:
            return
        self._delete_files([each for each in fine if each.kind is not PathKind.METADATA])
        for each in batch:
            if each.kind is PathKind.DIRECTORY:
                self._remove_directory(each)

    def _check(self, files: Sequence[PlannedPath]) -> list[PlannedPath]:
        """Return the files that are as planned and that no new snapshot needs; log the others.

        Set `stopped`, and return nothing, if a `_metadata` file must stay.
        """
        states = self._stat(files)
        fine, missing = [], []
        failed: list[tuple[PlannedPath, str]] = []
        for each, state in zip(files, states, strict=True):
            owner = self._needed.get(self._context.key(each.path))
            if state is None:
                missing.append(each)
                continue
            if owner is not None:
                reason = f"the new snapshot {owner} needs it"
            elif isinstance(state, StorageError | MissingFileError):
                failed.append((each, str(state)))
                continue
            elif isinstance(state, StateError):
                reason = str(state)
            elif not _is_as_planned(state, each):
                reason = f"it has changed: {state.size:,} bytes, written {state.modified}"
            else:
                fine.append(each)
                continue
            self._keep([each], reason)
            if each.kind is PathKind.METADATA:
                self.stopped = "a _metadata file is not as planned, and what it references must stay"
        self._log(missing, DeletionOutcome.MISSING)
        self._fail(failed)
        if any(each.kind is PathKind.METADATA for each, _ in failed):
            self.stopped = "a _metadata file could not be checked, and what it references must stay"
        return fine if not self.stopped else []

    def _delete_files(self, files: Sequence[PlannedPath]) -> bool:
        """Delete files, or move them to the quarantine; return whether all of them are gone."""
        context = self._context
        located = [self._locate(each.path) for each in files]
        locations = [location for _, location in located]
        if context.quarantine:
            name, since = self._run.name, self._since
            errors = move_files(
                [
                    (location, quarantine_location(root.location, location, name, since), root.location)
                    for root, location in located
                ]
            )
        else:
            errors = delete_files(locations, [root.location for root, _ in located])
        results = list(zip(files, locations, errors, strict=True))
        context.watch.forget(location for _, location, error in results if error is None)
        gone = [each for each, _, error in results if error is None]
        self._log(gone, DeletionOutcome.QUARANTINED if context.quarantine else DeletionOutcome.DELETED)
        self._fail([(each, str(error)) for each, _, error in results if error is not None])
        return len(gone) == len(files)

    def _remove_directory(self, directory: PlannedPath) -> None:
        root, location = self._locate(directory.path)
        if remove_empty_directory(location, root.location):
            self._log([directory], DeletionOutcome.DELETED)
        elif not exists(location):
            self._log([directory], DeletionOutcome.MISSING)
        elif any(each.path.startswith(f"{directory.path}/") for each in self.failed):
            self._fail([(directory, "files of it could not be deleted")])
        else:
            self._keep([directory], "the directory is not empty, or the storage removes only whole directories")

    def _keep(self, files: Sequence[PlannedPath], reason: str) -> None:
        now = self._context.clock()
        records = [to_record(each, self._run.name, now, DeletionOutcome.KEPT, reason) for each in files]
        self.kept += records
        self._handled += len(records)
        self._run.append(records)

    def _fail(self, files: Sequence[tuple[PlannedPath, str]]) -> None:
        """Log paths that could not be checked or deleted, each with the reason; the next run tries them again."""
        now = self._context.clock()
        records = [to_record(each, self._run.name, now, DeletionOutcome.FAILED, reason) for each, reason in files]
        self.failed += records
        self._handled += len(records)
        self._run.append(records)

    def _log(self, files: Sequence[PlannedPath], outcome: DeletionOutcome) -> None:
        now = self._context.clock()
        for each in files:
            self.numbers[each.kind.value] += 1
            self.sizes[each.kind.value] += each.bytes
        self._handled += len(files)
        self._run.append([to_record(each, self._run.name, now, outcome) for each in files])

    def _wait(self) -> None:
        """Wait until the rate is below the limit."""
        ahead = self.paths / self._context.limits.paths_per_second - (time.monotonic() - self._began)
        if ahead > 0:
            time.sleep(ahead)

    def _stat(self, files: Sequence[PlannedPath | AuditRecord]) -> list[FileEntry | StateError | None]:
        located = [self._locate(each.path) for each in files]
        return stat_files([location for _, location in located], [root.location for root, _ in located])

    def _locate(self, path: str) -> tuple[Root, Location]:
        # Only one root matches, because no root of a plan is inside another one.
        root = next(root for root in self._context.roots if path.startswith(root.path + "/"))
        return root, join(root.location, path[len(root.path) + 1 :])


def to_record(
    each: PlannedPath, fingerprint: str, now: datetime, outcome: DeletionOutcome, detail: str = ""
) -> AuditRecord:
    """Make the audit record of a path of a plan."""
    return AuditRecord(
        each.path, each.bytes, each.kind.value, each.reason, each.modified, fingerprint, outcome, now, detail
    )


def _is_as_planned(state: FileEntry, planned: PlannedPath) -> bool:
    if state.size != planned.bytes:
        return False
    # If the storage gives no times, the plan has none either; then compare only the sizes.
    return planned.modified is None or is_same_time(state.modified, planned.modified)


_SHOWN_CHANGES = 10


@dataclass(frozen=True)
class ApplyResult:
    """The outcome of one run.

    Attributes:
        fingerprint: fingerprint of the plan.
        done: by kind: (number of paths that were deleted, quarantined or found missing, bytes of these).
        kept: paths that were not deleted, because they have changed or are needed; the detail says why.
        failed: paths that could not be checked or deleted; the detail says why.
        remaining: number of paths of the plan that this run has not reached.
        stopped: why the run ended before the plan was done; empty if it was done.
        quarantined: whether the files were moved to the quarantine.
        log: directory of the run in the audit log; empty if there was nothing to do.
        seconds: wall time.
    """

    fingerprint: str
    done: dict[str, tuple[int, int]]
    kept: tuple[AuditRecord, ...]
    failed: tuple[AuditRecord, ...]
    remaining: int
    stopped: str
    quarantined: bool
    log: str
    seconds: float

    @property
    def paths(self) -> int:
        """Number of paths that the run has deleted or quarantined, or found missing."""
        return sum(paths for paths, _ in self.done.values())

    @property
    def bytes(self) -> int:
        """Bytes of the files that the run has deleted or quarantined, or found missing."""
        return sum(size for _, size in self.done.values())

    @property
    def finished(self) -> bool:
        """Whether nothing of the plan is left to do."""
        return not self.remaining and not self.failed

    def to_json(self) -> dict[str, Any]:
        """The values, for JSON."""
        return {
            "fingerprint": self.fingerprint,
            "finished": self.finished,
            "paths": self.paths,
            "bytes": self.bytes,
            "by_kind": {kind: {"paths": paths, "bytes": size} for kind, (paths, size) in self.done.items()},
            "kept": [record.to_json() for record in self.kept],
            "failed": [record.to_json() for record in self.failed],
            "remaining": self.remaining,
            "stopped": self.stopped,
            "quarantined": self.quarantined,
            "log": self.log,
            "seconds": self.seconds,
        }


def apply_plan(
    roots: str | Location | Sequence[str | Location],
    policy: RetentionPolicy | Mapping[str, Any] | str | Path | None = None,
    *,
    fingerprint: str,
    planned: Sequence[PlannedPath] | None = None,
    min_age: timedelta | None = None,
    grace: timedelta = timedelta(0),
    path_mapping: PathMapping | Sequence[str] = (),
    storage_options: Mapping[str, Any] | None = None,
    audit_log: str | Location | None = None,
    quarantine: bool = False,
    limits: ApplyLimits | None = None,
    open_snapshot: Callable[[str], Snapshot] | None = None,
    report: Callable[[int, int], None] | None = None,
    now: Callable[[], datetime] | None = None,
) -> ApplyResult:
    """Apply the plan with a fingerprint: plan again, and delete its paths if the fingerprint is still the same.

    If an earlier run of the plan was interrupted, continue that. Before anything is deleted, the newest snapshot of
    each job that stays is audited.

    Args:
        roots: as for `plan_retention`, like `policy`, `min_age`, `path_mapping` and `storage_options`. They must be
            those of the plan, because the fingerprint depends on them.
        policy: see `roots`.
        fingerprint: fingerprint of the plan that somebody has agreed to.
        planned: the paths that this plan deletes. If given, the new plan confirms them (see `plan_retention`), so that
            snapshots that were written meanwhile do not change the fingerprint.
        min_age: see `roots`.
        grace: time between two passes of the new plan; zero if the plan that was agreed to counts as the first pass.
        path_mapping: see `roots`.
        storage_options: see `roots`.
        audit_log: directory of the audit log; by default `_retention/log` below the first root.
        quarantine: move the files to the quarantine of their root instead of deleting them.
        limits: limits of this run.
        open_snapshot: opens a snapshot for the audit, for instance with declarations.
        report: called after every batch, with the number of handled paths and the number of all paths.
        now: returns the current time.

    Raises:
        PlanChangedError: the new plan has another fingerprint.
        IncompatibleError: the newest snapshot of a job that would stay is damaged, or was removed meanwhile.
        UsageError: `fingerprint` is not a fingerprint, the policy is wrong, the audit log is in a directory whose files
            are deleted, or the audit log or the quarantine of a root is a symbolic link.
        StateError: a root cannot be read, or the audit log cannot be written.
    """
    if not is_fingerprint(fingerprint):
        raise UsageError(
            f"{fingerprint!r} is no fingerprint: one has 16 digits from 0 to 9 and a to f",
            hint="Plan first; the last lines of a plan show its fingerprint",
        )
    clock = now or (lambda: datetime.now(UTC))
    rules = open_policy(policy)
    mapping = path_mapping if isinstance(path_mapping, PathMapping) else parse_path_mapping(path_mapping)
    keys = PathKeys(rules.equal_schemes, rules.equal_authorities)
    listed = [roots] if isinstance(roots, str | Location) else list(roots)
    opened, _ = open_roots(listed, keys, storage_options)
    mapping = mapping.allow(each.location.url for each in opened)
    if isinstance(audit_log, str):
        audit_log = resolve(audit_log, **(storage_options or {}))

    def make_plan(leftovers: Leftovers, confirm: Sequence[PlannedPath] | None, grace: timedelta) -> RetentionPlan:
        return plan_retention(
            listed,
            rules,
            min_age=min_age,
            grace=grace,
            confirm=confirm,
            path_mapping=mapping,
            storage_options=storage_options,
            audit_log=audit_log,
            leftovers=leftovers,
            now=clock,
        )

    return Application(
        roots=opened,
        make_plan=make_plan,
        watch=SnapshotWatch(opened, ReferenceReader(keys, mapping)),
        key=keys.key,
        log=open_audit_log(opened[0].location, audit_log),
        open_snapshot=open_snapshot
        or partial(snapshot.open_snapshot, path_mapping=mapping, storage_options=storage_options),
        limits=limits or ApplyLimits(),
        quarantine=quarantine,
        report=report,
        clock=clock,
    ).run(fingerprint, planned, grace)


class Application(ApplyContext):
    """Applies retention plans of some roots."""

    def run(self, fingerprint: str, planned: Sequence[PlannedPath] | None, grace: timedelta) -> ApplyResult:
        """Plan again and apply, or continue an interrupted run of the same fingerprint; see `apply_plan`."""
        began = time.monotonic()
        since = self.clock()
        if self.quarantine:
            for root in self.roots:
                require_own_quarantine(root.location)
        run = next(
            (each for each in reversed(self._find_runs()) if each.name == fingerprint and not each.finished), None
        )
        if run is not None:
            unfinished = [_to_planned(record) for record in run.unfinished_records().values()]
            plan = self.make_plan(find_leftovers(self.log), unfinished, timedelta(0))
            require_restorable(plan, self.open_snapshot)
        else:
            plan = self.make_plan(find_leftovers(self.log), planned, grace)
            run = self._start(plan, fingerprint, planned)
        if run is None:
            return ApplyResult(fingerprint, {}, (), (), 0, "", self.quarantine, "", time.monotonic() - began)
        left = run.unfinished_records()
        todo = [each for each in plan.delete if each.path in left]
        batches = DeletionBatches(self, run, since, len(todo))
        batches.drop_unplanned(left.values(), {each.path for each in todo})
        batches.delete(todo)
        if batches.finished:
            run.finish(self.clock(), paths=batches.paths, bytes=batches.bytes)
        return ApplyResult(
            fingerprint,
            {kind: (number, batches.sizes[kind]) for kind, number in sorted(batches.numbers.items())},
            tuple(batches.kept),
            tuple(batches.failed),
            batches.remaining,
            batches.stopped,
            self.quarantine,
            str(run.directory),
            time.monotonic() - began,
        )

    def _find_runs(self) -> list[AuditRun]:
        return [run for run in self.log.find_runs() if is_fingerprint(run.name)]

    def _start(self, plan: RetentionPlan, fingerprint: str, planned: Sequence[PlannedPath] | None) -> AuditRun | None:
        """Begin a new run in the audit log. Return None if there is nothing to delete, or the plan was applied before.

        Args:
            plan: the current plan.
            fingerprint: fingerprint of the plan that was agreed to.
            planned: paths that this plan deletes, if known.

        Raises:
            PlanChangedError: the current plan has another fingerprint.
            IncompatibleError: the newest snapshot of a job that would stay is damaged.
        """
        runs = self._find_runs()
        if plan.fingerprint != fingerprint:
            if any(run.name == fingerprint for run in runs):
                return None
            raise _refuse(plan, fingerprint, planned)
        if not plan.delete:
            return None
        require_restorable(plan, self.open_snapshot)
        _require_outside(self.log, plan, self.roots, self.key)
        now = self.clock()
        records = [to_record(each, fingerprint, now, DeletionOutcome.INTENDED) for each in plan.delete]
        new = self.log.start_run(
            fingerprint, records, time=now, roots=list(plan.roots), quarantine=self.quarantine, bytes=plan.bytes
        )
        for run in runs:
            # Mark interrupted runs as finished: the new plan includes all paths that they have left.
            if not run.finished and run.read_header().get("roots") == list(plan.roots):
                run.finish(now, superseded_by=fingerprint)
        return new


def _to_planned(record: AuditRecord) -> PlannedPath:
    if record.kind == QUARANTINED:
        raise FormatError(
            "the audit log has a deletion from the quarantine in a run that deletes from the roots",
            where=Where(file=record.path),
            hint="Move the directory of this run out of the audit log and plan again",
        )
    return PlannedPath(record.path, record.bytes, PathKind(record.kind), record.reason, record.modified)


class PlanChangedError(IncompatibleError):
    """The current plan has another fingerprint than the plan that was agreed to.

    Attributes:
        fingerprint: fingerprint of the current plan.
    """

    fingerprint: str = ""


def _refuse(plan: RetentionPlan, fingerprint: str, planned: Sequence[PlannedPath] | None) -> PlanChangedError:
    if planned is None:
        changes = f"now {len(plan.delete):,} paths with {plan.bytes:,} bytes would go"
    else:
        changes = "; ".join(describe_changes(planned, plan)) or "the roots or the policy differ"
    error = PlanChangedError(
        f"the current plan is not {fingerprint}: {changes}",
        where=Where(file=", ".join(plan.roots)),
        hint=f"Nothing was deleted; look at the current plan, whose fingerprint is {plan.fingerprint}",
    )
    error.fingerprint = plan.fingerprint
    return error


def describe_changes(planned: Sequence[PlannedPath], plan: RetentionPlan) -> list[str]:
    """Describe paths of an earlier plan that the current plan does not confirm.

    Args:
        planned: paths that the earlier plan deletes.
        plan: the current plan.

    Returns:
        Texts with the path and the reason, at most `_SHOWN_CHANGES`; then one with the number of further paths.
    """
    going = {each.path: each for each in plan.delete}
    reasons = {each.path: each.reason for each in (*plan.keep, *plan.unknown)}
    stays = [f"{each.path} would stay now: {reasons[each.path]}" for each in planned if each.path in reasons]
    changed = [
        f"{each.path} has changed"
        for each in planned
        if each.path in going and (each.bytes, each.modified) != (going[each.path].bytes, going[each.path].modified)
    ]
    texts = stays + changed
    more = len(texts) - _SHOWN_CHANGES
    return [*texts[:_SHOWN_CHANGES], f"and {more:,} more"] if more > 0 else texts


def _require_outside(log: AuditLog, plan: RetentionPlan, roots: Sequence[Root], key: Callable[[str], str]) -> None:
    """Refuse an audit log in a directory whose files the plan deletes."""
    prefix = key(log.directory.url) + "/"
    tops = [key(root.path) + "/" for root in roots]
    for directory in {key(each.path.rpartition("/")[0]) + "/" for each in plan.delete}:
        if prefix.startswith(directory) and not any(top.startswith(directory) for top in tops):
            raise UsageError(
                "the audit log is in a directory whose files are to be deleted",
                where=Where(file=str(log.directory)),
                hint="Give another directory for the audit log",
            )
