"""Files of compiled kernels, which later processes load.

Numba numbers the files of a function in an index. Two processes that compile it for different types at the same time
may give one number to both, and from then on the machine code of one type runs on data of the other: wrong numbers,
without an error. Here a file is named by what it was compiled for, and says so inside, and there is no index.
"""

from __future__ import annotations

import hashlib
import inspect
import pickle
import sys
import uuid
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


_FORMAT = "kernel 2"
"""Form of the files; others count as absent."""


class KernelFiles:
    """The files of one function: one for each combination of argument types and machine.

    Has the methods of `numba.core.caching.IndexDataCacheFile`, which Numba's `Cache` calls.

    Args:
        folder: directory of the files.
        base: begin of their names.
        stamp: of the sources that are compiled into them.
    """

    def __init__(self, folder: str, base: str, stamp: str) -> None:
        self._folder = Path(folder)
        self._base = base
        import numba  # takes a second

        # Of one length, so that a file is compared with it before anything of it is unpickled.
        self._identity = hashlib.sha256(f"{_FORMAT} {numba.__version__} {stamp}".encode()).digest()

    def flush(self) -> None:
        """Nothing: there is no index; a file of other sources counts as absent, and is replaced."""

    def save(self, key: Any, data: Any) -> None:
        """Keep what was compiled for `key`; the file appears whole or not at all."""
        from numba.core.serialize import dumps  # takes a second

        target = self.locate(key)
        pending = target.with_name(f"{target.name}.tmp.{uuid.uuid4().hex[:16]}")
        try:
            pending.write_bytes(self._identity + dumps((key, data)))  # type: ignore[no-untyped-call]
            pending.replace(target)
        except BaseException:
            pending.unlink(missing_ok=True)
            raise

    def load(self, key: Any) -> Any:
        """Machine code for `key` of the same sources by the same Numba; None where there is nothing."""
        try:
            content = self.locate(key).read_bytes()
        except OSError:
            return None
        if not content.startswith(self._identity):
            return None
        try:
            found, data = pickle.loads(memoryview(content)[len(self._identity) :])
        except (EOFError, ValueError, pickle.UnpicklingError):
            return None
        return data if found == key else None

    def locate(self, key: Any) -> Path:
        """The file of `key`."""
        return self._folder / f"{self._base}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc"


def keep_compiled(kernel: Any, sources: Iterable[str]) -> None:
    """Keep what `kernel` is compiled to for as long as its sources stay as they are.

    Args:
        kernel: what `numba.njit(cache=True)` returns.
        sources: modules of the kernel and of all that are compiled into it.
    """
    numbered = kernel._cache._cache_file
    stamp = hashlib.sha256(b"".join(map(_hash_source, sorted(sources)))).hexdigest()
    kernel._cache._cache_file = KernelFiles(numbered._cache_path, numbered._index_name.removesuffix(".nbi"), stamp)


@cache
def _hash_source(module: str) -> bytes:
    return hashlib.sha256(inspect.getsource(sys.modules[module]).encode()).digest()
