"""Local S3 servers that count, delay and fail requests: moto behind a proxy, and a faster one with few operations."""

from __future__ import annotations

import http.client
import re
import threading
import time
from bisect import bisect_left, bisect_right, insort
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from mmap import mmap
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Content = bytes | mmap
"""Of an object; a mapped file where it is large."""

_ACCOUNT = "123456789012"
"""Account of moto, whatever the credentials are."""


@dataclass(frozen=True)
class Refusal:
    """An answer that is given in place of that of the server, mostly a refusal.

    Attributes:
        status: HTTP status.
        code: S3's code of the error.
        headers: of the answer.
        content: of the answer; by default the XML of the code.
    """

    status: int
    code: str
    headers: tuple[tuple[str, str], ...] = ()
    content: bytes | None = None


Fault = int | str | Refusal


@dataclass
class S3Server:
    """A server, or the proxy in front of it.

    Attributes:
        endpoint: URL.
        requests: (method, path with query, bytes sent to the server, bytes of the answer) of every request.
        faults: what happens to the next requests, one each: a status, `reset`, `short` for half of a body,
            `lost` for a response that does not arrive although the request was done, `whole` for the whole object
            in place of a range, a refusal, or 0.
        rule: what happens to a request by its method and path, instead; None for nothing.
        latency: seconds that each request takes.
        most: the largest number of requests that were in flight at a time.
        gather: for a request by its method and path, how many requests must have been in flight at a time before it
            goes on; it waits half a minute for them. None for no such wait.
    """

    endpoint: str
    requests: list[tuple[str, str, int, int]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    rule: Callable[[str, str], Fault | None] | None = None
    latency: float = 0.0
    most: int = 0
    gather: Callable[[str, str], int] | None = None
    now: int = 0
    lock: threading.Condition = field(default_factory=threading.Condition)

    @property
    def options(self) -> dict[str, Any]:
        """Storage options of the server."""
        return {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": self.endpoint}}

    def put(self, bucket: str, files: Mapping[str, bytes]) -> None:
        """Put objects into a bucket of moto without requests, which would take minutes for many."""
        from moto.s3.models import s3_backends

        backend = s3_backends[_ACCOUNT]["aws"]
        if bucket not in backend.buckets:
            backend.create_bucket(bucket, "us-east-1")
        for name, content in files.items():
            backend.put_object(bucket, name, content)

    @property
    def received(self) -> int:
        """Bytes of answers."""
        return sum(size for *_, size in self.requests)

    def clear(self) -> None:
        """Set all counts to zero."""
        self.requests.clear()
        self.most = 0


@contextmanager
def start_s3() -> Iterator[S3Server]:
    """Start moto and a proxy in front of it."""
    from moto.server import ThreadedMotoServer

    moto = ThreadedMotoServer(port=0, verbose=False)
    moto.start()
    try:
        with _serve(_Proxy, target=moto.get_host_and_port()) as server:
            yield server
    finally:
        moto.stop()


@contextmanager
def start_objects(objects: Mapping[str, Content], modified: datetime | None = None) -> Iterator[S3Server]:
    """Start a server of objects in memory.

    It takes a millisecond for a request where moto takes ten, and lists a page of 100,000 objects in milliseconds, for
    which moto looks at all of them. It knows what this package asks for, and checks neither signatures nor checksums.

    Args:
        objects: content by bucket and key (`bucket/key`); of one bucket.
        modified: time of the last change of all of them; now by default.
    """
    (bucket,) = {name.partition("/")[0] for name in objects}
    content = {name.partition("/")[2]: each for name, each in objects.items()}
    changed = (modified or datetime.now(UTC)).replace(microsecond=0)
    attributes = {"bucket": bucket, "content": content, "keys": sorted(content), "modified": changed, "uploads": {}}
    with _serve(_Objects, **attributes) as server:
        yield server


@contextmanager
def _serve(kind: type[_Handler], **attributes: object) -> Iterator[S3Server]:
    server = S3Server("")
    listener = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (kind,), {"counts": server, **attributes}))
    listener.daemon_threads = True
    server.endpoint = f"http://127.0.0.1:{listener.server_address[1]}"
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()


_Answer = tuple[int, list[tuple[str, str]], bytes]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    counts: ClassVar[S3Server]

    def respond(self, body: bytes) -> _Answer:
        """Status, headers and content of the answer; each kind of server overrides it. HEAD gets no content."""
        raise NotImplementedError  # Only subclasses are served.

    def _handle(self) -> None:
        counts = self.counts
        size = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size)
        with counts.lock:
            counts.now += 1
            counts.most = max(counts.most, counts.now)
            counts.lock.notify_all()
            expected = counts.gather(self.command, self.path) if counts.gather else 0
            counts.lock.wait_for(lambda: counts.most >= expected, 30)
            fault = counts.faults.pop(0) if counts.faults else 0
            fault = (counts.rule(self.command, self.path) or fault) if counts.rule else fault
        try:
            if counts.latency:
                time.sleep(counts.latency)
            if isinstance(fault, Refusal):
                self._answer(
                    (
                        fault.status,
                        list(fault.headers),
                        _describe_error(fault.code) if fault.content is None else fault.content,
                    ),
                    size,
                )
            elif isinstance(fault, int) and fault:
                self._answer((fault, [], _describe_error("InternalError")), size)
            elif fault == "reset":
                counts.requests.append((self.command, self.path, size, 0))
                self.close_connection = True
                self.connection.close()
            elif fault == "whole":
                del self.headers["Range"]
                self._answer(self.respond(body), size)
            elif fault == "lost":
                self.respond(body)
                counts.requests.append((self.command, self.path, size, 0))
                self.close_connection = True
                self.connection.close()
            else:
                self._answer(self.respond(body), size, short=fault == "short")
        finally:
            with counts.lock:
                counts.now -= 1

    def _answer(self, answer: _Answer, size: int, *, short: bool = False) -> None:
        status, headers, content = answer
        self.counts.requests.append((self.command, self.path, size, len(content)))
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        is_head = self.command == "HEAD"
        self.send_header("Content-Length", dict(headers).get("Content-Length", "0") if is_head else str(len(content)))
        self.end_headers()
        self.wfile.write(b"" if is_head else content[: len(content) // 2] if short else content)
        if short:
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Proxy(_Handler):
    target: ClassVar[tuple[str, int]]

    def respond(self, body: bytes) -> _Answer:
        connection = http.client.HTTPConnection(*self.target)
        try:
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()


class _Objects(_Handler):
    """Objects: list (version 2), get with ranges, head, put, copy, delete, multi-part uploads with copied ranges."""

    bucket: ClassVar[str]
    content: ClassVar[dict[str, Content]]
    keys: ClassVar[list[str]]
    modified: ClassVar[datetime]
    uploads: ClassVar[dict[str, dict[int, bytes]]]

    def respond(self, body: bytes) -> _Answer:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        if bucket != self.bucket:
            return 404, [], _describe_error("NoSuchBucket")
        match self.command:
            case "GET" if not key:
                return 200, [("Content-Type", "application/xml")], self._list(query)
            case "HEAD" if not key:
                return 200, [], b""
            case "GET" | "HEAD":
                return self._read(self.content[key]) if key in self.content else _missing("NoSuchKey")
            case "PUT":
                return self._put(key, query, body)
            case "POST" if "uploads" in query:
                name = f"upload-{len(self.uploads)}-{key}"
                self.uploads[name] = {}
                return _make_xml("InitiateMultipartUploadResult", f"<UploadId>{escape(name)}</UploadId>")
            case "POST" if "uploadId" in query:
                if query["uploadId"] not in self.uploads:
                    return _missing("NoSuchUpload")
                parts = self.uploads.pop(query["uploadId"])
                numbers = map(int, re.findall(r"<PartNumber>(\d+)</PartNumber>", body.decode()))
                self._store(key, b"".join(parts[number] for number in numbers))
                return _make_xml("CompleteMultipartUploadResult", _TAG)
            case "POST" if "delete" in query:
                for each in re.findall(r"<Key>(.*?)</Key>", body.decode()):
                    self._remove(unescape(each))
                return _make_xml("DeleteResult", "")
            case "DELETE":
                self.uploads.pop(query.get("uploadId", ""), None)
                if "uploadId" not in query:
                    self._remove(key)
                return 204, [], b""
        return 405, [], _describe_error("MethodNotAllowed")

    def _put(self, key: str, query: dict[str, str], body: bytes) -> _Answer:
        source = unquote(self.headers.get("x-amz-copy-source", "")).removeprefix("/").partition("/")[2]
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            return 501, [], _describe_error("NotImplemented")
        if source:
            if source not in self.content:
                return _missing("NoSuchKey")
            wanted = self.headers.get("x-amz-copy-source-range", "").removeprefix("bytes=")
            first, _, last = wanted.partition("-")
            body = bytes(self.content[source][int(first) : int(last) + 1] if wanted else self.content[source][:])
        if "uploadId" not in query:
            self._store(key, body)
            return _make_xml("CopyObjectResult", _TAG) if source else (200, [("ETag", '"0"')], b"")
        if query["uploadId"] not in self.uploads:
            return _missing("NoSuchUpload")
        self.uploads[query["uploadId"]][int(query["partNumber"])] = body
        return _make_xml("CopyPartResult", _TAG) if source else (200, [("ETag", '"0"')], b"")

    def _store(self, key: str, body: bytes) -> None:
        with self.counts.lock:
            if key not in self.content:
                insort(self.keys, key)
            self.content[key] = body

    def _remove(self, key: str) -> None:
        with self.counts.lock:
            if self.content.pop(key, None) is not None:
                self.keys.remove(key)

    def _read(self, content: Content) -> _Answer:
        headers = [("Last-Modified", format_datetime(self.modified, usegmt=True)), ("ETag", '"0"')]
        wanted = self.headers.get("Range", "").removeprefix("bytes=")
        if not wanted:
            headers.append(("Content-Length", str(len(content))))
            return 200, headers, b"" if self.command == "HEAD" else bytes(content[:])
        first, _, last = wanted.partition("-")
        part = content[int(first) : int(last) + 1 if last else None] if first else content[-int(last) :]
        return 206, [*headers, ("Content-Length", str(len(part)))], part

    def _list(self, query: dict[str, str]) -> bytes:
        prefix, delimiter, after = (query.get(name, "") for name in ("prefix", "delimiter", "start-after"))
        limit = int(query.get("max-keys", "1000"))
        keys = self.keys
        after = query.get("continuation-token", after)
        index = max(bisect_left(keys, prefix), bisect_right(keys, after))
        parts: list[str] = []
        last = ""
        while index < len(keys) and keys[index].startswith(prefix) and len(parts) < limit:
            last = keys[index]
            name, found, _ = last[len(prefix) :].partition(delimiter) if delimiter else (last, "", "")
            if found:
                last = prefix + name + delimiter
                parts.append(f"<CommonPrefixes><Prefix>{quote(last)}</Prefix></CommonPrefixes>")
                index = bisect_left(keys, last + "\U0010ffff")
                last = keys[index - 1]
            else:
                parts.append(
                    f"<Contents><Key>{quote(last)}</Key><LastModified>{self.modified:%Y-%m-%dT%H:%M:%S.000Z}"
                    f"</LastModified><ETag>&quot;0&quot;</ETag><Size>{len(self.content[last])}</Size>"
                    "<StorageClass>STANDARD</StorageClass></Contents>"
                )
                index += 1
        is_truncated = index < len(keys) and keys[index].startswith(prefix)
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if is_truncated else ""
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{self.bucket}</Name><Prefix>{quote(prefix)}</Prefix><KeyCount>{len(parts)}</KeyCount>"
            f"<MaxKeys>{limit}</MaxKeys><EncodingType>url</EncodingType>"
            f"<IsTruncated>{str(is_truncated).lower()}</IsTruncated>{token}{''.join(parts)}</ListBucketResult>"
        ).encode()


_TAG = "<ETag>&quot;0&quot;</ETag>"


def _make_xml(name: str, content: str) -> _Answer:
    text = f'<?xml version="1.0" encoding="UTF-8"?><{name}>{content}</{name}>'
    return 200, [("Content-Type", "application/xml")], text.encode()


def _missing(code: str) -> _Answer:
    return 404, [], _describe_error(code)


def _describe_error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>failed</Message></Error>".encode()
