"""Memory for key groups that are held whole: what does not fit is refused before the kernel ends the process."""

from __future__ import annotations

from pathlib import Path

from state_pipelines.errors import UnsupportedError, Where

CHECKED_FROM = 256 << 20
"""Size of a key group in bytes up to which the free memory of the machine is not checked."""

COPIES = 5
"""Memory that a key group takes, as a multiple of its bytes.

Less than the 6.1 (heap) and 6.5 (RocksDB) that were measured for records of 70 bytes, so that nothing is refused that
may fit.
"""

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_GIB = 1 << 30


def require_memory(size: int, key_group: int, file: str) -> None:
    """Make sure that a key group can be held.

    Args:
        size: bytes of its records.
        key_group: its number.
        file: that it is read from.

    Raises:
        UnsupportedError: it certainly cannot.
    """
    if size <= CHECKED_FROM:
        return
    free = measure_free_memory()
    if free is not None and size * COPIES > free:
        raise UnsupportedError(
            f"key group {key_group} has {size / _GIB:.1f} GiB, must be held whole for this, takes at least {COPIES} "
            f"times as much memory, and {free / _GIB:.1f} GiB are free",
            where=Where(file=file),
            hint="Write canonical, which holds no key group; or first rescale to a larger max parallelism",
        )


def measure_free_memory() -> int | None:
    """Bytes that the machine, or the control group of this process, has left; None where it is unknown."""
    limits = []
    if _MEMINFO.exists():
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text(encoding="ascii").splitlines())
        limits.append(1024 * sum(int(lines[name].split()[0]) for name in ("MemAvailable", "SwapFree") if name in lines))
    if (_CGROUP / "memory.max").exists() and (most := (_CGROUP / "memory.max").read_text().strip()) != "max":
        # The page cache counts as used, and is given back when memory is short.
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        used = int((_CGROUP / "memory.current").read_text()) - int(stat["inactive_file"])
        limits.append(int(most) - used)
    return min(limits, default=None)
