from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import ClusterError
from state_pipelines.upgrades.rehearsal import rehearse
from state_pipelines.upgrades.upgrade_run import upgrade
from tests.upgrades.conftest import describe
from tests.upgrades.memory_cluster import MemoryCluster

if TYPE_CHECKING:
    from state_pipelines.upgrades.rehearsal import RehearsalReport
    from state_pipelines.upgrades.upgrade_request import UpgradeRequest

RESCALED = ", max_parallelism: 256"


def run(request: UpgradeRequest, cluster: MemoryCluster, **options: Any) -> RehearsalReport:
    # Time passes on the cluster on which a program is watched.
    watched = options.get("spare", cluster)
    return rehearse(request, clusters=(cluster, cluster), sleep=watched.sleep, clock=watched.clock, **options)


@pytest.mark.slow
def test_a_rehearsal_writes_and_proves_while_the_job_runs_on(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    report = run(describe(tmp_path, new_more=RESCALED), cluster)
    assert report.ok
    assert [each.program for each in cluster.running] == ["old.jar"]
    assert list(report.change_seconds) == ["rescale"]
    lines = report.list_lines()
    assert lines[0] == "the upgrade of orders would succeed; the job runs on"
    assert any(each.startswith("the upgrade reuses no file") for each in lines)
    # The result is removed, the savepoint stays.
    assert [each.name for each in (tmp_path / "results").iterdir()] == ["_upgrades"]
    assert Path(report.savepoint).is_dir()


@pytest.mark.slow
def test_the_plan_predicts_what_the_rehearsal_has_measured(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    request = describe(tmp_path, new_more=RESCALED)
    report = run(request, cluster)
    plan = upgrade(request, clusters=(cluster, cluster), plan_only=True).plan
    assert plan is not None
    assert plan.down_time is not None
    assert plan.down_time.change == pytest.approx(sum(report.change_seconds.values()))
    assert plan.down_time.sources["change"] == f"rehearsal of {report.finished}"
    # Another change was not rehearsed.
    other = upgrade(describe(tmp_path, new_more=", max_parallelism: 64"), clusters=(cluster, cluster), plan_only=True)
    assert other.plan is not None
    assert other.plan.down_time is not None
    assert other.plan.down_time.sources["change"] == "assumed speed, not rehearsed"


def test_a_refusal_is_reported(tmp_path: Path, snapshot: Path) -> None:
    (tmp_path / "new-job.yaml").write_text("operators: {orders: {key: Long, states: {order: String}}}")
    cluster = MemoryCluster(snapshot)
    report = run(describe(tmp_path, job="new_job: new-job.yaml"), cluster)
    assert not report.ok
    assert report.list_lines()[0] == "the upgrade of orders would be refused; the job runs on"
    assert any("orders" in each for each in report.refusals)


def test_a_spare_cluster_restores_the_result(tmp_path: Path, snapshot: Path) -> None:
    cluster, spare = MemoryCluster(snapshot), MemoryCluster(snapshot)
    spare.jobs.clear()
    request = describe(tmp_path, new_more=RESCALED, more="  rehearsal: {arguments: [--idle]}")
    report = run(request, cluster, spare=spare)
    assert report.ok
    assert report.start_seconds is not None
    (submission,) = spare.submissions
    assert submission.arguments == ("--idle",)
    assert not spare.running


def test_a_program_runs_once_all_its_tasks_have_restored_their_state(tmp_path: Path, snapshot: Path) -> None:
    cluster, spare = MemoryCluster(snapshot), MemoryCluster(snapshot)
    spare.jobs.clear()
    # Flink says RUNNING as soon as the job is scheduled.
    spare.restore_seconds = 4.0
    report = run(describe(tmp_path), cluster, spare=spare)
    assert report.start_seconds == 4.0
    assert report.down_time is not None
    assert (report.down_time.start, report.down_time.sources["start"]) == (4.0, f"rehearsal of {report.finished}")


def test_a_program_that_does_not_restore_is_a_refusal(tmp_path: Path, snapshot: Path) -> None:
    cluster, spare = MemoryCluster(snapshot), MemoryCluster(snapshot)
    spare.jobs.clear()
    report = run(describe(tmp_path, new="fails.jar"), cluster, spare=spare)
    assert report.refusals == (
        "the new program does not run from the savepoint that the rehearsal prepared: IllegalStateException: broken",
    )


def test_a_failed_savepoint_is_an_error_of_the_cluster(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    cluster.savepoint_failure = "CheckpointException: Checkpoint was declined."
    with pytest.raises(ClusterError, match="Checkpoint was declined"):
        run(describe(tmp_path), cluster)
