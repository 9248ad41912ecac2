"""Clocks: the processing time of subtasks, in epoch milliseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

Clock: TypeAlias = "Callable[[], int]"
"""Returns epoch milliseconds."""


class ManualClock:
    """A clock that only moves when it is set.

    Args:
        millis: the time at first.
    """

    def __init__(self, millis: int = 0) -> None:
        self.millis = millis

    def __call__(self) -> int:
        """Return the time that was set."""
        return self.millis
