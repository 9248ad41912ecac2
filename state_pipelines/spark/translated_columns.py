"""Columns of SQL as Spark simplifies them, translated for Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.spark.arrow_expressions import translate_expression

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from state_pipelines.spark.arrow_expressions import ArrowExpression


def make_inputs(spark: SparkSession, schema: StructType) -> DataFrame:
    """No rows of a schema, for SQL that `translate_column` takes."""
    # Of a frame that is known to be empty Spark makes another plan.
    return spark.range(0).mapInArrow(_pass, schema)


def translate_column(frame: DataFrame, present: str) -> ArrowExpression | None:
    """The only column of a frame over `make_inputs`; None where Arrow does not compute it.

    Args:
        frame: the frame.
        present: as of `translate_expression`.

    Raises:
        PySparkException: Spark refuses the SQL.
    """
    plan = frame._jdf.queryExecution().optimizedPlan()
    # What Spark does not put into one expression is computed there step by step.
    steps = [each.getClass().getSimpleName() for each in (plan, plan.children().apply(0))]
    if steps != ["Project", "MapInArrow"]:
        return None
    return translate_expression(plan.projectList().apply(0), present)


def _pass(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
