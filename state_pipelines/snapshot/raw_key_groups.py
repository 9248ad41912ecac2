"""Keyed state of a subtask as bytes, a row per key group: raw state that is not timers, or state without a reader."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from state_pipelines.keyed.sections import Section, group_sections, read_sections, select_sections
from state_pipelines.snapshot.subtask_states import StateStatistics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.metadata.streams import StateStream

WINDOW = 8 << 20
"""Bytes of raw keyed state in one batch; a key group that has more makes a batch of its own."""

SUBTASK_FIELD = pa.field("subtask", pa.int32(), False)
BYTES_FIELDS = (pa.field("value_bytes", pa.binary(), False), pa.field("reason", pa.string(), False))
RAW_KEYED_SCHEMA = pa.schema([pa.field("key_group", pa.int32(), False), SUBTASK_FIELD, *BYTES_FIELDS])


@dataclass(frozen=True)
class RawKeyedSubtaskState:
    """Raw keyed state of a subtask.

    Attributes:
        subtask: index of the subtask.
        stream: the stream of the handle.
        key_groups: range of the handle.
        sections: of the key groups that have one, ascending by position.
        reason: why the bytes are not timers that can be read.
    """

    subtask: int
    stream: StateStream
    key_groups: KeyGroupRange
    sections: tuple[Section, ...]
    reason: str

    def batches(self) -> Iterator[pa.RecordBatch]:
        """A row per key group."""
        for sections in group_sections(self.sections, WINDOW):
            number = len(sections)
            columns = [
                pa.array([section.key_group for section in sections], pa.int32()),
                pa.array(np.full(number, self.subtask, np.int32)),
                pa.array([read_sections(self.stream, section.start, section.end) for section in sections], pa.binary()),
                pa.array([self.reason] * number, pa.string()),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=RAW_KEYED_SCHEMA)

    def count(self) -> StateStatistics:
        """Sections and their bytes; nothing is read."""
        sizes = [section.end - section.start for section in self.sections]
        return StateStatistics(len(sizes), sum(sizes), {section.key_group: 1 for section in self.sections})

    def split(self, size: int, key_groups: KeyGroupRange | None = None) -> Iterator[RawKeyedSubtaskState]:
        """The same state in ranges of about `size` bytes, of some key groups."""
        for sections in group_sections(select_sections(self.sections, key_groups), size):
            yield replace(self, sections=sections)
