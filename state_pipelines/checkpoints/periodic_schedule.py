"""The schedule of the checkpoints of a stream: the interval, and the pause after each.

Source: `CheckpointCoordinator.startCheckpointScheduler`, `CheckpointRequestDecider`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.checkpoints.clocks import SYSTEM_CLOCK
from state_pipelines.checkpoints.failure_reasons import FailureReason

if TYPE_CHECKING:
    from state_pipelines.checkpoints.clocks import Clock

_log = logging.getLogger(__name__)


@dataclass
class PeriodicSchedule:
    """Times at which the checkpoints of a stream may start; the first one starts at once.

    Attributes:
        interval: milliseconds from the start of a checkpoint to that of the next one; None for no bound.
        min_pause: milliseconds from the completion of a checkpoint to the start of the next one.
        clock: the clock.
    """

    interval: int | None = None
    min_pause: int = 0
    clock: Clock = SYSTEM_CLOCK
    _last_start: int | None = None
    _last_completion: int | None = None

    def wait_for_start(self) -> int:
        """Wait until a checkpoint may start, and note that it starts.

        Returns:
            milliseconds by which the pause has postponed it.
        """
        now = self.clock.read()
        due = now
        if self._last_start is not None and self.interval is not None:
            due = max(due, self._last_start + self.interval)
        rested = due if self._last_completion is None else max(due, self._last_completion + self.min_pause)
        if rested > due:
            _log.info("%s", FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS.message)
        if rested > now:
            self.clock.wait(rested - now)
        self._last_start = max(rested, self.clock.read())
        return rested - due

    def note_completion(self) -> None:
        """Note that the checkpoint has completed, from which the pause counts."""
        self._last_completion = self.clock.read()
