"""`RestCluster` against session clusters of real Flink."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from click.testing import CliRunner

from state_pipelines.checkpoints.coordinator import FailureReason
from state_pipelines.cli.commands import CommandGroup
from state_pipelines.errors import ClusterError, NotFoundError
from state_pipelines.flink.checkpoint_failures import explain_message, find_failure_reason, find_root_cause
from state_pipelines.flink.cluster import (
    CheckpointKind,
    CheckpointStatus,
    JobStatus,
    SavepointFormat,
    SavepointRequest,
    Submission,
    TriggerStatus,
    find_job,
    wait_for_savepoint,
)
from state_pipelines.flink.http_client import HttpClient
from state_pipelines.flink.local_cluster import SLOTS
from state_pipelines.flink.rest_cluster import RestCluster
from state_pipelines.flink.status import status
from state_pipelines.operations.retention import read_pins
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import resolve
from state_pipelines.upgrades.savepoint_policy import open_savepoint_job, take_due_savepoints
from tests.flink.clusters import RunningCluster, make_jar, running_cluster
from tests.flink.harness import VERSIONS
from tests.flink.upgraded_jobs import wait_for_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from state_pipelines.flink.cluster import Checkpoint, CheckpointProgress

pytestmark = pytest.mark.flink

T = TypeVar("T")
SECONDS = 120
TROUBLED = "clusters.TroubledJob"


@pytest.fixture(scope="module", params=VERSIONS)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(request.param, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def jar(running: RunningCluster) -> Path:
    return make_jar(running.version, running.directory / "troubled.jar")


@pytest.fixture
def cluster(running: RunningCluster) -> Iterator[RestCluster]:
    cluster = RestCluster(HttpClient(running.url))
    yield cluster
    for job in cluster.list_jobs():
        if not job.status.is_terminal:
            cluster.cancel(job.id)
            wait_for_status(cluster, job.id, lambda status: status.is_terminal)


def submit(jar: Path, name: str, *options: str, job_id: str | None = None, savepoint: str | None = None) -> Submission:
    arguments = (TROUBLED, name, *options)
    return Submission(str(jar), arguments=arguments, parallelism=2, job_id=job_id, savepoint=savepoint)


def await_running(cluster: RestCluster, job_id: str) -> None:
    """Wait until all tasks run; the job itself says so before."""
    until(lambda: all(each.status == "RUNNING" for each in cluster.read_job(job_id).vertices))


def until(get: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + SECONDS
    while not (found := get()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def await_checkpoint(cluster: RestCluster, job_id: str, trigger: str) -> CheckpointProgress:
    def poll() -> CheckpointProgress | None:
        progress = cluster.poll_checkpoint(job_id, trigger)
        return None if progress.status is TriggerStatus.IN_PROGRESS else progress

    return until(poll)


def test_a_job_runs_stops_and_goes_on_from_its_savepoint(
    running: RunningCluster, cluster: RestCluster, jar: Path
) -> None:
    overview = cluster.describe()
    assert (overview.version, overview.slots_total, overview.can_submit) == (running.version, SLOTS, True)
    assert overview.configuration["execution.checkpointing.savepoint-dir"].endswith("/savepoints")

    job_id = "5" * 32
    submission = submit(jar, "counted", "execution.checkpointing.interval=1h", job_id=job_id)
    assert cluster.start(submission) == job_id
    # Nor does the same submission start a second one where the first answer was lost.
    assert cluster.start(submission) == job_id
    assert [each.id for each in cluster.list_jobs() if each.name == "counted"] == [job_id]
    await_running(cluster, job_id)
    assert find_job(cluster, "counted").status is JobStatus.RUNNING

    job = cluster.read_job(job_id)
    assert [(each.parallelism, each.max_parallelism) for each in job.vertices] == [(2, 128), (2, 128)]
    assert job.checkpoints is not None
    assert (job.checkpoints.interval_ms, job.checkpoints.mode) == (3_600_000, "exactly_once")

    taken = await_checkpoint(cluster, job_id, cluster.trigger_checkpoint(job_id, CheckpointKind.FULL))
    assert taken.status is TriggerStatus.COMPLETED
    assert taken.checkpoint_id is not None
    native = SavepointRequest(format=SavepointFormat.NATIVE, trigger_id="1" * 32)
    assert [cluster.trigger_savepoint(job_id, native) for _ in range(2)] == ["1" * 32] * 2
    kept = wait_for_savepoint(cluster, job_id, "1" * 32, timeout_seconds=SECONDS)
    assert open_snapshot(kept.path).operators

    stop = SavepointRequest(stop=True, trigger_id="2" * 32, directory=(running.directory / "stopped").as_uri())
    cluster.trigger_savepoint(job_id, stop)
    stopped = wait_for_savepoint(cluster, job_id, "2" * 32, timeout_seconds=SECONDS)
    assert open_snapshot(stopped.path).operator("counts").states
    wait_for_status(cluster, job_id, lambda status: status is JobStatus.FINISHED)

    statistics = cluster.read_checkpoints(job_id)
    assert [each.is_savepoint for each in statistics.history[:3]] == [True, True, False]
    details = cluster.read_checkpoint(job_id, taken.checkpoint_id, subtasks=True)
    assert [[each.index for each in task.details] for task in details.tasks] == [[0, 1], [0, 1]]
    assert all(each.state_size and each.duration_ms is not None for task in details.tasks for each in task.details)

    again = cluster.start(submit(jar, "counted", savepoint=stopped.path))
    await_running(cluster, again)
    assert find_job(cluster, "counted").id == again
    restored = cluster.read_checkpoints(again)
    assert (restored.restored, restored.restored_path) == (1, stopped.path)

    load = until(lambda: load if (load := cluster.read_load(again)).vertices[1].busy_ratio is not None else None)
    assert load.restarts == 0
    assert load.uptime_ms is not None
    cluster.cancel(again)
    wait_for_status(cluster, again, lambda status: status is JobStatus.CANCELED)
    cluster.cancel(again)


def test_a_policy_takes_the_savepoints_that_are_due(running: RunningCluster, cluster: RestCluster, jar: Path) -> None:
    job_id = cluster.start(submit(jar, "kept", "execution.checkpointing.interval=1h"))
    await_running(cluster, job_id)
    root = running.directory / "kept"
    file = running.directory / "kept.json"
    described = {
        "name": "kept",
        "cluster": {"rest": running.url},
        "results": str(running.directory / "results"),
        "roots": [str(root)],
        "savepoints": {"directory": root.as_uri(), "canonical": "monthly", "native": {"every": "monthly", "keep": 1}},
        "thresholds": {"max_hours_without_savepoint": 1},
    }
    file.write_text(json.dumps(described))

    def run(*command: str) -> Any:
        done = CliRunner().invoke(CommandGroup("state-pipelines"), [*command, "--json"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    formats = {each["format"]: each["path"] for each in run("savepoint", str(file), "--due")}
    assert set(formats) == {"CANONICAL", "NATIVE"}
    for each in formats.values():
        assert open_snapshot(each).operator("counts").states
    pinned = {each.path for each in read_pins(resolve(str(root)))}
    assert pinned == {each.rpartition("/")[2] for each in formats.values()}
    # Nothing is due any more, and the job runs on.
    assert run("savepoint", str(file), "--due") == []
    assert cluster.read_status(job_id) is JobStatus.RUNNING
    history = cluster.read_checkpoints(job_id).history
    assert sorted(each.path.rpartition("/")[2] for each in history if each.is_savepoint) == sorted(pinned)
    checks = {each["name"]: each["passed"] for each in run("status", str(file))["checks"]}
    assert checks["recent_savepoint"] is True
    # Next month both are due again, and the native one before is kept no longer.
    later = take_due_savepoints(open_savepoint_job(str(file)), now=datetime.now(UTC) + timedelta(days=32))
    kept = {*(each.path for each in later), formats["CANONICAL"]}
    assert {each.path for each in read_pins(resolve(str(root)))} == {each.rpartition("/")[2] for each in kept}


def find_failed(cluster: RestCluster, job_id: str) -> Checkpoint | None:
    failed = (each for each in cluster.read_checkpoints(job_id).history if each.status is CheckpointStatus.FAILED)
    return next(failed, None)


@pytest.mark.parametrize(
    ("trouble", "options", "reason"),
    [
        ("async", (), FailureReason.CHECKPOINT_ASYNC_EXCEPTION),
        ("wait", ("execution.checkpointing.timeout=200 ms",), FailureReason.CHECKPOINT_EXPIRED),
        # An error of the synchronous part fails the task, and this the checkpoint.
        ("decline", (), FailureReason.CHECKPOINT_COORDINATOR_SUSPEND),
    ],
)
def test_a_failed_checkpoint_has_its_reason(
    running: RunningCluster,
    cluster: RestCluster,
    jar: Path,
    trouble: str,
    options: tuple[str, ...],
    reason: FailureReason,
) -> None:
    settings = ("execution.checkpointing.interval=200 ms", "execution.checkpointing.tolerable-failed-checkpoints=1000")
    job_id = cluster.start(submit(jar, trouble, *settings, *options))
    await_running(cluster, job_id)
    with running.trouble(trouble):
        failed = until(lambda: find_failed(cluster, job_id))
        assert find_failure_reason(failed.failure) is reason
        # Flink lists the last ten checkpoints: that one may be gone, and another one has failed since.
        report = until(lambda: found if (found := status(cluster, job_id)).failed else None)
        explained = report.failed[0]
        assert (explained.reason, bool(explained.cause), bool(explained.remedy)) == (reason.name, True, True)
        assert report.slowest
        assert not report.notes
        if trouble == "decline":
            failure = until(lambda: cluster.read_exceptions(job_id))[0]
            assert find_failure_reason(failure.stack) is FailureReason.CHECKPOINT_DECLINED
            assert find_root_cause(failure.stack) == "IllegalStateException: the prices cannot be written"


def test_a_checkpoint_whose_directory_cannot_be_made_has_its_reason(
    running: RunningCluster, cluster: RestCluster, jar: Path
) -> None:
    settings = ("execution.checkpointing.interval=200 ms", "execution.checkpointing.tolerable-failed-checkpoints=1000")
    job_id = cluster.start(submit(jar, "io", *settings))
    await_running(cluster, job_id)
    directory = running.directory / "checkpoints" / job_id
    until(directory.exists)
    directory.rename(directory.with_name("elsewhere"))
    directory.write_text("a file in the place of the directory")
    trigger = cluster.trigger_checkpoint(job_id)
    failed = await_checkpoint(cluster, job_id, trigger)
    directory.unlink()
    directory.with_name("elsewhere").rename(directory)
    assert explain_message(failed.failure)[0] == FailureReason.IO_EXCEPTION.name


def test_metadata_that_cannot_be_written_has_its_reason(
    running: RunningCluster, cluster: RestCluster, jar: Path
) -> None:
    job_id = cluster.start(submit(jar, "finalize", "execution.checkpointing.tolerable-failed-checkpoints=1000"))
    await_running(cluster, job_id)
    with running.trouble("wait"):
        trigger = cluster.trigger_checkpoint(job_id)
        root = running.directory / "checkpoints" / job_id
        taken = until(lambda: next(root.glob("chk-*"), None))
        (taken / "_metadata" / "not empty").mkdir(parents=True)
    # The trigger has the exception alone; the statistics have the reason (`CheckpointCoordinator`).
    assert await_checkpoint(cluster, job_id, trigger).status is TriggerStatus.FAILED
    explained = until(lambda: {each.reason: each for each in status(cluster, job_id).failed})
    assert "`_metadata`" in explained[FailureReason.FINALIZE_CHECKPOINT_FAILURE.name].cause


def test_too_many_requests_for_checkpoints_have_their_reason(
    running: RunningCluster, cluster: RestCluster, jar: Path
) -> None:
    job_id = cluster.start(submit(jar, "queued"))
    await_running(cluster, job_id)
    with running.trouble("wait"):
        triggers = [cluster.trigger_checkpoint(job_id) for _ in range(1010)]
        failed = await_checkpoint(cluster, job_id, triggers[-1])
    assert explain_message(failed.failure)[0] == FailureReason.TOO_MANY_CHECKPOINT_REQUESTS.name


def test_a_task_that_fails_is_seen(running: RunningCluster, cluster: RestCluster, jar: Path) -> None:
    job_id = cluster.start(submit(jar, "failing", "execution.checkpointing.interval=50 ms"))
    await_running(cluster, job_id)
    with running.trouble("fail"):
        failures = until(lambda: cluster.read_exceptions(job_id))
    assert "IllegalArgumentException" in failures[0].exception
    assert "no price of order" in failures[0].stack
    assert failures[0].task.startswith("counts")
    assert until(lambda: cluster.read_load(job_id).restarts)


def test_an_unknown_job_is_not_found(cluster: RestCluster) -> None:
    with pytest.raises(NotFoundError):
        cluster.read_status("f" * 32)


def test_a_savepoint_that_is_not_there_starts_no_job(cluster: RestCluster, jar: Path) -> None:
    submission = submit(jar, "lost", savepoint="file:///nowhere/savepoint-1")
    with pytest.raises(ClusterError, match="Cannot find checkpoint or savepoint") as caught:
        cluster.start(submission)
    assert "does not reach file:///nowhere/savepoint-1" in caught.value.hint
    assert all(each.status is JobStatus.FAILED for each in cluster.list_jobs() if each.name == "lost")


def test_a_jar_without_a_program_is_refused(running: RunningCluster, cluster: RestCluster, jar: Path) -> None:
    with pytest.raises(ClusterError, match=r"ClassNotFoundException: clusters\.Nothing") as caught:
        cluster.start(Submission(str(jar), entry_class="clusters.Nothing"))
    assert "main class" in caught.value.hint
    text = running.directory / "text.jar"
    text.write_text("not a jar")
    with pytest.raises(ClusterError, match="ZipException"):
        cluster.start(Submission(str(text)))
