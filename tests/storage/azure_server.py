"""A small server of blobs on this machine that speaks the documented REST interface of Azure Blob Storage."""

from __future__ import annotations

import base64
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ACCOUNT = "account"
KEY = base64.b64encode(b"the key of the account").decode()


@dataclass
class AzureServer:
    """The server; tests read what was requested, and choose what fails.

    Attributes:
        blobs: contents by container and name.
        requests: (method, kind, path, bytes of the body, bytes of the answer) of every request.
        rule: gives the status with which a request of a method, kind and path fails, or None.
        code: the code of the error of such a request.
        pending: looks at a copy of a whole blob that find it pending.
        sources: queries and authorization of the URLs from which blocks were copied.
    """

    port: int = 0
    blobs: dict[str, bytes] = field(default_factory=dict)
    blocks: dict[str, dict[str, bytes]] = field(default_factory=dict)
    requests: list[tuple[str, str, str, int, int]] = field(default_factory=list)
    rule: Callable[[str, str, str], int | None] | None = None
    code: str = "CannotVerifyCopySource"
    pending: int = 0
    sources: list[tuple[dict[str, str], str | None]] = field(default_factory=list)
    copies: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def connection_string(self) -> str:
        """How a client finds the server, with the key of the account."""
        endpoint = f"http://127.0.0.1:{self.port}/{ACCOUNT}"
        return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={endpoint};"

    def clear(self) -> None:
        """Forget requests."""
        self.requests.clear()
        self.sources.clear()

    @property
    def moved(self) -> int:
        """Bytes of files that went from or to clients."""
        return sum(sent + received for _, kind, _, sent, received in self.requests if kind in ("blob", "block"))


@contextmanager
def start_azure() -> Iterator[AzureServer]:
    """Start a server without blobs; containers exist as soon as they are named."""
    state = AzureServer()
    handler = type("_Bound", (_Handler,), {"state": state})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        state.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield state
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: AzureServer

    def _handle(self) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        name = unquote(url.path).removeprefix(f"/{ACCOUNT}/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kind = query.get("comp", query.get("restype", "blob"))
        if "x-ms-copy-source" in self.headers:
            kind = f"{kind} from URL"
        status = self.state.rule(self.command, kind, name) if self.state.rule else None
        with self.state.lock:
            if status is None:
                status, headers, content = self._answer(kind, name, query, body)
            else:
                headers, content = {"x-ms-error-code": self.state.code}, b""
            received = 0 if self.command == "HEAD" else len(content)
            self.state.requests.append((self.command, kind, name, len(body), received))
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_PUT = do_HEAD = do_DELETE = _handle

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _answer(self, kind: str, name: str, query: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        blobs = self.state.blobs
        match self.command, kind:
            case "GET", "list":
                return 200, {"Content-Type": "application/xml"}, self._list(name, query)
            case "GET" | "HEAD", "container":
                return 200, _describe(b""), b""
            case "PUT", "container":
                return 201, {}, b""
            case "PUT", "block":
                self.state.blocks.setdefault(name, {})[query["blockid"]] = body
                return 201, {}, b""
            case "PUT", "block from URL":
                return self._copy_block(name, query)
            case "PUT", "blocklist":
                found = self.state.blocks.pop(name, {})
                wanted = [each.text or "" for each in ElementTree.fromstring(body)]
                if not set(wanted) <= found.keys():
                    return 400, {"x-ms-error-code": "InvalidBlockList"}, b""
                blobs[name] = b"".join(found[each] for each in wanted)
                return 201, _describe(b""), b""
            case "PUT", "blob from URL":
                source = unquote(urlsplit(self.headers["x-ms-copy-source"]).path).removeprefix(f"/{ACCOUNT}/")
                if source not in blobs:
                    return 404, {"x-ms-error-code": "CannotVerifyCopySource"}, b""
                blobs[name] = blobs[source]
                self.state.copies[name] = self.state.pending
                status = "pending" if self.state.pending else "success"
                return 202, _describe(b"") | {"x-ms-copy-id": "1", "x-ms-copy-status": status}, b""
            case "PUT", "blob":
                blobs[name] = body
                return 201, _describe(b""), b""
            case (("GET" | "HEAD" | "DELETE"), _) if name not in blobs:
                return 404, {"x-ms-error-code": "BlobNotFound"}, b""
            case "DELETE", _:
                del blobs[name]
                return 202, {}, b""
        return self._read(name)

    def _read(self, name: str) -> tuple[int, dict[str, str], bytes]:
        data = self.state.blobs[name]
        headers = _describe(data) | {"x-ms-blob-type": "BlockBlob", "x-ms-meta-is_directory": "false"}
        if self.command == "HEAD":
            if name in self.state.copies:
                status = "pending" if self.state.copies[name] > 0 else "success"
                self.state.copies[name] -= 1
                headers |= {"x-ms-copy-id": "1", "x-ms-copy-status": status}
            return 200, headers | {"Content-Length": str(len(data))}, b""
        wanted = self.headers.get("x-ms-range") or self.headers.get("Range")
        if wanted is None:
            return 200, headers, data
        start, end = _parse_range(wanted, len(data))
        if start >= len(data):
            return 416, {"x-ms-error-code": "InvalidRange"}, b""
        return 206, headers | {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}, data[start:end]

    def _copy_block(self, name: str, query: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        source = urlsplit(self.headers["x-ms-copy-source"])
        signature = dict(parse_qsl(source.query))
        authorization = self.headers.get("x-ms-copy-source-authorization")
        self.state.sources.append((signature, authorization))
        is_signed = signature.get("sp") == "r" and signature.get("sr") == "b" and "sig" in signature
        if not authorization and not (is_signed and signature["se"] > f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"):
            return 403, {"x-ms-error-code": "CannotVerifyCopySource"}, b""
        data = self.state.blobs.get(unquote(source.path).removeprefix(f"/{ACCOUNT}/"))
        if data is None:
            return 404, {"x-ms-error-code": "CannotVerifyCopySource"}, b""
        start, end = _parse_range(self.headers["x-ms-source-range"], len(data))
        self.state.blocks.setdefault(name, {})[query["blockid"]] = data[start:end]
        return 201, {}, b""

    def _list(self, container: str, query: dict[str, str]) -> bytes:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        items: dict[str, str] = {}
        for name in sorted(self.state.blobs):
            inner = name.removeprefix(f"{container}/")
            if inner == name or not inner.startswith(prefix):
                continue
            rest = inner[len(prefix) :]
            if delimiter and delimiter in rest:
                above = prefix + rest.partition(delimiter)[0] + delimiter
                items[above] = f"<BlobPrefix><Name>{escape(above)}</Name></BlobPrefix>"
            else:
                size = len(self.state.blobs[name])
                items[inner] = (
                    f"<Blob><Name>{escape(inner)}</Name><Properties><Content-Length>{size}</Content-Length>"
                    f"<Last-Modified>{_NOW}</Last-Modified><BlobType>BlockBlob</BlobType></Properties>"
                    "<Metadata><is_directory>false</is_directory></Metadata></Blob>"
                )
        listed = "".join(items.values())
        head = f"<?xml version='1.0'?><EnumerationResults ContainerName='{escape(container)}'>"
        return f"{head}<Blobs>{listed}</Blobs><NextMarker/></EnumerationResults>".encode()


_NOW = format_datetime(datetime(2026, 1, 1, tzinfo=UTC), usegmt=True)


def _describe(data: bytes) -> dict[str, str]:
    return {"Last-Modified": _NOW, "ETag": f'"{len(data)}"'}


def _parse_range(text: str, size: int) -> tuple[int, int]:
    start, _, last = text.removeprefix("bytes=").partition("-")
    return int(start), min(size, int(last) + 1 if last else size)
