"""Keyed state of one subtask, in whatever format it lies: what all formats have in common.

Every format gives its records in the same form (`KeyedRecords`: key bytes of the canonical format behind the key-group
prefix, value bytes of the canonical format), so that tables, migrations and writers know one form only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from state_pipelines.keyed.assignment import key_group_prefix_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.records import KeyedRecords
    from state_pipelines.metadata.key_groups import KeyGroupRange

Runs = list[tuple[int, "KeyedRecords"]]
"""(state id, records) of one key group."""


@dataclass(frozen=True)
class RecordContext:
    """What finding the records of a file takes beyond its bytes.

    Attributes:
        max_parallelism: number of key groups of the operator.
        layouts: what layouts depend on beyond serializers; formats without lengths are parsed by layouts.
        by_block: entries whose ends are not known are one record per key group with an empty key, instead of an error;
            only for callers that show records and write none.
    """

    max_parallelism: int
    layouts: LayoutContext
    by_block: bool = False

    @property
    def prefix(self) -> int:
        """Bytes of the key-group prefix of a key, 1 or 2."""
        return key_group_prefix_size(self.max_parallelism)


class KeyedFile(Protocol):
    """Keyed state of one subtask; can be sent to other processes."""

    @property
    def header(self) -> KeyedHeader:
        """Key serializer and states; the position of a state is its id."""

    @property
    def key_groups(self) -> KeyGroupRange:
        """Range of the handle."""

    @property
    def name(self) -> str:
        """Name of the file, for errors."""

    @property
    def by_kernels(self) -> bool:
        """Whether kernels find the records, so that threads of one process can read at a time."""

    def scan(
        self, state_ids: Sequence[int], context: RecordContext, key_groups: KeyGroupRange | None = None
    ) -> Iterator[tuple[int, KeyedRecords]]:
        """Records of some states, a window at a time.

        Args:
            state_ids: positions of the wanted states in the header.
            context: of the operator.
            key_groups: only these.

        Yields:
            (state id, records). A state comes once per window that has records of it; key groups of a state ascend.

        Raises:
            FormatError: the bytes are not what the format says; names file and offset.
        """

    def scan_key_groups(self, context: RecordContext, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        """All records, one key group after the other, ascending; a state may come in several pieces.

        A key group comes whole: all its records are held at once, those of every state.
        """

    def split(self, size: int, context: RecordContext, key_groups: KeyGroupRange | None = None) -> Iterator[KeyedFile]:
        """The file in parts of about `size` bytes, each some key groups of it; none when it has no records there."""


def gather_key_groups(streams: Mapping[int, Iterator[KeyedRecords]]) -> Iterator[tuple[int, Runs]]:
    """Merge the records of several states, each ascending by key group, into runs per key group.

    Args:
        streams: records by state id. A window of each is held, and of the key group at hand all windows that it spans.

    Yields:
        (key group, runs in the order of `streams`).
    """
    heads: dict[int, KeyedRecords] = {}

    def advance(state_id: int) -> None:
        heads.pop(state_id, None)
        for records in streams[state_id]:
            if len(records):
                heads[state_id] = records
                return

    for state_id in streams:
        advance(state_id)
    while heads:
        key_group = min(int(records.key_groups[0]) for records in heads.values())
        runs: Runs = []
        for state_id in streams:
            while state_id in heads and heads[state_id].key_groups[0] == key_group:
                records = heads[state_id]
                count = int(np.searchsorted(records.key_groups, key_group, side="right"))
                runs.append((state_id, records.cut(0, count)))
                if count == len(records):
                    advance(state_id)
                else:
                    heads[state_id] = records.cut(count, len(records))
        yield key_group, runs
