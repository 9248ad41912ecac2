"""The protocol of keyed files: the keyed state of one subtask, in any format.

Every format returns its records in the same form (`KeyedRecords`: key-group prefix, key bytes and value bytes of the
canonical format), so that tables, migrations and writers know one form only. What differs
between formats is a member of the protocol; nothing else asks which format a file has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from state_pipelines.errors import UnsupportedError, Where
from state_pipelines.keyed.key_group_memory import require_memory
from state_pipelines.keyed.key_group_prefix import key_group_prefix_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.keyed.canonical.sections import Section
    from state_pipelines.keyed.changelog.change_streams import ChangeLog, Changes
    from state_pipelines.keyed.digests.record_digests import RecordDigest
    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.keys.key_filter import KeySeeks
    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.rocksdb.manifest import TableFile
    from state_pipelines.rocksdb.scan import TableCache
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer

Runs = list[tuple[int, "KeyedRecords"]]
"""(state id, records) of one key group."""

Counts = npt.NDArray[np.int64]


class FileFormat(Enum):
    """Formats of keyed files; the values are their names in reports."""

    CANONICAL = "canonical"
    HEAP = "heap native"
    ROCKSDB = "RocksDB"
    CHANGELOG = "changelog"
    RAW_TIMERS = "timers in raw keyed state"
    COMBINED = "several files"
    LIVE = "live state"


@dataclass(frozen=True)
class RecordContext:
    """Properties of an operator that are needed to find the records of its files.

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


class KeyGroupRecords(Protocol):
    """Records of one subtask by key group, as writers of native formats take them."""

    @property
    def name(self) -> str:
        """Name for errors."""

    def scan_key_groups(self, context: RecordContext, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        """All records, one key group after the other, ascending; a state may come in several batches.

        A key group comes whole: all its records are held at once, those of every state.
        """


class KeyedFile(KeyGroupRecords, Protocol):
    """Keyed state of one subtask; can be sent to other processes. Formats inherit the defaults of `KeyedFormat`."""

    format: ClassVar[FileFormat]
    holds_raw_timers: ClassVar[bool]
    lacks_lengths: ClassVar[bool]
    needs_layouts: ClassVar[bool]
    lists_subclasses: ClassVar[bool]
    is_database: ClassVar[bool]
    by_kernels: ClassVar[bool]

    @property
    def is_forst(self) -> bool:
        """Whether only ForSt restores the file (states of the asynchronous API)."""

    @property
    def header(self) -> KeyedHeader:
        """Key serializer and states; the position of a state is its id."""

    @property
    def key_groups(self) -> KeyGroupRange:
        """Range of the handle."""

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

    def split(self, size: int, context: RecordContext, key_groups: KeyGroupRange | None = None) -> Iterator[KeyedFile]:
        """The file in parts of about `size` bytes, each some key groups of it; none when it has no records there."""

    def split_records(
        self, state_id: int, size: int, least: int, context: RecordContext, key_groups: KeyGroupRange | None = None
    ) -> Iterator[tuple[KeyedFile, int]]:
        """Split the records of one state into parts of about `size` bytes of file (see `keyed.record_splits`).

        Key groups of more than `least` bytes are cut inside where the format allows it.

        Yields:
            (part, position of the state in its header).

        Raises:
            FormatError: a large key group is not what the format says.
        """

    def measure_state(self, state_id: int, context: RecordContext, key_groups: KeyGroupRange | None) -> int:
        """Bytes of file, of all states or, where that is known, of one; 0 for formats that are not cut inside."""

    def measure_stored_bytes(self, context: RecordContext, key_groups: KeyGroupRange) -> tuple[Counts, bool]:
        """Bytes of file per key group without reading any record.

        Canonical and heap files and raw timers say where a key group begins; of a RocksDB database the bounds of its
        tables are known, over which their bytes count as even.

        Args:
            context: of the operator.
            key_groups: that the result covers, n of them.

        Returns:
            (i64[n], whether they are an estimate).

        Raises:
            UnsupportedError: the format does not say it (changelog).
        """

    def digest_stored_bytes(self, context: RecordContext, key_groups: KeyGroupRange) -> RecordDigest | None:
        """Digest the bytes of some key groups; None for formats whose records are found without any serializer.

        Raises:
            StateError: the bytes cannot be read.
        """

    def stored_sections(self) -> tuple[Section, ...]:
        """Sections of key groups, ascending by position; none for formats without them."""

    def table_files(self) -> Iterator[tuple[TableFile, TableCache]]:
        """Tables (SST files) that hold the records, each with what keeps it where the records are read."""

    def change_logs(self) -> tuple[LoggedFile, ...]:
        """The file itself if it is of the changelog state backend."""

    def described_states(self) -> tuple[Serializer | None, tuple[StateMetaInfo, ...]]:
        """Key serializer, None when it is not known, and the states."""

    def with_key_serializer(self, serializer: Serializer) -> Self:
        """The file with this key serializer if its own is not known."""

    def with_described_states(self, key: Serializer | None, states: tuple[StateMetaInfo, ...]) -> Self:
        """The file with other names in its serializers (`RowData.labels`); all else of them has to be the same."""

    def narrow(self, key_groups: KeyGroupRange) -> Self:
        """The file with only these key groups, for databases that hold more than their handle names."""

    def hold(self) -> Self:
        """The file with its bytes in memory where they are few, for a reader of one state after the other.

        Only formats that store the states together hold them; a file on this machine is not held.

        Raises:
            StorageError: the storage fails.
        """

    def narrow_to_keys(self, keys: KeySeeks) -> KeyedFile:
        """The file for a reader of some keys: a database then reads only blocks that may hold them.

        Records of other keys may be missing, and incomplete where changes are replayed: the reader drops them.
        """


class LoggedFile(KeyedFile, Protocol):
    """Keyed state of the changelog state backend."""

    @property
    def bases(self) -> tuple[KeyedFile, ...]:
        """The materialized state; nothing before the first materialization."""

    @property
    def log(self) -> ChangeLog:
        """The changes since."""

    @property
    def states(self) -> tuple[StateMetaInfo, ...]:
        """States of the bases and of the log."""

    @property
    def key_serializer(self) -> Serializer | None:
        """Key serializer; None when it is not known."""

    def find_states(self, changes: Changes) -> Counts:
        """i64[n], the state of each change: its position in `states`.

        Raises:
            FormatError: a change names a state id that no metadata change explained.
        """


class KeyedFormat:
    """Defaults of the members of `KeyedFile`: what most formats have in common."""

    format: ClassVar[FileFormat]

    holds_raw_timers: ClassVar[bool] = False
    """Timers in raw keyed state, which every backend restores as they are."""

    lacks_lengths: ClassVar[bool] = False
    """Entries have no stored lengths, so that an unknown serializer hides where they end (heap)."""

    needs_layouts: ClassVar[bool] = True
    """Records are found by the layouts of their serializers; else by lengths alone."""

    lists_subclasses: ClassVar[bool] = False
    """Serializers list the class of every object in the data, because each was serialized on write (RocksDB)."""

    is_database: ClassVar[bool] = False
    """Handles of several subtasks may name the same files."""

    by_kernels: ClassVar[bool] = False
    """Kernels find the records, so that threads of one process can read at a time; else Python finds some of them."""

    is_forst: bool = False
    """Only ForSt restores the file: its states are of the asynchronous API."""

    def split_records(
        self: KeyedFile,
        state_id: int,
        size: int,
        least: int,
        context: RecordContext,
        key_groups: KeyGroupRange | None = None,
    ) -> Iterator[tuple[KeyedFile, int]]:
        """Split by whole key groups."""
        for split in self.split(size, context, key_groups):
            yield split, state_id

    def measure_state(self, state_id: int, context: RecordContext, key_groups: KeyGroupRange | None) -> int:
        """Return 0: not cut inside key groups."""
        return 0

    def measure_stored_bytes(self: KeyedFile, context: RecordContext, key_groups: KeyGroupRange) -> tuple[Counts, bool]:
        """Refuse: the format does not say which key groups its bytes belong to."""
        raise UnsupportedError(
            "the format of the file does not say which key groups its bytes belong to",
            where=Where(file=self.name),
            hint="Count the records, which reads the state",
        )

    def digest_stored_bytes(self, context: RecordContext, key_groups: KeyGroupRange) -> RecordDigest | None:
        """Return None: records are found without any serializer."""
        return None

    def stored_sections(self) -> tuple[Section, ...]:
        """Return none."""
        return ()

    def table_files(self) -> Iterator[tuple[TableFile, TableCache]]:
        """Return none."""
        return iter(())

    def change_logs(self) -> tuple[LoggedFile, ...]:
        """Return none."""
        return ()

    def described_states(self: KeyedFile) -> tuple[Serializer | None, tuple[StateMetaInfo, ...]]:
        """Key serializer and states of the header."""
        return self.header.key_serializer, self.header.states

    def with_key_serializer(self, serializer: Serializer) -> Self:
        """Return the file itself: its header holds the key serializer."""
        return self

    def with_described_states(self, key: Serializer | None, states: tuple[StateMetaInfo, ...]) -> Self:
        """Change the header, which all formats but changelog have as a field."""
        header: KeyedHeader = self.header  # type: ignore[attr-defined]
        changed = replace(header, key_serializer=key or header.key_serializer, states=states)
        return replace(self, header=changed)  # type: ignore[type-var]

    def narrow(self, key_groups: KeyGroupRange) -> Self:
        """Return the file itself: its sections are those of its handle."""
        return self

    def hold(self) -> Self:
        """Return the file itself: its states are in different files, or are kept anyway."""
        return self

    def narrow_to_keys(self, keys: KeySeeks) -> Self:
        """Return the file itself: only the key group of a key is known."""
        return self


def gather_key_groups(streams: Mapping[int, Iterator[KeyedRecords]]) -> Iterator[tuple[int, Runs]]:
    """Merge the records of several states, each ascending by key group, into runs per key group.

    Args:
        streams: records by state id. A window of each is held, and of the key group at hand all windows that it spans.

    Yields:
        (key group, runs in the order of `streams`).

    Raises:
        UnsupportedError: a key group is larger than the memory that is free.
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
        size = 0
        for state_id in streams:
            while state_id in heads and heads[state_id].key_groups[0] == key_group:
                records = heads[state_id]
                count = int(np.searchsorted(records.key_groups, key_group, side="right"))
                runs.append((state_id, records.cut(0, count)))
                size += int(records.value_ends[count - 1] - records.key_starts[0])
                require_memory(size, key_group, records.file)
                if count == len(records):
                    advance(state_id)
                else:
                    heads[state_id] = records.cut(count, len(records))
        yield key_group, runs
