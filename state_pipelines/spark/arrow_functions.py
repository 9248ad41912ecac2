"""Functions of Spark over Arrow arrays, where Arrow has none with the same results.

Operands are arrays of n values, or scalars for literals. Errors are `pa.ArrowInvalid`, as those of Arrow's own.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt


class OwnFunction(StrEnum):
    """Function of an expression that Arrow does not have."""

    COLUMN = "column"
    LITERAL = "literal"
    CHOOSE = "choose"
    """Of `CASE`: conditions and values by turns, then the value if no condition is true."""
    REQUIRE = "require"
    """The operand; null is an error, under the conditions that follow."""
    TRUNCATE = "truncate"
    NOT_ZERO = "not_zero"
    NULL_SAFE_EQUAL = "null_safe_equal"
    DIVIDE_WHOLE = "divide_whole"
    REMAINDER = "remainder"
    TAKE_ELEMENT = "take_element"
    COUNT_ELEMENTS = "count_elements"


def divide(left: Any, right: Any) -> Any:
    """The quotient of doubles."""
    return pc.divide(left, _refuse_zero(left, right))


def divide_whole(left: Any, right: Any) -> Any:
    """The quotient of longs, rounded toward zero."""
    return pc.divide_checked(left, _refuse_zero(left, right))


def remainder(left: Any, right: Any) -> Any:
    """The remainder of numbers, with the sign of the dividend."""
    divisor = _refuse_zero(left, right)
    kind = left.type
    values = _to_numpy(divisor, null=1)
    if pa.types.is_integer(kind):
        # Of the smallest number and -1, C leaves the result open.
        values = np.where(values == -1, values.dtype.type(1), values)
    with np.errstate(invalid="ignore"):
        found = np.fmod(_to_numpy(left), values)
    return _restore(found, kind, left, right)


def _refuse_zero(left: Any, right: Any) -> Any:
    """The divisor with 1 in place of zeros that do not count because the dividend is null.

    Raises:
        pa.ArrowInvalid: another divisor is zero.
    """
    zero = pc.fill_null(pc.equal(right, pa.scalar(0, right.type)), False)
    if not pc.any(zero).as_py() if isinstance(zero, pa.Array) else not zero.as_py():
        return right
    if pc.any(pc.and_(zero, pc.is_valid(left))).as_py():
        raise pa.ArrowInvalid("division by zero")
    return pc.if_else(zero, pa.scalar(1, right.type), right)


def _to_numpy(operand: Any, null: int = 0) -> npt.NDArray[Any]:
    """Values of numbers, with another number for nulls."""
    if isinstance(operand, pa.Scalar):
        return np.array(operand.as_py() if operand.is_valid else null, operand.type.to_pandas_dtype())
    filled = pc.fill_null(operand, pa.scalar(null, operand.type)) if operand.null_count else operand
    values: npt.NDArray[Any] = filled.to_numpy(zero_copy_only=False)
    return values


def _restore(values: npt.NDArray[Any], kind: pa.DataType, *operands: Any) -> pa.Array:
    """Values as an array, null where an operand is."""
    found = pa.array(values, kind)
    for each in operands:
        if isinstance(each, pa.Scalar) or each.null_count:
            found = pc.if_else(pc.is_valid(each), found, pa.scalar(None, kind))
    return found


def truncate(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Doubles or floats as whole numbers.

    Raises:
        pa.ArrowInvalid: a value is NaN, infinite or beyond the range of the type.
    """
    values = _to_numpy(array).astype(np.float64, copy=False)
    limits = np.iinfo(kind.to_pandas_dtype())
    # As `Math.floor(x) <= MAX && Math.ceil(x) >= MIN`; the largest long is 2^63 as a double, which counts as inside.
    fits = (np.floor(values) <= float(limits.max)) & (np.ceil(values) >= float(limits.min))
    if not fits.all():
        wrong = values[np.argmin(fits)]
        raise pa.ArrowInvalid(f"{wrong} is beyond the range of {kind}")
    high = values >= float(limits.max)
    found = np.where(high, 0.0, values).astype(limits.dtype)
    found[high] = limits.max
    return _restore(found, kind, array)


def equal(left: Any, right: Any) -> Any:
    """Whether numbers with fractions are equal; NaN is equal to itself."""
    return pc.or_(pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right)))


def less(left: Any, right: Any) -> Any:
    """Whether numbers with fractions are less; NaN is greater than all others."""
    return pc.or_(pc.less(left, right), pc.and_(pc.is_nan(right), pc.invert(pc.is_nan(left))))


def less_equal(left: Any, right: Any) -> Any:
    """Whether numbers with fractions are less or equal."""
    return pc.or_(pc.less_equal(left, right), pc.is_nan(right))


def turn(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The comparison with its operands the other way round."""
    return lambda left, right: compare(right, left)


def null_safe_equal(left: Any, right: Any, same: Callable[[Any, Any], Any]) -> Any:
    """Whether two values are the same, or both null."""
    return pc.or_(pc.fill_null(same(left, right), False), pc.and_(pc.is_null(left), pc.is_null(right)))


def is_nan(array: pa.Array) -> pa.Array:
    """Whether a value is NaN; null is not."""
    return pc.fill_null(pc.is_nan(array), False)


def take_element(lists: pa.ListArray, index: Any, first: int, *, failing: bool) -> pa.Array:
    """An element of each list.

    Args:
        lists: the lists.
        index: of the elements.
        first: the index of the first element. If that is 1, negative ones count from the end.
        failing: whether an index that a list does not have is an error; else null.

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
    """The numbers of elements of lists; `null` for null."""
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
    """Values of the marked rows, at their positions among all; null elsewhere."""
    if isinstance(values, pa.Scalar):
        return pc.if_else(rows, values, pa.scalar(None, values.type))
    marked = rows.to_numpy(zero_copy_only=False)
    return values.take(pa.array(np.cumsum(marked) - 1, mask=~marked))
