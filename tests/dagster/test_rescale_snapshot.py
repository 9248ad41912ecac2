"""The jobs `rescale_snapshot` and `rescale_path`, on real Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.operations.dump import dump
from state_pipelines.operations.rescale.rescale_proof import DESCRIPTIONS
from state_pipelines.snapshot import open_snapshot
from tests.dagster.conftest import SAVEPOINTS, build
from tests.operations.rescaling.test_rescaling import gather

if TYPE_CHECKING:
    from pathlib import Path

    import dagster as dg
    from pyspark.sql import SparkSession

    from tests.dagster.conftest import Deployment


def run(deployment: Deployment, key: str, **config: Any) -> dg.ExecuteInProcessResult:
    return deployment.run("rescale_snapshot", key, rescaled_savepoint=config)


@pytest.fixture(scope="module")
def key(deployment: Deployment) -> str:
    return deployment.add("2.2")


@pytest.fixture(scope="module")
def rescaled(deployment: Deployment, key: str, spark: SparkSession) -> dg.ExecuteInProcessResult:
    return run(deployment, key, parallelism=3, request="{max_parallelism: 512, operators: {orders: {uid: orders-v2}}}")


def read_metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = result.asset_materializations_for_node("shop__rescaled_savepoint")
    return {name: value.value for name, value in event.metadata.items()}


@pytest.mark.essential
def test_the_new_snapshot_has_the_state_elsewhere(rescaled: dg.ExecuteInProcessResult) -> None:
    assert rescaled.success
    new = open_snapshot(read_metadata(rescaled)["path"])
    assert {(each.parallelism, each.max_parallelism) for each in new.operators} == {(3, 512)}
    old = [
        line | ({"op": "orders-v2"} if line["op"] == "orders" else {})
        for line in dump(open_snapshot(str(SAVEPOINTS["2.2"])))
    ]
    assert gather(dump(new)) == gather(old)


def test_the_metadata_tell_what_became_of_each_operator(rescaled: dg.ExecuteInProcessResult) -> None:
    metadata = read_metadata(rescaled)
    rows = {each.data["operator"]: each.data for each in metadata["operators"].records}
    assert rows["orders → orders-v2"]["parallelism"] == "2 → 3"
    assert rows["orders → orders-v2"]["keyed state"] == "records (other key groups)"
    assert rows["pricing"]["operator state"] == "ranges of bytes"
    assert metadata["dagster/row_count"] == 1398


@pytest.mark.essential
def test_every_check_passes(rescaled: dg.ExecuteInProcessResult, key: str) -> None:
    checks = rescaled.get_asset_check_evaluations()
    assert {(check.check_name, check.passed, check.partition) for check in checks} == {
        (name, True, key) for name in DESCRIPTIONS
    }


def test_what_is_impossible_writes_nothing(
    deployment: Deployment, key: str, rescaled: dg.ExecuteInProcessResult
) -> None:
    before = deployment.results
    result = run(deployment, key, parallelism=200)
    assert not result.success
    assert deployment.results == before


def test_any_snapshot_is_rescaled_by_its_path(deployment: Deployment, spark: SparkSession, tmp_path: Path) -> None:
    config: dict[str, Any] = {"target": str(tmp_path / "new"), "max_parallelism": 256}
    op = {"inputs": {"snapshot": str(SAVEPOINTS["1.20"])}, "config": config}
    result = (
        build(deployment.job)
        .resolve_job_def("shop_rescale_path")
        .execute_in_process(instance=deployment.instance, run_config={"ops": {"shop_rescale": op}})
    )
    assert result.output_for_node("shop_rescale") == str(tmp_path / "new")
    uids = deployment.job.uids
    old, new = (open_snapshot(path, uids=uids) for path in (str(SAVEPOINTS["1.20"]), config["target"]))
    assert gather(dump(new)) == gather(dump(old))
