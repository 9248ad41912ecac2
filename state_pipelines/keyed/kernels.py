"""Kernels over keys, canonical sections and entries of the heap backend.

* `match_prefix`, `number_keys` and others: keys.
* `scan_records`, `sort_records`, `join_sections`, `write_records`: sections of canonical files. A section is `i16
  stateId`, then records `i32 length, key, i32 length, value`; the top bit of a key's first byte says that another state
  id (or 0xFFFF, the end) follows the record. Source: `FullSnapshotAsyncWriter`, `FullSnapshotUtil`.
* `write_entries`: entries of the heap backend. An entry is namespace, key, then the value; of a list its count and
  elements, of a map its count and then user key, null flag and user value by turns. Canonical records have key,
  namespace and user key in one run of bytes, elements of a list with a delimiter between them, and one record per map
  entry. Source: `CopyOnWriteStateMapSnapshot`, `SerializedCompositeKeyBuilder`, `ListDelimitedSerializer`.
"""

from __future__ import annotations

import numpy as np

from state_pipelines.binary.compiled import (
    copy,
    load_i32_big,
    load_i64,
    load_u8,
    load_u16_big,
    njit,
    store_8,
    store_16_big,
    store_32_big,
)
from state_pipelines.keyed.digests import add_key_group, hash_record

_MIX = -7046029254386353131  # 2^64 divided by the golden ratio, odd


@njit(cache=True, nogil=True)
def match_prefix(base, starts, ends, needle, size):  # type: ignore[no-untyped-def]
    """Return the rows whose bytes begin with the bytes at `needle`.

    Serialized keys are self-delimiting: if the bytes of a row begin with a serialized key, they have that key.

    Args:
        base: address to which spans are relative.
        starts: i64[n].
        ends: i64[n].
        needle: address of the wanted bytes.
        size: number of wanted bytes.

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
    """Mark the rows whose bytes begin with one of many needles (see `match_prefix`).

    Args:
        base: address to which spans are relative.
        starts: i64[n].
        ends: i64[n].
        needles: i64[k], address of each needle.
        sizes: i64[k], number of bytes of each needle.
        lengths: i64[l], the distinct sizes.
        table: i64[t], hash table of the needles (`tabulate_needles`); t is a power of two and larger than k.
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
    """Fill the hash table of `match_prefixes`; all its elements must be -1 before."""
    mask = len(table) - 1
    for needle in range(len(needles)):
        slot = mix_bytes(needles[needle], sizes[needle], 0) & mask
        while table[slot] >= 0:
            slot = (slot + 1) & mask
        table[slot] = needle


@njit(cache=True, nogil=True)
def find_changes(base, starts, ends):  # type: ignore[no-untyped-def]
    """Mark the rows whose bytes differ from those of the row before.

    Args:
        base: address to which spans are relative.
        starts: i64[n].
        ends: i64[n].

    Returns:
        bool[n]; the first row always counts as different.
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
        sizes: i64[n], number of bytes of each key.
        codes: i64[n], numbers that must be equal, besides the bytes, for two keys to be the same.
        rows: i64[n], gets the number of each key.

    Returns:
        i64[m], index of the first occurrence of each distinct key.
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
    """Return a hash, i64, of the `size` bytes at an address and of the number `seed`."""
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
    """Return whether `size` bytes at two addresses are equal."""
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
    """Copy two spans of each row, one after the other, for all rows.

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


END_OF_KEY_GROUP = 0xFFFF
FLAG = 0x80

DONE = 0
MORE = 1  # the output is full, or the data end inside an unfinished section: call again
TRUNCATED = 2
BAD_LENGTH = 3
BAD_KEY_GROUP = 4
BAD_STATE = 5
LEFT_OVER = 6

MESSAGES = {
    TRUNCATED: "the key-group section ends before its end mark",
    BAD_LENGTH: "the length of a key or value does not fit in the section",
    BAD_KEY_GROUP: "a key's prefix names another key group than its section",
    LEFT_OVER: "bytes are left over after the end mark of the key group",
    BAD_STATE: "a state id is higher than the number of states in the header",
}


@njit(cache=True, inline="always")
def find_record(base, position, end, key_group, complete, prefix):  # type: ignore[no-untyped-def]
    """Find the bounds of key and value of one record in a section of a canonical file.

    Args:
        base: address of the data.
        position: of the record, relative to `base`.
        end: end of the available bytes of its section, relative to `base`.
        key_group: of the section.
        complete: the data have the section up to its end; otherwise missing bytes give `MORE`, not an error.
        prefix: bytes of the key-group prefix, 1 or 2.

    Returns:
        (status, key end, value start, value end, whether another state id follows); only after `DONE` they are valid.
    """
    if position + 4 > end:
        return (TRUNCATED if complete else MORE), 0, 0, 0, False
    size = load_i32_big(base + position)
    key = position + 4
    if size < prefix:
        return BAD_LENGTH, 0, 0, 0, False
    if key + size + 4 > end:
        return (BAD_LENGTH if complete else MORE), 0, 0, 0, False
    first = load_u8(base + key)
    found = first & 0x7F
    if prefix == 2:
        found = found << 8 | load_u8(base + key + 1)
    if found != key_group:
        return BAD_KEY_GROUP, 0, 0, 0, False
    value = key + size + 4
    length = load_i32_big(base + value - 4)
    if length < 0:
        return BAD_LENGTH, 0, 0, 0, False
    follows = (first & FLAG) != 0
    if value + length + (2 if follows else 0) > end:
        return (BAD_LENGTH if complete else MORE), 0, 0, 0, False
    return DONE, key + size, value, value + length, follows


@njit(cache=True, nogil=True)
def scan_records(base, starts, ends, key_groups, complete, exact, prefix, wanted, cursor, output):  # type: ignore[no-untyped-def]
    """Find the records of wanted states in sections of a canonical file.

    Args:
        base: address of the data.
        starts: i64[s] first byte of each section, relative to `base`.
        ends: i64[s] end of the bytes of each section.
        key_groups: i32[s].
        complete: the data have the sections up to their ends; otherwise missing bytes give `MORE`, not an error.
        exact: no bytes may follow the end mark of a section.
        prefix: bytes of the key-group prefix, 1 or 2.
        wanted: bool[n], by state id.
        cursor: i64[4], updated: index of the section, position (-1 at its start), state id, end of the last finished
            section.
        output: i64[6, r], filled: state id, key group, key start after the prefix, key end, value start, value end.

    Returns:
        (status, number of records). After an error the cursor is undefined.
    """
    count = 0
    section = cursor[0]
    position = cursor[1]
    state = cursor[2]
    room = output.shape[1]
    while section < len(starts):
        end = ends[section]
        key_group = key_groups[section]
        if position < 0:
            position = starts[section]
            if position + 2 > end:
                cursor[0], cursor[1] = section, -1
                return (TRUNCATED if complete else MORE), count
            state = load_u16_big(base + position)
            position += 2
        while state != END_OF_KEY_GROUP:
            cursor[0], cursor[1], cursor[2] = section, position, state
            if state >= len(wanted):
                return BAD_STATE, count
            if count >= room:
                return MORE, count
            status, key_end, value, after, follows = find_record(base, position, end, key_group, complete, prefix)
            if status != DONE:
                return status, count
            if wanted[state]:
                output[0, count] = state
                output[1, count] = key_group
                output[2, count] = position + 4 + prefix
                output[3, count] = key_end
                output[4, count] = value
                output[5, count] = after
                count += 1
            position = after
            if follows:
                state = load_u16_big(base + position)
                position += 2
        cursor[3] = position
        if complete and exact and position != end:
            cursor[0], cursor[1] = section, position
            return LEFT_OVER, count
        section += 1
        position = -1
    cursor[0], cursor[1], cursor[2] = section, -1, 0
    return DONE, count


@njit(cache=True, nogil=True)
def find_record_starts(base, size, key_group, complete, prefix, states, step, cursor, starts):  # type: ignore[no-untyped-def]
    """Find starts of records: of the first record of each state, and then of one record about every `step` bytes.

    Args:
        base: address of the bytes of one section.
        size: number of these bytes.
        key_group: of the section.
        complete: the bytes go to the end of the section; otherwise missing bytes give `MORE`, not an error.
        prefix: bytes of the key-group prefix, 1 or 2.
        states: number of states in the header.
        step: bytes, at least 1.
        cursor: i64[3], updated: position (-1 at the start of the section), state id, position of the last record start.
        starts: i64[2, r], filled: position, state id.

    Returns:
        (status, number of starts). After `DONE` the cursor is after the end mark, after an error it is undefined.
    """
    count = 0
    position = cursor[0]
    state = cursor[1]
    last = cursor[2]
    room = starts.shape[1]
    if position < 0:
        if size < 2:
            return (TRUNCATED if complete else MORE), count
        state = load_u16_big(base)
        position = 2
        last = position - step
    while state != END_OF_KEY_GROUP:
        cursor[0], cursor[1], cursor[2] = position, state, last
        if state >= states:
            return BAD_STATE, count
        if count >= room:
            return MORE, count
        status, _, _, after, follows = find_record(base, position, size, key_group, complete, prefix)
        if status != DONE:
            return status, count
        if position - last >= step:
            starts[0, count] = position
            starts[1, count] = state
            last = position
            count += 1
        position = after
        if follows:
            state = load_u16_big(base + position)
            position += 2
            last = position - step
    cursor[0], cursor[1], cursor[2] = position, state, last
    return DONE, count


@njit(cache=True, nogil=True)
def count_bytes(key_groups, first, states, state, frame, key_starts, key_ends, value_starts, value_ends, sizes):  # type: ignore[no-untyped-def]
    """Add up the framed bytes of records of one state by key group.

    Args:
        key_groups: i32[n], none below `first`.
        first: key group of the first element of `sizes`.
        states: number of states that `sizes` has per key group.
        state: number of the state of these records.
        frame: bytes of a framed record besides key and value.
        key_starts: i64[n].
        key_ends: i64[n].
        value_starts: i64[n].
        value_ends: i64[n].
        sizes: i64[key groups * states], added to.
    """
    for row in range(len(key_groups)):
        code = (key_groups[row] - first) * states + state
        sizes[code] += frame + key_ends[row] - key_starts[row] + value_ends[row] - value_starts[row]


@njit(cache=True, nogil=True)
def sort_records(  # type: ignore[no-untyped-def]
    key_groups,
    first,
    states,
    state,
    prefix,
    base,
    key_starts,
    key_ends,
    value_starts,
    value_ends,
    counted_ends,
    positions,
    lasts,
    totals,
    target,
):
    """Frame records of one state, each at the next free position of its run.

    Args:
        key_groups: i32[n], none below `first`; written as the prefix of the keys.
        first: see `count_bytes`.
        states: see `count_bytes`.
        state: see `count_bytes`.
        prefix: bytes of the prefix, 1 or 2.
        base: address to which the spans are relative.
        key_starts: i64[n], without prefix.
        key_ends: i64[n].
        value_starts: i64[n].
        value_ends: i64[n].
        counted_ends: i64[n], end of the bytes of each value that count for the digest.
        positions: i64[key groups * states], next free offset from `target`; advanced.
        lasts: like `positions`, gets the position of the last record's first key byte.
        totals: u64[key groups * states, 4], records, bytes, digest and content; added to.
        target: address of the output.
    """
    for row in range(len(key_groups)):
        key_group = key_groups[row]
        code = (key_group - first) * states + state
        at = target + positions[code]
        size = key_ends[row] - key_starts[row]
        store_32_big(at, size + prefix)
        at += 4
        lasts[code] = at - target
        if prefix == 2:
            store_16_big(at, key_group)
        else:
            store_8(at, key_group)
        at += prefix
        copy(at, base + key_starts[row], size)
        at += size
        length = value_ends[row] - value_starts[row]
        store_32_big(at, length)
        copy(at + 4, base + value_starts[row], length)
        positions[code] = at + 4 + length - target
        content = hash_record(base, key_starts[row], key_ends[row], value_starts[row], counted_ends[row])
        totals[code, 0] += np.uint64(1)
        totals[code, 1] += np.uint64(size + counted_ends[row] - value_starts[row])
        totals[code, 2] += add_key_group(content, key_group)
        totals[code, 3] += content


@njit(cache=True, nogil=True)
def join_sections(key_groups, states, addresses, sizes, lasts, target, groups, ends):  # type: ignore[no-untyped-def]
    """Write sections of a canonical file from runs sorted by key group and state; the mirror of `scan_records`.

    Args:
        key_groups: i32[r].
        states: i32[r].
        addresses: i64[r].
        sizes: i64[r].
        lasts: i64[r], offset of the last record's first key byte in the run.
        target: address of the output, with room for the runs and 4 bytes per run.
        groups: i32[r], gets the key group of each section.
        ends: i64[r], receives the end of each section, relative to `target`.

    Returns:
        Number of sections.
    """
    at = target
    count = 0
    flagged = target
    for row in range(len(key_groups)):
        begins = row == 0 or key_groups[row] != key_groups[row - 1]
        if begins or states[row] != states[row - 1]:
            # Only the last record of a state in a key group has the flag that another state id follows.
            if row > 0:
                store_8(flagged, load_u8(flagged) | FLAG)
            if begins:
                if row > 0:
                    store_16_big(at, END_OF_KEY_GROUP)
                    at += 2
                    ends[count] = at - target
                    count += 1
                groups[count] = key_groups[row]
            store_16_big(at, states[row])
            at += 2
        copy(at, addresses[row], sizes[row])
        flagged = at + lasts[row]
        at += sizes[row]
    if len(key_groups) > 0:
        store_8(flagged, load_u8(flagged) | FLAG)
        store_16_big(at, END_OF_KEY_GROUP)
        ends[count] = at + 2 - target
        count += 1
    return count


@njit(cache=True, nogil=True)
def prefix_records(key_group, prefix, base, key_starts, key_ends, value_starts, value_ends, order, target, spans):  # type: ignore[no-untyped-def]
    """Copy records of one key group in another order, with the key-group prefix in front of each key.

    Args:
        key_group: goes into the prefix of every key.
        prefix: bytes of the prefix, 1 or 2.
        base: address to which the spans i64[n] are relative.
        key_starts: after the prefix.
        key_ends: see `key_starts`.
        value_starts: of the values.
        value_ends: of the values.
        order: i64[n], rows in the wanted order.
        target: address of the output, with room for keys, values and `prefix` bytes per record.
        spans: i64[4, n], filled: key start (with prefix), key end, value start, value end in the output.
    """
    at = target
    for number in range(len(order)):
        row = order[number]
        spans[0, number] = at - target
        if prefix == 2:
            store_16_big(at, key_group)
        else:
            store_8(at, key_group)
        at += prefix
        size = key_ends[row] - key_starts[row]
        copy(at, base + key_starts[row], size)
        at += size
        spans[1, number] = at - target
        spans[2, number] = at - target
        size = value_ends[row] - value_starts[row]
        copy(at, base + value_starts[row], size)
        at += size
        spans[3, number] = at - target


ONE = 0
LIST = 1
MAP = 2
DELIMITER = 0x2C


@njit(cache=True, inline="never")
def append_length(at, size):  # type: ignore[no-untyped-def]
    """Write a length in base 256, lowest byte first, and return the address after it."""
    while True:
        store_8(at, size & 0xFF)
        at += 1
        size >>= 8
        if size == 0:
            return at


@njit(cache=True, nogil=True)
def write_records(kind, measured, base, keys, namespaces, offsets, item_keys, items, target, spans):  # type: ignore[no-untyped-def]
    """Write entries of the heap format as canonical records.

    Args:
        kind: `ONE`, `LIST` or `MAP`.
        measured: in records, key and namespace are each followed by their length.
        base: address to which all spans are relative.
        keys: i64[2, n] start and end of each entry's key.
        namespaces: i64[2, n].
        offsets: i64[n + 1] index of the first item of each entry; not used for `ONE`.
        item_keys: i64[2, m] user keys of a map.
        items: i64[2, m] values, elements, or null flags and user values.
        target: address of the output.
        spans: i64[4, r], filled: key start, key end, value start, value end in the output. A list without elements has
            no record.

    Returns:
        Bytes written.
    """
    at = target
    record = 0
    for entry in range(keys.shape[1]):
        first = offsets[entry] if kind != ONE else entry
        last = offsets[entry + 1] if kind != ONE else entry + 1
        repeats = last - first if kind == MAP else min(last - first, 1)
        for number in range(repeats):
            spans[0, record] = at - target
            size = keys[1, entry] - keys[0, entry]
            copy(at, base + keys[0, entry], size)
            at += size
            if measured:
                at = append_length(at, size)
            size = namespaces[1, entry] - namespaces[0, entry]
            copy(at, base + namespaces[0, entry], size)
            at += size
            if measured:
                at = append_length(at, size)
            if kind == MAP:
                item = first + number
                size = item_keys[1, item] - item_keys[0, item]
                copy(at, base + item_keys[0, item], size)
                at += size
                from_item, to_item = item, item + 1
            else:
                from_item, to_item = first, last
            spans[1, record] = at - target
            spans[2, record] = at - target
            for item in range(from_item, to_item):
                if item > from_item:
                    store_8(at, DELIMITER)
                    at += 1
                size = items[1, item] - items[0, item]
                copy(at, base + items[0, item], size)
                at += size
            spans[3, record] = at - target
            record += 1
    return at - target


@njit(cache=True, nogil=True)
def write_entries(kind, base, keys, namespaces, offsets, item_keys, items, target):  # type: ignore[no-untyped-def]
    """Write entries of the heap format from spans of their fields; the mirror of `write_records`.

    Args:
        kind: `ONE`, `LIST` or `MAP`.
        base: address to which all spans are relative.
        keys: i64[2, n].
        namespaces: i64[2, n].
        offsets: i64[n + 1] index of the first item of each entry; not used for `ONE`.
        item_keys: i64[2, m] user keys of a map.
        items: i64[2, m] values, elements, or null flags and user values.
        target: address of the output.

    Returns:
        Bytes written.
    """
    at = target
    for entry in range(keys.shape[1]):
        size = namespaces[1, entry] - namespaces[0, entry]
        copy(at, base + namespaces[0, entry], size)
        at += size
        size = keys[1, entry] - keys[0, entry]
        copy(at, base + keys[0, entry], size)
        at += size
        first = offsets[entry] if kind != ONE else entry
        last = offsets[entry + 1] if kind != ONE else entry + 1
        if kind != ONE:
            store_32_big(at, last - first)
            at += 4
        for item in range(first, last):
            if kind == MAP:
                size = item_keys[1, item] - item_keys[0, item]
                copy(at, base + item_keys[0, item], size)
                at += size
            size = items[1, item] - items[0, item]
            copy(at, base + items[0, item], size)
            at += size
    return at - target
