"""Logical types of the table runtime, parsed from the Java streams in the snapshots.

The streams are kept unchanged; the logical types serve the data layout and display.
Source: `org.apache.flink.table.types.logical.LogicalType` and its subclasses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.binary.java_stream import (
    JavaArray,
    JavaBlock,
    JavaClass,
    JavaClassDesc,
    JavaContent,
    JavaEnum,
    JavaObject,
    JavaValue,
    read_stream,
)
from state_pipelines.errors import FormatError
from state_pipelines.serializers.tree import LogicalType

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader

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
        if isinstance(value, JavaClass) and isinstance(value.class_desc, JavaClassDesc):
            return value.class_desc.name
    structured = members.get("className")
    if isinstance(structured, str):
        return structured
    return _class_name(members["typeInfo"]) if "typeInfo" in members else None


def _class_name(content: JavaValue) -> str:
    return content.class_name if isinstance(content, JavaObject) else type(content).__name__
