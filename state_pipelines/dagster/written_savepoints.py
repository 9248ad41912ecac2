"""Savepoints that runs write: materialised with the results of their proof, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from state_pipelines.errors import ProofError
from state_pipelines.operations.proofs.proof_reports import ProofReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from state_pipelines.dagster.expectations import ExpectationsResource
    from state_pipelines.dagster.job import FlinkJob


@dataclass(frozen=True)
class WrittenSavepoint:
    """A savepoint that a run has published.

    Attributes:
        metadata: of the materialisation.
        fingerprint: of the new savepoint.
        notes: what a person should know about it; logged as warnings.
        proof: the proof that it passed; None for copied files, which have none.
    """

    metadata: Mapping[str, Any]
    fingerprint: str
    notes: Sequence[str]
    proof: ProofReport | None


def materialize_savepoint(
    context: dg.AssetExecutionContext,
    job: FlinkJob,
    asset: str,
    expectations: ExpectationsResource,
    write: Callable[[], WrittenSavepoint],
) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
    """Write a savepoint; yield its materialisation and the results of its checks.

    When the proof fails, nothing is materialised: only the checks are yielded, then the error is raised again.

    Args:
        context: of the run.
        job: the Flink job.
        asset: name of the asset, without the job.
        expectations: judges the proof.
        write: writes and proves the savepoint.

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
    for note in savepoint.notes:
        context.log.warning(note)
    yield dg.MaterializeResult(
        asset_key=key, metadata=savepoint.metadata, data_version=dg.DataVersion(savepoint.fingerprint)
    )
    if savepoint.proof is not None:
        yield from judge(savepoint.proof)
