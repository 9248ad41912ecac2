"""Time windows and their assigners (`pyflink.datastream.window`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from state_pipelines.datastream.durations import Duration, Time, to_millis
from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, order=True)
class TimeWindow:
    """A span of time.

    Attributes:
        start: epoch milliseconds.
        end: epoch milliseconds, exclusive.
    """

    start: int
    end: int

    def max_timestamp(self) -> int:
        """Return the last millisecond of the window."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Return whether the windows overlap or touch."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """Return the smallest window that contains both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))

    @staticmethod
    def get_window_start_with_offset(timestamp: int, offset: int, window_size: int) -> int:
        """Return the start of the window of a timestamp.

        Args:
            timestamp: epoch milliseconds.
            offset: milliseconds by which windows are shifted.
            window_size: milliseconds.
        """
        return timestamp - (timestamp - offset) % window_size


class WindowAssigner(ABC):
    """Assigns windows to elements; they fire when their time domain has passed their end."""

    is_merging = False
    """Windows of a key that overlap or touch become one."""

    @abstractmethod
    def is_event_time(self) -> bool:
        """Return whether windows are those of event time, not of processing time."""

    @abstractmethod
    def assign(self, timestamp: int) -> list[TimeWindow]:
        """Return the windows of a timestamp, or of the processing time at which an element came."""


class _EventTime:
    """Windows of event time."""

    def is_event_time(self) -> bool:
        """Return True."""
        return True


class _ProcessingTime:
    """Windows of processing time."""

    def is_event_time(self) -> bool:
        """Return False."""
        return False


class _Tumbling(WindowAssigner):
    """Windows side by side.

    Args:
        size: milliseconds.
        offset: milliseconds by which they are shifted.

    Raises:
        UsageError: the offset is not smaller than the size.
    """

    def __init__(self, size: int, offset: int) -> None:
        if abs(offset) >= size:
            raise UsageError(f"{type(self).__name__} parameters must satisfy abs(offset) < size")
        self._size, self._offset = size, offset

    @classmethod
    def of(cls, size: Time | Duration, offset: Time | Duration | None = None) -> Self:
        """Return windows of a size, shifted by an offset."""
        return cls(to_millis(size), to_millis(offset or Time(0)))

    def assign(self, timestamp: int) -> list[TimeWindow]:
        """Return the one window."""
        start = TimeWindow.get_window_start_with_offset(timestamp, self._offset, self._size)
        return [TimeWindow(start, start + self._size)]


class TumblingEventTimeWindows(_EventTime, _Tumbling):
    """Windows of event time side by side."""


class TumblingProcessingTimeWindows(_ProcessingTime, _Tumbling):
    """Windows of processing time side by side."""


class _Sliding(WindowAssigner):
    """Windows that overlap.

    Args:
        size: milliseconds.
        slide: milliseconds between the starts of two windows.
        offset: milliseconds by which they are shifted.

    Raises:
        UsageError: the offset is not smaller than the slide, or the size is not positive.
    """

    def __init__(self, size: int, slide: int, offset: int) -> None:
        if abs(offset) >= slide or size <= 0:
            raise UsageError(f"{type(self).__name__} parameters must satisfy abs(offset) < slide and size > 0")
        self._size, self._slide, self._offset = size, slide, offset

    @classmethod
    def of(cls, size: Time | Duration, slide: Time | Duration, offset: Time | Duration | None = None) -> Self:
        """Return windows of a size that begin at every slide, shifted by an offset."""
        return cls(to_millis(size), to_millis(slide), to_millis(offset or Time(0)))

    def assign(self, timestamp: int) -> list[TimeWindow]:
        """Return the windows, the last one first."""
        last = TimeWindow.get_window_start_with_offset(timestamp, self._offset, self._slide)
        return [TimeWindow(start, start + self._size) for start in range(last, timestamp - self._size, -self._slide)]


class SlidingEventTimeWindows(_EventTime, _Sliding):
    """Windows of event time that overlap."""


class SlidingProcessingTimeWindows(_ProcessingTime, _Sliding):
    """Windows of processing time that overlap."""


class _Sessions(WindowAssigner):
    """Windows that end when no element has come for some time.

    Args:
        session_gap: milliseconds.

    Raises:
        UsageError: the gap is not positive.
    """

    is_merging = True

    def __init__(self, session_gap: int) -> None:
        if session_gap <= 0:
            raise UsageError(f"{type(self).__name__} parameters must satisfy 0 < size")
        self._session_gap = session_gap

    @classmethod
    def with_gap(cls, size: Time | Duration) -> Self:
        """Return sessions with a gap."""
        return cls(to_millis(size))

    def assign(self, timestamp: int) -> list[TimeWindow]:
        """Return the window of one element, which is merged with others."""
        return [TimeWindow(timestamp, timestamp + self._session_gap)]


class EventTimeSessionWindows(_EventTime, _Sessions):
    """Sessions of event time."""


class ProcessingTimeSessionWindows(_ProcessingTime, _Sessions):
    """Sessions of processing time."""


def merge_windows(windows: Iterable[TimeWindow]) -> list[tuple[TimeWindow, list[TimeWindow]]]:
    """Merge windows that overlap or touch (`TimeWindow.mergeWindows`).

    Returns:
        (merged window, its windows in order), in order.
    """
    merged: list[tuple[TimeWindow, list[TimeWindow]]] = []
    for window in sorted(windows):
        if merged and merged[-1][0].intersects(window):
            before, covered = merged[-1]
            merged[-1] = before.cover(window), [*covered, window]
        else:
            merged.append((window, [window]))
    return merged
