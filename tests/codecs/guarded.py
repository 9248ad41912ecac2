"""Bytes behind which memory cannot be read."""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np

PAGE = mmap.PAGESIZE
NO_ACCESS = 0


def guarded(data: bytes) -> np.ndarray:
    """A copy of `data` that ends where a page ends that nobody may read, so that one byte too far is a crash."""
    if not sys.platform.startswith("linux"):
        return np.frombuffer(data, np.uint8).copy()
    size = (len(data) + PAGE - 1) // PAGE * PAGE
    whole = np.frombuffer(mmap.mmap(-1, size + PAGE), np.uint8)
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(whole.ctypes.data + size), ctypes.c_size_t(PAGE), NO_ACCESS):
        raise OSError("the page behind the bytes could not be protected")
    block = whole[size - len(data) : size]
    block[:] = np.frombuffer(data, np.uint8)
    return block
