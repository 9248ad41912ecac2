"""Timers in raw keyed state: what RocksDB checkpoints hold instead of timer states when timers are kept on the heap.

Every key group has a section: `F1 CD 85 9F`, an i32 version, an i32 number of timer services, and per service its name
(UTF), the key and the namespace serializer (versioned snapshots), an i32 count and the event-time timers, an i32 count
and the processing-time timers. A timer is key, namespace and an i64 timestamp, without lengths. Up to 1.4.0 marker and
version were missing; up to 1.5 the serializers are Java objects.
Read, timers look like those of the canonical format: a priority queue per service and time domain, whose elements are
the timestamp with its sign flipped, key and namespace.
Source: `InternalTimerServiceSerializationProxy`, `InternalTimersSnapshotReaderWriters`,
`PostVersionedIOReadableWritable`, `InternalTimeServiceManagerImpl`.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.compiled import njit
from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.programs import Encoded, compile_layout, decode_sequence, smallest_size
from state_pipelines.codecs.scalar import read_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.errors import (
    EDITED_METADATA,
    FormatError,
    StateError,
    UnsupportedError,
    UnsupportedVersionError,
    UsageError,
    Where,
    older_than_promised,
)
from state_pipelines.keyed.header import KeyedHeader
from state_pipelines.keyed.keyed_file import FileFormat, SectionFile, gather_key_groups
from state_pipelines.keyed.record_layout import KeyedRecords
from state_pipelines.keyed.sections import WINDOW, Section, group_sections, read_sections, select_sections
from state_pipelines.serializers.build import timer
from state_pipelines.serializers.registry import read_nested
from state_pipelines.serializers.state_meta_info import TIMER_STATE, StateMetaInfo, priority_queue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.keyed.keyed_file import RecordContext, Runs
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.metadata.streams import StateStream
    from state_pipelines.serializers.tree import Serializer

MARKER = bytes.fromhex("f1cd859f")
VERSION = 2
NEVER_STARTED = -1
"""Offset of a key group without a section; unlike in keyed streams, 0 is an ordinary offset here."""

_TIMESTAMP_SIZE = 8
# Least size of a timer service in bytes: its name, two serializer snapshots (name and version each), two counts.
_SMALLEST_SERVICE = 2 + 2 * 6 + 2 * 4
_JAVA_STREAM = bytes.fromhex("aced0005")
_TAKE_SAVEPOINT = (
    "Take a canonical savepoint with a Flink release from 1.8 on that restores this snapshot, and use that"
)


class NotTimersError(UnsupportedError):
    """Raw keyed state that is not timers: only its operator knows its format."""


@dataclass(frozen=True)
class InternalTimersSnapshot:
    """The timers of one service in one key group.

    Attributes:
        name: such as `user-timers` or `window-timers`.
        key: key serializer.
        namespace: namespace serializer.
        event: event-time timers as canonical elements: timestamp with its sign flipped, key, namespace.
        processing: processing-time timers, likewise.
    """

    name: str
    key: Serializer
    namespace: Serializer
    event: Encoded
    processing: Encoded

    @property
    def states(self) -> tuple[StateMetaInfo, StateMetaInfo]:
        """The two states of the canonical format that such timers belong to: event time, processing time."""
        element = timer(self.key, self.namespace)
        event, processing = (f"{TIMER_STATE}{domain}_{self.name}" for domain in ("event", "processing"))
        return priority_queue(event, element), priority_queue(processing, element)


class RawTimersFile(SectionFile):
    """A stream of raw keyed state with timers; `header` is the one that a canonical file of the timers would have."""

    format: ClassVar[FileFormat] = FileFormat.RAW_TIMERS
    holds_raw_timers: ClassVar[bool] = True

    def scan(
        self,
        state_ids: Sequence[int],
        key_groups: KeyGroupRange | None = None,
        *,
        window: int = WINDOW,
    ) -> Iterator[tuple[int, KeyedRecords]]:
        """Yield the timers of some states in the order of the stream (see `KeyedFile.scan`).

        Raises:
            FormatError: the bytes are no timers, or a key group has timer services that the first one with timers does
                not have.
            UnsupportedError: the timers are in a format of releases before 1.8.
        """
        wanted = {self.header.states[state_id]: state_id for state_id in state_ids}
        known = set(self.header.states)
        for group in group_sections(select_sections(self.sections, key_groups), window):
            found: dict[int, list[tuple[int, Encoded]]] = {}
            start = group[0].start
            data = read_sections(self.stream, start, group[-1].end)
            for section in group:
                with _placed(self.name, start):
                    services = read_raw_timers(data, self.context.layouts, section.start - start, section.end - start)
                for service in services:
                    for info, timers in zip(service.states, (service.event, service.processing), strict=True):
                        if info not in known:
                            raise FormatError(
                                f"key group {section.key_group} has timers of {service.name!r} that other key groups "
                                "do not have, or have with other serializers",
                                where=Where(file=self.name, offset=section.start, state=info.name),
                            )
                        if info in wanted and len(timers.stops):
                            found.setdefault(wanted[info], []).append((section.key_group, timers))
            for state_id in sorted(found):
                yield state_id, _join(found[state_id], start, self.name)

    def scan_key_groups(self, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        """Yield all timers, one key group after the other, ascending."""
        for split in self.split(WINDOW, key_groups):
            chunks: dict[int, list[KeyedRecords]] = {}
            for state_id, records in split.scan(range(len(self.header.states))):
                chunks.setdefault(state_id, []).append(records)
            yield from gather_key_groups({state_id: iter(each) for state_id, each in sorted(chunks.items())})


def open_raw_timers(
    stream: StateStream, key_groups: KeyGroupRange, offsets: Sequence[int], context: RecordContext
) -> RawTimersFile | None:
    """Find the sections of a handle of raw keyed state, and the timers in them.

    Args:
        stream: the stream of the handle.
        key_groups: range of the handle.
        offsets: position per key group, or `NEVER_STARTED`.
        context: properties of the operator; timers have no stored lengths and are parsed by the layouts of their
            serializers.

    Returns:
        The file; None if no key group has a timer service.

    Raises:
        FormatError: an offset lies outside the stream, key groups are not in their order, or the timers are damaged.
        NotTimersError: the raw keyed state is not timers; the bytes can still be read with `read_sections`.
        UnsupportedError: the timers are in a format before Flink 1.8, or their key or namespace has no layout; their
            bytes can still be read in the same way.
    """
    sections = find_raw_sections(stream, key_groups, offsets)
    for group in group_sections(sections, WINDOW):
        start = group[0].start
        data = read_sections(stream, start, group[-1].end)
        for section in group:
            with _placed(stream.name, start):
                services = read_raw_timers(data, context.layouts, section.start - start, section.end - start)
            if services:
                _check_order(sections, stream.name)
                states = tuple(info for service in services for info in service.states)
                header = KeyedHeader(key_serializer=services[0].key, states=states)
                return RawTimersFile(stream, header, key_groups, sections, context)
    return None


def _check_order(sections: Sequence[Section], name: str) -> None:
    """Check that key groups follow each other as `InternalTimeServiceManagerImpl` writes them.

    Raises:
        FormatError: a key group comes after one with a higher number.
    """
    for before, section in pairwise(sections):
        if section.key_group < before.key_group:
            raise FormatError(
                f"the timers of key group {section.key_group} come after those of key group {before.key_group}",
                where=Where(file=name, offset=section.start),
                hint=EDITED_METADATA,
            )


def find_raw_sections(stream: StateStream, key_groups: KeyGroupRange, offsets: Sequence[int]) -> tuple[Section, ...]:
    """Find the sections of a stream of raw keyed state, ascending by position; each ends where the next one begins.

    Raises:
        FormatError: an offset lies outside the stream.
    """
    present = sorted(
        (offset, key_group) for offset, key_group in zip(offsets, key_groups, strict=True) if offset != NEVER_STARTED
    )
    for offset, key_group in present:
        if not 0 <= offset <= stream.size:
            raise FormatError(
                f"the offset {offset} of key group {key_group} lies outside the {stream.size} bytes of the file",
                where=Where(file=stream.name, offset=offset),
            )
    ends = [*(offset for offset, _ in present[1:]), stream.size][: len(present)]
    return tuple(Section(group, start, end) for (start, group), end in zip(present, ends, strict=True))


def read_raw_timers(
    data: bytes, layouts: LayoutContext, start: int = 0, end: int | None = None
) -> tuple[InternalTimersSnapshot, ...]:
    """Read the timers in the section of one key group of raw keyed state.

    Args:
        data: holds the section.
        layouts: context for deriving the layouts of serializers.
        start: first byte of the section in `data`.
        end: end of the section, exclusive (default: the end of `data`).

    Raises:
        FormatError: the section is cut off, or bytes are left over.
        NotTimersError: the section is not timers.
        UnsupportedError: its serializers are Java objects (before 1.6), or have no layout.
    """
    reader = Reader(data, None, start, end)
    _read_version(reader)
    count = reader.count(_SMALLEST_SERVICE)
    view = np.frombuffer(data, np.uint8)
    services = tuple(_read_service(reader, view, layouts) for _ in range(count))
    reader.expect_end("the timers")
    return services


def move_timestamps(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    """Turn timers of raw keyed state into canonical elements: the timestamp first, its sign flipped.

    Args:
        data: u8, holds the timers.
        starts: i64[n] in `data`.
        stops: i64[n] in `data`; a timer has at least 8 bytes.

    Returns:
        u8, the concatenated timers.

    Raises:
        UsageError: a timer is shorter than its timestamp, or lies outside `data`.
    """
    sizes = stops - starts
    if len(sizes) and (sizes.min() < _TIMESTAMP_SIZE or starts.min() < 0 or stops.max() > len(data)):
        raise UsageError(f"a timer has at least {_TIMESTAMP_SIZE} bytes, inside the {len(data)} bytes given")
    moved = np.empty(int(sizes.sum()), np.uint8)
    _move(data, starts, stops, moved)
    return moved


@njit(cache=True, nogil=True)
def _move(data, starts, stops, moved):  # type: ignore[no-untyped-def]
    at = 0
    for row in range(len(starts)):
        first = at
        middle = stops[row] - 8
        for position in range(middle, stops[row]):
            moved[at] = data[position]
            at += 1
        for position in range(starts[row], middle):
            moved[at] = data[position]
            at += 1
        moved[first] = moved[first] ^ 0x80


def _read_version(reader: Reader) -> None:
    start = reader.position
    if reader.remaining >= len(MARKER) and reader.data[start : start + len(MARKER)] == MARKER:
        reader.skip(len(MARKER))
        version = reader.i32()
        if version == VERSION or (version == 1 and _has_no_services(reader)):
            return
        if version == 1:
            raise older_than_promised("timers whose serializers are Java objects", Where(offset=start))
        what = f"timers of version {version} in raw keyed state are not covered"
        raise UnsupportedVersionError(what, where=Where(offset=start), hint=_TAKE_SAVEPOINT)
    if reader.remaining == 4 and _has_no_services(reader):
        return
    if _is_unversioned(reader):
        raise older_than_promised("timers without a version", Where(offset=start))
    raise NotTimersError(
        "the raw keyed state of the operator is not timers",
        where=Where(offset=start),
        hint="Only the operator itself can read it; copies keep it unchanged",
    )


def _has_no_services(reader: Reader) -> bool:
    """Return whether the number of services is 0; then the section is the same in all versions."""
    return reader.data[reader.position : reader.position + 4] == bytes(4)


def _is_unversioned(reader: Reader) -> bool:
    """Return whether the next bytes are a count, a name and a Java object; the reader does not move."""
    ahead = Reader(reader.data, reader.name, reader.position, reader.end)
    try:
        ahead.count(_SMALLEST_SERVICE)
        ahead.utf()
        return ahead.take(len(_JAVA_STREAM)) == _JAVA_STREAM
    except FormatError:
        return False


def _read_service(reader: Reader, data: npt.NDArray[np.uint8], layouts: LayoutContext) -> InternalTimersSnapshot:
    name = reader.utf()
    key, namespace = read_nested(reader), read_nested(reader)
    layout = lay.Struct(
        (
            ("state_key", derive_layout(key, layouts)),
            ("state_namespace", derive_layout(namespace, layouts)),
            ("timestamp", lay.Primitive(lay.PrimitiveKind.I64)),
        )
    )
    event, processing = (_read_timers(reader, data, layout) for _ in range(2))
    return InternalTimersSnapshot(name, key, namespace, event, processing)


def _read_timers(reader: Reader, data: npt.NDArray[np.uint8], layout: lay.Struct) -> Encoded:
    count, start = reader.count(smallest_size(layout)), reader.position
    if not count:
        # Save time: most key groups of a small operator have no timers.
        return Encoded(np.empty(0, np.uint8), np.empty(0, np.int64))
    try:
        # Only the ends of the timers are needed; to find them, the timestamp is the cheapest field to decode.
        program = compile_layout(layout, frozenset({"timestamp"}))
    except UnsupportedError:
        stops = _find_stops(reader, layout, count)
    else:
        _, stops = decode_sequence(program, data, start, reader.end, count)
        reader.position = int(stops[-1])
    starts = np.concatenate([np.array([start], np.int64), stops[:-1]])
    return Encoded(move_timestamps(data, starts, stops), stops - start)


def _find_stops(reader: Reader, layout: lay.Struct, count: int) -> npt.NDArray[np.int64]:
    stops = np.empty(count, np.int64)
    for row in range(count):
        read_value(layout, reader, tail=False)
        stops[row] = reader.position
    return stops


def _join(encoded: list[tuple[int, Encoded]], offset: int, name: str) -> KeyedRecords:
    sizes = [len(timers.data) for _, timers in encoded]
    bases = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
    starts = np.concatenate([timers.starts + base for (_, timers), base in zip(encoded, bases, strict=True)])
    stops = np.concatenate([timers.stops + base for (_, timers), base in zip(encoded, bases, strict=True)])
    key_groups = np.repeat(
        np.array([key_group for key_group, _ in encoded], np.int32), [len(timers.stops) for _, timers in encoded]
    )
    data = np.concatenate([timers.data for _, timers in encoded])
    none = np.zeros(len(starts), np.int64)
    return KeyedRecords(key_groups, data, starts, stops, none, none, offset, name)


@contextmanager
def _placed(name: str, start: int) -> Iterator[None]:
    """Add the file to errors raised in the block, and convert their offsets to offsets in the file."""
    try:
        yield
    except StateError as error:
        offset = None if error.where.offset is None else error.where.offset + start
        error.where = replace(error.where, file=name, offset=offset)
        raise
