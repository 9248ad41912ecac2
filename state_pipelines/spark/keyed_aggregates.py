"""Keyed state kept up to date by SQL aggregates: new records are merged into the state of a snapshot.

The old state of a key is one more row of the aggregation, so that a batch of records costs one shuffle, all of it in
the JVM and in Arrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import functions as F

from state_pipelines.errors import UnsupportedError, UsageError, Where, at
from state_pipelines.keyed.state_table import TTL_COLUMN
from state_pipelines.metadata import find_operator_id
from state_pipelines.operations.bootstrap.new_states import LIST_INDEX, STATE_KEY, NewOperator, NewState
from state_pipelines.operations.write.keyed_rewrite import Format
from state_pipelines.operations.write.publication import FileMode
from state_pipelines.serializers.build import VOID_NAMESPACE
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.snapshot.snapshot import ensure_open
from state_pipelines.spark.bootstrap_run import bootstrap
from state_pipelines.spark.operator_state import read_rows
from state_pipelines.spark.registration import register
from state_pipelines.spark.tasks import translate_failures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from state_pipelines.operations.bootstrap.bootstrap import BootstrapResult
    from state_pipelines.operations.bootstrap.new_states import GivenType
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.snapshot import Operator, Snapshot

KINDS = (StateKind.VALUE, StateKind.REDUCING, StateKind.AGGREGATING, StateKind.LIST)
"""Kinds of state that aggregates keep up to date."""


@dataclass(frozen=True)
class Aggregate:
    """A keyed state that an SQL aggregate keeps up to date.

    `combine` must be associative over its own results: combining the combined values of two batches gives what
    combining all values gives. So a mean is two states, a sum and a count. Keys whose result is null have no state.

    Attributes:
        row: SQL of the value of one record.
        combine: SQL aggregate over `{value}`, and over `{order}` if there is an order; the order of old state is null.
        order: SQL by which records are ordered, null for none of them; empty if their order does not matter.
        kind: VALUE, REDUCING, AGGREGATING or LIST; that of the snapshot if it has the state.
        type: serializer of the value; that of the snapshot, else what follows from the type of the column.
    """

    row: str
    combine: str
    order: str = ""
    kind: str = StateKind.VALUE
    type: GivenType | None = None


def count_of() -> Aggregate:
    """Number of records."""
    return Aggregate("1L", "sum({value})")


def sum_of(expression: str) -> Aggregate:
    """Sum of an SQL expression of type BIGINT or DOUBLE."""
    return Aggregate(f"({expression})", "sum({value})")


def min_of(expression: str) -> Aggregate:
    """Smallest value of an SQL expression."""
    return Aggregate(f"({expression})", "min({value})")


def max_of(expression: str) -> Aggregate:
    """Largest value of an SQL expression."""
    return Aggregate(f"({expression})", "max({value})")


def last_of(expression: str, order_by: str) -> Aggregate:
    """Last value of an SQL expression by `order_by` that is not null; records of a batch follow older batches."""
    last = "max_by({value}, if({value} is null, null, {order}))"
    return Aggregate(f"({expression})", f"coalesce({last}, any_value({{value}}, true))", order_by)


def collect_of(expression: str, order_by: str) -> Aggregate:
    """List state of all values of an SQL expression, ordered by `order_by` within a batch."""
    ordered = "array_sort(collect_list(if({value} is null, null, struct({order} AS position, {value} AS found))))"
    return Aggregate(
        f"array(({expression}))", f"flatten(transform({ordered}, each -> each.found))", order_by, StateKind.LIST
    )


def keyed_aggregate(
    records: DataFrame,
    target: str,
    operator: str,
    key: str,
    states: Mapping[str, Aggregate],
    *,
    snapshot: Snapshot | str | None = None,
    key_type: GivenType | None = None,
    parallelism: int | None = None,
    max_parallelism: int | None = None,
    format: Format | str = Format.CANONICAL,
    files: FileMode | str = FileMode.COPY,
    prove: bool = True,
    scratch: str | None = None,
) -> BootstrapResult:
    """Merge records into keyed state, and write the result as a savepoint that Flink restores.

    Args:
        records: one row per record.
        target: directory of the new savepoint, which must not exist.
        operator: uid of the operator, or its 32-digit id.
        key: SQL of the key of a record; records whose key is null are refused.
        states: aggregates by the names of the states.
        snapshot: the state so far; its other states and operators are taken over. None to begin without any.
        key_type: serializer of the keys; that of the snapshot, else what follows from the type of the column.
        parallelism: number of subtasks; needed for an operator that the snapshot does not have.
        max_parallelism: number of key groups; by default that of the snapshot, or what Flink would choose.
        format: as in `bootstrap`.
        files: as in `bootstrap`.
        prove: as in `bootstrap`.
        scratch: as in `bootstrap`.

    Raises:
        UsageError: an expression cannot be understood, or the type of an aggregate is not that of its values.
        MigrationError: the order of a record is null.
        UnsupportedError: the snapshot has a state of that name with TTL, with namespaces, or of another kind.
        StateError: see `bootstrap`.
    """
    if not states:
        raise UsageError("there are no aggregates", hint='Give `states`, such as {"count": count_of()}')
    base = None if snapshot is None else ensure_open(snapshot)
    found = None if base is None else base.get_operator(find_operator_id(operator))
    known = {} if found is None else _find_known(found, states)
    register(records.sparkSession)
    rows = _select_records(records, key, states)
    for name in known:
        assert found is not None
        rows = rows.unionByName(_select_old(found, name, list(states).index(name), rows), allowMissingColumns=True)
    merged = _combine(rows, states).persist(StorageLevel.DISK_ONLY)
    try:
        new = [
            _describe(name, each, merged.where(F.col(_value(index)).isNotNull()), _value(index), known.get(name))
            for index, (name, each) in enumerate(states.items())
        ]
        described = NewOperator(operator, new, key_type, parallelism, max_parallelism)
        return bootstrap(target, [described], base=base, format=format, files=files, prove=prove, scratch=scratch)
    finally:
        merged.unpersist()


def _value(index: int) -> str:
    return f"value_{index}"


def _order(index: int) -> str:
    return f"order_{index}"


def _find_known(operator: Operator, states: Mapping[str, Aggregate]) -> dict[str, StateMetaInfo]:
    """The states that the snapshot has already, by name.

    Raises:
        UnsupportedError: one of them cannot be merged with values of records.
    """
    known = {}
    for state in operator.states:
        if state.name not in states:
            continue
        with at(operator=operator.label, state=state.name):
            if not isinstance(state, KeyedState) or state.kind not in KINDS:
                raise UnsupportedError(f"{state.kind} state is not kept up to date by aggregates")
            if state.info.namespace_serializer != VOID_NAMESPACE:
                raise UnsupportedError("state of windows is not kept up to date by aggregates")
            if TTL_COLUMN in state.schema.names:
                raise UnsupportedError("state with a time to live is not kept up to date by aggregates")
            if (state.kind == StateKind.LIST) != (states[state.name].kind == StateKind.LIST):
                raise UsageError(f"the snapshot has it as {state.kind} state")
        known[state.name] = state.info
    return known


def _select_records(records: DataFrame, key: str, states: Mapping[str, Aggregate]) -> DataFrame:
    with translate_failures("the records cannot be evaluated", UsageError):
        columns = [F.expr(key).alias(STATE_KEY)]
        for index, (name, each) in enumerate(states.items()):
            columns.append(F.expr(each.row).alias(_value(index)))
            if each.order:
                order = F.expr(each.order)
                missing = F.raise_error(F.lit(f"state {name}: the order of a record is null ({each.order})"))
                columns.append(F.when(order.isNull(), missing).otherwise(order).alias(_order(index)))
        rows = records.select(*columns)
        _ = rows.schema  # Spark resolves expressions when it is asked for the schema.
    return rows


def _select_old(operator: Operator, name: str, index: int, rows: DataFrame) -> DataFrame:
    """The old values of a state, with the columns of `rows` that they have."""
    old = read_rows(rows.sparkSession, operator, name)
    if LIST_INDEX in old.columns:
        elements = F.array_sort(F.collect_list(F.struct(LIST_INDEX, "list_value")))
        old = old.groupBy(STATE_KEY).agg(F.transform(elements, lambda each: each.list_value).alias("value"))
    types = {STATE_KEY: old.schema[STATE_KEY].dataType, _value(index): old.schema["value"].dataType}
    for column, kind in types.items():
        if rows.schema[column].dataType != kind:
            raise UsageError(
                f"the {'key' if column == STATE_KEY else 'value'} of a record is "
                f"{rows.schema[column].dataType.simpleString()}, and the snapshot has {kind.simpleString()}",
                where=Where(operator=operator.label, state=name),
                hint="Cast it in SQL",
            )
    return old.select(F.col(STATE_KEY), F.col("value").alias(_value(index)))


def _combine(rows: DataFrame, states: Mapping[str, Aggregate]) -> DataFrame:
    """One row per key.

    Raises:
        UsageError: an aggregate cannot be understood, or its type is not that of its values.
    """
    with translate_failures("the aggregates cannot be evaluated", UsageError):
        aggregates = [
            # Not `str.format`: braces are legal in SQL, such as those of a regular expression.
            F.expr(each.combine.replace("{value}", _value(index)).replace("{order}", _order(index))).alias(
                _value(index)
            )
            for index, each in enumerate(states.values())
        ]
        merged = rows.groupBy(STATE_KEY).agg(*aggregates)
        types = {field.name: field.dataType for field in merged.schema.fields}
    for index, (name, each) in enumerate(states.items()):
        before, after = rows.schema[_value(index)].dataType, types[_value(index)]
        if before.simpleString() != after.simpleString():
            raise UsageError(
                f"{each.combine} gives {after.simpleString()} for values of type {before.simpleString()}",
                where=Where(state=name),
                hint="Cast the value of a record to the type of the result, so that results can be combined again",
            )
    return merged


def _describe(name: str, each: Aggregate, rows: DataFrame, column: str, known: StateMetaInfo | None) -> NewState:
    kind = each.kind if known is None else known.state_type or each.kind
    return NewState(name, rows, kind, each.type if known is None else known.value_serializer, columns={"value": column})
