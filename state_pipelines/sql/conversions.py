"""Conversions of values from one SQL type to another, and other ways in which columns of a state result."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from state_pipelines.serializers.tree import LogicalType


class Derivation(StrEnum):
    """Derivation of a column of a state from columns of the old one.

    Attributes:
        COPY: the value as it is.
        RETYPE: the value as it is; the serializer describes another length or nullability.
        WIDEN: a number in a wider type.
        CHECK: the value as it is, after a check that it fits a narrower type or is not NULL.
        SUM_OR_ZERO: a sum, zero instead of NULL.
        SUM_OR_NULL: a sum, but NULL where a count is zero; computed from the sum and the count.
        FOLD_COUNT: the number of values in a view (the state with all values of a DISTINCT, MAX or MIN call).
        FOLD_SUM: the sum of the values of a view, NULL where it has none.
        FOLD_SUM_OR_ZERO: the sum of the values of a view, zero where it has none.
        FOLD_MIN: the least value of a view, NULL where it has none.
        FOLD_MAX: the greatest value of a view, NULL where it has none.
        FOLD_ROWS: the aggregate function over the rows that another state of the operator keeps.
        COUNT_MATCHES: for each row of one side of a join, the number of matching rows of the other side.
        FIRST_ROWS: the first rows by the order of a rank that keeps fewer rows than before.
        LAST_ROWS: the last rows of a window that gets shorter, and their number and the time of the first of them.
        COPY_VALUES: the values of another state, with the number of rows of each.
        INITIAL: the value that the accumulator begins with: NULL, for counts and `$SUM0` zero.
        NULL: no value, in a row that did not have the column.
    """

    COPY = "copy"
    RETYPE = "retype"
    WIDEN = "widen"
    CHECK = "check"
    SUM_OR_ZERO = "sum or zero"
    SUM_OR_NULL = "sum or null"
    FOLD_COUNT = "fold count"
    FOLD_SUM = "fold sum"
    FOLD_SUM_OR_ZERO = "fold sum or zero"
    FOLD_MIN = "fold min"
    FOLD_MAX = "fold max"
    FOLD_ROWS = "fold rows"
    COUNT_MATCHES = "count matches"
    FIRST_ROWS = "first rows"
    LAST_ROWS = "last rows"
    COPY_VALUES = "copy values"
    INITIAL = "initial"
    NULL = "null"


UNCHANGED = (Derivation.COPY, Derivation.RETYPE)
"""Derivations that leave the value as it is."""


_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
FLOATS = ("FLOAT", "DOUBLE")
_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INTEGER": 10, "BIGINT": 19}
_STRINGS = ("CHAR", "VARCHAR")
_BYTES = ("BINARY", "VARBINARY")


def compare_types(old: LogicalType, new: LogicalType) -> Derivation | None:
    """Return the conversion of values of one SQL type to another; None if there is none."""
    if old == new or replace(old, class_name=None) == replace(new, class_name=None):
        return Derivation.COPY
    loosened = new.nullable or not old.nullable
    if replace(old, nullable=new.nullable) == new:
        return Derivation.RETYPE if loosened else Derivation.CHECK
    found = _compare_roots(old, new)
    return Derivation.CHECK if found is not None and not loosened else found


def _compare_roots(old: LogicalType, new: LogicalType) -> Derivation | None:
    if old.root == new.root:
        if old.root in (*_STRINGS, *_BYTES):
            longer = (new.length or 0) >= (old.length or 0)
            return Derivation.RETYPE if longer else Derivation.CHECK
        if old.root == "DECIMAL":
            return _compare_decimals(old.length or 0, old.scale or 0, new)
        if len(old.children) == len(new.children) > 0 and old.names == new.names:
            found = {compare_types(one, other) for one, other in zip(old.children, new.children, strict=True)}
            return Derivation.RETYPE if found <= set(UNCHANGED) else None
        return None
    if {old.root, new.root} in ({*_STRINGS}, {*_BYTES}):
        return Derivation.RETYPE if (new.length or 0) >= (old.length or 0) else Derivation.CHECK
    for order in (_INTEGERS, FLOATS):
        if old.root in order and new.root in order:
            return Derivation.WIDEN if order.index(old.root) < order.index(new.root) else Derivation.CHECK
    if old.root in _INTEGERS and new.root == "DECIMAL":
        return _compare_decimals(_DIGITS[old.root], 0, new)
    if old.root in _INTEGERS[:3] and new.root == "DOUBLE":
        return Derivation.WIDEN
    return None


def _compare_decimals(precision: int, scale: int, new: LogicalType) -> Derivation | None:
    if (new.scale or 0) < scale:
        return None
    fits = (new.length or 0) - (new.scale or 0) >= precision - scale
    return Derivation.WIDEN if fits else Derivation.CHECK


def keeps_values(old: LogicalType, new: LogicalType) -> bool:
    """Return whether a cast from one type to another loses nothing of any value."""
    found = compare_types(replace(old, nullable=True), replace(new, nullable=True))
    return found is Derivation.WIDEN or found in UNCHANGED
