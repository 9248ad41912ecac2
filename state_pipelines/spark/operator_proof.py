"""The proof of changed list and broadcast state: as `proof`, with subtasks in the place of key groups.

Elements are told apart by their places in the subtask's list, entries of broadcast state by their keys. What becomes of
broadcast state is compared with the copy of every subtask.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from state_pipelines.codecs.serializer_layouts import Carrying
from state_pipelines.keyed.column_digest import KEYS, ROWS
from state_pipelines.operations.migration.flows import keeps_rows
from state_pipelines.operations.migration.round_trips import describe_filters, describe_losses, plan_round_trips
from state_pipelines.operations.migration.shapes import BROADCAST
from state_pipelines.spark.comparisons import (
    COMPARED,
    GroupResult,
    compare_sums,
    judge_results,
    judge_rows,
    name_values,
)
from state_pipelines.spark.differing_rows import EXAMPLES, find_failed, find_rows
from state_pipelines.spark.digest_tasks import digest_frame
from state_pipelines.spark.failures import translate_failures
from state_pipelines.spark.flows import FlowRunner
from state_pipelines.spark.opaque_values import compares_bytes
from state_pipelines.spark.operator_state import (
    OperatorStateReader,
    choose_elements,
    find_state,
    make_encoder,
    to_elements,
)
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
from state_pipelines.spark.stages import PAYLOAD, hidden

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.keyed.column_digest import Sums
    from state_pipelines.operations.migration.flows import Flow
    from state_pipelines.operations.migration.plans import OperatorPlan
    from state_pipelines.operations.migration.round_trips import Return
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.snapshot import Operator
    from state_pipelines.spark.expectations import Judgement
    from state_pipelines.spark.meant import Meant
    from state_pipelines.spark.row_digests import Digested, RowColumns

_DESCRIPTIONS = {
    ROW_COUNTS: "every subtask has as many elements as before",
    KEY_SETS: "elements keep their places in the list of their subtask, entries of broadcast state their keys",
    KEY_HASHES: "operator state has no keys",
    ROUND_TRIP: "upgrade, then downgrade, gives the original values",
    READ_BACK: "what was written reads back as what was meant, in every subtask",
    OWN: "the rows of the new state are as the migration expects",
}


def prove_operator_states(
    spark: SparkSession, before: Operator, after: Operator, plan: OperatorPlan, meant: Mapping[str, Meant]
) -> ProofReport:
    """Compare the list and broadcast states of an operator as they were with those that were written.

    Args:
        spark: the session.
        before: the old operator.
        after: the new one, read back from the files that were written.
        plan: what was meant to happen to these states.
        meant: by new name, what was meant by what was written.

    Raises:
        StateError: one side cannot be read.
    """
    return _Prover(spark, before, after, plan, meant).prove()


class _Prover:
    def __init__(
        self,
        spark: SparkSession,
        before: Operator,
        after: Operator,
        plan: OperatorPlan,
        meant: Mapping[str, Meant],
    ) -> None:
        self.spark, self.before, self.after = spark, before, after
        self.plan, self.meant = plan, meant
        self.back_plan = plan if plan.back is None else plan.back
        self.trips = plan_round_trips(plan)
        self.notes = {name: trip.note for name, trip in self.trips.items() if trip.note}

    def prove(self) -> ProofReport:
        results: list[GroupResult] = []
        own: list[ProofCheck] = []
        with translate_failures("the proof cannot read the state"):
            for name, flow in self.plan.changed.items():
                results += self._compare(name, flow)
            judgements = judge_results(results, self.before.label)
            for name in self.plan.changed:
                own += self._judge_own(name)
        made = [self._make_check(name, results, judgements[name]) for name in COMPARED]
        made = [each if each.ok else replace(each, sample=self._find_rows(each.name, results)) for each in made]
        hashes = ProofCheck(KEY_HASHES, True, _DESCRIPTIONS[KEY_HASHES], "", "", "operator state has no keys")
        checks = (*made[:2], hashes, *made[2:], *own)
        total = sum(each.records or 0 for each in results)
        return ProofReport(self.before.label, ", ".join(self.plan.changed), total, 0, checks)

    def _compare(self, name: str, flow: Flow) -> Iterator[GroupResult]:
        """What was meant with what was written, and the old state with what comes back of it."""
        meant, shape = self.meant[name], flow.shape
        rows = self._read_new(Carrying.OPAQUE).read(name, ())
        written = self._digest(rows, shape, self.plan.row_layouts).sums
        for subtask, left, right in self._pair(name, shape, meant.digested.sums, written):
            values = {
                ROW_COUNTS: compare_sums({ROWS: "elements"}, left, right),
                KEY_SETS: compare_sums({KEYS: "places"}, left, right),
                READ_BACK: compare_sums(name_values(meant.columns), left, right),
            }
            yield GroupResult(name, subtask, values, 0 if right is None else right[ROWS], 0, 0)
        for back in self.trips[name].returns:
            yield from self._compare_returned(name, flow, back)

    def _read_new(self, carried: Carrying) -> OperatorStateReader:
        return OperatorStateReader(self.spark, self.after, all_copies=True, carried=carried)

    def _compare_returned(self, name: str, flow: Flow, back: Return) -> Iterator[GroupResult]:
        carried = Carrying.OPAQUE if compares_bytes(flow, back, self.plan) else Carrying.UNKNOWN
        lost = frozenset(back.lost)
        layouts, back_layouts = (replace(each.context.layouts, carried=carried) for each in (self.plan, self.back_plan))
        frame = FlowRunner(self._read_new(carried), back_layouts).build(back.way)
        returned = self._digest(frame, back.way.shape, back_layouts, lost)
        if self.meant[name].source == back.old:
            old = self.meant[name].old
        else:
            rows = OperatorStateReader(self.spark, self.before, carried=carried).read(back.old, ())
            old = self._digest(rows, back.shape, layouts, lost)
        columns = (
            self._choose(back.shape, layouts, lost),
            self._choose(back.way.shape, back_layouts, lost),
        )
        names = {ROWS: f"records of {back.old}"} | name_values(columns[0]) | name_values(columns[1])
        for subtask, left, right in self._pair(name, back.shape, old.sums, returned.sums):
            yield GroupResult(name, subtask, {ROUND_TRIP: compare_sums(names, left, right)}, None, 0, 0)

    def _choose(self, shape: StateShape, layouts: LayoutContext, lost: frozenset[str]) -> RowColumns:
        return choose_elements(make_encoder(self.before, shape, layouts), lost)

    def _digest(
        self, frame: DataFrame, shape: StateShape, layouts: LayoutContext, lost: frozenset[str] = frozenset()
    ) -> Digested:
        encoder = make_encoder(self.before, shape, layouts)
        return digest_frame(to_elements(frame, shape), encoder.types, choose_elements(encoder, lost))

    def _pair(
        self, name: str, shape: StateShape, before: Sums, after: Sums
    ) -> Iterator[tuple[int, Mapping[str, int] | None, Mapping[str, int] | None]]:
        """The two sides in every subtask."""
        if shape.kind == BROADCAST:
            # One copy was migrated, and all are what became of it.
            (copy,) = before.values() or [None]
            before = {part.subtask: copy for part in find_state(self.after, name).parts} if copy else {}
        for subtask in sorted(before.keys() | after.keys()):
            yield subtask, before.get(subtask), after.get(subtask)

    def _find_rows(self, check: str, results: list[GroupResult]) -> list[dict[str, Any]]:
        """Examples of what a failed check is about."""
        rows: list[dict[str, Any]] = []
        with translate_failures("the proof cannot read the state"):
            for name, flow in self.plan.changed.items():
                fields, places = find_failed(results, check, name)
                place = ("subtask", places)
                if not places:
                    continue
                if check != ROUND_TRIP:
                    sides = {"after": self._read_new(Carrying.OPAQUE).read(name, ())}
                    old = OperatorStateReader(self.spark, self.before, all_copies=True)
                    sides["expected"] = FlowRunner(old, self.plan.row_layouts).build(flow)
                    rows += [{"state": name, **row} for row in find_rows(sides, ("after", "expected"), place, fields)]
                    continue
                for back in self.trips[name].returns:
                    carried = Carrying.OPAQUE if compares_bytes(flow, back, self.plan) else Carrying.UNKNOWN
                    layouts = replace(self.back_plan.context.layouts, carried=carried)
                    before = OperatorStateReader(self.spark, self.before, all_copies=True, carried=carried)
                    sides = {"before": before.read(back.old, ())}
                    sides |= {"after": self._read_new(carried).read(name, ())} if keeps_rows(flow) else {}
                    sides["comes back as"] = FlowRunner(self._read_new(carried), layouts).build(back.way)
                    names = fields - set(back.lost)
                    found = find_rows(sides, ("before", "comes back as"), place, names, kept=back.kept)
                    rows += [{"state": name, **row, "expected": row["before"]} for row in found]
        return rows[:EXAMPLES]

    def _make_check(self, name: str, results: list[GroupResult], judgement: Judgement) -> ProofCheck:
        different: dict[str, list[int]] = {}
        compared: dict[str, None] = {}
        for result in results:
            for what, before, after in result.values.get(name, ()):
                compared[f"{result.state}: {what}"] = None
                if before != after:
                    different.setdefault(f"{result.state}: {what}", []).append(result.place)
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
        if name == ROUND_TRIP and self.plan.back is None:
            return "without a downgrade there is no round trip to judge"
        if name in (ROW_COUNTS, KEY_SETS):
            reasons = describe_filters(self.plan)
            if reasons:
                return f"there are exactly the elements that the steps leave (left out: {reasons})"
        losses = describe_losses(self.plan)
        if name == ROUND_TRIP and losses:
            return f"{_DESCRIPTIONS[name]}, but for the declared loss ({losses})"
        return _DESCRIPTIONS[name]

    def _judge_own(self, name: str) -> Iterator[ProofCheck]:
        wanted = self.plan.expectations.get(name, ())
        if not wanted:
            return
        frame = OperatorStateReader(self.spark, self.after, carried=Carrying.UNKNOWN).read(name, ())
        shown = [
            F.col(hidden(each)).alias(each)
            for each in ("subtask", "list_index", "map_key")
            if hidden(each) in frame.columns
        ]
        frame = frame.select(*shown, F.col(PAYLOAD).alias(self.plan.states[name].shape.column))
        yield judge_rows(frame, name, wanted, _DESCRIPTIONS[OWN])
