"""Reading ahead: several requests in flight, results in order, memory within a bound."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from state_pipelines.errors import UsageError
from state_pipelines.storage.files import read_range
from state_pipelines.storage.locations import Location, is_local

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from concurrent.futures import Future

REQUESTS = 16
"""Requests of one reader that are in flight at a time on a storage that is not local, by default."""

MEMORY = 128
"""MiB that all readers of a process have read ahead or are reading at a time, by default."""

REQUESTS_VARIABLE = "STATE_PIPELINES_READ_AHEAD_REQUESTS"
"""Environment variable with a number in place of `REQUESTS`; 1 reads nothing ahead."""

MEMORY_VARIABLE = "STATE_PIPELINES_READ_AHEAD_MEMORY"
"""Environment variable with a number of MiB in place of `MEMORY`."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Budget:
    """Bytes that readers of this process have read ahead or are reading.

    Attributes:
        held: the bytes now.
        most: the most bytes so far.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all that was taken, as a fork must forget what its parent reads."""
        self.held = self.most = 0
        self._lock = Lock()

    def take(self, size: int, *, needed: bool) -> bool:
        """Take `size` bytes where that is within the bound, or where they are needed; return whether they were taken.

        A reader needs what it gives next, so that each of them has one item whatever the others hold.
        """
        limit = _read_number(MEMORY_VARIABLE, MEMORY) << 20
        with self._lock:
            if not needed and self.held + size > limit:
                return False
            self.held += size
            self.most = max(self.most, self.held)
            return True

    def give_back(self, size: int) -> None:
        """Give bytes back that were taken."""
        with self._lock:
            self.held -= size


BUDGET = Budget()
"""The budget of this process."""

os.register_at_fork(after_in_child=BUDGET.clear)


def read_ahead(
    items: Iterable[Item], read: Callable[[Item], Result], location: Location | None, size: Callable[[Item], int]
) -> Generator[tuple[Item, Result], None, None]:
    """Read items in their order, on a storage that is not local some of them ahead.

    The number in flight begins with two and doubles up to that of the settings, so that who stops early has not read
    much. Items are taken from `items` when there is room for them.

    Args:
        items: what is read; none of them is None.
        read: reads one item; called by threads. Its errors are raised where its result would be given.
        location: of the file; None where there is no file.
        size: bytes of memory that the result of an item takes.

    Raises:
        UsageError: an environment variable of the settings is not a number.
    """
    if location is None or is_local(location) or (requests := _read_number(REQUESTS_VARIABLE, REQUESTS)) == 1:
        for item in items:
            yield item, read(item)
        return
    waiting: deque[tuple[Item, Future[Result], int]] = deque()
    rest = iter(items)
    upcoming: Item | None = None
    ahead, held = 2, 0
    pool = ThreadPoolExecutor(requests)
    try:
        while True:
            while len(waiting) < ahead:
                if upcoming is None:
                    upcoming = next(rest, None)
                if upcoming is None or not BUDGET.take(cost := size(upcoming), needed=not waiting):
                    break
                held += cost
                waiting.append((upcoming, pool.submit(read, upcoming), cost))
                upcoming = None
            if not waiting:
                return
            first, future, cost = waiting.popleft()
            ahead = min(2 * ahead, requests)
            result = future.result()
            del future
            yield first, result
            del result
            BUDGET.give_back(cost)
            held -= cost
    finally:
        pool.shutdown(cancel_futures=True)
        BUDGET.give_back(held)


def read_ranges(ranges: Iterable[tuple[Location, int, int]], size: int) -> Iterator[bytes]:
    """Read ranges of files, one after the other, in pieces of at most `size` bytes; see `read_ahead`.

    Raises:
        FormatError: a range is not inside its file.
        MissingFileError: no such file.
        StorageError: the storage fails.
    """
    pieces = [
        (location, position, min(position + size, end))
        for location, start, end in ranges
        for position in range(start, end, size)
    ]
    remote = next((location for location, _, _ in pieces if not is_local(location)), None)
    for _, data in read_ahead(pieces, lambda piece: read_range(*piece), remote, lambda piece: piece[2] - piece[1]):
        yield data


def _read_number(variable: str, default: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal() or int(text) == 0:
        raise UsageError(f"the environment variable {variable} is {text!r}, not a number above 0")
    return int(text)
