"""Counting the distinct keys of many records: how many records and bytes each has, a batch of records at a time.

Keys are identified by their bytes. Memory grows with the number and bytes of keys, not with the records.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.compiled import copy, njit
from state_pipelines.keyed.keys.key_kernels import mix_bytes, same_bytes

_FIRST_KEYS = 1 << 10
_FIRST_BYTES = 1 << 14
_BITS = 62
"""States per word of a mask; the sign stays out of it."""


@dataclass(frozen=True)
class CountedKeys:
    """Distinct keys, in the order in which they came.

    Attributes:
        key_groups: i32[n].
        data: u8, holds the bytes of the keys.
        starts: i64[n].
        ends: i64[n].
        records: i64[n], records of the key in all states.
        sizes: i64[n], their bytes.
        masks: i64[n, w], the states that have the key.
    """

    key_groups: npt.NDArray[np.int32]
    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    records: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    masks: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """Number of keys."""
        return len(self.key_groups)

    def key(self, row: int) -> bytes:
        """The bytes of a key."""
        return self.data[self.starts[row] : self.ends[row]].tobytes()

    def in_state(self, state: int) -> npt.NDArray[np.bool_]:
        """bool[n], which keys a state has."""
        held: npt.NDArray[np.bool_] = (self.masks[:, state // _BITS] >> (state % _BITS) & 1).astype(np.bool_)
        return held


class KeyCounter:
    """Counts keys; a key of several states is one key.

    Args:
        states: number of states.
    """

    def __init__(self, states: int) -> None:
        self._used = np.zeros(2, np.int64)
        self._table = np.full(2 * _FIRST_KEYS, -1, np.int64)
        self._hashes = np.empty(_FIRST_KEYS, np.int64)
        self._key_groups = np.empty(_FIRST_KEYS, np.int32)
        self._spans = np.empty((_FIRST_KEYS, 2), np.int64)
        self._totals = np.empty((_FIRST_KEYS, 2), np.int64)
        self._masks = np.empty((_FIRST_KEYS, max(1, -(-states // _BITS))), np.int64)
        self._data = np.empty(_FIRST_BYTES, np.uint8)

    def add(
        self,
        state: int,
        key_groups: npt.NDArray[np.int32],
        data: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
    ) -> None:
        """Count records.

        Args:
            state: number of their state.
            key_groups: i32[n].
            data: u8, holds the keys.
            starts: i64[n], of the key of each record.
            ends: i64[n].
            sizes: i64[n], bytes of each record.
        """
        row = 0
        while True:
            row = count_keys(
                row,
                state // _BITS,
                state % _BITS,
                key_groups,
                data.ctypes.data,
                starts,
                ends,
                sizes,
                self._used,
                self._table,
                self._hashes,
                self._key_groups,
                self._spans,
                self._totals,
                self._masks,
                self._data.ctypes.data,
                len(self._data),
            )
            if row == len(starts):
                return
            self._grow(int(ends[row] - starts[row]))

    def result(self) -> CountedKeys:
        """The keys so far."""
        count = int(self._used[0])
        return CountedKeys(
            self._key_groups[:count],
            self._data[: self._used[1]],
            self._spans[:count, 0],
            self._spans[:count, 1],
            self._totals[:count, 0],
            self._totals[:count, 1],
            self._masks[:count],
        )

    def _grow(self, size: int) -> None:
        """Make room for one more key of `size` bytes, and many others."""
        count, used = int(self._used[0]), int(self._used[1])
        if count == len(self._hashes):
            for name in ("_hashes", "_key_groups", "_spans", "_totals", "_masks"):
                old = getattr(self, name)
                new = np.empty((2 * len(old), *old.shape[1:]), old.dtype)
                new[: len(old)] = old
                setattr(self, name, new)
            self._table = np.full(2 * len(self._table), -1, np.int64)
            insert_keys(self._hashes, count, self._table)
        if used + size > len(self._data):
            data = np.empty(max(2 * len(self._data), used + size), np.uint8)
            data[:used] = self._data[:used]
            self._data = data


@njit(cache=True, nogil=True)
def count_keys(  # type: ignore[no-untyped-def]
    row, word, bit, groups, base, starts, ends, sizes, used, table, hashes, key_groups, spans, totals, masks, data, room
):
    """Add records to the keys that are known, and new keys to them.

    Args:
        row: the first record.
        word: of the mask, for the state of the records.
        bit: in the word.
        groups: i32[n], key groups of the records.
        base: address to which `starts` and `ends` are relative.
        starts: i64[n], of the keys.
        ends: i64[n].
        sizes: i64[n], bytes of the records.
        used: i64[2], updated: number of keys, bytes of them.
        table: i64[t], key by hash, -1 where there is none; t is a power of two and more than the keys that fit.
        hashes: i64[k] of the keys; k is how many fit.
        key_groups: i32[k].
        spans: i64[k, 2], start and end of their bytes in `data`.
        totals: i64[k, 2], records and bytes.
        masks: i64[k, w], states.
        data: address of the bytes of the keys.
        room: how many bytes there are.

    Returns:
        The first record that had no room; n when all had.
    """
    last = len(table) - 1
    while row < len(starts):
        address = base + starts[row]
        size = ends[row] - starts[row]
        mixed = mix_bytes(address, size, groups[row])
        slot = mixed & last
        key = table[slot]
        while key >= 0:
            alike = hashes[key] == mixed and key_groups[key] == groups[row] and spans[key, 1] - spans[key, 0] == size
            if alike and same_bytes(data + spans[key, 0], address, size):
                break
            slot = (slot + 1) & last
            key = table[slot]
        if key < 0:
            key = used[0]
            if key == len(hashes) or used[1] + size > room:
                return row
            table[slot] = key
            hashes[key] = mixed
            key_groups[key] = groups[row]
            spans[key, 0] = used[1]
            spans[key, 1] = used[1] + size
            totals[key] = 0
            masks[key] = 0
            copy(data + used[1], address, size)
            used[0] += 1
            used[1] += size
        totals[key, 0] += 1
        totals[key, 1] += sizes[row]
        masks[key, word] |= 1 << bit
        row += 1
    return row


@njit(cache=True, nogil=True)
def insert_keys(hashes, count, table):  # type: ignore[no-untyped-def]
    """Put keys into an empty table, see `count_keys`."""
    last = len(table) - 1
    for key in range(count):
        slot = hashes[key] & last
        while table[slot] >= 0:
            slot = (slot + 1) & last
        table[slot] = key
