"""Comparison of each state before and after an operation that keeps its records, and the checks made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.operations.proofs.proof_reports import DifferingRecord, ProofCheck, RecordCounts, choose_examples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.keyed.digests import RecordDigest


@dataclass(frozen=True)
class StateProof:
    """One state before and after.

    Attributes:
        operator: label of the operator.
        state: name.
        keyed: it is keyed state, not operator state.
        before: what must be there.
        after: what is there.
        misplaced: entries in key groups that are not those of their subtask; of broadcast state, subtasks without a
            copy.
        misfiled: entries whose hash gives another key group; None where key groups stayed what they were.
        reformed: kind or serializers are not those of before.
    """

    operator: str
    state: str
    keyed: bool
    before: RecordDigest
    after: RecordDigest
    misplaced: int = 0
    misfiled: int | None = None
    reformed: bool = False

    @property
    def failures(self) -> Iterator[str]:
        """The differences, a sentence each."""
        name = f"{self.operator}, state {self.state}"
        if self.before != self.after:
            yield (
                f"{name}: {self.after.records:,} entries of {self.after.bytes:,} bytes where there must be "
                f"{self.before.records:,} of {self.before.bytes:,}"
                if (self.before.records, self.before.bytes) != (self.after.records, self.after.bytes)
                else f"{name}: entries with other bytes"
            )
        if self.misplaced:
            what = "entries in key groups of other subtasks" if self.keyed else "subtasks without it"
            yield f"{name}: {self.misplaced:,} {what}"
        if self.reformed:
            yield f"{name}: another kind or other serializers"
        if self.misfiled:
            yield f"{name}: {self.misfiled:,} entries in another key group than their hash gives"


def make_state_check(
    name: str,
    description: str,
    states: Sequence[StateProof],
    failed: Sequence[StateProof],
    counts: RecordCounts,
    rows: Sequence[Sequence[DifferingRecord]],
) -> ProofCheck:
    """The check of a proof that compares states.

    Args:
        name: of the check.
        description: of the check.
        states: all that were compared.
        failed: those for which it does not hold.
        counts: of the records of all states.
        rows: records of each failed state that differ.
    """
    observed = f"{counts.compared:,} entries of {len(states)} state{'' if len(states) == 1 else 's'}"
    if failed:
        named = ", ".join(f"{row.operator} / {row.state}" for row in failed)
        observed = f"{len(failed)} of {len(states)} states differ: {named}; {counts}"
    elif counts.failed:
        counts = RecordCounts(counts.compared)
    shown = choose_examples(rows) if failed else ()
    return ProofCheck(name, not failed, description, "no such entry", observed, counts, shown)
