"""The canonical format of keyed state: every canonical savepoint, and full snapshots of RocksDB up to Flink 1.15.

* `RecordBuffer`, `Block`, `FramedRuns`: framed records sorted into runs, one per key group and state, ready for a
  canonical file. Records come in any order and leave in blocks. Inside a block runs ascend by key group, then by state,
  so that any range of key groups is one range of bytes. Nothing is compared for that: a run's position follows from the
  sizes of the runs before it.
* `CanonicalWriter`: header, then a section per key group (`frame_section`). Source: `FullSnapshotAsyncWriter`.
* `CanonicalFile`, `open_canonical`: the reader. Source: `FullSnapshotAsyncWriter`, `FullSnapshotRestoreOperation`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import IO, TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.compiled import load_i32_big, njit
from state_pipelines.binary.data_views import Writer
from state_pipelines.binary.snappy_frames import STREAM_ID, compress, compress_chunks
from state_pipelines.errors import FormatError, Where
from state_pipelines.keyed import kernels
from state_pipelines.keyed.digests import RecordDigest, hash_bytes
from state_pipelines.keyed.header import KeyedHeader, write_keyed_header
from state_pipelines.keyed.kernels import count_bytes, join_sections, join_spans, sort_records
from state_pipelines.keyed.key_groups import require_memory
from state_pipelines.keyed.keyed_file import FileFormat, SectionFile, gather_key_groups
from state_pipelines.keyed.record_layout import KeyedRecords, cut_nulls
from state_pipelines.keyed.sections import (
    NO_SECTION,
    PLAIN,
    WINDOW,
    HeaderReading,
    RecordPosition,
    Section,
    SectionReader,
    StateRun,
    decompress_sections,
    group_sections,
    open_sections,
    read_sections,
    select_sections,
)
from state_pipelines.storage.reading import read_ahead

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from state_pipelines.codecs.programs import Encoded
    from state_pipelines.keyed.keyed_file import RecordContext, RunFinder, Runs
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.metadata.streams import StateStream

_SEEDS = (np.uint64(0x243F6A8885A308D3), np.uint64(0x13198A2E03707344))
_FULLNESS = 2
"""Minimum number of slots of the hash table per key."""


class KeySet:
    """Set of 128-bit hashes of keys, to find keys that occur twice in one state and key group.

    Any two of n different keys have the same hash with a probability of about n * n / 2**128 (one bit is always set).

    Args:
        most: largest number of keys of one state and key group.
    """

    def __init__(self, most: int) -> None:
        self._slots = np.zeros((1 << (_FULLNESS * max(most, 1)).bit_length(), 2), np.uint64)

    def find_repeated(
        self, addresses: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], begins: npt.NDArray[np.bool_]
    ) -> tuple[int, int] | None:
        """Add the keys of runs of framed records, and find the first key that is already in the set.

        Args:
            addresses: i64[r], of the runs.
            sizes: i64[r], bytes of the runs.
            begins: bool[r], the run is of another state or key group than the run before, so the set is emptied before
                it.

        Returns:
            (index of the run, address of the record) of that key; None if all keys differ.
        """
        run, record = _find_repeated(addresses, sizes, begins, self._slots, *_SEEDS)
        return None if run < 0 else (int(run), int(record))


@njit(cache=True, nogil=True)
def _find_repeated(addresses, sizes, begins, slots, one, other):  # type: ignore[no-untyped-def]
    mask = len(slots) - 1
    for run in range(len(addresses)):
        if begins[run]:
            slots[:] = 0
        at = addresses[run]
        end = at + sizes[run]
        while at < end:
            start = at + 4
            stop = start + load_i32_big(at)
            # Zero marks an empty slot, so that the first half of a hash must not be 0.
            first = hash_bytes(one, start, stop) | np.uint64(1)
            second = hash_bytes(other, start, stop)
            slot = np.int64(first >> np.uint64(20)) & mask
            while slots[slot, 0] != np.uint64(0):
                if slots[slot, 0] == first and slots[slot, 1] == second:
                    return run, at
                slot = (slot + 1) & mask
            slots[slot, 0] = first
            slots[slot, 1] = second
            at = stop + 4 + load_i32_big(stop)
    return -1, 0


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
"""Run of records of one state in one key group: its offset and size in its block, the offset of the first key byte of
its last record from the start of the run, and its `RecordDigest`."""

_TOTALS = ("records", "bytes", "digest", "content")
"""Columns of `RUN` that make a `RecordDigest`."""

_SPARSE = 4
"""Records are copied if the windows that they are in hold more than this many times their bytes."""


@dataclass(frozen=True)
class Block:
    """Sorted runs of framed records in one buffer.

    Attributes:
        data: u8, the framed records. The flag of the last record of a state and key group is not set yet, because the
            run may continue in another block.
        runs: `RUN`[r], ascending by key group and state.
    """

    data: npt.NDArray[np.uint8]
    runs: Index


@dataclass
class RecordBuffer:
    """Buffer of records of all states, which are sorted into a block.

    Attributes:
        prefix: bytes of the key-group prefix that keys get in the block.
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
        """Whether the records have reached `limit`."""
        return self._size >= self.limit

    @property
    def size(self) -> int:
        """Bytes of the framed records."""
        return self._size

    @property
    def held(self) -> int:
        """Size of the buffers that the records point into (mostly whole windows of files), and so keep in memory."""
        return sum(self._held.values())

    def add(self, state: int, records: KeyedRecords) -> None:
        """Add records of a state; they are written into the key groups of `records.key_groups`."""
        if not len(records):
            return
        self._batches.append((state, records))
        self._size += size_of_records(records) + (8 + self.prefix) * len(records)
        self._held[id(records.data)] = len(records.data)
        if self.held > _SPARSE * max(self.limit, self._size):
            # Copy the records: otherwise a few records would keep the whole windows that they were read from in memory.
            self._batches = [(number, copy_records(each)) for number, each in self._batches]
            self._held = {id(each.data): len(each.data) for _, each in self._batches}

    def sort(self, key_groups: KeyGroupRange) -> Block:
        """Return the records as a block, and empty the buffer.

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
    """Runs (the framed records of one state in one key group) from several blocks.

    Attributes:
        key_groups: i32[r].
        states: i32[r].
        sources: i32[r], index of the snapshot that each run comes from, if several snapshots are merged.
        addresses: i64[r], addresses of the framed records.
        sizes: i64[r], bytes.
        lasts: i64[r], offset of the last record's first key byte in the run.
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
        """Return some of the runs, or all in another order."""
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
    """Concatenate several sets of runs into one; the bytes of the records are not copied."""
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
    """Return the runs of the blocks of one or several snapshots, ascending by key group, state and snapshot.

    Args:
        blocks: (index of the snapshot that the block comes from, block), at least one.
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
    """Make sections of canonical files from sorted runs.

    Returns:
        (i32[s] key groups, i64[s] end of each section, u8 bytes of the sections).
    """
    data = np.empty(int(runs.sizes.sum()) + 4 * len(runs.sizes), np.uint8)
    key_groups, ends = np.empty(len(runs.sizes), np.int32), np.empty(len(runs.sizes), np.int64)
    count = join_sections(
        runs.key_groups, runs.states, runs.addresses, runs.sizes, runs.lasts, data.ctypes.data, key_groups, ends
    )
    return key_groups[:count], ends[:count], data[: int(ends[count - 1]) if count else 0]


def merge_runs(runs: Index) -> tuple[Positions, Index]:
    """Merge the runs of several blocks, so that each key group and state has one run.

    Args:
        runs: `RUN`[r], at least one; those of the first block first.

    Returns:
        (i64[r] order in which to concatenate the bytes of the given runs, `RUN`[m] the merged runs, ascending by key
        group and state; their offsets count from the start of the concatenated bytes).
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
        # All these fields are unsigned 64-bit integers, so the sums of hashes are modulo 2**64, as digests are.
        merged[name] = np.add.reduceat(ordered[name], firsts)
    return order, merged


def join_blocks(blocks: Sequence[Block]) -> Block:
    """Join blocks into one, with one run per key group and state; at least one of the blocks has a run."""
    runs = np.concatenate([block.runs for block in blocks])
    order, merged = merge_runs(runs)
    starts = np.concatenate([block.runs["offset"] + block.data.ctypes.data for block in blocks])[order]
    ends = starts + runs["size"][order]
    data = np.empty(int(runs["size"].sum()), np.uint8)
    join_spans(0, starts, ends, ends, ends, data.ctypes.data, np.empty(len(runs), np.int64))
    return Block(data, merged)


def sum_states(runs: Index) -> dict[int, RecordDigest]:
    """Return the digest of each state in runs, by state id."""
    totals = {}
    for state in np.unique(runs["state"]).tolist():
        found = runs[runs["state"] == state]
        totals[state] = RecordDigest(*(int(found[name].sum(dtype=np.uint64)) for name in _TOTALS))
    return totals


def sum_runs(run_indexes: Iterable[Index], names: Mapping[int, str]) -> dict[str, RecordDigest]:
    """Return the digest of each state in runs, by name of the state.

    Args:
        run_indexes: `RUN`[r] each.
        names: names of states by state id.
    """
    totals = dict.fromkeys(names.values(), RecordDigest())
    for runs in run_indexes:
        for state, digest in sum_states(runs).items():
            totals[names[state]] += digest
    return totals


def join_sides(key_groups: npt.NDArray[np.int32], keys: Encoded, values: Encoded) -> KeyedRecords:
    """Make records from keys and values that are in different buffers.

    Args:
        key_groups: i32[n].
        keys: keys without prefix.
        values: values.
    """
    base = keys.data.ctypes.data
    return _join_spans(key_groups, base + keys.starts, base + keys.stops, *_locate(values))


def replace_values(records: KeyedRecords, values: Encoded) -> KeyedRecords:
    """Make records with the same keys and new values, one value per record."""
    base = records.data.ctypes.data
    return _join_spans(records.key_groups, base + records.key_starts, base + records.key_ends, *_locate(values))


def copy_records(records: KeyedRecords) -> KeyedRecords:
    """Copy records into a buffer of their own; their offsets in the file are no longer known."""
    base = records.data.ctypes.data
    spans = (records.key_starts, records.key_ends, records.value_starts, records.value_ends)
    return replace(_join_spans(records.key_groups, *(base + each for each in spans)), file=records.file)


def _locate(values: Encoded) -> tuple[Positions, Positions]:
    """Return the start and the end address of each value."""
    base = values.data.ctypes.data
    return base + values.starts, base + values.stops


def _join_spans(
    key_groups: npt.NDArray[np.int32], key_starts: Positions, key_ends: Positions, starts: Positions, ends: Positions
) -> KeyedRecords:
    """Copy keys and values from their addresses into the records of a new buffer."""
    sizes = ends - starts
    key_sizes = key_ends - key_starts
    data = np.empty(int(sizes.sum() + key_sizes.sum()), np.uint8)
    stops = np.empty(len(key_groups), np.int64)
    join_spans(0, key_starts, key_ends, starts, ends, data.ctypes.data, stops)
    value_starts = stops - sizes
    return KeyedRecords(key_groups, data, value_starts - key_sizes, value_starts, value_starts, stops, 0, "")


def size_of_records(records: KeyedRecords) -> int:
    """Return the bytes of the keys and values of records."""
    keys = int(records.key_ends.sum()) - int(records.key_starts.sum())
    return keys + int(records.value_ends.sum()) - int(records.value_starts.sum())


def _require_inside(records: KeyedRecords, key_groups: KeyGroupRange) -> None:
    low, high = int(records.key_groups.min()), int(records.key_groups.max())
    if low < key_groups.start or high > key_groups.end:
        raise FormatError(
            f"records are in the key groups {low} to {high}, not in {key_groups.start} to {key_groups.end}",
            where=Where(file=records.file),
        )


def frame_section(runs: Iterable[tuple[int, bytes | memoryview, int]]) -> Iterator[bytes | memoryview]:
    """Yield the section of one key group from framed records, a block at a time (`join_sections` makes it as a whole).

    Args:
        runs: (state id, framed records, offset of the first key byte of the state's last record in these bytes). The
            function sets a flag in that byte, which means that another state id follows. The offset is outside the
            bytes if the last record of the state is in another block. Blocks of a state are adjacent.
    """
    current: int | None = None
    for state, records, last in runs:
        if state != current:
            yield state.to_bytes(2, "big")
            current = state
        if 0 <= last < len(records):
            flagged = bytearray(records)
            flagged[last] |= kernels.FLAG
            yield memoryview(flagged)
        else:
            yield records
    yield kernels.END_OF_KEY_GROUP.to_bytes(2, "big")


@dataclass
class CanonicalWriter:
    """Writer of a canonical stream, key group after key group; the mirror of `open_canonical` and `CanonicalFile.scan`.

    Attributes:
        output: where the bytes go.
        header: the header; it is written when the object is made.
        key_groups: range of the handle.
        prefix: bytes of the key-group prefix.
    """

    output: IO[bytes]
    header: KeyedHeader
    key_groups: KeyGroupRange
    prefix: int

    def __post_init__(self) -> None:
        writer = Writer()
        write_keyed_header(writer, self.header)
        self._position = self.output.write(writer.getvalue())
        self._offsets = dict.fromkeys(self.key_groups, NO_SECTION)

    @property
    def size(self) -> int:
        """Bytes written so far, header included."""
        return self._position

    @property
    def offsets(self) -> tuple[int, ...]:
        """Offsets of the sections by key group, as the handle stores them."""
        return tuple(self._offsets[key_group] for key_group in self.key_groups)

    def write_section(self, key_group: int, chunks: Iterable[bytes | memoryview]) -> None:
        """Write the section of a key group that is too large for memory.

        Args:
            key_group: inside the range, and not written before.
            chunks: the bytes of the section, from the first state id to the end mark, uncompressed.
        """
        self._offsets[key_group] = self._position
        if self.header.compressed:
            self._write([STREAM_ID])
            chunks = map(compress_chunks, chunks)
        self._write(chunks)

    def write_sections(
        self, key_groups: npt.NDArray[np.int32], ends: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]
    ) -> None:
        """Write sections that are in memory as a whole, from the first state id to the end mark.

        Args:
            key_groups: i32[s], inside the range, and not written before.
            ends: i64[s], where each section ends in `data`.
            data: u8, the sections; the first one begins at 0.
        """
        view = data.data
        starts = [0, *ends[:-1].tolist()]
        if not self.header.compressed:
            for key_group, start in zip(key_groups.tolist(), starts, strict=False):
                self._offsets[key_group] = self._position + start
            self._write([view])
            return
        for key_group, start, end in zip(key_groups.tolist(), starts, ends.tolist(), strict=False):
            self._offsets[key_group] = self._position
            self._write([compress(view[start:end])])

    def _write(self, chunks: Iterable[bytes | memoryview]) -> None:
        for chunk in chunks:
            self.output.write(chunk)
            self._position += len(chunk)


_LARGE = 4
"""Multiple of a window: a key group with more bytes of file is read in several windows, any other as a whole."""

_ROWS = 1 << 16
"""Maximum number of records per batch; the arrays of a batch take several times the memory of small records."""


class CanonicalFile(SectionFile):
    """A canonical stream with the key groups and offsets of its handle."""

    format: ClassVar[FileFormat] = FileFormat.CANONICAL
    needs_layouts: ClassVar[bool] = False
    by_kernels: ClassVar[bool] = True

    def scan(
        self,
        state_ids: Sequence[int],
        key_groups: KeyGroupRange | None = None,
        *,
        window: int | None = None,
    ) -> Iterator[tuple[int, KeyedRecords]]:
        """Yield the records of some states in the order of the file (see `KeyedFile.scan`).

        Args:
            state_ids: see `KeyedFile.scan`.
            key_groups: read only these key groups.
            window: bytes of file that are read at a time; by default `WINDOW`.
        """
        window = window or WINDOW
        prefix = self.context.prefix
        wanted = np.zeros(len(self.header.states), np.bool_)
        wanted[list(state_ids)] = True
        groups = group_sections(select_sections(self.sections, key_groups), window)

        def measure(group: tuple[Section, ...]) -> int:
            is_large = group[0].span is not None or (len(group) == 1 and group[0].size > _LARGE * window)
            return 0 if is_large else group[-1].end - group[0].start

        def read(group: tuple[Section, ...]) -> bytes | None:
            return read_sections(self.stream, group[0].start, group[-1].end) if measure(group) else None

        for group, raw in read_ahead(groups, read, self.stream.location, measure):
            if raw is None:
                yield from _scan_large(self, group[0], wanted, prefix, window)
            else:
                held = _make_window(self, group, raw)
                # Free the bytes of this window before the next one is read.
                raw = None
                yield from _scan_window(self, held, wanted, prefix, _begin())
                del held

    def scan_key_groups(self, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        """Yield all records, one key group after the other; the states of a key group in the order of its section."""
        everything = range(len(self.header.states))
        for sections in group_sections(self.sort_sections(key_groups), WINDOW):
            require_memory(sections[0].size, sections[0].key_group, self.name)
            found: dict[int, list[KeyedRecords]] = {}
            for state_id, records in replace(self, sections=sections).scan(everything):
                found.setdefault(state_id, []).append(records)
            for key_group, runs in gather_key_groups({state_id: iter(batches) for state_id, batches in found.items()}):
                yield key_group, sorted(runs, key=lambda run: run[1].offset + int(run[1].key_starts[0]))

    def find_runs(self) -> RunFinder:
        """See `SectionFile`; key groups are cut between records."""
        return lambda section, step: _find_runs(self, section, self.context.prefix, step)


@dataclass(frozen=True)
class _Window:
    """Bytes of one or more sections of a canonical file, which are read and scanned at a time.

    Attributes:
        data: u8.
        offset: position of `data` in the stream.
        key_groups: i32[s].
        starts: i64[s] first byte of each section in `data`.
        ends: i64[s].
        complete: `data` has the sections up to their ends; otherwise the file has more bytes of them.
        exact: no bytes may follow the end mark of a section.
    """

    data: npt.NDArray[np.uint8]
    offset: int
    key_groups: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    complete: bool = True
    exact: bool = True


def open_canonical(
    stream: StateStream,
    key_groups: KeyGroupRange,
    offsets: Sequence[int],
    context: RecordContext,
    *,
    narrowed: bool = False,
    reading: HeaderReading = PLAIN,
) -> CanonicalFile:
    """Read the header in the stream of a handle, and find the sections of its key groups.

    Args:
        stream: the stream of the handle.
        key_groups: range of the handle.
        offsets: position per key group; `NO_SECTION` where there are no records.
        context: properties of the operator.
        narrowed: the stream may hold other key groups too (see `open_sections`).
        reading: declarations and cached bytes with which the header is read.

    Raises:
        FormatError: an offset is outside the stream, or the header is malformed.
    """
    header, end, sections = open_sections(stream, key_groups, offsets, narrowed=narrowed, reading=reading)
    return CanonicalFile(stream, header, key_groups, sections, context, header_end=end)


def _make_window(file: CanonicalFile, group: tuple[Section, ...], raw: bytes) -> _Window:
    first = group[0].start
    if file.header.compressed:
        data, ends = decompress_sections(raw, group, file.stream.name, first)
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    else:
        data = np.frombuffer(raw, np.uint8)
        starts = np.array([each.start - first for each in group], np.int64)
        ends = np.array([each.end - first for each in group], np.int64)
    groups = np.array([each.key_group for each in group], np.int32)
    return _Window(data, first, groups, starts, ends, exact=not group[-1].is_open)


def _scan_large(
    file: CanonicalFile, section: Section, wanted: npt.NDArray[np.bool_], prefix: int, window: int
) -> Iterator[tuple[int, KeyedRecords]]:
    """Scan a section, or a span of one, in several windows; each begins at the first record not scanned yet."""
    reader = SectionReader(file.stream, section, compressed=file.header.compressed, block=window)
    span, exact = section.span, not section.is_open
    cursor = _begin() if span is None else np.array([0, 0, span.state_id, 0], np.int64)
    groups = np.array([section.key_group], np.int32)
    used, size = 0, window
    while True:
        reader.advance(used, size)
        data = np.frombuffer(reader.data, np.uint8)
        spans = (np.zeros(1, np.int64), np.full(1, len(data), np.int64))
        offset, complete = section.start + reader.position, reader.complete and span is None
        yield from _scan_window(
            file, _Window(data, offset, groups, *spans, complete=complete, exact=exact), wanted, prefix, cursor
        )
        if cursor[0] == 1:
            if exact:
                reader.advance(int(cursor[3]), 1)
                if reader.data:
                    what = f"key group {section.key_group}: {kernels.MESSAGES[kernels.LEFT_OVER]}"
                    raise FormatError(what, where=Where(file=file.name, offset=section.start + reader.position))
            return
        used = max(0, int(cursor[1]))
        if reader.complete:
            if used != len(data):
                what = f"key group {section.key_group}: the bytes read of it do not end where a record ends"
                hint = "The file was changed while it was read"
                raise FormatError(what, where=Where(file=file.name, offset=offset + used), hint=hint)
            return
        # If not even one record was complete, it is larger than the window: read more.
        size = window if used else size * 2
        cursor[1] = min(0, int(cursor[1]))


def _find_runs(file: CanonicalFile, section: Section, prefix: int, step: int) -> tuple[StateRun, ...]:
    """Find the runs of the states in a section, with the positions of some records (see `SectionFile.find_runs`)."""
    reader = SectionReader(file.stream, section, compressed=file.header.compressed)
    cursor = np.array([-1, 0, 0], np.int64)
    found = np.empty((2, 1 << 10), np.int64)
    runs: list[tuple[int, list[RecordPosition]]] = []
    used, size, status = 0, WINDOW, kernels.MORE
    while status == kernels.MORE:
        reader.advance(used, size)
        data, count = np.frombuffer(reader.data, np.uint8), found.shape[1]
        while status == kernels.MORE and count == found.shape[1]:
            status, count = kernels.find_record_starts(
                data.ctypes.data,
                len(data),
                section.key_group,
                reader.complete,
                prefix,
                len(file.header.states),
                step,
                cursor,
                found,
            )
            for position, state_id in found[:, :count].T.tolist():
                if not runs or runs[-1][0] != state_id:
                    runs.append((state_id, []))
                runs[-1][1].append(reader.locate(reader.position + position))
        used = max(0, int(cursor[0]))
        size = WINDOW if used else size * 2
        cursor[0] -= used
        cursor[2] -= used
    if status == kernels.DONE:
        end = reader.locate(reader.position + used)
        reader.advance(used, 1)
        if section.is_open or not reader.data:
            ends = [*(positions[0] for _, positions in runs[1:]), end]
            return tuple(StateRun(run[0], tuple(run[1]), last) for run, last in zip(runs, ends, strict=True))
        status, used = kernels.LEFT_OVER, 0
    raise FormatError(
        f"key group {section.key_group}: {kernels.MESSAGES[status]}",
        where=Where(file=file.name, offset=section.start + reader.position + used),
    )


def _begin() -> npt.NDArray[np.int64]:
    """Return the cursor of `scan_records` at the start of the first section."""
    return np.array([0, -1, 0, 0], np.int64)


def _scan_window(
    file: CanonicalFile,
    window: _Window,
    wanted: npt.NDArray[np.bool_],
    prefix: int,
    cursor: npt.NDArray[np.int64],
) -> Iterator[tuple[int, KeyedRecords]]:
    room = max(1, min(len(window.data) // (8 + prefix) + 1, _ROWS))
    while True:
        output = np.empty((6, room), np.int64)
        status, count = kernels.scan_records(
            window.data.ctypes.data,
            window.starts,
            window.ends,
            window.key_groups,
            window.complete,
            window.exact,
            prefix,
            wanted,
            cursor,
            output,
        )
        if status not in (kernels.DONE, kernels.MORE):
            section = int(cursor[0])
            offset = window.offset + max(int(cursor[1]), int(window.starts[section]))
            raise FormatError(
                f"key group {window.key_groups[section]}: {kernels.MESSAGES[status]}",
                where=Where(file=file.stream.name, offset=offset),
            )
        for state_id, rows in _group_states(output[:, :count]):
            yield (
                state_id,
                KeyedRecords(
                    rows[1].astype(np.int32),
                    window.data,
                    *(rows[2], rows[3], rows[4], rows[5]),
                    window.offset,
                    file.stream.name,
                ),
            )
        if status == kernels.DONE or (count < room and not window.complete):
            return


def _group_states(rows: npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Split the rows of `scan_records` by state; states come in the order of their first row."""
    states = rows[0]
    if not len(states):
        return
    # The records of a state in a key group are adjacent, so wherever the state id changes, another run begins.
    bounds = [0, *(np.flatnonzero(states[1:] != states[:-1]) + 1).tolist(), len(states)]
    runs: dict[int, list[npt.NDArray[np.int64]]] = {}
    for start, stop in pairwise(bounds):
        runs.setdefault(int(states[start]), []).append(rows[:, start:stop])
    for state_id, found in runs.items():
        yield state_id, found[0] if len(found) == 1 else np.concatenate(found, axis=1)
