"""The proof of a conversion: the new files hold the records of the old ones."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from state_pipelines.keyed.digests.record_digests import RecordDigest
from state_pipelines.operations.proofs.differing_records import find_differing_records
from state_pipelines.operations.proofs.proof_reports import (
    DifferingRecord,
    ProofCheck,
    ProofReport,
    RecordCounts,
    choose_examples,
)
from state_pipelines.operations.write.whole_sources import check_source_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    totals = sum_states([task for task, _ in pairs], [result for _, result in pairs])
    records = sum(digest.records for *_, digest in totals)
    counts, different = RecordCounts(records), list[str]()
    rows: list[Sequence[DifferingRecord]] = []
    for task, result in pairs:
        names = [name for name, digest in result.states.items() if digest != (result.read_back or {}).get(name)]
        different += [f"{task.place}, subtask {task.subtask}, state {name}" for name in names]
        again = task.open_written(result.handle)
        after = [] if again is None else [(again, task.context)]
        for name in names:
            found, examples = find_differing_records(name, [(task.source, task.context)], after, run)
            counts += RecordCounts(0, found.differing, found.missing, found.unexpected, found.complete)
            rows.append(examples)
    observed = f"{records:,} records of {len(totals)} state{'' if len(totals) == 1 else 's'}"
    if different:
        # Records may also be the same, in other key groups.
        told = str(counts) if counts.failed else "the same records are in other key groups"
        observed = f"different: {'; '.join(different)}; {told}"
    check = ProofCheck(READS_BACK, not different, DESCRIPTION, "equal records", observed, counts, choose_examples(rows))
    converted = {task.operator_id for task, _ in pairs}
    whole = check_source_whole(
        [each for each in plan.snapshot.operators if each.metadata.operator_id in converted], run
    )
    groups = {group for task, _ in pairs for group in range(task.key_groups.start, task.key_groups.end + 1)}
    return ProofReport(
        ", ".join(dict.fromkeys(operator for operator, *_ in totals)),
        ", ".join(dict.fromkeys(state for _, state, _ in totals)),
        records,
        len(groups),
        (check,) if whole is None else (check, whole),
        time.monotonic() - started,
        sum(digest.bytes for *_, digest in totals),
    )


def sum_states(
    tasks: Sequence[SubtaskConversion], written: Sequence[WrittenState]
) -> tuple[tuple[str, str, RecordDigest], ...]:
    """Digests of all subtasks together: (operator, state, digest)."""
    totals: dict[tuple[str, str], RecordDigest] = {}
    for task, result in zip(tasks, written, strict=True):
        for name, digest in result.states.items():
            totals[task.place, name] = totals.get((task.place, name), RecordDigest()) + digest
    return tuple((operator, state, digest) for (operator, state), digest in totals.items())
