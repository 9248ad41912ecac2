"""The commands `upgrade` and `status` at an endpoint that is slow, changes its leader, or is replaced by a proxy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from state_pipelines.cli import running_jobs as upgrade_command
from state_pipelines.cli.commands import CommandGroup
from state_pipelines.flink.cluster import JobStatus
from state_pipelines.upgrades.upgrade_run import upgrade
from tests.clusters.servers import WAIT, serving
from tests.upgrades.conftest import describe
from tests.upgrades.memory_cluster import MemoryCluster
from tests.upgrades.rest_flink import RestFlink

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

OLD = "a" * 32
PROXY = b"<html><head><title>Sign in</title></head></html>"
ELECTION = (503, {"errors": ["Service temporarily unavailable due to an ongoing leader election. Please refresh."]})


@dataclass(frozen=True)
class Disturbed:
    """A job at a cluster that is disturbed."""

    flink: RestFlink
    file: str

    @property
    def cluster(self) -> MemoryCluster:
        return self.flink.cluster

    @property
    def programs(self) -> list[str]:
        return [each.program for each in self.cluster.running]

    def disturb(self, request: str, answer: Any, *, times: int | None = None, has_effect: bool = False) -> None:
        self.flink.disturbances.append((request, times, answer, has_effect))

    def run(self, command: str, *options: str) -> tuple[int, str]:
        """Exit code, and what is printed."""
        result = CliRunner().invoke(CommandGroup("state-pipelines"), [command, self.file, *options])
        return result.exit_code, result.output


@pytest.fixture
def disturbed(tmp_path: Path, snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disturbed]:
    cluster = MemoryCluster(snapshot)
    monkeypatch.setattr("state_pipelines.flink.http_client.PAUSE_SECONDS", 0)
    monkeypatch.setattr(upgrade_command, "upgrade", partial(upgrade, sleep=cluster.sleep, clock=cluster.clock))
    with serving() as server:
        flink = RestFlink(cluster)
        server.answer = flink.answer
        request = describe(tmp_path)
        file = tmp_path / "JOB.yaml"
        file.write_text(file.read_text().replace("http://127.0.0.1:1", server.url))
        yield Disturbed(flink, request.file)


@pytest.fixture
def impatient(disturbed: Disturbed) -> Disturbed:
    """The same with a short time-out, for answers that do not come."""
    file = Path(disturbed.file)
    file.write_text(file.read_text().replace('cluster: {rest: "', 'cluster: {read_seconds: 0.5, rest: "'))
    return disturbed


def test_an_undisturbed_job_is_upgraded(disturbed: Disturbed) -> None:
    code, output = disturbed.run("upgrade")
    assert (code, disturbed.programs) == (0, ["new.jar"]), output
    assert disturbed.run("status", "--job", disturbed.cluster.running[0].id)[0] == 0


def test_a_slow_endpoint_stops_nothing_before_it_has_answered(
    impatient: Disturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("state_pipelines.flink.http_client.ATTEMPTS", 1)
    for command, request in (("upgrade", "GET /overview"), ("status", "GET /jobs/overview")):
        impatient.disturb(request, WAIT)
        code, output = impatient.run(command)
        assert (code, impatient.programs) == (2, ["old.jar"])
        assert "is slow: no complete answer within 0.5 s" in output
        assert "Raise read_seconds" in output
        assert not impatient.cluster.stopped


def test_a_slow_answer_to_the_savepoint_is_asked_for_again(impatient: Disturbed) -> None:
    impatient.disturb("POST /jobs/a+/stop", WAIT, times=1, has_effect=True)
    code, output = impatient.run("upgrade")
    assert (code, impatient.programs) == (0, ["new.jar"]), output
    assert impatient.cluster.stopped == [OLD]


def test_a_new_leader_has_forgotten_the_savepoint_that_was_taken(disturbed: Disturbed) -> None:
    forgotten = (404, {"errors": ["There is no savepoint operation"]})

    def elect() -> None:
        disturbed.disturb("GET /jobs/a+/", ELECTION, times=6)
        disturbed.disturb("GET /jobs/a+/savepoints/", forgotten)

    disturbed.disturb("GET /jobs/a+/savepoints/", forgotten, times=1)
    code, output = disturbed.run("upgrade")
    # The savepoint before anything is stopped.
    assert (code, disturbed.programs) == (2, ["old.jar"]), output
    assert "Nothing was stopped: start the command again" in output
    disturbed.flink.on_stop = elect
    code, output = disturbed.run("upgrade")
    # It is found in its directory.
    assert (code, disturbed.programs) == (0, ["new.jar"]), output
    assert disturbed.cluster.submissions[0].savepoint == disturbed.cluster.jobs[OLD].savepoints[0].path


def test_a_new_leader_that_has_recovered_the_job_runs_it(disturbed: Disturbed) -> None:
    job = disturbed.cluster.jobs[OLD]

    def recover() -> None:
        # Before the savepoint was completed; the new leader does not have the job at once.
        job.status = JobStatus.RUNNING
        disturbed.disturb("GET /jobs/a+/savepoints/", (404, {"errors": ["There is no savepoint operation"]}), times=1)
        disturbed.disturb("GET /jobs/a+/status", (404, {"errors": ["FlinkJobNotFoundException"]}), times=3)
        disturbed.flink.on_stop = lambda: None

    disturbed.flink.on_stop = recover
    code, output = disturbed.run("upgrade")
    assert (code, disturbed.programs) == (1, ["old.jar"]), output
    assert f"orders runs the old program, job {OLD}" in output
    assert "run the upgrade again" in output
    assert not disturbed.cluster.submissions
    code, output = disturbed.run("upgrade")
    assert (code, disturbed.programs) == (0, ["new.jar"]), output


def test_a_proxy_before_the_job_is_stopped_leaves_it_running(disturbed: Disturbed) -> None:
    disturbed.disturb("GET /jobs/overview", PROXY)
    code, output = disturbed.run("upgrade")
    assert (code, disturbed.programs) == (2, ["old.jar"])
    assert "answers with a web page ('Sign in') instead of JSON" in output
    assert "sign in with a header or a token" in output


def test_a_proxy_while_the_job_stops_is_said_and_the_next_command_continues(disturbed: Disturbed) -> None:
    disturbed.flink.on_stop = lambda: disturbed.disturb("GET ", PROXY)
    code, output = disturbed.run("upgrade")
    assert code == 3
    assert "it is not known what runs of orders" in output
    assert "answers with a web page ('Sign in') instead of JSON" in output
    assert f"to continue the upgrade: state-pipelines upgrade {disturbed.file}" in output
    assert not disturbed.cluster.submissions
    disturbed.flink.disturbances.clear()
    code, output = disturbed.run("upgrade")
    assert (code, disturbed.programs) == (0, ["new.jar"]), output
    assert disturbed.cluster.stopped == [OLD]


def test_a_gateway_that_loses_the_answer_to_the_submission_starts_one_job(disturbed: Disturbed) -> None:
    disturbed.disturb("POST /jars/.*/run", (502, b"<html><title>Bad Gateway</title></html>"), has_effect=True)
    code, output = disturbed.run("upgrade")
    assert (code, disturbed.programs) == (0, ["new.jar"]), output
    assert len(disturbed.cluster.submissions) == 1


def test_status_says_what_disturbs_it(disturbed: Disturbed) -> None:
    for answer, words in (
        (PROXY, ("answers with a web page ('Sign in') instead of JSON", "name the REST endpoint itself")),
        (ELECTION, ("ongoing leader election", "elects a leader", "try again in a moment")),
    ):
        disturbed.flink.disturbances = []
        disturbed.disturb("GET /jobs/overview", answer)
        code, output = disturbed.run("status")
        assert code == 2
        assert all(each in output for each in words), output
    disturbed.flink.disturbances = []
    # What fails after the job was found is a note, and hides nothing else.
    disturbed.disturb("GET /jobs/a+/checkpoints", ELECTION)
    code, output = disturbed.run("status")
    assert "orders  RUNNING" in output
    assert "checkpoints: " in output
    assert "leader election" in output
