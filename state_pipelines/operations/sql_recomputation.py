"""Recomputation of the columns of a changed SQL query from the old rows, for the proof of its migration.

It follows the verdicts of `sql.comparison`, row by row in Python, and none of the steps that a migration takes: columns
that a step takes from elsewhere, or computes in another way, are found here.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

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
from state_pipelines.serializers.tree import StateKind
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.sql.derivations import Derivation, is_unfiltered
from state_pipelines.sql.verdict import is_unchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from state_pipelines.snapshot import Operator, Snapshot
    from state_pipelines.sql.node_states import PlannedOperator
    from state_pipelines.sql.verdict import Binding, ColumnVerdict, OperatorVerdict, PlanComparison, StateVerdict

MOST_ROWS = 50_000
"""Rows of a state after which no further key groups are compared."""

_Row = tuple[Any, ...]
_Values = dict[_Row, _Row]
_COUNTED = "Map<{0}, Int>"
_STARTS = (Derivation.INITIAL, Derivation.NULL)


def recompute_columns(
    comparison: PlanComparison, binding: Binding, old: Snapshot, new: Snapshot, *, most: int = MOST_ROWS
) -> tuple[ProofCheck, ...]:
    """Compare the columns of a migrated savepoint with those that its verdicts make of the old rows.

    States that keep one row per key and namespace are compared, and rows that are keys of maps. Not compared are
    columns that start empty, since a backfill may fill them, and operators whose key gets another type, since its rows
    are in other key groups then.

    Args:
        comparison: verdicts of the migration.
        binding: operators of the old snapshot.
        old: the snapshot that was migrated.
        new: the result.
        most: rows of a state after which no further key groups are compared.

    Returns:
        the check; none where no state is of such a kind.
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
    """Rows that were compared, and those that differ."""

    def __init__(self, most: int) -> None:
        self.most, self.counts = most, RecordCounts()
        self.states: list[str] = []
        self.examples: list[DifferingRecord] = []

    def compare(self, verdict: OperatorVerdict, before: Operator, after: Operator) -> None:
        """Compare the states of an operator that change."""
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
        """Return the check of all states; none where none was compared."""
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


def _is_comparable(state: StateVerdict) -> bool:
    if state.old is None or state.new is None or state.derivation is not None:
        return False
    if state.old.plain_template != state.new.plain_template:
        return False
    known = _list_known(state)
    if state.new.plain_template == _COUNTED:
        # Rows of a map are found by all of their columns.
        return len(known) == len(state.new.rows[0].columns)
    return state.new.plain_template == "{0}" and bool(known)


def _list_known(state: StateVerdict) -> list[ColumnVerdict]:
    """Return the columns of the new row that follow from the old one, in order."""
    found = [
        each
        for each in state.columns
        if each.new is not None and each.derivation is not None and each.derivation not in _STARTS
    ]
    return sorted(found, key=lambda each: each.new or 0)


def _list_states(operator: Operator) -> Mapping[str, KeyedState]:
    return {
        each.name: each for each in operator.states if isinstance(each, KeyedState) and each.kind is not StateKind.TIMER
    }


def _split_groups(number: int) -> Iterator[KeyGroupRange]:
    """Yield ranges of key groups, each twice as long as the one before."""
    start, length = 0, 1
    while start < number:
        yield KeyGroupRange(start, min(length, number - start))
        start, length = start + length, 2 * length


def _scan(state: KeyedState, groups: KeyGroupRange) -> Iterator[dict[str, Any]]:
    for batch in state.batches(None, groups):
        yield from batch.to_pylist()


def _fields(row: Mapping[str, Any] | None) -> _Row:
    return () if row is None else tuple(value for name, value in row.items() if name != "row_kind")


def _find_key(row: Mapping[str, Any]) -> _Row:
    return (_fields(row["state_key"]), str(row["state_namespace"]))


def _read_rows(state: StateVerdict, stored: KeyedState, groups: KeyGroupRange) -> _Values:
    """Return the columns of the new rows that follow from the old ones, by key."""
    assert state.new is not None
    if state.new.plain_template == _COUNTED:
        return {(*_find_key(row), _fields(row["map_key"])): (row["map_value"],) for row in _scan(stored, groups)}
    known = [each.new for each in _list_known(state) if each.new is not None]
    rows = ((_find_key(row), _fields(row["value"])) for row in _scan(stored, groups))
    return {key: tuple(values[index] for index in known) for key, values in rows}


def _expect_rows(
    state: StateVerdict,
    stored: KeyedState,
    planned: PlannedOperator | None,
    olds: Mapping[str, KeyedState],
    groups: KeyGroupRange,
) -> _Values:
    """Return what the verdicts make of the old rows, by key."""
    assert state.new is not None
    columns = _list_known(state)
    if state.new.plain_template == _COUNTED:
        counts: Counter[_Row] = Counter()
        for row in _scan(stored, groups):
            fields = _fields(row["map_key"])
            counts[(*_find_key(row), tuple(_derive(each, fields, ()) for each in columns))] += row["map_value"]
        return {key: (count,) for key, count in counts.items()}
    views: dict[str | None, Mapping[_Row, list[Any]]] = {
        each.view: _read_view(olds[each.view], groups, _list_calls(planned, each.view))
        for each in columns
        if each.view is not None and each.view in olds
    }
    expected = {}
    for row in _scan(stored, groups):
        key, fields = _find_key(row), _fields(row["value"])
        expected[key] = tuple(_derive(each, fields, _find_values(views, each.view, key)) for each in columns)
    return expected


def _list_calls(planned: PlannedOperator | None, view: str) -> tuple[str, ...]:
    found = None if planned is None else planned.find_state(view)
    return () if found is None else found.calls


def _read_view(stored: KeyedState, groups: KeyGroupRange, calls: Sequence[str]) -> Mapping[_Row, list[Any]]:
    """Return the distinct values of a view that a call without FILTER has seen, by key."""
    bit = next((index for index, each in enumerate(calls) if is_unfiltered(each)), 0)
    found: dict[_Row, list[Any]] = {}
    for row in _scan(stored, groups):
        if len(calls) <= 1 or row["map_value"] >> bit & 1:
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
    """Return the value of a column: from the fields of the old row, or from the values of a view."""
    if column.derivation is not None and column.derivation in _FOLDS:
        return _FOLDS[column.derivation](values)
    first = fields[column.sources[0]]
    match column.derivation:
        case Derivation.SUM_OR_ZERO:
            return 0 if first is None else first
        case Derivation.SUM_OR_NULL:
            return first if fields[column.sources[1]] else None
    return first


# Templates.


def compare_with_template(result: Snapshot, template: Snapshot) -> tuple[ProofCheck, ...]:
    """Compare operators, states and serializers of a result with those of the template of its plan.

    A state that only the template has begins with nothing.

    Returns:
        the check, whose text names the differences.
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
    return (str(state.kind), state.key_serializer, *state.stored_info.serializers)
