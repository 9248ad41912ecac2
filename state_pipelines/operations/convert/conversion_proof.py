"""The proof of a conversion: the new files hold the records of the old ones."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.keyed.digests import RecordDigest
from state_pipelines.operations.proofs.differing_records import find_differing_records
from state_pipelines.operations.proofs.proof_reports import (
    DifferingRecord,
    ProofReport,
    RecordCounts,
)
from state_pipelines.operations.proofs.state_proofs import StateProof, make_state_check
from state_pipelines.operations.write.staged_metadata import require_equal
from state_pipelines.operations.write.unclipped_counts import check_source_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.metadata import CheckpointMetadata
    from state_pipelines.operations.convert.conversion_plan import ConversionPlan
    from state_pipelines.operations.convert.conversion_tasks import SubtaskConversion, WrittenState
    from state_pipelines.operations.local_processes import Runner

READS_BACK = "reads_back_equal"
DESCRIPTION = "the new files hold the records of the old ones, in the same key groups"


def prove_conversion(plan: ConversionPlan, written: Sequence[WrittenState], run: Runner) -> ProofReport | None:
    """Compare the new files with the old ones.

    Args:
        plan: of the conversion.
        written: what its tasks wrote, in their order.
        run: runs tasks and gives their results in order.

    Returns:
        The report; None where no file was read back.

    Raises:
        StateError: an old file cannot be read.
    """
    started = time.monotonic()
    pairs = [pair for pair in zip(plan.tasks, written, strict=True) if pair[1].read_back is not None]
    if not pairs:
        return None
    states = {key: StateProof(*key, True, *digests) for key, digests in _sum_sides(pairs).items()}
    counts = RecordCounts(sum(row.before.records for row in states.values()))
    failed: dict[tuple[str, str], StateProof] = {}
    rows: list[Sequence[DifferingRecord]] = []
    for task, result in pairs:
        for name, digest in result.states.items():
            # Key groups of other subtasks do not make up for it, nor does a state without records that is missing.
            if digest != (result.read_back or {}).get(name):
                failed[task.operator, name] = states[task.operator, name]
                file = task.open_written(result.handle)
                new = [] if file is None else [(file, task.context)]
                found, examples = find_differing_records(name, [(task.source, task.context)], new, run)
                counts += RecordCounts(0, found.differing, found.missing, found.unexpected, found.complete)
                rows.append(examples)
    check = make_state_check(READS_BACK, DESCRIPTION, tuple(states.values()), tuple(failed.values()), counts, rows)
    converted = {task.operator_id for task, _ in pairs}
    whole = check_source_whole(
        [each for each in plan.snapshot.operators if each.metadata.operator_id in converted], run
    )
    return ProofReport(
        ", ".join(dict.fromkeys(row.operator for row in states.values())),
        ", ".join(dict.fromkeys(row.state for row in states.values())),
        counts.compared,
        len({group for task, _ in pairs for group in task.key_groups}),
        (check,) if whole is None else (check, whole),
        time.monotonic() - started,
        sum(row.before.bytes for row in states.values()),
    )


def require_conversion(plan: ConversionPlan, written: Sequence[WrittenState], metadata: CheckpointMetadata) -> None:
    """Require that metadata name the files that the tasks wrote, and are the old ones otherwise.

    Args:
        plan: of the conversion.
        written: what its tasks wrote, in their order.
        metadata: of the new snapshot, whose other files have their old names.

    Raises:
        ProofError: they differ.
    """
    handles = {
        (task.operator_id, task.subtask): result.handle for task, result in zip(plan.tasks, written, strict=True)
    }
    operators = tuple(
        replace(
            operator,
            subtasks=tuple(
                replace(
                    each,
                    managed_keyed_state=handles.get((operator.operator_id, each.index), each.managed_keyed_state),
                )
                for each in operator.subtasks
            ),
        )
        for operator in plan.metadata.operator_states
    )
    require_equal(
        metadata,
        replace(plan.metadata, operator_states=operators),
        str(plan.target),
        {each.metadata.operator_id: each.label for each in plan.snapshot.operators},
    )


def _sum_sides(
    pairs: Sequence[tuple[SubtaskConversion, WrittenState]],
) -> dict[tuple[str, str], tuple[RecordDigest, RecordDigest]]:
    """Digests of the old and of the new files of all subtasks together, by operator and state."""
    totals: dict[tuple[str, str], tuple[RecordDigest, RecordDigest]] = {}
    for task, result in pairs:
        for name, digest in result.states.items():
            before, after = totals.get((task.operator, name), (RecordDigest(), RecordDigest()))
            totals[task.operator, name] = (before + digest, after + (result.read_back or {}).get(name, RecordDigest()))
    return totals


def sum_states(
    tasks: Sequence[SubtaskConversion], written: Sequence[WrittenState]
) -> tuple[tuple[str, str, RecordDigest], ...]:
    """Digests of all subtasks together: (operator, state, digest)."""
    totals: dict[tuple[str, str], RecordDigest] = {}
    for task, result in zip(tasks, written, strict=True):
        for name, digest in result.states.items():
            totals[task.operator, name] = totals.get((task.operator, name), RecordDigest()) + digest
    return tuple((operator, state, digest) for (operator, state), digest in totals.items())
