"""`retention_plan`: which snapshots and files go, which stay, and why; nothing is deleted."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

import json
import logging
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import dagster as dg

from state_pipelines.dagster.assets import snapshots
from state_pipelines.dagster.flink_asset import AssetStep, flink_asset
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.metadata_values import expect_none, list_texts, make_table, round_money
from state_pipelines.dagster.retention_settings import PlanApplication
from state_pipelines.errors import MissingFileError, NotFoundError, Where
from state_pipelines.operations.retention import (
    PathKind,
    PlannedPath,
    QuarantinedFile,
    RetentionPlan,
    list_quarantine,
    plan_retention,
)
from state_pipelines.operations.retention.policy import read_planned_paths
from state_pipelines.storage import Location, join, read_file, resolve
from state_pipelines.storage.files import replace_file
from state_pipelines.storage.snapshot_listing import RETENTION_DIRECTORY

NAME = "retention_plan"
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
    """The asset `retention_plan` of a job."""
    key = job.key(NAME)
    checks = [
        dg.AssetCheckSpec(APPLIED, asset=key, description="Nothing is left to delete; else: how to apply it."),
        dg.AssetCheckSpec(KNOWN, asset=key, description="Every _metadata can be read; otherwise shared files stay."),
    ]

    @flink_asset(
        job,
        NAME,
        step=AssetStep.KEEP,
        kinds={"flink"},
        deps=[snapshots.SNAPSHOT_INVENTORY],
        partitioned=False,
        check_specs=checks,
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
    """The roots that are planned together.

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
        # The second pass is that of the application.
        grace=timedelta(0),
        path_mapping=job.reach,
        audit_log=job.retention_runs.audit_log,
        # The application reads everything again.
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
    """Let the check `plan_is_applied` pass after everything of a plan is done, if it is the newest plan."""
    event = instance.get_latest_materialization_event(job.key(NAME))
    plan = None if event is None else event.asset_materialization
    known = None if plan is None else plan.metadata.get(FINGERPRINT)
    if known is None or known.value != fingerprint:
        return
    instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(
            asset_key=job.key(NAME),
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
    """The largest of some paths as a table."""
    largest = sorted(paths, key=lambda each: (-each.bytes, each.path))[:_SHOWN]
    return make_table(_COLUMNS, [(each.path, each.bytes, each.kind.value, each.reason) for each in largest])


def _describe(plan: RetentionPlan, quarantined: Sequence[QuarantinedFile], file: Location) -> dict[str, Any]:
    counts = plan.count_by_kind()
    metadata: dict[str, Any] = {
        FINGERPRINT: plan.fingerprint,
        # Numbers under the same names in every plan, so that they chart over time.
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
