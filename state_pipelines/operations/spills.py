"""Spills: framed records in any order on their way to their files, on disk between two stages of work.

The first stage encodes rows (`rewriting`) or reads records for other key groups (`rescaling.regrouping`), the second
one writes the file of a subtask. Any number of tasks can share either.

A spill is a row of blocks (`keyed.runs.Block`). Behind the data of each stand its index (`RUN`) and a directory, which
says for every key group where its runs begin in the index and in the file. So any range of key groups is one read of
the directory, one of the index and one of the data per block; nothing else of a spill is touched. At the end stand the
places of the blocks, and their number.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.errors import FormatError, Where
from state_pipelines.keyed.runs import RUN, Block, Index, RecordBuffer, size_of_records
from state_pipelines.metadata.key_groups import KeyGroupRange
from state_pipelines.storage import Location, create_file, read_range
from state_pipelines.storage.files import file_size, remove_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.keyed.digest import RecordDigest
    from state_pipelines.keyed.records import KeyedRecords

BLOCK = 32 << 20
"""Bytes of records in a block."""

BATCH = 16 << 20
"""Bytes of records that become sections at once, unless one key group has more."""

_DIRECTORY_ROW = 16
_BLOCK_ROW = 24
_TRAILER = 8


@dataclass(frozen=True)
class SpilledBlock:
    """Where a block lies.

    Attributes:
        start: of its data.
        size: of its data; the index follows, then the directory.
        runs: how many.
    """

    start: int
    size: int
    runs: int


@dataclass(frozen=True)
class Spill:
    """Records of all states, framed for their new key groups.

    Attributes:
        location: the file.
        max_parallelism: number of the new key groups.
        blocks: the blocks.
        states: what it holds of each state, by name, under the new key groups.
        dropped: what was left out of each state, under the old key groups.
    """

    location: Location
    max_parallelism: int
    blocks: tuple[SpilledBlock, ...]
    states: dict[str, RecordDigest] = field(default_factory=dict)
    dropped: dict[str, RecordDigest] = field(default_factory=dict)


@dataclass(frozen=True)
class SpilledRange:
    """What a block holds of a range of key groups.

    Attributes:
        location: the file.
        key_groups: the range.
        runs: `RUN`[r]; offsets count from the start of the file.
        bounds: i64[key groups + 1], where the data of each key group begin in the file.
    """

    location: Location
    key_groups: KeyGroupRange
    runs: Index
    bounds: npt.NDArray[np.int64]

    def read(self, key_groups: KeyGroupRange) -> Block:
        """The runs of some of its key groups, which lie side by side; offsets count from the start of the data."""
        first, stop = (each - self.key_groups.start for each in (key_groups.start, key_groups.end + 1))
        start, end = int(self.bounds[first]), int(self.bounds[stop])
        low, high = np.searchsorted(self.runs["key_group"], (key_groups.start, key_groups.end + 1))
        runs = self.runs[low:high].copy()
        runs["offset"] -= start
        return Block(np.frombuffer(read_range(self.location, start, end), np.uint8), runs)


@dataclass
class SpillWriter:
    """Writes a spill; see `create_spill`.

    Attributes:
        output: where the bytes go.
        buffer: what is not written yet.
        max_parallelism: number of the new key groups.
    """

    output: IO[bytes]
    buffer: RecordBuffer
    max_parallelism: int
    _blocks: list[SpilledBlock] = field(default_factory=list)
    _indexes: list[Index] = field(default_factory=list)
    _position: int = 0

    def add(self, state: int, records: KeyedRecords) -> None:
        """Take records of a state, which lie in their new key groups."""
        # Of few key groups, or of compressed ones, a great deal may come at once.
        pieces = size_of_records(records) // self.buffer.limit + 1
        rows = len(records) // pieces + 1
        for start in range(0, len(records), rows):
            self.buffer.add(state, records.cut(start, start + rows))
            if self.buffer.is_full:
                self.flush()

    def flush(self) -> None:
        """Write what is held as a block."""
        block = self.buffer.sort(KeyGroupRange(0, self.max_parallelism))
        if not len(block.runs):
            return
        runs = block.runs
        runs["offset"] += self._position
        directory = np.empty((self.max_parallelism + 1, 2), "<i8")
        directory[:, 0] = np.searchsorted(runs["key_group"], np.arange(self.max_parallelism + 1))
        offsets = np.append(runs["offset"], self._position + len(block.data))
        directory[:, 1] = offsets[directory[:, 0]]
        self._blocks.append(SpilledBlock(self._position, len(block.data), len(runs)))
        self._indexes.append(runs)
        for part in (block.data, runs.view(np.uint8), directory.reshape(-1).view(np.uint8)):
            self._position += self.output.write(part.data)

    def finish(self) -> None:
        """Write what is held, and where the blocks lie."""
        self.flush()
        places = np.array([(each.start, each.size, each.runs) for each in self._blocks], "<i8").reshape(-1, 3)
        self.output.write(places.tobytes() + len(places).to_bytes(_TRAILER, "little"))

    @property
    def blocks(self) -> tuple[SpilledBlock, ...]:
        """Where the blocks lie that are written."""
        return tuple(self._blocks)

    @property
    def indexes(self) -> tuple[Index, ...]:
        """The runs of each block."""
        return tuple(self._indexes)


@contextmanager
def create_spill(location: Location, buffer: RecordBuffer, max_parallelism: int) -> Iterator[SpillWriter]:
    """Write a spill; what an attempt that died has left is replaced.

    Raises:
        StateError: the storage refuses.
    """
    remove_file(location)
    with create_file(location) as output:
        writer = SpillWriter(output, buffer, max_parallelism)
        yield writer
        writer.finish()


def find_blocks(location: Location) -> tuple[SpilledBlock, ...]:
    """Where the blocks of a spill lie.

    Raises:
        FormatError: the file is not a spill.
    """
    end = file_size(location) - _TRAILER
    count = int.from_bytes(read_range(location, end, end + _TRAILER), "little") if end >= 0 else -1
    if not 0 <= count * _BLOCK_ROW <= end:
        raise FormatError("the file is not a spill", where=Where(file=str(location)))
    places = np.frombuffer(read_range(location, end - count * _BLOCK_ROW, end), "<i8").reshape(-1, 3)
    return tuple(SpilledBlock(*place) for place in places.tolist())


def read_spill(location: Location, blocks: Sequence[SpilledBlock], key_groups: KeyGroupRange) -> Iterator[SpilledRange]:
    """What each block of a spill holds of some key groups; their data are not read yet.

    Raises:
        FormatError: the file is not the spill that was written.
    """
    for block in blocks:
        index = block.start + block.size
        place = index + block.runs * RUN.itemsize + key_groups.start * _DIRECTORY_ROW
        raw = read_range(location, place, place + (len(key_groups) + 1) * _DIRECTORY_ROW)
        directory = np.frombuffer(raw, "<i8").reshape(-1, 2).astype(np.int64)
        rows, bounds = directory[:, 0], directory[:, 1]
        inside = 0 <= rows[0] <= rows[-1] <= block.runs and block.start <= bounds[0] <= bounds[-1] <= index
        if not inside or (np.diff(rows) < 0).any() or (np.diff(bounds) < 0).any():
            raise FormatError("the directory of a spill is damaged", where=Where(file=str(location)))
        if rows[0] == rows[-1]:
            continue
        start, end = (index + int(row) * RUN.itemsize for row in (rows[0], rows[-1]))
        runs = np.frombuffer(read_range(location, start, end), RUN)
        yield SpilledRange(location, key_groups, runs, bounds)
