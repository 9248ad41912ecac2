"""Recomputation of the columns of a changed SQL query from the old rows, for the proof of its migration.

It follows the verdicts of `sql.comparison`, row by row in Python, and none of the steps that a migration takes: columns
that a step takes from elsewhere, or computes in another way, are found here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from functools import cmp_to_key
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import MigrationError, Where
from state_pipelines.metadata import KeyGroupRange, compute_operator_id
from state_pipelines.operations.proofs import (
    AFTER,
    DESCRIPTIONS,
    EXAMPLES,
    EXPECTED,
    RECOMPUTED,
    TEMPLATE,
    DifferingRecord,
    ProofCheck,
    RecordCounts,
    to_plain,
)
from state_pipelines.serializers.tree import External, Serializer, StateKind
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.sql.accumulators import Role
from state_pipelines.sql.conversions import UNCHANGED, Derivation
from state_pipelines.sql.derivations import is_unfiltered
from state_pipelines.sql.state_verdicts import find_other_side
from state_pipelines.sql.verdict import is_unchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from state_pipelines.serializers.tree import LogicalType
    from state_pipelines.snapshot import Operator, Snapshot
    from state_pipelines.sql.node_states import PlannedOperator
    from state_pipelines.sql.verdict import (
        Binding,
        ColumnVerdict,
        FirstRows,
        OperatorVerdict,
        PlanComparison,
        StateVerdict,
    )

MOST_ROWS = 50_000
"""Rows of a state after which no further key groups are compared."""

_Row = tuple[Any, ...]
_Values = dict[_Row, _Row]
_COUNTED = "Map<{0}, Int>"
_STARTS = (Derivation.INITIAL, Derivation.NULL)


def recompute_columns(
    comparison: PlanComparison, binding: Binding, old: Snapshot, new: Snapshot, *, most: int = MOST_ROWS
) -> tuple[ProofCheck, ...]:
    """Recompute columns from the old rows as the verdicts say, and compare them with those of the migrated savepoint.

    Compared are states that hold rows (one row per key and namespace, lists of rows, maps with rows as keys or values)
    and the numbers that they store with the rows. Not compared are columns that start empty, since a backfill may fill
    them, and operators whose key gets another type, since their rows are then in other key groups.

    Args:
        comparison: verdicts of the migration.
        binding: operators of the old snapshot.
        old: the snapshot that was migrated.
        new: the result.
        most: rows of a state after which no further key groups are compared.

    Returns:
        the check, in a tuple; an empty tuple if no state could be compared.
    """
    found = _Findings(most)
    stored = {each.metadata.operator_id: each for each in new.operators}
    for verdict in comparison.operators:
        if verdict.old is None or verdict.new is None or verdict.old.uid not in binding.labels:
            continue
        after = stored.get(compute_operator_id(verdict.new.uid))
        if after is not None:
            found.compare(verdict, old.operator(binding.labels[verdict.old.uid]), after)
    return found.judge()


class _Findings:
    """Numbers of compared rows, and examples of rows that differ."""

    def __init__(self, most: int) -> None:
        self.most, self.counts = most, RecordCounts()
        self.states: list[str] = []
        self.examples: list[DifferingRecord] = []

    def compare(self, verdict: OperatorVerdict, before: Operator, after: Operator) -> None:
        """Compare recomputed and migrated rows of the states of an operator that the migration changes."""
        olds, news = _list_states(before), _list_states(after)
        for state in verdict.states:
            if state.old is None or state.new is None or is_unchanged(state) or not _is_comparable(state):
                continue
            one, other = olds.get(state.old.name), news.get(state.new.name)
            if one is None or other is None or one.key_serializer != other.key_serializer:
                continue
            name, rows = f"{after.label} / {state.new.name}", 0
            self.states.append(name)
            for groups in _split_groups(before.metadata.max_parallelism):
                if rows >= self.most:
                    self.counts += RecordCounts(complete=False)
                    break
                expected = _expect_rows(state, one, verdict.old, olds, groups)
                rows += len(expected)
                self._compare_rows(name, expected, _read_rows(state, other, groups))

    def _compare_rows(self, name: str, expected: _Values, found: _Values) -> None:
        self.counts += RecordCounts(
            len(found),
            differing=sum(key in found and found[key] != row for key, row in expected.items()),
            missing=len(expected.keys() - found.keys()),
            unexpected=len(found.keys() - expected.keys()),
        )
        for key in expected.keys() | found.keys():
            if len(self.examples) >= EXAMPLES:
                break
            if expected.get(key) != found.get(key):
                sides = {
                    side: to_plain(rows[key]) for side, rows in ((EXPECTED, expected), (AFTER, found)) if key in rows
                }
                absent = tuple({EXPECTED, AFTER} - sides.keys())
                self.examples.append(DifferingRecord(name, {"state_key": to_plain(key)}, sides, absent))

    def judge(self) -> tuple[ProofCheck, ...]:
        """Return one check of all compared states, in a tuple; an empty tuple if none was compared."""
        if not self.states:
            return ()
        observed = str(self.counts) + ("" if self.counts.complete else ", of the first key groups")
        check = ProofCheck(
            RECOMPUTED,
            not self.counts.failed,
            DESCRIPTIONS[RECOMPUTED],
            f"the rows of {', '.join(self.states)} that the verdicts give",
            observed,
            self.counts,
            tuple(self.examples),
        )
        return (check,)


@dataclass(frozen=True)
class _Layout:
    """Layout of the records of a state of a SQL job: the rows and numbers that a record consists of.

    Attributes:
        key: whether the user key of a map is a row (the first row of the state), whose columns are recomputed; other
            user keys are compared unchanged.
        content: what the value of a record is: a row, a row and a number (`_MARKED`), a list of rows, or numbers.
    """

    content: str
    key: bool = False


_ROW, _MARKED, _LIST, _NUMBERS = "row", "row and number", "list", "numbers"
_LAYOUTS: Mapping[str, _Layout] = {
    "{0}": _Layout(_ROW),
    "Tuple2<{0}, Int>": _Layout(_MARKED),
    "List<{0}>": _Layout(_LIST),
    "Map<Long, {0}>": _Layout(_ROW),
    "Map<Long, List<{0}>>": _Layout(_LIST),
    "Map<{0}, {1}>": _Layout(_ROW, key=True),
    "Map<{0}, Tuple2<{1}, Int>>": _Layout(_MARKED, key=True),
    "Map<{0}, List<{1}>>": _Layout(_LIST, key=True),
    "Map<{0}, Int>": _Layout(_NUMBERS, key=True),
    "Map<{0}, Tuple2<Int, Int>>": _Layout(_NUMBERS, key=True),
    "Long": _Layout(_NUMBERS),
}
"""Layouts that are compared, by the type of the value as text (`PlannedState.plain_template`)."""


def _is_comparable(state: StateVerdict) -> bool:
    if state.old is None or state.new is None or StateKind.LIST in (state.old.kind, state.new.kind):
        return False
    layout = _LAYOUTS.get(state.new.plain_template)
    if layout is None or state.old.plain_template not in _LAYOUTS:
        return False
    # Entries of a map are matched by their keys, so every column of the key has to be known.
    if layout.key and len(_list_known(state, 0)) != len(state.new.rows[0].columns):
        return False
    return layout.content == _NUMBERS or bool(_list_known(state, len(state.new.rows) - 1))


def _list_known(state: StateVerdict, row: int) -> list[ColumnVerdict]:
    """Return the columns of a new row whose values can be computed from old rows, in order.

    `row` is the index of the row in the state: rows that are keys of maps come first.
    """
    found = [
        each
        for each in state.columns
        if each.row == row and each.new is not None and each.derivation is not None and each.derivation not in _STARTS
    ]
    return sorted(found, key=lambda each: each.new or 0)


def _list_states(operator: Operator) -> Mapping[str, KeyedState]:
    return {
        each.name: each for each in operator.states if isinstance(each, KeyedState) and each.kind is not StateKind.TIMER
    }


def _split_groups(number: int) -> Iterator[KeyGroupRange]:
    """Split all key groups into consecutive ranges, each twice as long as the one before."""
    start, length = 0, 1
    while start < number:
        yield KeyGroupRange(start, min(length, number - start))
        start, length = start + length, 2 * length


def _scan(state: KeyedState, groups: KeyGroupRange) -> Iterator[dict[str, Any]]:
    for batch in state.batches(None, groups):
        yield from batch.to_pylist()


def _fields(row: Mapping[str, Any] | None) -> _Row:
    return () if row is None else tuple(_flatten(value) for name, value in row.items() if name != "row_kind")


def _flatten(value: Any) -> Any:
    """Reduce the accumulator of a MAX or MIN that retracts to its value and number of values; keep other values."""
    return tuple(value.values())[:2] if isinstance(value, dict) and "mapSize" in value else value


def _find_key(row: Mapping[str, Any]) -> _Row:
    return (_fields(row["state_key"]), str(row["state_namespace"]))


@dataclass(frozen=True)
class _Record:
    """Rows and numbers of one entry of a map state, or of one key of another state.

    Attributes:
        key: key and namespace.
        user_key: user key of a map: a tuple of its fields if it is a row, otherwise the value; None for other states.
        rows: for each row, the values of its fields.
        numbers: numbers that are stored with the rows: a number of matches, an index, or a number of equal rows.
    """

    key: _Row
    user_key: Any
    rows: tuple[_Row, ...]
    numbers: _Row = ()


def _read_records(layout: _Layout, stored: KeyedState, groups: KeyGroupRange) -> Iterator[_Record]:
    for row in _scan(stored, groups):
        user_key = row.get("map_key")
        value = row["map_value"] if "map_value" in row else row["value"]
        made = _Record(_find_key(row), _fields(user_key) if layout.key else user_key, ())
        match layout.content:
            case "row":
                yield replace(made, rows=(_fields(value),))
            case "row and number":
                yield replace(made, rows=(_fields(value["f0"]),), numbers=(value["f1"],))
            case "list":
                yield replace(made, rows=tuple(map(_fields, value)))
            case _:
                yield replace(made, numbers=(value,) if isinstance(value, int) else tuple(value.values()))


def _read_rows(state: StateVerdict, stored: KeyedState, groups: KeyGroupRange) -> _Values:
    """Read the rows of the new state, by key; only the columns that can be computed from old rows."""
    assert state.new is not None
    known = [each.new for each in _list_known(state, len(state.new.rows) - 1) if each.new is not None]
    return {
        (*each.key, each.user_key): (tuple(tuple(row[index] for index in known) for row in each.rows), each.numbers)
        for each in _read_records(_LAYOUTS[state.new.plain_template], stored, groups)
    }


def _expect_rows(
    state: StateVerdict,
    stored: KeyedState,
    planned: PlannedOperator | None,
    olds: Mapping[str, KeyedState],
    groups: KeyGroupRange,
) -> _Values:
    """Compute the expected rows of the new state from the old rows, as the verdicts say; by key."""
    assert state.old is not None
    assert state.new is not None
    before, after = _LAYOUTS[state.old.plain_template], _LAYOUTS[state.new.plain_template]
    columns, keys = _list_known(state, len(state.new.rows) - 1), _list_known(state, 0)
    views: dict[str | None, Mapping[_Row, list[Any]]] = {
        each.view: _read_view(olds[each.view], groups, _list_calls(planned, each.view))
        for each in columns
        if each.view is not None and each.view in olds and each.derivation is not Derivation.FOLD_ROWS
    }
    windows: Mapping[_Row, list[_Row]] = {}
    if any(each.derivation is Derivation.FOLD_ROWS for each in columns):
        windows = {key: [row for _, row in rows] for key, rows in _read_windows(olds, groups, state.last).items()}
    records: Iterable[_Record] = _read_records(before, stored, groups)
    if state.derivation is Derivation.LAST_ROWS:
        records = _shorten_records(state, _read_windows(olds, groups, None), records)
    if state.first is not None:
        records = _choose_records(state.first, before, records)
    matches = _count_matches(state, planned, olds, groups)
    expected: _Values = {}
    for record in records:
        values = tuple(
            tuple(
                _fold_window(each, state, windows.get(record.key, []))
                if each.derivation is Derivation.FOLD_ROWS
                else _derive(each, row, _find_values(views, each.view, record.key))
                for each in columns
            )
            for row in record.rows
        )
        user_key, numbers = record.user_key, record.numbers
        if after.key:
            # The new user key is computed from the old user key if that is a row, else from the old row in the value.
            fields = record.user_key if before.key else record.rows[0]
            user_key = tuple(_derive(each, fields, ()) for each in keys)
        elif before.key:
            user_key = None
        if after.content == _MARKED:
            # An old layout without numbers has only one row, which gets the number 1: ranks count rows from 1.
            numbers = numbers or (1,)
        elif after.content in (_ROW, _LIST):
            numbers = ()
        if matches is not None:
            numbers = (*(numbers if after.content == _NUMBERS else ()), matches(record.key))
        elif after.content == _NUMBERS:
            numbers = numbers[: 1 if state.new.plain_template == _COUNTED else 2]
        entry = (*record.key, user_key)
        if entry in expected and after.content == _NUMBERS:
            # Old rows that give equal new rows share an entry: add their counts; their numbers of matches are equal.
            numbers = (expected[entry][1][0] + numbers[0], *numbers[1:])
        expected[entry] = (values if after.content != _NUMBERS else (), numbers)
    return expected


def _count_matches(
    state: StateVerdict, planned: PlannedOperator | None, olds: Mapping[str, KeyedState], groups: KeyGroupRange
) -> Callable[[_Row], int] | None:
    """Return a function that gives the number of matches of a key: its rows on the other side of the join.

    Return None if the new state has no such number.
    """
    if state.derivation is not Derivation.COUNT_MATCHES or state.old is None or planned is None:
        return None
    name = find_other_side(state.old.name)
    other = planned.find_state(name)
    assert other is not None
    counts: Counter[_Row] = Counter()
    for record in _read_records(_LAYOUTS[other.plain_template], olds[name], groups) if name in olds else ():
        counts[record.key] += record.numbers[0] if not record.rows else 1
    return lambda key: 0 if any(key[0][index] is None for index in state.unmatched) else counts[key]


def _choose_records(first: FirstRows, layout: _Layout, records: Iterable[_Record]) -> Iterator[_Record]:
    """Keep only the first rows of each key, in the order of `first`; yield the records reduced to these rows."""
    by_key: dict[_Row, list[tuple[_Record, _Row]]] = {}
    for record in records:
        by_key.setdefault(record.key, []).extend((record, row) for row in record.rows)

    def compare(one: tuple[_Record, _Row], other: tuple[_Record, _Row]) -> int:
        for column in first.order:
            left, right = one[1][column.index], other[1][column.index]
            if left == right:
                continue
            if left is None or right is None:
                return (1 if left is None else -1) * (1 if column.nulls_last else -1)
            return (-1 if left < right else 1) * (1 if column.ascending else -1)
        left, right = one[0].numbers, other[0].numbers
        return 0 if left == right else (-1 if left < right else 1)

    for found in by_key.values():
        # `sorted` is stable: rows with equal sort keys stay in the order in which Flink stored them in their list.
        kept: dict[int, tuple[_Record, list[_Row]]] = {}
        for record, row in sorted(found, key=cmp_to_key(compare))[: first.limit]:
            kept.setdefault(id(record), (record, []))[1].append(row)
        yield from (replace(record, rows=tuple(rows)) for record, rows in kept.values())


_INPUT, _LAST_TIME = "inputState", "lastTriggeringTsState"


def _read_windows(
    olds: Mapping[str, KeyedState], groups: KeyGroupRange, last: int | None
) -> Mapping[_Row, list[tuple[int, _Row]]]:
    """Return the rows of the windows of an OVER aggregate, by key: (time, row), ascending by time.

    Return only the newest `last` rows of each key; all rows if `last` is None.
    """
    times: dict[_Row, int] | None = None
    if _LAST_TIME in olds:
        times = {_find_key(row): row["value"] for row in _scan(olds[_LAST_TIME], groups)}
    found: dict[_Row, list[tuple[int, tuple[_Row, ...]]]] = {}
    for record in _read_records(_LAYOUTS["Map<Long, List<{0}>>"], olds[_INPUT], groups):
        if times is None or record.user_key <= times.get(record.key, 0):
            found.setdefault(record.key, []).append((record.user_key, record.rows))
    ordered = {
        key: [(time, row) for time, rows in sorted(each, key=itemgetter(0)) for row in rows]
        for key, each in found.items()
    }
    return ordered if last is None else {key: rows[-last:] for key, rows in ordered.items()}


def _shorten_records(
    state: StateVerdict, windows: Mapping[_Row, list[tuple[int, _Row]]], records: Iterable[_Record]
) -> Iterator[_Record]:
    """Reduce records of the states of an OVER aggregate to the `state.last` rows of its window.

    Rows that have not entered the window yet are kept.
    """
    assert state.old is not None
    assert state.last is not None
    for record in records:
        whole = windows.get(record.key, [])
        window = whole[-state.last :]
        match state.old.name:
            case "processedCountState":
                yield replace(record, numbers=(len(window),))
            case "smallestTSState":
                yield replace(record, numbers=(window[0][0] if window else record.numbers[0],))
            case _:
                kept = tuple(row for time, row in window if time == record.user_key)
                if kept or all(time != record.user_key for time, _ in whole):
                    yield replace(record, rows=kept or record.rows)


def _fold_window(column: ColumnVerdict, state: StateVerdict, rows: Sequence[_Row]) -> Any:
    """Compute a field of the accumulator of a COUNT or SUM from the rows of a window."""
    assert state.new is not None
    assert column.new is not None
    buffer = state.new.rows[column.row].columns[column.new].buffer
    assert buffer is not None
    if not column.sources:
        return len(rows)
    values = [row[column.sources[0]] for row in rows if row[column.sources[0]] is not None]
    if buffer.function == "COUNT" or buffer.role is Role.COUNT:
        return len(values)
    return sum(values) if values or buffer.function != "SUM" else None


def _list_calls(planned: PlannedOperator | None, view: str) -> tuple[str, ...]:
    found = None if planned is None else planned.find_state(view)
    return () if found is None else found.calls


def _read_view(stored: KeyedState, groups: KeyGroupRange, calls: Sequence[str]) -> Mapping[_Row, list[Any]]:
    """Return, by key, the values in the `MapView` of a DISTINCT aggregate that a call without FILTER has seen."""
    bit = next((index for index, each in enumerate(calls) if is_unfiltered(each)), 0)
    found: dict[_Row, list[Any]] = {}
    for row in _scan(stored, groups):
        if (row["map_value"] > 0) if len(calls) <= 1 else row["map_value"] >> bit & 1:
            found.setdefault(_find_key(row), []).append(row["map_key"])
    return found


def _find_values(views: Mapping[str | None, Mapping[_Row, list[Any]]], view: str | None, key: _Row) -> Sequence[Any]:
    return () if view is None else views.get(view, {}).get(key, ())


_FOLDS: Mapping[Derivation, Callable[[Sequence[Any]], Any]] = {
    Derivation.FOLD_COUNT: len,
    Derivation.FOLD_SUM: lambda values: sum(values) if values else None,
    Derivation.FOLD_SUM_OR_ZERO: sum,
    Derivation.FOLD_MIN: lambda values: min(values, default=None),
    Derivation.FOLD_MAX: lambda values: max(values, default=None),
}


def _derive(column: ColumnVerdict, fields: _Row, values: Sequence[Any]) -> Any:
    """Compute the value of a column: by folding the distinct values of a view, or from the fields of the old row."""
    if column.derivation is not None and column.derivation in _FOLDS:
        found = _FOLDS[column.derivation](values)
        return (found, len(values)) if column.type.startswith("STRUCTURED") else found
    first = fields[column.sources[0]]
    match column.derivation:
        case Derivation.SUM_OR_ZERO:
            return 0 if first is None else first
        case Derivation.SUM_OR_NULL:
            return first if fields[column.sources[1]] else None
    return first


# Search for the value that made a migration fail, because it does not fit its new column.

MOST_SEARCHED = 1_000_000
"""Rows of a state after which no further value is searched for."""

_BITS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64}


def find_unfit_value(comparison: PlanComparison, binding: Binding, old: Snapshot) -> MigrationError | None:
    """Find the first value that does not fit its column in the new state, after a migration has failed.

    Args:
        comparison: verdicts of the migration.
        binding: operators of the old snapshot.
        old: the snapshot.

    Returns:
        the error that names file, operator, state, column, key and value; None where there is no such value.
    """
    for verdict in comparison.operators:
        if verdict.old is None or verdict.new is None or verdict.old.uid not in binding.labels:
            continue
        operator = old.operator(binding.labels[verdict.old.uid])
        olds = _list_states(operator)
        for state in verdict.states:
            if state.old is None or state.new is None or state.old.name not in olds or not _is_comparable(state):
                continue
            columns, rows = _list_known(state, len(state.new.rows) - 1), 0
            for groups in _split_groups(operator.metadata.max_parallelism):
                expected = _expect_rows(state, olds[state.old.name], verdict.old, olds, groups)
                rows += len(expected)
                for (key, *_), (listed, _) in expected.items():
                    for column, value in (
                        (one, each) for row in listed for one, each in zip(columns, row, strict=True)
                    ):
                        of = state.new.rows[column.row].columns[column.new or 0].type
                        if column.derivation not in UNCHANGED and not _fits(value, of):
                            where = Where(file=old.path, operator=verdict.new.uid, state=state.new.name)
                            return _refuse_value(verdict, column, key, value, where)
                if rows >= MOST_SEARCHED:
                    break
    return None


def _refuse_value(
    verdict: OperatorVerdict, column: ColumnVerdict, key: _Row, value: Any, where: Where
) -> MigrationError:
    names = () if verdict.new is None or verdict.new.key is None else verdict.new.key.names
    shown = ", ".join(f"{name} = {each}" for name, each in zip(names, key, strict=False)) or "without columns"
    return MigrationError(
        f"{column.meaning} of key {shown} is {'NULL' if value is None else value}, which does not fit {column.type}",
        where=where,
        hint="Cast the column to its old type in the new query, or start that query from empty",
    )


def _fits(value: Any, of: LogicalType) -> bool:
    """Return whether a SQL type can hold a value."""
    if value is None:
        return of.nullable
    if of.root in _BITS:
        limit = 1 << (_BITS[of.root] - 1)
        return -limit <= int(value) < limit
    if of.root == "DECIMAL":
        return abs(Decimal(str(value))) < Decimal(10) ** ((of.length or 0) - (of.scale or 0))
    if of.root in ("CHAR", "VARCHAR", "BINARY", "VARBINARY") and isinstance(value, str | bytes):
        return len(value) <= (of.length or 0)
    return True


# Comparison of a migrated savepoint with its template.


def compare_with_template(result: Snapshot, template: Snapshot) -> tuple[ProofCheck, ...]:
    """Compare operators, states and serializers of a migrated savepoint with those of its template.

    The template is a savepoint that Flink has taken of the new plan, run without input. A state that only the template
    has is no difference: it begins empty.

    Returns:
        the check, in a tuple; its text names the differences.
    """
    planned = {each.metadata.operator_id: dict(_list_states(each)) for each in template.operators}
    differences, equal, empty = [], 0, 0
    for operator in result.operators:
        states = _list_states(operator)
        wanted = planned.pop(operator.metadata.operator_id, None)
        if wanted is None:
            if states:
                differences.append(f"the plan has no operator {operator.label}")
            continue
        for name, state in states.items():
            other = wanted.pop(name, None)
            if other is None:
                differences.append(f"operator {operator.label} of the plan has no state {name}")
            elif _list_serializers(state) != _list_serializers(other):
                differences.append(f"{operator.label} / {name} has other serializers than the plan")
            else:
                equal += 1
        empty += len(wanted)
    empty += sum(map(len, planned.values()))
    begin = f", {empty} of the plan begin empty" if empty else ""
    observed = "; ".join(differences) or f"{equal} states have the serializers of the plan{begin}"
    text = DESCRIPTIONS[TEMPLATE]
    return (ProofCheck(TEMPLATE, not differences, text, "operators and states of the plan", observed),)


def _list_serializers(state: KeyedState) -> tuple[object, ...]:
    return (str(state.kind), state.key_serializer, *map(_compare_serializer, state.stored_info.serializers))


def _compare_serializer(found: Any) -> Any:
    """Return a serializer without the data types of external structures, for comparisons.

    `ExternalSerializerSnapshot` ignores these types. For the values of MAX and of COUNT(DISTINCT …), plan and savepoint
    may differ in whether they are nullable.
    """
    if isinstance(found, tuple):
        return tuple(map(_compare_serializer, found))
    if not isinstance(found, Serializer):
        return found
    nested = {each.name: _compare_serializer(getattr(found, each.name)) for each in fields(found)}
    if isinstance(found, External):
        nested |= {"java_type": b"", "is_internal_input": False}
    return replace(found, **nested)
