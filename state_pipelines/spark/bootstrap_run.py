"""Savepoints from DataFrames: states of many operators, and keyed state kept up to date by SQL aggregates.

Rows are encoded and merged in tasks. An aggregate merges new records into the state of a snapshot: the old state of a
key is one more row of the aggregation, so that a batch of records costs one shuffle, all of it in the JVM and in Arrow.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from state_pipelines.errors import UnsupportedError, UsageError, Where, at
from state_pipelines.keyed.state_table import TTL_COLUMN
from state_pipelines.metadata import find_operator_id
from state_pipelines.operations.bootstrap.bootstrap import BootstrapRequest, BootstrapResult, plan_bootstrap
from state_pipelines.operations.bootstrap.encoding import write_together
from state_pipelines.operations.bootstrap.new_states import LIST_INDEX, STATE_KEY, SUBTASK, NewOperator, NewState
from state_pipelines.operations.models import read_keywords, takes
from state_pipelines.operations.write.keyed_rewrite import Format
from state_pipelines.operations.write.publication import FileMode
from state_pipelines.operations.write.savepoint_plan import make_layouts
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.serializers.build import VOID_NAMESPACE
from state_pipelines.serializers.tree import StateKind
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.snapshot.snapshot import ensure_open
from state_pipelines.spark.operator_state import read_rows
from state_pipelines.spark.session import register
from state_pipelines.spark.tasks import run_tasks, translate_failures, uses_other_machines
from state_pipelines.spark.types import from_spark
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import SparkSession

    from state_pipelines.codecs.kryo import FieldLists
    from state_pipelines.operations.bootstrap.encoding import (
        ElementEncoding,
        EncodedElements,
        EncodedRows,
        KeyedEncoding,
    )
    from state_pipelines.operations.bootstrap.new_states import GivenType
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.snapshot import Operator, Snapshot

Encoded = TypeVar("Encoded")


class _Own(str):
    """Name of a column of the DataFrame that is used as it is, not parsed as an SQL expression."""


ColumnExpression = str | Sequence[str] | Mapping[str, str]
"""Origin of a column of a state: an SQL expression, the expressions of a struct's fields, or an `_Own`."""


class BootstrapKeywords(TypedDict, total=False):
    """Types of the keyword arguments of `bootstrap` that are fields of `BootstrapRequest`."""

    format: Format | str
    files: FileMode | str
    flink_version: str | None


@takes(BootstrapRequest)
def bootstrap(
    target: str,
    operators: Sequence[NewOperator],
    *,
    base: Snapshot | str | None = None,
    prove: bool = True,
    spark: SparkSession | None = None,
    scratch: str | None = None,
    classes: FieldLists | Iterable[str] | str | None = None,
    **keywords: Unpack[BootstrapKeywords],
) -> BootstrapResult:
    """Write a savepoint that Flink starts from, with states out of DataFrames.

    `columns` of a `NewState` are SQL expressions over its DataFrame; a sequence or mapping of them makes a struct.

    Args:
        target: directory of the new savepoint, which must not exist.
        operators: the new states; `rows` are DataFrames.
        base: a snapshot that all other state is taken from; states of the same names are replaced.
        prove: read the new states back and compare them with the rows before the savepoint is published.
        spark: the session; by default the session of the first DataFrame.
        scratch: directory (path or URL) of temporary files that all tasks reach; default as `ScratchDirectory`.
        classes: fields of classes that Kryo writes, as `open_snapshot` has them, or paths of jars, directories and
            field lists; default the classes of the base.
        keywords: the other fields of `BootstrapRequest`.

    Raises:
        UsageError: a description lacks something, or contradicts the base or another one.
        ValueRangeError: a value or type does not fit its serializer, or a key is null.
        IncompatibleError: several rows have the same key.
        UnsupportedError: a serializer has no layout, or the hash of a key is not known.
        ProofError: the new files do not hold the rows; nothing is left at the target.
        TargetExistsError: the target exists.
    """
    location, request = resolve(target), read_keywords(BootstrapRequest, keywords, "the bootstrap")
    frames = [state.rows for new in operators for state in new.states if isinstance(state.rows, DataFrame)]
    session = spark or (frames[0].sparkSession if frames else None)
    if session is None:
        raise UsageError("no state has a DataFrame as its rows", hint="Give `rows=` a DataFrame")
    opened = None if base is None else ensure_open(base)
    plan = plan_bootstrap(
        location,
        operators,
        FrameRows(),
        base=opened,
        format=Format(request.format),
        files=request.files,
        prove=prove,
        layouts=make_layouts(classes, request.flink_version, opened),
    )
    is_shared, run = uses_other_machines(session), partial(run_tasks, session)
    with SnapshotTransaction(location, run, scratch=scratch, is_shared=is_shared) as transaction:
        return plan.run(transaction)


class FrameRows:
    """Implementation of `RowEngine` for rows that are in DataFrames."""

    from_source = staticmethod(from_spark)

    def find_schema(self, state: NewState) -> pa.Schema:
        """Return the types of the columns that a state takes from its DataFrame.

        Raises:
            UsageError: a column is missing, or an expression cannot be understood.
        """
        return to_arrow_schema(_select(state).schema, timezone="UTC")

    def read_rows(self, state: NewState) -> pa.Table:
        """Read all rows of a small state."""
        frame = _select(state)
        with translate_failures("the rows cannot be read"):
            return frame.toArrow()

    def encode_keyed(self, states: Sequence[tuple[NewState, KeyedEncoding]]) -> list[tuple[int, list[EncodedRows]]]:
        """Encode the rows of states in Spark tasks; one pass over a DataFrame serves all states with rows from it.

        Returns for each state the number of its rows, and what each task has encoded.
        """
        by_frame: dict[int, list[int]] = {}
        for number, (state, _) in enumerate(states):
            by_frame.setdefault(id(state.rows), []).append(number)
        found: dict[int, tuple[int, list[EncodedRows]]] = {}
        for numbers in by_frame.values():
            rows, tasks = _encode_together([states[number] for number in numbers])
            found |= {number: (rows, encoded) for number, encoded in zip(numbers, tasks, strict=True)}
        return [found[number] for number in range(len(states))]

    def encode_elements(self, state: NewState, encoding: ElementEncoding) -> tuple[int, list[EncodedElements]]:
        """Encode the rows of an operator state in Spark tasks: one per subtask, or one in all for a broadcast state."""
        frame = _select(state)
        if encoding.is_broadcast:
            frame = frame.coalesce(1)
        else:
            number = F.monotonically_increasing_id()
            if SUBTASK not in frame.columns:
                frame = frame.withColumn(SUBTASK, F.pmod(number, F.lit(encoding.parallelism)).cast("int"))
            if LIST_INDEX not in frame.columns:
                frame = frame.withColumn(LIST_INDEX, number)
            frame = frame.repartition(encoding.parallelism, SUBTASK).sortWithinPartitions(SUBTASK, LIST_INDEX)
        return _run_tasks(frame, encoding.write, encoding.failure)


def _encode_together(
    states: Sequence[tuple[NewState, KeyedEncoding]],
) -> tuple[int, list[list[EncodedRows]]]:
    """Encode the rows of one DataFrame for several states; expressions that states share are evaluated once."""
    expressions: dict[str, Column] = {}
    columns: list[dict[str, str]] = []
    frame = states[0][0].rows
    assert isinstance(frame, DataFrame)
    for state, _ in states:
        columns.append({})
        for name, expression in _find_expressions(state, frame).items():
            alias = columns[-1][name] = f"{type(expression).__name__} {expression!r}"
            expressions.setdefault(alias, _evaluate(expression))
    aliases = {alias: f"c{number}" for number, alias in enumerate(expressions)}
    with translate_failures("the columns cannot be computed", UsageError):
        frame = frame.select(*(expressions[alias].alias(name) for alias, name in aliases.items()))
    chosen = [{name: aliases[alias] for name, alias in names.items()} for names in columns]
    encodings = [encoding for _, encoding in states]

    def write(batches: Iterator[pa.RecordBatch]) -> list[EncodedRows]:
        return write_together(encodings, ([_rename(batch, names) for names in chosen] for batch in batches))

    failure = encodings[0].failure
    if len(encodings) > 1:
        failure = f"the states {', '.join(each.encoder.state for each in encodings)} cannot be written"
    rows, tasks = _run_tasks(frame, write, failure)
    return rows, [list(encoded) for encoded in zip(*tasks, strict=True)] or [[] for _ in states]


def _rename(batch: pa.RecordBatch, names: Mapping[str, str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([batch.column(each) for each in names.values()], names=[*names])


def _run_tasks(
    frame: DataFrame, write: Callable[[Iterator[pa.RecordBatch]], Encoded], failure: str
) -> tuple[int, list[Encoded]]:
    """Run `write` on the rows of each task; return the number of rows, as Spark counts, and the results of tasks."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"encoded": [pickle.dumps(write(batches))]})

    counted = Observation()
    with translate_failures(failure):
        observed = frame.observe(counted, F.count(F.lit(1)).alias("rows"))
        rows = observed.mapInArrow(work, "encoded binary").collect()
    # Unpickling is safe here: the processes of one Spark application trust each other, as in Spark itself.
    return counted.get["rows"], [pickle.loads(row["encoded"]) for row in rows]


def _find_expressions(state: NewState, frame: DataFrame) -> dict[str, ColumnExpression]:
    """Find the expression of each column of a state."""
    found: dict[str, ColumnExpression] = {}
    for name in (*state.wanted, *state.optional):
        if name in state.columns:
            found[name] = state.columns[name]
        elif name in frame.columns:
            found[name] = _Own(name)
        elif name in state.wanted:
            raise UsageError(
                f"the rows have no column {name}, and `columns` does not say where it comes from",
                hint=f"They have {', '.join(frame.columns)}",
            )
    return found


def _select(state: NewState) -> DataFrame:
    """Select the columns of a state from its DataFrame."""
    frame = state.rows
    if not isinstance(frame, DataFrame):
        raise UsageError(f"the rows are {type(frame).__name__}, not a DataFrame")
    with translate_failures("the columns cannot be computed", UsageError):
        expressions = _find_expressions(state, frame)
        selected = frame.select(*(_evaluate(expression).alias(name) for name, expression in expressions.items()))
        _ = selected.schema  # Spark resolves expressions when it is asked for the schema.
    return selected


def _evaluate(expression: ColumnExpression) -> Column:
    if isinstance(expression, _Own):
        return F.col(expression)
    if isinstance(expression, str):
        return F.expr(expression)
    fields = dict(expression) if hasattr(expression, "keys") else {each: each for each in expression}
    if len(fields) < len(expression):
        raise UsageError(
            f"two fields of the struct of {', '.join(expression)} have one name",
            hint="Name them: {field: expression, other field: other expression}",
        )
    return F.struct(*(F.expr(text).alias(name) for name, text in fields.items()))


KINDS = (StateKind.VALUE, StateKind.REDUCING, StateKind.AGGREGATING, StateKind.LIST)
"""Kinds of state that aggregates keep up to date."""


@dataclass(frozen=True)
class Aggregate:
    """A keyed state that an SQL aggregate keeps up to date.

    `combine` must be associative over its own results: combining the combined values of two batches gives what
    combining all values gives. So a mean is two states, a sum and a count. Keys whose result is null have no state.

    Attributes:
        row: SQL that computes `{value}` from one record.
        combine: SQL aggregate over `{value}`, and over `{order}` if there is an order; values of old state have a null
            order.
        order: SQL by which records are ordered; it must not be null for any record. Empty if their order does not
            matter.
        kind: VALUE, REDUCING, AGGREGATING or LIST; the kind in the snapshot if it has the state.
        type: serializer of the value; by default the one in the snapshot, else one for the type of the column.
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
        key_type: serializer of the keys; by default the one in the snapshot, else one for the type of the column.
        parallelism: number of subtasks; needed for an operator that the snapshot does not have.
        max_parallelism: number of key groups; by default the number in the snapshot, or what Flink would choose.
        format: as in `bootstrap`.
        files: as in `bootstrap`.
        prove: as in `bootstrap`.
        scratch: as in `bootstrap`.

    Raises:
        UsageError: an expression cannot be understood, or an aggregate and its values have different types.
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
    """Find the aggregated states that the snapshot already has, by name.

    Raises:
        UnsupportedError: values of records cannot be merged into one of them.
    """
    known = {}
    for state in operator.states:
        if state.name not in states:
            continue
        with at(operator=operator.label, state=state.name):
            if not isinstance(state, KeyedState) or state.kind not in KINDS:
                raise UnsupportedError(f"aggregates cannot be merged into {state.kind} state of a snapshot")
            if state.info.namespace_serializer != VOID_NAMESPACE:
                raise UnsupportedError("aggregates cannot be merged into the state of windows")
            if TTL_COLUMN in state.schema.names:
                raise UnsupportedError("aggregates cannot be merged into state with a time to live")
            if (state.kind == StateKind.LIST) != (states[state.name].kind == StateKind.LIST):
                raise UsageError(
                    f"the aggregate gives {states[state.name].kind} state, and the snapshot has {state.kind} state"
                )
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
    """Select keys and values of a state in the snapshot, under the column names that `rows` has for them."""
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
    """Combine the rows of each key to one.

    Raises:
        UsageError: an aggregate cannot be understood, or has another type than its values.
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
