"""The adaptive scheduler of real Flink: another parallelism while a job runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.flink.cluster import Submission
from state_pipelines.flink.http_client import HttpClient
from state_pipelines.flink.rest_cluster import RestCluster
from tests.flink.clusters import make_jar, running_cluster
from tests.flink.harness import VERSIONS
from tests.flink.test_running_clusters import TROUBLED, await_running, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.flink, pytest.mark.slow]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_parallelism_of_a_running_job_changes(version: str, tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    with running_cluster(version, tmp_path / "cluster", {"jobmanager.scheduler": "adaptive"}) as running:
        cluster = RestCluster(HttpClient(running.url))
        jar = make_jar(version, tmp_path / "job.jar")
        arguments = (TROUBLED, "adaptive", "execution.checkpointing.interval=100ms")
        job = cluster.start(Submission(str(jar), arguments=arguments, parallelism=2))
        await_running(cluster, job)
        before = cluster.read_parallelism(job)
        assert set(before.values()) == {(1, 2)}
        wanted = dict.fromkeys(before, (1, 1))
        cluster.change_parallelism(job, wanted)
        until(lambda: {each.parallelism for each in cluster.read_job(job).vertices} == {1})
        await_running(cluster, job)
        assert cluster.read_parallelism(job) == wanted
        assert cluster.read_checkpoints(job).restored
        cluster.cancel(job)
