"""Drafts of the revision for a SQL query that changes: steps of a migration that carry out the verdicts on its state.

`sql.comparison` says where each operator, state and column comes from; this module says it in steps, and refuses what
no step does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from state_pipelines.errors import IncompatibleError, UsageError, at
from state_pipelines.metadata import compute_operator_id
from state_pipelines.operations.migration import steps as st
from state_pipelines.operations.migration.migration_files import Change, Migration
from state_pipelines.operations.migration.shapes import find_shapes
from state_pipelines.operations.migration.sql_layouts import EMPTY_WAY, change_layout, fold_rows
from state_pipelines.operations.migration.step_types import SqlType
from state_pipelines.operations.rescale.rescale_request import OperatorRequest, RescaleRequest
from state_pipelines.serializers.table_runtime import MAP_VIEW
from state_pipelines.serializers.text import describe_type, parse
from state_pipelines.serializers.tree import RowData, StateKind, walk
from state_pipelines.sql.accumulators import MOST_FILTERS, UNRESOLVED, PlannedColumn, Role
from state_pipelines.sql.conversions import UNCHANGED, Derivation
from state_pipelines.sql.derivations import is_unfiltered
from state_pipelines.sql.verdict import Verdict, is_unchanged
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.snapshot import Operator, Snapshot
    from state_pipelines.sql.node_states import PlannedRow, PlannedState
    from state_pipelines.sql.verdict import Binding, ColumnVerdict, OperatorVerdict, PlanComparison, StateVerdict

_FOLD_ROWS = Derivation.FOLD_ROWS
_FOLDS = (
    Derivation.FOLD_COUNT,
    Derivation.FOLD_SUM,
    Derivation.FOLD_SUM_OR_ZERO,
    Derivation.FOLD_MIN,
    Derivation.FOLD_MAX,
)
FUNCTION_VIEW = re.compile(r"agg(\d+)\$(\w+)")
"""Name of a view of an aggregate function: position of the call, and field of the accumulator."""

_BACK = "start the old query from the old savepoint instead"


@dataclass(frozen=True)
class SqlRevision:
    """Changes of a snapshot that fit its state to a changed SQL query.

    Attributes:
        operators: request to rename or drop operators, by their old ids.
        migration: migration of the states, with operators under their new uids; None if states do not change.
        notes: remarks for users.
    """

    operators: RescaleRequest
    migration: Migration | None
    notes: tuple[str, ...] = ()


def _list_states(operator: Operator) -> Mapping[str, StateShape]:
    shapes = find_shapes(operator)
    return {name: each for name, each in shapes.items() if each.is_keyed and each.kind is not StateKind.TIMER}


def draft_sql_revision(
    comparison: PlanComparison,
    binding: Binding,
    snapshot: Snapshot,
    name: str,
    backfill: Mapping[str, str] | None = None,
) -> SqlRevision:
    """Draft the revision that migrates a snapshot of the old query to the new one.

    Args:
        comparison: comparison of the old plan with the new one.
        binding: operators of the snapshot, matched with those of the old plan.
        snapshot: snapshot of the job that runs the old query.
        name: name of the revision.
        backfill: by name of a column (of the state or of a sink) that starts empty, a Parquet table with its values.
            The table has a column of that name, and the columns of the key.

    Raises:
        IncompatibleError: there is no correct way to compute a state, or operators cannot be matched; the message says
            why, and what can be done.
        UsageError: the old query is not that of the snapshot, or a table of `backfill` is for no column that starts
            empty.
    """
    _require_possible(comparison, binding)
    stored = {uid: snapshot.operator(label) for uid, label in binding.labels.items()}
    fillings = _Fillings(comparison, backfill or {})
    requests: dict[str, OperatorRequest] = {}
    changes: list[Change] = []
    notes: list[str] = []
    for verdict in comparison.operators:
        if verdict.old is None or verdict.old.uid not in stored:
            continue
        operator = stored[verdict.old.uid]
        if verdict.new is None:
            requests[operator.id] = OperatorRequest(drop=True)
            notes.append(f"operator {verdict.old.uid} goes: {'; '.join(verdict.reasons) or 'the new query has none'}")
            continue
        if compute_operator_id(verdict.new.uid) != operator.metadata.operator_id:
            requests[operator.id] = OperatorRequest(uid=verdict.new.uid)
        with at(operator=verdict.new.uid):
            changes += _OperatorDraft(verdict, operator, fillings).draft()
    fillings.require_used()
    is_changed = bool(requests or changes)
    taken = {*requests} | {each.id for each in stored.values()}
    for operator in snapshot.operators:
        if operator.id in taken:
            continue
        if not _has_state(operator):
            # Flink ignores operators without state. They are dropped, since another operator may now have their id.
            requests |= {operator.id: OperatorRequest(drop=True)} if is_changed else {}
        else:
            raise IncompatibleError(
                f"operator {operator.label} has state, and the old plan has no such operator",
                hint="Give the plan or the script that the job of this snapshot runs",
            )
    migration = Migration(name, None, "generated by sql migrate", tuple(changes)) if changes else None
    return SqlRevision(RescaleRequest(operators=requests), migration, tuple(notes))


def _has_state(operator: Operator) -> bool:
    return any(
        each.managed_operator_state or each.raw_operator_state or each.managed_keyed_state or each.raw_keyed_state
        for each in operator.metadata.subtasks
    )


def _require_possible(comparison: PlanComparison, binding: Binding) -> None:
    """Refuse a change whose verdicts say that it is impossible, before any state is read.

    Raises:
        IncompatibleError: operators cannot be matched, or a verdict is refused or undetermined; the message says why.
        UsageError: the old query is not that of the snapshot.
    """
    if comparison.ties:
        ties = "; ".join(each.describe() for each in comparison.ties)
        raise IncompatibleError(
            f"it is not clear which operator keeps which state: {ties}",
            hint="Say which operator keeps which state (match OLD=NEW, by uid)",
        )
    if binding.unknown or binding.misfits:
        texts = [f"operator {each} has state, and the old query has no such operator" for each in binding.unknown]
        raise UsageError(
            "; ".join([*binding.misfits, *texts]), hint="Give the query that the job of the savepoint runs"
        )
    found = [
        text
        for operator in comparison.operators
        if operator.verdict in (Verdict.REFUSED, Verdict.UNDETERMINED)
        for text in _explain(operator)
    ]
    if found:
        raise IncompatibleError(
            f"the state cannot be migrated: {'; '.join(found)}", hint=f"If the query must change so: {EMPTY_WAY}"
        )


def _explain(operator: OperatorVerdict) -> Iterator[str]:
    uid = (operator.new or operator.old).uid  # type: ignore[union-attr]
    yield from (f"{uid}: {each}" for each in operator.reasons)
    for state in operator.states:
        if state.verdict is Verdict.REFUSED and state.reason:
            yield f"{uid} / {state.name}: {state.reason}"
        for column in state.columns:
            if column.verdict is Verdict.REFUSED:
                yield f"{uid} / {state.name}, {column.meaning}: {column.reason}"


class _Fillings:
    """Backfill tables that the user gives for columns that start empty."""

    def __init__(self, comparison: PlanComparison, tables: Mapping[str, str]) -> None:
        self.tables, self.used = tables, set[str]()
        # `meaning` describes the content of a column. For sink columns it ends with the key of the aggregate
        # (` by (...)`), for state columns it does not.
        self.meanings = {each.column: each.new.partition(" by (")[0] for each in comparison.sinks}

    def find(self, column: PlannedColumn) -> tuple[str, str] | None:
        """Return (column name, path) of the table with the values of a column that starts empty; None without any."""
        for name, table in self.tables.items():
            if name == column.name or self.meanings.get(name) == column.meaning:
                self.used.add(name)
                return name, table
        return None

    def require_used(self) -> None:
        """Refuse tables that no column has used.

        Raises:
            UsageError: tables are for columns that do not start empty; the message names them.
        """
        unknown = sorted(set(self.tables) - self.used)
        if unknown:
            raise UsageError(
                f"no column that starts empty is called {', '.join(unknown)}",
                hint="`sql check` shows the columns; those of an average are its sum and its count",
            )


class _OperatorDraft:
    """Drafts the changes of the states of one operator."""

    def __init__(self, verdict: OperatorVerdict, operator: Operator, fillings: _Fillings) -> None:
        self.fillings = fillings
        assert verdict.old is not None
        assert verdict.new is not None
        self.old, self.new, self.verdict = verdict.old, verdict.new, verdict
        self.stored = _list_states(operator)
        self.copied: list[Change] = []

    def draft(self) -> Iterator[Change]:
        """Yield the changes, in the order in which they apply."""
        states: list[Change] = []
        renames: dict[str, str] = {}
        for each in self.verdict.states:
            name = None if each.old is None else each.old.name
            if name is None or name not in self.stored:
                # A state that the snapshot does not have starts empty in Flink, so it needs no change.
                self._require_empty(each)
                continue
            with at(state=name):
                if each.new is None:
                    states.append(self._change(name, [st.DropState("the new query has no such state")]))
                    continue
                assert each.old is not None
                if each.derivation is Derivation.COPY_VALUES:
                    copy = f"values_{len(renames)}_{len(self.copied)}"
                    self.copied.append(self._change(name, [st.CopyState(copy)]))
                    renames[copy] = each.new.name
                    continue
                steps = list(self._steps(each, each.old, each.new))
                if steps:
                    states.append(self._change(name, steps))
                if each.new.name != name:
                    renames[name] = each.new.name
        if states or renames or not all(map(is_unchanged, self.verdict.states)):
            views = self._find_views()
            self._require_known(views)
            for view, new_name in views.items():
                if new_name is None:
                    states.append(self._change(view, [st.DropState("the new query does not call the function")]))
                elif new_name != view:
                    renames[view] = new_name
        yield from self.copied
        # States are dropped before others are renamed, since a renamed state may get the name of a dropped one.
        yield from sorted(states, key=lambda each: isinstance(each.upgrade[0], st.DropState))
        if renames:
            yield self._change(None, [st.RenameStates(tuple(renames.items()))])
        yield from self._change_key()

    def _find_views(self) -> dict[str, str | None]:
        """Return the new names of the states of data views of user-defined functions; None for a state to be dropped.

        Their names begin with the position of the call of the function, such as `agg0$`. The verdicts on the columns of
        the call's accumulator give its new position. Source: `AggregateUtil`, `DataViewUtils.createDataViews`.

        Raises:
            IncompatibleError: the verdicts do not say which position the call gets.
        """
        known = {each.name for each in self.old.states}
        found: dict[str, str | None] = {}
        for name in self.stored:
            match = FUNCTION_VIEW.fullmatch(name)
            if match is None or name in known:
                continue
            old_call, calls, is_dropped = int(match[1]), set[int | None](), False
            for state, verdict in ((each, column) for each in self.verdict.states for column in each.columns):
                before = None if state.old is None else _find_call(state.old, verdict.row, verdict.old)
                if before == old_call:
                    after = None if state.new is None else _find_call(state.new, verdict.row, verdict.new)
                    calls |= {after} - {None}
                    is_dropped |= verdict.verdict is Verdict.DROPPED
            if len(calls) == 1:
                found[name] = f"agg{calls.pop()}${match[2]}"
            elif is_dropped and not calls:
                found[name] = None
            else:
                raise IncompatibleError(
                    f"state {name} is of the function that is call {old_call + 1} of the old query, and the plans do "
                    "not say which call of the new one takes it",
                    hint=EMPTY_WAY,
                )
        return found

    def _require_known(self, views: Collection[str]) -> None:
        """Refuse states with SQL rows that are not in the old plan: their columns may have to change in an unknown way.

        Args:
            views: states of data views of user-defined functions, which are allowed: their contents do not change.
        """
        names = {each.name for each in self.old.states} | {*views}
        for name, shape in self.stored.items():
            if name not in names and any(isinstance(each, RowData) for each in walk(shape.payload)):
                raise IncompatibleError(
                    f"state {name} holds rows that no plan describes, and other states of the operator change",
                    hint=EMPTY_WAY,
                )

    def _change(self, state: str | None, steps: Sequence[st.Step]) -> Change:
        return Change(self.new.uid, state, tuple(steps), (), impossible=_BACK)

    @staticmethod
    def _require_empty(state: StateVerdict) -> None:
        if state.verdict is Verdict.COMPUTED:
            raise IncompatibleError(
                f"state {state.name} is computed from other states, for which no steps are known", hint=EMPTY_WAY
            )

    def _change_key(self) -> Iterator[Change]:
        """Yield the change to the new serializer of the key, if columns of the key have become nullable or longer."""
        old, new = self.old.key, self.new.key
        if old is None or new is None or not self.stored or old.describe() == new.describe():
            return
        fields = ", ".join(f"'f{index}', state_key.f{index}" for index in range(len(new.columns)))
        expression = f"named_struct('row_kind', state_key.row_kind, {fields})"
        yield self._change(None, [st.Key(parse(new.describe()), expression)])

    def _steps(self, verdict: StateVerdict, old: PlannedState, new: PlannedState) -> Iterator[st.Step]:
        is_other = old.plain_template != new.plain_template and verdict.bits is None
        if is_other or verdict.derivation is not None:
            layout = change_layout(verdict, self.old)
            self.copied += [self._change(name, steps) for name, steps in layout.copies]
            yield from layout.steps
        if verdict.bits is not None:
            yield from self._mark_values(verdict, new)
        for number in range(len(new.rows)):
            columns = [each for each in verdict.columns if each.row == number and each.new is not None]
            columns.sort(key=lambda each: each.new or 0)
            if len(new.rows) > len(old.rows) and number < len(new.rows) - 1:
                # The state becomes a map: the steps of `change_layout` compute this row, which is its key.
                continue
            before, after = old.rows[number if len(new.rows) == len(old.rows) else -1], new.rows[number]
            stays = [each.old for each in columns] == list(range(len(before.columns)))
            stays &= all(each.derivation in UNCHANGED for each in columns)
            if stays and before.describe() == after.describe():
                continue
            if new.plain_template.startswith(f"Map<{{{number}}},"):
                yield self._change_user_key(new, number, columns)
            elif new.plain_template.startswith("SortedMap<") or "External<" in new.plain_template:
                raise IncompatibleError(
                    f"no step changes the columns of rows inside {new.plain_template}", hint=EMPTY_WAY
                )
            elif any(each.derivation in (*_FOLDS, Derivation.FOLD_ROWS) for each in columns):
                yield self._fold(old, new, number, columns, verdict.last)
            else:
                is_plain = new.plain_template in ("{0}", f"Map<{{0}}, {{{number}}}>", f"Map<Long, {{{number}}}>")
                is_plain |= new.kind is StateKind.LIST and new.plain_template == "List<{0}>"
                prefix = "" if is_plain else "row."
                yield st.Columns(tuple(self._column(each, old, new, number, prefix) for each in columns))
                if is_plain:
                    yield from self._fill(columns, after, new)
        if (old.ttl is None) != (new.ttl is None):
            if new.ttl is None:
                yield st.TtlStep(disable="the new query has no time to live")
            else:
                yield st.TtlStep(enable=_write_time(datetime.now(UTC)))

    @staticmethod
    def _change_user_key(new: PlannedState, number: int, columns: Sequence[ColumnVerdict]) -> st.Step:
        """Make the step that changes the row that is the user key of a map; counts of rows that become equal add up."""
        made = ", ".join(f"'f{each.new}', map_key.f{each.old}" for each in columns)
        if any(each.old is None for each in columns) or not made:
            raise IncompatibleError(
                f"the rows of state {new.name} are the keys of a map, and the new rows have columns that these lack",
                hint=EMPTY_WAY,
            )
        value = new.plain_template.partition(", ")[2][:-1]
        # f0 counts equal rows, f1 their matches in a join: rows that become equal have the same matches.
        both = "named_struct('f0', CAST(sum(f0) AS INT), 'f1', max(f1))"
        rules = {"Int": "CAST(sum(value) AS INT)", "Tuple2<Int, Int>": both}
        expression = f"named_struct('row_kind', map_key.row_kind, {made})"
        key = st.MapKey(parse(new.rows[number].describe()), expression, rules.get(value))
        return st.Kind(StateKind.MAP, map_key=key)

    def _fill(self, columns: Sequence[ColumnVerdict], row: PlannedRow, new: PlannedState) -> Iterator[st.Step]:
        for each in columns:
            if each.derivation not in (Derivation.INITIAL, Derivation.NULL) or each.new is None:
                continue
            found = self.fillings.find(row.columns[each.new])
            if found is not None and self.new.key is not None:
                if new.namespace != "VoidNamespace" or new.plain_template.startswith("Map<Long,"):
                    raise IncompatibleError(
                        f"a table with one row per key has no values of {found[0]} for each window or time",
                        hint="Leave out the table: the column is right as soon as the windows and rows that are in "
                        "the state now have ended",
                    )
                keys = [(f"f{index}", name) for index, name in enumerate(self.new.key.names)]
                if new.plain_template == "Map<{0}, {1}>":
                    keys += [(f"map_key.f{index}", name) for index, name in enumerate(new.rows[0].names)]
                yield st.Fill(f"f{each.new}", str(resolve(found[1])), tuple(keys), found[0])

    def _fold(
        self,
        old: PlannedState,
        new: PlannedState,
        number: int,
        columns: Sequence[ColumnVerdict],
        last: int | None,
    ) -> st.Step:
        """Make the step that computes the row of an accumulator: some columns from distinct values or window rows.

        Distinct values are in views, window rows in the state of an OVER. Copies of those states are reduced to the new
        columns, and then merged with the accumulator.
        """
        folded: dict[str, list[tuple[PlannedColumn, str]]] = {}
        made = []
        window = [(each, new.rows[number].columns[each.new or 0]) for each in columns if each.derivation is _FOLD_ROWS]
        over = fold_rows(window, self.old, last) if window else None
        added_up = iter(() if over is None else over.columns)
        for each in columns:
            assert each.new is not None
            column = new.rows[number].columns[each.new]
            if each.derivation is _FOLD_ROWS:
                made.append(next(added_up))
            elif each.derivation in _FOLDS and each.view is not None:
                view = self.old.find_state(each.view)
                assert view is not None
                fields = folded.setdefault(each.view, [])
                initial = "0" if each.derivation in (Derivation.FOLD_COUNT, Derivation.FOLD_SUM_OR_ZERO) else "NULL"
                if column.type.root == "STRUCTURED_TYPE":
                    initial = _make_extreme(column, "NULL", "0")
                made.append(f"coalesce({_name_folded(each.view)}.f{len(fields)}, {initial})")
                fields.append((column, _fold_values(each.derivation, view, column)))
            else:
                made.append(self._express(each, old, column, number, f"{new.name}."))
        for view_name, computed in folded.items():
            name = _name_folded(view_name)
            types = ", ".join(describe_type(replace(column.type, nullable=True)) for column, _ in computed)
            values = ", ".join(f"'f{index}', {sql}" for index, (_, sql) in enumerate(computed))
            row = parse(f"RowData({types})")
            kind = st.Kind(StateKind.VALUE, row, f"named_struct('row_kind', '+I', {values})")
            self.copied += [self._change(view_name, [st.CopyState(name)]), self._change(name, [kind])]
        types = ", ".join(_name_type(each) for each in new.rows[number].columns)
        fields_text = ", ".join(f"'f{index}', {sql}" for index, sql in enumerate(made))
        struct = f"named_struct('row_kind', {new.name}.row_kind, {fields_text})"
        others = tuple(map(_name_folded, folded))
        if over is not None:
            self.copied += [self._change(name, steps) for name, steps in over.copies]
            others += over.others
        return st.Merge(others, new.name, parse(f"RowData({types})"), struct, own_keys=True)

    def _column(
        self, verdict: ColumnVerdict, old: PlannedState, new: PlannedState, number: int, prefix: str
    ) -> st.RowColumn:
        assert verdict.new is not None
        column = new.rows[number].columns[verdict.new]
        expression = self._express(verdict, old, column, number, prefix)
        if verdict.derivation is Derivation.COPY and verdict.old is not None:
            return st.RowColumn(column.name, expression)
        return st.RowColumn(column.name, expression, SqlType(_name_type(column)))

    def _express(
        self, verdict: ColumnVerdict, old: PlannedState, column: PlannedColumn, number: int, prefix: str
    ) -> str:
        sources = [f"{prefix}f{each}" for each in verdict.sources]
        match verdict.derivation:
            case Derivation.COPY | Derivation.RETYPE | Derivation.WIDEN:
                return sources[0]
            case Derivation.CHECK:
                return _check(sources[0], old.rows[number].columns[verdict.sources[0]], column)
            case Derivation.SUM_OR_ZERO:
                return f"coalesce({sources[0]}, 0)"
            case Derivation.SUM_OR_NULL:
                return f"IF({sources[1]} = 0, NULL, {sources[0]})"
            case Derivation.INITIAL:
                return _find_initial(column)
            case Derivation.NULL if column.type.nullable:
                return "NULL"
            case Derivation.NULL:
                raise IncompatibleError(
                    f"rows from before the savepoint have no value of {column.meaning}, which is NOT NULL",
                    hint=f"Let it be NULL in the query, or {EMPTY_WAY}",
                )
        raise IncompatibleError(
            f"{column.meaning} would be computed ({verdict.derivation}), for which no step is known", hint=EMPTY_WAY
        )

    def _mark_values(self, verdict: StateVerdict, new: PlannedState) -> Iterator[st.Step]:
        """Yield the step that reorders the bits or counts in a view of distinct values, if the aggregate calls change.

        Each entry of the view has a bit (a count, if the input retracts) for each aggregate call that uses the view.
        """
        assert verdict.bits is not None
        assert verdict.old is not None
        if verdict.bits == tuple(range(len(verdict.bits))) and len(verdict.bits) == len(verdict.old.calls):
            return
        lists = ["?" in each.plain_template for each in (verdict.old, new)]
        if any(lists):
            # If the input retracts, the value in a view for several calls is an array: the count of rows for each call.
            if not all(lists) or len(verdict.old.calls) > MOST_FILTERS or None in verdict.bits:
                raise IncompatibleError(
                    f"the {new.meaning} are stored for {len(verdict.old.calls)} DISTINCT calls, and the layout for "
                    f"{len(new.calls)} cannot be made from that: {', '.join(new.calls)}",
                    hint=f"Keep the DISTINCT calls of the column, or {EMPTY_WAY}",
                )
            yield st.Set("value", f"array({', '.join(f'value[{each}]' for each in verdict.bits)})")
            return
        if len(verdict.old.calls) == len(new.calls) == 1:
            return
        bits = [
            f"shiftleft(shiftright(value, {old}) & 1L, {index})"
            for index, old in enumerate(verdict.bits)
            if old is not None
        ]
        yield st.Set("value", f"CAST({' | '.join(bits) or '0'} AS BIGINT)")


def _name_folded(view: str) -> str:
    """Return the name of the copy of a view that is reduced to one value per key; SQL can use it without quotes."""
    return f"folded_{view.replace('$', '_')}"


def _find_call(state: PlannedState, row: int, index: int | None) -> int | None:
    """Return the position of the aggregate call that a column of an accumulator belongs to; None for other columns."""
    if index is None or row >= len(state.rows) or index >= len(state.rows[row].columns):
        return None
    return state.rows[row].columns[index].call


def _write_time(time: datetime) -> str:
    """Make SQL of a time: a literal, since a proof cannot repeat an expression such as `now()`."""
    return f"TIMESTAMP '{time:%Y-%m-%d %H:%M:%S}+00:00'"


def _name_type(column: PlannedColumn) -> str:
    """Return the type of a new column as text for a step.

    Raises:
        IncompatibleError: the type cannot be made from text.
    """
    kind = column.type
    if kind.root == "RAW" and kind.class_name == MAP_VIEW:
        return f"RAW('{MAP_VIEW}', ?)"
    known = kind.root == "STRUCTURED_TYPE" and column.buffer is not None and column.buffer.function in ("MAX", "MIN")
    if kind == UNRESOLVED or (kind.root in ("RAW", "STRUCTURED_TYPE") and not known):
        raise IncompatibleError(f"the accumulator of {column.meaning} has a type that no step can make", hint=EMPTY_WAY)
    return describe_type(kind)


def _fold_values(derivation: Derivation, view: PlannedState, column: PlannedColumn) -> str:
    """Make SQL that aggregates the distinct values of a view, the keys of its entries, to the value of a column."""
    if "?" in view.plain_template or "{0}" in view.plain_template:
        raise IncompatibleError(
            f"the new aggregate cannot be computed from {view.meaning}: the distinct values are rows, or are stored "
            "with a count for each DISTINCT call, as for an input with retractions"
        )
    # The count of a value is not positive if all its rows were retracted, or a retraction came before its row.
    values = "transform(filter(entries, entry -> entry.value > 0), entry -> entry.key)"
    if len(view.calls) > 1:
        # Each call has a bit in the mask of a value; the bit of a call without FILTER is set for all values.
        bit = next(index for index, call in enumerate(view.calls) if is_unfiltered(call))
        values = f"transform(filter(entries, entry -> shiftright(entry.value, {bit}) & 1L = 1L), entry -> entry.key)"
    of = describe_type(replace(column.type, nullable=True))
    if column.type.root == "STRUCTURED_TYPE":
        word = "array_max" if derivation is Derivation.FOLD_MAX else "array_min"
        return _make_extreme(column, f"{word}({values})", f"size({values})")
    match derivation:
        case Derivation.FOLD_COUNT:
            return f"CAST(size({values}) AS BIGINT)"
        case Derivation.FOLD_MIN:
            return f"array_min({values})"
        case Derivation.FOLD_MAX:
            return f"array_max({values})"
    start = f"CAST(NULL AS {of})"
    return f"aggregate({values}, {start}, (sum, each) -> CAST(coalesce(sum, 0) + each AS {of}))"


def _make_extreme(column: PlannedColumn, value: str, size: str) -> str:
    """Make SQL of the accumulator of a MAX or MIN over an input that retracts (`MaxWithRetractAggFunction`).

    The map of all values is in another state, a view. In its place, the accumulator has one byte (`NullSerializer`).
    """
    first, second, third = column.type.names
    return f"named_struct('{first}', {value}, '{second}', CAST({size} AS BIGINT), '{third}', X'00')"


def _check(source: str, old: PlannedColumn, new: PlannedColumn) -> str:
    """Make SQL that fails if a value is too long for the new column, or is NULL and the column is NOT NULL.

    Numbers that do not fit need no check: their casts fail.
    """
    sql = source
    if new.type.root in ("VARCHAR", "CHAR", "VARBINARY", "BINARY") and (new.type.length or 0) < (old.type.length or 0):
        text = f"a value of {new.name} is longer than {new.type.length}"
        sql = f"IF(length({source}) > {new.type.length}, raise_error('{text}'), {source})"
    if old.type.nullable and not new.type.nullable:
        sql = f"coalesce({sql}, raise_error('{new.name} is NULL, which the new query does not allow'))"
    return sql


def _find_initial(column: PlannedColumn) -> str:
    """Make SQL of the initial value of a buffer (`DeclarativeAggregateFunction.initialValuesExpressions`)."""
    buffer = column.buffer
    if column.type.root == "RAW":
        return "NULL"
    if buffer is None:
        raise IncompatibleError(f"the initial value of {column.meaning} is not known", hint=EMPTY_WAY)
    if buffer.role is Role.DELIMITER:
        return "','"
    if buffer.role in (Role.COUNT, Role.SUM) or buffer.function in ("COUNT", "$SUM0"):
        return "0"
    if buffer.function in ("SUM", "MAX", "MIN", "LISTAGG") and column.type.root != "STRUCTURED_TYPE":
        return "NULL"
    if buffer.function in ("FIRST_VALUE", "LAST_VALUE"):
        number = "9223372036854775807L" if buffer.function == "FIRST_VALUE" else "(-9223372036854775807L - 1L)"
        first, second = column.type.names
        return f"named_struct('{first}', NULL, '{second}', {number})"
    raise IncompatibleError(f"the initial value of {column.meaning} is not known", hint=EMPTY_WAY)
