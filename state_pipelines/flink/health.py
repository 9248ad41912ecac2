"""Health of a running job: the limits in the description of a job, and one check for each of them.

The command `status` and the asset `job_health` show the same checks. The limits are entries of `thresholds`:

    thresholds:
      max_minutes_without_checkpoint: 30
      max_failed_checkpoints: 0.1
      max_checkpoint_share: 0.5
      max_hours_without_savepoint: 24
      max_state_size: 200GiB
      hours_to_max_state_size: 48
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError
from state_pipelines.flink.cluster import CheckpointStatus
from state_pipelines.operations.retention.policy import parse_size
from state_pipelines.snapshot.representation import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from state_pipelines.flink.cluster import Checkpoint

JOB_RUNS = "job_runs"
RECENT_CHECKPOINT = "recent_checkpoint"
CHECKPOINTS_SUCCEED = "checkpoints_succeed"
CHECKPOINTS_ARE_FAST = "checkpoints_are_fast"
RECENT_SAVEPOINT = "recent_savepoint"
STATE_HAS_ROOM = "state_has_room"

_INTERVALS = 3
_OTHERS = ("max_imbalance", "max_hours_without_inventory")
"""Entries of `thresholds` that are not limits of `HealthLimits`: they are about snapshots, and other checks read
them."""


class Level(StrEnum):
    """Severity of what is found about a job."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class HealthLimits:
    """Limits of a healthy job; the check of a limit fails if it is exceeded.

    Attributes:
        max_minutes_without_checkpoint: age of the newest checkpoint or savepoint; None for three intervals and the
            time-out of the job's checkpoints.
        max_failed_checkpoints: share of the checkpoints of Flink's history that failed.
        max_checkpoint_share: median duration of checkpoints as a share of their interval.
        max_hours_without_savepoint: age of the newest savepoint; None for no check.
        max_state_size: bytes of the state; None for no check.
        hours_to_max_state_size: hours from now within which the state must not be predicted to reach `max_state_size`.
    """

    max_minutes_without_checkpoint: float | None = None
    max_failed_checkpoints: float = 0.1
    max_checkpoint_share: float = 1.0
    max_hours_without_savepoint: float | None = None
    max_state_size: int | None = None
    hours_to_max_state_size: float = 24.0


def parse_limits(content: object) -> HealthLimits:
    """Read the limits from the entry `thresholds` of a job.

    Raises:
        UsageError: a limit is unknown or no positive number.
    """
    if content is None:
        return HealthLimits()
    known = [*HealthLimits.__dataclass_fields__, *_OTHERS]
    if not isinstance(content, Mapping):
        raise UsageError("`thresholds` is not a mapping", hint=f"Known are {', '.join(known)}")
    unknown = sorted(str(name) for name in content if name not in known)
    if unknown:
        raise UsageError(f"`thresholds` has unknown limits {', '.join(unknown)}", hint=f"Known are {', '.join(known)}")
    given = {name: value for name, value in content.items() if name not in _OTHERS and value is not None}
    size = given.pop("max_state_size", None)
    numbers = {name: _read_number(name, value) for name, value in given.items()}
    return HealthLimits(**numbers, max_state_size=None if size is None else parse_size(size, "max_state_size"))


def _read_number(name: str, value: object) -> float:
    least = 0 if name == "max_failed_checkpoints" else 1e-9
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf"):
        raise UsageError(f"{name} of `thresholds` is {value!r}, not a positive number")
    return float(value)


@dataclass(frozen=True)
class HealthCheck:
    """Result of the check whether a job keeps a limit.

    Attributes:
        name: name of the check.
        passed: whether the limit is kept; None if that is not known.
        level: severity if the limit is not kept.
        expected: the limit.
        observed: the observed value; None if there is none.
        unit: unit of `expected` and `observed`.
        what: what is wrong, or why that is not known; empty where the limit is kept.
        remedy: what to do.
    """

    name: str
    passed: bool | None
    level: Level
    expected: float | None
    observed: float | None
    unit: str
    what: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class StateGrowth:
    """Growth of the state of a task, or of an operator, between two snapshots.

    Attributes:
        name: name of the task; for an operator its uid, name or id.
        before: bytes in the older snapshot; None if it has no such task or operator.
        after: bytes in the newer snapshot; None if it has no such task or operator.
        hours: hours between the two snapshots.
    """

    name: str
    before: int | None
    after: int | None
    hours: float

    @property
    def bytes_per_hour(self) -> float | None:
        """Growth in bytes per hour; None if no time is between the snapshots, or only one has the task or operator."""
        if self.before is None or self.after is None or self.hours <= 0:
            return None
        return (self.after - self.before) / self.hours

    def predict_hours(self, threshold: int) -> float | None:
        """Return the hours from the newer snapshot until the state has `threshold` bytes; None if it does not grow."""
        rate = self.bytes_per_hour
        if rate is None or rate <= 0 or self.after is None:
            return None
        return max(0.0, (threshold - self.after) / rate)


def describe_duration(millis: int) -> str:
    """Format a duration for people: `250 ms`, `1.5 s`, `0:05:00`."""
    if millis < 1000:
        return f"{millis} ms"
    return f"{millis / 1000:.1f} s" if millis < 60_000 else str(timedelta(seconds=round(millis / 1000)))


def describe_age(age: timedelta) -> str:
    """Format an age for people, in whole seconds."""
    return describe_duration(int(age.total_seconds()) * 1000)


def select_alike(done: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Select the snapshots of the kind of the newest (checkpoint or savepoint): only their sizes are comparable."""
    return [each for each in done if each.is_savepoint == done[0].is_savepoint] if done else []


def measure_total(done: Sequence[Checkpoint]) -> StateGrowth | None:
    """Measure the growth of all state from the oldest to the newest completed checkpoint of one kind.

    Returns None if fewer than two have a size.
    """
    sized = [each for each in select_alike(done) if each.state_size is not None]
    if len(sized) < 2:
        return None
    hours = (sized[0].triggered - sized[-1].triggered) / timedelta(hours=1)
    return StateGrowth("all tasks", sized[-1].state_size, sized[0].state_size, hours)


def check_age(
    limits: HealthLimits,
    *,
    now: datetime,
    interval_ms: int,
    timeout_ms: int | None,
    newest: datetime | None,
    started: datetime | None,
    remedy: str,
) -> HealthCheck:
    """Check the age of the newest checkpoint; if there is none, the age of the job.

    Args:
        limits: limits of the job.
        now: the present time.
        interval_ms: interval of checkpoints.
        timeout_ms: time-out of checkpoints.
        newest: when the newest completed checkpoint or savepoint was triggered.
        started: when the job started.
        remedy: what to do if it is too old.
    """
    minutes = limits.max_minutes_without_checkpoint
    default = timedelta(milliseconds=_INTERVALS * interval_ms + (timeout_ms or 0))
    limit = default if minutes is None else timedelta(minutes=minutes)
    since = newest if newest is not None else started
    expected = limit / timedelta(minutes=1)
    if since is None:
        return HealthCheck(
            RECENT_CHECKPOINT, None, Level.ERROR, expected, None, "minutes", "the cluster does not say when it started"
        )
    age = max(now - since, timedelta())
    observed = age / timedelta(minutes=1)
    if age <= limit:
        return HealthCheck(RECENT_CHECKPOINT, True, Level.ERROR, expected, observed, "minutes")
    what = (
        f"the newest checkpoint is {describe_age(age)} old"
        if newest is not None
        else f"no checkpoint was completed in {describe_age(age)}, since the job started"
    )
    what = f"{what}, with an interval of {describe_duration(interval_ms)}"
    return HealthCheck(RECENT_CHECKPOINT, False, Level.ERROR, expected, observed, "minutes", what, remedy)


def check_failures(limits: HealthLimits, history: Sequence[Checkpoint], remedy: str) -> HealthCheck:
    """Check the share of failed checkpoints of the history; savepoints do not count.

    Args:
        limits: limits of the job.
        history: checkpoints and savepoints, newest first.
        remedy: what to do about the newest failure.
    """
    decided = [each for each in history if each.status is not CheckpointStatus.IN_PROGRESS and not each.is_savepoint]
    limit = limits.max_failed_checkpoints
    if not decided:
        why = "no checkpoint has been completed or has failed"
        return HealthCheck(CHECKPOINTS_SUCCEED, None, Level.WARNING, limit, None, "share", why)
    failed = sum(each.status is CheckpointStatus.FAILED for each in decided)
    share = failed / len(decided)
    if share <= limit:
        return HealthCheck(CHECKPOINTS_SUCCEED, True, Level.WARNING, limit, share, "share")
    what = f"{failed} of the last {len(decided)} checkpoints have failed, more than {limit:.0%}"
    return HealthCheck(CHECKPOINTS_SUCCEED, False, Level.WARNING, limit, share, "share", what, remedy)


def check_duration(limits: HealthLimits, median_ms: int | None, interval_ms: int) -> HealthCheck:
    """Check the median duration of checkpoints against their interval."""
    limit = limits.max_checkpoint_share
    if median_ms is None or interval_ms <= 0:
        why = "no checkpoint has been completed"
        return HealthCheck(CHECKPOINTS_ARE_FAST, None, Level.WARNING, limit, None, "of the interval", why)
    share = median_ms / interval_ms
    if share <= limit:
        return HealthCheck(CHECKPOINTS_ARE_FAST, True, Level.WARNING, limit, share, "of the interval")
    longer = "longer than" if limit == 1 else f"more than {limit:.0%} of"
    what = f"checkpoints take {describe_duration(median_ms)}, {longer} the interval of {describe_duration(interval_ms)}"
    remedy = "Raise execution.checkpointing.interval, or make them faster: see the slowest subtasks."
    return HealthCheck(CHECKPOINTS_ARE_FAST, False, Level.WARNING, limit, share, "of the interval", what, remedy)


def check_savepoint(
    limits: HealthLimits, *, now: datetime, newest: datetime | None, started: datetime | None
) -> HealthCheck | None:
    """Check the age of the newest savepoint, or of the job if there is none; return None without a limit.

    Args:
        limits: limits of the job.
        now: the present time.
        newest: when the newest savepoint was taken.
        started: when the job started.
    """
    limit = limits.max_hours_without_savepoint
    if limit is None:
        return None
    name, level, unit = RECENT_SAVEPOINT, Level.WARNING, "hours"
    since = newest if newest is not None else started
    if since is None:
        return HealthCheck(name, None, level, limit, None, unit, "the cluster does not say when the job started")
    age = max(now - since, timedelta())
    hours = age / timedelta(hours=1)
    if hours <= limit:
        return HealthCheck(name, True, level, limit, hours, unit)
    what = (
        f"the newest savepoint is {describe_age(age)} old"
        if newest is not None
        else f"no savepoint was taken in {describe_age(age)}, since the job started"
    )
    remedy = "Take one: `state-pipelines savepoint JOB.yaml`, or by a policy (`savepoints` of the job)."
    return HealthCheck(name, False, level, limit, hours, unit, f"{what}, more than {limit:g} h", remedy)


def check_state(limits: HealthLimits, size: int | None, total: StateGrowth | None) -> HealthCheck | None:
    """Check the size of the state now and in the next hours; return None without a limit.

    Args:
        limits: limits of the job.
        size: bytes in the newest checkpoint.
        total: growth of all state; None where it is not known.
    """
    limit = limits.max_state_size
    if limit is None:
        return None
    name, level, unit = STATE_HAS_ROOM, Level.WARNING, "bytes"
    if size is None:
        return HealthCheck(name, None, level, limit, None, unit, "no checkpoint says how large the state is")
    remedy = "Give the state a time to live, or the job more disk: see the growth of each operator."
    if size >= limit:
        what = f"the state has {format_bytes(size)}, and {format_bytes(limit)} are allowed"
        return HealthCheck(name, False, level, limit, size, unit, what, remedy)
    hours = None if total is None else total.predict_hours(limit)
    if hours is not None and hours < limits.hours_to_max_state_size:
        what = f"the state has {format_bytes(size)}, and reaches {format_bytes(limit)} in {hours:.1f} h"
        return HealthCheck(name, False, level, limit, size, unit, what, remedy)
    return HealthCheck(name, True, level, limit, size, unit)
