"""Counts of the requests that this process has sent to storages, and of the bytes that it has read with them."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

_LOCK = Lock()
_sent = [0, 0]


@dataclass(frozen=True)
class RequestCounts:
    """Requests, attempts that failed among them, and what was read with them.

    Attributes:
        requests: number of requests, also to local disks; a listing counts as one, whatever its pages.
        bytes_read: bytes of files that came back.
    """

    requests: int
    bytes_read: int

    def __sub__(self, earlier: RequestCounts) -> RequestCounts:
        """Counts of what was sent between the two."""
        return RequestCounts(self.requests - earlier.requests, self.bytes_read - earlier.bytes_read)


def add_requests(requests: int, bytes_read: int = 0) -> None:
    """Add to the counts of this process; safe in any thread."""
    with _LOCK:
        _sent[0] += requests
        _sent[1] += bytes_read


def sent_requests() -> RequestCounts:
    """Counts since the process began."""
    with _LOCK:
        return RequestCounts(*_sent)
