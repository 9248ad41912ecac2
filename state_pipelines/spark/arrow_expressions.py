"""Expressions of Spark that Arrow computes instead, directly on the columns of a batch.

Spark parses, resolves and simplifies the SQL and says what types it casts to; of what it makes of it, the parts below
mean the same in Arrow, down to overflow and null. An expression with anything else in it stays with Spark: whatever
depends on a locale, a time zone or NaN, and what can fail inside a branch that may not be taken, since Arrow computes
all branches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.errors import MigrationError

if TYPE_CHECKING:
    from collections.abc import Mapping

TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
}
"""Types by their names in Spark."""

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_ARITHMETIC = {"Add": "add_checked", "Subtract": "subtract_checked", "Multiply": "multiply_checked"}
_COMPARISONS = {
    "EqualTo": "equal",
    "LessThan": "less",
    "LessThanOrEqual": "less_equal",
    "GreaterThan": "greater",
    "GreaterThanOrEqual": "greater_equal",
}
_LOGIC = {"And": "and_kleene", "Or": "or_kleene", "Not": "invert", "IsNull": "is_null", "IsNotNull": "is_valid"}
_ANSI = "ANSI"


@dataclass(frozen=True)
class ArrowExpression:
    """A node of an expression.

    Attributes:
        function: of Arrow; or `column`, `literal`, `cast`, `choose` (condition and value by turns, then the rest) or
            `require` (null is an error, where the second argument is true if there is one).
        type: of its values, by Spark's name.
        arguments: operands.
        value: name of a column, value of a literal, or the message where null is an error.
        may_fail: whether some values of the arguments are an error.
    """

    function: str
    type: str
    arguments: tuple[ArrowExpression, ...] = ()
    value: Any = None
    may_fail: bool = False

    @property
    def columns(self) -> frozenset[str]:
        """The columns that it reads."""
        own = frozenset([self.value]) if self.function == "column" else frozenset()
        return own.union(*(each.columns for each in self.arguments))

    def evaluate(self, columns: Mapping[str, pa.Array], present: pa.BooleanArray) -> pa.Array:
        """Its values.

        Args:
            columns: by name, arrays of n values, null where nothing is `present`.
            present: bool[n], rows that have a payload.

        Raises:
            MigrationError: a value does not fit its type, or is null where it must not be.
        """
        match self.function:
            case "column":
                return columns[self.value]
            case "literal":
                return pa.scalar(self.value, TYPES[self.type])
        found = [each.evaluate(columns, present) for each in self.arguments]
        try:
            return self._compute(found, present)
        except pa.ArrowInvalid as error:
            raise MigrationError(f"an expression cannot be computed for all rows: {error}") from None

    def _compute(self, found: list[Any], present: pa.BooleanArray) -> Any:
        match self.function:
            case "cast":
                # Arrow raises for values that do not fit their type; a long becomes the nearest double.
                return pc.cast(found[0], TYPES[self.type], safe=self.may_fail)
            case "choose":
                *pairs, value = found
                for condition, chosen in reversed(list(zip(pairs[::2], pairs[1::2], strict=True))):
                    value = pc.if_else(pc.fill_null(condition, False), chosen, value)
                return value
            case "require":
                wrong = pc.and_(present, pc.is_null(found[0]))
                for condition in found[1:]:
                    wrong = pc.and_(wrong, pc.fill_null(condition, False))
                if pc.any(wrong).as_py():
                    raise MigrationError(str(self.value))
                return found[0]
            case "binary_join_element_wise":
                return pc.binary_join_element_wise(*found, "")
        return pc.call_function(self.function, found)


def translate_expression(expression: Any, present: str) -> ArrowExpression | None:
    """An expression of an optimized plan for Arrow; None when it stays with Spark.

    Args:
        expression: over columns, which are null in rows that are not present.
        present: the column that marks present rows, from `CASE WHEN present THEN … END`.
    """
    while _name(expression) == "Alias":
        expression = expression.child()
    found = _translate(expression, present)
    # What has become a literal has none.
    return None if found is None or present in found.columns or not found.columns else found


def _translate(expression: Any, present: str) -> ArrowExpression | None:
    name, kind = _name(expression), expression.dataType().simpleString()
    if kind not in TYPES:
        return None
    if name == "AttributeReference":
        return ArrowExpression("column", kind, value=expression.name())
    if name == "Literal":
        value = expression.value()
        return ArrowExpression("literal", kind, value=str(value) if kind == "string" and value is not None else value)
    parts = list_sequence(expression.children())
    if name == "CaseWhen" and len(parts) == 2 and _is_column(parts[0], present):
        return _translate(parts[1], present)
    if name == "Coalesce" and len(parts) == 2 and (required := _find_required(parts[1])) is not None:
        conditions, message = required
        found = _translate_all([parts[0], *conditions], present)
        if found is None or any(each.may_fail for each in found[1:]):
            return None
        return ArrowExpression("require", kind, found, message, may_fail=True)
    arguments = _translate_all(parts, present)
    return None if arguments is None else _make(expression, name, kind, arguments)


def _translate_all(expressions: list[Any], present: str) -> tuple[ArrowExpression, ...] | None:
    found = [each for expression in expressions if (each := _translate(expression, present)) is not None]
    return tuple(found) if len(found) == len(expressions) else None


def _make(expression: Any, name: str, kind: str, arguments: tuple[ArrowExpression, ...]) -> ArrowExpression | None:
    types = {each.type for each in arguments}
    fails = any(each.may_fail for each in arguments)
    # Spark does not evaluate later operands unless it must, also not after a null.
    guarded = any(each.may_fail for each in arguments[1:])
    if guarded:
        return None
    match name:
        case "Cast" if str(expression.evalMode()) == _ANSI:
            return _make_cast(kind, arguments[0])
        case "Add" | "Subtract" | "Multiply" if types == {kind} and kind in ("int", "bigint", "double"):
            if kind == "double":
                return ArrowExpression(_ARITHMETIC[name].removesuffix("_checked"), kind, arguments, may_fail=fails)
            if str(expression.evalMode()) == _ANSI:
                return ArrowExpression(_ARITHMETIC[name], kind, arguments, may_fail=True)
        case "Divide" if kind == "double" and arguments[1].function == "literal" and arguments[1].value:
            # Other divisors may be zero, which is an error unless the dividend is null.
            return ArrowExpression("divide", kind, arguments, may_fail=fails)
        case "UnaryMinus" if kind == "double" or (kind in ("int", "bigint") and expression.failOnError()):
            function = "negate" if kind == "double" else "negate_checked"
            return ArrowExpression(function, kind, arguments, may_fail=fails or kind != "double")
        case "EqualTo" if len(types) == 1 and types <= {*_INTEGERS, "boolean", "string"}:
            return ArrowExpression("equal", kind, arguments, may_fail=fails)
        case "LessThan" | "LessThanOrEqual" | "GreaterThan" | "GreaterThanOrEqual":
            if len(types) == 1 and types <= {*_INTEGERS}:
                return ArrowExpression(_COMPARISONS[name], kind, arguments, may_fail=fails)
        case "And" | "Or":
            return ArrowExpression(_LOGIC[name], kind, arguments, may_fail=fails)
        case "Not" | "IsNull" | "IsNotNull":
            return ArrowExpression(_LOGIC[name], kind, arguments, may_fail=fails)
        case "Length" if types == {"string"}:
            return ArrowExpression("utf8_length", kind, arguments, may_fail=fails)
        case "Concat" if types == {"string"} and kind == "string":
            return ArrowExpression("binary_join_element_wise", kind, arguments, may_fail=fails)
        case "Coalesce":
            return ArrowExpression("coalesce", kind, arguments, may_fail=fails)
        case "If" | "CaseWhen":
            if len(arguments) % 2 == 0:
                arguments = (*arguments, ArrowExpression("literal", kind))
            return ArrowExpression("choose", kind, arguments, may_fail=fails)
    return None


def _make_cast(kind: str, argument: ArrowExpression) -> ArrowExpression | None:
    """A cast to text of whole numbers and booleans; or between numbers: wider, or narrower among whole ones."""
    if kind == "string" and argument.type in (*_INTEGERS, "boolean"):
        return ArrowExpression("cast", kind, (argument,), may_fail=argument.may_fail)
    if argument.type in _INTEGERS and kind in _INTEGERS:
        narrower = _INTEGERS.index(kind) < _INTEGERS.index(argument.type)
        return ArrowExpression("cast", kind, (argument,), may_fail=narrower or argument.may_fail)
    if kind == "double" and argument.type in (*_INTEGERS, "float"):
        # `safe` would refuse longs that no double is equal to.
        return None if argument.may_fail else ArrowExpression("cast", kind, (argument,))
    return None


def _find_required(expression: Any) -> tuple[list[Any], str] | None:
    """The condition, if there is one, and the message of an error in place of null."""
    while _name(expression) == "Cast":
        expression = expression.child()
    parts = list_sequence(expression.children()) if _name(expression) in ("If", "CaseWhen") else []
    if len(parts) == 3 and _name(parts[2]) == "Literal" and parts[2].value() is None:
        parts.pop()
    conditions, error = (parts[:1], parts[1]) if len(parts) == 2 else ([], expression)
    message = _find_message(error)
    return None if message is None else (conditions, message)


def _find_message(expression: Any) -> str | None:
    """The message of `raise_error(…)`; None when the expression is something else."""
    while _name(expression) == "Cast":
        expression = expression.child()
    if _name(expression) != "RaiseError":
        return None
    found = str(expression.errorParms().toString())
    start, end = "values: [", "]"
    return found[found.index(start) + len(start) : found.rindex(end)] if start in found and end in found else None


def _name(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _is_column(expression: Any, name: str) -> bool:
    return _name(expression) == "AttributeReference" and bool(expression.name() == name)


def list_sequence(sequence: Any) -> list[Any]:
    """The elements of a sequence of Scala."""
    return [sequence.apply(index) for index in range(sequence.size())]
