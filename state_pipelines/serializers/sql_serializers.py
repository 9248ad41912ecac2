"""Serializers of SQL types that no snapshot holds: made of recorded snapshots of a type of each kind.

`RowDataSerializer` stores the Java stream of each type. The table beside this module has the snapshots of rows with one
column, as Flink 1.20, 2.2 and 2.3 write them, byte for byte the same; numbers, names and inner types are replaced.
Source: `LogicalType` and its subclasses, `InternalSerializers`.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Reader
from state_pipelines.binary.java_stream import (
    JavaArray,
    JavaBlock,
    JavaClass,
    JavaClassData,
    JavaClassDesc,
    JavaContent,
    JavaEnum,
    JavaField,
    JavaObject,
    JavaString,
    JavaValue,
    hierarchy,
    write_stream,
)
from state_pipelines.errors import UsageError
from state_pipelines.serializers.logical_types import read_java
from state_pipelines.serializers.registry import read_nested
from state_pipelines.serializers.tree import (
    ArrayData,
    Decimal,
    LogicalType,
    MapData,
    RowData,
    Serializer,
    TimestampData,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

RECORDED_FILE = Path(__file__).with_name("sql_types.tsv")

MAP_VIEW = "org.apache.flink.table.api.dataview.MapView"
"""Class of the column of an accumulator whose distinct values are a state of their own."""

_COLLECTIONS = ("ARRAY", "MAP", "MULTISET")
_LENGTHS = ("length", "precision", "yearPrecision", "dayPrecision")
_SCALES = ("scale", "fractionalPrecision")
_ARRAY_LIST = "java.util.ArrayList"
_ROW_FIELD = "org.apache.flink.table.types.logical.RowType$RowField"
_INT = LogicalType(root="INTEGER", nullable=False)


def format_recorded(snapshots: Mapping[str, bytes]) -> str:
    """Format the table of recorded snapshots: type and snapshot in base64, a line each."""
    return "".join(f"{text}\t{base64.b64encode(raw).decode()}\n" for text, raw in snapshots.items())


def make_row(types: Iterable[LogicalType], labels: tuple[str, ...] | None = None) -> RowData:
    """Return the serializer of rows with columns of some types.

    Args:
        types: of the columns.
        labels: names of the columns for tables, which are not written.

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
        UsageError: the Java stream is not known: of structured and raw types, and of lists and maps of rows.
    """
    return write_stream(_Interning().take(_make_type(of))), _make_serializer(of)


def _make_serializer(of: LogicalType) -> Serializer:
    match of.root:
        case "ROW":
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
    """Serializer of a list or map, whose inner serializers are Java objects: known of values without inner types."""
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
    """Java stream of the serializer of an element."""
    (recorded,) = _recorded_row(f"ARRAY {of.root}").fields
    assert isinstance(recorded, ArrayData)
    content = _read(recorded.java[1])
    assert isinstance(content, JavaObject)
    return write_stream(_with_numbers(content, of))


def _make_type(of: LogicalType) -> JavaObject:
    """Java object of a type, made of the recorded one of its kind."""
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
    return _with_values(_with_numbers(found, of), values)


def _with_fields(content: JavaValue, of: LogicalType) -> JavaValue:
    """The list of the fields of a row, with other fields; lists are wrapped in lists that cannot be changed."""
    if not isinstance(content, JavaObject):
        return content
    if content.class_name != _ARRAY_LIST:
        # `Collections.UnmodifiableRandomAccessList` has its list twice.
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


def _with_numbers(content: JavaObject, of: LogicalType) -> JavaObject:
    fields = content.fields
    values: dict[str, JavaValue] = {}
    for names, number in ((_LENGTHS, of.length), (_SCALES, of.scale)):
        name = next((each for each in names if each in fields), None)
        if name is not None and number is not None:
            values[name] = number
    return _with_values(content, values)


def _with_values(content: JavaObject, values: Mapping[str, JavaValue]) -> JavaObject:
    """An object with other values of some fields."""
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
        # The object of the inner type is replaced: any one of the kind does.
        return f"{of.root} INTEGER"
    if of.root == "RAW" or of.root not in _recorded():
        raise _unknown(of)
    return of.root


def _unknown(of: LogicalType) -> UsageError:
    inner = ", ".join(each.root for each in of.children)
    name = f"{of.root} {of.class_name}" if of.class_name else f"{of.root}<{inner}>" if inner else of.root
    return UsageError(
        f"the serializer of the SQL type {name} cannot be built from text",
        hint="Its Java stream is only in the snapshots that have it",
    )


def _recorded_row(key: str) -> RowData:
    found = _recorded().get(key)
    if found is None:
        raise UsageError(f"the serializer of the SQL type {key} cannot be built from text")
    return found


@lru_cache(maxsize=1)
def _recorded() -> Mapping[str, RowData]:
    """Recorded rows by the root of their column, of lists and maps with the root of what they hold."""
    found: dict[str, RowData] = {}
    for line in RECORDED_FILE.read_text(encoding="utf-8").splitlines():
        _, _, raw = line.partition("\t")
        row = read_nested(Reader(base64.b64decode(raw)))
        assert isinstance(row, RowData)
        (of,) = row.types
        inner = f" {of.children[0].root}" if of.root in _COLLECTIONS else ""
        found.setdefault(f"{of.root}{inner}", row)
    return found


def _read(java: bytes) -> JavaContent:
    return read_java(Reader(java))[1]


class _Interning:
    """Objects of several streams as Java would write them in one: each class, constant and signature once.

    Java gives an object that it meets again a back reference, and knows it by its identity.
    """

    def __init__(self) -> None:
        self._descs: dict[str, JavaClassDesc] = {}
        self._signatures: dict[str, JavaString] = {}
        self._constants: dict[tuple[str, str], JavaEnum] = {}
        self._done: dict[int, tuple[object, JavaContent]] = {}

    def take(self, value: JavaContent) -> JavaContent:
        """Return the object with those classes, constants and signatures that were met before."""
        if id(value) not in self._done:
            # The object is kept, so that no other one gets its identity.
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
            case JavaClass():
                return JavaClass(self._any_desc(value.class_desc))
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

    def _field(self, field: JavaField) -> JavaField:
        if field.signature is None:
            return field
        return replace(field, signature=self._signatures.setdefault(field.signature.text, field.signature))
