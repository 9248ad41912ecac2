"""`prune_partitions`: a job that removes the partitions of deleted snapshots."""

# Without the import of `annotations`: Dagster reads those of the decorated functions.

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.op_jobs import checked_op, make_op_job
from state_pipelines.dagster.partitions import check_name, take_name

NAME = "prune_partitions"

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

    @checked_op(job, name=job.op(NAME), tags=job.tags)
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
        job, NAME, prune, "Removes the partitions of deleted snapshots; without `apply` it only lists them."
    )
