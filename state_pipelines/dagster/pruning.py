"""`prune_partitions`: a job that removes the partitions of deleted snapshots."""

# Without the import of `annotations`: Dagster reads those of the decorated functions.

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.failures import reporting_failures
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.op_jobs import make_op_job

NAME = "prune_partitions"

_SHOWN = 100


class PruneConfig(dg.Config):
    """Whether to remove partitions or only list them."""

    apply: bool = Field(default=False, description="Remove the partitions; by default they are only listed.")


def build_prune_partitions(job: FlinkJob) -> dg.JobDefinition:
    """Build the job `prune_partitions` of a Flink job."""

    @dg.op(name=job.op(NAME), tags=job.tags)
    @reporting_failures
    def prune(context: dg.OpExecutionContext, config: PruneConfig) -> None:
        update = job.storage.update_inventory()
        name = str(job.partitions.name)
        keys = update.find_prunable(context.instance.get_dynamic_partitions(name))
        if update.missing_roots:
            context.log.warning(
                "No partition is removed, because a root does not exist: %s", ", ".join(update.missing_roots)
            )
        if config.apply:
            for key in keys:
                context.instance.delete_dynamic_partition(name, key)
        context.log.info("%d partitions %s", len(keys), "removed" if config.apply else "could be removed")
        context.add_output_metadata(
            {"partitions": len(keys), "removed": len(keys) if config.apply else 0, "keys": keys[:_SHOWN]}
        )

    return make_op_job(
        job, NAME, prune, "Removes the partitions of deleted snapshots; without `apply` it only lists them."
    )
