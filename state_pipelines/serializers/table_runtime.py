"""Serializers of the table runtime, and the SQL types that they are made from.

* `read_row_data` to `build_sequenced_node`: some snapshots hold Java serialization streams without a length. Their
  bytes are kept, so that they are written as they were; the logical types parsed from them serve the data layout and
  display. Source: `org.apache.flink.table.runtime.typeutils` with its package `serializers.table_runtime`,
  `org.apache.flink.table.runtime.sequencedmultisetstate`, `org.apache.flink.table.types.logical.LogicalType` and its
  subclasses.
* `to_internal`, `read_python_row` and others: serializers of PyFlink's table functions. State of Python functions
  itself is byte arrays (`BytePrimitiveArray`, `ByteArrayWrapper`), whose content, often a pickle, is kept as it is and
  never unpickled. Source: `PythonTypeUtils.toInternalSerializer`.
* `parse_sql_type`: SQL types from text as Flink writes it, such as `DECIMAL(10, 2) NOT NULL`. Words that Flink takes
  for other types are taken here too: STRING, BYTES, TIMESTAMP_LTZ, DEC. Source: `LogicalTypeParser`, `LogicalType` and
  its subclasses (`asSerializableString`).
* `make_row`, `make_column`: the serializers of rows of SQL types. `RowDataSerializer` stores the Java stream of each
  type. The table next to this module has the snapshots of rows with one column, as Flink 1.20, 2.2 and 2.3 write them,
  byte for byte the same; numbers, names and inner types are replaced. Source: `InternalSerializers`.
"""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Reader
from state_pipelines.binary.java_stream import (
    JavaArray,
    JavaBlock,
    JavaClassData,
    JavaClassDesc,
    JavaClassLiteral,
    JavaContent,
    JavaEnum,
    JavaFieldDesc,
    JavaObject,
    JavaString,
    JavaValue,
    hierarchy,
    read_stream,
    write_stream,
)
from state_pipelines.errors import FormatError, UnsupportedError, UsageError, ValueRangeError
from state_pipelines.serializers.java_types import CURRENT_VERSION, SNAPSHOT_CLASSES
from state_pipelines.serializers.registry import (
    read_nested,
    read_nested_list,
    register,
    register_composite,
    write_nested,
    write_nested_list,
)
from state_pipelines.serializers.snapshot_classes import (
    CompositeMarks,
    Head,
    read_composite_header,
    write_composite_header,
)
from state_pipelines.serializers.tree import (
    ArrayData,
    Basic,
    BasicKind,
    BinaryRow,
    Decimal,
    External,
    LinkedListOf,
    LogicalType,
    MapData,
    PythonArray,
    PythonDecimal,
    PythonMap,
    PythonRow,
    RawValue,
    RowData,
    RowDataKey,
    Serializer,
    SortedMapOf,
    TimestampData,
    VariantKind,
    Variants,
    WindowKey,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from state_pipelines.binary.data_views import Writer

# Fields of the subclasses of `LogicalType` that hold the one or two numbers of a type.
_LENGTHS = ("length", "precision", "yearPrecision", "dayPrecision")
_SCALES = ("scale", "fractionalPrecision")
# Fields of the subclasses of `LogicalType` that hold one child type each.
_CHILDREN = ("elementType", "keyType", "valueType", "sourceType")
# Fields that hold the elements of the wrappers Collections$Unmodifiable…List, Collections$SingletonList and
# Arrays$ArrayList.
_LIST_FIELDS = ("list", "c", "a")


def read_java(reader: Reader) -> tuple[bytes, JavaContent]:
    """Read one Java stream; return its bytes and its content."""
    start = reader.position
    content = read_stream(reader)
    return bytes(reader.data[start : reader.position]), content


def read_logical_type(reader: Reader) -> tuple[bytes, LogicalType]:
    """Read the Java stream of one logical type; returns its bytes as written and the type.

    Raises:
        FormatError: the stream does not hold a logical type.
    """
    start = reader.position
    raw, content = read_java(reader)
    try:
        return raw, to_logical_type(content)
    except FormatError as error:
        raise reader.error(error.what, start) from None


def to_logical_type(content: JavaValue) -> LogicalType:
    """Convert a Java object to the logical type that it represents.

    Raises:
        FormatError: the object is something else.
    """
    members = content.fields if isinstance(content, JavaObject) else {}
    root = members.get("typeRoot")
    if not isinstance(root, JavaEnum):
        raise FormatError(f"{_class_name(content)} is not a logical type")
    names, children = _fields(members)
    return LogicalType(
        root=root.constant,
        nullable=bool(members.get("isNullable")),
        length=_number(members, _LENGTHS),
        scale=_number(members, _SCALES),
        children=children or tuple(to_logical_type(members[name]) for name in _CHILDREN if name in members),
        names=names,
        class_name=_described_class(members),
    )


def _fields(members: dict[str, JavaValue]) -> tuple[tuple[str, ...], tuple[LogicalType, ...]]:
    """Return names and types of the fields of ROW and STRUCTURED types."""
    elements = _elements(members.get("fields", members.get("attributes")))
    rows = [each.fields for each in elements if isinstance(each, JavaObject)]
    return tuple(str(row.get("name")) for row in rows), tuple(to_logical_type(row.get("type")) for row in rows)


def _elements(value: JavaValue) -> tuple[JavaValue, ...]:
    """Return the elements of a Java list, which may be of any class in which SQL types hold their fields."""
    if isinstance(value, JavaArray):
        return tuple(value.values)
    if not isinstance(value, JavaObject):
        return ()
    for name in _LIST_FIELDS:
        if name in value.fields:
            return _elements(value.fields[name])
    if "element" in value.fields:
        return (value.fields["element"],)
    # ArrayList, LinkedList and the immutable lists write their elements after a count.
    written = value.class_data[-1].annotation if value.class_data else None
    return tuple(each for each in written or () if not isinstance(each, JavaBlock))


def _number(members: dict[str, JavaValue], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = members.get(name)
        if isinstance(value, int):
            return value
    return None


def _described_class(members: dict[str, JavaValue]) -> str | None:
    """Return the class name in a RAW, STRUCTURED or legacy type; None for other types."""
    for name in ("clazz", "implementationClass"):
        value = members.get(name)
        if isinstance(value, JavaClassLiteral) and isinstance(value.class_desc, JavaClassDesc):
            return value.class_desc.name
    structured = members.get("className")
    if isinstance(structured, str):
        return structured
    return _class_name(members["typeInfo"]) if "typeInfo" in members else None


def _class_name(content: JavaValue) -> str:
    return content.class_name if isinstance(content, JavaObject) else type(content).__name__


_TYPEUTILS = "org.apache.flink.table.runtime.typeutils."
_SEQUENCED = "org.apache.flink.table.runtime.sequencedmultisetstate.linked."
ARRAY_DATA_VERSION = 3
BINARY_ROW_VERSION = 3
DECIMAL_VERSION = 3
MAP_DATA_VERSION = 3
ROW_VERSION = 3
SORTED_MAP_VERSION = 3
TIMESTAMP_VERSION = 1
# Version 4 (after Flink 2.3, FLINK-40120) may end with the names of the fields.
ROW_VERSION_WITH_NAMES = 4
ROW_DATA_KEY_VERSION = 0

# In outer version 2, linked lists always mark nulls. From version 3 on, a flag in the snapshot says whether they do.
FIRST_LIST_WITH_NULLS = 2
# Least size of a Java stream: its header and one byte.
_SMALLEST_STREAM = 5


def write_row_fields(writer: Writer, node: RowData | PythonRow) -> None:
    """Write the logical types, then the field serializers."""
    writer.i32(len(node.java_types))
    for raw in node.java_types:
        writer.take(raw)
    write_nested_list(writer, node.fields)


def write_row_data(writer: Writer, node: RowData) -> None:
    """Write the body of a serializer snapshot as `read_row_data` reads it.

    Raises:
        ValueRangeError: the node has names that its version cannot store, or another number of names than fields.
    """
    write_row_fields(writer, node)
    if node.snapshot_version >= ROW_VERSION_WITH_NAMES:
        writer.bool(node.names is not None)
    elif node.names is not None:
        raise ValueRangeError(f"version {node.snapshot_version} of the snapshot of a row cannot store field names")
    if node.names is not None and len(node.names) != len(node.fields):
        raise ValueRangeError(f"a row of {len(node.fields)} fields has {len(node.names)} field names")
    for name in node.names or ():
        writer.utf(name)


@register(f"{_TYPEUTILS}RowDataSerializer$RowDataSerializerSnapshot", write=write_row_data)
def read_row_data(reader: Reader, head: Head) -> RowData:
    """Read the logical types, then as many field serializers; since version 4 also a flag and maybe the field names."""
    head.expect(ROW_VERSION, ROW_VERSION_WITH_NAMES)
    streams = [read_logical_type(reader) for _ in range(reader.count(_SMALLEST_STREAM))]
    fields = read_nested_list(reader, len(streams))
    named = head.version >= ROW_VERSION_WITH_NAMES and reader.bool()
    return RowData(
        **head.marks,
        types=tuple(kind for _, kind in streams),
        fields=fields,
        java_types=tuple(raw for raw, _ in streams),
        names=tuple(reader.utf() for _ in streams) if named else None,
    )


def write_binary_row(writer: Writer, node: BinaryRow) -> None:
    """Write the body of a serializer snapshot as `read_binary_row` reads it."""
    writer.i32(node.num_fields)


@register(f"{_TYPEUTILS}BinaryRowDataSerializer$BinaryRowDataSerializerSnapshot", write=write_binary_row)
def read_binary_row(reader: Reader, head: Head) -> BinaryRow:
    """Read the body of a serializer snapshot: the number of fields."""
    head.expect(BINARY_ROW_VERSION)
    return BinaryRow(**head.marks, num_fields=reader.i32())


def write_java(writer: Writer, node: ArrayData | MapData | PythonArray | PythonMap) -> None:
    """Write the Java streams that are the whole body."""
    for raw in node.java:
        writer.take(raw)


@register(f"{_TYPEUTILS}ArrayDataSerializer$ArrayDataSerializerSnapshot", write=write_java)
def read_array_data(reader: Reader, head: Head) -> ArrayData:
    """Read the body of a serializer snapshot: the element type and the Java-serialized element serializer."""
    head.expect(ARRAY_DATA_VERSION)
    raw_type, element_type = read_logical_type(reader)
    raw_serializer, _ = read_java(reader)
    return ArrayData(**head.marks, element_type=element_type, java=(raw_type, raw_serializer))


@register(f"{_TYPEUTILS}MapDataSerializer$MapDataSerializerSnapshot", write=write_java)
def read_map_data(reader: Reader, head: Head) -> MapData:
    """Read the body of a serializer snapshot: key and value type, then the two Java-serialized serializers."""
    head.expect(MAP_DATA_VERSION)
    raw_key, key_type = read_logical_type(reader)
    raw_value, value_type = read_logical_type(reader)
    serializers = (read_java(reader)[0], read_java(reader)[0])
    return MapData(**head.marks, key_type=key_type, value_type=value_type, java=(raw_key, raw_value, *serializers))


def write_decimal(writer: Writer, node: Decimal) -> None:
    """Write the body of a serializer snapshot as `read_decimal` reads it."""
    writer.i32(node.precision)
    writer.i32(node.scale)


@register(f"{_TYPEUTILS}DecimalDataSerializer$DecimalSerializerSnapshot", write=write_decimal)
def read_decimal(reader: Reader, head: Head) -> Decimal:
    """Read the body of a serializer snapshot: precision and scale."""
    head.expect(DECIMAL_VERSION)
    return Decimal(**head.marks, precision=reader.i32(), scale=reader.i32())


def write_timestamp(writer: Writer, node: TimestampData) -> None:
    """Write the body of a serializer snapshot as `read_timestamp` reads it."""
    writer.i32(node.precision)


@register(f"{_TYPEUTILS}TimestampDataSerializer$TimestampDataSerializerSnapshot", write=write_timestamp)
def read_timestamp(reader: Reader, head: Head) -> TimestampData:
    """Read the body of a serializer snapshot: the precision."""
    head.expect(TIMESTAMP_VERSION)
    return TimestampData(**head.marks, precision=reader.i32())


@register_composite(f"{_TYPEUTILS}RawValueDataSerializer$RawValueDataSerializerSnapshot", arity=1)
def build_raw_value(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> RawValue:
    """Return the node of a raw value serializer, given the serializer of the value."""
    return RawValue(**marks, inner=nested[0])


@register_composite(f"{_TYPEUTILS}WindowKeySerializer$WindowKeySerializerSnapshot", arity=1)
def build_window_key(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> WindowKey:
    """Return the node of a window key serializer, given the serializer of the key row."""
    return WindowKey(**marks, key=nested[0])


def write_external(writer: Writer, node: External) -> None:
    """Write the body of a serializer snapshot as `read_external` reads it."""
    write_composite_header(writer, node.snapshot_version, node.outer_version)
    writer.take(node.java_type)
    writer.bool(node.is_internal_input)
    write_nested_list(writer, node.nested)


@register(f"{_TYPEUTILS}ExternalSerializer$ExternalSerializerSnapshot", write=write_external)
def read_external(reader: Reader, head: Head) -> External:
    """Read the Java-serialized data type, a flag (input is in internal format already), and the internal serializer."""
    outer_version = read_composite_header(reader, head)
    java_type, _ = read_java(reader)
    is_internal_input = reader.bool()
    (inner,) = read_nested_list(reader, 1)
    marks = head.composite_marks(outer_version)
    return External(**marks, inner=inner, is_internal_input=is_internal_input, java_type=java_type)


def write_linked_list(writer: Writer, node: LinkedListOf) -> None:
    """Write the body of a serializer snapshot as `read_linked_list` reads it."""
    write_composite_header(writer, node.snapshot_version, node.outer_version)
    if node.outer_version > FIRST_LIST_WITH_NULLS:
        writer.bool(node.has_null_mask)
    write_nested_list(writer, node.nested)


@register(f"{_TYPEUTILS}LinkedListSerializer$LinkedListSerializerSnapshot", write=write_linked_list)
def read_linked_list(reader: Reader, head: Head) -> LinkedListOf:
    """Read the body of a serializer snapshot: whether lists mark nulls, and the element serializer."""
    outer_version = read_composite_header(reader, head)
    stored = outer_version > FIRST_LIST_WITH_NULLS
    has_null_mask = reader.bool() if stored else outer_version == FIRST_LIST_WITH_NULLS
    (element,) = read_nested_list(reader, 1)
    return LinkedListOf(**head.composite_marks(outer_version), element=element, has_null_mask=has_null_mask)


def write_sorted_map(writer: Writer, node: SortedMapOf) -> None:
    """Write the body of a serializer snapshot as `read_sorted_map` reads it."""
    writer.take(node.comparator)
    write_nested_list(writer, node.nested)


@register(f"{_TYPEUTILS}SortedMapSerializerSnapshot", write=write_sorted_map)
def read_sorted_map(reader: Reader, head: Head) -> SortedMapOf:
    """Read the body of a serializer snapshot: the Java-serialized comparator, then key and value serializer."""
    head.expect(SORTED_MAP_VERSION)
    comparator, _ = read_java(reader)
    key, value = read_nested_list(reader, 2)
    return SortedMapOf(**head.marks, key=key, value=value, comparator=comparator)


def write_row_data_key(writer: Writer, node: RowDataKey) -> None:
    """Write the body of a serializer snapshot as `read_row_data_key` reads it."""
    for raw in node.java:
        writer.take(raw)
    write_nested(writer, node.inner)


@register(f"{_SEQUENCED}RowDataKeySerializerSnapshot", write=write_row_data_key)
def read_row_data_key(reader: Reader, head: Head) -> RowDataKey:
    """Read the body of a serializer snapshot: Java-serialized equaliser and hash function, row serializer."""
    head.expect(ROW_DATA_KEY_VERSION)
    java = (read_java(reader)[0], read_java(reader)[0])
    return RowDataKey(**head.marks, inner=read_nested(reader), java=java)


@register_composite(f"{_SEQUENCED}MetaSqnInfoSerializer$MetaSqnInfoSerializerSnapshot", arity=2)
def build_meta_sqn_info(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return the node of the serializer of a sequenced multiset's highest number and size, given those of both."""
    return Variants(**marks, kind=VariantKind.META_SQN_INFO, serializers=nested)


@register_composite(f"{_SEQUENCED}RowSqnInfoSerializer$RowSqnInfoSerializerSnapshot", arity=2)
def build_row_sqn_info(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return the node of the serializer of a row's first and last sequence number, given those of both."""
    return Variants(**marks, kind=VariantKind.ROW_SQN_INFO, serializers=nested)


@register_composite(f"{_SEQUENCED}NodeSerializer$NodeSerializerSnapshot", arity=6)
def build_sequenced_node(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return the node of the serializer of rows of a sequenced multiset, given those of its fields.

    The fields are row, its number, previous, next, next of the same record, timestamp.
    """
    return Variants(**marks, kind=VariantKind.SEQUENCED_NODE, serializers=nested)


_PYTHON = "org.apache.flink.table.runtime.typeutils.serializers.python."
_ROW = f"{_PYTHON}RowDataSerializer$RowDataSerializerSnapshot"
_ARRAY = f"{_PYTHON}ArrayDataSerializer$ArrayDataSerializerSnapshot"
_MAP = f"{_PYTHON}MapDataSerializer$BaseMapSerializerSnapshot"
_DECIMAL = f"{_PYTHON}DecimalDataSerializer$DecimalSerializerSnapshot"
_TIMESTAMP = "org.apache.flink.table.runtime.typeutils.TimestampDataSerializer$TimestampDataSerializerSnapshot"
VERSION = 1

_BASICS = {
    "BOOLEAN": BasicKind.BOOLEAN,
    "TINYINT": BasicKind.BYTE,
    "SMALLINT": BasicKind.SHORT,
    "INTEGER": BasicKind.INT,
    "BIGINT": BasicKind.LONG,
    "FLOAT": BasicKind.FLOAT,
    "DOUBLE": BasicKind.DOUBLE,
    "BINARY": BasicKind.BYTE_PRIMITIVE_ARRAY,
    "VARBINARY": BasicKind.BYTE_PRIMITIVE_ARRAY,
    "CHAR": BasicKind.STRING_DATA,
    "VARCHAR": BasicKind.STRING_DATA,
    "DATE": BasicKind.INT,
    "TIME_WITHOUT_TIME_ZONE": BasicKind.INT,
}

register(f"{_PYTHON}TimestampSerializer$TimestampSerializerSnapshot", write=write_timestamp)(read_timestamp)


def to_internal(of: LogicalType) -> Serializer:
    """Return PyFlink's serializer for values of a SQL type (`PythonTypeUtils.toInternalSerializer`).

    Raises:
        UnsupportedError: PyFlink has none.
    """
    match of.root:
        case root if root in _BASICS:
            kind = _BASICS[root]
            return Basic(snapshot_class=SNAPSHOT_CLASSES[kind], snapshot_version=CURRENT_VERSION, kind=kind)
        case "TIMESTAMP_WITHOUT_TIME_ZONE" | "TIMESTAMP_WITH_LOCAL_TIME_ZONE":
            return TimestampData(snapshot_class=_TIMESTAMP, snapshot_version=VERSION, precision=of.length or 0)
        case "DECIMAL":
            scale = of.scale or 0
            return PythonDecimal(
                snapshot_class=_DECIMAL, snapshot_version=VERSION, precision=of.length or 0, scale=scale
            )
        case "ROW":
            fields = tuple(map(to_internal, of.children))
            return PythonRow(snapshot_class=_ROW, snapshot_version=ROW_VERSION, types=of.children, fields=fields)
        case "ARRAY":
            (element,) = of.children
            return PythonArray(
                snapshot_class=_ARRAY, snapshot_version=VERSION, element_type=element, element=to_internal(element)
            )
        case "MAP":
            key, value = of.children
            return PythonMap(
                snapshot_class=_MAP,
                snapshot_version=VERSION,
                key_type=key,
                value_type=value,
                key=to_internal(key),
                value=to_internal(value),
            )
    raise UnsupportedError(f"PyFlink has no serializer for values of SQL type {of.root}")


def write_python_row(writer: Writer, node: PythonRow) -> None:
    """Write the body of a serializer snapshot as `read_python_row` reads it."""
    write_row_fields(writer, node)


@register(_ROW, write=write_python_row)
def read_python_row(reader: Reader, head: Head) -> PythonRow:
    """Read the body of a serializer snapshot: the logical types, then as many field serializers."""
    head.expect(ROW_VERSION)
    streams = [read_logical_type(reader) for _ in range(reader.count(_SMALLEST_STREAM))]
    return PythonRow(
        **head.marks,
        types=tuple(kind for _, kind in streams),
        fields=read_nested_list(reader, len(streams)),
        java_types=tuple(raw for raw, _ in streams),
    )


def write_python_streams(writer: Writer, node: PythonArray | PythonMap) -> None:
    """Write the Java streams that are the whole body."""
    write_java(writer, node)


@register(_ARRAY, write=write_python_streams)
def read_python_array(reader: Reader, head: Head) -> PythonArray:
    """Read the element type and the Java-serialized element serializer, which the type implies."""
    head.expect(VERSION)
    raw_type, element_type = read_logical_type(reader)
    raw_serializer, _ = read_java(reader)
    java = (raw_type, raw_serializer)
    return PythonArray(**head.marks, element_type=element_type, element=to_internal(element_type), java=java)


@register(_MAP, write=write_python_streams)
def read_python_map(reader: Reader, head: Head) -> PythonMap:
    """Read key and value type, then the two Java-serialized serializers, which the types imply."""
    head.expect(VERSION)
    raw_key, key_type = read_logical_type(reader)
    raw_value, value_type = read_logical_type(reader)
    java = (raw_key, raw_value, read_java(reader)[0], read_java(reader)[0])
    return PythonMap(
        **head.marks,
        key_type=key_type,
        value_type=value_type,
        key=to_internal(key_type),
        value=to_internal(value_type),
        java=java,
    )


def write_python_decimal(writer: Writer, node: PythonDecimal) -> None:
    """Write the body of a serializer snapshot as `read_python_decimal` reads it."""
    writer.i32(node.precision)
    writer.i32(node.scale)


@register(_DECIMAL, write=write_python_decimal)
def read_python_decimal(reader: Reader, head: Head) -> PythonDecimal:
    """Read the body of a serializer snapshot: precision and scale."""
    head.expect(VERSION)
    return PythonDecimal(**head.marks, precision=reader.i32(), scale=reader.i32())


MAX_LENGTH = 2147483647
"""Length of the types STRING and BYTES."""

_MAX_DEPTH = 64
_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)*)`|'((?:[^']|'')*)'|([A-Za-z_$][\w$.]*)|(\d{1,10})|([<>(),*:?]))")
_WORDS: Mapping[str, tuple[str, int | None, int | None]] = {
    "BIGINT": ("BIGINT", None, None),
    "BINARY": ("BINARY", 1, None),
    "BITMAP": ("BITMAP", None, None),
    "BOOLEAN": ("BOOLEAN", None, None),
    "BYTES": ("VARBINARY", MAX_LENGTH, None),
    "CHAR": ("CHAR", 1, None),
    "DATE": ("DATE", None, None),
    "DEC": ("DECIMAL", 10, 0),
    "DECIMAL": ("DECIMAL", 10, 0),
    "DOUBLE": ("DOUBLE", None, None),
    "FLOAT": ("FLOAT", None, None),
    "INT": ("INTEGER", None, None),
    "INTEGER": ("INTEGER", None, None),
    "NULL": ("NULL", None, None),
    "NUMERIC": ("DECIMAL", 10, 0),
    "SMALLINT": ("SMALLINT", None, None),
    "STRING": ("VARCHAR", MAX_LENGTH, None),
    "TIME": ("TIME_WITHOUT_TIME_ZONE", 0, None),
    "TIMESTAMP": ("TIMESTAMP_WITHOUT_TIME_ZONE", 6, None),
    "TIMESTAMP_LTZ": ("TIMESTAMP_WITH_LOCAL_TIME_ZONE", 6, None),
    "TINYINT": ("TINYINT", None, None),
    "VARBINARY": ("VARBINARY", 1, None),
    "VARCHAR": ("VARCHAR", 1, None),
    "VARIANT": ("VARIANT", None, None),
}
"""Word of a type, and the root, length and scale that it has without numbers."""
_SHOWN_CLASS = re.compile(r"\s*([\w.$]+)\s*\)")
"""The class of a RAW type as texts of serializers show it, without its serializer."""
_NESTED = {"ARRAY": 1, "MULTISET": 1, "MAP": 2}
_WITHOUT_NUMBERS = ("STRING", "BYTES")
_DAY_UNITS = ("DAY", "HOUR", "MINUTE", "SECOND")
_YEAR_UNITS = ("YEAR", "MONTH")


def parse_sql_type(text: str) -> LogicalType:
    """Parse a SQL type, such as `DECIMAL(10, 2) NOT NULL`.

    Raises:
        UsageError: the text is not a type; the message names the character.
    """
    parser = _TypeParser(text)
    found = parser.type()
    parser.expect_end()
    return found


def take_sql_type(text: str, position: int) -> tuple[LogicalType, int]:
    """Parse the SQL type at a position of a text; return it and the position after it.

    Raises:
        UsageError: there is no SQL type.
    """
    parser = _TypeParser(text, position)
    return parser.type(), parser.position


def take_columns(text: str, position: int) -> tuple[list[tuple[str | None, LogicalType]], int]:
    """Parse the columns in parentheses at a position of a text; return their names and types, and the position after.

    Examples are `(id: BIGINT, name VARCHAR(20))` and `(BIGINT, INT NOT NULL)`. A column without a name has None.

    Raises:
        UsageError: there are no columns in parentheses.
    """
    parser = _TypeParser(text, position)
    return parser.columns(), parser.position


def is_sql_word(word: str) -> bool:
    """Return whether a word begins a SQL type."""
    return word in _WORDS or word in _NESTED or word in ("ROW", "INTERVAL", "RAW", "STRUCTURED")


class _TypeParser:
    """Parser of a SQL type or of columns: a cursor over the tokens of a text, which may go on after the type."""

    def __init__(self, text: str, position: int = 0) -> None:
        self.text = text
        self.position = position
        self.depth = 0

    def error(self, what: str) -> UsageError:
        return UsageError(
            f"{what} at character {self.position + 1} of the SQL type {self.text!r}",
            hint="Types are written as in Flink SQL, such as INT, DECIMAL(10, 2) NOT NULL or ROW<id BIGINT>",
        )

    def peek(self, *symbols: str) -> bool:
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            return False
        return match[5] in symbols or (match[3] is not None and match[3].upper() in symbols)

    def accept(self, *symbols: str) -> bool:
        """Consume the given symbols or words if all of them follow in this order; return whether they do."""
        start = self.position
        for symbol in symbols:
            if not self.peek(symbol):
                self.position = start
                return False
            self._next()
        return True

    def expect(self, symbol: str) -> None:
        if not self.accept(symbol):
            raise self.error(f"{symbol!r} expected")

    def expect_end(self) -> None:
        if self.text[self.position :].strip():
            raise self.error("the end expected")

    def columns(self) -> list[tuple[str | None, LogicalType]]:
        self.expect("(")
        found: list[tuple[str | None, LogicalType]] = []
        while not self.accept(")"):
            if found:
                self.expect(",")
            name = self.name() if self._sees_name() else None
            self.accept(":")
            found.append((name, self.type()))
        return found

    def _sees_name(self) -> bool:
        """Return whether the next token is a column name: it is quoted, or a colon or a type follows it."""
        first = _TOKEN.match(self.text, self.position)
        if first is None or (first[1] is None and first[3] is None):
            return False
        if first[1] is not None:
            return True
        second = _TOKEN.match(self.text, first.end())
        if second is None:
            return False
        if second[5] == ":":
            return True
        word = (second[3] or "").upper()
        if word in ("ARRAY", "MULTISET"):
            # Without `<`, the word is a suffix of the type before it, as in INT ARRAY.
            third = _TOKEN.match(self.text, second.end())
            return third is not None and third[5] == "<"
        return word != "NULL" and is_sql_word(word)

    def _next(self) -> re.Match[str]:
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            raise self.error("a type expected")
        self.position = match.end()
        return match

    def name(self) -> str:
        match = _TOKEN.match(self.text, self.position)
        if match is None or (match[1] is None and match[3] is None):
            raise self.error("a name expected")
        self.position = match.end()
        return match[3] if match[1] is None else match[1].replace("``", "`")

    def quoted(self) -> str:
        match = _TOKEN.match(self.text, self.position)
        if match is None or match[2] is None:
            raise self.error("a text in single quotes expected")
        self.position = match.end()
        return match[2].replace("''", "'")

    def numbers(self, most: int) -> list[int]:
        if most == 0 or not self.accept("("):
            return []
        found: list[int] = []
        while True:
            match = _TOKEN.match(self.text, self.position)
            if match is None or match[4] is None or len(found) == most:
                raise self.error("a number expected" if len(found) < most else "')' expected")
            self.position = match.end()
            found.append(int(match[4]))
            if self.accept(")"):
                return found
            self.expect(",")

    def type(self) -> LogicalType:
        if self.depth >= _MAX_DEPTH:
            raise self.error(f"types nest deeper than {_MAX_DEPTH}")
        self.depth += 1
        found = self._bare()
        self.depth -= 1
        while True:
            if self.accept("NOT", "NULL"):
                found = replace(found, nullable=False)
            elif self.accept("MULTISET"):
                found = LogicalType(root="MULTISET", children=(found,))
            elif self.accept("ARRAY"):
                found = LogicalType(root="ARRAY", children=(found,))
            elif not (self.accept("NULL") or self._skip_attribute()):
                return found

    def _skip_attribute(self) -> bool:
        """Skip the mark of a time attribute (`*ROWTIME*`), which Flink's summary texts of types contain."""
        return self.accept("*", "ROWTIME", "*") or self.accept("*", "PROCTIME", "*")

    def _bare(self) -> LogicalType:
        start = self.position
        match = self._next()
        word = (match[3] or "").upper()
        if word in _NESTED:
            return self._nested(word)
        if word == "ROW":
            return self._row()
        if word == "RAW":
            return self._raw()
        if word == "STRUCTURED":
            return self._structured()
        if word == "INTERVAL":
            return self._interval()
        if word not in _WORDS:
            self.position = start
            raise self.error(f"{match[0].strip()!r} is not a SQL type")
        return self._simple(word)

    def _simple(self, word: str) -> LogicalType:
        root, length, scale = _WORDS[word]
        if word == "DOUBLE":
            self.accept("PRECISION")
        given = self.numbers(0 if length is None or word in _WITHOUT_NUMBERS else 1 if scale is None else 2)
        if given:
            length, scale = given[0], (given[1] if len(given) > 1 else scale)
        if word == "TIMESTAMP":
            if self.accept("WITH", "LOCAL", "TIME", "ZONE"):
                root = "TIMESTAMP_WITH_LOCAL_TIME_ZONE"
            elif self.accept("WITH", "TIME", "ZONE"):
                root = "TIMESTAMP_WITH_TIME_ZONE"
        if word in ("TIMESTAMP", "TIME"):
            self.accept("WITHOUT", "TIME", "ZONE")
        return LogicalType(root=root, length=length, scale=scale)

    def _nested(self, word: str) -> LogicalType:
        self.expect("<")
        children = [self.type()]
        for _ in range(1, _NESTED[word]):
            self.expect(",")
            children.append(self.type())
        self.expect(">")
        return LogicalType(root=word, children=tuple(children))

    def _row(self) -> LogicalType:
        closing = ">" if self.accept("<") else ")"
        if closing == ")":
            self.expect("(")
        names: list[str] = []
        children: list[LogicalType] = []
        while not self.accept(closing):
            if names:
                self.expect(",")
            names.append(self.name())
            children.append(self.type())
            if self.text[self.position :].lstrip().startswith("'"):
                self.quoted()
        return LogicalType(root="ROW", children=tuple(children), names=tuple(names))

    def _structured(self) -> LogicalType:
        self.expect("(")
        shown = _SHOWN_CLASS.match(self.text, self.position)
        if shown is None:
            raise self.error("the name of a class expected")
        self.position = shown.end()
        if not self.peek("<"):
            raise self.error("'<' expected")
        return replace(self._row(), root="STRUCTURED_TYPE", class_name=shown[1])

    def _raw(self) -> LogicalType:
        self.expect("(")
        shown = _SHOWN_CLASS.match(self.text, self.position)
        if shown is not None:
            self.position = shown.end()
            return LogicalType(root="RAW", class_name=shown[1])
        name = self.quoted()
        self.expect(",")
        if not self.accept("?"):
            self.quoted()
        self.expect(")")
        return LogicalType(root="RAW", class_name=name)

    def _interval(self) -> LogicalType:
        first = self.name().upper()
        numbers = self.numbers(2)
        last = first
        if self.accept("TO"):
            last = self.name().upper()
            numbers += self.numbers(1)
        if first in _YEAR_UNITS:
            return LogicalType(root="INTERVAL_YEAR_MONTH", length=numbers[0] if numbers else 2)
        if first not in _DAY_UNITS:
            raise self.error(f"INTERVAL {first} is not a SQL type")
        days, fraction = 2, 6
        if first == "DAY" and numbers:
            days = numbers.pop(0)
        if last == "SECOND" and numbers:
            fraction = numbers[-1]
        return LogicalType(root="INTERVAL_DAY_TIME", length=days, scale=fraction)


RECORDED_FILE = Path(__file__).with_name("sql_types.tsv")

MAP_VIEW = "org.apache.flink.table.api.dataview.MapView"
"""Class of the RAW column of an accumulator whose distinct values are kept in a separate state."""

_COLLECTIONS = ("ARRAY", "MAP", "MULTISET")
_ARRAY_LIST = "java.util.ArrayList"
_ROW_FIELD = "org.apache.flink.table.types.logical.RowType$RowField"
_ATTRIBUTE = "org.apache.flink.table.types.logical.StructuredType$StructuredAttribute"
_INT = LogicalType(root="INTEGER", nullable=False)


def make_row(types: Iterable[LogicalType], labels: tuple[str, ...] | None = None) -> RowData:
    """Return the serializer of rows with columns of the given types.

    Args:
        types: types of the columns.
        labels: names of the columns for tables of this package; they are not written to snapshots.

    Raises:
        UsageError: the Java stream of a type is not known.
    """
    types = tuple(types)
    base = _recorded_row("INTEGER")
    made = [make_column(each) for each in types]
    return replace(
        base,
        types=types,
        fields=tuple(serializer for _, serializer in made),
        java_types=tuple(java for java, _ in made),
        labels=labels,
    )


@lru_cache(maxsize=1024)
def make_column(of: LogicalType) -> tuple[bytes, Serializer]:
    """Return the Java stream of a type and the serializer of its values.

    Raises:
        UsageError: the Java stream is not known: of lists and maps of rows, of raw types, and of structured types that
            are not accumulators of MAX and MIN.
    """
    return write_stream(_Interning().take(_make_type(of))), _make_serializer(of)


def _make_serializer(of: LogicalType) -> Serializer:
    match of.root:
        case "ROW" | "STRUCTURED_TYPE":
            return make_row(of.children)
        case "ARRAY" | "MAP" | "MULTISET":
            return _make_collection(of)
    (found,) = _recorded_row(_find_key(of)).fields
    match found:
        case Decimal():
            return replace(found, precision=_default(of.length, 10), scale=of.scale or 0)
        case TimestampData():
            return replace(found, precision=_default(of.length, 6))
    return found


def _default(given: int | None, otherwise: int) -> int:
    return otherwise if given is None else given


def _make_collection(of: LogicalType) -> Serializer:
    """Make the serializer of a list or map; UsageError if it contains collections or rows (unknown Java objects)."""
    key = of.children[0]
    if key.root in (*_COLLECTIONS, "ROW", "RAW") or (
        of.root == "MAP" and of.children[1].root in (*_COLLECTIONS, "ROW")
    ):
        raise _unknown(of)
    if of.root == "ARRAY":
        (recorded,) = _recorded_row(f"ARRAY {key.root}").fields
        assert isinstance(recorded, ArrayData)
        return replace(recorded, element_type=key, java=(make_column(key)[0], _make_java_serializer(key)))
    value = of.children[1] if of.root == "MAP" else _INT
    (recorded,) = _recorded_row("MAP INTEGER" if of.root == "MAP" else "MULTISET INTEGER").fields
    assert isinstance(recorded, MapData)
    java = (make_column(key)[0], make_column(value)[0], _make_java_serializer(key), _make_java_serializer(value))
    return replace(recorded, key_type=key, value_type=value, java=java)


def _make_java_serializer(of: LogicalType) -> bytes:
    """Make the Java stream of the serializer of a list element, key or value of a type."""
    (recorded,) = _recorded_row(f"ARRAY {of.root}").fields
    assert isinstance(recorded, ArrayData)
    content = _read(recorded.java[1])
    assert isinstance(content, JavaObject)
    return write_stream(_with_numbers(content, of))


def _make_type(of: LogicalType) -> JavaObject:
    """Make the Java object of a type from the recorded object of the same kind."""
    (java,) = _recorded_row(_find_key(of)).java_types
    found = _read(java)
    assert isinstance(found, JavaObject)
    values: dict[str, JavaValue] = {"isNullable": of.nullable}
    match of.root:
        case "ARRAY" | "MULTISET":
            values["elementType"] = _make_type(of.children[0])
        case "MAP":
            values |= {"keyType": _make_type(of.children[0]), "valueType": _make_type(of.children[1])}
        case "ROW":
            values["fields"] = _with_fields(found.fields["fields"], of)
        case "STRUCTURED_TYPE":
            values["attributes"] = _with_attributes(found.fields["attributes"], of)
    return _with_values(_with_numbers(found, of), values)


def _with_fields(content: JavaValue, of: LogicalType) -> JavaValue:
    """Return the Java list of the fields of a row with other fields; unmodifiable wrappers of the list are kept."""
    if not isinstance(content, JavaObject):
        return content
    if content.class_name != _ARRAY_LIST:
        # A wrapper; `Collections.UnmodifiableRandomAccessList` refers to its list in two fields, and both get the new
        # one.
        inner = next(each for each in content.fields.values() if isinstance(each, JavaObject))
        made = _with_fields(inner, of)
        return _with_values(content, {name: made for name, each in content.fields.items() if each is inner})
    (data,) = (each for each in content.class_data if each.annotation is not None)
    field = next(
        each for each in data.annotation or () if isinstance(each, JavaObject) and each.class_name == _ROW_FIELD
    )
    fields = [
        _with_values(field, {"name": JavaString(name), "type": _make_type(child)})
        for name, child in zip(of.names, of.children, strict=True)
    ]
    size = len(fields)
    written = JavaClassData((size,), (JavaBlock(size.to_bytes(4, "big")), *fields))
    return replace(content, class_data=tuple(written if each is data else each for each in content.class_data))


def _with_attributes(content: JavaValue, of: LogicalType) -> JavaValue:
    """Return the Java list of the attributes of a structured type with other types; their number stays the same."""
    assert isinstance(content, JavaObject)
    types = {JavaString(name): _make_type(child) for name, child in zip(of.names, of.children, strict=True)}
    data = []
    for each in content.class_data:
        annotation = tuple(
            _with_values(one, {"type": types[JavaString(str(one.fields["name"]))]})
            if isinstance(one, JavaObject) and one.class_name == _ATTRIBUTE
            else one
            for one in each.annotation or ()
        )
        data.append(each if each.annotation is None else replace(each, annotation=annotation))
    return replace(content, class_data=tuple(data))


def _with_numbers(content: JavaObject, of: LogicalType) -> JavaObject:
    fields = content.fields
    values: dict[str, JavaValue] = {}
    for names, number in ((_LENGTHS, of.length), (_SCALES, of.scale)):
        name = next((each for each in names if each in fields), None)
        if name is not None and number is not None:
            values[name] = number
    return _with_values(content, values)


def _with_values(content: JavaObject, values: Mapping[str, JavaValue]) -> JavaObject:
    """Return a Java object with the values of some fields replaced."""
    data = []
    for desc, each in zip(hierarchy(content.class_desc), content.class_data, strict=True):
        assert isinstance(desc, JavaClassDesc)
        fields = zip(desc.fields, each.values, strict=True) if each.values else ()
        data.append(replace(each, values=tuple(values.get(field.name, value) for field, value in fields)))
    return replace(content, class_data=tuple(data))


def _find_key(of: LogicalType) -> str:
    if of.root == "RAW" and of.class_name == MAP_VIEW:
        return "RAW"
    if of.root in ("ARRAY", "MAP", "MULTISET"):
        # The recorded object may have any inner type, since that is replaced.
        return f"{of.root} INTEGER"
    if of.root == "STRUCTURED_TYPE":
        key = f"{of.root} {of.class_name}"
        if key not in _recorded() or of.names != _recorded()[key].types[0].names:
            raise _unknown(of)
        return key
    if of.root == "RAW" or of.root not in _recorded():
        raise _unknown(of)
    return of.root


def _unknown(of: LogicalType) -> UsageError:
    inner = ", ".join(each.root for each in of.children)
    name = f"{of.root} {of.class_name}" if of.class_name else f"{of.root}<{inner}>" if inner else of.root
    return UsageError(
        f"the serializer of the SQL type {name} cannot be built from text",
        hint="The Java stream of this type is not known here; take the serializer from a snapshot that has the type",
    )


def _recorded_row(key: str) -> RowData:
    found = _recorded().get(key)
    if found is None:
        raise UsageError(f"the serializer of the SQL type {key} cannot be built from text")
    return found


@lru_cache(maxsize=1)
def _recorded() -> Mapping[str, RowData]:
    """Return the recorded serializers of rows with one column, by the root of the column's type.

    The key of a collection also has the root of its element type, the key of a structured type its class.
    """
    found: dict[str, RowData] = {}
    for line in RECORDED_FILE.read_text(encoding="utf-8").splitlines():
        _, _, raw = line.partition("\t")
        row = read_nested(Reader(base64.b64decode(raw)))
        assert isinstance(row, RowData)
        (of,) = row.types
        inner = f" {of.children[0].root}" if of.root in _COLLECTIONS else ""
        if of.root == "STRUCTURED_TYPE":
            inner = f" {of.class_name}"
        found.setdefault(f"{of.root}{inner}", row)
    return found


def _read(java: bytes) -> JavaContent:
    return read_java(Reader(java))[1]


class _Interning:
    """Makes objects from several Java streams share classes, constants and signatures, to write all into one stream.

    Java writes a shared object once; where it occurs again (by identity), Java writes a back reference.
    """

    def __init__(self) -> None:
        self._descs: dict[str, JavaClassDesc] = {}
        self._signatures: dict[str, JavaString] = {}
        self._constants: dict[tuple[str, str], JavaEnum] = {}
        self._done: dict[int, tuple[object, JavaContent]] = {}

    def take(self, value: JavaContent) -> JavaContent:
        """Return the object with its classes, constants and signatures replaced by equal ones of earlier objects."""
        if id(value) not in self._done:
            # The entry keeps the object alive: Python could give the id of a freed object to another one.
            self._done[id(value)] = (value, self._make(value))
        return self._done[id(value)][1]

    def _make(self, value: JavaContent) -> JavaContent:
        match value:
            case JavaClassDesc():
                return self._desc(value)
            case JavaEnum():
                key = (value.class_name, value.constant)
                if key not in self._constants:
                    self._constants[key] = replace(value, class_desc=self._any_desc(value.class_desc))
                return self._constants[key]
            case JavaObject():
                return JavaObject(self._any_desc(value.class_desc), tuple(map(self._data, value.class_data)))
            case JavaArray():
                values = value.values if isinstance(value.values, bytes) else tuple(map(self._value, value.values))
                return JavaArray(self._desc(value.class_desc), values)
            case JavaClassLiteral():
                return JavaClassLiteral(self._any_desc(value.class_desc))
        return value

    def _value(self, value: JavaValue) -> JavaValue:
        return value if isinstance(value, bool | int | float | str) else self.take(value)

    def _data(self, data: JavaClassData) -> JavaClassData:
        annotation = None if data.annotation is None else tuple(map(self.take, data.annotation))
        return JavaClassData(tuple(map(self._value, data.values)), annotation)

    def _any_desc(self, desc: object) -> JavaClassDesc | None:
        return self._desc(desc) if isinstance(desc, JavaClassDesc) else None

    def _desc(self, desc: JavaClassDesc) -> JavaClassDesc:
        if desc.name not in self._descs:
            self._descs[desc.name] = replace(
                desc, fields=tuple(map(self._field, desc.fields)), super_desc=self._any_desc(desc.super_desc)
            )
        return self._descs[desc.name]

    def _field(self, field: JavaFieldDesc) -> JavaFieldDesc:
        if field.signature is None:
            return field
        return replace(field, signature=self._signatures.setdefault(field.signature.text, field.signature))
