"""Upgrades of a SQL job on a session cluster of real Flink: to another query, and back from one that does not run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.flink.cluster import JobStatus, SavepointRequest, Submission, wait_for_savepoint
from state_pipelines.flink.connections import connect
from state_pipelines.snapshot import open_snapshot
from state_pipelines.upgrades.upgrade_reports import Result
from state_pipelines.upgrades.upgrade_run import upgrade
from tests.flink.clusters import running_cluster
from tests.flink.harness import VERSIONS, install_libraries
from tests.flink.sql_gateways import running_gateway

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from state_pipelines.flink.cluster import FlinkCluster
    from state_pipelines.upgrades.upgrade_reports import UpgradeReport

pytestmark = [pytest.mark.flink, pytest.mark.spark]

TOTALS = Path(__file__).resolve().parents[2] / "examples" / "totals"
SECONDS = 120
OPTIONS = {"execution.checkpointing.interval": "200ms", "parallelism.default": "2"}


def await_job(cluster: FlinkCluster) -> str:
    """Wait until the only job that runs has completed a checkpoint; give its id."""
    deadline = time.monotonic() + SECONDS
    while True:
        (found,) = [each for each in cluster.list_jobs() if not each.status.is_terminal]
        if found.status is JobStatus.RUNNING and cluster.read_checkpoints(found.id).completed:
            assert found.name == "totals"
            return found.id
        assert time.monotonic() < deadline
        time.sleep(0.05)


def read_sums(savepoint: str) -> dict[int, tuple[int, int]]:
    """Both sums of each customer in the state of the aggregate, in the order of its columns."""
    snapshot = open_snapshot(savepoint)
    (state,) = [each for operator in snapshot.operators for each in operator.states if each.name == "accState"]
    rows = state.to_arrow().to_pylist()
    return {row["state_key"]["f0"]: (row["value"]["f0"], row["value"]["f1"]) for row in rows}


def expect(report: UpgradeReport, result: Result) -> None:
    assert report.result is result, "\n".join(report.list_lines())


@pytest.mark.parametrize(
    "version", [pytest.param(each, marks=() if each.startswith("2.2") else pytest.mark.slow) for each in VERSIONS]
)
def test_a_query_takes_the_state_of_another_one(
    version: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "flink"
    home.mkdir()
    for jar in install_libraries(version).jars:
        (home / jar.name).symlink_to(jar)
    # Its planner compiles the scripts.
    monkeypatch.setenv("FLINK_HOME", str(home))
    with running_cluster(version, tmp_path / "cluster", tables=True) as running, running_gateway(running) as found:
        gateway, address = found
        settings = {"rest": running.url, "sql_gateway": address}
        cluster = connect(settings)

        def describe(old: str, new: str, **more: Any) -> str:
            programs = {name: {"plan": plan, "configuration": OPTIONS} for name, plan in (("old", old), ("new", new))}
            programs["new"] |= more
            upgrade = {"savepoints": (running.directory / "savepoints").as_uri(), **programs}
            job = {
                "name": "totals",
                "cluster": settings,
                "results": str(tmp_path / "results"),
                "target_release": version.rpartition(".")[0],
                "upgrade": {**upgrade, "automatic": ["compatible", "migrated", "partial", "rescaled"]},
            }
            path = tmp_path / "JOB.json"
            path.write_text(json.dumps(job))
            return str(path)

        totals, swapped = str(TOTALS / "totals.sql"), str(TOTALS / "swapped.sql")
        text = (TOTALS / "totals.sql").read_text()
        cluster.start(Submission(script=text, configuration={**OPTIONS, "pipeline.name": "totals"}))
        await_job(cluster)

        expect(upgrade(describe(totals, swapped, max_parallelism=64)), Result.UPGRADED)
        second = await_job(cluster)
        assert gateway.statements[-1].startswith("EXECUTE PLAN '")
        assert cluster.read_checkpoints(second).restored_path.rstrip("/").endswith("-rescale")

        # A query whose table has a connector that no jar of the cluster has: back, as it was started, from its plan.
        plan = json.loads(next((tmp_path / "results" / "_upgrades" / "totals").glob("plan-*.json")).read_text())
        plan_text = json.dumps(plan).replace('"blackhole"', '"nowhere"')
        (tmp_path / "broken.json").write_text(plan_text)
        report = upgrade(describe(swapped, str(tmp_path / "broken.json")))
        expect(report, Result.WENT_BACK)
        assert "nowhere" in report.lines[0]
        third = await_job(cluster)
        assert third in report.headline
        assert gateway.statements[-1].startswith("EXECUTE PLAN '")
        assert "-old.json" in gateway.statements[-1]

        stop = SavepointRequest((running.directory / "savepoints").as_uri(), stop=True, trigger_id="1" * 32)
        cluster.trigger_savepoint(third, stop)
        sums = read_sums(wait_for_savepoint(cluster, third, "1" * 32, timeout_seconds=SECONDS).path)
        before = read_sums(cluster.read_checkpoints(third).restored_path)
        # Shipping is at most 9 of each order and comes first now; no sum has begun again.
        assert len(sums) == 20
        assert all(shipping < amount for shipping, amount in sums.values())
        assert all(sums[key][0] >= before[key][0] and sums[key][1] >= before[key][1] for key in before)


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), [(VERSIONS[0], VERSIONS[1]), (VERSIONS[1], VERSIONS[2])])
def test_a_query_moves_to_a_cluster_of_a_later_release(
    old: str, new: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "flink"
    home.mkdir()
    for jar in install_libraries(new).jars:
        (home / jar.name).symlink_to(jar)
    monkeypatch.setenv("FLINK_HOME", str(home))
    with (
        running_cluster(old, tmp_path / "old", tables=True) as before,
        running_gateway(before) as (_, old_address),
        running_cluster(new, tmp_path / "new", tables=True) as after,
        running_gateway(after) as (gateway, new_address),
    ):
        settings = [
            {"rest": before.url, "sql_gateway": old_address},
            {"rest": after.url, "sql_gateway": new_address},
        ]
        left, right = map(connect, settings)
        text = (TOTALS / "totals.sql").read_text()
        left.start(Submission(script=text, configuration={**OPTIONS, "pipeline.name": "totals"}))
        first = await_job(left)
        upgrading = {
            "savepoints": (before.directory / "savepoints").as_uri(),
            "old": {"plan": str(TOTALS / "totals.sql"), "configuration": OPTIONS},
            "new": {"plan": str(TOTALS / "swapped.sql"), "configuration": OPTIONS},
            "cluster": settings[1],
            "automatic": ["compatible", "migrated", "partial"],
        }
        job = {
            "name": "totals",
            "cluster": settings[0],
            "results": str(tmp_path / "results"),
            "target_release": new.rpartition(".")[0],
            "upgrade": upgrading,
        }
        (tmp_path / "JOB.json").write_text(json.dumps(job))
        report = upgrade(str(tmp_path / "JOB.json"))
        expect(report, Result.UPGRADED)
        assert left.read_status(first) is JobStatus.FINISHED
        second = await_job(right)
        assert second in report.headline
        assert gateway.statements[-1].startswith("EXECUTE PLAN '")
        restored = right.read_checkpoints(second).restored_path
        assert restored.rstrip("/").endswith("-migrate")

        stop = SavepointRequest((after.directory / "savepoints").as_uri(), stop=True, trigger_id="1" * 32)
        right.trigger_savepoint(second, stop)
        sums = read_sums(wait_for_savepoint(right, second, "1" * 32, timeout_seconds=SECONDS).path)
        carried = read_sums(restored)
        # Shipping comes first now; no sum has begun again.
        assert len(sums) == 20
        assert all(shipping < amount for shipping, amount in sums.values())
        assert all(sums[key][0] >= carried[key][0] and sums[key][1] >= carried[key][1] for key in carried)
