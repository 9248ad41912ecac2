"""Steps to other layouts of SQL state: matches of a join, the first rows of a rank, rows of a window added up.

Each of them needs values of another state of the operator, or all entries of a key. So states are copied, the copies
are reduced to one value per key, and these values are merged with the entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import IncompatibleError
from state_pipelines.operations.migration import steps as st
from state_pipelines.serializers.text import describe_type, parse
from state_pipelines.serializers.tree import StateKind
from state_pipelines.sql.accumulators import Role
from state_pipelines.sql.conversions import UNCHANGED, Derivation
from state_pipelines.sql.state_verdicts import find_other_side

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from state_pipelines.sql.accumulators import PlannedColumn
    from state_pipelines.sql.node_states import PlannedOperator, PlannedState
    from state_pipelines.sql.verdict import ColumnVerdict, FirstRows, StateVerdict

EMPTY_WAY = "start the new query without state, build its state with `bootstrap`, or keep the old operator"

_ROW, _MARKED = "{0}", "Tuple2<{0}, Int>"
_KEYED, _KEYED_MARKED = "Map<{0}, {1}>", "Map<{0}, Tuple2<{1}, Int>>"
_COUNTED, _COUNTED_MARKED = "Map<{0}, Int>", "Map<{0}, Tuple2<Int, Int>>"
_SORTED = "Map<{0}, List<{1}>>"

_MARKS: Mapping[str, str] = {_ROW: _MARKED, _KEYED: _KEYED_MARKED, _COUNTED: _COUNTED_MARKED}
"""By layout of a side of a join, the layout that also has a number of matches (`OuterJoinRecordStateViews`)."""


@dataclass(frozen=True)
class LayoutSteps:
    """Steps that change the layout of a state.

    Attributes:
        copies: (name of a state, steps) to be applied first, in order: they copy states, and change the copies.
        steps: steps of the state itself, which may use the copies.
    """

    copies: tuple[tuple[str, tuple[st.Step, ...]], ...] = ()
    steps: tuple[st.Step, ...] = ()


def change_layout(verdict: StateVerdict, operator: PlannedOperator) -> LayoutSteps:
    """Return the steps from the layout of an old state to that of the new one; its columns keep their types.

    Args:
        verdict: verdict on the state, which both plans have.
        operator: the operator of the old plan.

    Raises:
        IncompatibleError: no steps are known for this change of the layout.
    """
    old, new = verdict.old, verdict.new
    assert old is not None
    assert new is not None
    before, after = old.plain_template, new.plain_template
    if verdict.derivation is Derivation.LAST_ROWS:
        return _shorten_window(verdict, old, operator)
    if verdict.derivation is Derivation.COUNT_MATCHES and _MARKS.get(before) == after:
        return _count_matches(verdict, old, operator)
    if _MARKS.get(after) == before:
        of = {_ROW: "{0}", _KEYED: "{1}", _COUNTED: "Int"}[after].format(*(each.describe() for each in old.rows))
        return LayoutSteps(steps=(st.Convert(parse(of), "f0", ("f1",)),))
    if verdict.first is not None and after in (_ROW, before) and before in (_SORTED, _KEYED_MARKED):
        choose = _choose_first if after == _ROW else _leave_out_last
        return choose(old, verdict.first)
    if before == _ROW and after in (_SORTED, _KEYED_MARKED):
        return _list_one_row(verdict, old, new)
    raise IncompatibleError(
        f"the layout of state {new.name} changes ({before} becomes {after}), for which no steps are known",
        hint=EMPTY_WAY,
    )


def _copy_name(purpose: str, state: str) -> str:
    return f"{purpose}_{state.replace('-', '_')}"


# Steps for states of joins.


def _count_matches(verdict: StateVerdict, old: PlannedState, operator: PlannedOperator) -> LayoutSteps:
    """Add to each row of one side of a join the number of its matches: the rows of the other side under its key.

    Flink keeps this number for outer joins (`AbstractStreamingJoinOperator.AssociatedRecords`).
    """
    other = operator.find_state(find_other_side(old.name))
    assert other is not None
    copy = _copy_name("matches", old.name)
    reduced = {
        _KEYED: "size(entries)",
        _KEYED_MARKED: "size(entries)",
        _COUNTED: "CAST(aggregate(entries, 0L, (sum, each) -> sum + each.value) AS INT)",
        _COUNTED_MARKED: "CAST(aggregate(entries, 0L, (sum, each) -> sum + each.value.f0) AS INT)",
    }.get(other.plain_template)
    copies: list[tuple[str, tuple[st.Step, ...]]] = [(other.name, (st.CopyState(copy),))]
    if reduced is None:
        count = f"IF({copy} IS NULL, 0, 1)"
    else:
        copies.append((copy, (st.Kind(StateKind.VALUE, parse("Int"), reduced),)))
        count = f"coalesce({copy}, 0)"
    if verdict.unmatched:
        nothing = " OR ".join(f"state_key.f{index} IS NULL" for index in verdict.unmatched)
        count = f"IF({nothing}, 0, {count})"
    of = {_ROW: "{0}", _KEYED: "{1}", _COUNTED: "Int"}[old.plain_template]
    row = of.format(*(each.describe() for each in old.rows))
    expression = f"named_struct('f0', `{old.name}`, 'f1', {count})"
    merge = st.Merge((copy,), old.name, parse(f"Tuple2<{row}, Int>"), expression, own_keys=old.kind is StateKind.VALUE)
    return LayoutSteps(tuple(copies), (merge,))


# Steps for states of ranks (Top-N).


def _compare(first: FirstRows, one: Sequence[str], other: Sequence[str], tie: str = "0") -> str:
    """Make SQL that compares two rows by a sort order: it gives less than zero if the first row comes first.

    Args:
        first: has the sort order.
        one: SQL of the sort columns in the first row.
        other: SQL of the sort columns in the second row.
        tie: SQL of the result for rows that are equal in these columns.
    """
    whens = []
    for column, left, right in zip(first.order, one, other, strict=True):
        null, less = (1 if column.nulls_last else -1), (-1 if column.ascending else 1)
        whens += [
            f"WHEN {left} IS NULL AND {right} IS NOT NULL THEN {null}",
            f"WHEN {left} IS NOT NULL AND {right} IS NULL THEN {-null}",
            f"WHEN {left} < {right} THEN {less}",
            f"WHEN {left} > {right} THEN {-less}",
        ]
    return f"CASE {' '.join(whens)} ELSE {tie} END" if whens else tie


def _sort_columns(state: PlannedState, first: FirstRows, entry: str, key: str, value: str) -> list[str]:
    """Make SQL of the sort columns: of the user key if the map has sort keys, else of the row in its value."""
    if state.plain_template == _SORTED:
        return [f"{entry}{key}.f{index}" for index in range(len(first.order))]
    return [f"{entry}{value}.f0.f{column.index}" for column in first.order]


def _choose_first(old: PlannedState, first: FirstRows) -> LayoutSteps:
    """Reduce a map of rows to a value state with its first row, as `FastTop1Function` keeps it."""
    one, other = (_sort_columns(old, first, each, ".key", ".value") for each in ("one", "other"))
    is_sorted = old.plain_template == _SORTED
    tie = "0" if is_sorted else "one.value.f1 - other.value.f1"
    chosen = f"element_at(array_sort(entries, (one, other) -> {_compare(first, one, other, tie)}), 1).value"
    row = parse(old.rows[-1].describe())
    return LayoutSteps(steps=(st.Kind(StateKind.VALUE, row, f"{chosen}{'[0]' if is_sorted else '.f0'}"),))


def _leave_out_last(old: PlannedState, first: FirstRows) -> LayoutSteps:
    """Remove all rows of a map but the first `first.limit` ones (`AppendOnlyTopNFunction`, `UpdatableTopNFunction`)."""
    copy = _copy_name("sizes", old.name)
    types = ", ".join(describe_type(old.rows[-1].columns[each.index].type) for each in first.order)
    is_sorted = old.plain_template == _SORTED
    found = _sort_columns(old, first, "each", ".key", ".value")
    sort_key = ", ".join(["'row_kind', '+I'", *(f"'f{index}', {sql}" for index, sql in enumerate(found))])
    amount = "size(each.value)" if is_sorted else "each.value.f1"
    reduced = f"transform(entries, each -> named_struct('f0', named_struct({sort_key}), 'f1', {amount}))"
    kind = st.Kind(StateKind.VALUE, parse(f"List<Tuple2<RowData({types}), Int>>"), reduced)
    copies = ((old.name, (st.CopyState(copy),)), (copy, (kind,)))
    others = [f"each.f0.f{index}" for index in range(len(first.order))]
    own = _sort_columns(old, first, "", "map_key", f"`{old.name}`")
    row = old.rows[-1].describe()
    reason = f"the new query keeps the first {first.limit} rows"
    if is_sorted:
        before = (
            f"aggregate(filter({copy}, each -> {_compare(first, others, own)} < 0), 0, (sum, each) -> sum + each.f1)"
        )
        rows = f"slice(`{old.name}`, 1, greatest({first.limit} - {before}, 0))"
        merge = st.Merge((copy,), old.name, parse(f"List<{row}>"), rows)
        return LayoutSteps(copies, (merge, st.Filter("size(value) > 0", reason)))
    tie = f"each.f1 - `{old.name}`.f1"
    before = f"size(filter({copy}, each -> {_compare(first, others, own, tie)} < 0))"
    # The index of a row among those with an equal sort key begins with 1, so 0 marks the entries to leave out.
    marked = f"named_struct('f0', `{old.name}`.f0, 'f1', IF({before} < {first.limit}, `{old.name}`.f1, 0))"
    merge = st.Merge((copy,), old.name, parse(f"Tuple2<{row}, Int>"), marked)
    return LayoutSteps(copies, (merge, st.Filter("f1 > 0", reason)))


def _list_one_row(verdict: StateVerdict, old: PlannedState, new: PlannedState) -> LayoutSteps:
    """Turn the value state of a rank that keeps one row into a map with this row; the user key is computed from it."""
    columns = sorted((each for each in verdict.columns if each.row == 0), key=lambda each: each.new or 0)
    if any(each.new is None or each.old is None or each.derivation not in UNCHANGED for each in columns):
        raise IncompatibleError(
            f"the map key of state {new.name} cannot be copied from columns of the old rows", hint=EMPTY_WAY
        )
    made = ", ".join(["'row_kind', '+I'", *(f"'f{each.new}', value.f{each.old}" for each in columns)])
    row = old.rows[-1].describe()
    of, value = (
        (f"List<{row}>", "array(value)")
        if new.plain_template == _SORTED
        else (f"Tuple2<{row}, Int>", "named_struct('f0', value, 'f1', 1)")
    )
    key = parse(new.rows[0].describe())
    kind = st.Kind(
        StateKind.MAP, map_key=st.MapKey(key, f"named_struct({made})"), value=st.NewPayload(parse(of), value)
    )
    return LayoutSteps(steps=(kind,))


# Steps for the rows in the window of an OVER aggregate.

INPUT, LAST_TIME = "inputState", "lastTriggeringTsState"
_SIZES, _SIZES_TIME, _SMALLEST = "sizes_inputState", "sizes_time", "smallest_time"
_FOLDED, _FOLDED_TIME = "folded_inputState", "folded_time"


def _shorten_window(verdict: StateVerdict, old: PlannedState, operator: PlannedOperator) -> LayoutSteps:
    """Shorten the window of an OVER aggregate to its last rows, in one of the states that the operator keeps.

    By event time, rows later than the last timer are not in the window yet; they are kept.
    """
    last = verdict.last
    if old.name != INPUT:
        if old.name == "processedCountState":
            return LayoutSteps(steps=(st.Set("value", f"least(value, {last}L)"),))
        later = "aggregate(filter(entries, other -> other.key > each.key), 0, (sum, other) -> sum + size(other.value))"
        reduced = f"array_min(transform(filter(entries, each -> {later} < {last}), each -> each.key))"
        kind = st.Kind(StateKind.VALUE, parse("Long"), reduced)
        smallest = f"coalesce({_SMALLEST}, `{old.name}`)"
        merge = st.Merge((_SMALLEST,), old.name, parse("Long"), smallest, own_keys=True)
        return LayoutSteps(((INPUT, (st.CopyState(_SMALLEST),)), (_SMALLEST, (kind,))), (merge,))
    reduced = "transform(entries, each -> named_struct('f0', each.key, 'f1', size(each.value)))"
    sizes = st.Kind(StateKind.VALUE, parse("List<Tuple2<Long, Int>>"), reduced)
    copies: list[tuple[str, tuple[st.Step, ...]]] = [(INPUT, (st.CopyState(_SIZES),)), (_SIZES, (sizes,))]
    others, later, waits = [_SIZES], "each.f0 > map_key", "false"
    if operator.find_state(LAST_TIME) is not None:
        copies.append((LAST_TIME, (st.CopyState(_SIZES_TIME),)))
        others.append(_SIZES_TIME)
        later += f" AND each.f0 <= coalesce({_SIZES_TIME}, 0L)"
        waits = f"map_key > coalesce({_SIZES_TIME}, 0L)"
    after = f"aggregate(filter({_SIZES}, each -> {later}), 0, (sum, each) -> sum + each.f1)"
    rows = f"IF({waits}, `{INPUT}`, {_take_last(f'`{INPUT}`', f'greatest({last} - {after}, 0)')})"
    merge = st.Merge(tuple(others), INPUT, parse(f"List<{old.rows[-1].describe()}>"), rows)
    reason = f"the window of the new query has {last} rows"
    return LayoutSteps(tuple(copies), (merge, st.Filter("size(value) > 0", reason)))


def _take_last(rows: str, number: str) -> str:
    """Make SQL of the last `number` elements of an array."""
    return f"slice({rows}, greatest(size({rows}) - {number}, 0) + 1, size({rows}))"


@dataclass(frozen=True)
class FoldedRows:
    """Columns of an accumulator that are computed from the rows that a bounded OVER keeps.

    Attributes:
        copies: see `LayoutSteps`.
        others: names of the copied states that the SQL uses.
        columns: SQL of each column.
    """

    copies: tuple[tuple[str, tuple[st.Step, ...]], ...]
    others: tuple[str, ...]
    columns: tuple[str, ...]


def fold_rows(
    columns: Sequence[tuple[ColumnVerdict, PlannedColumn]], operator: PlannedOperator, last: int | None = None
) -> FoldedRows:
    """Make SQL that computes columns of the accumulator of an OVER from the rows of its window.

    By event time, rows later than the last timer are not in the window yet (`RowTimeRowsBoundedPrecedingFunction`,
    `RowTimeRangeBoundedPrecedingFunction`).

    Args:
        columns: verdicts and columns that are computed.
        operator: the operator of the old plan.
        last: number of rows that stay in the window; None for all.

    Raises:
        IncompatibleError: the state of the operator does not say which of its rows are in the window.
    """
    by_event_time = operator.find_state(LAST_TIME) is not None
    if not by_event_time and operator.find_state("cleanupTsState") is not None:
        # `ProcTimeRangeBoundedPrecedingFunction` adds a row to the accumulator when a timer fires. The state does not
        # say which of its rows have been added.
        raise IncompatibleError(
            "the state of an OVER by RANGE of processing time does not say which of its rows are in the aggregate",
            hint=EMPTY_WAY,
        )
    types, sums, found = [], [], []
    rows = _FOLDED
    if by_event_time:
        rows = f"filter({_FOLDED}, each -> each.f0 <= coalesce({_FOLDED_TIME}, 0L))"
    if last is not None:
        rows = _take_last(rows, str(last))
    for number, (verdict, column) in enumerate(columns):
        buffer = column.buffer
        assert buffer is not None
        if buffer.function == "COUNT" or buffer.role is Role.COUNT:
            of, start = "BIGINT", "0L"
            listed = (
                f"filter(each.value, row -> row.f{verdict.sources[0]} IS NOT NULL)" if verdict.sources else "each.value"
            )
            sums.append(f"CAST(size({listed}) AS BIGINT)")
        else:
            of = describe_type(column.type).removesuffix(" NOT NULL")
            start = "NULL" if buffer.function == "SUM" else "0"
            sums.append(
                f"aggregate(each.value, CAST(NULL AS {of}), (sum, row) -> {_add('row', verdict.sources[0], of)})"
            )
        types.append(of)
        found.append(f"aggregate({rows}, CAST({start} AS {of}), (sum, each) -> {_add('each.f1', number, of)})")
    made = ", ".join(f"'f{index}', {sql}" for index, sql in enumerate(sums))
    reduced = f"transform(entries, each -> named_struct('f0', each.key, 'f1', named_struct('row_kind', '+I', {made})))"
    if last is not None:
        # One entry for each row instead of one for each time, so that the last rows can be counted.
        single = "transform(each.value, row -> named_struct('key', each.key, 'value', array(row)))"
        reduced = reduced.replace("transform(entries,", f"transform(flatten(transform(entries, each -> {single})),", 1)
    kind = st.Kind(StateKind.VALUE, parse(f"List<Tuple2<Long, RowData({', '.join(types)})>>"), reduced)
    copies: list[tuple[str, tuple[st.Step, ...]]] = [(INPUT, (st.CopyState(_FOLDED),)), (_FOLDED, (kind,))]
    others = [_FOLDED]
    if by_event_time:
        copies.append((LAST_TIME, (st.CopyState(_FOLDED_TIME),)))
        others.append(_FOLDED_TIME)
    return FoldedRows(tuple(copies), tuple(others), tuple(found))


def _add(row: str, index: int, of: str) -> str:
    """Make SQL that adds a column of `row` to `sum`; a NULL value changes nothing, and a sum of no values is NULL."""
    return f"CAST(IF({row}.f{index} IS NULL, sum, coalesce(sum, 0) + {row}.f{index}) AS {of})"
