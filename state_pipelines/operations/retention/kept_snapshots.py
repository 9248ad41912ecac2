"""Audit of the snapshots that a plan keeps, before it is applied."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from state_pipelines.errors import IncompatibleError, NotFoundError, SnapshotGoneError, Where
from state_pipelines.operations.auditing import Depth, Property, Severity, audit_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.operations.retention.plan import RetentionPlan, SnapshotVerdict
    from state_pipelines.snapshot import Snapshot

_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def find_newest_kept(plan: RetentionPlan) -> list[SnapshotVerdict]:
    """The newest snapshot of each job that stays and can be restored as far as its files show, by path."""
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
        IncompatibleError: one of them is damaged, so that what the plan deletes may still be needed; or its job has
            removed it meanwhile.
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
        # Files that cannot be seen count as missing: what the plan deletes may be all that is left.
        errors = [
            each for each in report.findings if each.severity is Severity.ERROR or each.property is Property.FILES
        ]
        if errors:
            raise IncompatibleError(
                f"the newest snapshot of job {kept.job} that would stay is damaged: {errors[0]}",
                where=Where(file=kept.path),
                hint="Nothing was deleted; restore its files or move its directory out of the roots, and plan again",
            )
