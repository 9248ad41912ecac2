"""A project of two Flink jobs as docs/dagster.md describes it, and `dg dev` on it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from benchmarks.inventory import CASES, make_snapshot
from benchmarks.inventory import JOBS as JOBS_OF_COPIES
from tests.deploy.services import ROOT, find_free_port, post_json, started, wait_for
from tests.snapshots import RETAINED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.snapshots import Case

SAVEPOINTS = {
    "orders": ROOT / "examples/orders/savepoints/flink-2.2/savepoint-df4606-efe91b44c091",
    "upgrade": ROOT / "examples/upgrade/savepoint/savepoint-b085a2-58e50c40fc0d",
}
CHECKPOINTS: dict[str, Case] = {
    job: next(each for each in RETAINED if each.case == case)
    for job, case in {"orders": "orders", "upgrade": "shop"}.items()
}

JOBS: dict[str, dict[str, Any]] = {
    "orders": {
        "description": "Orders, revenue per minute and prices.",
        "uids": ["orders", "revenue-per-minute", "order-counter", "pricing", "order-source", "price-source"],
        "migrations": str(ROOT / "examples/orders/migrations"),
        "target_release": "2.2",
        "thresholds": {"max_imbalance": 3.0, "max_hours_without_savepoint": 24},
        "retention": {"savepoints": {"last": 3}, "checkpoints": {"last": 1}, "price": 0.023},
        "owners": ["team:streaming"],
    },
    "upgrade": {
        "description": "Customers and their visits, on the way from Flink 1.20 to 2.3.",
        "uids": ["customers", "views"],
        "classes": [str(ROOT / "examples/upgrade/classes.yaml")],
        "migrations": str(ROOT / "examples/upgrade/migrations"),
        "target_release": "2.3",
        "owners": ["team:growth"],
    },
}
"""Fields of the jobs besides their directories."""

INTERVALS = dict.fromkeys(("new_snapshots", "automation", "failed_runs", "requests", "job_health"), 1)
"""Seconds between ticks: as often as the daemon looks for sensors that are due, which is every 5 seconds."""

ARCHIVE = "archive"
CLICKS = "clicks"
PAYMENTS = "payments"
"""A job with a cluster, whose sensors are started by the tests."""
CHECKPOINTS_OF_CLICKS = 121
"""Number of checkpoints, which are a minute apart."""

NOT_CLICKED = ("snapshot_profile", "snapshot_diff", "key_group_balance", "compatibility_report")
"""Assets of the job with many checkpoints that are not materialised automatically."""

OWN_FILES = (ROOT / "assets/defs/release.py", ROOT / "assets/defs/largest_orders.py")
"""A composed job and an asset downstream of the deployment of this repository, which are about the job `orders`."""

_RUN_SECONDS = 1_800
_SWITCH = """mutation Switch($selector: SensorSelector!) { startSensor(sensorSelector: $selector) {
    __typename ... on PythonError { message } } }"""
_TICKS = """query Ticks($selector: SensorSelector!) { sensorOrError(sensorSelector: $selector) {
    ... on Sensor { sensorState { ticks(limit: 10) { status skipReason } } } } }"""
_ENDED = ("SUCCESS", "FAILURE", "CANCELED")
_RUNS_OF_JOB = """query Runs($job: String!) { runsOrError(filter: {pipelineName: $job}) {
    ... on Runs { results { runId status } } } }"""
_CANCEL = """mutation Cancel($run: String!) {
    terminateRun(runId: $run, terminatePolicy: MARK_AS_CANCELED_IMMEDIATELY) { __typename } }"""
_LAUNCH = """mutation Launch($parameters: ExecutionParams!) { launchRun(executionParams: $parameters) {
    __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } } } }"""


@dataclass(frozen=True)
class Project:
    """A project for `dg`, with the directories of its jobs below `flink/`."""

    root: Path

    @property
    def home(self) -> Path:
        """The directory of `DAGSTER_HOME`."""
        return self.root / "home"

    def find(self, job: str, directory: str) -> Path:
        return self.root / "flink" / job / directory

    @property
    def environment(self) -> dict[str, str]:
        # The composed job uses the resources of this repository.
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        return {"DAGSTER_HOME": str(self.home), "DAGSTER_DISABLE_TELEMETRY": "1", "PYTHONPATH": paths}

    def describe_job(self, name: str) -> dict[str, Any]:
        """The fields of a job."""
        directories = {field: str(self.find(name, field)) for field in ("results", "requests")}
        roots = [str(self.find(name, "checkpoints")), str(self.find(name, "savepoints"))]
        checkpoint = CHECKPOINTS[name]
        moved = f"{checkpoint.written}={self.find(name, 'checkpoints')}"
        fields = {"name": name, "roots": roots, **directories, "path_mapping": [moved], "intervals": INTERVALS}
        return {**fields, **JOBS[name]}

    def describe_archive(self) -> dict[str, Any]:
        """The fields of a job of old savepoints, whose runs are launched by the tests only."""
        return {
            "name": ARCHIVE,
            "roots": [str(self.find(ARCHIVE, "savepoints"))],
            "results": str(self.find(ARCHIVE, "results")),
            "uids": JOBS["orders"]["uids"],
            "retention": {"savepoints": {"last": 1}, "min-age": "0s", "price": 0.023},
            "retention_runs": {"quarantine": "7d"},
            "sensors": "stopped",
            "intervals": INTERVALS,
        }

    def describe_clicks(self) -> dict[str, Any]:
        """The fields of a job with a checkpoint every minute, whose sensors are started by the tests."""
        return {
            "name": CLICKS,
            "roots": [str(self.find(CLICKS, "checkpoints"))],
            "results": str(self.find(CLICKS, "results")),
            "watch": {"since": "all", "kinds": ["checkpoint"], "checkpoints": "1h"},
            "automation": dict.fromkeys(NOT_CLICKED, "never"),
            "sensors": "stopped",
            "intervals": INTERVALS,
        }

    def describe_payments(self, url: str) -> dict[str, Any]:
        """The fields of a job with a cluster."""
        return {
            "name": PAYMENTS,
            "roots": [str(self.find(PAYMENTS, "savepoints"))],
            "results": str(self.find(PAYMENTS, "results")),
            "cluster": {"rest": url},
            "job": "orders",
            "thresholds": {"max_hours_without_savepoint": 1, "max_state_size": "1GiB"},
            "sensors": "stopped",
            "intervals": INTERVALS,
        }

    def write_job(self, name: str, fields: dict[str, Any]) -> None:
        """Write the YAML file of a job."""
        file = self.root / "shop" / "defs" / name / "defs.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {"type": "state_pipelines.dagster.FlinkJobComponent", "attributes": fields}
        file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")

    def call(self, *command: str) -> None:
        """Run a program of the environment in the project."""
        program = Path(sys.executable).parent / command[0]
        done = subprocess.run(
            [str(program), *command[1:]],
            cwd=self.root,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def make_project(root: Path, flink: str) -> Project:
    """Follow docs/dagster.md: its `pyproject.toml`, `dg scaffold`, its `definitions.py`; then the jobs in YAML.

    Args:
        root: directory of the project.
        flink: address of the cluster of `PAYMENTS`.
    """
    project = begin_project(root)
    shutil.copy(ROOT / "dagster.yaml", project.home)
    project.call("dg", "scaffold", "defs", "state_pipelines.dagster.FlinkJobComponent", "orders")
    assert (root / "shop" / "defs" / "orders" / "defs.yaml").exists()
    for name in JOBS:
        for directory in ("checkpoints", "savepoints", "requests"):
            project.find(name, directory).mkdir(parents=True)
        project.write_job(name, project.describe_job(name))
    project.find(ARCHIVE, "savepoints").mkdir(parents=True)
    project.write_job(ARCHIVE, project.describe_archive())
    project.find(PAYMENTS, "savepoints").mkdir(parents=True)
    project.write_job(PAYMENTS, project.describe_payments(flink))
    _take_checkpoints(project.find(CLICKS, "checkpoints"))
    project.write_job(CLICKS, project.describe_clicks())
    for file in OWN_FILES:
        shutil.copy(file, root / "shop" / "defs")
    return project


def begin_project(root: Path) -> Project:
    """Write the `pyproject.toml` and the `definitions.py` of docs/dagster.md: a project without jobs."""
    project = Project(root)
    project.home.mkdir(parents=True)
    documented = (ROOT / "docs" / "dagster.md").read_text(encoding="utf-8")
    # With a `definitions.py`, which has the executor: a process for each step would take most of the time of runs.
    described = re.sub("^code_location_target_module.*\n", "", _find_block(documented, "toml"), flags=re.MULTILINE)
    (root / "pyproject.toml").write_text(described, encoding="utf-8")
    (root / "shop" / "defs").mkdir(parents=True)
    (root / "shop" / "definitions.py").write_text(_find_block(documented, "python"), encoding="utf-8")
    return project


def _take_checkpoints(root: Path) -> None:
    """Make a checkpoint for each of the last minutes."""
    now = int(time.time())
    for minutes in range(CHECKPOINTS_OF_CLICKS):
        number = JOBS_OF_COPIES * (CHECKPOINTS_OF_CLICKS - minutes) + CASES.index("heap-checkpoint")
        make_snapshot(root, number)
        (metadata,) = root.glob(f"*/chk-{number}/_metadata")
        os.utime(metadata, (now - 60 * minutes, now - 60 * minutes))


def _find_block(text: str, language: str) -> str:
    """The first code block of a language in Markdown."""
    found = re.search(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return textwrap.dedent(found[1])


@dataclass(frozen=True)
class Deployment:
    """A running `dg dev`."""

    project: Project
    url: str

    def query(self, text: str, **variables: Any) -> Any:
        """The data that GraphQL answers."""
        answer = post_json(f"{self.url}/graphql", {"query": text, "variables": variables})
        assert "errors" not in answer, answer
        return answer["data"]

    def drop_snapshots(self) -> None:
        """Put the savepoint and the retained checkpoint of each job below its roots."""
        for name, savepoint in SAVEPOINTS.items():
            checkpoint = CHECKPOINTS[name].path.parent
            targets = [
                shutil.copytree(savepoint, self.project.find(name, "savepoints") / savepoint.name),
                shutil.copytree(checkpoint, self.project.find(name, "checkpoints") / checkpoint.name),
            ]
            for target in targets:
                for file in target.rglob("_metadata"):
                    file.touch()

    def wait_for(self, materialized: dict[str, int]) -> None:
        """Wait until assets have a number of materialised partitions; 1 for those without partitions."""

        def is_done() -> bool:
            counts = self._count_materialized()
            return all(counts.get(name, 0) >= number for name, number in materialized.items())

        wait_for(is_done, f"{materialized}, but {self._count_materialized()}", seconds=_RUN_SECONDS)

    def _count_materialized(self) -> dict[str, int]:
        text = "assetKey { path } partitionStats { numMaterialized } assetMaterializations(limit: 1) { runId }"
        return {
            "/".join(node["assetKey"]["path"]): (
                len(node["assetMaterializations"])
                if node["partitionStats"] is None
                else node["partitionStats"]["numMaterialized"]
            )
            for node in self.query(f"{{assetNodes {{ {text} }}}}")["assetNodes"]
        }

    def count_failed_partitions(self, asset: str) -> int:
        """The number of partitions of an asset whose newest run has failed."""
        path = json.dumps(asset.split("/"))
        stats = "... on AssetNode { partitionStats { numFailed } }"
        node = self.query(f"{{assetNodeOrError(assetKey: {{path: {path}}}) {{ {stats} }} }}")["assetNodeOrError"]
        return int(node["partitionStats"]["numFailed"])

    def list_checks(self, asset: str) -> dict[str, str]:
        """The status of the newest execution of each check of an asset, when none is in progress."""
        found: dict[str, str] = {}

        def have_ended() -> bool:
            found.clear()
            found.update(self._query_checks(asset))
            return "IN_PROGRESS" not in found.values()

        wait_for(have_ended, f"the checks of {asset}", seconds=_RUN_SECONDS)
        return found

    def _query_checks(self, asset: str) -> dict[str, str]:
        path = json.dumps(asset.split("/"))
        text = f"""{{assetNodeOrError(assetKey: {{path: {path}}}) {{ ... on AssetNode {{
            assetChecksOrError {{ ... on AssetChecks {{
            checks {{ name executionForLatestMaterialization {{ status }} }} }} }} }} }} }}"""
        checks = self.query(text)["assetNodeOrError"]["assetChecksOrError"]["checks"]
        return {
            each["name"]: each["executionForLatestMaterialization"]["status"]
            for each in checks
            if each["executionForLatestMaterialization"]
        }

    def list_runs(self) -> dict[str, str]:
        """The status of each run, by its id."""
        runs = self.query("{runsOrError { ... on Runs { results { runId status } } }}")["runsOrError"]["results"]
        return {each["runId"]: each["status"] for each in runs}

    @property
    def location(self) -> dict[str, str]:
        """Names of the code location and of its repository."""
        text = "{repositoriesOrError { ... on RepositoryConnection { nodes { name location { name } } } }}"
        (node,) = self.query(text)["repositoriesOrError"]["nodes"]
        return {"repositoryName": node["name"], "repositoryLocationName": node["location"]["name"]}

    def submit(
        self, job: str, ops: dict[str, Any] | None = None, *, key: str | None = None, asset: str | None = None
    ) -> str:
        """Launch a job as the launchpad does; return the id of the run.

        Args:
            job: the job.
            ops: configuration of its ops.
            key: partition key.
            asset: the only asset to materialise.
        """
        selected = {} if asset is None else {"assetSelection": [{"path": asset.split("/")}]}
        parameters = {
            "selector": {**self.location, "jobName": job, **selected},
            "runConfigData": {"ops": ops or {}},
            "executionMetadata": {"tags": [] if key is None else [{"key": "dagster/partition", "value": key}]},
        }
        launched = self.query(_LAUNCH, parameters=parameters)["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        return str(launched["run"]["runId"])

    def launch(
        self, job: str, ops: dict[str, Any] | None = None, *, key: str | None = None, asset: str | None = None
    ) -> tuple[str, str]:
        """Launch a job as `submit` does; return the id of the run, and its final status."""
        run = self.submit(job, ops, key=key, asset=asset)
        wait_for(lambda: self.list_runs()[run] in _ENDED, f"the run {run} of {job}", seconds=_RUN_SECONDS)
        return run, self.list_runs()[run]

    def wait_for_runs(self, job: str, number: int) -> tuple[str, str]:
        """Wait until a job has a number of runs that have all ended; return id and status of the newest one."""
        found: list[dict[str, str]] = []

        def have_ended() -> bool:
            found[:] = self.query(_RUNS_OF_JOB, job=job)["runsOrError"]["results"]
            return len(found) >= number and all(each["status"] in _ENDED for each in found)

        wait_for(have_ended, f"{number} runs of {job}", seconds=_RUN_SECONDS)
        assert len(found) == number, found
        return found[0]["runId"], found[0]["status"]

    def cancel(self, run: str) -> None:
        """Cancel a run, wherever it is."""
        assert self.query(_CANCEL, run=run)["terminateRun"]["__typename"] == "TerminateRunSuccess"

    def start_sensor(self, name: str) -> None:
        """Switch a sensor on, and wait until it has ticked."""
        selector = {**self.location, "sensorName": name}
        assert self.query(_SWITCH, selector=selector)["startSensor"]["__typename"] == "Sensor"
        wait_for(lambda: bool(self.list_ticks(name)), f"a tick of {name}", seconds=_RUN_SECONDS)

    def list_ticks(self, sensor: str) -> list[str]:
        """The reasons of the last ticks of a sensor that have ended without a run, the newest first."""
        selector = {**self.location, "sensorName": sensor}
        ticks = self.query(_TICKS, selector=selector)["sensorOrError"]["sensorState"]["ticks"]
        return [each["skipReason"] or "" for each in ticks if each["status"] != "STARTED"]

    def list_partitions(self, asset: str) -> list[str]:
        """The partition keys of an asset."""
        path = json.dumps(asset.split("/"))
        node = self.query(
            f"{{assetNodeOrError(assetKey: {{path: {path}}}) {{ ... on AssetNode {{ partitionKeys }} }} }}"
        )
        return list(node["assetNodeOrError"]["partitionKeys"])

    def request(self, job: str, name: str, text: str) -> dict[str, Any]:
        """Write a request; return its result when the run has succeeded."""
        file = self.project.find(job, "requests") / name
        file.write_text(text, encoding="utf-8")
        result = file.with_name(f"{name}.result.json")
        wait_for(result.exists, result.name, seconds=_RUN_SECONDS)
        content: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        assert content["status"] == "succeeded", content
        return content


@contextmanager
def dg_dev(project: Project) -> Iterator[Deployment]:
    """Run `dg dev` during the block."""
    port = find_free_port()
    url = f"http://127.0.0.1:{port}"
    command = [str(Path(sys.executable).parent / "dg"), "dev", "--host", "127.0.0.1", "--port", str(port)]
    log = project.root / "dagster.log"
    ready = {"query": "{repositoriesOrError { __typename ... on RepositoryConnection { nodes { name } } }}"}
    with started(command, log, project.environment, cwd=project.root) as process:
        wait_for(
            lambda: bool(post_json(f"{url}/graphql", ready)["data"]["repositoriesOrError"].get("nodes")),
            "Dagster",
            seconds=180,
            log=log,
            process=process,
        )
        yield Deployment(project, url)
