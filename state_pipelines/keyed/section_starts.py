"""Checks of the offsets of a handle against the first bytes of sections."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from state_pipelines.binary.snappy_frames import iter_chunks
from state_pipelines.errors import EDITED_METADATA, FormatError, Where, at
from state_pipelines.keyed.heap.reader import KEY_GROUP, HeapFile
from state_pipelines.keyed.key_group_prefix import decode_prefix
from state_pipelines.metadata.streams import read_stream_range
from state_pipelines.storage.reading import do_together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.keyed.canonical.reader import CanonicalFile
    from state_pipelines.keyed.canonical.sections import Section
    from state_pipelines.keyed.section_file import SectionFile
    from state_pipelines.storage import Location

_SMALL = 1 << 20
"""Bytes of a file that is read by one request; of others only the beginnings of sections are."""

_CHUNK = 1 << 17
"""Bytes that hold the first chunk of a snappy stream: 64 KiB of data, which snappy may make a little longer."""

_RECORD = 6
"""Bytes in front of the first key of a canonical section: the state id and the length of the key."""

_NO_RECORD = b"\xff\xff"
"""State id that ends a section (`FullSnapshotUtil.END_OF_KEY_GROUP_MARK`)."""

_LAST_OF_STATE = 0x80
"""Bit of the first byte of a key that ends the records of a state (`FullSnapshotUtil.FIRST_BIT_IN_BYTE_MASK`)."""


def check_section_starts(files: Sequence[SectionFile], prefix: int, location: Location) -> None:
    """Check that each section begins with its key group; neither the other bytes nor the ends are read.

    Args:
        files: the files of an operator.
        prefix: bytes of the key group in front of each key of a canonical file.
        location: of the files, which are read many at a time where their storage takes long to answer.

    Raises:
        FormatError: an offset is that of another key group, or of none.
        StateError: a file cannot be read.
    """
    works = [
        partial(_check, file, sections, prefix)
        for file in files
        # One request for a small file.
        for sections in ([file.sections] if file.stream.size <= _SMALL else ((each,) for each in file.sections))
        if sections
    ]
    do_together(works, location)


def check_first_section(file: CanonicalFile, prefix: int) -> None:
    """Check that a section between the header and the first one that the handle names is not one of the handle's.

    `rescale` hands a file on to several subtasks, so that sections of other key groups may stand there. The other ones
    are not looked at. (In files of the heap backend each key group has an offset.)

    Raises:
        FormatError: it is of a key group that the handle holds, and gives no offset.
        StateError: the file cannot be read.
    """
    if not file.sections or not 0 < file.header_end < file.sections[0].start:
        return
    size = _CHUNK if file.header.compressed else _RECORD + prefix
    begin = read_stream_range(file.stream, file.header_end, min(file.sections[0].start, file.header_end + size))
    with at(file=file.name):
        found = _read_prefix(file, prefix, begin)
    if found is not None and found in file.key_groups:
        raise FormatError(
            f"the handle has no offset for key group {found}, whose records begin right after the header",
            where=Where(file=file.name, offset=file.header_end),
            hint=EDITED_METADATA,
        )


def _check(file: SectionFile, sections: Sequence[Section], prefix: int) -> None:
    size = _CHUNK if file.header.compressed else _RECORD + prefix
    if isinstance(file, HeapFile):
        size = KEY_GROUP
    first = sections[0].start
    last = sections[-1]
    data = read_stream_range(file.stream, first, min(last.end, last.start + size))
    for section in sections:
        start = section.start - first
        begin = data[start : min(start + size, section.end - first)]
        with at(file=file.name):
            found = _read_number(begin) if isinstance(file, HeapFile) else _read_prefix(file, prefix, begin)
        if found is not None and found != section.key_group:
            raise FormatError(
                f"the offset of key group {section.key_group} is not that of its section",
                where=Where(file=file.name, offset=section.start),
                hint=EDITED_METADATA,
            )


def _read_number(data: bytes) -> int:
    """The key group with which a section of the heap backend begins; -1 if it is none."""
    return int.from_bytes(data, "big", signed=True) if len(data) == KEY_GROUP else -1


def _read_prefix(file: SectionFile, prefix: int, data: bytes) -> int | None:
    """The key group in the first key of a canonical section; None where the section has no record, -1 if it is none."""
    if file.header.compressed:
        data = _decompress_first(data, _RECORD + prefix, file.name)
    if data.startswith(_NO_RECORD):
        return None
    key = data[_RECORD : _RECORD + prefix]
    if len(key) < prefix or not int.from_bytes(data[:2], "big") < len(file.header.states):
        return -1
    return decode_prefix(bytes([key[0] & ~_LAST_OF_STATE & 0xFF]) + key[1:], prefix)


def _decompress_first(data: bytes, size: int, name: str) -> bytes:
    """Decompress the first `size` bytes, or more, of a stream whose end may be missing."""
    found = b""
    for chunk in iter_chunks(data, 0, len(data), name=name):
        found += chunk.data
        if len(found) >= size:
            break
    return found
