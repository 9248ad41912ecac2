"""Streams of logged changes: the change sets that a handle names, and their changes by key group.

Nothing but the metadata changes is decoded when a log is opened. The first read finds where the key groups of its
change sets lie; after that only the bytes of the wanted key groups are read. A stream is never held as a whole.
Source: `StateChangelogHandleStreamHandleReader`, `StateChangeFormat`, `ChangelogStreamWrapper`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.data_views import Reader
from state_pipelines.errors import EDITED_METADATA, FormatError, StateError, UnsupportedError, Where
from state_pipelines.keyed.changelog.change_data import FLAG, Bytes, ChangeData, ChangeFiles, Lookahead, Positions
from state_pipelines.keyed.changelog.change_groups import (
    COUNT,
    END,
    GROUP,
    SET,
    START,
    misfit,
    read_groups,
    require_inside,
    walk_groups,
)
from state_pipelines.keyed.changelog.changes import (
    METADATA_KEY_GROUP,
    MetadataChange,
    read_metadata_change,
    write_change_stream,
)
from state_pipelines.metadata.handles import ChangelogStateHandleStream, InMemoryChangelogStateHandle, KeyGroupRange
from state_pipelines.metadata.streams import StateStream
from state_pipelines.storage.reading import read_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from state_pipelines.metadata.handles import KeyedStateHandle, StreamStateHandle
    from state_pipelines.serializers.declared_snapshots import DeclaredSerializer

_FIRST_READ = 1 << 16
"""Bytes that are read at once in search of metadata changes."""

_LENGTH = 4
"""Bytes of the length of a change."""


@dataclass(frozen=True)
class ChangeSet:
    """One change set.

    Attributes:
        stream: stream that holds it.
        offset: position in the uncompressed data, without the first byte.
        key_groups: its relevant key groups; after a change of parallelism it has others too.
    """

    stream: StateStream
    offset: int
    key_groups: KeyGroupRange


@dataclass(frozen=True)
class StatedSize:
    """Bytes of changes that a handle states for its change sets.

    Attributes:
        sets: numbers of its change sets.
        size: as stated.
        stored: bytes of its streams.
    """

    sets: range
    size: int
    stored: int


@dataclass(frozen=True)
class Changes:
    """Data changes of some key groups; those of one key group are in the order in which they were logged.

    Attributes:
        data: u8, holds the changes.
        starts: i64[n] in `data`.
        ends: i64[n].
        key_groups: i32[n].
        sets: i64[n] number of the change set.
        positions: i64[n] of each change in its stream, uncompressed and without the first byte.
    """

    data: npt.NDArray[np.uint8]
    starts: Positions
    ends: Positions
    key_groups: npt.NDArray[np.int32]
    sets: Positions
    positions: Positions

    def __len__(self) -> int:
        """Number of changes."""
        return len(self.starts)

    def select(self, rows: npt.NDArray[np.generic]) -> Changes:
        """Some of the changes, by number or by mask."""
        return Changes(
            self.data, self.starts[rows], self.ends[rows], self.key_groups[rows], self.sets[rows], self.positions[rows]
        )


@dataclass(frozen=True)
class ChangeLog:
    """Change sets in the order of replay.

    What was looked up of the streams stays with the log, and does not go to other processes.

    Attributes:
        sets: the change sets.
        size: bytes of changes, about.
        stated: sizes that handles state, to be compared when the change sets are read.
        files: reads the streams; logs of one snapshot share it.
    """

    sets: tuple[ChangeSet, ...]
    size: int
    stated: tuple[StatedSize, ...] = ()
    files: ChangeFiles = field(default_factory=ChangeFiles, compare=False, repr=False)

    def __reduce__(self) -> tuple[type[ChangeLog], tuple[tuple[ChangeSet, ...], int, tuple[StatedSize, ...]]]:
        return ChangeLog, (self.sets, self.size, self.stated)

    def metadata(self, declared: Sequence[DeclaredSerializer] = ()) -> list[list[MetadataChange]]:
        """The metadata changes of every change set.

        Args:
            declared: snapshot classes that the user declares.

        Raises:
            FormatError: the bytes are not change sets.
        """
        found: dict[int, list[MetadataChange]] = {}
        for data, numbers in self._streams:
            ahead = Lookahead(data.read, data.size, _FIRST_READ)
            for number in numbers:
                changes = _read_metadata(ahead, data, self.sets[number].offset)
                found[number] = [read_metadata_change(change, data.stream.name, declared) for change in changes]
        return [found[number] for number in range(len(self.sets))]

    def sizes(self, key_groups: KeyGroupRange) -> Positions:
        """i64[n], bytes of changes of each key group.

        Raises:
            FormatError: the bytes are not change sets.
        """
        groups = self._find(key_groups)
        sizes = np.zeros(len(key_groups), np.int64)
        np.add.at(sizes, groups[:, GROUP] - key_groups.start, groups[:, END] - groups[:, START])
        return sizes

    def read(self, key_groups: KeyGroupRange) -> Changes:
        """The data changes of some key groups; only their bytes are read, once their positions are known.

        Raises:
            FormatError: the bytes are not change sets.
        """
        groups = self._find(key_groups)
        groups = groups[np.argsort(groups[:, SET], kind="stable")]
        bounds = np.flatnonzero(np.diff(groups[:, SET], prepend=-1, append=-1)).tolist()
        arrays: list[Bytes] = [np.zeros(0, np.uint8)]
        shifts = np.empty(len(groups), np.int64)
        size = 0
        for first, stop in pairwise(bounds):
            # Key groups ascend in a change set, so that the wanted ones are adjacent.
            start, end = int(groups[first:stop, START].min()), int(groups[first:stop, END].max())
            arrays.append(self._data[int(groups[first, SET])].read(start, end))
            shifts[first:stop] = size - start
            size += end - start
        data = arrays[1] if len(arrays) == 2 else np.concatenate(arrays)
        counts = np.ascontiguousarray(groups[:, COUNT])
        starts, ends = np.empty((2, int(counts.sum())), np.int64)
        wrong = walk_groups(data.ctypes.data, groups[:, START] + shifts, groups[:, END] + shifts, counts, starts, ends)
        if wrong >= 0:
            raise misfit(self.sets[int(groups[wrong, SET])].stream.name, int(groups[wrong, START]))
        sets = np.repeat(groups[:, SET], counts)
        key_groups_of = np.repeat(groups[:, GROUP], counts).astype(np.int32)
        return Changes(data, starts, ends, key_groups_of, sets, starts - np.repeat(shifts, counts))

    def windows(self, key_groups: KeyGroupRange, size: int) -> Iterator[KeyGroupRange]:
        """The key groups in ranges with changes of about `size` bytes."""
        start, held = key_groups.start, 0
        for key_group, bytes_there in zip(key_groups, self.sizes(key_groups).tolist(), strict=True):
            held += bytes_there
            if held >= size or key_group == key_groups.end:
                yield KeyGroupRange(start, key_group - start + 1)
                start, held = key_group + 1, 0

    def _find(self, key_groups: KeyGroupRange) -> Positions:
        """The rows of `_groups` of some key groups."""
        first = np.searchsorted(self._groups[:, GROUP], key_groups.start, side="left")
        stop = np.searchsorted(self._groups[:, GROUP], key_groups.end, side="right")
        return self._groups[first:stop]

    @cached_property
    def _streams(self) -> list[tuple[ChangeData, list[int]]]:
        """Each stream, opened once, and the change sets in it by position."""
        numbers: dict[StateStream, list[int]] = {}
        for number, each in enumerate(self.sets):
            numbers.setdefault(each.stream, []).append(number)
        location = next((stream.location for stream in numbers if stream.location is not None), None)
        return [
            (data, sorted(numbers[stream], key=lambda number: self.sets[number].offset))
            for stream, data in read_ahead(numbers, self.files.open, location, lambda stream: stream.size)
        ]

    @cached_property
    def _data(self) -> dict[int, ChangeData]:
        """The stream of each change set."""
        return {number: data for data, numbers in self._streams for number in numbers}

    @cached_property
    def _groups(self) -> Positions:
        """i64[g, 5], ascending by key group, then by change set: see `GROUP` to `COUNT`."""
        found = [np.zeros((0, COUNT + 1), np.int64)]
        sizes = [0] * len(self.sets)
        # A handle that a change of parallelism has cut states no size, and leaves out the rest of its sets.
        whole = {number for each in self.stated for number in each.sets}
        for data, numbers in self._streams:
            ahead = Lookahead(data.read, data.size)
            for number in numbers:
                each = self.sets[number]
                for groups in read_groups(ahead, data, each.offset):
                    groups[:, SET] = number
                    sizes[number] += int((groups[:, END] - groups[:, START] - _LENGTH * groups[:, COUNT]).sum())
                    groups = groups[groups[:, GROUP] != METADATA_KEY_GROUP]
                    wanted = (each.key_groups.start <= groups[:, GROUP]) & (groups[:, GROUP] <= each.key_groups.end)
                    if number in whole and not wanted.all():
                        raise FormatError(
                            f"the changes of key group {groups[~wanted][0, GROUP]} are in a log of key groups "
                            f"{each.key_groups.start}-{each.key_groups.end}",
                            where=Where(file=each.stream.name, offset=each.offset),
                            hint=EDITED_METADATA,
                        )
                    found.append(groups[wanted])
        self._check_sizes(sizes)
        table = np.concatenate(found)
        return table[np.lexsort((table[:, START], table[:, SET], table[:, GROUP]))]

    def _check_sizes(self, sizes: Sequence[int]) -> None:
        """Make sure that no change set of a handle is missing or has been replaced by another one.

        Flink states the bytes of all changes without their lengths (`StateChangeSet.getSize`), the DataStream functions
        of this package state the bytes of the stream.
        """
        for each in self.stated:
            found = sum(sizes[number] for number in each.sets)
            if each.size not in (found, each.stored):
                raise FormatError(
                    f"the logged changes of a handle are {found:,} bytes, and it states {each.size:,}: a set of "
                    "changes is missing or is not its own",
                    where=Where(file=self.sets[each.sets.start].stream.name),
                    hint=EDITED_METADATA,
                )


def open_change_log(
    handles: Sequence[KeyedStateHandle],
    key_groups: KeyGroupRange,
    open_stream: Callable[[StreamStateHandle], StateStream],
    files: ChangeFiles | None = None,
) -> ChangeLog:
    """Open the log of the non-materialized handles; nothing is read yet.

    Args:
        handles: in the order of replay.
        key_groups: of the backend; changes of others do not count.
        open_stream: opens the stream of a handle.
        files: of the snapshot; None where no other log shares them.

    Raises:
        UnsupportedError: a handle is of another kind.
        FormatError: a change set is listed twice for a key group.
    """
    sets: list[ChangeSet] = []
    stated: list[StatedSize] = []
    size = 0
    for handle in handles:
        if isinstance(handle, InMemoryChangelogStateHandle):
            # One change set in one stream, so that there is one form only.
            data, _ = write_change_stream([handle.changes])
            stream = StateStream(f"in-memory changes {handle.state_handle_id}", len(data), data=data)
            sets.append(ChangeSet(stream, 0, handle.key_groups.intersect(key_groups)))
            size += len(data)
        elif isinstance(handle, ChangelogStateHandleStream):
            wanted = handle.key_groups.intersect(key_groups)
            streams = [replace(open_stream(each.handle), holds_changes=True) for each in handle.streams]
            sets += [
                ChangeSet(stream, each.offset, wanted) for stream, each in zip(streams, handle.streams, strict=True)
            ]
            # After a change of parallelism the handle says 0; then the files are the best guess.
            stored = sum(stream.size for stream in dict.fromkeys(streams))
            size += handle.size or stored
            if handle.size and streams:
                stated.append(StatedSize(range(len(sets) - len(streams), len(sets)), handle.size, stored))
        else:
            raise UnsupportedError(f"a {type(handle).__name__} does not hold changes")
    _require_distinct(sets)
    return ChangeLog(tuple(sets), size, tuple(stated), files or ChangeFiles())


def _require_distinct(sets: Sequence[ChangeSet]) -> None:
    """Make sure that no change set is replayed twice for a key group.

    After changes of parallelism several handles may name one change set, each for key groups of its own.
    """
    seen: dict[tuple[StateStream, int], list[KeyGroupRange]] = {}
    for each in sets:
        before = seen.setdefault((each.stream, each.offset), [])
        again = next((groups for known in before if (groups := known.intersect(each.key_groups)).number), None)
        if again is not None:
            raise FormatError(
                f"a set of logged changes is listed twice for key groups {again.start}-{again.end}",
                where=Where(file=each.stream.name, offset=each.offset + FLAG),
                hint=EDITED_METADATA,
            )
        before.append(each.key_groups)


def _read_metadata(ahead: Lookahead, data: ChangeData, offset: int) -> list[bytes]:
    """The metadata changes of a change set, which come first in it."""
    require_inside(data, offset)
    found = ahead.take_held(offset)
    while True:
        try:
            return _parse_metadata(Reader(found.tobytes(), data.stream.name))
        except FormatError as error:
            if offset + len(found) >= data.size:
                # The data ends here: more bytes would not help.
                position = None if error.where.offset is None else error.where.offset + offset + FLAG
                error.where = Where(file=data.stream.name, offset=position)
                raise
        found = ahead.take(offset, max(_FIRST_READ, 8 * len(found)))


def _parse_metadata(reader: Reader) -> list[bytes]:
    if reader.i32() == 0:
        return []
    count, key_group = reader.i32(), reader.i32()
    if key_group != METADATA_KEY_GROUP:
        return []
    if count < 0:
        raise reader.error(f"a change set has {count} changes of metadata")
    return [reader.bytes32() for _ in range(count)]


def locate(error: StateError, log: ChangeLog, changes: Changes) -> None:
    """Turn the position in `changes.data` that an error names into one in the file of the change."""
    offset = error.where.offset
    if offset is None or not len(changes):
        return
    order = np.argsort(changes.starts)
    row = int(order[max(0, int(np.searchsorted(changes.starts[order], offset, side="right")) - 1)])
    position = int(changes.positions[row]) + offset - int(changes.starts[row]) + FLAG
    known = error.where
    name = log.sets[int(changes.sets[row])].stream.name
    error.where = Where(name, position, known.operator, known.state, known.path)
