"""Rules of the table runtime: SQL types must be unchanged, nothing evolves.

Source: `RowDataSerializerSnapshot`, `BinaryRowDataSerializerSnapshot`, `ArrayDataSerializerSnapshot`,
`MapDataSerializerSnapshot`, `DecimalSerializerSnapshot`, `TimestampDataSerializerSnapshot`,
`SortedMapSerializerSnapshot`, `RowDataKeySerializerSnapshot`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from state_pipelines.serializers.compatibility.outcome import (
    SAME,
    Compatibility,
    Finding,
    Outcome,
    combine,
    differ,
    single,
)
from state_pipelines.serializers.compatibility.rules import (
    compare_nested,
    list_paths,
    list_steps,
    resolve_nested,
    rule,
)
from state_pipelines.serializers.table_runtime import ROW_VERSION_WITH_NAMES
from state_pipelines.serializers.text import describe, describe_type
from state_pipelines.serializers.tree import (
    ArrayData,
    BinaryRow,
    Decimal,
    MapData,
    PythonArray,
    PythonDecimal,
    PythonMap,
    PythonRow,
    RowData,
    RowDataKey,
    SortedMapOf,
    TimestampData,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from state_pipelines.serializers.tree import LogicalType, Serializer

COMPARE_PLANS = (
    "Compare the plans of both queries (COMPILE PLAN, EXPLAIN): the operator must have the same columns and aggregates "
    "in the same order"
)
# Views of aggregates are numbered in the order of the query (`AggsHandlerCodeGenerator`, `DistinctAggCodeGen`).
_VIEW = re.compile(r"distinctAcc_\d+|agg\d+\$\w+")
_REMEDY = "Keep the query and its types, or migrate the state"


@rule.register(RowData)
@rule.register(PythonRow)
def _row_data(old: RowData | PythonRow, new: RowData | PythonRow) -> Compatibility:
    if old.types == new.types:
        return compare_nested(old, new)
    pairs = enumerate(zip_longest(old.types, new.types))
    return combine(single(_type_differs(f".f{index}", *pair)) for index, pair in pairs if pair[0] != pair[1])


def find_renamed_fields(old: Serializer, new: Serializer, path: str) -> Iterator[Finding]:
    """Yield the fields of SQL rows that have another name at the same position, which Flink does not notice.

    Args:
        old: as the snapshot holds it.
        new: as the new job has it.
        path: path of both in the serializer of the state.
    """
    if isinstance(old, RowData) and isinstance(new, RowData) and old.names is not None and new.names is not None:
        for index, (before, after) in enumerate(zip(old.names, new.names, strict=False)):
            if before != after:
                yield Finding(
                    path=f"{path}.f{index}",
                    old=before,
                    new=after,
                    outcome=Outcome.INCOMPATIBLE,
                    reason="the fields have different names, and Flink takes the fields of SQL rows by position",
                    remedy="Keep the order of the columns, or `rename` or `reorder` them in a migration",
                    unnoticed=True,
                )
    if len(old.nested) == len(new.nested):
        for step, nested_old, nested_new in zip(list_steps(old), old.nested, new.nested, strict=True):
            yield from find_renamed_fields(nested_old, nested_new, path + step)


def find_exchangeable_columns(node: Serializer, path: str, *, compares_names: bool) -> Iterator[Finding]:
    """Yield the SQL rows in which several columns have one type, so that only their positions tell them apart.

    Args:
        node: as the snapshot holds it.
        path: its path.
        compares_names: `find_renamed_fields` compares the columns of rows with names.
    """
    for where, each in list_paths(node, path):
        if not isinstance(each, RowData) or (compares_names and each.names is not None):
            continue
        columns: dict[LogicalType, list[str]] = {}
        for name, of in zip(each.columns, each.types, strict=True):
            columns.setdefault(of, []).append(name)
        groups = [f"{', '.join(names)} ({describe_type(of)})" for of, names in columns.items() if len(names) > 1]
        if groups:
            yield _exchangeable(where, f"columns of one type apart: {'; '.join(groups)}")


def find_exchangeable_views(states: Mapping[str, Serializer]) -> Iterator[Finding]:
    """Yield the views of the aggregates of an operator that have one type, so that only numbers tell them apart.

    Args:
        states: serializers of the values by state name.
    """
    views: dict[Serializer, list[str]] = {}
    for name, each in states.items():
        if _VIEW.fullmatch(name):
            views.setdefault(each, []).append(name)
    for names in views.values():
        if len(names) > 1:
            yield _exchangeable(names[0], f"views of aggregates of one type apart: {', '.join(names)}")


def _exchangeable(path: str, what: str) -> Finding:
    return Finding(
        path=path,
        old=None,
        new=None,
        outcome=Outcome.AS_IS,
        reason=f"only their positions tell {what}. A query that exchanges two of them restores without an error and "
        "gives wrong values",
        remedy=COMPARE_PLANS,
        unnoticed=True,
    )


def find_named_rows(node: Serializer, path: str) -> Iterator[Finding]:
    """Yield the SQL rows whose snapshot has version 4, whose last bytes Flink up to 2.3 reads as the next snapshot."""
    if isinstance(node, RowData) and node.snapshot_version >= ROW_VERSION_WITH_NAMES:
        yield Finding(
            path=path,
            old=describe(node),
            new=None,
            outcome=Outcome.INCOMPATIBLE,
            reason=f"version {node.snapshot_version} of the snapshot of a SQL row came after Flink 2.3, which does not "
            "check the version and reads the bytes after the snapshot from the wrong offset",
            remedy="Restore with a newer Flink",
            error="The error depends on the bytes that follow",
        )
        return
    for step, each in zip(list_steps(node), node.nested, strict=False):
        yield from find_named_rows(each, path + step)


@rule.register(ArrayData)
@rule.register(PythonArray)
def _array_data(old: ArrayData | PythonArray, new: ArrayData | PythonArray) -> Compatibility:
    if old.element_type == new.element_type:
        return SAME
    return single(_type_differs("[]", old.element_type, new.element_type))


@rule.register(MapData)
@rule.register(PythonMap)
def _map_data(old: MapData | PythonMap, new: MapData | PythonMap) -> Compatibility:
    pairs = {"{key}": (old.key_type, new.key_type), "{value}": (old.value_type, new.value_type)}
    return combine(single(_type_differs(step, *pair)) for step, pair in pairs.items() if pair[0] != pair[1])


@rule.register(BinaryRow)
def _binary_row(old: BinaryRow, new: BinaryRow) -> Compatibility:
    return _compare_parameters(old, new, (old.num_fields,), (new.num_fields,))


@rule.register(Decimal)
@rule.register(PythonDecimal)
def _decimal(old: Decimal | PythonDecimal, new: Decimal | PythonDecimal) -> Compatibility:
    return _compare_parameters(old, new, (old.precision, old.scale), (new.precision, new.scale))


@rule.register(TimestampData)
def _timestamp(old: TimestampData, new: TimestampData) -> Compatibility:
    return _compare_parameters(old, new, (old.precision,), (new.precision,))


@rule.register(RowDataKey)
def _row_data_key(old: RowDataKey, new: RowDataKey) -> Compatibility:
    return resolve_nested(old.inner, new.inner)


@rule.register(SortedMapOf)
def _sorted_map(old: SortedMapOf, new: SortedMapOf) -> Compatibility:
    if old.comparator != new.comparator:
        return differ(
            old,
            new,
            outcome=Outcome.UNDETERMINED,
            reason="the comparators were serialized to different bytes, and only Java can compare them",
            remedy="Make sure that the comparator has not changed",
        )
    nested = combine(
        resolve_nested(before, after).within(step)
        for step, before, after in zip(("{key}", "{value}"), old.nested, new.nested, strict=True)
    )
    # Flink compares only the comparators; it does detect those that it cannot read.
    unnoticed = tuple(
        replace(each, unnoticed=each.outcome is not Outcome.AS_IS and not each.error) for each in nested.findings
    )
    return Compatibility(nested.outcome, unnoticed)


def _compare_parameters(
    old: Serializer, new: Serializer, before: tuple[int, ...], after: tuple[int, ...]
) -> Compatibility:
    if before == after:
        return SAME
    return differ(
        old,
        new,
        outcome=Outcome.INCOMPATIBLE,
        reason="SQL types do not evolve: the parameters must stay the same",
        remedy=_REMEDY,
    )


def _type_differs(path: str, before: LogicalType | None, after: LogicalType | None) -> Finding:
    reason = "SQL types do not evolve, nullability included"
    if before is None or after is None:
        reason = "rows of SQL state gain and lose no fields"
    return Finding(
        path=path,
        old=None if before is None else describe_type(before),
        new=None if after is None else describe_type(after),
        outcome=Outcome.INCOMPATIBLE,
        reason=reason,
        remedy=_REMEDY,
    )
