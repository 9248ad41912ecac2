"""Keyed files of key-group sections: what the canonical format, the heap backend's and raw timers have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self, TypeAlias

from state_pipelines.errors import StateError, StorageError
from state_pipelines.keyed.canonical.sections import (
    WINDOW,
    Section,
    group_sections,
    measure_sections,
    select_sections,
)
from state_pipelines.keyed.key_group_splits import RunIndex, StateRun, choose_step, cut_run
from state_pipelines.keyed.keyed_file import KeyedFormat
from state_pipelines.metadata.streams import StateStream, read_stream_range
from state_pipelines.storage.locations import is_local

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.keyed_file import Counts, RecordContext, Runs
    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.metadata.handles import KeyGroupRange

RunFinder: TypeAlias = Callable[[Section, int], tuple[StateRun, ...]]
"""Finds the spans of the states in a section, given the bytes between positions where they can be cut."""


@dataclass(frozen=True)
class SectionFile(KeyedFormat):
    """One stream with a section per key group, and its handle.

    Attributes:
        stream: the stream of the handle.
        header: key serializer and states.
        key_groups: range of the handle.
        sections: the non-empty sections, ascending by position.
        header_end: first byte after the header; -1 where it is not known.
        runs: cached spans of states, and of some of their records, in large sections; shared by all splits.
    """

    stream: StateStream
    header: KeyedHeader
    key_groups: KeyGroupRange
    sections: tuple[Section, ...]
    header_end: int = -1
    runs: RunIndex = field(default_factory=RunIndex, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Name of the stream."""
        return self.stream.name

    @abstractmethod
    def scan(
        self, state_ids: Sequence[int], context: RecordContext, key_groups: KeyGroupRange | None = None
    ) -> Iterator[tuple[int, KeyedRecords]]:
        """See `KeyedFile.scan`."""

    @abstractmethod
    def scan_key_groups(self, context: RecordContext, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        """See `KeyedFile.scan_key_groups`."""

    def find_runs(self, context: RecordContext) -> RunFinder | None:
        """Return what finds the spans of the states in a large section; None: key groups are not cut inside."""
        return None

    def hold(self) -> Self:
        """See `KeyedFile`."""
        stream = self.stream
        if stream.location is None or is_local(stream.location) or stream.size > WINDOW:
            return self
        try:
            data = read_stream_range(stream, 0, stream.size)
        except StorageError:
            raise
        except StateError:
            # Reading a state raises the error for it.
            return self
        return replace(self, stream=StateStream(stream.name, len(data), data=data))

    def sort_sections(self, key_groups: KeyGroupRange | None) -> list[Section]:
        """The sections of some key groups, ascending by key group."""
        return sorted(select_sections(self.sections, key_groups), key=lambda each: each.key_group)

    def split(self, size: int, context: RecordContext, key_groups: KeyGroupRange | None = None) -> Iterator[Self]:
        """Parts of about `size` bytes."""
        for sections in group_sections(select_sections(self.sections, key_groups), size):
            yield replace(self, sections=sections)

    def split_records(
        self, state_id: int, size: int, least: int, context: RecordContext, key_groups: KeyGroupRange | None = None
    ) -> Iterator[tuple[Self, int]]:
        """Parts of about `size` bytes; larger key groups than `least` are cut inside (see `KeyedFile.split_records`).

        The section of such a key group is read once for that, `WINDOW` bytes at a time.
        """
        for split in self.split(size, context, key_groups):
            section = split.sections[0]
            is_large = len(split.sections) == 1 and section.size > least
            find = self.find_runs(context) if is_large else None
            if find is None:
                yield split, state_id
                continue
            for run in self.runs.find(section, choose_step(size), find):
                if run.state_id == state_id:
                    for span in cut_run(section, run, size):
                        yield replace(self, sections=(span,)), state_id

    def stored_sections(self) -> tuple[Section, ...]:
        """See `KeyedFile`."""
        return self.sections

    def measure_state(self, state_id: int, context: RecordContext, key_groups: KeyGroupRange | None) -> int:
        """Bytes of all states."""
        return sum(each.size for each in select_sections(self.sections, key_groups))

    def measure_stored_bytes(self, context: RecordContext, key_groups: KeyGroupRange) -> tuple[Counts, bool]:
        """See `KeyedFile`."""
        return measure_sections(self.sections, key_groups)
