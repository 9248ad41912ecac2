"""The proof of a change: what was written holds what it must, judged by Great Expectations.

One pass over each side gives a small table per key group: counts and order-independent digests of keys and of every
column. What was meant is digested while it is written, and so is what it comes of wherever that is read field by field;
what was written is read back. The way back is computed of that: in the same pass where Arrow can do it, else in Spark.
Great Expectations judges the tables side by side, so that proving costs less than migrating.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from state_pipelines.codecs.serializer_layouts import Carrying
from state_pipelines.keyed.column_digest import KEYS, ROWS, Sums
from state_pipelines.keyed.records import derive_keyed_layout
from state_pipelines.keyed.tables import TTL_COLUMN
from state_pipelines.operations.migration.flows import find_reads, keeps_rows
from state_pipelines.operations.migration.round_trips import describe_filters, describe_losses, plan_round_trips
from state_pipelines.serializers.text import describe
from state_pipelines.snapshot.keyed_state import TIMER
from state_pipelines.spark.comparisons import (
    COMPARED,
    GroupResult,
    compare_sums,
    judge_results,
    judge_rows,
    name_values,
)
from state_pipelines.spark.differing_rows import EXAMPLES, find_failed, find_rows
from state_pipelines.spark.digest_tasks import digest_back, digest_frame, digest_splits
from state_pipelines.spark.expectations import SAMPLE_SIZE
from state_pipelines.spark.failures import translate_failures
from state_pipelines.spark.fieldwise import find_fieldwise
from state_pipelines.spark.fieldwise_rows import FieldwiseRows, split_rows
from state_pipelines.spark.flows import FlowRunner, StateReader, to_rows
from state_pipelines.spark.meant import (
    Meant,
    choose_old,
    choose_row_columns,
    find_payload_type,
    share_digests,
)
from state_pipelines.spark.opaque_values import compares_bytes
from state_pipelines.spark.reports import (
    CHECK_NAMES,
    DESCRIPTIONS,
    KEY_HASHES,
    KEY_SETS,
    OWN,
    READ_BACK,
    ROUND_TRIP,
    ROW_COUNTS,
    ProofCheck,
    ProofReport,
)
from state_pipelines.spark.row_digests import NULLS, Digested, RowColumns, choose_columns, find_types
from state_pipelines.spark.stages import KEYS as KEY_PARTS
from state_pipelines.spark.stages import PAYLOAD, hidden

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.keyed.records import KeyedLayout
    from state_pipelines.operations.migration.flows import Flow
    from state_pipelines.operations.migration.plans import OperatorPlan
    from state_pipelines.operations.migration.round_trips import Return
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.snapshot import Operator
    from state_pipelines.spark.expectations import Judgement


def prove_plan(
    spark: SparkSession, before: Operator, after: Operator, plan: OperatorPlan, meant: Mapping[str, Meant]
) -> ProofReport:
    """Compare the states of an operator as they were with the states as they were written.

    Args:
        spark: the session.
        before: the old operator.
        after: the new one, read back from the files that were written.
        plan: what was meant to happen.
        meant: by new name, what was meant by what was written.

    Raises:
        StateError: one side cannot be read.
    """
    if not plan.changed:
        checks = tuple(
            ProofCheck(name, True, DESCRIPTIONS[name], "", "", "every state is copied as bytes") for name in CHECK_NAMES
        )
        return ProofReport(before.label, ", ".join(plan.states), 0, 0, checks)
    return _Prover(spark, before, after, plan, meant).prove()


class _Prover:
    """Proves the states of one operator, one after the other."""

    def __init__(
        self, spark: SparkSession, before: Operator, after: Operator, plan: OperatorPlan, meant: Mapping[str, Meant]
    ) -> None:
        self.spark = spark
        self.before, self.after = before, after
        self.plan, self.meant = plan, meant
        self.back_plan = plan if plan.back is None else plan.back
        self.trips = plan_round_trips(plan)
        self.notes = {name: trip.note for name, trip in self.trips.items() if trip.note}

    def prove(self) -> ProofReport:
        """The report of all states of the operator that change."""
        changed = self.plan.changed
        results: list[GroupResult] = []
        own: list[ProofCheck] = []
        with translate_failures("the proof cannot read the state"):
            for name, flow in changed.items():
                results += self._compare(name, flow)
            for name in changed:
                own += self._judge_own(name)
        judgements = judge_results(results, self.before.label)
        written = [each for each in results if each.records is not None]
        made = {name: self._make_check(name, results, judgements[name]) for name in COMPARED}
        made |= {
            name: replace(each, sample=self._find_rows(name, results)) for name, each in made.items() if not each.ok
        }
        made[KEY_HASHES] = _make_hash_check(judgements[KEY_HASHES], self.plan, written)
        total = sum(each.records or 0 for each in written)
        groups = len({each.place for each in written if each.records})
        checks = (*(made[name] for name in CHECK_NAMES), *_combine_own(own))
        return ProofReport(self.before.label, ", ".join(changed), total, groups, checks)

    def _compare(self, name: str, flow: Flow) -> list[GroupResult]:
        """What was meant by a state with what was written, and old states with what comes back of it."""
        meant, splits = self.meant[name], split_rows(self.after, name)
        written: Digested | None = None
        ways: list[tuple[Return, Digested, dict[str, str]]] = []
        for back in self.trips[name].returns:
            layouts = self._find_back_layouts(flow, back)
            way = find_fieldwise(self.spark, back.way, layouts) if layouts.carried is Carrying.OPAQUE else None
            if way is None:
                continue
            made, shared = share_digests(
                self._choose_returned(back, layouts), meant.columns, way.carried, whole=way.whole
            )
            came = Digested()
            if made.fields != ():
                # Ways back see the keys as bytes; what was written is digested in the same pass, once.
                beside = meant.columns if written is None and "key_bytes" in meant.columns.keys else None
                rows = FieldwiseRows(way, layouts)
                came, found = digest_back(self.spark, splits, rows, made, beside)
                written = found if beside is not None else written
            ways.append((back, came, shared))
        if written is None:
            written = digest_splits(self.spark, splits, meant.columns, hashed=True)
        returned = {back.old: _join(came, written, shared) for back, came, shared in ways}
        results = [*_compare_written(name, flow.shape, meant, written)]
        for back in self.trips[name].returns:
            results += self._compare_returned(name, flow, back, meant, returned.get(back.old))
        return results

    def _find_back_layouts(self, flow: Flow, back: Return) -> LayoutContext:
        bytewise = compares_bytes(flow, back, self.plan)
        return self.back_plan.row_layouts if bytewise else self.back_plan.context.layouts

    def _compare_returned(
        self, name: str, flow: Flow, back: Return, meant: Meant, returned: Sums | None
    ) -> list[GroupResult]:
        layouts = self._find_back_layouts(flow, back)
        columns = choose_old(self.before, back, replace(self.plan.context.layouts, carried=layouts.carried))
        came = self._choose_returned(back, layouts)
        if returned is None:
            reader = StateReader(self.spark, self.after, carried=layouts.carried)
            frame = to_rows(FlowRunner(reader, layouts).build(back.way), back.way.shape)
            came = self._choose_returned(back, layouts, frame.columns)
            columns = replace(columns, keys=came.keys, places=came.places)
            returned = digest_frame(frame, find_types(self._derive_layout(back.way.shape, layouts)), came).sums
        if meant.source == back.old and "key_bytes" in came.keys:
            old = meant.old_sums
        else:
            splits = split_rows(self.before, back.old, layouts.carried)
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
        """What is digested of what comes back; `present` columns of it, by default those with keys as bytes."""
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
        frame = StateReader(self.spark, self.after, carried=Carrying.UNKNOWN).read(name, KEY_PARTS)
        shape = self.plan.states[name].shape
        shown = [
            F.col(hidden(each)).alias(each)
            for each in (*KEY_PARTS, "list_index", TTL_COLUMN)
            if hidden(each) in frame.columns
        ]
        frame = frame.select(*shown, F.col(PAYLOAD).alias(shape.column))
        return (judge_rows(frame, name, wanted, DESCRIPTIONS[OWN]),)

    def _find_rows(self, check: str, results: list[GroupResult]) -> list[dict[str, Any]]:
        """Examples of what a failed check is about."""
        rows: list[dict[str, Any]] = []
        with translate_failures("the proof cannot read the state"):
            for name, flow in self.plan.changed.items():
                different, places = find_failed(results, check, name)
                if not places:
                    continue
                if check != ROUND_TRIP:
                    found = self._find_unmeant(name, flow, different, places)
                else:
                    backs = self.trips[name].returns
                    found = [row for back in backs for row in self._find_lost(name, flow, back, different, places)]
                rows += [{"state": name, **row} for row in found]
        return rows[:EXAMPLES]

    def _find_unmeant(self, name: str, flow: Flow, fields: set[str], places: list[int]) -> list[dict[str, Any]]:
        """Find rows that differ from the expected ones."""
        layouts = self.plan.row_layouts
        reader = StateReader(self.spark, self.before)
        sides = {"after": StateReader(self.spark, self.after).read(name, KEY_PARTS)}
        sides["expected"] = FlowRunner(reader, layouts).build(flow)
        sources = find_reads(flow)
        if len(sources) == 1 and keeps_rows(flow):
            sides["before"] = reader.read(sources[0], ())
        return find_rows(sides, ("after", "expected"), ("key_group", places), fields)

    def _find_lost(
        self, name: str, flow: Flow, back: Return, fields: set[str], places: list[int]
    ) -> list[dict[str, Any]]:
        """Old rows that the way back does not bring back."""
        layouts = self._find_back_layouts(flow, back)
        before, after = (StateReader(self.spark, each, carried=layouts.carried) for each in (self.before, self.after))
        sides = {"before": before.read(back.old, KEY_PARTS)}
        if keeps_rows(flow):
            sides["after"] = after.read(name, ())
        sides["comes back as"] = FlowRunner(after, layouts).build(back.way)
        kept = fields - set(back.lost)
        rows = find_rows(sides, ("before", "comes back as"), ("key_group", places), kept, kept=back.kept)
        return [row | {"expected": row["before"]} for row in rows]

    def _make_check(self, name: str, results: list[GroupResult], judgement: Judgement) -> ProofCheck:
        changed = self.plan.changed
        compared: dict[str, dict[str, int]] = {}
        for result in results:
            for what, before, after in result.values.get(name, ()):
                counts = compared.setdefault(result.state, {})
                counts[what] = counts.get(what, 0) + (before != after)
        several = len(changed) > 1
        failed, equal = [], []
        for state, counts in compared.items():
            place = f"{state}: " if several else ""
            different = [f"{what} in {number} key groups" for what, number in counts.items() if number]
            failed += [f"{place}{', '.join(different)}"] if different else []
            equal.append(f"{place}{', '.join(counts)}")
        observed = f"equal in every key group: {'; '.join(equal)}" if equal else "no records"
        if name == ROUND_TRIP and self.notes:
            told = [f"{state}: {note}" if several else note for state, note in self.notes.items()]
            if len(self.notes) == len(changed) and len(set(self.notes.values())) == 1:
                told = [next(iter(self.notes.values()))]
            observed = "; ".join([*([observed] if equal else []), *told])
        if not judgement.success:
            observed = f"different: {'; '.join([*failed, *([judgement.error] if judgement.error else [])])}"
        return ProofCheck(
            name=name,
            ok=judgement.success,
            description=self._describe(name),
            expectation=judgement.expectation,
            expected="equal before and after, per key group",
            observed=observed,
            sample=judgement.sample,
        )

    def _describe(self, name: str) -> str:
        description = DESCRIPTIONS[name]
        if name == ROUND_TRIP and self.plan.back is None:
            return "without a downgrade there is no round trip to judge"
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


def _make_hash_check(judgement: Judgement, plan: OperatorPlan, rows: list[GroupResult]) -> ProofCheck:
    description = DESCRIPTIONS[KEY_HASHES]
    unhashed, total = sum(row.unhashed for row in rows), sum(row.records or 0 for row in rows)
    if unhashed and plan.key is not None:
        description += (
            f" ({unhashed} of {total} keys of type {describe(plan.key)} have a hash that is not known here; "
            "they kept theirs)"
        )
    return ProofCheck(
        name=KEY_HASHES,
        ok=judgement.success,
        description=description,
        expectation=judgement.expectation,
        expected="0 misplaced records in every key group",
        observed=judgement.error or f"{judgement.observed or 0} key groups with misplaced records",
        sample=judgement.sample,
    )


def _combine_own(checks: list[ProofCheck]) -> list[ProofCheck]:
    if len(checks) < 2:
        return checks
    return [
        replace(
            checks[0],
            ok=all(check.ok for check in checks),
            expectation=", ".join(dict.fromkeys(check.expectation for check in checks)),
            expected="; ".join(check.expected for check in checks),
            observed="; ".join(check.observed for check in checks),
            sample=[row for check in checks for row in check.sample][:SAMPLE_SIZE],
        )
    ]


def _join(came: Digested, written: Digested, shared: dict[str, str]) -> Sums:
    """Digests of what comes back; those of values that stay are taken from what was written."""
    if not shared:
        return came.sums
    same = {ROWS: ROWS, KEYS: KEYS, NULLS: NULLS} | shared
    return {
        group: {name: sums[other] for name, other in same.items()} | came.sums.get(group, {})
        for group, sums in written.sums.items()
    }


def _compare_written(name: str, shape: StateShape, meant: Meant, written: Digested) -> Iterator[GroupResult]:
    names = {KEYS: "timers"} if shape.kind == TIMER else name_values(meant.columns)
    for group in sorted({*meant.digested.sums, *written.sums}):
        one, other = meant.digested.sums.get(group), written.sums.get(group)
        values = {
            ROW_COUNTS: compare_sums({ROWS: "records"}, one, other),
            KEY_SETS: compare_sums({KEYS: "keys"}, one, other),
            READ_BACK: compare_sums(names, one, other),
        }
        records = 0 if other is None else other[ROWS]
        yield GroupResult(name, group, values, records, written.misplaced[group], written.unhashed[group])
