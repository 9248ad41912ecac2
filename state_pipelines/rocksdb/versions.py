"""Kernels over the versions of keys: runs of entries merged, and what is left of each key written.

The rules are those of `MergeHelper::MergeUntil` and `StringAppendTESTOperator::FullMergeV2` of RocksDB.
"""

from __future__ import annotations

from state_pipelines.binary.compiled import njit
from state_pipelines.binary.memory import copy, load_i64, store_8
from state_pipelines.rocksdb.kernels import DELETION, MERGE, SINGLE_DELETION, compare

DELIMITER = 0x2C


@njit(cache=True, nogil=True)
def _precedes(starts, ends, left, right):  # type: ignore[no-untyped-def]
    order = compare(starts[left], ends[left] - starts[left], starts[right], ends[right] - starts[right])
    if order == 0:
        return load_i64(ends[left]) > load_i64(ends[right])
    return order < 0


@njit(cache=True, nogil=True)
def merge_runs(starts, ends, bounds, order):  # type: ignore[no-untyped-def]
    """Merge runs of entries: by key, the newest version of a key first.

    Args:
        starts: i64[n] addresses of the keys, each run in order; their trailers stand after them.
        ends: i64[n].
        bounds: i64[r + 1] where each run starts; no run is empty.
        order: i64[n], filled: positions in `starts`.
    """
    # A heap of the runs by their next entries.
    runs = len(bounds) - 1
    heads = bounds[:-1].copy()
    heap = bounds[:-1].copy()
    for run in range(runs):
        heap[run] = run
    for top in range(runs // 2 - 1, -1, -1):
        _sift(starts, ends, heads, heap, top, runs)
    for position in range(len(order)):
        run = heap[0]
        order[position] = heads[run]
        heads[run] += 1
        if heads[run] == bounds[run + 1]:
            runs -= 1
            heap[0] = heap[runs]
        _sift(starts, ends, heads, heap, 0, runs)


@njit(cache=True, nogil=True)
def _sift(starts, ends, heads, heap, at, size):  # type: ignore[no-untyped-def]
    while True:
        child = 2 * at + 1
        if child >= size:
            return
        if child + 1 < size and _precedes(starts, ends, heads[heap[child + 1]], heads[heap[child]]):
            child += 1
        if not _precedes(starts, ends, heads[heap[child]], heads[heap[at]]):
            return
        heap[at], heap[child] = heap[child], heap[at]
        at = child


@njit(cache=True, nogil=True)
def resolve_versions(key_starts, key_ends, value_starts, value_ends, order, erased, firsts, counts):  # type: ignore[no-untyped-def]
    """Find what is left of each user key: the newest put, or merge operands down to the first put or deletion.

    Args:
        key_starts: i64[n] addresses, as are the other three; trailers stand after the keys.
        key_ends: i64[n].
        value_starts: i64[n].
        value_ends: i64[n].
        order: i64[n] positions, by key, the newest version first.
        erased: i64[5, e] ranges of keys in ascending order, which do not overlap: addresses of start and its end, of
            end and its end, and the sequence below which entries in the range are deleted.
        firsts: i64[n], filled: position in `order` of a key's newest entry.
        counts: i64[n], filled: entries of the key that make up its value.

    Returns:
        (keys left, bytes of their keys and values).
    """
    total = 0
    keys = 0
    position = 0
    span = 0
    spans = erased.shape[1]
    while position < len(order):
        first = order[position]
        key = key_starts[first]
        size = key_ends[first] - key
        deleted_below = -1
        while span < spans and compare(erased[2, span], erased[3, span] - erased[2, span], key, size) <= 0:
            span += 1
        if span < spans and compare(erased[0, span], erased[1, span] - erased[0, span], key, size) <= 0:
            deleted_below = erased[4, span]
        start = position
        used = 0
        is_open = True
        value_size = 0
        while position < len(order):
            entry = order[position]
            if position > start and compare(key_starts[entry], key_ends[entry] - key_starts[entry], key, size) != 0:
                break
            position += 1
            if not is_open:
                continue
            trailer = load_i64(key_ends[entry])
            kind = trailer & 0xFF
            if trailer >> 8 < deleted_below or kind in (DELETION, SINGLE_DELETION):
                is_open = False
                continue
            used += 1
            value_size += value_ends[entry] - value_starts[entry]
            is_open = kind == MERGE
        if used > 0:
            firsts[keys] = start
            counts[keys] = used
            keys += 1
            total += size + value_size + used - 1
    return keys, total


@njit(cache=True, nogil=True)
def write_resolved(  # type: ignore[no-untyped-def]
    key_starts,
    key_ends,
    value_starts,
    value_ends,
    order,
    firsts,
    counts,
    target,
    new_key_starts,
    new_key_ends,
    new_value_starts,
    new_value_ends,
):
    """Write what `resolve_versions` left, oldest first and joined by the delimiter where several entries make a value.

    Args:
        key_starts: as for `resolve_versions`, like all up to `order`.
        key_ends: see there.
        value_starts: see there.
        value_ends: see there.
        order: see there.
        firsts: i64[k].
        counts: i64[k].
        target: address of the output.
        new_key_starts: i64[k], filled, relative to `target`; so are the other three.
        new_key_ends: i64[k].
        new_value_starts: i64[k].
        new_value_ends: i64[k].
    """
    to = target
    for number in range(len(firsts)):
        first = firsts[number]
        entry = order[first]
        size = key_ends[entry] - key_starts[entry]
        copy(to, key_starts[entry], size)
        new_key_starts[number] = to - target
        to += size
        new_key_ends[number] = to - target
        new_value_starts[number] = to - target
        for position in range(first + counts[number] - 1, first - 1, -1):
            entry = order[position]
            size = value_ends[entry] - value_starts[entry]
            copy(to, value_starts[entry], size)
            to += size
            if position > first:
                store_8(to, DELIMITER)
                to += 1
        new_value_ends[number] = to - target
