"""Framed records sorted into runs, one per key group and state, ready for a canonical file.

Records come in any order and leave in blocks. Inside a block runs ascend by key group, then by state, so that any range
of key groups is one range of bytes. Nothing is compared for that: a run's position follows from how much comes
before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.errors import FormatError, Where
from state_pipelines.keyed.canonical.kernels import count_bytes, join_sections, sort_records
from state_pipelines.keyed.digests.record_digests import RecordDigest
from state_pipelines.keyed.keys.key_kernels import join_spans
from state_pipelines.keyed.record_layout import KeyedRecords, cut_nulls

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from state_pipelines.codecs.programs.execution import Encoded
    from state_pipelines.metadata.handles import KeyGroupRange

Index = npt.NDArray[np.void]
Positions = npt.NDArray[np.int64]

RUN = np.dtype(
    [
        ("key_group", "<i4"),
        ("state", "<i4"),
        ("offset", "<i8"),
        ("size", "<i8"),
        ("last", "<i8"),
        ("records", "<u8"),
        ("bytes", "<u8"),
        ("digest", "<u8"),
        ("content", "<u8"),
    ]
)
"""A run: where it begins in its block, its bytes, its last record's first key byte in it, and its `RecordDigest`."""

_TOTALS = ("records", "bytes", "digest", "content")
"""Columns of `RUN` that make a `RecordDigest`."""

_SPARSE = 4
"""Records are copied out of their windows when these hold so many times more than the wanted records."""


@dataclass(frozen=True)
class Block:
    """Sorted runs.

    Attributes:
        data: u8, the framed records; no last record has a flag, because its run may continue in another block.
        runs: `RUN`[r], ascending by key group and state.
    """

    data: npt.NDArray[np.uint8]
    runs: Index


@dataclass
class RecordBuffer:
    """Collects records of all states and sorts them into a block.

    Attributes:
        prefix: bytes of the key-group prefix that the block gets.
        maps: ids of the states that are maps.
        limit: bytes of records at which the buffer counts as full.
    """

    prefix: int
    maps: frozenset[int]
    limit: int
    _batches: list[tuple[int, KeyedRecords]] = field(default_factory=list)
    _size: int = 0
    _held: dict[int, int] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        """Whether it holds as much as it should."""
        return self._size >= self.limit

    @property
    def size(self) -> int:
        """Bytes of the framed records."""
        return self._size

    @property
    def held(self) -> int:
        """Bytes in memory: the windows that hold the records."""
        return sum(self._held.values())

    def add(self, state: int, records: KeyedRecords) -> None:
        """Add records of a state; their key groups are final."""
        if not len(records):
            return
        self._batches.append((state, records))
        self._size += size_of_records(records) + (8 + self.prefix) * len(records)
        self._held[id(records.data)] = len(records.data)
        if self.held > _SPARSE * max(self.limit, self._size):
            # Few records of large windows are wanted, and would hold all of them in memory.
            self._batches = [(number, copy_records(each)) for number, each in self._batches]
            self._held = {id(each.data): len(each.data) for _, each in self._batches}

    def sort(self, key_groups: KeyGroupRange) -> Block:
        """Return the records as a block, and start an empty one.

        Args:
            key_groups: range of all records.

        Raises:
            FormatError: a record is outside the range.
        """
        batches, self._batches, self._size, self._held = self._batches, [], 0, {}
        present = sorted({state for state, _ in batches})
        numbers = {state: number for number, state in enumerate(present)}
        states, first = len(present), key_groups.start
        sizes = np.zeros(len(key_groups) * states, np.int64)
        for state, records in batches:
            _require_inside(records, key_groups)
            spans = (records.key_starts, records.key_ends, records.value_starts, records.value_ends)
            count_bytes(records.key_groups, first, states, numbers[state], 8 + self.prefix, *spans, sizes)
        ends = np.cumsum(sizes)
        starts = ends - sizes
        positions, lasts = starts.copy(), np.zeros(len(sizes), np.int64)
        totals = np.zeros((len(sizes), 4), np.uint64)
        data = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
        for state, records in batches:
            sort_records(
                records.key_groups,
                first,
                states,
                numbers[state],
                self.prefix,
                records.data.ctypes.data,
                records.key_starts,
                records.key_ends,
                records.value_starts,
                records.value_ends,
                cut_nulls(records) if state in self.maps else records.value_ends,
                positions,
                lasts,
                totals,
                data.ctypes.data,
            )
        found = np.flatnonzero(sizes)
        runs = np.empty(len(found), RUN)
        runs["key_group"] = first + found // max(states, 1)
        runs["state"] = np.array(present, np.int32)[found % max(states, 1)]
        runs["offset"], runs["size"], runs["last"] = starts[found], sizes[found], (lasts - starts)[found]
        for column, name in enumerate(_TOTALS):
            runs[name] = totals[found, column]
        return Block(data, runs)


@dataclass(frozen=True)
class FramedRuns:
    """Runs from several blocks.

    Attributes:
        key_groups: i32[r].
        states: i32[r].
        sources: i32[r], index of the merged snapshot of each run.
        addresses: i64[r].
        sizes: i64[r], bytes.
        lasts: i64[r], of the last record's first key byte in the run.
        records: i64[r], how many.
        held: buffers that the addresses point into.
    """

    key_groups: npt.NDArray[np.int32]
    states: npt.NDArray[np.int32]
    sources: npt.NDArray[np.int32]
    addresses: Positions
    sizes: Positions
    lasts: Positions
    records: Positions
    held: tuple[npt.NDArray[np.uint8], ...]

    def select(self, rows: npt.NDArray[np.integer]) -> FramedRuns:
        """Some of the runs, or all in another order."""
        return FramedRuns(
            self.key_groups[rows],
            self.states[rows],
            self.sources[rows],
            self.addresses[rows],
            self.sizes[rows],
            self.lasts[rows],
            self.records[rows],
            self.held,
        )


def concat_runs(framed: Sequence[FramedRuns]) -> FramedRuns:
    """Concatenate runs."""
    return FramedRuns(
        np.concatenate([each.key_groups for each in framed]),
        np.concatenate([each.states for each in framed]),
        np.concatenate([each.sources for each in framed]),
        np.concatenate([each.addresses for each in framed]),
        np.concatenate([each.sizes for each in framed]),
        np.concatenate([each.lasts for each in framed]),
        np.concatenate([each.records for each in framed]),
        tuple(held for each in framed for held in each.held),
    )


def gather_runs(blocks: Sequence[tuple[int, Block]]) -> FramedRuns:
    """The runs of some blocks, ascending by key group, state and source.

    Args:
        blocks: (source, block), at least one; offsets of runs count from the start of the block's data.
    """
    runs = concat_runs([_frame(source, block) for source, block in blocks])
    return runs.select(np.lexsort((runs.sources, runs.states, runs.key_groups)))


def _frame(source: int, block: Block) -> FramedRuns:
    runs = block.runs
    return FramedRuns(
        runs["key_group"].astype(np.int32),
        runs["state"].astype(np.int32),
        np.full(len(runs), source, np.int32),
        runs["offset"].astype(np.int64) + block.data.ctypes.data,
        runs["size"].astype(np.int64),
        runs["last"].astype(np.int64),
        runs["records"].astype(np.int64),
        (block.data,),
    )


def join_runs(runs: FramedRuns) -> tuple[npt.NDArray[np.int32], Positions, npt.NDArray[np.uint8]]:
    """Sections of canonical files from sorted runs.

    Returns:
        (i32[s] key groups, i64[s] where the section of each ends, u8 the sections).
    """
    data = np.empty(int(runs.sizes.sum()) + 4 * len(runs.sizes), np.uint8)
    key_groups, ends = np.empty(len(runs.sizes), np.int32), np.empty(len(runs.sizes), np.int64)
    count = join_sections(
        runs.key_groups, runs.states, runs.addresses, runs.sizes, runs.lasts, data.ctypes.data, key_groups, ends
    )
    return key_groups[:count], ends[:count], data[: int(ends[count - 1]) if count else 0]


def merge_runs(runs: Index) -> tuple[Positions, Index]:
    """Merge of the runs of several blocks: those of one key group and state become one run.

    Args:
        runs: `RUN`[r], at least one; those of the first block first.

    Returns:
        (i64[r] the order in which the bytes of the runs then follow each other, `RUN`[m] the new runs, ascending by key
        group and state; their offsets count from the first byte of all).
    """
    order = np.lexsort((runs["state"], runs["key_group"]))
    ordered = runs[order]
    begins = np.ones(len(runs), np.bool_)
    begins[1:] = (np.diff(ordered["key_group"]) != 0) | (np.diff(ordered["state"]) != 0)
    firsts = np.flatnonzero(begins)
    finals = np.append(firsts[1:], len(runs)) - 1
    ends = np.cumsum(ordered["size"])
    starts = ends - ordered["size"]
    merged = ordered[firsts]
    merged["offset"], merged["size"] = starts[firsts], ends[finals] - starts[firsts]
    merged["last"] = starts[finals] + ordered["last"][finals] - starts[firsts]
    for name in _TOTALS:
        # Numbers of 64 bits without a sign: sums of hashes stay modulo 2**64.
        merged[name] = np.add.reduceat(ordered[name], firsts)
    return order, merged


def join_blocks(blocks: Sequence[Block]) -> Block:
    """Several blocks, at least one of them with a run, as one in which a key group and state has one run."""
    runs = np.concatenate([block.runs for block in blocks])
    order, merged = merge_runs(runs)
    starts = np.concatenate([block.runs["offset"] + block.data.ctypes.data for block in blocks])[order]
    ends = starts + runs["size"][order]
    data = np.empty(int(runs["size"].sum()), np.uint8)
    join_spans(0, starts, ends, ends, ends, data.ctypes.data, np.empty(len(runs), np.int64))
    return Block(data, merged)


def sum_states(runs: Index) -> dict[int, RecordDigest]:
    """Digests of states over runs, by id."""
    totals = {}
    for state in np.unique(runs["state"]).tolist():
        found = runs[runs["state"] == state]
        totals[state] = RecordDigest(*(int(found[name].sum(dtype=np.uint64)) for name in _TOTALS))
    return totals


def sum_runs(run_indexes: Iterable[Index], names: Mapping[int, str]) -> dict[str, RecordDigest]:
    """Digests of states over runs, by name.

    Args:
        run_indexes: `RUN`[r] each.
        names: by state id.
    """
    totals = dict.fromkeys(names.values(), RecordDigest())
    for runs in run_indexes:
        for state, digest in sum_states(runs).items():
            totals[names[state]] += digest
    return totals


def join_sides(key_groups: npt.NDArray[np.int32], keys: Encoded, values: Encoded) -> KeyedRecords:
    """Records from separate keys and values.

    Args:
        key_groups: i32[n].
        keys: keys without prefix.
        values: values.
    """
    base = keys.data.ctypes.data
    return _join_spans(key_groups, base + keys.starts, base + keys.stops, *_locate(values))


def replace_values(records: KeyedRecords, values: Encoded) -> KeyedRecords:
    """Records with the keys that they have and other values, one for each."""
    base = records.data.ctypes.data
    return _join_spans(records.key_groups, base + records.key_starts, base + records.key_ends, *_locate(values))


def copy_records(records: KeyedRecords) -> KeyedRecords:
    """The same records in bytes of their own; positions in the file are lost."""
    base = records.data.ctypes.data
    spans = (records.key_starts, records.key_ends, records.value_starts, records.value_ends)
    return replace(_join_spans(records.key_groups, *(base + each for each in spans)), file=records.file)


def _locate(values: Encoded) -> tuple[Positions, Positions]:
    """First and last address of each value."""
    base = values.data.ctypes.data
    return base + values.starts, base + values.stops


def _join_spans(
    key_groups: npt.NDArray[np.int32], key_starts: Positions, key_ends: Positions, starts: Positions, ends: Positions
) -> KeyedRecords:
    """Records in bytes of their own from the addresses of their keys and values."""
    sizes = ends - starts
    key_sizes = key_ends - key_starts
    data = np.empty(int(sizes.sum() + key_sizes.sum()), np.uint8)
    stops = np.empty(len(key_groups), np.int64)
    join_spans(0, key_starts, key_ends, starts, ends, data.ctypes.data, stops)
    value_starts = stops - sizes
    return KeyedRecords(key_groups, data, value_starts - key_sizes, value_starts, value_starts, stops, 0, "")


def size_of_records(records: KeyedRecords) -> int:
    """Bytes of keys and values."""
    keys = int(records.key_ends.sum()) - int(records.key_starts.sum())
    return keys + int(records.value_ends.sum()) - int(records.value_starts.sum())


def _require_inside(records: KeyedRecords, key_groups: KeyGroupRange) -> None:
    low, high = int(records.key_groups.min()), int(records.key_groups.max())
    if low < key_groups.start or high > key_groups.end:
        raise FormatError(
            f"records are in the key groups {low} to {high}, not in {key_groups.start} to {key_groups.end}",
            where=Where(file=records.file),
        )
