"""Definitions of a Flink job from its YAML; without materialisable assets where that cannot be read.

`build_flink_job` builds them, `show_error` those of a job whose revisions or configuration of Flink cannot be read. Its
assets are there and show the error, and nothing can be materialised. Other jobs of the code location load as usual.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import dagster as dg

from state_pipelines.dagster.assets.retention import build_applied_retention, build_retention_plan
from state_pipelines.dagster.assets.savepoints import MAKERS, MigratedSavepoint, build_checkpoint
from state_pipelines.dagster.assets.snapshots import (
    build_compatibility_report,
    build_key_group_balance,
    build_restore_audit,
    build_snapshot_diff,
    build_snapshot_inventory,
    build_snapshot_profile,
)
from state_pipelines.dagster.assets.state_tables import build_state_expectations, build_state_specs, build_state_tables
from state_pipelines.dagster.failures import reporting_failures, to_failure
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.job_health import build_job_health, build_job_health_sensor
from state_pipelines.dagster.job_settings import PlanApplication
from state_pipelines.dagster.jobs import (
    AnyJob,
    build_asset_jobs,
    build_op_jobs,
    build_savepoint_job,
    build_savepoint_schedules,
)
from state_pipelines.dagster.ops import build_prune_partitions, build_register_snapshot
from state_pipelines.dagster.partitions import build_flink_job_spec
from state_pipelines.dagster.resources import build_job_resources
from state_pipelines.dagster.sensors import NEW_SNAPSHOTS, build_failed_runs, build_new_snapshots, build_requests
from state_pipelines.dagster.snapshots_resource import SnapshotsResource, StateTablesIOManager
from state_pipelines.dagster.sql_queries import SavepointOfQuery, build_new_query, build_sql_compatibility_report
from state_pipelines.dagster.translation import AssetTranslator
from state_pipelines.dagster.triggers import (
    build_agreed_plans,
    build_automation,
    build_daily_audit,
    build_new_input,
    build_periodic_checkpoint,
    build_retention_schedule,
)
from state_pipelines.dagster.upgrading import build_new_program, build_nightly_rehearsal, build_upgrade_jobs
from state_pipelines.errors import StateError
from state_pipelines.storage.resolution import scoped_storage_options

# No `from __future__ import annotations`: Dagster compares the annotation of `context` as a class, not as text.


ERROR = "state-pipelines/error"
"""Metadata of the assets of a broken job: the message of the error."""

_INTERVAL = 300


def leave_out(job: FlinkJob) -> FlinkJob:
    """Return the job without the fields that name files to read when it is loaded."""
    roots = job.roots or (job.results,)
    return job.model_copy(update={"flink_config": None, "migrations": None, "roots": roots})


def show_error(
    error: StateError, assets: Iterable[dg.AssetsDefinition | dg.AssetSpec]
) -> Iterator[dg.AssetsDefinition | dg.AssetSpec]:
    """Yield the assets of a broken job: the same keys and checks, but each run fails with the error.

    The assets have no automation conditions, because each automatic run would fail.
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
    # Dagster requires a generator function for an asset with checks, since it yields several results.
    raise error
    yield


def build_failing_sensor(job: FlinkJob, name: str, error: StateError) -> dg.SensorDefinition:
    """Build a sensor in place of a sensor of the job, with the same name; each tick fails with the error."""

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
    """Log the error of a broken job, when the job is loaded."""
    dg.get_dagster_logger().error("The Flink job %s cannot be loaded, and its assets show why: %s", job.name, error)


ASSETS: tuple[Callable[[FlinkJob], dg.AssetsDefinition], ...] = (
    build_snapshot_inventory,
    build_snapshot_profile,
    build_snapshot_diff,
    build_key_group_balance,
    build_restore_audit,
    build_retention_plan,
    build_applied_retention,
    build_compatibility_report,
)
"""Functions that build the assets of every Flink job."""

JOBS = (build_register_snapshot, build_prune_partitions)
"""Functions that build further op jobs of every Flink job."""

SCHEDULES = (build_daily_audit, build_retention_schedule)
"""Functions that build the schedules of every Flink job; stopped by default, except with `apply: scheduled`."""


def build_flink_job(job: FlinkJob, *, translator: AssetTranslator | None = None) -> dg.Definitions:
    """Build the assets, checks, jobs, schedules and sensors of one Flink job.

    They need no other definitions. Where the code location defines `spark` (`SparkResource`) or `expectations`
    (`ExpectationsResource`), the job uses them, unless its field `resources` says otherwise.

    If the revisions or the configuration of Flink cannot be read, the assets of the job show the error, and their
    runs fail with it; other jobs of the code location are not affected.

    Args:
        job: the Flink job.
        translator: changes keys, groups, tags, owners and descriptions of the assets, and how their steps run.
    """
    job = job if translator is None else job.translated_by(translator)
    with scoped_storage_options(job.storage_options):
        return _build_definitions(job)


def _build_definitions(job: FlinkJob) -> dg.Definitions:
    jobs: list[AnyJob] = [*build_asset_jobs(job), *build_op_jobs(job), *(build(job) for build in JOBS)]
    jobs += build_upgrade_jobs(job)
    jobs += [build_savepoint_job(job)] if job.cluster is not None else []
    resources: dict[str, object] = {
        **build_job_resources(job.name, job.resources),
        job.prefix("snapshots"): SnapshotsResource.of(job),
        **({} if job.tables is None else {job.prefix("tables"): StateTablesIOManager.of(job)}),
    }
    try:
        assets: list[dg.AssetsDefinition | dg.AssetSpec] = [*build_external(job), *_build_assets(job)]
        schedules = list(_build_schedules(job))
        sensors = list(_build_sensors(job, jobs, assets))
    except StateError as error:
        warn(job, error)
        readable = leave_out(job)
        assets = [*build_external(readable), *_build_assets(readable)]
        assets += [MigratedSavepoint().build(readable)] if job.migrations is not None else []
        failed = build_failed_runs(job, jobs=[each.name for each in jobs], assets=list_keys(assets))
        return dg.Definitions(
            assets=list(show_error(error, assets)),
            jobs=jobs,
            sensors=[build_failing_sensor(job, NEW_SNAPSHOTS, error), failed],
            resources=resources,
        )
    return dg.Definitions(assets=assets, jobs=jobs, schedules=schedules, sensors=sensors, resources=resources)


def build_external(job: FlinkJob) -> list[dg.AssetSpec]:
    """Build the assets that no run of their own materialises."""
    return [build_flink_job_spec(job), *build_state_specs(job)]


def list_keys(assets: Sequence[dg.AssetsDefinition | dg.AssetSpec]) -> list[dg.AssetKey]:
    """Return the keys of assets, external ones among them."""
    return [key for each in assets for key in ([each.key] if isinstance(each, dg.AssetSpec) else each.keys)]


def _build_assets(job: FlinkJob) -> Iterator[dg.AssetsDefinition]:
    for build in ASSETS:
        yield build(job)
    if job.cluster is not None:
        yield build_job_health(job)
    if job.tables is not None:
        yield build_state_tables(job)
    if job.expectations is not None:
        yield build_state_expectations(job)
    if job.new_query is not None:
        yield build_sql_compatibility_report(job)
    if job.stream is not None:
        yield build_checkpoint(job)
    for maker in (*MAKERS, SavepointOfQuery()):
        if maker.applies(job):
            yield maker.build(job)


def _build_schedules(job: FlinkJob) -> Iterator[dg.ScheduleDefinition]:
    for build in SCHEDULES:
        yield build(job)
    if job.stream is not None and job.stream.cron is not None:
        yield build_periodic_checkpoint(job, job.stream.cron)
    if job.upgrade is not None:
        yield build_nightly_rehearsal(job)
    yield from build_savepoint_schedules(job)


def _build_sensors(
    job: FlinkJob, jobs: Sequence[AnyJob], assets: Sequence[dg.AssetsDefinition | dg.AssetSpec]
) -> Iterator[dg.SensorDefinition]:
    keys = list_keys(assets)
    yield build_new_snapshots(job)
    yield from build_automation(job, keys)
    yield build_failed_runs(job, jobs=[each.name for each in jobs], assets=keys)
    if job.requests is not None:
        yield build_requests(job, jobs)
    if job.retention_runs.apply is PlanApplication.SCHEDULED:
        yield build_agreed_plans(job)
    if job.stream is not None and job.stream.input is not None:
        yield build_new_input(job, job.stream.input)
    if job.upgrade is not None:
        yield build_new_program(job)
    if job.cluster is not None:
        yield build_job_health_sensor(job)
    if job.new_query is not None:
        yield build_new_query(job)
