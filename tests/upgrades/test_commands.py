from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from state_pipelines.cli import main
from state_pipelines.upgrades import rehearsal, upgrade_run
from tests.clusters.servers import serving
from tests.upgrades.conftest import describe
from tests.upgrades.memory_cluster import MemoryCluster


@pytest.fixture
def cluster(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """The cluster that every description of a job names."""
    cluster = MemoryCluster(snapshot)
    for module in (upgrade_run, rehearsal):
        monkeypatch.setattr(module, "connect_clusters", lambda request: (cluster, cluster))
    return cluster


def call(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, words)
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.slow
def test_a_plan_and_its_approval(tmp_path: Path, cluster: MemoryCluster) -> None:
    request = describe(tmp_path, new_more=", max_parallelism: 256")
    code, output, _ = call("upgrade", request.file, "--plan", "--json")
    plan: dict[str, Any] = json.loads(output)["plan"]
    assert (code, plan["to_approve"]) == (0, ["rescaled"])
    code, output, _ = call("upgrade", request.file)
    assert code == 3
    assert output.splitlines()[0].startswith("orders runs the old program")
    code, output, _ = call("upgrade", request.file, "--approve", "0123456789abcdef")
    assert code == 2
    assert call("upgrade", request.file, "--plan", "--approve", plan["fingerprint"])[0] == 2
    assert [each.program for each in cluster.running] == ["old.jar"]


def test_a_rehearsal_answers_with_its_exit_code(tmp_path: Path, cluster: MemoryCluster) -> None:
    code, output, errors = call("rehearse", describe(tmp_path).file)
    assert code == 0
    assert output.splitlines()[0] == "the upgrade of orders would succeed; the job runs on"
    assert errors.splitlines()[0] == "savepoint …"
    (tmp_path / "new-job.yaml").write_text("operators: {orders: {key: Long, states: {order: String}}}")
    assert call("rehearse", describe(tmp_path, job="new_job: new-job.yaml").file)[0] == 1


@pytest.mark.slow
def test_an_endpoint_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    code, output, errors = call("upgrade", describe(tmp_path).file, "--plan")
    assert (code, output) == (2, "")
    assert "http://127.0.0.1:1" in errors


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((200, b"<html><title>Sign in</title>"), "answers with a web page ('Sign in') instead of JSON"),
        ((403, {"errors": ["no"]}), "denies access (HTTP 403)"),
        ({"jobs": []}, "no job orders at http://127.0.0.1"),
    ],
)
def test_an_endpoint_that_is_not_that_of_the_job_is_an_error(tmp_path: Path, answer: Any, reason: str) -> None:
    with serving() as server:
        server.answer = lambda received: answer
        file = Path(describe(tmp_path).file)
        file.write_text(file.read_text().replace("http://127.0.0.1:1", server.url))
        code, output, errors = call("upgrade", str(file))
    assert (code, output) == (2, "")
    assert reason in errors
