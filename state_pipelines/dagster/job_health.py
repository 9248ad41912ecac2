"""The health of the running job: an asset, its check, and the sensor that reports it without a run."""

import base64
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dagster as dg

from state_pipelines.dagster import partitions
from state_pipelines.dagster.flink_asset import AssetStep, flink_asset, flink_sensor
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.metadata_values import Cell, list_texts, make_table, to_evaluation
from state_pipelines.errors import ClusterError, NotFoundError, StateError, UsageError
from state_pipelines.flink.connections import connect
from state_pipelines.flink.health import (
    CHECKPOINTS_ARE_FAST,
    CHECKPOINTS_SUCCEED,
    JOB_RUNS,
    RECENT_CHECKPOINT,
    RECENT_SAVEPOINT,
    STATE_HAS_ROOM,
    HealthCheck,
    Level,
    StateGrowth,
)
from state_pipelines.flink.status import JobReport, draw_health, status
from state_pipelines.redaction import redact
from state_pipelines.snapshot.representation import format_bytes
from state_pipelines.upgrades.savepoint_policy import find_newest_savepoint, find_savepoint_records

# No `from __future__ import annotations`: Dagster compares the annotation of `context` as a class, not as text.


NAME = "job_health"

_TEXT_SIZE = 1000
_SHOWN = 10
_DIGITS = 4
_TO_MIGRATE = "migrate_snapshot"

_FAILURES = [
    dg.TableColumn("checkpoint", "int"),
    dg.TableColumn("failed"),
    dg.TableColumn("reason", description="Flink's reason (`CheckpointFailureReason`)"),
    dg.TableColumn("usual cause"),
    dg.TableColumn("remedy"),
    dg.TableColumn("failure of the job", description="the exception at that time"),
]
_SLOWEST = [
    dg.TableColumn("task"),
    dg.TableColumn("subtask", "int"),
    dg.TableColumn("duration ms", "int", description="empty where it has not acknowledged"),
    dg.TableColumn("start delay ms", "int"),
    dg.TableColumn("alignment ms", "int"),
    dg.TableColumn("sync ms", "int"),
    dg.TableColumn("async ms", "int"),
    dg.TableColumn("bytes", "int"),
]
_GROWTH = [
    dg.TableColumn("task or operator"),
    dg.TableColumn("bytes before", "int"),
    dg.TableColumn("bytes", "int"),
    dg.TableColumn("bytes per hour", "int"),
    dg.TableColumn("hours", "float", description="between both"),
]
_LOAD = [
    dg.TableColumn("task"),
    dg.TableColumn("parallelism", "int"),
    dg.TableColumn("busy", "float", description="share of time, of the busiest subtask"),
    dg.TableColumn("backpressured", "float", description="share of time, of the subtask that waits longest"),
    dg.TableColumn("pending records", "int", description="records that a source has not read"),
]


def build_job_health(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `job_health` of a job that names its cluster."""

    @flink_asset(
        job,
        NAME,
        step=AssetStep.SEE,
        kinds={"flink"},
        partitioned=False,
        checks=describe_checks(job),
        blocking=False,
    )
    def job_health(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        """Health of the running job: checkpoints, failures with causes, slowest subtasks, load, growth of state.

        Asks the cluster, and changes nothing there. The sensor `job_health` reports it without a run.
        """
        health = measure_health(job)
        context.log_event(observe_job(job, health))
        for each in health.list_lines():
            context.log.info("%s", each)
        yield dg.MaterializeResult(metadata=describe_health(job, health), check_results=list(list_results(job, health)))

    return job_health


class Health:
    """A report on a job, or the reason why there is none.

    Attributes:
        report: the report; None where the cluster does not answer, or does not have the job.
        error: why there is none.
    """

    def __init__(self, report: JobReport | None, error: StateError | None = None) -> None:
        self.report = report
        self.error = error

    @property
    def checks(self) -> Sequence[HealthCheck]:
        """Results of checking the limits of the job; without a report, a single error: the job does not run."""
        if self.report is not None:
            return self.report.checks
        error = self.error
        what, hint = ("", "") if error is None else (redact(error.what), error.hint)
        return (HealthCheck(JOB_RUNS, False, Level.ERROR, 0.0, 1.0, "errors", what, hint),)

    def list_lines(self) -> Sequence[str]:
        """Findings, most severe first, and notes on what is not known."""
        if self.report is None:
            return [f"error: {each.what}" for each in self.checks]
        notes = [f"note: {each}" for each in self.report.notes]
        return [f"{each.level}: {each.what}" for each in self.report.findings] + notes


def measure_health(job: FlinkJob, *, operators: bool = True, now: datetime | None = None) -> Health:
    """Ask the cluster of a job for the health of the job.

    Args:
        job: the Flink job.
        operators: also read the metadata of two checkpoints, for the growth of each operator.
        now: the time; by default that of this machine.

    Raises:
        UsageError: the job names no cluster, or several jobs fit.
        StorageError: the records of savepoints cannot be read.
    """
    if job.cluster is None:
        raise UsageError(f"job {job.name} names no cluster", hint="Set cluster (docs/running-jobs.md)")
    records = find_savepoint_records(job.results, job.name).list_records()
    try:
        report = status(
            connect(job.cluster, Path.cwd()),
            job.job or job.name,
            operators=operators,
            open=job.storage.open,
            path_mapping=job.path_mapping,
            limits=job.thresholds.limits,
            savepoint=find_newest_savepoint(records),
            now=now,
        )
    except (ClusterError, NotFoundError) as error:
        return Health(None, error)
    return Health(report)


def describe_checks(job: FlinkJob) -> dict[str, str]:
    """Return descriptions of the checks by name: those whose limits have a default, and those that the job sets."""
    limits = job.thresholds.limits
    minutes, hours = limits.max_minutes_without_checkpoint, limits.max_hours_without_savepoint
    age = "three intervals and the time-out" if minutes is None else f"{minutes:g} minutes"
    texts = {
        JOB_RUNS: "The cluster answers, the job runs, and its state fits its program.",
        RECENT_CHECKPOINT: f"The newest checkpoint or savepoint is at most {age} old.",
        CHECKPOINTS_SUCCEED: f"At most {limits.max_failed_checkpoints:.0%} of the checkpoints that Flink shows failed.",
        CHECKPOINTS_ARE_FAST: f"Checkpoints take at most {limits.max_checkpoint_share:.0%} of their interval.",
    }
    if hours is not None:
        texts[RECENT_SAVEPOINT] = f"The newest savepoint is at most {hours:g} hours old."
    if limits.max_state_size is not None:
        texts[STATE_HAS_ROOM] = (
            f"The state has less than {format_bytes(limits.max_state_size)}, also in "
            f"{limits.hours_to_max_state_size:g} hours."
        )
    return texts


def list_results(job: FlinkJob, health: Health) -> Iterator[dg.AssetCheckResult]:
    """Yield a result for each check of the asset; checks without a result become warnings."""
    found = {each.name: each for each in health.checks}
    for name in describe_checks(job):
        check = found.get(name)
        if check is None:
            why = "The cluster does not answer." if health.report is None else "The job takes no periodic checkpoints."
            yield dg.AssetCheckResult(
                check_name=name, passed=False, severity=dg.AssetCheckSeverity.WARN, description=why
            )
            continue
        metadata: dict[str, Any] = {"unit": check.unit}
        for title, number in (("expected", check.expected), ("observed", check.observed)):
            if number is not None:
                metadata[title] = dg.MetadataValue.float(round(float(number), _DIGITS))
        if check.remedy:
            metadata["remedy"] = check.remedy
        is_error = check.level is Level.ERROR and check.passed is False
        yield dg.AssetCheckResult(
            check_name=name,
            passed=check.passed is True,
            severity=dg.AssetCheckSeverity.ERROR if is_error else dg.AssetCheckSeverity.WARN,
            description=check.what[:_TEXT_SIZE] or None,
            metadata=metadata,
        )


def observe_job(job: FlinkJob, health: Health) -> dg.AssetObservation:
    """Return the observation of the external asset `flink_job`."""
    report = health.report
    metadata: dict[str, Any] = {"findings": list_texts(health.list_lines()[:_SHOWN]), "status": "no answer"}
    if report is not None:
        metadata |= {"status": str(report.job.status), "job id": report.job.id, **_count(report)}
    return dg.AssetObservation(job.key(partitions.FLINK_JOB), metadata=metadata, tags=partitions.SAME_VERSION)


def describe_health(job: FlinkJob, health: Health) -> dict[str, Any]:
    """Return the health of a job as metadata of the asset `job_health`."""
    report = health.report
    if report is None:
        return {"status": "no answer", "findings": list_texts(health.list_lines())}
    metadata: dict[str, Any] = {
        "status": str(report.job.status),
        "job id": report.job.id,
        "cluster": report.endpoint,
        "findings": list_texts([f"{each.level}: {each.what}. {each.remedy}" for each in report.findings]),
        **_count(report),
        "failed checkpoints": make_table(_FAILURES, _list_failures(report), identity=1),
        "slowest subtasks": make_table(_SLOWEST, _list_slowest(report)),
        "growth": make_table(_GROWTH, map(_list_growth, (*report.growth, *report.operators))),
        "load": make_table(_LOAD, _list_load(report)),
    }
    commands = [each.command for each in report.findings if each.command]
    if commands:
        # If the job has revisions, propose its migration run before the commands of the findings.
        run = [f"launch {job.prefix(_TO_MIGRATE)} for the snapshot that it starts from"] if job.migrations else []
        metadata["proposed"] = list_texts([*run, *commands])
    if report.notes:
        metadata["notes"] = list_texts(report.notes)
    if find_spec("matplotlib") is not None and (drawn := draw_health(report)):
        encoded = base64.b64encode(drawn).decode()
        metadata["picture"] = dg.MetadataValue.md(f"![durations and state](data:image/png;base64,{encoded})")
    return metadata


def _count(report: JobReport) -> dict[str, int | float]:
    """Return the numbers of a report that the UI plots over time."""
    durations, load, newest = report.durations, report.load, report.newest
    total = report.total
    limit = next((each.expected for each in report.checks if each.name == STATE_HAS_ROOM), None)
    hours = None if total is None or limit is None else total.predict_hours(round(limit))
    rate = None if total is None else total.bytes_per_hour
    age = report.newest_age
    alignments = [each.alignment_ms for each in report.slowest if each.alignment_ms is not None]
    found: dict[str, int | float | None] = {
        "restarts": None if load is None else load.restarts,
        "pending records": None if load is None else load.pending_records,
        "completed checkpoints": report.counts.get("completed"),
        "failed checkpoints in all": report.counts.get("failed"),
        "minutes since the newest checkpoint": None if age is None else round(age / timedelta(minutes=1), 2),
        "last duration ms": durations.last_ms,
        "median duration ms": durations.median_ms,
        "longest duration ms": durations.longest_ms,
        "longest alignment ms": max(alignments, default=None),
        "bytes of state": None if newest is None else newest.state_size,
        "bytes written": durations.last_written,
        "bytes in flight": durations.last_persisted,
        "bytes per hour": None if rate is None else round(rate),
        "hours to max_state_size": None if hours is None else round(hours, 1),
    }
    return {name: value for name, value in found.items() if value is not None}


def _list_failures(report: JobReport) -> Iterator[tuple[Cell, ...]]:
    for each in report.failed[:_SHOWN]:
        failed = "" if each.failed is None else each.failed.astimezone(UTC).isoformat(sep=" ", timespec="seconds")
        reason = each.reason or each.message[:_TEXT_SIZE]
        yield each.id, failed, reason, each.cause, each.remedy, each.job_failure[:_TEXT_SIZE]


def _list_slowest(report: JobReport) -> Iterator[tuple[Cell, ...]]:
    for each in report.slowest:
        times = (each.start_delay_ms, each.alignment_ms, each.sync_ms, each.async_ms)
        yield each.task, each.index, each.duration_ms, *times, each.state_size


def _list_growth(growth: StateGrowth) -> tuple[Cell, ...]:
    rate = growth.bytes_per_hour
    return growth.name, growth.before, growth.after, None if rate is None else round(rate), round(growth.hours, _DIGITS)


def _list_load(report: JobReport) -> Iterator[tuple[Cell, ...]]:
    for each in report.load.vertices if report.load is not None else ():
        yield (
            each.vertex.name,
            each.vertex.parallelism,
            each.busy_ratio,
            each.backpressured_ratio,
            each.pending_records,
        )


INTERVAL = 300
"""Seconds between two ticks."""

HEARTBEAT = 3600
"""Seconds after which the health of a job is reported again although it has not changed, so that Dagster plots it."""

_JOB_HEALTH_SHOWN = 3


def _now() -> datetime:
    return datetime.now(UTC)


def build_job_health_sensor(job: FlinkJob) -> dg.SensorDefinition:
    """Build the sensor `job_health` of a job that names its cluster."""

    @flink_sensor(job, NAME, interval=INTERVAL, target=dg.AssetSelection.assets(job.key(NAME)))
    def job_health(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Asks the cluster how the job is, and reports it when something has changed, and every hour.

        The cursor holds the time of the last report and what was wrong.
        """
        now = _now()
        try:
            health = measure_health(job, operators=False, now=now)
            mark = _summarise(health)
            stored = _load(context.cursor)
            summary = "; ".join(health.list_lines()[:_JOB_HEALTH_SHOWN]) or "The job is well"
            if mark == stored.get("mark") and now.timestamp() - stored.get("at", 0) < HEARTBEAT:
                return dg.SkipReason(f"As reported before: {summary}")
            # Measure the growth of operators only if a report is due: this reads the metadata of two checkpoints.
            health = measure_health(job, now=now)
        except StateError as error:
            return dg.SkipReason(f"The job cannot be watched: {error}")
        key = job.key(NAME)
        return dg.SensorResult(
            skip_reason=summary,
            asset_events=[
                observe_job(job, health),
                dg.AssetMaterialization(key, metadata=describe_health(job, health)),
                *(to_evaluation(each, key) for each in list_results(job, health)),
            ],
            cursor=json.dumps({"mark": mark, "at": round(now.timestamp())}),
        )

    return job_health


def _summarise(health: Health) -> str:
    """Return a text that changes when the health must be reported: by status, checks, or a newly failed checkpoint."""
    report = health.report
    outcomes = "".join({True: "1", False: "0", None: "-"}[each.passed] for each in health.checks)
    if report is None:
        return f"no answer {outcomes}"
    failed = next((each.id for each in report.failed), None)
    return f"{report.job.id} {report.job.status} {outcomes} {failed}"


def _load(cursor: str | None) -> dict[str, Any]:
    try:
        content = json.loads(cursor or "{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
