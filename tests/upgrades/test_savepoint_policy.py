"""Savepoints by a policy, with a cluster in memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from state_pipelines.cli.commands import CommandGroup
from state_pipelines.errors import ClusterError, UsageError
from state_pipelines.flink.cluster import Checkpoint, CheckpointStatus, JobStatus, SavepointFormat
from state_pipelines.operations.retention.own_directory import read_pins
from state_pipelines.storage import resolve
from state_pipelines.upgrades.savepoint_policy import (
    Period,
    SavepointFailedError,
    SavepointJob,
    TakenSavepoint,
    TakenStatus,
    find_newest_savepoint,
    find_recorded_savepoint,
    find_savepoint_records,
    list_due,
    open_savepoint_job,
    parse_savepoint_policy,
    take_due_savepoints,
    take_savepoint,
)
from state_pipelines.upgrades.upgrade_records import UpgradeOutcome, UpgradeRecord, find_records, hold_lease
from tests.upgrades.conftest import SNAPSHOT
from tests.upgrades.memory_cluster import Fuse, Killed, MemoryCluster

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
EXPIRED = "org.apache.flink.runtime.checkpoint.CheckpointException: Checkpoint expired before completing."


def make_job(directory: Path, cluster: MemoryCluster | None = None, **policy: object) -> SavepointJob:
    settings = {"directory": str(directory / "savepoints"), "timeout": "5s", **policy}
    return SavepointJob(
        "shop",
        cluster or MemoryCluster(SNAPSHOT),
        "orders",
        str(directory / "results"),
        parse_savepoint_policy(settings),
        (str(directory / "savepoints"),),
    )


def take(job: SavepointJob, now: datetime) -> list[TakenSavepoint]:
    assert isinstance(job.cluster, MemoryCluster)
    return list(take_due_savepoints(job, now=now, sleep=job.cluster.sleep, clock=job.cluster.clock))


def list_pinned(directory: Path) -> list[str]:
    return [each.path for each in read_pins(resolve(str(directory / "savepoints")))]


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ([], "not a mapping"),
        ({"hourly": 1}, "`savepoints` does not know 'hourly'.*It knows directory, timeout, canonical, native"),
        ({"native": "often"}, "every of native is 'often'.*Choose from hourly, daily"),
        ({"native": {"every": "daily", "kept": 1}}, "native does not know 'kept'"),
        ({"native": {"every": "daily", "keep": 0}}, "keep of native is 0, not a number from 1 on"),
        ({"timeout": "soon"}, "timeout: 'soon' is not a duration"),
        ({"directory": 1}, "directory of `savepoints`"),
    ],
)
def test_a_wrong_policy_is_refused(content: object, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        parse_savepoint_policy(content)


def test_each_format_is_due_once_in_its_period() -> None:
    policy = parse_savepoint_policy({"canonical": "monthly", "native": {"every": "daily", "keep": 2}})
    assert [(each.format, each.period, each.keep) for each in policy.rules] == [
        (SavepointFormat.CANONICAL, Period.MONTHLY, 12),
        (SavepointFormat.NATIVE, Period.DAILY, 2),
    ]
    assert len(list_due(policy, (), NOW)) == 2
    taken = TakenSavepoint(
        SavepointFormat.NATIVE, "2026-01-31", 1, "a", "b", NOW.isoformat(), TakenStatus.COMPLETED, "p"
    )
    assert [each.period for each in list_due(policy, [taken], NOW)] == [Period.MONTHLY]
    assert len(list_due(policy, [taken], NOW + timedelta(hours=12))) == 2
    assert len(list_due(policy, [replace(taken, status=TakenStatus.FAILED)], NOW)) == 2
    assert [each.name_time(NOW) for each in Period] == ["2026-01-31T12", "2026-01-31", "2026-W05", "2026-01"]


def test_due_savepoints_are_taken_once_pinned_and_unpinned_again(tmp_path: Path) -> None:
    job = make_job(tmp_path, canonical="monthly", native={"every": "daily", "keep": 2})
    first = take(job, NOW)
    assert [each.format for each in first] == [SavepointFormat.CANONICAL, SavepointFormat.NATIVE]
    assert take(job, NOW + timedelta(hours=1)) == []
    assert len(list_pinned(tmp_path)) == 2
    # Two more days, of which the first begins a month.
    days = [take(job, NOW + timedelta(days=number)) for number in (1, 2)]
    assert [len(each) for each in days] == [2, 1]
    records = find_savepoint_records(job.results, job.name).list_records()
    assert find_newest_savepoint(records) == NOW + timedelta(days=2)
    kept = {each.path.rpartition("/")[2] for each in records}
    # The oldest native one is forgotten, and no longer pinned.
    assert first[1].path.rpartition("/")[2] not in kept
    assert set(list_pinned(tmp_path)) == kept
    assert len(kept) == 4


def test_a_failed_savepoint_has_flinks_reason_and_is_tried_again(tmp_path: Path) -> None:
    cluster = MemoryCluster(SNAPSHOT)
    cluster.savepoint_failure = EXPIRED
    job = make_job(tmp_path, cluster, native="daily")
    with pytest.raises(SavepointFailedError, match="Checkpoint expired before completing") as caught:
        take(job, NOW)
    assert caught.value.details["reason"] == "CHECKPOINT_EXPIRED"
    assert "slowest subtask" in caught.value.hint
    cluster.savepoint_failure = ""
    (taken,) = take(job, NOW + timedelta(hours=1))
    assert (taken.attempt, taken.status) == (2, TakenStatus.COMPLETED)
    records = find_savepoint_records(job.results, job.name).list_records()
    assert [each.reason for each in records] == ["", "CHECKPOINT_EXPIRED"]


@pytest.mark.parametrize("point", [0, 1], ids=["before the trigger", "after the trigger"])
def test_a_killed_process_is_continued_with_the_same_trigger(tmp_path: Path, point: int) -> None:
    cluster = MemoryCluster(SNAPSHOT, Fuse(point))
    job = make_job(tmp_path, cluster, native="daily")
    with pytest.raises(Killed):
        take(job, NOW)
    cluster.fuse = Fuse()
    (taken,) = take(job, NOW + timedelta(minutes=1))
    assert taken.status is TakenStatus.COMPLETED
    # Flink got one trigger, or forgot none.
    assert len(cluster.jobs["a" * 32].savepoints) == 1
    assert len(list_pinned(tmp_path)) == 1


def test_never_two_at_once_nor_during_an_upgrade(tmp_path: Path) -> None:
    cluster = MemoryCluster(SNAPSHOT)
    job = make_job(tmp_path, cluster, native="daily")
    running = cluster.jobs["a" * 32]
    pending = Checkpoint(7, CheckpointStatus.IN_PROGRESS, is_savepoint=True, kind="SAVEPOINT", triggered=NOW)
    running.savepoints.append(pending)
    with pytest.raises(UsageError, match="savepoint 7 of job orders is under way"):
        take(job, NOW)
    running.savepoints.clear()
    upgrades = find_records(job.results, job.name)
    record = UpgradeRecord("0" * 12, "shop", NOW.isoformat(), "a" * 32, "f", {})
    upgrades.write(record)
    with pytest.raises(UsageError, match="upgrade 000000000000 of shop has not ended"):
        take(job, NOW)
    lease = hold_lease(find_savepoint_records(job.results, job.name).location, "shop", what="a savepoint")
    with lease, pytest.raises(UsageError, match="a savepoint of shop is under way"):
        take(job, NOW)
    running.status = JobStatus.RESTARTING
    upgrades.write(replace(record, outcome=UpgradeOutcome.UPGRADED))
    with pytest.raises(ClusterError, match="is RESTARTING"):
        take(job, NOW)
    assert cluster.operations == {}


def test_one_that_somebody_asks_for_is_no_matter_of_the_policy(tmp_path: Path) -> None:
    job = make_job(tmp_path, native="daily")
    assert isinstance(job.cluster, MemoryCluster)
    taken = take_savepoint(job, SavepointFormat.NATIVE, now=NOW, sleep=job.cluster.sleep, clock=job.cluster.clock)
    assert (taken.period, taken.pinned) == ("2026-01-31T120000", "")
    assert len(take(job, NOW)) == 1


def test_the_command_takes_one_or_those_that_are_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = MemoryCluster(SNAPSHOT)
    file = tmp_path / "shop.yaml"
    file.write_text(
        "name: shop\njob: orders\ncluster: {rest: 'http://127.0.0.1:1'}\nresults: results\nroots: savepoints\n"
        f"savepoints: {{native: daily, directory: {tmp_path / 'savepoints'}}}\n"
    )
    opened = open_savepoint_job(str(file))
    assert (opened.job, opened.results) == ("orders", str(tmp_path / "results"))
    monkeypatch.setattr(
        "state_pipelines.upgrades.savepoint_policy.open_savepoint_job", lambda *given: replace(opened, cluster=cluster)
    )
    run = CliRunner()

    def invoke(*arguments: str) -> tuple[int, str]:
        result = run.invoke(CommandGroup("state-pipelines"), ["savepoint", str(file), *arguments])
        return result.exit_code, result.output

    code, output = invoke()
    assert (code, "savepoint-0-aaaaaa" in output) == (0, True)
    code, output = invoke("--due", "--json")
    assert (code, '"pinned": "' in output) == (0, True)
    code, output = invoke("--due")
    assert (code, "no savepoint is due" in output) == (0, True)
    cluster.savepoint_failure = EXPIRED
    code, output = invoke("--format", "native")
    assert (code, "Checkpoint expired" in output, "usual cause" in output.lower()) == (1, True, True)
    code, output = invoke("--due", "--format", "native")
    assert code == 2
    # The records say how old the newest one is, also where the cluster has forgotten it.
    assert find_recorded_savepoint(str(file)) is None
    file.write_text(f"{file.read_text()}thresholds: {{max_hours_without_savepoint: 24}}\n")
    newest = find_savepoint_records(opened.results, opened.name).list_records()[1]
    assert find_recorded_savepoint(str(file)) == newest.time
    assert find_recorded_savepoint("http://127.0.0.1:1") is None
