"""Faults of storages: which are worth another attempt, and the errors that the others become."""

from __future__ import annotations

import errno
import random
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from fsspec.implementations.local import LocalFileSystem

from state_pipelines.errors import MissingFileError, StateError, StorageError, Where
from state_pipelines.redaction import redact
from state_pipelines.storage.locations import hide_option_values, is_repeated, leave_retries_to_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from state_pipelines.storage.locations import Location

_LOCK = Lock()
_sent = [0, 0]


@dataclass(frozen=True)
class RequestCounts:
    """Requests, attempts that failed among them, and what was read with them.

    Attributes:
        requests: number of requests, also to local disks; a listing counts as one, whatever its pages.
        bytes_read: bytes of files that came back.
    """

    requests: int
    bytes_read: int

    def __sub__(self, earlier: RequestCounts) -> RequestCounts:
        """Counts of what was sent between the two."""
        return RequestCounts(self.requests - earlier.requests, self.bytes_read - earlier.bytes_read)


def add_requests(requests: int, bytes_read: int = 0) -> None:
    """Add to the counts of this process; safe in any thread."""
    with _LOCK:
        _sent[0] += requests
        _sent[1] += bytes_read


def sent_requests() -> RequestCounts:
    """Counts since the process began."""
    with _LOCK:
        return RequestCounts(*_sent)


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
# Codes of S3, and of Azure, by what the storage refuses.
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

# What clients raise for options that they do not take, some of them not before the first request. Their texts may quote
# the options.
_WRONG_OPTIONS = (AttributeError, KeyError, TypeError, ValueError)

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
    code = _code(error)
    if find_status(error) in _TRANSIENT_STATUS or code.removeprefix(_ENCRYPTION_CODES) in _TRANSIENT_CODES:
        return True
    if _response(error) is not None:
        # The storage has answered: s3fs gives all answers that it does not know the number of a fault.
        return code in _CONFLICT_CODES
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
    """Translate faults of a block that cannot be repeated as a whole; see `request`."""
    try:
        yield
    except client_errors() as error:
        raise translate(location, operation, error, writes=writes) from error
    except _WRONG_OPTIONS as error:
        if not is_about_options(location, error):
            raise
        raise _refuse_options(location, operation, error) from error


def is_about_options(location: Location, error: BaseException) -> bool:
    """Return whether an exception that no client documents is about its options: it is no error of this package."""
    if isinstance(location.filesystem, LocalFileSystem) or isinstance(error, StateError):
        return False
    # Errors of Arrow, which reads files through a client, are about the content.
    return isinstance(error, _WRONG_OPTIONS) and type(error).__module__.partition(".")[0] != "pyarrow"


def _refuse_options(location: Location, operation: str, error: BaseException) -> StorageError:
    what = f"cannot {operation}: the client does not take its options ({type(error).__name__})"
    return StorageError(what, where=Where(file=str(location)), hint=_OPTIONS)


def translate(
    location: Location, operation: str, error: BaseException, *, attempts: int = 1, writes: bool = False
) -> StateError:
    """Make the error that a user sees of a fault of a storage."""
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
    """Name what a storage refuses, and what to do; None for other faults.

    A refusal says nothing of the file, which may be whole.
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
    """The region of the bucket as S3 names it in its answer; empty where it does not."""
    response = _response(error)
    if not isinstance(response, dict):
        return ""
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(headers.get("x-amz-bucket-region") or response.get("Error", {}).get("Region") or "")


def _explain_at(location: Location, error: BaseException) -> str:
    if isinstance(location.filesystem, LocalFileSystem):
        return explain(error)
    # A client may quote the URL, in which a password may have blanks.
    return explain(
        error, getattr(location.filesystem, "storage_options", None) or {}, urls={location.url: str(location)}
    )


def explain(
    error: BaseException, options: Mapping[str, Any] | None = None, urls: Mapping[str, str] | None = None
) -> str:
    """The reason of a fault in a few lines, without secrets; clients may tell about every attempt and every package.

    Args:
        error: the fault.
        options: of the file system, besides those that are remembered (`locations.remember_secrets`).
        urls: URLs that the reason may quote, and what is shown of them.
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
    # s3fs keeps the error of botocore as the cause of the one it raises, or as what it was handling.
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
