"""The schedule of periodic checkpoints (`CheckpointCoordinator.startCheckpointScheduler`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class PeriodicSchedule:
    """Times of periodic checkpoints at a fixed rate.

    Attributes:
        interval: milliseconds between two; None for none.
        next_at: milliseconds of the clock of the next one; None while the schedule is stopped.
    """

    interval: int | None
    next_at: int | None = None

    def start(self, now: int) -> None:
        """Begin; the first checkpoint follows after the interval."""
        assert self.interval is not None
        self.next_at = now + self.interval

    def stop(self) -> None:
        """End."""
        self.next_at = None

    def take_due(self, now: int) -> bool:
        """Return whether a checkpoint is due; of several that were missed only one is."""
        if self.next_at is None or self.interval is None or self.next_at > now:
            return False
        self.next_at += ((now - self.next_at) // self.interval + 1) * self.interval
        return True

    def postpone(self, now: int, delay: int) -> None:
        """Move the next checkpoint, since the last one has ended too recently (`rescheduleTrigger`)."""
        if self.next_at is not None:
            self.next_at = now + delay
