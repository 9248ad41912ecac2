"""Keyed state at another parallelism: key-group sections are reused or copied, never decoded."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING

from state_pipelines.errors import UnknownSerializerError
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
    StreamStateHandle,
)
from state_pipelines.metadata.streams import StateStream, StreamRange
from state_pipelines.storage.reading import do_together

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from state_pipelines.operations.rescale.file_ranges import Assembler
    from state_pipelines.snapshot.handle_readers import HandleReader

_SectionHandle = KeyGroupsStateHandle | KeyGroupsSavepointStateHandle


@dataclass(frozen=True)
class NeedsRecords:
    """An operator whose state cannot be reused as bytes; its records must be moved.

    Attributes:
        reason: why, for reports.
    """

    reason: str


@dataclass(frozen=True)
class SectionFile:
    """An old stream with a section per key group.

    Attributes:
        handle: names it.
        stream: its bytes.
        header_end: bytes of the header; 0 of raw keyed state, which has none.
        sections: by key group; key groups without one are missing.
        beginning: first bytes of the stream, as far as they have been read.
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
    """Keyed state of one operator for new subtasks.

    A range inside one old file becomes a handle over that file with fewer key groups (`KeyGroupsStateHandle
    .getIntersection`); its stream ends, by the size that the handle states, where its last section does. A range over
    several files becomes a new file: one copy of the header and the sections. A range inside one RocksDB database
    becomes the old handle, which Flink clips (`RocksDBIncrementalRestoreOperation`), as `KeyedFiles` does.
    Key groups of an old subtask without a handle belong to the range of the new subtask nevertheless, as in what Flink
    writes: a handle that lacks some between others says that they were lost (`check_held_key_groups`).

    Args:
        handles: (key groups of the subtask, its handle) of the old subtasks that have state, ascending by subtask. A
            handle may name more key groups than its subtask has.
        parallelism: number of new subtasks.
        max_parallelism: number of key groups.
        reader: of the old snapshot.
        assembler: takes the new files.
        raw: the state is raw keyed state.
        narrow: reuse files of which a new subtask needs a range; otherwise that part is copied into a new file.

    Returns:
        The handle of each new subtask, None where it has no state; or why that is not possible.

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
        # One handle for all subtasks, by which readers know that they share the database.
        shared = replace(database, key_groups=_join([database.key_groups, *(ranges[each] for each in numbers)]))
        found.update((each, shared) for each in numbers)
    return [found[number] for number in range(parallelism)]


def _join(ranges: Sequence[KeyGroupRange]) -> KeyGroupRange:
    """The range of several that overlap."""
    start = min(each.start for each in ranges)
    return KeyGroupRange(start, max(each.end for each in ranges) + 1 - start)


def _explain(handles: Sequence[KeyedStateHandle]) -> str:
    kinds = {type(each) for each in handles}
    if len(kinds) > 1:
        return "the key groups of a new subtask lie in old files of different formats"
    if isinstance(handles[0], IncrementalRemoteKeyedStateHandle):
        return f"the key groups of a new subtask lie in {len(handles)} RocksDB databases"
    return "the state is a base and a log of its changes (changelog)"


def _open(handle: _SectionHandle, reader: HandleReader, *, raw: bool) -> SectionFile:
    stream = reader.open_stream(handle.delegate)
    if raw:
        found = find_raw_sections(stream, handle.key_groups, handle.offsets)
        return SectionFile(handle, stream, 0, {each.key_group: each for each in found})
    known = [NEVER_STARTED if offset == NO_SECTION else offset for offset in handle.offsets]
    sections = find_raw_sections(stream, handle.key_groups, known)
    first = sections[0].start if sections else stream.size
    beginning = HeaderReading(known=reader.beginnings).read(stream, min(first, FIRST_READ))
    try:
        _, end = read_first_header(stream, first, HeaderReading(beginning=beginning))
    except UnknownSerializerError:
        end = -1
    if end < 0:
        # All that stands in front of the sections is copied then; no more than the header, unless a rescaling before
        # has left it out.
        end = first
    return SectionFile(handle, stream, end, {each.key_group: each for each in sections}, beginning[:end])


def _assemble(
    files: Sequence[SectionFile], own: KeyGroupRange, assembler: Assembler, *, raw: bool, narrow: bool
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
        # The heap backend reads a section of each key group of the handle.
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


def _find_header(file: SectionFile) -> StreamRange:
    """The header of an old file beside sections that are copied: bytes that planning has read are not read again."""
    if len(file.beginning) < file.header_end:
        return StreamRange(file.stream, 0, file.header_end)
    return StreamRange(StateStream(file.stream.name, file.header_end, data=file.header), 0, file.header_end)


def _share(files: Sequence[SectionFile], sections: Sequence[Section]) -> StreamStateHandle | None:
    """The one old file of some sections, up to the last of them; None when they do not lie side by side in one file."""
    ordered = sorted(sections, key=lambda each: each.start)
    end = ordered[-1].end if ordered else files[0].header_end
    delegates = {_shorten(file.handle.delegate, end) for file in files}
    if len(delegates) > 1 or any(before.end != after.start for before, after in pairwise(ordered)):
        return None
    return delegates.pop()


def _shorten(handle: StreamStateHandle, size: int) -> StreamStateHandle | None:
    """A handle over the first bytes of a file; None for state that lies in no file."""
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
