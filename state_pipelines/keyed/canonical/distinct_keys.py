"""Detection of keys that occur twice among framed records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.binary.compiled import load_i32_big, njit
from state_pipelines.keyed.digests.record_digests import hash_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

_SEEDS = (np.uint64(0x243F6A8885A308D3), np.uint64(0x13198A2E03707344))
_FULLNESS = 2
"""Slots per key, at least."""


class KeySet:
    """Keys of one state and key group, or of several one after the other, by a hash of 128 bits.

    Two different keys have the same hash with a probability of about n * n / 2**129 for n keys.

    Args:
        most: keys that it has to hold at once.
    """

    def __init__(self, most: int) -> None:
        self._slots = np.zeros((1 << (_FULLNESS * max(most, 1)).bit_length(), 2), np.uint64)

    def find_repeated(
        self, addresses: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], begins: npt.NDArray[np.bool_]
    ) -> tuple[int, int] | None:
        """Add the keys of runs of framed records, and find the first one that is there already.

        Args:
            addresses: i64[r], of the runs.
            sizes: i64[r], bytes of the runs.
            begins: bool[r], the run is of another state or key group than the one before: what the set held goes.

        Returns:
            (index of the run, address of its record); None where all keys differ.
        """
        run, record = _find_repeated(addresses, sizes, begins, self._slots, *_SEEDS)
        return None if run < 0 else (int(run), int(record))


@njit(cache=True, nogil=True)
def _find_repeated(addresses, sizes, begins, slots, one, other):  # type: ignore[no-untyped-def]
    mask = len(slots) - 1
    for run in range(len(addresses)):
        if begins[run]:
            slots[:] = 0
        at = addresses[run]
        end = at + sizes[run]
        while at < end:
            start = at + 4
            stop = start + load_i32_big(at)
            # An empty slot is 0.
            first = hash_bytes(one, start, stop) | np.uint64(1)
            second = hash_bytes(other, start, stop)
            slot = np.int64(first >> np.uint64(20)) & mask
            while slots[slot, 0] != np.uint64(0):
                if slots[slot, 0] == first and slots[slot, 1] == second:
                    return run, at
                slot = (slot + 1) & mask
            slots[slot, 0] = first
            slots[slot, 1] = second
            at = stop + 4 + load_i32_big(stop)
    return -1, 0
