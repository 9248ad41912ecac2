"""Dates and times of Python as Java's values, in the form of the scalar codec.

Java's `Date`, `sql.Date`, `sql.Time` and `sql.Timestamp` are milliseconds of UTC here; a datetime without time zone is
taken as UTC. Python has microseconds: values of Java that are finer, or that are no whole day, are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any

from state_pipelines.datastream.durations import Instant
from state_pipelines.errors import ValueRangeError
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Callable

_EPOCH = datetime(1970, 1, 1)
_EPOCH_DAY = _EPOCH.toordinal()
_MICRO = timedelta(microseconds=1)
_MILLIS_OF_DAY = 86_400_000
_MICROS_OF_DAY = _MILLIS_OF_DAY * 1000
_MICROS_OF_SECOND = 1_000_000


@dataclass(frozen=True)
class Conversion:
    """Conversion of one kind of Java's dates and times.

    Attributes:
        write: value of Python to that of the scalar codec.
        read: the inverse.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _expect(value: Any, kind: type, *, but: type | None = None) -> Any:
    if not isinstance(value, kind) or (but is not None and isinstance(value, but)):
        raise ValueRangeError(f"{value!r:.80} is not a {kind.__name__}")
    return value


def _whole(value: int, unit: int, what: str) -> int:
    """Return `value / unit`, which must be whole."""
    quotient, rest = divmod(value, unit)
    if rest:
        raise ValueRangeError(
            f"{value} is not a whole number of {what}",
            hint="Types.of(serializer, stored=True) has values of Java's precision",
        )
    return quotient


def _write_datetime(value: datetime) -> int:
    """Return microseconds since 1970."""
    moment = _expect(value, datetime)
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return int((moment - _EPOCH) // _MICRO)


def _read_datetime(micros: int) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise ValueRangeError(f"{micros} microseconds since 1970 are outside the years 1 to 9999 of Python") from None


def _write_day(value: date) -> int:
    return int(_expect(value, date, but=datetime).toordinal() - _EPOCH_DAY)


def _read_day(days: int) -> date:
    try:
        return date.fromordinal(days + _EPOCH_DAY)
    except (OverflowError, ValueError):
        raise ValueRangeError(f"day {days} since 1970 is outside the years 1 to 9999 of Python") from None


def _write_time(value: time) -> int:
    """Return microseconds of the day."""
    moment: time = _expect(value, time)
    if moment.tzinfo is not None:
        raise ValueRangeError(f"{value!r} has a time zone, which Java's times of day do not have")
    return ((moment.hour * 60 + moment.minute) * 60 + moment.second) * _MICROS_OF_SECOND + moment.microsecond


def _read_time(micros: int) -> time:
    if not 0 <= micros < _MICROS_OF_DAY:
        raise ValueRangeError(f"{micros} microseconds are not a time of day")
    return (_EPOCH + timedelta(microseconds=micros)).time()


def _write_sql_timestamp(value: datetime) -> dict[str, int]:
    micros = _write_datetime(value)
    return {"millis": micros // 1000, "nanos": micros % _MICROS_OF_SECOND * 1000}


def _read_sql_timestamp(value: dict[str, int]) -> datetime:
    seconds = value["millis"] // 1000
    return _read_datetime(seconds * _MICROS_OF_SECOND + _whole(value["nanos"], 1000, "microseconds"))


def _write_local_date_time(value: datetime) -> dict[str, int]:
    if _expect(value, datetime).tzinfo is not None:
        raise ValueRangeError(f"{value!r} has a time zone, which a LocalDateTime does not have")
    days, micros = divmod(_write_datetime(value), _MICROS_OF_DAY)
    return {"date": days, "nano_of_day": micros * 1000}


def _read_local_date_time(value: dict[str, int]) -> datetime:
    return _read_datetime(value["date"] * _MICROS_OF_DAY + _whole(value["nano_of_day"], 1000, "microseconds"))


def _write_instant(value: Instant) -> dict[str, int]:
    moment = _expect(value, Instant)
    return {"epoch_second": moment.seconds, "nano": moment.nanos}


CONVERSIONS: dict[BasicKind, Conversion] = {
    BasicKind.DATE: Conversion(
        lambda value: _whole(_write_datetime(value), 1000, "milliseconds"), lambda millis: _read_datetime(millis * 1000)
    ),
    BasicKind.SQL_DATE: Conversion(
        lambda value: _write_day(value) * _MILLIS_OF_DAY,
        lambda millis: _read_day(_whole(millis, _MILLIS_OF_DAY, "days of UTC")),
    ),
    BasicKind.SQL_TIME: Conversion(
        lambda value: _whole(_write_time(value), 1000, "milliseconds"), lambda millis: _read_time(millis * 1000)
    ),
    BasicKind.SQL_TIMESTAMP: Conversion(_write_sql_timestamp, _read_sql_timestamp),
    BasicKind.INSTANT: Conversion(_write_instant, lambda value: Instant(value["epoch_second"], value["nano"])),
    BasicKind.LOCAL_DATE: Conversion(_write_day, _read_day),
    BasicKind.LOCAL_TIME: Conversion(
        lambda value: _write_time(value) * 1000, lambda nanos: _read_time(_whole(nanos, 1000, "microseconds"))
    ),
    BasicKind.LOCAL_DATE_TIME: Conversion(_write_local_date_time, _read_local_date_time),
}
"""Conversions by kind of `serializers.tree.Basic`; values of the other kinds are the same in both forms."""
