"""Buffers of aggregate functions: the columns of the accumulator row of an aggregate node.

The row holds the buffers of the calls in order, then the number of input rows where it is needed and no call is
COUNT(*), then one view for each set of distinct arguments. Source: `AggregateUtil.transformToAggregateInfoList`,
`AggFunctionFactory`, and the functions in `org.apache.flink.table.planner.functions.aggfunctions`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import StateError
from state_pipelines.serializers.table_runtime import MAX_LENGTH
from state_pipelines.serializers.tree import LogicalType
from state_pipelines.sql.compiled_plans import read_type
from state_pipelines.sql.lineage import find_column, find_function, render_aggregate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state_pipelines.sql.lineage import Lineage

BIGINT = LogicalType(root="BIGINT")
MAP_VIEW = LogicalType(root="RAW", class_name="org.apache.flink.table.api.dataview.MapView")
UNRESOLVED = LogicalType(root="?")
"""A type that a plan does not say, such as the accumulator of a function of the user."""

MOST_FILTERS = 64
"""Maximum number of calls with the same distinct arguments for which Flink keeps one long per value, with a bit per
call. If rows are retracted, a call needs a count instead of a bit, and the long holds only one."""

_AGGREGATES = "org.apache.flink.table.runtime.functions.aggregate."
_STRING = LogicalType(root="VARCHAR", length=MAX_LENGTH)
_PLAIN_COLUMN = re.compile(r"(?:[^\s().,`]+\.)*([^\s().,`]+)")
_CAST = re.compile(r"CAST\((.+) AS [^()]+(?:\([\d, ]+\))?[^()]*\)")
_OTHER_CHARACTERS = re.compile(r"\W+")
_COUNTS = ("BIGINT", "INTEGER", "SMALLINT", "TINYINT")


class Role(StrEnum):
    """Purpose of a buffer of an aggregate call."""

    VALUE = "value"
    SUM = "sum"
    COUNT = "count"
    DELIMITER = "delimiter"


@dataclass(frozen=True)
class Buffer:
    """A buffer of an aggregate call: a value that its function keeps in the accumulator.

    Attributes:
        function: function of the call, such as SUM.
        role: VALUE if it holds the result of the call; SUM, COUNT or DELIMITER for what the function keeps besides.
        argument: the arguments as text; empty for COUNT(*).
        distinct: whether the call is DISTINCT.
        filter: the column of FILTER as text; empty without one.
        retracts: whether rows of the input can be retracted from the call.
        not_null: whether no argument can be NULL.
    """

    function: str
    role: Role
    argument: str
    distinct: bool = False
    filter: str = ""
    retracts: bool = False
    not_null: bool = False


COUNT_ROWS = Buffer("COUNT", Role.VALUE, "", not_null=True)
"""The number of input rows: COUNT(*)."""


@dataclass(frozen=True)
class PlannedColumn:
    """A column of a row that a state holds.

    Attributes:
        name: as tables of the state show it.
        type: SQL type; `UNRESOLVED` where the plan does not say it.
        meaning: its content, as an expression over columns of tables.
        buffer: the buffer of an aggregate call that it holds; None for other columns and for unknown functions.
        call: position of the aggregate call among the calls of its node; None for other columns.
    """

    name: str
    type: LogicalType
    meaning: str
    buffer: Buffer | None = None
    call: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class DistinctView:
    """The distinct values of a set of arguments, which Flink keeps in a separate state.

    Attributes:
        column: its column in the accumulator, which holds nothing in a savepoint.
        arguments: types of the arguments.
        calls: texts of the calls that it serves, in order. The position of a call is its bit in the values of the view,
            or its index among the counts if rows are retracted.
    """

    column: PlannedColumn
    arguments: tuple[LogicalType, ...]
    calls: tuple[str, ...]


@dataclass(frozen=True)
class Accumulator:
    """The accumulator row of an aggregate node.

    Attributes:
        columns: columns of the buffers, without the columns of the views.
        views: views of distinct arguments.
        extremes: call position, value type and text of each MAX and MIN that has to retract: Flink keeps all of its
            values in a separate state.
    """

    columns: tuple[PlannedColumn, ...]
    views: tuple[DistinctView, ...]
    extremes: tuple[tuple[int, LogicalType, str], ...] = ()

    @property
    def row(self) -> tuple[PlannedColumn, ...]:
        """All columns of the accumulator row: buffers, then views."""
        return (*self.columns, *(each.column for each in self.views))


def derive_accumulator(
    calls: Sequence[Mapping[str, Any]],
    base: Lineage,
    types: Sequence[LogicalType],
    retractions: Sequence[bool],
    *,
    count_rows: bool,
) -> Accumulator:
    """Derive the accumulator row of aggregate calls.

    Args:
        calls: the aggregate calls, as the plan has them.
        base: rows to whose columns the arguments of the calls refer.
        types: types of these columns.
        retractions: whether each call has to retract rows.
        count_rows: whether the number of rows is kept.
    """
    columns: list[PlannedColumn] = []
    for index, (call, retracts) in enumerate(zip(calls, retractions, strict=True)):
        columns += (replace(each, call=index) for each in _derive_buffers(call, base, types, retracts=retracts))
    if count_rows and not any(map(_is_count_star, calls)):
        columns.append(PlannedColumn("count", BIGINT, "COUNT(*)", COUNT_ROWS))
    groups: dict[tuple[int, ...], list[Mapping[str, Any]]] = {}
    for call in calls:
        arguments = _arguments(call)
        if call.get("distinct") and not call.get("approximate") and arguments:
            groups.setdefault(arguments, []).append(call)
    views = []
    for arguments, found in groups.items():
        texts = [find_column(base.columns, each) for each in arguments]
        name = "_".join(["distinct", *map(name_column, texts)])
        column = PlannedColumn(name, MAP_VIEW, f"distinct values of {', '.join(texts)}")
        served = tuple(render_aggregate(each, base.columns) for each in found)
        views.append(DistinctView(column, tuple(_find_type(types, each) for each in arguments), served))
    extremes = (
        (index, _result_type(call), render_aggregate(call, base.columns))
        for index, (call, retracts) in enumerate(zip(calls, retractions, strict=True))
        if retracts and find_function(call) in ("MAX", "MIN")
    )
    return Accumulator(tuple(columns), tuple(views), tuple(extremes))


def name_column(text: str) -> str:
    """Return a short name for an expression: the name of a column, also of one inside casts; otherwise its words."""
    while cast := _CAST.fullmatch(text):
        text = cast[1]
    plain = _PLAIN_COLUMN.fullmatch(text)
    if plain:
        return plain[1]
    words = _OTHER_CHARACTERS.sub("_", text).strip("_")
    return words if 0 < len(words) <= _LONGEST_NAME else "expression"


_LONGEST_NAME = 40


def make_unique(columns: Sequence[PlannedColumn]) -> tuple[PlannedColumn, ...]:
    """Return the columns with different names: a number follows a name that an earlier column has."""
    found: list[PlannedColumn] = []
    taken = {"row_kind"}
    for each in columns:
        name, number = each.name, 1
        while name in taken:
            number += 1
            name = f"{each.name}_{number}"
        taken.add(name)
        found.append(replace(each, name=name))
    return tuple(found)


def _derive_buffers(
    call: Mapping[str, Any], base: Lineage, types: Sequence[LogicalType], *, retracts: bool
) -> Iterator[PlannedColumn]:
    text = render_aggregate(call, base.columns)
    name = _name_call(call, base)
    function = find_function(call)
    result = _result_type(call)
    arguments = [_find_type(types, each) for each in _arguments(call)]
    argument = arguments[0] if arguments else UNRESOLVED

    def make(name: str, of: LogicalType, meaning: str, role: Role = Role.VALUE) -> PlannedColumn:
        texts = [find_column(base.columns, each) for each in _arguments(call)]
        buffer = Buffer(
            function=function,
            role=role,
            argument=", ".join(texts),
            distinct=bool(call.get("distinct")),
            filter=_render_filter(call, base),
            retracts=retracts,
            not_null=all(not each.nullable for each in arguments),
        )
        plain = not call.get("approximate") and not call.get("ignoreNulls")
        return PlannedColumn(name, of, meaning, buffer if plain else None)

    match function:
        case "COUNT":
            yield make(name, BIGINT, text)
        case "SUM":
            yield make(name, result, text)
            if retracts:
                yield make(f"{name}_count", BIGINT, f"number of values in {text}", Role.COUNT)
        case "$SUM0":
            yield make(name, result, text)
        case "MAX" | "MIN" if not retracts:
            yield make(name, result, text)
        case "MAX" | "MIN":
            word = function.title()
            yield make(
                name,
                LogicalType(
                    root="STRUCTURED_TYPE",
                    class_name=f"{_AGGREGATES}{word}WithRetractAggFunction${word}WithRetractAccumulator",
                    names=(function.lower(), "mapSize", "map"),
                    children=(result, BIGINT, MAP_VIEW),
                ),
                text,
            )
        case "LISTAGG" if not retracts:
            yield make(f"{name}_delimiter", _STRING, f"delimiter of {text}", Role.DELIMITER)
            yield make(name, _STRING, text)
        case "AVG":
            yield make(f"{name}_sum", _sum_type(argument), f"sum of {text}", Role.SUM)
            yield make(f"{name}_count", BIGINT, f"number of values in {text}", Role.COUNT)
        case "FIRST_VALUE" | "LAST_VALUE" if not retracts and argument != UNRESOLVED:
            word = function.partition("_")[0].lower()
            fields = (f"{word}Value", f"{word}Order")
            row = LogicalType(root="ROW", names=fields, children=(_nullable(argument), BIGINT))
            yield make(name, row, text)
        case _:
            yield PlannedColumn(name, UNRESOLVED, text)


def _render_filter(call: Mapping[str, Any], base: Lineage) -> str:
    filtered = call.get("filterArg", -1)
    return find_column(base.columns, filtered) if isinstance(filtered, int) and filtered >= 0 else ""


def _name_call(call: Mapping[str, Any], base: Lineage) -> str:
    function = find_function(call).rpartition(".")[2].strip("`$").lower() or "aggregate"
    words = [_OTHER_CHARACTERS.sub("_", function)]
    if call.get("distinct"):
        words.append("distinct")
    words += [name_column(find_column(base.columns, each)) for each in _arguments(call)]
    if isinstance(filtered := call.get("filterArg"), int) and filtered >= 0:
        words.append("filtered")
    return "_".join(words)


def _sum_type(argument: LogicalType) -> LogicalType:
    """Type of the sum that AVG keeps (`AvgAggFunction`)."""
    if argument.root in _COUNTS:
        return BIGINT
    if argument.root in ("FLOAT", "DOUBLE"):
        return LogicalType(root="DOUBLE")
    if argument.root == "DECIMAL":
        return LogicalType(root="DECIMAL", length=38, scale=argument.scale)
    return UNRESOLVED


def _is_count_star(call: Mapping[str, Any]) -> bool:
    return (
        find_function(call) == "COUNT"
        and not _arguments(call)
        and call.get("filterArg", -1) == -1
        and not call.get("distinct")
        and not call.get("approximate")
    )


def _arguments(call: Mapping[str, Any]) -> tuple[int, ...]:
    found = call.get("argList")
    return tuple(each for each in found if isinstance(each, int)) if isinstance(found, list) else ()


def _result_type(call: Mapping[str, Any]) -> LogicalType:
    try:
        return _nullable(read_type(call.get("type")))
    except StateError:
        return UNRESOLVED


def _nullable(of: LogicalType) -> LogicalType:
    return replace(of, nullable=True)


def _find_type(types: Sequence[LogicalType], index: int) -> LogicalType:
    return types[index] if 0 <= index < len(types) else UNRESOLVED
