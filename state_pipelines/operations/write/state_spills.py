"""Spills of one state: its encoded records, in whatever order they come, which wait to be merged.

`operations.write.keyed_rewrite` merges them into the files of subtasks.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.keyed.canonical import RecordBuffer, join_sides
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.operations.write.spills import BLOCK, create_spill
from state_pipelines.serializers.registered_states import StateKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from state_pipelines.keyed.row_encoding import EncodedRows, RecordEncoder
    from state_pipelines.operations.write.spills import SpillWriter
    from state_pipelines.storage import Location


@dataclass(frozen=True)
class StateSpill:
    """Encoded records of one state that wait to be merged.

    Attributes:
        location: the file, in which the state has the id 0.
        records: how many.
        key_groups: range outside of which none of them lies.
    """

    location: Location
    records: int
    key_groups: KeyGroupRange


@dataclass
class StateSpillWriter:
    """Writes records of one state into a spill; see `create_state_spill`.

    Attributes:
        encoder: knows the layouts.
        target: the file.
        spill: takes the records.
        records: their number.
        first: lowest key group.
        last: highest key group.
    """

    encoder: RecordEncoder
    target: Location
    spill: SpillWriter
    records: int = 0
    first: int = 0
    last: int = -1

    def add(self, rows: EncodedRows) -> None:
        """Take encoded rows, at least one."""
        self.spill.add(0, join_sides(rows.key_groups, rows.keys, rows.values))
        lowest, highest = int(rows.key_groups.min()), int(rows.key_groups.max())
        self.first = min(self.first, lowest) if self.records else lowest
        self.last = max(self.last, highest)
        self.records += len(rows.key_groups)

    @property
    def written(self) -> StateSpill:
        """The file, once it is written."""
        return StateSpill(self.target, self.records, KeyGroupRange(self.first, self.last - self.first + 1))


@contextmanager
def create_state_spill(encoder: RecordEncoder, target: Location, limit: int) -> Iterator[StateSpillWriter]:
    """Write a spill; what an attempt that died has left is replaced.

    Args:
        encoder: knows the layouts.
        target: the file.
        limit: bytes of records that are held in memory.

    Raises:
        StateError: the storage refuses.
    """
    maps = frozenset([0] if encoder.layout.state_type == StateKind.MAP else [])
    buffer = RecordBuffer(encoder.prefix, maps, limit)
    with create_spill(target, buffer, encoder.layout.max_parallelism) as spill:
        yield StateSpillWriter(encoder, target, spill)


def write_state_spill(encoder: RecordEncoder, batches: Iterable[pa.RecordBatch], target: Location) -> StateSpill:
    """Encode rows of one state into a spill.

    Args:
        encoder: knows the layouts.
        batches: rows in any order; the rows of one list follow each other inside one task.
        target: the file; what an attempt that died has left is replaced.

    Raises:
        ValueRangeError: a value does not fit the state's serializer.
    """
    with create_state_spill(encoder, target, BLOCK) as writer:
        for rows in encoder.encode(batches):
            writer.add(rows)
    return writer.written
