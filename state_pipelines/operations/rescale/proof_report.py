"""The proof of a rescaling or merge as a report, with the entries that differ."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs.json import to_json
from state_pipelines.codecs.scalar.codec import read_value
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import StateError
from state_pipelines.keyed.key_groups import assign_key_groups, compute_key_group_range
from state_pipelines.keyed.keys import TIMESTAMP
from state_pipelines.operations.proofs.differing_records import RecordScan, decode_records, find_differing_records
from state_pipelines.operations.proofs.proof_reports import (
    AFTER,
    BEFORE,
    EXAMPLES,
    EXPECTED,
    DifferingRecord,
    ProofReport,
    RecordCounts,
)
from state_pipelines.operations.proofs.state_proofs import make_state_check
from state_pipelines.operations.rescale.hashed_keys import count_threads
from state_pipelines.operations.rescale.rescale_proof import KEYED_STATE
from state_pipelines.operations.rescale.snapshot_merge import is_timer
from state_pipelines.operations.rescale.stored_elements import find_delegates, list_stored_elements, name_elements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.keyed.hashing.value_hashes import KeyHasher
    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.operations.local_processes import Runner
    from state_pipelines.operations.proofs.proof_reports import ProofCheck
    from state_pipelines.operations.proofs.state_proofs import StateProof
    from state_pipelines.operations.rescale.rescale_proof import ProofSide
    from state_pipelines.serializers.state_meta_info import StateMetaInfo

ENTRIES = "entries_kept"
CONTENTS = "contents_kept"
KEY_GROUPS = "key_groups_in_range"
HASHES = "key_groups_match_key_hash"

DESCRIPTIONS = {
    ENTRIES: "every state has as many entries as before, less those that were to go",
    CONTENTS: "the bytes of every entry are those that were there",
    KEY_GROUPS: "every entry is in a key group of its subtask",
    HASHES: "every key is in the key group that its hash gives",
}
"""Description of each check of a rescaling's proof."""

_MOST_ELEMENTS = 64 << 20
"""Largest size of operator state, in bytes, whose elements are compared one by one."""


def report_rescaling(
    states: Sequence[StateProof],
    sides: Sequence[ProofSide],
    run: Runner,
    seconds: float = 0.0,
) -> ProofReport:
    """Describe a proof; where it failed, both sides are read again for the entries that differ.

    Args:
        states: the comparison of each state.
        sides: the operators that it compared.
        run: runs tasks and gives their results in order.
        seconds: wall time of the comparison.

    Raises:
        StateError: a side cannot be read.
    """
    by_label = {side.after.label: side for side in sides}
    total = sum(row.after.records for row in states)
    changed = [row for row in states if row.before != row.after or row.reformed]
    counts = RecordCounts(total)
    rows: list[Sequence[DifferingRecord]] = []
    for row in changed:
        found, examples = _find_differences(row, by_label[row.operator], run)
        counts += RecordCounts(0, found.differing, found.missing, found.unexpected, found.complete)
        rows.append(examples)
    fewer = [row for row in states if row.before.records != row.after.records]

    def check(
        name: str, failed: Sequence[StateProof], counts: RecordCounts, rows: Sequence[Sequence[DifferingRecord]]
    ) -> ProofCheck:
        return make_state_check(name, DESCRIPTIONS[name], states, failed, counts, rows)

    checks = [
        check(ENTRIES, fewer, counts, [[each for each in few if each.absent or each.note] for few in rows]),
        check(CONTENTS, changed, counts, rows),
    ]
    for name, chosen, asked in (
        (KEY_GROUPS, [row for row in states if row.misplaced], states),
        (HASHES, [row for row in states if row.misfiled], [row for row in states if row.misfiled is not None]),
    ):
        if not asked:
            # No key group is new.
            continue
        wrong = sum((row.misplaced if name == KEY_GROUPS else row.misfiled) or 0 for row in chosen)
        wrong_rows = [_find_misplaced(row, by_label[row.operator], run, name) for row in chosen]
        checks.append(check(name, chosen, RecordCounts(total, differing=wrong), wrong_rows))
    operators = ", ".join(dict.fromkeys(row.operator for row in states))
    size = sum(row.after.bytes for row in states)
    return ProofReport(operators, f"{len(states)} states", total, 0, tuple(checks), seconds, size)


def _find_differences(row: StateProof, side: ProofSide, run: Runner) -> tuple[RecordCounts, list[DifferingRecord]]:
    if row.keyed and row.state != KEYED_STATE and row.state not in side.dropped:
        before = [(file, each.record_context) for each in side.before for file in each.stored_files]
        after = [(file, side.after.record_context) for _, file in side.after.keyed_files]
        # Entries that were to go are missing by intent; which these are, only their number says.
        removed = side.removed.get(row.state)
        may_lack = removed is not None and removed.records > 0
        counts, rows = find_differing_records(row.state, before, after, run, may_lack=may_lack)
        if counts.failed:
            return counts, list(rows)
    elif not row.keyed and row.before.bytes + row.after.bytes <= _MOST_ELEMENTS:
        counts, rows = _compare_elements(row.state, side)
        if counts.failed:
            return counts, list(rows)
    fewer, more = max(0, row.before.records - row.after.records), max(0, row.after.records - row.before.records)
    values = {BEFORE: _show(row.before), AFTER: _show(row.after), EXPECTED: _show(row.before)}
    summary = DifferingRecord(row.state, {"entries": "all together"}, values, note=f"operator {row.operator}")
    return RecordCounts(row.after.records, int(not fewer and not more), fewer, more, complete=False), [summary]


def _show(digest: Any) -> str:
    return f"{digest.records:,} entries of {digest.bytes:,} bytes"


def _compare_elements(state: str, side: ProofSide) -> tuple[RecordCounts, tuple[DifferingRecord, ...]]:
    """Elements of list state that one side has more often than the other."""
    named = name_elements(side.before)
    found: list[Counter[bytes]] = []
    infos: list[StateMetaInfo] = []
    for operators in (side.before, (side.after,)):
        elements: Counter[bytes] = Counter()
        for operator in operators:
            delegates = find_delegates(side.planned) if operator is side.after else {}
            for stored in list_stored_elements(operator, named, delegates):
                infos += [info for info in stored.infos or () if info.name == state]
                elements.update(stored.take(state))
        found.append(elements)
    missing, unexpected = found[0] - found[1], found[1] - found[0]
    counts = RecordCounts(found[1].total(), 0, missing.total(), unexpected.total())

    def show(data: bytes) -> Any:
        layouts = side.after.snapshot.layout_context
        try:
            return to_json(infos[0].element, read_value(derive_layout(infos[0].element, layouts), Reader(data)))
        except (StateError, IndexError):
            return {"@bytes": data.hex()}

    rows = [
        DifferingRecord(state, {"element": index}, {BEFORE: show(data), EXPECTED: show(data)}, (AFTER,))
        for index, data in enumerate(missing)
    ][:EXAMPLES]
    rows += [
        DifferingRecord(state, {"element": index}, {AFTER: show(data)}, (BEFORE, EXPECTED))
        for index, data in enumerate(unexpected)
    ][: EXAMPLES - len(rows)]
    return counts, tuple(rows)


def _find_misplaced(row: StateProof, side: ProofSide, run: Runner, check: str) -> list[DifferingRecord]:
    """Entries in key groups of other subtasks, or in other key groups than their hash gives."""
    after = side.after
    if not row.keyed:
        return [
            DifferingRecord(row.state, {"subtasks": row.misplaced}, {EXPECTED: "a copy in every subtask"}, (AFTER,))
        ]
    tasks = [
        _FindMisplaced(
            file,
            after.record_context,
            row.state,
            subtask,
            compute_key_group_range(subtask, after.parallelism, after.max_parallelism),
            side.hasher if check == HASHES else None,
        )
        for subtask, file in after.keyed_files
    ]
    found = run(tasks, "the differing records cannot be read")
    return [each for rows in found for each in rows][:EXAMPLES]


@dataclass(frozen=True)
class _FindMisplaced:
    """Finds entries of one file that are in a wrong key group."""

    file: KeyedFile
    context: RecordContext
    state: str
    subtask: int
    key_groups: KeyGroupRange
    hasher: KeyHasher | None

    @property
    def threads(self) -> int:
        """See `local_processes.Work`."""
        return count_threads(self.hasher, [self.file])

    def run(self) -> list[DifferingRecord]:
        """Read the file until there are enough."""
        found: list[DifferingRecord] = []
        scan = RecordScan(self.file, self.context, self.state)
        for state_id, info in enumerate(self.file.header.states):
            if info.name != self.state:
                continue
            for _, records in self.file.scan([state_id], self.context):
                groups = records.key_groups
                if self.hasher is None:
                    rows = np.flatnonzero((groups < self.key_groups.start) | (groups > self.key_groups.end))
                    wanted = [f"{self.key_groups.start} to {self.key_groups.end}"] * len(rows)
                else:
                    codes = self.hasher.hash_keys(records, skip=TIMESTAMP if is_timer(info) else 0)
                    hashed = assign_key_groups(codes, self.context.max_parallelism)
                    rows = np.flatnonzero(hashed != groups)
                    wanted = [f"{group}, by the hash of the key" for group in hashed[rows].tolist()]
                rows = rows[: EXAMPLES - len(found)]
                for number, (key, _) in enumerate(decode_records(scan, state_id, records.select(rows))):
                    group = f"key group {groups[rows[number]]} of subtask {self.subtask}"
                    values = {AFTER: group, EXPECTED: f"key group {wanted[number]}"}
                    found.append(DifferingRecord(self.state, key, values))
                if len(found) >= EXAMPLES:
                    return found
        return found
