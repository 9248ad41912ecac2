"""`compatibility_report`: whether the new code takes the state of a snapshot, before anything is deployed."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

from collections.abc import Iterator

import dagster as dg
from pydantic import Field

from assets.checks import specify_checks
from assets.inventory import snapshot_inventory
from assets.partitions import open_partition, snapshots
from resources import MigrationResource, StorageResource
from state_pipelines.operations.check import Verdict, check_migration

KEY = dg.AssetKey("compatibility_report")

CHECKS = {"migrated_state_restores": "Flink takes the state into the new code once it is migrated."}


class MigrationConfig(dg.Config):
    """What a run says of its snapshot."""

    from_revision: str | None = Field(
        default=None, description="Where it is, if its serializers do not tell: base or a revision."
    )


@dg.asset(
    key=KEY,
    deps=[snapshot_inventory],
    partitions_def=snapshots,
    check_specs=specify_checks(KEY, CHECKS, snapshots),
    group_name="flink_state",
    kinds={"flink", "markdown"},
    owners=["team:streaming"],
    tags={"state-pipelines/step": "judge"},
)
def compatibility_report(
    context: dg.AssetExecutionContext, config: MigrationConfig, storage: StorageResource, migration: MigrationResource
) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
    """What Flink would say to the new code on the old state, without the pending revisions and with them."""
    snapshot = open_partition(storage, context.partition_key)
    chain = migration.plan(snapshot, config.from_revision)
    report = check_migration(snapshot, chain, target=migration.flink)
    before, after = report.unmigrated.verdict, report.migrated.verdict
    yield dg.MaterializeResult(
        asset_key=KEY,
        metadata={
            "report": dg.MetadataValue.md(report.to_markdown()),
            "without the migration": str(before),
            "with the migration": str(after),
            "result": dg.MetadataValue.json(report.to_json()),
            "snapshot": dg.MetadataValue.path(snapshot.path),
        },
        data_version=dg.DataVersion(snapshot.fingerprint),
    )
    refused = [str(each.reason or each.error) for each in report.migrated.checks if each.error]
    yield dg.AssetCheckResult(
        asset_key=KEY,
        check_name="migrated_state_restores",
        passed=report.ok,
        # What cannot be judged does not block: the proof has the last word.
        severity=dg.AssetCheckSeverity.ERROR if after is Verdict.INCOMPATIBLE else dg.AssetCheckSeverity.WARN,
        metadata={"expected": str(Verdict.FULLY_COMPATIBLE), "observed": str(after), "sample": refused},
    )
