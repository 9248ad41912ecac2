"""Inputs and limits of the application of a retention plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from state_pipelines.operations.retention.audit_log import AuditLog, Leftovers
    from state_pipelines.operations.retention.plan import PlannedPath, RetentionPlan
    from state_pipelines.operations.retention.snapshot_watch import SnapshotWatch
    from state_pipelines.operations.retention.survey import Root
    from state_pipelines.snapshot import Snapshot


@dataclass(frozen=True)
class ApplyLimits:
    """Bounds of one run; a run that reaches one stops, and the next run with the same fingerprint continues.

    Attributes:
        paths: paths that are deleted at most.
        bytes: bytes that are deleted at most.
        paths_per_second: rate of deletion.
        batch: paths that are checked and deleted together; between batches the roots are searched for new snapshots.
    """

    paths: int | None = None
    bytes: int | None = None
    paths_per_second: float = 500.0
    batch: int = 500

    def __post_init__(self) -> None:
        """Refuse limits with which nothing could ever be deleted."""
        for name in ("paths", "bytes", "paths_per_second", "batch"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"the limit {name} is {value}", hint="Give a number above zero")


@dataclass
class ApplyContext:
    """Inputs of the application of a plan.

    Attributes:
        roots: the roots.
        make_plan: makes the plan of now from the leftovers of interrupted runs, the paths that it confirms and the
            time between two passes.
        watch: watches the snapshots; its first look is older than the plan.
        key: the one spelling of a path.
        log: the audit log.
        open_snapshot: opens a snapshot for the audit.
        limits: of a run.
        quarantine: move to the quarantine instead of deleting.
        report: called with the number of handled paths and of all paths after every batch.
        clock: the time.
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
