"""Times of files as storages state them."""

from __future__ import annotations

from datetime import UTC, datetime

_FIRST = datetime(1, 1, 2, tzinfo=UTC).timestamp()
_LAST = datetime(9999, 12, 30, tzinfo=UTC).timestamp()


def make_time(seconds: float) -> datetime:
    """Turn seconds since 1970 into a time; the first or the last that Python has for those before or after it.

    A local file may have a time of any 64-bit number of seconds.
    """
    return datetime.fromtimestamp(min(max(seconds, _FIRST), _LAST), UTC)
