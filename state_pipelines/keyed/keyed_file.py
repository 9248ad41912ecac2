"""The protocol of keyed files: the keyed state of one subtask, in any format.

* `KeyedFile`: what differs between formats is a member of this protocol; no other code asks which format a file has.
  Every format returns its records in the same layout (`KeyedRecords`: key-group prefix, key bytes and value bytes of
  the canonical format), so that tables, migrations and writers know one layout only. `KeyedFile.split` cuts between key
  groups, because a key must stay together with all its states. The records of one state alone may be cut anywhere
  (`KeyedFile.split_records`), so that a large key group becomes several tasks.
* `CombinedFile`, `combine_files`: several files of one subtask as one. RocksDB checkpoints whose timers are kept on the
  heap have two: the managed state, and the timers in raw keyed state.
* `SectionFile`: files with a section per key group.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from state_pipelines.errors import FormatError, StateError, StorageError, UnsupportedError, Where
from state_pipelines.keyed.digests import RecordDigest, digest_run
from state_pipelines.keyed.key_groups import key_group_prefix_size, require_memory
from state_pipelines.keyed.sections import (
    WINDOW,
    RunIndex,
    Section,
    StateRun,
    choose_step,
    cut_run,
    group_sections,
    measure_sections,
    select_sections,
)
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.metadata.streams import StateStream, read_stream_range
from state_pipelines.serializers.tree import StateKind
from state_pipelines.storage.locations import is_local

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.keys import KeySeeks
    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.rocksdb.manifest import TableFile
    from state_pipelines.rocksdb.scans import TableCache
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer

Runs = list[tuple[int, "KeyedRecords"]]
"""Records of one key group, as (state id, records)."""

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
    """Properties of an operator that are needed to find the records of a file; bound when the file is opened.

    Attributes:
        max_parallelism: number of key groups of the operator.
        layouts: context for deriving layouts of serializers, by which formats without lengths are parsed.
        by_block: if the ends of entries are not known, read all entries of a state in a key group as one record with an
            empty key, instead of raising; only for callers that show records, not for writing.
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
        """Name of the file or subtask, for errors."""

    def scan_key_groups(self, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        """Yield all records, by ascending key group; a key group may have several batches of a state.

        All records of a key group, of all states, are in memory at the same time.
        """


class KeyedFile(KeyGroupRecords, Protocol):
    """Keyed state of one subtask; can be pickled. Classes of formats inherit the defaults of `KeyedFormat`."""

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
        """Key serializer and states; the index of a state is its id."""

    @property
    def key_groups(self) -> KeyGroupRange:
        """Range of the handle."""

    @property
    def context(self) -> RecordContext:
        """Properties of the operator by which the records are found."""

    def with_context(self, context: RecordContext) -> Self:
        """Return the file with another context."""

    def scan(
        self, state_ids: Sequence[int], key_groups: KeyGroupRange | None = None
    ) -> Iterator[tuple[int, KeyedRecords]]:
        """Yield records of some states, a window of the file at a time.

        Args:
            state_ids: positions of the wanted states in the header.
            key_groups: read only these key groups; None is all.

        Yields:
            (state id, records). A state comes once per window that has records of it; key groups of a state ascend.

        Raises:
            FormatError: the bytes are not what the format says; names file and offset.
        """

    def split(self, size: int, key_groups: KeyGroupRange | None = None) -> Iterator[KeyedFile]:
        """Split the file by key groups into files of about `size` bytes; none if it has no records in `key_groups`."""

    def split_records(
        self, state_id: int, size: int, least: int, key_groups: KeyGroupRange | None = None
    ) -> Iterator[tuple[KeyedFile, int]]:
        """Split the file into files of about `size` bytes for reading a single state (see `keyed.keyed_file`).

        Key groups of more than `least` bytes are cut between records if the format allows that.

        Yields:
            (file, id of the state in the header of that file).

        Raises:
            FormatError: a large key group is not what the format says.
        """

    def measure_state(self, state_id: int, key_groups: KeyGroupRange | None) -> int:
        """Return the bytes of the state, or of all states if stored together; 0 if the format cannot cut key groups."""

    def measure_stored_bytes(self, key_groups: KeyGroupRange) -> tuple[Counts, bool]:
        """Measure the bytes of file per key group without reading any record.

        Handles of canonical files, heap files and raw timers have the offsets of key groups. In a RocksDB database the
        bytes of each table are assumed to be spread evenly over the key groups between its bounds.

        Args:
            key_groups: the n key groups to measure.

        Returns:
            (i64[n], whether they are an estimate).

        Raises:
            UnsupportedError: the format does not say which bytes belong to which key group (changelog).
        """

    def digest_stored_bytes(self, key_groups: KeyGroupRange) -> RecordDigest | None:
        """Return the digest of the stored bytes of some key groups; None if the records can be digested instead.

        They can if the format finds records without serializers.

        Raises:
            StateError: the bytes cannot be read.
        """

    def stored_sections(self) -> tuple[Section, ...]:
        """Return the sections of key groups, ascending by position; none for formats without sections."""

    def table_files(self) -> Iterator[tuple[TableFile, TableCache]]:
        """Yield the tables (SST files) with the records, each with the cache of tables that scans have opened."""

    def described_states(self) -> tuple[Serializer | None, tuple[StateMetaInfo, ...]]:
        """Return the key serializer (None if it is not known) and the states."""

    def with_key_serializer(self, serializer: Serializer) -> Self:
        """Return the file with this key serializer, if the file itself does not have one."""

    def with_described_states(self, key: Serializer | None, states: tuple[StateMetaInfo, ...]) -> Self:
        """Return the file with other field names in its serializers (`RowData.labels`); all else must be the same."""

    def narrow(self, key_groups: KeyGroupRange) -> Self:
        """Return the file with only these key groups, for databases with more key groups than their handle names."""

    def hold(self) -> Self:
        """Return the file with its bytes in memory if it is small, for a caller that scans it once per state.

        Only formats that store all states together do this, and not for local files.

        Raises:
            StorageError: the storage fails.
        """

    def narrow_to_keys(self, keys: KeySeeks) -> KeyedFile:
        """Return the file for reading only some keys: a database then reads only blocks that may have them.

        Some records of other keys are returned, too, which may be incomplete if changes are replayed. The caller has to
        drop them.
        """


class KeyedFormat:
    """Defaults of the members of `KeyedFile`: what most formats have in common."""

    format: ClassVar[FileFormat]

    holds_raw_timers: ClassVar[bool] = False
    """The file has timers in raw keyed state, which every backend restores as they are."""

    lacks_lengths: ClassVar[bool] = False
    """Entries have no stored lengths, so their ends cannot be found if a serializer is unknown (heap)."""

    needs_layouts: ClassVar[bool] = True
    """Records are found by the layouts of their serializers; False if stored lengths are enough."""

    lists_subclasses: ClassVar[bool] = False
    """Serializers list the class of every object in the data, because each was serialized on write (RocksDB)."""

    is_database: ClassVar[bool] = False
    """The file is a database; handles of several subtasks may name the same database."""

    by_kernels: ClassVar[bool] = False
    """Kernels find the records, so that several threads can read at the same time; False if Python code finds some of
    them."""

    is_forst: bool = False
    """Only ForSt restores the file: its states are of the asynchronous API."""

    def split_records(
        self: KeyedFile,
        state_id: int,
        size: int,
        least: int,
        key_groups: KeyGroupRange | None = None,
    ) -> Iterator[tuple[KeyedFile, int]]:
        """Split by whole key groups only."""
        for split in self.split(size, key_groups):
            yield split, state_id

    def measure_state(self, state_id: int, key_groups: KeyGroupRange | None) -> int:
        """Return 0: key groups cannot be cut."""
        return 0

    def measure_stored_bytes(self: KeyedFile, key_groups: KeyGroupRange) -> tuple[Counts, bool]:
        """Refuse: the format does not say which key groups its bytes belong to."""
        raise UnsupportedError(
            "the format of the file does not say which key groups its bytes belong to",
            where=Where(file=self.name),
            hint="Count the records instead, which reads the state (`inspect --count`)",
        )

    def digest_stored_bytes(self, key_groups: KeyGroupRange) -> RecordDigest | None:
        """Return None: most formats find records without serializers, so that callers can digest the records."""
        return None

    def stored_sections(self) -> tuple[Section, ...]:
        """Return no sections."""
        return ()

    def table_files(self) -> Iterator[tuple[TableFile, TableCache]]:
        """Return no tables."""
        return iter(())

    def with_context(self, context: RecordContext) -> Self:
        """Change the context, which all formats but combined files have as a field."""
        return replace(self, context=context)  # type: ignore[type-var]

    def described_states(self: KeyedFile) -> tuple[Serializer | None, tuple[StateMetaInfo, ...]]:
        """Return the key serializer and the states of the header."""
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
        """Return the file itself: its states are in separate files, or its bytes are cached anyway."""
        return self

    def narrow_to_keys(self, keys: KeySeeks) -> Self:
        """Return the file itself: the format does not say where in its key group a key is."""
        return self


def gather_key_groups(streams: Mapping[int, Iterator[KeyedRecords]]) -> Iterator[tuple[int, Runs]]:
    """Merge the records of several states, each ascending by key group, into runs per key group.

    Args:
        streams: records by state id. Each stream has one window in memory, and all windows with records of the current
            key group.

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


def digest_states(file: KeyedFile, key_groups: KeyGroupRange) -> dict[str, RecordDigest]:
    """Compute the digests of all states of a file, by name, in one pass.

    The bytes after the null flag of a map value do not count: some writers leave them out.
    """
    totals = {info.name: RecordDigest() for info in file.header.states}
    for state_id, records in file.scan(range(len(file.header.states)), key_groups):
        info = file.header.states[state_id]
        totals[info.name] += digest_run(records, is_map=info.state_type == StateKind.MAP)
    return totals


@dataclass(frozen=True)
class CombinedFile(KeyedFormat):
    """Several files of one subtask as one file, with the states of the first file first (see `combine_files`).

    Attributes:
        files: the files; they have the same key serializer.
        header: key serializer and compression of the first file, the states of all.
        key_groups: key groups to read from the files.
    """

    files: tuple[KeyedFile, ...]
    header: KeyedHeader
    key_groups: KeyGroupRange

    format: ClassVar[FileFormat] = FileFormat.COMBINED

    @property
    def name(self) -> str:
        """Name of the first file."""
        return self.files[0].name

    @property
    def context(self) -> RecordContext:
        """Context of the files, which are of one operator."""
        return self.files[0].context

    def with_context(self, context: RecordContext) -> CombinedFile:
        """See `KeyedFile`."""
        return replace(self, files=tuple(file.with_context(context) for file in self.files))

    def scan(
        self, state_ids: Sequence[int], key_groups: KeyGroupRange | None = None
    ) -> Iterator[tuple[int, KeyedRecords]]:
        """Yield the records of some states, one file after the other (see `KeyedFile.scan`)."""
        for first, file in zip(self._first_ids, self.files, strict=True):
            wanted = [each - first for each in state_ids if 0 <= each - first < len(file.header.states)]
            if wanted:
                for state_id, records in file.scan(wanted, self._cut(key_groups)):
                    yield first + state_id, records

    def scan_key_groups(self, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        """Yield all records, one key group after the other; in a key group, records of the first file come first."""
        streams = [file.scan_key_groups(self._cut(key_groups)) for file in self.files]
        heads = [next(stream, None) for stream in streams]
        while present := [head[0] for head in heads if head is not None]:
            key_group = min(present)
            found: Runs = []
            for number, first in enumerate(self._first_ids):
                head = heads[number]
                if head is not None and head[0] == key_group:
                    found += [(first + state_id, records) for state_id, records in head[1]]
                    heads[number] = next(streams[number], None)
            yield key_group, found

    def split(self, size: int, key_groups: KeyGroupRange | None = None) -> Iterator[CombinedFile]:
        """Split the key groups evenly, into as many splits as the file that has the most splits if split alone."""
        groups = self._cut(key_groups)
        if not groups.number:
            return
        splits = [file.split(size, groups) for file in self.files]
        count = min(groups.number, sum(1 for _ in zip_longest(*splits)))
        bounds = [groups.start + groups.number * each // count for each in range(count + 1)] if count else []
        for start, end in pairwise(bounds):
            yield replace(self, key_groups=KeyGroupRange(start, end - start))

    def split_records(
        self, state_id: int, size: int, least: int, key_groups: KeyGroupRange | None = None
    ) -> Iterator[tuple[KeyedFile, int]]:
        """Split the one file that has the state."""
        first, holder = self._find_holder(state_id)
        return holder.split_records(state_id - first, size, least, self._cut(key_groups))

    def measure_state(self, state_id: int, key_groups: KeyGroupRange | None) -> int:
        """Measure the state in the one file that has it."""
        first, holder = self._find_holder(state_id)
        return holder.measure_state(state_id - first, key_groups)

    def measure_stored_bytes(self, key_groups: KeyGroupRange) -> tuple[Counts, bool]:
        """Add up the bytes of the files."""
        measured = [file.measure_stored_bytes(key_groups) for file in self.files]
        return np.sum([each for each, _ in measured], axis=0), any(estimated for _, estimated in measured)

    def narrow_to_keys(self, keys: KeySeeks) -> CombinedFile:
        """See `KeyedFile`."""
        return replace(self, files=tuple(file.narrow_to_keys(keys) for file in self.files))

    def _find_holder(self, state_id: int) -> tuple[int, KeyedFile]:
        """Return the file that has a state, and the id in this combined file of the first state of that file."""
        number = bisect_right(self._first_ids, state_id) - 1
        return self._first_ids[number], self.files[number]

    @cached_property
    def _first_ids(self) -> tuple[int, ...]:
        """Ids, in the combined header, of the first state of each file."""
        sizes = [len(file.header.states) for file in self.files]
        return tuple(sum(sizes[:number]) for number in range(len(sizes)))

    def _cut(self, key_groups: KeyGroupRange | None) -> KeyGroupRange:
        return self.key_groups if key_groups is None else self.key_groups.intersect(key_groups)


def combine_files(files: Sequence[KeyedFile]) -> KeyedFile:
    """Combine the files of one subtask into one; a single file is returned as it is.

    Args:
        files: at least one file.

    Raises:
        FormatError: two files have different key serializers, or a state of the same name.
    """
    if len(files) == 1:
        return files[0]
    names: set[str] = set()
    for file in files:
        if file.header.key_serializer != files[0].header.key_serializer:
            raise FormatError(
                "the managed and the raw keyed state of a subtask have keys of different serializers",
                where=Where(file=file.name),
            )
        for info in file.header.states:
            if info.name in names:
                raise FormatError(
                    "the managed and the raw keyed state of a subtask both hold this state",
                    where=Where(file=file.name, state=info.name),
                )
            names.add(info.name)
    states = tuple(info for file in files for info in file.header.states)
    header = replace(files[0].header, states=states)
    start = min(file.key_groups.start for file in files)
    end = max(file.key_groups.end for file in files)
    return CombinedFile(tuple(files), header, KeyGroupRange(start, end + 1 - start))


RunFinder: TypeAlias = Callable[[Section, int], tuple[StateRun, ...]]
"""Function that finds the runs of the states in a section, with positions at which they can be cut about every given
number of bytes."""


@dataclass(frozen=True)
class SectionFile(KeyedFormat):
    """A stream with a section per key group.

    Attributes:
        stream: the stream of the handle.
        header: key serializer and states.
        key_groups: range of the handle.
        sections: the non-empty sections, ascending by position.
        context: properties of the operator.
        header_end: first byte after the header; -1 where it is not known.
        runs: cache of the runs of states in large sections, with positions at which they can be cut; all splits share
            it.
    """

    stream: StateStream
    header: KeyedHeader
    key_groups: KeyGroupRange
    sections: tuple[Section, ...]
    context: RecordContext = field(repr=False, hash=False)
    header_end: int = -1
    runs: RunIndex = field(default_factory=RunIndex, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Name of the stream."""
        return self.stream.name

    @abstractmethod
    def scan(
        self, state_ids: Sequence[int], key_groups: KeyGroupRange | None = None
    ) -> Iterator[tuple[int, KeyedRecords]]:
        """See `KeyedFile.scan`."""

    @abstractmethod
    def scan_key_groups(self, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        """See `KeyedFile.scan_key_groups`."""

    def find_runs(self) -> RunFinder | None:
        """Return a function that finds the runs of states in a large section; None if key groups cannot be cut."""
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
            # The read of a state will raise the error again, with the name of the state.
            return self
        return replace(self, stream=StateStream(stream.name, len(data), data=data))

    def sort_sections(self, key_groups: KeyGroupRange | None) -> list[Section]:
        """Return the sections of some key groups, ascending by key group."""
        return sorted(select_sections(self.sections, key_groups), key=lambda each: each.key_group)

    def split(self, size: int, key_groups: KeyGroupRange | None = None) -> Iterator[Self]:
        """Split the file into files of about `size` bytes."""
        for sections in group_sections(select_sections(self.sections, key_groups), size):
            yield replace(self, sections=sections)

    def split_records(
        self, state_id: int, size: int, least: int, key_groups: KeyGroupRange | None = None
    ) -> Iterator[tuple[Self, int]]:
        """Split the file into files of about `size` bytes (see `KeyedFile.split_records`).

        To cut a key group of more than `least` bytes, its section is read once, `WINDOW` bytes at a time.
        """
        for split in self.split(size, key_groups):
            section = split.sections[0]
            is_large = len(split.sections) == 1 and section.size > least
            find = self.find_runs() if is_large else None
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

    def measure_state(self, state_id: int, key_groups: KeyGroupRange | None) -> int:
        """Return the bytes of all states, which are stored together."""
        return sum(each.size for each in select_sections(self.sections, key_groups))

    def measure_stored_bytes(self, key_groups: KeyGroupRange) -> tuple[Counts, bool]:
        """See `KeyedFile`."""
        return measure_sections(self.sections, key_groups)


_TASKS = 16
"""A key group is worth cutting if it has more than 1/16 of the bytes of a state."""

_SKEW = 4
"""A key group is worth cutting if it has more than 4 times the mean bytes of all key groups."""


def choose_least(files: Iterable[tuple[KeyedFile, int]], size: int, key_groups: KeyGroupRange | None = None) -> int:
    """Return the smallest size of a key group that is worth cutting, from the bytes of all key groups of a state.

    To find where to cut a key group, it is read once more. So it must be larger than two splits, and either have more
    than a 16th of all bytes, or more than four times the mean bytes of a key group.

    Args:
        files: files of all subtasks, each with the id of the state in its header.
        size: bytes of file per split.
        key_groups: key groups that are read; None is all.
    """
    total = number = 0
    for file, state_id in files:
        total += file.measure_state(state_id, key_groups)
        number = file.context.max_parallelism if key_groups is None else key_groups.number
    return max(2 * size, total // max(_TASKS, number // _SKEW))
