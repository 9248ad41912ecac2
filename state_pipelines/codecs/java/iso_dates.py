"""Days of the proleptic ISO calendar, for years that Python's `datetime` does not reach."""

from __future__ import annotations


def epoch_day(year: int, month: int, day: int) -> int:
    """Return days since 1970-01-01 (`java.time.LocalDate.toEpochDay`)."""
    shifted = year - (month <= 2)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return shifted * 365 + shifted // 4 - shifted // 100 + shifted // 400 + of_year - 719468


def calendar_day(days: int) -> tuple[int, int, int]:
    """Mirror of `epoch_day`: year, month and day."""
    era, of_era = divmod(days + 719468, 146097)
    year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year + era * 400 + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1
