"""Kernels that compare the bytes of keys."""

from __future__ import annotations

import numpy as np

from state_pipelines.binary.compiled import copy, load_i64, load_u8, njit

_MIX = -7046029254386353131  # 2^64 divided by the golden ratio, odd


@njit(cache=True, nogil=True)
def match_prefix(base, starts, ends, needle, size):  # type: ignore[no-untyped-def]
    """Rows whose bytes begin with `needle`.

    Serialized keys are self-delimiting, so that a key which begins with the bytes of another one is that key.

    Args:
        base: address to which spans are relative.
        starts: i64[n].
        ends: i64[n].
        needle: address of the wanted bytes.
        size: their number.

    Returns:
        i64[m], ascending.
    """
    rows = np.empty(len(starts), np.int64)
    count = 0
    for row in range(len(starts)):
        if ends[row] - starts[row] < size:
            continue
        same = True
        for i in range(size):
            if load_u8(base + starts[row] + i) != load_u8(needle + i):
                same = False
                break
        if same:
            rows[count] = row
            count += 1
    return rows[:count]


@njit(cache=True, nogil=True)
def match_prefixes(base, starts, ends, needles, sizes, lengths, table, found):  # type: ignore[no-untyped-def]
    """Rows whose bytes begin with one of many needles (see `match_prefix`).

    Args:
        base: address to which spans are relative.
        starts: i64[n].
        ends: i64[n].
        needles: i64[k], address of each.
        sizes: i64[k], its bytes.
        lengths: i64[l], the distinct sizes.
        table: i64, a power of two and larger than k; needles by hash (`tabulate_needles`).
        found: bool[n], filled.
    """
    mask = len(table) - 1
    for row in range(len(starts)):
        found[row] = False
        address = base + starts[row]
        for size in lengths:
            if size > ends[row] - starts[row] or found[row]:
                continue
            slot = mix_bytes(address, size, 0) & mask
            while table[slot] >= 0:
                needle = table[slot]
                if sizes[needle] == size and same_bytes(needles[needle], address, size):
                    found[row] = True
                    break
                slot = (slot + 1) & mask


@njit(cache=True, nogil=True)
def tabulate_needles(needles, sizes, table):  # type: ignore[no-untyped-def]
    """Fill the table of `match_prefixes`, which comes full of -1."""
    mask = len(table) - 1
    for needle in range(len(needles)):
        slot = mix_bytes(needles[needle], sizes[needle], 0) & mask
        while table[slot] >= 0:
            slot = (slot + 1) & mask
        table[slot] = needle


@njit(cache=True, nogil=True)
def find_changes(base, starts, ends):  # type: ignore[no-untyped-def]
    """Rows whose bytes differ from those of the row before.

    Args:
        base: address to which spans are relative.
        starts: i64[n].
        ends: i64[n].

    Returns:
        bool[n]; the first row always differs.
    """
    changed = np.ones(len(starts), np.bool_)
    for row in range(1, len(starts)):
        size = ends[row] - starts[row]
        if size != ends[row - 1] - starts[row - 1]:
            continue
        same = True
        for i in range(size):
            if load_u8(base + starts[row] + i) != load_u8(base + starts[row - 1] + i):
                same = False
                break
        changed[row] = not same
    return changed


@njit(cache=True, nogil=True)
def number_keys(addresses, sizes, codes, rows):  # type: ignore[no-untyped-def]
    """Number the distinct keys in the order of their first occurrence.

    Args:
        addresses: i64[n], address of each key.
        sizes: i64[n], its bytes.
        codes: i64[n], what must be equal besides the bytes.
        rows: i64[n], gets the number of each key.

    Returns:
        i64[m], where each distinct key occurs first.
    """
    capacity = 16
    while capacity < 2 * len(addresses):
        capacity *= 2
    table = np.full(capacity, -1, np.int64)
    hashes = np.empty(len(addresses), np.int64)
    firsts = np.empty(len(addresses), np.int64)
    count = 0
    for i in range(len(addresses)):
        mixed = mix_bytes(addresses[i], sizes[i], codes[i])
        slot = mixed & (capacity - 1)
        while True:
            row = table[slot]
            if row < 0:
                table[slot] = count
                hashes[count] = mixed
                firsts[count] = i
                rows[i] = count
                count += 1
                break
            first = firsts[row]
            alike = hashes[row] == mixed and codes[first] == codes[i] and sizes[first] == sizes[i]
            if alike and same_bytes(addresses[first], addresses[i], sizes[i]):
                rows[i] = row
                break
            slot = (slot + 1) & (capacity - 1)
    return firsts[:count]


@njit(cache=True, nogil=True)
def mix_bytes(address, size, seed):  # type: ignore[no-untyped-def]
    """A hash i64 of `size` bytes at an address and of what else counts (`seed`)."""
    mixed = (seed ^ size) * _MIX
    position = 0
    while position + 8 <= size:
        mixed = (mixed ^ load_i64(address + position)) * _MIX
        mixed ^= mixed >> 29
        position += 8
    tail = 0
    while position < size:
        tail = tail << 8 | load_u8(address + position)
        position += 1
    mixed = (mixed ^ tail) * _MIX
    return mixed ^ mixed >> 32


@njit(cache=True, nogil=True)
def same_bytes(left, right, size):  # type: ignore[no-untyped-def]
    """Whether `size` bytes at two addresses are equal."""
    position = 0
    while position + 8 <= size:
        if load_i64(left + position) != load_i64(right + position):
            return False
        position += 8
    while position < size:
        if load_u8(left + position) != load_u8(right + position):
            return False
        position += 1
    return True


@njit(cache=True, nogil=True)
def join_spans(base, starts, ends, more_starts, more_ends, target, stops):  # type: ignore[no-untyped-def]
    """Concatenate two spans of each row.

    Args:
        base: address to which spans are relative.
        starts: i64[n], of the first span.
        ends: i64[n].
        more_starts: i64[n], of the second span.
        more_ends: i64[n].
        target: address with room for all spans.
        stops: i64[n], receives the end of each row in `target`.
    """
    position = 0
    for row in range(len(starts)):
        copy(target + position, base + starts[row], ends[row] - starts[row])
        position += ends[row] - starts[row]
        copy(target + position, base + more_starts[row], more_ends[row] - more_starts[row])
        position += more_ends[row] - more_starts[row]
        stops[row] = position
