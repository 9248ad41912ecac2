"""The proof of a migration: the new files hold the expected records.

One pass over each side gives a small table per key group: counts and order-independent digests of keys and of every
column. The expected rows are digested while they are written, and so are the rows that they result from wherever these
are read field by field; the new files are read back. The way back is computed of that: in the same pass where Arrow can
do it, else in Spark. Rows are searched only where digests differ, so that proving costs less than migrating.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.codecs.serializer_layouts import OpaqueValues
from state_pipelines.keyed.digests.column_digests import KEYS, ROWS, Sums
from state_pipelines.keyed.record_layout import derive_keyed_layout
from state_pipelines.operations.migration.flows import find_reads, keeps_rows
from state_pipelines.operations.migration.round_trips import describe_filters, describe_losses, plan_round_trips
from state_pipelines.operations.proofs.proof_reports import (
    AFTER,
    BEFORE,
    DESCRIPTIONS,
    EXAMPLES,
    EXPECTED,
    KEY_HASHES,
    KEY_SETS,
    READ_BACK,
    RETURNED,
    ROUND_TRIP,
    ROW_COUNTS,
    DifferingRecord,
    ProofCheck,
    ProofReport,
    RecordCounts,
    combine_reports,
)
from state_pipelines.serializers.text import describe
from state_pipelines.snapshot.keyed_state import TIMER
from state_pipelines.spark.comparisons import COMPARED, GroupResult, compare_sums, differ, make_check, name_values
from state_pipelines.spark.differing_rows import FoundRows, combine_found, find_failed, find_rows
from state_pipelines.spark.digest_tasks import digest_back, digest_frame, digest_splits, find_misplaced
from state_pipelines.spark.expectations import judge_rows
from state_pipelines.spark.expected_digests import (
    ExpectedDigests,
    choose_old,
    choose_row_columns,
    find_payload_type,
    share_digests,
)
from state_pipelines.spark.failures import translate_failures
from state_pipelines.spark.fieldwise import find_fieldwise
from state_pipelines.spark.fieldwise_rows import FieldwiseRows, split_rows
from state_pipelines.spark.flow_steps import KEYS as KEY_PARTS
from state_pipelines.spark.flows import FlowRunner, StateReader, to_rows
from state_pipelines.spark.opaque_values import compares_bytes
from state_pipelines.spark.row_digests import NULLS, Digested, RowColumns, choose_columns, find_types
from state_pipelines.spark.state_rows import read_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.keyed.record_layout import KeyedLayout
    from state_pipelines.operations.migration.flows import Flow
    from state_pipelines.operations.migration.migration_plan import OperatorPlan
    from state_pipelines.operations.migration.round_trips import Return
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.snapshot import Operator


def prove_plan(
    spark: SparkSession,
    before: Operator,
    after: Operator,
    plan: OperatorPlan,
    expected: Mapping[str, ExpectedDigests],
) -> ProofReport:
    """Compare the states of an operator as they were with the states as they were written.

    Args:
        spark: the session.
        before: the old operator.
        after: the new one, read back from the files that were written.
        plan: of the migration.
        expected: by new name, digests of the expected rows.

    Raises:
        StateError: one side cannot be read.
    """
    if not plan.changed:
        states = ", ".join(plan.states)
        return ProofReport(before.label, states, 0, 0, (), notes=("every state is copied as bytes",))
    return _Prover(spark, before, after, plan, expected).prove()


class _Prover:
    """Proves the states of one operator, one after the other."""

    def __init__(
        self,
        spark: SparkSession,
        before: Operator,
        after: Operator,
        plan: OperatorPlan,
        expected: Mapping[str, ExpectedDigests],
    ) -> None:
        self.spark = spark
        self.before, self.after = before, after
        self.plan, self.expected = plan, expected
        self.back_plan = plan if plan.back is None else plan.back
        self.trips = plan_round_trips(plan)
        self.notes = {name: trip.note for name, trip in self.trips.items() if trip.note}

    def prove(self) -> ProofReport:
        """The report of all states of the operator that change."""
        started = time.monotonic()
        changed = self.plan.changed
        results: list[GroupResult] = []
        with translate_failures("the proof cannot read the state"):
            for name, flow in changed.items():
                results += self._compare(name, flow)
            own = [ProofReport("", name, 0, 0, each) for name in changed if (each := self._judge_own(name))]
            found = self._find_rows(results)
            hashes = self._check_hashes([each for each in results if each.records is not None])
        told = list(dict.fromkeys(self.notes.values()))
        if len(self.notes) < len(changed) or len(told) > 1:
            told = [f"{state}: {note}" if len(changed) > 1 else note for state, note in self.notes.items()]
        judged = [name for name in COMPARED if name != ROUND_TRIP or self._has_returns]
        made = {
            name: make_check(
                name,
                results,
                found.get(name),
                place="key group",
                description=self._describe(name),
                notes=told if name == ROUND_TRIP else (),
            )
            for name in judged
        }
        made |= {} if hashes is None else {KEY_HASHES: hashes}
        order = (ROW_COUNTS, KEY_SETS, KEY_HASHES, ROUND_TRIP, READ_BACK)
        checks = (*(made[name] for name in order if name in made), *(combine_reports(own).checks if own else ()))
        total = sum(each.records or 0 for each in results)
        groups = len({each.place for each in results if each.records})
        reason = "; ".join(told) or "there is no way back"
        notes = () if self._has_returns else (f"{ROUND_TRIP} is not judged: {reason}",)
        seconds = time.monotonic() - started
        return ProofReport(self.before.label, ", ".join(changed), total, groups, checks, seconds, notes=notes)

    @property
    def _has_returns(self) -> bool:
        return any(self.trips[name].returns for name in self.plan.changed)

    def _compare(self, name: str, flow: Flow) -> list[GroupResult]:
        """Compare expected with written rows of a state, and old states with the downgraded ones."""
        expected, splits = self.expected[name], split_rows(self.after, name)
        written: Digested | None = None
        ways: list[tuple[Return, Digested, dict[str, str]]] = []
        for back in self.trips[name].returns:
            layouts = self._find_back_layouts(flow, back)
            way = find_fieldwise(self.spark, back.way, layouts) if layouts.opaque_values is OpaqueValues.ALL else None
            if way is None:
                continue
            made, shared = share_digests(
                self._choose_returned(back, layouts), expected.columns, way.carried, whole=way.whole
            )
            came = Digested()
            if made.fields != ():
                # Ways back see the keys as bytes; what was written is digested in the same pass, once.
                beside = expected.columns if written is None and "key_bytes" in expected.columns.keys else None
                rows = FieldwiseRows(way, layouts)
                came, found = digest_back(self.spark, splits, rows, made, beside)
                written = found if beside is not None else written
            ways.append((back, came, shared))
        if written is None:
            written = digest_splits(self.spark, splits, expected.columns, hashed=True)
        returned = {back.old: _join(came, written, shared) for back, came, shared in ways}
        results = [*_compare_written(name, flow.shape, expected, written)]
        for back in self.trips[name].returns:
            results += self._compare_returned(name, flow, back, expected, returned.get(back.old))
        return results

    def _find_back_layouts(self, flow: Flow, back: Return) -> LayoutContext:
        bytewise = compares_bytes(flow, back, self.plan)
        return self.back_plan.row_layouts if bytewise else self.back_plan.context.layouts

    def _compare_returned(
        self, name: str, flow: Flow, back: Return, expected: ExpectedDigests, returned: Sums | None
    ) -> list[GroupResult]:
        layouts = self._find_back_layouts(flow, back)
        columns = choose_old(self.before, back, replace(self.plan.context.layouts, opaque_values=layouts.opaque_values))
        came = self._choose_returned(back, layouts)
        if returned is None:
            reader = StateReader(self.spark, self.after, opaque_values=layouts.opaque_values)
            frame = to_rows(FlowRunner(reader, layouts).build(back.way), back.way.shape)
            came = self._choose_returned(back, layouts, frame.columns)
            columns = replace(columns, keys=came.keys, places=came.places)
            returned = digest_frame(frame, find_types(self._derive_layout(back.way.shape, layouts)), came).sums
        if expected.source == back.old and "key_bytes" in came.keys:
            old = expected.old_sums
        else:
            splits = split_rows(self.before, back.old, layouts.opaque_values)
            old = digest_splits(self.spark, splits, columns).sums
        is_timer = back.shape.kind == TIMER
        names = {KEYS if is_timer else ROWS: f"{'timers' if is_timer else 'records'} of {back.old}"}
        # What one side does not have is not the same.
        names |= name_values(columns) | name_values(came)
        return [
            GroupResult(name, group, {ROUND_TRIP: compare_sums(names, old.get(group), returned.get(group))}, None, 0, 0)
            for group in sorted({*old, *returned})
        ]

    def _choose_returned(
        self, back: Return, layouts: LayoutContext, present: Sequence[str] | None = None
    ) -> RowColumns:
        """The digested columns of downgraded rows, chosen from `present`, by default those with keys as bytes."""
        shape = back.way.shape
        if present is None:
            columns = choose_row_columns(shape, self.before, layouts, back.lost)
        else:
            kind = find_payload_type(shape, layouts)
            columns = choose_columns(shape, kind, present, self.before.max_parallelism, back.lost)
        return replace(columns, times=False)

    def _derive_layout(self, shape: StateShape, layouts: LayoutContext) -> KeyedLayout:
        assert shape.key is not None
        return derive_keyed_layout(shape.info, shape.key, self.before.max_parallelism, layouts)

    def _judge_own(self, name: str) -> tuple[ProofCheck, ...]:
        wanted = self.plan.expectations.get(name, ())
        if not wanted:
            return ()
        frame = read_rows(self.spark, self.after, name)
        return (judge_rows(frame, self.before.label, name, wanted),)

    def _find_rows(self, results: list[GroupResult]) -> dict[str, FoundRows]:
        """Rows that differ, by failed check; both sides are read once for all checks but the round trip."""
        failed = {name for name in COMPARED if differ(results, name)}
        found: dict[str, FoundRows] = {}
        if written := failed - {ROUND_TRIP}:
            rows = combine_found([self._find_written(*each, results, written) for each in self.plan.changed.items()])
            found |= dict.fromkeys(written, rows)
        if ROUND_TRIP in failed:
            lost: list[FoundRows] = []
            for name, flow in self.plan.changed.items():
                fields, places = find_failed(results, ROUND_TRIP, name)
                backs = self.trips[name].returns if places else ()
                lost += [self._find_lost(name, flow, back, fields, places) for back in backs]
            found[ROUND_TRIP] = combine_found(lost)
        return found

    def _find_written(self, name: str, flow: Flow, results: list[GroupResult], checks: set[str]) -> FoundRows:
        """Rows of a state that differ from the expected ones."""
        fields: set[str] = set()
        places: set[int] = set()
        for check in checks:
            names, found = find_failed(results, check, name)
            fields, places = fields | names, places | set(found)
        if not places:
            return FoundRows()
        layouts = self.plan.row_layouts
        reader = StateReader(self.spark, self.before)
        sides = {AFTER: StateReader(self.spark, self.after).read(name, KEY_PARTS)}
        sides[EXPECTED] = FlowRunner(reader, layouts).build(flow, KEY_PARTS)
        sources = find_reads(flow)
        if len(sources) == 1 and keeps_rows(flow):
            sides[BEFORE] = reader.read(sources[0], ())
        return find_rows(name, sides, (EXPECTED, AFTER), ("key_group", places), fields)

    def _find_lost(self, name: str, flow: Flow, back: Return, fields: set[str], places: list[int]) -> FoundRows:
        """Old rows that the way back does not bring back."""
        layouts = self._find_back_layouts(flow, back)
        before, after = (
            StateReader(self.spark, each, opaque_values=layouts.opaque_values) for each in (self.before, self.after)
        )
        sides = {BEFORE: before.read(back.old, KEY_PARTS)}
        if keeps_rows(flow):
            sides[AFTER] = after.read(name, ())
        sides[RETURNED] = FlowRunner(after, layouts).build(back.way, KEY_PARTS)
        kept = fields - set(back.lost)
        return find_rows(name, sides, (BEFORE, RETURNED), ("key_group", places), kept, kept=back.kept)

    def _check_hashes(self, written: list[GroupResult]) -> ProofCheck | None:
        """The check of key groups; None where no hash is known."""
        total = sum(each.records or 0 for each in written)
        unhashed, misplaced = sum(each.unhashed for each in written), sum(each.misplaced for each in written)
        if total and unhashed == total:
            return None
        description = DESCRIPTIONS[KEY_HASHES]
        if unhashed and self.plan.key is not None:
            description += f" ({unhashed:,} of {total:,} keys of type {describe(self.plan.key)} have no known hash)"
        observed, rows = f"{misplaced:,} of {total - unhashed:,} keys are in another key group", list[DifferingRecord]()
        if misplaced:
            for name in self.plan.changed:
                splits = split_rows(self.after, name)
                rows += find_misplaced(self.spark, name, splits, EXAMPLES - len(rows)) if len(rows) < EXAMPLES else []
        counts = RecordCounts(total - unhashed, differing=misplaced)
        return ProofCheck(
            KEY_HASHES, not misplaced, description, "no key in another key group", observed, counts, tuple(rows)
        )

    def _describe(self, name: str) -> str:
        description = DESCRIPTIONS[name]
        if name in (ROW_COUNTS, KEY_SETS) and not all(map(keeps_rows, self.plan.changed.values())):
            what = "records" if name == ROW_COUNTS else "keys"
            description = f"there are exactly the {what} that the steps leave"
            reasons = describe_filters(self.plan)
            if reasons:
                description += f" (left out: {reasons})"
        losses = describe_losses(self.plan)
        if name == ROUND_TRIP and losses:
            description = f"{description}, but for the declared loss ({losses})"
        return description


def _join(came: Digested, written: Digested, shared: dict[str, str]) -> Sums:
    """Digests of what comes back; those of values that stay are taken from what was written."""
    if not shared:
        return came.sums
    same = {ROWS: ROWS, KEYS: KEYS, NULLS: NULLS} | shared
    return {
        group: {name: sums[other] for name, other in same.items()} | came.sums.get(group, {})
        for group, sums in written.sums.items()
    }


def _compare_written(
    name: str, shape: StateShape, expected: ExpectedDigests, written: Digested
) -> Iterator[GroupResult]:
    names = {KEYS: "timers"} if shape.kind == TIMER else name_values(expected.columns)
    for group in sorted({*expected.digested.sums, *written.sums}):
        one, other = expected.digested.sums.get(group), written.sums.get(group)
        values = {
            ROW_COUNTS: compare_sums({ROWS: "records"}, one, other),
            KEY_SETS: compare_sums({KEYS: "keys"}, one, other),
            READ_BACK: compare_sums(names, one, other),
        }
        records = 0 if other is None else other[ROWS]
        yield GroupResult(name, group, values, records, written.misplaced[group], written.unhashed[group])
