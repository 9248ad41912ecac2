"""Multi-part uploads to S3: objects made of bytes that are sent and of ranges that the store copies itself."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

from state_pipelines.errors import StateError
from state_pipelines.storage.faults import request
from state_pipelines.storage.locations import Location, is_s3

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from types import TracebackType

SMALLEST_PART = 5 << 20
"""Bytes that every part but the last must have; a shorter range cannot be copied by the store alone."""

SENT_PART = 16 << 20
"""Bytes of a part that is sent, at most; larger only where there would be too many parts."""

COPIED_PART = 512 << 20
"""Bytes of a part that the store copies, about; S3 allows 5 GiB, but several smaller ones take less time."""

_MANY_PARTS = 5000
"""Parts after which they become larger; S3 allows 10,000."""

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


@dataclass(frozen=True)
class Part:
    """One part of an upload.

    Attributes:
        ranges: its content; bytes stand for themselves.
        is_copied: the store copies it; it is a single range then.
    """

    ranges: tuple[FileRange | bytes, ...]
    is_copied: bool = False


def can_copy_ranges(ranges: Sequence[FileRange | bytes], target: Location) -> bool:
    """Return whether the store of `target` can copy at least one of these ranges into a new file."""
    return is_s3(target.filesystem) and any(part.is_copied for part in plan_parts(ranges, target))


def plan_parts(ranges: Sequence[FileRange | bytes], target: Location) -> list[Part]:
    """Divide the content of a new file into parts.

    Ranges of at least `SMALLEST_PART` bytes in the same store are copied by it. What is shorter is sent, together with
    as many bytes of the next range as a part needs.
    """
    sent_size = max(SENT_PART, sum(map(len, ranges)) // _MANY_PARTS)
    parts: list[Part] = []
    pending: list[FileRange | bytes] = []
    size = 0

    def flush() -> None:
        nonlocal size
        if pending:
            parts.append(Part(tuple(pending)))
        pending.clear()
        size = 0

    for each in ranges:
        start = 0
        if isinstance(each, FileRange) and each.location.filesystem == target.filesystem:
            missing = max(0, SMALLEST_PART - size) if pending else 0
            if len(each) - missing >= SMALLEST_PART:
                if missing:
                    pending.append(each.cut(0, missing))
                flush()
                parts += [Part((copied,), is_copied=True) for copied in _divide(each, missing)]
                continue
        while start < len(each):
            end = min(len(each), start + sent_size - size)
            pending.append(each.cut(start, end) if isinstance(each, FileRange) else each[start:end])
            size += end - start
            start = end
            if size >= sent_size:
                flush()
    flush()
    return parts


def _divide(each: FileRange, start: int) -> list[FileRange]:
    """Cut the rest of a range into parts of about `COPIED_PART` bytes, none of which is too small."""
    count = -(-(len(each) - start) // COPIED_PART)
    bounds = [start + (len(each) - start) * number // count for number in range(count + 1)]
    return [each.cut(low, high) for low, high in pairwise(bounds)]


def write_parts(parts: Sequence[Part], target: Location, read: Callable[[FileRange], bytes]) -> int:
    """Write a new file, several parts at a time; returns its bytes.

    Args:
        parts: from `plan_parts`.
        target: the new file; it does not exist before all parts are there.
        read: reads a range that is sent.

    Raises:
        StateError: a range cannot be read, or the store fails; there is no file then.
    """

    def join(part: Part) -> bytes:
        return b"".join(each if isinstance(each, bytes) else read(each) for each in part.ranges)

    with MultipartUpload(target) as upload:
        for part in parts:
            (first, *_) = part.ranges
            if part.is_copied and isinstance(first, FileRange):
                upload.copy(first)
            else:
                upload.send(sum(map(len, part.ranges)), lambda part=part: join(part))  # type: ignore[misc]
    return upload.size


class MultipartUpload:
    """A new object on S3 in parts, several at a time; it does not exist before the block is left without error.

    Every request is repeated by the rule of `faults.request`. A failed upload is given up, so that the store keeps
    none of its parts.

    Attributes:
        size: bytes so far.
    """

    def __init__(self, location: Location) -> None:
        self.size = 0
        self._location = location
        bucket, key, _ = location.filesystem.split_path(location.path)
        self._object = {"Bucket": bucket, "Key": key}
        self._parts: list[Future[str]] = []
        self._waiting: deque[Future[str]] = deque()
        self._pool = ThreadPoolExecutor(_IN_FLIGHT)

    def __enter__(self) -> Self:
        self._object["UploadId"] = str(self._call("create_multipart_upload")["UploadId"])
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

        def send() -> str:
            return str(self._call("upload_part", PartNumber=number, Body=read())["ETag"])

        self._parts.append(self._pool.submit(send))
        self._waiting.append(self._parts[-1])

    def copy(self, source: FileRange) -> None:
        """Let the store copy the next part."""
        number = self._add(len(source))
        bucket, key, version = source.location.filesystem.split_path(source.location.path)
        copied = {"Bucket": bucket, "Key": key} | ({"VersionId": version} if version else {})
        wanted = {"CopySource": copied, "CopySourceRange": f"bytes={source.start}-{source.end - 1}"}

        def copy() -> str:
            answer = self._call("upload_part_copy", source.location, PartNumber=number, **wanted)
            return str(answer["CopyPartResult"]["ETag"])

        self._parts.append(self._pool.submit(copy))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._complete()
        except BaseException:
            self._abort()
            raise
        else:
            if error is not None:
                self._abort()
        finally:
            self._pool.shutdown(cancel_futures=True)

    def _add(self, size: int) -> int:
        self.size += size
        return len(self._parts) + 1

    def _complete(self) -> None:
        etags = [part.result() for part in self._parts]
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        filesystem, path = self._location.filesystem, self._location.path

        def complete() -> None:
            try:
                filesystem.call_s3("complete_multipart_upload", **self._object, MultipartUpload={"Parts": parts})
            except FileNotFoundError:
                # The upload is gone after an attempt whose answer was lost.
                if int(filesystem.call_s3("head_object", **_without_id(self._object))["ContentLength"]) != self.size:
                    raise
            filesystem.invalidate_cache(path)

        request(self._location, "write the file", complete, writes=True)

    def _abort(self) -> None:
        # Parts that arrive after the end of the upload would stay in the store, and cost.
        self._pool.shutdown(cancel_futures=True)
        # What failed before is the error that counts.
        with suppress(StateError):
            self._call("abort_multipart_upload")

    def _call(self, method: str, source: Location | None = None, **arguments: Any) -> dict[str, Any]:
        filesystem = self._location.filesystem

        def call() -> dict[str, Any]:
            answer: dict[str, Any] = filesystem.call_s3(method, **self._object, **arguments)
            return answer

        if source is None:
            return request(self._location, "write the file", call, writes=True)
        return request(source, f"copy the file to {self._location}", call)


def _without_id(arguments: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in arguments.items() if name != "UploadId"}
