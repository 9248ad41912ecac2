"""Options of the data source that are lists of directories."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

from state_pipelines.dagster.resources import SparkResource
from state_pipelines.errors import UsageError
from state_pipelines.operations.convert import convert
from state_pipelines.snapshot import open_snapshot
from state_pipelines.spark import register
from state_pipelines.spark.record_encoding import plan_options
from state_pipelines.spark.source import FlinkStateMetadataSource, FlinkStateSource
from state_pipelines.spark.splits import READ_OPTIONS, check_options, open_with
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def referencing(tmp_path: Path) -> tuple[Path, Path]:
    """A snapshot whose files stay in another directory, and that directory, which has a comma in its name."""
    old, new = tmp_path / "one,two", tmp_path / "new"
    shutil.copytree(orders().path, old)
    convert(str(old), str(new), "keep", files="reference")
    return new, old


@pytest.mark.parametrize("texts", [["a,b", "c"], [], ["[x]"]])
def test_a_list_may_be_json(tmp_path: Path, texts: list[str]) -> None:
    found = open_with(str(orders().path), {"allowRoots": json.dumps(texts), "pathMapping": '["/a,b=/c"]'})
    assert found.path_mapping.roots == tuple(texts)
    assert found.path_mapping.rules == (("/a,b", "/c"),)


def test_a_list_may_have_commas_between(tmp_path: Path) -> None:
    assert open_with(str(orders().path), {"allowRoots": "/a,/b,"}).path_mapping.roots == ("/a", "/b")


@pytest.mark.parametrize("text", ["[", '["a", 1]', "[a]"])
def test_a_broken_list_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="the option allowRoots is no JSON list of texts"):
        open_with(str(orders().path), {"allowRoots": text})


@pytest.mark.spark
def test_a_root_with_a_comma_reaches_the_tasks(spark: SparkSession, referencing: tuple[Path, Path]) -> None:
    new, old = referencing
    snapshot = open_snapshot(str(new), uids=orders().uids, allow_roots=[str(old)])
    frame = SparkResource().read_state(snapshot, snapshot.operator("orders").state("order"))
    assert frame.count() == orders().open().operator("orders").state("order").to_arrow().num_rows > 0


# --- options that nothing reads


@pytest.mark.parametrize(
    ("option", "hint"), [("colums", "columns"), ("operatorid2", "operatorId"), ("keygroup", "keyGroups")]
)
def test_a_misspelt_option_is_refused_with_the_near_one(option: str, hint: str) -> None:
    source = FlinkStateSource({"path": str(orders().path), "operatorId": "orders", option: "x"})
    for use in (source.schema, lambda: source.reader(StructType())):
        with pytest.raises(UsageError, match=f"the option {option} is unknown") as caught:
            use()
        assert caught.value.hint.startswith(f"Did you mean {hint}")


def test_misspelt_options_of_the_other_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the option counts is unknown"):
        FlinkStateMetadataSource({"path": str(tmp_path), "counts": "true"}).reader(StructType())
    with pytest.raises(UsageError, match="the option bases is unknown"):
        plan_options({"operatorId": "orders", "stateVarName": "order", "bases": "x"})


def test_a_temporary_view_is_read_and_a_table_in_a_catalog_is_refused(spark: SparkSession) -> None:
    register(spark)
    using = f"USING `flink-state` OPTIONS (path '{orders().path}', operatorId 'orders', stateVarName 'order')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW of_orders {using}")
    assert spark.table("of_orders").count() == 200
    spark.catalog.dropTempView("of_orders")
    with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE of_orders {using}")
    # Spark asks the source for nothing when a table with a schema is created, and gives it no options when it is read.
    with pytest.raises(UsageError, match="CREATE TABLE … USING") as caught:
        FlinkStateSource({}).reader(StructType())
    assert "CREATE TEMPORARY VIEW" in caught.value.hint


def test_options_have_any_case_and_those_of_spark_are_left_alone() -> None:
    check_options({"OPERATORID": "orders", "serialization.format": "1", "storageoptions": "x"}, READ_OPTIONS)
