"""`register_snapshot`: a job that adds partitions for snapshots at any path, also outside the roots."""

# Without the import of `annotations`: Dagster reads those of the decorated functions.

from collections.abc import Sequence

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.op_jobs import checked_op, make_op_job
from state_pipelines.dagster.partitions import check_name, make_partition_key
from state_pipelines.storage import parent

NAME = "register_snapshot"


class RegisterConfig(dg.Config):
    """The snapshots to register."""

    paths: list[str] = Field(
        min_length=1, description="Paths or URLs of snapshot directories, or of their `_metadata` files."
    )


def register_paths(job: FlinkJob, instance: dg.DagsterInstance, paths: Sequence[str]) -> list[str]:
    """Open each snapshot, and add it to the inventory and to the partitions; return the partition keys.

    Raises:
        StateError: a snapshot cannot be opened; nothing was added.
        UsageError: the name of the job belongs to another one.
    """
    check_name(instance, job)
    snapshots = [job.storage.open(path) for path in paths]
    directories = [str(parent(each.location.metadata)) for each in snapshots]
    partitions = instance.get_dynamic_partitions(str(job.partitions.name))
    inventory = job.storage.update_inventory(register=directories, partitions=partitions).inventory
    keys_by_path = {each.path: each.key for each in inventory}
    keys = [
        keys_by_path.get(directory) or make_partition_key(snapshot)
        for directory, snapshot in zip(directories, snapshots, strict=True)
    ]
    instance.add_dynamic_partitions(str(job.partitions.name), keys)
    return keys


def build_register_snapshot(job: FlinkJob) -> dg.JobDefinition:
    """Build the job `register_snapshot` of a Flink job."""

    @checked_op(job, name=job.op(NAME), tags=job.tags)
    def register(context: dg.OpExecutionContext, config: RegisterConfig) -> list[str]:
        """Add partitions for snapshots. Fails, and adds none, if one cannot be opened."""
        keys = register_paths(job, context.instance, config.paths)
        for path, key in zip(config.paths, keys, strict=True):
            context.log.info("%s has the partition %s", path, key)
        context.add_output_metadata({"partitions": keys})
        return keys

    return make_op_job(
        job,
        NAME,
        register,
        "Adds partitions for snapshots at any path, also outside the roots, so that jobs can run for them.",
    )
