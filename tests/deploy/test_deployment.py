"""A whole deployment: `dagster dev`, its daemon, PostgreSQL, steps as processes, two Spark workers, snapshots on S3."""

from __future__ import annotations

import json
import shutil
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import dagster as dg
import fsspec
import pytest

import assets.definitions
from tests.deploy.services import (
    JAVA_OPTIONS,
    ROOT,
    find_free_port,
    find_postgresql,
    post_json,
    postgresql,
    read_json,
    spark_cluster,
    started,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.deploy.services import SparkCluster

pytestmark = pytest.mark.deployment

CREDENTIALS = {"S3_KEY": "tests", "S3_SECRET": "secret of the tests"}

_SECONDS = 1800
"""For all runs together."""


@dataclass(frozen=True)
class FlinkJobCase:
    """A Flink job of the deployment, and the savepoint that its runs are of.

    Attributes:
        name: of the Flink job.
        savepoint: directory in the repository.
        partition: key of the savepoint, without its date.
        erased: a key that its state has.
        abandoned: a savepoint that was given up, below the root of the job: without `_metadata`, older than the floor
            of retention.
    """

    name: str
    savepoint: Path
    partition: str
    erased: str
    abandoned: str

    @property
    def key(self) -> str:
        """The key of the savepoint, which is uploaded today."""
        return f"{datetime.now(UTC):%Y-%m-%d}_{self.partition}"

    @property
    def root(self) -> str:
        """Where its savepoints are, without the scheme."""
        return f"flink/{self.name}/savepoints"

    @property
    def config(self) -> dict[str, dict[str, dict[str, Any]]]:
        """The configuration of ops by job, for the jobs that need some, except `apply_retention`."""
        name, snapshot = self.name, f"s3://{self.root}/{self.savepoint.name}"
        paths, inputs = f"s3://flink/{name}/paths", {"snapshot": snapshot}
        return {
            f"{name}_rescale_snapshot": {f"{name}__rescaled_savepoint": {"config": {"parallelism": 3}}},
            f"{name}_rescale_path": {
                f"{name}_rescale": {"inputs": inputs, "config": {"target": f"{paths}/rescaled", "parallelism": 3}}
            },
            f"{name}_erase_keys": {
                f"{name}_erase": {"inputs": inputs, "config": {"target": f"{paths}/erased", "keys": [self.erased]}}
            },
            f"{name}_search_keys": {f"{name}_search": {"inputs": inputs, "config": {"keys": [self.erased]}}},
            f"{name}_pin_snapshot": {f"{name}_pin": {"inputs": {"snapshot": "latest"}}},
            f"{name}_register_snapshot": {f"{name}__register_snapshot": {"config": {"paths": [snapshot]}}},
        }

    def job(self, name: str) -> str:
        """The full name of one of its Dagster jobs."""
        return f"{self.name}_{name}"


FLINK_JOBS = {
    each.name: each
    for each in (
        FlinkJobCase(
            "upgrade",
            ROOT / "examples" / "upgrade" / "savepoint" / "savepoint-b085a2-58e50c40fc0d",
            "savepoint-b085a2@52f614cf",
            "customer-18",
            "savepoint-b085a2-0123456789ab/1b4e28ba-2fa1-41d2-883f-0016d3cca427",
        ),
        FlinkJobCase(
            "orders",
            ROOT / "examples" / "orders" / "savepoints" / "flink-2.2" / "savepoint-df4606-efe91b44c091",
            "savepoint-df4606@bcb9ffff",
            "order-0198",
            "savepoint-df4606-0123456789ab/0e1fbc11-6b15-4a6c-8d3e-9a0c7f2f6f10",
        ),
    )
}
"""The Flink jobs of the deployment by name; `--flink-job` chooses those whose Dagster jobs run."""

DIRECTORIES = {
    "STATE_PIPELINES_SNAPSHOTS": f"s3://{FLINK_JOBS['orders'].root}",
    "STATE_PIPELINES_RESULTS": "s3://flink/orders/results",
    "STATE_PIPELINES_TABLES": "s3://flink/orders/tables",
    "STATE_PIPELINES_REQUESTS": "s3://flink/orders/requests",
    "STATE_PIPELINES_UPGRADE_SNAPSHOTS": f"s3://{FLINK_JOBS['upgrade'].root}",
    "STATE_PIPELINES_UPGRADE_RESULTS": "s3://flink/upgrade/results",
    "STATE_PIPELINES_UPGRADE_TABLES": "s3://flink/upgrade/tables",
    # Its stream would take the cores that the other runs need.
    "STATE_PIPELINES_CUSTOMERS_SENSORS": "stopped",
}
"""Variables of `assets/defs`."""

MIGRATE, PLAN, APPLY, RESTORE = "migrate_snapshot", "plan_retention", "apply_retention", "restore_snapshot"

_REPOSITORY = assets.definitions.defs.get_repository_def()
JOBS = {
    each.name: each.partitions_def is not None
    for each in sorted(_REPOSITORY.get_all_jobs(), key=lambda each: each.name)
    if not each.name.startswith("__") and each.name.partition("_")[2] != RESTORE
}
"""Every Dagster job of the deployment, and whether its runs are of one snapshot; nothing is in quarantine here."""

DIFFERENT_JOBS = (APPLY, MIGRATE, "pin_snapshot", PLAN, "rescale_path", "search_keys")
"""Those that differ for a deployment: started by a sensor or from the UI; assets with checks on the Spark cluster, or
ops with inputs and configuration; of one partition or of none; with and without writes to S3."""

SENSOR = """
query Sensor($selector: SensorSelector!) {
  sensorOrError(sensorSelector: $selector) { __typename ... on Sensor { id } }
}
"""
STOP = """
mutation Stop($id: String!) { stopSensor(id: $id) { __typename ... on PythonError { message } } }
"""
LAUNCH = """
mutation Launch($parameters: ExecutionParams!) {
  launchRun(executionParams: $parameters) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on RunConfigValidationInvalid { errors { message } }
    ... on Error { message }
  }
}
"""
_LOCATION = {"repositoryLocationName": "assets.definitions", "repositoryName": "__repository__"}


@dataclass(frozen=True)
class Deployment:
    """A deployment that runs."""

    graphql: str
    instance: dg.DagsterInstance
    spark: SparkCluster
    bucket: Any

    def stop_sensor(self, name: str) -> None:
        """Stop a sensor that the daemon has started, as the UI does."""
        wait_for(
            lambda: name in {each.instigator_name for each in self.instance.all_instigator_state()},
            f"the sensor {name}",
            seconds=300,
        )
        found = self._post(SENSOR, selector={**_LOCATION, "sensorName": name})["sensorOrError"]
        assert found["__typename"] == "Sensor", found
        stopped = self._post(STOP, id=found["id"])["stopSensor"]
        assert stopped["__typename"] == "StopSensorMutationResult", stopped

    def launch(self, job: str, partition: str, config: Mapping[str, Any]) -> str:
        """Launch a job, for the snapshot where it is of one, as the UI does; returns the id of the run."""
        tags = [{"key": "dagster/partition", "value": partition}] if JOBS[job] else []
        parameters = {
            "selector": {**_LOCATION, "jobName": job},
            "runConfigData": {"ops": config},
            "executionMetadata": {"tags": tags},
        }
        launched = self._post(LAUNCH, parameters=parameters)["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        run_id: str = launched["run"]["runId"]
        return run_id

    def find_run(self, job: str) -> str:
        """The run of a job that a sensor starts."""
        selected = dg.RunsFilter(job_name=job)
        wait_for(lambda: bool(self.instance.get_runs(selected, limit=1)), f"a run of {job}", seconds=300)
        return self.instance.get_runs(selected, limit=1)[0].run_id

    def wait(self, run_id: str) -> str:
        """The final status of a run, with its errors."""
        end = time.monotonic() + _SECONDS
        while True:
            run = self.instance.get_run_by_id(run_id)
            assert run is not None
            if run.is_finished:
                break
            assert time.monotonic() < end, f"the run is {run.status.value} after {_SECONDS} seconds"
            time.sleep(1)
        events = [record.dagster_event for record in self.instance.all_logs(run_id)]
        failures = [
            f"{event.message}\n{getattr(event.event_specific_data, 'error', None)}"
            for event in events
            if event is not None and event.is_failure
        ]
        return "\n".join([run.status.value, *failures])

    def find_fingerprint(self, flink_job: str) -> str:
        """The fingerprint of the newest plan of retention of a Flink job."""
        event = self.instance.get_latest_materialization_event(dg.AssetKey([flink_job, "retention_plan"]))
        assert event is not None
        assert event.asset_materialization is not None
        return str(event.asset_materialization.metadata["fingerprint"].value)

    def _post(self, query: str, **variables: object) -> Any:
        answer = post_json(self.graphql, {"query": query, "variables": variables})
        assert "errors" not in answer, answer
        return answer["data"]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, cases: list[FlinkJobCase]) -> Iterator[Deployment]:
    programs = find_postgresql()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    if shutil.which("java") is None:
        pytest.skip("there is no java on the PATH")
    pytest.importorskip("dagster_postgres", reason="the extra `deploy` is not installed")
    moto = pytest.importorskip("moto.server", reason="moto is not installed").ThreadedMotoServer(port=0, verbose=False)
    directory = tmp_path_factory.mktemp("deployment")
    home = directory / "home"
    home.mkdir()
    shutil.copy(ROOT / "deploy" / "dagster.yaml", home)
    moto.start()
    host, port = moto.get_host_and_port()
    storage = {"client_kwargs": {"endpoint_url": f"http://{host}:{port}"}}
    bucket = fsspec.filesystem("s3", key=CREDENTIALS["S3_KEY"], secret=CREDENTIALS["S3_SECRET"], **storage)
    fill_bucket(bucket, cases)
    try:
        with postgresql(programs) as database, spark_cluster(directory) as cluster:
            environment = {
                **database.environment,
                **CREDENTIALS,
                "DAGSTER_HOME": str(home),
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": str(ROOT),
                "STATE_PIPELINES_STORAGE_OPTIONS": json.dumps(
                    {"s3://flink": {"key": "${S3_KEY}", "secret": "${S3_SECRET}", **storage}}
                ),
                **DIRECTORIES,
                "STATE_PIPELINES_EXECUTOR": "multiprocess",
                "STATE_PIPELINES_SPARK_MASTER": cluster.master,
                "STATE_PIPELINES_SPARK_CORES": "2",
                "STATE_PIPELINES_SPARK_MEMORY": "1g",
                "STATE_PIPELINES_SPARK_CONF": json.dumps(
                    {
                        "spark.driver.host": "127.0.0.1",
                        "spark.driver.bindAddress": "127.0.0.1",
                        # A core of each worker, so that two runs have executors at a time.
                        "spark.cores.max": "2",
                        "spark.executor.memory": "512m",
                        "spark.executor.extraJavaOptions": JAVA_OPTIONS,
                        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
                        "spark.executorEnv.PYTHONPATH": str(ROOT),
                        **{f"spark.executorEnv.{name}": value for name, value in CREDENTIALS.items()},
                    }
                ),
            }
            ui = find_free_port()
            program = str(Path(sys.executable).with_name("dagster"))
            command = [program, "dev", "-m", "assets.definitions", "-d", str(ROOT), "-h", "127.0.0.1", "-p", str(ui)]
            log = directory / "dagster.log"
            with started(command, log, environment, cwd=home) as dagster_dev:
                url = f"http://127.0.0.1:{ui}/server_info"
                wait_for(
                    lambda: "dagster_version" in read_json(url),
                    "the webserver",
                    seconds=300,
                    log=log,
                    process=dagster_dev,
                )
                with mock.patch.dict("os.environ", environment), dg.DagsterInstance.get() as instance:
                    yield Deployment(f"http://127.0.0.1:{ui}/graphql", instance, cluster, bucket)
    finally:
        moto.stop()


def fill_bucket(filesystem: Any, cases: Iterable[FlinkJobCase]) -> None:
    """Put the savepoint of each Flink job into the bucket, and an old savepoint that was given up."""
    from moto.s3.models import s3_backends

    filesystem.mkdir("flink")
    for case in cases:
        filesystem.put(str(case.savepoint), f"{case.root}/{case.savepoint.name}", recursive=True)
        filesystem.pipe_file(f"{case.root}/{case.abandoned}", b"state")
        keys = s3_backends["123456789012"]["aws"].buckets["flink"].keys
        key = f"{case.root.removeprefix('flink/')}/{case.abandoned}"
        keys[key].last_modified = datetime.now(UTC).replace(tzinfo=None) - timedelta(days=30)


@pytest.fixture(scope="module")
def cases(request: pytest.FixtureRequest) -> list[FlinkJobCase]:
    """The Flink jobs whose Dagster jobs run."""
    return [FLINK_JOBS[name] for name in chosen_flink_jobs(request.config)]


@pytest.fixture(scope="module")
def runs(deployment: Deployment, cases: list[FlinkJobCase], request: pytest.FixtureRequest) -> dict[str, str]:
    """A run of every chosen job, by name: that of `migrate_snapshot` starts by a sensor, the others as from the UI.

    The queue of `deploy/dagster.yaml` lets four run at a time.
    """
    started: dict[str, str] = {}
    jobs = chosen_jobs(request.config)
    for case in cases:
        # Its runs would do once more what the jobs do.
        deployment.stop_sensor(case.job("automation"))
        deployment.stop_sensor(case.job("table_automation"))
        plan, apply, migrate = case.job(PLAN), case.job(APPLY), case.job(MIGRATE)
        # The sensor adds the partition that other runs are of.
        started |= {plan: deployment.launch(plan, case.key, {}), migrate: deployment.find_run(migrate)}
        for job in jobs:
            if job.startswith(f"{case.name}_") and job not in started and job != apply:
                started[job] = deployment.launch(job, case.key, case.config.get(job, {}))
    for case in cases:
        assert deployment.wait(started[case.job(PLAN)]) == "SUCCESS"
        fingerprint = deployment.find_fingerprint(case.name)
        config = {f"{case.name}__applied_retention": {"config": {"fingerprint": fingerprint}}}
        started[case.job(APPLY)] = deployment.launch(case.job(APPLY), case.key, config)
    return started


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per chosen Dagster job."""
    if "job" in metafunc.fixturenames:
        metafunc.parametrize("job", chosen_jobs(metafunc.config))


def chosen_flink_jobs(config: pytest.Config) -> list[str]:
    """The names given by `--flink-job`, by default the first."""
    return config.getoption("flink_job") or [next(iter(FLINK_JOBS))]


def chosen_jobs(config: pytest.Config) -> list[str]:
    """All Dagster jobs of the Flink jobs that are given; by default the different ones of the first.

    Each session of Spark costs half a minute of CPU.
    """
    names = chosen_flink_jobs(config)
    jobs = [job for job in JOBS if job.partition("_")[0] in names]
    return jobs if config.getoption("flink_job") else [job for job in jobs if job.partition("_")[2] in DIFFERENT_JOBS]


def test_a_run_of_each_job_succeeds(deployment: Deployment, runs: dict[str, str], job: str) -> None:
    assert deployment.wait(runs[job]) == "SUCCESS"


def test_the_applied_plan_deleted_the_abandoned_savepoint(
    deployment: Deployment, runs: dict[str, str], cases: list[FlinkJobCase]
) -> None:
    for case in cases:
        assert deployment.wait(runs[case.job(APPLY)]) == "SUCCESS"
        deployment.bucket.invalidate_cache()
        assert not deployment.bucket.exists(f"{case.root}/{case.abandoned}")
        assert deployment.bucket.exists(f"{case.root}/{case.savepoint.name}/_metadata")


def test_the_daemon_is_healthy(deployment: Deployment, runs: dict[str, str]) -> None:
    wait_for(
        lambda: all(each.healthy for each in deployment.instance.get_daemon_statuses().values()),
        "the daemon",
        seconds=300,
    )


def test_history_is_in_postgresql(deployment: Deployment, runs: dict[str, str]) -> None:
    assert "Postgres" in type(deployment.instance.run_storage).__name__
    assert deployment.instance.get_runs_count() >= len(runs)


def test_runs_used_both_workers_of_the_cluster(
    deployment: Deployment, runs: dict[str, str], cases: list[FlinkJobCase]
) -> None:
    for case in cases:
        assert deployment.wait(runs[case.job(MIGRATE)]) == "SUCCESS"
    for worker in deployment.spark.workers:
        status = read_json(worker)
        assert {each["appdesc"]["name"] for each in [*status["executors"], *status["finishedexecutors"]]} == {
            "state-pipelines"
        }
