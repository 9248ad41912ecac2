"""Kernels between the entries of the heap backend and records of the canonical form.

An entry of the heap backend is namespace, key, then the value; of a list its count and elements, of a map its count and
then user key, null flag and user value by turns. Canonical records have key, namespace and user key in one run of
bytes, elements of a list with a delimiter between them, and one record per map entry. Source:
`CopyOnWriteStateMapSnapshot`, `SerializedCompositeKeyBuilder`, `ListDelimitedSerializer`.
"""

from __future__ import annotations

from state_pipelines.binary.compiled import copy, njit, store_8, store_32_big

ONE = 0
LIST = 1
MAP = 2
DELIMITER = 0x2C


@njit(cache=True, inline="never")
def append_length(at, size):  # type: ignore[no-untyped-def]
    """Write a length in little-endian base 256 and return its end."""
    while True:
        store_8(at, size & 0xFF)
        at += 1
        size >>= 8
        if size == 0:
            return at


@njit(cache=True, nogil=True)
def write_records(kind, measured, base, keys, namespaces, offsets, item_keys, items, target, spans):  # type: ignore[no-untyped-def]
    """Heap entries to canonical records.

    Args:
        kind: `ONE`, `LIST` or `MAP`.
        measured: key and namespace are each followed by their length.
        base: address to which all spans are relative.
        keys: i64[2, n] start and end of each entry's key.
        namespaces: i64[2, n].
        offsets: i64[n + 1] first item of each entry; of `ONE` unused.
        item_keys: i64[2, m] user keys of a map.
        items: i64[2, m] values, elements, or null flags and user values.
        target: address of the output.
        spans: i64[4, r], filled: key start, key end, value start, value end in the output. A list without elements
            has no record.

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
    """Heap entries from their parts; the mirror of `write_records`.

    Args:
        kind: `ONE`, `LIST` or `MAP`.
        base: address to which all spans are relative.
        keys: i64[2, n].
        namespaces: i64[2, n].
        offsets: i64[n + 1] first item of each entry; of `ONE` unused.
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
