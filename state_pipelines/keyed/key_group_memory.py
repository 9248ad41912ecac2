"""Memory for key groups that are held whole: what does not fit is refused before the kernel ends the process."""

from __future__ import annotations

from state_pipelines.errors import UnsupportedError, Where
from state_pipelines.storage.files import CHECKED_FROM, measure_free_memory

COPIES = 5
"""Memory that a key group takes, as a multiple of its bytes.

Less than the 6.1 (heap) and 6.5 (RocksDB) that were measured for records of 70 bytes, so that nothing is refused that
may fit.
"""

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
