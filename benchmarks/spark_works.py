"""Works in Spark, from a session that starts with the work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    NumericType,
    StringType,
    StructType,
)

from benchmarks.generate import OPERATOR
from benchmarks.history import PROFILE
from benchmarks.stages import Task, run_program
from state_pipelines.operations.migration.migration_files import load_migration
from state_pipelines.spark import NewOperator, NewState, bootstrap, create_session, migrate, register

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame, SparkSession

STATES = ("total", "profile")
UPGRADE = Path(__file__).with_name("upgrade.yaml")
"""One revision: a field renamed, one added by an expression, one cast, one dropped."""


def _start() -> SparkSession:
    spark = create_session("benchmark")
    register(spark)
    return spark


def _load(spark: SparkSession, task: Task, **options: str) -> DataFrame:
    return spark.read.format("flink-state").options(path=task.snapshot, operatorId=OPERATOR, **options).load()


def _aggregate(rows: DataFrame) -> int:
    """Sums over every column, of text and bytes of their lengths in bytes; the number of rows."""
    columns = [column for field in rows.schema for column in _sums(F.col(f"`{field.name}`"), field.dataType)]
    named = [column.alias(f"sum{index}") for index, column in enumerate(columns)]
    (found,) = rows.agg(F.count("*").alias("rows"), *named).collect()
    return int(found["rows"])


def _sums(column: Column, kind: DataType) -> list[Column]:
    match kind:
        case StructType():
            return [each for field in kind for each in _sums(column.getField(field.name), field.dataType)]
        case StringType() | BinaryType():
            return [F.sum(F.octet_length(column))]
        case BooleanType():
            return [F.sum(column.cast("int"))]
        case NumericType():
            return [F.sum(column.cast("double"))]
        case _:
            return [F.count(column)]


def count(task: Task) -> int:
    """Count the rows of both states; of the columns only the key groups are read."""
    spark = _start()
    return sum(_load(spark, task, stateVarName=state, columns="key_group").count() for state in STATES)


def sum_column(task: Task) -> int:
    """Sum over one field of the POJO."""
    return _aggregate(_load(_start(), task, stateVarName="profile", columns="value.age"))


def aggregate(task: Task) -> int:
    """Both states, one after the other, and sums over all columns."""
    spark = _start()
    return sum(_aggregate(_load(spark, task, stateVarName=state)) for state in STATES)


def aggregate_table(task: Task) -> int:
    """Both states as one table, a row per key, and sums over all columns."""
    return _aggregate(_load(_start(), task))


def write_parquet(task: Task) -> int:
    """Both states into Parquet files."""
    spark = _start()
    for state in STATES:
        _load(spark, task, stateVarName=state).write.parquet(f"{task.target}/{state}")
    return 0


def aggregate_parquet(task: Task) -> int:
    """The same rows as `aggregate` and the same sums, from Parquet; the snapshot is a directory of `write_parquet`."""
    spark = _start()
    return sum(_aggregate(spark.read.parquet(f"{task.snapshot}/{state}")) for state in STATES)


def start(task: Task) -> int:
    """A session that does nothing."""
    return 0 if _start() else 1


def upgrade(task: Task) -> int:
    """Migrate the POJO and write, without proof."""
    return _migrate(task, prove=False)


def upgrade_proven(task: Task) -> int:
    """Migrate the POJO, write and prove."""
    return _migrate(task, prove=True)


def _migrate(task: Task, *, prove: bool) -> int:
    migration = load_migration(str(UPGRADE))
    return migrate(task.snapshot, migration, task.target, prove=prove, spark=_start()).rows


def bootstrap_history(task: Task) -> int:
    """Make both states of the rows of a lake, without proof; the snapshot is a directory of `history`."""
    rows = _start().read.parquet(f"{task.snapshot}/rows.parquet")
    profile = ["active", "age", "id", "name", "score"]
    states = [
        NewState("total", rows, columns={"state_key": "key", "value": "total"}),
        NewState("profile", rows, type=PROFILE, columns={"state_key": "key", "value": profile}),
    ]
    found = bootstrap(task.target, [NewOperator(OPERATOR, states, parallelism=2)], prove=False)
    return sum(found.entries.values())


WORKS: dict[str, Callable[[Task], int]] = {
    "start": start,
    "count": count,
    "column": sum_column,
    "aggregate": aggregate,
    "table": aggregate_table,
    "to-parquet": write_parquet,
    "from-parquet": aggregate_parquet,
    "migrate": upgrade,
    "migrate-proven": upgrade_proven,
    "bootstrap": bootstrap_history,
}


if __name__ == "__main__":
    run_program(WORKS)
