"""Settings for runs of retention: manual or scheduled, limits, quarantine, audit log."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import dagster as dg
from pydantic import ConfigDict, Field

from state_pipelines.dagster.job_settings import parsed_by
from state_pipelines.operations.retention import ApplyLimits
from state_pipelines.operations.retention.policy import parse_duration, parse_size

if TYPE_CHECKING:
    from datetime import timedelta

_Duration = Annotated[str, parsed_by(parse_duration)]
_Size = Annotated[str | int, parsed_by(parse_size)]


class PlanApplication(StrEnum):
    """Trigger of the application of a retention plan."""

    MANUAL = "manual"
    SCHEDULED = "scheduled"


class RetentionSettings(dg.Model):
    """Settings of the schedule of retention plans and of their application."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    apply: PlanApplication = Field(
        default=PlanApplication.MANUAL,
        description="manual: a plan is applied only by a run with its fingerprint. scheduled: a plan is applied "
        "automatically if a second plan, after the grace period, has the same fingerprint.",
    )
    roots: tuple[str, ...] = Field(
        default=(),
        description="Directories to plan together, instead of the roots of the job: all whose snapshots may share "
        "files, such as those of jobs that were restored with CLAIM.",
    )
    grace: _Duration = Field(
        default="1h", description="Time between the two plans with `apply: scheduled`, such as 6h."
    )
    max_paths: int | None = Field(default=None, gt=0, description="Maximal number of paths that one run deletes.")
    max_bytes: _Size | None = Field(
        default=None, description="Maximal size of the files that one run deletes, such as 1TiB."
    )
    paths_per_second: float = Field(default=500, gt=0, description="Maximal number of paths deleted per second.")
    quarantine: _Duration | None = Field(
        default=None,
        description="Time in quarantine before files are deleted, such as 7d; by default they are deleted at once.",
    )
    audit_log: str | None = Field(
        default=None, description="Directory of the audit log; by default _retention/log below the first root."
    )
    cron: str = Field(default="0 3 * * *", description="Cron expression of the nightly plan, in UTC.")

    @property
    def grace_period(self) -> timedelta:
        """`grace` as a duration."""
        return parse_duration(self.grace)

    @property
    def quarantine_period(self) -> timedelta | None:
        """`quarantine` as a duration."""
        return None if self.quarantine is None else parse_duration(self.quarantine)

    @property
    def limits(self) -> ApplyLimits:
        """The limits of one run."""
        size = None if self.max_bytes is None else parse_size(self.max_bytes)
        return ApplyLimits(paths=self.max_paths, bytes=size, paths_per_second=self.paths_per_second)
