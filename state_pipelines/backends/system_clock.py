"""The clock of the machine."""

from __future__ import annotations

import time


def read_clock() -> int:
    """Return the time in epoch milliseconds, as Java's `System.currentTimeMillis`."""
    return time.time_ns() // 1_000_000
