"""The jobs `erase_keys` and `search_keys` on real Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
OPS = {"erase_keys": "erase", "search_keys": "search"}


def run(deployment: Deployment, name: str, **config: Any) -> dg.ExecuteInProcessResult:
    op = {"inputs": {"snapshot": str(SAVEPOINTS["2.2"])}, "config": {"keys": [KEY], **config}}
    return (
        build(deployment.job)
        .resolve_job_def(f"shop_{name}")
        .execute_in_process(
            instance=deployment.instance,
            run_config={"ops": {f"shop_{OPS[name]}": op}},
            raise_on_error=False,
        )
    )


def read_metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = (each for each in result.all_events if each.event_type_value == "STEP_OUTPUT")
    return {name: value.value for name, value in event.step_output_data.metadata.items()}


def test_the_new_snapshot_lacks_the_key_and_nothing_else(
    deployment: Deployment, spark: SparkSession, tmp_path: Path
) -> None:
    result = run(deployment, "erase_keys", target=str(tmp_path / "erased"), root=str(SAVEPOINTS["2.2"].parent))
    assert result.output_for_node("shop_erase") == str(tmp_path / "erased")
    kept = [entry for entry in orders().entries() if entry.get("key") != KEY or entry["op"] != "orders"]
    assert len(kept) < len(orders().entries())
    assert not diff_entries(kept, dump(open_snapshot(str(tmp_path / "erased"))))
    assert read_metadata(result)["snapshots that hold the keys"] == [str(SAVEPOINTS["2.2"])] * 2


def test_a_search_writes_nothing(deployment: Deployment, spark: SparkSession) -> None:
    result = run(deployment, "search_keys")
    assert result.output_for_node("shop_search") == str(SAVEPOINTS["2.2"])
    assert not deployment.results
    found = {(row.data["operator"], row.data["state"]) for row in read_metadata(result)["found"].records}
    assert ("orders", "order") in found
