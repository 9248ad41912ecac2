"""Session clusters of real Flink on this machine: a JobManager and a TaskManager, ended by their processes."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
import zipfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from tests.flink import harness
from tests.flink.harness import HarnessError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.flink.harness import FlinkHome
    from tests.flink.jobs import Job

JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
LAUNCHER = "clusters.Launch"
"""Main class of the jars: arguments are the class with `build`, the name of the job, and options `name=value`."""

START_SECONDS = 120
SLOTS = 4
# No script computes the memory of a task manager here, so that all its sizes are set.
MEMORY = {
    "taskmanager.cpu.cores": 2,
    "taskmanager.memory.framework.heap.size": "64m",
    "taskmanager.memory.task.heap.size": "192m",
    "taskmanager.memory.framework.off-heap.size": "32m",
    "taskmanager.memory.task.off-heap.size": "16m",
    "taskmanager.memory.managed.size": "64m",
    "taskmanager.memory.network.min": "32m",
    "taskmanager.memory.network.max": "32m",
    "taskmanager.memory.jvm-metaspace.size": "128m",
    "taskmanager.memory.jvm-overhead.min": "64m",
    "taskmanager.memory.jvm-overhead.max": "64m",
    "jobmanager.memory.heap.size": "384m",
    "jobmanager.memory.off-heap.size": "64m",
    "jobmanager.memory.jvm-metaspace.size": "128m",
    "jobmanager.memory.jvm-overhead.min": "64m",
    "jobmanager.memory.jvm-overhead.max": "64m",
}
LOGGING = """\
rootLogger.level = INFO
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = ${sys:log.file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} %m%n
"""


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
    with zipfile.ZipFile(target, "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", f"Manifest-Version: 1.0\nMain-Class: {LAUNCHER}\n")
        for path in sorted(each for each in classes.rglob("*") if each.is_file()):
            name = path.relative_to(classes).as_posix()
            # Constant times: equal classes give an equal jar.
            jar.writestr(zipfile.ZipInfo(name), path.read_bytes())
    return target


def _find_ports(number: int) -> list[int]:
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


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
        HarnessError: it does not come up; with the ends of its logs.
    """
    home = harness.install_libraries(version) if tables else harness.install(version)
    rpc, rest = _find_ports(2)
    for name in ("checkpoints", "savepoints", "troubles", "temporary"):
        (directory / name).mkdir(parents=True)
    configuration = {
        **MEMORY,
        "jobmanager.rpc.address": "127.0.0.1",
        "jobmanager.rpc.port": rpc,
        "jobmanager.bind-host": "127.0.0.1",
        "taskmanager.host": "127.0.0.1",
        "taskmanager.bind-host": "127.0.0.1",
        "taskmanager.numberOfTaskSlots": SLOTS,
        "rest.address": "127.0.0.1",
        "rest.bind-address": "127.0.0.1",
        "rest.port": rest,
        "io.tmp.dirs": str(directory / "temporary"),
        "execution.checkpointing.dir": (directory / "checkpoints").as_uri(),
        "execution.checkpointing.savepoint-dir": (directory / "savepoints").as_uri(),
        "classloader.check-leaked-classloader": False,
        "heartbeat.timeout": 180_000,
        # Metrics and statistics of the REST endpoint nearly as they are at the request.
        "metrics.fetcher.update-interval": 100,
        "rest.cache.checkpoint-statistics.timeout": "1 ms",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 1000,
        "restart-strategy.fixed-delay.delay": "100 ms",
        **(settings or {}),
    }
    (directory / "config.yaml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
    (directory / "log4j2.properties").write_text(LOGGING, encoding="utf-8")
    with ExitStack() as ended:
        processes = tuple(
            ended.enter_context(_running(home, main, directory, name))
            for main, name in ((JOB_MANAGER, "jobmanager"), (TASK_MANAGER, "taskmanager"))
        )
        cluster = RunningCluster(home, f"http://127.0.0.1:{rest}", directory, processes)
        _await_slots(cluster, int(str(configuration["taskmanager.numberOfTaskSlots"])))
        yield cluster


@contextmanager
def _running(home: FlinkHome, main: str, directory: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    options = [
        "-Xmx384m",
        "-XX:MaxDirectMemorySize=96m",
        "-XX:MaxMetaspaceSize=192m",
        f"-Dtroubles={directory / 'troubles'}",
    ]
    options += [f"-Dlog.file={directory / name}.log", f"-Dlog4j.configurationFile={directory / 'log4j2.properties'}"]
    command = [*harness.java_command(home, options), main, "--configDir", str(directory)]
    with (directory / f"{name}.out").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _await_slots(cluster: RunningCluster, slots: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        if any(each.poll() is not None for each in cluster.processes) or time.monotonic() > deadline:
            outputs = "\n".join(each.read_text(errors="replace") for each in cluster.directory.glob("*.out"))
            raise HarnessError(f"no cluster of Flink {cluster.version}:\n{outputs}\n{cluster.read_logs()}")
        try:
            overview = read_json(f"{cluster.url}/overview")
        except OSError:
            overview = {}
        if overview.get("slots-total", 0) >= slots:
            return
        time.sleep(0.2)


def read_json(url: str) -> dict[str, Any]:
    """The JSON at an address."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        content: dict[str, Any] = json.load(answer)
        return content
