"""Bootstrapping a savepoint from DataFrames: many states of many operators, encoded and merged in tasks."""

from __future__ import annotations

import pickle
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from state_pipelines.errors import UsageError
from state_pipelines.operations.bootstrap.bootstrap import BootstrapResult, plan_bootstrap
from state_pipelines.operations.bootstrap.new_states import LIST_INDEX, SUBTASK, NewOperator, NewState
from state_pipelines.operations.choices import parse_choice
from state_pipelines.operations.write.publication import FileMode
from state_pipelines.operations.write.state_formats import Format
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.snapshot.opening import ensure_open
from state_pipelines.spark.failures import translate_failures
from state_pipelines.spark.tasks import run_tasks, uses_other_machines
from state_pipelines.spark.types import from_spark
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from state_pipelines.operations.bootstrap.encoding import (
        ElementEncoding,
        EncodedElements,
        EncodedPart,
        KeyedEncoding,
    )
    from state_pipelines.snapshot import Snapshot

Encoded = TypeVar("Encoded", covariant=True)


class _Encoding(Protocol[Encoded]):
    """Encodes the rows of one task."""

    @property
    def failure(self) -> str:
        """Description of the task for errors."""

    def write(self, batches: Iterable[pa.RecordBatch]) -> Encoded:
        """Do it."""


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
        scratch: directory (path or URL) of temporary files that all tasks reach; see `open_scratch` for the default.

    Raises:
        UsageError: a description lacks something, or contradicts the base or another one.
        ValueRangeError: a value or type has no place in its serializer, or a key is null.
        IncompatibleError: several rows have one key.
        UnsupportedError: a serializer has no layout, or the hash of a key is not known.
        ProofError: the new files do not hold the rows; nothing is left at the target.
        TargetExistsError: the target exists.
    """
    place = resolve(target)
    frames = [state.rows for new in operators for state in new.states if isinstance(state.rows, DataFrame)]
    session = spark or (frames[0].sparkSession if frames else None)
    if session is None:
        raise UsageError("no state has a DataFrame as its rows", hint="Give `rows=` a DataFrame")
    plan = plan_bootstrap(
        place,
        operators,
        FrameRows(),
        base=None if base is None else ensure_open(base),
        format=parse_choice(Format, format, "format"),
        files=parse_choice(FileMode, files, "choice for files"),
        prove=prove,
    )
    is_shared, run = uses_other_machines(session), partial(run_tasks, session)
    with SnapshotTransaction(place, run, scratch=scratch, is_shared=is_shared) as transaction:
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

    def encode_keyed(self, state: NewState, encoding: KeyedEncoding) -> list[EncodedPart]:
        """Encode the rows in tasks, one part file each."""
        return _encode(_select(state), encoding)

    def encode_elements(self, state: NewState, encoding: ElementEncoding) -> list[EncodedElements]:
        """Encode the rows in tasks: one per subtask, of a broadcast state one."""
        frame = _select(state)
        if encoding.is_broadcast:
            return _encode(frame.coalesce(1), encoding)
        number = F.monotonically_increasing_id()
        if SUBTASK not in frame.columns:
            frame = frame.withColumn(SUBTASK, F.pmod(number, F.lit(encoding.parallelism)).cast("int"))
        if LIST_INDEX not in frame.columns:
            frame = frame.withColumn(LIST_INDEX, number)
        return _encode(
            frame.repartition(encoding.parallelism, SUBTASK).sortWithinPartitions(SUBTASK, LIST_INDEX), encoding
        )


def _encode(frame: DataFrame, encoding: _Encoding[Encoded]) -> list[Encoded]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"encoded": [pickle.dumps(encoding.write(batches))]})

    with translate_failures(encoding.failure):
        rows = frame.mapInArrow(work, "encoded binary").collect()
    # The processes of one Spark application trust each other, as Spark itself does.
    return [pickle.loads(row["encoded"]) for row in rows]


def _select(state: NewState) -> DataFrame:
    """The columns of a state out of its DataFrame."""
    frame = state.rows
    if not isinstance(frame, DataFrame):
        raise UsageError(f"the rows are {type(frame).__name__}, not a DataFrame")
    chosen: list[Column] = []
    with translate_failures("the columns cannot be computed", UsageError):
        for name in (*state.wanted, *state.optional):
            if name in state.columns:
                chosen.append(_evaluate(state.columns[name]).alias(name))
            elif name in frame.columns:
                chosen.append(F.col(name))
            elif name in state.wanted:
                raise UsageError(
                    f"the rows have no column {name}, and `columns` does not say where it comes from",
                    hint=f"They have {', '.join(frame.columns)}",
                )
        selected = frame.select(*chosen)
        _ = selected.schema  # Spark resolves expressions when it is asked for the schema.
    return selected


def _evaluate(source: str | Sequence[str] | Mapping[str, str]) -> Column:
    if isinstance(source, str):
        return F.expr(source)
    fields = dict(source) if hasattr(source, "keys") else {each: each for each in source}
    if len(fields) < len(source):
        raise UsageError(
            f"two fields of the struct of {', '.join(source)} have one name",
            hint="Name them: {field: expression, other field: other expression}",
        )
    return F.struct(*(F.expr(text).alias(name) for name, text in fields.items()))
