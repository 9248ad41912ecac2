"""Whole upgrades of jobs of the Kubernetes operator, against a server that speaks the Kubernetes API."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.upgrades.rehearsal import rehearse
from state_pipelines.upgrades.upgrade_reports import Result
from state_pipelines.upgrades.upgrade_run import upgrade
from tests.clusters.kubernetes_api import KubernetesApi, OperatedJob, write_kubeconfig
from tests.clusters.servers import serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from state_pipelines.upgrades.upgrade_reports import UpgradeReport

pytestmark = pytest.mark.slow


def hurry(seconds: float) -> None:
    """Wait for nothing: the operator goes on whenever it is asked."""


def run(job: str, **options: Any) -> UpgradeReport:
    return upgrade(job, sleep=hurry, **options)


@pytest.fixture(params=["FlinkDeployment", "FlinkSessionJob"])
def operated(
    request: pytest.FixtureRequest, tmp_path: Path, snapshot: Path
) -> Iterator[tuple[OperatedJob, Callable[..., str]]]:
    """A job that runs, and what writes the description of its upgrade and gives its path."""
    api, savepoints = KubernetesApi(), tmp_path / "savepoints"
    is_session = request.param == "FlinkSessionJob"
    plural = "flinksessionjobs" if is_session else "flinkdeployments"
    job = {"jarURI": "local:///jobs/orders-1.jar", "parallelism": 1, "state": "running", "upgradeMode": "savepoint"}
    spec: dict[str, Any] = {
        "job": job,
        "flinkConfiguration": {"execution.checkpointing.savepoint-dir": str(savepoints)},
    }
    spec |= {"deploymentName": "session"} if is_session else {"image": "orders:1", "flinkVersion": "v2_2"}
    created, answer = api.create(plural, {"metadata": {"name": "orders"}, "spec": spec})
    assert created == 201, answer
    operated = OperatedJob(api, plural, "orders", snapshot)
    old, new, broken = (
        {"jar": f"local:///jobs/orders-{each}.jar"} if is_session else {"image": f"orders:{each}"}
        for each in (1, 2, "broken")
    )
    with serving() as kubernetes, serving() as flink:
        kubernetes.answer, flink.answer = operated.answer_api, operated.answer_flink
        write_kubeconfig(tmp_path / "kubeconfig", kubernetes.url)

        def describe(*, is_broken: bool = False, directory: Path = savepoints, **more: Any) -> str:
            cluster = {
                "kubernetes": "orders",
                "namespace": "flink",
                "kind": request.param,
                "kubeconfig": str(tmp_path / "kubeconfig"),
                "rest": flink.url,
            }
            programs = {"old": old, "new": {**(broken if is_broken else new), **more}}
            settings = {"savepoints": str(directory), **programs, "automatic": ["compatible", "rescaled"]}
            path = tmp_path / "JOB.yaml"
            body = {"name": "orders", "cluster": cluster, "results": "results", "job_classes": [], "upgrade": settings}
            path.write_text(json.dumps(body))
            return str(path)

        operated.broken.add(str(next(iter(broken.values()))))
        yield operated, describe


def test_the_operator_redeploys_the_new_program_from_the_changed_savepoint(
    operated: tuple[OperatedJob, Callable[..., str]], tmp_path: Path
) -> None:
    job, describe = operated
    file = describe(max_parallelism=256)
    assert rehearse(file, sleep=hurry).ok
    report = run(file)
    assert report.result is Result.UPGRADED, report.list_lines()
    (_, without), (second, restored) = job.started
    assert (without, "2" in second) == ("", True)
    assert restored.startswith(str(tmp_path / "results" / "upgrade-"))
    # A second start finds the job that runs.
    assert run(file).headline == report.headline
    assert len(job.started) == 2


def test_the_old_program_comes_back_from_its_savepoint(
    operated: tuple[OperatedJob, Callable[..., str]], tmp_path: Path
) -> None:
    job, describe = operated
    report = run(describe(is_broken=True))
    assert report.result is Result.WENT_BACK, report.list_lines()
    assert "the new program is broken" in report.lines[0]
    programs = [program for program, _ in job.started]
    assert programs[2] == programs[0] != programs[1]
    # Both were started from the savepoint that the job was suspended with.
    assert job.started[1][1] == job.started[2][1]
    assert job.started[2][1] in report.headline


def test_another_directory_of_savepoints_is_refused(
    operated: tuple[OperatedJob, Callable[..., str]], tmp_path: Path
) -> None:
    job, describe = operated
    report = run(describe(directory=tmp_path / "elsewhere"))
    assert report.result is Result.REFUSED
    assert f"is configured to write savepoints to {tmp_path / 'savepoints'}" in report.lines[0]
    assert len(job.started) == 1
