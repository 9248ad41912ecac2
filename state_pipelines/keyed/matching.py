"""Kernels that compare the bytes of keys."""

from __future__ import annotations

import numpy as np
from numba import njit

from state_pipelines.codecs.memory import load_u8


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
