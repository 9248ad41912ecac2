"""Derivations of the columns of an accumulator from the old state: equal buffers, other buffers, values of a view."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.serializers.text import describe_type
from state_pipelines.sql.accumulators import COUNT_ROWS, UNRESOLVED, Buffer, PlannedColumn, Role
from state_pipelines.sql.conversions import FLOATS, UNCHANGED, Derivation, compare_types
from state_pipelines.sql.lineage import LOSSY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from state_pipelines.serializers.tree import LogicalType
    from state_pipelines.sql.node_states import PlannedState


@dataclass(frozen=True)
class DerivedColumn:
    """Derivation of a column of a new accumulator from the old state.

    Attributes:
        derivation: how the column is computed.
        indices: indices of the columns of the old row that it is computed from, in the order of the derivation's
            operands.
        view: name of the old state whose values are aggregated; None if the column is computed from columns.
        reason: explanation for users; empty if the value is the same.
    """

    derivation: Derivation
    indices: tuple[int, ...] = ()
    view: str | None = None
    reason: str = ""


def derive_column(
    new: PlannedColumn,
    old: Sequence[PlannedColumn],
    views: Sequence[PlannedState],
    used: set[int],
    *,
    counts: bool = True,
) -> DerivedColumn | None:
    """Find how to derive a column of an accumulator from the old state; return None if it cannot be derived.

    Args:
        new: the column.
        old: columns of the old accumulator.
        views: old states that hold all values of DISTINCT, MAX or MIN calls.
        counts: whether the numbers of rows by value in these states are right, as a query that retracts needs them.
        used: indices of old columns that earlier columns were copied from; a column that is copied is added.
    """
    same = [index for index, each in enumerate(old) if each.meaning == new.meaning]
    for index in (*(each for each in same if each not in used), *same):
        how = _compare_buffers(old[index].type, new.type)
        if how is not None:
            used.add(index)
            return DerivedColumn(how, (index,), None, _describe_cast(old[index].type, new.type, how))
    if new.buffer is None:
        return None
    for index, each in enumerate(old):
        if each.buffer is not None and _is_widened(each, new):
            return DerivedColumn(Derivation.WIDEN, (index,), None, f"from {each.meaning}, unless that has overflowed")
    return _derive_buffer(new.buffer, new, old) or _fold_view(new.buffer, new, views, counts=counts)


def _compare_buffers(old: LogicalType, new: LogicalType) -> Derivation | None:
    # Both buffers are of the same call. So if neither plan gives the type, it is the same type.
    return Derivation.COPY if old == new == UNRESOLVED else compare_types(old, new)


def _describe_cast(old: LogicalType, new: LogicalType, how: Derivation) -> str:
    if how in (Derivation.WIDEN, Derivation.CHECK):
        checked = ", if all values fit" if how is Derivation.CHECK else ""
        return f"from {describe_type(old)} to {describe_type(new)}{checked}"
    return ""


def strip_casts(text: str) -> str:
    """Return an expression without the casts to numbers and texts around it.

    A cast that loses something, such as digits, is kept.
    """
    prefix = "CAST("
    while text.startswith(prefix):
        inner, _, target = text[len(prefix) : -1].rpartition(" AS ")
        if not text.endswith(")") or not inner or target.endswith(LOSSY):
            break
        if target.split("(")[0].split(" ")[0] not in _CAST_TARGETS:
            break
        text = inner
    return text


_CAST_TARGETS = (
    "CHAR",
    "VARCHAR",
    "STRING",
    "TINYINT",
    "SMALLINT",
    "INT",
    "INTEGER",
    "BIGINT",
    "DECIMAL",
    "FLOAT",
    "DOUBLE",
)


def _is_widened(old: PlannedColumn, new: PlannedColumn) -> bool:
    """Return whether two buffers are of calls that differ only in casts of the argument, without a narrower type."""
    one, other = old.buffer, new.buffer
    if one is None or other is None or compare_types(old.type, new.type) not in (Derivation.WIDEN, *UNCHANGED):
        return False
    if strip_casts(other.argument) != strip_casts(one.argument):
        return False
    return replace(other, argument="", not_null=False) == replace(one, argument="", not_null=False)


def _derive_buffer(buffer: Buffer, new: PlannedColumn, old: Sequence[PlannedColumn]) -> DerivedColumn | None:
    """Derive a buffer from old buffers of other calls with the same argument, such as a SUM from AVG's sum."""
    if buffer.function in ("COUNT",) or buffer.role is Role.COUNT:
        index = _find_count(buffer, old)
        return None if index is None else _derived(Derivation.COPY, (index,), old)
    sum_of = _find(old, buffer, (("SUM", Role.VALUE), ("$SUM0", Role.VALUE), ("AVG", Role.SUM)))
    if sum_of is None or buffer.function not in ("SUM", "$SUM0", "AVG"):
        return None
    cast = compare_types(replace(old[sum_of].type, nullable=True), replace(new.type, nullable=True))
    is_float = old[sum_of].type.root in FLOATS
    if cast not in (*UNCHANGED, Derivation.WIDEN, Derivation.CHECK) or (is_float and cast not in UNCHANGED):
        # Sums of FLOAT and of DOUBLE are rounded differently, so one cannot be cast to the other.
        return None
    if buffer.function != "SUM" or buffer.role is not Role.VALUE:
        return _derived(Derivation.SUM_OR_ZERO, (sum_of,), old)
    found = old[sum_of].buffer
    if found is not None and found.function == "SUM":
        return _derived(Derivation.COPY if cast in UNCHANGED else cast, (sum_of,), old)
    count = _find_count(replace(buffer, function="COUNT"), old)
    return None if count is None else _derived(Derivation.SUM_OR_NULL, (sum_of, count), old)


def _derived(how: Derivation, indices: tuple[int, ...], old: Sequence[PlannedColumn]) -> DerivedColumn:
    return DerivedColumn(how, indices, None, f"from {' and '.join(old[each].meaning for each in indices)}")


def _find(old: Sequence[PlannedColumn], buffer: Buffer, wanted: Sequence[tuple[str, Role]]) -> int | None:
    for function, role in wanted:
        for index, each in enumerate(old):
            found = each.buffer
            if (
                found is not None
                and (found.function, found.role) == (function, role)
                and (found.argument, found.distinct, found.filter) == (buffer.argument, buffer.distinct, buffer.filter)
            ):
                return index
    return None


def _find_count(buffer: Buffer, old: Sequence[PlannedColumn]) -> int | None:
    """Find an old count of the argument's non-NULL values; if they cannot be NULL, a count of all rows will do."""
    counts = (("COUNT", Role.VALUE), ("AVG", Role.COUNT), ("SUM", Role.COUNT))
    found = _find(old, buffer, counts)
    if found is not None or buffer.distinct:
        return found
    if buffer.argument and buffer.not_null:
        rows = replace(buffer, argument="")
        return _find(old, rows, (("COUNT", Role.VALUE),)) if (found := _find_not_null(old, buffer)) is None else found
    return _find_not_null(old, buffer) if not buffer.argument else None


def _find_not_null(old: Sequence[PlannedColumn], buffer: Buffer) -> int | None:
    """Find an old count of the values of any column that cannot be NULL, which is the number of rows."""
    for index, each in enumerate(old):
        found = each.buffer
        if found is None or not found.not_null or found.distinct or found.filter != buffer.filter:
            continue
        if (found.function, found.role) == ("COUNT", Role.VALUE) or found.role is Role.COUNT:
            return index
    return None


_FOLDS: Mapping[tuple[str, Role], Derivation] = {
    ("COUNT", Role.VALUE): Derivation.FOLD_COUNT,
    ("AVG", Role.COUNT): Derivation.FOLD_COUNT,
    ("SUM", Role.COUNT): Derivation.FOLD_COUNT,
    ("SUM", Role.VALUE): Derivation.FOLD_SUM,
    ("$SUM0", Role.VALUE): Derivation.FOLD_SUM_OR_ZERO,
    ("AVG", Role.SUM): Derivation.FOLD_SUM_OR_ZERO,
    ("MAX", Role.VALUE): Derivation.FOLD_MAX,
    ("MIN", Role.VALUE): Derivation.FOLD_MIN,
}


def _fold_view(
    buffer: Buffer, new: PlannedColumn, views: Sequence[PlannedState], *, counts: bool
) -> DerivedColumn | None:
    """Derive a buffer from the state with all values of its argument (a view); return None if that is not possible."""
    how = _FOLDS.get((buffer.function, buffer.role))
    extreme = how in (Derivation.FOLD_MAX, Derivation.FOLD_MIN)
    if how is None or buffer.filter or not (buffer.distinct or extreme):
        return None
    if extreme and (found := _fold_counted(how, buffer, views) if counts else None) is not None:
        return found
    if extreme and buffer.retracts:
        return None
    if how is not Derivation.FOLD_COUNT and new.type.root in FLOATS and not extreme:
        # A sum of floating-point numbers depends on their order, and a view has lost the order of the rows.
        return None
    for each in views:
        unfiltered = any(is_unfiltered(call) for call in each.calls)
        if each.meaning == f"distinct values of {buffer.argument}" and unfiltered:
            return DerivedColumn(how, (), each.name, f"from the {each.meaning}")
    return None


def _fold_counted(how: Derivation, buffer: Buffer, views: Sequence[PlannedState]) -> DerivedColumn | None:
    """Derive MAX or MIN from the state with all values of the argument, and the number of rows of each value."""
    extremes = [f"values of {function}({buffer.argument})" for function in ("MAX", "MIN")]
    for each in views:
        distinct = each.meaning == f"distinct values of {buffer.argument}" and len(each.calls) == 1
        if each.meaning in extremes or (distinct and is_unfiltered(each.calls[0])):
            return DerivedColumn(how, (), each.name, f"from the {each.meaning}")
    return None


def is_unfiltered(call: str) -> bool:
    """Return whether the text of an aggregate call has no FILTER."""
    return " FILTER (" not in call


def is_bookkeeping(column: PlannedColumn) -> bool:
    """Return whether a column is a count that retraction needs: the number of rows, or of the values in a sum."""
    buffer = column.buffer
    if buffer is None:
        return False
    return buffer == COUNT_ROWS or (buffer.function, buffer.role) == ("SUM", Role.COUNT)
