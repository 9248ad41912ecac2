"""Several Flink jobs in one code location, and several locations in one instance."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from state_pipelines.dagster import ExpectationsResource, FlinkJob, SparkResource, build_flink_job
from state_pipelines.dagster.flink_asset import SPARK_POOL
from tests.dagster.conftest import SAVEPOINTS, Deployment, build, list_executable

if TYPE_CHECKING:
    from collections.abc import Iterator

BOTH = ("one", "two")


@pytest.fixture
def jobs(tmp_path: Path) -> dict[str, FlinkJob]:
    found = {}
    for name in BOTH:
        root = tmp_path / name / "snapshots"
        root.mkdir(parents=True)
        results = tmp_path / name / "results"
        found[name] = FlinkJob(name=name, roots=(str(root),), results=str(results), tables=str(tmp_path / name / "t"))
    return found


def test_definitions_of_two_jobs_merge(jobs: dict[str, FlinkJob]) -> None:
    resources = dg.Definitions(resources={"spark": SparkResource(), "expectations": ExpectationsResource()})
    defs = dg.Definitions.merge(*map(build_flink_job, jobs.values()), resources)
    dg.Definitions.validate_loadable(defs)
    assert {spec.key.path[0] for spec in defs.resolve_all_asset_specs()} == set(BOTH)


def test_nothing_has_the_name_of_another_job(jobs: dict[str, FlinkJob]) -> None:
    one, two = (build(job) for job in jobs.values())
    assert list_names(one)
    assert not list_names(one) & list_names(two)


def list_names(defs: dg.Definitions) -> set[str]:
    """Names that an instance shares between its code locations, and those that must differ in one location."""
    repository = defs.get_repository_def()
    names = {job.name for job in repository.get_all_jobs()} | {sensor.name for sensor in repository.sensor_defs}
    names.discard("__ASSET_JOB")
    for asset in list_executable(defs):
        names |= {key.to_user_string() for key in asset.keys} | {asset.op.name}
        names |= {asset.op.pool} if asset.op.pool not in (None, SPARK_POOL) else set()
        if isinstance(asset.partitions_def, dg.DynamicPartitionsDefinition):
            names.add(str(asset.partitions_def.name))
    return names


def test_two_jobs_in_one_instance_keep_their_snapshots_and_results(jobs: dict[str, FlinkJob]) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        deployments = {name: Deployment(job.roots[0], instance, job) for name, job in jobs.items()}  # type: ignore[arg-type]
        keys = {name: each.add(release) for (name, each), release in zip(deployments.items(), SAVEPOINTS, strict=True)}
        for name, key in keys.items():
            assert deployments[name].materialize(["key_group_balance"], key).success
        for name, key in keys.items():
            assert instance.get_dynamic_partitions(f"{name}_snapshots") == [key]
            asset = dg.AssetKey([name, "key_group_balance"])
            assert instance.get_materialized_partitions(asset) == {key}


# --- two code locations that call their job the same


@pytest.fixture
def same_names(jobs: dict[str, FlinkJob], tmp_path: Path) -> Iterator[tuple[Deployment, Deployment]]:
    """Two jobs with one name in one instance, each with a savepoint and its partition."""
    one, two = (job.model_copy(update={"name": "orders"}) for job in jobs.values())
    with dg.DagsterInstance.ephemeral() as instance:
        deployments = Deployment(tmp_path, instance, one), Deployment(tmp_path, instance, two)
        for deployment, release in zip(deployments, SAVEPOINTS, strict=True):
            deployment.add(release)
            deployment.job.storage.update_inventory()
        yield deployments


def prune(deployment: Deployment, **config: bool) -> dg.ExecuteInProcessResult:
    return deployment.run("prune_partitions", None, prune_partitions={"apply": True, **config})


def test_pruning_removes_no_partition_of_a_snapshot_that_the_job_never_had(
    same_names: tuple[Deployment, Deployment],
) -> None:
    one, _ = same_names
    (own,) = one.job.storage.update_inventory().inventory.keys
    foreign = next(key for key in one.instance.get_dynamic_partitions("orders_snapshots") if key != own)
    shutil.rmtree(one.snapshots / "flink-1.20")
    result = prune(one)
    assert result.success
    assert one.instance.get_dynamic_partitions("orders_snapshots") == [foreign]
    outputs = [each for each in result.all_events if each.event_type is dg.DagsterEventType.STEP_OUTPUT]
    assert outputs[0].step_output_data.metadata["foreign"].value == [foreign]


def test_the_name_belongs_to_the_job_that_comes_first(same_names: tuple[Deployment, Deployment]) -> None:
    one, two = same_names
    assert one.materialize(["key_group_balance"], one.job.storage.read_inventory().keys[0]).success
    assert not prune(two).success
    for name in ("orders_new_snapshots", "orders_requests"):
        job = two.job.model_copy(update={"requests": two.job.roots[0]})
        with dg.build_sensor_context(instance=two.instance) as context:
            skipped = build(job).resolve_sensor_def(name)(context)
        assert isinstance(skipped, dg.SkipReason)
        assert f"belongs to another job of this Dagster instance, with the results {one.job.results}" in str(
            skipped.skip_message
        )
    assert prune(one).success
    assert len(one.instance.get_dynamic_partitions("orders_snapshots")) == 2


def test_a_job_keeps_its_name_when_its_results_move(same_names: tuple[Deployment, Deployment]) -> None:
    one, _ = same_names
    assert prune(one).success
    moved = replace(one, job=one.job.model_copy(update={"results": str(Path(one.job.results) / "new")}))
    assert not prune(moved).success
    assert prune(moved, results_moved=True).success
    assert prune(moved).success
    assert not prune(one).success
