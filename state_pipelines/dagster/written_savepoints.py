"""Savepoints that runs write: materialised with the results of their proof, or not at all, and with their columns.

Dagster knows the columns of a new savepoint with their types and the columns of the old snapshot that they come from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from state_pipelines.dagster.assets import flink_job, state_tables
from state_pipelines.errors import ProofError
from state_pipelines.operations.migration.flows import trace_columns
from state_pipelines.operations.proofs import ProofReport

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state_pipelines.dagster.job import FlinkJob
    from state_pipelines.dagster.metadata_values import ExpectationsResource
    from state_pipelines.spark import MigrationResult

NameTarget = Callable[[str], str]
"""Returns the directory of a new savepoint, by its purpose, such as the name of a revision."""


@dataclass(frozen=True)
class WrittenSavepoint:
    """A savepoint that a run has published.

    Attributes:
        path: path or URL of its directory.
        metadata: of the materialisation.
        fingerprint: of the new savepoint.
        notes: what a person should know about it; logged as warnings.
        proof: the proof that it passed; None for copied files, which have none.
    """

    path: str
    metadata: Mapping[str, Any]
    fingerprint: str
    notes: Sequence[str]
    proof: ProofReport | None


def materialize_savepoint(
    context: dg.AssetExecutionContext,
    job: FlinkJob,
    asset: str,
    expectations: ExpectationsResource,
    write: Callable[[], WrittenSavepoint | None],
) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
    """Write a savepoint; yield its materialisation and the results of its checks.

    When the proof fails, nothing is materialised: only the checks are yielded, then the error is raised again.

    Args:
        context: of the run.
        job: the Flink job.
        asset: name of the asset, without the job.
        expectations: judges the proof.
        write: writes and proves the savepoint; None if there is nothing to write.

    Raises:
        ProofError: the proof failed, and there is no new savepoint.
    """
    key = job.key(asset)
    title = context.partition_key if context.has_partition_key else context.run.run_id[:8]

    def judge(proof: ProofReport) -> Iterator[dg.AssetCheckResult]:
        return expectations.judge(proof, key, data_docs=job.data_docs, title=title)

    try:
        savepoint = write()
    except ProofError as error:
        if isinstance(error.report, ProofReport):
            yield from judge(error.report)
        raise
    if savepoint is None:
        context.log.info("There is nothing to change: nothing was written.")
        return
    for note in savepoint.notes:
        context.log.warning(note)
    yield dg.MaterializeResult(
        asset_key=key,
        metadata={**savepoint.metadata, **_locate(context, savepoint)},
        data_version=dg.DataVersion(savepoint.fingerprint),
    )
    if savepoint.proof is not None:
        yield from judge(savepoint.proof)


def name_results(context: dg.AssetExecutionContext, job: FlinkJob) -> NameTarget:
    """Return a function that names the savepoint of a run, below the results of the job.

    Each run has its own directory, because a snapshot is never overwritten.
    """
    key, run_id = context.partition_key, context.run.run_id
    return lambda purpose: job.storage.name_result(key, purpose, run_id)


def _locate(context: dg.AssetExecutionContext, savepoint: WrittenSavepoint) -> dict[str, Any]:
    """Return where the savepoint is, and the snapshot that it is derived from."""
    derived = {"derived from": context.partition_key} if context.has_partition_key else {}
    return {"dagster/uri": savepoint.path, **derived}


def describe_columns(job: FlinkJob, result: MigrationResult) -> dict[str, object]:
    """Return schema and lineage of the columns of a migrated savepoint, named `operator.state.column`.

    The columns before are those of `state_tables`, or of `flink_job` where the job has no tables.
    """
    columns = [
        column
        for operator in result.snapshot.operators
        for state in operator.survey().states
        for column in state_tables.name_columns(f"{operator.label}.{state.name}", state.schema)
    ]
    source = job.key(flink_job.NAME if job.tables is None else state_tables.STATE_TABLES)
    lineage = {new: [dg.TableColumnDep(source, name) for name in old] for new, old in _trace(result)}
    changed = tuple(f"{operator}.{state}." for operator, plan in result.plans.items() for state in plan.changed)
    for column in columns:
        if not column.name.startswith(changed):
            lineage[column.name] = [dg.TableColumnDep(source, column.name)]
    return {
        "dagster/column_schema": dg.TableSchema(columns),
        "dagster/column_lineage": dg.TableColumnLineage(lineage),
    }


def _trace(result: MigrationResult) -> Iterator[tuple[str, list[str]]]:
    for operator, plan in result.plans.items():
        for state, flow in plan.changed.items():
            for new, old in trace_columns(flow, plan.context).items():
                yield f"{operator}.{state}.{new}", sorted(f"{operator}.{'.'.join(each)}" for each in old)
