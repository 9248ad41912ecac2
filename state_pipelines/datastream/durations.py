"""Durations and points in time (`pyflink.common.time`)."""

from __future__ import annotations

from dataclasses import dataclass

from state_pipelines.errors import UsageError

_NANOS_OF_MILLI = 1_000_000
_NANOS_OF_SECOND = 1_000_000_000


@dataclass(frozen=True, init=False)
class Time:
    """A length of time in milliseconds; PyFlink's form for TTL and windows.

    Args:
        milliseconds: the length.
    """

    _milliseconds: int

    def __init__(self, milliseconds: int) -> None:
        object.__setattr__(self, "_milliseconds", milliseconds)

    def to_milliseconds(self) -> int:
        """Return the length in milliseconds."""
        return self._milliseconds

    @staticmethod
    def milliseconds(milliseconds: int) -> Time:
        """Return a length of milliseconds."""
        return Time(milliseconds)

    @staticmethod
    def seconds(seconds: int) -> Time:
        """Return a length of seconds."""
        return Time(seconds * 1000)

    @staticmethod
    def minutes(minutes: int) -> Time:
        """Return a length of minutes."""
        return Time.seconds(minutes * 60)

    @staticmethod
    def hours(hours: int) -> Time:
        """Return a length of hours."""
        return Time.minutes(hours * 60)

    @staticmethod
    def days(days: int) -> Time:
        """Return a length of days of 24 hours."""
        return Time.hours(days * 24)

    def __str__(self) -> str:
        return f"{self._milliseconds} ms"


@dataclass(frozen=True)
class Duration:
    """A length of time (`java.time.Duration`).

    Attributes:
        nanos: nanoseconds.
    """

    nanos: int

    @staticmethod
    def of_days(days: int) -> Duration:
        """Return a length of days of 24 hours."""
        return Duration.of_hours(days * 24)

    @staticmethod
    def of_hours(hours: int) -> Duration:
        """Return a length of hours."""
        return Duration.of_minutes(hours * 60)

    @staticmethod
    def of_minutes(minutes: int) -> Duration:
        """Return a length of minutes."""
        return Duration.of_seconds(minutes * 60)

    @staticmethod
    def of_seconds(seconds: int) -> Duration:
        """Return a length of seconds."""
        return Duration(seconds * _NANOS_OF_SECOND)

    @staticmethod
    def of_millis(millis: int) -> Duration:
        """Return a length of milliseconds."""
        return Duration(millis * _NANOS_OF_MILLI)

    @staticmethod
    def of_nanos(nanos: int) -> Duration:
        """Return a length of nanoseconds."""
        return Duration(nanos)

    def to_millis(self) -> int:
        """Return the length in whole milliseconds."""
        return self.nanos // _NANOS_OF_MILLI


@dataclass(frozen=True)
class Instant:
    """A point in time (`java.time.Instant`).

    Attributes:
        seconds: since 1970-01-01T00:00:00Z.
        nanos: within the second.
    """

    seconds: int
    nanos: int

    def to_epoch_milli(self) -> int:
        """Return milliseconds since 1970-01-01T00:00:00Z, rounded down."""
        return self.seconds * 1000 + self.nanos // _NANOS_OF_MILLI

    @staticmethod
    def of_epoch_milli(epoch_milli: int) -> Instant:
        """Return the point at some milliseconds since 1970-01-01T00:00:00Z."""
        seconds, millis = divmod(epoch_milli, 1000)
        return Instant(seconds, millis * _NANOS_OF_MILLI)


def to_millis(length: Time | Duration) -> int:
    """Return a length in milliseconds.

    Raises:
        UsageError: it is not a length of time.
    """
    match length:
        case Time():
            return length.to_milliseconds()
        case Duration():
            return length.to_millis()
        case _:
            raise UsageError(f"{length!r} is not a Time or a Duration")
