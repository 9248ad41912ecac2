"""The consequences of a failed checkpoint for its request and its job (`CheckpointFailureManager`)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from state_pipelines.checkpoints.failure_reasons import EXCEEDED_MESSAGE, FailureCounter

if TYPE_CHECKING:
    from state_pipelines.checkpoints.failure_reasons import CheckpointFailure
    from state_pipelines.checkpoints.owner import CheckpointOwner
    from state_pipelines.checkpoints.requests import CheckpointRequest

_log = logging.getLogger(__name__)


class FailureHandling:
    """Notes failures, counts them, and fails the job where there are too many.

    Args:
        owner: fails the job.
        tolerable: consecutive failures that the job survives.

    Attributes:
        counter: the consecutive failures.
        last: the last failure of a checkpoint or request.
    """

    def __init__(self, owner: CheckpointOwner, tolerable: int) -> None:
        self.counter = FailureCounter(tolerable)
        self.last: CheckpointFailure | None = None
        self._owner = owner

    def fail(self, request: CheckpointRequest, failure: CheckpointFailure, *, is_from_task: bool = False) -> None:
        """Let a request fail.

        Failures of savepoints count only where a task caused them; one with which the job stops fails the job then,
        which would wait for it otherwise.
        """
        request.fail(failure)
        self.last = failure
        _log.warning("Checkpoint %s failed: %s", failure.checkpoint_id or "without id", failure)
        if is_from_task and request.properties.is_synchronous:
            self._owner.fail_job(str(failure))
        elif (is_from_task or not request.properties.is_savepoint) and self.counter.fail(failure):
            self._owner.fail_job(f"{EXCEEDED_MESSAGE} {failure}")
