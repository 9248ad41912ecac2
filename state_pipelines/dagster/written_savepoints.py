"""Savepoints that runs write: materialised with the results of their proof, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from state_pipelines.errors import ProofError
from state_pipelines.operations.proofs import ProofReport

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state_pipelines.dagster.expectations import ExpectationsResource
    from state_pipelines.dagster.job import FlinkJob

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
