"""The proof of a change: what was written holds what it must, judged by Great Expectations.

One pass over each side gives a small table per key group: counts and order-independent digests of keys and of every
column, of the values as they are and as the migration (or its way back) makes them. Great Expectations judges the
two tables side by side, so that proving costs less than migrating.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from state_pipelines.keyed.tables import TTL_COLUMN
from state_pipelines.serializers.text import describe
from state_pipelines.spark.change import Change, migration_options, payload_column
from state_pipelines.spark.expectations import SAMPLE_SIZE, Judgement, import_expectations, judge
from state_pipelines.spark.failures import translate_failures
from state_pipelines.spark.tasks import read_frame
from state_pipelines.spark.transforming import transform_payload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from great_expectations.expectations.expectation import Expectation

    from state_pipelines.snapshot.keyed_state import KeyedState

ROW_COUNTS = "row_counts_per_key_group"
KEY_SETS = "key_sets"
KEY_HASHES = "key_groups_match_key_hash"
ROUND_TRIP = "round_trip"
READ_BACK = "written_reads_back"

CHECK_NAMES = (ROW_COUNTS, KEY_SETS, KEY_HASHES, ROUND_TRIP, READ_BACK)

_STORED = "__stored"


@dataclass(frozen=True)
class ProofCheck:
    """One property that was judged.

    Attributes:
        name: one of `CHECK_NAMES`.
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
        state: state name.
        rows: records of the state afterwards.
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


@dataclass(frozen=True)
class _Pair:
    """Two metrics per key group that must be equal: one of each side.

    Attributes:
        check: the check that they belong to.
        what: what they speak of.
        before: of the old state.
        after: of the new state.
    """

    check: str
    what: str
    before: Column
    after: Column


def prove_change(spark: SparkSession, before: KeyedState, after: KeyedState, change: Change) -> ProofReport:
    """Compare the state as it was with the state as it was written.

    Args:
        spark: the session.
        before: the old state.
        after: the new state, read back from the files that were written.
        change: what was meant to happen.

    Raises:
        StateError: one side cannot be read.
    """
    context = before.operator.snapshot.layout_context
    payload = payload_column(before.layout)
    old = read_frame(spark, before, migration_options(before.layout, change.plan))
    new = read_frame(spark, after, migration_options(after.layout, change.back, key_hash=True))
    # Beside the values as they are stand the values as the migration, or its way back, makes them.
    old = transform_payload(old.withColumn(_STORED, F.col(payload)), payload, change.plan, context)
    new = transform_payload(new.withColumn(_STORED, F.col(payload)), payload, change.back, context)
    pairs = _make_pairs(old, new, payload, change)
    misplaced = F.count_if(F.col("hashed_key_group") != F.col("key_group"))
    unhashed = F.count_if(F.col("hashed_key_group").isNull())
    with translate_failures("the proof cannot read the state"):
        left = _profile(old, {f"before_{number}": pair.before for number, pair in enumerate(pairs)})
        right = _profile(
            new,
            {f"after_{number}": pair.after for number, pair in enumerate(pairs)}
            | {"misplaced": misplaced, "unhashed": unhashed},
        )
        judgements = judge(_side_by_side(spark, left, right, len(pairs)), before.name, _expectations(len(pairs)))
    rows = sum(row["after_0"] for row in right)
    unhashed_rows = sum(row["unhashed"] for row in right)
    checks = (
        *(_make_check(name, pairs, judgements, change) for name in (ROW_COUNTS, KEY_SETS)),
        _make_hash_check(judgements[-1], after, rows, unhashed_rows),
        *(_make_check(name, pairs, judgements, change) for name in (ROUND_TRIP, READ_BACK)),
    )
    return ProofReport(before.operator.label, before.name, rows, len(right), checks)


def _make_pairs(old: DataFrame, new: DataFrame, payload: str, change: Change) -> list[_Pair]:
    identity = [F.col(name) for name in ("key_bytes", "list_index") if name in old.columns]
    pairs = [
        _Pair(ROW_COUNTS, "records", F.count("*"), F.count("*")),
        _Pair(KEY_SETS, "keys", _digest(*identity), _digest(*identity)),
    ]

    def compare(check: str, what: str, before: Column, after: Column) -> None:
        pairs.append(_Pair(check, what, _digest(*identity, before), _digest(*identity, after)))

    compare(ROUND_TRIP, "null values", F.col(_STORED).isNull(), F.col(payload).isNull())
    for each in _struct(old, _STORED):
        if each.name not in change.losses:
            hashable = _hashable(_field(_STORED, each.name), each.dataType)
            compare(ROUND_TRIP, each.name, hashable, _hashable(_field(payload, each.name), each.dataType))
    compare(READ_BACK, "null values", F.col(payload).isNull(), F.col(_STORED).isNull())
    for each in _struct(old, payload):
        hashable = _hashable(_field(payload, each.name), each.dataType)
        compare(READ_BACK, each.name, hashable, _hashable(_field(_STORED, each.name), each.dataType))
    if TTL_COLUMN in old.columns:
        compare(READ_BACK, TTL_COLUMN, F.col(TTL_COLUMN), F.col(TTL_COLUMN))
    return pairs


def _profile(frame: DataFrame, metrics: dict[str, Column]) -> list[Row]:
    """One row per key group; the only thing that reaches the driver."""
    return frame.groupBy("key_group").agg(*(column.alias(name) for name, column in metrics.items())).collect()


def _side_by_side(spark: SparkSession, left: list[Row], right: list[Row], pairs: int) -> DataFrame:
    """Both profiles joined by key group; numbers as text, since digests are wider than Spark's integers."""
    names = [*(f"before_{number}" for number in range(pairs)), *(f"after_{number}" for number in range(pairs))]
    joined: dict[int, dict[str, Any]] = {}
    for row in (*left, *right):
        joined.setdefault(row["key_group"], {}).update(row.asDict())
    rows = [
        (group, *(str(values.get(name, "none")) for name in names), values.get("misplaced", 0))
        for group, values in sorted(joined.items())
    ]
    columns = ", ".join(f"{name} string" for name in names)
    return spark.createDataFrame(rows, f"key_group int, {columns}, misplaced long")


def _expectations(pairs: int) -> list[Expectation]:
    """One per pair, then that of the key hashes. Great Expectations takes seconds to import, so not before."""
    gxe = import_expectations()

    equal: list[Expectation] = [
        gxe.ExpectColumnPairValuesToBeEqual(column_A=f"before_{number}", column_B=f"after_{number}")
        for number in range(pairs)
    ]
    return [*equal, gxe.ExpectColumnValuesToBeInSet(column="misplaced", value_set=[0])]


_DESCRIPTIONS = {
    ROW_COUNTS: "every key group has as many records as before",
    KEY_SETS: "the keys are the same as before, none lost and none doubled",
    ROUND_TRIP: "upgrade, then downgrade, gives the original values",
    READ_BACK: "what was written reads back as what was meant",
}


def _make_check(name: str, pairs: list[_Pair], judgements: Sequence[Judgement], change: Change) -> ProofCheck:
    chosen = [(pair, each) for pair, each in zip(pairs, judgements, strict=False) if pair.check == name]
    failed = [(pair, each) for pair, each in chosen if not each.success]
    description = _DESCRIPTIONS[name]
    if name == ROUND_TRIP and change.losses:
        lost = "; ".join(f"{field}: {reason}" for field, reason in change.losses.items())
        description = f"{description}, but for the declared loss ({lost})"
    observed = f"equal in every key group: {', '.join(pair.what for pair, _ in chosen)}"
    if failed:
        parts = [f"{pair.what} in {each.observed} key groups" for pair, each in failed if not each.error]
        errors = [each.error for _, each in failed if each.error]
        observed = f"different: {'; '.join([*parts, *errors])}"
    return ProofCheck(
        name=name,
        ok=not failed,
        description=description,
        expectation=chosen[0][1].expectation,
        expected="equal before and after, per key group",
        observed=observed,
        sample=[{"of": pair.what, **row} for pair, each in failed for row in each.sample][:SAMPLE_SIZE],
    )


def _make_hash_check(judgement: Judgement, after: KeyedState, rows: int, unhashed: int) -> ProofCheck:
    description = "every key lies in the key group that its hash gives"
    if unhashed:
        key = describe(after.key_serializer)
        description += (
            f" ({unhashed} of {rows} keys of type {key} have a hash that is not known here; they kept theirs)"
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


def _struct(frame: DataFrame, name: str) -> StructType:
    data_type = frame.schema[name].dataType
    assert isinstance(data_type, StructType)
    return data_type


def _field(column: str, name: str) -> Column:
    return F.col(column).getField(name)


def _digest(*columns: Column) -> Column:
    """A sum of hashes, which no order changes; null counts too."""
    parts = [part for column in columns for part in (column.isNull(), column)]
    return F.sum(F.xxhash64(*parts).cast("decimal(20,0)"))


def _hashable(column: Column, data_type: DataType) -> Column:
    """`column` with its maps as lists of entries, since Spark refuses to hash maps."""
    match data_type:
        case MapType():
            return F.transform(
                F.map_entries(column),
                lambda entry: F.struct(
                    _hashable(entry["key"], data_type.keyType), _hashable(entry["value"], data_type.valueType)
                ),
            )
        case ArrayType():
            return F.transform(column, lambda item: _hashable(item, data_type.elementType))
        case StructType() if any(_has_map(each.dataType) for each in data_type):
            fields = [_hashable(column.getField(each.name), each.dataType) for each in data_type]
            return F.when(column.isNotNull(), F.struct(*fields))
        case _:
            return column


def _has_map(data_type: DataType) -> bool:
    match data_type:
        case MapType():
            return True
        case ArrayType(elementType=element):
            return _has_map(element)
        case StructType():
            return any(_has_map(each.dataType) for each in data_type)
        case _:
            return False
