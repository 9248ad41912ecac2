"""Histograms of the last access and of the expiry of entries with TTL."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

_STEPS = {
    "1 min": timedelta(minutes=1),
    "1 h": timedelta(hours=1),
    "6 h": timedelta(hours=6),
    "1 d": timedelta(days=1),
    "7 d": timedelta(days=7),
    "30 d": timedelta(days=30),
    "90 d": timedelta(days=90),
    "365 d": timedelta(days=365),
}
OLDER = "older"
LATER = "later"
_MILLISECOND = timedelta(milliseconds=1)
_FARTHEST = 1 << 62
"""Times beyond it, in milliseconds, count as so far away: sums with them exceed 64 bits."""


@dataclass(frozen=True)
class TtlOutlook:
    """The ages of the entries of a state with TTL.

    Attributes:
        entries: with a time of last access.
        oldest: earliest last access, ISO text, or milliseconds since 1970 where the year has not four digits; None
            without entries.
        newest: latest last access.
        by_age: entries by the time since their last access: up to 1 min, more than that and up to 1 h, …, `older`.
        ttl: declared time to live in seconds; None when none is declared (snapshots do not hold it).
        expired: entries that have expired, which Flink drops or still holds; None without a declared TTL.
        expiring: entries that expire up to 1 min from now, after that and up to 1 h, …, `later`; empty without a TTL.
    """

    entries: int
    oldest: str | None
    newest: str | None
    by_age: Mapping[str, int]
    ttl: float | None = None
    expired: int | None = None
    expiring: Mapping[str, int] | None = None

    @property
    def expired_ratio(self) -> float | None:
        """Share of entries that have expired, 0 to 1."""
        if self.expired is None:
            return None
        return self.expired / self.entries if self.entries else 0.0


class TtlProfiler:
    """Counts the entries of one state by time of last access.

    Args:
        now: time from which ages are counted.
        ttl: declared time to live; None when it is not known.
    """

    def __init__(self, now: datetime, ttl: timedelta | None = None) -> None:
        self._now = round(now.timestamp() * 1000)
        self._ttl = ttl
        self._steps = np.array([step // _MILLISECOND for step in _STEPS.values()])
        self._ages = np.zeros(len(_STEPS) + 1, np.int64)
        self._expiring = np.zeros(len(_STEPS) + 1, np.int64)
        self._expired = self._entries = 0
        self._oldest: int | None = None
        self._newest: int | None = None

    def add(self, accessed: pa.Array) -> None:
        """Add times of last access, timestamps in milliseconds; nulls do not count."""
        times = accessed.drop_null().cast(pa.int64()).to_numpy()
        if not len(times):
            return
        self._entries += len(times)
        low, high = int(times.min()), int(times.max())
        self._oldest = low if self._oldest is None else min(low, self._oldest)
        self._newest = high if self._newest is None else max(high, self._newest)
        times = times.clip(-_FARTHEST, _FARTHEST)
        count = len(self._ages)
        self._ages += np.bincount(np.searchsorted(self._steps, self._now - times), minlength=count)
        if self._ttl is not None:
            # `TtlUtils.expired`: at the end of its time to live an entry has expired.
            left = times + self._ttl // _MILLISECOND - self._now
            self._expired += int((left <= 0).sum())
            self._expiring += np.bincount(np.searchsorted(self._steps, left[left > 0]), minlength=count)

    def result(self) -> TtlOutlook:
        """The outlook."""
        found = TtlOutlook(
            self._entries,
            _to_text(self._oldest),
            _to_text(self._newest),
            dict(zip((*_STEPS, OLDER), self._ages.tolist(), strict=True)),
        )
        if self._ttl is None:
            return found
        return TtlOutlook(
            found.entries,
            found.oldest,
            found.newest,
            found.by_age,
            self._ttl.total_seconds(),
            self._expired,
            dict(zip((*_STEPS, LATER), self._expiring.tolist(), strict=True)),
        )


def _to_text(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    try:
        return (datetime.fromtimestamp(0, UTC) + milliseconds * _MILLISECOND).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{milliseconds} ms"
