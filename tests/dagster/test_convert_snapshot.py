"""The job `convert_snapshot`, on real Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from state_pipelines.keyed.rocksdb import RocksFile
from state_pipelines.operations.dump import dump
from state_pipelines.snapshot import open_snapshot
from tests.dagster.conftest import SAVEPOINTS
from tests.flink.harness import diff_entries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.dagster.conftest import Deployment


def run(deployment: Deployment, key: str, **config: Any) -> dg.ExecuteInProcessResult:
    return deployment.run("convert_snapshot", key, converted_savepoint=config)


@pytest.fixture(scope="module")
def key(deployment: Deployment, spark: SparkSession) -> str:
    return deployment.add("2.2")


@pytest.fixture(scope="module")
def converted(deployment: Deployment, key: str) -> dg.ExecuteInProcessResult:
    return run(deployment, key, format="rocksdb")


def read_metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = result.asset_materializations_for_node("shop__converted_savepoint")
    return {name: value.value for name, value in event.metadata.items()}


def test_the_new_snapshot_has_the_format_and_the_state(converted: dg.ExecuteInProcessResult) -> None:
    assert converted.success
    new = open_snapshot(read_metadata(converted)["path"])
    files = [file for operator in new.operators for _, file in operator.keyed_files]
    assert {type(file) for file in files} == {RocksFile}
    assert not diff_entries(dump(open_snapshot(str(SAVEPOINTS["2.2"]))), dump(new))


def test_the_metadata_tell_what_was_written(converted: dg.ExecuteInProcessResult) -> None:
    metadata = read_metadata(converted)
    counts = {(each.data["operator"], each.data["state"]): each.data["records"] for each in metadata["states"].records}
    assert counts["orders", "order"] == 200
    assert metadata["dagster/row_count"] == sum(int(count) for count in counts.values())
    assert (metadata["format"], metadata["subtasks"], metadata["copied files"]) == ("rocksdb", 4, 7)
    assert metadata["bytes"] > 0
    assert "state.backend.type: rocksdb" in metadata["notes"]


def test_the_check_passes(converted: dg.ExecuteInProcessResult, key: str) -> None:
    (check,) = converted.get_asset_check_evaluations()
    assert (check.check_name, check.passed, check.partition) == ("reads_back_equal", True, key)
    assert isinstance(check.metadata["rows compared"], dg.IntMetadataValue)
    assert check.metadata["rows differing"].value == 0


def test_there_is_no_check_when_files_were_only_copied(deployment: Deployment, key: str) -> None:
    result = run(deployment, key, format="keep")
    assert result.success
    assert result.get_asset_check_evaluations() == []
