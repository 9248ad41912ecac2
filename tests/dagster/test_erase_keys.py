"""The job `erase_keys` on real Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.operations.dump import dump
from state_pipelines.snapshot import open_snapshot
from tests.dagster.conftest import SAVEPOINTS, build
from tests.flink.harness import diff_entries
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from pathlib import Path

    import dagster as dg
    from pyspark.sql import SparkSession

    from tests.dagster.conftest import Deployment

KEY = "order-0001"


def run(deployment: Deployment, **config: Any) -> dg.ExecuteInProcessResult:
    given = {"keys": [KEY], "snapshot": str(SAVEPOINTS["2.2"]), **config}
    return (
        build(deployment.job)
        .resolve_job_def("shop_erase_keys")
        .execute_in_process(
            instance=deployment.instance,
            run_config={"ops": {"shop_erase": {"config": given}}},
            raise_on_error=False,
        )
    )


def read_metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = (each for each in result.all_events if each.event_type_value == "STEP_OUTPUT")
    return {name: value.value for name, value in event.step_output_data.metadata.items()}


def test_the_new_snapshot_lacks_the_key_and_nothing_else(
    deployment: Deployment, spark: SparkSession, tmp_path: Path
) -> None:
    result = run(deployment, target=str(tmp_path / "erased"), root=str(SAVEPOINTS["2.2"].parent))
    assert result.output_for_node("shop_erase") == str(tmp_path / "erased")
    kept = [entry for entry in orders().entries() if entry.get("key") != KEY or entry["op"] != "orders"]
    assert len(kept) < len(orders().entries())
    assert not diff_entries(kept, dump(open_snapshot(str(tmp_path / "erased"))))
    assert read_metadata(result)["snapshots that hold the keys"] == [str(SAVEPOINTS["2.2"])] * 2


def test_without_a_target_nothing_is_written(deployment: Deployment, spark: SparkSession, tmp_path: Path) -> None:
    result = run(deployment)
    assert result.success
    assert result.output_for_node("shop_erase") == ""
    found = {(row.data["operator"], row.data["state"]) for row in read_metadata(result)["found"].records}
    assert ("orders", "order") in found


@pytest.mark.parametrize("config", [{"keys": []}, {"snapshot": "/nowhere"}])
def test_wrong_use_is_a_failure(deployment: Deployment, spark: SparkSession, config: dict[str, Any]) -> None:
    assert not run(deployment, **config).success
