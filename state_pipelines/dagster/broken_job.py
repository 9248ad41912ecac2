"""Definitions of a Flink job whose revisions or configuration of Flink cannot be read.

Its assets are there and show the error, and nothing can be materialised. Other jobs of the code location load as usual.
"""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

from collections.abc import Iterable, Iterator

import dagster as dg

from state_pipelines.dagster.failures import reporting_failures, to_failure
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.errors import StateError

ERROR = "state-pipelines/error"
"""Metadata of the assets of a broken job: the message of the error."""

_INTERVAL = 300


def leave_out(job: FlinkJob) -> FlinkJob:
    """Return the job without the files that are read when it is loaded."""
    roots = job.roots or (job.results,)
    return job.model_copy(update={"flink_config": None, "migrations": None, "roots": roots})


def show_error(
    error: StateError, assets: Iterable[dg.AssetsDefinition | dg.AssetSpec]
) -> Iterator[dg.AssetsDefinition | dg.AssetSpec]:
    """Yield the assets of a broken job: the same keys and checks, but each run fails with the error.

    Without automation, which would fail for each snapshot.
    """
    for each in assets:
        if isinstance(each, dg.AssetSpec):
            yield _describe(each, error)
        else:
            yield _replace(each, error)


def _describe(spec: dg.AssetSpec, error: StateError) -> dg.AssetSpec:
    described = spec.replace_attributes(
        description=f"**The job cannot be loaded**: {error}\n\n{spec.description or ''}",
        automation_condition=None,
    )
    return described.merge_attributes(metadata={ERROR: str(error)})


def _replace(asset: dg.AssetsDefinition, error: StateError) -> dg.AssetsDefinition:
    @dg.multi_asset(
        name=asset.op.name,
        specs=[_describe(each, error) for each in asset.specs],
        check_specs=list(asset.check_specs),
        can_subset=asset.can_subset,
    )
    @reporting_failures
    def fail(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        yield from _fail(error)

    return fail


def _fail(error: StateError) -> Iterator[dg.MaterializeResult[None]]:
    # Dagster takes the function of an asset with checks for one with many results, which must be a generator.
    raise error
    yield


def build_failing_sensor(job: FlinkJob, name: str, error: StateError) -> dg.SensorDefinition:
    """Build a sensor each tick of which fails with the error, under the name of one that the job has."""

    @dg.sensor(
        name=job.prefix(name),
        target=dg.AssetSelection.assets(job.key("snapshot_inventory")),
        minimum_interval_seconds=_INTERVAL,
        default_status=job.sensor_status,
        description=f"The job cannot be loaded: {error}",
    )
    def fail(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        raise to_failure(error)

    return fail


def warn(job: FlinkJob, error: StateError) -> None:
    """Log that a job is broken, when it is loaded."""
    dg.get_dagster_logger().error("The Flink job %s cannot be loaded, and its assets show why: %s", job.name, error)
