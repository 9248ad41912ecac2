"""Digests of rows in Spark, and invariants between the states of an operator that a migration preserves.

* `RowDigests`, `ExpectedDigests`: digests of the rows of a keyed state, by which a proof compares source and target.
  Rows are digested while they are written, read or computed, so that nothing is read once more for its digests.
* `check_invariants`: invariants between the states of Flink's own operators, checked on the result of a migration.
  `WindowOperator` and the operators of SQL keep several states that must agree: sessions, their contents and timers;
  the rows of a join and the counts of their matches; the rows of a top N and their numbers; distinct values and their
  count. Flink never checks them: where they disagree, contents are never emitted, or results are wrong for good. An
  invariant that the source violates as often says nothing about the migration: a trigger may purge contents, a join may
  have another condition, rows may have expired. It is named, and does not fail the proof.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, MapType, StructType

from state_pipelines.codecs.columns import column_type
from state_pipelines.codecs.layout import OPAQUE_FIELD
from state_pipelines.codecs.logical_values import conform
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import at
from state_pipelines.keyed.digests import ColumnDigest, Sums, add_sums, drop_fields, identify_rows
from state_pipelines.keyed.state_table import TTL_COLUMN, TTL_TYPE
from state_pipelines.operations.migration.flows import SessionRole
from state_pipelines.operations.migration.shapes import find_shapes
from state_pipelines.operations.migration.state_steps import WINDOW_CONTENTS, SessionStates, find_session_states
from state_pipelines.operations.proofs import (
    DESCRIPTIONS,
    EXAMPLES,
    STATES_AGREE,
    DifferingRecord,
    ProofCheck,
    RecordCounts,
    to_plain,
)
from state_pipelines.serializers import tree
from state_pipelines.serializers.tree import BasicKind, StateKind
from state_pipelines.spark.flow_steps import KEY, NAMESPACE, SESSION, STORED_UNDER, compare_key, list_sessions
from state_pipelines.spark.flow_steps import OLD_KEY as COMPARED
from state_pipelines.spark.flows import StateFrames
from state_pipelines.spark.tasks import translate_failures
from state_pipelines.spark.types import KEYS, PAYLOAD, from_spark, hidden
from state_pipelines.spark.types import KEYS as KEY_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    from pyspark.sql import Column, DataFrame, SparkSession

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.keyed.digests import Hashes
    from state_pipelines.keyed.record_layout import KeyedLayout
    from state_pipelines.operations.migration.flows import OperatorPlan, Return
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.snapshot import Operator

NULLS = "# nulls"
TIMES = "# times"
VALUES = "# values"
"""Names of digests that no field of a payload has. `VALUES` is the digest of a payload that is not digested by
field."""

BUCKETS = 128
"""Number of buckets of keys by which rows are compared if they have no key groups."""

HASHED = "hashed_key_group"


@dataclass(frozen=True)
class RowColumns:
    """The columns of a state's rows that a proof digests.

    Attributes:
        keys: columns that identify a row.
        groups: number of key groups or, of operator state, subtasks; None where keys get other key groups, so that rows
            are compared in `BUCKETS`.
        group_column: the column of the key group or subtask.
        payload: the column of the payload; timers have none.
        kind: Arrow type of the payload.
        fields: digested fields of the payload; None to digest it as one value.
        lost: dotted paths of fields that are left out of the digests, because a revision declares their loss.
        times: whether the times of the last access are digested too.
    """

    keys: tuple[str, ...]
    groups: int | None
    group_column: str = "key_group"
    payload: str = ""
    kind: pa.DataType | None = None
    fields: tuple[str, ...] | None = None
    lost: frozenset[str] = frozenset()
    times: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the digests of the payload and of times."""
        times = (TIMES,) if self.times else ()
        return times if self.kind is None else (NULLS, *((VALUES,) if self.fields is None else self.fields), *times)

    def has_losses(self, name: str) -> bool:
        """Return whether nested fields of a field are left out of its digest."""
        return any(each.startswith((f"{name}.", f"{name}[")) for each in self.lost)


def choose_columns(
    shape: StateShape,
    kind: pa.DataType | None,
    present: Sequence[str],
    max_parallelism: int,
    lost: Iterable[str] = (),
) -> RowColumns:
    """Choose the columns of the rows of a state to digest.

    Args:
        shape: of the rows.
        kind: Arrow type of the payload; None of timers.
        present: the columns that rows have besides the payload. If there are bytes of keys, they alone identify the
            key.
        max_parallelism: number of key groups.
        lost: dotted paths of fields that are not digested, such as `address.city`; `value` for a payload without
            fields.
    """
    key_columns = (
        ("key_bytes",) if "key_bytes" in present else tuple(n for n in (*KEY_COLUMNS, "timestamp") if n in present)
    )
    keys = (*key_columns, *(name for name in ("list_index",) if name in present))
    groups = max_parallelism if "key_group" in present else None
    columns = RowColumns(keys, groups, times=shape.ttl and TTL_COLUMN in present)
    return columns if kind is None else choose_payload(columns, shape.column, kind, lost)


def choose_payload(columns: RowColumns, payload: str, kind: pa.DataType, lost: Iterable[str]) -> RowColumns:
    """Add the columns of a payload; for the arguments see `choose_columns`."""
    away = frozenset(lost)
    has_fields = pa.types.is_struct(kind) and [each.name for each in kind] != [OPAQUE_FIELD]
    fields = tuple(each.name for each in kind if each.name not in away) if has_fields else None
    if fields is None and "value" in away:
        fields = ()
    return replace(columns, payload=payload, kind=kind, fields=fields, lost=away)


@dataclass(frozen=True)
class Digested:
    """Digests and counts of rows.

    Attributes:
        sums: digests by key group, or by bucket of keys.
        misfiled: by the same groups, number of records whose hash gives another key group.
        unhashed: by the same groups, number of records whose hash is not known.
    """

    sums: Sums = field(default_factory=dict)
    misfiled: Counter[int] = field(default_factory=Counter)
    unhashed: Counter[int] = field(default_factory=Counter)

    def add(self, other: Digested) -> None:
        """Add the digests and counts of other rows."""
        add_sums(self.sums, other.sums)
        self.misfiled.update(other.misfiled)
        self.unhashed.update(other.unhashed)


def combine(found: Iterable[Digested]) -> Digested:
    """Add up the digests and counts of several tasks; `found` is consumed lazily."""
    total = Digested()
    for each in found:
        total.add(each)
    return total


class RowDigest:
    """Sums of the digests of rows, over batches."""

    def __init__(self, columns: RowColumns) -> None:
        self._columns = columns
        self._digest = ColumnDigest(columns.groups or BUCKETS, columns.names)
        self._misfiled, self._unhashed = Counter[int](), Counter[int]()

    def add(self, rows: pa.RecordBatch, identities: Hashes | None = None) -> Hashes:
        """Add rows; if they have the column `HASHED`, also count those in another key group than their hash gives.

        Args:
            rows: the rows.
            identities: identities of the rows, if another digest with the same `keys` has computed them.

        Returns:
            The identities of the rows (hashes of the identifying columns).
        """
        columns = self._columns
        if identities is None:
            identities = identify_rows([_find_key(rows, name) for name in columns.keys])
        if columns.groups is None:
            groups = (identify_rows([rows.column("state_key")]) % np.uint64(BUCKETS)).astype(np.int32)
        else:
            groups = rows.column(columns.group_column).to_numpy().astype(np.int32, copy=False)
        arrays: dict[str, pa.Array] = {}
        if columns.kind is not None:
            arrays |= self._take_apart(rows.column(columns.payload))
        if columns.times:
            arrays[TIMES] = rows.column(TTL_COLUMN)
        self._digest.add(groups, identities, arrays)
        if HASHED in rows.schema.names:
            found = rows.column(HASHED)
            misfiled = pc.fill_null(pc.not_equal(rows.column("key_group"), found), False)
            self._misfiled += _count(groups, misfiled)
            self._unhashed += _count(groups, found.is_null())
        return identities

    def _take_apart(self, payload: pa.Array) -> dict[str, pa.Array]:
        """Split a payload into the columns to digest: null flags, and the digested fields without those in `lost`.

        A field is null where the payload is null.
        """
        columns = self._columns
        arrays = {NULLS: payload.is_null()}
        if columns.fields is None:
            return arrays | {VALUES: payload}
        if columns.fields:
            indexes = {each.name: index for index, each in enumerate(payload.type)}
            found = payload.flatten()
            for name in columns.fields:
                inside = (each for each in columns.lost if each.startswith((f"{name}.", f"{name}[")))
                below = [each.removeprefix(name).removeprefix(".") for each in inside]
                arrays[name] = drop_fields(found[indexes[name]], below)
        return arrays

    @property
    def result(self) -> Digested:
        """Digests and counts of all rows that were added."""
        return Digested(self._digest.sums, self._misfiled, self._unhashed)


def _find_key(rows: pa.RecordBatch, name: str) -> pa.Array:
    """Return an identifying column; indexes of elements, which may have any integer type, become 32-bit integers."""
    return rows.column(name).cast(pa.int32()) if name == "list_index" else rows.column(name)


def _count(groups: npt.NDArray[np.int32], rows: pa.BooleanArray) -> Counter[int]:
    found, counts = np.unique(groups[np.asarray(rows)], return_counts=True)
    return Counter(dict(zip(found.tolist(), counts.tolist(), strict=True)))


@dataclass(frozen=True)
class RowDigests:
    """The columns that are digested while rows are written.

    Attributes:
        expected: columns of the rows that are written.
        old: columns of the old rows that they result from; None if these are not digested at the same time.
    """

    expected: RowColumns
    old: RowColumns | None = None


class WrittenDigest:
    """Digests of old and new rows, computed while the new rows are written."""

    def __init__(self, wanted: RowDigests | None) -> None:
        self._wanted = wanted
        self._expected = None if wanted is None else RowDigest(wanted.expected)
        self._old = None if wanted is None or wanted.old is None else RowDigest(wanted.old)

    def add(self, old: pa.RecordBatch, new: pa.RecordBatch) -> None:
        """Add a batch of old rows and the batch of new rows that results from it."""
        if self._wanted is None or self._expected is None:
            return
        identities = self._expected.add(new)
        if self._wanted.old is not None and self._old is not None:
            # If the same columns identify old and new rows, keys and indexes are unchanged: then the identities of the
            # new rows are those of the old rows.
            self._old.add(old, identities if self._wanted.old.keys == self._wanted.expected.keys else None)

    def take(self, batches: Iterable[pa.RecordBatch], types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        """Digest rows from Spark, and yield them in the types in which they are written.

        Args:
            batches: the rows, with a column of the old payload if old rows are digested; this column is not yielded.
            types: of the columns; see `restore_types`.
        """
        old = None if self._wanted is None else self._wanted.old
        known = types if old is None or old.kind is None else {**types, old.payload: old.kind}
        for batch in batches:
            rows = restore_types(batch, known)
            self.add(rows, rows)
            yield rows if old is None else rows.drop_columns([old.payload])

    @property
    def results(self) -> tuple[Digested, Digested]:
        """Digests of the expected rows and of their origins; empty where not requested."""
        expected, old = (Digested() if each is None else each.result for each in (self._expected, self._old))
        return expected, old


def find_types(layout: KeyedLayout) -> dict[str, pa.DataType]:
    """Return the Arrow types of the columns of a state's rows: keys, the payload, and the time of the last access."""
    types = {each.name: each.type for each in column_type(layout.key)} | ({TTL_COLUMN: TTL_TYPE} if layout.ttl else {})
    if layout.state_type == StateKind.TIMER:
        return types
    value = column_type(layout.value)
    if layout.state_type == StateKind.LIST:
        element = value.value_type
        return types | {"value": value, "list_value": element.field("value").type if layout.ttl else element}
    name = "map_value" if layout.state_type == StateKind.MAP else "value"
    return types | {name: value.field("value").type if layout.ttl else value}


def restore_types(rows: pa.RecordBatch, types: Mapping[str, pa.DataType]) -> pa.RecordBatch:
    """Convert rows from Spark to the types of `find_types`.

    Raises:
        ValueRangeError: a value does not fit its type.
    """
    columns = [
        conform(from_spark(column, types[name]), types[name], name) if name in types else column
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


@dataclass(frozen=True)
class ExpectedDigests:
    """Digests of the rows that a migration writes of a state, for comparison with the rows read back.

    Attributes:
        columns: the columns that were digested.
        digested: their digests.
        source: name of the old state whose rows were digested at the same time; empty if none were.
        old: digests of the rows of `source`, without those in `carried`.
        carried: old and new name of each digest that both have, because the migration does not change its values.
    """

    columns: RowColumns
    digested: Digested
    source: str
    old: Digested
    carried: tuple[tuple[str, str], ...]

    @cached_property
    def old_sums(self) -> Sums:
        """Digests of all columns of the rows of `source`; those of unchanged columns are taken from the new rows."""
        expected = self.digested.sums
        return {
            group: {old: expected[group][new] for old, new in self.carried} | sums
            for group, sums in self.old.sums.items()
        }


def find_payload_type(shape: StateShape, layouts: LayoutContext) -> pa.DataType | None:
    """Return the Arrow type of the payload of a state; None for timers."""
    return None if shape.kind == StateKind.TIMER else column_type(derive_layout(shape.payload, layouts))


def choose_row_columns(
    shape: StateShape, operator: Operator, layouts: LayoutContext, lost: Iterable[str] = ()
) -> RowColumns:
    """Choose the columns of a state to digest; rows are identified by the bytes of their keys."""
    present = ["key_group", "key_bytes"]
    present += ["list_index"] if shape.kind == StateKind.LIST else []
    present += [TTL_COLUMN] if shape.ttl else []
    kind = find_payload_type(shape, layouts)
    return choose_columns(shape, kind, present, operator.max_parallelism, lost)


def choose_old(operator: Operator, back: Return, layouts: LayoutContext) -> RowColumns:
    """Choose the columns of an old state to digest, for comparison with the downgraded rows."""
    return replace(choose_row_columns(back.shape, operator, layouts, back.lost), times=False)


def share_digests(
    columns: RowColumns, others: RowColumns, carried: Iterable[tuple[str, str]], *, whole: bool
) -> tuple[RowColumns, dict[str, str]]:
    """Leave out columns whose digests can be taken from other rows with the same values.

    Args:
        columns: wanted columns of the rows.
        others: digested columns of the other rows.
        carried: fields of the rows, each with the field of the others that has its values.
        whole: both rows have the same payload.

    Returns:
        (remaining columns, names of digests with their names among the others).
    """
    if (columns.keys, columns.groups) != (others.keys, others.groups):
        # The digest of a value depends on the columns that identify its row: other rows must have the same columns.
        return columns, {}
    fields = columns.fields if columns.fields is not None else (VALUES,)
    pairs = zip(fields, fields, strict=True) if whole else carried
    shared = {one: other for one, other in pairs if one in fields and not columns.has_losses(one)}
    left = tuple(name for name in fields if name not in shared)
    return (columns if VALUES in left else replace(columns, fields=left)), shared


_SIDES = ("left-records", "right-records")
_DISTINCT = re.compile(r"distinctAcc_\d+")
_TIME_WINDOWS = (BasicKind.TIME_WINDOW, BasicKind.TABLE_TIME_WINDOW)
_RULE, _TIMES, _MATCHES = hidden("rule"), hidden("times"), hidden("matches")


@dataclass(frozen=True)
class _States:
    """The keyed states of an operator as frames."""

    spark: SparkSession
    operator: Operator
    shapes: Mapping[str, StateShape]

    def read(self, name: str) -> DataFrame:
        """Read a state, with decoded keys and the column `COMPARED`, by which keys are compared."""
        frame = StateFrames(self.spark, self.operator).read(name, KEYS)
        key = self.shapes[name].key
        assert key is not None
        layouts = self.operator.snapshot.layout_context
        return frame.withColumn(COMPARED, compare_key(F.col(KEY), frame.schema[KEY].dataType, key, layouts))

    def read_windows(self, names: Collection[str]) -> DataFrame | None:
        """Return the keys and windows for which the states have entries; None if `names` is empty."""
        frames = [self.read(name).select(COMPARED, KEY, NAMESPACE) for name in names]
        return (
            reduce(lambda one, other: one.unionByName(other), frames).dropDuplicates([COMPARED, NAMESPACE])
            if frames
            else None
        )

    def is_plain(self, name: str) -> bool:
        """Return whether the operator has a keyed state of this name with the void namespace."""
        shape = self.shapes.get(name)
        return shape is not None and shape.is_keyed and _is_basic(shape.namespace, BasicKind.VOID_NAMESPACE)


@dataclass(frozen=True)
class _Rule:
    """An invariant between states of an operator of Flink.

    Attributes:
        text: description of a violation; no other rule has the same.
        states: names of the states that must agree.
        find: finds the keys that violate it, with their namespaces where they have one.
    """

    text: str
    states: tuple[str, ...]
    find: Callable[[_States], DataFrame]


def check_invariants(spark: SparkSession, before: Operator, after: Operator, plan: OperatorPlan) -> ProofCheck | None:
    """Check the invariants between the states of a window operator or an operator of Flink SQL.

    Args:
        spark: the session.
        before: the old operator; it is read only if the new one violates an invariant.
        after: the new one, read back.
        plan: of its keyed states; invariants of states that are copied are not checked.

    Returns:
        The check; None if no invariant applies to changed states.

    Raises:
        StateError: a state cannot be read.
    """
    new = _States(spark, after, _find_keyed(after))
    rules = [rule for rule in _find_rules(new) if any(name in plan.changed for name in rule.states)]
    distinct = [each for each in _find_distinct(new.shapes) if any(name in plan.changed for name in each)]
    if not rules and not distinct:
        return None
    with at(operator=after.label), translate_failures("the proof cannot read the state"):
        old = _States(spark, before, _find_keyed(before))
        counts = _count_rows(new, rules)
        violated = [rule for rule in rules if counts[rule.text]]
        known = _count_rows(old, [rule for rule in _find_rules(old) if rule.text in {each.text for each in violated}])
        failed = [rule for rule in violated if counts[rule.text] > known.get(rule.text, 0)]
        rows = [row for rule in failed for row in _list_examples(rule.find(new), rule)]
        observed = [
            f"{counts[each.text]:,} {each.text} (in the source {known.get(each.text, 0):,})" for each in violated
        ]
        for names in distinct:
            if (rule := _judge_distinct(old, new, *names)) is not None:
                failed.append(rule)
                observed.append(rule.text)
                rows += _list_examples(rule.find(new), rule)
    checked = dict.fromkeys(name for each in (*(rule.states for rule in rules), *distinct) for name in each)
    number = sum(counts[rule.text] for rule in failed if rule.text in counts)
    return ProofCheck(
        STATES_AGREE,
        not failed,
        f"{DESCRIPTIONS[STATES_AGREE]} ({', '.join(checked)})",
        "no more violations than in the source",
        "; ".join(observed) or "no violation",
        RecordCounts(differing=max(number, len(rows))),
        tuple(rows[:EXAMPLES]),
    )


def _find_keyed(operator: Operator) -> dict[str, StateShape]:
    return {name: shape for name, shape in find_shapes(operator).items() if shape.is_keyed}


def _is_basic(serializer: tree.Serializer, *kinds: BasicKind) -> bool:
    return isinstance(serializer, tree.Basic) and serializer.kind in kinds


def _find_rules(states: _States) -> list[_Rule]:
    return [*_find_window_rules(states.shapes), *_find_join_rules(states), *_find_rank_rules(states)]


def _count_rows(states: _States, rules: Collection[_Rule]) -> dict[str, int]:
    """Count the violations of each rule, in one Spark job for all rules."""
    if not rules:
        return {}
    frames = [rule.find(states).select(F.lit(rule.text).alias(_RULE)) for rule in rules]
    union = reduce(lambda one, other: one.unionByName(other), frames)
    found = {row[0]: row[1] for row in union.groupBy(_RULE).count().collect()}
    return {rule.text: found.get(rule.text, 0) for rule in rules}


def _list_examples(frame: DataFrame, rule: _Rule) -> list[DifferingRecord]:
    names = [name for name in (KEY, NAMESPACE) if name in frame.columns]
    shown = frame.select(F.to_json(F.struct(*(F.col(name).alias(name.removeprefix(hidden(""))) for name in names))))
    keys = [json.loads(row[0]) for row in shown.limit(EXAMPLES).collect()]
    return [DifferingRecord(", ".join(rule.states), to_plain(key), {}, note=rule.text) for key in keys]


def _find_window_rules(shapes: Mapping[str, StateShape]) -> Iterator[_Rule]:
    sessions = find_session_states(shapes)
    timers = tuple(name for name, shape in shapes.items() if shape.kind == StateKind.TIMER)
    if sessions is not None:
        yield from _find_session_rules(sessions, timers)
        return
    contents = shapes.get(WINDOW_CONTENTS)
    if contents is None or contents.kind == StateKind.TIMER or not _is_basic(contents.namespace, *_TIME_WINDOWS):
        return
    own = tuple(name for name in timers if shapes[name].namespace == contents.namespace)
    # WindowOperator.registerCleanupTimer: every window needs a timer, without which it is never removed.
    if own:
        yield _lacking("windows with contents have no timer", (WINDOW_CONTENTS,), own)


def _find_session_rules(sessions: SessionStates, timers: Collection[str]) -> Iterator[_Rule]:
    name, contents = sessions.windows, sessions.contents
    own = tuple(each for each in timers if each in sessions.roles)

    def find_touching(states: _States) -> DataFrame:
        frame = list_sessions(states.read(name), states.shapes[name])
        order = Window.partitionBy(COMPARED).orderBy(F.col(SESSION)["start"], F.col(SESSION)["end"])
        latest = F.max(F.col(SESSION)["end"]).over(order.rowsBetween(Window.unboundedPreceding, -1))
        frame = frame.withColumn(_TIMES, latest).where(F.col(SESSION)["start"] <= F.col(_TIMES))
        return frame.select(KEY, F.col(SESSION).alias(NAMESPACE))

    yield _Rule("sessions touch or overlap another one of the key", (name,), find_touching)

    def list_windows(states: _States, column: str) -> DataFrame:
        frame = list_sessions(states.read(name), states.shapes[name])
        return frame.select(COMPARED, KEY, F.col(column).alias(NAMESPACE))

    def compare(text: str, others: tuple[str, ...], column: str, *, missing: bool) -> _Rule:
        def find(states: _States) -> DataFrame:
            windows, entries = list_windows(states, column), states.read_windows(others)
            assert entries is not None
            one, other = (windows, entries) if missing else (entries, windows)
            return _find_lacking(one, other)

        return _Rule(text, (name, *others), find)

    stored = tuple(each for each, role in sessions.roles.items() if role is SessionRole.STORED)
    if contents:
        yield compare("sessions have no contents", contents, STORED_UNDER, missing=True)
    if stored:
        yield compare("windows with contents are of no session", stored, STORED_UNDER, missing=False)
    if own:
        yield compare("sessions have no timer", own, SESSION, missing=True)
        yield compare("timers are of no session", own, SESSION, missing=False)


def _lacking(text: str, names: tuple[str, ...], others: tuple[str, ...]) -> _Rule:
    """Make the rule that a window with an entry in one of the states `names` also has one in one of `others`."""

    def find(states: _States) -> DataFrame:
        one, other = states.read_windows(names), states.read_windows(others)
        assert one is not None
        assert other is not None
        return _find_lacking(one, other)

    return _Rule(text, (*names, *others), find)


def _find_lacking(one: DataFrame, other: DataFrame) -> DataFrame:
    found = other.select(COMPARED, NAMESPACE)
    return one.join(found, [COMPARED, NAMESPACE], "left_anti").select(KEY, NAMESPACE)


def _find_join_rules(states: _States) -> Iterator[_Rule]:
    """Yield the rules of `StreamingJoinOperator` (`JoinRecordStateViews`, `OuterJoinRecordStateViews`)."""
    columns = {name: _find_join_columns(states.shapes[name]) for name in _SIDES if states.is_plain(name)}
    if len(columns) < len(_SIDES) or any(each is None for each in columns.values()):
        return
    for name, other in (_SIDES, _SIDES[::-1]):
        times, matches = columns[name] or (None, None)
        if times is not None:
            yield _Rule(f"rows of {name} occur less than once", (name,), _find_absent(name, times))
        if matches is not None:
            yield _Rule(
                f"rows of {name} count other matches than {other} has rows of the key",
                _SIDES,
                _find_uncounted(name, matches, other, (columns[other] or (None, None))[0]),
            )


def _find_join_columns(shape: StateShape) -> tuple[str | None, str | None] | None:
    """Return SQL for the number of times that a row of an input of a join occurs, and for the number of its matches.

    `shape` is that of the state that holds the rows of one input. One of the two is None if the state does not have
    the number. Return None if the state is not one of a join.
    """
    payload, of = shape.payload, PAYLOAD
    match shape.kind, payload:
        case StateKind.VALUE | StateKind.MAP, tree.RowData():
            return None, None
        case StateKind.VALUE | StateKind.MAP, tree.Tuple(fields=(tree.RowData(), count)) if _is_basic(
            count, BasicKind.INT
        ):
            return None, f"{of}.f1"
        case StateKind.MAP, tree.Tuple(fields=(one, other)) if all(
            _is_basic(each, BasicKind.INT) for each in (one, other)
        ):
            return f"{of}.f0", f"{of}.f1"
        case StateKind.MAP, count if _is_basic(count, BasicKind.INT):
            return of, None
        case _:
            return None


def _find_absent(name: str, times: str) -> Callable[[_States], DataFrame]:
    return lambda states: states.read(name).where(F.col(times) < 1).select(KEY)


def _find_uncounted(name: str, matches: str, other: str, times: str | None) -> Callable[[_States], DataFrame]:
    def find(states: _States) -> DataFrame:
        number: Column = F.count("*") if times is None else F.sum(F.col(times).cast("long"))
        totals = states.read(other).groupBy(COMPARED).agg(number.alias(_TIMES))
        rows = states.read(name).withColumn(_MATCHES, F.col(matches)).join(totals, COMPARED, "left")
        return rows.where(F.col(_MATCHES) != F.coalesce(_TIMES, F.lit(0))).select(KEY)

    return find


def _find_rank_rules(states: _States) -> Iterator[_Rule]:
    """Yield the rule of `RetractableTopNFunction`, which counts the rows of each sort key in a sorted map."""
    names = ("data-state", "sorted-map")
    if not all(map(states.is_plain, names)):
        return
    data, counters = (states.shapes[name] for name in names)
    if data.kind != StateKind.MAP or not isinstance(data.payload, tree.ListOf) or counters.kind != StateKind.VALUE:
        return

    def find(states: _States) -> DataFrame:
        rows, counted = (states.read(name) for name in names)
        kinds = rows.schema[PAYLOAD].dataType, counted.schema[PAYLOAD].dataType
        if not isinstance(kinds[0], ArrayType) or not isinstance(kinds[1], MapType):
            return rows.select(KEY).limit(0)
        sort_key = F.col(hidden("map_key"))
        have = rows.select(COMPARED, KEY, sort_key.alias(NAMESPACE), F.size(PAYLOAD).cast("long").alias(_TIMES))
        want = counted.select(COMPARED, KEY, F.explode(PAYLOAD).alias(NAMESPACE, _MATCHES))
        want = want.withColumnRenamed(KEY, hidden("other_key"))
        both = have.join(want, [COMPARED, NAMESPACE], "full_outer")
        differing = both.where(~F.col(_TIMES).eqNullSafe(F.col(_MATCHES)))
        return differing.select(F.coalesce(KEY, hidden("other_key")).alias(KEY))

    yield _Rule("sort keys have another number of rows than sorted-map says", names, find)


def _find_distinct(shapes: Mapping[str, StateShape]) -> Iterator[tuple[str, str]]:
    """Yield pairs of states: accumulators of SQL, and one of their states of distinct values (`DistinctInfo`)."""
    for name in ("accState", "window-aggs"):
        accumulators = shapes.get(name)
        if accumulators is None or not isinstance(accumulators.payload, tree.RowData):
            continue
        for view, shape in shapes.items():
            if _DISTINCT.fullmatch(view) and shape.kind == StateKind.MAP and shape.namespace == accumulators.namespace:
                yield name, view


def _count_unlike(states: _States, name: str, view: str) -> dict[str, int]:
    """Count, for each BIGINT field of the accumulators, the keys for which it is not the number of distinct values."""
    frame, found = _join_distinct(states, name, view)
    sums = [F.sum(F.when(_differs(each), 1).otherwise(0)).alias(f"{index}") for index, each in enumerate(found)]
    row = frame.agg(F.count("*"), *sums).collect()[0] if found else (0,)
    return {each: row[index + 1] for index, each in enumerate(found)} if row[0] else {}


def _join_distinct(states: _States, name: str, view: str) -> tuple[DataFrame, list[str]]:
    rows, values = states.read(name), states.read(view)
    # Without windows, the namespace of `accState` is void and its column null. Nulls do not match in a join, so only
    # keys are compared.
    pair = [COMPARED, NAMESPACE] if _is_basic(states.shapes[name].namespace, *_TIME_WINDOWS) else [COMPARED]
    counted = values.groupBy(*pair).agg(F.count("*").alias(_TIMES))
    kind = rows.schema[PAYLOAD].dataType
    fields = kind.fields if isinstance(kind, StructType) else []
    return rows.join(counted, pair, "left"), [each.name for each in fields if isinstance(each.dataType, LongType)]


def _differs(field: str) -> Column:
    return ~F.col(PAYLOAD).getField(field).eqNullSafe(F.coalesce(_TIMES, F.lit(0)))


def _judge_distinct(old: _States, new: _States, name: str, view: str) -> _Rule | None:
    """Return the rule that a field counts distinct values, if the new state violates it; else None.

    A snapshot does not say which field counts distinct values. A field that equals their number for all keys of the old
    state must do so for all keys of the new one.
    """
    found = _count_unlike(new, name, view)
    if not found or not all(found.values()) or any(each not in old.shapes for each in (name, view)):
        return None
    known = [field for field, number in _count_unlike(old, name, view).items() if not number and field in found]
    if not known:
        return None
    field = min(known, key=lambda each: found[each])

    def find(states: _States) -> DataFrame:
        return _join_distinct(states, name, view)[0].where(_differs(field)).select(KEY)

    text = f"{found[field]:,} keys of {name} count other distinct values in {field} than {view} has (in the source 0)"
    return _Rule(text, (name, view), find)
