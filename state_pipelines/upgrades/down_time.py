"""Down time of an upgrade: predicted from what was measured before, and measured from its record.

A figure comes from the best source that there is: a rehearsal, the start of the running job as its cluster has timed
it, an earlier upgrade of the job; else it is assumed. The prediction says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import StateError
from state_pipelines.operations.inspect import inspect
from state_pipelines.upgrades.state_changes import open_state
from state_pipelines.upgrades.upgrade_records import Step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from state_pipelines.flink.cluster import FlinkCluster
    from state_pipelines.upgrades.state_changes import StateChange
    from state_pipelines.upgrades.upgrade_records import RecordDirectory, UpgradeRecord
    from state_pipelines.upgrades.upgrade_request import UpgradeRequest

START_SECONDS = 10.0
"""Assumed time between a submission and the moment at which all tasks run, without the restore of the state."""

SUBMISSION_SECONDS = 1.5
"""Assumed time of the upload of a jar and of its main program."""

RESTORED_BYTES_PER_SECOND = 5e6
"""Assumed speed at which a subtask restores a savepoint of many small values."""

OPERATION_SECONDS = 1.0
"""Assumed time of a migration, a rescaling or a conversion of nearly no state; Spark starts before the job stops."""

WRITTEN_BYTES_PER_SECOND = 20e6
"""Assumed speed of a migration, a rescaling or a conversion with its proof on one machine."""

_LEAST_SHARE = 0.1
"""Share of the state that a restored snapshot must have had for its restore to say how long another one takes."""


@dataclass(frozen=True)
class DownTime:
    """Predicted time in which the job is down.

    Attributes:
        savepoint: seconds of the savepoint.
        change: seconds of the migration and the other operations, with their proofs.
        start: seconds from the submission until all tasks of the new job run, which is after they restored the state.
        sources: where each number comes from.
    """

    savepoint: float
    change: float
    start: float
    sources: Mapping[str, str]

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.savepoint + self.change + self.start

    def to_json(self) -> dict[str, object]:
        """The prediction for machines."""
        return {
            "seconds": round(self.seconds, 1),
            "savepoint": round(self.savepoint, 1),
            "change": round(self.change, 1),
            "start": round(self.start, 1),
            "sources": dict(self.sources),
        }


def predict_down_time(
    request: UpgradeRequest,
    cluster: FlinkCluster,
    job: str,
    change: StateChange,
    records: RecordDirectory,
    *,
    state_size: int | None,
    savepoint_seconds: float | None,
) -> DownTime:
    """Predict the time in which a job is down.

    Args:
        request: the job.
        cluster: of the running job.
        job: its id there.
        change: of its state.
        records: of earlier upgrades and rehearsals.
        state_size: bytes of its state; None where the cluster does not say.
        savepoint_seconds: duration of its newest savepoint; None before there was one.

    Raises:
        StateError: the records cannot be read.
    """
    past = _Past(records.read_rehearsal(), records.list_records(), state_size or 0)
    seconds, changed = past.predict_change(change)
    start, started = past.find_rehearsed_start() or _predict_start(request, cluster, job, past)
    sources = {
        "savepoint": "not known" if savepoint_seconds is None else "duration of the newest savepoint",
        "change": changed,
        "start": started,
    }
    return DownTime(savepoint_seconds or 0.0, seconds, start, sources)


@dataclass(frozen=True)
class _Past:
    """Measurements of the job: its last rehearsal, its upgrades, the oldest first, and bytes of its state now."""

    rehearsal: Mapping[str, Any]
    upgrades: Sequence[UpgradeRecord]
    size: int

    def predict_change(self, change: StateChange) -> tuple[float, str]:
        if not change.writes:
            return 0.0, "nothing is written"
        rehearsal = self.rehearsal
        if rehearsal.get("change") == change.describe() and rehearsal.get("change_seconds") is not None:
            seconds = float(rehearsal["change_seconds"]) * self._compare(rehearsal.get("state_size"))
            return seconds, f"rehearsal of {rehearsal['finished']}"
        for record in reversed(self.upgrades):
            taken = record.get(Step.CHANGE).get("seconds") or {}
            if sorted(taken) == sorted(change.writes):
                size = (record.plan.get("checked") or {}).get("state_size")
                seconds = sum(float(each) for each in taken.values()) * self._compare(size)
                return seconds, f"upgrade of {record.created[:19]}"
        seconds = len(change.writes) * (OPERATION_SECONDS + self.size / WRITTEN_BYTES_PER_SECOND)
        return seconds, "assumed speed, not rehearsed"

    def find_rehearsed_start(self) -> tuple[float, str] | None:
        seconds = self.rehearsal.get("start_seconds")
        if seconds is None:
            return None
        ratio = self._compare(self.rehearsal.get("state_size"))
        return float(seconds) * ratio, f"rehearsal of {self.rehearsal['finished']}"

    def find_last(self, step: Step, name: str) -> float | None:
        """The last measurement of a step; None before there was one."""
        found = (each.get(step).get(name) for each in reversed(self.upgrades))
        return next((float(each) for each in found if each is not None), None)

    def _compare(self, size: object) -> float:
        """Ratio of the state now to a size, 1 where either is not known."""
        return self.size / size if self.size and isinstance(size, int) and size else 1.0


def _predict_start(request: UpgradeRequest, cluster: FlinkCluster, job: str, past: _Past) -> tuple[float, str]:
    """Predict the start of the new job from that of the running one, or from the last upgrade."""
    try:
        timed = cluster.read_start(job)
    except StateError:
        timed = None
    if timed is None:
        seconds = past.find_last(Step.WATCH, "start_seconds")
        if seconds is not None:
            return seconds, "last upgrade"
        return START_SECONDS + _assume_restore(past.size, request.settings.new.parallelism or 1), "assumed"
    submission = past.find_last(Step.START, "seconds") or SUBMISSION_SECONDS
    restore, source = timed.restore_seconds, "start of the running job"
    restored = _measure_restored(request, cluster, job)
    if restored is not None and restored >= past.size * _LEAST_SHARE:
        restore *= past.size / restored if restored and past.size else 1.0
        source += ", its restore in proportion to the state"
    elif restored is not None:
        restore = _assume_restore(past.size, request.settings.new.parallelism or timed.parallelism)
        source += ", which had less state: the restore is assumed"
    return submission + timed.seconds - timed.restore_seconds + restore, source


def _assume_restore(size: int, parallelism: int) -> float:
    return size / (RESTORED_BYTES_PER_SECOND * parallelism)


def _measure_restored(request: UpgradeRequest, cluster: FlinkCluster, job: str) -> int | None:
    """Bytes of state that the running job was restored from, 0 without a snapshot; None if that is gone."""
    try:
        path = cluster.read_checkpoints(job).restored_path
        if not path:
            return 0
        return sum(each.bytes for each in inspect(open_state(request, path), count=False).operators)
    except StateError:
        return None


def measure_down_time(record: UpgradeRecord) -> float | None:
    """Seconds from the request for the savepoint until all tasks of the new job ran.

    None where an upgrade was interrupted.
    """
    measured = (
        record.get(Step.STOP).get("seconds"),
        record.get(Step.CHECK).get("seconds"),
        record.get(Step.CHANGE).get("elapsed"),
        record.get(Step.WATCH).get("start_seconds"),
    )
    known = [float(each) for each in measured if each is not None]
    return sum(known) if len(known) == len(measured) else None
