"""Expressions of Spark that Arrow computes instead, directly on the columns of a batch.

* `OwnFunction`, `divide` to `count_elements`: functions of Spark over Arrow arrays, where Arrow has none with the same
  results. Operands are arrays of n values, or scalars for literals. Errors are `pa.ArrowInvalid`, as those of Arrow's
  own.
* `ArrowExpression`, `translate_expression`: Spark parses, resolves and simplifies the SQL and inserts casts. The
  functions that this module translates give the same results in Arrow, down to overflow, NaN and null. Operands that
  Spark evaluates for some rows only, such as branches of `CASE`, are evaluated for these rows only if they may fail. An
  expression with anything else in it is left to Spark: decimals, times, regular expressions, and what depends on a
  locale or a time zone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.errors import MigrationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy.typing as npt
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class OwnFunction(StrEnum):
    """Functions in expressions of Spark that Arrow does not have, so that this module computes them."""

    COLUMN = "column"
    LITERAL = "literal"
    CHOOSE = "choose"
    """`CASE`: its arguments are conditions and values by turns, then the value if no condition is true."""
    REQUIRE = "require"
    """The first operand; null is an error in rows where the other operands, which are conditions, are all true."""
    TRUNCATE = "truncate"
    NOT_ZERO = "not_zero"
    NULL_SAFE_EQUAL = "null_safe_equal"
    DIVIDE_WHOLE = "divide_whole"
    REMAINDER = "remainder"
    TAKE_ELEMENT = "take_element"
    COUNT_ELEMENTS = "count_elements"


def divide(left: Any, right: Any) -> Any:
    """Return the quotients of doubles; a zero divisor is an error, as in Spark's ANSI mode."""
    return pc.divide(left, _refuse_zero(left, right))


def divide_whole(left: Any, right: Any) -> Any:
    """Return the quotients of longs, rounded toward zero; a zero divisor is an error, as in Spark's ANSI mode."""
    return pc.divide_checked(left, _refuse_zero(left, right))


def remainder(left: Any, right: Any) -> Any:
    """Return the remainders of numbers, with the sign of the dividend; a zero divisor is an error."""
    divisor = _refuse_zero(left, right)
    kind = left.type
    values = _to_numpy(divisor, null=1)
    if pa.types.is_integer(kind):
        # In C, the remainder of the smallest number and -1 is undefined. Any remainder by -1 is 0, as any remainder by
        # 1.
        values = np.where(values == -1, values.dtype.type(1), values)
    with np.errstate(invalid="ignore"):
        found = np.fmod(_to_numpy(left), values)
    return _restore(found, kind, left, right)


def _refuse_zero(left: Any, right: Any) -> Any:
    """Return the divisor, with 1 in place of each zero whose dividend is null, where the quotient is null anyway.

    Raises:
        pa.ArrowInvalid: the divisor of a dividend that is not null is zero.
    """
    zero = pc.fill_null(pc.equal(right, pa.scalar(0, right.type)), False)
    if not pc.any(zero).as_py() if isinstance(zero, pa.Array) else not zero.as_py():
        return right
    if pc.any(pc.and_(zero, pc.is_valid(left))).as_py():
        raise pa.ArrowInvalid("division by zero")
    return pc.if_else(zero, pa.scalar(1, right.type), right)


def _to_numpy(operand: Any, null: int = 0) -> npt.NDArray[Any]:
    """Return the numbers of an array or scalar as a numpy array, with `null` for each null."""
    if isinstance(operand, pa.Scalar):
        return np.array(operand.as_py() if operand.is_valid else null, operand.type.to_pandas_dtype())
    filled = pc.fill_null(operand, pa.scalar(null, operand.type)) if operand.null_count else operand
    values: npt.NDArray[Any] = filled.to_numpy(zero_copy_only=False)
    return values


def _restore(values: npt.NDArray[Any], kind: pa.DataType, *operands: Any) -> pa.Array:
    """Return the values as an Arrow array, null where an operand is null."""
    found = pa.array(values, kind)
    for each in operands:
        if isinstance(each, pa.Scalar) or each.null_count:
            found = pc.if_else(pc.is_valid(each), found, pa.scalar(None, kind))
    return found


def truncate(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert doubles or floats to whole numbers.

    Raises:
        pa.ArrowInvalid: a value is NaN, infinite or beyond the range of the type.
    """
    values = _to_numpy(array).astype(np.float64, copy=False)
    limits = np.iinfo(kind.to_pandas_dtype())
    # Spark's check is `Math.floor(x) <= MAX && Math.ceil(x) >= MIN`. As a double, the largest long is 2^63, which
    # counts as inside.
    fits = (np.floor(values) <= float(limits.max)) & (np.ceil(values) >= float(limits.min))
    if not fits.all():
        wrong = values[np.argmin(fits)]
        raise pa.ArrowInvalid(f"{wrong} is beyond the range of {kind}")
    high = values >= float(limits.max)
    found = np.where(high, 0.0, values).astype(limits.dtype)
    found[high] = limits.max
    return _restore(found, kind, array)


def equal(left: Any, right: Any) -> Any:
    """Compare floats or doubles by `=`, row by row, as Spark does: NaN is equal to itself."""
    return pc.or_(pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right)))


def less(left: Any, right: Any) -> Any:
    """Compare floats or doubles by `<`, row by row, as Spark does: NaN is greater than all other numbers."""
    return pc.or_(pc.less(left, right), pc.and_(pc.is_nan(right), pc.invert(pc.is_nan(left))))


def less_equal(left: Any, right: Any) -> Any:
    """Compare floats or doubles by `<=`, row by row, as Spark does: NaN is greater than all other numbers."""
    return pc.or_(pc.less_equal(left, right), pc.is_nan(right))


def turn(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the comparison with swapped operands."""
    return lambda left, right: compare(right, left)


def null_safe_equal(left: Any, right: Any, same: Callable[[Any, Any], Any]) -> Any:
    """Compare values for equality, row by row; two nulls are equal."""
    return pc.or_(pc.fill_null(same(left, right), False), pc.and_(pc.is_null(left), pc.is_null(right)))


def is_nan(array: pa.Array) -> pa.Array:
    """Mark the values that are NaN; null is not NaN."""
    return pc.fill_null(pc.is_nan(array), False)


def take_element(lists: pa.ListArray, index: Any, first: int, *, failing: bool) -> pa.Array:
    """Take one element of each list.

    Args:
        lists: the lists.
        index: the index of the element in each list, or one index for all lists.
        first: the index of the first element: 0 or 1. If it is 1, negative indexes count from the end, and 0 is an
            error.
        failing: raise if a list has no element of that index; else the element is null.

    Raises:
        pa.ArrowInvalid: a list has no such element.
    """
    lengths = _lengths(lists)
    wanted = _to_numpy(index).astype(np.int64)
    inside = (wanted >= first) & (wanted < lengths + first)
    indexes = wanted - first
    if first:
        from_end = (wanted < 0) & (wanted >= -lengths)
        indexes, inside = np.where(from_end, lengths + wanted, indexes), inside | from_end
        if np.any((wanted == 0) & _both_valid(lists, index)):
            raise pa.ArrowInvalid("the index of an element is 0; the first has 1")
    valid = _both_valid(lists, index)
    if failing and not np.all(inside | ~valid):
        wrong = int(np.argmax(~inside & valid))
        number = int(np.broadcast_to(wanted, len(lists))[wrong])
        raise pa.ArrowInvalid(f"a list of {lengths[wrong]} elements has none with the index {number}")
    values, offsets = lists.values, lists.offsets.to_numpy()
    taken = inside & valid
    if len(values) == len(lists) and offsets[0] == 0 and np.all(lengths == 1) and taken.all():
        return values
    return values.take(pa.array(offsets[:-1] + np.where(taken, indexes, 0), mask=~taken))


def count_elements(lists: pa.ListArray, *, null: int | None) -> pa.Array:
    """Count the elements of each list; return `null` for a list that is null."""
    found = pc.list_value_length(lists)
    return found if null is None else pc.fill_null(found, null)


def _lengths(lists: pa.ListArray) -> npt.NDArray[np.int64]:
    return _to_numpy(pc.list_value_length(lists)).astype(np.int64)


def _both_valid(lists: pa.ListArray, index: Any) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = lists.is_valid().to_numpy(zero_copy_only=False)
    if isinstance(index, pa.Scalar):
        return valid if index.is_valid else np.zeros(len(lists), np.bool_)
    wanted: npt.NDArray[np.bool_] = index.is_valid().to_numpy(zero_copy_only=False)
    return valid & wanted


def scatter(values: Any, rows: pa.BooleanArray) -> pa.Array:
    """Put the values of the marked rows at the positions of these rows among all rows; the other rows are null."""
    if isinstance(values, pa.Scalar):
        return pc.if_else(rows, values, pa.scalar(None, values.type))
    marked = rows.to_numpy(zero_copy_only=False)
    return values.take(pa.array(np.cumsum(marked) - 1, mask=~marked))


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
"""Arrow types of the values that can be computed, by the name of the type in Spark."""

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_FRACTIONS = ("float", "double")
_NUMBERS = (*_INTEGERS, *_FRACTIONS)
_EXACT = (*_INTEGERS, "boolean", "string")
"""Types that Arrow compares as Spark does, text by its bytes."""

_ARITHMETIC = {"Add": "add", "Subtract": "subtract", "Multiply": "multiply", "UnaryMinus": "negate", "Abs": "abs"}
_DIVISIONS = {"Divide": "divide", "IntegralDivide": OwnFunction.DIVIDE_WHOLE, "Remainder": OwnFunction.REMAINDER}
_COMPARISONS = {
    "EqualTo": "equal",
    "EqualNullSafe": OwnFunction.NULL_SAFE_EQUAL,
    "LessThan": "less",
    "LessThanOrEqual": "less_equal",
    "GreaterThan": "greater",
    "GreaterThanOrEqual": "greater_equal",
}
_LOGIC = {"And": "and_kleene", "Or": "or_kleene", "Not": "invert", "IsNull": "is_null", "IsNotNull": "is_valid"}
_SEARCHES = {"StartsWith": "starts_with", "EndsWith": "ends_with", "Contains": "match_substring"}
_OF_LISTS = ("GetArrayItem", "ElementAt", "GetStructField", "Size")
_TRIMS = {"StringTrim": "utf8_trim", "StringTrimLeft": "utf8_ltrim", "StringTrimRight": "utf8_rtrim"}
_ANSI = "ANSI"

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "divide": divide,
    OwnFunction.DIVIDE_WHOLE: divide_whole,
    OwnFunction.REMAINDER: remainder,
    "is_nan": is_nan,
}
_OPTIONS: dict[str, Callable[..., Any]] = {
    "struct_field": pc.StructFieldOptions,
    "utf8_slice_codeunits": pc.SliceOptions,
    **dict.fromkeys(("utf8_trim", "utf8_ltrim", "utf8_rtrim"), pc.TrimOptions),
    **dict.fromkeys(("starts_with", "ends_with", "match_substring"), pc.MatchSubstringOptions),
    "replace_substring": pc.ReplaceSubstringOptions,
}
"""Makers of the options of Arrow functions; their arguments are the `value` of an expression."""
_FRACTION_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "equal": equal,
    "less": less,
    "less_equal": less_equal,
    "greater": turn(less),
    "greater_equal": turn(less_equal),
}


@dataclass(frozen=True)
class ArrowExpression:
    """Node of an expression that Arrow computes.

    Attributes:
        function: name of a function of Arrow, or an `OwnFunction`.
        type: type of its values, by Spark's name.
        arguments: operands.
        value: name of a column, value of a literal, the message where null is an error, or options of the function.
        may_fail: whether the computation raises an error for some values of the columns.
    """

    function: OwnFunction | str
    type: str
    arguments: tuple[ArrowExpression, ...] = ()
    value: Any = None
    may_fail: bool = False

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that the expression reads."""
        own = frozenset([self.value]) if self.function == OwnFunction.COLUMN else frozenset()
        return own.union(*(each.columns for each in self.arguments))

    def evaluate(self, columns: Mapping[str, pa.Array], present: pa.BooleanArray) -> pa.Array:
        """Compute the values of the expression.

        Args:
            columns: by name, arrays of n values.
            present: bool[n], rows whose payload (the value of the state) is not null. Other rows may have any result,
                and raise no error.

        Raises:
            MigrationError: a value does not fit its type, or is null where it must not be.
        """
        rows = _Rows({name: columns[name] for name in self.columns}, len(present))
        try:
            return _compute_where(self, rows, present) if self.may_fail else _compute(self, rows)
        except pa.ArrowInvalid as error:
            raise MigrationError(f"an expression cannot be computed for all rows: {error}") from None


@dataclass(frozen=True)
class _Rows:
    """The rows for which an expression is evaluated."""

    columns: Mapping[str, pa.Array]
    count: int


def _compute_where(expression: ArrowExpression, rows: _Rows, wanted: Any) -> pa.Array:
    """Compute an expression in the wanted rows only, so that others cannot raise errors; the others are null."""
    if isinstance(wanted, pa.Scalar):
        wanted = pa.repeat(wanted, rows.count)
    wanted = pc.fill_null(wanted, False)
    count = wanted.true_count
    if count == rows.count:
        return _compute(expression, rows)
    chosen = _Rows({name: rows.columns[name].filter(wanted) for name in expression.columns}, count)
    return scatter(_compute(expression, chosen), wanted)


def _compute(expression: ArrowExpression, rows: _Rows) -> Any:
    """Compute an expression in all rows: an array, or a scalar if the result depends on no column."""
    match expression.function:
        case OwnFunction.COLUMN:
            return rows.columns[expression.value]
        case OwnFunction.LITERAL:
            return pa.scalar(expression.value, TYPES[expression.type])
        case OwnFunction.CHOOSE:
            return _choose(expression, rows)
        case "coalesce":
            found = _compute(expression.arguments[0], rows)
            for each in expression.arguments[1:]:
                missing = pc.is_null(found) if each.may_fail else None
                found = pc.coalesce(found, _compute_guarded(each, rows, missing))
            return found
    first, *rest = expression.arguments
    if expression.function in ("divide", OwnFunction.DIVIDE_WHOLE, OwnFunction.REMAINDER):
        # Spark evaluates the divisor first, and the dividend only where the divisor is not null.
        divisor = _compute(rest[0], rows)
        found = [_compute_guarded(first, rows, pc.is_valid(divisor) if first.may_fail else None), divisor]
    else:
        start = _compute(first, rows)
        wanted = _needs_more(expression, start) if any(each.may_fail for each in rest) else None
        found = [start, *(_compute_guarded(each, rows, wanted) for each in rest)]
    return _call(expression, found)


def _compute_guarded(expression: ArrowExpression, rows: _Rows, wanted: Any) -> Any:
    """Compute an operand; if it may fail, only in the wanted rows, because Spark evaluates it in no others."""
    return _compute_where(expression, rows, wanted) if expression.may_fail else _compute(expression, rows)


def _needs_more(expression: ArrowExpression, first: Any) -> Any:
    """Return the rows in which the result depends on operands after the first one."""
    match expression.function:
        case "and_kleene":
            return pc.fill_null(first, True)
        case "or_kleene":
            return pc.invert(pc.fill_null(first, False))
        case OwnFunction.NULL_SAFE_EQUAL:
            return pa.scalar(True)
        case OwnFunction.REQUIRE:
            return pc.is_null(first)
        case _:
            return pc.is_valid(first)


def _choose(expression: ArrowExpression, rows: _Rows) -> Any:
    """Compute a CASE WHEN, whose arguments are conditions and values by turns; the last argument is the ELSE value."""
    *pairs, otherwise = expression.arguments
    conditions, values = pairs[::2], pairs[1::2]
    if not any(each.may_fail for each in expression.arguments):
        found = _compute(otherwise, rows)
        for condition, value in reversed(list(zip(conditions, values, strict=True))):
            found = pc.if_else(pc.fill_null(_compute(condition, rows), False), _compute(value, rows), found)
        return found
    left: Any = pa.repeat(pa.scalar(True), rows.count)
    found = pa.nulls(rows.count, TYPES[expression.type])
    for condition, value in zip(conditions, values, strict=True):
        chosen = pc.fill_null(pc.and_(left, _compute_where(condition, rows, left)), False)
        found = pc.if_else(chosen, _compute_where(value, rows, chosen), found)
        left = pc.and_(left, pc.invert(chosen))
    return pc.if_else(left, _compute_where(otherwise, rows, left), found)


def _call(expression: ArrowExpression, found: list[Any]) -> Any:
    """Apply the function of an expression to its operands."""
    function, kind, value = expression.function, expression.arguments[0].type, expression.value
    match function:
        case "cast":
            # Arrow raises for values that do not fit their type; a long becomes the nearest double.
            return pc.cast(found[0], TYPES[expression.type], safe=expression.type in _INTEGERS)
        case OwnFunction.TRUNCATE:
            return truncate(found[0], TYPES[expression.type])
        case OwnFunction.NOT_ZERO:
            return pc.not_equal(found[0], pa.scalar(0, found[0].type))
        case OwnFunction.REQUIRE:
            wrong = pc.is_null(found[0])
            for condition in found[1:]:
                wrong = pc.and_(wrong, pc.fill_null(condition, False))
            if pc.any(wrong).as_py():
                raise MigrationError(str(value))
            return found[0]
        case "binary_join_element_wise":
            return pc.binary_join_element_wise(*found, "")
        case OwnFunction.NULL_SAFE_EQUAL:
            same = equal if kind in _FRACTIONS else pc.equal
            return null_safe_equal(found[0], found[1], same)
        case "is_in":
            return pc.if_else(pc.is_valid(found[0]), pc.is_in(found[0], pa.array(value, TYPES[kind])), None)
        case OwnFunction.TAKE_ELEMENT:
            first, failing = value
            return take_element(found[0], found[1], first, failing=failing)
        case OwnFunction.COUNT_ELEMENTS:
            return count_elements(found[0], null=value)
    if kind in _FRACTIONS and function in _FRACTION_COMPARISONS:
        return _FRACTION_COMPARISONS[function](*found)
    if function in _FUNCTIONS:
        return _FUNCTIONS[function](*found)
    if value is not None:
        # Operands after the first are literals; Arrow takes them as options of the function, not as arguments.
        return pc.call_function(function, found[:1], _OPTIONS[function](*value))
    return pc.call_function(function, found)


def translate_expression(expression: Any, present: str) -> ArrowExpression | None:
    """Translate an expression of an optimized plan for Arrow; return None if it is left to Spark.

    Args:
        expression: an expression over columns, which are null in rows without a payload.
        present: name of the column that marks rows with a payload. A `CASE WHEN present THEN … END` is translated as
            its value.
    """
    while _name(expression) == "Alias":
        expression = expression.child()
    found = _translate(expression, present)
    # An expression without columns is a literal, and needs no translation: Spark has evaluated it.
    return None if found is None or present in found.columns or not found.columns else found


def _translate(expression: Any, present: str) -> ArrowExpression | None:
    name, kind = _name(expression), expression.dataType().simpleString()
    if name == "AttributeReference":
        return ArrowExpression(OwnFunction.COLUMN, kind, value=expression.name())
    if name == "Literal" and kind in TYPES:
        value = expression.value()
        return ArrowExpression(
            OwnFunction.LITERAL, kind, value=str(value) if kind == "string" and value is not None else value
        )
    children = list_sequence(expression.children())
    if name == "CaseWhen" and len(children) == 2 and _is_column(children[0], present):
        return _translate(children[1], present)
    if name in _OF_LISTS:
        arguments = _translate_all(children, present)
        return None if arguments is None else _make_of_lists(expression, name, kind, arguments)
    if kind not in TYPES:
        return None
    if name == "Coalesce" and len(children) == 2 and (required := _find_required(children[1])) is not None:
        conditions, message = required
        found = _translate_all([children[0], *conditions], present)
        if found is None or any(each.may_fail for each in found[1:]):
            return None
        return ArrowExpression(OwnFunction.REQUIRE, kind, found, message, may_fail=True)
    arguments = _translate_all(children, present)
    return None if arguments is None else _make(expression, name, kind, arguments)


def _translate_all(expressions: list[Any], present: str) -> tuple[ArrowExpression, ...] | None:
    found = [each for expression in expressions if (each := _translate(expression, present)) is not None]
    return tuple(found) if len(found) == len(expressions) else None


def _make_of_lists(
    expression: Any, name: str, kind: str, arguments: tuple[ArrowExpression, ...]
) -> ArrowExpression | None:
    """Translate an element of a list, a field of a struct, or the number of elements; None if it is left to Spark."""
    of, fails = arguments[0].type, any(each.may_fail for each in arguments)
    match name:
        case "GetArrayItem" | "ElementAt" if of.startswith("array<") and arguments[1].type in _INTEGERS:
            failing, first = bool(expression.failOnError()), 0 if name == "GetArrayItem" else 1
            # For the index 0, `element_at` fails even when other missing elements give null.
            may_fail = fails or failing or first > 0
            return ArrowExpression(OwnFunction.TAKE_ELEMENT, kind, arguments, (first, failing), may_fail=may_fail)
        case "GetStructField" if of.startswith("struct<"):
            return ArrowExpression("struct_field", kind, arguments, ([expression.ordinal()],), may_fail=fails)
        case "Size" if of.startswith("array<"):
            null = -1 if expression.legacySizeOfNull() else None
            return ArrowExpression(OwnFunction.COUNT_ELEMENTS, kind, arguments, null, may_fail=fails)
    return None


def _make(expression: Any, name: str, kind: str, arguments: tuple[ArrowExpression, ...]) -> ArrowExpression | None:
    types = {each.type for each in arguments}
    fails = any(each.may_fail for each in arguments)

    def make(function: OwnFunction | str, value: Any = None, *, may_fail: bool = False) -> ArrowExpression:
        return ArrowExpression(function, kind, arguments, value, may_fail=fails or may_fail)

    match name:
        case "Cast" if str(expression.evalMode()) == _ANSI:
            return _make_cast(kind, arguments[0])
        case "Add" | "Subtract" | "Multiply" | "UnaryMinus" | "Abs" if types == {kind} and kind in _NUMBERS:
            function = _ARITHMETIC[name]
            if kind in _FRACTIONS:
                return make(function)
            checked = expression.failOnError() if len(arguments) == 1 else str(expression.evalMode()) == _ANSI
            return make(f"{function}_checked", may_fail=True) if checked else None
        case "Divide" | "IntegralDivide" | "Remainder" if len(types) == 1 and types <= set(_NUMBERS):
            safe = arguments[1].function == OwnFunction.LITERAL and arguments[1].value not in (None, 0, -1)
            if safe or str(expression.evalMode()) == _ANSI:
                return make(_DIVISIONS[name], may_fail=not safe)
        case "EqualTo" | "EqualNullSafe" if len(types) == 1 and types <= {*_EXACT, *_FRACTIONS}:
            return make(_COMPARISONS[name])
        case "LessThan" | "LessThanOrEqual" | "GreaterThan" | "GreaterThanOrEqual":
            if len(types) == 1 and types <= {*_NUMBERS, "string"}:
                return make(_COMPARISONS[name])
        case "And" | "Or" | "Not" | "IsNull" | "IsNotNull":
            return make(_LOGIC[name])
        case "IsNaN":
            return make("is_nan")
        case "Coalesce":
            return make("coalesce")
        case "If" | "CaseWhen":
            if len(arguments) % 2 == 0:
                arguments = (*arguments, ArrowExpression(OwnFunction.LITERAL, kind))
            return make(OwnFunction.CHOOSE)
    # Spark may skip later operands of these functions, and so their errors: such calls are left to Spark.
    return None if any(each.may_fail for each in arguments[1:]) else _make_of_texts(name, make, arguments)


def _make_of_texts(
    name: str, make: Callable[..., ArrowExpression], arguments: tuple[ArrowExpression, ...]
) -> ArrowExpression | None:
    """Translate a function of text, `greatest`, `least` or `in`; return None if it is left to Spark."""
    types, literals = {each.type for each in arguments}, [each.value for each in arguments[1:]]
    fixed = all(each.function == OwnFunction.LITERAL and each.value is not None for each in arguments[1:])
    match name:
        case "Greatest" | "Least" if len(types) == 1 and types <= {*_INTEGERS}:
            return make("max_element_wise" if name == "Greatest" else "min_element_wise")
        case "In" if fixed and len(types) == 1 and types <= {*_INTEGERS, "string"}:
            return make("is_in", literals)
        case "Length" if types == {"string"}:
            return make("utf8_length")
        case "Concat" if types == {"string"}:
            return make("binary_join_element_wise")
        case "Substring" if fixed and arguments[0].type == "string" and literals[0] >= 0:
            start = max(literals[0] - 1, 0)
            return make("utf8_slice_codeunits", (start, start + max(literals[1], 0)))
        case "StringTrim" | "StringTrimLeft" | "StringTrimRight" if types == {"string"} and not literals:
            # Spark trims spaces only, no other white space.
            return make(_TRIMS[name], (" ",))
        case "StartsWith" | "EndsWith" | "Contains" if fixed and types == {"string"}:
            return make(_SEARCHES[name], (literals[0],))
        case "StringReplace" if fixed and types == {"string"} and literals[0]:
            return make("replace_substring", (literals[0], literals[1]))
    return None


def _make_cast(kind: str, argument: ArrowExpression) -> ArrowExpression | None:
    """Translate a cast between numbers, from or to booleans, or of integers or booleans to text; None for others."""
    of = argument.type

    def make(function: OwnFunction | str = "cast", *, may_fail: bool = False) -> ArrowExpression:
        return ArrowExpression(function, kind, (argument,), may_fail=may_fail or argument.may_fail)

    if kind == "string" and of in (*_INTEGERS, "boolean"):
        return make()
    if kind in _INTEGERS and of in _INTEGERS:
        return make(may_fail=_INTEGERS.index(kind) < _INTEGERS.index(of))
    if kind in _INTEGERS and of in _FRACTIONS:
        return make(OwnFunction.TRUNCATE, may_fail=True)
    if kind in _FRACTIONS and of in (*_NUMBERS, "boolean"):
        return make()
    if kind in _INTEGERS and of == "boolean":
        return make()
    if kind == "boolean" and of in _INTEGERS:
        return make(OwnFunction.NOT_ZERO)
    return None


def _find_required(expression: Any) -> tuple[list[Any], str] | None:
    """Return the condition and the message of an expression that only calls `raise_error`; None for others.

    The condition is a list with one expression, or empty if `raise_error` is called unconditionally.
    """
    while _name(expression) == "Cast":
        expression = expression.child()
    children = list_sequence(expression.children()) if _name(expression) in ("If", "CaseWhen") else []
    if len(children) == 3 and _name(children[2]) == "Literal" and children[2].value() is None:
        children.pop()
    conditions, error = (children[:1], children[1]) if len(children) == 2 else ([], expression)
    message = _find_message(error)
    return None if message is None else (conditions, message)


def _find_message(expression: Any) -> str | None:
    """Return the message of `raise_error(…)`; None if the expression is something else."""
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


def make_inputs(spark: SparkSession, schema: StructType) -> DataFrame:
    """Make a frame without rows, over which the SQL for `translate_column` is selected."""
    # `mapInArrow` hides from Spark that the frame is empty: else the optimizer would drop the expressions.
    return spark.range(0).mapInArrow(_pass, schema)


def translate_column(frame: DataFrame, present: str) -> ArrowExpression | None:
    """Translate the only column of a frame over `make_inputs`; return None if it is left to Spark.

    Args:
        frame: the frame.
        present: as in `translate_expression`.

    Raises:
        PySparkException: Spark refuses the SQL.
    """
    plan = frame._jdf.queryExecution().optimizedPlan()
    # Other plans compute the column in more than one projection, and are left to Spark.
    steps = [each.getClass().getSimpleName() for each in (plan, plan.children().apply(0))]
    if steps != ["Project", "MapInArrow"]:
        return None
    return translate_expression(plan.projectList().apply(0), present)


def _pass(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
