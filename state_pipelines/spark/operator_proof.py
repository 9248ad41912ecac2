"""The proof of changed list and broadcast state: as `proof`, with subtasks in the place of key groups.

Elements are identified by their index in the list of their subtask, entries of broadcast state by their keys. The
expected broadcast state is compared with the copy of every subtask.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.codecs.serializer_layouts import OpaqueValues
from state_pipelines.keyed.digests.column_digests import KEYS, ROWS
from state_pipelines.operations.migration.flows import keeps_rows
from state_pipelines.operations.migration.round_trips import describe_filters, describe_losses, plan_round_trips
from state_pipelines.operations.migration.shapes import BROADCAST
from state_pipelines.operations.proofs.proof_reports import (
    AFTER,
    BEFORE,
    DESCRIPTIONS,
    EXPECTED,
    KEY_SETS,
    READ_BACK,
    RETURNED,
    ROUND_TRIP,
    ROW_COUNTS,
    ProofCheck,
    ProofReport,
    combine_reports,
)
from state_pipelines.spark.comparisons import COMPARED, GroupResult, compare_sums, differ, make_check, name_values
from state_pipelines.spark.differing_rows import FoundRows, combine_found, find_failed, find_rows
from state_pipelines.spark.digest_tasks import digest_frame
from state_pipelines.spark.expectations import judge_rows
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
from state_pipelines.spark.state_rows import read_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.keyed.digests.column_digests import Sums
    from state_pipelines.operations.migration.flows import Flow
    from state_pipelines.operations.migration.migration_plan import OperatorPlan
    from state_pipelines.operations.migration.round_trips import Return
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.snapshot import Operator
    from state_pipelines.spark.expected_digests import ExpectedDigests
    from state_pipelines.spark.row_digests import Digested, RowColumns

_DESCRIPTIONS = DESCRIPTIONS | {
    ROW_COUNTS: "every subtask has as many elements as before",
    KEY_SETS: "elements keep their index in the list of their subtask, entries of broadcast state their keys",
}


def prove_operator_states(
    spark: SparkSession,
    before: Operator,
    after: Operator,
    plan: OperatorPlan,
    expected: Mapping[str, ExpectedDigests],
) -> ProofReport:
    """Compare the list and broadcast states of an operator as they were with those that were written.

    Args:
        spark: the session.
        before: the old operator.
        after: the new one, read back from the files that were written.
        plan: of these states.
        expected: by new name, digests of the expected rows.

    Raises:
        StateError: one side cannot be read.
    """
    return _Prover(spark, before, after, plan, expected).prove()


class _Prover:
    def __init__(
        self,
        spark: SparkSession,
        before: Operator,
        after: Operator,
        plan: OperatorPlan,
        expected: Mapping[str, ExpectedDigests],
    ) -> None:
        self.spark, self.before, self.after = spark, before, after
        self.plan, self.expected = plan, expected
        self.back_plan = plan if plan.back is None else plan.back
        self.trips = plan_round_trips(plan)
        self.notes = {name: trip.note for name, trip in self.trips.items() if trip.note}

    def prove(self) -> ProofReport:
        started = time.monotonic()
        results: list[GroupResult] = []
        changed = self.plan.changed
        with translate_failures("the proof cannot read the state"):
            for name, flow in changed.items():
                results += self._compare(name, flow)
            own = [ProofReport("", name, 0, 0, tuple(each)) for name in changed if (each := self._judge_own(name))]
            differing = {name: self._find_rows(name, results) for name in COMPARED if differ(results, name)}
        told = [f"{state}: {note}" for state, note in self.notes.items()]
        judged = any(self.trips[name].returns for name in changed)
        made = tuple(
            make_check(
                name,
                results,
                differing.get(name),
                place="subtask",
                description=self._describe(name),
                notes=told if name == ROUND_TRIP else (),
            )
            for name in COMPARED
            if name != ROUND_TRIP or judged
        )
        checks = (*made, *(combine_reports(own).checks if own else ()))
        total = sum(each.records or 0 for each in results)
        reason = "; ".join(told) or "there is no way back"
        notes = () if judged else (f"{ROUND_TRIP} is not judged: {reason}",)
        seconds = time.monotonic() - started
        return ProofReport(self.before.label, ", ".join(changed), total, 0, checks, seconds, notes=notes)

    def _compare(self, name: str, flow: Flow) -> Iterator[GroupResult]:
        """Compare expected with written rows, and the old state with the downgraded one."""
        expected, shape = self.expected[name], flow.shape
        rows = self._read_new(OpaqueValues.ALL).read(name, ())
        written = self._digest(rows, shape, self.plan.row_layouts).sums
        for subtask, left, right in self._pair(name, shape, expected.digested.sums, written):
            values = {
                ROW_COUNTS: compare_sums({ROWS: "elements"}, left, right),
                KEY_SETS: compare_sums({KEYS: "places"}, left, right),
                READ_BACK: compare_sums(name_values(expected.columns), left, right),
            }
            yield GroupResult(name, subtask, values, 0 if right is None else right[ROWS], 0, 0)
        for back in self.trips[name].returns:
            yield from self._compare_returned(name, flow, back)

    def _read_new(self, opaque_values: OpaqueValues) -> OperatorStateReader:
        return OperatorStateReader(self.spark, self.after, all_copies=True, opaque_values=opaque_values)

    def _compare_returned(self, name: str, flow: Flow, back: Return) -> Iterator[GroupResult]:
        opaque_values = OpaqueValues.ALL if compares_bytes(flow, back, self.plan) else OpaqueValues.UNDECODABLE
        lost = frozenset(back.lost)
        layouts, back_layouts = (
            replace(each.context.layouts, opaque_values=opaque_values) for each in (self.plan, self.back_plan)
        )
        frame = FlowRunner(self._read_new(opaque_values), back_layouts).build(back.way)
        returned = self._digest(frame, back.way.shape, back_layouts, lost)
        if self.expected[name].source == back.old:
            old = self.expected[name].old
        else:
            rows = OperatorStateReader(self.spark, self.before, opaque_values=opaque_values).read(back.old, ())
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

    def _find_rows(self, check: str, results: list[GroupResult]) -> FoundRows:
        """Rows that a failed check is about."""
        found: list[FoundRows] = []
        for name, flow in self.plan.changed.items():
            fields, places = find_failed(results, check, name)
            if not places:
                continue
            place = ("subtask", places)
            if check != ROUND_TRIP:
                sides = {AFTER: self._read_new(OpaqueValues.ALL).read(name, ())}
                old = OperatorStateReader(self.spark, self.before, all_copies=True)
                sides[EXPECTED] = FlowRunner(old, self.plan.row_layouts).build(flow)
                found.append(find_rows(name, sides, (EXPECTED, AFTER), place, fields))
                continue
            for back in self.trips[name].returns:
                opaque_values = OpaqueValues.ALL if compares_bytes(flow, back, self.plan) else OpaqueValues.UNDECODABLE
                layouts = replace(self.back_plan.context.layouts, opaque_values=opaque_values)
                before = OperatorStateReader(self.spark, self.before, all_copies=True, opaque_values=opaque_values)
                sides = {BEFORE: before.read(back.old, ())}
                sides |= {AFTER: self._read_new(opaque_values).read(name, ())} if keeps_rows(flow) else {}
                sides[RETURNED] = FlowRunner(self._read_new(opaque_values), layouts).build(back.way)
                names = fields - set(back.lost)
                found.append(find_rows(name, sides, (BEFORE, RETURNED), place, names, kept=back.kept))
        return combine_found(found)

    def _describe(self, name: str) -> str:
        if name in (ROW_COUNTS, KEY_SETS):
            reasons = describe_filters(self.plan)
            if reasons:
                return f"there are exactly the elements that the steps leave (left out: {reasons})"
        losses = describe_losses(self.plan)
        if name == ROUND_TRIP and losses:
            return f"{_DESCRIPTIONS[name]}, but for the declared loss ({losses})"
        return _DESCRIPTIONS[name]

    def _judge_own(self, name: str) -> list[ProofCheck]:
        wanted = self.plan.expectations.get(name, ())
        if not wanted:
            return []
        frame = read_rows(self.spark, self.after, name)
        return [judge_rows(frame, self.before.label, name, wanted)]
