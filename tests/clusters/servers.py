"""A small HTTP server whose answers a test chooses."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

BREAK = "break"
"""Answer of a server that ends the connection without one."""

WAIT = "wait"
"""Answer of a server that does not answer until the test ends."""


@dataclass(frozen=True)
class Received:
    """A request that a server received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        """The JSON of the body."""
        return json.loads(self.body)


@dataclass
class Server:
    """A server that runs: `answers` by method and path, each a list that is used up to its last one."""

    url: str = ""
    answers: dict[str, list[Any]] = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    answer: Callable[[Received], Any] | None = None

    def on(self, request: str, *answers: Any) -> None:
        """Answer `METHOD /path` with JSON, a status with JSON or bytes, `BREAK` or `WAIT`, one after the other."""
        self.answers[request] = list(answers)

    def count(self, request: str) -> int:
        """Number of times that `METHOD /path` was received."""
        return sum(f"{each.method} {each.path.partition('?')[0]}" == request for each in self.received)

    def choose(self, received: Received) -> Any:
        """The answer to a request."""
        if self.answer is not None:
            return self.answer(received)
        found = self.answers.get(f"{received.method} {received.path.partition('?')[0]}")
        if found is None:
            return 404, {"errors": [f"Unable to load requested file {received.path}."]}
        return found.pop(0) if len(found) > 1 else found[0]


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Serve on the loopback interface during the block."""
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            received = Received(self.command, self.path, dict(self.headers), body)
            server.received.append(received)
            answer = server.choose(received)
            if answer in (BREAK, WAIT):
                if answer == WAIT:
                    server.ended.wait(60)
                self.close_connection = True
                return
            status, content = answer if isinstance(answer, tuple) else (200, answer)
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", "http://elsewhere:1/login?token=abc123secret")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _serve

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        if tls is not None:
            http.socket = tls.wrap_socket(http.socket, server_side=True)
        server.url = f"http{'s' if tls else ''}://127.0.0.1:{http.server_address[1]}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.ended.set()
            http.shutdown()
            thread.join()
