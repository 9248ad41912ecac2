"""Ranges of files: read with one request, or with several at a time where the file system is asynchronous."""

from __future__ import annotations

import os
from http import HTTPStatus

from state_pipelines.errors import FormatError, MissingFileError, StorageError, UsageError, Where
from state_pipelines.storage.faults import ShortBodyError, find_status, request
from state_pipelines.storage.files import file_size, require_reach
from state_pipelines.storage.free_memory import require_memory
from state_pipelines.storage.locations import Location, is_local
from state_pipelines.storage.request_counts import add_requests

REQUEST_SIZE = 2 << 20
"""Bytes per request of a range that is read with several; more would leave few requests in flight."""

REQUESTS = 16
"""Requests of one reader that are in flight at a time on a storage that is not local, by default."""

REQUESTS_VARIABLE = "STATE_PIPELINES_READ_AHEAD_REQUESTS"
"""Environment variable with a number in place of `REQUESTS`; 1 reads nothing ahead."""

# A read of more bytes than this first asks for the size of the file, so that a wrong size cannot demand the memory.
_TRUSTED_SIZE = 32 << 20


def read_setting(variable: str, default: int) -> int:
    """Read a number from an environment variable.

    Raises:
        UsageError: it is not a number above 0.
    """
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal() or int(text) == 0:
        raise UsageError(f"the environment variable {variable} is {text!r}, not a number above 0")
    return int(text)


def count_requests(location: Location, size: int) -> int:
    """Number of requests with which `read_range` reads `size` bytes of a file on a storage that is not local."""
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
        raise FormatError(f"{start} to {end} is not a range of bytes", where=Where(file=str(location), offset=start))
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
        """Bytes that have come."""
        return sum(map(len, self._found.values()))

    @property
    def is_short(self) -> bool:
        """Whether bytes are missing."""
        return self.size < self._bounds[-1] - self._bounds[0]

    def fetch(self, in_flight: int) -> None:
        """Send the requests whose bytes are not there completely."""
        missing = [number for number in range(len(self._bounds) - 1) if self._is_missing(number)]
        # `request` counts one of them.
        add_requests(len(missing) - 1)
        if len(self._bounds) == 2:
            self._found[0] = _read_at_once(self._location, self._bounds[0], self._bounds[1])
            return
        starts, ends = ([self._bounds[number + side] for number in missing] for side in (0, 1))
        paths = [self._location.path] * len(missing)
        # Errors are results, so that what has come is kept.
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
        """Refuse answers that are longer than their ranges: they begin at another offset.

        Raises:
            StorageError: the server has sent another part of the file.
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
        """All bytes, in order."""
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
