"""`BinaryRowData` and the other binary formats of the table runtime, read and written.

A row is one block: a bit set (row kind, then one null bit per field), one slot of 8 bytes per field, then the data
that do not fit in a slot, each padded to 8 bytes. An array has a count, null bits, and elements of their natural width.
Source: `BinaryRowData`, `BinaryArrayData`, `BinaryMapData`, `AbstractBinaryWriter` of
`org.apache.flink.table.data.binary` and `.writer`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, TypeVar

from state_pipelines.codecs.layout import ROW_KINDS
from state_pipelines.errors import FormatError, UnsupportedError, ValueRangeError, Where
from state_pipelines.serializers.tree import LogicalType

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_DEPTH = 100
"""Maximum nesting depth of rows, arrays and maps."""
MAX_UNSCALED = 16
"""Maximum size of the unscaled value of a DECIMAL, which has at most 38 digits."""
_COMPACT_DECIMAL = 18
_COMPACT_TIMESTAMP = 3
_MAX_SHIFT = 1000
_INLINE = 7
_NUMBERS = {
    "BOOLEAN": "?",
    "TINYINT": "b",
    "SMALLINT": "h",
    "INTEGER": "i",
    "DATE": "i",
    "TIME_WITHOUT_TIME_ZONE": "i",
    "INTERVAL_YEAR_MONTH": "i",
    "BIGINT": "q",
    "INTERVAL_DAY_TIME": "q",
    "FLOAT": "f",
    "DOUBLE": "d",
}
_LAYOUTS = {code: struct.Struct("<" + code) for code in "?bhiqfdQI"}
_TEXT = ("CHAR", "VARCHAR")
_BYTES = ("BINARY", "VARBINARY")
_TIMESTAMPS = ("TIMESTAMP_WITHOUT_TIME_ZONE", "TIMESTAMP_WITH_LOCAL_TIME_ZONE")
_Value = TypeVar("_Value")
_COUNT = LogicalType(root="INTEGER", nullable=False)


@dataclass(frozen=True)
class TimestampValue:
    """A timestamp (`TimestampData`): epoch milliseconds and the nanoseconds within the last of them."""

    millis: int
    nano_of_milli: int


@dataclass(frozen=True)
class BinaryRowValue:
    """A row of the table runtime, with the values of its fields.

    Attributes:
        kind: `+I`, `-U`, `+U` or `-D`.
        fields: values by position: numbers, text, bytes, `Decimal`, `TimestampValue`, a row, a list for an array, a
            list of (key, value) for a map or multiset; dates in days, times of day in milliseconds; RAW values as
            their bytes.
    """

    kind: str
    fields: tuple[object, ...]


def read_row(data: bytes, types: Sequence[LogicalType], name: str | None = None) -> BinaryRowValue:
    """Decode the bytes of one row of the table runtime (`BinaryRowData`).

    Args:
        data: the whole row, without its length prefix.
        types: types of its fields.
        name: file name for errors.

    Raises:
        FormatError: an offset is outside the row, or the bytes are not a row.
        UnsupportedError: a field has a type whose binary format is not known.
    """
    return _Block(data, name, 0).row(types)


def read_array(data: bytes, element_type: LogicalType, name: str | None = None) -> list[object]:
    """Read the bytes of one array (`BinaryArrayData`); errors as in `read_row`."""
    return _Block(data, name, 0).array(element_type)


def read_map(
    data: bytes, key_type: LogicalType, value_type: LogicalType, name: str | None = None
) -> list[tuple[object, object]]:
    """Read the bytes of one map (`BinaryMapData`); errors as in `read_row`."""
    return _Block(data, name, 0).map(key_type, value_type)


class _Block:
    """The bytes of one row, array or map; offsets count from its start."""

    def __init__(self, data: bytes, name: str | None, depth: int) -> None:
        self.data = data
        self.left = len(data)
        self.name = name
        self.depth = depth
        if depth > MAX_DEPTH:
            raise self.error(f"binary rows are nested more than {MAX_DEPTH} levels deep", 0)

    def error(self, what: str, offset: int) -> FormatError:
        return FormatError(what, where=Where(file=self.name, offset=offset))

    def number(self, code: str, offset: int) -> int | float:
        layout = _LAYOUTS[code]
        self.check(offset, layout.size)
        value: int | float = layout.unpack_from(self.data, offset)[0]
        return value

    def check(self, offset: int, size: int) -> None:
        if offset + size > len(self.data):
            raise self.error(f"{size} bytes expected in a block of {len(self.data)} bytes", offset)

    def variable(self, offset: int) -> bytes:
        """Return the bytes to which the slot at `offset` points; the slot has their offset (upper half) and size."""
        slot = int(self.number("Q", offset))
        start, size = slot >> 32, slot & 0xFFFFFFFF
        self.check(start, size)
        self.claim(offset, size)
        return self.data[start : start + size]

    def claim(self, offset: int, size: int) -> None:
        """Count the bytes of variable-length data; FormatError if their sum exceeds the block, so that they overlap."""
        self.left -= size
        if self.left < 0:
            raise self.error(f"variable-length data of a block of {len(self.data)} bytes overlap", offset)

    def inline_or_variable(self, offset: int) -> bytes:
        """Return the variable-length data of the slot at `offset`.

        Up to 7 bytes are stored in the slot itself, which then has its top bit set.
        """
        self.check(offset, 8)
        mark = self.data[offset + 7]
        if mark < 0x80:
            return self.variable(offset)
        if mark & 0x7F > _INLINE:
            raise self.error(
                f"a slot of 8 bytes states {mark & 0x7F} bytes of data, more than the {_INLINE} that fit", offset
            )
        return self.data[offset : offset + (mark & 0x7F)]

    def row(self, types: Sequence[LogicalType]) -> BinaryRowValue:
        bits = null_bits(len(types))
        self.check(0, bits + 8 * len(types))
        kind = self.data[0]
        if kind >= len(ROW_KINDS):
            raise self.error(f"{kind} is no row kind", 0)
        fields = [
            None if self.is_null(0, 8 + index) else self.value(of, bits + 8 * index) for index, of in enumerate(types)
        ]
        return BinaryRowValue(ROW_KINDS[kind], tuple(fields))

    def is_null(self, start: int, bit: int) -> bool:
        return bool(self.data[start + bit // 8] >> bit % 8 & 1)

    def array(self, element_type: LogicalType) -> list[object]:
        size = int(self.number("i", 0))
        width = element_width(element_type)
        if size < 0:
            raise self.error(f"a count of {size} is negative", 0)
        start = 4 + (size + 31) // 32 * 4
        self.check(start, size * width)
        return [
            None if self.is_null(4, index) else self.value(element_type, start + index * width) for index in range(size)
        ]

    def map(self, key_type: LogicalType, value_type: LogicalType) -> list[tuple[object, object]]:
        size = int(self.number("i", 0))
        if size < 0:
            raise self.error(f"a size of {size} is negative", 0)
        self.check(4, size)
        keys = _Block(self.data[4 : 4 + size], self.name, self.depth + 1).array(key_type)
        values = _Block(self.data[4 + size :], self.name, self.depth + 1).array(value_type)
        if len(keys) != len(values):
            raise self.error(f"a map has {len(keys)} keys and {len(values)} values", 0)
        return list(zip(keys, values, strict=True))

    def value(self, of: LogicalType, offset: int) -> object:
        code = _NUMBERS.get(of.root)
        if code is not None:
            return self.number(code, offset)
        match of.root:
            case "CHAR" | "VARCHAR":
                return self.text(offset)
            case "BINARY" | "VARBINARY":
                return self.inline_or_variable(offset)
            case "DECIMAL":
                return self.decimal(of, offset)
            case "TIMESTAMP_WITHOUT_TIME_ZONE" | "TIMESTAMP_WITH_LOCAL_TIME_ZONE":
                return self.timestamp(of, offset)
            case "RAW":
                return self.variable(offset)
            case "NULL":
                return None
            case "DISTINCT_TYPE" if of.children:
                return self.value(of.children[0], offset)
        nested = _Block(self.variable(offset), self.name, self.depth + 1)
        match of.root:
            case "ROW" | "STRUCTURED_TYPE":
                return nested.row(of.children)
            case "ARRAY":
                return nested.array(of.children[0])
            case "MAP":
                return nested.map(of.children[0], of.children[1])
            case "MULTISET":
                return nested.map(of.children[0], _COUNT)
        raise _unknown(of)

    def text(self, offset: int) -> str:
        raw = self.inline_or_variable(offset)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"a string is not UTF-8: {error.reason}", offset) from None

    def decimal(self, of: LogicalType, offset: int) -> Decimal:
        precision, scale = _decimal(of)
        if precision <= _COMPACT_DECIMAL:
            unscaled = int(self.number("q", offset))
        else:
            raw = self.variable(offset)
            if not 0 < len(raw) <= MAX_UNSCALED:
                raise self.error(
                    f"a DECIMAL({precision}, {scale}) has {len(raw)} bytes, not 1 to {MAX_UNSCALED}", offset
                )
            unscaled = int.from_bytes(raw, "big", signed=True)
        return scaled(unscaled, scale)

    def timestamp(self, of: LogicalType, offset: int) -> TimestampValue:
        if _precision(of) <= _COMPACT_TIMESTAMP:
            return TimestampValue(int(self.number("q", offset)), 0)
        slot = int(self.number("Q", offset))
        self.claim(offset, 8)
        return TimestampValue(int(self.number("q", slot >> 32)), slot & 0xFFFFFFFF)


def write_row(row: BinaryRowValue, types: Sequence[LogicalType]) -> bytes:
    """Return the bytes of a row as `read_row` reads them: the bytes that `RowDataSerializer.toBinaryRow` makes.

    Raises:
        ValueRangeError: a value does not fit its type, or the number of fields differs.
    """
    if len(row.fields) != len(types):
        raise ValueRangeError(f"a row of {len(row.fields)} fields does not fit {len(types)} types")
    if row.kind not in ROW_KINDS:
        raise ValueRangeError(f"{row.kind!r} is no row kind; they are {', '.join(ROW_KINDS)}")
    bits = null_bits(len(types))
    block = bytearray(bits + 8 * len(types))
    block[0] = ROW_KINDS.index(row.kind)
    for index, (of, value) in enumerate(zip(types, row.fields, strict=True)):
        if value is None:
            block[(8 + index) // 8] |= 1 << index % 8
        else:
            _put(block, bits + 8 * index, of, value)
    return bytes(block)


def write_array(items: Sequence[object], element_type: LogicalType) -> bytes:
    """Return the bytes of an array as `read_array` reads them."""
    width = element_width(element_type)
    start = 4 + (len(items) + 31) // 32 * 4
    block = bytearray((start + len(items) * width + 7) // 8 * 8)
    _LAYOUTS["i"].pack_into(block, 0, len(items))
    for index, value in enumerate(items):
        if value is None:
            block[4 + index // 8] |= 1 << index % 8
        else:
            _put(block, start + index * width, element_type, value)
    return bytes(block)


def write_map(entries: Sequence[tuple[object, object]], key_type: LogicalType, value_type: LogicalType) -> bytes:
    """Return the bytes of a map as `read_map` reads them."""
    keys = write_array([key for key, _ in entries], key_type)
    return _LAYOUTS["i"].pack(len(keys)) + keys + write_array([value for _, value in entries], value_type)


def _put(block: bytearray, offset: int, of: LogicalType, value: object) -> None:
    code = _NUMBERS.get(of.root)
    if code is not None:
        _put_number(block, offset, code, value)
    elif of.root in _TEXT:
        _put_short(block, offset, _expect(value, str, of).encode("utf-8"))
    elif of.root in _BYTES:
        _put_short(block, offset, _expect(value, bytes, of))
    elif of.root == "DECIMAL":
        _put_decimal(block, offset, of, _expect(value, Decimal, of))
    elif of.root in _TIMESTAMPS:
        _put_timestamp(block, offset, of, _expect(value, TimestampValue, of))
    elif of.root == "RAW":
        _put_variable(block, offset, _expect(value, bytes, of))
    elif of.root == "DISTINCT_TYPE" and of.children:
        _put(block, offset, of.children[0], value)
    else:
        _put_variable(block, offset, _nested(of, value))


def _nested(of: LogicalType, value: object) -> bytes:
    match of.root:
        case "ROW" | "STRUCTURED_TYPE":
            return write_row(_expect(value, BinaryRowValue, of), of.children)
        case "ARRAY":
            return write_array(_expect(value, list, of), of.children[0])
        case "MAP":
            return write_map(_expect(value, list, of), of.children[0], of.children[1])
        case "MULTISET":
            return write_map(_expect(value, list, of), of.children[0], _COUNT)
    raise _unknown(of)


def _put_number(block: bytearray, offset: int, code: str, value: object) -> None:
    try:
        _LAYOUTS[code].pack_into(block, offset, value)
    except (struct.error, OverflowError):
        raise ValueRangeError(f"{value!r} does not fit in {_LAYOUTS[code].size} bytes") from None


def _put_short(block: bytearray, offset: int, raw: bytes) -> None:
    if len(raw) <= _INLINE:
        block[offset : offset + len(raw)] = raw
        block[offset + 7] = 0x80 | len(raw)
    else:
        _put_variable(block, offset, raw)


def _put_variable(block: bytearray, offset: int, raw: bytes) -> None:
    _LAYOUTS["Q"].pack_into(block, offset, len(block) << 32 | len(raw))
    block += raw + bytes(-len(raw) % 8)


def _put_decimal(block: bytearray, offset: int, of: LogicalType, value: Decimal) -> None:
    precision, scale = _decimal(of)
    unscaled = unscaled_value(value, scale)
    if abs(unscaled) >= 10**precision:
        raise ValueRangeError(f"{value} does not fit in DECIMAL({precision}, {scale})")
    if precision <= _COMPACT_DECIMAL:
        _put_number(block, offset, "q", unscaled)
        return
    raw = unscaled.to_bytes((unscaled + (unscaled < 0)).bit_length() // 8 + 1, "big", signed=True)
    _LAYOUTS["Q"].pack_into(block, offset, len(block) << 32 | len(raw))
    # Flink always reserves 16 bytes for such a decimal, so that it can update the number in place.
    block += raw.ljust(16, b"\0")


def _put_timestamp(block: bytearray, offset: int, of: LogicalType, value: TimestampValue) -> None:
    if _precision(of) <= _COMPACT_TIMESTAMP:
        if value.nano_of_milli:
            raise ValueRangeError(f"{value} has more digits than TIMESTAMP({_precision(of)})")
        _put_number(block, offset, "q", value.millis)
        return
    _LAYOUTS["Q"].pack_into(block, offset, len(block) << 32 | value.nano_of_milli)
    block += bytes(8)
    _put_number(block, len(block) - 8, "q", value.millis)


def null_bits(fields: int) -> int:
    """Return the size in bytes of the null bit set of a row, which includes the row kind."""
    return (8 + fields + 63) // 64 * 8


def find_variable(block: bytes, fields: int, index: int) -> tuple[int, int]:
    """Return offset and size of the variable-length data of one field in the bytes of a row."""
    slot: int = _LAYOUTS["Q"].unpack_from(block, null_bits(fields) + 8 * index)[0]
    return slot >> 32, slot & 0xFFFFFFFF


def element_width(of: LogicalType) -> int:
    """Return the size in bytes of one array element."""
    if of.root == "DISTINCT_TYPE" and of.children:
        return element_width(of.children[0])
    code = _NUMBERS.get(of.root)
    return _LAYOUTS[code].size if code is not None else 8


def scaled(unscaled: int, scale: int) -> Decimal:
    """Return a decimal number of exactly this scale."""
    sign, digits, _ = Decimal(unscaled).as_tuple()
    return Decimal((sign, digits, -scale))


def unscaled_value(value: Decimal, scale: int) -> int:
    """Return the unscaled number of a decimal at a scale.

    Raises:
        ValueRangeError: the number is not finite or has more decimals.
    """
    if not value.is_finite():
        raise ValueRangeError(f"{value} is not a finite number")
    sign, digits, exponent = value.as_tuple()
    shift = scale + int(exponent)
    if abs(shift) > _MAX_SHIFT:
        raise ValueRangeError(f"{value} does not fit a SQL decimal")
    unscaled = int(Decimal((sign, digits, 0)))
    power: int = 10 ** abs(shift)
    if shift >= 0:
        return unscaled * power
    if unscaled % power:
        raise ValueRangeError(f"{value} has more than {scale} decimals")
    return unscaled // power


def _decimal(of: LogicalType) -> tuple[int, int]:
    return (10 if of.length is None else of.length), of.scale or 0


def _precision(of: LogicalType) -> int:
    return 6 if of.length is None else of.length


def _unknown(of: LogicalType) -> UnsupportedError:
    return UnsupportedError(f"the binary form of SQL type {of.root} is not known")


_EXPECTED: dict[type, str] = {str: "text", bytes: "bytes", list: "a list"}


def _expect(value: object, kind: type[_Value], of: LogicalType) -> _Value:
    if isinstance(value, kind):
        return value
    raise ValueRangeError(f"{value!r} is not {_EXPECTED.get(kind, kind.__name__)}, as {of.root} wants it")
