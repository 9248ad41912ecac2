"""Records of keyed state that two sides do not share, for the report of a failed proof.

Both sides are read up to three times: digests of buckets of keys say where differences are, hashes of the records of
those buckets say which records differ, and the records of ten keys are decoded. Memory is bounded by `MOST_HASHES`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.compiled import njit
from state_pipelines.errors import StateError
from state_pipelines.keyed.digests import hash_bytes, list_spans
from state_pipelines.keyed.record_layout import derive_keyed_layout
from state_pipelines.keyed.state_table import TTL_COLUMN, KeyedTable, TableOptions
from state_pipelines.operations.json_rows import to_rows
from state_pipelines.operations.local_processes import count_kernel_threads
from state_pipelines.operations.proofs.proof_reports import (
    AFTER,
    BEFORE,
    EXAMPLES,
    EXPECTED,
    DifferingRecord,
    RecordCounts,
)
from state_pipelines.serializers.registered_states import StateKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext
    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.operations.local_processes import Runner

Hashes = npt.NDArray[np.uint64]

MOST_HASHES = 1 << 22
"""Largest number of records of a side whose hashes are compared."""

_BUCKET_BITS = 12
_SHIFT = np.uint64(64 - _BUCKET_BITS)
_KEY_COLUMNS = ("timestamp", "state_key", "state_namespace", "map_key", "key_bytes")


@dataclass(frozen=True)
class RecordScan:
    """Scan of the records of one state in a file; can be sent to other processes.

    Attributes:
        file: the file.
        context: of the operator.
        state: name of the state.
        buckets: the buckets whose records are hashed; None sums up all buckets.
        keys: hashes of the keys whose records are decoded; None decodes none.
    """

    file: KeyedFile
    context: RecordContext
    state: str
    buckets: npt.NDArray[np.int64] | None = None
    keys: Hashes | None = None

    @property
    def threads(self) -> int:
        """See `local_processes.Work`."""
        return count_kernel_threads([self.file])

    def run(self) -> ScanResult:
        """Read the file.

        Raises:
            StateError: it cannot be read.
        """
        result = ScanResult()
        for state_id, info in enumerate(self.file.header.states):
            if info.name != self.state:
                continue
            for _, records in self.file.scan([state_id], self.context):
                base, *spans = list_spans(records, is_map=info.state_type == StateKind.MAP)
                keys, contents = _hash_records(base, *spans)
                if self.keys is not None:
                    rows = np.flatnonzero(np.isin(keys, self.keys))
                    decoded = decode_records(self, state_id, records.select(rows))
                    result.records += zip(keys[rows].tolist(), decoded, strict=True)
                elif self.buckets is not None:
                    rows = np.flatnonzero(np.isin(keys >> _SHIFT, self.buckets.astype(np.uint64)))
                    result.hashes.append((keys[rows], contents[rows]))
                else:
                    _sum_buckets(result.sums, keys, contents)
        return result


@dataclass
class ScanResult:
    """Findings of a scan.

    Attributes:
        sums: u64[buckets, 2], number of records and sum of their hashes.
        hashes: hashes of keys and of whole records.
        records: hash of the key and (key, value) of records that were decoded.
    """

    sums: Hashes = field(default_factory=lambda: np.zeros((1 << _BUCKET_BITS, 2), np.uint64))
    hashes: list[tuple[Hashes, Hashes]] = field(default_factory=list)
    records: list[tuple[int, tuple[dict[str, Any], Any]]] = field(default_factory=list)


def find_differing_records(
    state: str,
    before: Sequence[tuple[KeyedFile, RecordContext]],
    after: Sequence[tuple[KeyedFile, RecordContext]],
    run: Runner,
    *,
    may_lack: bool = False,
) -> tuple[RecordCounts, tuple[DifferingRecord, ...]]:
    """Compare the records of a state on two sides, wherever they are; key groups do not count.

    Args:
        state: its name.
        before: files of the expected side.
        after: files of the side that is there.
        run: runs scans and gives their results in order.
        may_lack: records that only the expected side has are no differences.

    Returns:
        The numbers of records, and examples.

    Raises:
        StateError: a side cannot be read.
    """
    what = "the differing records cannot be read"
    sides = [[RecordScan(*each, state) for each in files] for files in (before, after)]
    count = len(sides[0])

    def scan(**wanted: object) -> tuple[list[ScanResult], list[ScanResult]]:
        tasks = [_replace(each, **wanted) for each in (*sides[0], *sides[1])]
        found = list(run(tasks, what))
        return found[:count], found[count:]

    old, new = (_add_sums(each) for each in scan())
    different = np.flatnonzero((old != new).any(axis=1))
    sizes = np.cumsum(np.maximum(old, new)[different, 0])
    fitting = different[: max(1, int(np.searchsorted(sizes, np.uint64(MOST_HASHES), side="right")))]
    compared, complete = int(new[:, 0].sum()), len(fitting) == len(different)
    if not len(different):
        return RecordCounts(compared), ()
    missing, unexpected = _compare(*(_join_hashes(each) for each in scan(buckets=fitting)))
    both = {key: min(missing[key], unexpected[key]) for key in missing.keys() & unexpected.keys()}
    differing = sum(both.values())
    lost = 0 if may_lack else sum(missing.values()) - differing
    chosen = _choose_keys(both, {} if may_lack else missing, unexpected)
    found = scan(keys=np.array(chosen, np.uint64)) if chosen else ([], [])
    one, other = ([record for each in side for record in each.records] for side in found)
    counts = RecordCounts(compared, differing, lost, sum(unexpected.values()) - differing, complete)
    return counts, tuple(_make_rows(state, chosen, one, other))


def _replace(scan: RecordScan, **wanted: Any) -> RecordScan:
    return RecordScan(scan.file, scan.context, scan.state, **wanted)


def _add_sums(results: Sequence[ScanResult]) -> Hashes:
    return sum((each.sums for each in results), ScanResult().sums)


def _join_hashes(results: Sequence[ScanResult]) -> tuple[Hashes, Hashes]:
    pairs = [pair for each in results for pair in each.hashes]
    none = np.zeros(0, np.uint64)
    return np.concatenate([none, *(one for one, _ in pairs)]), np.concatenate([none, *(other for _, other in pairs)])


def _compare(before: tuple[Hashes, Hashes], after: tuple[Hashes, Hashes]) -> tuple[dict[int, int], dict[int, int]]:
    """Numbers of records that one side has more often than the other, by hash of the key: (missing, unexpected)."""
    keys, contents = (np.concatenate([one, other]) for one, other in zip(before, after, strict=True))
    signs = np.repeat(np.array([-1, 1], np.int64), [len(before[0]), len(after[0])])
    order = np.lexsort((contents, keys))
    keys, contents, signs = keys[order], contents[order], signs[order]
    starts = np.flatnonzero(np.append(True, (keys[1:] != keys[:-1]) | (contents[1:] != contents[:-1]))[: len(keys)])
    sums = np.add.reduceat(signs, starts) if len(starts) else signs
    missing: dict[int, int] = {}
    unexpected: dict[int, int] = {}
    for row in np.flatnonzero(sums).tolist():
        key, number = int(keys[starts[row]]), int(sums[row])
        side = unexpected if number > 0 else missing
        side[key] = side.get(key, 0) + abs(number)
    return missing, unexpected


def _choose_keys(*found: Mapping[int, int]) -> list[int]:
    """Hashes of at most `EXAMPLES` keys, of every kind of difference in turn."""
    chosen: dict[int, None] = {}
    kinds = [iter(sorted(each)) for each in found]
    while kinds and len(chosen) < EXAMPLES:
        for kind in list(kinds):
            key = next(kind, None)
            if key is None:
                kinds.remove(kind)
            elif len(chosen) < EXAMPLES:
                chosen[key] = None
    return list(chosen)


def _make_rows(
    state: str,
    keys: Sequence[int],
    before: Sequence[tuple[int, tuple[dict[str, Any], Any]]],
    after: Sequence[tuple[int, tuple[dict[str, Any], Any]]],
) -> Iterator[DifferingRecord]:
    for wanted in keys:
        one, other = ([record for key, record in side if key == wanted] for side in (before, after))
        sides = {BEFORE: one, AFTER: other, EXPECTED: one}
        values = {name: [value for _, value in found] for name, found in sides.items() if found}
        several = [
            f"{len(found)} records {name}" for name, found in sides.items() if len(found) > 1 and name != EXPECTED
        ]
        key = next((key for key, _ in (*one, *other)), {})
        yield DifferingRecord(
            state,
            key,
            {name: found[0] if len(found) == 1 else found for name, found in values.items()},
            tuple(name for name, found in sides.items() if not found),
            f"the key occurs several times: {', '.join(several)}" if several else "",
        )


def decode_records(scan: RecordScan, state_id: int, records: KeyedRecords) -> list[tuple[dict[str, Any], Any]]:
    """Keys and values of records as JSON has them; their bytes where they cannot be decoded."""
    if not len(records):
        return []
    header, options = scan.file.header, TableOptions(flatten=False)
    try:
        layout = derive_keyed_layout(
            header.states[state_id], header.key_serializer, scan.context.max_parallelism, scan.context.layouts
        )
        rows = list(to_rows(KeyedTable(layout, options).make_batch(records, 0)))
    except StateError as error:
        # The report of a difference must not end in another error.
        rows = list(to_rows(KeyedTable(None, options, error.what).make_batch(records, 0)))
    return [_split_row(row) for row in rows]


def _split_row(row: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    key = {name: row[name] for name in _KEY_COLUMNS if row.get(name) is not None}
    rest = {name: value for name, value in row.items() if name not in (*_KEY_COLUMNS, "key_group", "subtask")}
    if rest.get("reason") is None:
        rest.pop("reason", None)
        rest.pop("value_bytes", None)
    if TTL_COLUMN not in rest and len(rest) == 1:
        return key, next(iter(rest.values()))
    return key, rest or "timer"


@njit(cache=True, nogil=True)
def _hash_records(base, key_starts, key_ends, value_starts, value_ends):  # type: ignore[no-untyped-def]
    keys = np.empty(len(key_starts), np.uint64)
    contents = np.empty(len(key_starts), np.uint64)
    for row in range(len(key_starts)):
        keys[row] = hash_bytes(np.uint64(0), base + key_starts[row], base + key_ends[row])
        contents[row] = hash_bytes(keys[row], base + value_starts[row], base + value_ends[row])
    return keys, contents


@njit(cache=True, nogil=True)
def _sum_buckets(sums, keys, contents):  # type: ignore[no-untyped-def]
    for row in range(len(keys)):
        bucket = keys[row] >> _SHIFT
        sums[bucket, 0] += np.uint64(1)
        sums[bucket, 1] += contents[row]
