"""The proof of changed list and broadcast state: as `proof`, with subtasks in the place of key groups.

Elements are told apart by their places in the subtask's list, entries of broadcast state by their keys. What becomes of
broadcast state is compared with the copy of every subtask.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from state_pipelines.operations.migration.flows import (
    Apply,
    Flow,
    Keep,
    find_reads,
    is_aligned,
    keeps_rows,
    walk_flow,
)
from state_pipelines.operations.migration.shapes import BROADCAST
from state_pipelines.spark.comparisons import COMPARED, Pair, make_expectation, pair_keys, pair_payloads, to_text
from state_pipelines.spark.digests import Metric, count_rows, identify
from state_pipelines.spark.expectations import SAMPLE_SIZE, Judgement, import_expectations, judge, judge_table
from state_pipelines.spark.failures import translate_failures
from state_pipelines.spark.flows import PAYLOAD, STORED, FlowRunner, hidden
from state_pipelines.spark.operator_state import SUBTASK, OperatorStateReader, find_state
from state_pipelines.spark.reports import (
    KEY_HASHES,
    KEY_SETS,
    OWN,
    READ_BACK,
    ROUND_TRIP,
    ROW_COUNTS,
    ProofCheck,
    ProofReport,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from great_expectations.expectations.expectation import Expectation

    from state_pipelines.operations.migration.planning import OperatorPlan
    from state_pipelines.snapshot import Operator

_DESCRIPTIONS = {
    ROW_COUNTS: "every subtask has as many elements as before",
    KEY_SETS: "elements keep their places in the list of their subtask, entries of broadcast state their keys",
    KEY_HASHES: "operator state has no keys",
    ROUND_TRIP: "upgrade, then downgrade, gives the original values",
    READ_BACK: "what was written reads back as what was meant, in every subtask",
    OWN: "the rows of the new state are as the migration expects",
}


@dataclass(frozen=True)
class _Comparison:
    """Two frames and what of them must be equal.

    Attributes:
        written: the right side is what was written, so that its rows count.
    """

    left: DataFrame
    right: DataFrame
    pairs: tuple[Pair, ...]
    written: bool


@dataclass(frozen=True)
class _Row:
    """One state in one subtask; `values` by check: what was compared, and what it is before and after."""

    state: str
    subtask: int
    values: Mapping[str, list[tuple[str, str, str]]]
    records: int


def prove_operator_states(
    spark: SparkSession, before: Operator, after: Operator, plan: OperatorPlan, kept: Mapping[str, DataFrame]
) -> ProofReport:
    """Compare the list and broadcast states of an operator as they were with those that were written.

    Args:
        spark: the session.
        before: the old operator.
        after: the new one, read back from the files that were written.
        plan: what was meant to happen to these states.
        kept: by new name, the rows that were written, where making them again would give others.

    Raises:
        StateError: one side cannot be read.
    """
    return _Prover(spark, before, after, plan, kept).prove()


@dataclass
class _Prover:
    spark: SparkSession
    before: Operator
    after: Operator
    plan: OperatorPlan
    kept: Mapping[str, DataFrame]
    notes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.old = OperatorStateReader(self.spark, self.before)
        self.new = OperatorStateReader(self.spark, self.after, all_copies=True)
        self.layouts = self.plan.context.layouts
        self.back_layouts = self.layouts if self.plan.back is None else self.plan.back.context.layouts

    def prove(self) -> ProofReport:
        rows: list[_Row] = []
        own: list[ProofCheck] = []
        with translate_failures("the proof cannot read the state"):
            for name, flow in self.plan.changed.items():
                for comparison in self._compare(name, flow):
                    rows += self._run(name, comparison)
            judgements = judge_table(_make_table(rows), self.before.label, _expectations())
            for name in self.plan.changed:
                own += self._judge_own(name)
        made = [self._make_check(name, rows, each) for name, each in zip(COMPARED, judgements, strict=True)]
        hashes = ProofCheck(KEY_HASHES, True, _DESCRIPTIONS[KEY_HASHES], "", "", "operator state has no keys")
        checks = (*made[:2], hashes, *made[2:], *own)
        return ProofReport(self.before.label, ", ".join(self.plan.changed), sum(row.records for row in rows), 0, checks)

    def _losses(self, name: str, flow: Flow) -> dict[str, str]:
        names = [name, *find_reads(flow)]
        return {lost: reason for each in names for lost, reason in self.plan.losses.get(each, {}).items()}

    def _compare(self, name: str, flow: Flow) -> Iterator[_Comparison]:
        """Both sides in one pass each, where every row comes of one; else what was meant, written and taken back."""
        (source,) = find_reads(flow)
        back = None if self.plan.back is None else self.plan.back.states.get(source)
        losses = self._losses(name, flow)
        if back is not None and find_reads(back) != (name,):
            back = None
        if back is not None and is_aligned(flow) and is_aligned(back) and keeps_rows(back) and name not in self.kept:
            left = FlowRunner(self.old, self.layouts, stored=True).build(flow)
            right = FlowRunner(self.new, self.back_layouts, stored=True).build(back)
            returned = pair_payloads(ROUND_TRIP, left, right, (STORED, PAYLOAD), losses)
            written = pair_payloads(READ_BACK, left, right, (PAYLOAD, STORED), {})
            yield _Comparison(left, right, (*_pair_rows(), *returned, *written), written=True)
            return
        left = self.kept[name] if name in self.kept else FlowRunner(self.old, self.layouts).build(flow)
        right = self.new.read(name, ())
        written = pair_payloads(READ_BACK, left, right, (PAYLOAD, PAYLOAD), {})
        yield _Comparison(left, right, (*_pair_rows(), *written), written=True)
        if back is None:
            end = self.plan.impossible.get(source) or self.plan.reason or f"no state goes back to {source}"
            self.notes[name] = f"there is no way back: {end}"
        elif any(isinstance(each, Apply) and isinstance(each.stage, Keep) for each in walk_flow(flow)):
            self.notes[name] = "not judged, since rows were left out before other rows came of them"
        else:
            left = self.old.read(source, ())
            right = FlowRunner(self.new, self.back_layouts).build(back)
            returned = pair_payloads(ROUND_TRIP, left, right, (PAYLOAD, PAYLOAD), losses)
            counts = Pair(ROUND_TRIP, f"records of {source}", count_rows(), count_rows())
            yield _Comparison(left, right, (counts, *returned), written=False)

    def _run(self, name: str, comparison: _Comparison) -> list[_Row]:
        """Both sides per subtask, which is all that reaches the driver."""
        before = _profile(comparison.left, [pair.before for pair in comparison.pairs])
        after = _profile(comparison.right, [pair.after for pair in comparison.pairs])
        if self.plan.states[name].shape.kind == BROADCAST:
            # One copy was migrated, and all are what became of it.
            (copy,) = before.values() or [()]
            before = {part.subtask: copy for part in find_state(self.after, name).parts} if copy else {}
        rows = []
        for subtask in sorted(before.keys() | after.keys()):
            sides = [side.get(subtask) or ("none",) * len(comparison.pairs) for side in (before, after)]
            values: dict[str, list[tuple[str, str, str]]] = {}
            for pair, one, other in zip(comparison.pairs, *sides, strict=True):
                values.setdefault(pair.check, []).append((pair.what, one, other))
            records = int(after[subtask][0]) if comparison.written and subtask in after else 0
            rows.append(_Row(name, subtask, values, records))
        return rows

    def _make_check(self, name: str, rows: list[_Row], judgement: Judgement) -> ProofCheck:
        different: dict[str, list[int]] = {}
        compared: dict[str, None] = {}
        for row in rows:
            for what, before, after in row.values.get(name, ()):
                compared[f"{row.state}: {what}"] = None
                if before != after:
                    different.setdefault(f"{row.state}: {what}", []).append(row.subtask)
        notes = [f"{state}: {note}" for state, note in self.notes.items()] if name == ROUND_TRIP else []
        same = [f"equal in every subtask: {', '.join(compared)}"] if compared else []
        observed = "; ".join([*same, *notes]) or "no elements"
        if not judgement.success:
            told = [f"{what} in subtask {', '.join(map(str, subtasks))}" for what, subtasks in different.items()]
            observed = f"different: {'; '.join([*told, *([judgement.error] if judgement.error else [])])}"
        return ProofCheck(
            name=name,
            ok=judgement.success,
            description=self._describe(name),
            expectation=judgement.expectation,
            expected="equal before and after, per subtask",
            observed=observed,
            sample=judgement.sample,
        )

    def _describe(self, name: str) -> str:
        changed = self.plan.changed
        if name == ROUND_TRIP and self.plan.back is None:
            return "without a downgrade there is no round trip to judge"
        if name in (ROW_COUNTS, KEY_SETS):
            stages = [each.stage for flow in changed.values() for each in walk_flow(flow) if isinstance(each, Apply)]
            kept = dict.fromkeys(each.reason for each in stages if isinstance(each, Keep))
            if kept:
                return f"there are exactly the elements that the steps leave (left out: {'; '.join(kept)})"
        losses = {lost: why for state, flow in changed.items() for lost, why in self._losses(state, flow).items()}
        if name == ROUND_TRIP and losses:
            lost = "; ".join(f"{name}: {reason}" for name, reason in losses.items())
            return f"{_DESCRIPTIONS[name]}, but for the declared loss ({lost})"
        return _DESCRIPTIONS[name]

    def _judge_own(self, name: str) -> Iterator[ProofCheck]:
        wanted = self.plan.expectations.get(name, ())
        if not wanted:
            return
        frame = OperatorStateReader(self.spark, self.after).read(name, ())
        shown = [
            F.col(hidden(each)).alias(each)
            for each in ("subtask", "list_index", "map_key")
            if hidden(each) in frame.columns
        ]
        frame = frame.select(*shown, F.col(PAYLOAD).alias(self.plan.states[name].shape.column))
        paths = [str(value) for each in wanted for key, value in each.arguments if key.lower().startswith("column")]
        nested = [F.col(path).alias(path.replace(".", "_")) for path in dict.fromkeys(paths) if "." in path]
        judgements = judge(frame.select("*", *nested), name, [make_expectation(each) for each in wanted])
        failed = [(each, found) for each, found in zip(wanted, judgements, strict=True) if not found.success]
        yield ProofCheck(
            name=OWN,
            ok=not failed,
            description=_DESCRIPTIONS[OWN],
            expectation=", ".join(dict.fromkeys(each.type for each in wanted)),
            expected="; ".join(str({"type": each.type, **dict(each.arguments)}) for each in wanted),
            observed="; ".join(f"{each.type}: {found.error or found.observed}" for each, found in failed)
            or f"{len(wanted)} expectations hold",
            sample=[row for _, found in failed for row in found.sample][:SAMPLE_SIZE],
        )


def _identity(frame: DataFrame) -> tuple[str, ...]:
    return tuple(name for name in map(hidden, ("list_index", "map_key")) if name in frame.columns)


def _pair_rows() -> tuple[Pair, Pair]:
    return Pair(ROW_COUNTS, "elements", count_rows(), count_rows()), pair_keys(KEY_SETS, "places")


def _profile(frame: DataFrame, metrics: list[Metric]) -> dict[int, tuple[str, ...]]:
    """The metrics of every subtask, as text."""
    frame = identify(frame, _identity(frame))
    columns = [metric(frame).alias(str(index)) for index, metric in enumerate(metrics)]
    rows: list[Any] = frame.groupBy(SUBTASK).agg(*columns).collect()
    return {row[0]: tuple(map(to_text, row[1:])) for row in rows}


def _make_table(rows: list[_Row]) -> dict[str, list[Any]]:
    """A row per state and subtask; digests as text."""

    def tell(row: _Row, check: str, side: int) -> str:
        return ", ".join(f"{each[0]} {each[side]}" for each in row.values.get(check, ()))

    table: dict[str, list[Any]] = {"state": [row.state for row in rows], "subtask": [row.subtask for row in rows]}
    for side, number in (("before", 1), ("after", 2)):
        table |= {f"{side}_{check}": [tell(row, check, number) for row in rows] for check in COMPARED}
    return table


def _expectations() -> list[Expectation]:
    gxe = import_expectations()
    return [
        gxe.ExpectColumnPairValuesToBeEqual(column_A=f"before_{check}", column_B=f"after_{check}") for check in COMPARED
    ]
