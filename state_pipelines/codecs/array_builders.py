"""Array builders: kernel columns to Arrow arrays and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from state_pipelines.codecs import logical_values
from state_pipelines.codecs.java import MAX_BYTES, check_number
from state_pipelines.codecs.kernels import opcodes as op
from state_pipelines.codecs.kernels.strings import format_numbers, parse_numbers
from state_pipelines.codecs.layout import ROW_KINDS, LogicalKind, PrimitiveKind
from state_pipelines.codecs.logical_values import flatten_entries
from state_pipelines.errors import FormatError, UnsupportedError, ValueRangeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from state_pipelines.codecs.kernels.buffers import InputColumns, OutputColumns

_PRIMITIVES: dict[PrimitiveKind, tuple[str, pa.DataType]] = {
    PrimitiveKind.BOOL: ("u1", pa.bool_()),
    PrimitiveKind.I8: ("i1", pa.int8()),
    PrimitiveKind.I16: ("i2", pa.int16()),
    PrimitiveKind.U16: ("u2", pa.int32()),
    PrimitiveKind.I32: ("i4", pa.int32()),
    PrimitiveKind.I64: (PrimitiveKind.I8, pa.int64()),
    PrimitiveKind.F32: ("f4", pa.float32()),
    PrimitiveKind.F64: ("f8", pa.float64()),
}


@dataclass(frozen=True)
class ArrayBuilder(ABC):
    """Conversion between the kernel columns of one layout node and an Arrow array.

    Attributes:
        main: kernel column with the nulls of the values; -1 when the field is skipped.
    """

    main: int

    @property
    @abstractmethod
    def type(self) -> pa.DataType:
        """Arrow type."""

    def level_columns(self) -> tuple[int, ...]:
        """Return the kernel columns with one entry per value, excluding those inside lists."""
        return (self.main,)

    @abstractmethod
    def finish(self, columns: OutputColumns) -> pa.Array:
        """Convert the kernel columns to an Arrow array after decoding."""

    @abstractmethod
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        """Convert an Arrow array of exactly `type` to kernel columns before encoding."""

    def build(self, columns: OutputColumns, *buffers: np.ndarray, children: Sequence[pa.Array] = ()) -> pa.Array:
        """Make an array of `type` with the nulls of `main`.

        Args:
            columns: the kernel columns, filled by decoding.
            buffers: the Arrow buffers of `type` that follow the validity bitmap.
            children: the child arrays of a nested type.
        """
        nulls = logical_values.bitmap(columns.valid(self.main))
        held = [nulls, *map(pa.py_buffer, buffers)]
        return pa.Array.from_buffers(self.type, columns.count(self.main), held, children=list(children))


@dataclass(frozen=True)
class PrimitiveBuilder(ArrayBuilder):
    """Builder of numbers and booleans."""

    kind: PrimitiveKind

    @property
    @override
    def type(self) -> pa.DataType:
        return _PRIMITIVES[self.kind][1]

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        values = columns.fixed(self.main, _PRIMITIVES[self.kind][0])
        if self.kind == PrimitiveKind.BOOL:
            values = np.packbits(values != 0, bitorder="little")
        elif self.kind == PrimitiveKind.U16:
            values = values.astype(np.int32)
        return self.build(columns, values)

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        filled = array.fill_null(False) if self.kind == PrimitiveKind.BOOL else array.fill_null(0)
        values = filled.to_numpy(zero_copy_only=False)
        if self.kind == PrimitiveKind.U16 and len(values) and (values.min() < 0 or values.max() > 0xFFFF):
            raise ValueRangeError("a Java char is outside 0 to 65535")
        columns.set_fixed(self.main, values.astype(_PRIMITIVES[self.kind][0]), array)


@dataclass(frozen=True)
class LogicalBuilder(ArrayBuilder):
    """Builder of values that consist of several fixed-width components (see `logical_values`)."""

    name: LogicalKind
    columns: tuple[int, ...]

    @property
    @override
    def type(self) -> pa.DataType:
        return logical_values.ARROW_TYPES[self.name]

    @override
    def level_columns(self) -> tuple[int, ...]:
        return self.columns

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        components = [columns.fixed(column, f"i{columns.kinds[column].width}") for column in self.columns]
        return logical_values.combine(self.name, components, columns.valid(self.main))

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        for index, values in zip(self.columns, logical_values.split(self.name, array), strict=True):
            columns.set_fixed(index, values, array)


@dataclass(frozen=True)
class TextBuilder(ArrayBuilder):
    """Builder of Flink strings."""

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.string()

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        return self.build(columns, columns.offsets(self.main), columns.data(self.main))

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        columns.set_variable(self.main, array)


@dataclass(frozen=True)
class SizedBuilder(TextBuilder):
    """Builder of bytes, or of text stored as UTF-8."""

    text: bool

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.string() if self.text else pa.binary()

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        array = super().finish(columns)
        if self.text:
            try:
                array.validate(full=True)
            except pa.ArrowInvalid as error:
                raise FormatError(f"a string is not UTF-8: {error}") from None
        return array


@dataclass(frozen=True)
class NumberBuilder(ArrayBuilder):
    """Builder of `BigInteger`, or `BigDecimal` with its scale, as decimal text (`BigDecimal.toString`)."""

    scale: int = -1

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.string()

    @override
    def level_columns(self) -> tuple[int, ...]:
        return (self.main, self.scale)

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        offsets, data = columns.offsets(self.main), columns.data(self.main)
        valid = columns.valid(self.main)
        flags = np.zeros(0, np.uint8) if valid is None else valid.view(np.uint8)
        count = len(offsets) - 1
        scales = columns.fixed(self.scale, np.int32) if self.scale >= 0 else np.zeros(0, np.int32)
        if count:
            check_number(int(np.diff(offsets).max()))
        text_offsets = np.zeros(count + 1, np.int32)
        size = min(3 * len(data) + 64 * count + 1024, op.MAX_OFFSET)
        text = np.empty(size, np.uint8)
        while format_numbers(offsets, data.ctypes.data, scales, flags, text_offsets, text.ctypes.data, size) < count:
            if size == op.MAX_OFFSET:
                raise ValueRangeError(
                    "the texts of a column of numbers take more than 2 GiB", hint="decode fewer records at a time"
                )
            size = min(4 * size, op.MAX_OFFSET)
            text = np.empty(size, np.uint8)
        return self.build(columns, text_offsets, text)

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        _, offset_buffer, text = array.buffers()
        count = len(array)
        text_offsets = (
            np.zeros(count + 1, np.int32)
            if offset_buffer is None
            else np.frombuffer(offset_buffer, np.int32, count + 1, 4 * array.offset)
        )
        flags = np.asarray(array.is_valid()).view(np.uint8) if array.null_count else np.zeros(0, np.uint8)
        offsets = np.zeros(count + 1, np.int32)
        scales = np.zeros(count, np.int32)
        size = int(text_offsets[-1] - text_offsets[0]) + 8 * count + 64
        data = np.empty(size, np.uint8)
        done, wrong = parse_numbers(
            text_offsets, text.address if text else 0, flags, self.scale < 0, offsets, data.ctypes.data, size, scales
        )
        if wrong or done < count:
            kind = "a whole number" if self.scale < 0 else "a decimal number"
            raise ValueRangeError(f"{array[done].as_py()!r:.80} is not {kind} of at most {MAX_BYTES} bytes")
        columns.set_bytes(self.main, offsets, data, array)
        if self.scale >= 0:
            columns.set_fixed(self.scale, scales, pa.array(scales))


@dataclass(frozen=True)
class ConstantsBuilder(ArrayBuilder):
    """Builder of enum constants, as their names.

    Attributes:
        numbers: stored number of each name; None if the index of the name is stored.
    """

    names: tuple[str, ...]
    numbers: tuple[int, ...] | None = None

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.string()

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        indices = columns.fixed(self.main, np.int32)
        valid = columns.valid(self.main)
        if self.numbers is not None:
            found = pc.index_in(pa.array(indices), pa.array(self.numbers, pa.int32()))
            indices = found.fill_null(-1).to_numpy()
        return take_names(self.names, indices, valid)

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        indices = pc.index_in(array, pa.array(self.names, pa.string()))
        unknown = pc.and_(indices.is_null(), array.is_valid())
        if pc.any(unknown).as_py():
            name = array.filter(unknown)[0].as_py()
            raise ValueRangeError(f"{name!r} is not one of the enum's constants {', '.join(self.names)}")
        numbers = indices.fill_null(0).to_numpy()
        if self.numbers is not None:
            numbers = np.array(self.numbers, np.int32)[numbers]
        columns.set_fixed(self.main, numbers, array)


@dataclass(frozen=True)
class ConstantBuilder(ArrayBuilder):
    """Builder of values without content: always null, or an object without fields (an empty struct).

    Attributes:
        empty: the values are objects without fields, not null.
    """

    empty: bool

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.struct([]) if self.empty else pa.null()

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        return self.build(columns) if self.empty else pa.nulls(columns.count(self.main))

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        # The kernel needs the validity of objects, and of nullable values to write their flags. Other values have no
        # flag, so their number suffices.
        if self.empty or columns.kinds[self.main].nullable:
            columns.set_validity(self.main, array)
        else:
            columns.set_length(self.main, len(array))


@dataclass(frozen=True)
class SpanBuilder(ArrayBuilder):
    """Builder of the offsets of values in the decoded data, as structs of `start` and `stop`.

    Attributes:
        stop: column of the end offset (exclusive).
    """

    stop: int

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.struct([pa.field("start", pa.int64(), False), pa.field("stop", pa.int64(), False)])

    @override
    def level_columns(self) -> tuple[int, ...]:
        return (self.main, self.stop)

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        bounds = [pa.array(columns.fixed(column, "i8")) for column in (self.main, self.stop)]
        return self.build(columns, children=bounds)

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        raise UnsupportedError("offsets of values cannot be written")


def take_names(names: tuple[str, ...], indices: np.ndarray, valid: logical_values.Mask) -> pa.Array:
    """Return the names at `indices` as strings, null where `valid` is False.

    Raises:
        FormatError: an index is out of range.
    """
    known = (indices >= 0) & (indices < len(names))
    if not bool((known if valid is None else known | ~valid).all()):
        raise FormatError(f"an index is outside the {len(names)} constants that the serializer snapshot lists")
    return pa.array(names, pa.string()).take(pa.array(indices, mask=None if valid is None else ~valid))


@dataclass(frozen=True)
class StructBuilder(ArrayBuilder):
    """Builder of tuples, rows and POJOs.

    Attributes:
        kind_column: column of the row kind; -1 when there is none or it is skipped.
        classes: the classes of the objects, the declared class first; empty without subclasses.
        class_column: column of the index into `classes`.
    """

    fields: tuple[tuple[str, ArrayBuilder], ...]
    kind_column: int = -1
    classes: tuple[str, ...] = ()
    class_column: int = -1

    @property
    @override
    def type(self) -> pa.DataType:
        extra = [(name, pa.string()) for name, column in self._named_columns() if column >= 0]
        return pa.struct([*extra, *((name, builder.type) for name, builder in self.fields if builder.main >= 0)])

    def _named_columns(self) -> tuple[tuple[str, int], ...]:
        return (("class", self.class_column), ("row_kind", self.kind_column))

    @override
    def level_columns(self) -> tuple[int, ...]:
        below = [column for _, builder in self.fields for column in builder.level_columns()]
        return (self.main, self.kind_column, self.class_column, *below)

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        children = []
        for name, column in self._named_columns():
            if column >= 0:
                names, dtype = (self.classes, np.int32) if name == "class" else (ROW_KINDS, np.uint8)
                children.append(take_names(names, columns.fixed(column, dtype).astype(np.int32), None))
        children += [builder.finish(columns) for _, builder in self.fields if builder.main >= 0]
        return self.build(columns, children=children)

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        columns.set_validity(self.main, array)
        children = _children(array)
        index = 0
        for name, column in self._named_columns():
            if column >= 0:
                names, dtype = (self.classes, np.int32) if name == "class" else (ROW_KINDS, np.uint8)
                numbers = _numbers_of(names, children[index], name)
                columns.set_fixed(column, numbers.astype(dtype), pa.array(numbers))
                index += 1
        for _, builder in self.fields:
            builder.prepare(children[index], columns)
            index += 1


@dataclass(frozen=True)
class ChoiceBuilder(ArrayBuilder):
    """Builder of `Either` values, as structs of `is_left`, `left` and `right`."""

    flag: int
    left: ArrayBuilder
    right: ArrayBuilder

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.struct([("is_left", pa.bool_()), ("left", self.left.type), ("right", self.right.type)])

    @override
    def level_columns(self) -> tuple[int, ...]:
        return (self.main, self.flag, *self.left.level_columns(), *self.right.level_columns())

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        flags = np.packbits(columns.fixed(self.flag, np.uint8) != 0, bitorder="little")
        count = columns.count(self.main)
        is_left = pa.Array.from_buffers(pa.bool_(), count, [None, pa.py_buffer(flags)])
        return self.build(columns, children=[is_left, self.left.finish(columns), self.right.finish(columns)])

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        columns.set_validity(self.main, array)
        children = _children(array)
        if children[0].null_count > array.null_count:
            raise ValueRangeError("is_left is null in an Either that is not null")
        flags = children[0].fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint8)
        columns.set_fixed(self.flag, flags, pa.array(flags))
        self.left.prepare(children[1], columns)
        self.right.prepare(children[2], columns)


@dataclass(frozen=True)
class CaseBuilder(ArrayBuilder):
    """Builder of tagged values, as structs of `case` (the name of the case) and one field per case with content.

    Attributes:
        case: column of the index of the case.
        cases: name and builder of each case.
    """

    case: int
    cases: tuple[tuple[str, ArrayBuilder], ...]

    @property
    def _fields(self) -> list[tuple[str, ArrayBuilder]]:
        return [(name, builder) for name, builder in self.cases if not _is_void(builder)]

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.struct([("case", pa.string()), *((name, builder.type) for name, builder in self._fields)])

    @override
    def level_columns(self) -> tuple[int, ...]:
        below = [column for _, builder in self.cases for column in builder.level_columns()]
        return (self.main, self.case, *below)

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        names = tuple(name for name, _ in self.cases)
        cases = take_names(names, columns.fixed(self.case, np.int32), None)
        children = [cases, *(builder.finish(columns) for _, builder in self._fields)]
        return self.build(columns, children=children)

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        columns.set_validity(self.main, array)
        children = _children(array)
        if children[0].null_count > array.null_count:
            raise ValueRangeError("`case` is null in a value that is not null")
        numbers = _numbers_of(tuple(name for name, _ in self.cases), children[0], "case")
        columns.set_fixed(self.case, numbers.astype(np.int32), pa.array(numbers))
        for index, (_, builder) in enumerate(self._fields, 1):
            builder.prepare(children[index], columns)
        for _, builder in self.cases:
            if _is_void(builder):
                builder.prepare(pa.nulls(len(array)), columns)


@dataclass(frozen=True)
class ListBuilder(ArrayBuilder):
    """Builder of lists."""

    element: ArrayBuilder

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.list_(self.element.type)

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        return self.build(columns, columns.offsets(self.main), children=[self.element.finish(columns)])

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        columns.set_variable(self.main, array)
        self.element.prepare(array.flatten(), columns)


@dataclass(frozen=True)
class MapBuilder(ArrayBuilder):
    """Builder of maps; their entries keep the order in which they are stored."""

    key: ArrayBuilder
    value: ArrayBuilder

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.map_(self.key.type, self.value.type)

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        keys = self.key.finish(columns)
        if keys.null_count:
            raise ValueRangeError("a map has a null key, which Arrow and Spark cannot represent")
        fields = [pa.field("key", keys.type, nullable=False), pa.field("value", self.value.type)]
        entries = pa.StructArray.from_arrays([keys, self.value.finish(columns)], fields=fields)
        return self.build(columns, columns.offsets(self.main), children=[entries])

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        columns.set_variable(self.main, array)
        entries = flatten_entries(array)
        self.key.prepare(entries.field(0), columns)
        self.value.prepare(entries.field(1), columns)


def _is_void(builder: ArrayBuilder) -> bool:
    """Return whether the values of a builder are always null."""
    return isinstance(builder, ConstantBuilder) and not builder.empty


def _children(array: pa.StructArray) -> list[pa.Array]:
    """Return the children of a struct, null wherever the struct is null (values under a null are undefined)."""
    if array.null_count:
        children: list[pa.Array] = array.flatten()
        return children
    return [array.field(index) for index in range(array.type.num_fields)]


def _numbers_of(names: tuple[str, ...], array: pa.Array, what: str) -> np.ndarray:
    """Return the index in `names` of each string of `array`, 0 for null; ValueRangeError if a string is not in it."""
    indices = pc.index_in(array, pa.array(names, pa.string()))
    unknown = pc.and_(indices.is_null(), array.is_valid())
    if pc.any(unknown).as_py():
        raise ValueRangeError(f"{array.filter(unknown)[0].as_py()!r} is not a known {what} ({', '.join(names)})")
    numbers: np.ndarray = indices.fill_null(0).to_numpy()
    return numbers


COMPACT_DECIMAL = 18
"""Largest precision of a DECIMAL that is stored as a long."""
COMPACT_TIMESTAMP = 3
"""Largest precision of a TIMESTAMP that is stored without nanoseconds."""
_MICROS, _NANOS = 6, 9
_NANOS_OF_MILLI = 1_000_000
_MILLIS_OF_DAY = 86_400_000


@dataclass(frozen=True)
class DecimalBuilder(ArrayBuilder):
    """Builder of DECIMAL values: kernel columns of a long up to precision 18, else of 16 bytes."""

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
        array = self.build(columns, values)
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
        # Arrow stores a decimal as two i64, the lower half first; precisions up to 18 need only the lower half.
        values = _view_values(array, np.int64, 2).reshape(-1, 2)
        columns.set_fixed(self.main, values[:, 0] if self.width == 8 else values.view("V16").ravel(), array)


@dataclass(frozen=True)
class TimestampBuilder(ArrayBuilder):
    """Builder of TIMESTAMP and TIMESTAMP_LTZ: in Arrow milliseconds up to precision 3, microseconds up to 6, or nanos.

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
        return self.build(columns, values)

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        values = _view_values(array, np.int64)
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
    """Builder of numbers that Arrow stores with the same bits: days of a date, milliseconds of an interval."""

    of: pa.DataType

    @property
    @override
    def type(self) -> pa.DataType:
        return self.of

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        return self.build(columns, columns.fixed(self.main, f"i{self.of.bit_width // 8}"))

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        columns.set_fixed(self.main, _view_values(array, f"i{self.of.bit_width // 8}"), array)


@dataclass(frozen=True)
class TimeOfDayBuilder(ArrayBuilder):
    """Builder of TIME values: milliseconds of the day, which become nanoseconds in Arrow, as for `LocalTime`."""

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
        return self.build(columns, millis * _NANOS_OF_MILLI)

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        values = _view_values(array, np.int64)
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


def _view_values(array: pa.Array, dtype: npt.DTypeLike, per_value: int = 1) -> np.ndarray:
    """Return the numbers in the data buffer of a fixed-width array, `per_value` per value; zeros without a buffer."""
    buffer, numbers = array.buffers()[1], np.dtype(dtype)
    if buffer is None:
        return np.zeros(per_value * len(array), numbers)
    return np.frombuffer(buffer, numbers, per_value * len(array), per_value * numbers.itemsize * array.offset)
