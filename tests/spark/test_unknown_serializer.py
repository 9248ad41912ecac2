"""A snapshot of five operators, one of which has a serializer that nothing reads, as Spark tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.spark import register
from tests.snapshots import UNKNOWN, UNKNOWN_SERIALIZER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.snapshots import Case

pytestmark = pytest.mark.spark
each_case = pytest.mark.parametrize("case", UNKNOWN, ids=lambda case: case.case)


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


def load(spark: SparkSession, case: Case, operator: str, **options: str) -> DataFrame:
    reader = spark.read.format("flink-state").options(path=str(case.path), operatorId=operator, **options)
    return reader.option("pathMapping", ",".join(case.path_mapping)).load()


@each_case
@pytest.mark.parametrize(
    ("operator", "state", "rows"),
    [("tallies", "tally", 12), ("tallies", "shares", 12), ("log", "numbers", 12), ("rates", "rates", 6)],
)
def test_states_of_the_other_operators_are_tables(
    spark: SparkSession, case: Case, operator: str, state: str, rows: int
) -> None:
    frame = load(spark, case, operator, stateVarName=state)
    assert "reason" not in frame.columns
    assert frame.count() == rows


@each_case
def test_an_unknown_state_is_a_table_of_bytes(spark: SparkSession, case: Case) -> None:
    rows = load(spark, case, "purses", stateVarName="purse").collect()
    together = b"".join(bytes(row.value_bytes) for row in rows)
    assert sum(f"purse-{number}-".encode() in together for number in range(12)) == 12
    assert {"PurseSnapshot" in row.reason for row in rows} == {True}


@each_case
def test_the_state_beside_it_is_decoded(spark: SparkSession, case: Case) -> None:
    rows = load(spark, case, "purses", stateVarName="visits").collect()
    assert {row.state_key: row.value for row in rows} == {f"key-{number}": number + 1 for number in range(12)}


@each_case
def test_a_declared_serializer_has_columns(spark: SparkSession, case: Case) -> None:
    rows = load(spark, case, "purses", stateVarName="purse", serializers=UNKNOWN_SERIALIZER).collect()
    found = {row.state_key: (row.value.f0, row.value.f1) for row in rows}
    assert found == {f"key-{number}": (f"purse-{number}-€", 1000 * number) for number in range(12)}
