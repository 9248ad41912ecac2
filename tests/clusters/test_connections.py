from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import ClusterError, NotFoundError, UnsupportedError, UsageError
from state_pipelines.flink.cluster import JobStatus, SavepointRequest, Submission
from state_pipelines.flink.connections import connect, open_job
from tests.clusters.servers import Server, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JOB = "a" * 32
SECRET = "geh3im-4711"

SCRIPT = """\
import json, sys
verb, *words = sys.argv[1:]
fields = json.load(sys.stdin)
if verb == "status":
    if words[0] != "a" * 32:
        sys.exit("no such job") if words[0] == "b" * 32 else sys.exit(4)
    print(json.dumps({"status": "RUNNING"}))
elif verb == "start":
    print(json.dumps({"jobid": fields["job_id"], "seen": words}))
    open("started", "w").write(json.dumps([words, fields["savepoint"]]))
elif verb == "text":
    print("done")
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "names no cluster"),
        ({"rest": "http://a", "commands": {"cancel": "x"}}, "has rest and commands"),
        ({"rest": "http://a", "tokens": "x"}, "unknown settings tokens"),
        ({"rest": "http://a", "token": 5}, "token of `cluster` is not text"),
        ({"rest": "http://a", "token": "x", "user": "y"}, "a token and a user"),
        ({"rest": "http://a", "token": "x", "token_file": "y"}, "token and token_file"),
        ({"rest": "http://a", "read_seconds": 0}, "not a number of seconds"),
        ({"rest": "http://a", "headers": ["x"]}, "headers"),
        ({"rest": "orders"}, "not the address of a cluster"),
        ({"commands": {}}, "not a mapping of verbs"),
        ({"commands": {"dance": "x"}}, "unknown verbs dance"),
        ({"commands": {"cancel": "x 'y"}}, "not a command line"),
        ({"commands": {"cancel": [1]}}, "neither a command line nor a list"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        connect(settings)


def test_a_description_names_its_cluster_and_job(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_OF_FLINK", SECRET)
    server.on(f"GET /jobs/{JOB}/status", {"status": "RUNNING"})
    path = tmp_path / "orders.yaml"
    path.write_text(f'name: orders\ncluster: {{rest: "{server.url}/flink/", token: "${{TOKEN_OF_FLINK}}"}}\n')
    cluster, name = open_job(str(path))
    assert name == "orders"
    with pytest.raises(NotFoundError):
        cluster.read_status(JOB)
    assert server.received[0].path == f"/flink/jobs/{JOB}/status"
    assert server.received[0].headers["Authorization"] == f"Bearer {SECRET}"
    assert SECRET not in repr(cluster)
    text = path.read_text().replace("\n", "\n  ")
    path.write_text(f"type: state_pipelines.dagster.FlinkJobComponent\nattributes:\n  job: shop\n  {text}")
    assert open_job(str(path))[1] == "shop"
    assert open_job(server.url)[1] is None


@pytest.mark.parametrize("text", ["[]", "name: orders", "cluster: [", "cluster: {rest: '{{ env(1) }}'}", "cluster: 5"])
def test_a_description_without_a_cluster_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "orders.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        open_job(str(path))
    assert caught.value.where.file == str(path)


@pytest.fixture
def script(tmp_path: Path) -> list[str]:
    path = tmp_path / "flink.py"
    path.write_text(SCRIPT)
    return [sys.executable, str(path)]


@pytest.mark.slow
def test_commands_speak_to_a_cluster(script: list[str], tmp_path: Path) -> None:
    commands = {
        "read_status": [*script, "status", "{job_id}"],
        "start": [*script, "start", "{savepoint}", "{arguments}", "{unknown}", "{parallelism}"],
        "cancel": [*script, "cancel", "{job_id}"],
        "trigger_savepoint": [*script, "nothing"],
        "list_jobs": [*script, "text"],
        "describe": [str(tmp_path / "none")],
    }
    cluster = connect({"commands": commands}, tmp_path)
    assert cluster.read_status(JOB) is JobStatus.RUNNING
    with pytest.raises(ClusterError, match="ended with 1: no such job"):
        cluster.read_status("b" * 32)
    with pytest.raises(NotFoundError):
        cluster.read_status("c" * 32)
    submission = Submission(savepoint="s3://b/s; rm -rf x", arguments=("--a", "b c"), job_id=JOB)
    assert cluster.start(submission) == JOB
    assert (tmp_path / "started").read_text() == (
        '[["s3://b/s; rm -rf x", "[\\"--a\\", \\"b c\\"]", "{unknown}", ""], "s3://b/s; rm -rf x"]'
    )
    cluster.cancel(JOB)
    assert cluster.trigger_savepoint(JOB, SavepointRequest(trigger_id="t" * 32)) == "t" * 32
    with pytest.raises(ClusterError, match="prints no JSON object"):
        cluster.list_jobs()
    with pytest.raises(ClusterError, match="cannot be run"):
        cluster.describe()
    with pytest.raises(UnsupportedError, match="has no stop"):
        cluster.trigger_savepoint(JOB, SavepointRequest(stop=True))


@pytest.mark.slow
def test_a_command_that_takes_too_long_is_in_doubt(tmp_path: Path) -> None:
    # It waits for a pipe that nobody writes to.
    waits = ["sh", "-c", "mkfifo pipe; read line < pipe"]
    cluster = connect({"commands": {"cancel": waits, "read_status": waits}, "command_seconds": 0.2}, tmp_path)
    with pytest.raises(ClusterError, match=r"longer than 0\.2 s") as caught:
        cluster.cancel(JOB)
    assert caught.value.is_in_doubt
