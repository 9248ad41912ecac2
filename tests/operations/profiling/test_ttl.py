from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from state_pipelines.operations.profiling import TtlOutlook, TtlProfiler

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def outlook(*ages: timedelta, ttl: timedelta | None = None) -> TtlOutlook:
    profiler = TtlProfiler(NOW, ttl)
    for age in ages:
        profiler.add(pa.array([NOW - age], pa.timestamp("ms", "UTC")))
    return profiler.result()


def filled(counts: object) -> dict[str, int]:
    assert isinstance(counts, dict)
    return {name: count for name, count in counts.items() if count}


def test_entries_are_counted_by_age() -> None:
    found = outlook(timedelta(seconds=5), timedelta(minutes=1), timedelta(hours=5), timedelta(days=400))
    assert filled(found.by_age) == {"1 min": 2, "6 h": 1, "older": 1}
    assert found.entries == 4


def test_an_entry_of_the_future_is_young() -> None:
    assert filled(outlook(timedelta(minutes=-5)).by_age) == {"1 min": 1}


def test_the_range_of_last_access() -> None:
    found = outlook(timedelta(hours=1), timedelta(days=2))
    assert (found.oldest, found.newest) == ("2026-11-20T12:00:00.000+00:00", "2026-11-22T11:00:00.000+00:00")


def test_without_a_ttl_nothing_expires() -> None:
    found = outlook(timedelta(days=400))
    assert (found.ttl, found.expired, found.expiring, found.expired_ratio) == (None, None, None, None)


def test_an_entry_expires_when_its_time_is_over() -> None:
    found = outlook(timedelta(days=6), timedelta(days=7), timedelta(days=8), ttl=timedelta(days=7))
    assert (found.expired, found.ttl) == (2, 7 * 86400)


def test_entries_that_expire_are_counted_by_time() -> None:
    ages = (timedelta(days=7) - left for left in (timedelta(seconds=30), timedelta(hours=20), timedelta(days=6)))
    found = outlook(*ages, timedelta(days=9), ttl=timedelta(days=7))
    assert filled(found.expiring) == {"1 min": 1, "1 d": 1, "7 d": 1}
    assert (found.expired, found.expired_ratio) == (1, 0.25)


def test_a_long_ttl_is_later() -> None:
    assert filled(outlook(timedelta(0), ttl=timedelta(days=1000)).expiring) == {"later": 1}


def test_nulls_do_not_count() -> None:
    profiler = TtlProfiler(NOW, timedelta(days=1))
    profiler.add(pa.array([None, NOW], pa.timestamp("ms", "UTC")))
    assert profiler.result().entries == 1


def test_no_entries() -> None:
    found = outlook(ttl=timedelta(days=1))
    assert (found.entries, found.oldest, found.expired, found.expired_ratio) == (0, None, 0, 0.0)


def test_times_that_are_no_date_are_milliseconds_and_do_not_overflow() -> None:
    profiler = TtlProfiler(NOW, timedelta(days=1))
    profiler.add(pa.array([-(1 << 63), (1 << 63) - 1], pa.timestamp("ms", "UTC")))
    found = profiler.result()
    assert (found.oldest, found.newest) == ("-9223372036854775808 ms", "9223372036854775807 ms")
    assert (filled(found.by_age), filled(found.expiring)) == ({"1 min": 1, "older": 1}, {"later": 1})
    # As `TtlUtils.expired`, which does not let the sum overflow either.
    assert found.expired == 1
