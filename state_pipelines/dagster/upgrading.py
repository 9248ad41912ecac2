"""Upgrades of the running Flink job: ops, the jobs `upgrade` and `rehearse`, a sensor and a schedule.

Each op takes one step of an upgrade, under the lease of the job, and returns the id of the upgrade. A step that has
failed ends no run, because the next ops bring the old program back; the last op fails the run then. The record of the
upgrade is on the storage: a re-execution from failure, or another run, continues it.

A plan that waits or is refused, and the end of each upgrade and rehearsal, are observations of the asset `flink_job`.
"""

# No `from __future__ import annotations`: Dagster reads the annotations of decorated functions as classes.

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import dagster as dg
import yaml

from state_pipelines.dagster.flink_asset import (
    bind_op,
    checked_op,
    flink_schedule,
    flink_sensor,
    make_config,
    make_graph_job,
    make_op_job,
)
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.metadata_values import list_texts, round_seconds
from state_pipelines.dagster.partitions import FLINK_JOB, SAME_VERSION
from state_pipelines.dagster.resources import SparkResource
from state_pipelines.errors import NotFoundError, StateError, UsageError, Where
from state_pipelines.operations.migration.history import RevisionDirectory
from state_pipelines.operations.requests import UpgradeApproval
from state_pipelines.upgrades.rehearsal import RehearsalReport
from state_pipelines.upgrades.rehearsal import rehearse as rehearse_upgrade
from state_pipelines.upgrades.upgrade_plan import UpgradePlan, measure_down_time, plan_upgrade
from state_pipelines.upgrades.upgrade_records import (
    RecordDirectory,
    Step,
    UpgradeOutcome,
    UpgradeRecord,
    find_records,
    hold_lease,
)
from state_pipelines.upgrades.upgrade_reports import (
    Result,
    UpgradeReport,
    describe_plan,
    describe_savepoints,
    report_record,
    report_undecided,
)
from state_pipelines.upgrades.upgrade_request import UpgradeRequest, fingerprint, parse_upgrade_request
from state_pipelines.upgrades.upgrade_run import (
    UndecidedError,
    UpgradeRun,
    begin_record,
    connect_clusters,
    find_done,
    refuse_plan,
    require_same_programs,
)

Metadata: TypeAlias = dict[str, dg.MetadataValue[Any] | str | int | float]

UPGRADE = "upgrade"
REHEARSE = "rehearse"
NEW_PROGRAM = "new_program"
NIGHTLY = "nightly_rehearsal"

INTERVAL = 60
"""Seconds between two ticks of `new_program`."""

WAITING_TAG = "state-pipelines/waits-for-approval"
"""Tag of a run whose plan waits for an approval: the fingerprint of the plan."""


PREDICTED, MEASURED = "predicted down time s", "down time s"
"""Metadata of plans, rehearsals and upgrades: seconds."""


class UpgradeFailedError(StateError):
    """An upgrade ended without the new program, or a rehearsal found that it would."""


class UpgradeConfig(make_config(UpgradeApproval)):  # type: ignore[misc]
    """Approval of an upgrade."""


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
    return parse_upgrade_request(content, Path.cwd(), allow_python=True)


def identify_program(request: UpgradeRequest) -> str:
    """Return a digest of the new program: of its jar, its settings and the revisions.

    The old program does not count: after an upgrade, users enter the new program as the old one, and that must not
    request another upgrade.

    Raises:
        StateError: a file cannot be read.
    """
    change = {name: each for name, each in request.describe_change().items() if name != "old"}
    revisions = None
    if request.migrations is not None:
        revisions = RevisionDirectory(request.migrations, allow_python=True).fingerprint
    return fingerprint([change, revisions])


@checked_op(out=dg.Out(str, is_required=False, description="Id of the upgrade."))
def plan_job_upgrade(
    context: dg.OpExecutionContext, config: UpgradeConfig, flink_job: dg.ResourceParam[FlinkJob]
) -> Iterator[dg.Output[str] | dg.AssetObservation]:
    """Plan the upgrade of the running job, and begin it if it may; else the next ops are skipped. Fails if refused.

    A plan that waits for an approval is shown with its fingerprint, and with a link to the launchpad that approves it.
    """
    request = make_request(flink_job)
    old, new = connect_clusters(request)
    records = find_records(request.results, request.name)
    with hold_lease(records.location, request.name):
        record = records.find_unfinished()
        if record is not None:
            require_same_programs(request, record)
            context.log.info("Upgrade %s, begun %s, is continued", record.id, record.created)
        elif (done := find_done(request, new, records)) is not None:
            yield _observe(flink_job, "nothing is to be done", _describe_report(report_record(request, done, None)))
            return
        else:
            plan = plan_upgrade(request, old, new, records)
            context.log.info("\n".join(describe_plan(plan)))
            if config.approve and config.approve != plan.fingerprint and not plan.refusals:
                error = UsageError(
                    f"the plan has changed: its fingerprint is {plan.fingerprint}, not {config.approve} as approved",
                    hint="Read the plan, and launch the job with its fingerprint",
                )
                error.details["plan"] = "\n".join(describe_plan(plan))
                raise error
            refusal = refuse_plan(request, plan, records, config.approve or None)
            if refusal is not None and refusal.result is Result.WAITS:
                yield _wait_for_approval(context, flink_job, refusal, plan)
                return
            if refusal is not None:
                refusal = replace(refusal, lines=tuple(describe_plan(plan)))
                yield _observe(flink_job, "the upgrade was refused", _describe_report(refusal))
                raise _fail(refusal)
            record = begin_record(plan, records)
            yield dg.Output(record.id, metadata=_describe_plan(plan))
            return
    yield dg.Output(record.id)


def _build_step(name: str, step: Step, description: str, *, uses_spark: bool = False) -> dg.OpDefinition:
    """Build the op of a step of an upgrade."""
    take: Callable[..., str]
    if uses_spark:

        def take(
            context: dg.OpExecutionContext, flink_job: dg.ResourceParam[FlinkJob], spark: SparkResource, upgrade: str
        ) -> str:
            return _take(context, flink_job, upgrade, step, spark)
    else:

        def take(context: dg.OpExecutionContext, flink_job: dg.ResourceParam[FlinkJob], upgrade: str) -> str:
            return _take(context, flink_job, upgrade, step)

    return checked_op(name=name, description=description)(take)


stop_job = _build_step("stop_job", Step.STOP, "Take the savepoint of the running job, and stop it.", uses_spark=True)
check_savepoint = _build_step("check_savepoint", Step.CHECK, "Check the savepoint against the new program.")
change_savepoint = _build_step(
    "change_savepoint",
    Step.CHANGE,
    "Migrate, rescale or convert the savepoint where that is needed, and prove the result.",
    uses_spark=True,
)
start_program = _build_step("start_program", Step.START, "Start the new program from the result.")
watch_program = _build_step("watch_program", Step.WATCH, "Watch the new program until its checkpoints are completed.")


@checked_op(out=dg.Out(str, description="Id of the upgrade."))
def decide_upgrade(
    context: dg.OpExecutionContext, flink_job: dg.ResourceParam[FlinkJob], upgrade: str
) -> Iterator[dg.Output[str] | dg.AssetObservation]:
    """Decide the upgrade: done, or back to the old program from its savepoint, which fails the run."""
    request = make_request(flink_job)
    with _continue(context, request, upgrade) as run:
        report = report_record(request, run.decide(), None)
    context.log.info("\n".join(report.list_lines()))
    metadata = _describe_report(report)
    yield _observe(flink_job, f"the upgrade has ended: {report.result}", metadata)
    if report.result is not Result.UPGRADED:
        raise _fail(report)
    yield dg.Output(upgrade, metadata=metadata)


@checked_op(out=dg.Out(bool, description="Whether the upgrade would succeed."))
def rehearse(
    context: dg.OpExecutionContext, flink_job: dg.ResourceParam[FlinkJob], spark: SparkResource
) -> Iterator[dg.Output[bool] | dg.AssetObservation]:
    """Try the upgrade on a savepoint, while the job runs on; fails if the upgrade would be refused."""
    request = make_request(flink_job)
    if request.migrations is not None:
        spark.session  # noqa: B018
    report: RehearsalReport = rehearse_upgrade(request, report=context.log.info)
    headline, *lines = report.list_lines()
    context.log.info("\n".join((headline, *lines)))
    metadata = _describe_rehearsal(report)
    yield _observe(flink_job, headline, metadata)
    if not report.ok:
        error = UpgradeFailedError(f"{headline}: {'; '.join(report.refusals)}")
        error.details["report"] = "\n".join(lines)
        raise error
    yield dg.Output(report.ok, metadata=metadata)


def _take(
    context: dg.OpExecutionContext, job: FlinkJob, upgrade: str, step: Step, spark: SparkResource | None = None
) -> str:
    request = make_request(job)
    with _continue(context, request, upgrade) as run:
        if spark is not None and (run.record.plan.get("change") or {}).get("revisions"):
            spark.session  # noqa: B018
        run.advance(step)
        failed = run.record.get(Step.BACK)
        if failed.get("failed") == step:
            context.log.error("The %s step failed: %s. The old program comes back", step, failed.get("reason"))
        context.add_output_metadata(_describe_step(run.record, step))
    return upgrade


@contextmanager
def _continue(context: dg.OpExecutionContext, request: UpgradeRequest, upgrade: str) -> Iterator[UpgradeRun]:
    """Continue an upgrade; the lease of the job is held meanwhile, so that no other upgrade of it can run."""
    records: RecordDirectory = find_records(request.results, request.name)
    with hold_lease(records.location, request.name) as lease:
        record: UpgradeRecord | None = records.read(upgrade)
        if record is None:
            raise NotFoundError(f"there is no record of upgrade {upgrade}", where=Where(file=str(records.location)))
        old, new = connect_clusters(request)
        run = UpgradeRun(request, old, new, records, lease, record, report=context.log.info)
        try:
            yield run
        except UndecidedError as error:
            raise _explain_undecided(report_undecided(request, run.record, error, None), error) from error


def _wait_for_approval(
    context: dg.OpExecutionContext, job: FlinkJob, report: UpgradeReport, plan: UpgradePlan
) -> dg.AssetObservation:
    """Show that a plan waits for a person, and how it is approved."""
    context.instance.add_run_tags(context.run_id, {WAITING_TAG: plan.fingerprint})
    needs = ", ".join(plan.to_approve)
    context.log.warning("The plan waits for an approval (%s): launch the job with approve: %s", needs, plan.fingerprint)
    link = _link_launchpad(context, plan.fingerprint)
    return _observe(
        job,
        f"an upgrade waits for an approval ({needs}); nothing was stopped",
        {
            # The UI cuts off what comes after the first lines.
            "waits for the approval of": needs,
            **({"to approve": dg.MetadataValue.url(link)} if link else {}),
            **_describe_plan(plan),
            "runs now": report.headline,
        },
    )


def _link_launchpad(context: dg.OpExecutionContext, approved: str) -> str:
    """Return the address, in the UI, of the launchpad with an approval filled in; empty for a run in a test."""
    origin = context.run.remote_job_origin
    if origin is None:
        return ""
    config = {"ops": {context.op.name: {"config": {"approve": approved}}}}
    where = quote(origin.repository_origin.get_label(), safe="@")
    text = quote(yaml.safe_dump(config, sort_keys=False))
    return f"/locations/{where}/jobs/{context.job_name}/playground/setup?config={text}"


def _fail(report: UpgradeReport) -> UpgradeFailedError:
    """Return the error of an upgrade that did not start the new program; it says which program runs now, and why."""
    refused = [each for each in report.lines if each.startswith("refused: ")] or list(report.lines[:1])
    error = UpgradeFailedError(": ".join((report.headline, "; ".join(refused))))
    error.details = {"runs now": report.headline, "why": "\n".join(report.lines), **_list_commands(report)}
    return error


def _explain_undecided(report: UpgradeReport, cause: UndecidedError) -> UndecidedError:
    """Return the error of an upgrade that could not find out which program runs on the cluster."""
    error = UndecidedError(
        f"{report.headline}: {cause.what}",
        where=cause.where,
        hint="Re-execute the run from failure, which continues the upgrade, or launch the job again. Look at the "
        f"cluster before you start a program by hand. {cause.hint}".rstrip(),
    )
    error.details = _list_commands(report)
    return error


def _list_commands(report: UpgradeReport) -> dict[str, str]:
    return {f"to start the {name} program": command for name, command in report.commands}


def _observe(job: FlinkJob, text: str, metadata: Metadata) -> dg.AssetObservation:
    """Return an observation of the running job, which has the history of its upgrades."""
    key = job.key(FLINK_JOB)
    return dg.AssetObservation(key, description=text, metadata=metadata, tags=SAME_VERSION)


def _describe_report(report: UpgradeReport) -> Metadata:
    metadata: Metadata = {"runs now": report.headline}
    if report.record is not None:
        if report.result is Result.UPGRADED and (down := measure_down_time(report.record)) is not None:
            metadata[MEASURED] = round_seconds(down)
        metadata |= _describe_prediction(report.record.plan.get("down_time"))
        metadata |= _describe_savepoints(report.record)
    metadata["result"] = str(report.result)
    if report.lines:
        metadata["report"] = list_texts(report.lines)
    return metadata | _list_commands(report)


def _describe_plan(plan: UpgradePlan) -> Metadata:
    metadata: Metadata = {}
    if plan.down_time is not None:
        metadata |= _describe_prediction(plan.down_time.to_json())
    if plan.change is not None:
        metadata |= {"verdict": str(plan.change.verdict), "needs": ", ".join(plan.change.needs)}
    return {**metadata, "fingerprint": plan.fingerprint, "plan": list_texts(describe_plan(plan))}


def _describe_prediction(content: object) -> Metadata:
    return {PREDICTED: float(content["seconds"])} if isinstance(content, dict) and "seconds" in content else {}


def _describe_savepoints(record: UpgradeRecord) -> Metadata:
    savepoint, changed = describe_savepoints(record)
    pairs = (("savepoint of the old program", savepoint), ("savepoint for the new program", changed))
    return {name: dg.MetadataValue.path(path) for name, path in pairs if path}


def _describe_step(record: UpgradeRecord, step: Step) -> Metadata:
    """Describe the outcome of a step."""
    taken = record.get(step)
    back = record.get(Step.BACK)
    if record.outcome is UpgradeOutcome.NOT_STOPPED or record.outcome is UpgradeOutcome.NOTHING_RUNS:
        return {"outcome": str(record.outcome), "why": record.reason}
    if back.get("failed") == step:
        return {"outcome": "failed, the old program comes back", "why": str(back.get("reason", ""))}
    if not taken.get("done"):
        return {"outcome": f"not taken, since the {back.get('failed', 'upgrade')} step failed"}
    metadata: Metadata = {"outcome": "done"}
    match step:
        case Step.STOP:
            metadata |= {"savepoint": dg.MetadataValue.path(str(taken["savepoint"]))}
        case Step.CHECK:
            change = taken["change"]
            metadata |= {"verdict": str(change["verdict"]), "needs": ", ".join(change["needs"])}
            if change["reasons"]:
                metadata["reasons"] = list_texts(change["reasons"])
        case Step.CHANGE:
            metadata |= {"savepoint for the new program": dg.MetadataValue.path(str(taken["path"]))}
            metadata |= {f"{name} s": round_seconds(float(each)) for name, each in taken["seconds"].items()}
            if taken["proofs"]:
                metadata["proofs"] = dg.MetadataValue.json(taken["proofs"])
        case Step.START:
            metadata |= {"job id": str(taken["job"])}
        case _:
            metadata |= {name: taken[name] for name in ("ended", "checkpoints", "pending_records") if taken.get(name)}
    for name in ("seconds", "start_seconds"):
        if isinstance(taken.get(name), float):
            metadata[name.replace("_", " ")] = round_seconds(taken[name])
    return metadata


def _describe_rehearsal(report: RehearsalReport) -> Metadata:
    headline, *lines = report.list_lines()
    numbers = {
        PREDICTED: None if report.down_time is None else report.down_time.seconds,
        "savepoint s": report.savepoint_seconds,
        **{f"{name} s": each for name, each in report.change_seconds.items()},
        "start s": report.start_seconds,
    }
    metadata: Metadata = {"rehearsal": headline}
    if report.change is not None:
        metadata |= {"verdict": str(report.change.verdict), "needs": ", ".join(report.change.needs)}
    metadata |= {name: round_seconds(each) for name, each in numbers.items() if each is not None}
    if report.state_size is not None:
        metadata["bytes of state"] = report.state_size
    return {**metadata, "report": list_texts(lines)}


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

    text = "Upgrades the running job: savepoint, check, migration, proof, start, watch, or back to the old one."
    yield make_graph_job(job, UPGRADE, compose, text, {first.name: {"config": {"approve": ""}}})
    yield make_op_job(job, REHEARSE, bind_op(job, rehearse), "Tries the upgrade on a savepoint; the job runs on.")


def build_new_program(job: FlinkJob) -> dg.SensorDefinition:
    """Build the sensor `new_program` of a Flink job that describes an upgrade; it is stopped by default."""

    @flink_sensor(job, NEW_PROGRAM, interval=INTERVAL, runs=UPGRADE, status=dg.DefaultSensorStatus.STOPPED)
    def new_program(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Requests an upgrade when the new program, its settings or revisions change."""
        # Cursor: digest and a counter of requested programs, so that a return to an earlier program is a new request.
        last, _, number = (context.cursor or "").partition(" ")
        try:
            mark = identify_program(make_request(job))
        except StateError as error:
            return dg.SkipReason(f"The new program cannot be read: {error}")
        if mark == last:
            return dg.SkipReason("The program is the one that was requested last")
        cursor = f"{mark} {int(number or 0) + 1}"
        return dg.SensorResult(run_requests=[dg.RunRequest(run_key=cursor)], cursor=cursor)

    return new_program


def build_nightly_rehearsal(job: FlinkJob) -> dg.ScheduleDefinition:
    """Build the schedule `nightly_rehearsal` of a Flink job that describes an upgrade; it is stopped by default."""

    @flink_schedule(job, NIGHTLY, runs=REHEARSE, cron="0 2 * * *")
    def nightly_rehearsal(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        """Requests a rehearsal every night, so that an upgrade is known to work before somebody wants it."""
        return dg.RunRequest(run_key=f"{context.scheduled_execution_time:%Y-%m-%d}")

    return nightly_rehearsal
