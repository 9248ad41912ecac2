"""New objects in parts, several at a time: bytes that are sent, and ranges that the store copies itself."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from state_pipelines.errors import MissingFileError, StateError
from state_pipelines.storage.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from fsspec import AbstractFileSystem

    from state_pipelines.storage.locations import Location

_log = logging.getLogger(__name__)

_refused: list[AbstractFileSystem] = []

_IN_FLIGHT = 8
"""Parts of one object that are sent or copied at a time."""

_SENT_IN_FLIGHT = 4
"""Parts that wait in memory for being sent, at most."""


@dataclass(frozen=True)
class FileRange:
    """The bytes of a file from `start` up to `end` (exclusive)."""

    location: Location
    start: int
    end: int

    def __len__(self) -> int:
        """Return the number of bytes."""
        return self.end - self.start

    def cut(self, start: int, end: int) -> FileRange:
        """Return a range inside this one; positions count from its first byte."""
        return FileRange(self.location, self.start + start, self.start + end)


class CopyRefusedError(Exception):
    """The store does not copy by itself what may be read all the same; its text is the reason."""


def is_refusal(error: StateError) -> bool:
    """Return whether a store has refused a copy, rather than failed, or found no such file."""
    is_missing = isinstance(error, MissingFileError) and isinstance(error.__cause__, FileNotFoundError)
    return not is_missing and not getattr(error, "transient", False)


def warn_of_refusal(source: Location, reason: str) -> None:
    """Log why a store does not copy files itself, once for each file system of this process."""
    if source.filesystem not in _refused:
        _refused.append(source.filesystem)
        _log.warning("The store does not copy by itself, so that bytes pass through this process: %s", reason)


class PartUpload(ABC):
    """A new object in parts; it does not exist before the block is left without error.

    Every request is repeated by the rule of `faults.request`. A failed upload is given up.

    Attributes:
        size: bytes so far.
    """

    def __init__(self, location: Location) -> None:
        self.size = 0
        self._location = location
        self._parts: list[Future[str]] = []
        self._waiting: deque[Future[str]] = deque()
        self._pool = Threads(_IN_FLIGHT)

    def __enter__(self) -> Self:
        self._begin()
        return self

    def send(self, size: int, read: Callable[[], bytes]) -> None:
        """Send the next part.

        Args:
            size: its bytes.
            read: gives them; called by another thread.
        """
        number = self._add(size)
        if len(self._waiting) >= _SENT_IN_FLIGHT:
            self._waiting.popleft().result()
        self._parts.append(self._pool.submit(lambda: self._send_part(number, read())))
        self._waiting.append(self._parts[-1])

    def copy(self, source: FileRange) -> None:
        """Let the store copy the next part; if it refuses, leaving the block raises a `CopyRefusedError`."""
        number = self._add(len(source))

        def copy() -> str:
            try:
                return self._copy_part(number, source)
            except StateError as error:
                if is_refusal(error):
                    raise CopyRefusedError(str(error)) from error
                raise

        self._parts.append(self._pool.submit(copy))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._complete([part.result() for part in self._parts])
        except BaseException:
            self._give_up()
            raise
        else:
            if error is not None:
                self._give_up()
        finally:
            self._pool.shutdown(cancel_futures=True)

    def _add(self, size: int) -> int:
        self.size += size
        return len(self._parts) + 1

    def _give_up(self) -> None:
        # Parts that arrive after the end of the upload would stay in the store, and cost.
        self._pool.shutdown(cancel_futures=True)
        self._abort()

    @abstractmethod
    def _begin(self) -> None:
        """Begin the upload."""

    @abstractmethod
    def _send_part(self, number: int, data: bytes) -> str:
        """Send a part; returns what `_complete` needs of it."""

    @abstractmethod
    def _copy_part(self, number: int, source: FileRange) -> str:
        """Let the store copy a part; returns what `_complete` needs of it."""

    @abstractmethod
    def _complete(self, parts: Sequence[str]) -> None:
        """Make the object of its parts."""

    @abstractmethod
    def _abort(self) -> None:
        """Remove parts that were stored; what failed before is the error that counts."""
