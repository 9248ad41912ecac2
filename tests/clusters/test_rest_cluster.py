from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import ClusterError, NotFoundError, UnsupportedError, UsageError
from state_pipelines.flink.cluster import (
    JobStart,
    RestoreMode,
    SavepointFormat,
    SavepointRequest,
    Submission,
    TriggerStatus,
    find_job,
    wait_for_savepoint,
)
from state_pipelines.flink.http_client import HttpClient
from state_pipelines.flink.rest_cluster import RestCluster
from tests.clusters.servers import BREAK, Received, Server, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JOB, TRIGGER = "a" * 32, "b" * 32
PENDING = {"status": {"id": "IN_PROGRESS"}}
STARTED = {"jobid": JOB}
DUPLICATE = {
    "errors": ["x\nCaused by: org.apache.flink.runtime.client.DuplicateJobSubmissionException: Job has already"]
}


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def cluster(server: Server) -> RestCluster:
    return RestCluster(HttpClient(server.url, sleep=lambda seconds: None))


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    path = tmp_path / "or ders.jar"
    path.write_bytes(b"PK")
    return path


@pytest.mark.slow
def test_a_savepoint_is_asked_for_once_and_waited_for(server: Server, cluster: RestCluster) -> None:
    server.on(f"POST /jobs/{JOB}/stop", BREAK, (202, {"request-id": TRIGGER}))
    done = {"status": {"id": "COMPLETED"}, "operation": {"location": "file:/savepoints/s-1"}}
    server.on(f"GET /jobs/{JOB}/savepoints/{TRIGGER}", PENDING, PENDING, done)
    request = SavepointRequest("file:/savepoints", SavepointFormat.NATIVE, stop=True, trigger_id=TRIGGER)
    assert cluster.trigger_savepoint(JOB, request) == TRIGGER
    progress = wait_for_savepoint(cluster, JOB, TRIGGER, timeout_seconds=9, sleep=lambda seconds: None)
    assert (progress.status, progress.path) == (TriggerStatus.COMPLETED, "file:/savepoints/s-1")
    # Both have the same trigger id, so that Flink takes one savepoint.
    assert [each.content for each in server.received[:2]] == [
        {"formatType": "NATIVE", "triggerId": TRIGGER, "drain": False, "targetDirectory": "file:/savepoints"}
    ] * 2


def test_a_failed_savepoint_has_flinks_reason(server: Server, cluster: RestCluster) -> None:
    stack = (
        "java.util.concurrent.CompletionException: org.apache.flink.runtime.checkpoint.CheckpointException: Checkpoint "
    )
    failure = {"class": "x", "stack-trace": f"{stack}expired before completing.\n\tat a.B.c(B.java:1)\n"}
    failed = {"status": {"id": "COMPLETED"}, "operation": {"failure-cause": failure}}
    server.on(f"GET /jobs/{JOB}/savepoints/{TRIGGER}", failed)
    progress = cluster.poll_savepoint(JOB, TRIGGER)
    assert progress.status is TriggerStatus.FAILED
    assert progress.failure.endswith("CheckpointException: Checkpoint expired before completing.")


def test_a_failed_checkpoint_has_flinks_reason(server: Server, cluster: RestCluster) -> None:
    failure = {"class": "x", "stack-trace": "x.CheckpointException: Checkpoint was declined.\n\tat a.B.c(B.java:1)\n"}
    failed = {"status": {"id": "COMPLETED"}, "operation": {"checkpointId": None, "failureCause": failure}}
    server.on(f"GET /jobs/{JOB}/checkpoints/{TRIGGER}", failed)
    progress = cluster.poll_checkpoint(JOB, TRIGGER)
    assert (progress.status, progress.checkpoint_id) == (TriggerStatus.FAILED, None)
    assert progress.failure == "x.CheckpointException: Checkpoint was declined."


def test_a_trigger_that_a_new_leader_does_not_know_is_not_found(server: Server, cluster: RestCluster) -> None:
    server.on(f"POST /jobs/{JOB}/savepoints", (202, {"request-id": TRIGGER}))
    server.on(f"GET /jobs/{JOB}/savepoints/{TRIGGER}", (404, {"errors": ["Could not find operation for trigger id"]}))
    trigger = cluster.trigger_savepoint(JOB, SavepointRequest(trigger_id=TRIGGER))
    with pytest.raises(NotFoundError) as caught:
        cluster.poll_savepoint(JOB, trigger)
    assert "leader has changed" in caught.value.hint


def test_a_savepoint_that_takes_too_long_goes_on(server: Server, cluster: RestCluster) -> None:
    server.on(f"GET /jobs/{JOB}/savepoints/{TRIGGER}", PENDING)
    times = iter(range(100))
    with pytest.raises(ClusterError, match="not completed after 3 s") as caught:
        wait_for_savepoint(
            cluster, JOB, TRIGGER, timeout_seconds=3, sleep=lambda seconds: None, clock=lambda: float(next(times))
        )
    assert TRIGGER in caught.value.hint


@pytest.mark.slow
def test_a_start_says_everything(server: Server, cluster: RestCluster, jar: Path) -> None:
    server.on(f"GET /jobs/{JOB}/status", (404, {"errors": ["none"]}))
    server.on("GET /jars", {"files": []})
    server.on("POST /jars/upload", {"filename": "/flink-web/upload/uuid_or-ders.jar"})
    server.on("POST /jars/uuid_or-ders.jar/run", STARTED)
    submission = Submission(
        jar=str(jar),
        entry_class="com.acme.Orders",
        arguments=("--topic", "or ders"),
        parallelism=4,
        savepoint="s3://bucket/savepoint-1",
        allow_non_restored_state=True,
        claim_mode=RestoreMode.CLAIM,
        job_id=JOB,
        configuration={"pipeline.max-parallelism": "256"},
    )
    assert cluster.start(submission) == JOB
    assert server.received[-1].content == {
        "jobId": JOB,
        "programArgsList": ["--topic", "or ders"],
        "entryClass": "com.acme.Orders",
        "parallelism": 4,
        "savepointPath": "s3://bucket/savepoint-1",
        "claimMode": "CLAIM",
        "allowNonRestoredState": True,
        "flinkConfiguration": {"pipeline.max-parallelism": "256"},
    }


@pytest.mark.slow
def test_a_jar_that_is_there_is_not_uploaded_again(server: Server, cluster: RestCluster, jar: Path) -> None:
    uploads: list[str] = []

    def answer(received: Received) -> Any:
        if received.path == "/jars/upload":
            uploads.append(received.body.split(b'filename="')[1].split(b'"')[0].decode())
            return {"filename": f"/flink-web/uuid_{uploads[-1]}"}
        if received.path == "/jars":
            return {"files": [{"id": f"uuid_{name}", "name": name, "entry": []} for name in uploads]}
        return STARTED

    server.answer = answer
    for _ in range(2):
        cluster.start(Submission(jar=str(jar)))
    jar.write_bytes(b"PK other")
    cluster.start(Submission(jar=str(jar)))
    assert len(uploads) == 2
    assert all(name.startswith("or-ders-") for name in uploads)


@pytest.mark.parametrize("answers", [[(400, DUPLICATE)], [BREAK, (500, DUPLICATE)], [BREAK, BREAK, BREAK, BREAK]])
def test_a_start_whose_answer_is_lost_starts_no_second_job(
    server: Server, cluster: RestCluster, jar: Path, answers: list[Any]
) -> None:
    server.on("GET /jars", {"files": []})
    server.on("POST /jars/upload", {"filename": "j.jar"})
    server.on("POST /jars/j.jar/run", *answers)
    server.on(f"GET /jobs/{JOB}/status", (404, {}), {"status": "RUNNING"})
    assert cluster.start(Submission(jar=str(jar), job_id=JOB)) == JOB
    assert {each.content["jobId"] for each in server.received if each.path.endswith("/run")} == {JOB}


def test_a_start_that_never_arrived_stays_in_doubt_no_longer(server: Server, cluster: RestCluster, jar: Path) -> None:
    server.on("GET /jars", {"files": []})
    server.on("POST /jars/upload", {"filename": "j.jar"})
    server.on("POST /jars/j.jar/run", BREAK)
    server.on(f"GET /jobs/{JOB}/status", (404, {}))
    with pytest.raises(ClusterError) as caught:
        cluster.start(Submission(jar=str(jar), job_id=JOB))
    assert caught.value.is_in_doubt


def test_missing_slots_are_said(server: Server, cluster: RestCluster, jar: Path) -> None:
    words = "NoResourceAvailableException: Could not acquire the minimum required resources."
    server.on("GET /jars", {"files": []})
    server.on("POST /jars/upload", {"filename": "j.jar"})
    server.on("POST /jars/j.jar/run", (500, {"errors": [f"org.apache.flink.runtime.jobmanager.scheduler.{words}"]}))
    with pytest.raises(ClusterError, match="minimum required resources") as caught:
        cluster.start(Submission(jar=str(jar)))
    assert "slots" in caught.value.hint


def test_a_cluster_that_takes_no_jars_says_so(server: Server, cluster: RestCluster, jar: Path) -> None:
    server.on("GET /jars", (404, {"errors": ["Unable to load requested file /jars."]}))
    with pytest.raises(UnsupportedError, match="takes no jars"):
        cluster.start(Submission(jar=str(jar)))
    with pytest.raises(UnsupportedError, match="runs jars only"):
        cluster.start(Submission(plan="plan.json"))
    with pytest.raises(UsageError, match="cannot be read"):
        cluster.start(Submission(jar="none.jar"))


@pytest.mark.slow
def test_a_job_that_has_ended_is_cancelled_without_an_error(server: Server, cluster: RestCluster) -> None:
    server.on(f"PATCH /jobs/{JOB}", (409, {"errors": ["already reached another terminal state"]}))
    server.on(f"GET /jobs/{JOB}/status", {"status": "CANCELED"}, {"status": "RUNNING"})
    cluster.cancel(JOB)
    with pytest.raises(ClusterError, match="does not cancel"):
        cluster.cancel(JOB)


def list_job(name: str, status: str, number: int) -> dict[str, Any]:
    return {"jid": str(number) * 32, "name": name, "state": status, "start-time": number, "end-time": -1}


@pytest.mark.slow
def test_a_job_is_found_by_its_name_or_id(server: Server, cluster: RestCluster) -> None:
    jobs = [
        list_job("orders", "CANCELED", 1),
        list_job("orders", "RUNNING", 2),
        list_job("orders", "FAILED", 3),
        list_job("twice", "RUNNING", 4),
        list_job("twice", "RESTARTING", 5),
        list_job("ended", "FAILED", 6),
        list_job("ended", "FINISHED", 7),
    ]
    server.on("GET /jobs/overview", {"jobs": jobs})
    assert [find_job(cluster, name).id[0] for name in ("orders", "1" * 32, "ended")] == ["2", "1", "7"]
    with pytest.raises(UsageError, match="2 jobs named twice"):
        find_job(cluster, "twice")
    with pytest.raises(NotFoundError, match="no job payments") as caught:
        find_job(cluster, "payments")
    assert "orders" in caught.value.hint


@pytest.mark.parametrize("answer", [{}, [], {"jobs": {}}, {"jobs": [{}]}, {"jobs": [list_job("a", "DANCING", 1)]}])
def test_answers_of_another_service_are_errors(server: Server, cluster: RestCluster, answer: Any) -> None:
    server.on("GET /jobs/overview", answer)
    with pytest.raises(ClusterError):
        cluster.list_jobs()


def test_ids_are_no_paths(server: Server, cluster: RestCluster) -> None:
    for name in ("../jars", "", "a" * 31):
        with pytest.raises(UsageError, match="not a job id"):
            cluster.cancel(name)
    assert not server.received


def test_secrets_of_the_configuration_are_hidden(server: Server, cluster: RestCluster) -> None:
    server.on("GET /overview", {"flink-version": "2.2.1", "slots-total": 4, "slots-available": 1, "taskmanagers": 2})
    server.on("GET /config", {"features": {"web-submit": True}})
    server.on(
        "GET /jobmanager/config",
        [{"key": "s3.secret-key", "value": "x1y2"}, {"key": "parallelism.default", "value": "2"}],
    )
    overview = cluster.describe()
    assert (overview.version, overview.slots_total, overview.slots_available, overview.can_submit) == (
        "2.2.1",
        4,
        1,
        True,
    )
    assert overview.configuration == {"s3.secret-key": "******", "parallelism.default": "2"}


def test_the_adaptive_scheduler_is_asked_for_another_parallelism(server: Server, cluster: RestCluster) -> None:
    bounds = {"v": {"parallelism": {"lowerBound": 1, "upperBound": 4}}}
    server.on(f"GET /jobs/{JOB}/resource-requirements", bounds)
    server.on(f"PUT /jobs/{JOB}/resource-requirements", {})
    assert cluster.read_parallelism(JOB) == {"v": (1, 4)}
    cluster.change_parallelism(JOB, {"v": (1, 8)})
    assert server.received[-1].content == {"v": {"parallelism": {"lowerBound": 1, "upperBound": 8}}}


@pytest.mark.slow
def test_a_start_is_timed_by_its_subtasks(server: Server, cluster: RestCluster) -> None:
    task = {"name": "x", "parallelism": 2, "maxParallelism": 128, "status": "RUNNING"}
    server.on(f"GET /jobs/{JOB}", {"vertices": [{"id": "v1", **task}, {"id": "v2", **task}]})

    def time(scheduled: int, initializing: int, running: int) -> dict[str, Any]:
        return {"timestamps": {"SCHEDULED": scheduled, "INITIALIZING": initializing, "RUNNING": running, "FAILED": 0}}

    server.on(
        f"GET /jobs/{JOB}/vertices/v1/subtasktimes", {"subtasks": [time(1000, 1300, 1350), time(1001, 1300, 1360)]}
    )
    path = f"GET /jobs/{JOB}/vertices/v2/subtasktimes"
    server.on(path, {"subtasks": [time(1002, 1400, 9000), time(1002, 1400, 7000)]})
    # From the first schedule to the last subtask that runs; the longest restore.
    assert cluster.read_start(JOB) == JobStart(8.0, 7.6, 2)
    server.on(path, {"subtasks": [time(1002, 1400, 0), time(1002, 1400, 7000)]})
    assert cluster.read_start(JOB) is None
