"""Locations: a path on a file system that fsspec reaches; the clients of storages, and the errors that they report.

* `Location`: the path.
* `choose_token`: credentials of Google Cloud Storage, without a long wait for those that do not exist. gcsfs without
  credentials asks the metadata server that Google's machines have, elsewhere for up to half a minute, and reads as
  anybody then.
* `leave_retries_to_us`: retries of storage clients, which are left out where this package repeats a request
  (`request`). Both together would wait for minutes before they report that a storage does not answer. Streams are
  repeated by their clients.
* `translating`: errors of storages as errors of this package.
"""

from __future__ import annotations

import errno
import http.client
import os
import random
import re
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote

from fsspec.implementations.local import LocalFileSystem

from state_pipelines.errors import MissingFileError, StateError, StorageError, Where
from state_pipelines.redaction import is_secret_name, redact, redact_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsspec import AbstractFileSystem

_SINGLE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
_PLAIN_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
# Schemes of object stores, where directories exist only as prefixes of names.
_FLAT = frozenset({"s3", "gs", "gcs", "abfs", "az"})


class Reach(Protocol):
    """The directories in which a file may be."""

    def require(self, path: str, descriptor: int) -> None:
        """Raise OutOfReachError if an open local file is outside these directories; it was opened by `path`."""


@dataclass(frozen=True)
class Location:
    """A path on a file system; its text is the plain path when local, else the URL.

    Attributes:
        filesystem: the fsspec file system.
        path: path as that file system spells it.
        reach: for a local file that a snapshot names: the directories in which it may be, checked again after opening.
    """

    filesystem: AbstractFileSystem
    path: str
    reach: Reach | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        """The path for people and for error messages, without secrets."""
        return self.path if isinstance(self.filesystem, LocalFileSystem) else redact_path(self.url)

    @property
    def url(self) -> str:
        """The path with its scheme, as `resolve` takes it."""
        return str(self.filesystem.unstrip_protocol(self.path))

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]


def is_local(location: Location) -> bool:
    """Return whether a location is on this machine."""
    return isinstance(location.filesystem, LocalFileSystem)


def is_s3(filesystem: AbstractFileSystem) -> bool:
    """Return whether a file system is that of s3fs."""
    return "s3" in protocols(filesystem)


def is_azure(filesystem: AbstractFileSystem) -> bool:
    """Return whether a file system is that of adlfs."""
    return "abfs" in protocols(filesystem)


def has_directories(filesystem: AbstractFileSystem) -> bool:
    """Return whether directories are created before the files in them."""
    return _FLAT.isdisjoint(protocols(filesystem))


def protocols(filesystem: AbstractFileSystem) -> tuple[str, ...]:
    """Return the schemes of a file system."""
    return (filesystem.protocol,) if isinstance(filesystem.protocol, str) else tuple(filesystem.protocol)


def is_plain_name(name: str) -> bool:
    """Return whether a name is safe on every file system: letters, digits and `_`, after the first also `.` and `-`."""
    return _PLAIN_NAME.fullmatch(name) is not None


def complete_scheme(path: str) -> str:
    """Return a path with two slashes after its scheme: Flink writes `file:/a` for `file:///a`."""
    match = _SINGLE_SLASH.match(path)
    return path if match is None else f"{match[1]}:///{path[match.end() :]}"


def join(location: Location, *names: str) -> Location:
    """Return the location of `names`, one below the other, below `location`."""
    return Location(location.filesystem, "/".join((location.path.rstrip("/"), *names)))


def cut_directory(path: str) -> str:
    """Return the directory of an absolute path or URL: `/` for `/a`, `file:///` for `file:///a`."""
    head = complete_scheme(path).rpartition("/")[0]
    return f"{head}/" if not head or head.endswith("://") else head


def is_below(path: str, directory: str) -> bool:
    """Return whether a path is `directory` or below it, by their texts; symbolic links are not followed."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def parent(location: Location) -> Location:
    """Return the directory that contains `location`."""
    return Location(location.filesystem, location.path.rstrip("/").rpartition("/")[0] or "/")


_Result = TypeVar("_Result")


class Threads(ThreadPoolExecutor):
    """A pool of threads that run calls with the caller's context variables, such as `scoped_storage_options` sets."""

    def submit(self, work: Callable[..., _Result], /, *args: Any, **others: Any) -> Future[_Result]:
        """Start a call in the context of the caller."""
        return super().submit(copy_context().run, work, *args, **others)


_SHORTEST = 6
"""Minimum length of a secret that is hidden; shorter ones occur in too many words."""

_FRAGMENT = re.compile(r"[^\s;,:@/?&=\"'<>\\]+")
# Addresses without user, query and blanks are not hidden in messages: they show users which server does not respond.
_ADDRESS = re.compile(
    r"(?:[a-z][a-z0-9+.-]*://)?(?:[\w.-]+|\[[0-9a-f:.]+\])(?P<port>:[0-9]{1,5})?(?P<path>/[\w./-]*)?", re.IGNORECASE
)
_ADDRESS_NAME = re.compile(r"url|uri|endpoint|host|proxy|proxies", re.IGNORECASE)
_AUTHENTICATION_NAME = re.compile(r"(?<![^\W_])(?:auth|cookies?|headers?)(?![^\W_])", re.IGNORECASE)
_CONNECTION_NAME = re.compile(r"connection_?string", re.IGNORECASE)
# Values of the gcsfs option `token` that are no secrets: authentication methods, and names of credential files.
_NO_TOKEN = re.compile(r"anon|browser|cache|cloud|google_default|.*\.json", re.IGNORECASE)
# Fields of Azure's connection strings that are not secret if their values have the usual syntax.
_PLAIN_FIELD = re.compile(
    r"(?:AccountName=[a-z0-9]{3,24}|DefaultEndpointsProtocol=https?|EndpointSuffix=[a-z0-9.-]+)", re.IGNORECASE
)


_known: set[str] = set()


def remember_secrets(options: Mapping[str, Any]) -> None:
    """Make `hide_option_values` hide the secrets in these options of a file system from now on, in this process."""
    _known.update(_find_secrets(options, is_secret=False, name=""))


def hide_option_values(text: str, options: Mapping[str, Any] | None = None) -> str:
    """Replace the secrets of storage options in a message of a storage client, ignoring case.

    Secrets are the values of options with a secret's name, the values in connection strings, and addresses that have
    more than host, port and path; also the fragments of all these between blanks and separators.

    Args:
        text: the message.
        options: options of the file system, besides those of `remember_secrets`.
    """
    secrets = _known.union(_find_secrets(options or {}, is_secret=False, name=""))
    # A client's message may contain secrets percent-encoded, as in a URL.
    found = {each for secret in secrets if len(secret) >= _SHORTEST for each in (secret, quote(secret, safe=""))}
    if not found:
        return text
    pattern = "|".join(re.escape(each) for each in sorted(found, key=len, reverse=True))
    return re.sub(pattern, "…", text, flags=re.IGNORECASE)


def _find_secrets(value: object, *, is_secret: bool, name: str) -> Iterator[str]:
    """Find the secret texts in the value of an option, at any depth."""
    if isinstance(value, Mapping):
        for inner, each in value.items():
            yield from _find_secrets(each, is_secret=is_secret or _is_secret(str(inner)), name=str(inner))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _find_secrets(each, is_secret=is_secret, name=name)
    elif isinstance(value, str | bytes):
        text = value if isinstance(value, str) else value.decode(errors="replace")
        if _CONNECTION_NAME.fullmatch(name):
            yield from _list_secret_fields(text)
        elif is_secret:
            if _NO_TOKEN.fullmatch(text) is None:
                yield from _split(text)
        elif _ADDRESS_NAME.search(name) or "://" in text:
            yield from _list_secret_addresses(text)


def _is_secret(name: str) -> bool:
    return is_secret_name(name) or _AUTHENTICATION_NAME.search(name) is not None


def _list_secret_fields(text: str) -> Iterator[str]:
    for text_field in text.split(";"):
        name, separator, value = text_field.partition("=")
        if not separator:
            yield from _split(text_field)
        elif name.strip().endswith("Endpoint"):
            yield from _list_secret_addresses(value)
        elif _PLAIN_FIELD.fullmatch(text_field) is None:
            yield from _split(value)


def _list_secret_addresses(text: str) -> Iterator[str]:
    plain = _ADDRESS.fullmatch(text)
    if plain and ("://" in text or plain["port"] or "." in text or text == "localhost"):
        return
    yield text
    # A password may contain `?` or `#`, so the user is split off first.
    user, at, server = text.rpartition("@")
    address, *query = re.split(r"[?#]", server, maxsplit=1)
    is_plain = _ADDRESS.fullmatch(address) is not None and bool(at or query)
    for each in (user, *query, *(() if is_plain else (address,))):
        yield from _split(each)


def _split(text: str) -> Iterator[str]:
    yield text
    yield from _FRAGMENT.findall(text)


SCHEMES = frozenset({"gs", "gcs"})

_METADATA_SERVER = "169.254.169.254"
_PRODUCT_NAME = Path("/sys/class/dmi/id/product_name")


def choose_token(options: dict[str, Any]) -> dict[str, Any]:
    """Add `token: anon`, with which public buckets can be read, to options of gcsfs if there are no credentials.

    Credentials are those that google-auth and gcsfs find (https://google.aip.dev/auth/4110).
    """
    if options.get("token") is not None or _has_credentials_file() or _has_metadata_server():
        return options
    return {**options, "token": "anon"}


def _has_credentials_file() -> bool:
    if "GOOGLE_APPLICATION_CREDENTIALS" in os.environ:
        return True
    directory = Path(os.environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config" / "gcloud")
    return (directory / "application_default_credentials.json").exists() or (Path.home() / ".gcs_tokens").exists()


def _has_metadata_server() -> bool:
    """Return whether this is a machine of Google, or its metadata server answers.

    The server may be slow at first, as in new pods. So the product name of a Google machine is enough; google-auth
    repeats its requests to the server.
    """
    if os.environ.get("NO_GCE_CHECK") == "true":
        return False
    if not {"GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"}.isdisjoint(os.environ):
        return True
    try:
        if _PRODUCT_NAME.read_text().startswith("Google"):
            return True
    except (OSError, UnicodeDecodeError):
        pass
    return _answers(_METADATA_SERVER, minute=int(time.monotonic() // 60))


@cache
def _answers(server: str, minute: int) -> bool:
    """Return whether a metadata server responds; cached per minute."""
    timeout = os.environ.get("GCE_METADATA_TIMEOUT", "")
    connection = http.client.HTTPConnection(server, timeout=int(timeout) if timeout.isdigit() else 3)
    try:
        connection.request("GET", "/", headers={"Metadata-Flavor": "Google"})
        return connection.getresponse().getheader("Metadata-Flavor") == "Google"
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


is_repeated = ContextVar("is_repeated", default=False)
"""Whether the caller repeats the request that is sent; fsspec runs its coroutines with the variables of the caller."""

_CONNECTIONS = 128
"""Connections that a client of S3 keeps; the default of botocore would hold more than ten requests back."""

_EXPIRED_TOKEN = 401
"""Status of a request to Google with a token that has expired; the next request renews it."""

_BUCKET_KIND_SECONDS = 2.0
"""Seconds for which gcsfs asks for the kind of a bucket; without an answer it takes the usual one, and asks again."""


def leave_retries_to_us(filesystem: AbstractFileSystem) -> None:
    """Stop the client of a file system from repeating requests that `request` repeats.

    It has no effect on S3 clients that are already connected, and is not pickled with the file system.
    """
    if is_s3(filesystem):
        _limit_s3(filesystem)
    elif not SCHEMES.isdisjoint(protocols(filesystem)):
        _limit_google(filesystem)
    elif is_azure(filesystem):
        _limit_azure(filesystem)


def _limit_s3(filesystem: AbstractFileSystem) -> None:
    """Stop s3fs and botocore from repeating requests: each tries five times, so a read has up to 25 attempts."""
    if getattr(filesystem, "retries", 1) == 1:
        return
    filesystem.retries = 1
    # A new mapping is set instead of changing the old one, which is part of fsspec's cache key of the file system.
    filesystem.config_kwargs = {
        "retries": {"total_max_attempts": 1},
        "max_pool_connections": _CONNECTIONS,
        **filesystem.config_kwargs,
    }


def _limit_google(filesystem: AbstractFileSystem) -> None:
    """Stop gcsfs from sending a request six times within half a minute, and from raising `ValueError` for refusals."""
    repeated: Callable[..., Any] | None = getattr(filesystem, "_request", None)
    once: Callable[..., Any] | None = getattr(repeated, "__wrapped__", None)
    if repeated is None or once is None:
        return
    # Imported late: the package is certainly installed where such a file system exists.
    from gcsfs.retry import HttpError

    async def send(*arguments: Any, **options: Any) -> Any:
        if not is_repeated.get():
            return await repeated(*arguments, **options)
        try:
            try:
                return await once(filesystem, *arguments, **options)
            except HttpError as error:
                if error.code != _EXPIRED_TOKEN:
                    raise
                return await once(filesystem, *arguments, **options)
        except ValueError as error:
            raise OSError(str(error)) from error

    filesystem._request = send
    retries = getattr(filesystem, "retry_config", None)
    if isinstance(retries, dict):
        retries.setdefault("timeout", _BUCKET_KIND_SECONDS)


def _limit_azure(filesystem: AbstractFileSystem) -> None:
    """Stop the client of Azure from repeating a failed request three times in 90 seconds."""
    policy = getattr(getattr(getattr(filesystem, "service_client", None), "_config", None), "retry_policy", None)
    if policy is None or "configure_retries" in vars(policy):
        return
    configure = policy.configure_retries

    def limit(request: Any) -> Any:
        settings = configure(request)
        if is_repeated.get():
            settings.update(total=0, connect=0, read=0, status=0)
        return settings

    policy.configure_retries = limit


_LOCK = Lock()
_sent = [0, 0]


@dataclass(frozen=True)
class RequestCounts:
    """Number of requests, failed attempts included, and of bytes read.

    Attributes:
        requests: number of requests, also to local disks; a listing counts as one, however many pages it has.
        bytes_read: bytes of files that were received.
    """

    requests: int
    bytes_read: int

    def __sub__(self, earlier: RequestCounts) -> RequestCounts:
        """Return what was added to the counts of this process since `earlier`."""
        return RequestCounts(self.requests - earlier.requests, self.bytes_read - earlier.bytes_read)


def add_requests(requests: int, bytes_read: int = 0) -> None:
    """Add to the counts of this process; safe in any thread."""
    with _LOCK:
        _sent[0] += requests
        _sent[1] += bytes_read


def sent_requests() -> RequestCounts:
    """Return the counts of requests and of bytes read since the process began."""
    with _LOCK:
        return RequestCounts(*_sent)


ATTEMPTS = 5
"""Number of attempts before the fault of a request is final."""

_FIRST_WAIT = 0.2
"""Seconds before the second attempt, on average; each later wait is twice as long."""

NO_BUCKET = "the bucket does not exist"

_LONG_REASON = 300
"""Maximum characters of the reason of a fault in a message; `--debug` shows all."""

_OPTIONS = "Credentials and options of each storage: docs/storage.md"

# Base classes of the errors of storage clients that are not `OSError`, by module. Only loaded modules can have raised.
_CLIENT_ERRORS = (
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("aiohttp", "ClientError"),
    ("gcsfs.retry", "HttpError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("azure.core.exceptions", "AzureError"),
    ("requests", "RequestException"),
    ("urllib3.exceptions", "HTTPError"),
)
_TRANSIENT_CLASSES = frozenset(
    {
        "ChecksumError",
        "ClientConnectionError",
        "ClientPayloadError",
        "ConnectionError",
        "FlexibleChecksumError",
        "HTTPClientError",
        "IncompleteRead",
        "ReadTimeoutError",
        "ResponseParserError",
        "ServerDisconnectedError",
        "ServiceRequestError",
        "ServiceResponseError",
        "TimeoutError",
        "TransportError",
    }
)
_TRANSIENT_CODES = frozenset(
    {
        "BadDigest",
        "IncompleteBody",
        "InternalError",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "XAmzContentSHA256Mismatch",
    }
)
_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
# `EREMOTEIO` exists on Linux only; s3fs uses `EIO` elsewhere.
_TRANSIENT_ERRNO = frozenset(
    {errno.EIO, errno.EBUSY, errno.EAGAIN, errno.ETIMEDOUT, errno.ECONNRESET, getattr(errno, "EREMOTEIO", errno.EIO)}
)
_CREDENTIAL_CLASSES = frozenset(
    {
        "ClientAuthenticationError",
        "CredentialRetrievalError",
        "DefaultCredentialsError",
        "NoCredentialsError",
        "PartialCredentialsError",
        "ProfileNotFound",
        "RefreshError",
        "TokenRetrievalError",
    }
)
# Error codes of S3 and Azure by kind of refusal: archived objects, credentials, region, encryption, conflicts.
_ARCHIVED_CODES = frozenset({"BlobArchived", "InvalidObjectState"})
_EXPIRED_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"})
_REGION_CODES = frozenset(
    {
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "PermanentRedirect",
        "Redirect",
        "TemporaryRedirect",
    }
)
_REGION_STATUS = frozenset({301, 302, 307, 308})
_REGION_ERRNO = getattr(errno, "EREMCHG", None)
"""Number of the errors that s3fs makes of redirects; on Linux only."""
_ENCRYPTION_CODES = "KMS."
"""Begin of the codes of refusals of the key management service, mostly of status 400."""
_CONFLICT_CODES = frozenset({"ConditionalRequestConflict", "OperationAborted"})
"""Conflicts with another request that may be over at once; any other conflict stays."""
_CONFLICT_ATTEMPTS = 2

# Exceptions that clients raise for wrong options, some only at the first request. Their messages may quote the options.
_WRONG_OPTIONS = (AttributeError, KeyError, TypeError, ValueError)

Result = TypeVar("Result")


class ShortBodyError(OSError):
    """A response with fewer bytes than the request asked for."""


def client_errors() -> tuple[type[BaseException], ...]:
    """Return the classes of exceptions that a file system may raise for a fault of its storage."""
    found: list[type[BaseException]] = [OSError]
    for module, name in _CLIENT_ERRORS:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type):
            found.append(kind)
    return tuple(found)


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, TimeoutError | ConnectionError | ShortBodyError):
        return True
    if isinstance(error, FileNotFoundError | PermissionError | FileExistsError):
        return False
    code = _code(error)
    if find_status(error) in _TRANSIENT_STATUS or code.removeprefix(_ENCRYPTION_CODES) in _TRANSIENT_CODES:
        return True
    if _response(error) is not None:
        # If the storage has responded, its error code decides and not the errno, which s3fs sets to the same value for
        # all unknown codes.
        return code in _CONFLICT_CODES
    if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO:
        return True
    return any(kind.__name__ in _TRANSIENT_CLASSES for kind in type(error).__mro__)


def request(location: Location, operation: str, call: Callable[[], Result], *, writes: bool = False) -> Result:
    """Send a request to a storage; transient faults are tried again with growing waits.

    Args:
        location: the file or directory that the request is about.
        operation: a verb with its object, for errors, such as `read the file`.
        call: sends the request; it can be called again after a fault.
        writes: the request changes the storage.

    Raises:
        MissingFileError: there is no such file, or it cannot be opened.
        StorageError: the storage failed at every attempt, or refuses; or its client does not take its options.
    """
    attempts = 1 if isinstance(location.filesystem, LocalFileSystem) else ATTEMPTS
    for attempt in range(1, attempts + 1):
        add_requests(1)
        repeated = is_repeated.set(True)
        try:
            leave_retries_to_us(location.filesystem)
            return call()
        except client_errors() as error:
            if attempt < min(attempts, _count_attempts(error)) and is_transient(error):
                time.sleep(_FIRST_WAIT * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
                continue
            raise translate(location, operation, error, attempts=attempt, writes=writes) from error
        except _WRONG_OPTIONS as error:
            if not is_about_options(location, error):
                raise
            raise _refuse_options(location, operation, error) from error
        finally:
            is_repeated.reset(repeated)
    raise AssertionError("the last attempt returns or raises")


def _count_attempts(error: BaseException) -> int:
    return _CONFLICT_ATTEMPTS if _code(error) in _CONFLICT_CODES else ATTEMPTS


@contextmanager
def translating(location: Location, operation: str, *, writes: bool = False) -> Iterator[None]:
    """Convert exceptions of a block to the errors that `request` raises, without repeating the block."""
    try:
        yield
    except client_errors() as error:
        raise translate(location, operation, error, writes=writes) from error
    except _WRONG_OPTIONS as error:
        if not is_about_options(location, error):
            raise
        raise _refuse_options(location, operation, error) from error


def is_about_options(location: Location, error: BaseException) -> bool:
    """Return whether an undocumented exception of a client is about its options, and not a bug of this package."""
    if isinstance(location.filesystem, LocalFileSystem) or isinstance(error, StateError):
        return False
    # Errors of Arrow, which reads files through a client, are about the content.
    return isinstance(error, _WRONG_OPTIONS) and type(error).__module__.partition(".")[0] != "pyarrow"


def _refuse_options(location: Location, operation: str, error: BaseException) -> StorageError:
    what = f"cannot {operation}: the client of the storage refuses the storage options ({type(error).__name__})"
    return StorageError(what, where=Where(file=str(location)), hint=_OPTIONS)


def translate(
    location: Location, operation: str, error: BaseException, *, attempts: int = 1, writes: bool = False
) -> StateError:
    """Convert an exception of a storage client to the error that users see."""
    where = Where(file=str(location))
    if isinstance(error, StateError):
        return error
    reason = _explain_at(location, error)
    if not isinstance(location.filesystem, LocalFileSystem):
        refusal = _explain_refusal(error)
        if refusal is not None:
            what, hint = refusal
            return StorageError(f"cannot {operation}: {what} ({reason})", where=where, hint=hint)
    if _is_about_credentials(error):
        return StorageError(f"cannot {operation}: {reason}", where=where, hint=_OPTIONS)
    if is_transient(error) and not isinstance(location.filesystem, LocalFileSystem):
        tried = f" ({attempts} attempts)" if attempts > 1 else ""
        hint = "Try again later; check the address and the state of the storage"
        return StorageError(f"cannot {operation}{tried}: {reason}", where=where, hint=hint, transient=True)
    if writes:
        return StorageError(f"cannot write: {reason}", where=where, hint="Check space and permissions")
    if isinstance(error, FileNotFoundError) and _code(error) == "NoSuchBucket":
        return MissingFileError(NO_BUCKET, where=where)
    if isinstance(error, FileNotFoundError):
        return MissingFileError("the file does not exist", where=where)
    if isinstance(error, PermissionError):
        return StorageError(f"cannot {operation}: {reason}", where=where, hint="Check who may read it")
    if isinstance(error, OSError) and (
        isinstance(location.filesystem, LocalFileSystem) or isinstance(error, IsADirectoryError | NotADirectoryError)
    ):
        return MissingFileError(f"the file cannot be opened ({reason})", where=where)
    return StorageError(f"cannot {operation}: {reason}", where=where, hint=_OPTIONS)


def _explain_refusal(error: BaseException) -> tuple[str, str] | None:
    """Return a message and a hint for an error by which a storage refuses a request; None for other errors.

    A refusal does not mean that the file is missing or damaged.
    """
    code, status = _code(error), find_status(error)
    if code in _ARCHIVED_CODES:
        return "the object is archived", (
            "Restore it from its archive first (S3: `aws s3api restore-object`, storage classes GLACIER and "
            "DEEP_ARCHIVE), then try again"
        )
    if code in _EXPIRED_CODES:
        return "the credentials have expired, or are not valid", f"Renew them, then try again. {_OPTIONS}"
    number = error.errno if isinstance(error, OSError) else None
    if code in _REGION_CODES or status in _REGION_STATUS or (number is not None and number == _REGION_ERRNO):
        region = _find_region(error)
        return f"the bucket is in another region{region and f', {region}'}", (
            "Name its region or endpoint in the storage options (S3: `client_kwargs: {region_name: …}`). " + _OPTIONS
        )
    if code.startswith(_ENCRYPTION_CODES) and not is_transient(error):
        return "the key of its encryption cannot be used", f"Check the key and who may use it. {_OPTIONS}"
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) or isinstance(error, PermissionError):
        return "the credentials do not allow it", _OPTIONS
    return None


def _find_region(error: BaseException) -> str:
    """Return the region of the bucket that the response of S3 names; empty if it names none."""
    response = _response(error)
    if not isinstance(response, dict):
        return ""
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(headers.get("x-amz-bucket-region") or response.get("Error", {}).get("Region") or "")


def _explain_at(location: Location, error: BaseException) -> str:
    if isinstance(location.filesystem, LocalFileSystem):
        return explain(error)
    # The message may contain the URL with a password. A password with blanks is hidden only by replacing the whole URL.
    return explain(
        error, getattr(location.filesystem, "storage_options", None) or {}, urls={location.url: str(location)}
    )


def explain(
    error: BaseException, options: Mapping[str, Any] | None = None, urls: Mapping[str, str] | None = None
) -> str:
    """Return the reason of a fault without secrets, and shortened, because clients may list every attempt and package.

    Args:
        error: the fault.
        options: options of the file system, besides those of `locations.remember_secrets`.
        urls: URLs that the reason may quote, each with the text that replaces it.
    """
    text = str(error)
    if isinstance(error, OSError) and error.errno and error.strerror and not error.filename:
        text = str(error.strerror)
    for url, shown in (urls or {}).items():
        text = text.replace(url, shown)
    text = " ".join(redact(hide_option_values(text, options)).split())
    if len(text) > _LONG_REASON:
        text = text[:_LONG_REASON].rpartition(" ")[0] + " …"
    return text.rstrip(".") or type(error).__name__


def _is_about_credentials(error: BaseException) -> bool:
    return any(kind.__name__ in _CREDENTIAL_CLASSES for kind in type(error).__mro__)


def _response(error: BaseException) -> object:
    # The error of botocore, which has the response, is the cause or the context of the error that s3fs raises.
    for each in (error, error.__cause__, error.__context__):
        response = getattr(each, "response", None)
        if response is not None:
            return response
    return None


def _code(error: BaseException) -> str:
    response = _response(error)
    if isinstance(response, dict):
        return str(response.get("Error", {}).get("Code", ""))
    return str(getattr(error, "error_code", None) or "")


def find_status(error: BaseException) -> int:
    """Return the HTTP status of the response that caused an error; 0 if there is none."""
    response = _response(error)
    if isinstance(response, dict):
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    for holder in (error, response):
        for name in ("status", "status_code", "code"):
            value = getattr(holder, name, None)
            if isinstance(value, int) or (isinstance(value, str) and value.isdigit()):
                return int(value)
    return 0
