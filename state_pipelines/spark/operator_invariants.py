"""Invariants between the states of Flink's own operators, checked on the result of a migration.

`WindowOperator` and the operators of SQL keep several states that must agree: sessions, their contents and timers; the
rows of a join and the counts of their matches; the rows of a top N and their numbers; distinct values and their count.
Flink never checks them: where they disagree, contents are never emitted, or results are wrong for good.

An invariant that the source violates as often says nothing about the migration: a trigger may purge contents, a join
may have another condition, rows may have expired. It is named, and does not fail the proof.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, MapType, StructType

from state_pipelines.errors import at
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
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.tree import BasicKind
from state_pipelines.spark.flow_steps import KEY, NAMESPACE, SESSION, STORED_UNDER, compare_key, list_sessions
from state_pipelines.spark.flow_steps import OLD_KEY as COMPARED
from state_pipelines.spark.flows import StateFrames
from state_pipelines.spark.tasks import translate_failures
from state_pipelines.spark.types import KEYS, PAYLOAD, hidden

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from state_pipelines.operations.migration.flows import OperatorPlan
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.snapshot import Operator

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
        """The rows of a state, with decoded keys and `COMPARED`, by which keys are compared."""
        frame = StateFrames(self.spark, self.operator).read(name, KEYS)
        key = self.shapes[name].key
        assert key is not None
        layouts = self.operator.snapshot.layout_context
        return frame.withColumn(COMPARED, compare_key(F.col(KEY), frame.schema[KEY].dataType, key, layouts))

    def read_windows(self, names: Collection[str]) -> DataFrame | None:
        """Keys and windows that states have entries for; None without states."""
        frames = [self.read(name).select(COMPARED, KEY, NAMESPACE) for name in names]
        return (
            reduce(lambda one, other: one.unionByName(other), frames).dropDuplicates([COMPARED, NAMESPACE])
            if frames
            else None
        )

    def is_plain(self, name: str) -> bool:
        """Whether the operator has the state, without namespaces."""
        shape = self.shapes.get(name)
        return shape is not None and shape.is_keyed and _is_basic(shape.namespace, BasicKind.VOID_NAMESPACE)


@dataclass(frozen=True)
class _Rule:
    """An invariant.

    Attributes:
        text: a violation of it in words; identifies the rule.
        states: names of the states that it is about.
        find: finds the keys that violate it, with their namespaces where they have one.
    """

    text: str
    states: tuple[str, ...]
    find: Callable[[_States], DataFrame]


def check_invariants(spark: SparkSession, before: Operator, after: Operator, plan: OperatorPlan) -> ProofCheck | None:
    """Check that states of an operator of Flink's own agree with each other.

    Args:
        spark: the session.
        before: the old operator, which is read where the result violates an invariant.
        after: the new one, read back.
        plan: of its keyed states; invariants of states that are copied are not checked.

    Returns:
        The check; None where there is nothing to check.

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
        counts = _count(new, rules)
        violated = [rule for rule in rules if counts[rule.text]]
        known = _count(old, [rule for rule in _find_rules(old) if rule.text in {each.text for each in violated}])
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


def _count(states: _States, rules: Collection[_Rule]) -> dict[str, int]:
    """Numbers of violations by rule, of all rules in one run."""
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
    # WindowOperator.registerCleanupTimer: a window without a timer is never removed.
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
    """A rule that every window of some states is one of others, too."""

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
    """Rules of `StreamingJoinOperator` (`JoinRecordStateViews`, `OuterJoinRecordStateViews`)."""
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
    """Expressions of how often a row of a side occurs, and of the count of its matches; None of other operators."""
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
    """The rule of `RetractableTopNFunction`: it counts the rows of each sort key in a sorted map."""
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
    """Accumulators of SQL and each of their states of distinct values (`DistinctInfo`)."""
    for name in ("accState", "window-aggs"):
        accumulators = shapes.get(name)
        if accumulators is None or not isinstance(accumulators.payload, tree.RowData):
            continue
        for view, shape in shapes.items():
            if _DISTINCT.fullmatch(view) and shape.kind == StateKind.MAP and shape.namespace == accumulators.namespace:
                yield name, view


def _count_unlike(states: _States, name: str, view: str) -> dict[str, int]:
    """By BIGINT field of the accumulators, the number of keys where it is not the number of distinct values."""
    frame, found = _join_distinct(states, name, view)
    sums = [F.sum(F.when(_differs(each), 1).otherwise(0)).alias(f"{index}") for index, each in enumerate(found)]
    row = frame.agg(F.count("*"), *sums).collect()[0] if found else (0,)
    return {each: row[index + 1] for index, each in enumerate(found)} if row[0] else {}


def _join_distinct(states: _States, name: str, view: str) -> tuple[DataFrame, list[str]]:
    rows, values = states.read(name), states.read(view)
    # The namespace of `accState` is void, which is null.
    pair = [COMPARED, NAMESPACE] if _is_basic(states.shapes[name].namespace, *_TIME_WINDOWS) else [COMPARED]
    counted = values.groupBy(*pair).agg(F.count("*").alias(_TIMES))
    kind = rows.schema[PAYLOAD].dataType
    fields = kind.fields if isinstance(kind, StructType) else []
    return rows.join(counted, pair, "left"), [each.name for each in fields if isinstance(each.dataType, LongType)]


def _differs(field: str) -> Column:
    return ~F.col(PAYLOAD).getField(field).eqNullSafe(F.coalesce(_TIMES, F.lit(0)))


def _judge_distinct(old: _States, new: _States, name: str, view: str) -> _Rule | None:
    """The violated rule of distinct values, if it is.

    Nothing in a snapshot says which field counts them: one that does for all keys of the source counts them for all
    keys afterwards, too.
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
