"""A third Flink job with 1,000 snapshots, each of which has a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dagster as dg

from benchmarks.inventory import CASES, SNAPSHOTS, make_snapshot
from state_pipelines.dagster import ExpectationsResource, FlinkJob, SparkResource, build_flink_job
from tests.snapshots import DATA

if TYPE_CHECKING:
    from tests.browser.project import Project

NAME = "warehouse"
__all__ = ["NAME", "SNAPSHOTS", "fill_instance", "find_newest"]


def fill_instance(project: Project) -> None:
    """Describe the job, make its snapshots and partitions, and materialise its inventory and its newest profile."""
    root = project.find(NAME, "checkpoints")
    for number in range(SNAPSHOTS):
        make_snapshot(root, number)
    case = f"types/flink-2.2/{CASES[(SNAPSHOTS - 1) % len(CASES)]}"
    fields: dict[str, Any] = {
        "name": NAME,
        "roots": [str(root)],
        "results": str(project.find(NAME, "results")),
        "path_mapping": [f"/flink-data/{case}={DATA / case}"],
    }
    # With its sensors, the daemon would start a run for each of the snapshots.
    project.write_job(NAME, {**fields, "sensors": "stopped"})
    job = FlinkJob(**fields)
    resources = {"spark": SparkResource(), "expectations": ExpectationsResource()}
    defs = dg.Definitions.merge(build_flink_job(job), dg.Definitions(resources=resources))
    with dg.DagsterInstance.from_config(str(project.home)) as instance:
        keys = job.storage.update_inventory().inventory.keys
        instance.add_dynamic_partitions(str(job.partitions.name), list(keys))
        inventory = defs.resolve_job_def(job.prefix("refresh_inventory"))
        assert inventory.execute_in_process(instance=instance).success
        profile = defs.resolve_assets_def(job.key("snapshot_profile"))
        assert dg.materialize([profile], partition_key=keys[0], instance=instance, resources=resources).success


def find_newest(project: Project) -> str:
    """The partition key of the newest snapshot."""
    root = str(project.find(NAME, "checkpoints"))
    job = FlinkJob(name=NAME, roots=(root,), results=str(project.find(NAME, "results")))
    return job.storage.read_inventory().keys[0]
