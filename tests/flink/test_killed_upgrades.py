"""Upgrades on real Flink whose processes are killed at every boundary of their steps, and continued by the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.flink.cluster import Submission
from state_pipelines.flink.connections import connect
from state_pipelines.upgrades.upgrade_reports import Result
from tests.flink.clusters import running_cluster
from tests.flink.harness import VERSIONS
from tests.flink.upgraded_jobs import (
    ARGUMENTS,
    await_checkpoint,
    describe,
    find_running,
    require_complete_output,
    stop_job,
    upgrade_in_killed_processes,
    write_programs,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.flink, pytest.mark.spark, pytest.mark.slow]


def around(*names: str) -> set[str]:
    return {f"{when} {name}" for when in ("before", "after") for name in names}


@pytest.mark.parametrize("version", VERSIONS)
def test_an_upgrade_is_killed_between_any_two_steps(version: str, tmp_path: Path) -> None:
    with running_cluster(version, tmp_path / "cluster") as running:
        cluster = connect({"rest": running.url})
        jars = write_programs(running)
        old = {"jar": jars["v1"]}
        cluster.start(Submission(jars["v1"], arguments=ARGUMENTS, parallelism=2))
        first = find_running(cluster)
        await_checkpoint(cluster, first)

        report, killed = upgrade_in_killed_processes(running, cluster, describe(running, old, {"jar": jars["broken"]}))
        assert report["result"] == Result.WENT_BACK, report
        assert around("stop", "start broken.jar", "start v1.jar", "cancel") <= set(killed)
        second = find_running(cluster)
        assert second in report["headline"]
        # The new program and the old one were started once each.
        assert len(cluster.list_jobs()) == 3

        migrated = describe(running, old, {"jar": jars["v2"]}, migrations=str(running.directory / "migrations"))
        report, killed = upgrade_in_killed_processes(running, cluster, migrated)
        assert report["result"] == Result.UPGRADED, report
        assert around("stop", "the publication", "start v2.jar") <= set(killed)
        for step in ("stop", "check", "change", "start"):
            assert [each for each in killed if f"{step}: " in each], step
        last = find_running(cluster)
        assert last in report["headline"]
        assert len(cluster.list_jobs()) == 4
        # Nothing is left of what killed processes have begun to write.
        (result,) = [each for each in (running.directory / "results").iterdir() if each.name != "_upgrades"]
        assert "/results/upgrade-" in cluster.read_checkpoints(last).restored_path
        assert result.name in cluster.read_checkpoints(last).restored_path

        require_complete_output(running, stop_job(running, cluster, last))
