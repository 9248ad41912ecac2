"""The proof of a change: what was written holds what it must, judged by Great Expectations.

One pass over each side gives a small table per key group: counts and order-independent digests of keys and of every
column. Where every row comes from one row, the values as they are and as the migration (or its way back) makes them
are read in the same pass; else the rows that were meant, those that were written, and those of the way back are
digested apart. Great Expectations judges the tables side by side, so that proving costs less than migrating.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from state_pipelines.keyed.tables import TTL_COLUMN
from state_pipelines.operations.migration.flows import (
    Apply,
    Flow,
    Keep,
    Stamp,
    find_reads,
    is_aligned,
    keeps_rows,
    walk_flow,
)
from state_pipelines.serializers.text import describe
from state_pipelines.spark.comparisons import (
    COMPARED,
    Comparison,
    GroupResult,
    Pair,
    find_identity,
    judge_results,
    make_expectation,
    pair_keys,
    pair_payloads,
    pair_rows,
    pair_times,
    run_comparison,
)
from state_pipelines.spark.digests import count_rows
from state_pipelines.spark.expectations import SAMPLE_SIZE, Judgement, judge
from state_pipelines.spark.failures import translate_failures
from state_pipelines.spark.fieldwise import find_fieldwise
from state_pipelines.spark.fieldwise_proof import Proven, Side, compare_fieldwise
from state_pipelines.spark.fieldwise_rows import split_rows
from state_pipelines.spark.flows import KEYS, PAYLOAD, STORED, FlowRunner, StateReader, find_keys, hidden
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

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.operations.migration.planning import OperatorPlan
    from state_pipelines.snapshot import Operator
    from state_pipelines.spark.encoding import MeantRows
    from state_pipelines.spark.fieldwise import FieldwiseFlow


def prove_plan(
    spark: SparkSession,
    before: Operator,
    after: Operator,
    plan: OperatorPlan,
    kept: Mapping[str, DataFrame],
    fieldwise: Mapping[str, MeantRows],
) -> ProofReport:
    """Compare the states of an operator as they were with the states as they were written.

    Args:
        spark: the session.
        before: the old operator.
        after: the new one, read back from the files that were written.
        plan: what was meant to happen.
        kept: by new name, the rows that were written, where making them again would give others.
        fieldwise: by new name, what was written field by field.

    Raises:
        StateError: one side cannot be read.
    """
    if not plan.changed:
        checks = tuple(
            ProofCheck(name, True, DESCRIPTIONS[name], "", "", "every state is copied as bytes") for name in CHECK_NAMES
        )
        return ProofReport(before.label, ", ".join(plan.states), 0, 0, checks)
    return _Prover(spark, before, after, plan, kept, fieldwise).prove()


class _Prover:
    """Proves the states of one operator, one after the other."""

    def __init__(
        self,
        spark: SparkSession,
        before: Operator,
        after: Operator,
        plan: OperatorPlan,
        kept: Mapping[str, DataFrame],
        fieldwise: Mapping[str, MeantRows],
    ) -> None:
        self.spark = spark
        self.before, self.after = before, after
        self.plan, self.kept, self.fieldwise = plan, kept, fieldwise
        self.layouts = plan.context.layouts
        self.back_layouts = self.layouts if plan.back is None else plan.back.context.layouts
        self.old = StateReader(spark, before)
        self.new = StateReader(spark, after)
        self.hashed = StateReader(spark, after, key_hash=True)
        self.returned: set[str] = set()
        self.notes: dict[str, str] = {}

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
        made[KEY_HASHES] = _make_hash_check(judgements[KEY_HASHES], self.plan, written)
        total = sum(each.records or 0 for each in written)
        groups = len({each.key_group for each in written if each.records})
        checks = (*(made[name] for name in CHECK_NAMES), *_combine_own(own))
        return ProofReport(self.before.label, ", ".join(changed), total, groups, checks)

    def _losses(self, name: str, flow: Flow) -> dict[str, str]:
        names = [name, *find_reads(flow)]
        return {field: reason for each in names for field, reason in self.plan.losses.get(each, {}).items()}

    def _compare(self, name: str, flow: Flow) -> list[GroupResult]:
        back = self._find_back(name, flow)
        losses = self._losses(name, flow)
        meant = self.fieldwise.get(name)
        if meant is not None:
            way = self._find_fieldwise_back(back, losses)
            results = self._compare_fieldwise(name, meant, way, losses)
            return results if way is not None else results + self._compare_back(name, flow, losses)
        if back is not None and is_aligned(flow) and is_aligned(back) and keeps_rows(back) and name not in self.kept:
            return run_comparison(name, self._compare_aligned(name, flow, back, losses))
        return run_comparison(name, self._compare_written(name, flow)) + self._compare_back(name, flow, losses)

    def _compare_back(self, name: str, flow: Flow, losses: dict[str, str]) -> list[GroupResult]:
        """The old states that the rows of a new one came from, and what the way back makes of it."""
        ends = [self.plan.impossible[old] for old in find_reads(flow) if old in self.plan.impossible]
        if ends or self.plan.back is None:
            self.notes[name] = f"there is no way back: {'; '.join(dict.fromkeys(ends)) or self.plan.reason}"
            return []
        if any(isinstance(each, Apply) and isinstance(each.stage, Keep) for each in walk_flow(flow)):
            self.notes[name] = "not judged, since rows were left out before other rows came of them"
            return []
        results, found = [], False
        for old, way in self.plan.back.states.items():
            if name in find_reads(way) and old in find_reads(flow) and old not in self.returned:
                self.returned.add(old)
                found = True
                comparison = self._compare_returned(old, way, self._losses(old, way) | losses)
                results += run_comparison(name, comparison)
        if not found:
            self.notes[name] = "judged with another state that the same rows became"
        return results

    def _find_fieldwise_back(self, back: Flow | None, losses: dict[str, str]) -> FieldwiseFlow | None:
        """The way back field by field; None where there is none, or where parts of a field are lost."""
        if back is None or any("." in path for path in losses):
            return None
        return find_fieldwise(self.spark, back, self.back_layouts)

    def _compare_fieldwise(
        self, name: str, meant: MeantRows, back: FieldwiseFlow | None, losses: dict[str, str]
    ) -> list[GroupResult]:
        flow = meant.flow
        maximum = self.before.max_parallelism
        before = Side(split_rows(self.before, flow.state), flow.before, self.back_layouts, maximum)
        after = Side(split_rows(self.after, name), flow.after, self.layouts, maximum)
        proven = Proven(flow, meant.sums, back, frozenset(losses))
        return compare_fieldwise(self.spark, name, before, after, proven)

    def _find_back(self, name: str, flow: Flow) -> Flow | None:
        """The flow that takes an aligned one back."""
        sources = find_reads(flow)
        if self.plan.back is None or len(sources) != 1:
            return None
        back = self.plan.back.states.get(sources[0])
        return back if back is not None and find_reads(back) == (name,) else None

    def _compare_aligned(self, name: str, flow: Flow, back: Flow, losses: dict[str, str]) -> Comparison:
        """Both sides in one pass each, every row with its value as it is and as it was or will be."""
        left = FlowRunner(self.old, self.layouts, stored=True).build(flow)
        right = FlowRunner(self.hashed, self.back_layouts, stored=True).build(back, keys=find_keys(back))
        pairs = [
            *pair_rows(),
            *pair_payloads(ROUND_TRIP, left, right, (STORED, PAYLOAD), losses),
            *pair_payloads(READ_BACK, left, right, (PAYLOAD, STORED), {}),
        ]
        if hidden(TTL_COLUMN) in left.columns and flow.shape.ttl and not _stamps(back):
            pairs.append(pair_times())
        return Comparison(left, right, find_identity(left, right), tuple(pairs), hashed=True)

    def _compare_written(self, name: str, flow: Flow) -> Comparison:
        """The rows that were meant and those that were written."""
        left = self.kept.get(name)
        if left is None:
            left = FlowRunner(self.old, self.layouts).build(flow)
        keys = () if hidden("key_bytes") in left.columns else KEYS
        right = self.hashed.read(name, keys)
        pairs = [*pair_rows()]
        if PAYLOAD in left.columns:
            pairs += pair_payloads(READ_BACK, left, right, (PAYLOAD, PAYLOAD), {})
        else:
            pairs.append(pair_keys(READ_BACK, "timers"))
        if flow.shape.ttl:
            pairs.append(pair_times())
        return Comparison(left, right, find_identity(left, right), tuple(pairs), hashed=True)

    def _compare_returned(self, old: str, way: Flow, losses: dict[str, str]) -> Comparison:
        """An old state and what the way back makes of the new ones."""
        right = FlowRunner(self.new, self.back_layouts).build(way)
        keys = () if hidden("key_bytes") in right.columns else KEYS
        left = self.old.read(old, keys)
        pairs = [Pair(ROUND_TRIP, f"records of {old}", count_rows(), count_rows())]
        if PAYLOAD in left.columns:
            pairs += pair_payloads(ROUND_TRIP, left, right, (PAYLOAD, PAYLOAD), losses)
        else:
            pairs.append(pair_keys(ROUND_TRIP, f"timers of {old}"))
        return Comparison(left, right, find_identity(left, right), tuple(pairs))

    def _judge_own(self, name: str) -> tuple[ProofCheck, ...]:
        wanted = self.plan.expectations.get(name, ())
        if not wanted:
            return ()
        frame = self.new.read(name, KEYS)
        shape = self.plan.states[name].shape
        shown = [
            F.col(hidden(each)).alias(each)
            for each in (*KEYS, "list_index", TTL_COLUMN)
            if hidden(each) in frame.columns
        ]
        frame = frame.select(*shown, F.col(PAYLOAD).alias(shape.column))
        paths = [str(value) for each in wanted for key, value in each.arguments if key.lower().startswith("column")]
        nested = [F.col(path).alias(path.replace(".", "_")) for path in dict.fromkeys(paths) if "." in path]
        frame = frame.select("*", *nested)
        judgements = judge(frame, name, [make_expectation(each) for each in wanted])
        failed = [(each, found) for each, found in zip(wanted, judgements, strict=True) if not found.success]
        observed = "; ".join(f"{each.type}: {found.error or found.observed}" for each, found in failed)
        check = ProofCheck(
            name=OWN,
            ok=not failed,
            description=DESCRIPTIONS[OWN],
            expectation=", ".join(dict.fromkeys(each.type for each in wanted)),
            expected="; ".join(str({"type": each.type, **dict(each.arguments)}) for each in wanted),
            observed=observed or f"{len(wanted)} expectations hold",
            sample=[row for _, found in failed for row in found.sample][:SAMPLE_SIZE],
        )
        return (check,)

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
        changed = self.plan.changed
        description = DESCRIPTIONS[name]
        if name == ROUND_TRIP and self.plan.back is None:
            return "without a downgrade there is no round trip to judge"
        if name in (ROW_COUNTS, KEY_SETS) and not all(map(keeps_rows, changed.values())):
            stages = [each.stage for flow in changed.values() for each in walk_flow(flow) if isinstance(each, Apply)]
            kept = dict.fromkeys(each.reason for each in stages if isinstance(each, Keep))
            what = "records" if name == ROW_COUNTS else "keys"
            description = f"there are exactly the {what} that the steps leave"
            if kept:
                description += f" (left out: {'; '.join(kept)})"
        losses = {field: why for state, flow in changed.items() for field, why in self._losses(state, flow).items()}
        if name == ROUND_TRIP and losses:
            lost = "; ".join(f"{field}: {reason}" for field, reason in losses.items())
            description = f"{description}, but for the declared loss ({lost})"
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


def _stamps(flow: Flow) -> bool:
    """Whether a flow changes the times of the last access."""
    return any(isinstance(each, Apply) and isinstance(each.stage, Stamp) for each in walk_flow(flow))
