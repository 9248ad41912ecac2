from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from state_pipelines.errors import MigrationError
from state_pipelines.spark.types import cast_by_name, require_deterministic

if TYPE_CHECKING:
    from typing import Any

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def cast(spark: SparkSession, sql: str, target: str) -> Any:
    frame = spark.sql(f"SELECT {sql} AS x")
    wanted = spark.sql(f"SELECT CAST(NULL AS {target}) AS x").schema["x"].dataType
    row = frame.select(cast_by_name(F.col("x"), frame.schema["x"].dataType, wanted).alias("x")).first()
    assert row is not None
    return row["x"]


def test_structs_are_cast_by_the_names_of_their_fields(spark: SparkSession) -> None:
    found = cast(spark, "named_struct('b', 1, 'a', 'x')", "struct<a: string, b: bigint>")
    assert found.asDict() == {"a": "x", "b": 1}


def test_structs_in_lists_and_maps_are_cast_by_name_too(spark: SparkSession) -> None:
    inner = "named_struct('b', 1, 'a', 2)"
    assert cast(spark, f"array({inner})", "array<struct<a: int, b: int>>")[0].asDict() == {"a": 2, "b": 1}
    assert cast(spark, f"map('k', {inner})", "map<string, struct<a: int, b: int>>")["k"].asDict() == {"a": 2, "b": 1}


def test_a_null_struct_stays_null(spark: SparkSession) -> None:
    assert cast(spark, "CAST(NULL AS struct<b: int, a: int>)", "struct<a: int, b: int>") is None


def test_the_kind_of_a_row_may_be_left_out(spark: SparkSession) -> None:
    found = cast(spark, "named_struct('f0', 1)", "struct<row_kind: string, f0: int>")
    assert found.asDict() == {"row_kind": "+I", "f0": 1}


@pytest.mark.parametrize(
    ("sql", "target", "message"),
    [
        ("named_struct('a', 1)", "struct<a: int, b: int>", "lacks b"),
        ("named_struct('a', 1, 'c', 1)", "struct<a: int>", "has c too many"),
        ("1", "struct<a: int>", "which is no struct<a:int>"),
    ],
)
def test_what_does_not_fit_is_told(spark: SparkSession, sql: str, target: str, message: str) -> None:
    with pytest.raises(MigrationError, match=message):
        cast(spark, sql, target)


@pytest.mark.parametrize("sql", ["rand()", "current_date()", "now()", "uuid()"])
def test_what_changes_each_time_is_told(spark: SparkSession, sql: str) -> None:
    frame = spark.range(1).select(F.expr(sql).alias("x"))
    with pytest.raises(MigrationError, match="other values each time"):
        require_deterministic(frame, allowed=False)
    require_deterministic(frame, allowed=True)


def test_what_stays_the_same_passes(spark: SparkSession) -> None:
    require_deterministic(spark.range(1).select(F.expr("id + 1"), F.expr("'now()' ")), allowed=False)
