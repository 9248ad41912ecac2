"""Snapshots of PyFlink: rows, arrays, maps and decimals as they travel between Java and Python.

State of Python functions itself is byte arrays (`BytePrimitiveArray`, `ByteArrayWrapper`), whose content, often a
pickle, is kept as it is and never unpickled.
Source: `org.apache.flink.table.runtime.typeutils.serializers.python` and `PythonTypeUtils.toInternalSerializer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import UnsupportedError
from state_pipelines.serializers.basic import CURRENT_VERSION, SNAPSHOT_CLASSES
from state_pipelines.serializers.logical_types import read_java, read_logical_type
from state_pipelines.serializers.registry import read_nested_list, register
from state_pipelines.serializers.table_runtime import (
    ROW_VERSION,
    read_timestamp,
    write_java,
    write_row_fields,
    write_timestamp,
)
from state_pipelines.serializers.tree import (
    Basic,
    BasicKind,
    LogicalType,
    PythonArray,
    PythonDecimal,
    PythonMap,
    PythonRow,
    Serializer,
    TimestampData,
)

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader, Writer
    from state_pipelines.serializers.snapshot_frames import Head

_PYTHON = "org.apache.flink.table.runtime.typeutils.serializers.python."
_ROW = f"{_PYTHON}RowDataSerializer$RowDataSerializerSnapshot"
_ARRAY = f"{_PYTHON}ArrayDataSerializer$ArrayDataSerializerSnapshot"
_MAP = f"{_PYTHON}MapDataSerializer$BaseMapSerializerSnapshot"
_DECIMAL = f"{_PYTHON}DecimalDataSerializer$DecimalSerializerSnapshot"
_TIMESTAMP = "org.apache.flink.table.runtime.typeutils.TimestampDataSerializer$TimestampDataSerializerSnapshot"
VERSION = 1
_SMALLEST_STREAM = 5

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
