"""Upgrades of the running Flink job: ops, the jobs `upgrade` and `rehearse`, a sensor and a schedule.

Each op takes one step of an upgrade, under the lease of the job, and returns the id of the upgrade. A step that has
failed ends no run, because the next ops bring the old program back; the last op fails the run then. The record of the
upgrade is on the storage: a re-execution from failure, or another run, continues it.
"""

# Without the import of `annotations`: Dagster reads those of the decorated functions.

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.flink_asset import bind_op, checked_op, documented, make_graph_job, make_op_job
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.resources import SparkResource
from state_pipelines.errors import IncompatibleError, NotFoundError, StateError, UsageError, Where
from state_pipelines.operations.migration.history import RevisionDirectory
from state_pipelines.upgrades.cluster_connections import connect_clusters
from state_pipelines.upgrades.job_upgrade import begin_record, find_done, refuse_plan, require_same_programs
from state_pipelines.upgrades.leases import hold_lease
from state_pipelines.upgrades.rehearsal import RehearsalReport
from state_pipelines.upgrades.rehearsal import rehearse as rehearse_upgrade
from state_pipelines.upgrades.upgrade_plan import plan_upgrade
from state_pipelines.upgrades.upgrade_records import RecordDirectory, Step, UpgradeRecord, find_records
from state_pipelines.upgrades.upgrade_reports import Result, report_plan, report_record
from state_pipelines.upgrades.upgrade_request import UpgradeRequest, fingerprint, parse_upgrade_request
from state_pipelines.upgrades.upgrade_run import UpgradeRun

UPGRADE = "upgrade"
REHEARSE = "rehearse"
NEW_PROGRAM = "new_program"
NIGHTLY = "nightly_rehearsal"

INTERVAL = 60
"""Seconds between two ticks of `new_program`."""

WAITING_TAG = "state-pipelines/waits-for-approval"
"""Tag of a run whose plan waits for an approval: the fingerprint of the plan."""


class UpgradeConfig(dg.Config):
    """Approval of an upgrade."""

    approve: str = Field(
        default="",
        description="Fingerprint of the plan that may be carried out, as the op shows it; needed for results that "
        "`automatic` of the job does not name.",
    )


def make_request(job: FlinkJob) -> UpgradeRequest:
    """Return the description of the upgrade of a job.

    Raises:
        UsageError: the job describes none.
    """
    if job.cluster is None or job.upgrade is None:
        raise UsageError(f"job {job.name} describes no upgrade", hint="Set cluster and upgrade (docs/upgrading.md)")
    content: dict[str, Any] = {
        "name": job.name,
        "cluster": job.cluster,
        "job": job.job or job.name,
        "results": job.results,
        "roots": list(job.all_roots),
        "path_mapping": list(job.path_mapping),
        "allow_roots": list(job.allow_roots),
        **{kind: list(texts) for kind, texts in job.declarations.items()},
        "migrations": job.migrations,
        "migrate_to": job.migrate_to,
        "target_release": job.target_release,
        "new_job": job.new_job,
        "job_classes": list(job.job_classes) or None,
        "upgrade": job.upgrade,
    }
    return replace(parse_upgrade_request(content, Path.cwd()), allow_python=True)


def identify_program(request: UpgradeRequest) -> str:
    """Return a digest of the new program: of its jar, its settings and the revisions.

    Raises:
        StateError: a file cannot be read.
    """
    revisions = None
    if request.migrations is not None:
        revisions = RevisionDirectory(request.migrations, allow_python=True).fingerprint
    return fingerprint([request.describe_change(), revisions])


@checked_op(out=dg.Out(str, is_required=False, description="Id of the upgrade."))
def plan_job_upgrade(
    context: dg.OpExecutionContext, config: UpgradeConfig, flink_job: dg.ResourceParam[FlinkJob]
) -> Iterator[dg.Output[str]]:
    """Plan the upgrade of the running job, and begin it if it may; else the next ops are skipped. Fails if refused."""
    request = make_request(flink_job)
    old, new = connect_clusters(request)
    records = find_records(request.results, request.name)
    with hold_lease(records.location, request.name):
        record = records.find_unfinished()
        if record is not None:
            require_same_programs(request, record)
            context.log.info("Upgrade %s, begun %s, is continued", record.id, record.created)
        elif (done := find_done(request, new, records)) is not None:
            context.log.info(report_record(request, done, None).headline)
            return
        else:
            plan = plan_upgrade(request, old, new, records)
            refusal = refuse_plan(request, plan, records, config.approve or None)
            report = refusal or report_plan(request, plan, is_wanted=False)
            metadata: dict[str, dg.MetadataValue[Any] | str] = {
                "plan": dg.MetadataValue.md(_list(report.list_lines())),
                "fingerprint": plan.fingerprint,
            }
            context.log.info("\n".join(report.list_lines()))
            if refusal is not None:
                if refusal.result is Result.WAITS:
                    context.log.warning("Launch the job with approve: %s", plan.fingerprint)
                    context.instance.add_run_tags(context.run_id, {WAITING_TAG: plan.fingerprint})
                    return
                raise IncompatibleError("; ".join(plan.refusals), hint="Nothing was stopped")
            record = begin_record(plan, records)
            yield dg.Output(record.id, metadata=metadata)
            return
    yield dg.Output(record.id)


@checked_op()
def stop_job(
    context: dg.OpExecutionContext, flink_job: dg.ResourceParam[FlinkJob], spark: SparkResource, upgrade: str
) -> str:
    """Take the savepoint of the running job, and stop it."""
    return _take(context, flink_job, upgrade, Step.STOP, spark)


@checked_op()
def check_savepoint(context: dg.OpExecutionContext, flink_job: dg.ResourceParam[FlinkJob], upgrade: str) -> str:
    """Check the savepoint against the new program."""
    return _take(context, flink_job, upgrade, Step.CHECK)


@checked_op()
def change_savepoint(
    context: dg.OpExecutionContext, flink_job: dg.ResourceParam[FlinkJob], spark: SparkResource, upgrade: str
) -> str:
    """Migrate, rescale or convert the savepoint where that is needed, and prove the result."""
    return _take(context, flink_job, upgrade, Step.CHANGE, spark)


@checked_op()
def start_program(context: dg.OpExecutionContext, flink_job: dg.ResourceParam[FlinkJob], upgrade: str) -> str:
    """Start the new program from the result."""
    return _take(context, flink_job, upgrade, Step.START)


@checked_op()
def watch_program(context: dg.OpExecutionContext, flink_job: dg.ResourceParam[FlinkJob], upgrade: str) -> str:
    """Watch the new program until its checkpoints are completed."""
    return _take(context, flink_job, upgrade, Step.WATCH)


@checked_op()
def decide_upgrade(context: dg.OpExecutionContext, flink_job: dg.ResourceParam[FlinkJob], upgrade: str) -> str:
    """Decide the upgrade: done, or back to the old program from its savepoint, which fails the run."""
    request = make_request(flink_job)
    with _continue(context, request, upgrade) as run:
        report = report_record(request, run.decide(), None)
    context.add_output_metadata({"report": dg.MetadataValue.md(_list(report.list_lines()))})
    context.log.info("\n".join(report.list_lines()))
    if report.result is not Result.UPGRADED:
        raise IncompatibleError(report.headline, hint="; ".join(report.list_lines()[1:]))
    return upgrade


@checked_op()
def rehearse(context: dg.OpExecutionContext, flink_job: dg.ResourceParam[FlinkJob], spark: SparkResource) -> bool:
    """Try the upgrade on a savepoint, while the job runs on; fails if the upgrade would be refused."""
    request = make_request(flink_job)
    if request.migrations is not None:
        spark.session  # noqa: B018
    report: RehearsalReport = rehearse_upgrade(request, report=context.log.info)
    context.add_output_metadata(
        {"report": dg.MetadataValue.md(_list(report.list_lines())), "result": dg.MetadataValue.json(report.to_json())}
    )
    if not report.ok:
        raise IncompatibleError(f"the upgrade would be refused: {'; '.join(report.refusals)}")
    return report.ok


def _take(
    context: dg.OpExecutionContext, job: FlinkJob, upgrade: str, step: Step, spark: SparkResource | None = None
) -> str:
    request = make_request(job)
    with _continue(context, request, upgrade) as run:
        if spark is not None and (run.record.plan.get("change") or {}).get("revisions"):
            spark.session  # noqa: B018
        run.advance(step)
        context.add_output_metadata(
            {"outcome": dg.MetadataValue.json({**run.record.get(step), **run.record.get(Step.BACK)})}
        )
    return upgrade


@contextmanager
def _continue(context: dg.OpExecutionContext, request: UpgradeRequest, upgrade: str) -> Iterator[UpgradeRun]:
    """Continue an upgrade under the lease of the job."""
    records: RecordDirectory = find_records(request.results, request.name)
    with hold_lease(records.location, request.name) as lease:
        record: UpgradeRecord | None = records.read(upgrade)
        if record is None:
            raise NotFoundError(f"there is no record of upgrade {upgrade}", where=Where(file=str(records.location)))
        old, new = connect_clusters(request)
        yield UpgradeRun(request, old, new, records, lease, record, report=context.log.info)


def _list(lines: list[str]) -> str:
    return "\n".join(f"- {each}" for each in lines)


STEPS: tuple[dg.OpDefinition, ...] = (
    plan_job_upgrade,
    stop_job,
    check_savepoint,
    change_savepoint,
    start_program,
    watch_program,
    decide_upgrade,
)
"""The ops of an upgrade, each of which takes the id that the one before it returns."""


def build_upgrade_jobs(job: FlinkJob) -> Iterator[dg.JobDefinition]:
    """Yield the jobs `upgrade` and `rehearse` of a Flink job that describes an upgrade."""
    if job.upgrade is None:
        return
    first, *others = [bind_op(job, each) for each in STEPS]

    def compose() -> None:
        upgrade = first()
        for each in others:
            upgrade = each(upgrade)

    text = "Upgrades the running job: savepoint, check, migration, proof, start, watch, or back."
    yield make_graph_job(job, UPGRADE, compose, text, {first.name: {"config": {"approve": ""}}})
    yield make_op_job(job, REHEARSE, bind_op(job, rehearse), "Tries the upgrade on a savepoint; the job runs on.")


def build_new_program(job: FlinkJob) -> dg.SensorDefinition:
    """Build the sensor `new_program` of a Flink job that describes an upgrade; it is stopped by default."""

    @documented(
        job,
        dg.sensor,
        name=job.prefix(NEW_PROGRAM),
        job_name=job.prefix(UPGRADE),
        minimum_interval_seconds=job.interval(NEW_PROGRAM, INTERVAL),
        default_status=dg.DefaultSensorStatus.STOPPED,
    )
    def new_program(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Requests an upgrade when the new program, its settings or revisions change; the cursor is a digest."""
        try:
            mark = identify_program(make_request(job))
        except StateError as error:
            return dg.SkipReason(f"The new program cannot be read: {error}")
        if mark == context.cursor:
            return dg.SkipReason("The program is the one that was requested last")
        return dg.SensorResult(run_requests=[dg.RunRequest(run_key=mark)], cursor=mark)

    return new_program


def build_nightly_rehearsal(job: FlinkJob) -> dg.ScheduleDefinition:
    """Build the schedule `nightly_rehearsal` of a Flink job that describes an upgrade; it is stopped by default."""

    @documented(
        job,
        dg.schedule,
        name=job.prefix(NIGHTLY),
        job_name=job.prefix(REHEARSE),
        cron_schedule="0 2 * * *",
        execution_timezone="UTC",
    )
    def nightly_rehearsal(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        """Requests a rehearsal every night, so that an upgrade is known to work before somebody wants it."""
        return dg.RunRequest(run_key=f"{context.scheduled_execution_time:%Y-%m-%d}")

    return nightly_rehearsal
