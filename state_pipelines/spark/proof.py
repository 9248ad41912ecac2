"""The proof of a migration: the new files hold the expected records.

One pass over each side gives a small table per key group, of operator state per subtask: counts and order-independent
digests of keys and of every column. The expected rows are digested while they are written, and so are the rows that
they result from wherever these are read field by field; the new files are read back. The way back is computed of that:
in the same pass where Arrow can do it, else in Spark (`proven_states`). Rows are searched only where digests differ, so
that proving costs less than migrating.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from state_pipelines.keyed.digests import KEYS, ROWS
from state_pipelines.operations.migration.flows import find_reads, keeps_rows
from state_pipelines.operations.migration.round_trips import describe_filters, describe_losses, plan_round_trips
from state_pipelines.operations.proofs import (
    AFTER,
    BEFORE,
    DESCRIPTIONS,
    EXAMPLES,
    EXPECTED,
    KEY_HASHES,
    KEY_SETS,
    KEYS_UNITED,
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
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.text import describe
from state_pipelines.spark.comparisons import (
    COMPARED,
    GroupResult,
    compare_sums,
    differ,
    find_failed,
    make_check,
    name_values,
)
from state_pipelines.spark.differing_rows import FoundRows, combine_found, find_rows
from state_pipelines.spark.digest_tasks import find_misplaced
from state_pipelines.spark.expectations import judge_rows
from state_pipelines.spark.failures import translate_failures
from state_pipelines.spark.fieldwise_rows import split_rows
from state_pipelines.spark.flow_columns import KEYS as KEY_COLUMNS
from state_pipelines.spark.flow_columns import hidden
from state_pipelines.spark.flows import FlowRunner
from state_pipelines.spark.opaque_values import compares_bytes
from state_pipelines.spark.proven_states import KeyedStates, OperatorStates
from state_pipelines.spark.state_rows import read_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.operations.migration.flows import Flow
    from state_pipelines.operations.migration.migration_plan import OperatorPlan
    from state_pipelines.operations.migration.round_trips import Return
    from state_pipelines.snapshot import Operator
    from state_pipelines.spark.expected_digests import ExpectedDigests
    from state_pipelines.spark.row_digests import Digested


def prove_plan(
    spark: SparkSession,
    before: Operator,
    after: Operator,
    plan: OperatorPlan,
    expected: Mapping[str, ExpectedDigests],
) -> ProofReport:
    """Compare the states of an operator as they were with the states as they were written.

    Elements of list state are identified by their index in the list of their subtask, entries of broadcast state by
    their keys. The expected broadcast state is compared with the copy of every subtask.

    Args:
        spark: the session.
        before: the old operator.
        after: the new one, read back from the files that were written.
        plan: of its keyed states, or of its list and broadcast states.
        expected: by new name, digests of the expected rows.

    Raises:
        StateError: one side cannot be read.
    """
    if not plan.changed:
        names = ", ".join(plan.states)
        return ProofReport(before.label, names, 0, 0, (), notes=("every state is copied as bytes",))
    keyed = next(iter(plan.changed.values())).shape.is_keyed
    states = (KeyedStates if keyed else OperatorStates)(spark, before, after)
    return _Prover(states, plan, expected).prove()


class _Prover:
    """Proves the states of one operator, one after the other."""

    def __init__(
        self, states: KeyedStates | OperatorStates, plan: OperatorPlan, expected: Mapping[str, ExpectedDigests]
    ) -> None:
        self.states, self.spark = states, states.spark
        self.before, self.after = states.before, states.after
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
            united = self._check_united(results)
        texts = list(dict.fromkeys(self.notes.values()))
        if len(self.notes) < len(changed) or len(texts) > 1:
            texts = [f"{state}: {note}" if len(changed) > 1 else note for state, note in self.notes.items()]
        judged = [name for name in COMPARED if name != ROUND_TRIP or self._has_returns]
        made = {
            name: make_check(
                name,
                results,
                found.get(name),
                unit=self.states.unit,
                description=self._describe(name),
                notes=texts if name == ROUND_TRIP else (),
            )
            for name in judged
        }
        made |= {} if hashes is None else {KEY_HASHES: hashes}
        made |= {} if united is None else {KEYS_UNITED: united}
        order = (ROW_COUNTS, KEY_SETS, KEY_HASHES, KEYS_UNITED, ROUND_TRIP, READ_BACK)
        checks = (*(made[name] for name in order if name in made), *(combine_reports(own).checks if own else ()))
        total = sum(each.records or 0 for each in results)
        groups = len({each.group for each in results if each.records}) if self.states.is_keyed else 0
        reason = "; ".join(texts) or "there is no way back"
        notes = () if self._has_returns else (f"{ROUND_TRIP} is not judged: {reason}",)
        seconds = time.monotonic() - started
        return ProofReport(self.before.label, ", ".join(changed), total, groups, checks, seconds, notes=notes)

    @property
    def _has_returns(self) -> bool:
        return any(self.trips[name].returns for name in self.plan.changed)

    def _compare(self, name: str, flow: Flow) -> Iterator[GroupResult]:
        """Compare expected with written rows of a state, and old states with the downgraded ones."""
        expected = self.expected[name]
        ways = [(back, self._find_back_layouts(flow, back)) for back in self.trips[name].returns]
        written, returned = self.states.digest_new(name, flow.shape, expected, self.plan.row_layouts, ways)
        yield from self._compare_written(name, flow, written)
        for (back, layouts), (came, sums) in zip(ways, returned, strict=True):
            layouts = replace(self.plan.context.layouts, opaque_values=layouts.opaque_values)
            columns = self.states.choose_old(back, layouts)
            if expected.source == back.old and came.keys == columns.keys:
                old = expected.old_sums
            else:
                columns = replace(columns, keys=came.keys, groups=came.groups)
                old = self.states.digest_old(back, columns, layouts)
            old = self.states.spread(name, back.shape, old)
            is_timer = back.shape.kind == StateKind.TIMER
            names = {KEYS if is_timer else ROWS: f"{'timers' if is_timer else 'records'} of {back.old}"}
            # What one side does not have is not the same.
            names |= name_values(columns) | name_values(came)
            for group in sorted({*old, *sums}):
                values = {ROUND_TRIP: compare_sums(names, old.get(group), sums.get(group))}
                yield GroupResult(name, group, values, None, 0, 0)

    def _compare_written(self, name: str, flow: Flow, written: Digested) -> Iterator[GroupResult]:
        expected, nouns = self.expected[name], self.states.nouns
        names = {KEYS: "timers"} if flow.shape.kind == StateKind.TIMER else name_values(expected.columns)
        wanted = self.states.spread(name, flow.shape, expected.digested.sums)
        for group in sorted({*wanted, *written.sums}):
            one, other = wanted.get(group), written.sums.get(group)
            values = {
                ROW_COUNTS: compare_sums({ROWS: nouns[ROW_COUNTS]}, one, other),
                KEY_SETS: compare_sums({KEYS: nouns[KEY_SETS]}, one, other),
                READ_BACK: compare_sums(names, one, other),
            }
            records = 0 if other is None else other[ROWS]
            yield GroupResult(name, group, values, records, written.misplaced[group], written.unhashed[group])

    def _find_back_layouts(self, flow: Flow, back: Return) -> LayoutContext:
        bytewise = compares_bytes(flow, back, self.plan)
        return self.back_plan.row_layouts if bytewise else self.back_plan.context.layouts

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
                fields, groups = find_failed(results, ROUND_TRIP, name)
                backs = self.trips[name].returns if groups else ()
                lost += [self._find_lost(name, flow, back, fields, groups) for back in backs]
            found[ROUND_TRIP] = combine_found(lost)
        return found

    def _find_written(self, name: str, flow: Flow, results: list[GroupResult], checks: set[str]) -> FoundRows:
        """Rows of a state that differ from the expected ones."""
        fields: set[str] = set()
        groups: set[int] = set()
        for check in checks:
            names, found = find_failed(results, check, name)
            fields, groups = fields | names, groups | set(found)
        if not groups:
            return FoundRows()
        layouts = self.plan.row_layouts
        reader = self.states.make_reader(self.before)
        sides = {AFTER: self.states.make_reader(self.after).read(name, KEY_COLUMNS)}
        sides[EXPECTED] = FlowRunner(reader, layouts).build(flow, KEY_COLUMNS)
        sources = find_reads(flow)
        if len(sources) == 1 and keeps_rows(flow):
            sides[BEFORE] = reader.read(sources[0], ())
        return find_rows(name, sides, (EXPECTED, AFTER), (self.states.column, groups), fields)

    def _find_lost(self, name: str, flow: Flow, back: Return, fields: set[str], groups: list[int]) -> FoundRows:
        """Old rows that the way back does not bring back."""
        layouts = self._find_back_layouts(flow, back)
        before, after = (self.states.make_reader(each, layouts.opaque_values) for each in (self.before, self.after))
        sides = {BEFORE: before.read(back.old, KEY_COLUMNS)}
        if keeps_rows(flow):
            sides[AFTER] = after.read(name, ())
        sides[RETURNED] = FlowRunner(after, layouts).build(back.way, KEY_COLUMNS)
        kept = fields - set(back.lost)
        return find_rows(name, sides, (BEFORE, RETURNED), (self.states.column, groups), kept, kept=back.kept)

    def _check_hashes(self, written: list[GroupResult]) -> ProofCheck | None:
        """The check of key groups; None where no hash is known, and of operator state."""
        total = sum(each.records or 0 for each in written)
        unhashed, misplaced = sum(each.unhashed for each in written), sum(each.misplaced for each in written)
        if not self.states.is_keyed or (total and unhashed == total):
            return None
        description = self.states.descriptions[KEY_HASHES]
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

    def _check_united(self, results: list[GroupResult]) -> ProofCheck | None:
        """The check of keys that became one; None where no key changes.

        The expected rows are grouped by Spark. Here, bytes of keys are counted before rows are grouped.
        """
        texts: dict[bool, list[str]] = {True: [], False: []}
        total = differing = 0
        for name, flow in self.plan.changed.items():
            runner = FlowRunner(self.states.make_reader(self.before), self.plan.row_layouts)
            wanted = runner.count_new_keys(flow) if self.states.is_keyed else None
            if wanted is None:
                continue
            if flow.shape.kind == StateKind.LIST:
                rows = self.states.make_reader(self.after).read(name, ())
                found = rows.where(F.col(hidden("list_index")) == 0).count()
            else:
                found = sum(each.records or 0 for each in results if each.state == name)
            total, differing = total + found, differing + abs(found - wanted)
            texts[found == wanted].append(f"{name}: {found:,} keys of {wanted:,} different ones")
        if not texts[True] and not texts[False]:
            return None
        observed = "; ".join(texts[False] or texts[True])
        counts = RecordCounts(total, differing=differing)
        return ProofCheck(KEYS_UNITED, not texts[False], DESCRIPTIONS[KEYS_UNITED], "each key once", observed, counts)

    def _describe(self, name: str) -> str:
        description = self.states.descriptions[name]
        if name in (ROW_COUNTS, KEY_SETS) and not all(map(keeps_rows, self.plan.changed.values())):
            description = f"there are exactly the {self.states.nouns[name]} that the steps leave"
            reasons = describe_filters(self.plan)
            if reasons:
                description += f" (left out: {reasons})"
        losses = describe_losses(self.plan)
        if name == ROUND_TRIP and losses:
            description = f"{description}, but for the declared loss ({losses})"
        return description
