"""Blocks of the heap backend: the entries of one state in one key group.

A section has a block per state: `i16` state id, `i32` number of entries, the entries. Only parsing finds the end of a
block. Flink writes the states of every section of a file in the same order, so that the blocks with the same number
of many sections are parsed by one call of the kernel. Source: `HeapSnapshotStrategy`, `StateTableByKeyGroupReaders`.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.errors import FormatError, UnsupportedError, Where, at
from state_pipelines.keyed.heap.block_ends import HEAD, find_block_end, make_block_record
from state_pipelines.keyed.heap.entries import make_entry_codecs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.heap.entries import EntryCodec
    from state_pipelines.keyed.keyed_file import RecordContext, Runs
    from state_pipelines.metadata.handles import KeyGroupRange

Positions = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]

_STATE, _COUNT, _START, _STOP = range(4)


class BlockIndex:
    """Codecs of the states of a file, and blocks that were found; a copy in another process starts empty.

    The begin of a block is found only by parsing all blocks before it, so that it is worth caching. Codecs take longer
    to make than a small section takes to read.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._codecs: tuple[RecordContext, list[EntryCodec]] | None = None
        self._first = 0
        self._known = np.zeros(0, np.int64)
        self._blocks = np.zeros((0, 4, 0), np.int64)

    def prepare(self, key_groups: KeyGroupRange, states: int) -> None:
        """Make room for the blocks of a file; nothing is known of them before the first call."""
        # Threads may read parts of a file.
        with self._lock:
            if len(self._known) != len(key_groups):
                self._first = key_groups.start
                # Memory that was never written to takes no space.
                self._blocks = np.zeros((states, 4, len(key_groups)), np.int64)
                self._known = np.zeros(len(key_groups), np.int64)

    def find_entry_codecs(self, header: KeyedHeader, context: RecordContext) -> list[EntryCodec]:
        """Return the codecs of all states of the file."""
        if self._codecs is None or self._codecs[0] != context:
            self._codecs = context, make_entry_codecs(header, context)
        return self._codecs[1]

    def count(self, key_groups: npt.NDArray[np.int32]) -> Positions:
        """Return how many blocks are known of each key group, i64[n]."""
        return self._known[key_groups - self._first]

    def find(self, number: int, key_groups: npt.NDArray[np.int32]) -> Positions:
        """Return blocks that are known.

        Args:
            number: of the block in its section, from 0.
            key_groups: i32[n].

        Returns:
            i64[4, n]: state id, number of entries, start and end (exclusive) of the entries, relative to the first
            block of the section.
        """
        found: Positions = self._blocks[number][:, key_groups - self._first]
        return found

    def add(self, number: int, key_groups: npt.NDArray[np.int32], blocks: Positions) -> None:
        """Note blocks, as `find` returns them, after those that are known."""
        rows = key_groups - self._first
        self._blocks[number][:, rows] = blocks
        self._known[rows] = number + 1

    def __reduce__(self) -> tuple[type[BlockIndex], tuple[()]]:
        return BlockIndex, ()


@dataclass(frozen=True)
class SectionBytes:
    """Bytes of some sections of a file, decompressed.

    Attributes:
        data: u8.
        key_groups: i32[s], ascending.
        starts: i64[s], first block of each section in `data`.
        ends: i64[s].
        offsets: i64[s], position of `data` in the file; of a compressed file, in the section.
        is_open: bytes after the last block are not part of the section.
        name: of the file.
    """

    data: npt.NDArray[np.uint8]
    key_groups: npt.NDArray[np.int32]
    starts: Positions
    ends: Positions
    offsets: Positions
    is_open: bool
    name: str


@dataclass(frozen=True)
class BlockReader:
    """Reads the blocks of sections.

    Attributes:
        header: of the file.
        codecs: of all states.
        index: blocks that are known.
        wanted: states whose records are wanted.
        by_block: entries without a known length are returned as one record per block.
    """

    header: KeyedHeader
    codecs: Sequence[EntryCodec]
    index: BlockIndex
    wanted: frozenset[int]
    by_block: bool

    def read(self, sections: SectionBytes) -> Runs:
        """Read the records of the wanted states, in the order of their blocks; each run ascends by key group.

        Raises:
            FormatError: the bytes do not have the format.
            UnsupportedError: the entries of a wanted state, or of one before it, have no known length.
        """
        runs: Runs = []
        states = len(self.header.states)
        known = self.index.count(sections.key_groups)
        positions = sections.starts.copy()
        seen = np.zeros((len(positions), states), np.bool_)
        is_wanted = np.isin(np.arange(states), list(self.wanted))
        missing = np.full(len(positions), len(self.wanted), np.int64)
        for number in range(states):
            rows = np.flatnonzero((known > number) | (missing > 0))
            if not len(rows):
                break
            is_new = known[rows] <= number
            blocks = np.empty((4, len(rows)), np.int64)
            groups = sections.key_groups[rows]
            blocks[:, ~is_new] = self.index.find(number, groups[~is_new])
            blocks[:, is_new] = self._read_heads(sections, rows[is_new], positions[rows[is_new]])
            ids = blocks[_STATE]
            chosen = (blocks[_COUNT] > 0) & (is_new | is_wanted[ids])
            for state_id in np.unique(ids[chosen]).tolist():
                own = np.flatnonzero(chosen & (ids == state_id))
                blocks[_STOP, own], found = self._read_state(sections, rows[own], blocks[:, own], seen[rows[own]])
                runs += found
            positions[rows] = sections.starts[rows] + blocks[_STOP]
            self.index.add(number, groups[is_new], blocks[:, is_new])
            missing[rows] -= is_wanted[ids] & ~seen[rows, ids]
            seen[rows, ids] = True
            if number == states - 1 and not sections.is_open:
                self._expect_ends(sections, rows[is_new], positions)
        return runs

    def _read_heads(self, sections: SectionBytes, rows: Rows, positions: Positions) -> Positions:
        """Read the heads of blocks: i64[4, n] as in `BlockIndex`; the blocks still end where their entries begin."""
        short = sections.ends[rows] - positions < HEAD
        if short.any():
            raise _make_error(
                sections, int(rows[short][0]), positions[short][0], "the section ends before its states do"
            )
        raw = sections.data[positions[:, None] + np.arange(HEAD)].astype(np.int64)
        ids = (raw[:, 0] << 8 | raw[:, 1]) ^ 0x8000
        ids -= 0x8000
        counts = (raw[:, 2] << 24 | raw[:, 3] << 16 | raw[:, 4] << 8 | raw[:, 5]) ^ 0x80000000
        counts -= 0x80000000
        bad = (ids < 0) | (ids >= len(self.header.states)) | (counts < 0)
        if bad.any():
            what = f"{counts[bad][0]} entries of state {ids[bad][0]}, which is not in the header"
            raise _make_error(sections, int(rows[bad][0]), positions[bad][0], what)
        begins = positions + HEAD - sections.starts[rows]
        return np.stack([ids, counts, begins, begins])

    def _read_state(
        self, sections: SectionBytes, rows: Rows, blocks: Positions, seen: npt.NDArray[np.bool_]
    ) -> tuple[Positions, Runs]:
        """Read blocks of one state.

        Args:
            sections: hold the blocks.
            rows: i64[n], their sections.
            blocks: i64[4, n], as in `BlockIndex`; not empty.
            seen: bool[n, states], states whose blocks come before in the section.

        Returns:
            (i64[n] ends of the blocks, relative to the first block of the section; the records if they are wanted).
        """
        state_id = int(blocks[_STATE, 0])
        codec, starts, name = self.codecs[state_id], sections.starts[rows], sections.name
        with at(state=self.header.states[state_id].name):
            try:
                entries, stops = codec.read_blocks(
                    sections.data,
                    starts + blocks[_START],
                    sections.ends[rows],
                    blocks[_COUNT],
                    sections.offsets[rows],
                    name,
                )
            except UnsupportedError as error:
                if len(rows) == 1:
                    return self._read_unmeasured(sections, int(rows[0]), blocks[:, 0], seen[0], error)
                found = [
                    self._read_state(sections, rows[each], blocks[:, each], seen[each])
                    for each in (slice(number, number + 1) for number in range(len(rows)))
                ]
                return np.concatenate([stops for stops, _ in found]), [run for _, runs in found for run in runs]
            if state_id not in self.wanted:
                return stops - starts, []
            groups = np.repeat(sections.key_groups[rows], blocks[_COUNT])
            records = entries.to_records(groups, codec, sections.data, int(sections.offsets[0]), name)
            return stops - starts, [(state_id, records)] if len(records) else []

    def _read_unmeasured(
        self, sections: SectionBytes, row: int, block: Positions, seen: npt.NDArray[np.bool_], error: UnsupportedError
    ) -> tuple[Positions, Runs]:
        """Read a block whose entries have no known length, with the `error` that says why; as `_read_state`."""
        state_id, _, start, stop = block.tolist()
        first, offset = int(sections.starts[row]), int(sections.offsets[row])
        if stop == start:
            stop = self._find_end(sections, row, state_id, first + start, seen, error) - first
        runs: Runs = []
        if state_id in self.wanted:
            if not self.codecs[state_id].is_opaque:
                raise error
            if not self.by_block:
                raise UnsupportedError(
                    "entries in the native format of the heap backend have no lengths, so that nothing in the file "
                    f"tells where an entry ends: {error.what}",
                    where=error.where,
                    hint=error.hint,
                ) from error
            group = int(sections.key_groups[row])
            record = make_block_record(group, sections.data, first + start, first + stop, offset, sections.name)
            runs.append((state_id, record))
        return np.array([stop], np.int64), runs

    def _find_end(
        self,
        sections: SectionBytes,
        row: int,
        state_id: int,
        start: int,
        seen: npt.NDArray[np.bool_],
        error: UnsupportedError,
    ) -> int:
        """Find the end of a block whose entries have no known length, if the blocks after it prove it."""
        others = frozenset(np.flatnonzero(~seen).tolist()) - {state_id}
        end = int(sections.ends[row])
        found = None if sections.is_open else find_block_end(sections.data, start, end, others, self.codecs)
        if found is None:
            raise UnsupportedError(
                f"the end of the entries of state {self.header.states[state_id].name} in key group "
                f"{sections.key_groups[row]} is not known, so that states after it cannot be found: {error.what}",
                where=error.where,
                hint=error.hint,
            ) from error
        return found

    def _expect_ends(self, sections: SectionBytes, rows: Rows, positions: Positions) -> None:
        """Check that sections end after their last blocks."""
        left = sections.ends[rows] - positions[rows]
        if left.any():
            first = int(np.flatnonzero(left)[0])
            row = int(rows[first])
            raise _make_error(sections, row, positions[row], f"{left[first]} bytes are left over after the last state")


def _make_error(sections: SectionBytes, row: int, position: int, what: str) -> FormatError:
    where = Where(file=sections.name, offset=int(sections.offsets[row] + position))
    return FormatError(f"key group {sections.key_groups[row]}: {what}", where=where)
