"""Uploads: new files on storages that are not local, in parts, of sent bytes and of ranges that the store copies."""

from __future__ import annotations

import asyncio
import io
import logging
from abc import ABC, abstractmethod
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import BytesIO
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Any, Self, cast
from uuid import uuid4

from fsspec.asyn import sync
from fsspec.spec import AbstractBufferedFile
from typing_extensions import override

from state_pipelines.errors import MissingFileError, StateError
from state_pipelines.storage.locations import Location, Threads, client_errors, is_azure, is_s3, request, translating

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from fsspec import AbstractFileSystem

_log = logging.getLogger(__name__)

_refused: list[AbstractFileSystem] = []

_IN_FLIGHT = 8
"""Parts of one object that are sent or copied at a time."""

_SENT_IN_FLIGHT = 4
"""Maximum number of parts that wait in memory to be sent."""


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
        """Return a range inside this one; `start` and `end` are relative to the start of this range."""
        return FileRange(self.location, self.start + start, self.start + end)


class CopyRefusedError(Exception):
    """The store refuses to copy a file by itself, although it may be readable; the text is the reason."""


def is_refusal(error: StateError) -> bool:
    """Return whether an error means that the store refuses to copy, and not that it failed or found no such file."""
    is_missing = isinstance(error, MissingFileError) and isinstance(error.__cause__, FileNotFoundError)
    return not is_missing and not getattr(error, "transient", False)


def warn_of_refusal(source: Location, reason: str) -> None:
    """Log the reason why a store does not copy files itself, once for each file system in this process."""
    if source.filesystem not in _refused:
        _refused.append(source.filesystem)
        _log.warning("The store does not copy by itself, so that bytes pass through this process: %s", reason)


class PartUpload(ABC):
    """Upload of a new object in parts; the object exists only after the block has ended without an error.

    Failed requests are repeated as `locations.request` does. If the block ends with an error, the upload is aborted.

    Attributes:
        size: number of bytes of the parts so far.
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
            size: number of its bytes.
            read: returns the bytes; called by another thread.
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
        """Begin the upload of the object."""

    @abstractmethod
    def _send_part(self, number: int, data: bytes) -> str:
        """Send a part; return the text by which `_complete` names it (such as an ETag or a block id)."""

    @abstractmethod
    def _copy_part(self, number: int, source: FileRange) -> str:
        """Let the store copy a part; return the text by which `_complete` names it."""

    @abstractmethod
    def _complete(self, parts: Sequence[str]) -> None:
        """Create the object from its parts, given in order."""

    @abstractmethod
    def _abort(self) -> None:
        """Remove the stored parts; errors are ignored, since the error that caused the abort is raised."""


_SCOPE = "https://storage.azure.com/.default"

_SIGNED_FOR = timedelta(hours=2)
"""Time for which the signature of a source is valid; a block of 100 MiB is copied in seconds."""

_PAUSE = 0.5
"""Seconds between two requests for the status of a copy that the service has not completed."""

_METADATA = {"is_directory": "false"}
"""Metadata of a blob by which adlfs tells files from directories."""


class AzureUpload(PartUpload):
    """Upload of a blob in blocks. The service deletes the blocks of an aborted upload after a week."""

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        # The names of blocks are random, so that blocks of an earlier attempt at the same blob are not used.
        self._name = uuid4().hex

    def _begin(self) -> None:
        """Do nothing: an upload in blocks begins without a request. The blob exists when its blocks are committed."""

    def _send_part(self, number: int, data: bytes) -> str:
        block = self._name_block(number)
        self._call("write the file", lambda blob: blob.stage_block(block, BytesIO(data), length=len(data)))
        return block

    def _copy_part(self, number: int, source: FileRange) -> str:
        block = self._name_block(number)

        async def copy(blob: Any) -> None:
            url, options = await authorize_source(source.location)
            await blob.stage_block_from_url(
                block, url, source_offset=source.start, source_length=len(source), **options
            )

        request(source.location, f"copy the file to {self._location}", lambda: _run(self._location, copy))
        return block

    def _complete(self, parts: Sequence[str]) -> None:
        # Imported late: the package is certainly installed where such a file system exists.
        from azure.storage.blob import BlobBlock

        blocks = [BlobBlock(block_id=each) for each in parts]
        self._call("write the file", lambda blob: blob.commit_block_list(blocks, metadata=_METADATA))
        self._location.filesystem.invalidate_cache(self._location.path.rpartition("/")[0])

    def _abort(self) -> None:
        """Do nothing, since there is no request to remove uncommitted blocks."""

    def _name_block(self, number: int) -> str:
        # The service requires that the names of all blocks of a blob have the same length.
        return f"{self._name}{number:05}"

    def _call(self, operation: str, call: Callable[[Any], Awaitable[Any]]) -> None:
        request(self._location, operation, lambda: _run(self._location, call), writes=True)


def copy_blob(source: Location, target: Location) -> None:
    """Let Azure copy a whole file, and wait until the copy is complete; the caller repeats failed requests.

    Raises:
        OSError: the service has failed or aborted the copy.
    """
    # Imported late: the package is certainly installed where such a file system exists.
    from azure.core.exceptions import ResourceExistsError

    async def copy(blob: Any) -> None:
        url = _find_blob(source.filesystem, source.path).url
        try:
            started = await blob.start_copy_from_url(url, metadata=_METADATA)
            status, reason = started["copy_status"], None
        except ResourceExistsError as error:
            if getattr(error, "error_code", None) != "PendingCopyOperation":
                raise
            # An earlier attempt, whose response was lost, has started the copy.
            status, reason = "pending", None
        # Copies within one account are mostly complete at once, but that is not guaranteed.
        while status == "pending":
            await asyncio.sleep(_PAUSE)
            properties = await blob.get_blob_properties()
            status, reason = properties.copy.status, properties.copy.status_description
        if status != "success":
            raise OSError(f"the copy ended as {status}{f': {reason}' if reason else ''}")

    _run(target, copy)
    target.filesystem.invalidate_cache(target.path.rpartition("/")[0])


async def authorize_source(source: Location) -> tuple[str, dict[str, str]]:
    """The URL from which the service may read a blob itself, and options of the request that it needs for that.

    With the key of the account the URL is signed for this blob, to be read; with a token the request has it; a shared
    access signature is part of the URL already.
    """
    blob = _find_blob(source.filesystem, source.path)
    credential = blob.credential
    if key := getattr(credential, "account_key", None):
        from azure.storage.blob import BlobSasPermissions, generate_blob_sas

        signature = generate_blob_sas(
            credential.account_name,
            blob.container_name,
            blob.blob_name,
            account_key=key,
            permission=BlobSasPermissions(read=True),
            expiry=datetime.now(UTC) + _SIGNED_FOR,
        )
        return f"{blob.url}{'&' if '?' in blob.url else '?'}{signature}", {}
    if hasattr(credential, "get_token"):
        token = await credential.get_token(_SCOPE)
        return blob.url, {"source_authorization": f"Bearer {token.token}"}
    return blob.url, {}


def _find_blob(filesystem: AbstractFileSystem, path: str) -> Any:
    container, name, version = filesystem.split_path(path)
    return filesystem.service_client.get_blob_client(container, name, version_id=version)


def _run(location: Location, call: Callable[[Any], Awaitable[Any]]) -> None:
    """Run a call on the client of a blob, in the thread of its file system."""

    async def run() -> None:
        async with _find_blob(location.filesystem, location.path) as blob:
            await call(blob)

    sync(location.filesystem.loop, run)


class S3Upload(PartUpload):
    """Upload of an object to S3; aborting it deletes its parts."""

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        bucket, key, _ = location.filesystem.split_path(location.path)
        self._object = {"Bucket": bucket, "Key": key}

    def _begin(self) -> None:
        self._object["UploadId"] = str(self._call("create_multipart_upload")["UploadId"])

    def _send_part(self, number: int, data: bytes) -> str:
        return str(self._call("upload_part", PartNumber=number, Body=data)["ETag"])

    def _copy_part(self, number: int, source: FileRange) -> str:
        bucket, key, version = source.location.filesystem.split_path(source.location.path)
        copied = {"Bucket": bucket, "Key": key} | ({"VersionId": version} if version else {})
        wanted = {"CopySource": copied, "CopySourceRange": f"bytes={source.start}-{source.end - 1}"}
        answer = self._call("upload_part_copy", source.location, PartNumber=number, **wanted)
        return str(answer["CopyPartResult"]["ETag"])

    def _complete(self, parts: Sequence[str]) -> None:
        listed = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(parts, 1)]
        filesystem, path = self._location.filesystem, self._location.path

        def complete() -> None:
            try:
                filesystem.call_s3("complete_multipart_upload", **self._object, MultipartUpload={"Parts": listed})
            except FileNotFoundError:
                # An earlier attempt may have completed the upload although its response was lost.
                if int(filesystem.call_s3("head_object", **_without_id(self._object))["ContentLength"]) != self.size:
                    raise
            filesystem.invalidate_cache(path)

        request(self._location, "write the file", complete, writes=True)

    def _abort(self) -> None:
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


SMALLEST_PART = 5 << 20
"""Bytes that every part but the last must have; a shorter range cannot be copied by the store alone."""

SENT_PART = 16 << 20
"""Maximum bytes of a part that is sent, unless there would be too many parts."""

COPIED_PART = 512 << 20
"""Approximate bytes of a part that S3 copies; it allows 5 GiB, but several smaller parts take less time."""

COPIED_BLOCK = 100 << 20
"""Maximum bytes of a part that Azure copies, which every version of its interface allows."""

_MANY_PARTS = 5000
"""Number of parts beyond which larger parts are used; S3 allows 10,000."""


@dataclass(frozen=True)
class Part:
    """A part of an upload.

    Attributes:
        ranges: content of the part, as ranges of files or as bytes.
        is_copied: the store copies the part, which then is a single range of a file.
    """

    ranges: tuple[FileRange | bytes, ...]
    is_copied: bool = False


def can_copy_ranges(ranges: Sequence[FileRange | bytes], target: Location) -> bool:
    """Return whether the store of `target` can copy at least one of these ranges into a new file."""
    copies = is_s3(target.filesystem) or is_azure(target.filesystem)
    return copies and any(part.is_copied for part in plan_parts(ranges, target))


def plan_parts(ranges: Sequence[FileRange | bytes], target: Location) -> list[Part]:
    """Divide the content of a new file into parts.

    The store itself copies ranges of at least `SMALLEST_PART` bytes that it has. Shorter ranges are read and sent,
    together with as many bytes of the next range as a part needs.
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
                copied_size = COPIED_BLOCK if is_azure(target.filesystem) else COPIED_PART
                parts += [Part((copied,), is_copied=True) for copied in _divide(each, missing, copied_size)]
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


def _divide(each: FileRange, start: int, size: int) -> list[FileRange]:
    """Divide a range, from `start` on, into equal parts of at most `size` bytes, so that no part is too small."""
    count = -(-(len(each) - start) // size)
    bounds = [start + (len(each) - start) * number // count for number in range(count + 1)]
    return [each.cut(low, high) for low, high in pairwise(bounds)]


def write_parts(parts: Sequence[Part], target: Location, read: Callable[[FileRange], bytes]) -> int:
    """Write a new file, several parts at a time; return its size in bytes.

    Args:
        parts: the parts that `plan_parts` returns.
        target: the new file; it exists only after all parts have been written.
        read: returns the bytes of a range, for parts that are sent.

    Raises:
        CopyRefusedError: the store refuses to copy a range; the file does not exist then.
        StateError: a range cannot be read, or the store fails; the file does not exist then.
    """

    def join(part: Part) -> bytes:
        return b"".join(each if isinstance(each, bytes) else read(each) for each in part.ranges)

    with start_upload(target) as upload:
        for part in parts:
            (first, *_) = part.ranges
            if part.is_copied and isinstance(first, FileRange):
                upload.copy(first)
            else:
                upload.send(sum(map(len, part.ranges)), lambda part=part: join(part))  # type: ignore[misc]
    return upload.size


def start_upload(target: Location) -> PartUpload:
    """Start the upload of a new file in parts to S3 or Azure."""
    return AzureUpload(target) if is_azure(target.filesystem) else S3Upload(target)


ONE_REQUEST = 32 << 20
"""Bytes up to which a file is kept in memory and sent in one request, which can be repeated."""

_UPLOADS_MANY_PARTS = 1000
"""Number of parts after which parts become larger."""


class Upload(io.BufferedIOBase):
    """A new file that is written sequentially; it exists only after the block has ended without an error.

    A small file is sent with one request. Larger files are sent in parts: to S3 several at a time, to other stores
    through the stream of the file system, which repeats failed requests.
    """

    def __init__(self, location: Location) -> None:
        self._location = location
        self._buffer = bytearray()
        self._parts: S3Upload | None = None
        self._stack = ExitStack()
        self._stream: IO[bytes] | None = None
        self._position = 0

    @override
    def writable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._position

    @override
    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._position += len(view)
        if self._stream is not None:
            with translating(self._location, "write the file", writes=True):
                self._stream.write(view)
            return len(view)
        self._buffer += view
        if self._parts is None and len(self._buffer) > ONE_REQUEST:
            self._begin()
        if self._parts is not None:
            # Parts grow with the file, because an upload can have at most 10,000.
            while len(self._buffer) >= (size := max(SENT_PART, self._parts.size // _UPLOADS_MANY_PARTS)):
                self._send(size)
        return len(view)

    def _begin(self) -> None:
        if is_s3(self._location.filesystem):
            self._parts = self._stack.enter_context(S3Upload(self._location))
            return
        with translating(self._location, "write the file", writes=True):
            self._stream = cast("IO[bytes]", self._location.filesystem.open(self._location.path, "wb"))
            self._stream.write(bytes(self._buffer))
        self._buffer = bytearray()

    def _send(self, size: int) -> None:
        assert self._parts is not None
        data = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        self._parts.send(len(data), lambda: data)

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._parts is not None and error is not None:
                self._stack.__exit__(kind, error, traceback)
            elif self._parts is not None:
                with self._stack:
                    if self._buffer:
                        self._send(len(self._buffer))
            elif error is None:
                self._finish()
            elif self._stream is not None:
                _discard(self._stream)
        finally:
            self._buffer = bytearray()
            self.close()

    def _finish(self) -> None:
        if self._stream is None:
            content = bytes(self._buffer)
            filesystem, path = self._location.filesystem, self._location.path
            request(self._location, "write the file", lambda: filesystem.pipe_file(path, content), writes=True)
        else:
            with translating(self._location, "write the file", writes=True):
                self._stream.close()


def _discard(stream: IO[bytes]) -> None:
    """Abort writing a stream, because closing it would complete the file."""
    if isinstance(stream, AbstractBufferedFile):
        with suppress(*client_errors(), NotImplementedError):
            stream.discard()
        stream.closed = True
