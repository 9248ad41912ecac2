"""The clock of checkpoints, which tests replace."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def read_monotonic_clock() -> int:
    """Return milliseconds that never decrease."""
    return time.monotonic_ns() // 1_000_000


def wait(millis: int) -> None:
    """Wait."""
    time.sleep(millis / 1000)


@dataclass(frozen=True)
class Clock:
    """A clock; both functions are sent to tasks.

    Attributes:
        read: returns milliseconds that never decrease.
        wait: waits for milliseconds.
    """

    read: Callable[[], int] = read_monotonic_clock
    wait: Callable[[int], None] = wait


SYSTEM_CLOCK = Clock()
"""The clock of the machine."""
