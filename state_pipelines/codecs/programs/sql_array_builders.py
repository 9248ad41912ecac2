"""Array builders of SQL types: decimals, timestamps, dates, times of day and intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from typing_extensions import override

from state_pipelines.codecs import logical_values
from state_pipelines.codecs.programs.array_builders import ArrayBuilder
from state_pipelines.errors import FormatError, UnsupportedError, ValueRangeError

if TYPE_CHECKING:
    from state_pipelines.codecs.kernels.buffers import InputColumns, OutputColumns

COMPACT_DECIMAL = 18
"""Largest precision of a DECIMAL that is stored as a long."""
COMPACT_TIMESTAMP = 3
"""Largest precision of a TIMESTAMP that is stored without nanoseconds."""
_MICROS, _NANOS = 6, 9
_NANOS_OF_MILLI = 1_000_000
_MILLIS_OF_DAY = 86_400_000


@dataclass(frozen=True)
class DecimalBuilder(ArrayBuilder):
    """DECIMAL: a long up to precision 18, else 16 bytes."""

    precision: int
    scale: int

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.decimal128(self.precision, self.scale)

    @property
    def width(self) -> int:
        """Bytes of the kernel column."""
        return 8 if self.precision <= COMPACT_DECIMAL else 16

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        values = columns.fixed(self.main, np.int64).astype(np.int64, copy=False)
        if self.width == 8:
            if bool((np.abs(values) >= 10**self.precision).any()):
                raise self._too_long()
            values = np.stack([values, values >> 63], axis=1)
        nulls = logical_values.bitmap(columns.valid(self.main))
        array = pa.Array.from_buffers(self.type, columns.count(self.main), [nulls, pa.py_buffer(values)])
        if self.width == 16:
            try:
                array.validate(full=True)
            except pa.ArrowInvalid:
                raise self._too_long() from None
        return array

    def _too_long(self) -> FormatError:
        return FormatError(f"a number has more digits than DECIMAL({self.precision}, {self.scale})")

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        buffer = array.buffers()[1]
        raw = np.zeros(2 * len(array), np.int64)
        if buffer is not None:
            raw = np.frombuffer(buffer, np.int64, 2 * len(array), 16 * array.offset)
        # A row of two longs is a value of 16 bytes.
        values = raw.reshape(-1, 2)
        columns.set_fixed(self.main, values[:, 0] if self.width == 8 else values.view("V16").ravel(), array)


@dataclass(frozen=True)
class TimestampBuilder(ArrayBuilder):
    """TIMESTAMP and TIMESTAMP_LTZ: milliseconds up to precision 3, microseconds up to 6, else nanoseconds.

    Attributes:
        nanos: column of the nanoseconds within the millisecond; -1 up to precision 3.
        precision: digits after the decimal point.
        zone: UTC for an instant; None for a wall clock.
    """

    nanos: int
    precision: int
    zone: str | None

    @property
    @override
    def type(self) -> pa.DataType:
        return timestamp_type(self.precision, self.zone)

    @property
    def _scale(self) -> int:
        return _NANOS_OF_MILLI if self.precision > _MICROS else 1000

    @override
    def level_columns(self) -> tuple[int, ...]:
        return (self.main,) if self.nanos < 0 else (self.main, self.nanos)

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        values = columns.fixed(self.main, np.int64).astype(np.int64, copy=False)
        if self.nanos >= 0:
            nanos = columns.fixed(self.nanos, np.int32).astype(np.int64)
            if bool(((nanos < 0) | (nanos >= _NANOS_OF_MILLI)).any()):
                raise FormatError("the nanoseconds within a millisecond are outside 0 to 999,999")
            unit = _NANOS_OF_MILLI // self._scale
            if bool((nanos % unit).any()):
                raise ValueRangeError(f"a TIMESTAMP({self.precision}) has digits beyond its precision")
            limit = np.iinfo(np.int64).max // self._scale - 1
            if bool((np.abs(values) > limit).any()):
                raise ValueRangeError(f"a timestamp is outside the range of Arrow's {self.type}")
            values = values * self._scale + nanos // unit
        nulls = logical_values.bitmap(columns.valid(self.main))
        return pa.Array.from_buffers(self.type, columns.count(self.main), [nulls, pa.py_buffer(values)])

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        values = _longs(array)
        if self.nanos >= 0:
            millis = values // self._scale
            rest = (values - millis * self._scale) * (_NANOS_OF_MILLI // self._scale)
            columns.set_fixed(self.nanos, rest.astype(np.int32), array)
            values = millis
        columns.set_fixed(self.main, values, array)


def timestamp_type(precision: int, zone: str | None) -> pa.DataType:
    """Return the Arrow type of a TIMESTAMP of a precision."""
    unit = "ms" if precision <= COMPACT_TIMESTAMP else "us" if precision <= _MICROS else "ns"
    return pa.timestamp(unit, zone)


@dataclass(frozen=True)
class SameBitsBuilder(ArrayBuilder):
    """A number whose bits are those of the Arrow type: days of a date, milliseconds of an interval."""

    of: pa.DataType

    @property
    @override
    def type(self) -> pa.DataType:
        return self.of

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        values = columns.fixed(self.main, f"i{self.of.bit_width // 8}")
        nulls = logical_values.bitmap(columns.valid(self.main))
        return pa.Array.from_buffers(self.of, len(values), [nulls, pa.py_buffer(values)])

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        width = self.of.bit_width // 8
        buffer = array.buffers()[1]
        values = np.zeros(len(array), f"i{width}")
        if buffer is not None:
            values = np.frombuffer(buffer, f"i{width}", len(array), width * array.offset)
        columns.set_fixed(self.main, values, array)


@dataclass(frozen=True)
class TimeOfDayBuilder(ArrayBuilder):
    """TIME: milliseconds of the day; nanoseconds in Arrow, as for `LocalTime`."""

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.time64("ns")

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        millis, valid = columns.fixed(self.main, np.int32).astype(np.int64), columns.valid(self.main)
        outside = (millis < 0) | (millis >= _MILLIS_OF_DAY)
        if bool((outside if valid is None else outside & valid).any()):
            raise FormatError("the milliseconds of a TIME are not a time of day")
        values = millis * _NANOS_OF_MILLI
        nulls = logical_values.bitmap(valid)
        return pa.Array.from_buffers(self.type, len(values), [nulls, pa.py_buffer(values)])

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        values = _longs(array)
        valid = np.asarray(array.is_valid())
        if bool((values % _NANOS_OF_MILLI)[valid].any()):
            raise ValueRangeError("a TIME has a precision of one millisecond")
        columns.set_fixed(self.main, (values // _NANOS_OF_MILLI).astype(np.int32), array)


def make_decimal_type(precision: int, scale: int) -> tuple[int, int]:
    """Return precision and scale if Arrow can hold them.

    Raises:
        UnsupportedError: the precision is outside 1 to 38.
    """
    if not 1 <= precision <= 38:
        raise UnsupportedError(f"DECIMAL({precision}, {scale}) has no Arrow type of 38 digits")
    return precision, scale


def _longs(array: pa.Array) -> np.ndarray:
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), np.int64)
    return np.frombuffer(buffer, np.int64, len(array), 8 * array.offset)
