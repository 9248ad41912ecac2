"""Snapshots of the table runtime: rows, arrays and maps of SQL and of PyFlink, with their logical types.

Some hold Java serialization streams without a length. Their bytes are kept, so that they are written as they were; the
logical types parsed from them serve the data layout and display. State of Python functions itself is byte arrays
(`BytePrimitiveArray`, `ByteArrayWrapper`), whose content, often a pickle, is kept as it is and never unpickled.
Source: `org.apache.flink.table.runtime.typeutils` with its package `serializers.table_runtime`,
`org.apache.flink.table.runtime.sequencedmultisetstate`, `PythonTypeUtils.toInternalSerializer`,
`org.apache.flink.table.types.logical.LogicalType` and its subclasses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.binary.java_stream import (
    JavaArray,
    JavaBlock,
    JavaClassDesc,
    JavaClassLiteral,
    JavaContent,
    JavaEnum,
    JavaObject,
    JavaValue,
    read_stream,
)
from state_pipelines.errors import FormatError, UnsupportedError, ValueRangeError
from state_pipelines.serializers.basic import CURRENT_VERSION, SNAPSHOT_CLASSES
from state_pipelines.serializers.registry import (
    read_nested,
    read_nested_list,
    register,
    register_composite,
    write_nested,
    write_nested_list,
)
from state_pipelines.serializers.snapshot_frames import (
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
    from state_pipelines.binary.data_views import Reader, Writer

# Fields of the subclasses that hold the one or two numbers of a type.
_LENGTHS = ("length", "precision", "yearPrecision", "dayPrecision")
_SCALES = ("scale", "fractionalPrecision")
# Fields of the subclasses that hold one child each.
_CHILDREN = ("elementType", "keyType", "valueType", "sourceType")
# Fields that lists are wrapped in: Collections$Unmodifiable…List, Arrays$ArrayList, Collections$SingletonList.
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
    """Return the logical type that a Java object is.

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
    """Return the elements of the list classes of the JDK that hold type fields."""
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
    """Return the class of RAW, STRUCTURED and legacy types."""
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

# Linked lists mark nulls since outer version 2, which stores nothing; from 3 on a flag stores it.
FIRST_LIST_WITH_NULLS = 2
# The least that a Java stream takes: its header and one byte.
_SMALLEST_STREAM = 5


def write_row_fields(writer: Writer, node: RowData | PythonRow) -> None:
    """Write the logical types, then the field serializers."""
    writer.i32(len(node.java_types))
    for raw in node.java_types:
        writer.take(raw)
    write_nested_list(writer, node.fields)


def write_row_data(writer: Writer, node: RowData) -> None:
    """Write what `read_row_data` reads.

    Raises:
        ValueRangeError: the node has names that its version cannot store, or another number of names than fields.
    """
    write_row_fields(writer, node)
    if node.snapshot_version >= ROW_VERSION_WITH_NAMES:
        writer.bool(node.names is not None)
    elif node.names is not None:
        raise ValueRangeError(f"version {node.snapshot_version} of the snapshot of a row holds no names of fields")
    if node.names is not None and len(node.names) != len(node.fields):
        raise ValueRangeError(f"{len(node.names)} names for {len(node.fields)} fields of a row")
    for name in node.names or ():
        writer.utf(name)


@register(f"{_TYPEUTILS}RowDataSerializer$RowDataSerializerSnapshot", write=write_row_data)
def read_row_data(reader: Reader, head: Head) -> RowData:
    """Read the logical types, then as many field serializers; since version 4 whether names follow, and those."""
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
    """Write what `read_binary_row` reads."""
    writer.i32(node.num_fields)


@register(f"{_TYPEUTILS}BinaryRowDataSerializer$BinaryRowDataSerializerSnapshot", write=write_binary_row)
def read_binary_row(reader: Reader, head: Head) -> BinaryRow:
    """Read the number of fields."""
    head.expect(BINARY_ROW_VERSION)
    return BinaryRow(**head.marks, num_fields=reader.i32())


def write_java(writer: Writer, node: ArrayData | MapData | PythonArray | PythonMap) -> None:
    """Write the Java streams that are the whole body."""
    for raw in node.java:
        writer.take(raw)


@register(f"{_TYPEUTILS}ArrayDataSerializer$ArrayDataSerializerSnapshot", write=write_java)
def read_array_data(reader: Reader, head: Head) -> ArrayData:
    """Read the element type and the Java-serialized element serializer."""
    head.expect(ARRAY_DATA_VERSION)
    raw_type, element_type = read_logical_type(reader)
    raw_serializer, _ = read_java(reader)
    return ArrayData(**head.marks, element_type=element_type, java=(raw_type, raw_serializer))


@register(f"{_TYPEUTILS}MapDataSerializer$MapDataSerializerSnapshot", write=write_java)
def read_map_data(reader: Reader, head: Head) -> MapData:
    """Read key and value type, then the two Java-serialized serializers."""
    head.expect(MAP_DATA_VERSION)
    raw_key, key_type = read_logical_type(reader)
    raw_value, value_type = read_logical_type(reader)
    serializers = (read_java(reader)[0], read_java(reader)[0])
    return MapData(**head.marks, key_type=key_type, value_type=value_type, java=(raw_key, raw_value, *serializers))


def write_decimal(writer: Writer, node: Decimal) -> None:
    """Write what `read_decimal` reads."""
    writer.i32(node.precision)
    writer.i32(node.scale)


@register(f"{_TYPEUTILS}DecimalDataSerializer$DecimalSerializerSnapshot", write=write_decimal)
def read_decimal(reader: Reader, head: Head) -> Decimal:
    """Read precision and scale."""
    head.expect(DECIMAL_VERSION)
    return Decimal(**head.marks, precision=reader.i32(), scale=reader.i32())


def write_timestamp(writer: Writer, node: TimestampData) -> None:
    """Write what `read_timestamp` reads."""
    writer.i32(node.precision)


@register(f"{_TYPEUTILS}TimestampDataSerializer$TimestampDataSerializerSnapshot", write=write_timestamp)
def read_timestamp(reader: Reader, head: Head) -> TimestampData:
    """Read the precision."""
    head.expect(TIMESTAMP_VERSION)
    return TimestampData(**head.marks, precision=reader.i32())


@register_composite(f"{_TYPEUTILS}RawValueDataSerializer$RawValueDataSerializerSnapshot", arity=1)
def build_raw_value(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> RawValue:
    """Return the serializer of the raw value."""
    return RawValue(**marks, inner=nested[0])


@register_composite(f"{_TYPEUTILS}WindowKeySerializer$WindowKeySerializerSnapshot", arity=1)
def build_window_key(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> WindowKey:
    """Return the serializer of the key row."""
    return WindowKey(**marks, key=nested[0])


def write_external(writer: Writer, node: External) -> None:
    """Write what `read_external` reads."""
    write_composite_header(writer, node.snapshot_version, node.outer_version)
    writer.take(node.java_type)
    writer.bool(node.is_internal_input)
    write_nested_list(writer, node.nested)


@register(f"{_TYPEUTILS}ExternalSerializer$ExternalSerializerSnapshot", write=write_external)
def read_external(reader: Reader, head: Head) -> External:
    """Read the Java-serialized data type, whether input is internal already, and the internal serializer."""
    outer_version = read_composite_header(reader, head)
    java_type, _ = read_java(reader)
    is_internal_input = reader.bool()
    (inner,) = read_nested_list(reader, 1)
    marks = head.composite_marks(outer_version)
    return External(**marks, inner=inner, is_internal_input=is_internal_input, java_type=java_type)


def write_linked_list(writer: Writer, node: LinkedListOf) -> None:
    """Write what `read_linked_list` reads."""
    write_composite_header(writer, node.snapshot_version, node.outer_version)
    if node.outer_version > FIRST_LIST_WITH_NULLS:
        writer.bool(node.has_null_mask)
    write_nested_list(writer, node.nested)


@register(f"{_TYPEUTILS}LinkedListSerializer$LinkedListSerializerSnapshot", write=write_linked_list)
def read_linked_list(reader: Reader, head: Head) -> LinkedListOf:
    """Read whether lists mark nulls, and the element serializer."""
    outer_version = read_composite_header(reader, head)
    stored = outer_version > FIRST_LIST_WITH_NULLS
    has_null_mask = reader.bool() if stored else outer_version == FIRST_LIST_WITH_NULLS
    (element,) = read_nested_list(reader, 1)
    return LinkedListOf(**head.composite_marks(outer_version), element=element, has_null_mask=has_null_mask)


def write_sorted_map(writer: Writer, node: SortedMapOf) -> None:
    """Write what `read_sorted_map` reads."""
    writer.take(node.comparator)
    write_nested_list(writer, node.nested)


@register(f"{_TYPEUTILS}SortedMapSerializerSnapshot", write=write_sorted_map)
def read_sorted_map(reader: Reader, head: Head) -> SortedMapOf:
    """Read the Java-serialized comparator, then key and value serializer."""
    head.expect(SORTED_MAP_VERSION)
    comparator, _ = read_java(reader)
    key, value = read_nested_list(reader, 2)
    return SortedMapOf(**head.marks, key=key, value=value, comparator=comparator)


def write_row_data_key(writer: Writer, node: RowDataKey) -> None:
    """Write what `read_row_data_key` reads."""
    for raw in node.java:
        writer.take(raw)
    write_nested(writer, node.inner)


@register(f"{_SEQUENCED}RowDataKeySerializerSnapshot", write=write_row_data_key)
def read_row_data_key(reader: Reader, head: Head) -> RowDataKey:
    """Read the Java-serialized equaliser and hash function, then the row serializer."""
    head.expect(ROW_DATA_KEY_VERSION)
    java = (read_java(reader)[0], read_java(reader)[0])
    return RowDataKey(**head.marks, inner=read_nested(reader), java=java)


@register_composite(f"{_SEQUENCED}MetaSqnInfoSerializer$MetaSqnInfoSerializerSnapshot", arity=2)
def build_meta_sqn_info(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return highest sequence number and size of a sequenced multiset."""
    return Variants(**marks, kind=VariantKind.META_SQN_INFO, serializers=nested)


@register_composite(f"{_SEQUENCED}RowSqnInfoSerializer$RowSqnInfoSerializerSnapshot", arity=2)
def build_row_sqn_info(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return first and last sequence number of a row."""
    return Variants(**marks, kind=VariantKind.ROW_SQN_INFO, serializers=nested)


@register_composite(f"{_SEQUENCED}NodeSerializer$NodeSerializerSnapshot", arity=6)
def build_sequenced_node(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return a row of a sequenced multiset: row, its number, previous, next, next of the same record, timestamp."""
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
    """Return the serializer that PyFlink has for values of a SQL type (`PythonTypeUtils.toInternalSerializer`).

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
    """Write what `read_python_row` reads."""
    write_row_fields(writer, node)


@register(_ROW, write=write_python_row)
def read_python_row(reader: Reader, head: Head) -> PythonRow:
    """Read the logical types, then as many field serializers."""
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
    """Write what `read_python_decimal` reads."""
    writer.i32(node.precision)
    writer.i32(node.scale)


@register(_DECIMAL, write=write_python_decimal)
def read_python_decimal(reader: Reader, head: Head) -> PythonDecimal:
    """Read precision and scale."""
    head.expect(VERSION)
    return PythonDecimal(**head.marks, precision=reader.i32(), scale=reader.i32())
