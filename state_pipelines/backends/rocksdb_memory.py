"""One memory budget of all RocksDB databases of a process, leased and counted by reference.

Source: `RocksDBMemoryControllerUtils`, `SharedResources`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocksdict import Cache, WriteBufferManager

from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


@dataclass(frozen=True)
class MemoryBudget:
    """Sizes of a budget.

    Attributes:
        size: bytes in all.
        write_buffer_ratio: fraction of write buffers.
    """

    size: int
    write_buffer_ratio: float

    @property
    def cache_capacity(self) -> int:
        """Bytes of the cache, which the write buffers are charged to (`calculateActualCacheCapacity`)."""
        return int((3 - self.write_buffer_ratio) * self.size / 3)

    @property
    def write_buffer_capacity(self) -> int:
        """Bytes of write buffers, which they exceed by half at most (`calculateWriteBufferManagerCapacity`)."""
        return int(2 * self.size * self.write_buffer_ratio / 3)


class SharedMemory:
    """Cache and write buffer manager of a process; they exist as long as anything leases them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leases = 0
        self._budget: MemoryBudget | None = None
        self._cache: Cache | None = None
        self._manager: WriteBufferManager | None = None

    @property
    def leases(self) -> int:
        """Number of leases that are not released."""
        return self._leases

    def lease(self, budget: MemoryBudget) -> MemoryLease:
        """Lease the memory; the first lease allocates it.

        Raises:
            UsageError: the process has another budget.
            KeyboardInterrupt: the wait for the memory was interrupted.
        """
        try:
            self._lock.acquire()
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt("Interrupted while acquiring memory") from error
        try:
            if self._cache is None or self._manager is None or self._budget is None:
                self._cache = Cache(budget.cache_capacity)
                self._manager = WriteBufferManager.new_write_buffer_manager_with_cache(
                    budget.write_buffer_capacity, False, self._cache
                )
                self._budget = budget
            elif self._budget != budget:
                raise UsageError(
                    f"the databases of this process share {self._budget.size} bytes of memory, and {budget.size} are "
                    "asked for",
                    hint="Give all states of a process the same memory options",
                )
            self._leases += 1
            return MemoryLease(self, self._cache, self._manager)
        finally:
            self._lock.release()

    def release(self) -> None:
        """Give one lease back; the last one frees the memory."""
        with self._lock:
            self._leases -= 1
            if not self._leases:
                self._budget = self._cache = self._manager = None


class MemoryLease:
    """Shared memory as long as the lease is not released.

    Attributes:
        cache: of blocks.
        manager: of write buffers, which are charged to the cache.
    """

    def __init__(self, memory: SharedMemory, cache: Cache, manager: WriteBufferManager) -> None:
        self._memory: SharedMemory | None = memory
        self.cache = cache
        self.manager = manager

    def release(self) -> None:
        """Give the lease back; once only."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


SHARED_MEMORY = SharedMemory()
"""The memory of this process."""
