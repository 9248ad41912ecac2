"""Kernels over the record stream of canonical key-group sections.

A section is `i16 stateId`, then records `i32 length, key, i32 length, value`; the top bit of a key's first byte says
that another state id (or 0xFFFF, the end) follows the record. Source: `FullSnapshotAsyncWriter`, `FullSnapshotUtil`.
"""

from __future__ import annotations

from numba import njit

from state_pipelines.binary.memory import (
    copy,
    load_i32_big,
    load_u8,
    load_u16_big,
    store_8,
    store_16_big,
)

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
    LEFT_OVER: "bytes are left over behind the end mark of the key group",
    BAD_STATE: "a state id is higher than the number of states in the header",
}


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
        output: i64[6, r], filled: state id, key group, key start behind the prefix, key end, value start, value end.

    Returns:
        (status, records found). After an error the cursor stands at the wrong place.
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
            if position + 4 > end:
                return (TRUNCATED if complete else MORE), count
            size = load_i32_big(base + position)
            key = position + 4
            if size < prefix:
                return BAD_LENGTH, count
            if key + size + 4 > end:
                return (BAD_LENGTH if complete else MORE), count
            first = load_u8(base + key)
            found = first & 0x7F
            if prefix == 2:
                found = found << 8 | load_u8(base + key + 1)
            if found != key_group:
                return BAD_KEY_GROUP, count
            value = key + size + 4
            length = load_i32_big(base + value - 4)
            if length < 0:
                return BAD_LENGTH, count
            behind = value + length
            if behind + (2 if first & FLAG else 0) > end:
                return (BAD_LENGTH if complete else MORE), count
            if wanted[state]:
                output[0, count] = state
                output[1, count] = key_group
                output[2, count] = key + prefix
                output[3, count] = key + size
                output[4, count] = value
                output[5, count] = behind
                count += 1
            position = behind
            if first & FLAG:
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
def prefix_records(key_group, prefix, base, key_starts, key_ends, value_starts, value_ends, order, target, spans):  # type: ignore[no-untyped-def]
    """Copy records of one key group in another order, with the key-group prefix in front of each key.

    Args:
        key_group: goes into the prefix of every key.
        prefix: bytes of the prefix, 1 or 2.
        base: address to which the spans i64[n] are relative.
        key_starts: behind the prefix.
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
