"""Session clusters of real Flink on this machine: a JobManager and a TaskManager, ended by their processes."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.flink.local_cluster import pack_jar, run_cluster
from tests.flink import harness

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.flink.harness import FlinkHome
    from tests.flink.jobs import Job

LAUNCHER = "clusters.Launch"
"""Main class of the jars: arguments are the class with `build`, the name of the job, and options `name=value`."""


@dataclass(frozen=True)
class RunningCluster:
    """A session cluster that runs.

    Attributes:
        home: its Flink.
        url: its REST endpoint.
        directory: its own directory, with `checkpoints`, `savepoints`, `troubles` and the logs.
        processes: JobManager and TaskManager.
    """

    home: FlinkHome
    url: str
    directory: Path
    processes: tuple[subprocess.Popen[bytes], ...]

    @property
    def version(self) -> str:
        """Its Flink, such as `2.2.1`."""
        return self.home.version

    @property
    def troubles(self) -> Path:
        """Directory whose files get a job of `TroubledJob` into trouble."""
        return self.directory / "troubles"

    @contextmanager
    def trouble(self, name: str) -> Iterator[None]:
        """Get the job of `TroubledJob` into trouble during the block."""
        path = self.troubles / name
        path.touch()
        try:
            yield
        finally:
            path.unlink()

    def read_logs(self) -> str:
        """The ends of the logs, for messages of tests that fail."""
        logs = sorted(self.directory.glob("*.log"))
        return "\n".join(f"== {each.name}\n{each.read_text(errors='replace')[-6000:]}" for each in logs)


def make_jar(version: str, target: Path, job: Job | None = None) -> Path:
    """Compile a job of the tests into a jar whose main class is `LAUNCHER`.

    Args:
        version: of Flink.
        target: the jar.
        job: the job; `TroubledJob` is always in the jar.
    """
    home = harness.install_libraries(version) if job is not None and job.tables else harness.install(version)
    folders = ["tests/flink/java/clusters", *(each.format(major=home.major) for each in (job.sources if job else ()))]
    classes = harness.compile_folders(home, folders)
    return pack_jar(classes, target, LAUNCHER)


@contextmanager
def running_cluster(
    version: str, directory: Path, settings: Mapping[str, object] | None = None, *, tables: bool = False
) -> Iterator[RunningCluster]:
    """Run a session cluster during the block.

    Args:
        version: of Flink.
        directory: an empty directory for configuration, logs, checkpoints and savepoints.
        settings: further options of Flink, before the defaults of this module.
        tables: it has the runtime and the planner of SQL.

    Raises:
        ClusterError: it does not come up; with the ends of its logs.
    """
    home = harness.install_libraries(version) if tables else harness.install(version)
    options = [f"-Dtroubles={directory / 'troubles'}"]
    with run_cluster(home.jars, directory, settings, options) as running:
        (directory / "troubles").mkdir()
        yield RunningCluster(home, running.url, directory, running.processes)
