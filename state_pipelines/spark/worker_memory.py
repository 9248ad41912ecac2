"""Memory of Python workers: freed memory is kept for the next batch."""

from __future__ import annotations

import ctypes
from functools import cache

# Parameters of `mallopt`, from <malloc.h> of glibc, with bytes: of the largest array that does not get pages of its own
# (glibc allows no more), and how many freed bytes are kept at most.
_MALLOC = {-3: 32 << 20, -1: 128 << 20}


@cache
def keep_freed_memory() -> None:
    """Have the C library keep freed memory for later allocations, in this process and its forks.

    Arrays of some MB come and go with every batch. By default glibc asks the system for the pages of each and gives
    them back, and the system clears each page again when it is used: a tenth of the time of reading.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # Another C library.
    for parameter, size in _MALLOC.items():
        mallopt(parameter, size)
