"""Kernels over the blocks of tables: decompressed, parsed, searched, and the versions of keys resolved.

* `decompress_snappy`: many blocks with one call. The blocks of a table have about 4 KiB: a call per block costs about
  what its decompression does. Source: `format_description.txt` of snappy: the plain size as a varint, then literals,
  and copies of what is there already.
* `parse_entries`, `parse_index`, `find_key`: entries and index of blocks. Layout of a block, from
  `table/block_based/block_builder.cc` of RocksDB: entries `varint shared, varint notShared, varint valueSize, rest of
  the key, value`, then the positions of the restart points as u32 and their number. A key ends with eight bytes,
  `sequence << 8 | type`, little-endian (`db/dbformat.h`).
* `merge_runs`, `resolve_versions`, `write_resolved`: the versions of keys: runs of entries merged, and the result for
  each key written. The rules are those of `MergeHelper::MergeUntil` and `StringAppendTESTOperator::FullMergeV2` of
  RocksDB.
"""

from __future__ import annotations

from state_pipelines.binary.compiled import copy, load_i64, load_i64_big, load_u8, load_u32, njit, store_8, store_64

DELETION = 0
VALUE = 1
MERGE = 2
SINGLE_DELETION = 7
RANGE_DELETION = 15
KEY_TRAILER_SIZE = 8

NOT_PLAIN = 1  # versions of one key, deletions or merge operands are among the entries
HAS_MERGES = 2

BAD_BLOCK = -1
BAD_ORDER = -2
BAD_TYPE = -3

MESSAGES = {
    BAD_BLOCK: "a block does not have the layout of entries and restart points",
    BAD_ORDER: "the keys of a table are not in order",
    BAD_TYPE: "an entry has a type that is not supported (a wide column, blob or transaction)",
}

_HASH_INDEX = 1 << 31
_SIGN = -(1 << 63)


@njit(cache=True, nogil=True)
def load_varint(at, end):  # type: ignore[no-untyped-def]
    """Read a varint of at most 63 bits; return the value and the end position, which is -1 if the varint is invalid."""
    value = 0
    shift = 0
    while at < end and shift < 63:
        byte = load_u8(at)
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, -1


@njit(cache=True, nogil=True)
def compare(left, left_size, right, right_size):  # type: ignore[no-untyped-def]
    """Compare two keys at addresses by their bytes; return a number below 0, 0, or one above 0."""
    size = min(left_size, right_size)
    at = 0
    while at + 8 <= size:
        a = load_i64_big(left + at)
        b = load_i64_big(right + at)
        if a != b:
            # With the sign bit flipped, signed comparison gives the unsigned order of the bytes.
            return -1 if (a ^ _SIGN) < (b ^ _SIGN) else 1
        at += 8
    while at < size:
        a = load_u8(left + at)
        b = load_u8(right + at)
        if a != b:
            return -1 if a < b else 1
        at += 1
    return left_size - right_size


@njit(cache=True, nogil=True)
def count_entries(base, starts, ends, entries_ends, counts):  # type: ignore[no-untyped-def]
    """Walk the entries of blocks and check every length in them.

    Args:
        base: address of the blocks, decompressed.
        starts: i64[b], start of each block relative to `base`.
        ends: i64[b], end of each block.
        entries_ends: i64[b], filled with the end of the entries of each block, where its restart points start.
        counts: i64[b], filled with the number of entries up to the end of each block.

    Returns:
        (entries, bytes of their keys and values, -1), or (0, 0, index) of the first block that is invalid.
    """
    count = 0
    total = 0
    for block in range(len(starts)):
        at = base + starts[block]
        end = base + ends[block] - 4
        if end < at:
            return 0, 0, block
        restarts = load_u32(end)
        if restarts & _HASH_INDEX:
            restarts &= 0x7FFFFFFF
            if end - 2 < at:
                return 0, 0, block
            end -= 2 + (load_u8(end - 2) | load_u8(end - 1) << 8)
        end -= 4 * restarts
        # RocksDB writes no block without entries.
        if end <= at:
            return 0, 0, block
        entries_ends[block] = end - base
        key_size = 0
        while at < end:
            shared, at = load_varint(at, end)
            if at < 0:
                return 0, 0, block
            rest, at = load_varint(at, end)
            if at < 0:
                return 0, 0, block
            value_size, at = load_varint(at, end)
            if at < 0 or shared > key_size or rest > end - at or value_size > end - at - rest:
                return 0, 0, block
            key_size = shared + rest
            if key_size < KEY_TRAILER_SIZE:
                return 0, 0, block
            at += rest + value_size
            total += key_size + value_size
            count += 1
        counts[block] = count
    return count, total, -1


@njit(cache=True, nogil=True)
def parse_entries(base, starts, entries_ends, sequence, target, key_starts, key_ends, value_starts, value_ends):  # type: ignore[no-untyped-def]
    """Write the keys and values of blocks, keys without prefix compression.

    The trailer (8 bytes of sequence and type) follows each user key.

    Args:
        base: address of the blocks that `count_entries` has checked.
        starts: i64[b], start of each block relative to `base`.
        entries_ends: i64[b], end of the entries of each block.
        sequence: sequence number of all entries of an ingested table; -1 to keep that of each entry.
        target: address of the output.
        key_starts: i64[n], filled with the start of each key relative to `target`, as are the next three arrays.
        key_ends: i64[n], end of each user key, where its trailer starts.
        value_starts: i64[n], start of each value.
        value_ends: i64[n], end of each value.

    Returns:
        (flags, -1), or (a negative code of `MESSAGES`, index of the invalid block).
    """
    flags = 0
    count = 0
    to = target
    previous = to
    previous_size = 0
    for block in range(len(starts)):
        at = base + starts[block]
        end = base + entries_ends[block]
        while at < end:
            shared, at = load_varint(at, end)
            rest, at = load_varint(at, end)
            value_size, at = load_varint(at, end)
            copy(to, previous, shared)
            copy(to + shared, at, rest)
            at += rest
            size = shared + rest - KEY_TRAILER_SIZE
            trailer = load_i64(to + size)
            kind = trailer & 0xFF
            if trailer < 0:
                return BAD_TYPE, block
            if kind != VALUE:
                if kind == MERGE:
                    flags |= HAS_MERGES
                elif kind != DELETION and kind != SINGLE_DELETION:
                    return BAD_TYPE, block
                flags |= NOT_PLAIN
            if count > 0:
                common = min(shared, min(size, previous_size))
                order = compare(previous + common, previous_size - common, to + common, size - common)
                if order > 0:
                    return BAD_ORDER, block
                if order == 0:
                    if load_i64(previous + previous_size) <= load_i64(to + size):
                        return BAD_ORDER, block
                    flags |= NOT_PLAIN
            key_starts[count] = to - target
            key_ends[count] = to + size - target
            value = to + size + KEY_TRAILER_SIZE
            copy(value, at, value_size)
            at += value_size
            value_starts[count] = value - target
            value_ends[count] = value + value_size - target
            previous = to
            previous_size = size
            to = value + value_size
            count += 1
    if sequence >= 0:
        # The trailers are replaced only now, because a key may share bytes of the trailer of the key before it.
        for entry in range(count):
            at = target + key_ends[entry]
            store_64(at, sequence << 8 | load_u8(at))
    return flags, -1


@njit(cache=True, nogil=True)
def find_misplaced(base, key_starts, key_ends, counts, index_base, separator_starts, separator_ends, first):  # type: ignore[no-untyped-def]
    """Find a data block with a key on the wrong side of a separator.

    Args:
        base: address of the keys.
        key_starts: i64[n], start of each key relative to `base`; the ascending keys of adjacent blocks.
        key_ends: i64[n], end of each key.
        counts: i64[b], number of entries up to the end of each block; no block is empty.
        index_base: address of the separators.
        separator_starts: i64[s], start of each separator of the table relative to `index_base`.
        separator_ends: i64[s], end of each separator.
        first: number of the first of the blocks in the table.

    Returns:
        Index of the first such block among the given blocks; -1 if there is none.
    """
    entry = 0
    for block in range(len(counts)):
        last = counts[block] - 1
        at = first + block
        separator = index_base + separator_starts[at]
        size = separator_ends[at] - separator_starts[at]
        if compare(base + key_starts[last], key_ends[last] - key_starts[last], separator, size) > 0:
            return block
        if at > 0:
            separator = index_base + separator_starts[at - 1]
            size = separator_ends[at - 1] - separator_starts[at - 1]
            if compare(base + key_starts[entry], key_ends[entry] - key_starts[entry], separator, size) < 0:
                return block
        entry = last + 1
    return -1


@njit(cache=True, nogil=True)
def parse_index(base, entries_end, delta, trailer_size, target, key_starts, key_ends, offsets, sizes):  # type: ignore[no-untyped-def]
    """Read an index block (`IndexBlockIter` of `table/block_based/block.h`).

    Args:
        base: address of the block.
        entries_end: end of its entries, where its restart points start.
        delta: entries have no value size; after a key that shares bytes, only the difference of block sizes is stored.
        trailer_size: bytes after the user key of a separator, 0 or 8.
        target: address to which the keys are written, or 0 to only count entries and bytes.
        key_starts: i64[n], filled with the start of each key relative to `target`.
        key_ends: i64[n], filled with the end of each key.
        offsets: i64[n], filled with the offset of each data block in the file.
        sizes: i64[n], filled with the size of each data block without its trailer.

    Returns:
        (entries, bytes of their keys); (-1, 0) if this is no index block.
    """
    at = base
    end = base + entries_end
    count = 0
    total = 0
    previous = 0
    previous_size = 0
    offset = 0
    size = 0
    while at < end:
        shared, at = load_varint(at, end)
        if at < 0:
            return -1, 0
        rest, at = load_varint(at, end)
        if at < 0 or shared > previous_size:
            return -1, 0
        end_at = -1
        if not delta:
            value_size, at = load_varint(at, end)
            if at < 0:
                return -1, 0
            end_at = rest + value_size
        if rest > end - at or shared + rest < trailer_size:
            return -1, 0
        if not delta:
            end_at += at
        if target:
            copy(target + total, previous, shared)
            copy(target + total + shared, at, rest)
        at += rest
        if delta and shared > 0:
            change, at = load_varint(at, end)
            if at < 0:
                return -1, 0
            offset += size + 5
            size += change >> 1 ^ -(change & 1)
        else:
            offset, at = load_varint(at, end)
            if at < 0:
                return -1, 0
            size, at = load_varint(at, end)
            if at < 0:
                return -1, 0
        if not delta and at != end_at:
            return -1, 0
        if target:
            key_starts[count] = total
            key_ends[count] = total + shared + rest - trailer_size
            offsets[count] = offset
            sizes[count] = size
            previous = target + total
        previous_size = shared + rest
        total += previous_size
        count += 1
    return count, total


@njit(cache=True, nogil=True)
def find_key(base, starts, ends, key, size):  # type: ignore[no-untyped-def]
    """Return the index of the first of ascending keys that is not below `key`."""
    low = 0
    high = len(starts)
    while low < high:
        middle = (low + high) // 2
        if compare(base + starts[middle], ends[middle] - starts[middle], key, size) < 0:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def find_disorder(base, starts, ends):  # type: ignore[no-untyped-def]
    """Return the index of the first key that is not above the previous key; -1 if all are in order and distinct."""
    for entry in range(1, len(starts)):
        left = base + starts[entry - 1]
        right = base + starts[entry]
        if compare(left, ends[entry - 1] - starts[entry - 1], right, ends[entry] - starts[entry]) >= 0:
            return entry
    return -1


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
        starts: i64[n], addresses of the keys, which are in order within each run; a trailer follows each key.
        ends: i64[n], end of each key.
        bounds: i64[r + 1], index of the first entry of each run, then n; no run is empty.
        order: i64[n], filled with the indices of the entries in merged order.
    """
    # A heap of runs, ordered by the next entry of each run.
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
    """Find the entries that make up the value of each user key, and drop deleted keys.

    They are the newest put, or merge operands from the newest down to the first put or deletion.

    Args:
        key_starts: i64[n], addresses of the keys; a trailer follows each key.
        key_ends: i64[n], addresses of the ends of the keys.
        value_starts: i64[n], addresses of the values.
        value_ends: i64[n], addresses of the ends of the values.
        order: i64[n], indices of the entries by key, the newest version of a key first.
        erased: i64[5, e], deleted ranges of keys, ascending without overlap. The rows are: address of the first key of
            a range, of the end of that key, of the key after the range, of the end of that key, and the sequence below
            which entries in the range are deleted.
        firsts: i64[n], filled with the position in `order` of the newest entry of each remaining key.
        counts: i64[n], filled with the number of entries that make up the value of each remaining key.

    Returns:
        (number of remaining keys, bytes of their keys and values).
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
    """Write the remaining keys and their values; several entries of a value are joined by the delimiter, oldest first.

    Args:
        key_starts: as in `resolve_versions`.
        key_ends: as in `resolve_versions`.
        value_starts: as in `resolve_versions`.
        value_ends: as in `resolve_versions`.
        order: as in `resolve_versions`.
        firsts: i64[k], filled by `resolve_versions`.
        counts: i64[k], filled by `resolve_versions`.
        target: address of the output.
        new_key_starts: i64[k], filled with the start of each key relative to `target`, as are the next three arrays.
        new_key_ends: i64[k], end of each key.
        new_value_starts: i64[k], start of each value.
        new_value_ends: i64[k], end of each value.
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


# The tag of a literal holds its length up to 60; a larger number says how many bytes after the tag hold the length.
_LONGEST_SHORT = 60


@njit(cache=True, nogil=True)
def decompress_snappy(base, starts, ends, target, plain_starts, plain_ends):  # type: ignore[no-untyped-def]
    """Decompress snappy blocks.

    Args:
        base: address of the blocks.
        starts: i64[b], start of each compressed block relative to `base`; it begins with its decompressed size.
        ends: i64[b], end of each compressed block.
        target: address of the output.
        plain_starts: i64[b], start of each decompressed block relative to `target`.
        plain_ends: i64[b], end of each decompressed block.

    Returns:
        Index of the first block that is not snappy or has another decompressed size; -1 if all are valid.
    """
    for block in range(len(starts)):
        size, at = load_varint(base + starts[block], base + ends[block])
        if at < 0 or size != plain_ends[block] - plain_starts[block]:
            return block
        if not _decompress(at, base + ends[block], target + plain_starts[block], target + plain_ends[block]):
            return block
    return -1


@njit(cache=True, nogil=True)
def _decompress(at, end, target, target_end):  # type: ignore[no-untyped-def]
    to = target
    while at < end:
        tag = load_u8(at)
        kind = tag & 3
        at += 1
        if kind == 0:
            size = (tag >> 2) + 1
            if size <= 16 and end - at >= 16 and target_end - to >= 16:
                # Most literals are short. If source and target have room for two words, no loop is needed to copy them.
                store_64(to, load_i64(at))
                store_64(to + 8, load_i64(at + 8))
                at += size
                to += size
                continue
            if size > _LONGEST_SHORT:
                width = size - _LONGEST_SHORT
                if width > end - at:
                    return False
                size = 1
                for byte in range(width):
                    size += load_u8(at + byte) << 8 * byte
                at += width
            if size > end - at or size > target_end - to:
                return False
            copy(to, at, size)
            at += size
            to += size
            continue
        if end - at < (1 << kind >> 1):
            return False
        if kind == 1:
            size = (tag >> 2 & 7) + 4
            distance = (tag >> 5) << 8 | load_u8(at)
            at += 1
        elif kind == 2:
            size = (tag >> 2) + 1
            distance = load_u8(at) | load_u8(at + 1) << 8
            at += 2
        else:
            size = (tag >> 2) + 1
            distance = load_u32(at)
            at += 4
        if distance == 0 or distance > to - target or size > target_end - to:
            return False
        _repeat(to, distance, size, target_end)
        to += size
    return to == target_end


@njit(cache=True, nogil=True)
def _repeat(to, distance, size, target_end):  # type: ignore[no-untyped-def]
    """Copy `size` bytes from `distance` bytes before `to`; source and target may overlap."""
    source = to - distance
    stop = to + size
    if target_end - stop < 8:
        while to < stop:
            store_8(to, load_u8(source))
            to += 1
            source += 1
        return
    # Whole words are copied, up to seven bytes too many. A pattern shorter than a word is doubled until it fills one.
    while to - source < 8 and to < stop:
        store_64(to, load_i64(source))
        to += to - source
    while to < stop:
        store_64(to, load_i64(source))
        to += 8
        source += 8
