"""Serializers as text, such as `Map<String, Pojo<com.acme.Order>(amountCents: Long, id: String)>`, written and parsed.

`describe` writes any tree; `parse` reads the trees that `build` makes. The text does not contain versions and Java
streams. `spell` is `describe` with custom families as their snapshots, which `parse` reads too. Names that hold other
characters than letters, digits and `_ $ . [ ;` are quoted with backticks.

    serializer := word | word "<" argument, … ">" | word ["<" class ">"] "(" entry, … ")"

Rows of the table runtime have SQL types, with names or without: `RowData(id: BIGINT, name: VARCHAR(20) NOT NULL)`. A
bare SQL type is the serializer that the table runtime has for its values. A serializer of a custom family is
`Snapshot<class>(version, 0xBODY)`: its snapshot, with the body in hexadecimal.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import singledispatch
from typing import TYPE_CHECKING, Any, TypeVar

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.errors import StateError, UsageError
from state_pipelines.serializers import build, java_types
from state_pipelines.serializers import java_types as basics
from state_pipelines.serializers.beam import BeamSerializer, Coder
from state_pipelines.serializers.registry import (
    CURRENT_SIMPLE,
    MAX_DEPTH,
    is_custom,
    is_registered,
    is_simple,
    read_nested,
    write_nested,
)
from state_pipelines.serializers.snapshot_classes import write_head
from state_pipelines.serializers.table_runtime import is_sql_word, make_column, make_row, take_columns, take_sql_type
from state_pipelines.serializers.tree import (
    ArrayData,
    Avro,
    Basic,
    BinaryRow,
    CaseClass,
    CaseObject,
    ClassBound,
    Coproduct,
    Decimal,
    Declared,
    Enum,
    External,
    GenericArray,
    Kryo,
    LinkedListOf,
    ListOf,
    LogicalType,
    MapData,
    MapOf,
    Mapped,
    Nullable,
    Opaque,
    Pojo,
    PojoField,
    PojoSubclass,
    PositionalRow,
    Protobuf,
    PythonArray,
    PythonDecimal,
    PythonMap,
    PythonRow,
    RowData,
    ScalaCollection,
    ScalaEnum,
    ScalaMap,
    Serializer,
    SetOf,
    SortedMapOf,
    TimestampData,
    Ttl,
    TtlAware,
    Tuple,
    Variants,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PLAIN_NAME = re.compile(r"[\w$.\[;]+")
"""A name that needs no backticks."""

_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"\d{1,9}")
_HEX = re.compile(r"0x((?:[0-9a-fA-F]{2})*)")
_QUOTED = re.compile(r"`((?:[^`]|``)*)`")
_TUPLE = re.compile(r"Tuple(\d{1,2})")

Item = TypeVar("Item")


def parse(text: str, make_kryo: Callable[[str], Serializer] | None = None) -> Serializer:
    """Parse the text of a serializer; the inverse of `text.describe` for all serializers that `build` makes.

    Args:
        text: the text, such as `Map<String, Long>`.
        make_kryo: returns the Kryo serializer of a class, since the text `Kryo<class>` does not contain registrations.
            Without it, `Kryo<class>` is an error.

    Raises:
        UsageError: the text does not describe a serializer; the message gives the position.
    """
    parser = _Parser(text, make_kryo)
    serializer = parser.serializer()
    parser.expect_end()
    return serializer


class _Parser:
    """Recursive-descent parser of the text of a serializer; `position` is that of the next character."""

    def __init__(self, text: str, make_kryo: Callable[[str], Serializer] | None = None) -> None:
        self.text = text
        self.make_kryo = make_kryo
        self.position = 0
        self.depth = 0

    def error(self, what: str, position: int | None = None, hint: str = "") -> UsageError:
        position = (self.position if position is None else position) + 1
        return UsageError(f"{what} at character {position} of {self.text!r}", hint=hint)

    def skip_space(self) -> None:
        match = _SPACE.match(self.text, self.position)
        self.position = match.end() if match else self.position

    def sees(self, symbol: str) -> bool:
        self.skip_space()
        return self.text.startswith(symbol, self.position)

    def accept(self, symbol: str) -> bool:
        if self.sees(symbol):
            self.position += len(symbol)
            return True
        return False

    def expect(self, symbol: str) -> None:
        if not self.accept(symbol):
            raise self.error(f"{symbol!r} expected, {self.found()} found")

    def expect_end(self) -> None:
        self.skip_space()
        if self.position < len(self.text):
            raise self.error(f"the end expected, {self.found()} found")

    def found(self) -> str:
        return repr(self.text[self.position]) if self.position < len(self.text) else "the end"

    def name(self, what: str) -> str:
        self.skip_space()
        quoted = _QUOTED.match(self.text, self.position)
        if quoted:
            self.position = quoted.end()
            return quoted.group(1).replace("``", "`")
        plain = PLAIN_NAME.match(self.text, self.position)
        if not plain:
            raise self.error(f"{what} expected, {self.found()} found")
        self.position = plain.end()
        return plain.group()

    def number(self, what: str) -> int:
        self.skip_space()
        match = _NUMBER.match(self.text, self.position)
        if not match:
            raise self.error(f"{what} expected, {self.found()} found")
        self.position = match.end()
        return int(match.group())

    def listed(self, item: Callable[[], Item], opening: str, closing: str) -> list[Item]:
        self.expect(opening)
        items: list[Item] = []
        while not self.accept(closing):
            if items:
                self.expect(",")
            items.append(item())
        return items

    def class_name(self) -> str:
        self.expect("<")
        name = self.name("a class name")
        self.expect(">")
        return name

    def serializer(self) -> Serializer:
        self.skip_space()
        start = self.position
        if self.depth >= MAX_DEPTH:
            raise self.error(f"serializers nest deeper than {MAX_DEPTH}")
        self.depth += 1
        word = self.name("a serializer")
        found = self.serializer_named(word, start)
        self.depth -= 1
        return found

    def serializer_named(self, word: str, start: int) -> Serializer:
        tuple_word = _TUPLE.fullmatch(word)
        if word in basics.SNAPSHOT_CLASSES:
            return build.basic(word)
        if word in _ELEMENTS:
            make, arity = _ELEMENTS[word]
            return make(*self.arguments(word, arity))
        if tuple_word:
            return build.tuple_of(*self.arguments(word, int(tuple_word.group(1))))
        if word in _PARSERS:
            return _PARSERS[word](self)
        if word == "Kryo" and self.make_kryo is not None:
            return self.make_kryo(self.class_name())
        if is_sql_word(word):
            return self.sql_value(start)
        known = [*basics.SNAPSHOT_CLASSES, *_ELEMENTS, *_PARSERS, "Tuple2"]
        close = get_close_matches(word, known, 3)
        if word in _NOT_FROM_TEXT:
            raise self.error(f"{word} cannot be built from text", start, hint=_NOT_FROM_TEXT[word])
        hint = f"Did you mean {', '.join(close)}?" if close else f"Known: {', '.join(known)}"
        raise self.error(f"{word!r} is not a serializer", start, hint=hint)

    def arguments(self, word: str, arity: int) -> list[Serializer]:
        start = self.position
        arguments = self.listed(self.serializer, "<", ">")
        if len(arguments) != arity:
            raise self.error(f"{word} takes {arity} serializers, not {len(arguments)},", start)
        return arguments

    def row(self) -> Serializer:
        return build.row(*self.row_fields())

    def row_without_kind(self) -> Serializer:
        return build.row(*self.row_fields(), supports_row_kind=False)

    def row_fields(self) -> list[Serializer]:
        fields: list[Serializer] = []

        def field() -> None:
            self.skip_space()
            start = self.position
            if self.name("a field") != f"f{len(fields)}":
                raise self.error(f"fields of a Row have no names but their position, f{len(fields)} expected", start)
            self.expect(":")
            fields.append(self.serializer())

        self.listed(field, "(", ")")
        return fields

    def nullable(self) -> Serializer:
        self.expect("<")
        inner = self.serializer()
        padding = 0
        if self.accept(","):
            self.expect("padding")
            padding = self.number("the number of bytes")
        self.expect(">")
        return build.nullable(inner, padding)

    def ttl_aware(self) -> Serializer:
        self.expect("<")
        enabled = self.accept("enabled")
        if not enabled:
            self.expect("disabled")
        self.expect(",")
        inner = self.serializer()
        self.expect(">")
        return build.ttl_aware(inner, ttl_enabled=enabled)

    def enum(self) -> Serializer:
        return build.enum(self.class_name(), *self.listed(lambda: self.name("a constant"), "(", ")"))

    def tuple_of_class(self) -> Serializer:
        name = self.class_name()
        start = self.position
        fields = self.listed(self.serializer, "(", ")")
        try:
            return build.tuple_of(*fields, tuple_class=name)
        except UsageError as error:
            raise self.error(error.what, start) from None

    def array(self) -> Serializer:
        name = self.class_name()
        self.expect("(")
        element = self.serializer()
        self.expect(")")
        return build.generic_array(name, element)

    def snapshot(self) -> Serializer:
        start = self.position
        name = self.class_name()
        if not is_registered(name):
            raise self.error(f"no reader is registered for the serializer snapshot class {name}", start)
        version, body = CURRENT_SIMPLE if is_simple(name) else 1, b""
        if self.accept("("):
            version = self.number("the version of the snapshot")
            if self.accept(","):
                self.skip_space()
                found = _HEX.match(self.text, self.position)
                if found is None:
                    raise self.error(f"the body of the snapshot as 0x… expected, {self.found()} found")
                self.position, body = found.end(), bytes.fromhex(found[1])
            self.expect(")")
        writer = Writer()
        write_head(writer, name, version)
        writer.take(body)
        reader = Reader(writer.getvalue())
        try:
            node = read_nested(reader)
            reader.expect_end("the snapshot")
        except StateError as error:
            raise self.error(f"the bytes are not a snapshot of {name}: {error.what}", start, error.hint) from None
        return node

    def row_data(self) -> Serializer:
        start = self.position
        columns, self.position = take_columns(self.text, start)
        named = [name for name, _ in columns if name is not None]
        if named and len(named) < len(columns):
            raise self.error("some columns of the row have names, some have none", start)
        if len(set(named)) < len(named):
            raise self.error("two columns of the row have one name", start)
        try:
            return make_row([of for _, of in columns], tuple(named) or None)
        except UsageError as error:
            raise self.error(error.what, start, error.hint) from None

    def sql_value(self, start: int) -> Serializer:
        of, self.position = take_sql_type(self.text, start)
        try:
            return make_column(of)[1]
        except UsageError as error:
            raise self.error(error.what, start, error.hint) from None

    def pojo(self) -> Serializer:
        pojo_class = self.class_name()
        groups: dict[str, dict[str, Serializer]] = {"": {}, "registered": {}, "subclass": {}}
        owners: dict[str, str] = {}

        def entry() -> None:
            self.skip_space()
            start = self.position
            name, group = self.name("a field name"), ""
            if name in ("registered", "subclass") and not self.sees(":") and not self.sees("#"):
                name, group = self.name("a class name"), name
            elif self.accept("#"):
                owner, name = name, self.name("a field name")
                owners[name] = owner
            if name in groups[group]:
                raise self.error(f"{name!r} is there twice", start)
            self.expect(":")
            groups[group][name] = self.serializer()

        self.listed(entry, "(", ")")
        return build.pojo(
            pojo_class,
            groups[""],
            declared_by=owners,
            registered=groups["registered"],
            non_registered=groups["subclass"],
        )


_ELEMENTS: dict[str, tuple[Callable[..., Serializer], int]] = {
    "List": (build.list_of, 1),
    "ArrayList": (build.array_list_of, 1),
    "Set": (build.set_of, 1),
    "Map": (build.map_of, 2),
    "NullAwareMap": (build.null_aware_map_of, 2),
    "Either": (build.either, 2),
    "Ttl": (build.ttl, 1),
    "Timer": (build.timer, 2),
}

_PARSERS: dict[str, Callable[[_Parser], Serializer]] = {
    "Row": _Parser.row,
    "RowData": _Parser.row_data,
    "RowWithoutKind": _Parser.row_without_kind,
    "Nullable": _Parser.nullable,
    "TtlAware": _Parser.ttl_aware,
    "Enum": _Parser.enum,
    "Tuple": _Parser.tuple_of_class,
    "Array": _Parser.array,
    "Pojo": _Parser.pojo,
    "Snapshot": _Parser.snapshot,
}

_NOT_FROM_TEXT = {
    "Avro": "The text does not contain its schema; use state_pipelines.serializers.build.avro",
    "Kryo": "The text does not contain its registrations; take it from a snapshot",
    "Opaque": "The text does not contain its bytes; take it from a snapshot",
}

UNRESOLVED = "?"

_SQL_WORDS = {
    "INTEGER": "INT",
    "TIME_WITHOUT_TIME_ZONE": "TIME",
    "TIMESTAMP_WITHOUT_TIME_ZONE": "TIMESTAMP",
    "TIMESTAMP_WITH_LOCAL_TIME_ZONE": "TIMESTAMP_LTZ",
    "TIMESTAMP_WITH_TIME_ZONE": "TIMESTAMP_TZ",
    "STRUCTURED_TYPE": "STRUCTURED",
    "DISTINCT_TYPE": "DISTINCT",
}


@singledispatch
def describe(serializer: Serializer) -> str:
    """Return a readable text of a serializer, such as `Map<String, Long>`.

    For nodes without a registered text, it is the class name of the node and its nested serializers. A plug-in may
    register a function for its nodes with `describe.register`.
    """
    return _generic(type(serializer).__name__, map(describe, serializer.nested))


def spell(serializer: Serializer) -> str:
    """Return a readable text that can be parsed: serializers that are not Flink's are written as their snapshots.

    Example: `Map<String, Snapshot<com.acme.MoneySerializer$Snap>(1, 0x0003455552)>`.
    """
    return describe(_spell_custom(serializer))


@dataclass(frozen=True, kw_only=True)
class _Spelled(Serializer):
    """A node that replaces a serializer in `spell`; `describe` returns its `text`."""

    text: str


_WRITTEN_AS_SNAPSHOTS = (CaseClass, CaseObject, Coproduct, Mapped, Protobuf, ScalaCollection, ScalaMap)


def _spell_custom(node: Any) -> Any:
    if isinstance(node, tuple):
        return tuple(map(_spell_custom, node))
    if not is_dataclass(node) or isinstance(node, type):
        return node
    if isinstance(node, _WRITTEN_AS_SNAPSHOTS) or (isinstance(node, Serializer) and is_custom(node)):
        writer = Writer()
        write_nested(writer, node)
        head = Writer()
        write_head(head, node.snapshot_class, node.snapshot_version)
        body = writer.getvalue()[len(head.getvalue()) :]
        text = f"{node.snapshot_version}, 0x{body.hex()}" if body else f"{node.snapshot_version}"
        return _Spelled(snapshot_class=node.snapshot_class, text=f"Snapshot<{quote(node.snapshot_class)}>({text})")
    changes = {each.name: _spell_custom(getattr(node, each.name)) for each in fields(node)}
    return replace(node, **changes)


def describe_type(kind: LogicalType) -> str:
    """Return the text of a SQL type, such as `DECIMAL(10, 2) NOT NULL` or `ROW<id BIGINT, name VARCHAR(20)>`."""
    word = _SQL_WORDS.get(kind.root, kind.root)
    numbers = [str(number) for number in (kind.length, kind.scale) if number is not None]
    text = f"{word}({', '.join(numbers)})" if numbers else word
    if kind.class_name is not None:
        text += f"({quote(kind.class_name)})"
    if kind.names:
        fields = zip(kind.names, kind.children, strict=True)
        text += f"<{', '.join(f'{quote(name)} {describe_type(child)}' for name, child in fields)}>"
    elif kind.children:
        text = _generic(text, map(describe_type, kind.children))
    return text if kind.nullable else f"{text} NOT NULL"


def quote(name: str) -> str:
    """Return a name, in backticks if it would not be parsed as one word."""
    return name if PLAIN_NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"


def _generic(word: str, arguments: Iterable[str]) -> str:
    text = ", ".join(arguments)
    return f"{word}<{text}>" if text else word


def _call(word: str, class_name: str, arguments: Iterable[str]) -> str:
    return f"{word}<{quote(class_name)}>({', '.join(arguments)})"


def _tuple(node: Tuple) -> str:
    plain = f"Tuple{len(node.fields)}"
    if node.tuple_class == f"org.apache.flink.api.java.tuple.{plain}":
        return _generic(plain, map(describe, node.fields))
    word = "CaseClass" if node.snapshot_class in java_types.CASE_CLASSES else "Tuple"
    return _call(word, node.tuple_class, map(describe, node.fields))


def _coproduct(node: Coproduct) -> str:
    cases = zip(node.cases, node.serializers, strict=True)
    return f"Coproduct({', '.join(f'{quote(name)}: {describe(each)}' for name, each in cases)})"


def _scala_collection(node: ScalaCollection) -> str:
    word = node.serializer_class.rpartition(".")[2].removesuffix("Serializer")
    return _generic(f"Scala{word}", [describe(node.element)])


def _row(node: PositionalRow) -> str:
    word = "Row" if node.supports_row_kind else "RowWithoutKind"
    return f"{word}({', '.join(f'f{index}: {describe(field)}' for index, field in enumerate(node.fields))})"


def _nullable(node: Nullable) -> str:
    padding = [f"padding {node.padding}"] if node.padding else []
    return _generic("Nullable", [describe(node.inner), *padding])


def _pojo(node: Pojo) -> str:
    entries = [_pojo_field(node, field) for field in node.fields]
    entries += [_pojo_subclass("registered", subclass) for subclass in node.registered]
    entries += [_pojo_subclass("subclass", subclass) for subclass in node.non_registered]
    return _call("Pojo", node.pojo_class, entries)


def _pojo_field(node: Pojo, field: PojoField) -> str:
    owner = ""
    if field.declaring_class is None:
        owner = f"{UNRESOLVED}#"
    elif field.declaring_class != node.pojo_class:
        owner = f"{quote(field.declaring_class)}#"
    return f"{owner}{quote(field.name)}: {_resolved(field.serializer)}"


def _pojo_subclass(word: str, subclass: PojoSubclass) -> str:
    mark = "" if subclass.resolved else f"{UNRESOLVED}#"
    return f"{word} {mark}{quote(subclass.class_name)}: {_resolved(subclass.serializer)}"


def _resolved(serializer: Serializer | None) -> str:
    return UNRESOLVED if serializer is None else describe(serializer)


def _avro(node: Avro) -> str:
    record = _avro_name(node.schema_json)
    if not record or record == node.runtime_class:
        return f"Avro<{quote(node.runtime_class)}>"
    return _call("Avro", node.runtime_class, [quote(record)])


def _avro_name(schema_json: str) -> str:
    """Return the full name of an Avro schema; empty if it has no name or is no JSON."""
    try:
        schema = json.loads(schema_json)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(schema, dict) or not isinstance(schema.get("name"), str):
        return ""
    name: str = schema["name"]
    namespace = schema.get("namespace")
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _coder(coder: Coder) -> str:
    return _generic(
        quote(coder.simple_name), (_coder(each) for name, each in coder.components if name != "windowsCoder")
    )


def _row_data(node: RowData) -> str:
    types = [*map(describe_type, node.types)]
    names = node.names if node.labels is None else node.labels
    if names is not None:
        types = [f"{quote(name)}: {each}" for name, each in zip(names, types, strict=True)]
    return f"RowData({', '.join(types)})"


_TEXTS: dict[type[Serializer], Callable[[Any], str]] = {
    _Spelled: lambda node: node.text,
    Basic: lambda node: str(node.kind),
    ListOf: lambda node: _generic(
        "ArrayList" if node.snapshot_class == java_types.ARRAY_LIST else "List", [describe(node.element)]
    ),
    SetOf: lambda node: _generic("Set", [describe(node.element)]),
    MapOf: lambda node: _generic("NullAwareMap" if node.null_keys else "Map", map(describe, node.nested)),
    GenericArray: lambda node: _call("Array", node.component_class, [describe(node.element)]),
    Tuple: _tuple,
    CaseClass: lambda node: _call("CaseClass", node.case_class, map(describe, node.fields)),
    Coproduct: _coproduct,
    ScalaCollection: _scala_collection,
    Mapped: lambda node: _call("Mapped", node.mapper, [describe(node.inner)]),
    CaseObject: lambda node: _call("CaseObject", node.object_class, ()),
    PositionalRow: _row,
    Nullable: _nullable,
    Enum: lambda node: _call("Enum", node.enum_class, map(quote, node.constants)),
    ScalaEnum: lambda node: _call(
        "ScalaEnum", node.enum_class, (f"{quote(name)} = {number}" for name, number in node.constants)
    ),
    Pojo: _pojo,
    Kryo: lambda node: f"Kryo<{quote(node.type_class)}>",
    Protobuf: lambda node: f"Protobuf<{quote(node.message_class)}>",
    Avro: _avro,
    BeamSerializer: lambda node: _generic("Beam", [_coder(node.coder)]),
    ClassBound: lambda node: f"{node.kind}<{quote(node.type_class)}>",
    Opaque: lambda node: f"Opaque<{quote(node.unknown_class)}>",
    Declared: lambda node: f"Declared<{quote(node.unknown_class)}>({node.layout})",
    Ttl: lambda node: _generic("Ttl", [describe(node.inner)]),
    TtlAware: lambda node: _generic("TtlAware", ["enabled" if node.ttl_enabled else "disabled", describe(node.inner)]),
    Variants: lambda node: _generic(str(node.kind), map(describe, node.serializers)),
    RowData: _row_data,
    BinaryRow: lambda node: f"BinaryRowData({node.num_fields})",
    ArrayData: lambda node: _generic("ArrayData", [describe_type(node.element_type)]),
    MapData: lambda node: _generic("MapData", [describe_type(node.key_type), describe_type(node.value_type)]),
    Decimal: lambda node: f"DecimalData({node.precision}, {node.scale})",
    TimestampData: lambda node: f"TimestampData({node.precision})",
    PythonRow: lambda node: f"PythonRow({', '.join(map(describe_type, node.types))})",
    PythonArray: lambda node: _generic("PythonArray", [describe_type(node.element_type)]),
    PythonMap: lambda node: _generic("PythonMap", [describe_type(node.key_type), describe_type(node.value_type)]),
    PythonDecimal: lambda node: f"PythonDecimal({node.precision}, {node.scale})",
    LinkedListOf: lambda node: _generic("LinkedList", [describe(node.element)]),
    SortedMapOf: lambda node: _generic("SortedMap", map(describe, node.nested)),
    External: lambda node: _generic("External", [describe(node.inner)]),
}

for _class, _text in _TEXTS.items():
    describe.register(_class, _text)
