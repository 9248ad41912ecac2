"""Contexts of the element or timer at hand, for functions of keyed inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state_pipelines.datastream.functions import KeyedCoProcessFunction, KeyedProcessFunction
from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from state_pipelines.datastream.timer_service import TimeDomain, TimerService


class KeyedElement:
    """Key, timestamp and timers of the element or timer at hand: the part that contexts of keyed inputs share.

    Args:
        timers: of the subtask.
    """

    def __init__(self, timers: TimerService) -> None:
        self._timers = timers
        self._key: Any = None
        self._timestamp: int | None = None
        self._domain: TimeDomain | None = None

    def set_key(self, key: Any, timestamp: int | None, domain: TimeDomain | None = None) -> None:
        """Set key and timestamp of an element or timer, and what a timer has waited for."""
        self._key, self._timestamp, self._domain = key, timestamp, domain

    def get_current_key(self) -> Any:
        """Return the key."""
        return self._key

    def timer_service(self) -> TimerService:
        """Return current times, and the timers of the key."""
        return self._timers

    def timestamp(self) -> int | None:
        """Return the timestamp of the element or timer."""
        return self._timestamp

    def time_domain(self) -> TimeDomain:
        """Return the time that the timer has waited for.

        Raises:
            UsageError: no timer fires.
        """
        if self._domain is None:
            raise UsageError("time_domain is called outside of on_timer")
        return self._domain


class ElementContext(KeyedElement, KeyedProcessFunction.OnTimerContext, KeyedCoProcessFunction.OnTimerContext):
    """Context of an element or a timer of a keyed input."""
