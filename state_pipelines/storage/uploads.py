"""Uploads: new files on storages that are not local."""

from __future__ import annotations

import io
from contextlib import ExitStack, suppress
from typing import IO, TYPE_CHECKING, Any, cast

from fsspec.spec import AbstractBufferedFile
from typing_extensions import override

from state_pipelines.storage.faults import client_errors, request, translating
from state_pipelines.storage.locations import is_s3
from state_pipelines.storage.multipart import SENT_PART
from state_pipelines.storage.s3_parts import S3Upload

if TYPE_CHECKING:
    from types import TracebackType

    from state_pipelines.storage.locations import Location

ONE_REQUEST = 32 << 20
"""Bytes up to which a file is kept in memory and sent in one request, which can be repeated."""

_MANY_PARTS = 1000
"""Parts after which they become larger."""


class Upload(io.BufferedIOBase):
    """A file that is written once, from its beginning; it does not exist before the block is left without error.

    Small files are one request. Larger ones are sent in parts: to S3 several at a time, to other stores by the stream
    of the file system, which repeats those that fail.
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
            # Parts grow with the file, of which there can be 10,000.
            while len(self._buffer) >= (size := max(SENT_PART, self._parts.size // _MANY_PARTS)):
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
    """Give up a stream: closing it would complete the file."""
    if isinstance(stream, AbstractBufferedFile):
        with suppress(*client_errors(), NotImplementedError):
            stream.discard()
        stream.closed = True
