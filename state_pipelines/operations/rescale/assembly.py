"""Files of a snapshot at another parallelism: sections and elements are reused or copied as bytes, nothing is decoded.

* `assemble_keyed`: key-group sections of keyed state.
* `redistribute`, `assemble_operator`: elements of operator state when the parallelism changes. `SPLIT_DISTRIBUTE` and
  `BROADCAST` state is distributed as by `RoundRobinOperatorStateRepartitioner`. `UNION` state is not: Flink gives every
  entry to every subtask on each restore, so that a snapshot must hold it once in all.
"""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.binary.snappy_frames import STREAM_ID
from state_pipelines.errors import (
    FormatError,
    OutOfReachError,
    UnknownSerializerError,
    UnsupportedError,
    UsageError,
    Where,
    at,
)
from state_pipelines.keyed.key_groups import compute_key_group_range
from state_pipelines.keyed.raw_timers import NEVER_STARTED, find_raw_sections
from state_pipelines.keyed.sections import FIRST_READ, NO_SECTION, HeaderReading, Section, read_first_header
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    EmptySegmentFileStateHandle,
    IncrementalRemoteKeyedStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
    KeyGroupsSavepointStateHandle,
    KeyGroupsStateHandle,
    OperatorStateHandle,
    OperatorStateMetaInfo,
    OperatorStateMode,
    OperatorStreamStateHandle,
    RelativeFileStateHandle,
    StreamStateHandle,
)
from state_pipelines.metadata.streams import (
    KeptStreams,
    StateStream,
    StreamRange,
    copy_ranges,
    read_header_bytes,
    read_stream_range,
)
from state_pipelines.operations.inspect import FORST, find_keyed_formats
from state_pipelines.operations.local_processes import COPY_THREADS
from state_pipelines.operations.write.keyed_rewrite import make_file_name
from state_pipelines.operatorstate import FIRST_READ as FIRST_ELEMENT_READ
from state_pipelines.operatorstate import OperatorHeader, read_operator_header, write_operator_header
from state_pipelines.serializers.state_meta_info import join_infos
from state_pipelines.snapshot.snapshot_files import find_held_key_groups, follows_formula
from state_pipelines.storage import Location, join
from state_pipelines.storage.files import remove_file
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.reading import do_together

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.snapshot import Operator
    from state_pipelines.snapshot.handle_readers import HandleReader

_DEFAULT_CAPACITY = 16
_LOAD_FACTOR = 0.75
_TREEIFY_THRESHOLD = 8
_SMALLEST_WITH_TREES = 64


@dataclass(frozen=True, slots=True)
class Share:
    """Elements of one state that one new subtask gets from the file of one old subtask.

    Attributes:
        subtask: the old subtask, whose file holds the elements.
        state_name: name of the state.
        mode: distribution mode of the state.
        offsets: offsets of the elements in the old file, in order; there may be none, because Flink, too, makes handles
            that name a state without elements.
    """

    subtask: int
    state_name: str
    mode: OperatorStateMode
    offsets: tuple[int, ...] = field(repr=False)


def redistribute(
    handles: Sequence[tuple[int, OperatorStateHandle]], parallelism: int, *, old_parallelism: int
) -> tuple[tuple[Share, ...], ...]:
    """Distribute operator state over new subtasks. Call it once for managed and once for raw operator state.

    Args:
        handles: (old subtask, its handle), ascending by subtask; subtasks without state may be missing.
        parallelism: number of new subtasks. If it equals `old_parallelism`, no element moves, but subtasks that lack
            a broadcast state of others get a copy of it.
        old_parallelism: number of old subtasks.

    Returns:
        For each new subtask its shares: of `SPLIT_DISTRIBUTE`, then of `UNION`, then of `BROADCAST` states. The shares
        of a state are in the order of its elements. An element of `UNION` state goes to one subtask only: from old
        subtask `k` to `k * parallelism // old_parallelism`, which keeps the order of the elements over all subtasks.

    Raises:
        UsageError: one of the numbers is not positive, or an old subtask is not below `old_parallelism`.
    """
    if parallelism < 1 or any(not 0 <= subtask < old_parallelism for subtask, _ in handles):
        raise UsageError(
            f"operator state of {old_parallelism} subtasks cannot be distributed to {parallelism} subtasks"
        )
    shares: list[list[Share]] = [[] for _ in range(parallelism)]
    if parallelism == old_parallelism:
        for subtask, handle in handles:
            shares[subtask] += [Share(subtask, each.state_name, each.mode, each.offsets) for each in handle.states]
        for locations in _group_by_name(handles, OperatorStateMode.BROADCAST):
            present = {share.subtask for share in locations}
            for index in set(range(parallelism)) - present:
                shares[index].append(locations[index % len(locations)])
        return tuple(map(tuple, shares))
    groups = {mode: _group_by_name(handles, mode) for mode in OperatorStateMode}
    _split(groups[OperatorStateMode.SPLIT_DISTRIBUTE], shares)
    for locations in groups[OperatorStateMode.UNION]:
        for share in locations:
            shares[share.subtask * parallelism // old_parallelism].append(share)
    for locations in groups[OperatorStateMode.BROADCAST]:
        for index, own in enumerate(shares):
            own.append(locations[index % len(locations)])
    return tuple(map(tuple, shares))


def _split(groups: Iterable[Sequence[Share]], shares: list[list[Share]]) -> None:
    """Append to `shares`, by new subtask, an equal number of elements of each state, in the order of the elements.

    If the elements of a state cannot be divided equally, some subtasks get one more. The elements of the next state
    are distributed starting at the subtask after the last one that got one more.
    """
    parallelism, first = len(shares), 0
    for locations in groups:
        base, rest = divmod(sum(len(each.offsets) for each in locations), parallelism)
        index = position = 0
        for turn in range(parallelism):
            wanted = base + (turn < rest)
            while wanted > 0:
                share = locations[index]
                offsets = share.offsets[position : position + wanted]
                if len(share.offsets) - position > wanted:
                    position += wanted
                else:
                    index, position = index + 1, 0
                # An old handle may name the state without elements. Its empty share goes to the subtask that gets the
                # next elements.
                shares[(first + turn) % parallelism].append(Share(share.subtask, share.state_name, share.mode, offsets))
                wanted -= len(offsets)
        first = (first + rest) % parallelism


def _group_by_name(
    handles: Sequence[tuple[int, OperatorStateHandle]], mode: OperatorStateMode
) -> tuple[tuple[Share, ...], ...]:
    """Collect the elements of the states of one distribution mode, grouped by state, each group by old subtask.

    States come in the iteration order of the `java.util.HashMap` in which Flink collects their names.
    """
    found: dict[str, list[Share]] = {}
    names = _JavaHashMap(_DEFAULT_CAPACITY)
    for subtask, handle in handles:
        for state in _order_states(handle.states):
            if state.mode is mode:
                names.compute_if_absent(state.state_name)
                share = Share(subtask, state.state_name, state.mode, state.offsets)
                found.setdefault(state.state_name, []).append(share)
    return tuple(tuple(found[name]) for name in names)


def _order_states(states: Sequence[OperatorStateMetaInfo]) -> list[OperatorStateMetaInfo]:
    """Sort the states of a handle into the iteration order of the `java.util.HashMap` into which Flink reads them.

    Source: `MetadataV2V3SerializerBase.deserializeOperatorStateHandle`, `CollectionUtil.newHashMapWithExpectedSize`.
    """
    number = len(states)
    names = _JavaHashMap(number + 1 if number <= 2 else math.ceil(number / _LOAD_FACTOR))
    for state in states:
        names.put(state.state_name)
    by_name = {state.state_name: state for state in states}
    return [by_name[name] for name in names]


class _JavaHashMap:
    """Set of strings in the iteration order that `java.util.HashMap` has for them as keys.

    Java converts a long bin of a large map to a tree, which may change the order of its keys. That is not reproduced:
    here such a bin stays a list.

    Args:
        capacity: the `initialCapacity` of the Java constructor.
    """

    def __init__(self, capacity: int) -> None:
        self._bins: list[list[str]] = [[] for _ in range(1 << max(0, capacity - 1).bit_length())]
        self._size = 0

    def __iter__(self) -> Iterator[str]:
        for keys in self._bins:
            yield from keys

    def put(self, key: str) -> None:
        keys = self._find_bin(key)
        if key in keys:
            return
        keys.append(key)
        self._size += 1
        if len(keys) > _TREEIFY_THRESHOLD:
            self._treeify()
        if self._size > _LOAD_FACTOR * len(self._bins):
            self._resize()

    def compute_if_absent(self, key: str) -> None:
        # Unlike `put`, `HashMap.computeIfAbsent` checks the size before it looks for the key, so that it may resize
        # even if the key is there; and it inserts a new key at the front of its bin.
        if self._size > _LOAD_FACTOR * len(self._bins):
            self._resize()
        keys = self._find_bin(key)
        if key in keys:
            return
        keys.insert(0, key)
        if len(keys) >= _TREEIFY_THRESHOLD:
            self._treeify()
        self._size += 1

    def _find_bin(self, key: str) -> list[str]:
        return self._bins[_spread(key) & len(self._bins) - 1]

    def _treeify(self) -> None:
        if len(self._bins) < _SMALLEST_WITH_TREES:
            self._resize()

    def _resize(self) -> None:
        keys = list(self)
        self._bins = [[] for _ in range(2 * len(self._bins))]
        for key in keys:
            self._find_bin(key).append(key)


def _spread(key: str) -> int:
    """Return `HashMap.hash` of a string: its `hashCode` (over UTF-16 units), XORed with its own upper 16 bits."""
    code = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code ^ code >> 16


REMOTE_FILES = 4
"""New files that one process writes concurrently to a remote storage, each of them with several concurrent requests."""

INLINE_LIMIT = 20 << 10
"""Bytes up to which state that was inlined stays inlined (`execution.checkpointing.data-inline-threshold`)."""


@dataclass(frozen=True)
class FileAssembly:
    """Task that writes a new file: ranges of old files, one after the other.

    Attributes:
        ranges: the ranges, in the order of the new file.
        target: the new file.
        verify: read the new file again and compare checksums.
    """

    ranges: tuple[StreamRange, ...] = field(repr=False)
    target: Location
    verify: bool = True
    threads: ClassVar[int] = COPY_THREADS

    @property
    def in_flight(self) -> int:
        """Number of such tasks that one process runs concurrently: several if they wait for a remote storage."""
        return 1 if is_local(self.target) else REMOTE_FILES

    def run(self) -> int:
        """Write the file; return the bytes written.

        Raises:
            ProofError: the new file does not hold what was written.
            StateError: an old file cannot be read, or the new one not be written.
        """
        # Remove leftovers of a failed attempt; the name is unique to this task.
        remove_file(self.target)
        return copy_ranges(self.ranges, self.target, verify=self.verify)


@dataclass
class Assembler:
    """Maker of the state handles of one new operator; collects the tasks that write the files of these handles.

    Args:
        target: directory of the new snapshot.
        verify: see `FileAssembly`.

    Attributes:
        assemblies: the tasks so far; nothing is written before they run.
    """

    target: Location
    verify: bool = True
    assemblies: list[FileAssembly] = field(default_factory=list)

    def make_handle(self, ranges: Sequence[StreamRange]) -> StreamStateHandle:
        """Make a handle of new state that consists of these ranges of old streams.

        If the old state was inlined and has at most `INLINE_LIMIT` bytes, the new handle holds the bytes. Otherwise it
        names a new file.
        """
        joined = join_ranges(ranges)
        size = sum(map(len, joined))
        if size <= INLINE_LIMIT and all(each.stream.location is None for each in joined):
            # Flink treats inlined handles with the same name as the same state, so the name must be unique.
            data = b"".join(read_stream_range(each.stream, each.start, each.end) for each in joined)
            return ByteStreamStateHandle(str(uuid.uuid4()), data)
        name = make_file_name()
        self.assemblies.append(FileAssembly(joined, join(self.target, name), self.verify))
        return RelativeFileStateHandle(name, size)


def join_ranges(ranges: Sequence[StreamRange]) -> tuple[StreamRange, ...]:
    """Join ranges that are adjacent in one stream, and leave out empty ones; the bytes stay the same."""
    joined: list[StreamRange] = []
    for each in ranges:
        if not len(each):
            continue
        last = joined[-1] if joined else None
        if last is not None and last.end == each.start and last.stream == each.stream:
            joined[-1] = StreamRange(last.stream, last.start, each.end)
        else:
            joined.append(each)
    return tuple(joined)


@dataclass(frozen=True)
class MovedKeyGroups:
    """Key groups that change subtask.

    Attributes:
        ranges: ranges of these key groups, ascending.
        bytes: bytes of state in these key groups; None if the format does not say which key groups its bytes belong to
            (changelog).
        total: bytes of all keyed state of the operator; None as for `bytes`.
        estimated: the bytes are an estimate: those of each RocksDB table were spread evenly over the key groups that it
            spans.
    """

    ranges: tuple[KeyGroupRange, ...]
    bytes: int | None
    total: int | None
    estimated: bool

    @property
    def number(self) -> int:
        """Number of key groups that change subtask."""
        return sum(map(len, self.ranges))

    def to_json(self) -> dict[str, object]:
        """Return the value for `json.dumps`."""
        return {
            "key_groups": [[each.start, each.end] for each in self.ranges],
            "bytes": self.bytes,
            "total_bytes": self.total,
            "estimated": self.estimated,
        }


def find_moved_key_groups(operator: Operator, parallelism: int) -> MovedKeyGroups | None:
    """Find the key groups that move to another subtask by a change of parallelism; no record is read.

    Return None if the operator has no keyed state.

    Args:
        operator: the operator before the change.
        parallelism: the new number of subtasks; the max parallelism stays.

    Raises:
        StateError: keyed state cannot be opened.
    """
    number = operator.max_parallelism
    everything = KeyGroupRange(0, number)
    before, after = np.full(number, -1, np.int32), np.empty(number, np.int32)
    for subtask, file in operator.keyed_files:
        before[file.key_groups.start : file.key_groups.end + 1] = subtask
    if not operator.keyed_files:
        return None
    for subtask in range(parallelism):
        groups = compute_key_group_range(subtask, parallelism, number)
        after[groups.start : groups.end + 1] = subtask
    moved = (before != after) & (before >= 0)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], moved, [False]]).astype(np.int8))).reshape(-1, 2)
    ranges = tuple(KeyGroupRange(start, end - start) for start, end in edges.tolist())
    sizes = np.zeros(number, np.int64)
    estimated = False
    try:
        for _, file in operator.keyed_files:
            stored, rough = file.measure_stored_bytes(everything)
            sizes += stored
            estimated |= rough
    except UnsupportedError:
        return MovedKeyGroups(ranges, None, None, estimated=False)
    return MovedKeyGroups(ranges, int(sizes[moved].sum()), int(sizes.sum()), estimated)


_SectionHandle = KeyGroupsStateHandle | KeyGroupsSavepointStateHandle


@dataclass(frozen=True)
class NeedsRecords:
    """Result for keyed state that cannot be reused as bytes, so that its records must be moved one by one.

    Attributes:
        reason: why the bytes cannot be reused, for reports.
    """

    reason: str


@dataclass(frozen=True)
class SectionStream:
    """An old stream of keyed state with a section per key group.

    Attributes:
        handle: the old handle over the stream.
        stream: reads the bytes.
        header_end: size of the header in bytes; 0 for raw keyed state, which has no header.
        sections: sections by key group, without the key groups that have none.
        beginning: the first bytes of the header, as far as they have been read.
    """

    handle: _SectionHandle
    stream: StateStream
    header_end: int
    sections: Mapping[int, Section] = field(repr=False)
    beginning: bytes = field(default=b"", repr=False)

    @cached_property
    def header(self) -> bytes:
        """The bytes of the header."""
        return HeaderReading(beginning=self.beginning).read(self.stream, self.header_end)


def assemble_keyed(
    handles: Sequence[tuple[KeyGroupRange, KeyedStateHandle]],
    parallelism: int,
    max_parallelism: int,
    reader: HandleReader,
    assembler: Assembler,
    *,
    raw: bool = False,
    narrow: bool = True,
) -> list[KeyedStateHandle | None] | NeedsRecords:
    """Make the handles of the new subtasks of one operator for its managed or its raw keyed state.

    If the key groups of a new subtask are in one old file, its handle names this file with fewer key groups
    (`KeyGroupsStateHandle.getIntersection`), and with a size that ends after their last section. If they are in several
    old files, the handle names a new file: one copy of the header, then the sections. If they are in one RocksDB
    database, the handle names the whole database: Flink clips it on restore (`RocksDBIncrementalRestoreOperation`), and
    `KeyedFiles` when it is read.

    The handle covers all key groups of the new subtask, also those of old subtasks without a handle, as in snapshots
    that Flink writes: `check_held_key_groups` would report a gap as lost state.

    Args:
        handles: (key groups of the subtask, its handle) of the old subtasks that have state, ascending by subtask. A
            handle may name more key groups than its subtask has.
        parallelism: number of new subtasks.
        max_parallelism: number of key groups.
        reader: reads handles of the old snapshot.
        assembler: collects the tasks that write the new files.
        raw: the state is raw keyed state.
        narrow: reuse an old file also if a new subtask needs only some of its key groups; otherwise their sections are
            copied into a new file.

    Returns:
        The handle of each new subtask, None for a subtask without state; or the reason why records must be moved.

    Raises:
        StateError: a header cannot be read, or offsets are damaged.
    """
    ranges = [compute_key_group_range(index, parallelism, max_parallelism) for index in range(parallelism)]
    found: dict[int, KeyedStateHandle | None] = {}
    pending: dict[int, list[_SectionHandle]] = {}
    databases: dict[IncrementalRemoteKeyedStateHandle, list[int]] = {}
    for number, own in enumerate(ranges):
        covered: dict[KeyedStateHandle, int] = {}
        for held, each in handles:
            common = each.key_groups.intersect(held).intersect(own).number
            if common:
                covered[each] = covered.get(each, 0) + common
        old = list(covered)
        if any(common != each.key_groups.intersect(own).number for each, common in covered.items()):
            return NeedsRecords("an old file holds key groups that its subtask does not have")
        if not old or (len(old) == 1 and old[0].key_groups == own):
            found[number] = old[0] if old else None
            continue
        if isinstance(old[0], IncrementalRemoteKeyedStateHandle) and len(old) == 1:
            databases.setdefault(old[0], []).append(number)
            continue
        sections = [each for each in old if isinstance(each, _SectionHandle)]
        if len(sections) < len(old) or len({type(each) for each in old}) > 1:
            return NeedsRecords(_explain(old))
        pending[number] = sections
    needed = list(dict.fromkeys(each for sections in pending.values() for each in sections))
    works = [partial(_open, each, reader, raw=raw) for each in needed]
    opened = dict(zip(needed, do_together(works, reader.directory), strict=True))
    for number, sections in pending.items():
        handle = _assemble([opened[each] for each in sections], ranges[number], assembler, raw=raw, narrow=narrow)
        if isinstance(handle, NeedsRecords):
            return handle
        found[number] = handle
    for database, numbers in databases.items():
        # All subtasks get the same handle, so that readers can see that they share the database.
        shared = replace(database, key_groups=_join([database.key_groups, *(ranges[each] for each in numbers)]))
        found.update((each, shared) for each in numbers)
    return [found[number] for number in range(parallelism)]


def _join(ranges: Sequence[KeyGroupRange]) -> KeyGroupRange:
    """Return the range from the first to the last key group of several ranges."""
    start = min(each.start for each in ranges)
    return KeyGroupRange(start, max(each.end for each in ranges) + 1 - start)


def _explain(handles: Sequence[KeyedStateHandle]) -> str:
    kinds = {type(each) for each in handles}
    if len(kinds) > 1:
        return "the key groups of a new subtask lie in old files of different formats"
    if isinstance(handles[0], IncrementalRemoteKeyedStateHandle):
        return f"the key groups of a new subtask lie in {len(handles)} RocksDB databases"
    return "the state is a base and a log of its changes (changelog)"


def _open(handle: _SectionHandle, reader: HandleReader, *, raw: bool) -> SectionStream:
    stream = reader.open_stream(handle.delegate)
    if raw:
        found = find_raw_sections(stream, handle.key_groups, handle.offsets)
        return SectionStream(handle, stream, 0, {each.key_group: each for each in found})
    known = [NEVER_STARTED if offset == NO_SECTION else offset for offset in handle.offsets]
    sections = find_raw_sections(stream, handle.key_groups, known)
    first = sections[0].start if sections else stream.size
    beginning = HeaderReading(known=reader.beginnings).read(stream, min(first, FIRST_READ))
    try:
        _, end = read_first_header(stream, first, HeaderReading(beginning=beginning))
    except UnknownSerializerError:
        end = -1
    if end < 0:
        # The end of the header is not known: copy all bytes before the first section. If a former rescaling has removed
        # the first sections of the file from the handle, these are copied, too, although they are not needed.
        end = first
    return SectionStream(handle, stream, end, {each.key_group: each for each in sections}, beginning[:end])


def _assemble(
    files: Sequence[SectionStream], own: KeyGroupRange, assembler: Assembler, *, raw: bool, narrow: bool
) -> KeyedStateHandle | NeedsRecords | None:
    files = sorted(files, key=lambda file: file.handle.key_groups.start)
    intersections = [file.handle.key_groups.intersect(own) for file in files]
    if any(before.end >= after.start for before, after in pairwise(intersections)):
        return NeedsRecords("two old subtasks hold the same key group")
    wanted = [
        (file, file.sections[group])
        for file, intersection in zip(files, intersections, strict=True)
        for group in intersection
        if group in file.sections
    ]
    if raw and not wanted:
        return None
    first = files[0]
    if not raw and isinstance(first.handle, KeyGroupsStateHandle) and sum(map(len, intersections)) < len(own):
        # The heap backend expects a section for every key group that the handle names, but some have none to copy.
        return NeedsRecords("some key groups of a new subtask have no state")
    offsets = dict.fromkeys(own, NEVER_STARTED if raw else NO_SECTION)
    shared = _share(files, [section for _, section in wanted]) if narrow else None
    if shared is not None:
        offsets |= {section.key_group: section.start for _, section in wanted}
        return _make_handle(first.handle, own, tuple(offsets.values()), shared)
    if len({file.header for file in files}) > 1:
        return NeedsRecords("the old subtasks have different states, or have them in another order")
    position = first.header_end
    ranges = [_find_header(first) if wanted else StreamRange(first.stream, 0, first.header_end)]
    for file, section in wanted:
        offsets[section.key_group] = position
        ranges.append(StreamRange(file.stream, section.start, section.end))
        position += section.end - section.start
    return _make_handle(first.handle, own, tuple(offsets.values()), assembler.make_handle(ranges))


def _find_header(file: SectionStream) -> StreamRange:
    """Range with the header of an old file, to be copied into a new file.

    If planning has already read the header, the range holds these bytes, so that the file is not read again.
    """
    if len(file.beginning) < file.header_end:
        return StreamRange(file.stream, 0, file.header_end)
    return StreamRange(StateStream(file.stream.name, file.header_end, data=file.header), 0, file.header_end)


def _share(files: Sequence[SectionStream], sections: Sequence[Section]) -> StreamStateHandle | None:
    """Return a handle over the old file that holds these sections, with a size that ends after the last of them.

    Return None if the sections are not adjacent in one file, or not in a file.
    """
    ordered = sorted(sections, key=lambda each: each.start)
    end = ordered[-1].end if ordered else files[0].header_end
    delegates = {_shorten(file.handle.delegate, end) for file in files}
    if len(delegates) > 1 or any(before.end != after.start for before, after in pairwise(ordered)):
        return None
    return delegates.pop()


def _shorten(handle: StreamStateHandle, size: int) -> StreamStateHandle | None:
    """Return a handle over the first `size` bytes of the file of a handle; None if the state is not in a file."""
    match handle:
        case ByteStreamStateHandle() | EmptySegmentFileStateHandle():
            return None
        case KeyGroupsStateHandle():
            return _shorten(handle.delegate, size)
        case _:
            return replace(handle, size=size)


def _make_handle(
    old: _SectionHandle, groups: KeyGroupRange, offsets: tuple[int, ...], delegate: StreamStateHandle
) -> _SectionHandle:
    if isinstance(old, KeyGroupsSavepointStateHandle):
        return KeyGroupsSavepointStateHandle(groups, offsets, delegate)
    identifier = None if old.state_handle_id is None else str(uuid.uuid4())
    return KeyGroupsStateHandle(groups, offsets, delegate, identifier)


def hand_on_keyed(
    operator: Operator, parallelism: int, assembler: Assembler, *, narrow: bool
) -> list[tuple[KeyedStateHandle | None, KeyedStateHandle | None]] | NeedsRecords:
    """Make the handles of the managed and the raw keyed state of each new subtask; nothing is written.

    Return the reason instead if records must be moved.

    Args:
        operator: the operator before the change.
        parallelism: the new number of subtasks, at most the max parallelism.
        assembler: collects the tasks that write the new files.
        narrow: as for `assemble_keyed`. Set it if old files are linked or referenced; if they are copied, unset it, so
            that no copy holds more than its subtask needs.

    Raises:
        StateError: a header cannot be read.
    """
    metadata = operator.metadata
    subtasks = sorted(metadata.subtasks, key=lambda each: each.index)
    try:
        _require_reach(operator)
    except OutOfReachError as error:
        # Moving the records may still work: their readers do not need every file, for instance not the `OPTIONS` file.
        # A copy of the database without the missing file would be incomplete.
        return NeedsRecords(f"a file of the database cannot be copied: {error.what}")
    if parallelism == metadata.parallelism and follows_formula(metadata):
        same = {each.index: (each.managed_keyed_state, each.raw_keyed_state) for each in subtasks}
        return [same.get(index, (None, None)) for index in range(parallelism)]
    sides = []
    held = find_held_key_groups(metadata)
    for raw in (False, True):
        handles = [each.raw_keyed_state if raw else each.managed_keyed_state for each in subtasks]
        present = [
            (handle.key_groups if raw else held.get(each.index, handle.key_groups), handle)
            for each, handle in zip(subtasks, handles, strict=True)
            if handle is not None
        ]
        assembled = assemble_keyed(
            present, parallelism, metadata.max_parallelism, operator.snapshot.handles, assembler, raw=raw, narrow=narrow
        )
        if isinstance(assembled, NeedsRecords):
            return assembled
        sides.append(assembled)
    if any(isinstance(each, IncrementalRemoteKeyedStateHandle) for each in sides[0]) and _is_forst(operator):
        return NeedsRecords("the database is one of ForSt")
    return list(zip(*sides, strict=True))


def _require_reach(operator: Operator) -> None:
    """Check that every file of an operator's RocksDB databases may be copied; no file is read.

    Raises:
        OutOfReachError: a file is outside the allowed directories, mostly because the snapshot was moved.
    """
    for subtask in operator.metadata.subtasks:
        handle = subtask.managed_keyed_state
        if isinstance(handle, IncrementalRemoteKeyedStateHandle):
            for each in (*handle.shared_state, *handle.private_state):
                operator.snapshot.handles.open_stream(each.handle)


def _is_forst(operator: Operator) -> bool:
    handles = [(each.index, each.managed_keyed_state) for each in operator.metadata.subtasks]
    found = find_keyed_formats(handles, operator.keyed_files, operator.snapshot.handles)
    return any(each.format.startswith(FORST) for each in found)


_GROWTH = 8


@dataclass(frozen=True)
class ElementStream:
    """An old stream of operator state, with the elements that handles name in it.

    Attributes:
        stream: reads the bytes.
        raw: it is raw operator state, which has no header.
        states: the states, with element offsets, of all handles over this stream.
        kept: cache of the streams of the snapshot that have been read.
    """

    stream: StateStream
    raw: bool
    states: tuple[OperatorStateMetaInfo, ...] = field(repr=False)
    kept: KeptStreams = field(default_factory=KeptStreams, compare=False, repr=False)

    @cached_property
    def first(self) -> int:
        """Offset of the first element; the size of the stream if it has no elements."""
        return min([self.stream.size, *(min(state.offsets) for state in self.states if state.offsets)])

    @cached_property
    def parsed(self) -> tuple[OperatorHeader, bytes]:
        """The parsed header and its bytes. If elements are compressed, the bytes end with the stream id of Snappy.

        Raises:
            StateError: the header cannot be read.
        """
        size = min(FIRST_ELEMENT_READ, self.first)
        while True:
            data = self._read(size)
            reader = Reader(data, self.stream.name)
            try:
                header = read_operator_header(reader)
                end = reader.position + len(STREAM_ID) * header.compressed
                return header, data[:end] if end <= len(data) else self._read(end)
            except FormatError:
                # The header may be longer than the bytes read so far. If all bytes were read, it is damaged.
                if size == self.first:
                    raise
            size = min(size * _GROWTH, self.first)

    @cached_property
    def header(self) -> bytes:
        """The bytes before the first element: header and stream id; none for raw operator state."""
        if self.raw:
            return b""
        try:
            return self.parsed[1]
        except UnknownSerializerError:
            return self._read(self.first)

    def _read(self, end: int) -> bytes:
        small = self.stream.size <= FIRST_ELEMENT_READ
        return self.kept.read(self.stream, 0, end) if small else read_header_bytes(self.stream, end)

    @cached_property
    def ranks(self) -> Mapping[str, int]:
        """Rank of each state by name: the states are ranked in the order in which the file stores their elements."""
        names = dict.fromkeys(state.state_name for state in self.states)
        if not self.raw:
            try:
                header = self.parsed[0]
                names = dict.fromkeys([info.name for info in (*header.lists, *header.broadcasts)]) | names
            except UnknownSerializerError:
                pass  # Nothing but elements without bytes depends on it.
        return {name: rank for rank, name in enumerate(names)}

    @cached_property
    def _starts(self) -> npt.NDArray[np.int64]:
        """Sorted keys (see `_keys`) of all elements: they sort by offset, then by the rank of the state.

        If elements of several states have one offset, all but the last are empty.
        """
        keys = [self._keys(state.state_name, state.offsets) for state in self.states]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *keys]))

    def _keys(self, name: str, offsets: Sequence[int]) -> npt.NDArray[np.int64]:
        return np.array(offsets, np.int64) * len(self.ranks) + self.ranks[name]

    def find_ends(self, share: Share) -> npt.NDArray[np.int64]:
        """End offsets of the elements of a share, i64[n].

        An element ends at the next offset of an element of any state, or with the stream.
        """
        bounds = np.append(self._starts // len(self.ranks), self.stream.size)
        starts = np.array(share.offsets, np.int64)
        ends = bounds[np.searchsorted(self._starts, self._keys(share.state_name, share.offsets)) + 1]
        repeated = np.append(starts[1:] == starts[:-1], False)
        return np.where(repeated, starts, ends)


def assemble_operator(
    handles: Sequence[tuple[int, OperatorStateHandle]],
    parallelism: int,
    old_parallelism: int,
    reader: HandleReader,
    assembler: Assembler,
    *,
    raw: bool = False,
    narrow: bool = True,
    dropped: Set[str] = frozenset(),
    left_out: Set[tuple[int, str]] = frozenset(),
) -> list[OperatorStateHandle | None]:
    """Make the handles of the new subtasks of one operator for its managed or its raw operator state.

    `redistribute` assigns the elements. An old file is reused by the new subtask that gets all of its list elements,
    and by new subtasks that get only copies of broadcast state from it. For all other subtasks the elements are copied
    into a new file, after a header. So every list element in a file is named by a handle, and all elements that a file
    has of a state by the same handle. Flink requires this: when it redistributes state, it collects the handles of a
    subtask by stream and state, and keeps only the last of several
    (`RoundRobinOperatorStateRepartitioner.repartitionSplitState`).

    Args:
        handles: (old subtask, its handle), ascending.
        parallelism: number of new subtasks.
        old_parallelism: number of old subtasks.
        reader: reads handles of the old snapshot.
        assembler: collects the tasks that write the new files.
        raw: the state is raw operator state.
        narrow: reuse an old file also if some copies of broadcast state in it are not needed; otherwise the elements
            that are needed are copied into a new file.
        dropped: names of states that are removed, from handles and from headers.
        left_out: (old subtask, name of a state) to ignore, because the handle of another subtask has the state, too.

    Returns:
        The handle of each new subtask, None for a subtask without state.

    Raises:
        UnsupportedError: old subtasks have states of one name with different serializers, or only some are compressed.
        StateError: a header cannot be read.
    """
    full = {index: each for index, each in handles if not isinstance(each.delegate, EmptySegmentFileStateHandle)}
    states: dict[StreamStateHandle, list[OperatorStateMetaInfo]] = {}
    for handle in full.values():
        states.setdefault(handle.delegate, []).extend(handle.states)
    opened = {
        each: ElementStream(reader.open_stream(each), raw, tuple(found), reader.kept) for each, found in states.items()
    }
    files = {index: opened[each.delegate] for index, each in full.items()}
    changed = {index for index, file in files.items() if not dropped.isdisjoint(file.ranks)} if dropped else set()
    left = [
        (
            index,
            replace(
                each,
                states=tuple(
                    state
                    for state in each.states
                    if state.state_name not in dropped and (index, state.state_name) not in left_out
                ),
            ),
        )
        for index, each in full.items()
    ]
    dealt = redistribute(left, parallelism, old_parallelism=old_parallelism)
    present = [[share for share in shares if share.offsets] for shares in dealt]
    found: list[OperatorStateHandle | None] = [
        None if not changed.isdisjoint(share.subtask for share in shares) else _keep(shares, full, files, narrow=narrow)
        for shares in present
    ]
    whole = {handle.delegate for handle, shares in zip(found, present, strict=True) if handle and _has_lists(shares)}
    copied: dict[tuple[Share, ...], OperatorStateHandle] = {}
    for index, shares in enumerate(present):
        kept = found[index]
        if not shares:
            continue
        if kept and (_has_lists(shares) or _can_share(files[shares[0].subtask], kept.delegate, whole)):
            continue
        if _has_lists(shares):
            found[index] = _assemble_elements(shares, files, assembler, dropped)
            continue
        if tuple(shares) not in copied:
            copied[tuple(shares)] = _assemble_elements(shares, files, assembler, dropped)
        found[index] = copied[tuple(shares)]
    if left and not any(found):
        # No subtask has elements. Keep one file nevertheless: its header describes the states with their serializers.
        index, handle = left[0]
        empty = [Share(index, state.state_name, state.mode, ()) for state in handle.states]
        if index not in changed:
            found[0] = full[index]
        elif empty:
            found[0] = _assemble_elements(empty, files, assembler, dropped)
    return found


def _keep(
    shares: Sequence[Share],
    handles: Mapping[int, OperatorStateHandle],
    files: Mapping[int, ElementStream],
    *,
    narrow: bool,
) -> OperatorStateHandle | None:
    """Return a handle over the old file that holds all these shares; None if they must be copied into a new file.

    Args:
        shares: the shares of one new subtask.
        handles: old handles by subtask.
        files: old streams by subtask.
        narrow: as for `assemble_operator`.
    """
    if not shares:
        return None
    first, file = handles[shares[0].subtask], files[shares[0].subtask]
    if any(handles[share.subtask].delegate != first.delegate for share in shares):
        return None
    states = _list_states(shares)
    if _has_lists(shares) and sorted(_select_lists(states)) != sorted(_select_lists(_name_states(file.states))):
        return None
    if sorted(states) == sorted(_name_states(first.states)):
        return first
    if not narrow or file.raw:
        return None
    return replace(first, states=tuple(OperatorStateMetaInfo(*state) for state in states))


def _can_share(file: ElementStream, delegate: StreamStateHandle, whole: Set[StreamStateHandle]) -> bool:
    """Return whether a subtask may get broadcast state from an old file that is reused as it is.

    It may if the file has no list elements, or if the handle of some new subtask names all of them.

    Args:
        file: the old file.
        delegate: its stream handle.
        whole: streams whose list elements all belong to one new subtask, which reuses the file.
    """
    return delegate in whole or not _select_lists(_name_states(file.states))


def _has_lists(shares: Sequence[Share]) -> bool:
    return any(share.mode is not OperatorStateMode.BROADCAST for share in shares)


def _select_lists(states: Sequence[_State]) -> list[_State]:
    return [state for state in states if state[1] is not OperatorStateMode.BROADCAST]


_State = tuple[str, OperatorStateMode, tuple[int, ...]]


def _name_states(states: Sequence[OperatorStateMetaInfo]) -> list[_State]:
    """List the states that have elements, each once even if several handles name the same elements of one file."""
    return list(dict.fromkeys((state.state_name, state.mode, state.offsets) for state in states if state.offsets))


def _list_states(shares: Sequence[Share]) -> list[_State]:
    """Join the shares of each state: one entry per state, with the offsets of all its shares in order."""
    joined: dict[tuple[str, OperatorStateMode], tuple[int, ...]] = {}
    for share in shares:
        joined[share.state_name, share.mode] = joined.get((share.state_name, share.mode), ()) + share.offsets
    return [(name, mode, offsets) for (name, mode), offsets in joined.items()]


def _assemble_elements(
    shares: Sequence[Share], files: Mapping[int, ElementStream], assembler: Assembler, dropped: Set[str]
) -> OperatorStateHandle:
    used = list({id(files[share.subtask]): files[share.subtask] for share in shares}.values())
    header, ranks = _join_headers(used, dropped)
    # An empty element has the same offset as the element after it. If they are of different states, readers know from
    # the order of the states which one is empty. So write the states in the order of the header, as Flink does.
    ordered = sorted(shares, key=lambda share: ranks[share.state_name])
    ranges = [StreamRange(StateStream("a header", len(header), data=header), 0, len(header))]
    placed = []
    position = len(header)
    for share in ordered:
        file = files[share.subtask]
        starts, ends = np.array(share.offsets, np.int64), file.find_ends(share)
        if not len(starts):
            placed.append(share)
            continue
        sizes = ends - starts
        new = position + np.cumsum(sizes) - sizes
        position += int(sizes.sum())
        placed.append(replace(share, offsets=tuple(new.tolist())))
        breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
        firsts, lasts = np.insert(breaks, 0, 0), np.append(breaks, len(starts)) - 1
        spans = zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True)
        ranges += [StreamRange(file.stream, start, end) for start, end in spans]
    states = tuple(OperatorStateMetaInfo(*state) for state in _list_states(placed))
    return OperatorStreamStateHandle(states, assembler.make_handle(ranges))


def _join_headers(files: Sequence[ElementStream], dropped: Set[str]) -> tuple[bytes, Mapping[str, int]]:
    """Join the headers of old files into one for a new file with elements of all of them.

    Returns:
        (bytes of the header, without dropped states; rank of each state by name, in the order of the header).
    """
    if len({file.header for file in files}) == 1 and all(dropped.isdisjoint(file.ranks) for file in files):
        names = dict.fromkeys(name for file in files for name in file.ranks)
        return files[0].header, {name: rank for rank, name in enumerate(names)}
    for file in (file for file in files if not file.raw):
        # The joined header is serialized again. That is safe only if each old header, serialized again, has the same
        # bytes as in its file.
        with at(file=file.stream.name):
            if _write_header(file.parsed[0]) != file.header:
                raise UnsupportedError(
                    "the header of the operator state cannot be rewritten, which is needed to drop a state and to "
                    "join subtasks with different states",
                    hint="Keep the states and the parallelism of this operator",
                )
    headers = [file.parsed[0] for file in files if not file.raw]
    if not headers:
        return b"", {
            name: rank for rank, name in enumerate(dict.fromkeys(name for file in files for name in file.ranks))
        }
    if len({header.compressed for header in headers}) > 1:
        raise UnsupportedError(
            "some of the old subtasks have compressed operator state, some have not",
            where=Where(file=files[0].stream.name),
            hint="Take a savepoint with one setting of execution.checkpointing.snapshot-compression",
        )
    joined = OperatorHeader(
        version=max(header.version for header in headers),
        compressed=headers[0].compressed,
        lists=_join_states([header.lists for header in headers], dropped),
        broadcasts=_join_states([header.broadcasts for header in headers], dropped),
    )
    names = dict.fromkeys(info.name for info in (*joined.lists, *joined.broadcasts))
    return _write_header(joined), {name: rank for rank, name in enumerate(names)}


def _write_header(header: OperatorHeader) -> bytes:
    writer = Writer()
    write_operator_header(writer, header)
    return writer.getvalue() + STREAM_ID * header.compressed


def _join_states(headers: Sequence[tuple[StateMetaInfo, ...]], dropped: Set[str]) -> tuple[StateMetaInfo, ...]:
    joined: dict[str, StateMetaInfo] = {}
    for info in (info for infos in headers for info in infos if info.name not in dropped):
        both = join_infos(joined.get(info.name, info), info)
        if both is None:
            raise UnsupportedError(
                "the old subtasks have this operator state with different serializers",
                where=Where(state=info.name),
                hint="Let every subtask write the state once with the new job and take a savepoint then, or keep the "
                "parallelism of this operator",
            )
        joined[info.name] = both
    return tuple(joined.values())
