"""Time and timers of a function (`pyflink.datastream.TimerService`)."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from state_pipelines.backends.keyed_backend import KeyedStateBackend
    from state_pipelines.backends.timers import TimerQueue
    from state_pipelines.datastream.clocks import Clock

LOWEST_WATERMARK = -(1 << 63)
"""The watermark before the first one (`Long.MIN_VALUE`)."""

HIGHEST_WATERMARK = (1 << 63) - 1
"""The watermark at the end of the input (`Watermark.MAX_WATERMARK`)."""


class TimeDomain(Enum):
    """The time that a timer waits for."""

    EVENT_TIME = 0
    """The watermark."""
    PROCESSING_TIME = 1
    """The clock of the subtask."""


class TimerService:
    """Current times, and timers of the current key and namespace (`InternalTimerServiceImpl`).

    A timer exists once per time and key.

    Args:
        backend: whose current key the timers get.
        event_timers: queue of event time.
        processing_timers: queue of processing time.
        clock: processing time.

    Attributes:
        watermark: the current watermark.
        namespace: of the timers; None is the void namespace.
    """

    def __init__(
        self, backend: KeyedStateBackend, event_timers: TimerQueue, processing_timers: TimerQueue, clock: Clock
    ) -> None:
        self._backend = backend
        self._event_timers = event_timers
        self._processing_timers = processing_timers
        self._clock = clock
        self.watermark = LOWEST_WATERMARK
        self.namespace: Any = None

    def current_processing_time(self) -> int:
        """Return the processing time in epoch milliseconds."""
        return self._clock()

    def current_watermark(self) -> int:
        """Return the watermark in epoch milliseconds; Java's smallest long before the first one."""
        return self.watermark

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Register a timer that fires when the processing time reaches a time.

        Args:
            timestamp: epoch milliseconds.
        """
        self._processing_timers.add(timestamp, self._backend.current_key, self.namespace)

    def register_event_time_timer(self, timestamp: int) -> None:
        """Register a timer that fires when the watermark reaches a time.

        Args:
            timestamp: epoch milliseconds.
        """
        self._event_timers.add(timestamp, self._backend.current_key, self.namespace)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete a timer, if it is registered and has not fired.

        Args:
            timestamp: epoch milliseconds.
        """
        self._processing_timers.remove(timestamp, self._backend.current_key, self.namespace)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete a timer, if it is registered and has not fired.

        Args:
            timestamp: epoch milliseconds.
        """
        self._event_timers.remove(timestamp, self._backend.current_key, self.namespace)
