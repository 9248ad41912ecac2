"""Verdicts on the state of a SQL query that changes, for each operator, state and column."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from state_pipelines.sql.conversions import Derivation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from state_pipelines.sql.matching import Tie
    from state_pipelines.sql.node_states import PlannedOperator, PlannedState


class Verdict(StrEnum):
    """Verdict on a column, a state or an operator.

    Attributes:
        CARRIED: its content stays exactly the same; operators and states may have other names.
        COMPUTED: it is computed from columns that the old state has.
        EMPTY: it starts empty, so it lacks the rows from before.
        DROPPED: the new query does not have it.
        REFUSED: the new query needs it, and there is no correct way to compute it.
        UNDETERMINED: of a whole plan: some operators fit each other equally well (`PlanComparison.ties`).
    """

    CARRIED = "carried"
    COMPUTED = "computed"
    EMPTY = "starts empty"
    DROPPED = "dropped"
    REFUSED = "refused"
    UNDETERMINED = "to be determined"


_ORDER = (
    Verdict.CARRIED,
    Verdict.COMPUTED,
    Verdict.EMPTY,
    Verdict.UNDETERMINED,
    Verdict.REFUSED,
)


def find_worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the worst verdict of the columns of a state or the states of an operator, apart from dropped ones."""
    kept = [each for each in verdicts if each is not Verdict.DROPPED]
    return max(kept, key=_ORDER.index, default=Verdict.CARRIED)


@dataclass(frozen=True)
class ColumnVerdict:
    """Verdict on a column of a row in a state.

    Attributes:
        name: name of the column in the new row; in the old row if it is dropped.
        meaning: what it holds, in columns of tables.
        type: SQL type as text.
        verdict: carried, computed, empty, dropped or refused.
        row: index of the row in the state.
        old: index in the old row, if one column is the source.
        new: index in the new row; None if it is dropped.
        derivation: how it is computed; None if it is dropped or refused.
        sources: indices in the old row of all columns that it is computed from.
        view: name of the old state whose values are aggregated to it; None if it is computed from columns.
        exact: whether it equals the result of running the new query over all rows.
        reason: explanation for users; empty if the column is simply carried.
    """

    name: str
    meaning: str
    type: str
    verdict: Verdict
    row: int
    old: int | None = None
    new: int | None = None
    derivation: Derivation | None = None
    sources: tuple[int, ...] = ()
    view: str | None = None
    exact: bool = True
    reason: str = ""


@dataclass(frozen=True)
class SortColumn:
    """A column by which a rank chooses rows.

    Attributes:
        index: index of the column in the old row.
        ascending: whether lesser values come first.
        nulls_last: whether NULL comes last.
    """

    index: int
    ascending: bool
    nulls_last: bool


@dataclass(frozen=True)
class FirstRows:
    """The rows that a rank keeps for each key: the first ones by an order, and of equal rows those that arrived first.

    Attributes:
        limit: number of rows.
        order: columns, the first one first.
    """

    limit: int
    order: tuple[SortColumn, ...]


@dataclass(frozen=True)
class StateVerdict:
    """Verdict on a state: whether and how a changed query takes it over.

    Attributes:
        old: the state in the old plan; None if it is new.
        new: the state in the new plan; None if it is dropped.
        verdict: verdict on the state as a whole.
        columns: verdicts on the columns of its rows; the columns of new rows come first.
        derivation: how the old layout is converted to the new one; None if the layout stays.
        bits: for a view of distinct values whose calls change: for each call of the new view, the old call (by
            position) whose bit it gets, or None. None as a whole if values keep their bits.
        first: the rows that a rank keeps if it keeps fewer than before; None if all are kept.
        last: number of rows in the window of an OVER if it has fewer than before; None if all are kept.
        unmatched: for a join whose matches are counted, the key columns in which NULL matches nothing.
        exact: whether it is what a run of the new query over all rows would hold.
        reason: in words.
        swap: contents that a restore without a migration would confuse without an error; empty if there are none.
    """

    old: PlannedState | None
    new: PlannedState | None
    verdict: Verdict
    columns: tuple[ColumnVerdict, ...] = ()
    derivation: Derivation | None = None
    bits: tuple[int | None, ...] | None = None
    first: FirstRows | None = None
    last: int | None = None
    unmatched: tuple[int, ...] = ()
    exact: bool = True
    reason: str = ""
    swap: str = ""

    @property
    def name(self) -> str:
        """Name of the new state, or of the old one if it is dropped."""
        found = self.new or self.old
        return "" if found is None else found.name


@dataclass(frozen=True)
class OperatorVerdict:
    """Verdict on an operator: whether and how a changed query takes over its state.

    Attributes:
        old: the operator in the old plan; None if it is new.
        new: the operator in the new plan; None if it is dropped.
        verdict: verdict on the operator as a whole.
        states: its keyed states that are known.
        exact: whether all of its state equals the result of running the new query over all rows.
        reasons: explanations for the operator as a whole.
    """

    old: PlannedOperator | None
    new: PlannedOperator | None
    verdict: Verdict
    states: tuple[StateVerdict, ...] = ()
    exact: bool = True
    reasons: tuple[str, ...] = ()

    @property
    def renamed(self) -> bool:
        """Whether the operator has another uid."""
        return self.old is not None and self.new is not None and self.old.uid != self.new.uid

    @property
    def is_same(self) -> bool:
        """Whether the state can stay as it is; only the uid may differ."""
        return (
            self.verdict is Verdict.CARRIED
            and self.exact
            and not self.reasons
            and all(is_unchanged(each) for each in self.states)
        )


@dataclass(frozen=True)
class SinkChange:
    """A column of a sink whose content changes; a row in the sink keeps the old content until it is updated.

    Attributes:
        table: table of the sink.
        column: name of the column.
        old: the old content as text; empty if the column is new.
        new: the new content as text.
    """

    table: str
    column: str
    old: str
    new: str


@dataclass(frozen=True)
class PlanComparison:
    """Result of the comparison of two plans: verdicts on the operators, and columns of sinks that change.

    Attributes:
        operators: verdicts on operators with known state, on sources and on sinks: first the operators of the new plan
            in its order, then dropped ones.
        ties: operators without a verdict, because several fit each other equally well; the user pairs them by `match`.
        sinks: columns of sinks with another content.
    """

    operators: tuple[OperatorVerdict, ...]
    ties: tuple[Tie, ...]
    sinks: tuple[SinkChange, ...]

    @property
    def verdict(self) -> Verdict:
        """Verdict on all operators together."""
        found = [each.verdict for each in self.operators]
        worst = find_worst([*found, Verdict.UNDETERMINED] if self.ties else found)
        loses = worst in (Verdict.CARRIED, Verdict.COMPUTED) and Verdict.DROPPED in found
        return Verdict.DROPPED if loses else worst

    @property
    def exact(self) -> bool:
        """Whether all state equals what a run of the new query over all rows would have built."""
        return not self.ties and all(each.exact for each in self.operators)


def is_unchanged(state: StateVerdict) -> bool:
    """Return whether the bytes of a state stay as they are, its name too."""
    return (
        state.old is not None
        and state.new is not None
        and state.verdict is Verdict.CARRIED
        and (state.old.name, state.old.describe()) == (state.new.name, state.new.describe())
        and all(each.old == each.new and each.derivation is Derivation.COPY for each in state.columns)
    )


@dataclass(frozen=True)
class Binding:
    """The operators of a savepoint, matched with those of the plan of its job.

    Attributes:
        labels: labels of operators of the savepoint, by their uid in the plan.
        missing: uids of operators of the plan with keyed state, which the savepoint does not have.
        unknown: labels of operators of the savepoint that have state, but are not in the plan.
        misfits: descriptions of states whose types differ from the plan.
    """

    labels: Mapping[str, str]
    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    misfits: tuple[str, ...]
