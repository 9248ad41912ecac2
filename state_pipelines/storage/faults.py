"""Faults of storages: which are worth another attempt, and the errors that the others become."""

from __future__ import annotations

import errno
import random
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from fsspec.implementations.local import LocalFileSystem

from state_pipelines.errors import MissingFileError, StateError, StorageError, Where
from state_pipelines.redaction import redact
from state_pipelines.storage.client_retries import is_repeated, leave_retries_to_us
from state_pipelines.storage.request_counts import add_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from state_pipelines.storage.locations import Location

ATTEMPTS = 5
"""Number of attempts before the fault of a request is final."""

_FIRST_WAIT = 0.2
"""Seconds before the second attempt, on average; each later wait is twice as long."""

NO_BUCKET = "the bucket does not exist"

_LONG_REASON = 300
"""Characters of the reason of a fault that are shown; `--debug` shows all."""

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
        "OperationAborted",
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

Result = TypeVar("Result")


class ShortBodyError(OSError):
    """A response with fewer bytes than the request asked for."""


def client_errors() -> tuple[type[BaseException], ...]:
    """Exceptions that a file system may raise for a fault of its storage."""
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
    if find_status(error) in _TRANSIENT_STATUS or _code(error) in _TRANSIENT_CODES:
        return True
    if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO:
        return True
    return any(kind.__name__ in _TRANSIENT_CLASSES for kind in type(error).__mro__)


def request(location: Location, operation: str, call: Callable[[], Result], *, writes: bool = False) -> Result:
    """Send a request to a storage; transient faults are tried again with growing waits.

    Args:
        location: what it concerns.
        operation: a verb with its object, for errors, such as `read the file`.
        call: sends the request; it can be called again after a fault.
        writes: the request changes the storage.

    Raises:
        MissingFileError: there is no such file, or it cannot be opened.
        StorageError: the storage failed at every attempt, or refuses.
    """
    attempts = 1 if isinstance(location.filesystem, LocalFileSystem) else ATTEMPTS
    leave_retries_to_us(location.filesystem)
    for attempt in range(1, attempts + 1):
        add_requests(1)
        repeated = is_repeated.set(True)
        try:
            return call()
        except client_errors() as error:
            if attempt < attempts and is_transient(error):
                time.sleep(_FIRST_WAIT * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
                continue
            raise translate(location, operation, error, attempts=attempt, writes=writes) from error
        finally:
            is_repeated.reset(repeated)
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def translating(location: Location, operation: str, *, writes: bool = False) -> Iterator[None]:
    """Translate faults of a block that cannot be repeated as a whole; see `request`."""
    try:
        yield
    except client_errors() as error:
        raise translate(location, operation, error, writes=writes) from error


def translate(
    location: Location, operation: str, error: BaseException, *, attempts: int = 1, writes: bool = False
) -> StateError:
    """Make the error that a user sees of a fault of a storage."""
    where = Where(file=str(location))
    if isinstance(error, StateError):
        return error
    reason = explain(error)
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
    if isinstance(error, OSError):
        is_refused = isinstance(error, PermissionError) and not isinstance(location.filesystem, LocalFileSystem)
        hint = _OPTIONS if is_refused else ""
        return MissingFileError(f"the file cannot be opened ({reason})", where=where, hint=hint)
    return StorageError(f"cannot {operation}: {reason}", where=where, hint=_OPTIONS)


def explain(error: BaseException) -> str:
    """The reason of a fault in a few lines, without secrets; clients may tell about every attempt and every package."""
    text = " ".join(redact(str(error)).split())
    if isinstance(error, OSError) and error.errno and error.strerror and not error.filename:
        text = " ".join(redact(str(error.strerror)).split())
    if len(text) > _LONG_REASON:
        text = text[:_LONG_REASON].rpartition(" ")[0] + " …"
    return text.rstrip(".") or type(error).__name__


def _is_about_credentials(error: BaseException) -> bool:
    return any(kind.__name__ in _CREDENTIAL_CLASSES for kind in type(error).__mro__)


def _response(error: BaseException) -> object:
    # s3fs keeps the error of botocore as the cause of the one it raises.
    for each in (error, error.__cause__):
        response = getattr(each, "response", None)
        if response is not None:
            return response
    return None


def _code(error: BaseException) -> str:
    response = _response(error)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def find_status(error: BaseException) -> int:
    """The HTTP status of the response that an error is about; 0 where there is none."""
    response = _response(error)
    if isinstance(response, dict):
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    for holder in (error, response):
        for name in ("status", "status_code", "code"):
            value = getattr(holder, name, None)
            if isinstance(value, int) or (isinstance(value, str) and value.isdigit()):
                return int(value)
    return 0
