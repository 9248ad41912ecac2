from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from state_pipelines.errors import MigrationError
from state_pipelines.spark.arrow_expressions import ArrowExpression, translate_expression

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = (
    "p boolean, t tinyint, s smallint, i int, j int, l bigint, f float, d double, e double, "
    "x string, y string, b boolean"
)
LONG, INT = 2**63 - 1, 2**31 - 1
ROWS: list[tuple[Any, ...]] = [
    (True, 1, 2, 3, 4, 5, 0.5, 0.25, -1.5, "a", "b", True),
    (True, -128, -32768, -INT, INT, -LONG, -0.0, 1e300, 1e-300, "", "é", False),
    (True, 127, 32767, 0, 0, 2**53 + 1, float("inf"), float("nan"), 0.0, "a", "a", None),
    (True, None, None, None, 7, None, None, None, 2.0, None, "z", True),
    (True, 0, 0, 5, None, 0, 3.4e38, -0.0, None, "x", None, False),
    (False, None, None, None, None, None, None, None, None, None, None, None),
]


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def translate(spark: SparkSession, sql: str) -> ArrowExpression | None:
    leaf = spark.range(0).mapInArrow(same, SCHEMA)
    frame = leaf.select(F.when(F.col("p"), F.expr(sql)).alias("found"))
    expression = frame._jdf.queryExecution().optimizedPlan().projectList().apply(0)
    return translate_expression(expression, "p")


@pytest.fixture(scope="module")
def table(spark: SparkSession) -> pa.Table:
    return spark.createDataFrame(ROWS, SCHEMA).toArrow()


def evaluate(expression: ArrowExpression, table: pa.Table) -> list[Any]:
    columns = {name: table.column(name).combine_chunks() for name in table.schema.names}
    found = expression.evaluate(columns, columns["p"])
    return [
        value if present else None for value, present in zip(found.to_pylist(), columns["p"].to_pylist(), strict=True)
    ]


@pytest.mark.parametrize(
    "sql",
    [
        "d * 2 + i",
        "d - e",
        "-d + e * 0.5D",
        "d / 2",
        "i / 3",
        "l / -0.3D",
        "-i",
        "length(x)",
        "length(concat(x, y)) + 1",
        "CAST(i AS STRING)",
        "CAST(l AS STRING)",
        "CAST(b AS STRING)",
        "concat('user-', t)",
        "CAST(i AS BIGINT)",
        "CAST(t AS INT) + 1",
        "CAST(s AS BIGINT) * 2",
        "CAST(l AS DOUBLE)",
        "CAST(f AS DOUBLE)",
        "CAST(i AS BIGINT) + j",
        "CAST(i AS BIGINT) * CAST(j AS BIGINT)",
        "coalesce(i, 0)",
        "coalesce(i, j, 1)",
        "i > 3",
        "i <= j AND b",
        "b OR i = 3",
        "NOT b",
        "x = y",
        "x != 'a'",
        "x IS NULL",
        "d IS NOT NULL",
        "IF(i > 0, x, y)",
        "CASE WHEN b THEN 1 WHEN i > 3 THEN 2 END",
        "CASE WHEN b THEN 1 WHEN i > 3 THEN 2 ELSE 3 END",
        "concat(x, '/', y)",
        "IF(x IS NULL, 'none', concat('the ', x))",
    ],
)
def test_arrow_gives_what_spark_gives(spark: SparkSession, table: pa.Table, sql: str) -> None:
    expression = translate(spark, sql)
    assert expression is not None
    frame = spark.createDataFrame(ROWS, SCHEMA).select(F.when(F.col("p"), F.expr(sql)).alias("found"))
    expected = frame.toArrow().column("found").to_pylist()
    # NaN is not equal to itself, and -0.0 is to 0.0.
    assert list(map(repr, evaluate(expression, table))) == list(map(repr, expected))


@pytest.mark.parametrize(
    "sql",
    [
        "upper(x)",
        "d = e",
        "d < e",
        "d / e",
        "d / 0",
        "d / NULL",
        "CAST(d AS STRING)",
        "i DIV j",
        "i % 3",
        "IF(j != 0, i + j, 0)",
        "coalesce(i, j + 1)",
        "b AND CAST(l AS INT) > 0",
        "try_add(i, j)",
        "try_cast(l AS INT)",
        "CAST(x AS INT)",
        "CAST(d AS FLOAT)",
        "CAST(d AS BIGINT)",
        "x < y",
        "DATE '2024-01-01' > CAST(x AS DATE)",
        "named_struct('a', i)",
        "if(p, i, j)",
        "coalesce('x', y)",
        "x IS NULL OR true",
        "i + CAST(l AS INT)",
        "i = i * j",
    ],
)
def test_what_may_mean_something_else_stays_with_spark(spark: SparkSession, sql: str) -> None:
    assert translate(spark, sql) is None


@pytest.mark.parametrize("sql", ["i - 3", "i * j", "l * 2", "CAST(l AS INT)", "CAST(i AS TINYINT)"])
def test_what_does_not_fit_is_an_error_as_in_spark(spark: SparkSession, table: pa.Table, sql: str) -> None:
    expression = translate(spark, sql)
    assert expression is not None
    with pytest.raises(MigrationError, match="cannot be computed"):
        evaluate(expression, table)
    frame = spark.createDataFrame(ROWS, SCHEMA).select(F.when(F.col("p"), F.expr(sql)).alias("found"))
    with pytest.raises(Exception, match=r"ARITHMETIC_OVERFLOW|CAST_OVERFLOW"):
        frame.collect()


def test_null_where_there_must_be_a_value_is_an_error(spark: SparkSession, table: pa.Table) -> None:
    expression = translate(spark, "coalesce(i, raise_error('field i is a primitive'))")
    assert expression is not None
    with pytest.raises(MigrationError, match="field i is a primitive"):
        evaluate(expression, table)
    # Where nothing is present nothing can be missing.
    assert evaluate(expression, table.take([0, 5])) == [3, None]


@pytest.mark.parametrize(("condition", "fails"), [("i IS NOT NULL", True), ("b", False)])
def test_null_is_an_error_under_a_condition(
    spark: SparkSession, table: pa.Table, condition: str, *, fails: bool
) -> None:
    message = "field j becomes null (`a.B: [j: Integer]`)"
    expression = translate(spark, f"coalesce(j + 0, CASE WHEN {condition} THEN raise_error('{message}') END)")
    assert expression is not None
    if fails:
        with pytest.raises(MigrationError, match=re.escape(message)):
            evaluate(expression, table)
    else:
        assert evaluate(expression, table)[4] is None
