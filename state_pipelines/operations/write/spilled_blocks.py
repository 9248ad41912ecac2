"""Spills as they are read: their blocks, and what a block holds of a range of key groups (see `write.spills`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.errors import FormatError, Where
from state_pipelines.keyed.canonical import (
    RUN,
    Block,
    Index,
)
from state_pipelines.storage import Location, read_range
from state_pipelines.storage.files import file_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.keyed.digests import RecordDigest
    from state_pipelines.metadata.handles import KeyGroupRange


_DIRECTORY_ROW = 16
_BLOCK_ROW = 24

TRAILER = 8
"""Bytes of the number of blocks, at the end of a spill."""


@dataclass(frozen=True)
class SpilledBlock:
    """Location of a block.

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
        found: all that was read of each state, for the proof; empty unless digests were requested.
    """

    location: Location
    max_parallelism: int
    blocks: tuple[SpilledBlock, ...]
    states: dict[str, RecordDigest] = field(default_factory=dict)
    dropped: dict[str, RecordDigest] = field(default_factory=dict)
    found: dict[str, RecordDigest] = field(default_factory=dict)


@dataclass(frozen=True)
class SpilledRange:
    """Part of a block in a range of key groups.

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

    @property
    def size(self) -> int:
        """Bytes of the data."""
        return int(self.bounds[-1] - self.bounds[0])

    def read(self, key_groups: KeyGroupRange) -> Block:
        """The runs of some of its key groups, which lie side by side; offsets count from the start of the data."""
        first, stop = (each - self.key_groups.start for each in (key_groups.start, key_groups.end + 1))
        start, end = int(self.bounds[first]), int(self.bounds[stop])
        low, high = np.searchsorted(self.runs["key_group"], (key_groups.start, key_groups.end + 1))
        runs = self.runs[low:high].copy()
        runs["offset"] -= start
        return Block(np.frombuffer(read_range(self.location, start, end), np.uint8), runs)


def find_blocks(location: Location) -> tuple[SpilledBlock, ...]:
    """Locations of the blocks of a spill.

    Raises:
        FormatError: the file is not a spill.
    """
    end = file_size(location) - TRAILER
    count = int.from_bytes(read_range(location, end, end + TRAILER), "little") if end >= 0 else -1
    if not 0 <= count * _BLOCK_ROW <= end:
        raise FormatError("the file is not a spill", where=Where(file=str(location)))
    rows = np.frombuffer(read_range(location, end - count * _BLOCK_ROW, end), "<i8").reshape(-1, 3)
    return tuple(SpilledBlock(*row) for row in rows.tolist())


def read_spill(location: Location, blocks: Sequence[SpilledBlock], key_groups: KeyGroupRange) -> Iterator[SpilledRange]:
    """List the parts of the blocks of a spill in some key groups; their data are not read yet.

    Raises:
        FormatError: the file is not the spill that was written.
    """
    for block in blocks:
        found = find_range(location, block, key_groups)
        if found is not None:
            yield found


def find_range(location: Location, block: SpilledBlock, key_groups: KeyGroupRange) -> SpilledRange | None:
    """Find the part of a block in some key groups; None when there is none; errors as of `read_spill`."""
    index = block.start + block.size
    position = index + block.runs * RUN.itemsize + key_groups.start * _DIRECTORY_ROW
    raw = read_range(location, position, position + (len(key_groups) + 1) * _DIRECTORY_ROW)
    directory = np.frombuffer(raw, "<i8").reshape(-1, 2).astype(np.int64)
    rows, bounds = directory[:, 0], directory[:, 1]
    inside = 0 <= rows[0] <= rows[-1] <= block.runs and block.start <= bounds[0] <= bounds[-1] <= index
    if not inside or (np.diff(rows) < 0).any() or (np.diff(bounds) < 0).any():
        raise FormatError("the directory of a spill is damaged", where=Where(file=str(location)))
    if rows[0] == rows[-1]:
        return None
    start, end = (index + int(row) * RUN.itemsize for row in (rows[0], rows[-1]))
    found = SpilledRange(location, key_groups, np.frombuffer(read_range(location, start, end), RUN), bounds)
    if not _is_index(found, rows - rows[0]):
        raise FormatError("the index of a spill is damaged", where=Where(file=str(location), offset=start))
    return found


def _is_index(found: SpilledRange, rows: npt.NDArray[np.int64]) -> bool:
    """Whether runs are what a directory says; `rows` are those at which the runs of each key group begin, and the end.

    Kernels copy what the runs name, wherever that is.
    """
    runs, key_groups = found.runs, found.key_groups
    groups, sizes, lasts = runs["key_group"], runs["size"], runs["last"]
    ordered = np.diff(groups.astype(np.int64) << 32 | runs["state"]) > 0
    offsets = np.append(runs["offset"], found.bounds[-1])
    return bool(
        ordered.all()
        and np.array_equal(np.searchsorted(groups, np.arange(key_groups.start, key_groups.end + 2)), rows)
        and np.array_equal(np.diff(offsets), sizes)
        and np.array_equal(offsets[rows], found.bounds)
        and ((lasts >= 0) & (lasts < sizes)).all()
    )
