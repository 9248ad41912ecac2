from __future__ import annotations

import json
import shlex
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import state_pipelines as sp
from state_pipelines.checkpoints.coordinator import FailureReason
from state_pipelines.cli.commands import CommandGroup
from state_pipelines.errors import NotFoundError, UsageError
from state_pipelines.flink.checkpoint_failures import explain_message
from state_pipelines.flink.health import JOB_RUNS, HealthLimits, Level, StateGrowth
from state_pipelines.flink.status import JobReport, compare_operators
from tests.clusters.recorded_job import EXPIRED, JOB, NOW, SUSPENDED, arrange, complete, describe_job, fail, fail_job
from tests.clusters.servers import Server, serving
from tests.flink.harness import ORDERS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


def watch(server: Server) -> JobReport:
    return sp.status(server.url, now=NOW)


@pytest.mark.slow
def test_a_job_that_is_well_has_numbers_and_no_errors(server: Server) -> None:
    arrange(server, complete(3, 10), complete(2, 1810), complete(1, 3610))
    report = watch(server)
    assert report.is_healthy
    assert report.newest is not None
    assert report.newest.id == 3
    assert str(report.newest_age) == "0:00:10"
    assert (report.durations.last_ms, report.durations.median_ms, report.durations.longest_ms) == (300, 200, 300)
    assert report.restored_path == "file:/savepoints/s-7"
    assert [(each.task, each.index, each.duration_ms) for each in report.slowest] == [
        *(("counts", 1, 140), ("counts", 0, 70), ("numbers", 1, 20), ("numbers", 0, 10)),
    ]
    growth = {each.name: each for each in report.growth}
    assert growth["counts"].bytes_per_hour == 1000
    assert growth["counts"].predict_hours(4500) == 3
    assert growth["numbers"].predict_hours(10**9) is None
    assert report.load is not None
    assert (report.load.restarts, report.load.pending_records) == (3, 12)
    assert {each.what.split(";")[0].split(",")[0] for each in report.findings} == {
        "the job has restarted 3 times",
        "backpressure in numbers",
    }
    assert not report.notes


@pytest.mark.slow
def test_failed_checkpoints_have_reason_cause_and_remedy(server: Server) -> None:
    stack = "java.io.IOException: outer\n\tat a.b(C.java:1)\nCaused by: java.lang.IllegalStateException: no price\n"
    history = (fail(4, 5, EXPIRED), fail(3, 20, SUSPENDED), complete(2, 30))
    arrange(server, *history, failures=(fail_job(21, stack), fail_job(400, stack)))
    report = watch(server)
    assert not report.is_healthy
    first, second = report.failed
    assert (first.reason, first.message, first.job_failure) == ("CHECKPOINT_EXPIRED", EXPIRED, "")
    assert "execution.checkpointing.timeout" in first.cause
    assert (second.reason, second.job_failure) == ("CHECKPOINT_COORDINATOR_SUSPEND", "IllegalStateException: no price")
    assert (first.acknowledged, first.subtasks) == (3, 4)
    # A subtask that has not acknowledged is the slowest.
    assert (report.slowest[0].task, report.slowest[0].index, report.slowest[0].is_completed) == ("counts", 1, False)
    assert [(each.cause, each.number) for each in report.failures] == [("IllegalStateException: no price", 2)]
    assert report.findings[0].level is Level.ERROR
    assert report.findings[0].what == f"the last 2 checkpoints have failed: {EXPIRED}"


@pytest.mark.slow
def test_an_old_checkpoint_is_an_error(server: Server) -> None:
    arrange(server, complete(1, 40))
    assert [each.what for each in watch(server).findings if each.level is Level.ERROR] == [
        "the newest checkpoint is 40.0 s old, with an interval of 10.0 s"
    ]
    arrange(server)
    assert "no checkpoint was completed in 2:00:00" in watch(server).findings[0].what


@pytest.mark.slow
def test_the_newest_checkpoint_may_have_left_the_history(server: Server) -> None:
    arrange(server, fail(9, 5, EXPIRED), fail(8, 15, EXPIRED))
    statistics = f"GET /jobs/{JOB}/checkpoints"
    (content,) = server.answers[statistics]
    server.on(statistics, {**content, "latest": {"completed": complete(7, 50)}})
    report = watch(server)
    assert report.newest is not None
    assert report.newest.id == 7
    assert any(each.what.startswith("the newest checkpoint is 50.0 s old") for each in report.findings)


@pytest.mark.slow
def test_growth_is_measured_from_the_oldest_checkpoint_that_is_left(server: Server) -> None:
    arrange(server, complete(3, 10), complete(2, 1810), complete(1, 3610))
    server.on(f"GET /jobs/{JOB}/checkpoints/details/1", (404, {"errors": ["Could not find checkpoint"]}))
    assert {each.hours for each in watch(server).growth} == {0.5}


@pytest.mark.slow
def test_state_that_does_not_fit_is_recognised(server: Server) -> None:
    misfit = (
        "x\nCaused by: org.apache.flink.util.StateMigrationException: The new state serializer must not be incompatible"
    )
    gone = (
        "java.lang.Exception: Could not restore keyed state backend for X\nCaused by: java.io.FileNotFoundException: f"
    )
    arrange(server, job="RESTARTING", failures=(fail_job(1, misfit), fail_job(2, gone)))
    found = [each for each in watch(server).findings if each.level is Level.ERROR]
    assert [each.what.split(":")[0] for each in found[:3]] == [
        "the job is RESTARTING, not running",
        "its state does not fit its program",
        "its state cannot be restored",
    ]
    assert found[1].command == "state-pipelines check file:/savepoints/s-7 --jar NEW.jar --draft DIR"
    assert found[2].command == "state-pipelines verify file:/savepoints/s-7"
    assert [each.passed for each in watch(server).checks if each.name == JOB_RUNS] == [False]
    # A checkpoint after the failure shows that it is over.
    arrange(server, complete(1, 1), failures=(fail_job(5, misfit),))
    assert watch(server).is_healthy


@pytest.mark.slow
def test_with_revisions_the_migration_is_proposed(server: Server, tmp_path: Path) -> None:
    misfit = "x\nCaused by: org.apache.flink.util.StateMigrationException: The new key serializer must be compatible"
    arrange(server, complete(4, 60), job="RESTARTING", failures=(fail_job(1, misfit),))
    path = tmp_path / "orders.yaml"
    path.write_text(f"name: orders\ncluster: {{rest: {server.url}}}\nmigrations: revisions\n")
    (command,) = [each.command for each in sp.status(str(path), now=NOW).findings if each.command]
    # The newest checkpoint, from which the job restarts.
    revisions = tmp_path / "revisions"
    assert command == f"state-pipelines migrate file:/checkpoints/chk-4 --migrations {revisions} --out MIGRATED"
    assert command in invoke(str(path))[1]


@pytest.mark.slow
def test_the_command_that_mends_reaches_the_snapshot_from_here(server: Server, tmp_path: Path) -> None:
    misfit = "x\nCaused by: org.apache.flink.util.StateMigrationException: The new key serializer must be compatible"
    gone = "Could not restore keyed state backend for X\nCaused by: java.io.FileNotFoundException: f"
    (savepoint,) = (ORDERS / "savepoints" / "flink-2.2").glob("savepoint-*")
    shutil.copytree(savepoint, tmp_path / "here" / "chk-4")
    arrange(server, complete(4, 60), job="RESTARTING", failures=(fail_job(1, misfit), fail_job(2, gone)))
    path = tmp_path / "orders.json"
    mapped = f"file:/checkpoints={tmp_path / 'here'}"
    path.write_text(json.dumps({"name": "orders", "cluster": {"rest": server.url}, "path_mapping": [mapped]}))
    described = [each.command for each in sp.status(str(path), now=NOW).findings if each.command]
    assert described[0] == f"state-pipelines check {tmp_path / 'here/chk-4'} --jar NEW.jar --draft DIR --map {mapped}"
    path.write_text(json.dumps({"name": "orders", "cluster": {"rest": server.url}}))
    code, output = invoke(str(path), "--map", mapped, "--json")
    found = [each["command"] for each in json.loads(output)["findings"] if each["command"]]
    assert (code, found) == (1, described)
    # It runs as it is printed.
    (verify,) = [shlex.split(each)[1:] for each in found if " verify " in each]
    assert verify[1:] == [str(tmp_path / "here" / "chk-4"), "--map", mapped]
    assert CliRunner().invoke(CommandGroup("state-pipelines"), verify).exit_code == 0


@pytest.mark.slow
def test_the_limits_of_a_job_are_checked(server: Server, tmp_path: Path) -> None:
    history = (complete(4, 1), fail(3, 1800, EXPIRED), complete(2, 3601), complete(1, 7201))
    arrange(server, *history, interval=1000)

    def check(**thresholds: object) -> dict[str, tuple[bool | None, float | None]]:
        path = tmp_path / "orders.json"
        job = {"name": "orders", "cluster": {"rest": server.url}, "thresholds": thresholds}
        path.write_text(json.dumps(job))
        return {each.name: (each.passed, each.observed) for each in sp.status(str(path), now=NOW).checks}

    found = check()
    assert found == {
        "job_runs": (True, 0),
        "recent_checkpoint": (True, 1 / 60),
        "checkpoints_succeed": (False, 0.25),
        "checkpoints_are_fast": (True, 0.2),
    }
    strict = {
        "max_minutes_without_checkpoint": 0.01,
        "max_failed_checkpoints": 0.5,
        "max_checkpoint_share": 0.1,
        "max_hours_without_savepoint": 1,
        "max_state_size": "5kb",
        "max_imbalance": 3,
    }
    found = check(**strict)
    assert found == {
        "job_runs": (True, 0),
        "recent_checkpoint": (False, 1 / 60),
        "checkpoints_succeed": (True, 0.25),
        "checkpoints_are_fast": (False, 0.2),
        # No savepoint in the two hours since the job started.
        "recent_savepoint": (False, 2),
        # 4,000 bytes, and 1,500 more each hour.
        "state_has_room": (False, 4000),
    }
    assert check(max_state_size="5kb", hours_to_max_state_size=0.5)["state_has_room"][0] is True
    assert check(max_state_size=4000)["state_has_room"][0] is False
    server.on(f"GET /jobs/{JOB}/checkpoints", {**statistics(server), "latest": {"savepoint": complete(2, 1800)}})
    assert check(max_hours_without_savepoint=1)["recent_savepoint"] == (True, 0.5)
    report = sp.status(server.url, limits=HealthLimits(max_hours_without_savepoint=0.25), savepoint=NOW, now=NOW)
    assert {each.name: each.passed for each in report.checks}["recent_savepoint"] is True
    with pytest.raises(UsageError, match="unknown limits max_age"):
        check(max_age=1)
    with pytest.raises(UsageError, match="max_checkpoint_share of `thresholds` is -1"):
        check(max_checkpoint_share=-1)


def statistics(server: Server) -> dict[str, Any]:
    (content,) = server.answers[f"GET /jobs/{JOB}/checkpoints"]
    return dict(content)


@pytest.mark.slow
def test_what_cannot_be_checked_is_not_said_to_be_well(server: Server) -> None:
    arrange(server)
    checks = {each.name: each for each in sp.status(server.url, limits=HealthLimits(max_state_size=1), now=NOW).checks}
    assert (checks["checkpoints_succeed"].passed, checks["checkpoints_are_fast"].passed) == (None, None)
    assert (checks["state_has_room"].passed, bool(checks["state_has_room"].what)) == (None, True)


@pytest.mark.slow
def test_a_job_without_checkpoints_is_a_warning(server: Server) -> None:
    arrange(server)
    server.on(f"GET /jobs/{JOB}/checkpoints/config", (404, {"errors": ["Checkpointing is not enabled"]}))
    server.on(f"GET /jobs/{JOB}/checkpoints", (404, {"errors": ["Checkpointing is not enabled"]}))
    report = watch(server)
    assert report.is_healthy
    assert any("no periodic checkpoints" in each.what for each in report.findings)
    assert report.notes == ("checkpoints: the cluster has none",)


@pytest.mark.slow
def test_what_a_cluster_does_not_answer_is_a_note(server: Server) -> None:
    arrange(server, complete(1, 1))
    server.on(f"GET /jobs/{JOB}/metrics", (500, {"errors": ["java.lang.NullPointerException: metrics"]}))
    report = watch(server)
    assert report.load is None
    assert report.notes[0].startswith("load: ")
    assert report.counts["completed"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(("job", "what"), [("FAILED", "the job is FAILED"), ("FINISHED", "the job is FINISHED")])
def test_a_job_that_has_ended_is_an_error(server: Server, job: str, what: str) -> None:
    arrange(server, complete(1, 1), job=job)
    assert [each.what for each in watch(server).findings] == [what]


@pytest.mark.slow
def test_the_job_has_to_be_named_where_several_run(server: Server) -> None:
    arrange(server)
    second = {**describe_job(), "jid": "b" * 32, "name": "payments"}
    server.on("GET /jobs/overview", {"jobs": [describe_job(), second]})
    with pytest.raises(UsageError, match="2 jobs run") as caught:
        watch(server)
    assert "payments" in caught.value.hint
    assert sp.status(server.url, "orders", now=NOW).job.id == JOB
    with pytest.raises(NotFoundError):
        sp.status(server.url, "shipments", now=NOW)


def test_every_reason_is_explained_for_flink() -> None:
    for reason in FailureReason:
        name, cause, remedy = explain_message(f"org.x.CheckpointException: {reason.message}")
        assert name == reason.name
        assert cause
        assert remedy
        assert "Spark" not in cause + remedy
        assert not cause.startswith("In Flink")
        assert "run of" not in cause
    assert explain_message("something else")[0] == ""


def test_operators_are_compared_between_two_snapshots() -> None:
    (path,) = (ORDERS / "savepoints" / "flink-2.2").glob("savepoint-*")
    snapshot = sp.open_snapshot(str(path))
    growth = compare_operators(snapshot, snapshot, 2)
    assert [each.bytes_per_hour for each in growth] == [0.0] * len(snapshot.operators)
    assert growth[0].after is not None
    assert growth[0].after > 0
    assert StateGrowth("new", None, 5, 1).bytes_per_hour is None


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(CommandGroup("state-pipelines"), ["status", *arguments])
    return result.exit_code, result.output


@pytest.mark.slow
def test_the_command_shows_it_all_and_exits_with_the_answer(server: Server, tmp_path: Path) -> None:
    arrange(server, fail(4, 5, EXPIRED), fail(3, 20, EXPIRED), complete(2, 30))
    path = tmp_path / "orders.yaml"
    path.write_text(f"name: orders\ncluster: {{rest: {server.url}}}\n")
    code, output = invoke(str(path))
    assert code == 1
    for words in (
        "orders  RUNNING",
        "the last 2 checkpoints have failed",
        "usual cause: ",
        "CHECKPOINT_EXPIRED",
        "not ack",
    ):
        assert words in output
    code, output = invoke(str(path), "--json")
    content = json.loads(output)
    assert (code, content["is_healthy"], content["failed"][0]["reason"]) == (1, False, "CHECKPOINT_EXPIRED")
    code, output = invoke(str(tmp_path / "none.yaml"))
    assert code == 2


def test_the_command_names_a_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("state_pipelines.flink.http_client.PAUSE_SECONDS", 0)
    with serving() as server:
        url = server.url
    code, output = invoke(url)
    assert code == 2
    assert "cannot be reached" in output
