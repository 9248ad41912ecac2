"""Parts: how the kernel columns of one layout node become an Arrow array, and the way back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from state_pipelines.codecs import logical
from state_pipelines.codecs import opcodes as op
from state_pipelines.codecs.bignumbers import MAX_BYTES, format_numbers, parse_numbers
from state_pipelines.codecs.conform import flatten_entries
from state_pipelines.codecs.layout import ROW_KINDS
from state_pipelines.errors import FormatError, UnsupportedError, ValueRangeError

if TYPE_CHECKING:
    from state_pipelines.codecs.buffers import InputColumns, OutputColumns

_PRIMITIVES: dict[str, tuple[str, pa.DataType]] = {
    "bool": ("u1", pa.bool_()),
    "i8": ("i1", pa.int8()),
    "i16": ("i2", pa.int16()),
    "u16": ("u2", pa.int32()),
    "i32": ("i4", pa.int32()),
    "i64": ("i8", pa.int64()),
    "f32": ("f4", pa.float32()),
    "f64": ("f8", pa.float64()),
}


@dataclass(frozen=True)
class Part(ABC):
    """Base of all parts.

    Attributes:
        main: the kernel column that holds the nulls of this part; -1 when nobody asked for the part.
    """

    main: int

    @property
    @abstractmethod
    def type(self) -> pa.DataType:
        """Arrow type."""

    def level_columns(self) -> tuple[int, ...]:
        """Kernel columns that hold one value for each value of this part (not those inside its lists)."""
        return (self.main,)

    @abstractmethod
    def finish(self, columns: OutputColumns) -> pa.Array:
        """Kernel columns to an Arrow array, after decoding."""

    @abstractmethod
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        """An Arrow array of exactly `type` to kernel columns, before encoding."""


@dataclass(frozen=True)
class PrimitivePart(Part):
    """A number or a boolean."""

    kind: str

    @property
    @override
    def type(self) -> pa.DataType:
        return _PRIMITIVES[self.kind][1]

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        dtype, target = _PRIMITIVES[self.kind]
        values = columns.fixed(self.main, dtype)
        if self.kind == "bool":
            values = np.packbits(values != 0, bitorder="little")
        elif self.kind == "u16":
            values = values.astype(np.int32)
        nulls = logical.bitmap(columns.valid(self.main))
        return pa.Array.from_buffers(target, columns.count(self.main), [nulls, pa.py_buffer(values)])

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        filled = array.fill_null(False) if self.kind == "bool" else array.fill_null(0)
        values = filled.to_numpy(zero_copy_only=False)
        if self.kind == "u16" and len(values) and (values.min() < 0 or values.max() > 0xFFFF):
            raise ValueRangeError("a Java char lies outside 0 to 65535")
        columns.set_fixed(self.main, values.astype(_PRIMITIVES[self.kind][0]), array)


@dataclass(frozen=True)
class LogicalPart(Part):
    """Fixed-width parts that mean one value (see `logical`)."""

    name: str
    columns: tuple[int, ...]

    @property
    @override
    def type(self) -> pa.DataType:
        return logical.ARROW_TYPES[self.name]

    @override
    def level_columns(self) -> tuple[int, ...]:
        return self.columns

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        parts = [columns.fixed(column, f"i{columns.kinds[column].width}") for column in self.columns]
        return logical.combine(self.name, parts, columns.valid(self.main))

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        for index, values in zip(self.columns, logical.split(self.name, array), strict=True):
            columns.set_fixed(index, values, array)


@dataclass(frozen=True)
class TextPart(Part):
    """A string."""

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.string()

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        return _variable(pa.string(), self.main, columns)

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        columns.set_variable(self.main, array)


@dataclass(frozen=True)
class SizedPart(Part):
    """Bytes, or text stored as UTF-8."""

    text: bool

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.string() if self.text else pa.binary()

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        array = _variable(self.type, self.main, columns)
        if self.text:
            try:
                array.validate(full=True)
            except pa.ArrowInvalid as error:
                raise FormatError(f"a string is not UTF-8: {error}") from None
        return array

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        columns.set_variable(self.main, array)


@dataclass(frozen=True)
class NumberPart(Part):
    """`BigInteger`, or `BigDecimal` with its scale, as decimal text (`BigDecimal.toString`)."""

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
        if count and np.diff(offsets).max() > MAX_BYTES:
            raise ValueRangeError(f"a number of more than {MAX_BYTES} bytes has no decimal text here")
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
        return pa.Array.from_buffers(
            pa.string(), count, [logical.bitmap(valid), pa.py_buffer(text_offsets), pa.py_buffer(text)]
        )

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
class ConstantsPart(Part):
    """A constant of an enum, by name.

    Attributes:
        numbers: what stands for each name on the wire; None are the positions.
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
            places = pc.index_in(pa.array(indices), pa.array(self.numbers, pa.int32()))
            indices = places.fill_null(-1).to_numpy()
        return _names(self.names, indices, valid)

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        indices = pc.index_in(array, pa.array(self.names, pa.string()))
        unknown = pc.and_(indices.is_null(), array.is_valid())
        if pc.any(unknown).as_py():
            name = array.filter(unknown)[0].as_py()
            raise ValueRangeError(f"{name!r} is not one of the enum's constants {', '.join(self.names)}")
        places = indices.fill_null(0).to_numpy()
        if self.numbers is not None:
            places = np.array(self.numbers, np.int32)[places]
        columns.set_fixed(self.main, places, array)


@dataclass(frozen=True)
class ConstantPart(Part):
    """No value at all (null), or an object without content (an empty struct)."""

    empty: bool

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.struct([]) if self.empty else pa.null()

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        count = columns.count(self.main)
        if not self.empty:
            return pa.nulls(count)
        return pa.Array.from_buffers(self.type, count, [logical.bitmap(columns.valid(self.main))])

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        # Null is all there is to say; behind a flag it is the null of the flag.
        if self.empty or columns.kinds[self.main].nullable:
            columns.set_validity(self.main, array)
        else:
            columns.set_length(self.main, len(array))


@dataclass(frozen=True)
class SpanPart(Part):
    """Where a value lies: a struct of `start` and `stop`, positions in the data that are decoded.

    Attributes:
        stop: column of the position behind the value.
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
        starts, stops = (pa.array(columns.fixed(column, "i8")) for column in (self.main, self.stop))
        nulls = logical.bitmap(columns.valid(self.main))
        return pa.Array.from_buffers(self.type, len(starts), [nulls], children=[starts, stops])

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        raise UnsupportedError("where a value lies cannot be written")


@dataclass(frozen=True)
class StructPart(Part):
    """Fields side by side: tuples, rows, POJOs.

    Attributes:
        kind_column: row kind of a row; -1 when it has none or nobody asked.
        classes: the classes that an object may have, its own first; empty when there are no subclasses.
        class_column: index into `classes`.
    """

    fields: tuple[tuple[str, Part], ...]
    kind_column: int = -1
    classes: tuple[str, ...] = ()
    class_column: int = -1

    @property
    @override
    def type(self) -> pa.DataType:
        extra = [(name, pa.string()) for name, column in self._named_columns() if column >= 0]
        return pa.struct([*extra, *((name, part.type) for name, part in self.fields if part.main >= 0)])

    def _named_columns(self) -> tuple[tuple[str, int], ...]:
        return (("class", self.class_column), ("row_kind", self.kind_column))

    @override
    def level_columns(self) -> tuple[int, ...]:
        below = [column for _, part in self.fields for column in part.level_columns()]
        return (self.main, self.kind_column, self.class_column, *below)

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        children = []
        for name, column in self._named_columns():
            if column >= 0:
                names, dtype = (self.classes, np.int32) if name == "class" else (ROW_KINDS, np.uint8)
                children.append(_names(names, columns.fixed(column, dtype).astype(np.int32), None))
        children += [part.finish(columns) for _, part in self.fields if part.main >= 0]
        nulls = logical.bitmap(columns.valid(self.main))
        return pa.Array.from_buffers(self.type, columns.count(self.main), [nulls], children=children)

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
        for _, part in self.fields:
            part.prepare(children[index], columns)
            index += 1


@dataclass(frozen=True)
class ChoicePart(Part):
    """One of two sides."""

    flag: int
    left: Part
    right: Part

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
        children = [is_left, self.left.finish(columns), self.right.finish(columns)]
        nulls = logical.bitmap(columns.valid(self.main))
        return pa.Array.from_buffers(self.type, count, [nulls], children=children)

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        columns.set_validity(self.main, array)
        children = _children(array)
        if children[0].null_count > array.null_count:
            raise ValueRangeError("is_left is null where there is an Either")
        flags = children[0].fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint8)
        columns.set_fixed(self.flag, flags, pa.array(flags))
        self.left.prepare(children[1], columns)
        self.right.prepare(children[2], columns)


@dataclass(frozen=True)
class CasePart(Part):
    """One of several values: a struct of `case`, its name, and a field for each that has content.

    Attributes:
        case: column of the number of the case.
        cases: name and part of each.
    """

    case: int
    cases: tuple[tuple[str, Part], ...]

    @property
    def _fields(self) -> list[tuple[str, Part]]:
        return [(name, part) for name, part in self.cases if not _is_void(part)]

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.struct([("case", pa.string()), *((name, part.type) for name, part in self._fields)])

    @override
    def level_columns(self) -> tuple[int, ...]:
        below = [column for _, part in self.cases for column in part.level_columns()]
        return (self.main, self.case, *below)

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        names = tuple(name for name, _ in self.cases)
        cases = _names(names, columns.fixed(self.case, np.int32), None)
        children = [cases, *(part.finish(columns) for _, part in self._fields)]
        nulls = logical.bitmap(columns.valid(self.main))
        return pa.Array.from_buffers(self.type, columns.count(self.main), [nulls], children=children)

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        columns.set_validity(self.main, array)
        children = _children(array)
        if children[0].null_count > array.null_count:
            raise ValueRangeError("`case` is null where there is a value")
        numbers = _numbers_of(tuple(name for name, _ in self.cases), children[0], "case")
        columns.set_fixed(self.case, numbers.astype(np.int32), pa.array(numbers))
        for index, (_, part) in enumerate(self._fields, 1):
            part.prepare(children[index], columns)
        for _, part in self.cases:
            if _is_void(part):
                part.prepare(pa.nulls(len(array)), columns)


@dataclass(frozen=True)
class ListPart(Part):
    """A list."""

    element: Part

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.list_(self.element.type)

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        child = self.element.finish(columns)
        buffers = [logical.bitmap(columns.valid(self.main)), pa.py_buffer(columns.offsets(self.main))]
        return pa.Array.from_buffers(self.type, columns.count(self.main), buffers, children=[child])

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        columns.set_variable(self.main, array)
        self.element.prepare(array.flatten(), columns)


@dataclass(frozen=True)
class MapPart(Part):
    """A map; entries in the order of the bytes."""

    key: Part
    value: Part

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.map_(self.key.type, self.value.type)

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        keys = self.key.finish(columns)
        if keys.null_count:
            raise ValueRangeError("a map has a null key, for which Arrow and Spark have no form")
        fields = [pa.field("key", keys.type, nullable=False), pa.field("value", self.value.type)]
        entries = pa.StructArray.from_arrays([keys, self.value.finish(columns)], fields=fields)
        buffers = [logical.bitmap(columns.valid(self.main)), pa.py_buffer(columns.offsets(self.main))]
        return pa.Array.from_buffers(self.type, columns.count(self.main), buffers, children=[entries])

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        columns.set_variable(self.main, array)
        entries = flatten_entries(array)
        self.key.prepare(entries.field(0), columns)
        self.value.prepare(entries.field(1), columns)


def _is_void(part: Part) -> bool:
    """Whether there is nothing to say but null."""
    return isinstance(part, ConstantPart) and not part.empty


def _variable(target: pa.DataType, main: int, columns: OutputColumns) -> pa.Array:
    nulls = logical.bitmap(columns.valid(main))
    buffers = [nulls, pa.py_buffer(columns.offsets(main)), pa.py_buffer(columns.data(main))]
    return pa.Array.from_buffers(target, columns.count(main), buffers)


def _children(array: pa.StructArray) -> list[pa.Array]:
    """Children of a struct; null wherever the struct is, for what lies under a null may be anything."""
    if array.null_count:
        children: list[pa.Array] = array.flatten()
        return children
    return [array.field(index) for index in range(array.type.num_fields)]


def _names(names: tuple[str, ...], indices: np.ndarray, valid: logical.Mask) -> pa.Array:
    known = (indices >= 0) & (indices < len(names))
    if not bool((known if valid is None else known | ~valid).all()):
        raise FormatError(f"an index lies outside the {len(names)} constants that the serializer snapshot lists")
    return pa.array(names, pa.string()).take(pa.array(indices, mask=None if valid is None else ~valid))


def _numbers_of(names: tuple[str, ...], array: pa.Array, what: str) -> np.ndarray:
    """Indices of strings in `names`; null counts as the first."""
    indices = pc.index_in(array, pa.array(names, pa.string()))
    unknown = pc.and_(indices.is_null(), array.is_valid())
    if pc.any(unknown).as_py():
        raise ValueRangeError(
            f"{array.filter(unknown)[0].as_py()!r} is not a {what} that is known here ({', '.join(names)})"
        )
    numbers: np.ndarray = indices.fill_null(0).to_numpy()
    return numbers
