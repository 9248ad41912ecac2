"""A Flink job with a new query: one run that reports what it keeps and writes its savepoint, and the sensor."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from state_pipelines.dagster import FlinkJob
from state_pipelines.dagster.sensors import build_new_snapshots, plan_run
from state_pipelines.dagster.sql_queries import build_new_query, identify_queries
from state_pipelines.errors import UsageError
from state_pipelines.operations.requests import parse_request
from state_pipelines.snapshot import declarations, open_snapshot
from state_pipelines.sql import load_plan, planner
from state_pipelines.sql.planner import CompiledScript
from tests.dagster.conftest import ROOT, Deployment, build

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

EXAMPLE = ROOT / "examples/totals"
PLAN = load_plan(str(EXAMPLE / "totals.json"))
OPERATOR = "3_group-aggregate"


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
        requests=str(root / "requests"),
    )
    (root / "requests").mkdir()
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
    """The run that a request file asks for, with the result of the request beside it."""
    key = totals.add_copy(EXAMPLE / "savepoint", "first")
    tables = pa.table({"customer": list(range(50)), "orders": [each + 100 for each in range(50)]})
    pq.write_table(tables, totals.root / "orders.parquet")
    text = {"operation": "migrate", "snapshot": "latest", "backfill": {"orders": str(totals.root / "orders.parquet")}}
    text["match"] = {OPERATOR: OPERATOR}
    (totals.root / "requests/counted.yaml").write_text(json.dumps(text))
    ((request,), cursor) = tick_requests(totals, None)
    assert (request.job_name, request.partition_key) == ("totals_migrate_snapshot", key)
    job = build(totals.job).resolve_job_def("totals_migrate_snapshot")
    result = job.execute_in_process(
        instance=totals.instance,
        partition_key=key,
        run_config=request.run_config,
        tags=dict(request.tags),
        raise_on_error=False,
    )
    tick_requests(totals, cursor)
    return Run(key, result)


def tick_requests(deployment: Deployment, cursor: str | None) -> tuple[list[dg.RunRequest], str | None]:
    sensor = next(each for each in build(deployment.job).sensors or () if each.name == "totals_requests")
    with dg.build_sensor_context(instance=deployment.instance, cursor=cursor) as context:
        result = sensor(context)
    assert isinstance(result, dg.SensorResult)
    return list(result.run_requests or ()), result.cursor


def test_a_request_migrates_to_the_new_query(run: Run, totals: Deployment) -> None:
    result = json.loads((totals.root / "requests/counted.yaml.result.json").read_text())
    assert (result["status"], result["snapshot"]) == ("succeeded", run.key)
    assert result["results"]["totals/migrated_savepoint"]["path"] == run.metadata("migrated_savepoint")["path"]


def plan(job: FlinkJob, **fields: object) -> dict[str, Any]:
    name, config = plan_run(job, parse_request({"operation": "migrate", "snapshot": "latest", **fields}))
    assert name == "migrate_snapshot"
    return {op: each["config"] for op, each in config["ops"].items()}


def test_fields_of_requests_are_those_of_the_job(totals: Deployment) -> None:
    job, tables = totals.job, {"orders": "/tables/orders.parquet"}
    assert plan(job, match={"1": "2"}, backfill=tables) == {
        "totals__sql_compatibility_report": {"match": {"1": "2"}},
        "totals__migrated_savepoint": {"match": {"1": "2"}, "backfill": tables},
    }
    with pytest.raises(UsageError, match="to is a field for jobs with migrations, and this one has none"):
        plan(job, to="head")
    revised = job.model_copy(update={"new_query": None, "migrations": "/revisions"})
    with pytest.raises(UsageError, match="backfill is a field for jobs with new_query, and this one has none"):
        plan(revised, backfill=tables)
    with pytest.raises(UsageError, match="the job has no migrations") as error:
        plan(job.model_copy(update={"new_query": None}))
    assert "new_query" in error.value.hint


def watch(deployment: Deployment) -> tuple[list[dg.RunRequest], str]:
    """Let the sensor for new snapshots look at all snapshots."""
    with dg.build_sensor_context(instance=deployment.instance) as context:
        result = build_new_snapshots(deployment.job)(context)
    assert isinstance(result, dg.SensorResult)
    reason = str(result.skip_reason.skip_message) if result.skip_reason else ""
    return list(result.run_requests or ()), reason


def test_a_new_snapshot_is_migrated_to_the_new_query_once(run: Run, totals: Deployment) -> None:
    runs, reason = watch(totals)
    assert runs == []
    assert f"run {run.result.run_id[:8]} has migrated it for the same queries" in reason
    other = totals.change(new_query=str(totals.root / "swapped.json"))
    (request,), _ = watch(other)
    assert request.partition_key == run.key
    assert request.run_key == f"{run.key}-{identify_queries(other.job)}"
    names = ("compatibility_report", "sql_compatibility_report", "migrated_savepoint")
    assert request.asset_selection is not None
    assert {each.path[-1] for each in request.asset_selection} == set(names)


def test_a_query_that_runs_already_is_no_new_one(run: Run, totals: Deployment) -> None:
    runs, reason = watch(totals.change(new_query=str(totals.root / "totals.json")))
    assert runs == []
    assert "new_query is the query that runs, nothing to do" in reason
    runs, reason = watch(totals.change(new_query=str(totals.root / "none.json")))
    assert runs == []
    assert "none.json" in reason


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
    operator = open_snapshot(found["path"], uids=[OPERATOR]).operator(OPERATOR)
    rows = operator.state("accState").to_arrow().to_pylist()
    # The table of the request has the values.
    assert {each["value"]["f2"] - each["state_key"]["f0"] for each in rows} == {100}
    assert found["dagster/row_count"] == len(rows)


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


def test_jars_reach_every_script_of_a_job(totals: Deployment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[tuple[str, ...]] = []

    def compile_script(path: str, *, jars: tuple[str, ...] = (), **_: object) -> CompiledScript:
        given.append(tuple(jars))
        return CompiledScript((EXAMPLE / Path(path).with_suffix(".json").name).read_text(), PLAN, ())

    def compile_scripts(paths: list[str], *, jars: tuple[str, ...] = (), **_: object) -> tuple[CompiledScript, ...]:
        return tuple(compile_script(each, jars=jars) for each in paths)

    monkeypatch.setattr(declarations, "compile_script", compile_script)
    monkeypatch.setattr(planner, "compile_scripts", compile_scripts)
    jar = tmp_path / "functions.jar"
    jar.write_bytes(b"one")
    queries = {"plans": (str(EXAMPLE / "totals.sql"),), "new_query": str(EXAMPLE / "counted.sql")}
    changed = totals.change(**queries, jars=(str(jar),))
    key = changed.add_copy(EXAMPLE / "savepoint", "with-jars")
    assert changed.run("check_query", key).success
    assert len(given) >= 3
    assert set(given) == {(str(jar),)}
    before = identify_queries(changed.job)
    assert before != identify_queries(totals.change(**queries).job)
    jar.write_bytes(b"another")
    assert identify_queries(changed.job) != before
