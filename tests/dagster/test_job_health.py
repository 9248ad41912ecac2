"""`job_health` and the savepoints of a policy, with a server that answers as Flink's REST endpoint does."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
from pydantic import ValidationError

from state_pipelines.dagster import FlinkJob, build_flink_job, jobs
from state_pipelines.dagster import job_health as sensor_module
from state_pipelines.dagster.job_health import HEARTBEAT, build_job_health_sensor
from state_pipelines.dagster.jobs import build_savepoint_schedules
from state_pipelines.upgrades.savepoint_policy import find_savepoint_records
from tests.clusters.recorded_job import EXPIRED, NOW, arrange, complete, fail, fail_job
from tests.clusters.servers import Server, serving
from tests.upgrades.conftest import SNAPSHOT
from tests.upgrades.memory_cluster import MemoryCluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MISFIT = "x\nCaused by: org.apache.flink.util.StateMigrationException: The new state serializer must be compatible"
JOB_RUNS = "job_runs"


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


def make_job(directory: Path, url: str, **fields: Any) -> FlinkJob:
    return FlinkJob(
        name="shop",
        roots=(str(directory / "savepoints"),),
        results=str(directory / "results"),
        cluster={"rest": url},
        job="orders",
        **fields,
    )


def materialise(job: FlinkJob, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    definitions = dg.Definitions.merge(build_flink_job(job), dg.Definitions(executor=dg.in_process_executor))
    return definitions.resolve_job_def("shop_check_health").execute_in_process(instance=instance, raise_on_error=False)


def test_a_run_describes_the_job_and_checks_its_limits(server: Server, tmp_path: Path) -> None:
    # The limits are about this moment: checkpoints of the past are too old.
    arrange(server, fail(4, 5, EXPIRED), complete(3, 10), complete(2, 1810), complete(1, 3610))
    thresholds = {"max_hours_without_savepoint": 1, "max_state_size": "1GiB"}
    with dg.DagsterInstance.ephemeral() as instance:
        result = materialise(make_job(tmp_path, server.url, thresholds=thresholds), instance)
        assert result.success
        (event,) = result.asset_materializations_for_node("shop__job_health")
        observation = instance.fetch_observations(dg.AssetKey(["shop", "flink_job"]), limit=1).records
    found = {each.check_name: (each.passed, each.severity) for each in result.get_asset_check_evaluations()}
    warning, error = dg.AssetCheckSeverity.WARN, dg.AssetCheckSeverity.ERROR
    assert found == {
        "job_runs": (True, warning),
        "recent_checkpoint": (False, error),
        "checkpoints_succeed": (False, warning),
        "checkpoints_are_fast": (True, warning),
        "recent_savepoint": (False, warning),
        "state_has_room": (True, warning),
    }
    metadata = event.metadata
    assert metadata["status"].value == "RUNNING"
    assert (metadata["restarts"].value, metadata["bytes of state"].value) == (3, 3000)
    assert metadata["bytes per hour"].value == 2000
    assert metadata["hours to max_state_size"].value == round((2**30 - 3000) / 2000, 1)
    failures: Any = metadata["failed checkpoints"]
    assert failures.records[0].data["reason"] == "CHECKPOINT_EXPIRED"
    slowest: Any = metadata["slowest subtasks"]
    assert [slowest.records[0].data[name] for name in ("task", "subtask", "duration ms")] == ["counts", 1, None]
    growth: Any = metadata["growth"]
    assert [each.data["bytes per hour"] for each in growth.records] == [0, 1000]
    load: Any = metadata["load"]
    assert load.records[1].data["busy"] == 0.99
    assert "data:image/png;base64," in str(metadata["picture"].value)
    assert observation[0].asset_observation is not None
    assert observation[0].asset_observation.metadata["status"].value == "RUNNING"


def test_the_sensor_reports_what_is_new_without_a_run(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(tmp_path, server.url)
    sensor = build_job_health_sensor(job)
    now = NOW
    monkeypatch.setattr(sensor_module, "_now", lambda: now)

    def tick(cursor: str | None) -> tuple[dict[str, tuple[bool, Any]], Any]:
        """The outcomes that are reported, and the result."""
        result: Any = sensor(dg.build_sensor_context(cursor=cursor))
        events = getattr(result, "asset_events", ())
        checks = [each for each in events if isinstance(each, dg.AssetCheckEvaluation)]
        return {each.check_name: (each.passed, each.description) for each in checks}, result

    arrange(server, complete(3, 10), complete(2, 20))
    found, first = tick(None)
    assert {name for name, (passed, _) in found.items() if passed} == set(found)
    assert [type(each).__name__ for each in first.asset_events[:2]] == ["AssetObservation", "AssetMaterialization"]
    assert [each.asset_key.path[-1] for each in first.asset_events[:2]] == ["flink_job", "job_health"]
    now = NOW + timedelta(seconds=1)
    again = tick(first.cursor)[1]
    assert isinstance(again, dg.SkipReason)
    assert str(again.skip_message).startswith("As reported before")
    # What has changed is reported at once.
    arrange(server, complete(3, 10), complete(2, 20), job="RESTARTING", failures=(fail_job(1, MISFIT),))
    found, result = tick(first.cursor)
    assert found[JOB_RUNS][0] is False
    assert "its state does not fit its program" in found[JOB_RUNS][1]
    proposed = result.asset_events[1].metadata["proposed"].value
    assert "state-pipelines check file:/checkpoints/chk-3" in proposed.replace("\\", "")
    # And what has not, once an hour.
    arrange(server, complete(3, 10), complete(2, 20))
    now = NOW + timedelta(seconds=HEARTBEAT)
    assert tick(first.cursor)[0]


def test_a_cluster_that_does_not_answer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("state_pipelines.flink.http_client.PAUSE_SECONDS", 0)
    with serving() as server:
        url = server.url
    result: Any = build_job_health_sensor(make_job(tmp_path, url))(dg.build_sensor_context())
    checks = {each.check_name: each for each in result.asset_events if isinstance(each, dg.AssetCheckEvaluation)}
    assert (checks[JOB_RUNS].passed, checks[JOB_RUNS].severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert "cannot be reached" in str(checks[JOB_RUNS].description)
    assert checks["recent_checkpoint"].severity is dg.AssetCheckSeverity.WARN
    assert result.asset_events[1].metadata["status"].value == "no answer"


def test_only_a_job_with_a_cluster_is_watched(tmp_path: Path) -> None:
    job = FlinkJob(name="shop", roots=("savepoints",), results="results")
    definitions = build_flink_job(job)
    names = [each.name for each in (*(definitions.sensors or ()), *(definitions.jobs or ()))]
    assert not [each for each in names if "health" in each or "scheduled" in each]
    assert dg.AssetKey(["shop", "job_health"]) not in definitions.resolve_asset_graph().get_all_asset_keys()
    with pytest.raises(ValidationError, match="savepoints has no effect without cluster"):
        FlinkJob(name="shop", roots=("savepoints",), results="results", savepoints={"native": "daily"})


def test_scheduled_savepoints_are_requested_taken_and_red_when_they_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = MemoryCluster(SNAPSHOT)
    monkeypatch.setattr(jobs, "connect", lambda settings, directory: cluster)
    policy = {"native": "daily", "directory": str(tmp_path / "savepoints"), "timeout": "5s"}
    job = make_job(tmp_path, "http://127.0.0.1:1", savepoints=policy)
    (schedule,) = build_savepoint_schedules(job)
    definitions = dg.Definitions.merge(build_flink_job(job), dg.Definitions(executor=dg.in_process_executor))
    defined = definitions.resolve_job_def("shop_scheduled_savepoints")
    cluster.savepoint_failure = f"CheckpointException: {EXPIRED}"
    with dg.DagsterInstance.ephemeral() as instance:
        failed = defined.execute_in_process(instance=instance, raise_on_error=False)
        (failure,) = [each for each in failed.all_events if each.is_step_failure]
        data: Any = failure.step_failure_data
        assert data.user_failure_data.metadata["reason"].value == "CHECKPOINT_EXPIRED"
        cluster.savepoint_failure = ""
        config = {"ops": {"shop_take_scheduled_savepoints": {"config": {"formats": ["rocksdb"]}}}}
        wrong = defined.execute_in_process(instance=instance, raise_on_error=False, run_config=config)
        (failure,) = [each for each in wrong.all_events if each.is_step_failure]
        assert "formats has rocksdb" in str(failure.step_failure_data.error)
        assert defined.execute_in_process(instance=instance).success
        (taken, _) = find_savepoint_records(job.results, job.name).list_records()
        due: Any = schedule(dg.build_schedule_context(instance, scheduled_execution_time=taken.time))
        assert isinstance(due, dg.SkipReason)
        tomorrow = taken.time + timedelta(days=1)
        due = schedule(dg.build_schedule_context(instance, scheduled_execution_time=tomorrow))
        assert due.tags["state-pipelines/savepoints"] == f"native of {tomorrow:%Y-%m-%d}"
