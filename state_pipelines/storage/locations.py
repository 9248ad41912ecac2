"""Locations: a path on a file system that fsspec reaches, and the clients of storages.

Credentials of Google Cloud Storage, without a long wait for those that do not exist. gcsfs without credentials asks the
metadata server that Google's machines have, elsewhere for up to half a minute, and reads as anybody then.

Retries of storage clients, which are left out where this package repeats a request (`faults.request`). Both together
would wait for minutes before they say that a storage does not answer. Streams are repeated by their clients.
"""

from __future__ import annotations

import http.client
import os
import re
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote

from fsspec.implementations.local import LocalFileSystem

from state_pipelines.redaction import is_secret_name, redact_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsspec import AbstractFileSystem

_SINGLE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
_PLAIN_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
# Object stores, where directories exist only as beginnings of names.
_FLAT = frozenset({"s3", "gs", "gcs", "abfs", "az"})


class Reach(Protocol):
    """The directories in which a file may be."""

    def require(self, path: str, descriptor: int) -> None:
        """Refuse an open local file that is in none of them; `path` is that by which it was opened."""


@dataclass(frozen=True)
class Location:
    """A path on a file system; its text is the plain path when local, else the URL.

    Attributes:
        filesystem: the fsspec file system.
        path: path in the form of that file system.
        reach: of the snapshot that names this local file; the file is read only if it is in reach once it is open.
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
    """Whether a location lies on this machine."""
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
    """Schemes of a file system."""
    return (filesystem.protocol,) if isinstance(filesystem.protocol, str) else tuple(filesystem.protocol)


def is_plain_name(name: str) -> bool:
    """Whether a name means itself on every file system: letters, digits, `_`, and after the first `.` and `-`."""
    return _PLAIN_NAME.fullmatch(name) is not None


def complete_scheme(path: str) -> str:
    """Return a path with two slashes after its scheme: Flink writes `file:/a` for `file:///a`."""
    match = _SINGLE_SLASH.match(path)
    return path if match is None else f"{match[1]}:///{path[match.end() :]}"


def join(location: Location, *names: str) -> Location:
    """The location below `location`."""
    return Location(location.filesystem, "/".join((location.path.rstrip("/"), *names)))


def cut_directory(path: str) -> str:
    """Return the directory of an absolute path or URL: `/` for `/a`, `file:///` for `file:///a`."""
    head = complete_scheme(path).rpartition("/")[0]
    return f"{head}/" if not head or head.endswith("://") else head


def is_below(path: str, directory: str) -> bool:
    """Return whether a path is that of a directory or of something below it; both are in one form."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def parent(location: Location) -> Location:
    """The directory that holds `location`."""
    return Location(location.filesystem, location.path.rstrip("/").rpartition("/")[0] or "/")


_Result = TypeVar("_Result")


class Threads(ThreadPoolExecutor):
    """A pool of threads; each work has the context variables of the caller, as of `scoped_storage_options`."""

    def submit(self, work: Callable[..., _Result], /, *args: Any, **others: Any) -> Future[_Result]:
        """Begin a work, in the context of the caller."""
        return super().submit(copy_context().run, work, *args, **others)


_SHORTEST = 6
"""Characters of the shortest text that is hidden; shorter ones are found in too many words."""

_FRAGMENT = re.compile(r"[^\s;,:@/?&=\"'<>\\]+")
# An address without a user, a query or a blank: people need it to see which server does not answer.
_ADDRESS = re.compile(
    r"(?:[a-z][a-z0-9+.-]*://)?(?:[\w.-]+|\[[0-9a-f:.]+\])(?P<port>:[0-9]{1,5})?(?P<path>/[\w./-]*)?", re.IGNORECASE
)
_ADDRESS_NAME = re.compile(r"url|uri|endpoint|host|proxy|proxies", re.IGNORECASE)
_AUTHENTICATION_NAME = re.compile(r"(?<![^\W_])(?:auth|cookies?|headers?)(?![^\W_])", re.IGNORECASE)
_CONNECTION_NAME = re.compile(r"connection_?string", re.IGNORECASE)
# Ways of authentication of gcsfs (`GCSFileSystem.token`), which are no tokens, and names of files with credentials.
_NO_TOKEN = re.compile(r"anon|browser|cache|cloud|google_default|.*\.json", re.IGNORECASE)
# Fields of connection strings of Azure that are no secrets where they look like what they should be.
_PLAIN_FIELD = re.compile(
    r"(?:AccountName=[a-z0-9]{3,24}|DefaultEndpointsProtocol=https?|EndpointSuffix=[a-z0-9.-]+)", re.IGNORECASE
)


_known: set[str] = set()


def remember_secrets(options: Mapping[str, Any]) -> None:
    """Hide the secrets of the options of a file system in all texts of clients from now on, in this process."""
    _known.update(_find_secrets(options, is_secret=False, name=""))


def hide_option_values(text: str, options: Mapping[str, Any] | None = None) -> str:
    """Replace the secrets of storage options in a text of a client, in any case of letters.

    Secrets are the values of options whose names say so, connection strings, and addresses that have more than a host
    and a port; likewise their fragments between blanks and separators.

    Args:
        text: what a client says.
        options: options of the file system, besides those that are remembered.
    """
    secrets = _known.union(_find_secrets(options or {}, is_secret=False, name=""))
    # Clients may quote them as URLs have them.
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
    # A password may have the marks of a query; without a user before it, the server itself may be shown.
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
    """Add `token: anon` to options of gcsfs where there are no credentials; it reads public buckets.

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

    A server may be slow at first, as in new pods: the name of the machine is enough, and google-auth asks again.
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
    """Ask a metadata server, once a minute."""
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
    """Let the client of a file system send a request once where the caller repeats it.

    It holds for clients of S3 that are not connected yet; file systems that come from another process need it again.
    """
    if is_s3(filesystem):
        _limit_s3(filesystem)
    elif not SCHEMES.isdisjoint(protocols(filesystem)):
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
