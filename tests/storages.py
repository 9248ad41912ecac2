"""Storages that are not this machine."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem

from state_pipelines.storage import Location

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


@dataclass(frozen=True)
class LostResponse:
    """A fault after the request was done: only its response does not arrive."""

    error: BaseException


@dataclass(frozen=True)
class LostRequest:
    """A write or copy that is answered as done although less, or nothing, of the file is stored.

    Attributes:
        stored: share of the bytes that are stored; with 0 there is no file either.
    """

    stored: float = 0.0


Fault = BaseException | LostResponse | LostRequest


class ShortBody(ConnectionResetError):
    """A body that ends early; where all to the end of a file is read, clients notice it by the length in the answer."""


class CountedFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Storage that counts its requests, notes what is read, and fails or waits on demand."""

    protocol = "counted"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    reads: ClassVar[list[tuple[str, int, int]]] = []
    """(path, start, end) of every read."""
    written: ClassVar[list[tuple[str, int]]] = []
    """(path, bytes) of every write."""
    requests: ClassVar[list[tuple[str, str]]] = []
    """(operation, path) of every request, those that failed too."""
    faults: ClassVar[list[Fault]] = []
    """What the next requests raise, one each."""
    flaky: ClassVar[Exception | None] = None
    """What the first attempt of every read raises; a `ShortBody` gives half of the bytes instead."""
    attempted: ClassVar[set[tuple[str, int | None, int | None]]] = set()
    """Reads that were attempted while reads are flaky."""
    rule: ClassVar[Callable[[int, str, str], Fault | None] | None] = None
    """Gives the fault of a request by its number, operation and path, where `faults` is empty."""
    now: ClassVar[int] = 0
    most: ClassVar[int] = 0
    """The largest number of requests that were in flight at a time."""
    gather: ClassVar[Mapping[str, int]] = {}
    """How many requests must have been in flight at a time before one of this operation goes on, in half a minute."""
    lock: ClassVar[threading.Condition] = threading.Condition()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(str(path).removeprefix("counted://")))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        with self._request("read", path):
            content = super().cat_file(path, start=start, end=end, **options)
            to_end = end is None or len(content) < end - (start or 0)
            attempt = path, start, end
            if self.flaky is not None and attempt not in self.attempted:
                self.attempted.add(attempt)
                if not isinstance(self.flaky, ShortBody) or to_end:
                    raise self.flaky
                content = content[: len(content) // 2]
            self.reads.append((path, start or 0, (start or 0) + len(content)))
            return bytes(content)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        with self._request("info", path):
            found: dict[str, Any] = super().info(path, **options)
            return found

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        with self._request("list", path):
            return super().ls(path, detail=detail, **options)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        with self._request("make directory", path):
            super().makedirs(path, exist_ok=exist_ok)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        with self._request("write", path) as lost:
            if lost is None or lost.stored:
                kept = value if lost is None else value[: int(len(value) * lost.stored)]
                super().pipe_file(path, kept, mode=mode, **options)
            self.written.append((path, len(value)))

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        with self._request("copy", path1) as lost:
            if lost is None:
                super().cp_file(path1, path2, **options)

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        with self._request("move", path1):
            if path1 not in self.store:
                raise FileNotFoundError(path1)
            self.store[path2] = self.store.pop(path1)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        with self._request("remove all", path):
            prefix = f"{path.rstrip('/')}/"
            for name in [each for each in self.store if each == path or each.startswith(prefix)]:
                del self.store[name]
            self.pseudo_dirs[:] = [each for each in self.pseudo_dirs if each != path and not each.startswith(prefix)]

    def rm_file(self, path: str) -> None:
        with self._request("remove", path):
            super().rm_file(path)

    @contextmanager
    def _request(self, operation: str, path: str) -> Iterator[LostRequest | None]:
        kind = type(self)
        with self.lock:
            number = len(self.requests)
            self.requests.append((operation, path))
            listed = self.faults.pop(0) if self.faults else None
            kind.now += 1
            kind.most = max(kind.most, kind.now)
            self.lock.notify_all()
            self.lock.wait_for(lambda: kind.most >= kind.gather.get(operation, 0), 30)
        try:
            # Without the lock: a rule may wait, or send requests of its own.
            rule = kind.rule
            fault = listed or (rule(number, operation, path) if rule else None)
            if isinstance(fault, BaseException):
                raise fault
            yield fault if isinstance(fault, LostRequest) else None
            if isinstance(fault, LostResponse):
                raise fault.error
        finally:
            with self.lock:
                kind.now -= 1


register_implementation("counted", CountedFileSystem, clobber=True)


def empty_counted() -> Location:
    """The root of the storage, without files, notes or faults."""
    filesystem = CountedFileSystem()
    lists = (filesystem.reads, filesystem.written, filesystem.requests, filesystem.faults)
    for each in (filesystem.store, filesystem.attempted, *lists):
        each.clear()
    filesystem.pseudo_dirs[:] = [""]
    CountedFileSystem.rule = CountedFileSystem.flaky = None
    CountedFileSystem.gather, CountedFileSystem.most = {}, 0
    return Location(filesystem, "/counted")


def store_folder(folder: Path) -> Location:
    """The files of a directory on an empty counted storage, in a directory of the same name; nothing is noted yet."""
    root = empty_counted()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            target = f"{root.path}/{folder.name}/{path.relative_to(folder)}"
            root.filesystem.pipe_file(target, path.read_bytes())
    CountedFileSystem.requests.clear()
    return Location(root.filesystem, f"{root.path}/{folder.name}")
