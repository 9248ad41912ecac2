"""Reads ahead: several requests in flight, results in order, memory within a bound; and local copies of files.

* `read_ahead`, `scan_ahead`, `begin_together`, `do_together`, `attempt_together`: requests that overlap.
* `write_copies`, `link_copy`, `find_copy`: copies of files in a directory on a local disk, found by the URL of the
  file. A copy is written together with the file, so that nothing is read again, or linked to a local file of the same
  bytes. One that cannot be written is left out: the file does not depend on it.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import sys
from collections import deque
from collections.abc import Generator
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from functools import cache, partial
from http import HTTPStatus
from itertools import islice
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from state_pipelines.errors import FormatError, MissingFileError, StateError, StorageError, UsageError, Where
from state_pipelines.storage.files import compute_checksum, copy_files, file_size, require_memory, require_reach
from state_pipelines.storage.locations import (
    Location,
    ShortBodyError,
    Threads,
    add_requests,
    find_status,
    is_local,
    request,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path

ARENAS = 2
"""Arenas from which all threads of this process allocate."""

_M_ARENA_MAX = -8


@cache
def limit_arenas() -> None:
    """Limit the arenas (heaps per thread) of glibc to `ARENAS`; other C libraries have none.

    By default there are up to eight per processor, each of which keeps the buffers that its threads have freed. Threads
    that read ahead allocate whole windows of files, so the arenas would hold several times the memory that is read
    ahead. A limit that the user has set by `MALLOC_ARENA_MAX` or `GLIBC_TUNABLES` is not changed.
    """
    if sys.platform != "linux" or "MALLOC_ARENA_MAX" in os.environ:
        return
    if "arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(_M_ARENA_MAX, ARENAS)


REQUEST_SIZE = 2 << 20
"""Bytes per request when a range is read with several requests; larger requests would be too few in flight."""

REQUESTS = 16
"""Requests of one reader that are in flight at a time on a storage that is not local, by default."""

REQUESTS_VARIABLE = "STATE_PIPELINES_READ_AHEAD_REQUESTS"
"""Environment variable with a number that replaces `REQUESTS`; with 1, nothing is read ahead."""

# Before a larger read, the size of the file is asked for: a wrong length in a file must not make this process allocate
# so much memory.
_TRUSTED_SIZE = 32 << 20


def read_setting(variable: str, default: int) -> int:
    """Read a number from an environment variable.

    Raises:
        UsageError: the value is not a number above 0.
    """
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal() or int(text) == 0:
        raise UsageError(f"the environment variable {variable} is {text!r}, not a number above 0")
    return int(text)


def count_requests(location: Location, size: int) -> int:
    """Return the number of requests with which `read_range` reads `size` bytes of a file on a remote storage."""
    return max(1, -(-size // REQUEST_SIZE)) if location.filesystem.async_impl else 1


def read_range(location: Location, start: int, end: int) -> bytes:
    """Read the bytes from `start` up to `end` (exclusive) of a file, and nothing else of it.

    On asynchronous file systems of fsspec (object stores) a long range is read with several requests at a time; after a
    fault only those that failed are sent again.

    Raises:
        FormatError: the range is not inside the file.
        MissingFileError: no such file.
        StorageError: the storage fails, or there is not memory for it.
    """
    if not 0 <= start <= end:
        raise FormatError(f"bytes {start}-{end} are not a valid range", where=Where(file=str(location), offset=start))
    if start == end:
        return b""
    if end - start > _TRUSTED_SIZE:
        _require_range(location, start, end)
        require_memory(end - start, str(location), start)
    in_flight = 1 if is_local(location) else read_setting(REQUESTS_VARIABLE, REQUESTS)
    requests = _RangeRequests(location, start, end, count_requests(location, end - start) if in_flight > 1 else 1)

    def read() -> bytes:
        requests.fetch(in_flight)
        requests.require_no_more()
        if requests.is_short:
            _require_range(location, start, end)
            raise ShortBodyError(f"only {requests.size} of {end - start} bytes came")
        return requests.join()

    try:
        content = request(location, "read the file", read)
    except (MissingFileError, StorageError) as error:
        # Object stores refuse a range that begins after the end of the file.
        if _may_be_outside(error):
            _require_range(location, start, end)
        raise
    add_requests(0, len(content))
    return content


def _may_be_outside(error: MissingFileError | StorageError) -> bool:
    cause = error.__cause__
    if isinstance(cause, OSError) and not getattr(error, "transient", False):
        return not isinstance(cause, FileNotFoundError | PermissionError | IsADirectoryError)
    return cause is not None and find_status(cause) == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE


class _RangeRequests:
    """The requests that read a range together."""

    def __init__(self, location: Location, start: int, end: int, count: int) -> None:
        self._location = location
        self._bounds = [start + (end - start) * number // count for number in range(count + 1)]
        self._found: dict[int, bytes] = {}

    @property
    def size(self) -> int:
        """Number of bytes of the range that were received so far."""
        return sum(map(len, self._found.values()))

    @property
    def is_short(self) -> bool:
        """Whether some bytes of the range were not received yet."""
        return self.size < self._bounds[-1] - self._bounds[0]

    def fetch(self, in_flight: int) -> None:
        """Send the requests that have not been answered completely."""
        missing = [number for number in range(len(self._bounds) - 1) if self._is_missing(number)]
        # One request fewer is added here: the function `request`, which calls this method, counts one itself.
        add_requests(len(missing) - 1)
        if len(self._bounds) == 2:
            self._found[0] = _read_at_once(self._location, self._bounds[0], self._bounds[1])
            return
        starts, ends = ([self._bounds[number + side] for number in missing] for side in (0, 1))
        paths = [self._location.path] * len(missing)
        # With `on_error="return"` the results of other requests are kept if one fails.
        results = self._location.filesystem.cat_ranges(paths, starts, ends, batch_size=in_flight, on_error="return")
        failure: BaseException | None = None
        for number, result in zip(missing, results, strict=True):
            if isinstance(result, BaseException):
                failure = failure or result
            else:
                self._found[number] = bytes(result)
        if failure is not None:
            raise failure

    def require_no_more(self) -> None:
        """Check that no response is longer than its range: a server that ignores ranges sends the file from its start.

        Raises:
            StorageError: a response is too long.
        """
        for number, found in self._found.items():
            wanted = self._bounds[number + 1] - self._bounds[number]
            if len(found) > wanted:
                raise StorageError(
                    f"the server ignores ranges: {len(found):,} bytes were sent for {wanted:,} bytes",
                    where=Where(file=str(self._location), offset=self._bounds[number]),
                    hint="Use a server or proxy that answers requests with `Range`, or a copy elsewhere",
                )

    def join(self) -> bytes:
        """Return the bytes of the range: the results of all requests, in order."""
        return b"".join(self._found[number] for number in range(len(self._found)))

    def _is_missing(self, number: int) -> bool:
        return len(self._found.get(number, b"")) < self._bounds[number + 1] - self._bounds[number]


def _read_at_once(location: Location, start: int, end: int) -> bytes:
    if is_local(location):
        # fsspec takes three times as long for a local file; headers are read from thousands of files.
        with open(location.path, "rb", buffering=0) as file:  # noqa: PTH123
            require_reach(location, file.fileno())
            file.seek(start)
            chunks = []
            while start < end and (chunk := file.read(end - start)):
                chunks.append(chunk)
                start += len(chunk)
            return b"".join(chunks)
    return bytes(location.filesystem.cat_file(location.path, start=start, end=end))


def _require_range(location: Location, start: int, end: int) -> None:
    size = file_size(location)
    if end > size:
        what = f"bytes {start} to {end} are wanted but the file has {size}"
        raise FormatError(what, where=Where(file=str(location), offset=start), hint="The file was cut off or changed")


MEMORY = 128
"""MiB that all readers of a process have read ahead or are reading at a time, by default."""

MEMORY_VARIABLE = "STATE_PIPELINES_READ_AHEAD_MEMORY"
"""Environment variable with a number of MiB in place of `MEMORY`."""

FIRST_REQUESTS = 8
"""Number of requests that a reader sends at first, together about 16 MiB."""

_BEGUN_SCANS = 64
"""Maximum number of scans that are started ahead of the current scan."""

_BEGUN_BYTES = 32 << 20
"""Approximate bytes of the items whose scans are started ahead; one scan is started even if its item is larger."""

Item = TypeVar("Item")
Result = TypeVar("Result")


WAITING = 128
"""Maximum number of calls at a time that read few bytes each, such as file headers; S3 has as many connections."""


class Budget:
    """Limit on the memory of all readers in this process that read ahead.

    Attributes:
        held: bytes that are reserved now.
        most: maximum of `held` so far.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Reset the counts; called in a forked process, which does not hold the memory that its parent has reserved."""
        self.held = self.most = 0
        self._lock = Lock()

    def take(self, size: int, *, needed: bool) -> bool:
        """Reserve `size` bytes if the limit allows it or they are `needed`; return whether they were reserved.

        Bytes are needed if the reader holds no item: each reader may hold one item even if the limit is exceeded.
        """
        limit = read_setting(MEMORY_VARIABLE, MEMORY) << 20
        with self._lock:
            if not needed and self.held + size > limit:
                return False
            self.held += size
            self.most = max(self.most, self.held)
            return True

    def give_back(self, size: int) -> None:
        """Release bytes reserved by `take`."""
        with self._lock:
            self.held -= size


BUDGET = Budget()
"""The budget of this process."""

os.register_at_fork(after_in_child=BUDGET.clear)


def read_ahead(
    items: Iterable[Item], read: Callable[[Item], Result], location: Location | None, size: Callable[[Item], int]
) -> Generator[tuple[Item, Result], None, None]:
    """Read items in order; on a remote storage, read the next items ahead.

    The number of requests in flight, of `REQUEST_SIZE` bytes each, starts at `FIRST_REQUESTS` and doubles with every
    item up to the configured number. So a caller that stops early has read little. Items are taken from `items` only
    when there is room for them.

    Args:
        items: what `read` takes, such as ranges of files; never None.
        read: reads one item; called by threads. Its error is raised when the item would be yielded.
        location: location of the files; None if there are no files.
        size: returns the bytes of memory that the result of an item takes.

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
    """Call functions that wait for a storage in parallel; for local files, call them one after the other.

    Args:
        works: the functions.
        location: location of the files; None if there are no files.
        most: maximum number of calls at a time; the default is for calls that read few bytes each.

    Returns:
        The results of the functions in order. If several raise errors, the first one is raised.
    """
    if len(works) < 2 or location is None or is_local(location) or read_setting(REQUESTS_VARIABLE, REQUESTS) == 1:
        return [work() for work in works]
    pool = _start_threads(min(most, len(works)))
    try:
        return [future.result() for future in [pool.submit(work) for work in works]]
    finally:
        pool.shutdown(cancel_futures=True)


def attempt_together(works: Sequence[Callable[[], Result]], location: Location | None) -> list[Result | StateError]:
    """Call functions as `do_together` does; if a function raises an error, the error is its result."""

    def attempt(work: Callable[[], Result]) -> Result | StateError:
        try:
            return work()
        except StateError as error:
            return error

    return do_together([partial(attempt, each) for each in works], location)


def scan_ahead(
    items: Iterable[Item], scan: Callable[[Item], Iterator[Result]], location: Location | None, size: int
) -> Generator[tuple[Item, Iterator[Result]], None, None]:
    """Scan items one after the other; on a remote storage, start the scans of the next items ahead.

    Even a scan that reads ahead waits for the storage at its start, unless it is started early. A started scan holds
    its first result in memory, and the bytes that it reads ahead.

    Args:
        items: the items to scan, such as files.
        scan: yields the results of an item; started by a thread. An error at the start is raised instead of the first
            result.
        location: location of the items; None if there are no files.
        size: approximate bytes of an item.

    Yields:
        An item, and the iterator of its results, which must be exhausted before the next item.

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
            # Start scans until there are `count` scans ahead, plus the one whose results are yielded next.
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
    """Shut down the threads of a generator after the calls in progress.

    The threads are not joined. A generator in a reference cycle may be ended by the garbage collection of a thread that
    is just starting; joining would wait for a lock that this thread holds.
    """
    pool.shutdown(wait=False, cancel_futures=True)
    wait([each for each in futures if not each.cancelled()])


def begin_together(scans: Sequence[Iterator[Result]], location: Location | None) -> list[Iterator[Result]]:
    """Start several scans at the same time, for a caller that takes results of all of them in turn, such as a merge.

    Args:
        scans: the scans; each holds its first result in memory once it is started.
        location: location of the files that they read; None if there are none. Scans of local files are not started
            here.
    """
    if location is None or is_local(location):
        return list(scans)
    firsts = do_together([partial(next, each, _END) for each in scans], location)
    return [_go_on(first, rest) for first, rest in zip(firsts, scans, strict=True)]


def count_scans_ahead(size: int) -> int:
    """Return the number of scans (of about `size` bytes each) that are started before the current scan has ended."""
    return max(1, min(_BEGUN_SCANS, _BEGUN_BYTES // max(1, size)))


def count_together(size: int) -> int:
    """Return the number of calls to run at a time if each needs about `size` bytes of memory."""
    return max(1, min(WAITING, _BEGUN_BYTES // max(1, size)))


class _End:
    """Marker that stands for the first result of a scan that has no results."""


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


_log = logging.getLogger(__name__)

_CHUNK = 1 << 20
_PARTIAL = ".partial"


@contextmanager
def write_copies(directory: Path) -> Iterator[None]:
    """Copy every file that this thread creates (`storage.files.create_file`) into a directory while the block runs."""
    with copy_files(lambda location: _WrittenCopy(directory, location.url)):
        yield


def link_copy(file: Path, directory: Path, url: str) -> None:
    """Add a local file to a directory of copies, as the copy of the file at `url`: linked, or copied from another disk.

    Raises:
        OSError: the disk refuses.
    """
    _link(file, directory / _name_copy(url))


def find_copy(directory: Path, url: str, size: int, *, verify: bool = True) -> Path | None:
    """Find the copy of a file in a directory of copies; None if there is no copy with the right size and checksum.

    A linked copy (`link_copy`) has no checksum and is not verified: the tables and logs of RocksDB have their own.

    Args:
        directory: the directory of copies.
        url: URL of the file.
        size: size of the file in bytes.
        verify: read the copy and compare the checksum; otherwise compare only the size.
    """
    linked = directory / _name_copy(url)
    for path in (linked, *directory.glob(f"{linked.name}.*")):
        with suppress(OSError):
            if path.suffix == _PARTIAL or path.stat().st_size != size:
                continue
            if path == linked or not verify or _is_whole(path):
                return path
    return None


def take_copy(copy: Path, directory: Path) -> None:
    """Add a copy to another directory of copies as well: linked, or copied to another disk.

    Raises:
        OSError: the disk refuses.
    """
    _link(copy, directory / copy.name)


def remove_other_copies(directory: Path, urls: Iterable[str]) -> None:
    """Remove all files from a directory of copies except the complete copies of the files at `urls`."""
    names = set(map(_name_copy, urls))
    for path in directory.iterdir():
        if path.stem not in names or path.suffix == _PARTIAL:
            path.unlink(missing_ok=True)


class _WrittenCopy:
    """Writer of the copy of a file (`CopyWriter`); when the copy is complete, its name contains the checksum."""

    def __init__(self, directory: Path, url: str) -> None:
        self._url = url
        self._target = directory / _name_copy(url)
        self._partial = self._target.with_suffix(f".{uuid4().hex}{_PARTIAL}")
        self._file: IO[bytes] | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = self._partial.open("wb")
        except OSError as error:
            self._give_up(error)

    def write(self, data: memoryview) -> None:
        """Write the next bytes to the copy."""
        if self._file is not None:
            try:
                self._file.write(data)
            except OSError as error:
                self._give_up(error)

    def finish(self, checksum: str) -> None:
        """Close the copy and rename it to its final name, which contains the checksum."""
        if self._file is not None:
            try:
                self._file.close()
                self._partial.replace(self._target.with_suffix(f".{checksum}"))
            except OSError as error:
                self._give_up(error)

    def discard(self) -> None:
        """Remove the incomplete copy."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._file = None
        with suppress(OSError):
            self._partial.unlink()

    def _give_up(self, error: OSError) -> None:
        _log.warning("no local copy of %s: %s", self._url, error)
        self.discard()


def _name_copy(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()


def _is_whole(path: Path) -> bool:
    with path.open("rb") as file:
        return compute_checksum(iter(lambda: file.read(_CHUNK), b"")) == path.suffix[1:]


def _link(path: Path, target: Path) -> None:
    with suppress(FileExistsError):
        try:
            os.link(path, target)
        except FileExistsError:
            raise
        except OSError:
            # The target is on another disk: copy there, and rename when complete.
            partial = target.with_name(f"{target.name}.{uuid4().hex}{_PARTIAL}")
            shutil.copyfile(path, partial)
            partial.replace(target)
