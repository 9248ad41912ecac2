"""Live keyed state as a keyed file, so that the writers of all formats take it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from state_pipelines.backends.record_batches import NAME
from state_pipelines.keyed.keyed_file import FileFormat, KeyedFormat, gather_key_groups
from state_pipelines.metadata.handles import KeyGroupRange

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.backends.entry_store import EntryStore
    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.keyed_file import RecordContext, Runs
    from state_pipelines.keyed.record_layout import KeyedRecords


@dataclass(frozen=True)
class LiveFile(KeyedFormat):
    """Records of a store; changes of the store during a scan have no defined effect on it.

    Attributes:
        store: holds the entries; it cannot be sent to other processes, and neither can this file.
        header: key serializer and states.
        key_groups: range of the subtask, or a part of it.
    """

    store: EntryStore
    header: KeyedHeader
    key_groups: KeyGroupRange

    format: ClassVar[FileFormat] = FileFormat.LIVE
    needs_layouts: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """A word for it in errors."""
        return NAME

    def scan(
        self, state_ids: Sequence[int], context: RecordContext, key_groups: KeyGroupRange | None = None
    ) -> Iterator[tuple[int, KeyedRecords]]:
        """Records of some states, state after state (see `KeyedFile.scan`)."""
        groups = self._cut(key_groups)
        for state_id in state_ids:
            for records in self.store.records(self.header.states[state_id].name, groups):
                yield state_id, records

    def scan_key_groups(self, context: RecordContext, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        """All records, one key group after the other (see `KeyedFile.scan_key_groups`)."""
        groups = self._cut(key_groups)
        return gather_key_groups(
            {state_id: self.store.records(info.name, groups) for state_id, info in enumerate(self.header.states)}
        )

    def split(self, size: int, context: RecordContext, key_groups: KeyGroupRange | None = None) -> Iterator[Self]:
        """One part per key group: nothing is known of their sizes before they are read."""
        for key_group in self._cut(key_groups):
            yield replace(self, key_groups=KeyGroupRange(key_group, 1))

    def narrow(self, key_groups: KeyGroupRange) -> Self:
        """See `KeyedFile`."""
        return replace(self, key_groups=self._cut(key_groups))

    def _cut(self, key_groups: KeyGroupRange | None) -> KeyGroupRange:
        return self.key_groups if key_groups is None else self.key_groups.intersect(key_groups)
