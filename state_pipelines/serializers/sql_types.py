"""SQL types from text, as Flink writes them: `DECIMAL(10, 2) NOT NULL`, ``ROW<`id` BIGINT, `name` VARCHAR(20)>``.

Words that Flink takes for other types are taken here too: STRING, BYTES, TIMESTAMP_LTZ, DEC.
Source: `LogicalTypeParser`, `LogicalType.asSerializableString`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError
from state_pipelines.serializers.tree import LogicalType

if TYPE_CHECKING:
    from collections.abc import Mapping

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
