"""Reading the text form of serializers; `text` writes it.

serializer := word | word "<" argument, … ">" | word ["<" class ">"] "(" entry, … ")"

Rows of the table runtime have SQL types, with names or without: `RowData(id: BIGINT, name: VARCHAR(20) NOT NULL)`. A
bare SQL type is the serializer that the table runtime has for its values.

A serializer of a family of one's own is `Snapshot<class>(version, 0xBODY)`: its snapshot, with the body in hexadecimal.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.errors import StateError, UsageError
from state_pipelines.serializers import basic as basics
from state_pipelines.serializers import build
from state_pipelines.serializers.registry import CURRENT_SIMPLE, MAX_DEPTH, is_registered, is_simple, read_nested
from state_pipelines.serializers.snapshot_frames import write_head
from state_pipelines.serializers.sql_serializers import make_column, make_row
from state_pipelines.serializers.sql_types import is_sql_word, take_columns, take_sql_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.serializers.tree import Serializer

PLAIN_NAME = re.compile(r"[\w$.\[;]+")
"""A name that needs no backticks."""

_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"\d{1,9}")
_HEX = re.compile(r"0x((?:[0-9a-fA-F]{2})*)")
_QUOTED = re.compile(r"`((?:[^`]|``)*)`")
_TUPLE = re.compile(r"Tuple(\d{1,2})")

Item = TypeVar("Item")


def parse(text: str, make_kryo: Callable[[str], Serializer] | None = None) -> Serializer:
    """Return the serializer that a text names; the inverse of `text.describe` for everything that `build` makes.

    Args:
        text: such as `Map<String, Long>`.
        make_kryo: makes the serializer of a class that Kryo writes, whose registrations no text contains; default none,
            and `Kryo<class>` is refused.

    Raises:
        UsageError: the text does not describe a serializer; the message names the character.
    """
    parser = _Parser(text, make_kryo)
    serializer = parser.serializer()
    parser.expect_end()
    return serializer


class _Parser:
    """A cursor over the text."""

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
            raise self.error(f"no snapshot of {name}: {error.what}", start, error.hint) from None
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
