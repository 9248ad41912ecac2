"""`pin_snapshot`: a job that protects a snapshot from retention, or ends its protection."""

# Without the import of `annotations`: Dagster reads those of the decorated functions.

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.failures import reporting_failures
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.op_jobs import make_op_job
from state_pipelines.errors import UsageError
from state_pipelines.operations.retention.pins import pin_snapshot, unpin_snapshot
from state_pipelines.storage import Location, resolve

NAME = "pin_snapshot"


class PinConfig(dg.Config):
    """The snapshot to pin or unpin."""

    snapshot: str = Field(description="Name of its directory, its path or partition key, or `latest`.")
    reason: str = Field(default="", description="Reason, for readers of the pin file.")
    unpin: bool = Field(default=False, description="Remove the pin.")


def build_pin_snapshot(job: FlinkJob) -> dg.JobDefinition:
    """Build the job `pin_snapshot` of a Flink job."""

    @dg.op(name=job.op(NAME), tags=job.tags)
    @reporting_failures
    def pin(context: dg.OpExecutionContext, config: PinConfig) -> None:
        """Add the snapshot to the pin file of its root, or remove it."""
        if config.unpin and config.reason:
            raise UsageError(
                "`reason` has no effect with `unpin`: it is why a snapshot is pinned", hint="Leave one out"
            )
        _, path = job.storage.find_named(config.snapshot, warn=context.log.warning)
        root, relative = _split(job, path)
        if config.unpin:
            unpin_snapshot(root, relative)
        else:
            pin_snapshot(root, relative, reason=config.reason)
        context.log.info("%s is %s", path, "no longer pinned" if config.unpin else "pinned")
        context.add_output_metadata({"snapshot": dg.MetadataValue.path(path), "pinned": not config.unpin})

    return make_op_job(job, NAME, pin, "Pins a snapshot, so that retention never deletes it, or removes the pin.")


def _split(job: FlinkJob, path: str) -> tuple[Location, str]:
    """Return the root of a snapshot, and its path relative to the root."""
    for root in map(resolve, job.storage.searched_roots):
        start = f"{str(root).rstrip('/')}/"
        if path.startswith(start):
            return root, path[len(start) :]
    raise UsageError(
        f"{path} is not below a root of the job", hint="It needs no pin: retention deletes nothing outside the roots"
    )
