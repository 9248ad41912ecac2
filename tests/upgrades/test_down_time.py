"""Predictions of down time, each from the best source that there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.flink.cluster import JobStart
from state_pipelines.operations.inspect import inspect
from state_pipelines.snapshot import open_snapshot
from state_pipelines.upgrades.upgrade_plan import SUBMISSION_SECONDS, DownTime, measure_down_time
from state_pipelines.upgrades.upgrade_run import upgrade
from tests.upgrades.conftest import describe
from tests.upgrades.memory_cluster import Fuse, Killed, MemoryCluster

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.upgrades.upgrade_reports import UpgradeReport
    from state_pipelines.upgrades.upgrade_request import UpgradeRequest

SIZE = 1000
"""Bytes of state that the cluster in memory says."""


def run(request: UpgradeRequest, cluster: MemoryCluster, **options: Any) -> UpgradeReport:
    return upgrade(request, clusters=(cluster, cluster), sleep=cluster.sleep, clock=cluster.clock, **options)


def predict(request: UpgradeRequest, cluster: MemoryCluster) -> DownTime:
    plan = run(request, cluster, plan_only=True).plan
    assert plan is not None
    assert plan.down_time is not None
    return plan.down_time


def test_without_measurements_the_start_is_assumed(tmp_path: Path, snapshot: Path) -> None:
    found = predict(describe(tmp_path), MemoryCluster(snapshot))
    assert (found.savepoint, found.change) == (1.5, 0)
    assert found.start == pytest.approx(10, abs=0.01)
    assert found.sources == {
        "savepoint": "duration of the newest savepoint",
        "change": "nothing is written",
        "start": "assumed",
    }


@pytest.mark.slow
def test_the_start_of_the_running_job_predicts_that_of_the_new_one(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    (job,) = cluster.jobs.values()
    cluster.timed = JobStart(8, 6, 2)
    # It was started without state.
    found = predict(describe(tmp_path), cluster)
    assert found.start == pytest.approx(SUBMISSION_SECONDS + 2 + SIZE / 10e6)
    assert found.sources["start"] == "start of the running job, which had less state: the restore is assumed"
    # It has restored a snapshot of another size.
    job.restored = str(snapshot)
    restored = sum(each.bytes for each in inspect(open_snapshot(str(snapshot)), count=False).operators)
    found = predict(describe(tmp_path), cluster)
    assert found.start == pytest.approx(SUBMISSION_SECONDS + 2 + 6 * SIZE / restored)
    assert found.sources["start"] == "start of the running job, its restore in proportion to the state"
    # That is gone.
    job.restored = str(tmp_path / "gone")
    found = predict(describe(tmp_path), cluster)
    assert found.start == pytest.approx(SUBMISSION_SECONDS + 8)
    assert found.sources["start"] == "start of the running job"


@pytest.mark.slow
def test_an_earlier_upgrade_predicts_the_next_one(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot)
    done = run(describe(tmp_path, new_more=", max_parallelism: 256", more="  automatic: [rescaled]"), cluster).record
    assert done is not None
    change, watch = done.steps["change"], done.steps["watch"]
    found = predict(describe(tmp_path, new_more=", max_parallelism: 512"), cluster)
    assert found.change == pytest.approx(change["seconds"]["rescale"])
    assert found.sources["change"] == f"upgrade of {done.created[:19]}"
    assert (found.start, found.sources["start"]) == (watch["start_seconds"], "last upgrade")
    assert measure_down_time(done) == pytest.approx(
        done.steps["stop"]["seconds"] + done.steps["check"]["seconds"] + change["elapsed"] + watch["start_seconds"]
    )


def test_the_start_that_another_process_watches_is_what_flink_has_timed(tmp_path: Path, snapshot: Path) -> None:
    def continue_after(label: str, directory: Path) -> dict[str, Any]:
        directory.mkdir()
        cluster = MemoryCluster(snapshot)
        cluster.timed = JobStart(7, 6, 2)

        def kill(text: str) -> None:
            if text.startswith(label):
                raise Killed(label)

        with pytest.raises(Killed):
            run(describe(directory), cluster, report=kill)
        record = run(describe(directory), cluster).record
        assert record is not None
        return dict(record.steps)

    steps = continue_after("watch", tmp_path / "watch")
    assert steps["watch"]["start_seconds"] == steps["start"]["seconds"] + 7


@pytest.mark.slow
def test_an_interrupted_submission_has_no_measured_down_time(tmp_path: Path, snapshot: Path) -> None:
    cluster = MemoryCluster(snapshot, Fuse())
    labels = cluster.fuse.passed
    run(describe(tmp_path), cluster)
    number = labels.index("after the submission")
    (tmp_path / "killed").mkdir()
    cluster = MemoryCluster(snapshot, Fuse(number))
    with pytest.raises(Killed):
        run(describe(tmp_path / "killed"), cluster)
    cluster.fuse.last = None
    record = run(describe(tmp_path / "killed"), cluster).record
    assert record is not None
    assert record.steps["watch"]["start_seconds"] is None
    assert measure_down_time(record) is None
