"""A Flink job with a new query: one run that reports what it keeps and writes its savepoint, and the sensor."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from state_pipelines.dagster import FlinkJob
from state_pipelines.dagster.sql_queries import build_new_query, identify_queries
from state_pipelines.snapshot import open_snapshot
from tests.dagster.conftest import ROOT, Deployment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

EXAMPLE = ROOT / "examples/totals"


@pytest.fixture(scope="module")
def totals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    root = tmp_path_factory.mktemp("totals")
    (root / "snapshots").mkdir()
    for name in ("totals", "counted", "swapped"):
        shutil.copy(EXAMPLE / f"{name}.json", root)
    job = FlinkJob(
        name="totals",
        roots=(str(root / "snapshots"),),
        results=str(root / "results"),
        plans=(str(root / "totals.json"),),
        new_query=str(root / "counted.json"),
    )
    with dg.DagsterInstance.ephemeral() as instance:
        yield Deployment(root, instance, job)


@dataclass(frozen=True)
class Run:
    key: str
    result: dg.ExecuteInProcessResult

    def metadata(self, asset: str) -> dict[str, Any]:
        (event,) = self.result.asset_materializations_for_node(f"totals__{asset}")
        return {name: value.value for name, value in event.metadata.items()}


@pytest.fixture(scope="module")
def run(totals: Deployment, spark: SparkSession) -> Run:
    key = totals.add_copy(EXAMPLE / "savepoint", "first")
    return Run(key, totals.run("migrate_snapshot", key))


def test_the_report_says_what_the_new_query_keeps(run: Run) -> None:
    assert run.result.success
    found = run.metadata("sql_compatibility_report")
    assert found["verdict"] == "kept in part: some state starts empty"
    assert not found["exact"]
    assert "COUNT(\\*) | starts empty" in found["report"]
    assert found["result"]["silent_swaps"] == []


def test_the_savepoint_is_that_of_the_new_plan(run: Run, totals: Deployment) -> None:
    found = run.metadata("migrated_savepoint")
    assert Path(found["plan"]).read_text() == (EXAMPLE / "counted.json").read_text()
    assert found["queries"] == identify_queries(totals.job)
    assert "accState, COUNT(\\*): starts empty" in found["notes"]
    assert "count:" in Path(found["revision"]).read_text()
    operator = open_snapshot(found["path"], uids=["3_group-aggregate"]).operator("3_group-aggregate")
    rows = operator.state("accState").to_arrow()
    values = rows.column("value").to_pylist()
    assert {each["f2"] for each in values} == {0}
    assert found["dagster/row_count"] == len(values)


def test_the_checks_are_those_of_the_query_and_of_the_proof(run: Run) -> None:
    found = {each.check_name: each.passed for each in run.result.get_asset_check_evaluations()}
    assert found["new_query_keeps_state"]
    assert {"row_counts_per_key_group", "key_sets", "written_reads_back", "columns_recomputed"} <= found.keys()
    assert all(found.values())


def test_operators_that_no_query_has_are_refused(run: Run, totals: Deployment) -> None:
    result = totals.run("check_query", run.key, sql_compatibility_report={"match": {"1": "3_group-aggregate"}})
    (failure,) = result.filter_events(lambda each: each.is_step_failure)
    assert failure.step_failure_data.user_failure_data is not None
    assert "the old plan has no operator 1 to match" in str(failure.step_failure_data.user_failure_data.description)


def tick(deployment: Deployment, cursor: str | None) -> Any:
    context = dg.build_sensor_context(instance=deployment.instance, cursor=cursor)
    return build_new_query(deployment.job)(context)


def test_a_query_that_changes_is_checked(run: Run, totals: Deployment) -> None:
    totals.job.storage.update_inventory(partitions=[run.key])
    first = tick(totals, None)
    assert [each.partition_key for each in first.run_requests] == [run.key]
    assert first.cursor == identify_queries(totals.job)
    assert isinstance(tick(totals, first.cursor), dg.SkipReason)
    edited = totals.root / "edited.json"
    content = json.loads((EXAMPLE / "counted.json").read_text())
    edited.write_text(json.dumps(content))
    changed = totals.change(new_query=str(edited))
    second = tick(changed, first.cursor)
    assert second.run_requests[0].run_key != first.run_requests[0].run_key
    edited.unlink()
    assert "The queries cannot be read" in str(tick(changed, first.cursor).skip_message)


def test_a_refused_query_stops_the_run_before_the_savepoint(run: Run, totals: Deployment) -> None:
    content = json.loads((EXAMPLE / "totals.json").read_text())
    aggregate = next(each for each in content["nodes"] if each["type"].startswith("stream-exec-group-aggregate"))
    aggregate["grouping"] = [1]
    (totals.root / "refused.json").write_text(json.dumps(content))
    result = totals.change(new_query=str(totals.root / "refused.json")).run("migrate_snapshot", run.key)
    assert not result.success
    (evaluation,) = (
        each for each in result.get_asset_check_evaluations() if each.check_name == "new_query_keeps_state"
    )
    assert (evaluation.passed, evaluation.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert result.asset_materializations_for_node("totals__migrated_savepoint") == []
