"""Bootstrapping a savepoint from DataFrames: many states of many operators, encoded and merged in tasks."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from state_pipelines.errors import UsageError
from state_pipelines.operations.bootstrap.bootstrap import BootstrapResult, plan_bootstrap
from state_pipelines.operations.bootstrap.encoding import write_together
from state_pipelines.operations.bootstrap.new_states import LIST_INDEX, SUBTASK, NewOperator, NewState
from state_pipelines.operations.choices import parse_choice
from state_pipelines.operations.write.keyed_rewrite import Format
from state_pipelines.operations.write.publication import FileMode
from state_pipelines.operations.write.savepoint_plan import make_layouts
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.snapshot.snapshot import ensure_open
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
    from state_pipelines.snapshot import Snapshot

Encoded = TypeVar("Encoded")


class _Own(str):
    """Name of a column of the DataFrame, which is no expression."""


ColumnExpression = str | Sequence[str] | Mapping[str, str]
"""Source of a column of a state: an expression, those of the fields of a struct, or an `_Own`."""


def bootstrap(
    target: str,
    operators: Sequence[NewOperator],
    *,
    base: Snapshot | str | None = None,
    format: Format | str = Format.CANONICAL,
    files: FileMode | str = FileMode.COPY,
    prove: bool = True,
    spark: SparkSession | None = None,
    scratch: str | None = None,
    classes: FieldLists | Iterable[str] | str | None = None,
    flink_version: str | None = None,
) -> BootstrapResult:
    """Write a savepoint that Flink starts from, with states out of DataFrames.

    `columns` of a `NewState` are SQL expressions over its DataFrame; a sequence or mapping of them makes a struct.

    Args:
        target: directory of the new savepoint, which must not exist.
        operators: the new states; `rows` are DataFrames.
        base: a snapshot that all other state is taken from; states of the same names are replaced.
        format: `canonical`, `heap` or `rocksdb` for keyed state.
        files: `copy`, `link` or `reference` the files of the base.
        prove: read the new states back and compare them with the rows before the savepoint is published.
        spark: the session; that of the first DataFrame by default.
        scratch: directory (path or URL) of temporary files that all tasks reach; default as `ScratchDirectory`.
        classes: fields of classes that Kryo writes, as `open_snapshot` has them, or paths of jars, directories and
            field lists; default those of the base.
        flink_version: release that starts from the savepoint, such as 1.20: values of Kryo are those of its line.
            Default the line of the base, else 2.x.

    Raises:
        UsageError: a description lacks something, or contradicts the base or another one.
        ValueRangeError: a value or type does not fit its serializer, or a key is null.
        IncompatibleError: several rows have one key.
        UnsupportedError: a serializer has no layout, or the hash of a key is not known.
        ProofError: the new files do not hold the rows; nothing is left at the target.
        TargetExistsError: the target exists.
    """
    location = resolve(target)
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
        format=parse_choice(Format, format, "format"),
        files=parse_choice(FileMode, files, "choice for files"),
        prove=prove,
        layouts=make_layouts(classes, flink_version, opened),
    )
    is_shared, run = uses_other_machines(session), partial(run_tasks, session)
    with SnapshotTransaction(location, run, scratch=scratch, is_shared=is_shared) as transaction:
        return plan.run(transaction)


class FrameRows:
    """Rows of DataFrames; see `RowEngine`."""

    from_source = staticmethod(from_spark)

    def find_schema(self, state: NewState) -> pa.Schema:
        """Types of the columns that a state takes from its DataFrame.

        Raises:
            UsageError: a column is missing, or an expression cannot be understood.
        """
        return to_arrow_schema(_select(state).schema, timezone="UTC")

    def read_rows(self, state: NewState) -> pa.Table:
        """All rows of a small state."""
        frame = _select(state)
        with translate_failures("the rows cannot be read"):
            return frame.toArrow()

    def encode_keyed(self, states: Sequence[tuple[NewState, KeyedEncoding]]) -> list[tuple[int, list[EncodedRows]]]:
        """Encode the rows in tasks, one spill each; states of one DataFrame in one pass over it."""
        by_frame: dict[int, list[int]] = {}
        for number, (state, _) in enumerate(states):
            by_frame.setdefault(id(state.rows), []).append(number)
        found: dict[int, tuple[int, list[EncodedRows]]] = {}
        for numbers in by_frame.values():
            rows, tasks = _encode_together([states[number] for number in numbers])
            found |= {number: (rows, encoded) for number, encoded in zip(numbers, tasks, strict=True)}
        return [found[number] for number in range(len(states))]

    def encode_elements(self, state: NewState, encoding: ElementEncoding) -> tuple[int, list[EncodedElements]]:
        """Encode the rows in tasks: one per subtask, of a broadcast state one."""
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
    """Run a function over the rows of each task; the number of rows as Spark counts them, and what the tasks return."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"encoded": [pickle.dumps(write(batches))]})

    counted = Observation()
    with translate_failures(failure):
        observed = frame.observe(counted, F.count(F.lit(1)).alias("rows"))
        rows = observed.mapInArrow(work, "encoded binary").collect()
    # The processes of one Spark application trust each other, as Spark itself does.
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
    """The columns of a state out of its DataFrame."""
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
