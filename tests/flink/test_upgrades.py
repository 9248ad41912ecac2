"""Upgrades of a job that runs on a session cluster of real Flink: forward, back, refused, killed and continued."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from state_pipelines.flink.cluster import (
    JobStatus,
    SavepointRequest,
    Submission,
    wait_for_savepoint,
)
from state_pipelines.flink.connections import connect
from state_pipelines.flink.status import status
from state_pipelines.upgrades.rehearsal import rehearse
from state_pipelines.upgrades.upgrade_reports import Result
from state_pipelines.upgrades.upgrade_request import load_upgrade_request
from state_pipelines.upgrades.upgrade_run import upgrade
from tests.flink.clusters import RunningCluster, make_jar, running_cluster
from tests.flink.harness import VERSIONS
from tests.flink.jobs import Job
from tests.flink.upgraded_jobs import (
    ARGUMENTS,
    SECONDS,
    await_checkpoint,
    describe,
    find_running,
    require_complete_output,
    stop_job,
    upgrade_in_killed_processes,
    wait_for_status,
    write_programs,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from state_pipelines.flink.cluster import FlinkCluster
    from state_pipelines.upgrades.upgrade_reports import UpgradeReport

pytestmark = pytest.mark.flink

KILLED = ("after stop", "after start broken.jar", "before start v1.jar")


class Killed(BaseException):
    """The process was killed."""


@pytest.fixture(scope="module", params=VERSIONS)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(request.param, tmp_path_factory.mktemp("cluster")) as cluster:
        write_programs(cluster)
        yield cluster


def find_proposal(cluster: FlinkCluster, job: str) -> str:
    """The command that mends a job in a restart loop, once its failure is known."""
    deadline = time.monotonic() + SECONDS
    while not (commands := [each.command for each in status(cluster, job).findings if each.command]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return commands[0]


def kill_at(step: str, job: str) -> None:
    """Run an upgrade, and kill it as soon as a step begins."""

    def kill(text: str) -> None:
        if text.startswith(step):
            raise Killed(text)

    with pytest.raises(Killed):
        upgrade(job, report=kill)


def expect(report: UpgradeReport, result: Result) -> None:
    assert report.result is result, "\n".join(report.list_lines())


def test_a_job_goes_from_program_to_program_without_a_gap_or_a_double(
    running: RunningCluster, spark: SparkSession
) -> None:
    cluster = connect({"rest": running.url})
    jar = {name: {"jar": str(running.directory / f"{name}.jar")} for name in ("v1", "v2", "broken")}
    one_task = {**jar["v1"], "parallelism": 1}
    migrations = {"migrations": str(running.directory / "migrations")}
    cluster.start(Submission(jar["v1"]["jar"], arguments=ARGUMENTS, parallelism=2))
    first = find_running(cluster)
    await_checkpoint(cluster, first)

    # Compatible: the same program with another parallelism.
    report = upgrade(describe(running, jar["v1"], one_task))
    expect(report, Result.UPGRADED)
    second = find_running(cluster)
    assert second != first
    assert second in report.headline
    assert cluster.read_status(first) is JobStatus.FINISHED
    # The cluster has timed the start, which predicts the next one.
    timed = cluster.read_start(second)
    assert timed is not None
    assert timed.seconds > timed.restore_seconds > 0
    assert timed.parallelism == 1

    # Incompatible: nothing is stopped.
    expect(upgrade(describe(running, one_task, jar["v2"])), Result.REFUSED)
    assert find_running(cluster) == second
    assert cluster.read_status(second) is JobStatus.RUNNING

    # Started by hand all the same, in another job: a restart loop, which is recognised.
    cluster.trigger_savepoint(second, SavepointRequest((running.directory / "kept").as_uri(), trigger_id="3" * 32))
    kept = wait_for_savepoint(cluster, second, "3" * 32, timeout_seconds=SECONDS).path
    arguments = (ARGUMENTS[0], "misfit", *ARGUMENTS[2:])
    misfit = cluster.start(Submission(jar["v2"]["jar"], arguments=arguments, parallelism=1, savepoint=kept))
    assert find_proposal(cluster, misfit) == f"state-pipelines check {kept} --jar NEW.jar --draft DIR"
    cluster.cancel(misfit)
    wait_for_status(cluster, misfit, lambda status: status.is_terminal)

    # A program that fails: back, by processes that are killed (`test_killed_upgrades`: each at another step).
    before = {each.id for each in cluster.list_jobs()}
    broken = describe(running, one_task, {**jar["broken"], "parallelism": 1})
    report_of_last, killed = upgrade_in_killed_processes(running, cluster, broken, *KILLED)
    assert killed == list(KILLED)
    assert report_of_last["result"] == Result.WENT_BACK, report_of_last
    third = find_running(cluster)
    assert third in report_of_last["headline"]
    assert "the new program cannot add" in report_of_last["lines"][0]
    # The new program and the old one were started once each.
    assert len({each.id for each in cluster.list_jobs()} - before) == 2

    # Migrated, and killed before each step.
    job = describe(running, one_task, jar["v2"], **migrations)
    rehearsed = rehearse(job)
    assert rehearsed.ok
    assert find_running(cluster) == third
    for step in ("check", "change", "start", "watch"):
        kill_at(step, job)
    report = upgrade(job)
    expect(report, Result.UPGRADED)
    fourth = find_running(cluster)
    assert [each.id for each in cluster.list_jobs()].count(fourth) == 1

    # Other key groups.
    wider = {**jar["v2"], "max_parallelism": 256, "arguments": [*ARGUMENTS, "pipeline.max-parallelism=256"]}
    report = upgrade(describe(running, jar["v2"], wider))
    expect(report, Result.UPGRADED)
    last = find_running(cluster)
    assert {each.max_parallelism for each in cluster.read_job(last).vertices} == {256}

    require_complete_output(running, stop_job(running, cluster, last))


@pytest.mark.slow
def test_a_job_moves_to_a_cluster_of_the_next_major_release(tmp_path: Path) -> None:
    folders = ("tests/flink/java/upgrading/v1", "tests/flink/java/upgrading/job")
    job = Job("upgrading.UpgradedJob", folders)
    with (
        running_cluster(VERSIONS[0], tmp_path / "old") as old,
        running_cluster(VERSIONS[1], tmp_path / "new") as new,
    ):
        jars = [make_jar(each.version, each.directory / "job.jar", job) for each in (old, new)]
        clusters = [connect({"rest": each.url}) for each in (old, new)]
        clusters[0].start(Submission(str(jars[0]), arguments=ARGUMENTS, parallelism=2))
        await_checkpoint(clusters[0], find_running(clusters[0]))
        request = load_upgrade_request(
            describe(old, {"jar": str(jars[0])}, {"jar": str(jars[1])}, target_release=new.version.rpartition(".")[0])
        )
        settings = request.settings.model_copy(update={"cluster": {"rest": new.url}})
        expect(upgrade(request.model_copy(update={"settings": settings})), Result.UPGRADED)
        assert not [each for each in clusters[0].list_jobs() if not each.status.is_terminal]
        started = find_running(clusters[1])
        assert "/savepoints/upgrade-" in clusters[1].read_checkpoints(started).restored_path
