"""Retries of storage clients, which are left out where this package repeats a request (`faults.request`).

Both together would wait for minutes before they say that a storage does not answer. Streams are repeated by their
clients.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from state_pipelines.storage.google_credentials import SCHEMES as GOOGLE_SCHEMES
from state_pipelines.storage.locations import is_azure, is_s3, protocols

if TYPE_CHECKING:
    from collections.abc import Callable

    from fsspec import AbstractFileSystem

is_repeated = ContextVar("is_repeated", default=False)
"""Whether the caller repeats the request that is sent; fsspec runs its coroutines with the variables of the caller."""

_CONNECTIONS = 128
"""Connections that a client of S3 keeps; the default of botocore would hold more than ten requests back."""

_EXPIRED_TOKEN = 401
"""Status of a request to Google with a token that has expired; the next request renews it."""

_BUCKET_KIND_SECONDS = 2.0
"""Seconds for which gcsfs asks for the kind of a bucket; without an answer it takes the usual one, and asks again."""


def leave_retries_to_us(filesystem: AbstractFileSystem) -> None:
    """Let the client of a file system send a request once where the caller repeats it.

    It holds for clients of S3 that are not connected yet; file systems that come from another process need it again.
    """
    if is_s3(filesystem):
        _limit_s3(filesystem)
    elif not GOOGLE_SCHEMES.isdisjoint(protocols(filesystem)):
        _limit_google(filesystem)
    elif is_azure(filesystem):
        _limit_azure(filesystem)


def _limit_s3(filesystem: AbstractFileSystem) -> None:
    """Stop s3fs and botocore from repeating a request five times each, a read five times five times."""
    if getattr(filesystem, "retries", 1) == 1:
        return
    filesystem.retries = 1
    # Not changed in place: it is one of the options by which fsspec tells file systems apart.
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
    # Imported late: it is there when there is a file system of it.
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
    """Stop the client of Azure from repeating a request three times in ninety seconds, even without credentials."""
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
