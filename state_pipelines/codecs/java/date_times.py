"""Single dates and times in the fixed-width encodings of Flink's serializers; `logical_values` converts columns.

Sources: `DateSerializer`, `SqlTimestampSerializer`, `InstantSerializer`, `LocalDateSerializer`, `LocalTimeSerializer`,
`LocalDateTimeSerializer`. Each has a reserved form for null, which is None here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state_pipelines.codecs.java.iso_dates import calendar_day, epoch_day
from state_pipelines.errors import ValueRangeError

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader, Writer

MAX_YEAR = 999_999_999
"""`java.time.Year.MAX_VALUE`; the smallest year is its negative."""

NANOS_OF_DAY = 86_400_000_000_000
_LONG_MIN = -(1 << 63)
_INT_MIN = -(1 << 31)
_NULL_DATE = bytes.fromhex("80000000 8000")
_NULL_TIME = bytes.fromhex("80 8000 80000000")


def read_millis(reader: Reader) -> int | None:
    """Read epoch milliseconds of a `java.util.Date`, `java.sql.Date` or `java.sql.Time`."""
    millis = reader.i64()
    return None if millis == _LONG_MIN else millis


def write_millis(writer: Writer, value: int | None) -> None:
    """Write what `read_millis` reads."""
    writer.i64(_LONG_MIN if value is None else value)


def read_sql_timestamp(reader: Reader) -> dict[str, int] | None:
    """`java.sql.Timestamp`: epoch milliseconds, and the nanoseconds within the second."""
    millis, nanos = reader.i64(), reader.i32()
    return None if millis == _LONG_MIN else {"millis": millis, "nanos": nanos}


def write_sql_timestamp(writer: Writer, value: dict[str, int] | None) -> None:
    """Write what `read_sql_timestamp` reads."""
    writer.i64(_LONG_MIN if value is None else value["millis"])
    writer.i32(0 if value is None else value["nanos"])


def read_instant(reader: Reader) -> dict[str, int] | None:
    """`java.time.Instant`: epoch seconds and nanoseconds."""
    seconds, nano = reader.i64(), reader.i32()
    return None if seconds == _LONG_MIN else {"epoch_second": seconds, "nano": nano}


def write_instant(writer: Writer, value: dict[str, int] | None) -> None:
    """Write what `read_instant` reads."""
    writer.i64(_LONG_MIN if value is None else value["epoch_second"])
    writer.i32(_INT_MIN if value is None else value["nano"])


def read_local_date(reader: Reader) -> int | None:
    """Read epoch days of a `java.time.LocalDate`, for all years of Java.

    Raises:
        FormatError: no day of the calendar.
    """
    start = reader.position
    year, month, day = reader.i32(), reader.i8(), reader.i8()
    if year == _INT_MIN:
        return None
    if 1 <= month <= 12 and 1 <= day <= 31 and abs(year) <= MAX_YEAR:
        days = epoch_day(year, month, day)
        if calendar_day(days) == (year, month, day):
            return days
    raise reader.error(f"{year}-{month}-{day} is no date", start)


def write_local_date(writer: Writer, value: int | None) -> None:
    """Write what `read_local_date` reads.

    Raises:
        ValueRangeError: Java has no such year.
    """
    if value is None:
        writer.take(_NULL_DATE)
        return
    year, month, day = calendar_day(value)
    if abs(year) > MAX_YEAR:
        raise ValueRangeError(f"day {value} since 1970 is in the year {year}, which java.time does not have")
    writer.i32(year)
    writer.i8(month)
    writer.i8(day)


def read_local_time(reader: Reader) -> int | None:
    """Read nanoseconds of the day of a `java.time.LocalTime`.

    Raises:
        FormatError: no time of day.
    """
    start = reader.position
    hour, minute, second, nano = reader.i8(), reader.i8(), reader.i8(), reader.i32()
    if hour == -128:
        return None
    if 0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60 and 0 <= nano < 1_000_000_000:
        return ((hour * 60 + minute) * 60 + second) * 1_000_000_000 + nano
    raise reader.error(f"{hour}:{minute}:{second} and {nano} nanoseconds is no time of day", start)


def write_local_time(writer: Writer, value: int | None) -> None:
    """Write what `read_local_time` reads.

    Raises:
        ValueRangeError: not within a day.
    """
    if value is None:
        writer.take(_NULL_TIME)
        return
    if not 0 <= value < NANOS_OF_DAY:
        raise ValueRangeError(f"{value} nanoseconds are not a time of day")
    seconds, nano = divmod(value, 1_000_000_000)
    writer.i8(seconds // 3600)
    writer.i8(seconds // 60 % 60)
    writer.i8(seconds % 60)
    writer.i32(nano)


def read_local_date_time(reader: Reader) -> dict[str, int] | None:
    """`java.time.LocalDateTime`: `date` as `read_local_date`, `nano_of_day` as `read_local_time`.

    Raises:
        FormatError: no date or no time of day, or one of them is null and the other is not.
    """
    start = reader.position
    date, time = read_local_date(reader), read_local_time(reader)
    if date is None and time is None:
        return None
    if date is None or time is None:
        raise reader.error("only one of date and time is null", start)
    return {"date": date, "nano_of_day": time}


def write_local_date_time(writer: Writer, value: dict[str, Any] | None) -> None:
    """Write what `read_local_date_time` reads."""
    write_local_date(writer, None if value is None else value["date"])
    write_local_time(writer, None if value is None else value["nano_of_day"])
