"""Types of values: the serializer that Java Flink creates for them, and the conversion from and to Python.

* `TypeInformation`: converts between the values of functions (`Row`, tuples, dicts, dates) and those of the scalar
  codec (`codecs.scalar`). Names are those of `pyflink.common.typeinfo`.
* `TimeConversion`: dates and times of Python as Java's values, as the scalar codec has them. Java's `Date`, `sql.Date`,
  `sql.Time` and `sql.Timestamp` are milliseconds of UTC here; a datetime without time zone is taken as UTC. Python has
  microseconds: values of Java that are finer, or that are no whole day, are refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from state_pipelines.errors import UsageError, ValueRangeError
from state_pipelines.serializers import build
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import COMPONENTS, BasicKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from state_pipelines.serializers.tree import Enum as tree_Enum
    from state_pipelines.serializers.tree import Serializer

_NANOS_OF_MILLI = 1_000_000
_NANOS_OF_SECOND = 1_000_000_000


@dataclass(frozen=True, init=False)
class Time:
    """A length of time in milliseconds; PyFlink uses this class for TTL and windows.

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


_EPOCH = datetime(1970, 1, 1)
_EPOCH_DAY = _EPOCH.toordinal()
_MICRO = timedelta(microseconds=1)
_MILLIS_OF_DAY = 86_400_000
_MICROS_OF_DAY = _MILLIS_OF_DAY * 1000
_MICROS_OF_SECOND = 1_000_000


@dataclass(frozen=True)
class TimeConversion:
    """Conversion of one kind of Java's dates and times.

    Attributes:
        write: converts a Python value to the scalar codec's.
        read: converts a value of the scalar codec to Python.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _expect(value: Any, kind: type, *, but: type | None = None) -> Any:
    if not isinstance(value, kind) or (but is not None and isinstance(value, but)):
        raise ValueRangeError(f"{value!r:.80} is not a {kind.__name__}")
    return value


def _whole(value: int, unit: int, what: str) -> int:
    """Return `value / unit`; raise `ValueRangeError` if it is not a whole number."""
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


CONVERSIONS: dict[BasicKind, TimeConversion] = {
    BasicKind.DATE: TimeConversion(
        lambda value: _whole(_write_datetime(value), 1000, "milliseconds"), lambda millis: _read_datetime(millis * 1000)
    ),
    BasicKind.SQL_DATE: TimeConversion(
        lambda value: _write_day(value) * _MILLIS_OF_DAY,
        lambda millis: _read_day(_whole(millis, _MILLIS_OF_DAY, "days of UTC")),
    ),
    BasicKind.SQL_TIME: TimeConversion(
        lambda value: _whole(_write_time(value), 1000, "milliseconds"), lambda millis: _read_time(millis * 1000)
    ),
    BasicKind.SQL_TIMESTAMP: TimeConversion(_write_sql_timestamp, _read_sql_timestamp),
    BasicKind.INSTANT: TimeConversion(_write_instant, lambda value: Instant(value["epoch_second"], value["nano"])),
    BasicKind.LOCAL_DATE: TimeConversion(_write_day, _read_day),
    BasicKind.LOCAL_TIME: TimeConversion(
        lambda value: _write_time(value) * 1000, lambda nanos: _read_time(_whole(nanos, 1000, "microseconds"))
    ),
    BasicKind.LOCAL_DATE_TIME: TimeConversion(_write_local_date_time, _read_local_date_time),
}
"""Conversions by kind of `serializers.tree.Basic`; values of other kinds are the same in Python and in the scalar
codec."""

_SLOTS = ("_fields", "_values", "_row_kind")
_SHORT_KINDS = ("+I", "-U", "+U", "-D")


class RowKind(Enum):
    """The kind of change that a row is (`org.apache.flink.types.RowKind`)."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    def __str__(self) -> str:
        return _SHORT_KINDS[self.value]


class Row:
    """Values by position, and by name where the row has names.

    `Row(1, "a")` has no names. `Row(id=1, text="a")` has names, in alphabetical order. A row of names is a factory:
    `Order = Row("id", "text")`, then `Order(1, "a")`.

    Raises:
        UsageError: values with and without names.
    """

    _fields: list[str] | None
    _values: list[Any]
    _row_kind: RowKind

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args and kwargs:
            raise UsageError("a Row takes values with names or without, not both")
        names = sorted(kwargs)
        self._fields = names if kwargs else None
        self._values = [kwargs[name] for name in names] if kwargs else list(args)
        self._row_kind = RowKind.INSERT

    @staticmethod
    def of_kind(row_kind: RowKind, *args: Any, **kwargs: Any) -> Row:
        """Make a row of a kind."""
        row = Row(*args, **kwargs)
        row.set_row_kind(row_kind)
        return row

    def get_row_kind(self) -> RowKind:
        """Return the kind of change."""
        return self._row_kind

    def set_row_kind(self, row_kind: RowKind) -> None:
        """Set the kind of change."""
        self._row_kind = row_kind

    def set_field_names(self, field_names: Sequence[str]) -> None:
        """Name the fields, by position."""
        self._fields = list(field_names)

    def get_fields_by_names(self, names: Sequence[str]) -> list[Any]:
        """Return the values of some fields, in the order of `names`; a row without names returns all its values.

        Raises:
            UsageError: the row has no field of a name.
        """
        if self._fields is None:
            return self._values
        missing = [name for name in names if name not in self._fields]
        if missing:
            raise UsageError(f"{self!r:.80} has no field {', '.join(missing)}")
        return [self._values[self._fields.index(name)] for name in names]

    def as_dict(self, recursive: bool = False) -> dict[str, Any]:
        """Return the values by name.

        Args:
            recursive: convert rows inside the values too.

        Raises:
            UsageError: the row has no names.
        """
        if self._fields is None:
            raise UsageError(f"{self!r:.80} has no names of fields")
        values = map(_plain, self._values) if recursive else self._values
        return dict(zip(self._fields, values, strict=True))

    def __call__(self, *args: Any) -> Row:
        """Make a row of these names.

        Raises:
            UsageError: more values than names.
        """
        if len(args) > len(self._values):
            raise UsageError(f"{len(args)} values are given for the fields {', '.join(map(str, self._values))}")
        row = Row(*args)
        row.set_field_names(self._values[: len(args)])
        row.set_row_kind(self._row_kind)
        return row

    def _position(self, name: str) -> int:
        if self._fields is None or name not in self._fields:
            raise KeyError(name)
        return self._fields.index(name)

    def __contains__(self, item: object) -> bool:
        return item in (self._values if self._fields is None else self._fields)

    def __getitem__(self, item: int | slice | str) -> Any:
        return self._values[self._position(item) if isinstance(item, str) else item]

    def __setitem__(self, key: int | slice | str, value: Any) -> None:
        self._values[self._position(key) if isinstance(key, str) else key] = value

    def __getattr__(self, item: str) -> Any:
        if item.startswith("_"):
            raise AttributeError(item)
        try:
            return self._values[self._position(item)]
        except KeyError:
            raise AttributeError(f"{self!r:.80} has no field {item}") from None

    def __setattr__(self, key: str, value: Any) -> None:
        if key not in _SLOTS:
            raise AttributeError(f"fields of a Row are set by row[{key!r}] = …")
        self.__dict__[key] = value

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._fields, self._values, self._row_kind)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        names = sorted(self._fields) if self._fields is not None else ()
        return hash(tuple(self.get_fields_by_names(names)))

    def __eq__(self, other: object) -> bool:
        """Compare kind and values: by name where both rows have names, by position where neither has."""
        if not isinstance(other, Row) or self._row_kind != other._row_kind:
            return False
        if self._fields is None or other._fields is None:
            return self._fields is other._fields and self._values == other._values
        return sorted(self._fields) == sorted(other._fields) and self._values == other.get_fields_by_names(self._fields)

    def __repr__(self) -> str:
        if self._fields is None:
            return f"<Row({', '.join(map(repr, self._values))})>"
        return f"Row({', '.join(f'{name}={value!r}' for name, value in zip(self._fields, self._values, strict=False))})"


def _restore(fields: list[str] | None, values: list[Any], row_kind: RowKind) -> Row:
    row = Row.of_kind(row_kind, *values)
    if fields is not None:
        row.set_field_names(fields)
    return row


def _plain(value: Any) -> Any:
    match value:
        case Row():
            return value.as_dict(recursive=True)
        case list():
            return [_plain(each) for each in value]
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case _:
            return value


_JAVA_LANG = {BasicKind.INT: "Integer", BasicKind.CHAR: "Character", BasicKind.VOID: "Void"}
_ARRAY_CODES = {
    BasicKind.BOOLEAN: "Z",
    BasicKind.BYTE: "B",
    BasicKind.SHORT: "S",
    BasicKind.CHAR: "C",
    BasicKind.INT: "I",
    BasicKind.LONG: "J",
    BasicKind.FLOAT: "F",
    BasicKind.DOUBLE: "D",
}
_CLASSES = {
    BasicKind.BIG_INT: "java.math.BigInteger",
    BasicKind.BIG_DEC: "java.math.BigDecimal",
    BasicKind.DATE: "java.util.Date",
    BasicKind.SQL_DATE: "java.sql.Date",
    BasicKind.SQL_TIME: "java.sql.Time",
    BasicKind.SQL_TIMESTAMP: "java.sql.Timestamp",
    BasicKind.INSTANT: "java.time.Instant",
    BasicKind.LOCAL_DATE: "java.time.LocalDate",
    BasicKind.LOCAL_TIME: "java.time.LocalTime",
    BasicKind.LOCAL_DATE_TIME: "java.time.LocalDateTime",
}


TypeDescription: TypeAlias = "TypeInformation | Serializer | str | type"
"""A type, or another description of one (see `Types.of`)."""


class TypeInformation(ABC):
    """The type of values of a state, a key, a namespace or a field."""

    @property
    @abstractmethod
    def serializer(self) -> Serializer:
        """The serializer that Java Flink creates for the type."""

    @property
    @abstractmethod
    def java_class(self) -> str:
        """Binary name of the Java class of the values; serializers of arrays store it as the element class."""

    def need_conversion(self) -> bool:
        """Return whether values in Python differ from those of the scalar codec."""
        return type(self).to_internal_type is not TypeInformation.to_internal_type

    def to_internal_type(self, obj: Any) -> Any:
        """Convert a Python value to a value of the scalar codec.

        Raises:
            ValueRangeError: `obj` is not a value of the type.
        """
        return obj

    def from_internal_type(self, obj: Any) -> Any:
        """Convert a value of the scalar codec to a Python value.

        Raises:
            ValueRangeError: Python has no such value.
        """
        return obj

    def __str__(self) -> str:
        return describe(self.serializer)


@dataclass(frozen=True, repr=False)
class BasicTypeInfo(TypeInformation):
    """Numbers, text, dates, times and arrays of primitive numbers.

    Attributes:
        kind: of the serializer.
    """

    kind: BasicKind

    @cached_property
    def serializer(self) -> Serializer:
        """The serializer of the kind."""
        return build.basic(self.kind)

    @property
    def java_class(self) -> str:
        """Binary name of the Java class of the kind; of an array, the array class such as `[I`."""
        if self.kind == BasicKind.STRING_ARRAY:
            return "[Ljava.lang.String;"
        if self.kind in COMPONENTS:
            return f"[{_ARRAY_CODES[COMPONENTS[self.kind]]}"
        return _CLASSES.get(self.kind) or f"java.lang.{_JAVA_LANG.get(self.kind, self.kind)}"

    def need_conversion(self) -> bool:
        """Return whether the kind is a date or a time."""
        return self.kind in CONVERSIONS

    def to_internal_type(self, obj: Any) -> Any:
        """Convert a date or a time; other values are the same in the scalar codec."""
        conversion = CONVERSIONS.get(self.kind)
        return obj if conversion is None or obj is None else conversion.write(obj)

    def from_internal_type(self, obj: Any) -> Any:
        """Convert to a date or a time; other values are the same in the scalar codec."""
        conversion = CONVERSIONS.get(self.kind)
        return obj if conversion is None or obj is None else conversion.read(obj)

    def __repr__(self) -> str:
        return f"{self.kind}TypeInfo"


@dataclass(frozen=True)
class GivenTypeInfo(TypeInformation):
    """A type that is made from its serializer, instead of deriving the serializer.

    Attributes:
        stored: the serializer.
    """

    stored: Serializer

    @property
    def serializer(self) -> Serializer:
        """The serializer itself."""
        return self.stored


@dataclass(frozen=True)
class StoredTypeInfo(GivenTypeInfo):
    """Values of any serializer as the scalar codec has them, without conversion."""

    @property
    def java_class(self) -> str:
        """The class of the values that the serializer names.

        Raises:
            UsageError: the serializer names none.
        """
        for name in ("pojo_class", "type_class", "runtime_class", "enum_class", "tuple_class"):
            if hasattr(self.stored, name):
                return str(getattr(self.stored, name))
        raise UsageError(
            f"{describe(self.stored)} does not name the class of its values, which an array stores",
            hint="Take the serializer of the whole array from a snapshot",
        )


@dataclass(frozen=True)
class ListTypeInfo(TypeInformation):
    """Lists (`ListTypeInfo` of Java, `ListSerializer`)."""

    elem_type: TypeInformation

    @cached_property
    def serializer(self) -> Serializer:
        """`ListSerializer`."""
        return build.list_of(self.elem_type.serializer)

    @property
    def java_class(self) -> str:
        """`java.util.List`."""
        return "java.util.List"

    def need_conversion(self) -> bool:
        """Return whether elements are converted."""
        return self.elem_type.need_conversion()

    def to_internal_type(self, obj: Any) -> Any:
        """Convert the elements."""
        return None if obj is None else convert_elements(obj, self.elem_type)

    def from_internal_type(self, obj: Any) -> Any:
        """Convert the elements."""
        if obj is None or not self.elem_type.need_conversion():
            return obj
        return [self.elem_type.from_internal_type(each) for each in obj]


@dataclass(frozen=True)
class ArrayTypeInfo(ListTypeInfo):
    """Arrays whose elements are objects or null (`GenericArraySerializer`): `BASIC_ARRAY` and `OBJECT_ARRAY`."""

    @cached_property
    def serializer(self) -> Serializer:
        """`GenericArraySerializer`."""
        return build.generic_array(self.elem_type.java_class, self.elem_type.serializer)

    @property
    def java_class(self) -> str:
        """Binary name of the array class, such as `[Ljava.lang.Integer;`."""
        inner = self.elem_type.java_class
        return f"[{inner}" if inner.startswith("[") else f"[L{inner};"


@dataclass(frozen=True)
class SetTypeInfo(ListTypeInfo):
    """Sets (`SetSerializer`, since Flink 2.0)."""

    java_class = "java.util.Set"

    @cached_property
    def serializer(self) -> Serializer:
        """`SetSerializer`."""
        return build.set_of(self.elem_type.serializer)

    def need_conversion(self) -> bool:
        """Return True: a set is a list in the scalar codec."""
        return True

    def from_internal_type(self, obj: Any) -> Any:
        """Convert a list to a set."""
        return None if obj is None else set(super().from_internal_type(obj))


@dataclass(frozen=True)
class MapTypeInfo(TypeInformation):
    """Maps (`MapSerializer`): dicts in Python, a list of (key, value) in the scalar codec."""

    key_type: TypeInformation
    value_type: TypeInformation

    java_class = "java.util.Map"

    @cached_property
    def serializer(self) -> Serializer:
        """`MapSerializer`."""
        return build.map_of(self.key_type.serializer, self.value_type.serializer)

    def to_internal_type(self, obj: Any) -> Any:
        """Convert a dict to a list of (key, value)."""
        if obj is None:
            return None
        if not isinstance(obj, Mapping):
            raise ValueRangeError(f"{obj!r:.80} is not a dict")
        key, value = self.key_type.to_internal_type, self.value_type.to_internal_type
        return [(key(name), value(item)) for name, item in obj.items()]

    def from_internal_type(self, obj: Any) -> Any:
        """Convert a list of (key, value) to a dict."""
        if obj is None:
            return None
        key, value = self.key_type.from_internal_type, self.value_type.from_internal_type
        try:
            return {key(name): value(item) for name, item in obj}
        except TypeError as error:
            raise ValueRangeError(
                f"keys of {self} cannot be keys of a dict: {error}",
                hint="Types.of(serializer, stored=True) reads maps as lists of (key, value)",
            ) from None


@dataclass(frozen=True)
class EnumTypeInfo(GivenTypeInfo):
    """Java enums (`EnumSerializer`): the names of their constants."""

    stored: tree_Enum

    @property
    def java_class(self) -> str:
        """The class of the enum."""
        return self.stored.enum_class


@dataclass(frozen=True)
class WrappedTypeInfo(GivenTypeInfo):
    """A type whose serializer differs from the one that it would derive, such as a nullable type with a null flag.

    Attributes:
        stored: the serializer to use.
        inner: type of the values.
    """

    inner: TypeInformation

    @property
    def java_class(self) -> str:
        """The class of the values."""
        return self.inner.java_class

    def need_conversion(self) -> bool:
        """Return whether the values are converted."""
        return self.inner.need_conversion()

    def to_internal_type(self, obj: Any) -> Any:
        """Convert the value; null stays null."""
        return None if obj is None else self.inner.to_internal_type(obj)

    def from_internal_type(self, obj: Any) -> Any:
        """Convert the value; null stays null."""
        return read_nullable(self.inner, obj)


def convert_elements(values: Iterable[Any], element: TypeInformation) -> list[Any]:
    """Convert elements to values of the scalar codec.

    Raises:
        ValueRangeError: `values` is no list, or an element is not of the type.
    """
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise ValueRangeError(f"{values!r:.80} is not a list")
    return [element.to_internal_type(each) for each in values] if element.need_conversion() else list(values)


def read_nullable(of: TypeInformation, value: Any) -> Any:
    """Convert a value of the scalar codec to a Python value; null stays null."""
    return None if value is None else of.from_internal_type(value)
