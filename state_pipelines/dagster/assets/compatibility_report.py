"""`compatibility_report`: whether the new job can restore the state of a snapshot, before it is deployed."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.assets import flink_job
from state_pipelines.dagster.automation import METADATA, NEW_SNAPSHOT
from state_pipelines.dagster.flink_asset import AssetStep, flink_asset
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.partitions import open_partition
from state_pipelines.operations.check.check import MigrationCheckReport, Verdict, check_migration, parse_release
from state_pipelines.operations.jobs.job_state import Job
from state_pipelines.operations.jobs.new_job import describe_new_job
from state_pipelines.snapshot import Snapshot

NAME = "compatibility_report"

CHECKS = {"migrated_state_restores": "Flink restores the migrated state in the new job."}


class MigrationConfig(dg.Config):
    """The revision of the snapshot, and the target revision."""

    from_revision: str | None = Field(
        default=None, description="Revision of the snapshot, base or a name; by default derived from its serializers."
    )
    to: str | None = Field(
        default=None, description="Target revision: head, base or a name; by default `migrate_to` of the job."
    )


def build_compatibility_report(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `compatibility_report` of a job."""

    @flink_asset(
        job,
        NAME,
        step=AssetStep.JUDGE,
        kinds={"flink", "markdown"},
        deps=[flink_job.NAME],
        automation=NEW_SNAPSHOT,
        priority=METADATA,
        checks=CHECKS,
    )
    def compatibility_report(
        context: dg.AssetExecutionContext, config: MigrationConfig
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        """Flink's verdict on the state in the new job, without the pending revisions and with them."""
        snapshot = open_partition(context, job)
        report = judge_snapshot(job, snapshot, config)
        after = report.migrated.verdict
        yield dg.MaterializeResult(
            asset_key=job.key(NAME),
            metadata=describe_report(report, snapshot),
            data_version=dg.DataVersion(snapshot.fingerprint),
        )
        yield dg.AssetCheckResult(
            asset_key=job.key(NAME),
            check_name="migrated_state_restores",
            passed=report.ok,
            # An undetermined verdict does not block: the proof of the migration decides.
            severity=dg.AssetCheckSeverity.ERROR if after is Verdict.INCOMPATIBLE else dg.AssetCheckSeverity.WARN,
            metadata={
                "expected": str(Verdict.FULLY_COMPATIBLE),
                "observed": str(after),
                "sample": list_reasons(report),
            },
        )

    return compatibility_report


def judge_snapshot(job: FlinkJob, snapshot: Snapshot, config: MigrationConfig) -> MigrationCheckReport:
    """Return Flink's verdict on a snapshot in the new job, without the pending revisions and with them."""
    chain = job.revisions.plan(snapshot, config.from_revision, config.to)
    return check_migration(snapshot, chain, target=job.target_release, new=_find_new_job(job))


def describe_report(report: MigrationCheckReport, snapshot: Snapshot) -> dict[str, Any]:
    """Return a report as metadata."""
    return {
        "report": dg.MetadataValue.md(report.to_markdown()),
        "without the migration": str(report.unmigrated.verdict),
        "with the migration": str(report.migrated.verdict),
        "result": dg.MetadataValue.json(report.to_json()),
        "snapshot": dg.MetadataValue.path(snapshot.path),
    }


def list_reasons(report: MigrationCheckReport) -> list[str]:
    """Return why Flink refuses migrated states, one text for each of them."""
    return [str(each.reason or each.error) for each in report.migrated.checks if each.error]


def _find_new_job(job: FlinkJob) -> Callable[[Job], Job] | None:
    """Return a function that describes the new job, or None if the migrations alone describe it.

    Without migrations and without a description, the new job is the old one on the target release.
    """
    if job.migrations is not None and job.new_job is None and not job.job_classes:
        return None
    release = parse_release(job.target_release)

    def describe(migrated: Job) -> Job:
        return describe_new_job(migrated, job.new_code, release, new=job.new_job, open_other=job.storage.open)

    return describe
