"""A snapshot one file of which is damaged, as Spark tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from state_pipelines.spark import register
from tests.cli.test_damaged_files import TOTALS, cut_header, find_keys
from tests.operations.comparing.test_diff import write_totals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


@pytest.fixture
def keys(tmp_path: Path) -> set[str]:
    """The keys of subtask 1 of a snapshot; the file of subtask 0 is damaged."""
    snapshot = write_totals(tmp_path / "damaged", TOTALS)
    found = find_keys(snapshot.path)[1]
    cut_header(Path(snapshot.operators[0].keyed_files[0][1].name))
    return found


def load(spark: SparkSession, directory: Path, **options: str) -> DataFrame:
    reader = spark.read.format("flink-state").options(path=str(directory / "damaged"), operatorId="totals", **options)
    return reader.option("uids", "totals").load()


def test_rows_are_missing_only_on_demand(spark: SparkSession, tmp_path: Path, keys: set[str]) -> None:
    with pytest.raises(PySparkException, match="The file was cut off"):
        load(spark, tmp_path, stateVarName="total").collect()
    rows = load(spark, tmp_path, stateVarName="total", ignoreCorruptFiles="true").collect()
    assert {row.state_key for row in rows} == keys
    together = load(spark, tmp_path, ignoreCorruptFiles="true").collect()
    assert {row.state_key for row in together} == keys


def test_key_groups_of_other_files_are_read(spark: SparkSession, tmp_path: Path, keys: set[str]) -> None:
    rows = load(spark, tmp_path, stateVarName="total", keyGroups="64-127").collect()
    assert {row.state_key for row in rows} == keys


def test_a_key_of_another_file_is_read(spark: SparkSession, tmp_path: Path, keys: set[str]) -> None:
    for state in ({"stateVarName": "total"}, {}):
        rows = load(spark, tmp_path, **state, key=min(keys)).collect()
        assert [row.state_key for row in rows] == [min(keys)]
