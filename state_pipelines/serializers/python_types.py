"""Types of PyFlink state: types of the values in the byte arrays that Java stores for Python functions.

PyFlink's coders write values; Java stores them as `byte[]` without their types. A snapshot does not say
them either, so the user declares them: in SQL's words (`ROW<n BIGINT, s STRING>`) or as the job has them
(`Types.ROW_NAMED(['n', 's'], [Types.LONG(), Types.STRING()])`). The text is parsed here and never evaluated.
Source: `pyflink.fn_execution.coders.from_type_info`, `pyflink.common.typeinfo.Types`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from state_pipelines.errors import UsageError
from state_pipelines.serializers.text import describe, quote
from state_pipelines.serializers.tree import KEYED_KINDS, Basic, Serializer, StateKind

if TYPE_CHECKING:
    from collections.abc import Callable

_Item = TypeVar("_Item")

PICKLED = "PICKLED_BYTE_ARRAY"
BYTES = "BYTES"

_PLAIN = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", BYTES),
    *("DECIMAL", "DATE", "TIME", "TIMESTAMP", "INSTANT", PICKLED),
)
_ALIASES = {
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "BIG_INT": "BIGINT",
    "BIG_DEC": "DECIMAL",
    "CHAR": "STRING",
    "VARCHAR": "STRING",
    "BINARY": BYTES,
    "VARBINARY": BYTES,
    "SQL_DATE": "DATE",
    "SQL_TIME": "TIME",
    "SQL_TIMESTAMP": "TIMESTAMP",
    "PICKLED": PICKLED,
    "LIST": "ARRAY",
    "BASIC_ARRAY": "ARRAY",
    "OBJECT_ARRAY": "ARRAY",
    "ROW_NAMED": "ROW",
}
"""Other words of SQL and of PyFlink's `Types` whose coders write the same bytes."""

_TOKEN = re.compile(r"\s*(?:([A-Za-z_][\w.]*)|(\d+)|'([^']*)'|\"([^\"]*)\"|`([^`]*)`|([<>()\[\],])|(\S))")
_MAX_DEPTH = 32
_ROW_KIND = "row_kind"
_MILLIS = 3


@dataclass(frozen=True, kw_only=True)
class PythonType(Serializer):
    """The type of a Python value, as a serializer node. Snapshots contain no such node.

    Attributes:
        word: one of BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, STRING, BYTES, DECIMAL, DATE, TIME,
            TIMESTAMP, INSTANT, PICKLED_BYTE_ARRAY, ROW, TUPLE, ARRAY (elements may be null), PRIMITIVE_ARRAY, MAP.
        children: field, element, or key and value types.
        names: field names of a ROW.
        precision: precision of a TIMESTAMP; up to 3, only milliseconds are stored.
    """

    snapshot_class: str = ""
    word: str
    children: tuple[PythonType, ...] = ()
    names: tuple[str, ...] = ()
    precision: int = _MILLIS

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The field, element, or key and value types."""
        return self.children

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names of the fields of a ROW or TUPLE."""
        return self.names or tuple(f"f{index}" for index in range(len(self.children)))


@dataclass(frozen=True, kw_only=True)
class PythonValue(Serializer):
    """A serializer of byte arrays whose content has a declared type; its snapshot is that of the byte arrays.

    Attributes:
        stored: the serializer in the snapshot: `BytePrimitiveArray`, or `ByteArrayWrapper` for map keys.
        type: type of the content.
        kind: kind of the state in Python, one of `KEYED_KINDS`. An element of LIST state holds several values: PyFlink
            appends the values that a bundle has added as one array.
    """

    snapshot_class: str = ""
    stored: Basic
    type: PythonType
    kind: StateKind

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The type of the content."""
        return (self.type,)


@dataclass(frozen=True)
class PythonDeclaration:
    """Type and kind that a user declares for a Python state.

    Attributes:
        type: type of the value or element; for MAP state, a MAP type.
        kind: one of `KEYED_KINDS`; None if not declared.
    """

    type: PythonType
    kind: StateKind | None = None


def parse_python_type(text: str) -> PythonType:
    """Parse a type, given as in SQL (`ROW<id BIGINT>`) or as an expression of PyFlink's `Types` (`Types.LONG()`).

    Raises:
        UsageError: the text is not a type.
    """
    declared = parse_python_declaration(text)
    if declared.kind is not None:
        raise UsageError(f"{text!r} is a kind of state, not a type", hint="Leave the word for the kind out")
    return declared.type


def parse_python_declaration(text: str) -> PythonDeclaration:
    """Parse the type of a state: a type, or one inside `ValueState<…>`, `ListState<…>`, `MapState<K, V>` and the like.

    It may also be a descriptor of PyFlink (`ListStateDescriptor('name', Types.STRING())`).

    Raises:
        UsageError: the text is not a declaration; the message names the position.
    """
    return _Parser(text).declaration()


def carry_pickles(of: PythonType) -> PythonType:
    """Return the type with BYTES instead of pickles, so that they are kept unchanged; both have the same framing."""
    word = BYTES if of.word == PICKLED else of.word
    children = tuple(map(carry_pickles, of.children))
    return PythonType(word=word, children=children, names=of.names, precision=of.precision)


@describe.register
def _(node: PythonType) -> str:
    match node.word:
        case "ROW" if node.names:
            fields = zip(node.names, node.children, strict=True)
            return f"ROW<{', '.join(f'{quote(name)} {describe(child)}' for name, child in fields)}>"
        case "TIMESTAMP" if node.precision != _MILLIS:
            return f"TIMESTAMP({node.precision})"
    inner = ", ".join(map(describe, node.children))
    return f"{node.word}<{inner}>" if node.children or node.word in ("ROW", "TUPLE") else node.word


@describe.register
def _(node: PythonValue) -> str:
    return describe(node.type)


class _Parser:
    """A recursive-descent parser over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [match for match in _TOKEN.finditer(text) if match.group().strip()]
        self._next = 0

    def declaration(self) -> PythonDeclaration:
        """Parse the whole text as the declaration of a state."""
        word = self._peek().lower().removesuffix("descriptor")
        kind = next((each for each in KEYED_KINDS if word == f"{each.lower()}state"), None)
        if kind is None:
            declared = PythonDeclaration(self.type(0))
        else:
            self._take()
            declared = PythonDeclaration(self._state_type(kind), kind)
        if self._next < len(self._tokens):
            raise self._error("the type ends before this")
        return declared

    def _state_type(self, kind: StateKind) -> PythonType:
        close = self._open()
        if self._token_text() is not None:
            self._take()
            self._expect(",")
        types = self._types(close)
        if len(types) != (2 if kind == StateKind.MAP else 1):
            raise self._error(f"a {kind.lower()} state takes {'two types' if kind == 'MAP' else 'one type'}")
        return PythonType(word="MAP", children=types) if kind == "MAP" else types[0]

    def type(self, depth: int) -> PythonType:
        """Parse the type at the current token, which is nested in `depth` other types."""
        if depth > _MAX_DEPTH:
            raise self._error(f"types are nested more than {_MAX_DEPTH} levels deep")
        name = self._name()
        word = name.removeprefix("Types.").upper()
        named = word == "ROW_NAMED"
        word = _ALIASES.get(word, word)
        made = self._typed(word, depth, named=named)
        for suffix in (("NOT", "NULL"), ("NULL",)):
            if tuple(each.upper() for each in self._ahead(len(suffix))) == suffix:
                self._next += len(suffix)
        return made

    def _typed(self, word: str, depth: int, *, named: bool) -> PythonType:
        if word in _PLAIN:
            numbers = self._numbers()
            precision = numbers[0] if word == "TIMESTAMP" and numbers else _MILLIS
            return PythonType(word=word, precision=precision)
        if word == "ROW":
            return self._row(depth, named=named)
        arity = {"TUPLE": None, "ARRAY": 1, "PRIMITIVE_ARRAY": 1, "MAP": 2}
        if word not in arity:
            self._next -= 1
            raise self._error("this is not a type of PyFlink")
        children = self._types(self._open(), depth)
        if arity[word] not in (None, len(children)):
            raise self._error(f"{word} takes {arity[word]} types, not {len(children)}")
        if word == "PRIMITIVE_ARRAY" and children[0].word == "TINYINT":
            return PythonType(word=BYTES)
        return PythonType(word=word, children=children)

    def _row(self, depth: int, *, named: bool) -> PythonType:
        close = self._open()
        if close == ")" and named:
            names = self._list(self._text_token)
            self._expect(",")
            children = self._list(lambda: self.type(depth + 1))
            self._expect(close)
        else:
            fields = self._fields(close, depth)
            names = [name for name, _ in fields if name]
            children = [child for _, child in fields]
        if names and len(names) != len(children):
            raise self._error(f"the row has {len(children)} types and {len(names)} names")
        if len(set(names)) < len(names) or _ROW_KIND in names:
            raise self._error(f"the fields of a row have different names, and none is {_ROW_KIND}")
        return PythonType(word="ROW", children=tuple(children), names=tuple(names))

    def _fields(self, close: str, depth: int) -> list[tuple[str, PythonType]]:
        fields: list[tuple[str, PythonType]] = []
        if self._peek() == "[":
            fields = [("", each) for each in self._list(lambda: self.type(depth + 1))]
            self._expect(close)
            return fields
        while self._peek() != close:
            if fields:
                self._expect(",")
            first, second = (*self._ahead(2), "", "")[:2]
            is_named = bool(re.match(r"[\w`]", second)) and second.upper() not in ("NOT", "NULL")
            name = self._field_name() if is_named and first else ""
            fields.append((name, self.type(depth + 1)))
        self._expect(close)
        return fields

    def _types(self, close: str, depth: int = 0) -> tuple[PythonType, ...]:
        if self._peek() == "[":
            types = self._list(lambda: self.type(depth + 1))
            self._expect(close)
            return tuple(types)
        types = []
        while self._peek() != close:
            if types:
                self._expect(",")
            types.append(self.type(depth + 1))
        self._expect(close)
        return tuple(types)

    def _list(self, read: Callable[[], _Item]) -> list[_Item]:
        self._expect("[")
        items: list[_Item] = []
        while self._peek() != "]":
            if items:
                self._expect(",")
            items.append(read())
        self._expect("]")
        return items

    def _numbers(self) -> list[int]:
        """Read the numbers in parentheses after a plain type; empty without parentheses."""
        if self._peek() != "(":
            return []
        self._expect("(")
        numbers: list[int] = []
        while self._peek() != ")":
            if numbers:
                self._expect(",")
            if not self._peek().isdecimal():
                raise self._error("a number is expected")
            numbers.append(int(self._take()))
        self._expect(")")
        return numbers

    def _open(self) -> str:
        opening = self._peek()
        if opening not in ("<", "("):
            raise self._error("`<` or `(` is expected")
        self._take()
        return ">" if opening == "<" else ")"

    def _name(self) -> str:
        if not re.fullmatch(r"[A-Za-z_][\w.]*", self._peek()):
            raise self._error("a type is expected")
        return self._take()

    def _field_name(self) -> str:
        if (text := self._token_text()) is not None:
            self._take()
            return text
        return self._name()

    def _text_token(self) -> str:
        text = self._token_text()
        if text is None:
            raise self._error("a name in quotes is expected")
        self._take()
        return text

    def _token_text(self) -> str | None:
        """Return the content of the current token if it is quoted."""
        if self._next >= len(self._tokens):
            return None
        return next((each for each in self._tokens[self._next].group(3, 4, 5) if each is not None), None)

    def _ahead(self, count: int) -> list[str]:
        return [each.group().strip() for each in self._tokens[self._next : self._next + count]]

    def _peek(self) -> str:
        return next(iter(self._ahead(1)), "")

    def _take(self) -> str:
        token = self._peek()
        self._next += 1
        return token

    def _expect(self, token: str) -> None:
        if self._peek() != token:
            raise self._error(f"`{token}` is expected")
        self._take()

    def _error(self, what: str) -> UsageError:
        at = self._tokens[self._next].start() if self._next < len(self._tokens) else len(self._text)
        rest = self._text[at:].strip()
        return UsageError(
            f"{self._text!r} is not a type of PyFlink: {what}, at {rest[:30]!r}"
            if rest
            else f"{self._text!r} is not a type of PyFlink: {what}, at its end",
            hint="Such as ROW<n BIGINT, s STRING>, ListState<STRING> or Types.TUPLE([Types.LONG(), Types.STRING()])",
        )
