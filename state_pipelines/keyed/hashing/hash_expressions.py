"""A small language for the `hashCode` of a class.

An expression is a pattern over fields, such as `objects(region, number)`, or Java arithmetic over `hash(field)` and
whole numbers, such as `31 * hash(region) + hash(number)`; patterns and arithmetic may be nested.

| pattern | `hashCode` |
|---|---|
| `objects(a, b)` | `Objects.hash`, `Arrays.hashCode`, Eclipse: `31 * code + field` from 1 |
| `record(a, b)` | JDK records: `31 * code + field` from 0 |
| `kotlin(a, b)` | data classes: as records; arrays by their elements |
| `ide(a, b)` | IntelliJ: as records; a boolean is 1 or 0, the float -0.0 is 0.0 |
| `lombok(a, b)` | `59 * code + field` from 1; null is 43, a boolean 79 or 97 |
| `commons(start, multiplier, a, b)` | `HashCodeBuilder`; a boolean is 0 or 1 |
| `autovalue(a, b)` | `code * 1000003 ^ field` from 1 |
| `immutables(a, b)` | `33 * code + field` from 5381 |
| `chain(start, multiplier, a, b)` | `multiplier * code + field` from `start` |
| `idechain(start, multiplier, a, b)` | the same; a boolean is 1 or 0, the float -0.0 is 0.0 |
| `scala212(a, b)`, `scala213(a, b)` | case classes |
| `avro()`, `avro_classic()` | Avro records, by 1.12 and by old releases; also `avro_bounded()`, `avro_utf8()` |

A field name is its `hashCode`, 0 for null. `bit(a)` is a boolean as 1 or 0, `boxed(a)` an object in `lombok` and
`commons` that is no primitive, `int(a)` the cast, `zero(a)` a float or double whose -0.0 is 0.0, `array(a)` is
`Arrays.hashCode`, `name(a)` and `ordinal(a)` are those of an enum. Names that are no Python names are quoted.
`ushr(x, n)` is `x >>> n`.
"""

from __future__ import annotations

import ast
import keyword
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.errors import UsageError
from state_pipelines.keyed.hashing.class_hashes import hash_name, mix_product

if TYPE_CHECKING:
    import pyarrow as pa

    from state_pipelines.keyed.hashing.basic_hashes import HashCodes

MAX_LENGTH = 4000
_MAX_DEPTH = 40


class JavaOperator(StrEnum):
    """Operator of Java between two `int`s, or before one."""

    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    XOR = "^"
    AND = "&"
    OR = "|"
    SHIFT_LEFT = "<<"
    SHIFT_RIGHT = ">>"
    UNSIGNED_SHIFT_RIGHT = ">>>"
    INVERT = "~"


class How(Enum):
    """The choice among the possible hashes of a field."""

    HASH = "hash"
    BIT = "bit"
    INT = "int"
    ZERO = "zero"
    ARRAY = "array"
    NAME = "name"
    ORDINAL = "ordinal"
    BOXED = "boxed"
    IDE = "ide"
    KOTLIN = "kotlin"
    LOMBOK = "lombok"
    COMMONS = "commons"
    SCALA = "scala"


WRITTEN = (How.HASH, How.BIT, How.INT, How.ZERO, How.ARRAY, How.NAME, How.ORDINAL, How.BOXED)
"""Functions that can be written around a field; the others belong to patterns."""

FieldCodes = Callable[[str, How], "tuple[HashCodes, pa.Array]"]
"""Field name and how -> (i32[n], 0 for null; the values)."""


class PatternKind(Enum):
    """Computation of a pattern."""

    CHAIN = auto()
    SCALA_212 = auto()
    SCALA_213 = auto()
    AVRO = auto()


@dataclass(frozen=True)
class Pattern:
    """The rule by which a pattern combines its arguments.

    Attributes:
        how: hash of a bare field name.
        start: code before the first field; None when it is the first argument, followed by the multiplier.
        multiplier: of the code before each field.
        xor: fields are joined by `^`, not `+`.
        null: hash of a null field.
        kind: computation of the pattern.
    """

    how: How = How.HASH
    start: int | None = 0
    multiplier: int = 31
    xor: bool = False
    null: int = 0
    kind: PatternKind = PatternKind.CHAIN


PATTERNS = {
    "objects": Pattern(start=1),
    "record": Pattern(),
    "kotlin": Pattern(How.KOTLIN),
    "ide": Pattern(How.IDE),
    "lombok": Pattern(How.LOMBOK, 1, 59, null=43),
    "commons": Pattern(How.COMMONS, None),
    "autovalue": Pattern(start=1, multiplier=1000003, xor=True),
    "immutables": Pattern(start=5381, multiplier=33),
    "chain": Pattern(start=None),
    "idechain": Pattern(How.IDE, None),
    "scala212": Pattern(How.SCALA, kind=PatternKind.SCALA_212),
    "scala213": Pattern(How.SCALA, kind=PatternKind.SCALA_213),
    "avro": Pattern(kind=PatternKind.AVRO),
    "avro_classic": Pattern(kind=PatternKind.AVRO),
    "avro_bounded": Pattern(kind=PatternKind.AVRO),
    "avro_utf8": Pattern(kind=PatternKind.AVRO),
}


@dataclass(frozen=True)
class Field:
    """A field; `how` is None when the pattern around it says."""

    name: str
    how: How | None = None


@dataclass(frozen=True)
class Number:
    """A whole number."""

    value: int


@dataclass(frozen=True)
class JavaCall:
    """A pattern."""

    pattern: str
    arguments: tuple[Term, ...]


@dataclass(frozen=True)
class JavaOperation:
    """`left operator right`; `~` and unary `-` have no left side."""

    operator: JavaOperator
    left: Term | None
    right: Term


Term = Field | Number | JavaCall | JavaOperation


@dataclass(frozen=True)
class HashExpression:
    """The `hashCode` of a class.

    Attributes:
        term: the expression.
    """

    term: Term

    @property
    def text(self) -> str:
        """The expression as `parse_hash_expression` takes it; equal expressions have equal texts."""
        return _write(self.term)

    def __str__(self) -> str:
        return self.text

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that it takes, each once, in the order of their first occurrence."""
        return tuple(dict.fromkeys(_names(self.term)))

    def evaluate(self, fields: FieldCodes, class_name: str, rows: int) -> HashCodes:
        """The hash codes of objects.

        Args:
            fields: hash codes of their fields.
            class_name: of the class, which `scala213` mixes in.
            rows: number of objects.

        Returns:
            i32[rows].
        """
        return _evaluate(self.term, fields, class_name, rows)


def parse_hash_expression(text: str) -> HashExpression:
    """Parse an expression; the module says what there is.

    Raises:
        UsageError: the text is not an expression.
    """
    if len(text) > MAX_LENGTH:
        raise UsageError(f"a hash expression of {len(text)} characters is too long")
    try:
        root = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        hint = "Write x >>> n as ushr(x, n)" if ">>>" in text else _HINT
        raise UsageError(f"{text!r:.80} is not a hash expression: {error}", hint=hint) from None
    expression = HashExpression(_parse(root, text, _MAX_DEPTH))
    if not expression.fields and not text.strip().startswith("avro"):
        raise UsageError(f"{text!r:.80} takes no field, so that all keys have one hash", hint=_HINT)
    return expression


def _parse(node: ast.expr, text: str, depth: int) -> Term:
    if depth == 0:
        raise UsageError("a hash expression is nested too deeply")
    match node:
        case ast.Name(id=name):
            return Field(name)
        case ast.Constant(value=str(name)):
            return Field(name)
        case ast.Constant(value=value) if type(value) is int and -(1 << 31) <= value < 1 << 32:
            return Number(_signed(value))
        case ast.UnaryOp(op=ast.USub() | ast.Invert() as operator, operand=operand):
            inner = _parse(operand, text, depth - 1)
            if isinstance(operator, ast.USub) and isinstance(inner, Number):
                return Number(_signed(-inner.value))
            return JavaOperation(
                JavaOperator.SUBTRACT if isinstance(operator, ast.USub) else JavaOperator.INVERT, None, inner
            )
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            sides = (_parse(left, text, depth - 1), _parse(right, text, depth - 1))
            return JavaOperation(_OPERATORS[type(operator)], *sides)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _parse_call(name, [_parse(each, text, depth - 1) for each in arguments])
    raise UsageError(f"{ast.unparse(node)!r:.80} is not allowed in a hash expression", hint=_HINT)


def _parse_call(name: str, arguments: list[Term]) -> Term:
    hows = {each.value: each for each in WRITTEN}
    if name in hows and name not in PATTERNS:
        match arguments:
            case [Field(name=field_name, how=None)]:
                return Field(field_name, hows[name])
        raise UsageError(f"{name}() takes one field", hint=_HINT)
    if name == "ushr":
        if len(arguments) != 2:
            raise UsageError("ushr() takes a value and a number of bits", hint=_HINT)
        return JavaOperation(JavaOperator.UNSIGNED_SHIFT_RIGHT, *arguments)
    if name not in PATTERNS:
        raise UsageError(f"there is no {name}() in hash expressions", hint=_HINT)
    pattern = PATTERNS[name]
    if pattern.start is None and not all(isinstance(each, Number) for each in [*arguments, Field("")][:2]):
        raise UsageError(f"{name}() takes the start, the multiplier, then the fields", hint=_HINT)
    is_avro = pattern.kind is PatternKind.AVRO
    if is_avro != (not arguments) or (pattern.start is None and len(arguments) < 3):
        raise UsageError(f"{name}() takes {'no' if is_avro else 'at least one'} field", hint=_HINT)
    return JavaCall(name, tuple(arguments))


_OPERATORS: dict[type[ast.operator], JavaOperator] = {
    ast.Add: JavaOperator.ADD,
    ast.Sub: JavaOperator.SUBTRACT,
    ast.Mult: JavaOperator.MULTIPLY,
    ast.BitXor: JavaOperator.XOR,
    ast.BitAnd: JavaOperator.AND,
    ast.BitOr: JavaOperator.OR,
    ast.LShift: JavaOperator.SHIFT_LEFT,
    ast.RShift: JavaOperator.SHIFT_RIGHT,
}
_HINT = (
    f"Use {', '.join(f'{name}(…)' for name in PATTERNS)}, or + - * ^ & | << >> ushr(x, n) over hash(field) and numbers"
)


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _names(term: Term) -> list[str]:
    match term:
        case Field(name=name):
            return [name]
        case JavaCall(arguments=arguments):
            return [name for each in arguments for name in _names(each)]
        case JavaOperation(left=left, right=right):
            return [*(_names(left) if left is not None else []), *_names(right)]
        case _:
            return []


def _write(term: Term) -> str:
    match term:
        case Number(value=value):
            return str(value)
        case Field(name=name, how=how):
            plain = name.isidentifier() and not keyword.iskeyword(name) and unicodedata.normalize("NFKC", name) == name
            written = name if plain else repr(name)
            return written if how is None else f"{how.value}({written})"
        case JavaCall(pattern=pattern, arguments=arguments):
            return f"{pattern}({', '.join(_write(each) for each in arguments)})"
        case JavaOperation(operator=JavaOperator.UNSIGNED_SHIFT_RIGHT, left=left, right=right) if left is not None:
            return f"ushr({_write(left)}, {_write(right)})"
        case JavaOperation(operator=operator, left=None, right=right):
            return f"{operator}{_write_side(right)}"
        case JavaOperation(operator=operator, left=left, right=right):
            assert left is not None
            return f"{_write_side(left)} {operator} {_write_side(right)}"


def _write_side(term: Term) -> str:
    written = _write(term)
    if isinstance(term, Field) and term.how is None:
        return f"hash({written})"
    bare = not isinstance(term, JavaOperation) or term.operator is JavaOperator.UNSIGNED_SHIFT_RIGHT
    return written if bare and not written.startswith("-") else f"({written})"


def _evaluate(term: Term, fields: FieldCodes, class_name: str, rows: int) -> HashCodes:
    match term:
        case Number(value=value):
            return np.full(rows, value, np.int32)
        case Field(name=name, how=how):
            return fields(name, how or How.HASH)[0]
        case JavaCall():
            return _evaluate_call(term, fields, class_name, rows)
        case JavaOperation(operator=operator, left=left, right=right):
            second = _evaluate(right, fields, class_name, rows)
            if left is None:
                return ~second if operator is JavaOperator.INVERT else -second
            return _calculate(operator, _evaluate(left, fields, class_name, rows), second)


def _calculate(operator: JavaOperator, left: HashCodes, right: HashCodes) -> HashCodes:
    match operator:
        case JavaOperator.ADD:
            return left + right
        case JavaOperator.SUBTRACT:
            return left - right
        case JavaOperator.MULTIPLY:
            return left * right
        case JavaOperator.XOR:
            return left ^ right
        case JavaOperator.AND:
            return left & right
        case JavaOperator.OR:
            return left | right
    # Java takes the lowest five bits of the distance.
    distance = right & np.int32(31)
    if operator is JavaOperator.SHIFT_LEFT:
        return left << distance
    if operator is JavaOperator.SHIFT_RIGHT:
        return left >> distance
    return (left.view(np.uint32) >> distance.view(np.uint32)).view(np.int32)


def _evaluate_call(call: JavaCall, fields: FieldCodes, class_name: str, rows: int) -> HashCodes:
    pattern, arguments = PATTERNS[call.pattern], call.arguments
    start, multiplier = pattern.start, pattern.multiplier
    if start is None:
        (start, multiplier), arguments = (_number(each) for each in arguments[:2]), arguments[2:]
    codes: list[HashCodes] = []
    for each in arguments:
        if isinstance(each, Field) and each.how in (None, How.BOXED):
            found, values = fields(each.name, each.how or pattern.how)
            if pattern.null and values.null_count:
                found = np.where(np.asarray(values.is_valid()), found, np.int32(pattern.null))
            codes.append(found)
        else:
            codes.append(_evaluate(each, fields, class_name, rows))
    if pattern.kind is PatternKind.AVRO:
        raise UsageError(f"{class_name} is not an Avro class, so that {call.pattern}() does not apply to it")
    if pattern.kind is not PatternKind.CHAIN:
        return mix_product(codes, hash_name(class_name) if pattern.kind is PatternKind.SCALA_213 else None)
    code = np.full(rows, start, np.int32)
    for added in codes:
        code = code * np.int32(multiplier)
        code = code ^ added if pattern.xor else code + added
    return code


def _number(term: Term) -> int:
    assert isinstance(term, Number)
    return term.value
