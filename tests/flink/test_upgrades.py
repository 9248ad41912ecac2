"""Upgrades of a job that runs on a session cluster of real Flink: forward, back, refused, killed and continued."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from state_pipelines.flink.cluster import (
    JobStatus,
    SavepointRequest,
    Submission,
    wait_for_savepoint,
    wait_for_status,
)
from state_pipelines.flink.connections import connect
from state_pipelines.flink.status import status
from state_pipelines.snapshot import open_snapshot
from state_pipelines.upgrades.job_upgrade import upgrade
from state_pipelines.upgrades.rehearsal import rehearse
from state_pipelines.upgrades.upgrade_records import RecordDirectory
from state_pipelines.upgrades.upgrade_reports import Result
from state_pipelines.upgrades.upgrade_request import load_upgrade_request
from tests.flink.clusters import RunningCluster, make_jar, running_cluster
from tests.flink.harness import VERSIONS
from tests.flink.jobs import Job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from state_pipelines.flink.cluster import FlinkCluster
    from state_pipelines.upgrades.upgrade_records import UpgradeRecord
    from state_pipelines.upgrades.upgrade_reports import UpgradeReport

pytestmark = pytest.mark.flink

SECONDS = 120
STEPS = ("stop", "start broken.jar", "start v1.jar", "cancel")
UIDS = ("numbers", "pauses", "totals", "output")
ARGUMENTS = ("upgrading.UpgradedJob", "totals", "execution.checkpointing.interval=200ms")
MIGRATION = """\
revision: "0001"
operator: totals
state: total
upgrade:
  - cast: {field: sum, to: Double}
  - drop: {field: note}
  - add: {field: priority, type: Integer, expression: "0"}
downgrade:
  - drop: {field: priority}
  - add: {field: note, type: String, default: null}
  - cast: {field: sum, to: Long}
loss:
  - field: note
    reason: the upgrade drops the notes
"""


class Killed(BaseException):
    """The process was killed."""


@pytest.fixture(scope="module", params=VERSIONS)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(request.param, tmp_path_factory.mktemp("cluster")) as cluster:
        for classes in ("v1", "v2", "broken"):
            folders = (f"tests/flink/java/upgrading/{classes}", "tests/flink/java/upgrading/job")
            make_jar(request.param, cluster.directory / f"{classes}.jar", Job("upgrading.UpgradedJob", folders))
        (cluster.directory / "migrations").mkdir()
        (cluster.directory / "migrations" / "0001_double.yaml").write_text(MIGRATION)
        yield cluster


def describe(running: RunningCluster, old: dict[str, Any], new: dict[str, Any], **more: Any) -> str:
    """Write the description of the job, and return its path."""
    program = {"arguments": list(ARGUMENTS), "parallelism": 2}
    settings = {
        "savepoints": (running.directory / "savepoints").as_uri(),
        "old": {**program, **old},
        "new": {**program, **new},
        "automatic": ["compatible", "migrated", "rescaled", "repeated"],
    }
    job = {
        "name": "totals",
        "cluster": {"rest": running.url},
        "results": str(running.directory / "results"),
        "target_release": running.version.rpartition(".")[0],
        "uids": list(UIDS),
        "upgrade": settings,
        **more,
    }
    path = running.directory / "JOB.json"
    path.write_text(json.dumps(job))
    return str(path)


def find_running(cluster: FlinkCluster) -> str:
    """The id of the only job that runs."""
    (found,) = [each for each in cluster.list_jobs() if not each.status.is_terminal]
    return found.id


def await_checkpoint(cluster: FlinkCluster, job: str) -> None:
    """Wait until all tasks run, which a job that is RUNNING does not say."""
    deadline = time.monotonic() + SECONDS
    while not cluster.read_checkpoints(job).completed:
        assert time.monotonic() < deadline
        time.sleep(0.05)


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


class Killing:
    """A cluster whose caller is killed before and after each change that it asks for, once each."""

    def __init__(self, cluster: FlinkCluster, killed: set[str]) -> None:
        self._cluster = cluster
        self._killed = killed

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._cluster, name)
        if name not in ("trigger_savepoint", "start", "cancel"):
            return verb

        def call(*arguments: Any) -> Any:
            label = name
            if name == "start":
                label = f"start {Path(arguments[0].jar).name}"
            elif name == "trigger_savepoint":
                label = "stop" if arguments[1].stop else "savepoint"
            kill_once(f"before {label}", self._killed)
            answer = verb(*arguments)
            kill_once(f"after {label}", self._killed)
            return answer

        return call


def kill_once(label: str, killed: set[str]) -> None:
    if label not in killed:
        killed.add(label)
        raise Killed(label)


def upgrade_by_processes_that_are_killed(
    job: str, cluster: FlinkCluster, monkeypatch: pytest.MonkeyPatch
) -> tuple[UpgradeReport, set[str]]:
    """Start an upgrade again and again, each time killed at another step; give its report and the steps."""
    killed: set[str] = set()
    write = RecordDirectory.write

    def write_or_die(records: RecordDirectory, record: UpgradeRecord) -> None:
        write(records, record)
        if record.outcome is None:
            # After the decision, another start would be another upgrade.
            kill_once(f"after the record of {[(step, *outcome) for step, outcome in record.steps.items()]}", killed)

    killing = cast("FlinkCluster", Killing(cluster, killed))
    with monkeypatch.context() as patch:
        patch.setattr(RecordDirectory, "write", write_or_die)
        while True:
            count = len(killed)
            try:
                report = upgrade(job, clusters=(killing, killing))
            except Killed:
                assert len([each for each in cluster.list_jobs() if not each.status.is_terminal]) <= 1
                assert len(killed) == count + 1
            else:
                return report, killed


def expect(report: UpgradeReport, result: Result) -> None:
    assert report.result is result, "\n".join(report.list_lines())


def test_a_job_goes_from_program_to_program_without_a_gap_or_a_double(
    running: RunningCluster, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
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
    wait_for_status(cluster, misfit, lambda status: status.is_terminal, timeout_seconds=SECONDS)

    # A program that fails: back, by processes each of which is killed at another step.
    before = {each.id for each in cluster.list_jobs()}
    broken = describe(running, one_task, {**jar["broken"], "parallelism": 1})
    report, killed = upgrade_by_processes_that_are_killed(broken, cluster, monkeypatch)
    assert {f"{when} {what}" for when in ("before", "after") for what in STEPS} <= killed
    expect(report, Result.WENT_BACK)
    third = find_running(cluster)
    assert third in report.headline
    assert "the new program cannot add" in report.lines[0]
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

    stop = SavepointRequest((running.directory / "savepoints").as_uri(), stop=True, trigger_id="1" * 32)
    cluster.trigger_savepoint(last, stop)
    savepoint = wait_for_savepoint(cluster, last, "1" * 32, timeout_seconds=SECONDS).path
    wait_for_status(cluster, last, lambda status: status.is_terminal, timeout_seconds=SECONDS)

    files = [each for each in (running.directory / "output").iterdir() if not each.name.startswith(".")]
    numbers = [int(line) for each in files for line in each.read_text().split()]
    assert numbers
    assert max(Counter(numbers).values()) == 1
    # Each of the two splits of the source is complete up to its last number.
    for split in ([each for each in numbers if each < 1 << 62], [each for each in numbers if each >= 1 << 62]):
        assert max(split) - min(split) + 1 == len(split)
    rows = open_snapshot(savepoint, uids=UIDS).operator("totals").state("total").to_arrow().to_pylist()
    assert {row["state_key"]: row["value"]["count"] for row in rows} == Counter(each % 20 for each in numbers)


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
        settings = replace(request.settings, cluster={"rest": new.url})
        expect(upgrade(replace(request, settings=settings)), Result.UPGRADED)
        assert not [each for each in clusters[0].list_jobs() if not each.status.is_terminal]
        started = find_running(clusters[1])
        assert "/savepoints/upgrade-" in clusters[1].read_checkpoints(started).restored_path
