"""A job of real Flink that is upgraded: programs, description, and its output, which would show a gap or a double."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from state_pipelines.flink.cluster import POLL_SECONDS, SavepointRequest, wait_for_savepoint
from state_pipelines.snapshot import open_snapshot
from tests.flink.clusters import make_jar
from tests.flink.jobs import Job

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.flink.cluster import FlinkCluster, JobStatus
    from tests.flink.clusters import RunningCluster

SECONDS = 120
PROGRAMS = ("v1", "v2", "broken")
UIDS = ("numbers", "pauses", "totals", "output")
ARGUMENTS = ("upgrading.UpgradedJob", "totals", "execution.checkpointing.interval=200ms")
MIGRATION = """\
revision: "0001"
operator: totals
state: total
upgrade:
  - cast: {field: sum, to: Double}
  - drop: {field: note}
  - add: {field: priority, type: Integer, expression: "0"}
downgrade:
  - drop: {field: priority}
  - add: {field: note, type: String, default: null}
  - cast: {field: sum, to: Long}
loss:
  - field: note
    reason: the upgrade drops the notes
"""


def write_programs(running: RunningCluster) -> dict[str, str]:
    """Write the jars of the programs and the revisions beside a cluster; return the paths of the jars."""
    jars = {}
    for name in PROGRAMS:
        folders = (f"tests/flink/java/upgrading/{name}", "tests/flink/java/upgrading/job")
        jar = make_jar(running.version, running.directory / f"{name}.jar", Job("upgrading.UpgradedJob", folders))
        jars[name] = str(jar)
    (running.directory / "migrations").mkdir()
    (running.directory / "migrations" / "0001_double.yaml").write_text(MIGRATION)
    return jars


def describe(running: RunningCluster, old: dict[str, Any], new: dict[str, Any], **more: Any) -> str:
    """Write the description of the job, and return its path."""
    program = {"arguments": list(ARGUMENTS), "parallelism": 2}
    settings = {
        "savepoints": (running.directory / "savepoints").as_uri(),
        "old": {**program, **old},
        "new": {**program, **new},
        "automatic": ["compatible", "migrated", "rescaled", "repeated"],
    }
    job = {
        "name": "totals",
        "cluster": {"rest": running.url},
        "results": str(running.directory / "results"),
        "target_release": running.version.rpartition(".")[0],
        "uids": list(UIDS),
        "upgrade": settings,
        **more,
    }
    path = running.directory / "JOB.json"
    path.write_text(json.dumps(job))
    return str(path)


def find_running(cluster: FlinkCluster) -> str:
    """The id of the only job that runs."""
    (found,) = [each for each in cluster.list_jobs() if not each.status.is_terminal]
    return found.id


def await_checkpoint(cluster: FlinkCluster, job: str) -> None:
    """Wait until all tasks run, which a job that is RUNNING does not say."""
    deadline = time.monotonic() + SECONDS
    while not cluster.read_checkpoints(job).completed:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_for_status(cluster: FlinkCluster, job: str, is_reached: Callable[[JobStatus], bool]) -> JobStatus:
    """Poll the status of a job until it is one of those that are waited for."""
    deadline = time.monotonic() + SECONDS
    while not is_reached(status := cluster.read_status(job)):
        assert time.monotonic() < deadline, f"job {job} is still {status}"
        time.sleep(POLL_SECONDS)
    return status


def stop_job(running: RunningCluster, cluster: FlinkCluster, job: str) -> str:
    """Stop a job with a savepoint; return its path."""
    stop = SavepointRequest((running.directory / "savepoints").as_uri(), stop=True, trigger_id="1" * 32)
    cluster.trigger_savepoint(job, stop)
    path = wait_for_savepoint(cluster, job, "1" * 32, timeout_seconds=SECONDS).path
    wait_for_status(cluster, job, lambda status: status.is_terminal)
    return path


def require_complete_output(running: RunningCluster, savepoint: str) -> None:
    """Make sure that the job has written each number once, and that its state has what it has written."""
    files = [each for each in (running.directory / "output").iterdir() if not each.name.startswith(".")]
    numbers = [int(line) for each in files for line in each.read_text().split()]
    assert numbers
    assert max(Counter(numbers).values()) == 1
    # Each of the two splits of the source is complete up to its last number.
    for split in ([each for each in numbers if each < 1 << 62], [each for each in numbers if each >= 1 << 62]):
        assert max(split) - min(split) + 1 == len(split)
    rows = open_snapshot(savepoint, uids=UIDS).operator("totals").state("total").to_arrow().to_pylist()
    assert {row["state_key"]: row["value"]["count"] for row in rows} == Counter(each % 20 for each in numbers)


def upgrade_in_killed_processes(
    running: RunningCluster, cluster: FlinkCluster, job: str, *boundaries: str
) -> tuple[dict[str, Any], list[str]]:
    """Run the command `upgrade` in processes, each killed at another boundary (`killed_upgrade`), until one ends.

    Args:
        running: the cluster.
        cluster: the same.
        job: path of the description.
        boundaries: the only ones at which processes are killed; by default all.

    Returns:
        The report of the last process, and the boundaries in order.
    """
    file = running.directory / "boundaries"
    file.write_text("")
    command = [sys.executable, "-m", "tests.flink.killed_upgrade", str(file), job, *boundaries]
    while True:
        count = len(file.read_text().splitlines())
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert len([each for each in cluster.list_jobs() if not each.status.is_terminal]) <= 1
        reached = file.read_text().splitlines()
        if done.returncode >= 0:
            assert len(reached) == count, done.stderr
            assert done.stdout, done.stderr
            return dict(json.loads(done.stdout)), reached
        assert done.returncode == -signal.SIGKILL
        assert len(reached) == count + 1
