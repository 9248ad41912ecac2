"""Requests for checkpoints, and the queue that decides which one is next.

Source: `CheckpointRequestDecider`, `CheckpointTriggerRequest`.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from state_pipelines.checkpoints.failure_reasons import CheckpointFailure, FailureReason

if TYPE_CHECKING:
    from state_pipelines.metadata import CheckpointProperties
    from state_pipelines.storage import Location, SnapshotLocation

MAX_QUEUED = 1000
"""Requests that wait at a time (`DEFAULT_MAX_QUEUED_REQUESTS`)."""


class RequestState(Enum):
    """The progress of a request."""

    QUEUED = "queued"
    PENDING = "pending"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(eq=False)
class CheckpointRequest:
    """A request for one checkpoint or savepoint; the coordinator changes it.

    Attributes:
        properties: of the checkpoint.
        timestamp: milliseconds of the clock when it was asked for.
        is_periodic: the scheduler asked.
        target: directory of a savepoint; None for checkpoints.
        state: its progress.
        checkpoint_id: id of the checkpoint, as soon as it is pending.
        location: the published snapshot, when it is completed.
        failure: why it failed.
    """

    properties: CheckpointProperties
    timestamp: int
    is_periodic: bool = False
    target: Location | None = None
    state: RequestState = RequestState.QUEUED
    checkpoint_id: int | None = None
    location: SnapshotLocation | None = None
    failure: CheckpointFailure | None = None

    def fail(self, failure: CheckpointFailure) -> None:
        """Note why it failed."""
        self.state, self.failure = RequestState.FAILED, failure

    @property
    def rank(self) -> tuple[bool, bool, bool, int]:
        """Order of requests: savepoints, forced ones, those of users, older ones first."""
        return not self.properties.is_savepoint, not self.properties.forced, self.is_periodic, self.timestamp


@dataclass
class RequestQueue:
    """Requests that wait.

    Attributes:
        max_concurrent: pending checkpoints at a time, which forced requests may exceed.
        min_pause: milliseconds between the end of a checkpoint and the next periodic one.
        postponed_by: milliseconds until the periodic request that was refused last may be repeated; None when none was.
    """

    max_concurrent: int
    min_pause: int
    postponed_by: int | None = None
    _waiting: list[CheckpointRequest] = field(default_factory=list)

    def __len__(self) -> int:
        """Return the number of requests that wait."""
        return len(self._waiting)

    def add(self, request: CheckpointRequest) -> CheckpointRequest | None:
        """Put a request into the queue; return one that failed because the queue is full, if any."""
        if len(self._waiting) >= MAX_QUEUED and not self._waiting[-1].is_periodic:
            dropped = request
        else:
            insort(self._waiting, request, key=lambda each: each.rank)
            if len(self._waiting) <= MAX_QUEUED:
                return None
            dropped = self._waiting.pop()
        dropped.fail(CheckpointFailure(FailureReason.TOO_MANY_CHECKPOINT_REQUESTS))
        return dropped

    def choose(self, pending: int, now: int, last_completion: int | None) -> CheckpointRequest | None:
        """Take the next request that may become a checkpoint now.

        A periodic request that comes too early fails and sets `postponed_by`.

        Args:
            pending: number of pending checkpoints.
            now: milliseconds of the clock.
            last_completion: when the last checkpoint completed; None before the first.
        """
        if not self._waiting:
            return None
        first = self._waiting[0]
        if pending >= self.max_concurrent and not first.properties.forced:
            return None
        self._waiting.pop(0)
        if first.is_periodic and not first.properties.forced and last_completion is not None:
            delay = last_completion - now + self.min_pause
            if delay > 0:
                first.fail(CheckpointFailure(FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS))
                self.postponed_by = delay
                return None
        return first

    def fail_all(self, failure: CheckpointFailure) -> list[CheckpointRequest]:
        """Empty the queue; return its requests, which have failed."""
        dropped, self._waiting = self._waiting, []
        for request in dropped:
            request.fail(failure)
        return dropped
