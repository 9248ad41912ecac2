"""Memory for what is read at once: what does not fit is refused before the kernel ends the process."""

from __future__ import annotations

import sys
from pathlib import Path

from state_pipelines.errors import StorageError, Where

CHECKED_FROM = 256 << 20
"""Bytes up to which the free memory of the machine is not checked."""

_MEMINFO = Path("/proc/meminfo")
_OWN_SIZE = Path("/proc/self/statm")
_CGROUP = Path("/sys/fs/cgroup")
_GIB = 1 << 30


def require_memory(size: int, file: str, offset: int | None = None) -> None:
    """Make sure that bytes of a file can be held.

    Args:
        size: how many.
        file: that they are in.
        offset: where they begin.

    Raises:
        StorageError: they cannot.
    """
    if size <= CHECKED_FROM:
        return
    free = measure_free_memory()
    if free is not None and size > free:
        raise StorageError(
            f"{size / _GIB:.1f} GiB are to be read at once, and {free / _GIB:.1f} GiB of memory are free",
            where=Where(file=file, offset=offset),
            hint="Give the process more memory, if the file is as long as it should be",
        )


def measure_free_memory() -> int | None:
    """Bytes that the machine, the control group or the limit of this process has left; None where it is unknown."""
    limits = []
    if _MEMINFO.exists():
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text(encoding="ascii").splitlines())
        limits.append(1024 * sum(int(lines[name].split()[0]) for name in ("MemAvailable", "SwapFree") if name in lines))
    if (_CGROUP / "memory.max").exists() and (most := (_CGROUP / "memory.max").read_text().strip()) != "max":
        # The page cache counts as used, and is given back when memory is short.
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        used = int((_CGROUP / "memory.current").read_text()) - int(stat["inactive_file"])
        limits.append(int(most) - used)
    if sys.platform != "win32" and _OWN_SIZE.exists():
        import resource  # there is none on Windows

        most_addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
        if most_addresses != resource.RLIM_INFINITY:
            pages = int(_OWN_SIZE.read_text().split()[0])
            limits.append(most_addresses - pages * resource.getpagesize())
    return max(0, min(limits)) if limits else None
