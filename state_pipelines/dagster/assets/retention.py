"""`retention_plan` and `applied_retention`: the plan of retention, and its newest application."""

import json
import logging
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.assets import snapshots
from state_pipelines.dagster.flink_asset import AssetStep, flink_asset
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.job_settings import PlanApplication
from state_pipelines.dagster.metadata_values import expect_none, list_texts, make_table, round_money, round_seconds
from state_pipelines.errors import MissingFileError, NotFoundError, Where
from state_pipelines.operations.retention import (
    ApplyResult,
    AuditLog,
    AuditRecord,
    DeletionOutcome,
    PathKind,
    PlannedPath,
    QuarantinedFile,
    RetentionPlan,
    apply_plan,
    list_quarantine,
    open_audit_log,
    plan_retention,
    purge_quarantine,
)
from state_pipelines.operations.retention.application import PlanChangedError
from state_pipelines.operations.retention.policy import read_planned_paths
from state_pipelines.storage import Location, join, read_file, resolve
from state_pipelines.storage.files import replace_file
from state_pipelines.storage.snapshot_writer import RETENTION_DIRECTORY

# No `from __future__ import annotations`: Dagster compares the annotation of `context` as a class, not as text.


PLAN_NAME = "retention_plan"
APPLIED = "plan_is_applied"
KNOWN = "references_are_known"

FINGERPRINT = "fingerprint"
PATHS = "paths to delete"
IN_QUARANTINE = "files in quarantine"

_SHOWN = 50
_COLUMNS = [
    dg.TableColumn("path"),
    dg.TableColumn("bytes", "int"),
    dg.TableColumn("kind"),
    dg.TableColumn("reason"),
]


def build_retention_plan(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `retention_plan` of a job."""
    checks = {
        APPLIED: "Nothing is left to delete; else: how to apply it.",
        KNOWN: "Every _metadata can be read; otherwise shared files stay.",
    }

    @flink_asset(
        job,
        PLAN_NAME,
        step=AssetStep.KEEP,
        kinds={"flink"},
        deps=[snapshots.SNAPSHOT_INVENTORY],
        partitioned=False,
        checks=checks,
        blocking=False,
    )
    def retention_plan(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        """Snapshots by policy and orphans: what goes, what stays, and why. Nothing is deleted."""
        plan, metadata = store_plan(job, context.log)
        yield dg.MaterializeResult(
            metadata=metadata,
            check_results=[_check_applied(job, plan), _check_references(plan)],
        )

    return retention_plan


def find_roots(job: FlinkJob) -> tuple[str, ...]:
    """Return the roots that one retention plan covers.

    Raises:
        NotFoundError: the job has only a stream, which has taken no checkpoint yet.
    """
    roots = job.retention_runs.roots or job.storage.searched_roots
    if not roots:
        raise NotFoundError(
            "the stream has taken no checkpoint yet", where=Where(file=", ".join(job.all_roots)), hint="Take one first"
        )
    return roots


def make_plan(job: FlinkJob) -> RetentionPlan:
    """Plan the retention of a job, in one pass.

    Raises:
        StateError: a root cannot be listed, or the policy or a pin file is wrong.
    """
    policy = job.policy
    return plan_retention(
        find_roots(job),
        policy,
        # A path is deleted only if two passes, a grace period apart, plan its deletion. This plan is the first pass, so
        # it need not wait; applying the plan later is the second pass.
        grace=timedelta(0),
        path_mapping=job.reach,
        audit_log=job.retention_runs.audit_log,
        # A plan may use the references that earlier plans have stored: applying it reads all snapshots again.
        references=join(resolve(find_roots(job)[0]), RETENTION_DIRECTORY, f"references-{job.name}.parquet"),
    )


def store_plan(job: FlinkJob, log: logging.Logger) -> tuple[RetentionPlan, dict[str, Any]]:
    """Plan the retention of a job, and store the plan as its newest one; return it, and its metadata."""
    plan = make_plan(job)
    for reason in plan.stopped:
        log.warning("Shared files stay: %s", reason)
    for note in plan.notes:
        log.info("%s", note)
    file = locate_plan(job)
    replace_file(file, json.dumps(plan.to_json(), indent=1).encode())
    return plan, _describe(plan, list_quarantine([resolve(root) for root in plan.roots]), file)


def locate_plan(job: FlinkJob) -> Location:
    """The file with the newest plan of a job."""
    return join(resolve(find_roots(job)[0]), RETENTION_DIRECTORY, f"plan-{job.name}.json")


def read_planned(job: FlinkJob, fingerprint: str) -> Sequence[PlannedPath] | None:
    """The paths that the newest plan deletes; None when it has another fingerprint, or there is none."""
    try:
        content = read_file(locate_plan(job))
    except MissingFileError:
        return None
    return read_planned_paths(content, fingerprint)


def report_applied(instance: dg.DagsterInstance, job: FlinkJob, fingerprint: str, run_id: str) -> None:
    """Report that the check `plan_is_applied` passes, after a plan was wholly applied, if it is still the newest."""
    event = instance.get_latest_materialization_event(job.key(PLAN_NAME))
    plan = None if event is None else event.asset_materialization
    known = None if plan is None else plan.metadata.get(FINGERPRINT)
    if known is None or known.value != fingerprint:
        return
    instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(
            asset_key=job.key(PLAN_NAME),
            check_name=APPLIED,
            passed=True,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={
                "expected": 0,
                "observed": 0,
                FINGERPRINT: fingerprint,
                "applied by": dg.MetadataValue.dagster_run(run_id),
            },
        )
    )


def make_path_table(paths: Sequence[PlannedPath]) -> dg.TableMetadataValue:
    """Make a table of the largest paths."""
    largest = sorted(paths, key=lambda each: (-each.bytes, each.path))[:_SHOWN]
    return make_table(_COLUMNS, [(each.path, each.bytes, each.kind.value, each.reason) for each in largest])


def _describe(plan: RetentionPlan, quarantined: Sequence[QuarantinedFile], file: Location) -> dict[str, Any]:
    counts = plan.count_by_kind()
    metadata: dict[str, Any] = {
        FINGERPRINT: plan.fingerprint,
        # Numbers under the same names in every plan, which Dagster plots over time.
        PATHS: len(plan.delete),
        "bytes to delete": plan.bytes,
        "bytes that stay": plan.kept_bytes,
        "snapshots": len(plan.snapshots),
        "snapshots to delete": sum(each.delete for each in plan.snapshots),
        "unknown paths": len(plan.unknown),
        IN_QUARANTINE: len(quarantined),
        "bytes in quarantine": sum(each.bytes for each in quarantined),
        **{
            f"bytes to delete: {kind.value}": counts.get(kind, (0, 0))[1]
            for kind in PathKind
            if kind is not PathKind.DIRECTORY
        },
        "plan": dg.MetadataValue.path(str(file)),
    }
    if plan.monthly_saving is not None:
        metadata["saved per month"] = round_money(plan.monthly_saving)
        metadata["currency"] = plan.currency
    if plan.delete:
        metadata["largest paths"] = make_path_table(plan.delete)
    for name, texts in (("stopped", plan.stopped), ("notes", plan.notes)):
        if texts:
            metadata[name] = list_texts(texts[:_SHOWN], "*")
    return metadata


def _check_applied(job: FlinkJob, plan: RetentionPlan) -> dg.AssetCheckResult:
    settings = job.retention_runs
    if settings.apply is PlanApplication.SCHEDULED:
        way = f"Applied by itself after {settings.grace}, if a second plan has the same fingerprint."
    else:
        way = (
            f"Look at the plan, then launch {job.prefix('apply_retention')} with the fingerprint, or run "
            f"`state-pipelines retain … --apply {plan.fingerprint}`."
        )
    application = {FINGERPRINT: plan.fingerprint, "how to apply": way} if plan.delete else {}
    return expect_none(APPLIED, len(plan.delete), {"bytes": plan.bytes, **application})


def _check_references(plan: RetentionPlan) -> dg.AssetCheckResult:
    sample = {"sample": list_texts(plan.stopped[:_SHOWN], "*")} if plan.stopped else None
    return expect_none(KNOWN, len(plan.stopped), sample)


# No `from __future__ import annotations`: Dagster compares the annotation of `context` as a class, not as text.


APPLICATION_NAME = "applied_retention"
AGREED = "second_plan_agrees"
DONE = "everything_planned_is_done"

_APPLICATION_COLUMNS = [dg.TableColumn("path"), dg.TableColumn("outcome"), dg.TableColumn("reason")]


class ApplyConfig(dg.Config):
    """The plan to apply."""

    fingerprint: str = Field(min_length=1, description="Of the plan, as retention_plan shows it.")
    scheduled: bool = Field(
        default=False, description="A plan that has changed is not an error: the next one is applied when it is stable."
    )


def build_applied_retention(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `applied_retention` of a job."""
    checks = {
        AGREED: "The plan of the run has the fingerprint that was asked for.",
        DONE: "No path was kept, refused by the storage or beyond a limit.",
    }

    @flink_asset(
        job,
        APPLICATION_NAME,
        step=AssetStep.KEEP,
        kinds={"flink"},
        deps=[PLAN_NAME],
        checks=checks,
        blocking=False,
        partitioned=False,
        writes=True,
        output_required=False,
    )
    def applied_retention(
        context: dg.AssetExecutionContext, config: ApplyConfig
    ) -> Iterator[dg.MaterializeResult[None]]:
        """Plans again, audits what stays, then deletes or quarantines exactly what the agreed plan names."""
        try:
            result, metadata = apply_fingerprint(job, config.fingerprint, context.log)
        except PlanChangedError as error:
            if not config.scheduled:
                raise
            context.log.warning("%s", error)
            # Dagster accepts check results from this generator, but not in the annotation of what it yields.
            yield dg.AssetCheckResult(  # type: ignore[misc]
                check_name=AGREED,
                passed=False,
                severity=dg.AssetCheckSeverity.WARN,
                metadata={"expected": config.fingerprint, "observed": error.fingerprint, "changes": str(error)},
            )
            yield dg.AssetCheckResult(  # type: ignore[misc]
                check_name=DONE,
                passed=False,
                severity=dg.AssetCheckSeverity.WARN,
                metadata={"sample": "Nothing was deleted, because the second plan is another one"},
            )
            return
        done = _check_done(result)
        if done.passed:
            report_applied(context.instance, job, config.fingerprint, context.run.run_id)
        yield dg.MaterializeResult(
            metadata=metadata,
            check_results=[
                dg.AssetCheckResult(
                    check_name=AGREED,
                    passed=True,
                    metadata={"expected": config.fingerprint, "observed": result.fingerprint},
                ),
                done,
            ],
        )

    return applied_retention


def apply_fingerprint(job: FlinkJob, fingerprint: str, log: logging.Logger) -> tuple[ApplyResult, dict[str, Any]]:
    """Plan again, apply the plan if it has this fingerprint, purge the quarantine; return the result and metadata.

    Raises:
        PlanChangedError: the plan has another fingerprint now; nothing was deleted.
        StateError: the audit of what stays found damage, or a root cannot be read; nothing was deleted.
    """
    settings = job.retention_runs
    roots = find_roots(job)

    def report(done: int, total: int) -> None:
        log.info("%s of %s paths", f"{done:,}", f"{total:,}")

    result = apply_plan(
        roots,
        job.policy,
        fingerprint=fingerprint,
        path_mapping=job.reach,
        audit_log=settings.audit_log,
        quarantine=settings.quarantine is not None,
        limits=settings.limits,
        planned=read_planned(job, fingerprint),
        open_snapshot=job.storage.open,
        report=report,
    )
    return result, _describe_application(result, _purge(job, roots))


def open_log(job: FlinkJob) -> AuditLog:
    """Return the audit log of a job's retention."""
    directory = job.retention_runs.audit_log
    return open_audit_log(resolve(find_roots(job)[0]), None if directory is None else resolve(directory))


def _purge(job: FlinkJob, roots: Sequence[str]) -> list[AuditRecord]:
    settings = job.retention_runs
    if settings.quarantine_period is None:
        return []
    return purge_quarantine([resolve(root) for root in roots], settings.quarantine_period, open_log(job))


def _describe_application(result: ApplyResult, purged: Sequence[AuditRecord]) -> dict[str, Any]:
    gone = [record for record in purged if record.outcome is DeletionOutcome.PURGED]
    left = [*result.kept, *result.failed, *(record for record in purged if record.outcome is DeletionOutcome.FAILED)]
    metadata: dict[str, Any] = {
        "fingerprint": result.fingerprint,
        "finished": result.finished,
        "quarantined": result.quarantined,
        # Numbers under the same names in every run, which Dagster plots over time.
        "paths": result.paths,
        "bytes": result.bytes,
        "kept": len(result.kept),
        "failed": len(result.failed),
        "remaining": result.remaining,
        "purged from quarantine": len(gone),
        "bytes purged from quarantine": sum(record.bytes for record in gone),
        **{
            f"bytes: {kind.value}": result.done.get(kind.value, (0, 0))[1]
            for kind in PathKind
            if kind is not PathKind.DIRECTORY
        },
        "seconds": round_seconds(result.seconds),
    }
    if result.stopped:
        metadata["stopped"] = result.stopped
    if result.log:
        metadata["audit log"] = dg.MetadataValue.path(result.log)
    if left:
        rows = [(each.path, str(each.outcome), each.detail) for each in left[:_SHOWN]]
        metadata["not deleted"] = make_table(_APPLICATION_COLUMNS, rows)
    return metadata


def _check_done(result: ApplyResult) -> dg.AssetCheckResult:
    kept = [record for record in result.kept if record.kind != PathKind.DIRECTORY]
    left = len(kept) + len(result.failed) + result.remaining
    reasons = [result.stopped] if result.stopped else []
    reasons += [f"{record.path}: {record.detail}" for record in (*result.failed, *kept)]
    return expect_none(DONE, left, {"sample": list_texts(reasons[:_SHOWN], "*")} if reasons else None)
