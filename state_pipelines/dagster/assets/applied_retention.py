"""`applied_retention`: the newest application of a plan of retention."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.assets import retention_plan
from state_pipelines.dagster.assets.retention_plan import find_roots, read_planned
from state_pipelines.dagster.flink_asset import AssetStep, flink_asset
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.metadata_values import expect_none, list_texts, make_table, round_seconds
from state_pipelines.operations.retention import (
    ApplyResult,
    AuditLog,
    AuditRecord,
    DeletionOutcome,
    PathKind,
    apply_plan,
    open_audit_log,
    purge_quarantine,
)
from state_pipelines.operations.retention.application import PlanChangedError
from state_pipelines.storage import resolve

NAME = "applied_retention"
AGREED = "second_plan_agrees"
DONE = "everything_planned_is_done"

_SHOWN = 50
_COLUMNS = [dg.TableColumn("path"), dg.TableColumn("outcome"), dg.TableColumn("reason")]


class ApplyConfig(dg.Config):
    """The plan to apply."""

    fingerprint: str = Field(min_length=1, description="Of the plan, as retention_plan shows it.")
    scheduled: bool = Field(
        default=False, description="A plan that has changed is not an error: the next one is applied when it is stable."
    )


def build_applied_retention(job: FlinkJob) -> dg.AssetsDefinition:
    """The asset `applied_retention` of a job."""
    key = job.key(NAME)
    checks = [
        dg.AssetCheckSpec(AGREED, asset=key, description="The plan of the run has the fingerprint that was asked for."),
        dg.AssetCheckSpec(DONE, asset=key, description="No path was kept, refused by the storage or beyond a limit."),
    ]

    @flink_asset(
        job,
        NAME,
        step=AssetStep.KEEP,
        kinds={"flink"},
        deps=[retention_plan.NAME],
        check_specs=checks,
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
            # Dagster takes results of both kinds, but no annotation of both.
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
            retention_plan.report_applied(context.instance, job, config.fingerprint, context.run.run_id)
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
    """Plan again, apply the plan of a fingerprint, and purge the quarantine; return the result, and its metadata.

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
    return result, _describe(result, _purge(job, roots))


def open_log(job: FlinkJob) -> AuditLog:
    """Return the audit log of a job's retention."""
    directory = job.retention_runs.audit_log
    return open_audit_log(resolve(find_roots(job)[0]), None if directory is None else resolve(directory))


def _purge(job: FlinkJob, roots: Sequence[str]) -> list[AuditRecord]:
    settings = job.retention_runs
    if settings.quarantine_period is None:
        return []
    return purge_quarantine([resolve(root) for root in roots], settings.quarantine_period, open_log(job))


def _describe(result: ApplyResult, purged: Sequence[AuditRecord]) -> dict[str, Any]:
    gone = [record for record in purged if record.outcome is DeletionOutcome.PURGED]
    left = [*result.kept, *result.failed, *(record for record in purged if record.outcome is DeletionOutcome.FAILED)]
    metadata: dict[str, Any] = {
        "fingerprint": result.fingerprint,
        "finished": result.finished,
        "quarantined": result.quarantined,
        # Numbers under the same names in every run, so that they chart over time.
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
        metadata["not deleted"] = make_table(_COLUMNS, rows)
    return metadata


def _check_done(result: ApplyResult) -> dg.AssetCheckResult:
    kept = [record for record in result.kept if record.kind != PathKind.DIRECTORY]
    left = len(kept) + len(result.failed) + result.remaining
    reasons = [result.stopped] if result.stopped else []
    reasons += [f"{record.path}: {record.detail}" for record in (*result.failed, *kept)]
    return expect_none(DONE, left, {"sample": list_texts(reasons[:_SHOWN], "*")} if reasons else None)
