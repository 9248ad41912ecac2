"""SQL types from text as Flink writes it, such as `DECIMAL(10, 2) NOT NULL`, and the serializers of their rows.

Words that Flink takes for other types are taken here too: STRING, BYTES, TIMESTAMP_LTZ, DEC. `RowDataSerializer` stores
the Java stream of each type. The table next to this module has the snapshots of rows with one column, as Flink 1.20,
2.2 and 2.3 write them, byte for byte the same; numbers, names and inner types are replaced.
Source: `LogicalTypeParser`, `LogicalType` and its subclasses (`asSerializableString`), `InternalSerializers`.
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
    write_stream,
)
from state_pipelines.errors import UsageError
from state_pipelines.serializers.registry import read_nested
from state_pipelines.serializers.table_runtime import read_java
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

MAX_LENGTH = 2147483647
"""Length of STRING and BYTES."""

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
    """Return the SQL type that a text names.

    Raises:
        UsageError: the text is not a type; the message names the character.
    """
    parser = _TypeParser(text)
    found = parser.type()
    parser.expect_end()
    return found


def take_sql_type(text: str, position: int) -> tuple[LogicalType, int]:
    """Return the SQL type at a position of a text, and the position after it.

    Raises:
        UsageError: there is none.
    """
    parser = _TypeParser(text, position)
    return parser.type(), parser.position


def take_columns(text: str, position: int) -> tuple[list[tuple[str | None, LogicalType]], int]:
    """Return names and types in parentheses at a position of a text, and the position after them.

    Such as `(id: BIGINT, name VARCHAR(20))` or `(BIGINT, INT NOT NULL)`; None for a column without a name.

    Raises:
        UsageError: there are none.
    """
    parser = _TypeParser(text, position)
    return parser.columns(), parser.position


def is_sql_word(word: str) -> bool:
    """Return whether a word begins a SQL type."""
    return word in _WORDS or word in _NESTED or word in ("ROW", "INTERVAL", "RAW")


class _TypeParser:
    """A cursor over the tokens of a text, which may begin and end inside a larger one."""

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
        """Take symbols or words that follow each other; none of them when one is missing."""
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
        """Return whether a name is next, not a type: a colon or the word of a type follows it."""
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
            # After a type they are a suffix of it: INT ARRAY.
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
        """Skip the mark of a time attribute, which summary texts have: `*ROWTIME*`."""
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
