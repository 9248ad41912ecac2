"""The Dagster job of an upgrade, with a cluster in memory."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
from pydantic import ValidationError

from state_pipelines.dagster import FlinkJob, build_flink_job, upgrading
from state_pipelines.dagster.upgrading import WAITING_TAG, build_new_program
from state_pipelines.flink.cluster import JobStart
from state_pipelines.upgrades.rehearsal import rehearse
from state_pipelines.upgrades.upgrade_records import Step
from state_pipelines.upgrades.upgrade_run import UndecidedError, UpgradeRun
from tests.upgrades.conftest import SNAPSHOT
from tests.upgrades.memory_cluster import Killed, MemoryCluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

OPS = ["plan_job_upgrade", "stop_job", "check_savepoint", "change_savepoint", "start_program", "watch_program"]


def make_job(directory: Path, new: str = "new.jar", **settings: Any) -> FlinkJob:
    for name in ("old.jar", new):
        (directory / name).write_bytes(name.encode())
    upgrade = {
        "savepoints": str(directory / "savepoints"),
        "old": {"jar": "old.jar"},
        "new": {"jar": new, **settings},
        "watch": "20s",
        # Empty jars have no classes.
        "automatic": ["compatible", "undetermined"],
    }
    job = FlinkJob(
        name="shop",
        roots=(str(directory / "savepoints"),),
        results=str(directory / "results"),
        cluster={"rest": "http://127.0.0.1:1"},
        job="orders",
        upgrade=upgrade,
        job_classes=(str(directory / "classes.yaml"),),
    )
    (directory / "classes.yaml").write_text("{}")
    return job.beside(directory)


class Runner:
    """Runs the job of an upgrade on a cluster in memory."""

    def __init__(self, patch: pytest.MonkeyPatch, instance: dg.DagsterInstance) -> None:
        self.cluster = MemoryCluster(SNAPSHOT)
        self.instance = instance
        patch.setattr(upgrading, "connect_clusters", lambda request: (self.cluster, self.cluster))
        patch.setattr(upgrading, "UpgradeRun", partial(UpgradeRun, sleep=self.cluster.sleep, clock=self.cluster.clock))

    def run(self, job: FlinkJob, **config: Any) -> dg.ExecuteInProcessResult:
        definitions = dg.Definitions.merge(build_flink_job(job), dg.Definitions(executor=dg.in_process_executor))
        given = {"ops": {"shop_plan_job_upgrade": {"config": config}}} if config else None
        return definitions.resolve_job_def("shop_upgrade").execute_in_process(
            instance=self.instance, raise_on_error=False, run_config=given
        )

    @property
    def programs(self) -> list[str]:
        return [each.program for each in self.cluster.running]


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Runner(monkeypatch, instance)


def list_ops(result: dg.ExecuteInProcessResult) -> list[str]:
    """The ops that have run, without the prefix of the job."""
    return [each.step_key.removeprefix("shop_") for each in result.all_events if each.is_step_success and each.step_key]


def observe(result: dg.ExecuteInProcessResult) -> tuple[str, dict[str, Any]]:
    """Description and metadata of the only observation of the running job that a run has logged."""
    (found,) = [each for each in result.all_events if each.event_type is dg.DagsterEventType.ASSET_OBSERVATION]
    observation = found.asset_observation_data.asset_observation
    assert observation.asset_key == dg.AssetKey(["shop", "flink_job"])
    return str(observation.description), list_values(observation.metadata)


def list_outputs(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    """The metadata of the outputs of the ops."""
    return {
        str(each.step_key).removeprefix("shop_"): list_values(each.step_output_data.metadata)
        for each in result.all_events
        if each.is_successful_output
    }


def find_failure(result: dg.ExecuteInProcessResult) -> tuple[str, dict[str, Any]]:
    """Description and metadata of the only failure."""
    (failed,) = [each.step_failure_data.user_failure_data for each in result.all_events if each.is_step_failure]
    assert failed is not None
    return str(failed.description), list_values(failed.metadata)


def list_values(metadata: Mapping[str, dg.MetadataValue[Any]]) -> dict[str, Any]:
    return {name: each.value for name, each in metadata.items()}


def test_a_run_upgrades_the_job(tmp_path: Path, runner: Runner) -> None:
    # Each op may be a process of its own, so that the start is as Flink has timed it.
    runner.cluster.timed = JobStart(seconds=3.0, restore_seconds=1.0, parallelism=1)
    result = runner.run(make_job(tmp_path))
    assert result.success
    assert list_ops(result) == [*OPS, "decide_upgrade"]
    assert runner.programs == ["new.jar"]
    outputs = list_outputs(result)
    stopped = str(outputs["stop_job"]["savepoint"])
    assert stopped.startswith(str(tmp_path / "savepoints"))
    assert outputs["check_savepoint"]["needs"] == "undetermined"
    assert outputs["watch_program"]["checkpoints"] >= 2
    assert {str(outputs[name]["outcome"]) for name in OPS[1:]} == {"done"}
    for metadata in (observe(result)[1], outputs["decide_upgrade"]):
        assert "shop runs the new program, job" in str(metadata["runs now"])
        assert metadata["down time s"] >= 3
        assert metadata["predicted down time s"] > 0
        assert metadata["savepoint of the old program"] == stopped
        assert metadata["savepoint for the new program"] == stopped
    # Another run of the same program has nothing to do, and says so.
    again = runner.run(make_job(tmp_path))
    assert again.success
    assert list_ops(again) == ["plan_job_upgrade"]
    assert observe(again)[0] == "nothing is to be done"


def test_a_plan_waits_for_the_approval_of_its_fingerprint(tmp_path: Path, runner: Runner) -> None:
    job = make_job(tmp_path, max_parallelism=256)
    waiting = runner.run(job)
    assert waiting.success
    assert list_ops(waiting) == ["plan_job_upgrade"]
    assert runner.programs == ["old.jar"]
    run = runner.instance.get_run_by_id(waiting.run_id)
    assert run is not None
    mark = run.tags[WAITING_TAG]
    description, seen = observe(waiting)
    assert "waits for an approval (rescaled)" in description
    assert seen["fingerprint"] == mark
    assert seen["predicted down time s"] > 0
    # Another plan.
    wrong = runner.run(job, approve="0" * 16)
    assert not wrong.success
    text, metadata = find_failure(wrong)
    assert text.endswith("launch the job with its fingerprint")
    assert f"fingerprint: {mark}" in metadata["plan"]
    assert runner.programs == ["old.jar"]
    assert runner.run(job, approve=mark).success
    assert runner.programs == ["new.jar"]


def test_a_program_that_fails_brings_the_old_one_back_and_fails_the_run(tmp_path: Path, runner: Runner) -> None:
    result = runner.run(make_job(tmp_path, "fails.jar"))
    assert not result.success
    assert list_ops(result) == OPS
    assert runner.programs == ["old.jar"]
    (failure,) = [each for each in result.all_events if each.is_step_failure]
    assert failure.step_key == "shop_decide_upgrade"
    text, data = find_failure(result)
    assert text.startswith("shop runs the old program again, job ")
    assert "IllegalStateException: broken" in text
    assert list(data) == [
        *("error", "runs now", "why"),
        *("to start the old program", "to start the new program"),
    ]
    assert data["error"] == "UpgradeFailedError"
    assert observe(result)[1]["result"] == "went back"
    # The step that has failed says so, and the way back is the last one.
    outputs = list_outputs(result)
    assert outputs["start_program"]["outcome"] == "done"
    assert outputs["watch_program"]["outcome"] == "failed, the old program comes back"


def test_a_refused_plan_names_what_runs_first(tmp_path: Path, runner: Runner) -> None:
    runner.cluster.version = "1.20.5"
    result = runner.run(make_job(tmp_path))
    text, _ = find_failure(result)
    assert text.startswith("shop runs the old program, job ")
    assert "; nothing was stopped: refused: memory://cluster runs Flink 1.20.5, and target_release is 2.2" in text
    assert observe(result)[1]["result"] == "refused"


def test_a_run_that_cannot_see_what_runs_says_how_it_goes_on(
    tmp_path: Path, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(run: UpgradeRun, step: Step) -> None:
        raise UndecidedError("it is unknown whether the job will stop")

    with monkeypatch.context() as patch:
        patch.setattr(UpgradeRun, "advance", lose)
        result = runner.run(make_job(tmp_path))
    assert list_ops(result) == ["plan_job_upgrade"]
    text, _ = find_failure(result)
    assert text.startswith("it is not known what runs of shop: it is unknown whether the job will stop")
    assert "Re-execute the run from failure, which continues the upgrade" in text
    assert "JOB.yaml" not in text
    assert runner.run(make_job(tmp_path)).success


def test_a_rehearsal_shows_its_numbers(tmp_path: Path, runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = (runner.cluster, runner.cluster)
    monkeypatch.setattr(upgrading, "rehearse_upgrade", partial(rehearse, clusters=clusters, sleep=runner.cluster.sleep))
    definitions = dg.Definitions.merge(
        build_flink_job(make_job(tmp_path)), dg.Definitions(executor=dg.in_process_executor)
    )
    job = definitions.resolve_job_def("shop_rehearse")
    _, seen = observe(job.execute_in_process(instance=runner.instance))
    assert seen["rehearsal"] == "the upgrade of shop would succeed; the job runs on"
    assert seen["savepoint s"] == 1.5
    assert seen["predicted down time s"] > 1.5
    runner.cluster.version = "1.20.5"
    refused = job.execute_in_process(instance=runner.instance, raise_on_error=False)
    text, _ = find_failure(refused)
    assert text.startswith("the upgrade of shop would be refused; the job runs on: memory://cluster runs Flink 1.20.5")
    assert runner.programs == ["old.jar"]


def test_request_files_ask_for_an_upgrade_and_approve_its_plan(tmp_path: Path, runner: Runner) -> None:
    folder = tmp_path / "requests"
    folder.mkdir()
    job = make_job(tmp_path, max_parallelism=256).model_copy(update={"requests": str(folder)})
    definitions = dg.Definitions.merge(build_flink_job(job), dg.Definitions(executor=dg.in_process_executor))
    (sensor,) = (each for each in definitions.sensors or () if each.name == "shop_requests")

    def ask(name: str, text: str) -> dict[str, Any]:
        """Write a request, run it, and give its result."""
        (folder / name).write_text(text)
        cursor = None
        for _ in range(2):
            with dg.build_sensor_context(runner.instance, cursor=cursor) as context:
                result = sensor(context)
            assert isinstance(result, dg.SensorResult)
            cursor = result.cursor
            for each in result.run_requests or ():
                definitions.resolve_job_def(str(each.job_name)).execute_in_process(
                    instance=runner.instance, raise_on_error=False, run_config=each.run_config, tags=dict(each.tags)
                )
        content: dict[str, Any] = json.loads((folder / f"{name}.result.json").read_text())
        return content

    waiting = ask("upgrade.yaml", "operation: upgrade")
    assert waiting["status"] == "failed"
    fingerprint = waiting["error"].rpartition("approve: ")[2]
    assert "waits for an approval" in waiting["error"]
    assert runner.programs == ["old.jar"]
    assert ask("approved.yaml", f"{{operation: upgrade, approve: {fingerprint}}}")["status"] == "succeeded"
    assert runner.programs == ["new.jar"]
    assert "no snapshot" in ask("wrong.yaml", "{operation: rehearse, snapshot: latest}")["error"]
    assert "does not know 'approve'" in ask("wrong-too.yaml", "{operation: rehearse, approve: no}")["error"]


def test_a_run_that_was_killed_is_continued_by_the_next_one(
    tmp_path: Path, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = UpgradeRun.advance

    def kill(run: UpgradeRun, step: Step) -> None:
        if step is Step.START:
            raise Killed(step)
        advance(run, step)

    with monkeypatch.context() as patch:
        patch.setattr(UpgradeRun, "advance", kill)
        assert not runner.run(make_job(tmp_path)).success
    assert runner.programs == []
    assert runner.run(make_job(tmp_path)).success
    assert runner.programs == ["new.jar"]
    assert runner.cluster.stopped == ["a" * 32]


def test_a_new_jar_requests_an_upgrade_once(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    sensor = build_new_program(job)
    assert sensor.default_status is dg.DefaultSensorStatus.STOPPED

    def tick(cursor: str | None) -> dg.SensorResult | dg.SkipReason:
        with dg.DagsterInstance.ephemeral() as instance:
            found = sensor(dg.build_sensor_context(instance, cursor=cursor))
        assert isinstance(found, dg.SensorResult | dg.SkipReason)
        return found

    first = tick(None)
    assert isinstance(first, dg.SensorResult)
    assert first.run_requests
    assert isinstance(tick(first.cursor), dg.SkipReason)
    (tmp_path / "new.jar").write_bytes(b"other content")
    second = tick(first.cursor)
    assert isinstance(second, dg.SensorResult)
    assert second.cursor != first.cursor
    assert isinstance(tick(second.cursor), dg.SkipReason)
    # The description names what runs now, and then an earlier program returns: Dagster starts no run with a key twice.
    (tmp_path / "old.jar").write_bytes(b"other content")
    assert isinstance(tick(second.cursor), dg.SkipReason)
    (tmp_path / "new.jar").write_bytes(b"new.jar")
    third = tick(second.cursor)
    assert isinstance(third, dg.SensorResult)
    assert third.run_requests
    assert third.run_requests[0].run_key != first.run_requests[0].run_key
    second = third
    (tmp_path / "new.jar").unlink()
    missing = tick(second.cursor)
    assert isinstance(missing, dg.SkipReason)
    assert "the jar of the new program is not there" in str(missing.skip_message)


def test_a_job_with_an_upgrade_has_its_jobs_and_schedule(tmp_path: Path) -> None:
    definitions = build_flink_job(make_job(tmp_path))
    dg.Definitions.validate_loadable(definitions)
    jobs = {each.name for each in definitions.jobs or ()}
    assert {"shop_upgrade", "shop_rehearse"} <= jobs
    assert "shop_nightly_rehearsal" in {each.name for each in definitions.schedules or ()}


def test_an_upgrade_needs_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="upgrade has no effect without cluster"):
        FlinkJob(
            name="shop",
            roots=(str(tmp_path),),
            results=str(tmp_path),
            upgrade={"savepoints": "s3://b/s", "old": {"jar": "a.jar"}, "new": {"jar": "b.jar"}},
        )
