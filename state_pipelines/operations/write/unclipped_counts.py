"""Count of a source's records without clipping: nothing that its handles hold may be left out.

A RocksDB database that several subtasks share is read once per subtask, clipped to the key groups of each. Its records
are counted as they are stored too, once, so that a wrong range is found. Other files are never clipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import at
from state_pipelines.keyed.digests import RecordDigest, sum_digests
from state_pipelines.keyed.keyed_file import digest_states
from state_pipelines.operations.local_processes import count_kernel_threads
from state_pipelines.operations.proofs import (
    AFTER,
    DESCRIPTIONS,
    EXPECTED,
    SOURCE_WHOLE,
    DifferingRecord,
    ProofCheck,
    RecordCounts,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext
    from state_pipelines.operations.local_processes import Runner
    from state_pipelines.snapshot import Operator


@dataclass(frozen=True)
class CountStates:
    """Digests of all states of one file; can be sent to other processes."""

    operator: str
    file: KeyedFile
    context: RecordContext

    @property
    def threads(self) -> int:
        """See `local_processes.Work`."""
        return count_kernel_threads([self.file])

    def run(self) -> dict[str, RecordDigest]:
        """Read the file.

        Raises:
            StateError: it cannot be read.
        """
        with at(operator=self.operator):
            return digest_states(self.file, self.context, self.file.key_groups)


def check_source_whole(operators: Sequence[Operator], run: Runner) -> ProofCheck | None:
    """Compare the records that are read of operators with those that their handles hold.

    Args:
        operators: of the source.
        run: runs tasks and gives their results in order.

    Returns:
        The check; None where no file is clipped.

    Raises:
        StateError: a file cannot be read.
    """
    compared: list[tuple[Operator, tuple[KeyedFile, ...], tuple[KeyedFile, ...]]] = []
    for operator in operators:
        read, stored = tuple(file for _, file in operator.keyed_files), operator.stored_files
        if len(read) != len(stored) or any(one != other for one, other in zip(read, stored, strict=True)):
            compared.append((operator, read, stored))
    if not compared:
        return None
    tasks = [
        CountStates(operator.label, file, operator.record_context)
        for operator, *sides in compared
        for files in sides
        for file in files
    ]
    found = iter(run(tasks, "the proof cannot read the old state"))
    total, lost, rows = 0, 0, list[DifferingRecord]()
    for operator, read, stored in compared:
        sums = [sum_digests(next(found) for _ in files) for files in (read, stored)]
        for state in sums[1]:
            one, other = sums[0].get(state, RecordDigest()), sums[1][state]
            total += other.records
            if one != other:
                lost += abs(other.records - one.records)
                values = {AFTER: f"{one.records:,} records", EXPECTED: f"{other.records:,} records"}
                rows.append(DifferingRecord(state, {"operator": operator.label}, values))
    observed = f"{total - lost:,} of {total:,} records of databases that subtasks share"
    return ProofCheck(
        SOURCE_WHOLE,
        not rows,
        DESCRIPTIONS[SOURCE_WHOLE],
        "as many records as stored",
        observed,
        RecordCounts(total, missing=lost),
        tuple(rows),
    )
