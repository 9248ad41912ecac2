"""Spans of a key group of the heap backend: where entries begin, and reading some of them.

Entries are measured to find where the next one begins; layouts that only the scalar codec reads (Kryo) would take as
long to measure as to read, so that their key groups stay whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.errors import FormatError, Where, at
from state_pipelines.keyed.canonical.section_data import RecordPosition, SectionReader
from state_pipelines.keyed.canonical.sections import WINDOW, Section, read_sections
from state_pipelines.keyed.key_group_splits import StateRun

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.heap.entries import EntryCodec
    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.metadata.streams import StateStream

_ENTRIES = 1 << 16
"""Entries that are measured, or read, at once."""

_HEAD = 6
"""Bytes of the state id and the count in front of the entries of a state."""


def find_runs(
    stream: StateStream, header: KeyedHeader, section: Section, head: int, codecs: Sequence[EntryCodec], step: int
) -> tuple[StateRun, ...]:
    """Walk over a section; see `key_group_splits`. States without entries have no run.

    Args:
        stream: of the file.
        header: of the file.
        section: all that there is of a key group.
        head: bytes of its number.
        codecs: of all states, in kernels.
        step: bytes of data between two positions, about.

    Raises:
        FormatError: the bytes do not have the format.
    """
    if read_sections(stream, section.start, section.start + head) != section.key_group.to_bytes(head, "big"):
        what = f"the section of key group {section.key_group} does not begin with its number"
        raise FormatError(what, where=Where(file=stream.name, offset=section.start))
    reader = SectionReader(stream, section, compressed=header.compressed, head=head)
    runs = []
    for number in range(len(header.states)):
        reader.advance(0, _HEAD)
        state_id, count = (int.from_bytes(each, "big") for each in (reader.data[:2], reader.data[2:_HEAD]))
        if len(reader.data) < _HEAD or state_id >= len(header.states) or count >> 31:
            what = f"key group {section.key_group}: state {number} of the section is cut off, or not in the header"
            raise FormatError(what, where=Where(file=stream.name, offset=section.start + reader.position))
        reader.advance(_HEAD, WINDOW)
        if count:
            with at(file=stream.name, state=header.states[state_id].name):
                runs.append(_find_run(reader, section, state_id, count, codecs[state_id], step))
    reader.advance(0, 1)
    if reader.data and not section.is_open:
        what = f"bytes are left over after the states of key group {section.key_group}"
        raise FormatError(what, where=Where(file=stream.name, offset=section.start + reader.position))
    return tuple(runs)


def _find_run(
    reader: SectionReader, section: Section, state_id: int, count: int, codec: EntryCodec, step: int
) -> StateRun:
    positions: list[RecordPosition] = []
    counts: list[int] = []
    done, size, due = 0, WINDOW, reader.position
    while done < count:
        data = np.frombuffer(reader.data, np.uint8)
        stops = codec.entries.stops(data, min(_ENTRIES, count - done))
        if not len(stops):
            if reader.complete:
                # Raises: it is not cut off here, but where the section ends.
                codec.read(data, 0, len(data), count - done, section.start + reader.position, reader.name)
                raise FormatError(f"{count - done} entries are missing", where=Where(file=reader.name))
            # An entry that is larger than the window.
            size *= 2
            reader.advance(0, size)
            continue
        starts = reader.position + np.concatenate([np.zeros(1, np.int64), stops[:-1]])
        row = int(np.searchsorted(starts, due))
        while row < len(starts):
            positions.append(reader.locate(int(starts[row])))
            counts.append(done + row)
            due = int(starts[row]) + step
            row = int(np.searchsorted(starts, due))
        done += len(stops)
        size = WINDOW
        used = int(stops[-1])
        end = reader.locate(reader.position + used)
        reader.advance(used, size if done < count else _HEAD)
    return StateRun(state_id, tuple(positions), end, (*counts, count))


def read_span(stream: StateStream, header: KeyedHeader, section: Section, codec: EntryCodec) -> Iterator[KeyedRecords]:
    """The records of a span, whose bytes are all held.

    Raises:
        FormatError: the bytes do not have the format.
    """
    span = section.span
    assert span is not None
    reader = SectionReader(stream, section, compressed=header.compressed)
    reader.advance(0, span.stop - span.skip)
    data, offset = np.frombuffer(reader.data, np.uint8), section.start + reader.position
    position, left = 0, span.count
    with at(file=stream.name, state=header.states[span.state_id].name):
        while left:
            count = min(left, _ENTRIES)
            entries, position = codec.read(data, position, len(data), count, offset, stream.name)
            groups = np.full(count, section.key_group, np.int32)
            records = entries.to_records(groups, codec, data, offset, stream.name)
            if len(records):
                yield records
            left -= count
        if position != len(data):
            what = f"key group {section.key_group}: a part of it does not end where an entry does"
            hint = "The file was changed while it was read"
            raise FormatError(what, where=Where(file=stream.name, offset=offset + position), hint=hint)
