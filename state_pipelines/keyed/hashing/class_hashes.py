"""`hashCode` of user classes: derived from their fields, or given as expressions of Java.

* `hash_generic_record`, `hash_records`: Avro records. Releases differ: older ones chain the fields of each record and
  the elements of each array by themselves, from 1, and the bytes of a string from 0; 1.12 carries one running code
  through nested records and arrays, stops before the tenth field or element, and begins strings with 1. Only flat
  records of up to nine fields without strings have one hash in all of them. Other objects (maps and what is in them)
  have the `hashCode` of their class. Source: `GenericData.hashCode`, which `GenericData.Record` and
  `SpecificRecordBase` call, and `Utf8.hashCode`.
* `hash_kryo`: values that Kryo wrote.
* `mix_product`, `hash_name`: Scala: `##`, case classes and tuples. Up to 2.12 the fields alone are mixed, from 2.13 on
  the name of the class in front of them. Source: `scala.runtime.Statics`, `scala.util.hashing.MurmurHash3.productHash`.
* `HashExpression`, `parse_hash_expression`: a small language for the `hashCode` of a class. An expression is a pattern
  over fields, such as `objects(region, number)`, or Java arithmetic over `hash(field)` and whole numbers, such as `31 *
  hash(region) + hash(number)`; patterns and arithmetic may be nested.

| pattern | `hashCode` |
|---|---|
| `objects(a, b)` | `Objects.hash`, `Arrays.hashCode`, Eclipse: `31 * code + field` from 1 |
| `record(a, b)` | JDK records: `31 * code + field` from 0 |
| `kotlin(a, b)` | data classes: as records; arrays by their elements |
| `ide(a, b)` | IntelliJ: as records; a boolean is 1 or 0, the float -0.0 is 0.0 |
| `lombok(a, b)` | `59 * code + field` from 1; null is 43, a boolean 79 or 97 |
| `commons(start, multiplier, a, b)` | `HashCodeBuilder`; a boolean is 0 or 1 |
| `autovalue(a, b)` | `code * 1000003 ^ field` from 1 |
| `immutables(a, b)` | `33 * code + field` from 5381 |
| `chain(start, multiplier, a, b)` | `multiplier * code + field` from `start` |
| `idechain(start, multiplier, a, b)` | the same; a boolean is 1 or 0, the float -0.0 is 0.0 |
| `scala212(a, b)`, `scala213(a, b)` | case classes |
| `avro()`, `avro_classic()` | Avro records, by 1.12 and by old releases; also `avro_bounded()`, `avro_utf8()` |

A field name is its `hashCode`, 0 for null. `bit(a)` is a boolean as 1 or 0, `boxed(a)` an object in `lombok` and
`commons` that is no primitive, `int(a)` the cast, `zero(a)` a float or double whose -0.0 is 0.0, `array(a)` is
`Arrays.hashCode`, `name(a)` and `ordinal(a)` are those of an enum. Names that are no Python names are quoted.
`ushr(x, n)` is `x >>> n`.
"""

from __future__ import annotations

import ast
import keyword
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.binary.data_views import split_units
from state_pipelines.codecs.avro import branch_name, parse_avro_schema
from state_pipelines.errors import UnsupportedError, UsageError
from state_pipelines.keyed.hashing.basic_hashes import (
    BASIC_HASHES,
    HashCodes,
    chain,
    conform_basic,
    fields_of,
    flatten,
    fold,
    hash_avro_strings,
    hash_ints,
    hash_longs,
    hash_primitive_array,
    hash_strings,
    hash_wrapped_bytes,
    list_offsets,
    numbers,
    sum_list,
    without_nulls,
)
from state_pipelines.serializers import tree
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from state_pipelines.codecs.avro import AvroSchema

GENERIC = "org.apache.avro.generic.GenericRecord"
PHYSICAL_TYPES = {
    "avro()": (True, 1),
    "avro_classic()": (False, 0),
    "avro_bounded()": (True, 0),
    "avro_utf8()": (False, 1),
}
"""Hashes of records by Avro release: expression -> (bounded, hash of an empty string).

A bounded hash goes on through nested records and arrays, and ends after nine fields and elements. The first entry is
Avro 1.12, the second one old releases; the others are variants between them.
"""

_COUNTER = 10
_RECORDS = ("record", "error")
_KINDS = {
    "boolean": BasicKind.BOOLEAN,
    "int": BasicKind.INT,
    "long": BasicKind.LONG,
    "float": BasicKind.FLOAT,
    "double": BasicKind.DOUBLE,
}


def is_settled(node: tree.Avro) -> bool:
    """Return whether records have the same `hashCode` in every release of Avro, and their class is Avro's own."""
    schema = parse_avro_schema(node.schema_json)
    root = schema.resolve(schema.root)
    return node.runtime_class == GENERIC and _is_flat_record(schema, root)


def _is_flat_record(schema: AvroSchema, root: object) -> bool:
    if not isinstance(root, dict) or root["type"] not in _RECORDS or len(root["fields"]) >= _COUNTER:
        return False
    nested = (*_RECORDS, "array", "map", "string")
    kinds = [
        _kind(schema.resolve(branch))
        for each in root["fields"]
        for branch in (each["type"] if isinstance(each["type"], list) else [each["type"]])
    ]
    return not any(kind in nested for kind in kinds)


def field_names(schema: AvroSchema) -> list[str]:
    """Return the names of the fields of a record; none when the schema is not one of a record."""
    root: Any = schema.resolve(schema.root)
    return [str(each["name"]) for each in root["fields"]] if _kind(root) in _RECORDS else []


def hash_generic_record(node: tree.Avro, array: pa.Array) -> HashCodes:
    """Compute `hashCode` of records where every release of Avro computes the same; the caller ignores nulls.

    Raises:
        UnsupportedError: releases differ, or the class is the user's.
    """
    if is_settled(node):
        return hash_records(node, array, "avro()")
    what = (
        "Avro hashes records with strings, nested records or more than nine fields differently from release to release"
        if node.runtime_class == GENERIC
        else f"the hashCode of {node.runtime_class} is not in the snapshot"
    )
    raise UnsupportedError(what, hint=f"It can be found from the snapshot, or given: {', '.join(PHYSICAL_TYPES)}")


def hash_records(node: tree.Avro, array: pa.Array, physical_type: str) -> HashCodes:
    """Compute `hashCode` of records as the Avro release that `physical_type` names does.

    Args:
        node: serializer of the records.
        array: the records.
        physical_type: one of `PHYSICAL_TYPES`.

    Raises:
        UsageError: a nested value has no hash that is the same in every JVM.
    """
    schema = parse_avro_schema(node.schema_json)
    bounded, start = PHYSICAL_TYPES[physical_type]
    return _Records(schema, bounded, start, node.runtime_class != GENERIC).hash_object(schema.root, array)


def hash_field(node: tree.Avro, name: str, array: pa.Array) -> HashCodes:
    """Compute `hashCode` of a field of a class whose strings are `java.lang.String`; the caller ignores nulls.

    Raises:
        UsageError: the hash of the field is not the same in every JVM.
    """
    schema = parse_avro_schema(node.schema_json)
    root: Any = schema.resolve(schema.root)
    (reference,) = (each["type"] for each in root["fields"] if each["name"] == name)
    return _Records(schema, bounded=True, start=0, specific=True, java_strings=True).hash_object(reference, array)


def _kind(node: object) -> str:
    while isinstance(node, dict):
        node = node["type"]
    return "union" if isinstance(node, list) else str(node)


class _State:
    """Hash code so far of each record, and how many fields and elements it may still hash (Avro 1.12 stops at nine)."""

    def __init__(self, rows: int) -> None:
        self.code = np.ones(rows, np.int32)
        self.counter = np.full(rows, _COUNTER, np.int32)

    def step(self, active: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Count a field or an element of the active rows, and return the rows that may hash more of them."""
        self.counter[active] -= 1
        return active & (self.counter > 0)


class _Records:
    """Hashes the values of an Arrow array by their Avro schema."""

    def __init__(
        self, schema: AvroSchema, bounded: bool, start: int, specific: bool, java_strings: bool = False
    ) -> None:
        self.schema = schema
        self.bounded = bounded
        self.start = start
        self.specific = specific
        self.java_strings = java_strings

    def hash_object(self, reference: object, array: pa.Array) -> HashCodes:
        """Compute `hashCode()` of each object, 0 for null."""
        node: Any = self.schema.resolve(reference)
        kind = _kind(node)
        if kind == "union":
            return self._hash_union(node, array, self.hash_object)
        if kind in _RECORDS:
            active = np.asarray(array.is_valid())
            return self._hash(node, array, active, _State(len(array)))
        if kind == "array":
            elements = self.hash_object(node["items"], flatten(array))
            return without_nulls(chain(list_offsets(array), elements, 1), array)
        if kind == "enum":
            if self.specific:
                raise UsageError("an enum constant has another hashCode in every JVM, also inside a map")
            return without_nulls(hash_strings(array), array)
        if kind == "string" and self._is_java_string(node):
            return without_nulls(hash_strings(array), array)
        return self._hash_leaf(node, kind, array)

    def _is_java_string(self, node: Any) -> bool:
        return self.java_strings or (isinstance(node, dict) and node.get("avro.java.string") == "String")

    def _hash(self, reference: object, array: pa.Array, active: npt.NDArray[np.bool_], state: _State) -> HashCodes:
        """Compute `GenericData.hashCode` of values by their schema, 0 for null."""
        node: Any = self.schema.resolve(reference)
        kind = _kind(node)
        valid = np.asarray(array.is_valid())
        if kind == "union":
            return self._hash_union(
                node,
                array,
                lambda branch, child: self._hash(branch, child, active & np.asarray(child.is_valid()), state),
            )
        if kind in _RECORDS:
            codes = self._hash_record(node, array, active & valid, state)
        elif kind == "array":
            codes = self._hash_array(node, array, active & valid, state)
        elif kind == "enum":
            codes = hash_ints(pc.index_in(array, pa.array(node["symbols"], pa.string())))
        else:
            return self._hash_leaf(node, kind, array)
        return np.where(valid, codes, np.int32(0))

    def _hash_record(self, node: Any, array: pa.Array, active: npt.NDArray[np.bool_], state: _State) -> HashCodes:
        if not self.bounded:
            state = _State(len(array))
        children = fields_of(array, *(str(each["name"]) for each in node["fields"]))
        for each, child in zip(node["fields"], children, strict=True):
            if self.bounded:
                active = state.step(active)
            if each.get("order") != "ignore":
                self._add(each["type"], child, active, state)
        return state.code.copy()

    def _add(self, reference: object, array: pa.Array, active: npt.NDArray[np.bool_], state: _State) -> None:
        before = state.code * np.int32(31)
        codes = before + self._hash(reference, array, active, state)
        state.code = np.where(active, codes, state.code)

    def _hash_array(self, node: Any, array: pa.Array, active: npt.NDArray[np.bool_], state: _State) -> HashCodes:
        elements, offsets = flatten(array), list_offsets(array)
        if not self.bounded:
            every = np.ones(len(elements), np.bool_)
            return chain(offsets, self._hash(node["items"], elements, every, _State(len(elements))), 1)
        sizes = np.diff(offsets)
        for index in range(int(min(sizes.max(initial=0), _COUNTER))):
            going = state.step(active & (sizes > index))
            active = active & (going | (sizes <= index))
            if not going.any():
                break
            indexes = pa.array(np.where(going, offsets[:-1] + index, 0), mask=~going)
            self._add(node["items"], elements.take(indexes), going, state)
        return state.code.copy()

    def _hash_union(self, node: Any, array: pa.Array, compute: Any) -> HashCodes:
        kinds = [_kind(self.schema.resolve(each)) for each in node]
        if len(node) == 2 and kinds.count("null") == 1:
            found: HashCodes = compute(node[1 - kinds.index("null")], array)
            return found
        names = [branch_name(self.schema, each) for each in node]
        if len(set(names)) < len(names):
            names = [f"{name}_{index}" for index, name in enumerate(names)]
        codes = np.zeros(len(array), np.int32)
        (cases,) = fields_of(array, "case")
        for name, kind, branch in zip(names, kinds, node, strict=True):
            if kind == "null":
                continue
            chosen = pc.equal(cases, name).fill_null(False)
            (child,) = fields_of(array, name)
            child = pc.if_else(chosen, child, pa.nulls(len(array), child.type))
            codes = np.where(np.asarray(chosen), compute(branch, child), codes)
        return codes

    def _hash_leaf(self, node: Any, kind: str, array: pa.Array) -> HashCodes:
        logical = node.get("logicalType") if isinstance(node, dict) and self.specific else None
        if kind == "null":
            return np.zeros(len(array), np.int32)
        if logical in _LOGICAL:
            codes = _LOGICAL[logical](numbers(array).astype(np.int64))
        elif kind in _KINDS:
            codes = BASIC_HASHES[_KINDS[kind]](array)
        elif kind == "string":
            codes = hash_avro_strings(array, self.start)
        elif kind == "bytes":
            # ByteBuffer goes through its bytes from the last to the first.
            codes = hash_wrapped_bytes(array)
        elif kind == "fixed":
            codes = hash_primitive_array(BasicKind.BYTE, array)
        elif kind == "map":
            entries = flatten(array)
            keys, values = fields_of(entries, *(each.name for each in entries.type))
            hashes = hash_strings(keys) if self._is_java_string(node) else hash_avro_strings(keys, self.start)
            codes = sum_list(array, hashes ^ self.hash_object(node["values"], values))
        else:
            raise UnsupportedError(f"the hash of the Avro type {kind} is not known")
        return without_nulls(codes, array)


def _hash_days(days: npt.NDArray[np.int64]) -> HashCodes:
    return BASIC_HASHES[BasicKind.LOCAL_DATE](pa.array(days.astype(np.int32)).cast(pa.date32()))


def _hash_instants(ticks: npt.NDArray[np.int64], per_second: int) -> HashCodes:
    nanos = (ticks % per_second) * (10**9 // per_second)
    return fold(ticks // per_second) + nanos.astype(np.int32) * np.int32(51)


def _hash_date_times(ticks: npt.NDArray[np.int64], per_second: int) -> HashCodes:
    per_day = 86_400 * per_second
    return _hash_days(ticks // per_day) ^ fold(ticks % per_day * (10**9 // per_second))


_MILLIS, _MICROS = 1_000, 1_000_000
_LOGICAL: dict[str, Any] = {
    "date": _hash_days,
    "time-millis": lambda ticks: fold(ticks * 10**6),
    "time-micros": lambda ticks: fold(ticks * 10**3),
    "timestamp-millis": lambda ticks: _hash_instants(ticks, _MILLIS),
    "timestamp-micros": lambda ticks: _hash_instants(ticks, _MICROS),
    "local-timestamp-millis": lambda ticks: _hash_date_times(ticks, _MILLIS),
    "local-timestamp-micros": lambda ticks: _hash_date_times(ticks, _MICROS),
}
"""Classes of java.time that generated classes use."""

_KRYO_KINDS = {
    "java.math.BigInteger": BasicKind.BIG_INT,
    "java.math.BigDecimal": BasicKind.BIG_DEC,
    "java.time.LocalDate": BasicKind.LOCAL_DATE,
    "java.time.LocalTime": BasicKind.LOCAL_TIME,
    "java.time.LocalDateTime": BasicKind.LOCAL_DATE_TIME,
    "java.time.Instant": BasicKind.INSTANT,
    "java.util.Date": BasicKind.DATE,
    "java.sql.Date": BasicKind.SQL_DATE,
    "java.sql.Time": BasicKind.SQL_TIME,
    "java.sql.Timestamp": BasicKind.SQL_TIMESTAMP,
    **{
        f"java.lang.{name}": BasicKind(name)
        for name in ("String", "Boolean", "Byte", "Short", "Long", "Float", "Double")
    },
    "java.lang.Integer": BasicKind.INT,
    "java.lang.Character": BasicKind.CHAR,
}


def is_hashed(class_name: str) -> bool:
    """Return whether the hash of a class that Kryo writes is known."""
    return class_name in _KRYO_KINDS or class_name in _OTHERS


def hash_kryo(node: tree.Kryo, array: pa.Array) -> HashCodes:
    """Compute `hashCode` of values that Kryo wrote, given as Arrow arrays; the caller ignores nulls.

    Raises:
        UnsupportedError: the class is not one of the JDK that is known here.
    """
    kind = _KRYO_KINDS.get(node.type_class)
    if kind is not None:
        return BASIC_HASHES[kind](conform_basic(kind, array))
    if node.type_class in _OTHERS:
        return _OTHERS[node.type_class](array)
    raise unknown_kryo_hash(node.type_class)


def unknown_kryo_hash(class_name: str) -> UnsupportedError:
    """Make the error for a class in Kryo keys whose `hashCode` is not known."""
    return UnsupportedError(
        f"the hashCode of {class_name}, which Kryo serializes, is code that no snapshot holds",
        hint="Another parallelism needs no hash. For other key groups, give the keys another type in a migration (a "
        "step `key: {type, expression}`) and in the job",
    )


def _hash_uuids(array: pa.Array) -> HashCodes:
    digits = "".join((text or "0" * 32).replace("-", "") for text in array.to_pylist())
    halves: npt.NDArray[np.int64] = np.frombuffer(bytes.fromhex(digits), ">i8").astype(np.int64).reshape(-1, 2)
    return fold(halves[:, 0] ^ halves[:, 1])


def _hash_durations(array: pa.Array) -> HashCodes:
    seconds, nanos = fields_of(array, "seconds", "nanos")
    return hash_longs(seconds) + hash_ints(nanos) * np.int32(51)


_OTHERS: dict[str, Callable[[pa.Array], HashCodes]] = {
    "java.util.UUID": _hash_uuids,
    "java.time.Year": hash_ints,
    "java.time.Duration": _hash_durations,
}

PRODUCT_SEED = 0xCAFEBABE
NONE_HASH = 2433880
"""`None.hashCode`, which is that of its name."""


def is_tuple(node: tree.Serializer) -> bool:
    """Return whether values are Scala's own tuples, in the API that Flink had up to 1.20 (Scala 2.12)."""
    return (
        isinstance(node, tree.Tuple)
        and node.tuple_class.startswith("scala.Tuple")
        and node.snapshot_class.startswith("org.apache.flink.")
    )


def is_option(node: tree.Serializer) -> bool:
    """Return whether values are Scala's `Option`."""
    return isinstance(node, tree.Variants) and node.kind == tree.VariantKind.SCALA_OPTION


def hash_name(name: str) -> int:
    """Compute `String.hashCode` of the simple name of a class (Scala's `productPrefix`), as a signed number.

    Args:
        name: full name of the class.
    """
    code = 0
    for unit in split_units(name.rstrip("$").replace("$", ".").rpartition(".")[2]):
        code = (code * 31 + unit) & 0xFFFFFFFF
    return code - (1 << 32) if code >> 31 else code


def mix_product(fields: Sequence[HashCodes], prefix: int | None = None) -> HashCodes:
    """Compute Scala's `MurmurHash3.productHash`, the hash of case classes and tuples.

    Args:
        fields: i32[n] per field, its Scala hash (`##`) in each object.
        prefix: hash of the name of the class, from Scala 2.13 on.

    Returns:
        i32[n].
    """
    code = np.full(len(fields[0]), PRODUCT_SEED, np.uint32)
    if prefix is not None:
        code = _mix(code, np.full(len(code), prefix & 0xFFFFFFFF, np.uint32))
    for each in fields:
        code = _mix(code, np.ascontiguousarray(each).view(np.uint32))
    code ^= np.uint32(len(fields))
    code ^= code >> np.uint32(16)
    code *= np.uint32(0x85EBCA6B)
    code ^= code >> np.uint32(13)
    code *= np.uint32(0xC2B2AE35)
    code ^= code >> np.uint32(16)
    return code.view(np.int32)


def _mix(code: npt.NDArray[np.uint32], data: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    word = data * np.uint32(0xCC9E2D51)
    word = word << np.uint32(15) | word >> np.uint32(17)
    code = code ^ word * np.uint32(0x1B873593)
    code = code << np.uint32(13) | code >> np.uint32(19)
    return code * np.uint32(5) + np.uint32(0xE6546B64)


def _hash_longs(array: pa.Array) -> HashCodes:
    values = numbers(array).astype(np.int64)
    low = values.astype(np.int32)
    return np.where(low == values, low, fold(values))


def _hash_doubles(array: pa.Array) -> HashCodes:
    values = numbers(array)
    wide = values.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        ints = np.clip(np.nan_to_num(wide), -(2.0**31), 2.0**31 - 1).astype(np.int32)
        # Java casts a double of 2 ** 63 or more to Long.MAX_VALUE, which cast back to double is 2 ** 63.
        top = wide >= 2.0**63
        longs = np.where(top, np.iinfo(np.int64).max, np.where(top, 0, np.nan_to_num(wide)).astype(np.int64))
        floats = wide.astype(np.float32)
    # Java compares in the type of the number, so that the float 2 ** 31 equals the largest int.
    as_int = ints.astype(values.dtype) == values
    as_long = np.where(top, wide == 2.0**63, longs.astype(np.float64) == wide)
    as_float = floats.astype(np.float64) == wide
    codes = BASIC_HASHES[BasicKind.DOUBLE if values.dtype == np.float64 else BasicKind.FLOAT](array)
    codes = np.where(as_float, floats.view(np.int32), codes)
    return np.where(as_int, ints, np.where(as_long, fold(longs), codes)).astype(np.int32)


NUMBER_HASHES: dict[BasicKind, Callable[[pa.Array], HashCodes]] = {
    BasicKind.LONG: _hash_longs,
    BasicKind.DOUBLE: _hash_doubles,
    BasicKind.FLOAT: _hash_doubles,
}
"""Scala's `##` of the numbers for which it differs from `hashCode`."""

MAX_LENGTH = 4000
_MAX_DEPTH = 40


class JavaOperator(StrEnum):
    """Binary or unary operator of Java on `int`."""

    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    XOR = "^"
    AND = "&"
    OR = "|"
    SHIFT_LEFT = "<<"
    SHIFT_RIGHT = ">>"
    UNSIGNED_SHIFT_RIGHT = ">>>"
    INVERT = "~"


class How(Enum):
    """The way a field is hashed (see the module's docstring)."""

    HASH = "hash"
    BIT = "bit"
    INT = "int"
    ZERO = "zero"
    ARRAY = "array"
    NAME = "name"
    ORDINAL = "ordinal"
    BOXED = "boxed"
    IDE = "ide"
    KOTLIN = "kotlin"
    LOMBOK = "lombok"
    COMMONS = "commons"
    SCALA = "scala"


WRITTEN = (How.HASH, How.BIT, How.INT, How.ZERO, How.ARRAY, How.NAME, How.ORDINAL, How.BOXED)
"""Functions that can be written around a field; the others belong to patterns."""

FieldCodes = Callable[[str, How], "tuple[HashCodes, pa.Array]"]
"""Field name and how -> (i32[n], 0 for null; the values)."""


class PatternKind(Enum):
    """Computation by which a pattern of hash expressions joins its arguments."""

    CHAIN = auto()
    SCALA_212 = auto()
    SCALA_213 = auto()
    AVRO = auto()


@dataclass(frozen=True)
class Pattern:
    """The rule by which a pattern combines its arguments.

    Attributes:
        how: hash of a bare field name.
        start: code before the first field; None when it is the first argument, followed by the multiplier.
        multiplier: of the code before each field.
        xor: fields are joined by `^`, not `+`.
        null: hash of a null field.
        kind: computation of the pattern.
    """

    how: How = How.HASH
    start: int | None = 0
    multiplier: int = 31
    xor: bool = False
    null: int = 0
    kind: PatternKind = PatternKind.CHAIN


PATTERNS = {
    "objects": Pattern(start=1),
    "record": Pattern(),
    "kotlin": Pattern(How.KOTLIN),
    "ide": Pattern(How.IDE),
    "lombok": Pattern(How.LOMBOK, 1, 59, null=43),
    "commons": Pattern(How.COMMONS, None),
    "autovalue": Pattern(start=1, multiplier=1000003, xor=True),
    "immutables": Pattern(start=5381, multiplier=33),
    "chain": Pattern(start=None),
    "idechain": Pattern(How.IDE, None),
    "scala212": Pattern(How.SCALA, kind=PatternKind.SCALA_212),
    "scala213": Pattern(How.SCALA, kind=PatternKind.SCALA_213),
    "avro": Pattern(kind=PatternKind.AVRO),
    "avro_classic": Pattern(kind=PatternKind.AVRO),
    "avro_bounded": Pattern(kind=PatternKind.AVRO),
    "avro_utf8": Pattern(kind=PatternKind.AVRO),
}


@dataclass(frozen=True)
class Field:
    """A field in an expression; `how` is None if the enclosing pattern decides how it is hashed."""

    name: str
    how: How | None = None


@dataclass(frozen=True)
class Number:
    """A whole number in a hash expression."""

    value: int


@dataclass(frozen=True)
class JavaCall:
    """A function call in a hash expression, such as `objects(a, b)` for Java's `Objects.hash(a, b)`.

    Attributes:
        pattern: name of the function: the way in which a Java class combines the hashes of its fields.
        arguments: the hashed fields, or expressions of them.
    """

    pattern: str
    arguments: tuple[Term, ...]


@dataclass(frozen=True)
class JavaOperation:
    """An operation `left operator right` in an expression; `~` and unary `-` have no left side."""

    operator: JavaOperator
    left: Term | None
    right: Term


Term = Field | Number | JavaCall | JavaOperation


@dataclass(frozen=True)
class HashExpression:
    """The `hashCode` of a class as an expression over its fields, such as `31 * hash(a) + hash(b)`.

    Attributes:
        term: the expression.
    """

    term: Term

    @property
    def text(self) -> str:
        """The expression as `parse_hash_expression` takes it; equal expressions have equal texts."""
        return _write(self.term)

    def __str__(self) -> str:
        return self.text

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that it takes, each once, in the order of their first occurrence."""
        return tuple(dict.fromkeys(_names(self.term)))

    def evaluate(self, fields: FieldCodes, class_name: str, rows: int) -> HashCodes:
        """Compute the hash codes of objects from those of their fields.

        Args:
            fields: hash codes of their fields.
            class_name: of the class, which `scala213` mixes in.
            rows: number of objects.

        Returns:
            i32[rows].
        """
        return _evaluate(self.term, fields, class_name, rows)


def parse_hash_expression(text: str) -> HashExpression:
    """Parse an expression; the module's docstring describes the language.

    Raises:
        UsageError: the text is not an expression.
    """
    if len(text) > MAX_LENGTH:
        raise UsageError(f"a hash expression of {len(text)} characters is too long")
    try:
        root = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        hint = "Write x >>> n as ushr(x, n)" if ">>>" in text else _HINT
        raise UsageError(f"{text!r:.80} is not a hash expression: {error}", hint=hint) from None
    expression = HashExpression(_parse(root, text, _MAX_DEPTH))
    if not expression.fields and not text.strip().startswith("avro"):
        raise UsageError(f"{text!r:.80} takes no field, so that all keys have one hash", hint=_HINT)
    return expression


def _parse(node: ast.expr, text: str, depth: int) -> Term:
    if depth == 0:
        raise UsageError("a hash expression is nested too deeply")
    match node:
        case ast.Name(id=name):
            return Field(name)
        case ast.Constant(value=str(name)):
            return Field(name)
        case ast.Constant(value=value) if type(value) is int and -(1 << 31) <= value < 1 << 32:
            return Number(_signed(value))
        case ast.UnaryOp(op=ast.USub() | ast.Invert() as operator, operand=operand):
            inner = _parse(operand, text, depth - 1)
            if isinstance(operator, ast.USub) and isinstance(inner, Number):
                return Number(_signed(-inner.value))
            return JavaOperation(
                JavaOperator.SUBTRACT if isinstance(operator, ast.USub) else JavaOperator.INVERT, None, inner
            )
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            sides = (_parse(left, text, depth - 1), _parse(right, text, depth - 1))
            return JavaOperation(_OPERATORS[type(operator)], *sides)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _parse_call(name, [_parse(each, text, depth - 1) for each in arguments])
    raise UsageError(f"{ast.unparse(node)!r:.80} is not allowed in a hash expression", hint=_HINT)


def _parse_call(name: str, arguments: list[Term]) -> Term:
    hows = {each.value: each for each in WRITTEN}
    if name in hows and name not in PATTERNS:
        match arguments:
            case [Field(name=field_name, how=None)]:
                return Field(field_name, hows[name])
        raise UsageError(f"{name}() takes one field", hint=_HINT)
    if name == "ushr":
        if len(arguments) != 2:
            raise UsageError("ushr() takes a value and a number of bits", hint=_HINT)
        return JavaOperation(JavaOperator.UNSIGNED_SHIFT_RIGHT, *arguments)
    if name not in PATTERNS:
        raise UsageError(f"hash expressions have no function {name}()", hint=_HINT)
    pattern = PATTERNS[name]
    if pattern.start is None and not all(isinstance(each, Number) for each in [*arguments, Field("")][:2]):
        raise UsageError(f"{name}() takes the start, the multiplier, then the fields", hint=_HINT)
    is_avro = pattern.kind is PatternKind.AVRO
    if is_avro != (not arguments) or (pattern.start is None and len(arguments) < 3):
        raise UsageError(f"{name}() takes {'no' if is_avro else 'at least one'} field", hint=_HINT)
    return JavaCall(name, tuple(arguments))


_OPERATORS: dict[type[ast.operator], JavaOperator] = {
    ast.Add: JavaOperator.ADD,
    ast.Sub: JavaOperator.SUBTRACT,
    ast.Mult: JavaOperator.MULTIPLY,
    ast.BitXor: JavaOperator.XOR,
    ast.BitAnd: JavaOperator.AND,
    ast.BitOr: JavaOperator.OR,
    ast.LShift: JavaOperator.SHIFT_LEFT,
    ast.RShift: JavaOperator.SHIFT_RIGHT,
}
_HINT = (
    f"Use {', '.join(f'{name}(…)' for name in PATTERNS)}, or + - * ^ & | << >> ushr(x, n) over hash(field) and numbers"
)


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _names(term: Term) -> list[str]:
    match term:
        case Field(name=name):
            return [name]
        case JavaCall(arguments=arguments):
            return [name for each in arguments for name in _names(each)]
        case JavaOperation(left=left, right=right):
            return [*(_names(left) if left is not None else []), *_names(right)]
        case _:
            return []


def _write(term: Term) -> str:
    match term:
        case Number(value=value):
            return str(value)
        case Field(name=name, how=how):
            plain = name.isidentifier() and not keyword.iskeyword(name) and unicodedata.normalize("NFKC", name) == name
            written = name if plain else repr(name)
            return written if how is None else f"{how.value}({written})"
        case JavaCall(pattern=pattern, arguments=arguments):
            return f"{pattern}({', '.join(_write(each) for each in arguments)})"
        case JavaOperation(operator=JavaOperator.UNSIGNED_SHIFT_RIGHT, left=left, right=right) if left is not None:
            return f"ushr({_write(left)}, {_write(right)})"
        case JavaOperation(operator=operator, left=None, right=right):
            return f"{operator}{_write_side(right)}"
        case JavaOperation(operator=operator, left=left, right=right):
            assert left is not None
            return f"{_write_side(left)} {operator} {_write_side(right)}"


def _write_side(term: Term) -> str:
    written = _write(term)
    if isinstance(term, Field) and term.how is None:
        return f"hash({written})"
    bare = not isinstance(term, JavaOperation) or term.operator is JavaOperator.UNSIGNED_SHIFT_RIGHT
    return written if bare and not written.startswith("-") else f"({written})"


def _evaluate(term: Term, fields: FieldCodes, class_name: str, rows: int) -> HashCodes:
    match term:
        case Number(value=value):
            return np.full(rows, value, np.int32)
        case Field(name=name, how=how):
            return fields(name, how or How.HASH)[0]
        case JavaCall():
            return _evaluate_call(term, fields, class_name, rows)
        case JavaOperation(operator=operator, left=left, right=right):
            second = _evaluate(right, fields, class_name, rows)
            if left is None:
                return ~second if operator is JavaOperator.INVERT else -second
            return _calculate(operator, _evaluate(left, fields, class_name, rows), second)


def _calculate(operator: JavaOperator, left: HashCodes, right: HashCodes) -> HashCodes:
    match operator:
        case JavaOperator.ADD:
            return left + right
        case JavaOperator.SUBTRACT:
            return left - right
        case JavaOperator.MULTIPLY:
            return left * right
        case JavaOperator.XOR:
            return left ^ right
        case JavaOperator.AND:
            return left & right
        case JavaOperator.OR:
            return left | right
    # Java takes the lowest five bits of the distance.
    distance = right & np.int32(31)
    if operator is JavaOperator.SHIFT_LEFT:
        return left << distance
    if operator is JavaOperator.SHIFT_RIGHT:
        return left >> distance
    return (left.view(np.uint32) >> distance.view(np.uint32)).view(np.int32)


def _evaluate_call(call: JavaCall, fields: FieldCodes, class_name: str, rows: int) -> HashCodes:
    pattern, arguments = PATTERNS[call.pattern], call.arguments
    start, multiplier = pattern.start, pattern.multiplier
    if start is None:
        (start, multiplier), arguments = (_number(each) for each in arguments[:2]), arguments[2:]
    codes: list[HashCodes] = []
    for each in arguments:
        if isinstance(each, Field) and each.how in (None, How.BOXED):
            found, values = fields(each.name, each.how or pattern.how)
            if pattern.null and values.null_count:
                found = np.where(np.asarray(values.is_valid()), found, np.int32(pattern.null))
            codes.append(found)
        else:
            codes.append(_evaluate(each, fields, class_name, rows))
    if pattern.kind is PatternKind.AVRO:
        raise UsageError(f"{class_name} is not an Avro class, so that {call.pattern}() does not apply to it")
    if pattern.kind is not PatternKind.CHAIN:
        return mix_product(codes, hash_name(class_name) if pattern.kind is PatternKind.SCALA_213 else None)
    code = np.full(rows, start, np.int32)
    for added in codes:
        code = code * np.int32(multiplier)
        code = code ^ added if pattern.xor else code + added
    return code


def _number(term: Term) -> int:
    assert isinstance(term, Number)
    return term.value
