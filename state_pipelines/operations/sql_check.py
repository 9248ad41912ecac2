"""Check of a changed SQL query against a savepoint of the old one: verdicts in words, as JSON and as Markdown."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.errors import IncompatibleError
from state_pipelines.metadata import compute_operator_id
from state_pipelines.operations.migration.sql_revisions import FUNCTION_VIEW, draft_sql_revision
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import StateKind
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.snapshot.representation import escape_markdown
from state_pipelines.sql.comparison import compare_plans
from state_pipelines.sql.node_states import list_operators
from state_pipelines.sql.planner import load_queries
from state_pipelines.sql.verdict import (
    Binding,
    ColumnVerdict,
    OperatorVerdict,
    PlanComparison,
    StateVerdict,
    Verdict,
    is_unchanged,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state_pipelines.snapshot import Operator
    from state_pipelines.sql.compiled_plans import Plan
    from state_pipelines.sql.node_states import PlannedOperator, PlannedState

NO_PLAN = "-"
"""Argument on the command line, in place of the old query, if that query is not known."""

_NUMBERED = re.compile(r"^(?:Source: )?(\w+)\[(\d+)\]")
_UNKNOWN_TYPE = "?"


@dataclass(frozen=True)
class SqlCheckReport:
    """Report on which state of a savepoint a changed query can keep.

    Attributes:
        comparison: comparison of the two plans, without operators that have no state in the savepoint.
        binding: operators of the savepoint, matched with those of the old plan.
        notes: remarks on tables that the planner replaced by stubs, and hints.
        obstacle: reason why no migration can carry out the change although the state could be kept; else empty.
    """

    comparison: PlanComparison
    binding: Binding
    notes: tuple[str, ...]
    obstacle: str = ""

    @property
    def verdict(self) -> Verdict:
        """Verdict on the whole query; undetermined if the savepoint has state that the old plan does not explain."""
        if self.comparison.verdict is not Verdict.REFUSED and (self.binding.unknown or self.binding.misfits):
            return Verdict.UNDETERMINED
        return self.comparison.verdict

    @property
    def exact(self) -> bool:
        """Whether the kept state is the same as if the new query had processed all rows from the start."""
        return self.comparison.exact and self.verdict is not Verdict.UNDETERMINED

    @property
    def swaps(self) -> tuple[str, ...]:
        """Descriptions of state that Flink would restore without an error as state with another meaning."""
        found = [
            f"{_label(each)} / {state.name}: {state.swap}"
            for each in self.comparison.operators
            for state in each.states
            if state.swap and not (each.renamed and self._is_stored_by_uid(each.old))
        ]
        return (*found, *self._list_exchanged())

    def _is_stored_by_uid(self, operator: PlannedOperator | None) -> bool:
        return operator is not None and _is_uid(self.binding.labels.get(operator.uid), operator.uid)

    def _list_exchanged(self) -> Iterator[str]:
        """Describe new operators that would restore the state of a different old operator, which has the same uid."""
        old = {each.old.uid: each.old for each in self.comparison.operators if each.old is not None}
        for each in self.comparison.operators:
            before = None if each.new is None else old.get(each.new.uid)
            if each.new is None or before is None or before == each.old or not self._is_stored_by_uid(before):
                continue
            if before.kind == each.new.kind == "table-source-scan":
                yield f"{each.new.uid}: offsets of {before.meaning} would be taken for those of {each.new.meaning}"
            elif _has_equal_states(before, each.new):
                yield f"{each.new.uid}: the state of {before.meaning} would be taken for that of {each.new.meaning}"

    @property
    def restores_as_it_is(self) -> bool:
        """Whether the new query can start from the savepoint without a migration, and keeps all state."""
        return self.verdict is Verdict.CARRIED and all(
            each.old is not None
            and each.new is not None
            and _is_uid(self.binding.labels.get(each.old.uid), each.new.uid)
            and all(map(is_unchanged, each.states))
            for each in self.comparison.operators
        )

    def to_json(self) -> dict[str, object]:
        """Return the report as values for `json.dumps`."""
        return {
            "verdict": str(self.verdict),
            "exact": self.exact,
            "restores_as_it_is": self.restores_as_it_is,
            "silent_swaps": list(self.swaps),
            "operators": [_operator_to_json(each, self.binding) for each in self.comparison.operators],
            "ties": [{"old": list(each.old), "new": list(each.new)} for each in self.comparison.ties],
            "sinks": [
                {"table": each.table, "column": each.column, "old": each.old, "new": each.new}
                for each in self.comparison.sinks
            ],
            "missing_operators": list(self.binding.missing),
            "unknown_operators": list(self.binding.unknown),
            "misfits": list(self.binding.misfits),
            "obstacle": self.obstacle,
            "notes": list(self.notes),
        }

    def to_markdown(self) -> str:
        """Return the report as Markdown for a pull request."""
        lines = [f"### State of the SQL query: {escape_markdown(describe_verdict(self))}", ""]
        if self.swaps:
            lines.append("**Silent swap**: a restore of the savepoint as it is gives no error and wrong values.")
            lines += ["", *(f"- {escape_markdown(each)}" for each in self.swaps), ""]
        rows = [row for each in self.comparison.operators for row in list_rows(each)]
        if rows:
            lines += ["| operator | state | column | verdict | why |", "|---|---|---|---|---|"]
            lines += [f"| {' | '.join(escape_markdown(cell) for cell in row)} |" for row in rows]
            lines.append("")
        remarks = list_remarks(self)
        lines += [f"- {escape_markdown(each)}" for each in remarks]
        return "\n".join(lines).rstrip() + "\n"


def _is_uid(label: str | None, uid: str) -> bool:
    """Return whether the label of an operator of a savepoint is `uid`, or the operator id that Flink hashes from it."""
    return label in (uid, compute_operator_id(uid).hex())


def _has_equal_states(old: PlannedOperator, new: PlannedOperator) -> bool:
    """Return whether an operator would restore the states of another one without an error: names and types match."""
    if not new.states or old.key is None or new.key is None or old.key.describe() != new.key.describe():
        return False
    before = {each.name: (each.namespace, each.describe()) for each in old.states}
    return all(before.get(each.name) == (each.namespace, each.describe()) for each in new.states)


def check(
    old: str | None,
    new: str,
    snapshot: Snapshot | str,
    *,
    match: Mapping[str, str] | None = None,
    flink_home: str | None = None,
    flink: str | None = None,
    jars: Sequence[str] = (),
) -> SqlCheckReport:
    """Check whether the state of a savepoint can be kept by a changed query.

    Args:
        old: script (`.sql`) or compiled plan (`.json`) of the job that wrote the savepoint; None where it is not known.
        new: script or compiled plan that is to take the state.
        snapshot: the savepoint, or its path.
        match: maps the uid of an operator of the old plan to that of the new operator that keeps its state, if several
            new ones fit.
        flink_home: directory of an installed Flink, for scripts.
        flink: release line that the installed Flink must have.
        jars: jars of connectors, formats and functions, for scripts.

    Raises:
        UsageError: a script does not define exactly one job, or a uid is in no plan.
        FormatError: a plan is damaged.
    """
    opened = leave_out_plans(open_snapshot(snapshot) if isinstance(snapshot, str) else snapshot)
    paths = [new] if old is None else [old, new]
    loaded = load_queries(paths, flink_home=flink_home, flink=flink, jars=jars)
    notes = tuple(dict.fromkeys(note for each in loaded for note in each.notes))
    if old is None:
        return _check_without_plan(loaded[0].plan, opened, notes)
    before, after = (each.plan for each in loaded)
    return check_plans(before, after, opened, match=match, notes=notes)


def check_plans(
    old: Plan,
    new: Plan,
    snapshot: Snapshot,
    *,
    match: Mapping[str, str] | None = None,
    notes: tuple[str, ...] = (),
) -> SqlCheckReport:
    """Check two plans against a savepoint; see `check`."""
    snapshot = leave_out_plans(snapshot)
    binding = bind_operators(list_operators(old), snapshot)
    comparison = compare_plans(old, new, match)
    kept = tuple(
        each
        for each in comparison.operators
        if (each.old is not None and each.old.uid in binding.labels) or (each.old is None and each.new is not None)
    )
    kept = tuple(each for each in kept if each.old is not None or (each.new is not None and _may_keep(each.new)))
    ties = tuple(each for each in comparison.ties if any(uid in binding.labels for uid in each.old))
    report = SqlCheckReport(replace(comparison, operators=kept, ties=ties), binding, notes)
    if ties or report.verdict in (Verdict.REFUSED, Verdict.UNDETERMINED) or report.restores_as_it_is:
        return report
    try:
        draft_sql_revision(report.comparison, binding, snapshot, "check")
    except IncompatibleError as error:
        return replace(report, obstacle=str(error))
    return report


def leave_out_plans(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without declared plans: with them, its columns have other names than migrations use."""
    declared = snapshot.declarations
    return snapshot.with_declarations(replace(declared, plans=())) if declared.plans else snapshot


def _may_keep(operator: PlannedOperator) -> bool:
    return bool(operator.states) or operator.kind == "table-source-scan"


def bind_operators(planned: Sequence[PlannedOperator], snapshot: Snapshot) -> Binding:
    """Find the operators of a plan in the savepoint of its job: by uid, else by their states.

    A job of SQL text has no uids by default. Its operators are found by names and types of their states. Operators with
    equal states are matched in the order of the numbers in names such as `GroupAggregate[3]`.
    """
    stored = {each.metadata.operator_id: each for each in snapshot.operators}
    labels: dict[str, str] = {}
    used: set[bytes] = set()
    for each in planned:
        number = compute_operator_id(each.uid)
        if number in stored:
            used.add(number)
            if stored[number].states:
                labels[each.uid] = stored[number].label
    rest = [each for number, each in stored.items() if number not in used and each.states]
    if not any(number in used for number, each in stored.items() if each.states):
        found = _bind_by_states([each for each in planned if each.uid not in labels], rest)
        labels |= {uid: each.label for uid, each in found.items()}
        taken = {id(each) for each in found.values()}
        rest = [each for each in rest if id(each) not in taken]
    by_label = {each.label: each for each in stored.values()}
    misfits = tuple(
        text for each in planned if each.uid in labels for text in _find_misfits(each, by_label[labels[each.uid]])
    )
    missing = tuple(each.uid for each in planned if each.states and each.uid not in labels)
    return Binding(labels, missing, tuple(sorted(each.label for each in rest if _is_of_query(each))), misfits)


def _is_of_query(operator: Operator) -> bool:
    """Return whether an operator has keyed state or offsets of a source.

    Only these states can be derived from plans; the states of sinks and watermark assigners cannot.
    """
    return any(isinstance(each, KeyedState) or each.name == _READERS for each in operator.states)


_READERS = "SourceReaderState"


def _list_keyed(operator: Operator) -> dict[str, KeyedState]:
    return {
        each.name: each for each in operator.states if isinstance(each, KeyedState) and each.kind != StateKind.TIMER
    }


def _find_misfits(planned: PlannedOperator, stored: Operator) -> Iterator[str]:
    keyed = _list_keyed(stored)
    for state in planned.states:
        found = keyed.get(state.name)
        if found is not None and not _fits(state, found):
            yield (
                f"{planned.uid} / {state.name} holds {describe(found.info.value_serializer)}, and the old query says "
                f"{state.describe()}: it is not the query of the job that wrote the savepoint"
            )


def _fits(planned: PlannedState, stored: KeyedState) -> bool:
    """Return whether a stored state has the types of a planned one; a type that the plan leaves open (`?`) fits any."""
    text, found = planned.describe(), describe(stored.info.value_serializer)
    first, *others = text.split(_UNKNOWN_TYPE)
    return found.startswith(first) and found.endswith(others[-1]) if others else text == found


def _bind_by_states(planned: Sequence[PlannedOperator], stored: Sequence[Operator]) -> dict[str, Operator]:
    """Match planned operators with stored ones that have no uids; return the stored operators by planned uid.

    Operators with keyed states are matched by names and types of the states, sources by the name of their table.
    """
    found: dict[str, Operator] = {}
    wanted: dict[tuple[tuple[str, str], ...], list[PlannedOperator]] = {}
    for operator in planned:
        if operator.states:
            wanted.setdefault(tuple(sorted((each.name, each.describe()) for each in operator.states)), []).append(
                operator
            )
    fitting = {key: [each for each in stored if _has_states(each, operators[0])] for key, operators in wanted.items()}
    # Count the planned operators that each stored one fits: several may leave a type open, which any type fits.
    claims = Counter(each.label for candidates in fitting.values() for each in candidates)
    for key, operators in wanted.items():
        candidates = fitting[key]
        numbers = [_find_number(each) for each in candidates]
        if len(candidates) != len(operators) or (len(operators) > 1 and None in numbers):
            continue
        if any(claims[each.label] > 1 for each in candidates):
            continue
        ordered = sorted(candidates, key=lambda each: _find_number(each) or 0)
        found |= dict(zip((each.uid for each in sorted(operators, key=lambda one: one.node)), ordered, strict=True))
    sources = [each for each in stored if any(state.name == _READERS for state in each.states)]
    for operator in planned:
        if operator.kind != "table-source-scan" or operator.transformation != "source":
            continue
        name = operator.meaning.split(" where ")[0]
        same = [each for each in sources if (each.name or "").startswith(f"Source: {name}[")]
        if len(same) == 1:
            found[operator.uid] = same[0]
    return found


def _has_states(stored: Operator, planned: PlannedOperator) -> bool:
    """Return whether a stored operator has the keyed states of a planned one.

    Other keyed states must be views of user-defined functions, which are not in plans.
    """
    keyed = _list_keyed(stored)
    names = {each.name for each in planned.states}
    others = keyed.keys() - names
    return (
        names <= keyed.keys()
        and all(FUNCTION_VIEW.fullmatch(each) for each in others)
        and all(_fits(each, keyed[each.name]) for each in planned.states)
    )


def _find_number(operator: Operator) -> int | None:
    match = _NUMBERED.match(operator.name or "")
    return int(match[2]) if match else None


def _check_without_plan(new: Plan, snapshot: Snapshot, notes: tuple[str, ...]) -> SqlCheckReport:
    """Compare the states of the new plan with those of the savepoint by names and types alone."""
    operators: list[OperatorVerdict] = []
    stored = [(each, _list_keyed(each)) for each in snapshot.operators]
    reached: set[str] = set()
    for planned in list_operators(new):
        if not planned.states:
            continue
        names = {each.name for each in planned.states}
        similar = [(each, keyed) for each, keyed in stored if names & keyed.keys()]
        equal = [
            each
            for each, keyed in similar
            if names <= keyed.keys() and all(_fits(state, keyed[state.name]) for state in planned.states)
        ]
        reached |= {each.label for each, _ in similar}
        if equal:
            labels = ", ".join(each.label for each in equal)
            reason = f"{labels} has states of equal types; only the old query says whether they hold the same"
        elif similar:
            labels = ", ".join(each.label for each, _ in similar)
            reason = f"{labels} has states of these names and other types; only the old query says what they hold"
        else:
            reason = "the savepoint has no state of this kind"
        verdict = Verdict.UNDETERMINED if similar else Verdict.EMPTY
        states = tuple(StateVerdict(None, each, verdict, exact=False) for each in planned.states)
        operators.append(OperatorVerdict(None, planned, verdict, states, exact=False, reasons=(reason,)))
    lost = tuple(sorted(each.label for each, keyed in stored if keyed and each.label not in reached))
    binding = Binding({}, (), lost, ())
    hint = "give the old query (a script or compiled plan) for a verdict on columns"
    return SqlCheckReport(PlanComparison(tuple(operators), (), ()), binding, (*notes, hint))


# The report as text: verdicts, rows and remarks.


def describe_verdict(report: SqlCheckReport) -> str:
    """Return the verdict in a few words."""
    if report.obstacle:
        return "not carried out: some state could be kept, but no migration does it"
    match report.verdict:
        case Verdict.REFUSED:
            return "refused: some state cannot be kept"
        case Verdict.UNDETERMINED:
            return "to be determined"
        case Verdict.EMPTY:
            return "kept in part: some state starts empty"
        case _ if not report.exact:
            return "kept, but rows from before were made by the old query"
        case Verdict.DROPPED:
            return "kept, and some is dropped, which the new query does not need"
        case Verdict.COMPUTED:
            return "kept exactly: some is computed"
    return "kept exactly" + ("" if report.restores_as_it_is else ": names or positions change")


def _label(operator: OperatorVerdict) -> str:
    if operator.old is None:
        return "" if operator.new is None else operator.new.uid
    if operator.new is None or not operator.renamed:
        return operator.old.uid
    return f"{operator.old.uid} → {operator.new.uid}"


def list_rows(operator: OperatorVerdict) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield operator, state, column, verdict and reason: one row for the operator, and one for each change in it."""
    reasons = "; ".join(operator.reasons)
    if operator.renamed:
        reasons = f"renamed{'; ' if reasons else ''}{reasons}"
    yield (_label(operator), "", _find_subject(operator), _verdict_text(operator.verdict, operator.exact), reasons)
    for state in operator.states:
        name = _state_label(state)
        if state.old is None or state.new is None or state.reason or state.old.name != state.new.name:
            yield "", name, _shorten(state), _verdict_text(state.verdict, state.exact), state.reason
        same = [each for each in state.columns if each.verdict is Verdict.CARRIED and each.old == each.new]
        if same:
            yield "", name, ", ".join(each.meaning for each in same), str(Verdict.CARRIED), ""
        for column in state.columns:
            if column not in same:
                yield "", name, column.meaning, _verdict_text(column.verdict, column.exact), _explain_column(column)


def _find_subject(operator: OperatorVerdict) -> str:
    found = operator.new or operator.old
    if found is None or found.kind == "sink":
        return ""
    return found.meaning


def _shorten(state: StateVerdict) -> str:
    found = state.new or state.old
    return "" if found is None else found.meaning


def _state_label(state: StateVerdict) -> str:
    if state.old is None or state.new is None or state.old.name == state.new.name:
        return state.name
    return f"{state.old.name} → {state.new.name}"


def _verdict_text(verdict: Verdict, exact: bool) -> str:
    return f"{verdict}, not exact" if not exact and verdict in (Verdict.CARRIED, Verdict.COMPUTED) else str(verdict)


def _explain_column(column: ColumnVerdict) -> str:
    if column.verdict is Verdict.CARRIED and column.old is not None and column.new is not None:
        return f"column {column.old + 1} becomes column {column.new + 1}"
    return column.reason


def list_remarks(report: SqlCheckReport) -> list[str]:
    """Return remarks that the verdicts do not say: on ties, sinks and offsets, and on what to do next."""
    found = [f"tie: {each.describe()}; name pairs with --match OLD=NEW" for each in report.comparison.ties]
    found += [f"the savepoint has state of {each}, which the old query does not say" for each in report.binding.unknown]
    found += report.binding.misfits
    found += [f"the savepoint has no state of {each}, which the old query keeps" for each in report.binding.missing]
    if report.binding.unknown and report.binding.missing:
        found.append(
            "the old query is another one, or its nodes have other numbers in the job: give the compiled plan that the "
            "job was started from, since the numbers of a script are those of a session of its own"
        )
    tables: dict[str, list[str]] = {}
    for sink in report.comparison.sinks:
        tables.setdefault(sink.table, []).append(sink.column)
    found += [
        f"sink {table}: rows that it has already written keep their {', '.join(columns)} until their key changes"
        for table, columns in tables.items()
    ]
    sources = [
        each
        for each in report.comparison.operators
        if each.old is not None and each.old.kind == "table-source-scan" and (each.renamed or each.new is None)
    ]
    if any(each.renamed for each in sources):
        found.append(
            "offsets of sources are kept under other names: a restore with --allowNonRestoredState and without a "
            "migration would drop them, and read the tables from where their options say"
        )
    if report.obstacle:
        found.append(f"`sql migrate` does not carry out this change: {report.obstacle}")
    elif not report.restores_as_it_is and report.verdict not in (Verdict.REFUSED, Verdict.UNDETERMINED):
        found.append("the savepoint needs a migration before the new query starts from it")
    return [*found, *report.notes]


def _operator_to_json(operator: OperatorVerdict, binding: Binding) -> dict[str, object]:
    old = None if operator.old is None else operator.old.uid
    return {
        "old": old,
        "new": None if operator.new is None else operator.new.uid,
        "stored": None if old is None else binding.labels.get(old),
        "rows": _find_subject(operator),
        "verdict": str(operator.verdict),
        "exact": operator.exact,
        "reasons": list(operator.reasons),
        "states": [_state_to_json(each) for each in operator.states],
    }


def _state_to_json(state: StateVerdict) -> dict[str, object]:
    return {
        "old": None if state.old is None else state.old.name,
        "new": None if state.new is None else state.new.name,
        "verdict": str(state.verdict),
        "exact": state.exact,
        "derivation": None if state.derivation is None else str(state.derivation),
        "reason": state.reason,
        "silent_swap": state.swap,
        "columns": [
            {
                "name": each.name,
                "meaning": each.meaning,
                "type": each.type,
                "row": each.row,
                "old": each.old,
                "new": each.new,
                "verdict": str(each.verdict),
                "exact": each.exact,
                "derivation": None if each.derivation is None else str(each.derivation),
                "sources": list(each.sources),
                "view": each.view,
                "reason": each.reason,
            }
            for each in state.columns
        ],
    }
