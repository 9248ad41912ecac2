"""Kernels over the record stream of canonical key-group sections.

A section is `i16 stateId`, then records `i32 length, key, i32 length, value`; the top bit of a key's first byte says
that another state id (or 0xFFFF, the end) follows the record. Source: `FullSnapshotAsyncWriter`, `FullSnapshotUtil`.
"""

from __future__ import annotations

import numpy as np

from state_pipelines.binary.compiled import (
    copy,
    load_i32_big,
    load_u8,
    load_u16_big,
    njit,
    store_8,
    store_16_big,
    store_32_big,
)
from state_pipelines.keyed.digests.record_digests import add_key_group, hash_record

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
    """Find the bounds of a record.

    Args:
        base: address of the data.
        position: of the record, relative to `base`.
        end: of the bytes of its section.
        key_group: of the section.
        complete: the data hold the section to its end (else to be continued: `MORE`).
        prefix: bytes of the key-group prefix, 1 or 2.

    Returns:
        (status, key end, value start, value end, whether another state id follows); the record is whole after `DONE`.
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
    """Find the records of wanted states.

    Args:
        base: address of the data.
        starts: i64[s] first byte of each section, relative to `base`.
        ends: i64[s] end of the bytes of each section.
        key_groups: i32[s].
        complete: the data hold the sections to their ends (else to be continued: `MORE`).
        exact: a section must end where its bytes end.
        prefix: bytes of the key-group prefix, 1 or 2.
        wanted: bool[n], by state id.
        cursor: i64[4], updated: section, position (-1 at its start), state id, end of the last section that was left.
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
    """Note where records begin: the first one of every run of a state, and then one about every `step` bytes.

    Args:
        base: address of bytes of one section.
        size: how many there are.
        key_group: of the section.
        complete: the bytes go to the end of the section (else to be continued: `MORE`).
        prefix: bytes of the key-group prefix, 1 or 2.
        states: number of states in the header.
        step: bytes, at least 1.
        cursor: i64[3], updated: position (-1 at the start of the section), state id, position of the last record start.
        starts: i64[2, r], filled: position, state id.

    Returns:
        (status, number of offsets). After `DONE` the cursor is after the end mark, after an error it is undefined.
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
        key_groups: i32[n], from `first` on.
        first: key group of the first of `sizes`.
        states: how many states `sizes` has per key group.
        state: state of these records.
        frame: bytes of a record beside key and value.
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
        key_groups: i32[n], from `first` on; goes into the prefix.
        first: see `count_bytes`.
        states: see `count_bytes`.
        state: see `count_bytes`.
        prefix: bytes of the prefix, 1 or 2.
        base: address to which the spans are relative.
        key_starts: i64[n], without prefix.
        key_ends: i64[n].
        value_starts: i64[n].
        value_ends: i64[n].
        counted_ends: i64[n], ends of the values for the digest.
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
        lasts: i64[r], the last record's first key byte in the run.
        target: address of the output; takes 4 bytes per run beside the runs.
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
            # Only the very last record of a state in a key group says that another state id follows.
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
        target: address of the output; takes `prefix` bytes per record beside keys and values.
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
