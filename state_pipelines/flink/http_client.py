"""JSON over HTTP with a cluster: time-outs, repetitions of what is idempotent, authentication, and errors of ours."""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    LocationParseError,
    NameResolutionError,
    NewConnectionError,
    ReadTimeoutError,
    SSLError,
)

from state_pipelines.errors import ClusterError, NotFoundError, UsageError, Where
from state_pipelines.flink.checkpoint_failures import find_root_cause, list_causes
from state_pipelines.redaction import redact, redact_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ATTEMPTS = 4
"""Maximum number of attempts of a request that may be repeated."""

PAUSE_SECONDS = 0.25
"""Pause before the second attempt; each further one is twice as long."""

_MOST_BYTES = 256 << 20
_CHUNK = 1 << 20
_MOST_SHOWN = 300
# Statuses of gateways and standby JobManagers while a leader is elected (`LeaderRetrievalHandler`).
_TRANSIENT = frozenset({502, 503, 504})
_LEADERLESS = (
    "The cluster elects a leader, or a gateway does not reach it: try again in a moment, then look at the log of the "
    "JobManager"
)
_FAILING = "Look at the log of the JobManager"
# If a job does not exist, Flink answers the request for its status with an internal error (`JobStatusHandler`).
_JOB_NOT_FOUND = "FlinkJobNotFoundException"
_TITLE = re.compile(rb"<title[^>]*>([^<]{1,200})", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{(\w+)\}", re.ASCII)
_FORBIDDEN = re.compile(r"[\r\n\0]")


@dataclass(frozen=True)
class Credentials:
    """Credentials of a cluster; texts may name environment variables as `${NAME}`, which are read at each request.

    Attributes:
        user: user name of basic authentication.
        password: password of basic authentication.
        token: token of bearer authentication.
        token_file: file with the token, read at each request, since tokens expire.
        headers: further headers.
        ca_certificates: file of certificate authorities in PEM; by default those of the system.
        client_certificate: file of the client's certificate in PEM.
        client_key: file of its key; by default in the file of the certificate.
    """

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    token_file: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_certificates: str = ""
    client_certificate: str = ""
    client_key: str = ""

    def make_headers(self) -> dict[str, str]:
        """Make the headers of a request.

        Raises:
            UsageError: an environment variable or the file of the token is missing.
        """
        headers = {name: _fill(text, f"the header {name}") for name, text in self.headers.items()}
        if self.user or self.password:
            pair = f"{_fill(self.user, 'the user')}:{_fill(self.password, 'the password')}"
            headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        token = _fill(self.token, "the token")
        if self.token_file:
            try:
                token = Path(self.token_file).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise UsageError(
                    f"the token of the cluster cannot be read: {error.strerror}", where=Where(file=self.token_file)
                ) from None
        if token:
            headers["Authorization"] = f"Bearer {token}"
        for name, text in headers.items():
            if _FORBIDDEN.search(text):
                raise UsageError(f"the header {name} of the cluster has line breaks", hint="Remove them from its value")
        return headers


def _fill(text: str, what: str) -> str:
    def read(match: re.Match[str]) -> str:
        value = os.environ.get(match[1])
        if value is None:
            raise UsageError(
                f"{what} of the cluster names the environment variable {match[1]}, which is not set",
                hint=f"Set {match[1]}",
            )
        return value

    return _VARIABLE.sub(read, text)


@dataclass(frozen=True)
class Timeouts:
    """Time-outs of a request in seconds.

    Attributes:
        connect: until the connection is established.
        read: between two packets of the answer.
        total: until the answer is complete; the time of an upload does not count.
    """

    connect: float = 10
    read: float = 60
    total: float = 300


@dataclass(frozen=True)
class Answer:
    """The answer to a request.

    Attributes:
        status: status of HTTP.
        content: the parsed JSON.
    """

    status: int
    content: Any


class HttpClient:
    """Client for requests to one endpoint.

    Redirects are not followed, so that credentials only go to the endpoint that the user has named.

    Args:
        endpoint: address with `http://` or `https://`, host, port and perhaps a path.
        credentials: credentials for the endpoint.
        timeouts: time-outs of each request.
        what: name of the service, for messages.
        sleep: waits between attempts.
        clock: monotonic clock for the time-outs.
    """

    def __init__(
        self,
        endpoint: str,
        credentials: Credentials | None = None,
        timeouts: Timeouts | None = None,
        *,
        what: str = "Flink",
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._credentials = credentials or Credentials()
        self._timeouts = timeouts or Timeouts()
        self._what = what
        self._sleep = sleep
        self._clock = clock
        self._base = _check_endpoint(endpoint)
        self._pool = urllib3.PoolManager(num_pools=2, **self._make_tls())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.endpoint!r})"

    @property
    def endpoint(self) -> str:
        """The address of the endpoint, without secrets."""
        return redact_path(self._base)

    def _make_tls(self) -> dict[str, Any]:
        if not self._base.startswith("https://"):
            return {}
        context = ssl.create_default_context()
        files = self._credentials
        try:
            if files.ca_certificates:
                context = ssl.create_default_context(cafile=files.ca_certificates)
            if files.client_certificate:
                context.load_cert_chain(files.client_certificate, files.client_key or None)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"the certificates for {self.endpoint} cannot be read: {error}",
                hint="ca_certificates, client_certificate and client_key are files in PEM",
            ) from None
        return {"ssl_context": context}

    def get(self, path: str, query: Mapping[str, object] | None = None) -> Any:
        """Return the JSON at a path."""
        return self.send("GET", path, query=query, is_idempotent=True).content

    def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, object] | None = None,
        is_idempotent: bool,
        upload: tuple[str, Path] | None = None,
        content_type: str = "application/json",
        accepted: Sequence[int] = (),
    ) -> Answer:
        """Send a request to the endpoint, and return the answer.

        Args:
            method: HTTP method.
            path: path below the endpoint, quoted for a URL.
            body: content of the request, sent as JSON.
            query: parameters of the address.
            is_idempotent: whether the request may be sent again if its answer is lost.
            upload: name and path of a file that is sent as a form instead of a body.
            content_type: content type of the body.
            accepted: statuses of errors that are returned instead of raised.

        Raises:
            ClusterError: there is no answer, or the answer is an error.
            NotFoundError: the answer is 404.
        """
        url = f"{self._base}{path}" + (f"?{urlencode(query)}" if query else "")
        pause = PAUSE_SECONDS
        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer = self._send_once(method, url, body, upload, content_type)
            except ClusterError as error:
                may_repeat = error.transient and (is_idempotent or not error.is_in_doubt)
                if not may_repeat or attempt == ATTEMPTS:
                    # A request without an answer may have been carried out, even if it could be repeated; only a GET
                    # changes nothing.
                    error.is_in_doubt = error.is_in_doubt and method != "GET"
                    raise
            else:
                if answer.status < 300 or answer.status in accepted:
                    return answer
                if answer.status not in _TRANSIENT or not is_idempotent or attempt == ATTEMPTS:
                    raise self._refusal(method, path, answer)
            self._sleep(pause)
            pause *= 2
        raise AssertionError("unreachable")

    def _send_once(
        self, method: str, url: str, body: object, upload: tuple[str, Path] | None, content_type: str
    ) -> Answer:
        headers = {"Accept": "application/json", **self._credentials.make_headers()}
        content: Any = None
        if upload is not None:
            content, more = _make_upload(*upload)
            headers |= more
        elif body is not None:
            content = json.dumps(body).encode()
            headers["Content-Type"] = content_type
        timeout = urllib3.Timeout(connect=self._timeouts.connect, read=self._timeouts.read)
        try:
            response = self._pool.request(
                method,
                url,
                body=content,
                headers=headers,
                timeout=timeout,
                retries=False,
                redirect=False,
                preload_content=False,
            )
        except (HTTPError, OSError) as error:
            raise self._failure(error) from None
        try:
            data = self._read(response)
        except (HTTPError, OSError) as error:
            raise self._failure(error) from None
        finally:
            response.close()
        return self._parse(response, data)

    def _read(self, response: urllib3.BaseHTTPResponse) -> bytes:
        deadline = self._clock() + self._timeouts.total
        data = bytearray()
        while chunk := response.read(_CHUNK):
            data += chunk
            if len(data) > _MOST_BYTES:
                raise ClusterError(f"{self._what} at {self.endpoint} answers with more than {_MOST_BYTES >> 20} MiB")
            if self._clock() > deadline:
                raise ReadTimeoutError(None, "", f"no complete answer within {self._timeouts.total:g} s")  # type: ignore[arg-type]
        return bytes(data)

    def _parse(self, response: urllib3.BaseHTTPResponse, data: bytes) -> Answer:
        status = response.status
        if 300 <= status < 400:
            target = redact_path(response.headers.get("Location", "another address"))
            raise ClusterError(
                f"{self._what} at {self.endpoint} redirects to {target} (HTTP {status})",
                hint="Redirects are not followed, so that credentials stay here: name that address if it is the "
                "cluster's, or sign in to the proxy with a header or a token",
            )
        if not data.strip():
            return Answer(status, {})
        try:
            return Answer(status, json.loads(data))
        except ValueError:
            pass
        if status >= 300:
            return Answer(status, {"errors": [_describe_text(data)]})
        raise ClusterError(
            f"{self._what} at {self.endpoint} answers with {_describe_text(data)} instead of JSON (HTTP {status})",
            hint="Mostly a proxy answers in its place, or the address is that of a web page: name the REST endpoint "
            "itself, or sign in with a header or a token",
        )

    def _failure(self, error: Exception) -> ClusterError:
        """Make the error for a request without an answer."""
        if isinstance(error, ClusterError):
            return error
        timeouts = self._timeouts
        name = f"{self._what} at {self.endpoint}"
        match error:
            case NameResolutionError():
                return ClusterError(
                    f"{name} cannot be reached: its host name cannot be resolved",
                    hint="Check the host in the address of the cluster",
                    transient=True,
                )
            case NewConnectionError():
                return ClusterError(
                    f"{name} cannot be reached: {_describe_cause(error)}",
                    hint="Look whether the cluster runs, and at the host and port of the address (rest.port)",
                    transient=True,
                )
            case ConnectTimeoutError():
                return ClusterError(
                    f"{name} does not answer: no connection within {timeouts.connect:g} s",
                    hint="Look whether a firewall is between, or raise connect_seconds",
                    transient=True,
                )
            case SSLError():
                return ClusterError(
                    f"no TLS connection to {name}: {_describe_cause(error)}",
                    hint="Name its certificate authority as ca_certificates, the client's certificate if it asks for "
                    "one, or http:// if it has no TLS",
                )
            case ReadTimeoutError():
                return ClusterError(
                    f"{name} is slow: no complete answer within {timeouts.read:g} s",
                    hint="Raise read_seconds if it is always as slow; a request may still have been carried out",
                    transient=True,
                    in_doubt=True,
                )
            case _:
                return ClusterError(
                    f"the connection to {name} broke: {_describe_cause(error)}",
                    hint="Look whether the cluster still runs, then start the command again",
                    transient=True,
                    in_doubt=True,
                )

    def _refusal(self, method: str, path: str, answer: Answer) -> ClusterError | NotFoundError:
        """Make the exception for an answer that reports an error."""
        words = read_words(answer.content)
        reason = find_root_cause(words).rstrip(".") or f"HTTP {answer.status}"
        name = f"{self._what} at {self.endpoint}"
        error: ClusterError | NotFoundError
        if answer.status in (401, 403):
            error = ClusterError(
                f"{name} denies access (HTTP {answer.status}): {reason}",
                hint="Give it the user and password, token or headers that it asks for",
            )
        elif answer.status == 404 or _JOB_NOT_FOUND in words:
            error = NotFoundError(
                f"{name} has no {path}: {reason}",
                hint="The cluster may have forgotten the job or trigger, because it is old or the leader has changed",
            )
        elif answer.status == 413:
            error = ClusterError(
                f"{name} refuses a request as too large (HTTP 413): {reason}",
                hint="Raise rest.server.max-content-length, and the limit of a proxy in front",
            )
        else:
            error = ClusterError(
                f"{name} refuses {method} {path} (HTTP {answer.status}): {reason}",
                hint=_LEADERLESS if answer.status in _TRANSIENT else _FAILING if answer.status >= 500 else "",
                transient=answer.status in _TRANSIENT,
                # A gateway may have passed the request to the cluster, and lost the answer.
                in_doubt=answer.status in (502, 504) and method != "GET",
            )
        error.details["flink"] = redact("\n".join(list_causes(words)))
        return error


def read_words(content: object) -> str:
    """Return the message of Flink in an answer that is an error (`ErrorResponseBody`), or that of Kubernetes."""
    if isinstance(content, dict):
        errors = content.get("errors")
        if isinstance(errors, list):
            return "\n".join(str(each) for each in errors)
        if isinstance(content.get("message"), str):
            return str(content["message"])
    return ""


def _check_endpoint(endpoint: str) -> str:
    shown = redact_path(endpoint)
    try:
        parsed = urlsplit(endpoint.strip())
        is_good = parsed.scheme in ("http", "https") and bool(parsed.hostname)
        if parsed.port is not None and not 0 < parsed.port < 1 << 16:
            is_good = False
    except (ValueError, LocationParseError):
        is_good = False
    if not is_good:
        raise UsageError(f"{shown!r} is not the address of a cluster", hint="Such as http://jobmanager:8081")
    if parsed.username or parsed.password or parsed.query or parsed.fragment:
        raise UsageError(
            f"the address {shown} has a user, a query or a fragment",
            hint="Give user and password as settings of their own, so that no message shows them",
        )
    return f"{parsed.scheme}://{parsed.netloc}{parsed.path.rstrip('/')}"


def _make_upload(name: str, path: Path) -> tuple[Iterator[bytes], dict[str, str]]:
    """Make a form with one file, which is read while it is sent; also return its headers."""
    boundary = os.urandom(16).hex()
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="jarfile"; filename="{name}"\r\n'
        "Content-Type: application/x-java-archive\r\n\r\n"
    ).encode()
    tail = f"\r\n--{boundary}--\r\n".encode()
    try:
        size = path.stat().st_size
    except OSError as error:
        raise UsageError(f"the jar cannot be read: {error.strerror}", where=Where(file=str(path))) from None

    def chunks() -> Iterator[bytes]:
        yield head
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
        yield tail

    length = str(len(head) + size + len(tail))
    return chunks(), {"Content-Type": f"multipart/form-data; boundary={boundary}", "Content-Length": length}


def _describe_text(data: bytes) -> str:
    title = _TITLE.search(data[:65536])
    if title is not None:
        return f"a web page ({redact(title[1].decode(errors='replace').strip())!r})"
    if data.lstrip()[:1] == b"<":
        return "a web page"
    return repr(redact(data[:_MOST_SHOWN].decode(errors="replace").strip()))


def _describe_cause(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error)[:_MOST_SHOWN] or type(error).__name__
