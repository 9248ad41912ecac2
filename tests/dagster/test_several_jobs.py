"""Several Flink jobs in one code location, and several locations in one instance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg
import pytest

from state_pipelines.dagster import ExpectationsResource, FlinkJob, SparkResource, build_flink_job
from tests.dagster.conftest import SAVEPOINTS, Deployment, build, list_executable

if TYPE_CHECKING:
    from pathlib import Path

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
        names |= {asset.op.pool} if asset.op.pool else set()
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
