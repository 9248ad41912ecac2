from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from state_pipelines.errors import MigrationError
from state_pipelines.spark.arrow_expressions import ArrowExpression, translate_expression

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        "d / NULL",
        "CAST(d AS STRING)",
        "i + CAST(0.5 AS DECIMAL(3, 1))",
        "try_add(i, j)",
        "try_divide(d, e)",
        "try_cast(l AS INT)",
        "CAST(x AS INT)",
        "substring(x, -2)",
        "substring(x, i)",
        "x LIKE 'a_'",
        "x LIKE y",
        "round(d, 1)",
        "floor(d)",
        "trim(BOTH 'a' FROM x)",
        "x COLLATE UTF8_LCASE = y",
        "DATE '2024-01-01' > CAST(x AS DATE)",
        "named_struct('a', i)",
        "array(i, j)[l]",
        "size(map(x, i))",
        "if(p, i, j)",
        "coalesce('x', y)",
        "x IS NULL OR true",
        "concat(x, CAST(CAST(l AS INT) AS STRING))",
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


NUMBERS: dict[str, list[Any]] = {
    "tinyint": [None, 0, 1, -1, 7, 127, -128],
    "smallint": [None, 0, 1, -1, 32767, -32768],
    "int": [None, 0, 1, -1, 3, INT, -INT - 1],
    "bigint": [None, 0, 1, -1, 10, 2**53 + 1, LONG, -LONG - 1],
    "float": [None, 0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 3.4028234663852886e38, 2147483648.0],
    "double": [
        None,
        *(0.0, -0.0, 0.1, -2.5, 10.0, 1e300, 5e-324, float("nan"), float("inf"), -float("inf")),
        *(2147483647.9, -2147483648.9, 2147483648.0, 9223372036854775807.0, -9223372036854777856.0, 127.5, -129.0),
    ],
}
TEXTS = [None, "", " ", "a", "A", "  a b ", "\tb\u00a0", "é", "e\u0301", "ß", "\uffff", "\U0001f600a", "a" * 40, "%_"]
LISTS = [None, [], [1], [None], [1, None, 3], [INT, -1]]
ONE = [
    *("-v", "abs(v)", "CAST(v AS TINYINT)", "CAST(v AS SMALLINT)", "CAST(v AS INT)", "CAST(v AS BIGINT)"),
    *("CAST(v AS FLOAT)", "CAST(v AS DOUBLE)", "CAST(v AS BOOLEAN)", "coalesce(v, 1)"),
    *("v % 10", "v % -3", "v / 4", "v = 0", "v <=> NULL"),
    *("CASE WHEN v > 0 THEN 100 % v WHEN v IS NULL THEN 5 ELSE v END", "v != 0 AND 100 / v > 3"),
    *("v = 0 OR 100 / v > 3", "coalesce(CAST(v AS TINYINT), CAST(v AS INT))", "IF(v < 100, CAST(v AS TINYINT), 0)"),
]
TWO = [
    *("v + w", "v - w", "v * w", "v / w", "v % w", "v = w", "v <=> w", "v < w", "v <= w", "v > w"),
    *("v >= w", "IF(v < w, v, w)", "nullif(v, w)", "CAST(v AS INT) + CAST(w AS INT)"),
    *("CAST(v AS INT) % CAST(w AS INT)", "CASE WHEN w != 0 THEN v / w END"),
]
OF_WHOLE = ["v DIV 3", "v DIV -1", "v DIV w", "IF(w > 1, v DIV w, v)", "greatest(v, w)", "least(v, w)", "v IN (1, 7)"]
FRACTIONS = ("float", "double")
OF_FRACTIONS = ["isnan(v)", "v % 0.1D"]
OF_TEXTS = [
    *("length(v)", "trim(v)", "ltrim(v)", "rtrim(v)", "substring(v, 2)", "substring(v, 0, 2)", "left(v, 1)"),
    *("substring(v, 3, -1)", "v LIKE 'a%'", "v LIKE '%a'", "v LIKE '%a%'", "replace(v, 'a', 'éé')", "v || '/'"),
    *("v IN ('a', 'é')", "v < w", "v >= w", "v <=> w", "concat(v, w)", "contains(v, 'a')", "nullif(v, 'a')"),
]
OF_LISTS = [
    *("v[0]", "v[1]", "v[-1]", "element_at(v, 1)", "element_at(v, -1)", "element_at(v, 3)", "try_element_at(v, 2)"),
    *("get(v, 1)", "get(v, -1)", "size(v)", "v[size(v) - 1]", "IF(size(v) > 0, v[0], -1)", "v[w]", "element_at(v, w)"),
    *("try_element_at(v, w)", "v IS NULL", "coalesce(get(v, 0), w)"),
]
KINDS: dict[str, tuple[str, list[str], list[tuple[Any, ...]]]] = {
    **{
        kind: (kind, [*ONE, *TWO, *(OF_FRACTIONS if kind in FRACTIONS else OF_WHOLE)], list(product(of, of)))
        for kind, of in NUMBERS.items()
    },
    "string": ("string", OF_TEXTS, list(product(TEXTS, TEXTS))),
    "array<int>": ("int", OF_LISTS, list(product(LISTS, [None, 0, 1, 2, 3, -1, -3, INT]))),
}
"""By the type of v: the type of w, expressions over both, and values of both."""


@pytest.mark.parametrize("kind", KINDS)
def test_edge_values_give_what_spark_gives(spark: SparkSession, kind: str) -> None:
    other, sqls, values = KINDS[kind]
    schema = f"p boolean, v {kind}, w {other}"
    leaf = spark.range(0).mapInArrow(same, schema)
    plan = leaf.select(*(F.when(F.col("p"), F.expr(sql)) for sql in sqls))._jdf.queryExecution().optimizedPlan()
    found = {sql: translate_expression(plan.projectList().apply(n), "p") for n, sql in enumerate(sqls)}
    expressions = {sql: each for sql, each in found.items() if each is not None}
    assert [sql for sql in sqls if sql not in expressions] == (["CAST(v AS BOOLEAN)"] if kind in FRACTIONS else [])
    table = spark.createDataFrame([(True, *each) for each in values], schema).toArrow().combine_chunks()
    (batch,) = table.to_batches()
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    computed, fitting = {}, {}
    for sql, each in expressions.items():
        # Row by row only where some row fails: all rows at once then, where those that fail are not present.
        rows: list[tuple[Any] | None]
        try:
            whole = each.evaluate(columns, pa.array([True] * len(batch))).to_pylist()
            rows = [(value,) for value in whole]
        except MigrationError:
            rows = [evaluate_row(each, columns, index) for index in range(len(batch))]
            present = pa.array([row is not None for row in rows])
            at_once = each.evaluate(columns, present).to_pylist()
            assert [repr(one) for one, row in zip(at_once, rows, strict=True) if row] == [
                repr(row[0]) for row in rows if row
            ], sql
        computed[sql], fitting[sql] = [row[0] if row else None for row in rows], [row is not None for row in rows]
    marked = pa.table({**columns, **{f"fits{n}": fits for n, fits in enumerate(fitting.values())}})
    frame = spark.createDataFrame(marked).select(
        *(F.when(F.col(f"fits{n}"), F.expr(sql)).alias(f"{n}") for n, sql in enumerate(expressions))
    )
    expected = frame.toArrow()
    for index, sql in enumerate(expressions):
        assert [*map(repr, expected.column(index).to_pylist())] == [*map(repr, computed[sql])], sql
        failing = [n for n, fits in enumerate(fitting[sql]) if not fits]
        for row in {*failing[:1], *failing[-1:]}:
            # Spark evaluates expressions over the few rows of an Arrow table while it plans, without a job.
            one_row = spark.createDataFrame(pa.Table.from_batches([batch.slice(row, 1)]))
            with pytest.raises(Exception, match=r"OVERFLOW|ZERO|INVALID_ARRAY_INDEX|INDEX_OF_ZERO"):
                one_row.select(F.expr(sql)).collect()


def evaluate_row(expression: ArrowExpression, columns: dict[str, pa.Array], index: int) -> tuple[Any] | None:
    """The value in one row; None where it is an error."""
    try:
        found = expression.evaluate({name: each.slice(index, 1) for name, each in columns.items()}, pa.array([True]))
    except MigrationError:
        return None
    return (found[0].as_py(),)


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
