"""The proof of a migration: the new files hold the expected records.

For each key group (of operator state for each subtask), counts and order-independent digests of keys and of every
column are compared. The expected rows are digested while they are written, and with them the old rows from which they
result, if Arrow computes the migration field by field. The new files are read back and digested. From the rows read
back, the downgrade computes the old rows again: in the same pass if Arrow can do it, else in Spark. Rows are searched
only where digests differ, so that proving costs less than migrating.
"""

from __future__ import annotations

import json
import pickle
import time
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from state_pipelines.codecs.serializer_layouts import OpaqueValues
from state_pipelines.keyed.digests import KEYS as DIGEST_KEYS
from state_pipelines.keyed.digests import ROWS
from state_pipelines.keyed.record_layout import derive_keyed_layout
from state_pipelines.keyed.state_table import TTL_COLUMN, TableOptions
from state_pipelines.operations.migration.flows import (
    describe_filters,
    describe_losses,
    find_reads,
    keeps_rows,
    plan_round_trips,
)
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
    to_plain,
)
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import StateKind
from state_pipelines.spark.expectations import judge_rows
from state_pipelines.spark.fieldwise import FieldwiseRows, choose_fields, find_fieldwise, run_on_rows, split_rows
from state_pipelines.spark.flows import FlowRunner, StateFrames, to_rows
from state_pipelines.spark.operator_state import (
    OperatorStateReader,
    choose_elements,
    find_state,
    make_encoder,
    read_rows,
    to_elements,
)
from state_pipelines.spark.proof_rows import (
    HASHED,
    NULLS,
    TIMES,
    VALUES,
    Digested,
    RowColumns,
    RowDigest,
    choose_columns,
    choose_old,
    choose_row_columns,
    combine,
    find_payload_type,
    find_types,
    restore_types,
    share_digests,
)
from state_pipelines.spark.tasks import run_tasks, translate_failures
from state_pipelines.spark.types import KEYS, PAYLOAD, compares_bytes, hidden
from state_pipelines.spark.types import KEYS as KEY_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.keyed.digests import Sums
    from state_pipelines.operations.migration.flows import Flow, OperatorPlan, Return
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.snapshot import Operator
    from state_pipelines.spark.fieldwise import MigratedRows
    from state_pipelines.spark.proof_rows import ExpectedDigests
    from state_pipelines.spark.splits import KeyedSplit

COMPARED = (ROW_COUNTS, KEY_SETS, ROUND_TRIP, READ_BACK)
"""Checks that hold if the expected rows and the rows that were found have equal digests."""


@dataclass(frozen=True)
class GroupResult:
    """Result of comparing the rows of a state with the expected ones, in one key group or subtask.

    Attributes:
        state: its name.
        group: the key group, or a bucket of keys if keys have changed their key group; of operator state the subtask.
        values: by check, tuples of the name of a compared value, its expected text and its text in the written or
            downgraded rows.
        records: number of written records; None for a comparison of downgraded rows with the old state.
        misfiled: records in another key group than their hash gives.
        unhashed: records whose hash is not known, so that their key group is not checked.
    """

    state: str
    group: int
    values: dict[str, list[tuple[str, str, str]]]
    records: int | None
    misfiled: int
    unhashed: int


def name_values(columns: RowColumns) -> dict[str, str]:
    """Return a readable name for each digest of the values of rows, by name of the digest."""
    words = {NULLS: "null values", VALUES: "values", TIMES: "times of the last access"}
    return {name: words.get(name, name) for name in columns.names}


def compare_sums(
    names: Mapping[str, str], before: Mapping[str, int] | None, after: Mapping[str, int] | None
) -> list[tuple[str, str, str]]:
    """List the digests that are compared, each as (readable name, text of the expected one, text of the found one).

    Args:
        names: readable names, by name of the digest.
        before: digests of the expected rows, by name; None if there are no rows.
        after: digests of the rows that were found, likewise.
    """
    return [(what, _to_text(name, before, "before"), _to_text(name, after, "after")) for name, what in names.items()]


def _to_text(name: str, side: Mapping[str, int] | None, word: str) -> str:
    if side is None:
        return "none"
    if name not in side:
        # The text contains `before` or `after`, so that it differs from every text with which it is compared.
        return f"not there {word}"
    return str(side[name]) if name == ROWS else f"{side[name]:016x}"


def differ(results: Sequence[GroupResult], check: str) -> bool:
    """Return whether a check has found a difference between the expected and the found rows in any group."""
    return any(before != after for each in results for _, before, after in each.values.get(check, ()))


def find_failed(results: Sequence[GroupResult], check: str, state: str) -> tuple[set[str], list[int]]:
    """Return the names of the digests of a state that differ in a check, and the key groups or subtasks of the rows."""
    names: set[str] = set()
    groups: set[int] = set()
    for result in results:
        for what, before, after in result.values.get(check, ()):
            if result.state == state and before != after:
                names.add(what)
                groups.add(result.group)
    return names, sorted(groups)


def make_check(
    name: str,
    results: Sequence[GroupResult],
    found: DifferingRows | None,
    *,
    unit: str,
    description: str,
    notes: Sequence[str] = (),
) -> ProofCheck:
    """Make the result of one of the checks in `COMPARED` from the comparisons in all key groups or subtasks.

    Args:
        name: of the check.
        results: all comparisons.
        found: rows that differ; None when the check holds.
        unit: `key group` or `subtask`.
        description: of the check.
        notes: texts that are added to the observation, such as what the round trip does not bring back.
    """
    records = sum(each.records or 0 for each in results)
    compared = "; ".join(dict.fromkeys(_name_digests(results, name)))
    expected = f"equal in every {unit}: {compared}" if compared else "no records"
    if found is None:
        return ProofCheck(name, True, description, expected, "; ".join([expected, *notes]), RecordCounts(records))
    counts = replace(found.counts, compared=records)
    rows = found.examples
    if name in (ROW_COUNTS, KEY_SETS):
        # These checks are about keys; rows that differ only in their values are reported by other checks.
        counts, rows = replace(counts, differing=0), found.rows
    observed = [f"different: {_name_different(results, name, unit)}"]
    observed.append(str(counts) if counts.failed else "no differing record is found when both sides are read again")
    return ProofCheck(name, False, description, expected, "; ".join([*observed, *notes]), counts, rows[:EXAMPLES])


def _name_digests(results: Sequence[GroupResult], check: str) -> list[str]:
    """List the names of the values that a check compares, with the name of the state if there are several states."""
    several = len({each.state for each in results}) > 1
    return [
        f"{each.state}: {', '.join(what for what, *_ in each.values[check])}"
        if several
        else ", ".join(what for what, *_ in each.values[check])
        for each in results
        if each.values.get(check)
    ]


def _name_different(results: Sequence[GroupResult], check: str, unit: str) -> str:
    counts: dict[str, list[int]] = {}
    several = len({each.state for each in results}) > 1
    for each in results:
        for what, before, after in each.values.get(check, ()):
            if before != after:
                counts.setdefault(f"{each.state}: {what}" if several else what, []).append(each.group)
    return ", ".join(f"{what} in {_name_groups(found, unit)}" for what, found in counts.items())


def _name_groups(found: Sequence[int], unit: str) -> str:
    return f"{unit} {found[0]}" if len(found) == 1 else f"{len(found)} {unit}s"


_SIDE, _VALUE, _COMPARED, _KIND = (hidden(name) for name in ("side", "value", "compared", "kind"))
_MISSING, _UNEXPECTED, _DIFFERING = "missing", "unexpected", "differing"


@dataclass(frozen=True)
class DifferingRows:
    """Rows for which a proof has found a difference: their numbers, and examples.

    Attributes:
        counts: how many, of each kind.
        rows: examples of missing and of unexpected rows.
        other: examples of rows that both sides have, with different values.
    """

    counts: RecordCounts = field(default_factory=RecordCounts)
    rows: tuple[DifferingRecord, ...] = ()
    other: tuple[DifferingRecord, ...] = ()

    def __add__(self, other: DifferingRows) -> DifferingRows:
        rows, others = (*self.rows, *other.rows), (*self.other, *other.other)
        return DifferingRows(self.counts + other.counts, rows[:EXAMPLES], others[:EXAMPLES])

    @property
    def examples(self) -> tuple[DifferingRecord, ...]:
        """Examples of differing rows, and of other differences, at most `EXAMPLES`."""
        half = max(EXAMPLES // 2, EXAMPLES - len(self.other))
        return (*self.rows[:half], *self.other)[:EXAMPLES]


def find_rows(
    state: str,
    sides: Mapping[str, DataFrame],
    compared: tuple[str, str],
    groups: tuple[str, Collection[int]],
    fields: Collection[str],
    *,
    kept: bool = False,
) -> DifferingRows:
    """Find rows that differ between two frames, in one pass over all of them.

    Args:
        state: name of the state.
        sides: frames of `FlowRunner` by name, with the same keys. Two are compared; others only add values to the
            examples.
        compared: names of the frame of expected rows and of the frame of found rows.
        groups: name of the column with the key group or subtask, and its values whose rows are searched.
        fields: names of the compared fields of the payload, or of digests; if none is a field, the payload is compared
            as a whole.
        kept: rows that are missing in the found frame are no difference, because the migration left them out on
            purpose.

    Returns:
        Numbers of rows, and at most `EXAMPLES` of each kind.
    """
    column, values = hidden(groups[0]), groups[1]
    common = set.intersection(*(set(frame.columns) for frame in sides.values()))
    key_columns = ("key_bytes",) if hidden("key_bytes") in common else (*KEYS, "timestamp")
    identity = [name for name in map(hidden, (groups[0], *key_columns, "list_index")) if name in common]
    shown = [
        name
        for name in map(hidden, KEYS)
        if name not in identity and any(name in frame.columns for frame in sides.values())
    ]
    timed = TIMES in fields or "times of the last access" in fields
    union: DataFrame | None = None
    for name, frame in sides.items():
        rows = frame.where(F.col(column).isin(list(values))) if column in identity else frame
        own = rows.select(
            *identity,
            *(F.col(each) for each in shown if each in frame.columns),
            F.lit(name).alias(_SIDE),
            _show_value(frame, timed=timed).alias(_VALUE),
            _compare_text(frame, fields, timed=timed).alias(_COMPARED),
        )
        union = own if union is None else union.unionByName(own, allowMissingColumns=True)
    assert union is not None
    # Rows are matched by grouping: a join would match no null namespaces, and multiply rows whose key occurs twice.
    pair = F.struct(_COMPARED, _VALUE)
    together = union.groupBy(*identity).agg(
        *(F.first(name, ignorenulls=True).alias(name) for name in shown),
        *(F.sort_array(F.collect_list(F.when(F.col(_SIDE) == name, pair))).alias(name) for name in sides),
    )
    wanted, found = compared
    different = together.withColumn(_KIND, _classify(F.col(wanted), F.col(found), kept=kept)).where(F.col(_KIND) != "")
    different = different.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        numbers = {row[_KIND]: row["count"] for row in different.groupBy(_KIND).count().collect()}
        names = {name: name.removeprefix(hidden("")) for name in (*identity, *shown)}
        examples = {
            kind: tuple(
                _make_row(state, row.asDict(recursive=True), names, list(sides), compared, frozenset(fields))
                for row in different.where(F.col(_KIND) == kind).orderBy(*identity).limit(EXAMPLES).collect()
            )
            for kind in numbers
        }
    finally:
        different.unpersist()
    missing, unexpected = examples.get(_MISSING, ()), examples.get(_UNEXPECTED, ())
    half = max(EXAMPLES // 2, EXAMPLES - len(unexpected))
    return DifferingRows(
        RecordCounts(0, *(numbers.get(kind, 0) for kind in (_DIFFERING, _MISSING, _UNEXPECTED))),
        (*missing[:half], *unexpected)[:EXAMPLES],
        examples.get(_DIFFERING, ()),
    )


def _classify(wanted: Column, found: Column, *, kept: bool) -> Column:
    lost = F.lit("") if kept else F.lit(_MISSING)
    same = F.transform(wanted, lambda each: each[_COMPARED]) == F.transform(found, lambda each: each[_COMPARED])
    return (
        F.when(F.size(found) == 0, lost)
        .when(F.size(found) < F.size(wanted), F.lit(_MISSING))
        .when(F.size(found) > F.size(wanted), F.lit(_UNEXPECTED))
        .when(same, F.lit(""))
        .otherwise(F.lit(_DIFFERING))
    )


def _choose_fields(frame: DataFrame, fields: Collection[str]) -> list[str]:
    """Return the compared fields of the payload, sorted; empty if the payload is compared as a whole."""
    kind = frame.schema[PAYLOAD].dataType if PAYLOAD in frame.columns else None
    return [name for name in sorted(fields) if name in kind.names] if isinstance(kind, StructType) else []


def _show_value(frame: DataFrame, fields: Sequence[str] = (), *, timed: bool) -> Column:
    """Return the payload, or the chosen fields of it, as JSON; `timed` adds the time of the last access."""
    columns: list[Column] = []
    if PAYLOAD in frame.columns:
        payload = F.col(PAYLOAD)
        value = F.struct(*(payload.getField(name).alias(name) for name in fields)) if fields else payload
        columns.append(F.when(payload.isNotNull(), value).alias("value"))
    if timed and hidden(TTL_COLUMN) in frame.columns:
        columns.append(F.col(hidden(TTL_COLUMN)).alias("ttl_last_access"))
    # Timers have no columns besides their keys: their value is an empty JSON object.
    return F.to_json(F.struct(*columns), {"ignoreNullFields": "false"}) if columns else F.lit("{}")


def _compare_text(frame: DataFrame, fields: Collection[str], *, timed: bool) -> Column:
    """Return the text by which rows are compared: types and values, because an INT 1 and a BIGINT 1 differ."""
    if PAYLOAD not in frame.columns:
        return _show_value(frame, timed=timed)
    kind, known = frame.schema[PAYLOAD].dataType, _choose_fields(frame, fields)
    types = (
        [kind[name].dataType.simpleString() for name in known]
        if known and isinstance(kind, StructType)
        else [kind.simpleString()]
    )
    return F.concat(F.lit(" ".join(types)), _show_value(frame, known, timed=timed))


def _make_row(
    state: str,
    row: Mapping[str, Any],
    names: Mapping[str, str],
    sides: Sequence[str],
    compared: tuple[str, str],
    fields: frozenset[str],
) -> DifferingRecord:
    key = {names[name]: to_plain(value) for name, value in row.items() if name in names and value is not None}
    if "state_key" in key:
        key.pop("key_bytes", None)
    # Columns of the key come first, columns of the position in the snapshot last.
    order = (*KEYS, "timestamp", "key_bytes", "list_index", "subtask", "key_group")
    key = {name: key[name] for name in order if name in key}
    texts = {name: [json.loads(each[_VALUE]) for each in row[name]] for name in sides}
    values = {name: [_open(each) for each in found] for name, found in texts.items() if found}
    several = [f"{len(found)} records {name}" for name, found in values.items() if len(found) > 1]
    shown = {name: found[0] if len(found) == 1 else found for name, found in values.items()}
    absent = tuple(name for name in sides if not texts[name])
    if EXPECTED not in sides:
        # In a round trip, the expected rows are the old rows.
        shown |= {EXPECTED: shown[BEFORE]} if BEFORE in shown else {}
        absent += () if BEFORE in shown else (EXPECTED,)
    note = f"the key occurs several times: {', '.join(several)}" if several else ""
    return DifferingRecord(state, key, shown, absent, note, compared, fields)


def _open(content: dict[str, Any]) -> Any:
    return content["value"] if list(content) == ["value"] else content or "timer"


def combine_found(found: Sequence[DifferingRows]) -> DifferingRows:
    """Combine the differing rows of several states."""
    return reduce(lambda one, other: one + other, found, DifferingRows())


_WHAT = "the proof cannot read the state"


def digest_splits(
    spark: SparkSession, splits: Sequence[KeyedSplit], columns: RowColumns, *, hashed: bool = False
) -> Digested:
    """Digest a state as stored in its files.

    Args:
        spark: the session.
        splits: of the state.
        columns: the digested columns.
        hashed: also count keys that are not in the key group of their hash.

    Raises:
        StateError: the state cannot be read.
    """
    return combine(run_tasks(spark, [_DigestSplit(each, columns, hashed) for each in splits], _WHAT))


def find_misfiled(spark: SparkSession, state: str, splits: Sequence[KeyedSplit], limit: int) -> list[DifferingRecord]:
    """Find records of a state that are in another key group than their hash gives.

    Args:
        spark: the session.
        state: its name.
        splits: of the state.
        limit: records at most.

    Raises:
        StateError: the state cannot be read.
    """
    found = run_tasks(spark, [_FindMisfiled(each, limit) for each in splits], _WHAT)
    rows = [row for each in found for row in each][:limit]
    return [
        DifferingRecord(
            state,
            {"state_key": key},
            {AFTER: f"key group {group}", EXPECTED: f"key group {hashed}, by the hash of the key"},
        )
        for key, group, hashed in rows
    ]


def digest_back(
    spark: SparkSession, splits: Sequence[KeyedSplit], way: FieldwiseRows, made: RowColumns, written: RowColumns | None
) -> tuple[Digested, Digested]:
    """Digest the result of a field-wise downgrade and, in the same pass, the new state that it reads.

    Args:
        spark: the session.
        splits: of the new state.
        way: reader that downgrades rows.
        made: columns of the downgraded rows to digest.
        written: columns of the new state to digest; its key groups are then checked by the hashes of keys. None to
            digest only the result.

    Returns:
        (digests of the downgraded rows, digests of the new state).

    Raises:
        StateError: the state cannot be read, or a field not be computed.
    """
    fields = () if written is None or written.fields is None else written.fields
    new = None if made.fields is None else frozenset(made.fields)
    rows = replace(way, new=new, old=frozenset(fields), hashed=written is not None)
    found = run_on_rows(spark, rows, splits, _DigestBack(made, written), "the way back cannot be computed")
    return combine(back for back, _ in found), combine(read for _, read in found)


def digest_frame(frame: DataFrame, types: Mapping[str, pa.DataType], columns: RowColumns) -> Digested:
    """Digest rows that Spark makes.

    Args:
        frame: the rows, with the columns that an encoder takes.
        types: Arrow types of the columns that have another type in Spark.
        columns: the digested columns.

    Raises:
        StateError: a row cannot be computed, or does not fit its type.
    """

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        digest = RowDigest(columns)
        for batch in batches:
            digest.add(restore_types(batch, types))
        yield pa.RecordBatch.from_pydict({"digested": [pickle.dumps(digest.result)]})

    # After a shuffle, every task may have digests of every key group: they are merged in tasks, so that the driver does
    # not collect all of them.
    made = frame.mapInArrow(work, "digested binary").rdd.map(lambda row: pickle.loads(row["digested"]))
    return made.treeAggregate(Digested(), _join, _join)


def _join(one: Digested, other: Digested) -> Digested:
    """Add the digests of `other` to `one`, and return `one`."""
    one.add(other)
    return one


@dataclass(frozen=True)
class _DigestSplit:
    """Task that digests the rows of one split."""

    split: KeyedSplit
    columns: RowColumns
    hashed: bool

    def run(self) -> Digested:
        """Digest the rows of the split."""
        columns = self.columns
        digest = RowDigest(columns)
        names = ["key_group", *columns.keys]
        names += [TTL_COLUMN] if columns.times else []
        names += [HASHED] if self.hashed else []
        if columns.kind is not None:
            apart = columns.fields is not None and pa.types.is_struct(columns.kind) and columns.kind.num_fields
            fields = choose_fields(columns.kind, columns.fields or ()) if apart else ()
            names += [f"{columns.payload}.{name}" for name in fields] or [columns.payload]
        options = TableOptions(columns=tuple(names), key_bytes="key_bytes" in names, key_hash=self.hashed)
        for batch in replace(self.split, options=options).batches():
            digest.add(batch)
        return digest.result


@dataclass(frozen=True)
class _FindMisfiled:
    """Task that finds records of one split in another key group than the hash of their key gives."""

    split: KeyedSplit
    limit: int

    def run(self) -> list[tuple[Any, int, int]]:
        """Return (key, key group, key group by the hash of the key) for each of these records."""
        rows: list[tuple[Any, int, int]] = []
        options = TableOptions(columns=("key_group", "state_key", HASHED), key_hash=True)
        for batch in replace(self.split, options=options).batches():
            wrong = batch.filter(pc.fill_null(pc.not_equal(batch.column("key_group"), batch.column(HASHED)), False))
            rows += [
                (to_plain(row["state_key"]), row["key_group"], row[HASHED])
                for row in wrong.slice(0, self.limit - len(rows)).to_pylist()
            ]
            if len(rows) >= self.limit:
                break
        return rows


@dataclass(frozen=True)
class _DigestBack:
    """Task that digests the rows of one split, and the downgraded rows made from them."""

    made: RowColumns
    written: RowColumns | None

    def run(self, rows: Iterator[MigratedRows]) -> tuple[Digested, Digested]:
        """Digest the rows of the split."""
        back, read = RowDigest(self.made), None if self.written is None else RowDigest(self.written)
        for each in rows:
            back.add(each.new)
            if read is not None:
                read.add(each.stored)
        return back.result, Digested() if read is None else read.result


Way = tuple["Return", "LayoutContext"]
"""An old state that the downgrade makes, and the layouts by which its rows are compared."""

Returned = tuple["RowColumns", "Sums"]
"""Digested columns of downgraded rows, and their digests."""


@dataclass(frozen=True)
class KeyedStates:
    """Keyed states and timers in a proof: compared by key group, rows identified by their keys.

    Attributes:
        before: the old operator.
        after: the new one, read back from the files that were written.
    """

    spark: SparkSession
    before: Operator
    after: Operator
    is_keyed: ClassVar[bool] = True
    unit: ClassVar[str] = "key group"
    column: ClassVar[str] = "key_group"
    nouns: ClassVar[dict[str, str]] = {ROW_COUNTS: "records", KEY_SETS: "keys"}
    descriptions: ClassVar[dict[str, str]] = DESCRIPTIONS

    def make_reader(self, operator: Operator, opaque_values: OpaqueValues = OpaqueValues.ALL) -> StateFrames:
        """Return the reader of the old or the new operator."""
        return StateFrames(self.spark, operator, opaque_values=opaque_values)

    def spread(self, name: str, shape: StateShape, sums: Sums) -> Sums:
        """Return the expected digests by group; for keyed state they are unchanged."""
        del name, shape
        return sums

    def choose_old(self, back: Return, layouts: LayoutContext) -> RowColumns:
        """Choose the columns of an old state to digest."""
        return choose_old(self.before, back, layouts)

    def digest_old(self, back: Return, columns: RowColumns, layouts: LayoutContext) -> Sums:
        """Digest an old state as stored in its files."""
        splits = split_rows(self.before, back.old, layouts.opaque_values)
        return digest_splits(self.spark, splits, columns).sums

    def digest_new(
        self, name: str, shape: StateShape, expected: ExpectedDigests, layouts: LayoutContext, ways: Sequence[Way]
    ) -> tuple[Digested, list[Returned]]:
        """Digest a new state as stored and as downgraded, in one pass where Arrow computes the downgrade.

        Args:
            name: of the state.
            shape: of its rows.
            expected: digests with which the rows will be compared.
            layouts: of its rows.
            ways: the old states that the downgrade makes of the new one.
        """
        del shape, layouts
        splits, written = split_rows(self.after, name), None
        found: dict[str, tuple[RowColumns, Digested, dict[str, str]]] = {}
        for back, compared in ways:
            bytewise = compared.opaque_values is OpaqueValues.ALL
            way = find_fieldwise(self.spark, back.way, compared) if bytewise else None
            if way is None:
                continue
            columns = replace(choose_row_columns(back.way.shape, self.before, compared, back.lost), times=False)
            made, shared = share_digests(columns, expected.columns, way.carried, whole=way.whole)
            came = Digested()
            if made.fields != ():
                # The new state is read once for each old state that it is downgraded to. The first of these passes also
                # digests the new rows as stored, if they are identified by the bytes of their keys.
                beside = expected.columns if written is None and "key_bytes" in expected.columns.keys else None
                came, read = digest_back(self.spark, splits, FieldwiseRows(way, compared), made, beside)
                written = read if beside is not None else written
            found[back.old] = columns, came, shared
        if written is None:
            written = digest_splits(self.spark, splits, expected.columns, hashed=True)
        returned: list[Returned] = []
        for back, compared in ways:
            if back.old in found:
                columns, came, shared = found[back.old]
                returned.append((columns, _join_sides(came, written, shared)))
            else:
                returned.append(self._digest_returned(back, compared))
        return written, returned

    def _digest_returned(self, back: Return, layouts: LayoutContext) -> Returned:
        shape = back.way.shape
        assert shape.key is not None
        frame = to_rows(FlowRunner(self.make_reader(self.after, layouts.opaque_values), layouts).build(back.way), shape)
        kind, groups = find_payload_type(shape, layouts), self.before.max_parallelism
        columns = replace(choose_columns(shape, kind, frame.columns, groups, back.lost), times=False)
        types = find_types(derive_keyed_layout(shape.info, shape.key, groups, layouts))
        return columns, digest_frame(frame, types, columns).sums


def _join_sides(came: Digested, written: Digested, shared: dict[str, str]) -> Sums:
    """Return the digests of downgraded rows; digests of unchanged values are taken from the written rows."""
    if not shared:
        return came.sums
    same = {ROWS: ROWS, DIGEST_KEYS: DIGEST_KEYS, NULLS: NULLS} | shared
    return {
        group: {name: sums[other] for name, other in same.items()} | came.sums.get(group, {})
        for group, sums in written.sums.items()
    }


@dataclass(frozen=True)
class OperatorStates:
    """List and broadcast states in a proof: compared by subtask; see `KeyedStates` for attributes and methods."""

    spark: SparkSession
    before: Operator
    after: Operator
    is_keyed: ClassVar[bool] = False
    unit: ClassVar[str] = "subtask"
    column: ClassVar[str] = "subtask"
    nouns: ClassVar[dict[str, str]] = {ROW_COUNTS: "elements", KEY_SETS: "indices and keys"}
    descriptions: ClassVar[dict[str, str]] = DESCRIPTIONS | {
        ROW_COUNTS: "every subtask has as many elements as before",
        KEY_SETS: "elements keep their index in the list of their subtask, entries of broadcast state their keys",
    }

    def make_reader(self, operator: Operator, opaque_values: OpaqueValues = OpaqueValues.ALL) -> OperatorStateReader:
        """Return the reader of the old or the new operator, with all copies of broadcast state."""
        return OperatorStateReader(self.spark, operator, all_copies=True, opaque_values=opaque_values)

    def spread(self, name: str, shape: StateShape, sums: Sums) -> Sums:
        """Return the expected digests by subtask; for broadcast state, those of the one migrated copy for each."""
        if shape.kind != StateKind.BROADCAST:
            return sums
        (copy,) = sums.values() or [None]
        return {each.subtask: copy for each in find_state(self.after, name).subtask_states} if copy else {}

    def choose_old(self, back: Return, layouts: LayoutContext) -> RowColumns:
        """Choose the columns of an old state to digest."""
        return choose_elements(make_encoder(self.before, back.shape, layouts), back.lost)

    def digest_old(self, back: Return, columns: RowColumns, layouts: LayoutContext) -> Sums:
        """Digest an old state; of broadcast state, its first copy."""
        reader = OperatorStateReader(self.spark, self.before, opaque_values=layouts.opaque_values)
        return self._digest(reader.read(back.old, ()), back.shape, layouts, columns).sums

    def digest_new(
        self, name: str, shape: StateShape, expected: ExpectedDigests, layouts: LayoutContext, ways: Sequence[Way]
    ) -> tuple[Digested, list[Returned]]:
        """Digest a new state as stored and as downgraded."""
        written = self._digest(self.make_reader(self.after).read(name, ()), shape, layouts, expected.columns)
        returned: list[Returned] = []
        for back, compared in ways:
            frame = FlowRunner(self.make_reader(self.after, compared.opaque_values), compared).build(back.way)
            columns = choose_elements(make_encoder(self.before, back.way.shape, compared), back.lost)
            returned.append((columns, self._digest(frame, back.way.shape, compared, columns).sums))
        return written, returned

    def _digest(self, frame: DataFrame, shape: StateShape, layouts: LayoutContext, columns: RowColumns) -> Digested:
        types = make_encoder(self.before, shape, layouts).types
        return digest_frame(to_elements(frame, shape), types, columns)


def prove_plan(
    spark: SparkSession,
    before: Operator,
    after: Operator,
    plan: OperatorPlan,
    expected: Mapping[str, ExpectedDigests],
) -> ProofReport:
    """Compare the old states of an operator with the states that were written.

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
    """Prover of the changed states of one operator."""

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
        """Make the report on all states of the operator that change."""
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
        """Compare the expected rows of a new state with those written, and its old states with the downgraded rows."""
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
            names = {DIGEST_KEYS if is_timer else ROWS: f"{'timers' if is_timer else 'records'} of {back.old}"}
            # The digests of the old and of the downgraded rows may have different names: one that only one of them has
            # counts as a difference.
            names |= name_values(columns) | name_values(came)
            for group in sorted({*old, *sums}):
                values = {ROUND_TRIP: compare_sums(names, old.get(group), sums.get(group))}
                yield GroupResult(name, group, values, None, 0, 0)

    def _compare_written(self, name: str, flow: Flow, written: Digested) -> Iterator[GroupResult]:
        expected, nouns = self.expected[name], self.states.nouns
        names = {DIGEST_KEYS: "timers"} if flow.shape.kind == StateKind.TIMER else name_values(expected.columns)
        wanted = self.states.spread(name, flow.shape, expected.digested.sums)
        for group in sorted({*wanted, *written.sums}):
            one, other = wanted.get(group), written.sums.get(group)
            values = {
                ROW_COUNTS: compare_sums({ROWS: nouns[ROW_COUNTS]}, one, other),
                KEY_SETS: compare_sums({DIGEST_KEYS: nouns[KEY_SETS]}, one, other),
                READ_BACK: compare_sums(names, one, other),
            }
            records = 0 if other is None else other[ROWS]
            yield GroupResult(name, group, values, records, written.misfiled[group], written.unhashed[group])

    def _find_back_layouts(self, flow: Flow, back: Return) -> LayoutContext:
        bytewise = compares_bytes(flow, back, self.plan)
        return self.back_plan.row_layouts if bytewise else self.back_plan.context.layouts

    def _judge_own(self, name: str) -> tuple[ProofCheck, ...]:
        wanted = self.plan.expectations.get(name, ())
        if not wanted:
            return ()
        frame = read_rows(self.spark, self.after, name)
        return (judge_rows(frame, self.before.label, name, wanted),)

    def _find_rows(self, results: list[GroupResult]) -> dict[str, DifferingRows]:
        """Find the rows that differ, by failed check; both sides are read once for all checks but the round trip."""
        failed = {name for name in COMPARED if differ(results, name)}
        found: dict[str, DifferingRows] = {}
        if written := failed - {ROUND_TRIP}:
            rows = combine_found([self._find_written(*each, results, written) for each in self.plan.changed.items()])
            found |= dict.fromkeys(written, rows)
        if ROUND_TRIP in failed:
            lost: list[DifferingRows] = []
            for name, flow in self.plan.changed.items():
                fields, groups = find_failed(results, ROUND_TRIP, name)
                backs = self.trips[name].returns if groups else ()
                lost += [self._find_lost(name, flow, back, fields, groups) for back in backs]
            found[ROUND_TRIP] = combine_found(lost)
        return found

    def _find_written(self, name: str, flow: Flow, results: list[GroupResult], checks: set[str]) -> DifferingRows:
        """Find rows of a new state that differ from the expected ones."""
        fields: set[str] = set()
        groups: set[int] = set()
        for check in checks:
            names, found = find_failed(results, check, name)
            fields, groups = fields | names, groups | set(found)
        if not groups:
            return DifferingRows()
        layouts = self.plan.row_layouts
        reader = self.states.make_reader(self.before)
        sides = {AFTER: self.states.make_reader(self.after).read(name, KEY_COLUMNS)}
        sides[EXPECTED] = FlowRunner(reader, layouts).build(flow, KEY_COLUMNS)
        sources = find_reads(flow)
        if len(sources) == 1 and keeps_rows(flow):
            sides[BEFORE] = reader.read(sources[0], ())
        return find_rows(name, sides, (EXPECTED, AFTER), (self.states.column, groups), fields)

    def _find_lost(self, name: str, flow: Flow, back: Return, fields: set[str], groups: list[int]) -> DifferingRows:
        """Find rows of an old state that the downgrade does not make again."""
        layouts = self._find_back_layouts(flow, back)
        before, after = (self.states.make_reader(each, layouts.opaque_values) for each in (self.before, self.after))
        sides = {BEFORE: before.read(back.old, KEY_COLUMNS)}
        if keeps_rows(flow):
            sides[AFTER] = after.read(name, ())
        sides[RETURNED] = FlowRunner(after, layouts).build(back.way, KEY_COLUMNS)
        kept = fields - set(back.lost)
        return find_rows(name, sides, (BEFORE, RETURNED), (self.states.column, groups), kept, kept=back.kept)

    def _check_hashes(self, written: list[GroupResult]) -> ProofCheck | None:
        """Make the check of key groups by hashes; None for operator state, or if no hash is known."""
        total = sum(each.records or 0 for each in written)
        unhashed, misfiled = sum(each.unhashed for each in written), sum(each.misfiled for each in written)
        if not self.states.is_keyed or (total and unhashed == total):
            return None
        description = self.states.descriptions[KEY_HASHES]
        if unhashed and self.plan.key is not None:
            description += f" ({unhashed:,} of {total:,} keys of type {describe(self.plan.key)} have no known hash)"
        observed, rows = f"{misfiled:,} of {total - unhashed:,} keys are in another key group", list[DifferingRecord]()
        if misfiled:
            for name in self.plan.changed:
                splits = split_rows(self.after, name)
                rows += find_misfiled(self.spark, name, splits, EXAMPLES - len(rows)) if len(rows) < EXAMPLES else []
        counts = RecordCounts(total - unhashed, differing=misfiled)
        return ProofCheck(
            KEY_HASHES, not misfiled, description, "no key in another key group", observed, counts, tuple(rows)
        )

    def _check_united(self, results: list[GroupResult]) -> ProofCheck | None:
        """Check the number of new keys by counting their different bytes; return None if no key changes.

        The digests of the expected rows cannot show a wrong number: Spark has grouped these rows by key already.
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
