"""Finding the groups of a change set, which hold the changes of one key group each, and the changes in them.

A change set does not say how long its groups are: the lengths of all changes must be passed over.
Source: `StateChangeFormat`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.binary.compiled import load_i32_big, njit
from state_pipelines.errors import FormatError, Where
from state_pipelines.keyed.changelog.change_data import FLAG

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.keyed.changelog.change_data import ChangeData, Lookahead, Positions

GROUP, SET, START, END, COUNT = range(5)
"""Columns of groups: key group, number of the change set, first byte, end, number of changes."""

# Operation and state id.
_SMALLEST = 3


def read_groups(ahead: Lookahead, data: ChangeData, offset: int) -> Iterator[Positions]:
    """The groups of a change set, those of metadata too, in the order of the stream.

    Args:
        ahead: reads `data`.
        data: the stream.
        offset: position of the change set.

    Yields:
        i64[g, 5]: entries, with the columns `GROUP` to `COUNT`; the change set is left 0.

    Raises:
        FormatError: the bytes are not a change set.
    """
    require_inside(data, offset)
    left = _read_count(ahead, data, offset, 8)
    position = offset + 4
    while left:
        held = ahead.take_held(position)
        rows = np.zeros((min(left, len(held) // 8), COUNT + 1), np.int64)
        found, after = find_groups(held.ctypes.data, len(held), position, rows)
        if not found:
            # It reaches beyond the window, or it is wrong.
            count = _read_count(ahead, data, position, 4)
            if position + 8 > data.size:
                raise misfit(data.stream.name, position)
            key_group = _read_i32(ahead, position + 4)
            after = _skip(ahead, data, position + 8, count)
            rows, found = np.array([(key_group, 0, position + 8, after, count)], np.int64), 1
        yield rows[:found]
        left -= found
        position = after


def _read_i32(ahead: Lookahead, position: int) -> int:
    return int.from_bytes(ahead.take(position, 4).tobytes(), "big", signed=True)


def _read_count(ahead: Lookahead, data: ChangeData, position: int, minimum: int) -> int:
    """A count of things of at least `minimum` bytes each."""
    count = _read_i32(ahead, position)
    left = data.size - position - 4
    if left < 0 or count < 0 or count * minimum > left:
        what = f"a count of {count} does not fit in the {max(0, left)} bytes left"
        raise FormatError(what, where=Where(file=data.stream.name, offset=position + FLAG))
    return count


def _skip(ahead: Lookahead, data: ChangeData, position: int, count: int) -> int:
    """The end of `count` changes."""
    while count:
        held = ahead.take_held(position)
        skipped, after = skip_changes(held.ctypes.data, len(held), count)
        count -= skipped
        position += after
        if count and not skipped:
            # It reaches beyond the window, or it is wrong.
            size = _read_i32(ahead, position)
            if size < _SMALLEST or len(ahead.take(position, 4 + size)) < 4 + size:
                raise misfit(data.stream.name, position)
    return position


def misfit(name: str, position: int) -> FormatError:
    """The error of a change that does not fit, for the caller to raise."""
    where = Where(file=name, offset=position + FLAG)
    return FormatError("a change reaches beyond its change set or is shorter than its head", where=where)


def require_inside(data: ChangeData, offset: int) -> None:
    """Make sure that a change set begins inside its stream.

    Raises:
        FormatError: it does not.
    """
    if not 0 <= offset <= data.size:
        where = Where(file=data.stream.name, offset=offset + FLAG)
        raise FormatError("a change set is outside its file", where=where)


@njit(cache=True, nogil=True)
def find_groups(base, size, first, rows):  # type: ignore[no-untyped-def]
    """Find groups of changes that follow each other.

    Args:
        base: address of the first group.
        size: bytes from there on.
        first: position of the first group.
        rows: i64[g, 5], zeros; filled but for the change set.

    Returns:
        (number of complete and valid groups, end of the last one).
    """
    position = 0
    for row in range(len(rows)):
        if position + 8 > size:
            return row, first + position
        count = load_i32_big(base + position)
        if count < 0 or count > (size - position) // 4:
            return row, first + position
        skipped, after = skip_changes(base + position + 8, size - position - 8, count)
        if skipped < count:
            return row, first + position
        rows[row, 0] = load_i32_big(base + position + 4)
        rows[row, 2] = first + position + 8
        position += 8 + after
        rows[row, 3] = first + position
        rows[row, 4] = count
    return len(rows), first + position


@njit(cache=True, nogil=True)
def skip_changes(base, size, count):  # type: ignore[no-untyped-def]
    """Pass over consecutive changes, each preceded by its i32 length.

    Args:
        base: address of the first length.
        size: bytes from there on.
        count: how many at most.

    Returns:
        (number of complete changes of at least 3 bytes, end of the last one).
    """
    position = 0
    for row in range(count):
        if position + 4 > size:
            return row, position
        length = load_i32_big(base + position)
        if length < 3 or length > size - position - 4:
            return row, position
        position += 4 + length
    return count, position


@njit(cache=True, nogil=True)
def walk_groups(base, firsts, stops, counts, starts, ends):  # type: ignore[no-untyped-def]
    """Find the changes of groups, each preceded by its i32 length.

    Args:
        base: address to which positions are relative.
        firsts: i64[g], the first length of each group.
        stops: i64[g], no change of the group reaches beyond it.
        counts: i64[g], changes of each group.
        starts: i64[n], filled.
        ends: i64[n], filled.

    Returns:
        -1, or the first group that has a change that does not fit or has less than 3 bytes.
    """
    row = 0
    for group in range(len(firsts)):
        position = firsts[group]
        for _ in range(counts[group]):
            if position + 4 > stops[group]:
                return group
            size = load_i32_big(base + position)
            position += 4
            if size < 3 or size > stops[group] - position:
                return group
            starts[row] = position
            position += size
            ends[row] = position
            row += 1
    return -1
