"""`demo --cluster`: the orders job on a real local Flink, upgraded to a changed class, and back from a broken one."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from state_pipelines.cli.status import show_report
from state_pipelines.errors import ClusterError, UsageError
from state_pipelines.flink.cluster import Submission, find_job
from state_pipelines.flink.connections import connect
from state_pipelines.flink.local_cluster import (
    compile_sources,
    explain_missing_jdk,
    install_jars,
    pack_jar,
    run_cluster,
)
from state_pipelines.flink.status import status
from state_pipelines.upgrades.job_upgrade import upgrade
from state_pipelines.upgrades.upgrade_reports import Result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rich.console import Console

    from state_pipelines.flink.cluster import FlinkCluster
    from state_pipelines.upgrades.upgrade_reports import UpgradeReport

VERSION = "2.2.1"
"""Flink of the demo."""

MAIN = "com.acme.orders.OrdersJob"
RELEASES = ("v1", "v2", "broken")
"""Programs: the first one, one with a changed class, and one that cannot read a single order."""

_UIDS = ("orders", "revenue-per-minute", "order-counter", "pricing", "order-source", "price-source")
_SECONDS = 120
_SETTINGS = {"execution.checkpointing.interval": "1 s", "pipeline.max-parallelism": 128}


@dataclass(frozen=True)
class ClusterDemo:
    """The demo with a cluster.

    Attributes:
        example: directory of the orders example.
        cache: directory of the jars of Flink.
        directory: of everything that it writes.
        console: for its answers.
        progress: for what takes long.
    """

    example: Path
    cache: Path
    directory: Path
    console: Console
    progress: Console

    def run(self) -> bool:
        """Run it; whether the upgrade succeeded, and the broken one went back.

        Raises:
            UsageError: there is no JDK, or Flink cannot be downloaded.
            StateError: the cluster does not come up, or something else fails.
        """
        if missing := explain_missing_jdk():
            raise UsageError(
                f"the demo compiles the job of the example, and {missing}",
                hint="Install a JDK, such as openjdk-17-jdk-headless; `state-pipelines demo` needs none",
            )
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self.progress.print(f"Flink {VERSION}: its jars, about 300 MB, are downloaded once")
        jars = install_jars(VERSION, self.cache)
        programs = {release: self._compile(jars, release) for release in RELEASES}
        with run_cluster(jars, self.directory / "cluster", _SETTINGS) as running:
            try:
                return self._show(running.url, programs)
            finally:
                self.progress.print("the cluster is ended")

    def _compile(self, jars: Sequence[Path], release: str) -> Path:
        sources = self.example / "java"
        files = [each for name in (release, "job") for each in sorted((sources / name).rglob("*.java"))]
        classes = self.directory / "classes" / release
        classes.mkdir(parents=True)
        compile_sources(jars, files, classes)
        return pack_jar(classes, self.directory / f"orders-{release}.jar", MAIN)

    def _show(self, url: str, programs: dict[str, Path]) -> bool:
        cluster = connect({"rest": url})
        self._head("The job runs")
        self._print(f"Flink {VERSION} at {url}, {programs['v1'].name}")
        cluster.start(Submission(str(programs["v1"]), parallelism=2))
        _wait(lambda: _has_checkpoint(cluster), "a checkpoint of the job")
        job = self._describe(url, programs["v1"], programs["v2"])
        show_report(status(str(job)), self.console)

        self._head("Its class Order has changed: the plan")
        self._print(f"state-pipelines upgrade {job} --plan")
        self._list(upgrade(str(job), plan_only=True))

        self._head("The upgrade")
        self._print(f"state-pipelines upgrade {job}")
        upgraded = upgrade(str(job), report=self._report)
        self._list(upgraded)

        self._head("A broken program, and the way back")
        job = self._describe(url, programs["v2"], programs["broken"])
        self._print(f"state-pipelines upgrade {job}")
        back = upgrade(str(job), report=self._report)
        self._list(back)

        self._head("What runs now")
        show_report(status(str(job)), self.console)
        return upgraded.result is Result.UPGRADED and back.result is Result.WENT_BACK

    def _describe(self, url: str, old: Path, new: Path) -> Path:
        """Write the description of the job, as docs/upgrading.md explains it."""
        content: dict[str, Any] = {
            "name": "orders",
            "cluster": {"rest": url},
            "results": str(self.directory / "results"),
            "migrations": str(self.example / "migrations"),
            "target_release": VERSION.rpartition(".")[0],
            "uids": list(_UIDS),
            "upgrade": {
                "savepoints": (self.directory / "cluster" / "savepoints").as_uri(),
                "old": {"jar": str(old), "parallelism": 2},
                "new": {"jar": str(new), "parallelism": 2},
                "automatic": ["compatible", "migrated"],
                "watch": "60s",
            },
        }
        path = self.directory / f"{new.stem}.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        return path

    def _head(self, text: str) -> None:
        self.console.print()
        self.console.print(text, style="bold")

    def _print(self, text: str) -> None:
        self.console.print(f"  {text}", soft_wrap=True, highlight=False)

    def _report(self, text: str) -> None:
        self.progress.print(f"  {text}", soft_wrap=True, highlight=False)

    def _list(self, report: UpgradeReport) -> None:
        for line in report.list_lines():
            self._print(line)


def _has_checkpoint(cluster: FlinkCluster) -> bool:
    return bool(cluster.read_checkpoints(find_job(cluster, "orders").id).completed)


def _wait(is_there: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while not is_there():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what} is not there after {_SECONDS} s", hint="Look at the logs of the cluster")
        time.sleep(0.2)
