"""Java hash codes of keys, many at a time.

Flink files a key by its `hashCode()`, which no snapshot stores: whoever writes keys anew, or moves them to another
number of key groups, must compute it. Values come as Arrow arrays in the form that the codecs give them.
Sources: `hashCode` of the classes that each serializer stands for; `org.apache.flink.types.RowUtils` for rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from state_pipelines.binary.memory import load_i32, load_u8
from state_pipelines.codecs import logical
from state_pipelines.codecs.bignumbers import parse_numbers
from state_pipelines.codecs.conform import conform, flatten_entries
from state_pipelines.codecs.layout import ROW_KINDS
from state_pipelines.codecs.program import arrow_type
from state_pipelines.codecs.serializer_layouts import BASIC_LAYOUTS
from state_pipelines.errors import StateError, UnsupportedError, UsageError, ValueRangeError
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import basic

HashCodes = npt.NDArray[np.int32]
ClassHash = Callable[[pa.StructArray], HashCodes]
"""`hashCode` of a user class: structs in, i32[n] out; what it says for nulls does not matter."""

_LONG_VALUE_SEED = 43
_DOUBLE_VALUE_SEED = 31
_STRING = basic("String")


def hash_codes(
    serializer: tree.Serializer, array: pa.Array, *, pojo_hashes: Mapping[str, ClassHash] | None = None
) -> HashCodes:
    """The `hashCode()` of every value; 0 for null.

    Args:
        serializer: of the values.
        array: the values, in the Arrow form of the serializer's layout (integers of another width are cast).
        pojo_hashes: by class name, the `hashCode` of POJO and Scala case classes (see `objects_hash`, `record_hash`).

    Returns:
        i32[n].

    Raises:
        UsageError: values of the type cannot be keys, or the array is not one of such values.
        UnsupportedError: the hash is not known here (user classes without an entry in `pojo_hashes`).
        ValueRangeError: a value is not one of the type.
    """
    return _Hasher(dict(pojo_hashes or {})).hash(serializer, array)


def objects_hash(fields: Iterable[HashCodes]) -> HashCodes:
    """`Objects.hash(a, b, …)`, which most generated `hashCode` methods call.

    Args:
        fields: i32[n] per field, in the order of the arguments; 0 for null.
    """
    return _chain_fields(fields, 1)


def record_hash(fields: Iterable[HashCodes]) -> HashCodes:
    """`hashCode` of a Java record.

    The language leaves the order open; what the JDK does since 16 is a chain of 31 over the components from 0.

    Args:
        fields: i32[n] per component, in the order of their declaration; 0 for null.
    """
    return _chain_fields(fields, 0)


def make_pojo_hash(
    pojo: tree.Pojo,
    names: Iterable[str] | None = None,
    combine: Callable[[Iterable[HashCodes]], HashCodes] = objects_hash,
    *,
    pojo_hashes: Mapping[str, ClassHash] | None = None,
) -> ClassHash:
    """The `hashCode` of a POJO class that combines those of its fields.

    Args:
        pojo: the serializer of the class.
        names: fields in the order in which `hashCode` takes them; all, as the snapshot lists them, if not given.
        combine: `objects_hash` or `record_hash`, or alike.
        pojo_hashes: for classes of the fields, as in `hash_codes`.

    Raises:
        UsageError: the class has no such field.
        UnsupportedError: the type of a field was lost before the snapshot was written.
    """
    fields = {each.name: each.serializer for each in pojo.fields}
    chosen: list[tuple[str, tree.Serializer]] = []
    for name in fields if names is None else names:
        if name not in fields:
            raise UsageError(f"{pojo.pojo_class} has no field {name}", hint=f"Its fields are {', '.join(fields)}")
        serializer = fields[name]
        if serializer is None:
            raise UnsupportedError(f"the type of field {name} of {pojo.pojo_class} is not in the snapshot")
        chosen.append((name, serializer))

    def compute(array: pa.StructArray) -> HashCodes:
        return combine(_Hasher(dict(pojo_hashes or {})).hash_fields(chosen, array))

    return compute


@dataclass(frozen=True)
class _Hasher:
    """Walks a serializer tree beside an Arrow array."""

    class_hashes: dict[str, ClassHash] = field(default_factory=dict)

    def hash(self, node: tree.Serializer, array: pa.Array) -> HashCodes:
        """`hashCode()`, 0 for null."""
        return _without_nulls(self._hash(node, array), array)

    def _hash(self, node: tree.Serializer, array: pa.Array) -> HashCodes:
        match node:
            case tree.Basic(kind=kind) if kind in _BASIC:
                return _BASIC[kind](_conform_basic(kind, array))
            case tree.Basic(kind="ByteArrayWrapper"):
                return _hash_wrapped_bytes(array)
            case tree.Nullable(inner=inner):
                return self._hash(inner, array)
            case tree.Tuple(fields=fields):
                return self._hash_tuple(node, fields, array)
            case tree.Row(fields=fields):
                return self._hash_row(fields, array)
            case tree.Either(left=left, right=right):
                (is_left,) = _fields_of(array, "is_left")
                left_codes, right_codes = self.hash_fields([("left", left), ("right", right)], array)
                return np.where(np.asarray(is_left.fill_null(False)), left_codes, right_codes)
            case tree.Pojo(pojo_class=name):
                return self._hash_class(name, array)
            case tree.ListOf(element=element):
                return self._chain_list(array, lambda child: self.hash(element, child))
            case tree.SetOf(element=element):
                return _sum_list(array, self.hash(element, _flatten(array)))
            case tree.MapOf(key=key, value=value):
                keys, values = self.hash_fields([("key", key), ("value", value)], _flatten(array))
                return _sum_list(array, keys ^ values)
        raise _refuse(node)

    def element_hash(self, node: tree.Serializer, array: pa.Array) -> HashCodes:
        """What a field of a row adds: as `Arrays.deepHashCode`, also inside lists and maps; 0 for null."""
        return _without_nulls(self._element_hash(node, array), array)

    def _element_hash(self, node: tree.Serializer, array: pa.Array) -> HashCodes:
        match node:
            case tree.Nullable(inner=inner):
                return self._element_hash(inner, array)
            case tree.ListOf(element=element) | tree.GenericArray(element=element):
                return self._chain_list(array, lambda child: self.element_hash(element, child))
            case tree.Basic(kind="StringArray"):
                return self._chain_list(array, lambda child: self.element_hash(_STRING, child))
            case tree.Basic(kind=kind) if kind.endswith("PrimitiveArray"):
                return 31 + _hash_primitive_array(kind.removesuffix("PrimitiveArray"), array)
            case tree.MapOf(key=key, value=value):
                keys, values = self.hash_fields([("key", key), ("value", value)], _flatten(array), self.element_hash)
                return 1 + _sum_list(array, keys ^ values)
        return 31 + self.hash(node, array)

    def _hash_tuple(self, node: tree.Tuple, fields: tuple[tree.Serializer, ...], array: pa.Array) -> HashCodes:
        if node.tuple_class in self.class_hashes:
            return self._hash_class(node.tuple_class, array)
        if not node.snapshot_class.endswith(".TupleSerializerSnapshot"):
            raise _unknown_hash(node.tuple_class)
        return _chain_fields(self.hash_fields(_positional(fields), array), 0)

    def _hash_row(self, fields: tuple[tree.Serializer, ...], array: pa.Array) -> HashCodes:
        start = [np.ones(len(array), np.int32)]
        codes = _chain_fields(start + self.hash_fields(_positional(fields), array, self.element_hash), 0)
        if array.type.get_field_index("row_kind") < 0:
            return codes
        kinds = pc.index_in(*_fields_of(array, "row_kind"), pa.array(ROW_KINDS, pa.string()))
        return _numbers(kinds).astype(np.int32) * np.int32(31) + codes

    def hash_fields(
        self,
        fields: list[tuple[str, tree.Serializer]],
        array: pa.Array,
        hash_field: Callable[[tree.Serializer, pa.Array], HashCodes] | None = None,
    ) -> list[HashCodes]:
        """Hash codes of fields of a struct."""
        codes = []
        for (name, node), child in zip(fields, _fields_of(array, *(name for name, _ in fields)), strict=True):
            try:
                codes.append((hash_field or self.hash)(node, child))
            except StateError as error:
                below = error.where.path
                error.where = replace(error.where, path=name if below is None else f"{name}.{below}")
                raise
        return codes

    def _hash_class(self, name: str, array: pa.Array) -> HashCodes:
        if name not in self.class_hashes:
            raise _unknown_hash(name)
        codes: HashCodes = np.asarray(self.class_hashes[name](array))
        if codes.dtype != np.int32 or codes.shape != (len(array),):
            raise UsageError(f"the hash of {name} gave {codes.dtype}{list(codes.shape)}, not int32[{len(array)}]")
        return codes

    def _chain_list(self, array: pa.Array, hash_elements: Callable[[pa.Array], HashCodes]) -> HashCodes:
        return _chain(_list_offsets(array), hash_elements(_flatten(array)), 1)


def _positional(fields: tuple[tree.Serializer, ...]) -> list[tuple[str, tree.Serializer]]:
    return [(f"f{index}", node) for index, node in enumerate(fields)]


def _chain(offsets: npt.NDArray[np.int64], elements: HashCodes, start: int) -> HashCodes:
    codes = np.empty(len(offsets) - 1, np.int32)
    chain_elements(np.ascontiguousarray(offsets), np.ascontiguousarray(elements), start, codes)
    return codes


def _chain_fields(fields: Iterable[HashCodes], start: int) -> HashCodes:
    codes: HashCodes | None = None
    for each in fields:
        codes = (np.full(len(each), start, np.int32) if codes is None else codes) * np.int32(31) + each
    if codes is None:
        raise UsageError("a hash of no fields is the same for every key", hint="Name the fields that it takes")
    return codes


def _without_nulls(codes: HashCodes, array: pa.Array) -> HashCodes:
    if not array.null_count:
        return codes
    return np.where(np.asarray(array.is_valid()), codes, np.int32(0))


def _conform_basic(kind: str, array: pa.Array) -> pa.Array:
    try:
        return conform(array, arrow_type(BASIC_LAYOUTS[kind]))
    except ValueRangeError as error:
        raise ValueRangeError(error.what, hint=error.hint) from None


def _fields_of(array: pa.Array, *names: str) -> list[pa.Array]:
    if not pa.types.is_struct(array.type):
        raise UsageError(f"an array of {array.type} is not one of structs with {', '.join(names)}")
    # Null wherever the struct is.
    children: list[pa.Array] = array.flatten()
    indices = [array.type.get_field_index(name) for name in names]
    missing = [name for name, index in zip(names, indices, strict=True) if index < 0]
    if missing:
        raise UsageError(f"an array of {array.type} lacks {', '.join(missing)}")
    return [children[index] for index in indices]


def _flatten(array: pa.Array) -> pa.Array:
    if not (pa.types.is_list(array.type) or pa.types.is_map(array.type)):
        raise UsageError(f"an array of {array.type} is not one of lists or maps")
    return flatten_entries(array)


def _numbers(array: pa.Array) -> npt.NDArray[np.generic]:
    values: npt.NDArray[np.generic] = (array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False)
    return values


def _fold(values: npt.NDArray[np.int64]) -> HashCodes:
    """`Long.hashCode`."""
    return (values ^ values >> 32).astype(np.int32)


def _hash_ints(array: pa.Array) -> HashCodes:
    return _numbers(array).astype(np.int32)


def _hash_longs(array: pa.Array) -> HashCodes:
    return _fold(_numbers(array).astype(np.int64))


def _hash_booleans(array: pa.Array) -> HashCodes:
    return np.where(np.asarray(array.fill_null(False)), np.int32(1231), np.int32(1237))


def _hash_floats(array: pa.Array) -> HashCodes:
    values = _numbers(array).astype(np.float32)
    return np.where(np.isnan(values), np.int32(0x7FC00000), values.view(np.int32))


def _hash_doubles(array: pa.Array) -> HashCodes:
    values = _numbers(array).astype(np.float64)
    return _fold(np.where(np.isnan(values), np.int64(0x7FF8 << 48), values.view(np.int64)))


def _hash_chars(array: pa.Array) -> HashCodes:
    return logical.split("char", array)[0].astype(np.int32)


def _hash_strings(array: pa.Array) -> HashCodes:
    # The bytes under a null may be anything.
    filled = array.fill_null("") if array.null_count else array
    codes = np.zeros(len(filled), np.int32)
    _, offsets, text = filled.buffers()
    if offsets is not None and text is not None:
        wrong = hash_text(offsets.address + 4 * filled.offset, text.address, codes)
        if wrong >= 0:
            raise ValueRangeError(f"string {wrong} is not UTF-8")
    return codes


def _hash_big_numbers(array: pa.Array, *, integer: bool) -> HashCodes:
    count = len(array)
    _, offset_buffer, text = array.buffers()
    if offset_buffer is None or text is None:
        return np.zeros(count, np.int32)
    text_offsets = np.frombuffer(offset_buffer, np.int32, count + 1, 4 * array.offset)
    valid = np.asarray(array.is_valid()).view(np.uint8)
    offsets, scales = np.zeros(count + 1, np.int32), np.zeros(count, np.int32)
    data = np.empty(int(text_offsets[-1] - text_offsets[0]) + 8 * count + 64, np.uint8)
    done, wrong = parse_numbers(
        text_offsets, text.address, valid, integer, offsets, data.ctypes.data, len(data), scales
    )
    if wrong or done < count:
        raise ValueRangeError(f"{array[done].as_py()!r:.80} is not a number")
    codes = np.empty(count, np.int32)
    hash_numbers(offsets, data.ctypes.data, codes)
    return codes if integer else codes * np.int32(31) + scales


def _hash_dates(array: pa.Array) -> HashCodes:
    return _hash_longs(array.cast(pa.int64()))


def _hash_sql_timestamps(array: pa.Array) -> HashCodes:
    return _hash_longs(array.field("millis"))


def _hash_instants(array: pa.Array) -> HashCodes:
    return _hash_longs(array.field("epoch_second")) + _hash_ints(array.field("nano")) * np.int32(51)


def _hash_local_dates(array: pa.Array) -> HashCodes:
    year, month, day = (part.astype(np.int32) for part in logical.split("local_date", array))
    return year & np.int32(~0x7FF) ^ (year << 11) + (month << 6) + day


def _hash_local_times(array: pa.Array) -> HashCodes:
    return _hash_longs(array.cast(pa.int64()))


def _hash_local_date_times(array: pa.Array) -> HashCodes:
    return _hash_local_dates(array.field("date")) ^ _hash_local_times(array.field("time"))


def _hash_wrapped_bytes(array: pa.Array) -> HashCodes:
    """`ByteArrayWrapper` of PyFlink goes through its bytes from the last to the first."""
    offsets, data = _bytes_of(array)
    codes = _chain(np.flip(len(data) - offsets), np.flip(data), 1)
    return np.flip(codes)


def _hash_primitive_array(kind: str, array: pa.Array) -> HashCodes:
    """`Arrays.hashCode` of numbers, booleans or chars."""
    if kind == "Byte":
        return _chain(*_bytes_of(array), 1)
    values = _flatten(array)
    elements = _hash_ints(values) if kind == "Char" else _BASIC[kind](_conform_basic(kind, values))
    return _chain(_list_offsets(array), elements, 1)


def _bytes_of(array: pa.Array) -> tuple[npt.NDArray[np.int64], HashCodes]:
    """Offsets and signed bytes of a binary array."""
    _, offsets, data = _conform_basic("ByteArrayWrapper", array).buffers()
    if offsets is None or data is None:
        return np.zeros(len(array) + 1, np.int64), np.zeros(0, np.int32)
    ends = np.frombuffer(offsets, np.int32, len(array) + 1, 4 * array.offset).astype(np.int64)
    return ends - ends[0], np.frombuffer(data, np.int8, ends[-1] - ends[0], ends[0]).astype(np.int32)


def _list_offsets(array: pa.Array) -> npt.NDArray[np.int64]:
    """i64[n + 1], where each list or map begins in the flattened elements."""
    offsets = array.buffers()[1]
    if offsets is None:
        return np.zeros(len(array) + 1, np.int64)
    sizes = np.diff(np.frombuffer(offsets, np.int32, len(array) + 1, 4 * array.offset))
    if array.null_count:
        sizes = np.where(np.asarray(array.is_valid()), sizes, 0)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _sum_list(array: pa.Array, codes: HashCodes) -> HashCodes:
    """Sum of the codes of each list's elements, modulo 2 ** 32."""
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(codes, dtype=np.int64)])
    return np.diff(sums[_list_offsets(array)]).astype(np.int32)


_BASIC: dict[str, Callable[[pa.Array], HashCodes]] = {
    **dict.fromkeys(("Byte", "Short", "Int", "ByteValue", "ShortValue", "IntValue"), _hash_ints),
    **dict.fromkeys(("Long", "LongValueWithProperHashCode"), _hash_longs),
    "LongValue": lambda array: _hash_longs(array) + np.int32(_LONG_VALUE_SEED),
    "Boolean": _hash_booleans,
    "BooleanValue": lambda array: np.asarray(array.fill_null(False)).astype(np.int32),
    **dict.fromkeys(("Char", "CharValue"), _hash_chars),
    **dict.fromkeys(("Float", "FloatValue"), _hash_floats),
    "Double": _hash_doubles,
    "DoubleValue": lambda array: _hash_doubles(array) + np.int32(_DOUBLE_VALUE_SEED),
    **dict.fromkeys(("String", "StringValue"), _hash_strings),
    "BigInt": lambda array: _hash_big_numbers(array, integer=True),
    "BigDec": lambda array: _hash_big_numbers(array, integer=False),
    **dict.fromkeys(("Date", "SqlDate", "SqlTime"), _hash_dates),
    "SqlTimestamp": _hash_sql_timestamps,
    "Instant": _hash_instants,
    "LocalDate": _hash_local_dates,
    "LocalTime": _hash_local_times,
    "LocalDateTime": _hash_local_date_times,
    "Tuple0": lambda array: np.zeros(len(array), np.int32),
}


def _refuse(node: tree.Serializer) -> UsageError | UnsupportedError:
    is_array = isinstance(node, tree.GenericArray) or (
        isinstance(node, tree.Basic) and node.kind.endswith(("PrimitiveArray", "StringArray"))
    )
    if is_array or isinstance(node, tree.Enum | tree.ScalaEnum):
        what = "an array" if is_array else "an enum constant"
        return UsageError(
            f"{what} cannot be a key: its hashCode differs from one JVM to the next, so Flink refuses it",
            hint="Key by its name or by a list, or wrap it in a Row if it is an array",
        )
    name = getattr(node, "type_class", None) or getattr(node, "runtime_class", None)
    if name is not None:
        return _unknown_hash(name)
    what = node.kind if isinstance(node, tree.Basic | tree.Variants) else type(node).__name__
    return UnsupportedError(
        f"the hash codes of {what} keys are not computed yet", hint="What leaves keys in their key groups still works"
    )


def _unknown_hash(class_name: str) -> UnsupportedError:
    return UnsupportedError(
        f"the hashCode of {class_name} is code of the user's that no snapshot holds",
        hint="Give its hash; Objects.hash and records are a combination of the hashes of the fields",
    )


@njit(cache=True, nogil=True)
def hash_text(offsets, text, codes):  # type: ignore[no-untyped-def]
    """`String.hashCode` over the UTF-16 units of UTF-8 text.

    Args:
        offsets: address of i32[n + 1].
        text: address of the bytes.
        codes: i32[n], filled.

    Returns:
        The first string that is not UTF-8, or -1.
    """
    for row in range(len(codes)):
        position = text + load_i32(offsets + 4 * row)
        end = text + load_i32(offsets + 4 * row + 4)
        code = 0
        while position < end:
            byte = load_u8(position)
            if byte < 0x80:
                code = code * 31 + byte
                position += 1
                continue
            size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            if byte < 0xC0 or byte > 0xF4 or position + size > end:
                return row
            point = byte & (0x7F >> size)
            for i in range(1, size):
                point = point << 6 | load_u8(position + i) & 0x3F
            if size == 4:
                code = code * 31 + 0xD800 + ((point - 0x10000) >> 10)
                point = 0xDC00 + (point & 0x3FF)
            code = code * 31 + point
            position += size
        codes[row] = code
    return -1


@njit(cache=True, nogil=True)
def hash_numbers(offsets, data, codes):  # type: ignore[no-untyped-def]
    """`BigInteger.hashCode` over big-endian two's complement bytes.

    Args:
        offsets: i32[n + 1] into `data`.
        data: address of the bytes.
        codes: i32[n], filled.
    """
    for row in range(len(codes)):
        start = offsets[row]
        negative = offsets[row + 1] > start and load_u8(data + start) >= 0x80
        flip = 0xFF if negative else 0
        carry = 1 if negative else 0
        code = 0
        power = 1
        # Words of the magnitude from the last to the first; each counts 31 times the one behind it.
        position = offsets[row + 1]
        while position > start:
            word = 0
            for shift in range(0, 32, 8):
                position -= 1
                if position >= start:
                    word |= (load_u8(data + position) ^ flip) << shift
            word += carry
            carry = word >> 32
            code += (word & 0xFFFFFFFF) * power
            power = power * 31 & 0xFFFFFFFF
        codes[row] = -code if negative else code


@njit(cache=True, nogil=True)
def chain_elements(offsets, elements, start, codes):  # type: ignore[no-untyped-def]
    """`31 * code + element` over each list, from `start`.

    Args:
        offsets: i64[n + 1] into `elements`.
        elements: i32[m], hash codes.
        start: what an empty list gives.
        codes: i32[n], filled.
    """
    for row in range(len(codes)):
        code = start
        for i in range(offsets[row], offsets[row + 1]):
            code = code * 31 + elements[i]
        codes[row] = code
