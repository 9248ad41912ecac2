"""The proof of a change: what was written holds what it must, judged by Great Expectations.

One pass over each side gives a small table per key group: counts and order-independent digests of keys and of every
column. Where every row comes from one row, the values as they are and as the migration (or its way back) makes them
are read in the same pass; else the rows that were meant, those that were written, and those of the way back are
digested apart. Great Expectations judges the tables side by side, so that proving costs less than migrating.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from state_pipelines.keyed.tables import TTL_COLUMN
from state_pipelines.operations.migration.flows import (
    Apply,
    Flow,
    Keep,
    find_reads,
    is_aligned,
    keeps_rows,
    walk_flow,
)
from state_pipelines.serializers.text import describe
from state_pipelines.spark.digests import Metric, count_rows, digest_keys, digest_payload, profile
from state_pipelines.spark.expectations import SAMPLE_SIZE, Judgement, import_expectations, judge
from state_pipelines.spark.failures import translate_failures
from state_pipelines.spark.flows import KEYS, PAYLOAD, STORED, FlowRunner, StateReader, find_keys, hidden

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from great_expectations.expectations.expectation import Expectation

    from state_pipelines.operations.migration.files import RowExpectation
    from state_pipelines.operations.migration.planning import OperatorPlan
    from state_pipelines.snapshot import Operator

ROW_COUNTS = "row_counts_per_key_group"
KEY_SETS = "key_sets"
KEY_HASHES = "key_groups_match_key_hash"
ROUND_TRIP = "round_trip"
READ_BACK = "written_reads_back"
OWN = "own_expectations"

CHECK_NAMES = (ROW_COUNTS, KEY_SETS, KEY_HASHES, ROUND_TRIP, READ_BACK)
"""The checks of every proof; `OWN` comes to those of migrations that have expectations of their own."""


@dataclass(frozen=True)
class ProofCheck:
    """One property that was judged.

    Attributes:
        name: one of `CHECK_NAMES`, or `OWN`.
        ok: whether it holds.
        description: what it says.
        expectation: the expectations that judged it.
        expected: what was expected.
        observed: what was seen.
        sample: some of what failed.
    """

    name: str
    ok: bool
    description: str
    expectation: str
    expected: str
    observed: str
    sample: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class ProofReport:
    """All checks of one change.

    Attributes:
        operator: label of the operator.
        state: name of the new state; several, separated by commas.
        rows: records afterwards.
        key_groups: key groups that have any.
    """

    operator: str
    state: str
    rows: int
    key_groups: int
    checks: tuple[ProofCheck, ...]

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return all(check.ok for check in self.checks)

    def to_markdown(self) -> str:
        """A table for people."""
        lines = [
            f"**{self.operator} / {self.state}**: {self.rows} records in {self.key_groups} key groups",
            "",
            "| check | result | what it says | observed |",
            "|---|---|---|---|",
        ]
        for check in self.checks:
            result = "passed" if check.ok else "**FAILED**"
            lines.append(f"| {check.name} | {result} | {check.description} | {check.observed} |")
        return "\n".join(lines)


def combine_reports(reports: Sequence[ProofReport]) -> ProofReport:
    """One report of several: a check holds when it holds in each."""
    if len(reports) == 1:
        return reports[0]
    names = dict.fromkeys(check.name for report in reports for check in report.checks)
    checks = []
    for name in names:
        found = [(report, check) for report in reports for check in report.checks if check.name == name]
        observed = "; ".join(f"{report.state}: {check.observed}" for report, check in found)
        descriptions = dict.fromkeys(check.description for _, check in found)
        checks.append(
            replace(
                found[0][1],
                ok=all(check.ok for _, check in found),
                description="; ".join(descriptions),
                observed=observed,
                sample=[{"state": report.state, **row} for report, check in found for row in check.sample][
                    :SAMPLE_SIZE
                ],
            )
        )
    return ProofReport(
        operator=", ".join(dict.fromkeys(report.operator for report in reports)),
        state=", ".join(dict.fromkeys(report.state for report in reports)),
        rows=sum(report.rows for report in reports),
        key_groups=max(report.key_groups for report in reports),
        checks=tuple(checks),
    )


@dataclass(frozen=True)
class _Pair:
    """Two metrics per key group that must be equal: one of each side."""

    check: str
    what: str
    before: Metric
    after: Metric


@dataclass
class _Comparison:
    """Two frames and what of them must be equal."""

    left: DataFrame
    right: DataFrame
    pairs: list[_Pair]
    hashed: bool = False


def prove_plan(
    spark: SparkSession,
    before: Operator,
    after: Operator,
    plan: OperatorPlan,
    kept: Mapping[str, DataFrame],
) -> ProofReport:
    """Compare the states of an operator as they were with the states as they were written.

    Args:
        spark: the session.
        before: the old operator.
        after: the new one, read back from the files that were written.
        plan: what was meant to happen.
        kept: by new name, the rows that were written, where making them again would give others.

    Raises:
        StateError: one side cannot be read.
    """
    if not plan.changed:
        checks = tuple(
            ProofCheck(name, True, _DESCRIPTIONS[name], "", "", "every state is copied as bytes")
            for name in CHECK_NAMES
        )
        return ProofReport(before.label, ", ".join(plan.states), 0, 0, checks)
    return _Prover(spark, before, after, plan, kept).prove()


_DESCRIPTIONS = {
    ROW_COUNTS: "every key group has as many records as before",
    KEY_SETS: "the keys are the same as before, none lost and none doubled",
    KEY_HASHES: "every key lies in the key group that its hash gives",
    ROUND_TRIP: "upgrade, then downgrade, gives the original values",
    READ_BACK: "what was written reads back as what was meant",
    OWN: "the rows of the new state are as the migration expects",
}


class _Prover:
    """Proves the states of one operator, one after the other."""

    def __init__(
        self, spark: SparkSession, before: Operator, after: Operator, plan: OperatorPlan, kept: Mapping[str, DataFrame]
    ) -> None:
        self.spark = spark
        self.before, self.after = before, after
        self.plan, self.kept = plan, kept
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
        rows: list[_Row] = []
        own: list[ProofCheck] = []
        with translate_failures("the proof cannot read the state"):
            for name, flow in changed.items():
                for comparison in self._compare(name, flow):
                    rows += _run(name, comparison)
            judgements = judge(_make_table(self.spark, rows), self.before.label, _expectations())
            for name in changed:
                own += self._judge_own(name)
        written = [row for row in rows if row.records is not None]
        hashed = _make_hash_check(judgements[-1], self.plan, written)
        made = {
            name: self._make_check(name, rows, judgement)
            for name, judgement in zip(_COMPARED, judgements, strict=False)
        }
        checks = [hashed if name == KEY_HASHES else made[name] for name in CHECK_NAMES]
        total = sum(row.records or 0 for row in written)
        groups = len({row.key_group for row in written if row.records})
        return ProofReport(self.before.label, ", ".join(changed), total, groups, (*checks, *_combine_own(own)))

    def _losses(self, name: str, flow: Flow) -> dict[str, str]:
        names = [name, *find_reads(flow)]
        return {field: reason for each in names for field, reason in self.plan.losses.get(each, {}).items()}

    def _compare(self, name: str, flow: Flow) -> list[_Comparison]:
        back = self._find_back(name, flow)
        losses = self._losses(name, flow)
        if back is not None and is_aligned(flow) and is_aligned(back) and keeps_rows(back) and name not in self.kept:
            return [self._compare_aligned(name, flow, back, losses)]
        comparisons = [self._compare_written(name, flow)]
        ends = [self.plan.impossible[old] for old in find_reads(flow) if old in self.plan.impossible]
        if ends or self.plan.back is None:
            self.notes[name] = f"there is no way back: {'; '.join(dict.fromkeys(ends)) or self.plan.reason}"
            return comparisons
        if any(isinstance(each, Apply) and isinstance(each.stage, Keep) for each in walk_flow(flow)):
            self.notes[name] = "not judged, since rows were left out before other rows came of them"
            return comparisons
        for old, way in self.plan.back.states.items():
            if name in find_reads(way) and old in find_reads(flow) and old not in self.returned:
                self.returned.add(old)
                comparisons.append(self._compare_returned(old, way, self._losses(old, way) | losses))
        if len(comparisons) == 1:
            self.notes[name] = "judged with another state that the same rows became"
        return comparisons

    def _find_back(self, name: str, flow: Flow) -> Flow | None:
        """The flow that takes an aligned one back."""
        sources = find_reads(flow)
        if self.plan.back is None or len(sources) != 1:
            return None
        back = self.plan.back.states.get(sources[0])
        return back if back is not None and find_reads(back) == (name,) else None

    def _compare_aligned(self, name: str, flow: Flow, back: Flow, losses: dict[str, str]) -> _Comparison:
        """Both sides in one pass each, every row with its value as it is and as it was or will be."""
        left = FlowRunner(self.old, self.layouts, stored=True).build(flow)
        right = FlowRunner(self.hashed, self.back_layouts, stored=True).build(back, keys=find_keys(back))
        identity = _identity(left, right)
        pairs = _row_pairs(identity)
        pairs += [
            _Pair(ROUND_TRIP, what, one, other)
            for what, one, other in _payload_pairs(left, right, STORED, PAYLOAD, identity, losses)
        ]
        pairs += [
            _Pair(READ_BACK, what, one, other)
            for what, one, other in _payload_pairs(left, right, PAYLOAD, STORED, identity, {})
        ]
        if hidden(TTL_COLUMN) in left.columns and flow.shape.ttl and not _stamps(back):
            pairs.append(_time_pair(READ_BACK, identity))
        return _Comparison(left, right, pairs, hashed=True)

    def _compare_written(self, name: str, flow: Flow) -> _Comparison:
        """The rows that were meant and those that were written."""
        left = self.kept.get(name)
        if left is None:
            left = FlowRunner(self.old, self.layouts).build(flow)
        keys = () if hidden("key_bytes") in left.columns else KEYS
        right = self.hashed.read(name, keys)
        identity = _identity(left, right)
        pairs = _row_pairs(identity)
        if PAYLOAD in left.columns:
            pairs += [
                _Pair(READ_BACK, what, one, other)
                for what, one, other in _payload_pairs(left, right, PAYLOAD, PAYLOAD, identity, {})
            ]
        else:
            pairs.append(_Pair(READ_BACK, "timers", digest_keys(identity), digest_keys(identity)))
        if flow.shape.ttl:
            pairs.append(_time_pair(READ_BACK, identity))
        return _Comparison(left, right, pairs, hashed=True)

    def _compare_returned(self, old: str, way: Flow, losses: dict[str, str]) -> _Comparison:
        """An old state and what the way back makes of the new ones."""
        right = FlowRunner(self.new, self.back_layouts).build(way)
        keys = () if hidden("key_bytes") in right.columns else KEYS
        left = self.old.read(old, keys)
        identity = _identity(left, right)
        pairs = [_Pair(ROUND_TRIP, f"records of {old}", count_rows(), count_rows())]
        if PAYLOAD not in left.columns:
            pairs.append(_Pair(ROUND_TRIP, f"timers of {old}", digest_keys(identity), digest_keys(identity)))
            return _Comparison(left, right, pairs)
        pairs += [
            _Pair(ROUND_TRIP, what, one, other)
            for what, one, other in _payload_pairs(left, right, PAYLOAD, PAYLOAD, identity, losses)
        ]
        return _Comparison(left, right, pairs)

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
        judgements = judge(frame, name, [_make_expectation(each) for each in wanted])
        failed = [(each, found) for each, found in zip(wanted, judgements, strict=True) if not found.success]
        observed = "; ".join(f"{each.type}: {found.error or found.observed}" for each, found in failed)
        check = ProofCheck(
            name=OWN,
            ok=not failed,
            description=_DESCRIPTIONS[OWN],
            expectation=", ".join(dict.fromkeys(each.type for each in wanted)),
            expected="; ".join(str({"type": each.type, **dict(each.arguments)}) for each in wanted),
            observed=observed or f"{len(wanted)} expectations hold",
            sample=[row for _, found in failed for row in found.sample][:SAMPLE_SIZE],
        )
        return (check,)

    def _make_check(self, name: str, rows: list[_Row], judgement: Judgement) -> ProofCheck:
        changed = self.plan.changed
        compared: dict[str, dict[str, int]] = {}
        for row in rows:
            for what, before, after in row.values.get(name, ()):
                counts = compared.setdefault(row.state, {})
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
        description = _DESCRIPTIONS[name]
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


def _make_hash_check(judgement: Judgement, plan: OperatorPlan, rows: list[_Row]) -> ProofCheck:
    description = _DESCRIPTIONS[KEY_HASHES]
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
    return any(isinstance(each, Apply) and type(each.stage).__name__ == "Stamp" for each in walk_flow(flow))


def _identity(left: DataFrame, right: DataFrame) -> tuple[str, ...]:
    """What tells rows apart on both sides: the bytes of the keys, or the keys where only they are the same."""
    both = set(left.columns) & set(right.columns)
    if hidden("key_bytes") in both:
        names = [hidden("key_bytes")]
    else:
        names = [name for name in map(hidden, (*KEYS, "timestamp")) if name in both]
    return (*names, *(name for name in [hidden("list_index")] if name in both))


def _row_pairs(identity: tuple[str, ...]) -> list[_Pair]:
    return [
        _Pair(ROW_COUNTS, "records", count_rows(), count_rows()),
        _Pair(KEY_SETS, "keys", digest_keys(identity), digest_keys(identity)),
    ]


def _time_pair(check: str, identity: tuple[str, ...]) -> _Pair:
    metric = digest_payload(identity, hidden(TTL_COLUMN), ())
    return _Pair(check, TTL_COLUMN, metric, metric)


def _payload_pairs(
    left: DataFrame, right: DataFrame, one: str, other: str, identity: tuple[str, ...], losses: Mapping[str, str]
) -> list[tuple[str, Metric, Metric]]:
    """One pair per column of the payload, without what is lost; and one for null."""
    pairs = [("null values", digest_payload(identity, one, None), digest_payload(identity, other, None))]
    fields = getattr(left.schema[one].dataType, "names", None)
    if fields is None:
        if "value" not in losses:
            pairs.append(("values", digest_payload(identity, one, ()), digest_payload(identity, other, ())))
        return pairs
    theirs = getattr(right.schema[other].dataType, "names", [])
    for name in fields:
        if name in losses:
            continue
        lost = tuple(each.partition(".")[2] for each in losses if each.startswith(f"{name}."))
        missing = name not in theirs
        after = digest_payload(identity, other, None) if missing else digest_payload(identity, other, (name,), lost)
        pairs.append((name, digest_payload(identity, one, (name,), lost), after))
    return pairs


@dataclass(frozen=True)
class _Row:
    """One state in one key group.

    Attributes:
        values: by check: what was compared, and what it is before and after.
        records: that were written; None where rows of the way back are compared.
    """

    state: str
    key_group: int
    values: dict[str, list[tuple[str, str, str]]]
    records: int | None
    misplaced: int
    unhashed: int


def _run(state: str, comparison: _Comparison) -> list[_Row]:
    """Both profiles side by side, which is all that reaches the driver."""
    left, right = comparison.left, comparison.right
    before = {f"before_{index}": pair.before for index, pair in enumerate(comparison.pairs)}
    after = {f"after_{index}": pair.after for index, pair in enumerate(comparison.pairs)}
    by_group = hidden("key_group") in left.columns and hidden("key_group") in right.columns
    joined: dict[int, dict[str, Any]] = {}
    extra: dict[str, Column] = {}
    if comparison.hashed:
        hashed = F.col(hidden("hashed_key_group"))
        extra = {
            "misplaced": F.count_if(hashed != F.col(hidden("key_group"))),
            "unhashed": F.count_if(hashed.isNull()),
        }
    for row in (*profile(left, before, {}, by_group=by_group), *profile(right, after, extra, by_group=by_group)):
        joined.setdefault(row["bucket"], {}).update(row.asDict())
    return [_make_row(state, group, values, comparison) for group, values in sorted(joined.items())]


def _make_row(state: str, group: int, values: dict[str, Any], comparison: _Comparison) -> _Row:
    compared: dict[str, list[tuple[str, str, str]]] = {}
    for index, pair in enumerate(comparison.pairs):
        sides = (str(values.get(f"{side}_{index}", "none")) for side in ("before", "after"))
        compared.setdefault(pair.check, []).append((pair.what, *sides))  # type: ignore[arg-type]
    records = values.get("after_0", 0) if comparison.hashed else None
    return _Row(state, group, compared, records, values.get("misplaced", 0), values.get("unhashed", 0))


_COMPARED = (ROW_COUNTS, KEY_SETS, ROUND_TRIP, READ_BACK)


def _make_table(spark: SparkSession, rows: list[_Row]) -> DataFrame:
    """A row per state and key group; digests as text, since they are wider than Spark's integers."""
    cells = [
        (
            row.state,
            row.key_group,
            *(", ".join(f"{what} {one}" for what, one, _ in row.values.get(check, ())) for check in _COMPARED),
            *(", ".join(f"{what} {other}" for what, _, other in row.values.get(check, ())) for check in _COMPARED),
            row.misplaced,
        )
        for row in rows
    ]
    columns = ", ".join(f"{side}_{check} string" for side in ("before", "after") for check in _COMPARED)
    return spark.createDataFrame(cells, f"state string, key_group int, {columns}, misplaced long")


def _expectations() -> list[Expectation]:
    """One per check. Great Expectations takes seconds to import, so not before."""
    gxe = import_expectations()

    equal: list[Expectation] = [
        gxe.ExpectColumnPairValuesToBeEqual(column_A=f"before_{check}", column_B=f"after_{check}")
        for check in _COMPARED
    ]
    return [*equal, gxe.ExpectColumnValuesToBeInSet(column="misplaced", value_set=[0])]


def _make_expectation(wanted: RowExpectation) -> Expectation:
    """An expectation of a migration file.

    Raises:
        MigrationError: Great Expectations has none of that name, or refuses the arguments.
    """
    from state_pipelines.errors import MigrationError

    gxe = import_expectations()
    name = "".join(part.capitalize() for part in wanted.type.split("_"))
    kind = getattr(gxe, name, None)
    if kind is None:
        raise MigrationError(f"Great Expectations has no {wanted.type}")
    arguments = {
        key: value.replace(".", "_") if key.lower().startswith("column") and isinstance(value, str) else value
        for key, value in wanted.arguments
    }
    try:
        made: Expectation = kind(**arguments)
    except ValueError as error:
        raise MigrationError(f"{wanted.type} cannot be made of {arguments}: {error}") from None
    return made
