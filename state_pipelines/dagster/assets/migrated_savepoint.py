"""`migrated_savepoint`: a new savepoint after the pending revisions, proven before it is published."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

import warnings
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.assets import compatibility_report
from state_pipelines.dagster.assets.compatibility_report import MigrationConfig
from state_pipelines.dagster.assets.rescaled_savepoint import SCRATCH
from state_pipelines.dagster.columns import describe_columns
from state_pipelines.dagster.expectations import ExpectationsResource, describe_numbers
from state_pipelines.dagster.flink_asset import AssetStep, flink_asset
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.metadata_values import list_texts, round_seconds
from state_pipelines.dagster.partitions import open_partition
from state_pipelines.dagster.resources import SparkResource
from state_pipelines.dagster.written_savepoints import (
    NameTarget,
    WrittenSavepoint,
    materialize_savepoint,
    name_results,
)
from state_pipelines.operations.proofs import (
    DESCRIPTIONS,
    KEY_HASHES,
    KEY_SETS,
    KEYS_UNITED,
    OWN,
    READ_BACK,
    ROUND_TRIP,
    ROW_COUNTS,
    SOURCE_WHOLE,
    STATES_AGREE,
    SUITES,
)
from state_pipelines.snapshot import Snapshot
from state_pipelines.storage import resolve
from state_pipelines.storage.locations import is_local

if TYPE_CHECKING:
    from state_pipelines.operations.migration import Direction, Migration
    from state_pipelines.spark import MigrationResult

NAME = "migrated_savepoint"


class MigrationRunConfig(MigrationConfig):
    """The revisions of a migration, and where its temporary files go."""

    scratch: str = Field(default="", description=SCRATCH)


_PROOF = (ROW_COUNTS, KEY_SETS, KEY_HASHES, ROUND_TRIP, READ_BACK)


def list_checks(job: FlinkJob) -> dict[str, str]:
    """Return descriptions of the checks by name, as far as the revisions of the job need them.

    Revisions are read when the code location is loaded, so it must be reloaded after a new revision.

    Raises:
        MigrationError: a revision is invalid.
        NotFoundError: the target revision does not exist.
    """
    directory = job.revisions.load()
    revisions = () if directory is None else directory.revisions
    changes = [change for each in revisions for change in each.changes]
    names = [*_PROOF, KEYS_UNITED, SOURCE_WHOLE, STATES_AGREE]
    names += [OWN] if any(change.expectations for change in changes) else []
    names += [SUITES] if job.expectations is not None else []
    if all(change.impossible for change in changes):
        names.remove(ROUND_TRIP)
    return {name: DESCRIPTIONS[name] for name in names}


def build_migrated_savepoint(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `migrated_savepoint` of a job."""

    @flink_asset(
        job,
        NAME,
        step=AssetStep.CHANGE,
        kinds={"flink", "spark", "greatexpectations"},
        deps=[compatibility_report.NAME],
        checks=list_checks(job),
        writes=True,
        # Without pending revisions, there is nothing to write.
        output_required=False,
        code_version=job.revisions.version,
        metadata=_refer_to_revisions(job),
    )
    def migrated_savepoint(
        context: dg.AssetExecutionContext,
        config: MigrationRunConfig,
        spark: SparkResource,
        expectations: ExpectationsResource,
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        """A savepoint after the pending revisions: changed states are rewritten, all others copied as bytes.

        If the proof fails, nothing is published, and the checks show why. For a snapshot without pending revisions the
        step succeeds without a result.
        """
        snapshot = open_partition(context, job)
        write = partial(write_migrated, job, snapshot, config, spark, name_results(context, job))
        yield from materialize_savepoint(context, job, NAME, expectations, write)

    return migrated_savepoint


def write_migrated(
    job: FlinkJob, snapshot: Snapshot, config: MigrationRunConfig, spark: SparkResource, name_target: NameTarget
) -> WrittenSavepoint | None:
    """Apply the pending revisions of a snapshot; None if there are none.

    Raises:
        ProofError: the proof failed, and there is no new savepoint.
        MigrationError: the revision of the snapshot cannot be derived from its serializers.
    """
    chain = job.revisions.plan(snapshot, config.from_revision, config.to)
    if not chain:
        return None
    # Importing Spark takes seconds.
    from state_pipelines.spark import migrate
    from state_pipelines.spark.suites import find_project, load_suites

    revision = job.revisions.name_target(config.to)
    result = migrate(
        snapshot,
        chain,
        name_target(revision),
        suites=() if job.expectations is None else load_suites(job.expectations),
        project=None if job.expectations is None else find_project(job.expectations, job.data_docs),
        # The directory of revisions is configured, as the code of the deployment is.
        allow_sql=True,
        allow_python=True,
        spark=spark.session,
        scratch=config.scratch or None,
    )
    metadata = _describe(result, revision, chain) | describe_columns(job, result)
    return WrittenSavepoint(result.path, metadata, result.snapshot.fingerprint, result.notes, result.proof)


def _refer_to_revisions(job: FlinkJob) -> dict[str, object]:
    """Return code references to the revisions, if they are local files."""
    directory = job.revisions.load()
    if directory is None or not is_local(resolve(directory.path)):
        return {}
    with warnings.catch_warnings():
        # A beta feature of Dagster 1.13, to which the dependencies are pinned.
        warnings.simplefilter("ignore", dg.BetaWarning)
        references: list[dg.LocalFileCodeReference | dg.UrlCodeReference] = [
            dg.LocalFileCodeReference(file_path=each.path, label=each.revision) for each in directory.revisions
        ]
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=references)}


def _describe(result: "MigrationResult", revision: str, chain: list[tuple["Migration", "Direction"]]) -> dict[str, Any]:
    proof = result.proof
    return {
        "path": dg.MetadataValue.path(result.path),
        "proof": dg.MetadataValue.md(proof.to_markdown() if proof else ""),
        "revision": revision,
        "applied": [f"{direction} {each.revision}" for each, direction in chain],
        "notes": list_texts(result.notes),
        "bytes": result.snapshot.file_size,
        "seconds": round_seconds(result.seconds),
        **describe_numbers(proof),
        **({"data docs": dg.MetadataValue.url(proof.data_docs)} if proof and proof.data_docs else {}),
        "dagster/row_count": result.rows,
    }
