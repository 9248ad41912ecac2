"""`migrated_savepoint`: the state of a snapshot in the shape of the new code, proven before it is published."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import dagster as dg

from assets.checks import specify_checks
from assets.compatibility import MigrationConfig, compatibility_report
from assets.partitions import open_partition, snapshots
from resources import ExpectationsResource, MigrationResource, SparkResource, StorageResource
from state_pipelines.errors import ProofError

if TYPE_CHECKING:
    from state_pipelines.operations.migration import Migration
    from state_pipelines.spark import MigrationResult, ProofReport

KEY = dg.AssetKey("migrated_savepoint")

PROOF = {
    "row_counts_per_key_group": "Every key group has as many rows as before.",
    "key_sets": "No key was lost, none came in.",
    "key_groups_match_key_hash": "Every key lies in the key group that its hash gives.",
    "round_trip": "Taken back by the downgrade, the state is the old one, but for declared losses.",
    "written_reads_back": "What was written reads back equal.",
}
"""The checks of every proof."""

OWN = {"own_expectations": "The rows of the new states are as the revisions expect."}
"""The check of what revisions `expect`."""


@dg.asset(
    key=KEY,
    # None when there is nothing to do.
    output_required=False,
    deps=[compatibility_report],
    partitions_def=snapshots,
    check_specs=specify_checks(KEY, PROOF | OWN, snapshots),
    code_version=MigrationResource.from_environment().version,
    pool="migrated_savepoint",
    group_name="flink_state",
    kinds={"flink", "spark", "greatexpectations"},
    owners=["team:streaming"],
    tags={"state-pipelines/step": "change"},
)
def migrated_savepoint(
    context: dg.AssetExecutionContext,
    config: MigrationConfig,
    storage: StorageResource,
    spark: SparkResource,
    migration: MigrationResource,
    expectations: ExpectationsResource,
) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
    """A new savepoint after the pending revisions: changed states written anew, all others copied as bytes.

    When the proof fails there is no savepoint, and the checks say why. A snapshot that is where it is to be gets none
    either: the step succeeds without one, as the command line does.
    """
    from state_pipelines.spark import migrate  # starting Spark takes seconds, so nobody else pays

    snapshot = open_partition(storage, context.partition_key)
    chain = migration.plan(snapshot, config.from_revision)
    revision = migration.name_target()
    if not chain:
        yield from _nothing_to_do(context, revision)
        return
    # Every run writes a savepoint of its own: a snapshot is never overwritten.
    target = storage.place_result(f"{context.partition_key}-{revision}-{context.run.run_id[:8]}")
    try:
        result = migrate(spark.session, snapshot, chain, target)
    except ProofError as error:
        yield from expectations.report(cast("ProofReport", error.report), KEY)
        raise dg.Failure(str(error), allow_retries=False) from error
    yield _describe(result, revision, chain)
    if result.proof is not None:
        yield from expectations.report(result.proof, KEY)
        if not OWN.keys() & {check.name for check in result.proof.checks}:
            yield _nothing_expected()


def _nothing_to_do(context: dg.AssetExecutionContext, revision: str) -> Iterator[dg.AssetCheckResult]:
    reason = f"The snapshot is at {revision} already: nothing to do, nothing was written."
    context.log.info(reason)
    for name in PROOF | OWN:
        yield dg.AssetCheckResult(
            asset_key=KEY,
            check_name=name,
            passed=True,
            description=reason,
            metadata={"expected": "nothing", "observed": "nothing"},
        )


def _nothing_expected() -> dg.AssetCheckResult:
    """Dagster wants a result for every check of an asset."""
    return dg.AssetCheckResult(
        asset_key=KEY,
        check_name=next(iter(OWN)),
        passed=True,
        description="The revisions expect nothing of their own.",
        metadata={"expected": "nothing", "observed": "nothing"},
    )


def _describe(
    result: "MigrationResult", revision: str, chain: list[tuple["Migration", str]]
) -> dg.MaterializeResult[None]:
    return dg.MaterializeResult(
        asset_key=KEY,
        metadata={
            "path": dg.MetadataValue.path(result.path),
            "proof": dg.MetadataValue.md(result.proof.to_markdown() if result.proof else ""),
            "revision": revision,
            "applied": [f"{direction} {each.revision}" for each, direction in chain],
            "bytes": result.snapshot.file_size,
            "seconds": result.seconds,
            "dagster/row_count": result.rows,
        },
        data_version=dg.DataVersion(result.snapshot.fingerprint),
    )
