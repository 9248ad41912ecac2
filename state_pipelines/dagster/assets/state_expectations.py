"""`state_expectations`: states of a snapshot, validated by the Great Expectations suites of its job."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

from collections.abc import Iterator

import dagster as dg

from state_pipelines.dagster.assets import flink_job
from state_pipelines.dagster.expectations import ExpectationsResource
from state_pipelines.dagster.flink_asset import AssetStep, flink_asset
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.partitions import open_partition
from state_pipelines.dagster.resources import SparkResource
from state_pipelines.operations.proofs import DESCRIPTIONS, SUITES, ProofReport

NAME = "state_expectations"


def build_state_expectations(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `state_expectations` of a job with a directory of suites."""

    @flink_asset(
        job,
        NAME,
        step=AssetStep.JUDGE,
        kinds={"flink", "spark", "greatexpectations"},
        deps=[flink_job.NAME],
        checks={SUITES: DESCRIPTIONS[SUITES]},
    )
    def state_expectations(
        context: dg.AssetExecutionContext, spark: SparkResource, expectations: ExpectationsResource
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        """The rows of each state that has a suite, validated by Great Expectations."""
        from state_pipelines.spark.suites import find_project, load_suites, run_suites  # Imports Spark.

        assert job.expectations is not None
        snapshot = open_partition(context, job)
        suites = load_suites(job.expectations)
        results = run_suites(
            spark.session,
            snapshot,
            suites,
            project=find_project(job.expectations, job.data_docs),
            title=context.partition_key,
        )
        rows = sum(len(check.rows) for check in results.checks)
        yield dg.MaterializeResult(
            asset_key=job.key(NAME),
            metadata={
                "suites": [suite.name for suite in suites],
                "snapshot": dg.MetadataValue.path(snapshot.path),
                "failed": sum(not check.ok for check in results.checks),
                "example rows": rows,
                **({"data docs": dg.MetadataValue.url(results.data_docs)} if results.data_docs else {}),
            },
            data_version=dg.DataVersion(snapshot.fingerprint),
        )
        yield from expectations.report(ProofReport("", "", 0, 0, results.checks), job.key(NAME))

    return state_expectations
