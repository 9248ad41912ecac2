"""A component alone: its resources, selection by keys, and jobs that cannot be loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, get_args

import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox
from pydantic import ValidationError

from state_pipelines.dagster import (
    AssetTranslator,
    ExpectationsResource,
    FlinkJob,
    FlinkJobComponent,
    SparkResource,
    build_flink_job,
)
from state_pipelines.dagster.translation import ASSET_NAMES
from state_pipelines.errors import UsageError
from state_pipelines.operations.jobs.job_files import format_job
from tests.dagster.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dagster.components.testing import DefsFolderSandbox

# Of Dagster's own components, which add references to the YAML files.
pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")

PROJECT = """
[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "shop"
code_location_target_module = "state_pipelines.dagster.location"
"""

POST_PROCESSING = """
post_processing:
  assets:
    - target: "key:shop/*"
      attributes: {group_name: platform, owners: ["team:platform"]}
    - target: "key:shop/snapshot_profile"
      attributes: {automation_condition: "{{ dg.AutomationCondition.on_cron('@daily') }}"}
"""


@pytest.fixture
def sandbox() -> Iterator[DefsFolderSandbox]:
    with create_defs_folder_sandbox() as sandbox:
        yield sandbox


def make_job(**fields: Any) -> FlinkJob:
    return FlinkJob(**{"name": "shop", "roots": ("nowhere",), "results": "results", **fields})


def write(sandbox: DefsFolderSandbox, name: str, text: str) -> Path:
    directory = sandbox.defs_folder_path / name
    directory.mkdir()
    (directory / "defs.yaml").write_text(text, encoding="utf-8")
    return directory


def find_resource(defs: dg.Definitions, key: str) -> Any:
    """The resource under a key as a step gets it."""
    with dg.build_resources(dict(defs.resources or {})) as resources:
        return getattr(resources, key)


# --- resources


def test_yaml_alone_loads(sandbox: DefsFolderSandbox) -> None:
    write(sandbox, "one", format_job("one", ["savepoints"], "results"))
    write(sandbox, "two", format_job("two", ["savepoints"], "results") + "  resources: {spark: {memory: 3g}}\n")
    with sandbox.build_all_defs() as defs:
        dg.Definitions.validate_loadable(defs)
        assert find_resource(defs, "one_spark").memory == SparkResource().memory
        assert find_resource(defs, "two_spark").memory == "3g"


def test_a_project_of_yaml_files_loads_and_runs_without_a_file_of_definitions(tmp_path: Path) -> None:
    (tmp_path / "shop" / "defs" / "checkout").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (tmp_path / "savepoints").mkdir()
    text = format_job("checkout", [str(tmp_path / "savepoints")], str(tmp_path / "results"))
    (tmp_path / "shop" / "defs" / "checkout" / "defs.yaml").write_text(text, encoding="utf-8")
    code = (
        "import dagster as dg\n"
        "from state_pipelines.dagster.location import defs\n"
        "dg.Definitions.validate_loadable(defs)\n"
        "job = defs.resolve_job_def('checkout_refresh_inventory')\n"
        "print(job.execute_in_process(instance=dg.DagsterInstance.ephemeral()).success)"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize(
    ("setting", "deployment", "memory", "chosen"),
    [
        (None, {}, "2g", set()),
        (None, {"spark": "5g"}, "5g", {"spark"}),
        ({"memory": "3g"}, {"spark": "5g"}, "3g", set()),
        ({"memory": "3g"}, {"spark": "5g", "shop__spark": "6g"}, "6g", {"shop__spark"}),
        ("big", {"spark": "5g", "big": "7g"}, "7g", {"big"}),
    ],
    ids=["own", "shared", "in YAML", "overridden", "by key"],
)
def test_the_code_location_and_the_yaml_choose_spark(
    setting: Any, deployment: dict[str, str], memory: str, chosen: set[str]
) -> None:
    shared = {key: SparkResource(memory=each) for key, each in deployment.items()}
    other = build_flink_job(make_job(name="other"))
    defs = dg.Definitions.merge(
        build_flink_job(make_job(resources={"spark": setting})), other, dg.Definitions(resources=shared)
    )
    dg.Definitions.validate_loadable(defs)
    assert find_resource(defs, "shop_spark").memory == memory
    # A job and an op job get the resources that they need, and no others: Dagster reads the description of each job
    # every minute, and a code location may have many Flink jobs.
    always = {"io_manager", "shop_spark"} | chosen
    assert defs.resolve_job_def("shop_rescale_path").resource_defs.keys() == always
    assert defs.resolve_job_def("shop_convert_snapshot").resource_defs.keys() == always | {"shop_expectations"}
    assert defs.resolve_job_def("shop_audit_snapshot").resource_defs.keys() == {"io_manager"}


@pytest.mark.parametrize("wrong", ["text", ExpectationsResource()])
def test_a_wrong_resource_is_refused_at_load(wrong: object) -> None:
    defs = dg.Definitions.merge(build_flink_job(make_job()), dg.Definitions(resources={"spark": wrong}))
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="the resource spark of the code location is no Spark"):
        dg.Definitions.validate_loadable(defs)
    own = build_flink_job(make_job(resources={"spark": {"cores": 2}}))
    dg.Definitions.validate_loadable(dg.Definitions.merge(own, dg.Definitions(resources={"spark": wrong})))


def test_a_key_that_nothing_defines_is_refused_at_load() -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="'big' required by resource with key 'shop_spark'"):
        dg.Definitions.validate_loadable(build_flink_job(make_job(resources={"spark": "big"})))


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"spark": {"cores": -1}}, "cores: Input should be greater than or equal to 0"),
        ({"spark": {"core": 1}}, "core: Extra inputs are not permitted"),
        ({"expectations": {"sample_size": -1}}, "sample_size: "),
        ({"spark": "big spark"}, "'big spark' is not the key of a resource"),
        ({"sparks": {}}, "Extra inputs are not permitted"),
    ],
)
def test_wrong_fields_of_resources_are_refused(resources: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        make_job(resources=resources)


# --- post-processing


def test_post_processing_does_not_take_assets_from_the_sensors(sandbox: DefsFolderSandbox) -> None:
    write(sandbox, "shop", format_job("shop", ["savepoints"], "results") + "  tables: tables\n" + POST_PROCESSING)
    with sandbox.build_all_defs() as defs:
        graph = defs.resolve_asset_graph()
        keys = {each.key for each in defs.resolve_all_asset_specs()}
        assert {each.group_name for each in defs.resolve_all_asset_specs()} == {"platform"}
        sensors = [defs.resolve_sensor_def(f"shop_{name}") for name in ("automation", "table_automation")]
        assert set().union(*(sensor.asset_selection.resolve(graph) for sensor in sensors)) == keys  # type: ignore[union-attr]
        profile = graph.get(dg.AssetKey(["shop", "snapshot_profile"]))
        assert profile.owners == ["team:platform"]
        # All conditions are evaluated by the sensor of the job: Dagster adds no sensor of its own.
        names = {each.name for each in defs.get_repository_def().sensor_defs}
        assert all(name.startswith("shop_") for name in names)


# --- a job that cannot be loaded


@pytest.fixture(params=["revisions", "flink_config", "migrate_to"])
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FlinkJob, str]:
    """A job, and words of the error."""
    migrations = tmp_path / "migrations"
    migrations.mkdir()
    if request.param == "revisions":
        (migrations / "0001.yaml").write_text("revision: [", encoding="utf-8")
        return make_job(migrations=str(migrations)), "0001.yaml"
    if request.param == "migrate_to":
        return make_job(migrations=str(migrations), migrate_to="nowhere"), "nowhere"
    return make_job(flink_config=str(tmp_path / "none.yaml"), roots=()), "none.yaml"


def test_a_broken_job_shows_its_error_and_leaves_the_others_alone(broken: tuple[FlinkJob, str]) -> None:
    job, words = broken
    defs = dg.Definitions.merge(build_flink_job(job), build_flink_job(make_job(name="other")))
    dg.Definitions.validate_loadable(defs)
    for spec in defs.resolve_all_asset_specs():
        is_broken = spec.key.path[0] == "shop"
        assert (words in spec.metadata.get("state-pipelines/error", "")) is is_broken
        assert (words in (spec.description or "")) is is_broken
    keys = {spec.key.path[1] for spec in defs.resolve_all_asset_specs() if spec.key.path[0] == "shop"}
    assert {"snapshot_inventory", "restore_audit"} <= keys
    assert ("migrated_savepoint" in keys) is (job.migrations is not None)
    assert defs.resolve_sensor_def("other_new_snapshots")
    with dg.DagsterInstance.ephemeral() as instance:
        result = defs.resolve_job_def("shop_refresh_inventory").execute_in_process(
            instance=instance, raise_on_error=False
        )
        (failure,) = result.get_step_failure_events()
        assert words in str(failure.step_failure_data.user_failure_data)
        with dg.build_sensor_context(instance=instance) as context, pytest.raises(dg.Failure, match=words):
            defs.resolve_sensor_def("shop_new_snapshots")(context)


# --- translation, hooks, automation


class Shop(FlinkJobComponent):
    """A subclass as a team writes it."""

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        return spec.replace_attributes(key=spec.key.with_prefix("eu")).merge_attributes(tags={"tier": "gold"})

    def execute(self, context: dg.AssetExecutionContext, run: Callable[[], Iterator[object]]) -> Iterator[object]:
        for result in run():
            if isinstance(result, dg.MaterializeResult):
                yield result._replace(metadata={**(result.metadata or {}), "cost": 3})
            else:
                yield result


def test_a_subclass_changes_specs_and_steps(tmp_path: Path) -> None:
    (tmp_path / "savepoints").mkdir()
    job = make_job(
        roots=(str(tmp_path / "savepoints"),),
        results=str(tmp_path / "results"),
        tables="tables",
        translation={"group_name": "platform", "descriptions": {"restore_audit": "Ours"}, "key_prefix": ["flink"]},
    )
    defs = dg.Definitions.merge(dg.build_defs_for_component(Shop(job)), dg.Definitions(executor=dg.in_process_executor))
    dg.Definitions.validate_loadable(defs)
    specs = {spec.key: spec for spec in defs.resolve_all_asset_specs()}
    assert all(key.path[:3] == ["eu", "flink", "shop"] for key in specs)
    assert {spec.group_name for spec in specs.values()} == {"platform"}
    assert all(spec.tags["tier"] == "gold" for spec in specs.values())
    assert specs[dg.AssetKey(["eu", "flink", "shop", "restore_audit"])].description == "Ours"
    # Dependencies, checks, jobs and sensors follow the keys; names of ops do not change.
    upstream = {key for spec in specs.values() for key in (dep.asset_key for dep in spec.deps)}
    assert upstream <= specs.keys()
    inventory = dg.AssetKey(["eu", "flink", "shop", "snapshot_inventory"])
    with dg.DagsterInstance.ephemeral() as instance:
        result = defs.resolve_job_def("shop_refresh_inventory").execute_in_process(instance=instance)
        (event,) = result.asset_materializations_for_node("shop__snapshot_inventory")
        assert event.asset_key == inventory
        assert event.metadata["cost"].value == 3
        assert event.metadata["snapshots"].value == 0
        assert {each.asset_key for each in result.get_asset_check_evaluations()} == {inventory}


def test_a_translator_changes_specs_of_a_job_without_a_component() -> None:
    class Gold(AssetTranslator):
        def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
            return spec.replace_attributes(key=spec.key.with_prefix("eu")).merge_attributes(tags={"tier": "gold"})

    specs = list(build_flink_job(make_job(), translator=Gold()).resolve_all_asset_specs())
    assert {spec.key.path[0] for spec in specs} == {"eu"}
    assert {spec.tags["tier"] for spec in specs} == {"gold"}


def test_a_key_that_depends_on_more_than_the_key_is_refused() -> None:
    class ByKind(FlinkJobComponent):
        def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
            return spec.replace_attributes(key=spec.key.with_prefix(sorted(spec.kinds)))

    with pytest.raises(UsageError, match=r"Derive the key from `spec\.key` only"):
        dg.build_defs_for_component(ByKind(make_job()))


@pytest.mark.parametrize(
    ("text", "label"),
    [("never", None), ("new_snapshot", "a new snapshot"), ("0 3 * * *", "on_cron(0 3 * * *, UTC)"), ("eager", "eager")],
)
def test_automation_is_a_field(text: str, label: str | None) -> None:
    defs = build_flink_job(make_job(automation={"restore_audit": text}))
    conditions = {spec.key.path[1]: spec.automation_condition for spec in defs.resolve_all_asset_specs()}
    condition = conditions["restore_audit"]
    assert (None if condition is None else condition.get_label()) == label
    assert conditions["snapshot_profile"] is not None


def test_every_asset_has_a_name_that_the_fields_know(tmp_path: Path) -> None:
    whole = make_job(
        tables="tables",
        expectations="suites",
        migrations=str(tmp_path),
        bootstrap="states.yaml",
        stream={"definition": "stream.py:sum", "directory": "live"},
    )
    changed = make_job(plans=("old.json",), new_query="new.json")
    specs = [spec for each in (whole, changed) for spec in build_flink_job(each).resolve_all_asset_specs()]
    assert {spec.key.path[1] for spec in specs} == ASSET_NAMES


def test_wrong_automation_is_refused() -> None:
    with pytest.raises(ValidationError, match="'daily' is no automation condition: write a cron expression, or one of"):
        make_job(automation={"restore_audit": "daily"})
    with pytest.raises(ValidationError, match="there is no asset restore_audits"):
        make_job(automation={"restore_audits": "never"})


# --- intervals of sensors


@pytest.mark.parametrize(
    ("webhook", "failed_runs"), [(None, 900), ("https://chat.example.com", 60)], ids=["log", "webhook"]
)
def test_sensors_tick_rarely_where_nothing_waits_for_them(webhook: str | None, failed_runs: int) -> None:
    sensors = build_flink_job(make_job(tables="tables", webhook=webhook)).sensors or ()
    found = {each.name: each.minimum_interval_seconds for each in sensors}
    assert found == {
        "shop_new_snapshots": 120,
        "shop_automation": 300,
        "shop_table_automation": 300,
        "shop_failed_runs": failed_runs,
    }


def test_the_yaml_sets_the_interval_of_each_sensor(tmp_path: Path) -> None:
    names = get_args(get_args(FlinkJob.model_fields["intervals"].annotation)[0])
    stream = {"definition": "stream.py:sum_orders", "directory": str(tmp_path), "input": str(tmp_path / "in")}
    intervals = {name: number for number, name in enumerate(names, 1)}
    job = make_job(
        tables="tables",
        requests="requests",
        retention_runs={"apply": "scheduled"},
        stream=stream,
        intervals=intervals,
        cluster={"rest": "http://localhost:8081"},
        upgrade={"savepoints": "s3://b/s", "old": {"jar": "a.jar"}, "new": {"jar": "b.jar"}},
        job_classes=("classes.yaml",),
        plans=("old.json",),
        new_query="new.json",
    )
    found = {each.name: each.minimum_interval_seconds for each in build_flink_job(job).sensors or ()}
    assert found == {job.prefix(name): number for name, number in intervals.items()}
