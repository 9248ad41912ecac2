"""Arenas of the C library: what threads have freed and the process still holds."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

ARENAS = 2
"""Arenas from which all threads of this process allocate."""

_M_ARENA_MAX = -8


@cache
def limit_arenas() -> None:
    """Let threads share few arenas of glibc; other C libraries have none.

    By default there are up to eight per processor, each of which keeps the buffers that its threads have freed. Threads
    that read ahead allocate whole windows of files, so that arenas would hold several times what is read ahead. A
    limit that the user has set by `MALLOC_ARENA_MAX` or `GLIBC_TUNABLES` stays.
    """
    if sys.platform != "linux" or "MALLOC_ARENA_MAX" in os.environ:
        return
    if "arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(_M_ARENA_MAX, ARENAS)
