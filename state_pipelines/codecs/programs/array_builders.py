"""Array builders of single values: kernel columns to Arrow arrays and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from state_pipelines.codecs import logical_values
from state_pipelines.codecs.java.big_numbers import MAX_BYTES, check_number
from state_pipelines.codecs.kernels import opcodes as op
from state_pipelines.codecs.kernels.big_numbers import format_numbers, parse_numbers
from state_pipelines.codecs.layout import LogicalKind, PrimitiveKind
from state_pipelines.errors import FormatError, UnsupportedError, ValueRangeError

if TYPE_CHECKING:
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


@dataclass(frozen=True)
class PrimitiveBuilder(ArrayBuilder):
    """A number or a boolean."""

    kind: PrimitiveKind

    @property
    @override
    def type(self) -> pa.DataType:
        return _PRIMITIVES[self.kind][1]

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        dtype, target = _PRIMITIVES[self.kind]
        values = columns.fixed(self.main, dtype)
        if self.kind == PrimitiveKind.BOOL:
            values = np.packbits(values != 0, bitorder="little")
        elif self.kind == PrimitiveKind.U16:
            values = values.astype(np.int32)
        nulls = logical_values.bitmap(columns.valid(self.main))
        return pa.Array.from_buffers(target, columns.count(self.main), [nulls, pa.py_buffer(values)])

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        filled = array.fill_null(False) if self.kind == PrimitiveKind.BOOL else array.fill_null(0)
        values = filled.to_numpy(zero_copy_only=False)
        if self.kind == PrimitiveKind.U16 and len(values) and (values.min() < 0 or values.max() > 0xFFFF):
            raise ValueRangeError("a Java char is outside 0 to 65535")
        columns.set_fixed(self.main, values.astype(_PRIMITIVES[self.kind][0]), array)


@dataclass(frozen=True)
class LogicalBuilder(ArrayBuilder):
    """A value of several fixed-width components (see `logical_values`)."""

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
class SizedBuilder(ArrayBuilder):
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
class NumberBuilder(ArrayBuilder):
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
        return pa.Array.from_buffers(
            pa.string(), count, [logical_values.bitmap(valid), pa.py_buffer(text_offsets), pa.py_buffer(text)]
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
class ConstantsBuilder(ArrayBuilder):
    """An enum constant, by name.

    Attributes:
        numbers: stored number of each name; None when it is the index.
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
    """Always null, or an object without content (an empty struct)."""

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
        return pa.Array.from_buffers(self.type, count, [logical_values.bitmap(columns.valid(self.main))])

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        # Always null; after a null flag the flag decides.
        if self.empty or columns.kinds[self.main].nullable:
            columns.set_validity(self.main, array)
        else:
            columns.set_length(self.main, len(array))


@dataclass(frozen=True)
class SpanBuilder(ArrayBuilder):
    """Start and stop offset of a value in the decoded data, as a struct of `start` and `stop`.

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
        starts, stops = (pa.array(columns.fixed(column, "i8")) for column in (self.main, self.stop))
        nulls = logical_values.bitmap(columns.valid(self.main))
        return pa.Array.from_buffers(self.type, len(starts), [nulls], children=[starts, stops])

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        raise UnsupportedError("offsets of values cannot be written")


def _variable(target: pa.DataType, main: int, columns: OutputColumns) -> pa.Array:
    nulls = logical_values.bitmap(columns.valid(main))
    buffers = [nulls, pa.py_buffer(columns.offsets(main)), pa.py_buffer(columns.data(main))]
    return pa.Array.from_buffers(target, columns.count(main), buffers)


def take_names(names: tuple[str, ...], indices: np.ndarray, valid: logical_values.Mask) -> pa.Array:
    """Return the names at `indices`, null where not valid.

    Raises:
        FormatError: an index is out of range.
    """
    known = (indices >= 0) & (indices < len(names))
    if not bool((known if valid is None else known | ~valid).all()):
        raise FormatError(f"an index is outside the {len(names)} constants that the serializer snapshot lists")
    return pa.array(names, pa.string()).take(pa.array(indices, mask=None if valid is None else ~valid))
