"""Application of a retention plan: deletes what the plan of a fingerprint names, and nothing else.

A plan is made again, and must have the same fingerprint. Every path is checked once more right before it is deleted,
every deletion is written to the audit log before and after it, and a run that was killed continues where it stopped.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from state_pipelines import snapshot
from state_pipelines.errors import FormatError, IncompatibleError, UsageError, Where
from state_pipelines.operations.retention.apply_context import ApplyContext, ApplyLimits
from state_pipelines.operations.retention.audit_log import (
    QUARANTINED,
    AuditLog,
    AuditRecord,
    AuditRun,
    Outcome,
    find_leftovers,
    is_fingerprint,
    open_audit_log,
)
from state_pipelines.operations.retention.deletion_batches import DeletionBatches, to_record
from state_pipelines.operations.retention.kept_snapshots import require_restorable
from state_pipelines.operations.retention.path_keys import PathKeys
from state_pipelines.operations.retention.plan import PathKind, PlannedPath
from state_pipelines.operations.retention.planner import open_policy, plan_retention
from state_pipelines.operations.retention.quarantine import require_own_quarantine
from state_pipelines.operations.retention.references import ReferenceReader
from state_pipelines.operations.retention.snapshot_watch import SnapshotWatch
from state_pipelines.operations.retention.survey import open_roots
from state_pipelines.storage import Location, PathMapping, parse_path_mapping, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from state_pipelines.operations.retention.audit_log import Leftovers
    from state_pipelines.operations.retention.plan import RetentionPlan
    from state_pipelines.operations.retention.policy import RetentionPolicy
    from state_pipelines.operations.retention.survey import Root
    from state_pipelines.snapshot import Snapshot

_SHOWN_CHANGES = 10


@dataclass(frozen=True)
class ApplyResult:
    """The outcome of one run.

    Attributes:
        fingerprint: of the plan.
        done: number and bytes of the paths that are gone now, by kind.
        kept: paths that were not deleted, each with the reason as detail.
        failed: paths that the storage did not let go, each with the reason as detail.
        remaining: paths of the plan that this run has not reached.
        stopped: why the run ended before the plan was done; empty when it is done.
        quarantined: whether the files were moved to the quarantine.
        log: directory of the run in the audit log; empty when there was nothing to do.
        seconds: duration.
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
        """Number of paths that are gone now."""
        return sum(paths for paths, _ in self.done.values())

    @property
    def bytes(self) -> int:
        """Bytes that are gone now."""
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
    """Delete what the plan of a fingerprint names, after planning again; or continue an interrupted run of it.

    Before anything is deleted, the newest snapshot of each job that stays is audited.

    Args:
        roots: as of `plan_retention`, and so are `policy`, `min_age`, `path_mapping` and `storage_options`: with other
            ones the fingerprint is another.
        policy: see `roots`.
        fingerprint: of the plan that somebody has agreed to.
        planned: the paths that this plan deletes. With them the plan of now confirms it (see `plan_retention`), so that
            snapshots that are written meanwhile do not change the fingerprint.
        min_age: see `roots`.
        grace: time between two passes before anything is deleted; zero where the plan that was agreed to was the first.
        path_mapping: see `roots`.
        storage_options: see `roots`.
        audit_log: directory of the audit log; by default `_retention/log` below the first root.
        quarantine: move the files to the quarantine of their root instead.
        limits: bounds of this run.
        open_snapshot: opens a snapshot for the audit, with declarations for instance.
        report: called with the number of handled paths and of all paths after every batch.
        now: the clock.

    Raises:
        PlanChangedError: the plan of now has another fingerprint.
        IncompatibleError: the newest snapshot of a job that would stay is damaged, or was removed meanwhile.
        UsageError: this is no fingerprint, the policy is wrong, the audit log is where files are deleted, or the audit
            log or the quarantine of a root is a symbolic link.
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
    """Applies plans below some roots."""

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
        """Begin a run of a plan; None when there is nothing to do."""
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
        records = [to_record(each, fingerprint, now, Outcome.INTENDED) for each in plan.delete]
        new = self.log.start_run(
            fingerprint, records, time=now, roots=list(plan.roots), quarantine=self.quarantine, bytes=plan.bytes
        )
        for run in runs:
            # The new plan holds what an interrupted run has left.
            if not run.finished and run.read_header().get("roots") == list(plan.roots):
                run.finish(now, superseded_by=fingerprint)
        return new


def _to_planned(record: AuditRecord) -> PlannedPath:
    if record.kind == QUARANTINED:
        raise FormatError(
            "a run of the audit log that deletes files of a root has a file of the quarantine",
            where=Where(file=record.path),
            hint="Move the directory of this run out of the audit log and plan again",
        )
    return PlannedPath(record.path, record.bytes, PathKind(record.kind), record.reason, record.modified)


class PlanChangedError(IncompatibleError):
    """The plan of now has another fingerprint than the one that was agreed to.

    Attributes:
        fingerprint: of the plan of now.
    """

    fingerprint: str = ""


def _refuse(plan: RetentionPlan, fingerprint: str, planned: Sequence[PlannedPath] | None) -> PlanChangedError:
    if planned is None:
        changes = f"now {len(plan.delete):,} paths with {plan.bytes:,} bytes would go"
    else:
        changes = "; ".join(describe_changes(planned, plan)) or "the roots or the policy differ"
    error = PlanChangedError(
        f"the plan of now is not {fingerprint}: {changes}",
        where=Where(file=", ".join(plan.roots)),
        hint=f"Nothing was deleted; look at the plan of now, whose fingerprint is {plan.fingerprint}",
    )
    error.fingerprint = plan.fingerprint
    return error


def describe_changes(planned: Sequence[PlannedPath], plan: RetentionPlan) -> list[str]:
    """Describe the paths of an earlier plan that a plan does not confirm, with the reasons; some of many."""
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
