"""Tables through fsspec."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from state_pipelines.spark.tasks import write_parquet

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_the_rows_are_there(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(10).selectExpr("id", "struct(id % 3 AS a, current_timestamp() AS t) AS value").repartition(3)
    assert write_parquet(frame, str(tmp_path / "table")) == 10
    assert sorted(pq.read_table(tmp_path / "table")["id"].to_pylist()) == list(range(10))
    assert (tmp_path / "table" / "_SUCCESS").exists()


def test_another_write_takes_the_place_of_the_first(spark: SparkSession, tmp_path: Path) -> None:
    for count in (10, 4):
        write_parquet(spark.range(count), str(tmp_path / "table"))
    assert pq.read_table(tmp_path / "table").num_rows == 4


def test_an_empty_table_has_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    assert write_parquet(spark.range(0).selectExpr("id", "'a' AS name"), str(tmp_path / "table")) == 0
    table = pq.read_table(tmp_path / "table")
    assert (table.num_rows, table.column_names) == (0, ["id", "name"])
