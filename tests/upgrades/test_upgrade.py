from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.checkpoints.coordinator import FailureReason
from state_pipelines.errors import ClusterError, UsageError
from state_pipelines.flink.cluster import JobStatus
from state_pipelines.operations.inspect import inspect
from state_pipelines.operations.retention import read_pins
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import replace_file, resolve
from state_pipelines.upgrades import upgrade_records
from state_pipelines.upgrades.rehearsal import rehearse
from state_pipelines.upgrades.upgrade_records import find_records, hold_lease
from state_pipelines.upgrades.upgrade_reports import Result
from state_pipelines.upgrades.upgrade_run import upgrade
from tests.upgrades.conftest import ROOT, describe
from tests.upgrades.memory_cluster import Fuse, Killed, MemoryCluster, MemoryJob

if TYPE_CHECKING:
    from state_pipelines.upgrades.upgrade_plan import UpgradePlan
    from state_pipelines.upgrades.upgrade_reports import UpgradeReport
    from state_pipelines.upgrades.upgrade_request import UpgradeRequest

OLD = "a" * 32
INCOMPATIBLE = "operators: {orders: {key: Long, states: {order: String}}}"


def run(request: UpgradeRequest, cluster: MemoryCluster, **options: Any) -> UpgradeReport:
    return upgrade(request, clusters=(cluster, cluster), sleep=cluster.sleep, clock=cluster.clock, **options)


def plan(request: UpgradeRequest, cluster: MemoryCluster) -> UpgradePlan:
    found = run(request, cluster, plan_only=True).plan
    assert found is not None
    return found


def started_from(cluster: MemoryCluster) -> str:
    found = cluster.submissions[0].savepoint
    assert found is not None
    return found


def programs(cluster: MemoryCluster) -> list[str]:
    return [each.program for each in cluster.running]


def test_the_new_program_runs_from_the_savepoint(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    report = run(describe(tmp_path), cluster)
    assert (report.result, report.exit_code) == (Result.UPGRADED, 0)
    assert programs(cluster) == ["new.jar"]
    (submission,) = cluster.submissions
    assert report.headline == f"orders runs the new program, job {submission.job_id}"
    # Nothing was needed, so nothing was written.
    assert submission.savepoint == cluster.jobs[OLD].savepoints[0].path
    assert [each.name for each in (tmp_path / "results").iterdir()] == ["_upgrades"]


def test_the_state_is_rescaled_where_the_program_has_other_key_groups(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    request = describe(tmp_path, new_more=", max_parallelism: 256", more="  automatic: [rescaled]")
    report = run(request, cluster)
    assert report.result is Result.UPGRADED
    assert Path(started_from(cluster).removeprefix("file:")).parent == tmp_path / "results"
    assert report.to_json()["record"]["steps"]["change"]["proofs"]["rescale"]["ok"] is True


def test_the_plan_stops_nothing_and_says_everything(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    report = run(describe(tmp_path), cluster, plan_only=True)
    assert (report.result, report.exit_code) == (Result.PLANNED, 0)
    assert programs(cluster) == ["old.jar"]
    assert not (tmp_path / "results").exists()
    assert "nothing was stopped" in report.headline
    assert any("predicted down time: 11.5 s" in each for each in report.lines)


def test_checkpoints_that_flink_removes_while_they_are_read_leave_the_savepoint(tmp_path: Path, snapshot: Path) -> None:
    removed = tmp_path / "checkpoints" / "chk-9"
    shutil.copytree(snapshot, removed)
    for each in removed.iterdir():
        if each.name != "_metadata":
            each.unlink()
    cluster = MemoryCluster(snapshot)
    request = describe(tmp_path)
    plan(request, cluster)
    taken = cluster.jobs[OLD].savepoints
    taken.append(replace(taken[0], id=9, is_savepoint=False, kind="CHECKPOINT", path=str(removed)))
    found = plan(request, cluster)
    assert found.checked is not None
    assert (found.refusals, found.checked.description) == ((), "savepoint 1")


def test_a_savepoint_that_the_statistics_do_not_have_is_checked(tmp_path: Path, snapshot: Path) -> None:
    # They are up to 3 seconds old, and have the last ten of frequent checkpoints.
    cluster = MemoryCluster(snapshot)
    cluster.has_history = False
    found = plan(describe(tmp_path), cluster)
    assert found.checked is not None
    assert found.refusals == ()
    assert found.checked.path == cluster.jobs[OLD].savepoints[0].path
    assert found.checked.description == f"savepoint {open_snapshot(str(snapshot)).checkpoint_id}"


@pytest.mark.slow
def test_what_the_policy_does_not_allow_waits_for_an_approval(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    request = describe(tmp_path, new_more=", max_parallelism: 256")
    report = run(request, cluster)
    assert (report.result, report.exit_code) == (Result.WAITS, 3)
    assert programs(cluster) == ["old.jar"]
    assert f"--approve {plan(request, cluster).fingerprint}" in report.lines[-1]
    with pytest.raises(UsageError, match="not 0123456789abcdef"):
        run(request, cluster, approve="0123456789abcdef")
    assert run(request, cluster, approve=plan(request, cluster).fingerprint).result is Result.UPGRADED


def test_an_approval_on_the_storage_is_enough(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    request = describe(tmp_path, new_more=", max_parallelism: 256")
    find_records(request.results, "orders").approve(plan(request, cluster).fingerprint, "somebody")
    assert run(request, cluster).result is Result.UPGRADED


def test_another_program_has_another_fingerprint(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    request = describe(tmp_path)
    before = plan(request, cluster).fingerprint
    (tmp_path / "new.jar").write_bytes(b"other content")
    assert plan(request, cluster).fingerprint != before


def test_an_incompatible_program_stops_nothing(tmp_path: Path, snapshot: Path) -> None:
    (tmp_path / "new-job.yaml").write_text(INCOMPATIBLE)
    cluster = MemoryCluster(snapshot)
    report = run(describe(tmp_path, job="new_job: new-job.yaml"), cluster)
    assert (report.result, report.exit_code) == (Result.REFUSED, 1)
    assert programs(cluster) == ["old.jar"]
    assert not cluster.stopped
    assert any(each.startswith("refused: orders") for each in report.lines)
    # No approval helps.
    request = describe(tmp_path, job="new_job: new-job.yaml")
    assert run(request, cluster, approve=plan(request, cluster).fingerprint).result is Result.REFUSED


def test_a_savepoint_that_became_incompatible_brings_the_old_program_back(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    request = describe(tmp_path, job="new_job: new-job.yaml")
    (tmp_path / "new-job.yaml").write_text("{}")

    def change_code(text: str) -> None:
        if text.startswith("check"):
            (tmp_path / "new-job.yaml").write_text(INCOMPATIBLE)

    report = run(request, cluster, report=change_code)
    assert report.result is Result.WENT_BACK
    assert programs(cluster) == ["old.jar"]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("fails.jar", "is FAILED: IllegalStateException: broken"),
        ("fails-later.jar", "is FAILED: IllegalStateException: broken"),
        ("restarts.jar", "has restarted: Flink names no exception"),
        ("stuck.jar", "has completed 0 of 2 checkpoints after 20 s, and it is RUNNING"),
        ("lags.jar", "its lag grows from 0 to"),
        ("rejected.jar", "the jar has no main class"),
    ],
)
def test_the_old_program_comes_back_from_its_savepoint(
    tmp_path: Path, snapshot: Path, program: str, reason: str
) -> None:
    cluster = MemoryCluster(snapshot)
    report = run(describe(tmp_path, new=program), cluster)
    savepoint = cluster.jobs[OLD].savepoints[0].path
    assert (report.result, report.exit_code) == (Result.WENT_BACK, 1)
    assert programs(cluster) == ["old.jar"]
    assert cluster.submissions[-1].savepoint == savepoint
    assert report.headline == (
        f"orders runs the old program again, job {cluster.running[0].id} at memory://cluster, "
        f"from its savepoint {savepoint}"
    )
    assert reason in report.lines[0]
    assert dict(report.commands)["old"] == f"flink run -d -s {savepoint} {tmp_path / 'old.jar'}"


def test_a_failed_savepoint_leaves_the_job_running(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    request = describe(tmp_path)
    run(request, cluster, plan_only=True)  # a first savepoint, as a probe
    cluster.savepoint_failure = "CheckpointException: Checkpoint expired before completing.\nCaused by: x"
    report = run(request, cluster)
    assert (report.result, report.exit_code) == (Result.NOT_STOPPED, 1)
    assert programs(cluster) == ["old.jar"]
    assert report.lines == ("CheckpointException: Checkpoint expired before completing.",)
    cluster.savepoint_failure = ""
    assert run(request, cluster).result is Result.UPGRADED


def test_an_unreachable_savepoint_is_found_out_before_the_job_is_stopped(tmp_path: Path, snapshot: Path) -> None:
    mapped = ("/flink-data", str(tmp_path / "here"))
    cluster = MemoryCluster(snapshot, seen_as=mapped)
    request = describe(tmp_path, savepoints="/flink-data/savepoints")
    report = run(request, cluster)
    assert report.result is Result.REFUSED
    assert programs(cluster) == ["old.jar"]
    assert "--map FROM=TO" in report.lines[0]
    request = describe(
        tmp_path,
        savepoints="/flink-data/savepoints",
        job=f"path_mapping: ['/flink-data={tmp_path / 'here'}']",
    )
    assert run(request, cluster).result is Result.UPGRADED
    assert started_from(cluster).startswith("/flink-data/savepoints/upgrade-")


def test_results_are_named_as_the_cluster_sees_them(tmp_path: Path, snapshot: Path) -> None:
    mapped = ("/flink-data", str(tmp_path))
    cluster = MemoryCluster(snapshot, seen_as=mapped)
    request = describe(
        tmp_path,
        savepoints="/flink-data/savepoints",
        job=f"path_mapping: ['/flink-data={tmp_path}']",
        new_more=", max_parallelism: 256",
        more="  automatic: [rescaled]",
    )
    assert run(request, cluster).result is Result.UPGRADED
    assert started_from(cluster).startswith("/flink-data/results/upgrade-")


def test_the_old_program_that_does_not_come_back_is_said_first(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    cluster.broken = {"old.jar": "fails.jar"}
    cluster.jobs[OLD].program = "healthy"
    request = describe(tmp_path, new="fails.jar")
    report = run(request, cluster)
    assert (report.result, report.exit_code) == (Result.NOTHING_RUNS, 1)
    assert report.headline == "NOTHING RUNS of orders"
    assert not cluster.running
    savepoint = cluster.jobs[OLD].savepoints[0].path
    assert {name for name, _ in report.commands} == {"old", "new"}
    assert all(savepoint in command for _, command in report.commands)
    # Nothing was deleted, and the savepoint is pinned.
    assert (Path(savepoint) / "_metadata").is_file()
    (pin,) = read_pins(resolve(str(tmp_path / "savepoints")))
    assert savepoint.endswith(pin.path)


def test_savepoints_are_pinned_until_the_upgrade_is_decided(tmp_path: Path, snapshot: Path) -> None:
    cluster, pinned = MemoryCluster(snapshot), []
    root = resolve(str(tmp_path / "savepoints"))
    run(describe(tmp_path), cluster, report=lambda text: pinned.append(len(read_pins(root))))
    assert pinned[0] == 0
    assert set(pinned[1:]) == {1}
    assert read_pins(root) == ()


def test_two_upgrades_of_one_job_do_not_run(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    request = describe(tmp_path)
    with (
        hold_lease(find_records(request.results, "orders").location, "orders"),
        pytest.raises(UsageError, match="an upgrade of orders is under way: process"),
    ):
        run(request, cluster)
    assert programs(cluster) == ["old.jar"]


def test_a_job_that_somebody_started_by_hand_is_not_doubled(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)

    def start_by_hand(text: str) -> None:
        if text.startswith("start"):
            cluster.jobs["b" * 32] = MemoryJob("b" * 32, "orders", "old.jar")

    report = run(describe(tmp_path), cluster, report=start_by_hand)
    assert (report.result, report.exit_code) == (Result.UNDECIDED, 3)
    assert [each.id for each in cluster.running] == ["b" * 32]


# Faults of the cluster.


def test_a_trigger_whose_answer_is_lost_is_asked_for_again_and_taken_once(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    request = describe(tmp_path)
    run(request, cluster, plan_only=True)
    cluster.faults = [("trigger", ClusterError("lost", transient=True, in_doubt=True), True)]
    assert run(request, cluster).result is Result.UPGRADED
    assert len(cluster.jobs[OLD].savepoints) == 2


def test_a_savepoint_whose_trigger_the_cluster_forgot_is_found_in_its_directory(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    request = describe(tmp_path)
    run(request, cluster, plan_only=True)
    cluster.forgets_triggers = True
    assert run(request, cluster).result is Result.UPGRADED
    assert cluster.submissions[0].savepoint == cluster.jobs[OLD].savepoints[0].path


@pytest.mark.parametrize("is_done", [False, True])
def test_a_submission_whose_answer_is_lost_starts_one_job_at_most(
    tmp_path: Path, snapshot: Path, is_done: bool
) -> None:
    cluster = MemoryCluster(snapshot)
    cluster.faults = [("start", ClusterError("lost", transient=True, in_doubt=True), is_done)]
    report = run(describe(tmp_path), cluster)
    assert report.result is (Result.UPGRADED if is_done else Result.WENT_BACK)
    assert len(cluster.running) == 1


@pytest.mark.parametrize("verb", ["read_status", "poll", "read_checkpoints", "list_jobs"])
def test_a_cluster_that_is_away_for_a_moment_is_asked_again(tmp_path: Path, snapshot: Path, verb: str) -> None:
    cluster = MemoryCluster(snapshot)
    request = describe(tmp_path)

    def fail_once(text: str) -> None:
        cluster.faults = [(verb, ClusterError("away", transient=True), False)]

    assert run(request, cluster, report=fail_once).result is Result.UPGRADED


def test_a_cluster_that_stays_away_leaves_the_upgrade_to_be_continued(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    request = describe(tmp_path)

    def fail_for_long(text: str) -> None:
        if text.startswith("watch"):
            cluster.faults = [("read_status", ClusterError("away", transient=True), False)] * 1000

    report = run(request, cluster, report=fail_for_long)
    assert (report.result, report.exit_code) == (Result.UNDECIDED, 3)
    assert report.headline == "it is not known what runs of orders"
    assert {name for name, _ in report.commands} == {"old", "new"}
    cluster.faults = []
    with pytest.raises(UsageError, match="has not ended yet"):
        run(request, cluster, plan_only=True)
    assert run(request, cluster).result is Result.UPGRADED
    assert len(cluster.submissions) == 1


def test_a_job_that_ended_without_its_savepoint_is_not_started_from_another_one(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    request = describe(tmp_path)
    run(request, cluster, plan_only=True)
    cluster.savepoint_failure = "the job failed"

    def fail_the_job(text: str) -> None:
        cluster.jobs[OLD].status = JobStatus.FAILED

    report = run(request, cluster, report=fail_the_job)
    assert report.result is Result.NOTHING_RUNS
    assert "holds no savepoint" in report.lines[0]
    assert not cluster.submissions
    # A person may start either program from what the plan has seen.
    seen = cluster.jobs[OLD].savepoints[0].path
    assert [name for name, command in report.commands if f"-s {seen} " in command] == ["old", "new"]


@pytest.mark.slow
def test_a_savepoint_fails_for_any_reason_and_the_job_runs_on(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    request = describe(tmp_path)
    run(request, cluster, plan_only=True)
    for reason in FailureReason:
        cluster.savepoint_failure = f"CheckpointException: {reason.message}"
        report = run(request, cluster)
        assert report.result is Result.NOT_STOPPED
        assert report.headline == f"orders runs the old program, job {OLD} at memory://cluster; it was not stopped"
        assert report.lines == (cluster.savepoint_failure.splitlines()[0],)
    assert programs(cluster) == ["old.jar"]


def test_a_savepoint_that_takes_too_long_is_waited_for_by_the_next_start(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    request = describe(tmp_path)
    run(request, cluster, plan_only=True)
    cluster.is_slow = True
    report = run(request, cluster)
    assert (report.result, report.headline) == (Result.UNDECIDED, "it is not known what runs of orders")
    assert "the savepoint is not completed after 5 s" in report.lines[0]
    cluster.is_slow = False
    assert run(request, cluster).result is Result.UPGRADED
    assert cluster.stopped == [OLD]


def test_a_job_that_is_gone_when_it_is_stopped_is_no_job_that_runs_on(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    request = describe(tmp_path)
    run(request, cluster, plan_only=True)

    def lose_the_job(text: str) -> None:
        if text.startswith("stop"):
            del cluster.jobs[OLD]

    report = run(request, cluster, report=lose_the_job)
    assert (report.result, report.headline) == (Result.NOTHING_RUNS, "NOTHING RUNS of orders")


def test_missing_slots_are_found_out_before_the_job_is_stopped(tmp_path: Path, snapshot: Path) -> None:
    old, new = MemoryCluster(snapshot), MemoryCluster(snapshot)
    new.jobs.clear()
    report = upgrade(describe(tmp_path, new_more=", parallelism: 3"), clusters=(old, new), sleep=old.sleep)
    assert report.result is Result.REFUSED
    assert "has 1 slots too few for parallelism 3" in report.lines[0]
    assert programs(old) == ["old.jar"]


NATIVE = "  savepoint_format: native\n  automatic: [compatible, converted, undetermined]"


def find_native(name: str) -> Path:
    (found,) = (ROOT / "tests" / "data" / "types" / "flink-2.2" / name).glob("savepoint-*")
    return found


@pytest.mark.slow
def test_a_native_savepoint_of_the_other_state_backend_is_converted(tmp_path: Path) -> None:
    for backend, writes in (("rocksdb", []), ("hashmap", ["convert"])):
        directory = tmp_path / backend
        directory.mkdir()
        cluster = MemoryCluster(find_native("rocksdb-native"))
        report = run(describe(directory, new_more=f", backend: {backend}", more=NATIVE), cluster)
        assert report.result is Result.UPGRADED, report.list_lines()
        done = report.to_json()["record"]["steps"]["change"]
        assert list(done["seconds"]) == writes
        assert all(each["ok"] for each in done["proofs"].values())
        started = open_snapshot(started_from(cluster))
        formats = {each.format for op in inspect(started).operators for each in op.keyed_formats}
        assert ("canonical" in formats) is bool(writes)


@pytest.mark.slow
def test_a_rehearsal_finds_out_that_a_state_cannot_be_converted(tmp_path: Path) -> None:
    cluster = MemoryCluster(find_native("heap-native"))
    request = describe(tmp_path, new_more=", backend: rocksdb", more=NATIVE)
    report = rehearse(request, clusters=(cluster, cluster), sleep=cluster.sleep, clock=cluster.clock)
    assert "--classes" in report.refusals[0]
    assert programs(cluster) == ["old.jar"]


# Programs and clusters that do not fit.


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("version", "1.20.5", "runs Flink 1.20.5, and target_release is 2.2: set it to 1.20"),
        ("can_submit", False, "takes no jars"),
    ],
)
def test_a_cluster_that_cannot_run_the_program_is_refused(
    tmp_path: Path, snapshot: Path, name: str, value: object, reason: str
) -> None:
    cluster = MemoryCluster(snapshot)
    setattr(cluster, name, value)
    report = run(describe(tmp_path), cluster)
    assert report.result is Result.REFUSED
    assert reason in report.lines[0]
    assert programs(cluster) == ["old.jar"]


def test_a_job_that_does_not_run_is_not_upgraded(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    cluster.jobs[OLD].status = JobStatus.RESTARTING
    report = run(describe(tmp_path), cluster)
    assert report.result is Result.REFUSED
    assert "is RESTARTING: only a running job can take a savepoint" in report.lines[0]


def test_a_missing_jar_is_wrong_use(tmp_path: Path, snapshot: Path) -> None:
    request = describe(tmp_path)
    (tmp_path / "old.jar").unlink()
    with pytest.raises(UsageError, match="the jar of the old program is not there"):
        run(request, MemoryCluster(snapshot))


def test_an_upgrade_is_continued_with_its_own_programs_only(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot, Fuse(1))
    request = describe(tmp_path)
    with pytest.raises(Killed):
        run(request, cluster)
    cluster.fuse = Fuse()
    run_until_stopped(request, cluster)
    (tmp_path / "new.jar").write_bytes(b"other content")
    with pytest.raises(UsageError, match="planned with other programs"):
        run(request, cluster)


def test_a_jar_that_is_replaced_meanwhile_is_not_started(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)

    def replace_jar(text: str) -> None:
        if text.startswith("start"):
            (tmp_path / "new.jar").write_bytes(b"other content")

    report = run(describe(tmp_path), cluster, report=replace_jar)
    assert report.result is Result.WENT_BACK
    assert "have changed since the plan" in report.lines[0]
    assert programs(cluster) == ["old.jar"]


def run_until_stopped(request: UpgradeRequest, cluster: MemoryCluster) -> None:
    """Run an upgrade, and kill it once the job has stopped."""

    def kill(text: str) -> None:
        if text.startswith("check"):
            raise Killed(text)

    with pytest.raises(Killed):
        run(request, cluster, report=kill)


def test_a_second_start_does_not_upgrade_again(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    first = run(describe(tmp_path), cluster)
    second = run(describe(tmp_path), cluster)
    assert (second.result, second.headline) == (Result.UPGRADED, first.headline)
    assert len(cluster.submissions) == 1


@pytest.mark.slow
def test_a_program_that_went_back_is_tried_again_only_with_an_approval(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    request = describe(tmp_path, new="fails.jar")
    assert run(request, cluster).result is Result.WENT_BACK
    report = run(request, cluster)
    assert report.result is Result.WAITS
    assert "an approval is needed (repeated)" in report.lines[-1]
    assert programs(cluster) == ["old.jar"]
    cluster.broken = {"fails.jar": "new.jar"}
    assert run(request, cluster, approve=plan(request, cluster).fingerprint).result is Result.UPGRADED


# Killed between any two steps.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("new", "result", "program"),
    [("new.jar", Result.UPGRADED, "new.jar"), ("fails-later.jar", Result.WENT_BACK, "old.jar")],
)
def test_an_upgrade_that_is_killed_anywhere_is_continued(
    tmp_path: Path, snapshot: Path, monkeypatch: pytest.MonkeyPatch, new: str, result: Result, program: str
) -> None:
    fuse = Fuse()

    def write_or_die(location: Any, data: bytes) -> None:
        replace_file(location, data)
        fuse.burn(f"after {location.name}")

    monkeypatch.setattr(upgrade_records, "replace_file", write_or_die)

    def attempt(number: int | None) -> int:
        directory = tmp_path / str(number)
        directory.mkdir()
        fuse.last, fuse.passed = number, []
        cluster = MemoryCluster(snapshot, fuse)
        request = describe(directory, new=new, new_more=", max_parallelism: 64", more="  automatic: [rescaled]")
        if number is not None:
            with pytest.raises(Killed):
                run(request, cluster)
            fuse.last = None
        report = run(request, cluster)
        if report.result is Result.WAITS:
            # It was decided before it was killed, and the same program is not tried again without an approval.
            assert number is not None
            assert number >= decided
            report = run(request, cluster, plan_only=True)
            assert report.record is None
            return len(fuse.passed)
        label = f"killed {fuse.passed[number] if number is not None else 'never'}"
        assert report.result is result, label
        assert programs(cluster) == [program], label
        # One submission of each job, and the job was stopped once.
        submitted = [each.job_id for each in cluster.submissions]
        assert len(submitted) == len(set(submitted)), label
        assert cluster.stopped == [OLD], label
        return len(fuse.passed)

    decided = 0
    points = attempt(None)
    assert points > 12
    # The last record; after it the lease is given back.
    decided = max(number for number, each in enumerate(fuse.passed) if each.startswith("after upgrade-"))
    assert fuse.passed[decided + 1 :] == ["after lease-00000001.json"]
    for number in range(points):
        attempt(number)
