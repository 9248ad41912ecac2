"""Time and timers of a function (`pyflink.datastream.TimerService`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum

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


class TimerService(ABC):
    """Current times, and timers of the current key. A timer exists once per time and key."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the processing time in epoch milliseconds."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the watermark in epoch milliseconds; Java's smallest long before the first one."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Register a timer that fires when the processing time reaches a time.

        Args:
            timestamp: epoch milliseconds.
        """

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Register a timer that fires when the watermark reaches a time.

        Args:
            timestamp: epoch milliseconds.
        """

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete a timer, if it is registered and has not fired.

        Args:
            timestamp: epoch milliseconds.
        """

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete a timer, if it is registered and has not fired.

        Args:
            timestamp: epoch milliseconds.
        """
