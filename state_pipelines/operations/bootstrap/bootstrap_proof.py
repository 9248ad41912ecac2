"""The proof of a bootstrap: the new files, read back and decoded, hold the rows that were given."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from state_pipelines.keyed.digests import KEYS, ROWS
from state_pipelines.keyed.hashing.value_hashes import KeyHasher
from state_pipelines.operations.bootstrap.state_digests import (
    NULLS,
    FileDigests,
    StateDigests,
    SubtaskDigests,
    combine_digests,
)
from state_pipelines.operations.proofs.proof_reports import (
    AFTER,
    EXAMPLES,
    EXPECTED,
    KEY_HASHES,
    KEY_SETS,
    READ_BACK,
    ROW_COUNTS,
    DifferingRecord,
    ProofCheck,
    ProofReport,
    RecordCounts,
)
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.snapshot.operator_state import NonKeyedState

if TYPE_CHECKING:
    from state_pipelines.keyed.digests import Sums
    from state_pipelines.operations.local_processes import Runner
    from state_pipelines.operations.write.savepoint_plan import OperatorWriting, SavepointPlan, StateName
    from state_pipelines.snapshot import Operator, Snapshot

DESCRIPTIONS = {
    ROW_COUNTS: "every row of the input was encoded, and every key group and subtask has as many entries as rows",
    KEY_SETS: "the keys are those of the rows, none lost and none duplicated",
    KEY_HASHES: "every key is in the key group that its hash gives",
    READ_BACK: "the entries read back are the rows that were given",
}


@dataclass(frozen=True)
class ExpectedRows:
    """Digests of the given rows, by state.

    Attributes:
        keyed: of keyed states and timers.
        elements: by subtask; all rows of a broadcast state below subtask 0.
        given: number of rows as their source counts them (footers of Parquet files, Spark), and of those that were
            encoded or are empty lists.
    """

    keyed: dict[StateName, StateDigests] = field(default_factory=dict)
    elements: dict[StateName, Sums] = field(default_factory=dict)
    given: dict[StateName, tuple[int, int]] = field(default_factory=dict)


def prove_bootstrap(plan: SavepointPlan, snapshot: Snapshot, expected: ExpectedRows, run: Runner) -> ProofReport:
    """Read the new states back and compare them with the rows.

    The order of elements counts inside a value (keyed list state), and not between the elements of an operator's list
    state, which Flink distributes again at every restore.

    Args:
        plan: of the savepoint.
        snapshot: the staged savepoint.
        expected: digests of the rows.
        run: runs tasks.

    Raises:
        StateError: a new file cannot be read.
    """
    started = time.monotonic()
    comparison = _Comparison()
    for (_, name), (rows, taken) in expected.given.items():
        comparison.compare_input(name, rows, taken)
    unhashed = misplaced = 0
    labels: dict[str, None] = {}
    for writing in plan.operators:
        operator = snapshot.get_operator(writing.metadata.operator_id)
        assert operator is not None
        labels[writing.description.operator] = None
        for (label, name), found in _read_keyed(plan, writing, operator, run).items():
            comparison.compare(name, "key group", expected.keyed[label, name].sums, found.sums)
            unhashed, misplaced = unhashed + found.unhashed, misplaced + found.misplaced.total()
        for (label, name), sums in _read_elements(plan, writing, operator, run).items():
            wanted = expected.elements[label, name]
            if writing.elements[name].info.distribution_mode == StateKind.BROADCAST and wanted:
                wanted = dict.fromkeys(range(writing.metadata.parallelism), wanted[0])
            comparison.compare(name, "subtask", wanted, sums)
    checks = list(comparison.make_checks())
    hashed = comparison.keyed_rows - unhashed
    if hashed:
        observed = f"{misplaced:,} of {hashed:,} keys are in another key group"
        counts = RecordCounts(hashed, differing=misplaced)
        description = DESCRIPTIONS[KEY_HASHES]
        checks.insert(
            2, ProofCheck(KEY_HASHES, not misplaced, description, "no key in another key group", observed, counts)
        )
    notes = (f"{unhashed:,} keys have no known hash: their key groups are those of the rows",) if unhashed else ()
    return ProofReport(
        ", ".join(labels),
        ", ".join(comparison.states),
        comparison.rows,
        len(comparison.key_groups),
        tuple(checks),
        time.monotonic() - started,
        notes=notes,
    )


def _read_keyed(
    plan: SavepointPlan, writing: OperatorWriting, operator: Operator, run: Runner
) -> dict[StateName, StateDigests]:
    if not writing.layouts:
        return {}
    label = writing.description.operator
    key = next(iter(writing.layouts.values())).key_serializer
    hasher = KeyHasher(key, plan.context, writing.description.hashes)
    tasks = [
        FileDigests(label, file, writing.layouts, writing.context, hasher)
        for _, file in operator.keyed_files
        if not file.holds_raw_timers
    ]
    found = run(tasks, "the proof cannot read the new state")
    return {(label, name): combine_digests(each[name] for each in found) for name in writing.layouts}


def _read_elements(
    plan: SavepointPlan, writing: OperatorWriting, operator: Operator, run: Runner
) -> dict[StateName, Sums]:
    label, parallelism = writing.description.operator, writing.metadata.parallelism
    states = {each.name: each for each in operator.operator_states if isinstance(each, NonKeyedState)}
    read: dict[StateName, Sums] = {}
    for name in writing.elements:
        tasks = [SubtaskDigests(label, each, plan.context, parallelism) for each in states[name].subtask_states]
        found = run(tasks, "the proof cannot read the new state")
        read[label, name] = {subtask: values for sums in found for subtask, values in sums.items()}
    return read


class _Comparison:
    """Compares the digests of both sides, state after state."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.rows = self.keyed_rows = 0
        self.key_groups: set[int] = set()
        self._counts: dict[str, RecordCounts] = {name: RecordCounts() for name in (ROW_COUNTS, KEY_SETS, READ_BACK)}
        self._differing: dict[str, list[DifferingRecord]] = {name: [] for name in self._counts}
        self._fields: Counter[str] = Counter()

    def compare(self, state: str, column: str, expected: Sums, found: Sums) -> None:
        """Compare one state."""
        self.states.append(state)
        rows = sum(each[ROWS] for each in found.values())
        self.rows += rows
        if column == "key group":
            self.keyed_rows += rows
            self.key_groups |= found.keys()
        for number in sorted({*expected, *found}):
            one, other = expected.get(number, {}), found.get(number, {})
            count, wanted = other.get(ROWS, 0), one.get(ROWS, 0)
            self._note(ROW_COUNTS, state, column, number, wanted, count, is_same=count == wanted)
            self._note(KEY_SETS, state, column, number, wanted, count, is_same=one.get(KEYS) == other.get(KEYS))
            self._note(READ_BACK, state, column, number, wanted, count, is_same=one == other)
            if one != other:
                self._fields.update(name for name in {*one, *other} if one.get(name) != other.get(name))

    def compare_input(self, state: str, rows: int, taken: int) -> None:
        """Compare the number of rows that the source has with that of the rows that reached the encoder."""
        if rows != taken:
            self._fields[ROWS] += 1
            self._note(ROW_COUNTS, state, "input", "rows", rows, taken, is_same=False)

    def _note(
        self, check: str, state: str, column: str, number: int | str, wanted: int, count: int, *, is_same: bool
    ) -> None:
        missing, unexpected = max(wanted - count, 0), max(count - wanted, 0)
        differing = 0 if is_same else max(1, min(wanted, count)) if not (missing or unexpected) else 0
        self._counts[check] += RecordCounts(count, differing, missing, unexpected, complete=is_same)
        if not is_same and len(self._differing[check]) < EXAMPLES:
            values = {EXPECTED: f"{wanted:,} entries", AFTER: f"{count:,} entries"}
            self._differing[check].append(DifferingRecord(state, {column: number}, values))

    def make_checks(self) -> list[ProofCheck]:
        """The checks of all states."""
        checks = []
        for name, counts in self._counts.items():
            examples = self._differing[name]
            observed = f"{counts.compared:,} entries read back, all as given"
            if examples:
                words = {ROWS: "counts", KEYS: "keys", NULLS: "null values"}
                columns = ", ".join(words.get(each, each) for each in sorted(self._fields))
                first = examples[0]
                (column, number) = next(iter(first.key.items()))
                observed = f"different {columns}, first in {column} {number} of {first.state}"
            description, expected = DESCRIPTIONS[name], "the digests of the given rows"
            checks.append(ProofCheck(name, not examples, description, expected, observed, counts, tuple(examples)))
        return checks
