"""Ends of blocks of the heap backend whose entries have no known length, because their serializer has no reader.

A section is a block per state, and nothing says how long an entry is. The end of such a block is proven when the
blocks after it parse, are those of all other states of the section, and end exactly where the section does, and when
that holds at one offset only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.errors import FormatError, UnsupportedError
from state_pipelines.keyed.record_layout import KeyedRecords

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from state_pipelines.keyed.heap.entries import EntryCodec

HEAD = 6
"""Size in bytes of the head of a block: a state id and a number of entries."""

MAX_ATTEMPTS = 10_000
"""Largest number of offsets that are tried in one section."""

MAX_WORK = 1 << 30
"""Bytes of entries that all tries in one section may read."""


def find_block_end(
    data: npt.NDArray[np.uint8], start: int, end: int, left: frozenset[int], codecs: Sequence[EntryCodec]
) -> int | None:
    """The end of a block whose entries begin at `start`; None where it cannot be proven.

    Args:
        data: u8, holds the section.
        start: first byte of the entries.
        end: of the section.
        left: states whose blocks come after it.
        codecs: of all states.
    """
    if not left:
        return end
    found: int | None = None
    work = 0
    for attempts, head in enumerate(_find_heads(data, start, end, left)[: MAX_ATTEMPTS + 1].tolist()):
        if attempts == MAX_ATTEMPTS or work >= MAX_WORK:
            return None
        fits, stop = _try_blocks(data, head, end, left, codecs)
        work += stop - head
        if fits:
            if found is not None:
                return None
            found = head
    return found


def make_block_record(
    key_group: int, data: npt.NDArray[np.uint8], start: int, end: int, offset: int, name: str
) -> KeyedRecords:
    """Make one record with an empty key, whose value is all entries of a state in a key group."""
    starts, ends = np.array([start], np.int64), np.array([end], np.int64)
    return KeyedRecords(np.array([key_group], np.int32), data, starts, starts, starts, ends, offset, name)


def _find_heads(data: npt.NDArray[np.uint8], start: int, end: int, left: frozenset[int]) -> npt.NDArray[np.int64]:
    """Find the offsets at which the block of one of the `left` states can begin."""
    if end - start < HEAD:
        return np.zeros(0, np.int64)
    raw = data[start:end].astype(np.int64)
    count = len(raw) - HEAD + 1
    ids = raw[:count] << 8 | raw[1 : count + 1]
    numbers = raw[2 : count + 2] << 24 | raw[3 : count + 3] << 16 | raw[4 : count + 4] << 8 | raw[5 : count + 5]
    return np.flatnonzero(np.isin(ids, list(left)) & (numbers <= len(raw))) + start


def _try_blocks(
    data: npt.NDArray[np.uint8], position: int, end: int, left: frozenset[int], codecs: Sequence[EntryCodec]
) -> tuple[bool, int]:
    """Return whether the blocks of all `left` states fill the bytes from `position` to `end`, and how far they go."""
    missing = set(left)
    while missing:
        if end - position < HEAD:
            return False, position
        head = data[position : position + HEAD].tobytes()
        state_id, count = int.from_bytes(head[:2], "big"), int.from_bytes(head[2:], "big")
        if state_id not in missing:
            return False, position
        missing.remove(state_id)
        position += HEAD
        if count:
            try:
                _, position = codecs[state_id].read(data, position, end, count, 0, "")
            except FormatError as error:
                return False, error.where.offset or position
            except UnsupportedError:
                # Nothing measures this one either: it must be the last.
                return not missing, position
    return position == end, position
