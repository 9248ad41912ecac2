"""`register_snapshot` and `prune_partitions`: jobs that add partitions for snapshots, and remove stale ones."""

# Without the import of `annotations`: Dagster reads those of the decorated functions.

from collections.abc import Sequence

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.flink_asset import checked_op, make_op_job
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.partitions import check_name, make_partition_key, take_name
from state_pipelines.storage import parent

PRUNE_PARTITIONS = "prune_partitions"

_SHOWN = 100


class PruneConfig(dg.Config):
    """Whether to remove partitions or only list them, and whether the results of the job were moved."""

    apply: bool = Field(default=False, description="Remove the partitions; by default they are only listed.")
    results_moved: bool = Field(
        default=False,
        description="The job has the same name and another directory of results than before; by default that is taken "
        "for another job.",
    )


def build_prune_partitions(job: FlinkJob) -> dg.JobDefinition:
    """Build the job `prune_partitions` of a Flink job."""

    @checked_op(job, name=job.op(PRUNE_PARTITIONS), tags=job.tags)
    def prune(context: dg.OpExecutionContext, config: PruneConfig) -> None:
        """List the partitions of deleted snapshots, or remove them."""
        if config.results_moved:
            take_name(context.instance, job)
        check_name(context.instance, job)
        update = job.storage.update_inventory()
        name = str(job.partitions.name)
        partitions = context.instance.get_dynamic_partitions(name)
        keys = update.find_prunable(partitions)
        if update.missing_roots:
            context.log.warning(
                "No partition is removed, because a root does not exist: %s", ", ".join(update.missing_roots)
            )
        if config.apply:
            for key in keys:
                context.instance.delete_dynamic_partition(name, key)
        context.log.info("%d partitions %s", len(keys), "removed" if config.apply else "could be removed")
        foreign = update.find_foreign(partitions)
        if foreign:
            context.log.warning(
                "%d partitions stay, because this job has never listed their snapshots: %s",
                len(foreign),
                ", ".join(foreign[:_SHOWN]),
            )
        context.add_output_metadata(
            {
                "partitions": len(keys),
                "removed": len(keys) if config.apply else 0,
                "keys": keys[:_SHOWN],
                "foreign": foreign[:_SHOWN],
            }
        )

    return make_op_job(
        job, PRUNE_PARTITIONS, prune, "Removes the partitions of deleted snapshots; without `apply` it only lists them."
    )


REGISTER_SNAPSHOT = "register_snapshot"


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

    @checked_op(job, name=job.op(REGISTER_SNAPSHOT), tags=job.tags)
    def register(context: dg.OpExecutionContext, config: RegisterConfig) -> list[str]:
        """Add partitions for snapshots. Fails, and adds none, if one cannot be opened."""
        keys = register_paths(job, context.instance, config.paths)
        for path, key in zip(config.paths, keys, strict=True):
            context.log.info("%s has the partition %s", path, key)
        context.add_output_metadata({"partitions": keys})
        return keys

    return make_op_job(
        job,
        REGISTER_SNAPSHOT,
        register,
        "Adds partitions for snapshots at any path, also outside the roots, so that jobs can run for them.",
    )
