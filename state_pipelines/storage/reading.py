"""Reading ahead: several requests in flight, results in order, memory within a bound."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator
from concurrent.futures import wait
from functools import partial
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from state_pipelines.errors import StateError
from state_pipelines.storage.arenas import limit_arenas
from state_pipelines.storage.locations import Location, is_local
from state_pipelines.storage.ranges import (
    REQUEST_SIZE,
    REQUESTS,
    REQUESTS_VARIABLE,
    count_requests,
    read_range,
    read_setting,
)
from state_pipelines.storage.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future

MEMORY = 128
"""MiB that all readers of a process have read ahead or are reading at a time, by default."""

MEMORY_VARIABLE = "STATE_PIPELINES_READ_AHEAD_MEMORY"
"""Environment variable with a number of MiB in place of `MEMORY`."""

FIRST_REQUESTS = 8
"""Requests that a reader begins with, of some 16 MiB together."""

_BEGUN_SCANS = 64
"""Scans that have begun beside the one whose turn it is, at most."""

_BEGUN_BYTES = 32 << 20
"""Bytes of items whose scans have begun, about; one has begun however large it is."""

Item = TypeVar("Item")
Result = TypeVar("Result")


WAITING = 128
"""Works that wait at a time where each reads few bytes, such as the header of a file; S3 has as many connections."""


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
        limit = read_setting(MEMORY_VARIABLE, MEMORY) << 20
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

    The number of requests in flight begins with `FIRST_REQUESTS`, of `REQUEST_SIZE` bytes each, and doubles up to that
    of the settings, so that who stops early has not read much. Items are taken from `items` when there is room.

    Args:
        items: what is read; none of them is None.
        read: reads one item; called by threads. Its errors are raised where its result would be given.
        location: of the file; None where there is no file.
        size: bytes of memory that the result of an item takes.

    Raises:
        UsageError: an environment variable of the settings is not a number.
    """
    if location is None or is_local(location) or (requests := read_setting(REQUESTS_VARIABLE, REQUESTS)) == 1:
        for item in items:
            yield item, read(item)
        return
    waiting: deque[tuple[Item, Future[Result], int]] = deque()
    rest = iter(items)
    upcoming: Item | None = None
    ahead, room, held, in_flight = min(FIRST_REQUESTS, requests), FIRST_REQUESTS * REQUEST_SIZE, 0, 0
    pool = _start_threads(requests)
    try:
        while True:
            while not waiting or (in_flight < ahead and held < room):
                if upcoming is None:
                    upcoming = next(rest, None)
                if upcoming is None or not BUDGET.take(cost := size(upcoming), needed=not waiting):
                    break
                held += cost
                in_flight += count_requests(location, cost)
                waiting.append((upcoming, pool.submit(read, upcoming), cost))
                upcoming = None
            if not waiting:
                return
            first, future, cost = waiting.popleft()
            ahead, room = min(2 * ahead, requests), 2 * room
            result = future.result()
            in_flight -= count_requests(location, cost)
            del future
            yield first, result
            del result
            BUDGET.give_back(cost)
            held -= cost
    finally:
        _end(pool, [future for _, future, _ in waiting])
        BUDGET.give_back(held)


def do_together(works: Sequence[Callable[[], Result]], location: Location | None, most: int = WAITING) -> list[Result]:
    """Do works that wait for a storage at the same time; on this machine one after the other.

    Args:
        works: the works.
        location: of the files; None where there is no file.
        most: works at a time; by default such of few bytes each.

    Returns:
        Their results in order; of several errors the first one is raised.
    """
    if len(works) < 2 or location is None or is_local(location) or read_setting(REQUESTS_VARIABLE, REQUESTS) == 1:
        return [work() for work in works]
    pool = _start_threads(min(most, len(works)))
    try:
        return [future.result() for future in [pool.submit(work) for work in works]]
    finally:
        pool.shutdown(cancel_futures=True)


def attempt_together(works: Sequence[Callable[[], Result]], location: Location | None) -> list[Result | StateError]:
    """Do works as `do_together` does; the error of a work is its result."""

    def attempt(work: Callable[[], Result]) -> Result | StateError:
        try:
            return work()
        except StateError as error:
            return error

    return do_together([partial(attempt, each) for each in works], location)


def scan_ahead(
    items: Iterable[Item], scan: Callable[[Item], Iterator[Result]], location: Location | None, size: int
) -> Generator[tuple[Item, Iterator[Result]], None, None]:
    """Scan items one after the other; on a storage that is not local the scans of the next ones have begun already.

    Each scan waits for the storage at its beginning, however much it reads ahead later. A scan that has begun holds its
    first result, and what it reads ahead.

    Args:
        items: what is scanned, such as files.
        scan: gives the results of an item; begun by a thread. Its errors are raised where its first result is taken.
        location: of the items; None where there is no file.
        size: bytes of an item, about.

    Yields:
        An item, and its results, which have to be taken before the next item.

    Raises:
        UsageError: an environment variable of the settings is not a number.
    """
    if location is None or is_local(location) or read_setting(REQUESTS_VARIABLE, REQUESTS) == 1:
        for item in items:
            yield item, scan(item)
        return
    count = count_scans_ahead(size)
    rest = iter(items)
    begun: deque[tuple[Item, Iterator[Result], Future[Result | _End]]] = deque()
    pool = _start_threads(count + 1)
    try:
        while True:
            # With the one whose turn it is.
            for item in islice(rest, count + 1 - len(begun)):
                results = scan(item)
                begun.append((item, results, pool.submit(next, results, _END)))
            if not begun:
                return
            yield begun[0][0], _resume(*begun.popleft()[1:])
    finally:
        _end(pool, [future for _, _, future in begun])
        for _, results, _ in begun:
            if isinstance(results, Generator):
                results.close()


def _start_threads(count: int) -> Threads:
    limit_arenas()
    return Threads(count)


def _end(pool: Threads, futures: Sequence[Future[Any]]) -> None:
    """End the threads of a generator once the works that have begun are done.

    The threads are not joined. A generator in a reference cycle may be ended by the garbage collection of a thread that
    is just starting; joining would wait for a lock that this thread holds.
    """
    pool.shutdown(wait=False, cancel_futures=True)
    wait([each for each in futures if not each.cancelled()])


def begin_together(scans: Sequence[Iterator[Result]], location: Location | None) -> list[Iterator[Result]]:
    """Begin scans that one reader takes results of in turn, as those that it merges, at the same time.

    Args:
        scans: the scans, each of which holds its first result afterwards.
        location: of what they read; None where there is no file. On this machine nothing is begun.
    """
    if location is None or is_local(location):
        return list(scans)
    firsts = do_together([partial(next, each, _END) for each in scans], location)
    return [_go_on(first, rest) for first, rest in zip(firsts, scans, strict=True)]


def count_scans_ahead(size: int) -> int:
    """Number of scans of about `size` bytes that begin before their turn."""
    return max(1, min(_BEGUN_SCANS, _BEGUN_BYTES // max(1, size)))


def count_together(size: int) -> int:
    """Number of works that are done at a time, each of which holds about `size` bytes."""
    return max(1, min(WAITING, _BEGUN_BYTES // max(1, size)))


class _End:
    """The result of a scan that has none."""


_END = _End()


def _resume(results: Iterator[Result], begun: Future[Result | _End]) -> Iterator[Result]:
    first = begun.result()
    del begun
    yield from _go_on(first, results)


def _go_on(first: Result | _End, rest: Iterator[Result]) -> Iterator[Result]:
    if isinstance(first, _End):
        return
    yield first
    del first
    yield from rest


def read_ranges(ranges: Iterable[tuple[Location, int, int]], size: int) -> Iterator[bytes]:
    """Read ranges of files, one after the other, in chunks of at most `size` bytes; see `read_ahead`.

    Raises:
        FormatError: a range is not inside its file.
        MissingFileError: no such file.
        StorageError: the storage fails.
    """
    reads = [
        (location, position, min(position + size, end))
        for location, start, end in ranges
        for position in range(start, end, size)
    ]
    remote = next((location for location, _, _ in reads if not is_local(location)), None)
    for _, data in read_ahead(reads, lambda each: read_range(*each), remote, lambda each: each[2] - each[1]):
        yield data
