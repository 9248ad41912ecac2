"""Runs, sensors, schedules and resources with wrong configurations and storages that cannot be reached.

Each ends in a failure of one to four lines that names the field, the file or the option, without secrets and without
Spark. Every configuration of the package has a case.
"""

from __future__ import annotations

import inspect
import re
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from typing import TYPE_CHECKING, Any, get_args

import dagster as dg
import pytest
from dagster._core.execution.api import create_execution_plan
from pydantic import ValidationError

import state_pipelines.dagster
from state_pipelines.dagster import ExpectationsResource, FlinkJob, SparkResource, build_flink_job
from state_pipelines.dagster.flink_asset import FileModeName
from state_pipelines.dagster.job_settings import PlanApplication, RetentionSettings, StreamSettings
from state_pipelines.errors import StateError
from state_pipelines.operations.write.keyed_rewrite import Format, NewFormat
from state_pipelines.operations.write.publication import FileMode
from tests.dagster.conftest import MIGRATIONS, SAVEPOINTS, Deployment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from enum import Enum
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("no_storages")

SECRET = "wJalrXUtnFEMI"
UNREACHABLE = f"s3://AKIA:{SECRET}@no-such-bucket/flink/chk-1"
SNAPSHOT = str(SAVEPOINTS["2.2"])
OPS = frozenset({"rescale", "erase", "search", "pin", "restore", "plan_job_upgrade"})
INPUTS = OPS - {"restore", "plan_job_upgrade"}
"""Ops with the prefix of the job, and those of them that take a snapshot."""


class NoSpark(SparkResource):
    """A Spark that must not be started."""

    @property
    def session(self) -> Any:
        raise AssertionError("Spark is started before the configuration is checked")


def define(job: FlinkJob) -> dg.Definitions:
    return _define(job.model_dump_json())


@cache
def _define(text: str) -> dg.Definitions:
    job = FlinkJob.model_validate_json(text)
    resources = {"spark": NoSpark(), "expectations": ExpectationsResource()}
    return dg.Definitions.merge(
        build_flink_job(job), dg.Definitions(resources=resources, executor=dg.in_process_executor)
    )


def name_op(job: FlinkJob, name: str) -> str:
    return job.prefix(name) if name in OPS else job.op(name)


def write_config(job: FlinkJob, ops: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The run configuration of ops; `snapshot` is the input of those that take one."""
    config = {}
    for name, fields in ops.items():
        inputs = {"snapshot": fields["snapshot"]} if name in INPUTS and "snapshot" in fields else {}
        rest = {key: value for key, value in fields.items() if key not in inputs}
        config[name_op(job, name)] = {**({"inputs": inputs} if inputs else {}), "config": rest}
    return {"ops": config}


def run(job: FlinkJob, instance: dg.DagsterInstance, name: str, key: str | None, config: dict[str, Any]) -> str:
    """Run a job; the message of its failure, which the user sees first."""
    result = (
        define(job)
        .resolve_job_def(job.prefix(name))
        .execute_in_process(
            partition_key=key,
            instance=instance,
            raise_on_error=False,
            asset_selection=[job.key(step) for step in config] if key is not None else None,
            run_config=write_config(job, config),
        )
    )
    assert not result.success
    event = result.filter_events(lambda each: each.is_step_failure)[0]
    data = event.step_failure_data
    assert data.user_failure_data is not None, data.error
    description = data.user_failure_data.description
    assert description
    assert data.error is not None
    # Nor do the causes, which the page of the run shows below it.
    cause: Any = data.error
    shown = ""
    while cause is not None:
        shown += str(cause.message)
        cause = cause.cause
    assert SECRET not in shown
    return description


def require_short(message: str, *named: str) -> None:
    assert 1 <= len(message.strip().splitlines()) <= 4, message
    assert "Traceback" not in message
    assert SECRET not in message
    for each in named:
        assert each in message


PARTITIONED: tuple[tuple[str, str, dict[str, Any], tuple[str, ...]], ...] = (
    ("rescale_snapshot", "rescaled_savepoint", {"parallelism": 0}, ("parallelism of 0",)),
    ("rescale_snapshot", "rescaled_savepoint", {"parallelism": 9, "max_parallelism": 8}, ("9", "max parallelism of 8")),
    ("rescale_snapshot", "rescaled_savepoint", {"request": f"merge: {{with: ['{UNREACHABLE}']}}"}, ("no-such-bucket",)),
    ("convert_snapshot", "converted_savepoint", {"format": "keep", "compress": True}, ("compression", "keep")),
    ("convert_snapshot", "converted_savepoint", {"target": SNAPSHOT}, (SNAPSHOT,)),
    ("convert_snapshot", "converted_savepoint", {"target": UNREACHABLE}, ("no-such-bucket", "credentials")),
    ("migrate_snapshot", "compatibility_report", {"to": "9999"}, ("9999",)),
    ("migrate_snapshot", "compatibility_report", {"from_revision": "9999"}, ("9999",)),
    ("describe_snapshot", "key_group_balance", {"parallelism": 9, "max_parallelism": 8}, ("9", "max parallelism of 8")),
    ("describe_snapshot", "key_group_balance", {"parallelism": 0}, ("parallelism of 0",)),
    ("describe_snapshot", "snapshot_profile", {"ttl": {"order": "soon"}}, ("ttl.order", "soon")),
    ("describe_snapshot", "snapshot_diff", {"previous": "no-such-key"}, ("no-such-key",)),
)
"""Job, asset, its configuration, and what the failure names; for a snapshot that is there."""

OTHERS: tuple[tuple[str, str, dict[str, Any], tuple[str, ...]], ...] = (
    ("rescale_path", "rescale", {"snapshot": "/no/such", "target": "OUT", "parallelism": 2}, ("/no/such",)),
    ("rescale_path", "rescale", {"snapshot": UNREACHABLE, "target": "OUT", "parallelism": 2}, ("no-such-bucket",)),
    ("rescale_path", "rescale", {"snapshot": SNAPSHOT, "target": SNAPSHOT, "parallelism": 2}, (SNAPSHOT,)),
    ("rescale_path", "rescale", {"snapshot": SNAPSHOT, "target": f"{SNAPSHOT}/x", "parallelism": 2}, (SNAPSHOT,)),
    ("rescale_path", "rescale", {"snapshot": SNAPSHOT, "target": "nonsense://x", "parallelism": 2}, ("nonsense",)),
    ("erase_keys", "erase", {"snapshot": UNREACHABLE, "keys": ["a"]}, ("no-such-bucket",)),
    ("search_keys", "search", {"snapshot": UNREACHABLE, "keys": ["a"]}, ("no-such-bucket",)),
    ("pin_snapshot", "pin", {"snapshot": "no-such"}, ("no-such",)),
    ("pin_snapshot", "pin", {"snapshot": SNAPSHOT}, (SNAPSHOT, "not below a root")),
    ("restore_snapshot", "restore", {"snapshot": "no-such"}, ("no-such", "quarantine")),
    ("register_snapshot", "register_snapshot", {"paths": ["/no/such"]}, ("/no/such",)),
    ("register_snapshot", "register_snapshot", {"paths": [UNREACHABLE]}, ("no-such-bucket", "credentials")),
    ("apply_retention", "applied_retention", {"fingerprint": "0123"}, ("0123",)),
    ("bootstrap_savepoint", "bootstrapped_savepoint", {"base": "/no/such"}, ("/no/such",)),
    ("bootstrap_savepoint", "bootstrapped_savepoint", {}, ("bootstrap.yaml", "operatos")),
    ("take_savepoint", "savepoint", {"format": "canonical"}, ("checkpoints",)),
    ("upgrade", "plan_job_upgrade", {"approve": "0123"}, ("http://127.0.0.1:1",)),
)
"""The same for jobs without partitions."""

UNUSED = {
    "AuditConfig": "its only field is a flag",
    "CheckpointConfig": "its only field is a flag",
    "PruneConfig": "its only field is a flag",
    "MigrationRunConfig": "that of compatibility_report, with a directory for temporary files",
    "SavepointConfig": "it needs a cluster: test_job_health.py",
    "VerifyConfig": "its only field is an enum",
    "QueryConfig": "needs a job with new_query, see test_sql_queries",
    "QueryRunConfig": "that of sql_compatibility_report, with tables and a directory for temporary files",
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, str]]:
    """A job with all that is optional, and the key of its snapshot."""
    root = tmp_path_factory.mktemp("wrong_use")
    (root / "bootstrap.yaml").write_text("operatos: []\n")
    (root / "stream.py").write_text("def make(spark, keyed_batches): ...\n")
    (root / "snapshots").mkdir()
    (root / "job.jar").touch()
    program = {"jar": str(root / "job.jar")}
    job = FlinkJob(
        name="shop",
        roots=(str(root / "snapshots"),),
        results=str(root / "results"),
        migrations=str(MIGRATIONS),
        bootstrap=str(root / "bootstrap.yaml"),
        stream=StreamSettings(definition=f"{root}/stream.py:make", directory=str(root / "stream"), input=str(root)),
        retention_runs=RetentionSettings(apply=PlanApplication.SCHEDULED),
        cluster={"rest": "http://127.0.0.1:1"},
        upgrade={"savepoints": str(root), "old": program, "new": program},
    )
    with dg.DagsterInstance.ephemeral() as instance:
        deployment = Deployment(root, instance, job)
        yield deployment, deployment.add("2.2")


@pytest.mark.parametrize(("name", "asset", "config", "named"), PARTITIONED)
def test_the_configuration_of_a_snapshot_is_checked(
    shop: tuple[Deployment, str], name: str, asset: str, config: dict[str, Any], named: tuple[str, ...]
) -> None:
    deployment, key = shop
    require_short(run(deployment.job, deployment.instance, name, key, {asset: config}), *named)


@pytest.mark.parametrize(("name", "op", "config", "named"), OTHERS)
def test_the_configuration_is_checked(
    shop: tuple[Deployment, str], tmp_path: Path, name: str, op: str, config: dict[str, Any], named: tuple[str, ...]
) -> None:
    deployment, _ = shop
    given = {field: str(tmp_path / "out") if value == "OUT" else value for field, value in config.items()}
    require_short(run(deployment.job, deployment.instance, name, None, {op: given}), *named)
    assert not (tmp_path / "out").exists()


def _configurations() -> dict[str, type[dg.Config]]:
    modules = [each.name for each in walk_packages(state_pipelines.dagster.__path__, "state_pipelines.dagster.")]
    return {
        name: each
        for module in modules
        for name, each in inspect.getmembers(import_module(module), inspect.isclass)
        if issubclass(each, dg.Config) and each.__module__ == module
    }


def test_every_configuration_has_a_case(shop: tuple[Deployment, str]) -> None:
    definitions = define(shop[0].job)
    used = set()
    for name, op, *_ in (*PARTITIONED, *OTHERS):
        node = definitions.resolve_job_def(f"shop_{name}").get_node_named(name_op(shop[0].job, op))
        schema: Any = node.definition.config_schema
        fields = set(schema.config_type.fields)
        used |= {name for name, each in _configurations().items() if set(each.model_fields) == fields}
    resources = (dg.ConfigurableResource, dg.ConfigurableIOManager)
    missing = {name for name, each in _configurations().items() if not issubclass(each, resources)}
    assert missing - used - UNUSED.keys() == set()
    assert UNUSED.keys() <= _configurations().keys()


@pytest.mark.parametrize(
    ("name", "op", "config", "named"),
    [
        ("convert_snapshot", "converted_savepoint", {"formatt": "heap"}, "formatt"),
        ("convert_snapshot", "converted_savepoint", {"format": 7}, "format"),
        ("rescale_path", "rescale", {"target": "x", "parallelism": 2}, "inputs"),
        ("rescale_snapshot", "rescaled_savepoint", {"parallelism": "two"}, "parallelism"),
        ("erase_keys", "erase", {"snapshot": "x", "keys": "a"}, "keys"),
        ("apply_retention", "applied_retention", {}, "fingerprint"),
        ("pin_snapshot", "pin", {"snapshot": "x", "unpin": "yes"}, "unpin"),
        ("restore_snapshot", "restore", {}, "snapshot"),
        ("audit_snapshot", "restore_audit", {"whole": "yes"}, "whole"),
        ("register_snapshot", "register_snapshot", {"path": "x"}, "path"),
    ],
)
def test_fields_that_do_not_exist_and_values_of_other_types_are_named(
    shop: tuple[Deployment, str], name: str, op: str, config: dict[str, Any], named: str
) -> None:
    deployment, key = shop
    partition = (
        key
        if name.endswith("_snapshot") and name not in ("pin_snapshot", "register_snapshot", "restore_snapshot")
        else None
    )
    with pytest.raises(dg.DagsterInvalidConfigError) as caught:
        run(deployment.job, deployment.instance, name, partition, {op: config})
    assert f'"{named}"' in str(caught.value) or f":{named}" in str(caught.value)


DOUBLE = {"parallelism": 2, "request": "parallelism: 3"}


@pytest.mark.parametrize(
    ("name", "op", "config", "named"),
    [
        ("rescale_snapshot", "rescaled_savepoint", {}, "Set parallelism, max_parallelism or request"),
        ("rescale_snapshot", "rescaled_savepoint", DOUBLE, "Leave one parallelism out"),
        ("rescale_snapshot", "rescaled_savepoint", {"request": "paralelism: 3"}, "paralelism"),
        ("rescale_snapshot", "rescaled_savepoint", {"request": "a: [1"}, "request is not YAML"),
        ("rescale_snapshot", "rescaled_savepoint", {"parallelism": 2, "files": "cpy"}, "not in enum type"),
        ("rescale_path", "rescale", {"snapshot": SNAPSHOT}, "Set parallelism, max_parallelism or request"),
        ("convert_snapshot", "converted_savepoint", {"format": "paper"}, "not in enum type"),
        ("convert_snapshot", "converted_savepoint", {"in_flight": "lose"}, "not in enum type"),
        ("convert_snapshot", "converted_savepoint", {"files": "cpy"}, "not in enum type"),
        ("bootstrap_savepoint", "bootstrapped_savepoint", {"format": "paper"}, "not in enum type"),
        ("take_savepoint", "savepoint", {"format": "keep"}, "not in enum type"),
        ("erase_keys", "erase", {"snapshot": SNAPSHOT, "keys": []}, "keys: List should have at least 1 item"),
        ("search_keys", "search", {"snapshot": SNAPSHOT, "keys": []}, "keys: List should have at least 1 item"),
        ("register_snapshot", "register_snapshot", {"paths": []}, "paths: List should have at least 1 item"),
        ("apply_retention", "applied_retention", {"fingerprint": ""}, "fingerprint: String should have at least"),
        ("pin_snapshot", "pin", {"snapshot": "latest", "unpin": True, "reason": "x"}, "leave one out"),
        ("restore_snapshot", "restore", {"snapshot": ""}, "snapshot: String should have at least 1 character"),
    ],
)
def test_no_run_starts_with_an_empty_or_contradictory_configuration(
    shop: tuple[Deployment, str], name: str, op: str, config: dict[str, Any], named: str
) -> None:
    job = shop[0].job
    # As Dagster does it for each way to start a run.
    with pytest.raises(dg.DagsterInvalidConfigError, match=re.escape(named)):
        create_execution_plan(define(job).resolve_job_def(job.prefix(name)), write_config(job, {op: config}))


@pytest.mark.parametrize("name", ["rescale_path", "erase_keys", "search_keys", "pin_snapshot", "restore_snapshot"])
def test_no_run_starts_with_what_the_launchpad_begins_with(shop: tuple[Deployment, str], name: str) -> None:
    definition = define(shop[0].job).resolve_job_def(f"shop_{name}")
    assert definition.run_config
    with pytest.raises(dg.DagsterInvalidConfigError):
        create_execution_plan(definition, definition.run_config)


def test_the_launchpad_begins_with_the_numbers_of_a_rescaling(shop: tuple[Deployment, str]) -> None:
    definition = define(shop[0].job).resolve_job_def("shop_rescale_snapshot")
    partitioned = definition.partitioned_config
    assert partitioned is not None
    config = partitioned.get_run_config_for_partition_key(shop[1])
    assert config["ops"]["shop__rescaled_savepoint"]["config"] == {"max_parallelism": None, "parallelism": None}


@pytest.mark.parametrize(
    ("names", "values"),
    [
        (NewFormat, [each for each in Format if each is not Format.KEEP]),
        (FileModeName, list(FileMode)),
    ],
)
def test_enums_of_the_launchpad_are_those_of_the_operations(names: Any, values: Sequence[Enum]) -> None:
    assert get_args(names) == tuple(each.value for each in values)


@pytest.mark.parametrize("name", ["describe_snapshot", "convert_snapshot", "audit_snapshot", "migrate_snapshot"])
def test_a_snapshot_that_is_gone_is_named(shop: tuple[Deployment, str], name: str) -> None:
    deployment, _ = shop
    deployment.instance.add_dynamic_partitions("shop_snapshots", ["savepoint-gone-0000"])
    require_short(run(deployment.job, deployment.instance, name, "savepoint-gone-0000", {}), "savepoint-gone-0000")


# Storages that cannot be reached


@pytest.fixture(params=[f"s3://AKIA:{SECRET}@no-such-bucket/flink", "gs://no-such-bucket/flink", "nonsense://host/x"])
def unreachable(request: pytest.FixtureRequest, shop: tuple[Deployment, str]) -> Deployment:
    deployment, _ = shop
    stream = deployment.job.stream
    assert stream is not None
    return deployment.change(roots=(request.param,), stream=stream.model_copy(update={"input": request.param}))


@pytest.mark.parametrize("name", ["refresh_inventory", "plan_retention", "prune_partitions"])
def test_roots_that_cannot_be_reached_are_named(
    unreachable: Deployment, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # After the last retry.
    monkeypatch.setattr("state_pipelines.dagster.failures.STORAGE_RETRIES", 0)
    host = unreachable.job.roots[0].rpartition("@")[2].split("/")[-2]
    require_short(run(unreachable.job, unreachable.instance, name, None, {}), host)


@pytest.mark.parametrize("name", ["new_snapshots", "new_input"])
def test_a_sensor_names_the_storage(unreachable: Deployment, name: str) -> None:
    sensor = define(unreachable.job).get_repository_def().get_sensor_def(f"shop_{name}")
    with pytest.raises(StateError) as caught, dg.build_sensor_context(instance=unreachable.instance) as context:
        sensor(context)
    require_short(str(caught.value), unreachable.job.roots[0].rpartition("@")[2].split("/")[-2])


def test_a_schedule_names_the_storage(unreachable: Deployment, tmp_path: Path) -> None:
    schedule = define(unreachable.job).get_repository_def().get_schedule_def("shop_daily_audit")
    with (
        dg.DagsterInstance.local_temp(str(tmp_path)) as instance,
        dg.build_schedule_context(instance=instance) as context,
        pytest.raises(StateError) as caught,
    ):
        schedule(context)
    require_short(str(caught.value), unreachable.job.roots[0].rpartition("@")[2].split("/")[-2])


# Descriptions of jobs, and resources


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"rots": ("x",)}, "rots"),
        ({"roots": 7}, "roots"),
        ({"migrate_to": "base"}, "migrate_to"),
        ({"stream": {"definition": "x.py", "directory": "y"}}, "stream.definition"),
        ({"new_query": "new.sql"}, "set plans to its one file"),
        ({"jars": ("functions.jar",)}, "jars has no effect without plans"),
        ({"new_query": "new.sql", "plans": ("old.sql",), "migrations": "m"}, "new_query exclude each other"),
        ({"retention": {"keep": 3}}, "retention"),
        ({"retention_runs": {"grace": "soon"}}, "retention_runs.grace"),
        ({"watch": {"kinds": "backup"}}, "watch.kinds"),
        ({"intervals": {"sensor": 5}}, "intervals.sensor"),
        ({"intervals": {"automation": 0}}, "intervals.automation"),
        ({"intervals": {"new_snapshots": 121}}, "120 at most"),
        ({"thresholds": {"max_imbalance": 0}}, "thresholds.max_imbalance"),
        ({"storage_options": {"s3://bucket": SECRET}}, "storage_options"),
    ],
)
def test_a_description_of_a_job_names_its_field(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError) as caught:
        FlinkJob(**({"name": "shop", "roots": ("x",), "results": "y"} | fields))
    assert named in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("resource", "fields", "named"),
    [
        (SparkResource, {"cores": -1}, "cores"),
        (SparkResource, {"memory": "much"}, "memory"),
        (SparkResource, {"memory": 2}, "memory"),
        (SparkResource, {"conf": "x"}, "conf"),
        (SparkResource, {"master_url": "local"}, "master_url"),
        (ExpectationsResource, {"sample_size": -1}, "sample_size"),
        (ExpectationsResource, {"sample": 1}, "sample"),
    ],
)
def test_a_resource_names_its_field(resource: type[Any], fields: dict[str, Any], named: str) -> None:
    with pytest.raises((ValidationError, dg.DagsterInvalidConfigError, dg.DagsterInvalidInvocationError)) as caught:
        resource(**fields)
    assert named in str(caught.value)


def test_a_resource_takes_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_MEMORY", "much")
    resource = SparkResource(memory=dg.EnvVar("SPARK_MEMORY"), cores=dg.EnvVar.int("SPARK_CORES"))
    monkeypatch.setenv("SPARK_CORES", "2")
    with (
        pytest.raises(ValidationError, match="'much' is no size of a heap"),
        resource.process_config_and_initialize_cm(),
    ):
        pass
    monkeypatch.setenv("SPARK_MEMORY", "3g")
    with resource.process_config_and_initialize_cm() as spark:
        assert (spark.memory, spark.cores) == ("3g", 2)
