"""Recursive listings of S3: pages of 1,000 objects, several ranges of names at a time, ranges left out."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from state_pipelines.storage.faults import request
from state_pipelines.storage.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fsspec import AbstractFileSystem

    from state_pipelines.storage.locations import Location

IN_FLIGHT = 16
"""Ranges of names that are listed at a time."""

PAGE = 1_000
"""Objects of a page, the most that S3 gives."""

SEQUENTIAL = 4
"""Pages after which a listing is shared: each range that is listed beside others reads up to a page too much."""

WAITING = 8
"""Pages of one range that wait for the reader."""

_LAST = "\U0010ffff"
"""The last name of all."""

# Flink names most of its files by random UUIDs.
_CUTS = "2468ace"


@dataclass(frozen=True, slots=True)
class S3Object:
    """An object in a listing.

    Attributes:
        path: bucket and key.
        size: bytes.
        modified: time of the last change.
    """

    path: str
    size: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class _Range:
    """Names after `start` up to `end` (inclusive); an empty `end` is open."""

    start: str
    end: str


def parse_times_fast(filesystem: AbstractFileSystem) -> None:
    """Have a new file system of s3fs parse times of answers without dateutil, which takes two thirds of a listing."""
    from aiobotocore.session import AioSession

    if filesystem.session is None:
        session = AioSession(**filesystem.kwargs)
        session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_parse_time)
        filesystem.session = session


def _parse_time(value: Any) -> datetime:
    # Listings have ISO 8601; headers of answers have times as in e-mails.
    if isinstance(value, str) and value[10:11] == "T":
        return datetime.fromisoformat(value)
    from botocore.utils import parse_timestamp

    parsed: datetime = parse_timestamp(value)
    return parsed


def list_objects(root: Location, leave_out: Callable[[str], str | None] = lambda _: None) -> Iterator[S3Object]:
    """List the objects below a directory in the order of their names.

    Args:
        root: the directory.
        leave_out: given a key below the prefix of the root, the directory (ending in `/`) around it whose objects are
            left out, or None. Where a page ends inside such a directory, the next one begins after it. It is called by
            several threads.

    Raises:
        MissingFileError: there is no such bucket.
        StorageError: the storage fails.
    """
    lister = _Lister(root, leave_out)
    after: str | None = ""
    for _ in range(SEQUENTIAL):
        page = lister.list_page(_Range(after or "", ""))
        yield from page.objects
        after = page.next
        if after is None:
            return
    for objects in _share(lister.plan_ranges(after or ""), lister.list_pages):
        yield from objects


@dataclass(frozen=True, slots=True)
class _Page:
    """Objects, and the name after which the next page begins; None after the last page."""

    objects: list[S3Object]
    next: str | None


class _Lister:
    def __init__(self, root: Location, leave_out: Callable[[str], str | None]) -> None:
        self._root = root
        self._leave_out = leave_out
        self._bucket, key, _ = root.filesystem.split_path(root.path)
        self._prefix = f"{key.rstrip('/')}/" if key.strip("/") else ""

    def list_page(self, wanted: _Range) -> _Page:
        """List one page of a range."""
        answer = self._ask(StartAfter=wanted.start) if wanted.start else self._ask()
        objects: list[S3Object] = []
        left_out = ""
        for each in answer.get("Contents", ()):
            key = str(each["Key"])
            if wanted.end and key > wanted.end:
                return _Page(objects, None)
            if left_out and key.startswith(left_out):
                continue
            below = self._leave_out(key[len(self._prefix) :])
            left_out = "" if below is None else self._prefix + below
            # A name that ends in a slash marks a directory.
            if not left_out and not key.endswith("/"):
                objects.append(S3Object(f"{self._bucket}/{key}", int(each["Size"]), each["LastModified"]))
        if not answer.get("IsTruncated"):
            return _Page(objects, None)
        last = str(answer["Contents"][-1]["Key"])
        after = left_out + _LAST if left_out and last.startswith(left_out) else last
        return _Page(objects, None if wanted.end and after >= wanted.end else after)

    def list_pages(self, wanted: _Range) -> Iterator[list[S3Object]]:
        """List the pages of a range."""
        start: str | None = wanted.start
        while start is not None:
            page = self.list_page(_Range(start, wanted.end))
            yield page.objects
            start = page.next

    def plan_ranges(self, after: str) -> list[_Range]:
        """Cut the names after one into ranges that can be listed at the same time: at directories, and inside them."""
        prefix = self._prefix
        directories: list[str] = []
        while True:
            answer = self._ask(prefix=prefix, Delimiter="/")
            directories = [str(each["Prefix"]) for each in answer.get("CommonPrefixes", ())]
            if len(directories) != 1 or answer.get("Contents") or answer.get("IsTruncated"):
                break
            prefix = directories[0]
        directories = [each for each in directories if not self._leave_out(each[len(self._prefix) :])]
        if len(directories) < IN_FLIGHT:
            directories = [each for name in directories or [prefix] for each in (name, *(name + c for c in _CUTS))]
        cuts = [each for each in directories if each > after]
        cuts = cuts[:: max(1, -(-len(cuts) // (4 * IN_FLIGHT)))]
        starts = [after, *cuts]
        return [_Range(start, end) for start, end in zip(starts, [*cuts, ""], strict=True)]

    def _ask(self, *, prefix: str | None = None, **arguments: str) -> dict[str, Any]:
        filesystem = self._root.filesystem

        def ask() -> dict[str, Any]:
            wanted = self._prefix if prefix is None else prefix
            answer: dict[str, Any] = filesystem.call_s3(
                "list_objects_v2", Bucket=self._bucket, Prefix=wanted, MaxKeys=PAGE, **arguments
            )
            return answer

        return request(self._root, "list the files", ask)


def _share(
    ranges: Sequence[_Range], list_pages: Callable[[_Range], Iterator[list[S3Object]]]
) -> Iterator[list[S3Object]]:
    """List ranges at the same time and give their pages in order; a bounded number waits for the reader."""
    waiting: list[queue.Queue[list[S3Object] | Exception | None]] = [queue.Queue(WAITING) for _ in ranges]
    stopped = threading.Event()

    def put(index: int, item: list[S3Object] | Exception | None) -> None:
        while not stopped.is_set():
            try:
                waiting[index].put(item, timeout=0.1)
            except queue.Full:
                continue
            return

    def work(index: int) -> None:
        try:
            for page in list_pages(ranges[index]):
                put(index, page)
                if stopped.is_set():
                    return
        except Exception as error:  # noqa: BLE001 - raised again by the reader
            put(index, error)
            return
        put(index, None)

    # Ranges begin in order, so that the one that is read is never one that has not begun.
    with Threads(IN_FLIGHT) as pool:
        futures = [pool.submit(work, index) for index in range(len(ranges))]
        try:
            for each in waiting:
                while (item := each.get()) is not None:
                    if isinstance(item, Exception):
                        raise item
                    yield item
        finally:
            stopped.set()
            for future in futures:
                future.cancel()
