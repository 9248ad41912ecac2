"""The orders job on a real Flink, in a Dagster deployment of its own that upgrades it."""

from __future__ import annotations

import shutil
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from state_pipelines.flink.cluster import Submission, find_job
from state_pipelines.flink.connections import connect
from state_pipelines.flink.local_cluster import pack_jar
from tests.browser.project import JOBS, begin_project, dg_dev
from tests.deploy.services import wait_for
from tests.flink import harness
from tests.flink.clusters import running_cluster
from tests.flink.jobs import orders_job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from state_pipelines.flink.cluster import FlinkCluster
    from tests.browser.project import Deployment

JOB = "orders"
VERSION = "2.2.1"
MAIN = "com.acme.orders.OrdersJob"
RELEASES = ("v1", "v2", "broken")
"""Programs: the first one, one with a changed class, and one that cannot read a single order."""

_SECONDS = 120
_SETTINGS = {
    "execution.checkpointing.interval": "200 ms",
    # None is removed while a plan reads it.
    "execution.checkpointing.num-retained": 10_000,
    "pipeline.max-parallelism": 128,
}
_DAGSTER = {
    "telemetry": {"enabled": False},
    "nux": {"enabled": False},
    # Runs start at once; with a queue, each waits for its turn every five seconds.
    "run_coordinator": {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"},
}


@dataclass(frozen=True)
class UpgradedJob:
    """The running job, its deployment, and the jars of its programs.

    Attributes:
        cluster: where it runs.
        deployment: Dagster.
        jars: directory of `running.jar` and `next.jar`, and of the jars of the releases.
    """

    cluster: FlinkCluster
    deployment: Deployment
    jars: Path

    def release(self, program: str, running: str | None = None) -> None:
        """Put a program where the description of the job names the new one.

        Args:
            program: name of its jar.
            running: name of the jar that runs now; None for that which the description has.
        """
        for name, target in ((running, "running"), (program, "next")):
            if name is not None:
                shutil.copy(self.jars / f"{name}.jar", self.jars / "copied")
                # As a whole: a sensor looks at any time.
                (self.jars / "copied").replace(self.jars / f"{target}.jar")

    @property
    def running(self) -> str:
        """The id of the only job that runs."""
        (found,) = [each.id for each in self.cluster.list_jobs() if not each.status.is_terminal]
        return found


@contextmanager
def running_job(root: Path) -> Iterator[UpgradedJob]:
    """Run the orders job and its deployment during the block.

    Args:
        root: an empty directory.
    """
    jars = root / "jars"
    jars.mkdir()
    for release in RELEASES:
        classes = harness.compile_folders(harness.install(VERSION), list(orders_job(release).sources))
        pack_jar(classes, jars / f"{release}.jar", MAIN)
    shutil.copy(jars / "v2.jar", jars / "v2-again.jar")
    with zipfile.ZipFile(jars / "v2-again.jar", "a") as jar:
        # The same classes in another jar, as after a change that the state does not see.
        jar.writestr("META-INF/build", "2")
    with running_cluster(VERSION, root / "cluster", _SETTINGS) as running:
        cluster = connect({"rest": running.url})
        cluster.start(Submission(str(jars / "v1.jar"), parallelism=2))
        project = begin_project(root / "shop")
        (project.home / "dagster.yaml").write_text(yaml.safe_dump(_DAGSTER), encoding="utf-8")
        project.write_job(JOB, _describe(root, running.url))
        with dg_dev(project) as deployment:
            job = UpgradedJob(cluster, deployment, jars)
            job.release("v2", "v1")
            started = find_job(cluster, JOB).id
            wait_for(lambda: cluster.read_checkpoints(started).completed > 0, "a checkpoint", seconds=_SECONDS)
            yield job


def _describe(root: Path, url: str) -> dict[str, Any]:
    savepoints = root / "cluster" / "savepoints"
    return {
        "name": JOB,
        "description": JOBS[JOB]["description"],
        "roots": [str(savepoints)],
        "results": str(root / "results"),
        "uids": JOBS[JOB]["uids"],
        "migrations": JOBS[JOB]["migrations"],
        "target_release": VERSION.rpartition(".")[0],
        "cluster": {"rest": url},
        "upgrade": {
            "savepoints": savepoints.as_uri(),
            "old": {"jar": str(root / "jars" / "running.jar"), "parallelism": 2},
            "new": {"jar": str(root / "jars" / "next.jar"), "parallelism": 2},
            "automatic": ["compatible"],
        },
        "sensors": "stopped",
        "intervals": {"new_program": 1},
    }
