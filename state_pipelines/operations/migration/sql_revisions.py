"""The revision of a SQL query that changes: verdicts on its state carried out as steps of a migration.

`sql.comparison` says where each operator, state and column comes from; this module says it in steps, and refuses what
no step does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import MigrationError, at
from state_pipelines.metadata import compute_operator_id
from state_pipelines.operations.migration import steps as st
from state_pipelines.operations.migration.migration_files import Change, Migration
from state_pipelines.operations.migration.shapes import find_shapes
from state_pipelines.operations.rescale.rescale_request import OperatorRequest, RescaleRequest
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.sql_serializers import MAP_VIEW
from state_pipelines.serializers.text import describe, describe_type, parse
from state_pipelines.sql.accumulators import UNRESOLVED, PlannedColumn, Role
from state_pipelines.sql.derivations import Derivation
from state_pipelines.sql.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.snapshot import Operator, Snapshot
    from state_pipelines.sql.node_states import PlannedOperator, PlannedState
    from state_pipelines.sql.verdict import ColumnVerdict, OperatorVerdict, PlanComparison, StateVerdict

_FOLDS = (
    Derivation.FOLD_COUNT,
    Derivation.FOLD_SUM,
    Derivation.FOLD_SUM_OR_ZERO,
    Derivation.FOLD_MIN,
    Derivation.FOLD_MAX,
)
_EMPTY_WAY = "start that query from empty, build its state with `bootstrap`, or keep the old operator"


@dataclass(frozen=True)
class SqlRevision:
    """A change of a query as a change of a snapshot.

    Attributes:
        operators: renames and removals, by the old id.
        migration: the steps, on operators under their new uids; None where only names change.
        notes: for users.
    """

    operators: RescaleRequest
    migration: Migration | None
    notes: tuple[str, ...] = ()


def find_operators(snapshot: Snapshot, planned: Sequence[PlannedOperator]) -> dict[str, Operator]:
    """The operators of a snapshot by the uid that a plan gives them.

    A job that was started from SQL text has no uids: its operators are found by their states, as far as no other ones
    have the same.

    Raises:
        MigrationError: an operator with state is not there, or several would do.
    """
    by_id = {each.metadata.operator_id: each for each in snapshot.operators}
    found = {each.uid: by_id[key] for each in planned if (key := compute_operator_id(each.uid)) in by_id}
    if any(each.states and each.uid in found for each in planned) or not any(each.states for each in planned):
        return found
    left = [each for each in snapshot.operators if each.id not in {one.id for one in found.values()}]
    signatures = {each.id: _sign_stored(each) for each in left}
    for each in planned:
        wanted = _sign_planned(each)
        candidates = [one for one in left if each.states and wanted and wanted <= signatures[one.id]]
        rivals = [one for one in planned if one.states and _sign_planned(one) == wanted]
        if len(candidates) == 1 and len(rivals) == 1:
            found[each.uid] = candidates[0]
        elif candidates:
            raise MigrationError(
                f"{len(candidates)} operators of the snapshot could be {each.uid}, which has no uid there",
                hint="Take the savepoint of a job that EXECUTE PLAN started, or name the old plan of the job",
            )
    return found


def _sign_planned(operator: PlannedOperator) -> frozenset[tuple[str, str]]:
    return frozenset((each.name, each.describe()) for each in operator.states)


def _sign_stored(operator: Operator) -> frozenset[tuple[str, str]]:
    return frozenset((name, describe(shape.info.value_serializer)) for name, shape in _list_states(operator).items())


def _list_states(operator: Operator) -> Mapping[str, StateShape]:
    shapes = find_shapes(operator)
    return {name: each for name, each in shapes.items() if each.is_keyed and each.kind is not StateKind.TIMER}


def draft_sql_revision(comparison: PlanComparison, snapshot: Snapshot, name: str) -> SqlRevision:
    """Draft the revision of a change of a query.

    Args:
        comparison: of the old plan with the new one.
        snapshot: of the job with the old plan.
        name: of the revision.

    Raises:
        MigrationError: a state cannot be had in a right way, or a tie is open; says why, and what can be done.
    """
    _require_possible(comparison)
    olds = [each.old for each in comparison.operators if each.old is not None]
    stored = find_operators(snapshot, olds)
    requests: list[OperatorRequest] = []
    changes: list[Change] = []
    notes: list[str] = []
    for verdict in comparison.operators:
        if verdict.old is None or verdict.old.uid not in stored:
            continue
        operator = stored[verdict.old.uid]
        if verdict.new is None:
            requests.append(OperatorRequest(operator=operator.id, drop=True))
            notes.append(f"operator {verdict.old.uid} goes: {'; '.join(verdict.reasons) or 'the new query has none'}")
            continue
        if compute_operator_id(verdict.new.uid) != operator.metadata.operator_id:
            requests.append(OperatorRequest(operator=operator.id, uid=verdict.new.uid))
        with at(operator=verdict.new.uid):
            changes += _OperatorDraft(verdict, operator).draft()
    taken = {each.operator for each in requests} | {each.id for each in stored.values()}
    for operator in snapshot.operators:
        if operator.id not in taken and not _has_state(operator):
            # Flink takes no notice of operators without state; their ids may be those of others now.
            requests.append(OperatorRequest(operator=operator.id, drop=True))
        elif operator.id not in taken:
            raise MigrationError(
                f"operator {operator.label} has state, and the old plan has no such operator",
                hint="Give the plan or the script that the job of this snapshot runs",
            )
    migration = Migration(name, None, "generated by sql migrate", tuple(changes)) if changes else None
    return SqlRevision(RescaleRequest(operators=tuple(requests)), migration, tuple(notes))


def _has_state(operator: Operator) -> bool:
    return any(
        each.managed_operator_state or each.raw_operator_state or each.managed_keyed_state or each.raw_keyed_state
        for each in operator.metadata.subtasks
    )


def _require_possible(comparison: PlanComparison) -> None:
    """Refuse before anything is read what the verdicts refuse.

    Raises:
        MigrationError: says what, and why.
    """
    if comparison.ties:
        ties = "; ".join(each.describe() for each in comparison.ties)
        raise MigrationError(
            f"it is not clear which operator keeps which state: {ties}", hint="Say it: --match OLD=NEW"
        )
    found = [
        text
        for operator in comparison.operators
        if operator.verdict in (Verdict.REFUSED, Verdict.UNDETERMINED)
        for text in _explain(operator)
    ]
    if found:
        raise MigrationError(f"the state cannot be migrated: {'; '.join(found)}", hint=f"Else {_EMPTY_WAY}")


def _explain(operator: OperatorVerdict) -> Iterator[str]:
    uid = (operator.new or operator.old).uid  # type: ignore[union-attr]
    yield from (f"{uid}: {each}" for each in operator.reasons)
    for state in operator.states:
        if state.verdict is Verdict.REFUSED and state.reason:
            yield f"{uid} / {state.name}: {state.reason}"
        for column in state.columns:
            if column.verdict is Verdict.REFUSED:
                yield f"{uid} / {state.name}, {column.meaning}: {column.reason}"


class _OperatorDraft:
    """The changes of an operator."""

    def __init__(self, verdict: OperatorVerdict, operator: Operator) -> None:
        assert verdict.old is not None
        assert verdict.new is not None
        self.old, self.new, self.verdict = verdict.old, verdict.new, verdict
        self.stored = _list_states(operator)
        self.folded: list[Change] = []

    def draft(self) -> Iterator[Change]:
        """Yield the changes, in the order in which they apply."""
        states: list[Change] = []
        renames: dict[str, str] = {}
        for each in self.verdict.states:
            name = None if each.old is None else each.old.name
            if name is None or name not in self.stored:
                # Flink begins a state that is not in the snapshot with nothing.
                self._require_empty(each)
                continue
            with at(state=name):
                if each.new is None:
                    states.append(self._change(name, [st.DropState("the new query has no such state")]))
                    continue
                assert each.old is not None
                steps = list(self._steps(each, each.old, each.new))
                if steps:
                    states.append(self._change(name, steps))
                if each.new.name != name:
                    renames[name] = each.new.name
        yield from self.folded
        # Dropped states may have names that others get.
        yield from sorted(states, key=lambda each: isinstance(each.upgrade[0], st.DropState))
        if renames:
            yield self._change(None, [st.RenameStates(tuple(renames.items()))])
        yield from self._change_key()

    def _change(self, state: str | None, steps: Sequence[st.Step]) -> Change:
        return Change(self.new.uid, state, tuple(steps), (), impossible="the old query is the way back")

    @staticmethod
    def _require_empty(state: StateVerdict) -> None:
        if state.verdict is Verdict.COMPUTED:
            raise MigrationError(
                f"state {state.name} is computed from others, which is not carried out", hint=_EMPTY_WAY
            )

    def _change_key(self) -> Iterator[Change]:
        """Another serializer of the key: columns that may be NULL now, longer texts."""
        old, new = self.old.key, self.new.key
        if old is None or new is None or not self.stored or old.describe() == new.describe():
            return
        fields = ", ".join(f"'f{index}', state_key.f{index}" for index in range(len(new.columns)))
        expression = f"named_struct('row_kind', state_key.row_kind, {fields})"
        yield self._change(None, [st.Key(parse(new.describe()), expression)])

    def _steps(self, verdict: StateVerdict, old: PlannedState, new: PlannedState) -> Iterator[st.Step]:
        if old.plain_template != new.plain_template:
            raise MigrationError(
                f"the layout of state {new.name} changes ({old.plain_template} becomes {new.plain_template}), which is "
                "not carried out",
                hint=_EMPTY_WAY,
            )
        if verdict.bits is not None:
            yield from self._mark_values(verdict, new)
        for number in range(len(new.rows)):
            columns = [each for each in verdict.columns if each.row == number and each.new is not None]
            columns.sort(key=lambda each: each.new or 0)
            before, after = old.rows[number], new.rows[number]
            moved = [each.old for each in columns] != list(range(len(before.columns)))
            if not moved and before.describe() == after.describe():
                continue
            if new.plain_template.startswith(f"Map<{{{number}}},"):
                yield self._change_user_key(new, number, columns)
            elif new.plain_template.startswith("SortedMap<") or "External<" in new.plain_template:
                raise MigrationError(f"rows inside {new.plain_template} are not changed", hint=_EMPTY_WAY)
            else:
                is_plain = new.plain_template in ("{0}", f"Map<{{0}}, {{{number}}}>", f"Map<Long, {{{number}}}>")
                is_plain |= new.kind is StateKind.LIST and new.plain_template == "List<{0}>"
                prefix = "" if is_plain else "row."
                yield st.Columns(tuple(self._column(each, old, new, number, prefix) for each in columns))
        if (old.ttl is None) != (new.ttl is None):
            action = st.TtlAction.DISABLE if new.ttl is None else st.TtlAction.ENABLE
            reason = "the new query has no time to live" if new.ttl is None else ""
            yield st.TtlStep(action, "" if new.ttl is None else "now()", reason)

    @staticmethod
    def _change_user_key(new: PlannedState, number: int, columns: Sequence[ColumnVerdict]) -> st.Step:
        """The row that is the user key of a map; the counts of rows that become equal add up."""
        made = ", ".join(f"'f{each.new}', map_key.f{each.old}" for each in columns)
        if any(each.old is None for each in columns) or not made:
            raise MigrationError(f"rows of state {new.name} are keys, and get columns that they lack", hint=_EMPTY_WAY)
        value = new.plain_template.partition(", ")[2][:-1]
        rules = {"Int": "CAST(sum(value) AS INT)"}
        return st.Kind(
            StateKind.MAP,
            key_type=parse(new.rows[number].describe()),
            key_expression=f"named_struct('row_kind', map_key.row_kind, {made})",
            on_equal=rules.get(value, "error"),
        )

    def _column(
        self, verdict: ColumnVerdict, old: PlannedState, new: PlannedState, number: int, prefix: str
    ) -> st.RowColumn:
        assert verdict.new is not None
        column = new.rows[number].columns[verdict.new]
        expression = self._express(verdict, old, column, number, prefix)
        kind = column.type
        if verdict.derivation is Derivation.COPY and verdict.old is not None:
            return st.RowColumn(column.name, expression)
        if kind.root == "RAW" and kind.class_name == MAP_VIEW:
            return st.RowColumn(column.name, expression, st.SqlType(f"RAW('{MAP_VIEW}', ?)"))
        if kind == UNRESOLVED or kind.root in ("RAW", "STRUCTURED_TYPE"):
            raise MigrationError(f"the accumulator of {column.meaning} is not one that can be made", hint=_EMPTY_WAY)
        return st.RowColumn(column.name, expression, st.SqlType(describe_type(kind)))

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
                raise MigrationError(
                    f"rows from before do not have {column.meaning}, which is NOT NULL",
                    hint=f"Let it be NULL in the query, or {_EMPTY_WAY}",
                )
        raise MigrationError(
            f"{column.meaning} would be computed ({verdict.derivation}), which is not carried out", hint=_EMPTY_WAY
        )

    def _mark_values(self, verdict: StateVerdict, new: PlannedState) -> Iterator[st.Step]:
        """The bits of a view of distinct values, one for each call that it serves."""
        assert verdict.bits is not None
        assert verdict.old is not None
        if verdict.bits == tuple(range(len(verdict.bits))) and len(verdict.bits) == len(verdict.old.calls):
            return
        if any("?" in each.plain_template for each in (verdict.old, new)):
            raise MigrationError(f"the marks of {new.meaning} are lists, which are not changed", hint=_EMPTY_WAY)
        if len(verdict.old.calls) == len(new.calls) == 1:
            return
        bits = [
            f"shiftleft(shiftright(value, {old}) & 1L, {index})"
            for index, old in enumerate(verdict.bits)
            if old is not None
        ]
        yield st.Set("value", f"CAST({' | '.join(bits) or '0'} AS BIGINT)")


def _check(source: str, old: PlannedColumn, new: PlannedColumn) -> str:
    """SQL of a value that has to fit a narrower type; casts of numbers check themselves."""
    sql = source
    if new.type.root in ("VARCHAR", "CHAR", "VARBINARY", "BINARY") and (new.type.length or 0) < (old.type.length or 0):
        text = f"a value of {new.name} is longer than {new.type.length}"
        sql = f"IF(length({source}) > {new.type.length}, raise_error('{text}'), {source})"
    if old.type.nullable and not new.type.nullable:
        sql = f"coalesce({sql}, raise_error('{new.name} is NULL, which the new query does not allow'))"
    return sql


def _find_initial(column: PlannedColumn) -> str:
    """SQL of the value that a buffer begins with (`DeclarativeAggregateFunction.initialValuesExpressions`)."""
    buffer = column.buffer
    if column.type.root == "RAW":
        return "NULL"
    if buffer is None:
        raise MigrationError(f"it is not known what {column.meaning} begins with", hint=_EMPTY_WAY)
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
    raise MigrationError(f"it is not known what {column.meaning} begins with", hint=_EMPTY_WAY)
