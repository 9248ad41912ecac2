"""Readers of the handles of subtasks: which reader a handle needs is decided here and nowhere else."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.errors import EDITED_METADATA, FormatError, StateError, UnsupportedError
from state_pipelines.keyed.canonical import CanonicalFile, open_canonical
from state_pipelines.keyed.changelog.changes import ChangeFiles
from state_pipelines.keyed.changelog.reader import find_bases, open_changelog
from state_pipelines.keyed.heap import HeapFile, open_heap
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.keyed.raw_timers import NEVER_STARTED, find_raw_sections, open_raw_timers
from state_pipelines.keyed.rocksdb import open_rocksdb
from state_pipelines.keyed.sections import (
    NO_SECTION,
    HeaderReading,
    Section,
    group_sections,
    read_first_header,
    read_sections,
    select_sections,
)
from state_pipelines.metadata.handles import (
    MAX_PARALLELISM,
    ChangelogStateBackendHandle,
    EmptySegmentFileStateHandle,
    FileStateHandle,
    IncrementalRemoteKeyedStateHandle,
    KeyedStateHandle,
    KeyGroupsSavepointStateHandle,
    KeyGroupsStateHandle,
    OperatorStateMode,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
)
from state_pipelines.metadata.streams import KeptStreams, open_stream, read_stream_range
from state_pipelines.operatorstate import UnreadOperatorState, open_operator_state
from state_pipelines.rocksdb.manifest import is_database_file
from state_pipelines.serializers.snapshot_classes import OpenBodyError
from state_pipelines.storage.reading import attempt_together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.metadata import CheckpointMetadata
    from state_pipelines.metadata.handles import (
        KeyGroupRange,
        OperatorStateHandle,
        OperatorStateMetaInfo,
        StreamStateHandle,
    )
    from state_pipelines.metadata.streams import StateStream
    from state_pipelines.serializers.snapshot_classes import DeclaredSerializer
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.storage import Location, PathMapping


@dataclass(frozen=True)
class StateStatistics:
    """Number and size of the entries of a state.

    Attributes:
        entries: number of records of keyed state (map state: of map entries), elements of a list state, or pairs of a
            broadcast state.
        bytes: size of the entries without framing.
        entries_by_key_group: entries of each key group that has any; keyed state only.
    """

    entries: int
    bytes: int
    entries_by_key_group: dict[int, int] = field(default_factory=dict)


class StateOfSubtask(Protocol):
    """The state of one subtask."""

    @property
    def subtask(self) -> int:
        """Index of the subtask."""


WINDOW = 8 << 20
"""Bytes of raw keyed state in one batch; a larger key group is a separate batch."""

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
        sections: sections of the key groups that have one, ascending by position.
        reason: reason why the bytes cannot be read as timers.
    """

    subtask: int
    stream: StateStream
    key_groups: KeyGroupRange
    sections: tuple[Section, ...]
    reason: str

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the bytes of the key groups, one row per key group."""
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
        """Count the sections and their bytes; the stream is not read."""
        sizes = [section.end - section.start for section in self.sections]
        return StateStatistics(len(sizes), sum(sizes), {section.key_group: 1 for section in self.sections})

    def split(self, size: int, key_groups: KeyGroupRange | None = None) -> Iterator[RawKeyedSubtaskState]:
        """Yield the state in several objects with about `size` bytes each; with `key_groups`, only these key groups."""
        for sections in group_sections(select_sections(self.sections, key_groups), size):
            yield replace(self, sections=sections)


_LONG_HEADER = 1 << 20
"""If the first section begins after this offset, other sections are likely to be stored before it."""


_BEGINNING = 1 << 16
"""Maximum bytes of a file, from its start, that are read together with its header to recognize its format."""

Result = TypeVar("Result")


class HandleReader:
    """Opens the handles of one snapshot.

    Args:
        directory: the exclusive directory.
        path_mapping: current locations of directories that absolute handles name.
        declared: the user's declarations of serializer snapshot classes.
        header_ends: for streams that several handles share, the smallest offset of a section or element.
        first_bases: materialized handles of changelog state that begin with key group 0.
        operator_handles: all handles of operator state; several of them may name elements of one stream.
        copies: URL of a file -> copy that is read instead of it. Errors name the original file.
    """

    def __init__(
        self,
        directory: Location,
        path_mapping: PathMapping,
        declared: tuple[DeclaredSerializer, ...] = (),
        header_ends: Mapping[StreamStateHandle, int] = MappingProxyType({}),
        first_bases: tuple[_SectionHandle, ...] = (),
        operator_handles: tuple[OperatorStateHandle, ...] = (),
        copies: Mapping[str, Location] = MappingProxyType({}),
    ) -> None:
        self.directory = directory
        self.copies = dict(copies)
        self.path_mapping = path_mapping
        self.declared = declared
        self.header_ends = dict(header_ends)
        self.first_bases = first_bases
        self.operator_handles = operator_handles
        self.kept = KeptStreams()
        self.beginnings: dict[StateStream, bytes] = {}
        self.change_files = ChangeFiles(self.kept)
        self._base_header_ends: dict[StreamStateHandle, int] = {}
        self._operator_states: dict[OperatorStateHandle, UnreadOperatorState] = {}

    def open_stream(self, handle: StreamStateHandle) -> StateStream:
        """Return the stream of a handle, or of the copy of its file."""
        stream = open_stream(handle, self.directory, self.path_mapping)
        copy = self.copies.get(stream.location.url) if self.copies and stream.location is not None else None
        return stream if copy is None else replace(stream, location=copy)

    def open_keyed(
        self,
        handle: KeyedStateHandle | None,
        context: RecordContext,
        key_serializer: Serializer | None = None,
        *,
        narrowed: bool = False,
    ) -> KeyedFile | None:
        """Open the managed keyed state of a handle; None if the handle is None.

        Args:
            handle: the handle.
            context: properties of the operator that are needed to find records.
            key_serializer: key serializer for changelog state that does not name one, if the caller knows it.
            narrowed: the handle may name only some of the key groups in its stream, as after a rescale.

        Raises:
            UnsupportedError: the handle holds changes without the state that they change.
        """
        match handle:
            case None:
                return None
            case KeyGroupsSavepointStateHandle():
                stream, reading = self.open_stream(handle.delegate), self._find_header(handle)
                return _open_sections(open_canonical, stream, handle, context, reading, narrowed=narrowed)
            case KeyGroupsStateHandle():
                stream, reading = self.open_stream(handle.delegate), self._find_header(handle)
                is_heap, reading = _is_heap_native(stream, handle, reading, narrowed=narrowed)
                return _open_sections(
                    open_heap if is_heap else open_canonical, stream, handle, context, reading, narrowed=narrowed
                )
            case IncrementalRemoteKeyedStateHandle():
                files = (*handle.shared_state, *handle.private_state)
                # Options and logs of a database are never read, so it does not matter if they are out of reach.
                read = (each for each in files if is_database_file(each.local_path))
                tables = {each.local_path: self.open_stream(each.handle) for each in read}
                meta = self.open_stream(handle.meta_data_state)
                return open_rocksdb(meta, handle.key_groups, tables, context, declared=self.declared)
            case ChangelogStateBackendHandle():
                opened = (self._open_base(each, context) for each in find_bases(handle))
                bases = [each for each in opened if each is not None]
                return open_changelog(
                    handle,
                    bases,
                    self.open_stream,
                    context,
                    key_serializer=key_serializer,
                    declared=self.declared,
                    files=self.change_files,
                )
            case _:
                raise UnsupportedError(f"a {type(handle).__name__} holds changes without the state that they change")

    def open_side_by_side(
        self, handles: Iterable[tuple[KeyedStateHandle | None, RecordContext, Serializer | None]]
    ) -> list[KeyedFile | StateError | None]:
        """Open many keyed files (see `open_keyed`), several at a time if the storage is not local.

        The headers of all subtasks are read, since each header lists the states of its own subtask. For a file that
        cannot be opened, the result contains the error.
        """
        return attempt_together([partial(self.open_keyed, *each) for each in handles], self.directory)

    def open_operators(self, handles: Iterable[OperatorStateHandle | None]) -> list[UnreadOperatorState | None]:
        """Open files of operator state (see `open_operator`), several at a time; skip those that cannot be read."""
        opened = attempt_together([partial(self.open_operator, each) for each in handles], self.directory)
        return [each for each in opened if not isinstance(each, StateError)]

    def open_raw_keyed(self, handle: KeyedStateHandle | None, context: RecordContext) -> KeyedFile | None:
        """Open the timers in raw keyed state; None if there are none.

        Raises:
            NotTimersError: the state is not timers.
            UnsupportedError: the timers are in a format before 1.8, or the key or namespace has no layout.
            FormatError: the timers are damaged.
        """
        if handle is None:
            return None
        if not isinstance(handle, KeyGroupsStateHandle | KeyGroupsSavepointStateHandle):
            raise UnsupportedError(f"raw keyed state in a {type(handle).__name__} is not supported")
        return open_raw_timers(self.open_stream(handle.delegate), handle.key_groups, handle.offsets, context)

    def open_all_raw_keyed(
        self, handles: Sequence[KeyedStateHandle | None], context: RecordContext
    ) -> list[KeyedFile | StateError | None]:
        """Open files of raw keyed state (see `open_raw_keyed`), several at a time; return the error of a failed one."""
        return attempt_together([partial(self.open_raw_keyed, each, context) for each in handles], self.directory)

    def open_raw_bytes(self, handle: KeyedStateHandle | None, subtask: int, reason: str) -> RawKeyedSubtaskState:
        """Open raw keyed state as bytes; `reason` says why it is not read as timers.

        Raises:
            UnsupportedError: the handle has no offsets of key groups.
            FormatError: an offset is outside the stream.
        """
        if not isinstance(handle, KeyGroupsStateHandle | KeyGroupsSavepointStateHandle):
            raise UnsupportedError(f"raw keyed state in a {type(handle).__name__} is not supported")
        stream = self.open_stream(handle.delegate)
        sections = find_raw_sections(stream, handle.key_groups, handle.offsets)
        return RawKeyedSubtaskState(subtask, stream, handle.key_groups, sections, reason)

    def open_key_groups(
        self, handle: KeyedStateHandle | None, subtask: int, reason: str
    ) -> RawKeyedSubtaskState | None:
        """Open managed keyed state as bytes, one section per key group; None if the handle has no offsets."""
        if not isinstance(handle, _SectionHandle):
            return None
        stream = self.open_stream(handle.delegate)
        known = [NEVER_STARTED if offset == NO_SECTION else offset for offset in handle.offsets]
        return RawKeyedSubtaskState(
            subtask, stream, handle.key_groups, find_raw_sections(stream, handle.key_groups, known), reason
        )

    def open_operator(self, handle: OperatorStateHandle | None) -> UnreadOperatorState | None:
        """Open the operator state of a handle and read its header, which is cached; None if there is no such state.

        Raises:
            FormatError: the handle names states, and no file.
            StateError: the header cannot be read.
        """
        if handle is None:
            return None
        if isinstance(handle.delegate, EmptySegmentFileStateHandle):
            if handle.states:
                what = f"a handle names the operator state {handle.states[0].state_name} and no file"
                raise FormatError(what, hint=EDITED_METADATA)
            return None
        if handle not in self._operator_states:
            stream = self.open_stream(handle.delegate)
            opened = open_operator_state(
                stream,
                handle,
                self.kept,
                header_end=self.header_ends.get(handle.delegate, 0),
                declared=self.declared,
            )
            self._operator_states[handle] = replace(opened, shared=self._shared_elements.get(_identify(stream), ()))
        return self._operator_states[handle]

    @cached_property
    def _shared_elements(self) -> dict[object, tuple[OperatorStateMetaInfo, ...]]:
        """For each stream of operator state that several handles name, the states in all these handles."""
        named: dict[object, list[OperatorStateHandle]] = {}
        for handle in self.operator_handles:
            named.setdefault(_find_name(handle.delegate), []).append(handle)
        found: dict[object, list[OperatorStateHandle]] = {}
        # Only handles with equal file names may name the same stream; only these few are located, which is slow.
        for handle in (each for same in named.values() if len(same) > 1 for each in same):
            with suppress(StateError):
                # The error of a handle that cannot be located is raised when its state is read.
                found.setdefault(_identify(self.open_stream(handle.delegate)), []).append(handle)
        return {key: _join_states(handles) for key, handles in found.items() if len(handles) > 1}

    def _open_base(self, handle: KeyedStateHandle, context: RecordContext) -> KeyedFile | None:
        """Open a materialized handle of changelog state, which may name only some of the key groups in its stream.

        Subtasks materialize at different times. So after a change of parallelism, some handles still name key groups in
        older streams, whose other key groups no handle names any more. If the header has serializer snapshots without
        a reader, it is read again with its end, if that can be found.
        """
        try:
            file = self.open_keyed(handle, context, narrowed=True)
        except OpenBodyError:
            if not isinstance(handle, _SectionHandle) or not (end := self._find_base_header_end(handle)):
                raise
        else:
            if (
                file is None
                or not file.header.raw
                or not isinstance(handle, _SectionHandle)
                or not (end := self._find_base_header_end(handle))
            ):
                return file
        self._base_header_ends[handle.delegate] = end
        return self.open_keyed(handle, context, narrowed=True)

    def _find_base_header_end(self, handle: _SectionHandle) -> int:
        """Find the end of the header in the stream of a materialized handle; 0 if it cannot be found.

        In a stream whose handle names key group 0, the section of that key group directly follows the header, whose end
        is therefore known. If the stream here begins with the same bytes as such a header, its header ends there, too.
        """
        stream = self.open_stream(handle.delegate)
        for first in self.first_bases:
            end = _find_first_offset(first)
            if end <= stream.size and read_stream_range(stream, 0, end) == read_stream_range(
                self.open_stream(first.delegate), 0, end
            ):
                return end
        return 0

    def _find_header(self, handle: _SectionHandle) -> HeaderReading:
        end = self.header_ends.get(handle.delegate, 0) or self._base_header_ends.get(handle.delegate, 0)
        return HeaderReading(self.declared, end, known=self.beginnings)


def _join_states(handles: Sequence[OperatorStateHandle]) -> tuple[OperatorStateMetaInfo, ...]:
    states = [state for handle in handles for state in handle.states]
    lists = (each for each in states if each.mode is not OperatorStateMode.BROADCAST)
    # Duplicates are removed, since thousands of handles may name the same copy of a broadcast state.
    copies = dict.fromkeys(each for each in states if each.mode is OperatorStateMode.BROADCAST)
    return (*lists, *copies)


def _find_name(handle: StreamStateHandle) -> object:
    """Return a key that is equal for all handles that may name the same bytes of a file."""
    if isinstance(handle, RelativeFileStateHandle):
        return handle.relative_path.rpartition("/")[2], 0
    if isinstance(handle, FileStateHandle | SegmentFileStateHandle):
        return handle.path.rpartition("/")[2], handle.start if isinstance(handle, SegmentFileStateHandle) else 0
    return handle


def _identify(stream: StateStream) -> object:
    """Return a key that is equal for all streams of the same bytes of a file, however their handles name it."""
    return stream if stream.location is None else (stream.location.url, stream.start)


_SectionHandle: TypeAlias = KeyGroupsStateHandle | KeyGroupsSavepointStateHandle


def find_header_ends(metadata: CheckpointMetadata) -> dict[StreamStateHandle, int]:
    """Return the smallest offset of a section or element in each stream that several handles share.

    Handles share streams after a rescale. The header of a stream ends there at the latest.
    """
    found: dict[StreamStateHandle, list[int]] = {}
    for operator in metadata.operator_states:
        for subtask in operator.subtasks:
            keyed, lists = subtask.managed_keyed_state, subtask.managed_operator_state
            if isinstance(keyed, _SectionHandle):
                found.setdefault(keyed.delegate, []).append(_find_first_offset(keyed))
            if lists is not None:
                offsets = [offset for state in lists.states for offset in state.offsets if offset > 0]
                found.setdefault(lists.delegate, []).append(min(offsets, default=0))
    return {
        stream: min((each for each in firsts if each), default=0) for stream, firsts in found.items() if len(firsts) > 1
    }


def list_operator_handles(metadata: CheckpointMetadata) -> tuple[OperatorStateHandle, ...]:
    """Return the handles of managed operator state of all subtasks."""
    subtasks = (subtask for operator in metadata.operator_states for subtask in operator.subtasks)
    handles = (each.managed_operator_state for each in subtasks)
    return tuple(each for each in handles if each and not isinstance(each.delegate, EmptySegmentFileStateHandle))


def find_first_bases(metadata: CheckpointMetadata) -> tuple[_SectionHandle, ...]:
    """Return the materialized handles of changelog state that begin with key group 0 and have at least one section."""
    handles = (subtask.managed_keyed_state for each in metadata.operator_states for subtask in each.subtasks)
    bases = (
        base for handle in handles if isinstance(handle, ChangelogStateBackendHandle) for base in find_bases(handle)
    )
    return tuple(
        base
        for base in bases
        if isinstance(base, _SectionHandle) and base.key_groups.start == 0 and _find_first_offset(base)
    )


def _find_first_offset(handle: _SectionHandle) -> int:
    """Return the smallest offset of a section of a handle; 0 if it has no section."""
    return min((offset for offset in handle.offsets if offset > 0), default=0)


def _open_sections(
    open_file: Callable[..., CanonicalFile | HeapFile],
    stream: StateStream,
    handle: KeyGroupsStateHandle | KeyGroupsSavepointStateHandle,
    context: RecordContext,
    reading: HeaderReading,
    *,
    narrowed: bool,
) -> CanonicalFile | HeapFile:
    """Open a stream of key-group sections.

    Sections of other subtasks may be stored between the header and the sections that the handle names, because
    `rescale` gives one file to several subtasks. The size in such a handle is the end of its own last section.
    """
    first = min((offset for offset in handle.offsets if offset > 0), default=0)
    if not narrowed and first <= _LONG_HEADER and not 0 < reading.end < first:
        try:
            return open_file(stream, handle.key_groups, handle.offsets, context, narrowed=False, reading=reading)
        except FormatError:
            if not _leaves_out_sections(stream, handle.offsets, reading):
                raise
    file = open_file(stream, handle.key_groups, handle.offsets, context, narrowed=True, reading=reading)
    return file if narrowed else replace(file, sections=tuple(replace(each, is_open=False) for each in file.sections))


def _leaves_out_sections(stream: StateStream, offsets: Sequence[int], reading: HeaderReading) -> bool:
    """Return whether a stream has more than a header before the first of the sections at `offsets`."""
    first = min((offset for offset in offsets if 0 < offset <= stream.size), default=0)
    try:
        return first > 0 and 0 < read_first_header(stream, first, reading)[1] < first
    except StateError:
        return False


def _is_heap_native(
    stream: StateStream, handle: KeyGroupsStateHandle, reading: HeaderReading, *, narrowed: bool
) -> tuple[bool, HeaderReading]:
    """Distinguish the native format of the heap backend from the canonical format, which has the same class of handles.

    A native section begins with its key group as i32. In a canonical section, these bytes would mean state 0 and a
    first key of at least 64 KiB times the key group. Only key group 0 is ambiguous: its section is parsed as a whole.

    Returns:
        (whether the stream has the native format, `reading` with the bytes that have been read of the stream).
    """
    present = [(group, offset) for offset, group in zip(handle.offsets, handle.key_groups, strict=True) if offset]
    if not present:
        return False, reading
    first, start = min(present, key=lambda each: each[1])
    end = min((offset for _, offset in present if offset > start), default=stream.size)
    if 0 < start < stream.size and start + 4 <= _BEGINNING and end - start < first << 16:
        # The section is too short for a key of 64 KiB, so its first 4 bytes decide the format. They are read together
        # with the header.
        beginning = reading.read(stream, min(start + 4, stream.size))
        return beginning[start:] == first.to_bytes(4, "big"), replace(reading, beginning=beginning)
    return _is_heap_section(stream, handle, max(present), reading, narrowed=narrowed), reading


def _is_heap_section(
    stream: StateStream,
    handle: KeyGroupsStateHandle,
    present: tuple[int, int],
    reading: HeaderReading,
    *,
    narrowed: bool,
) -> bool:
    key_group, offset = present
    if key_group:
        return read_stream_range(stream, offset, min(offset + 4, stream.size)) == key_group.to_bytes(4, "big")
    one, two = (RecordContext(max_parallelism, LayoutContext()) for max_parallelism in (1, MAX_PARALLELISM))
    file = open_canonical(stream, handle.key_groups, handle.offsets, one, narrowed=narrowed, reading=reading)
    if file.header.compressed:
        # Canonical sections are compressed as a whole; native sections begin with the uncompressed key group.
        return read_stream_range(stream, offset, min(offset + 4, stream.size)) == bytes(4)
    for context in (one, two):
        try:
            for _ in file.with_context(context).scan(range(len(file.header.states))):
                pass
        except FormatError:
            continue
        return False
    return True
