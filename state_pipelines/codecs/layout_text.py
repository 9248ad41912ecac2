"""Layouts as text, for serializers that the user declares: `Struct(currency: utf, cents: i64)`.

layout := word | `List(layout)` | `Map(layout, layout)` | `Nullable(layout)` | `Sized(layout)`
        | `Struct(name: layout, …)` | `nested0`, `nested1`, … (a nested snapshot that the declaration names)

The words are those of `codecs.layout`: see `WORDS`. A list and a map begin with an i32 count, `Nullable` with a flag
byte (1 is null), `Sized` with an i32 length.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from state_pipelines.codecs import layout as lay
from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from state_pipelines.serializers.declared_snapshots import DeclaredSerializer

WORDS: dict[str, lay.Layout] = {
    **{kind.value: lay.Primitive(kind) for kind in lay.PrimitiveKind},
    **{kind.value: lay.Logical(kind) for kind in lay.LogicalKind},
    "utf": lay.JavaText(),
    "text": lay.Text(),
    "sized_text": lay.Sized(text=True),
    "bytes": lay.Sized(),
    "big_integer": lay.BigInteger(),
    "big_decimal": lay.BigDecimal(),
    "void": lay.Constant(b""),
}
"""Layout of each word: numbers by width, `utf` (`writeUTF`), `text` (Flink's `StringValue`), `bytes` after an i32."""

MAX_DEPTH = 32

_TOKEN = re.compile(r"\s*([\w.$]+|[(),:])")
_NESTED = re.compile(r"nested(\d{1,2})")


def check_layout(declared: DeclaredSerializer) -> None:
    """Refuse a declaration whose layout cannot be read.

    Raises:
        UsageError: its layout has another form, or names a nested serializer that the body does not have.
    """
    known = (declared.body or ()).count("snapshot")
    if "composite" in (declared.body or ()):
        known = 1 << 7
    parse_layout(declared.layout, (lay.Rest(),) * known)


def names_nested(text: str) -> bool:
    """Return whether the text of a layout names nested serializers."""
    return any(_NESTED.fullmatch(token) for token in _TOKEN.findall(text))


@lru_cache(maxsize=256)
def parse_layout(text: str, nested: tuple[lay.Layout, ...] = ()) -> lay.Layout:
    """Read the text of a layout.

    Args:
        text: the text.
        nested: layouts of the nested serializers, which `nested0` and so on name.

    Raises:
        UsageError: the text has another form; names the character.
    """
    parser = _Parser(text, nested)
    layout = parser.layout()
    parser.expect("")
    return layout


class _Parser:
    def __init__(self, text: str, nested: tuple[lay.Layout, ...]) -> None:
        self._text = text
        self._nested = nested
        self._position = 0
        self._depth = 0

    def layout(self) -> lay.Layout:
        start, word = self._position, self._take()
        if self._depth >= MAX_DEPTH:
            raise self._error(f"layouts nest deeper than {MAX_DEPTH}", start)
        self._depth += 1
        try:
            return self._layout(word, start)
        finally:
            self._depth -= 1

    def _layout(self, word: str, start: int) -> lay.Layout:
        match word:
            case "List":
                return lay.Sequence(self._arguments(1)[0])
            case "Map":
                return lay.Mapping(*self._arguments(2))
            case "Nullable":
                return lay.Optional(self._arguments(1)[0])
            case "Sized":
                return lay.Framed(self._arguments(1)[0])
            case "Struct":
                return self._struct()
        nested = _NESTED.fullmatch(word)
        if nested:
            if int(nested[1]) >= len(self._nested):
                raise self._error(f"{word}: the declaration names {len(self._nested)} nested snapshots", start)
            return self._nested[int(nested[1])]
        if word not in WORDS:
            words = ", ".join(WORDS)
            raise self._error(
                f"{word or 'the end'!r} is not a layout", start, f"The words are {words}, List, Map, Nullable, Struct"
            )
        return WORDS[word]

    def _arguments(self, count: int) -> list[lay.Layout]:
        self.expect("(")
        found = [self.layout()]
        for _ in range(count - 1):
            self.expect(",")
            found.append(self.layout())
        self.expect(")")
        return found

    def _struct(self) -> lay.Struct:
        self.expect("(")
        fields: dict[str, lay.Layout] = {}
        while True:
            start, name = self._position, self._take()
            if not name or name in "(),:" or name in fields:
                raise self._error(f"{name or 'the end'!r} is not the name of a new field", start)
            self.expect(":")
            fields[name] = self.layout()
            start, symbol = self._position, self._take()
            if symbol == ")":
                return lay.Struct(tuple(fields.items()))
            if symbol != ",":
                raise self._error(f"',' or ')' expected, {symbol or 'the end'!r} found", start)

    def expect(self, symbol: str) -> None:
        """Consume a symbol; the empty one is the end."""
        start, found = self._position, self._take()
        if found != symbol:
            raise self._error(f"{symbol or 'the end'!r} expected, {found or 'the end'!r} found", start)

    def _take(self) -> str:
        match = _TOKEN.match(self._text, self._position)
        if match is None:
            if self._text[self._position :].strip():
                raise self._error(f"{self._text[self._position :].strip()[0]!r} is not expected", self._position)
            return ""
        self._position = match.end()
        return match[1]

    def _error(self, what: str, position: int, hint: str = "") -> UsageError:
        return UsageError(f"{what}, at character {position + 1} of the layout {self._text!r}", hint=hint)
